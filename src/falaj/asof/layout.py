"""How a row of features lies online: one blob of a fixed layout.

    24 bytes  rank (core/online.py)
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

from falaj.asof.cells import Cells, cells_of
from falaj.asof.records import SCALARS, Field
from falaj.core.errors import Corrupt, Invalid
from falaj.core.online import LAST_US, RANK_BYTES

_FIXED = {"int64": "q", "float64": "d", "time": "q", "int32": "i", "float32": "f", "bool": "?"}
_DTYPES = {"q": "<i8", "d": "<f8", "i": "<i4", "f": "<f4", "?": "u1", "I": "<u4"}
_TEXTS = ("string", "bytes")
_MANY = 48
"""From so many rows on, numpy is faster than one row after the other."""
_END = struct.Struct("<I")
_FLIP = np.uint64(1 << 63)
Ints = np.ndarray[Any, np.dtype[np.int64]]


class Layout:
    """The layout of these fields."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.types = {one.name: one.type for one in self.fields}
        if len(self.types) != len(self.fields):
            raise Invalid("two fields of a row have one name", "name them apart")
        codes = {one.name: _code(one.type) for one in self.fields}
        said = "\n".join(f"{one.name}\t{one.type}" for one in self.fields)
        self.tag = hashlib.blake2b(b"1\n" + said.encode(), digest_size=4).digest()
        self.head_bytes = 32 + max(0, len(self.fields) - 32 + 63) // 64 * 8
        self.order = sorted(self.types, key=lambda name: -struct.calcsize("<" + codes[name]))
        self.codes = [codes[name] for name in self.order]
        self.size = self.head_bytes + struct.calcsize("<" + "".join(self.codes))
        self.tails = tuple(one.name for one in self.fields if codes[one.name] == "I")
        self.plain = self.tag + bytes(self.head_bytes - RANK_BYTES - 4)
        """What stands between the rank and the fields of a row without nulls."""
        self.bits = {one.name: 1 << number for number, one in enumerate(self.fields)}
        self.blank = (
            bytes(RANK_BYTES) + self.tag + b"\xff" * (self.head_bytes - 28) + bytes(self.size - self.head_bytes)
        )
        """No row: all null."""
        places = np.cumsum([self.head_bytes, *(struct.calcsize("<" + code) for code in self.codes)])
        self.dtype = np.dtype(
            {
                "names": ["rank", "tag", "nulls", *(f"f{number}" for number in range(len(self.order)))],
                "formats": ["V24", "V4", f"({self.head_bytes - 28},)u1", *(_DTYPES[code] for code in self.codes)],
                "offsets": [0, RANK_BYTES, RANK_BYTES + 4, *map(int, places[:-1])],
                "itemsize": self.size,
            }
        )
        self.column = {name: f"f{number}" for number, name in enumerate(self.order)}

    def encode(self, columns: Mapping[str, object], event_us: Ints, created_us: Ints, seq: Ints) -> list[bytes]:
        """A row for each of the values that stand beside each other: Arrow columns, arrays, or lists with None."""
        rows = np.zeros(len(event_us), self.dtype)
        rows["rank"] = _ranks(event_us, created_us, seq)
        rows["tag"] = np.void(self.tag)
        tails: list[list[bytes]] = []
        end = np.full(len(rows), self.size, np.uint32)
        for number, field in enumerate(self.fields):
            cells = self._cells(columns, field, len(rows))
            if cells.valid is not None:
                rows["nulls"][:, number // 8] |= np.left_shift(~cells.valid, number % 8, dtype=np.uint8)
            if field.name in self.tails:
                tails.append(_tail(cells))
                end += np.fromiter(map(len, tails[-1]), np.uint32, len(rows))
                rows[self.column[field.name]] = end
            else:
                values = cells.values if cells.valid is None else np.where(cells.valid, cells.values, 0)
                rows[self.column[field.name]] = values
        fixed: list[bytes] = rows.view(f"V{self.size}").tolist()
        return list(map(b"".join, zip(fixed, *tails, strict=True))) if tails else fixed

    def decoder(self, wanted: Sequence[str]) -> "Decoder":
        """What reads these fields, made once."""
        return Decoder(self, wanted)

    @staticmethod
    def _cells(columns: Mapping[str, object], field: Field, size: int) -> Cells:
        if field.name not in columns:
            raise Invalid(f"rows have no {field.name}", "give every field of the view")
        cells = cells_of(columns[field.name], field.type)
        if len(cells.values) != size or cells.type not in (field.type, "null"):
            raise Invalid(f"the column {field.name} is no column of {size} {field.type}", "give one value a row")
        return cells


class Decoder:
    """Reads some fields of rows of one layout."""

    def __init__(self, layout: Layout, wanted: Sequence[str]) -> None:
        unknown = [name for name in wanted if name not in layout.types]
        if unknown:
            raise Invalid(f"a row has no {unknown[0]}", f"it has {', '.join(layout.types)}"[:200])
        self._layout, self._wanted = layout, tuple(wanted)
        # Ends of the tail come along when any of it is wanted: each field begins where the one before it ends.
        self._tails = layout.tails if set(wanted) & set(layout.tails) else ()
        used = {*wanted, *self._tails}
        codes = [
            code if name in used else f"{struct.calcsize('<' + code)}x"
            for name, code in zip(layout.order, layout.codes, strict=True)
        ]
        form = struct.Struct(f"<{layout.head_bytes}x{''.join(codes)}")
        # Where all is of fixed width, a row of another length is an error at once.
        self._unpack: Callable[[bytes], tuple[Any, ...]] = form.unpack_from if layout.tails else form.unpack
        given = [name for name in layout.order if name in used]
        self._given = {name: place for place, name in enumerate(given)}
        self._same = given == list(wanted)
        self._items = {name: _item(layout.types[name]) for name in self._tails}

    def columns(self, rows: Sequence[bytes | None]) -> tuple[list[list[Any]], bool]:
        """Each field's values in these rows, None where null and where there is no row; and whether a row has nulls."""
        if not rows or not self._wanted:
            return [[None] * len(rows) for _ in self._wanted], False
        try:
            if not self._layout.tails and len(rows) >= _MANY:
                return self._many(rows)
            return self._few(rows)
        except (struct.error, UnicodeDecodeError) as error:
            raise _corrupt() from error

    def _few(self, rows: Sequence[bytes | None]) -> tuple[list[list[Any]], bool]:
        head, plain, unpack = self._layout.head_bytes, self._layout.plain, self._unpack
        found: list[Any] = []
        if not self._tails:
            found = [unpack(row) for row in rows if row is not None and row[RANK_BYTES:head] == plain]
        if len(found) == len(rows):
            columns = list(map(list, zip(*found, strict=True)))
            return columns if self._same else [columns[self._given[name]] for name in self._wanted], False
        nothing = [None] * len(self._wanted)
        every = [nothing if row is None else self._one(row) for row in rows]
        nulls = any(row is not None and row[RANK_BYTES:head] != plain for row in rows)
        return list(map(list, zip(*every, strict=True))), nulls

    def _one(self, row: bytes) -> Sequence[Any]:
        given, bits, nulls = self._given, self._layout.bits, self._nulls(row)
        values = self._unpack(row)
        if not nulls and self._same and not self._tails:
            return values
        found = self._tail_of(row, values, nulls) if self._tails else {}
        return [
            None if nulls & bits[name] else found[name] if name in found else values[given[name]]
            for name in self._wanted
        ]

    def _nulls(self, row: bytes) -> int:
        if row[RANK_BYTES : RANK_BYTES + 4] != self._layout.tag:
            raise _corrupt()
        return int.from_bytes(row[RANK_BYTES + 4 : self._layout.head_bytes], "little")

    def _tail_of(self, row: bytes, values: tuple[Any, ...], nulls: int) -> dict[str, Any]:
        found, start = {}, self._layout.size
        for name in self._tails:
            stop = values[self._given[name]]
            if not start <= stop <= len(row):
                raise _corrupt()
            if name in self._wanted and not nulls & self._layout.bits[name]:
                found[name] = self._items[name](row[start:stop])
            start = stop
        if start != len(row):
            raise _corrupt()
        return found

    def _many(self, rows: Sequence[bytes | None]) -> tuple[list[list[Any]], bool]:
        layout = self._layout
        there = [row for row in rows if row is not None]
        if set(map(len, there)) - {layout.size}:
            raise _corrupt()
        table = np.frombuffer(b"".join([layout.blank if row is None else row for row in rows]), layout.dtype)
        if np.any(table["tag"] != np.void(layout.tag)):
            raise _corrupt()
        columns, some = [], np.bitwise_or.reduce(table["nulls"], axis=0)
        for name in self._wanted:
            raw = table[layout.column[name]]
            values: list[Any] = (raw != 0).tolist() if layout.types[name] == "bool" else raw.tolist()
            byte, bit = divmod(layout.bits[name].bit_length() - 1, 8)
            if some[byte] & 1 << bit:
                for at in np.flatnonzero(table["nulls"][:, byte] & 1 << bit).tolist():
                    values[at] = None
            columns.append(values)
        nulls = bool(some.any()) and any(row[RANK_BYTES : layout.head_bytes] != layout.plain for row in there)
        return columns, nulls


def _code(kind: str) -> str:
    inner = kind[5:-1] if kind.startswith("list[") and kind.endswith("]") else kind
    if inner not in SCALARS:
        raise Invalid(f"{kind} is no type of a value", f"types are {', '.join(SCALARS)} and list[…] of one")
    return _FIXED.get(kind, "I")


def _ranks(event_us: Ints, created_us: Ints, seq: Ints) -> Any:
    numbers = np.empty((len(event_us), 3), ">u8")
    for place, one in enumerate((np.minimum(event_us, LAST_US), created_us, seq)):
        numbers[:, place] = np.asarray(one, np.int64).view(np.uint64) ^ _FLIP
    return numbers.view("V24")[:, 0]


def _tail(cells: Cells) -> list[bytes]:
    """Each value's bytes, none for a null."""
    values = cells.values.tolist()
    pack = _pack(cells.type)
    try:
        if cells.valid is None:
            return list(map(pack, values))
        return [pack(value) if there else b"" for value, there in zip(values, cells.valid.tolist(), strict=True)]
    except (struct.error, UnicodeEncodeError, TypeError) as error:
        raise Invalid(f"a value is no {cells.type}", "check what the source gives") from error


def _pack(kind: str) -> Callable[[Any], bytes]:
    if kind == "string":
        return str.encode
    if kind in ("bytes", "null"):
        return bytes
    item = kind[5:-1]
    return lambda values: _pack_list(item, values)


def _pack_list(kind: str, values: Sequence[Any]) -> bytes:
    nulls = sum(1 << place for place, value in enumerate(values) if value is None)
    head = _END.pack(len(values)) + nulls.to_bytes((len(values) + 7) // 8, "little")
    if kind in _TEXTS:
        pack = _pack(kind)
        texts = [b"" if value is None else pack(value) for value in values]
        return head + struct.pack(f"<{len(texts)}I", *map(len, texts)) + b"".join(texts)
    cells = cells_of(list(values), kind)
    return head + struct.pack(f"<{len(values)}{_FIXED[kind]}", *cells.values.tolist())


def _item(kind: str) -> Callable[[bytes], Any]:
    if kind == "string":
        return bytes.decode
    if kind == "bytes":
        return bytes
    item = kind[5:-1]
    return lambda data: _list(item, data)


def _list(kind: str, data: bytes) -> list[Any]:
    (count,) = _END.unpack_from(data)
    start = 4 + (count + 7) // 8
    if start > len(data):
        raise _corrupt()
    nulls = int.from_bytes(data[4:start], "little")
    values: list[Any]
    if kind in _TEXTS:
        lengths = struct.unpack_from(f"<{count}I", data, start)
        start += 4 * count
        if start + sum(lengths) != len(data):
            raise _corrupt()
        values, read = [], _item(kind)
        for length in lengths:
            values.append(read(data[start : start + length]))
            start += length
    else:
        values = list(struct.unpack(f"<{count}{_FIXED[kind]}", data[start:]))
    return [None if nulls >> place & 1 else value for place, value in enumerate(values)] if nulls else values


def _corrupt() -> Corrupt:
    return Corrupt("a row of the online store is not of its view's layout", "fill the view online anew")
