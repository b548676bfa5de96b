"""How a row of features lies online: one blob of a fixed layout.

    24 bytes  rank (core/online_rows.py)
     4 bytes  tag of the layout: a row of another is refused, never misread
     n bytes  a bit for each field, set where it is null; padded so that what follows is aligned
     fields   little-endian, the widest first; of a text, bytes or a list the place behind its end (4 bytes)
     tail     texts (UTF-8), bytes and lists one behind the other

A list is a count (4 bytes), a bit for each null in it, and then its items as fields are; texts behind their lengths.
Null fields are zero, so that the same values make the same bytes. Everything read is checked; what does not fit is
Corrupt.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from falaj.asof.column_values import ColumnValues, to_column_values
from falaj.asof.records import SCALAR_TYPES, FeatureField
from falaj.core.errors import CorruptData, Invalid
from falaj.core.online_rows import LAST_MOMENT_US, RANK_BYTES

_FIXED = {"int64": "q", "float64": "d", "time": "q", "int32": "i", "float32": "f", "bool": "?"}
_DTYPES = {"q": "<i8", "d": "<f8", "i": "<i4", "f": "<f4", "?": "u1", "I": "<u4"}
_TEXT_TYPES = ("string", "bytes")
_MIN_VECTORIZED_ROWS = 48
"""From so many rows on, numpy is faster than one row after the other."""
_LENGTH_FORMAT = struct.Struct("<I")
_SIGN_BIT = np.uint64(1 << 63)
Ints = np.ndarray[Any, np.dtype[np.int64]]


class RowLayout:
    """The layout of these fields."""

    def __init__(self, fields: Sequence[FeatureField]) -> None:
        self.fields = tuple(fields)
        self.types = {field.name: field.type for field in self.fields}
        if len(self.types) != len(self.fields):
            raise Invalid("two fields of a row have one name", "name them apart")
        codes = {field.name: _get_format_code(field.type) for field in self.fields}
        field_text = "\n".join(f"{field.name}\t{field.type}" for field in self.fields)
        self.tag = hashlib.blake2b(b"1\n" + field_text.encode(), digest_size=4).digest()
        self.head_bytes = 32 + max(0, len(self.fields) - 32 + 63) // 64 * 8
        self.order = sorted(self.types, key=lambda name: -struct.calcsize("<" + codes[name]))
        self.codes = [codes[name] for name in self.order]
        self.size = self.head_bytes + struct.calcsize("<" + "".join(self.codes))
        self.tails = tuple(field.name for field in self.fields if codes[field.name] == "I")
        self.plain = self.tag + bytes(self.head_bytes - RANK_BYTES - 4)
        """What stands between the rank and the fields of a row without nulls."""
        self.bits = {field.name: 1 << number for number, field in enumerate(self.fields)}
        self.blank = (
            bytes(RANK_BYTES) + self.tag + b"\xff" * (self.head_bytes - 28) + bytes(self.size - self.head_bytes)
        )
        """No row: all null."""
        offsets = np.cumsum([self.head_bytes, *(struct.calcsize("<" + code) for code in self.codes)])
        self.dtype = np.dtype(
            {
                "names": ["rank", "tag", "nulls", *(f"f{number}" for number in range(len(self.order)))],
                "formats": ["V24", "V4", f"({self.head_bytes - 28},)u1", *(_DTYPES[code] for code in self.codes)],
                "offsets": [0, RANK_BYTES, RANK_BYTES + 4, *map(int, offsets[:-1])],
                "itemsize": self.size,
            }
        )
        self.column = {name: f"f{number}" for number, name in enumerate(self.order)}

    def encode(self, columns: Mapping[str, object], event_us: Ints, created_us: Ints, seq: Ints) -> list[bytes]:
        """A row for each of the values that stand beside each other: Arrow columns, arrays, or lists with None."""
        rows = np.zeros(len(event_us), self.dtype)
        rows["rank"] = _pack_ranks(event_us, created_us, seq)
        rows["tag"] = np.void(self.tag)
        tail_parts: list[list[bytes]] = []
        tail_ends = np.full(len(rows), self.size, np.uint32)
        for number, field in enumerate(self.fields):
            values = self._get_field_values(columns, field, len(rows))
            if values.valid is not None:
                rows["nulls"][:, number // 8] |= np.left_shift(~values.valid, number % 8, dtype=np.uint8)
            if field.name in self.tails:
                tail_parts.append(_pack_tails(values))
                tail_ends += np.fromiter(map(len, tail_parts[-1]), np.uint32, len(rows))
                rows[self.column[field.name]] = tail_ends
            else:
                stored_values = values.values if values.valid is None else np.where(values.valid, values.values, 0)
                rows[self.column[field.name]] = stored_values
        fixed: list[bytes] = rows.view(f"V{self.size}").tolist()
        return list(map(b"".join, zip(fixed, *tail_parts, strict=True))) if tail_parts else fixed

    def decoder(self, field_names: Sequence[str]) -> "RowDecoder":
        """What reads these fields, made once."""
        return RowDecoder(self, field_names)

    @staticmethod
    def _get_field_values(columns: Mapping[str, object], field: FeatureField, size: int) -> ColumnValues:
        if field.name not in columns:
            raise Invalid(f"rows have no {field.name}", "give every field of the view")
        values = to_column_values(columns[field.name], field.type)
        if len(values.values) != size or values.type not in (field.type, "null"):
            raise Invalid(f"the column {field.name} is no column of {size} {field.type}", "give one value a row")
        return values


class RowDecoder:
    """Reads some fields of rows of one layout."""

    def __init__(self, layout: RowLayout, field_names: Sequence[str]) -> None:
        unknown = [name for name in field_names if name not in layout.types]
        if unknown:
            raise Invalid(f"a row has no {unknown[0]}", f"it has {', '.join(layout.types)}"[:200])
        self._layout, self._field_names = layout, tuple(field_names)
        # Ends of the tail come along when any of it is wanted: each field begins where the one before it ends.
        self._tail_fields = layout.tails if set(field_names) & set(layout.tails) else ()
        needed_names = {*field_names, *self._tail_fields}
        codes = [
            code if name in needed_names else f"{struct.calcsize('<' + code)}x"
            for name, code in zip(layout.order, layout.codes, strict=True)
        ]
        row_format = struct.Struct(f"<{layout.head_bytes}x{''.join(codes)}")
        # Where all is of fixed width, a row of another length is an error at once.
        self._unpack: Callable[[bytes], tuple[Any, ...]] = row_format.unpack_from if layout.tails else row_format.unpack
        unpacked_names = [name for name in layout.order if name in needed_names]
        self._unpacked_positions = {name: position for position, name in enumerate(unpacked_names)}
        self._is_requested_order = unpacked_names == list(field_names)
        self._item_readers = {name: _make_item_reader(layout.types[name]) for name in self._tail_fields}

    def columns(self, rows: Sequence[bytes | None]) -> tuple[list[list[Any]], bool]:
        """Each field's values in these rows, None where null and where there is no row; and whether a row has nulls."""
        if not rows or not self._field_names:
            return [[None] * len(rows) for _ in self._field_names], False
        try:
            if not self._layout.tails and len(rows) >= _MIN_VECTORIZED_ROWS:
                return self._decode_vectorized(rows)
            return self._decode_row_by_row(rows)
        except (struct.error, UnicodeDecodeError) as error:
            raise _corrupt_row_error() from error

    def _decode_row_by_row(self, rows: Sequence[bytes | None]) -> tuple[list[list[Any]], bool]:
        header_bytes, header_without_nulls, unpack = self._layout.head_bytes, self._layout.plain, self._unpack
        unpacked: list[Any] = []
        if not self._tail_fields:
            unpacked = [
                unpack(row) for row in rows if row is not None and row[RANK_BYTES:header_bytes] == header_without_nulls
            ]
        if len(unpacked) == len(rows):
            columns = list(map(list, zip(*unpacked, strict=True)))
            return columns if self._is_requested_order else [
                columns[self._unpacked_positions[name]] for name in self._field_names
            ], False
        empty_values = [None] * len(self._field_names)
        all_values = [empty_values if row is None else self._decode_row(row) for row in rows]
        nulls = any(row is not None and row[RANK_BYTES:header_bytes] != header_without_nulls for row in rows)
        return list(map(list, zip(*all_values, strict=True))), nulls

    def _decode_row(self, row: bytes) -> Sequence[Any]:
        positions, null_bits, null_mask = self._unpacked_positions, self._layout.bits, self._read_null_bits(row)
        values = self._unpack(row)
        if not null_mask and self._is_requested_order and not self._tail_fields:
            return values
        tail_values = self._read_tail(row, values, null_mask) if self._tail_fields else {}
        return [
            None
            if null_mask & null_bits[name]
            else tail_values[name]
            if name in tail_values
            else values[positions[name]]
            for name in self._field_names
        ]

    def _read_null_bits(self, row: bytes) -> int:
        if row[RANK_BYTES : RANK_BYTES + 4] != self._layout.tag:
            raise _corrupt_row_error()
        return int.from_bytes(row[RANK_BYTES + 4 : self._layout.head_bytes], "little")

    def _read_tail(self, row: bytes, values: tuple[Any, ...], null_mask: int) -> dict[str, Any]:
        tail_values, start = {}, self._layout.size
        for name in self._tail_fields:
            end = values[self._unpacked_positions[name]]
            if not start <= end <= len(row):
                raise _corrupt_row_error()
            if name in self._field_names and not null_mask & self._layout.bits[name]:
                tail_values[name] = self._item_readers[name](row[start:end])
            start = end
        if start != len(row):
            raise _corrupt_row_error()
        return tail_values

    def _decode_vectorized(self, rows: Sequence[bytes | None]) -> tuple[list[list[Any]], bool]:
        layout = self._layout
        existing_rows = [row for row in rows if row is not None]
        if set(map(len, existing_rows)) - {layout.size}:
            raise _corrupt_row_error()
        table = np.frombuffer(b"".join([layout.blank if row is None else row for row in rows]), layout.dtype)
        if np.any(table["tag"] != np.void(layout.tag)):
            raise _corrupt_row_error()
        columns, any_nulls = [], np.bitwise_or.reduce(table["nulls"], axis=0)
        for name in self._field_names:
            raw_values = table[layout.column[name]]
            values: list[Any] = (raw_values != 0).tolist() if layout.types[name] == "bool" else raw_values.tolist()
            byte_index, bit_index = divmod(layout.bits[name].bit_length() - 1, 8)
            if any_nulls[byte_index] & 1 << bit_index:
                for position in np.flatnonzero(table["nulls"][:, byte_index] & 1 << bit_index).tolist():
                    values[position] = None
            columns.append(values)
        nulls = bool(any_nulls.any()) and any(
            row[RANK_BYTES : layout.head_bytes] != layout.plain for row in existing_rows
        )
        return columns, nulls


def _get_format_code(kind: str) -> str:
    item_kind = kind[5:-1] if kind.startswith("list[") and kind.endswith("]") else kind
    if item_kind not in SCALAR_TYPES:
        raise Invalid(f"{kind} is no type of a value", f"types are {', '.join(SCALAR_TYPES)} and list[…] of one")
    return _FIXED.get(kind, "I")


def _pack_ranks(event_us: Ints, created_us: Ints, seq: Ints) -> Any:
    packed = np.empty((len(event_us), 3), ">u8")
    for column_number, rank_part in enumerate((np.minimum(event_us, LAST_MOMENT_US), created_us, seq)):
        packed[:, column_number] = np.asarray(rank_part, np.int64).view(np.uint64) ^ _SIGN_BIT
    return packed.view("V24")[:, 0]


def _pack_tails(values: ColumnValues) -> list[bytes]:
    """Each value's bytes, none for a null."""
    python_values = values.values.tolist()
    pack_value = _make_packer(values.type)
    try:
        if values.valid is None:
            return list(map(pack_value, python_values))
        return [
            pack_value(value) if is_valid else b""
            for value, is_valid in zip(python_values, values.valid.tolist(), strict=True)
        ]
    except (struct.error, UnicodeEncodeError, TypeError) as error:
        raise Invalid(f"a value is no {values.type}", "check what the source gives") from error


def _make_packer(kind: str) -> Callable[[Any], bytes]:
    if kind == "string":
        return str.encode
    if kind in ("bytes", "null"):
        return bytes
    item_kind = kind[5:-1]
    return lambda values: _pack_list(item_kind, values)


def _pack_list(kind: str, values: Sequence[Any]) -> bytes:
    null_mask = sum(1 << position for position, value in enumerate(values) if value is None)
    header = _LENGTH_FORMAT.pack(len(values)) + null_mask.to_bytes((len(values) + 7) // 8, "little")
    if kind in _TEXT_TYPES:
        pack_text = _make_packer(kind)
        texts = [b"" if value is None else pack_text(value) for value in values]
        return header + struct.pack(f"<{len(texts)}I", *map(len, texts)) + b"".join(texts)
    item_values = to_column_values(list(values), kind)
    return header + struct.pack(f"<{len(values)}{_FIXED[kind]}", *item_values.values.tolist())


def _make_item_reader(kind: str) -> Callable[[bytes], Any]:
    if kind == "string":
        return bytes.decode
    if kind == "bytes":
        return bytes
    item_kind = kind[5:-1]
    return lambda data: _unpack_list(item_kind, data)


def _unpack_list(kind: str, data: bytes) -> list[Any]:
    (count,) = _LENGTH_FORMAT.unpack_from(data)
    start = 4 + (count + 7) // 8
    if start > len(data):
        raise _corrupt_row_error()
    null_mask = int.from_bytes(data[4:start], "little")
    values: list[Any]
    if kind in _TEXT_TYPES:
        lengths = struct.unpack_from(f"<{count}I", data, start)
        start += 4 * count
        if start + sum(lengths) != len(data):
            raise _corrupt_row_error()
        values, read_item = [], _make_item_reader(kind)
        for length in lengths:
            values.append(read_item(data[start : start + length]))
            start += length
    else:
        values = list(struct.unpack(f"<{count}{_FIXED[kind]}", data[start:]))
    return (
        [None if null_mask >> position & 1 else value for position, value in enumerate(values)] if null_mask else values
    )


def _corrupt_row_error() -> CorruptData:
    return CorruptData("a row of the online store is not of its view's layout", "fill the view online anew")
