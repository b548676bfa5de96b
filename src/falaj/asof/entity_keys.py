"""Keys in one form: the same thing has the same bytes online, offline, in labels and on every machine.

A key of one or more typed parts is written part after part. int64 and time: 8 bytes, little-endian. bool: one byte.
string (UTF-8, as it is: nothing is normalised) and bytes: a 4-byte length and then the bytes, except as the last part,
which needs no length. Under one list of types no two keys have the same bytes. A null part is no key at all.

The partition of a key is the low bits of the CRC-32 (that of zlib) of its bytes. That never changes: files are laid
out by it.
"""

from collections.abc import Sequence
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from falaj.asof.moments import to_micros, to_moments
from falaj.asof.records import KEY_TYPES, MISSING_MOMENT
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
MAX_KEY_BYTES = 1 << 16
NUMERIC_KEY_TYPES = ("int64", "time")
"""Types whose single key is a number, compared as one."""


def encode_key(values: Sequence[object], types: Sequence[str]) -> bytes | None:
    """The bytes of one key, or None where a part is null."""
    if len(values) != len(types):
        raise Invalid(f"this key has {len(values)} parts, not {len(types)}", "give one value for each key")
    parts = []
    last = len(types) - 1
    for position, (value, kind) in enumerate(zip(values, types, strict=True)):
        if value is None:
            return None
        part = _encode_part(value, kind)
        parts.append(
            part if position == last or kind not in {"string", "bytes"} else len(part).to_bytes(4, "little") + part
        )
    encoded = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(encoded) > MAX_KEY_BYTES:
        raise Invalid("this key is too long", f"keys have at most {MAX_KEY_BYTES} bytes")
    return encoded


def compute_partition(key: bytes, count: int) -> int:
    """Which of `count` (a power of two) partitions the key lies in."""
    return crc32(key) & (count - 1)


class DistinctKeys(NamedTuple):
    """Each row's key by its place among the distinct ones; -1 where it has none."""

    codes: Ints
    distinct: list[bytes]


def encode_distinct_keys(columns: Sequence["pa.Array"], types: Sequence[str], zone: str = "") -> DistinctKeys:
    """The keys of rows, for whoever needs their bytes."""
    import pyarrow as pa

    encoded = build_key_column(columns, types, zone).packed_bytes().dictionary_encode()
    codes = encoded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return DistinctKeys(codes, encoded.dictionary.to_pylist())


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """The keys of many rows in the form in which they are compared: numbers where a key is one number, else bytes."""

    valid: Mask
    numbers: Ints | None = None
    packed: Any = None
    """A pyarrow LargeBinaryArray."""

    def __len__(self) -> int:
        return len(self.valid)

    def take(self, rows: Ints) -> "KeyColumn":
        if self.numbers is not None:
            return KeyColumn(self.valid[rows], self.numbers[rows])
        return KeyColumn(self.valid[rows], None, self.packed.take(_to_arrow_indices(rows)))

    def packed_bytes(self) -> "pa.LargeBinaryArray":
        """As bytes, null where there is no key."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.numbers is None:
            return self.packed
        fixed = pa.Array.from_buffers(pa.binary(8), len(self), [None, pa.py_buffer(_to_little_endian(self.numbers))])
        return pc.if_else(pa.array(self.valid), fixed.cast(pa.large_binary()), None)

    def partitions(self, count: int) -> NDArray[np.uint16]:
        """Each key's partition among `count`; 0 where there is no key."""
        if count == 1:
            return np.zeros(len(self), np.uint16)
        if self.numbers is not None:
            hashed = _compute_crc_of_ints(self.numbers)
        else:
            encoded = self.packed.dictionary_encode()
            hashes_by_code = np.fromiter(
                (crc32(key) for key in encoded.dictionary.to_pylist()), np.uint32, len(encoded.dictionary)
            )
            codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
            hashed = hashes_by_code[codes] if len(hashes_by_code) else np.zeros(len(self), np.uint32)
        partition_numbers: NDArray[np.uint16] = (hashed & np.uint32(count - 1)).astype(np.uint16)
        return np.where(self.valid, partition_numbers, np.uint16(0))

    def places_in(self, distinct: "KeyColumn") -> Ints:
        """Where each key stands among distinct, ascending ones; -1 where it does not."""
        if len(distinct) == 0:
            return np.full(len(self), -1, np.int64)
        if self.numbers is None:
            import pyarrow.compute as pc

            indices = pc.index_in(self.packed, value_set=distinct.packed, skip_nulls=True)
            positions: Ints = indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            return positions
        distinct_numbers = distinct.numbers
        assert distinct_numbers is not None  # noqa: S101  # nosec B101 - both sides have the same types
        positions = np.searchsorted(distinct_numbers, self.numbers).astype(np.int64, copy=False)
        positions[positions == len(distinct_numbers)] = 0
        return np.where((distinct_numbers[positions] == self.numbers) & self.valid, positions, -1)

    def ascending(self) -> bool:
        """Whether each is greater than the one before it, as in a segment."""
        if self.numbers is not None:
            return bool(np.all(self.numbers[1:] > self.numbers[:-1]))
        import pyarrow.compute as pc

        return pc.all(pc.greater(self.packed[1:], self.packed[:-1]), min_count=0).as_py() is True

    def sortable(self) -> Ints:
        """Numbers that stand in the order of the keys and are equal where these are."""
        if self.numbers is not None:
            return self.numbers
        import pyarrow.compute as pc

        encoded = self.packed.dictionary_encode()
        order = pc.sort_indices(encoded.dictionary).to_numpy(zero_copy_only=False)
        rank = np.empty(len(order) + 1, np.int64)
        rank[order] = np.arange(len(order))
        rank[-1] = -1
        sort_codes: Ints = rank[encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        return sort_codes


def build_key_column(columns: Sequence["pa.Array"], types: Sequence[str], zone: str = "") -> KeyColumn:
    """Columns of key parts, cast to their types, as one column of keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    contiguous = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
    parts = [cast_key_column(column, kind, zone) for column, kind in zip(contiguous, types, strict=True)]
    if len(parts) == 1 and types[0] in NUMERIC_KEY_TYPES:
        is_valid = parts[0].is_valid().to_numpy(zero_copy_only=False)
        numbers = parts[0].cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return KeyColumn(is_valid, numbers)
    last = len(parts) - 1
    packed_parts = [
        _pack_part(part, kind, position == last) for position, (part, kind) in enumerate(zip(parts, types, strict=True))
    ]
    joined = packed_parts[0] if len(packed_parts) == 1 else _join_parts(packed_parts)
    longest = pc.max(pc.binary_length(joined)).as_py()
    if longest is not None and longest > MAX_KEY_BYTES:
        raise Invalid("a key is too long", f"keys have at most {MAX_KEY_BYTES} bytes")
    return KeyColumn(joined.is_valid().to_numpy(zero_copy_only=False), None, joined)


def cast_key_column(column: "pa.Array", kind: str, zone: str = "") -> "pa.Array":
    """A column as the type of key it is to be; whole floats (a frame with gaps in it) count as ints."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, own_type = pa.types, column.type
    if types.is_dictionary(own_type):
        column = column.dictionary_decode()
        own_type = column.type
    is_text_type = types.is_string(own_type) or types.is_large_string(own_type) or types.is_string_view(own_type)
    is_binary_type = types.is_binary(own_type) or types.is_large_binary(own_type) or types.is_binary_view(own_type)
    is_castable = {
        "int64": types.is_integer(own_type) or types.is_floating(own_type),
        "bool": types.is_boolean(own_type),
        "string": is_text_type,
        "bytes": is_binary_type or types.is_fixed_size_binary(own_type),
        "time": True,
    }
    if kind not in KEY_TYPES:
        raise Invalid(f"{kind} cannot be a key", f"keys are {', '.join(KEY_TYPES)}")
    if not (is_castable[kind] or types.is_null(own_type)):
        raise Invalid(f"a key of type {kind} is given as {own_type}", f"cast the column to {kind} first")
    if kind == "time" and not types.is_null(own_type):
        moment_values = to_moments(column, zone)
        return pa.array(moment_values, pa.int64(), mask=moment_values == MISSING_MOMENT).cast(pa.timestamp("us", "UTC"))
    if types.is_floating(own_type):
        column = pc.if_else(pc.is_nan(column), None, column)
    arrow_types = {"int64": pa.int64(), "bool": pa.bool_(), "string": pa.large_string(), "bytes": pa.large_binary()}
    try:
        return column.cast(arrow_types.get(kind, pa.timestamp("us", "UTC")))
    except pa.ArrowInvalid:
        raise Invalid(f"a key is not {kind}", "keys are whole numbers within 64 bits, or text") from None


def _encode_part(value: Any, kind: str) -> bytes:
    if kind == "string" and isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise Invalid("a key is not Unicode text", "give text that can be written as UTF-8") from None
    if kind == "bytes" and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if kind == "bool" and isinstance(value, bool | np.bool_):
        return b"\1" if value else b"\0"
    if kind == "time":
        return to_micros(value).to_bytes(8, "little", signed=True)
    if kind == "int64" and not isinstance(value, bool | np.bool_):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if hasattr(value, "__index__") and -(1 << 63) <= index(value) < 1 << 63:
            return index(value).to_bytes(8, "little", signed=True)
    raise Invalid(f"a key is not {kind}", f"give a value of type {kind} (kinds of key: {', '.join(KEY_TYPES)})")


def _pack_part(part: "pa.Array", kind: str, is_last: bool) -> "pa.Array":
    """One part of each key as LargeBinary, with its length before it unless it is the last."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind in NUMERIC_KEY_TYPES:
        numbers = part.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return KeyColumn(part.is_valid().to_numpy(zero_copy_only=False), numbers).packed_bytes()
    if kind == "bool":
        return pc.if_else(part, pa.scalar(b"\1", pa.large_binary()), pa.scalar(b"\0", pa.large_binary()))
    binary_values = part.cast(pa.large_binary())
    if is_last:
        return binary_values
    lengths = pc.binary_length(binary_values).fill_null(0).to_numpy(zero_copy_only=False).astype("<u4")
    length_prefixes = pa.Array.from_buffers(pa.binary(4), len(binary_values), [None, pa.py_buffer(lengths)]).cast(
        pa.large_binary()
    )
    return _join_parts([length_prefixes, binary_values])


def _join_parts(parts: Sequence["pa.Array"]) -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _to_arrow_indices(rows: Ints) -> "pa.Array":
    import pyarrow as pa

    return pa.array(rows, pa.int64())


def _to_little_endian(numbers: Ints) -> NDArray[Any]:
    return np.ascontiguousarray(numbers.astype("<i8", copy=False))


def _compute_crc_of_ints(numbers: Ints) -> NDArray[np.uint32]:
    """CRC-32 of each number's 8 bytes. It is linear, so each 16 bits bring their share from a table."""
    tables, zero = _build_crc_tables()
    half_words = _to_little_endian(numbers).view("<u2").reshape(-1, 4)
    checksums: NDArray[np.uint32] = tables[0][half_words[:, 0]]
    for position in range(1, 4):
        checksums ^= tables[position][half_words[:, position]]
    checksums ^= zero
    return checksums


@cache
def _build_crc_tables() -> tuple[list[NDArray[np.uint32]], np.uint32]:
    zero = crc32(bytes(8))
    values = np.arange(1 << 16)
    tables = []
    for position in range(4):
        bits = [crc32((1 << (16 * position + bit)).to_bytes(8, "little")) ^ zero for bit in range(16)]
        table = np.zeros(1 << 16, np.uint32)
        for bit, share in enumerate(bits):
            table ^= np.where(values >> bit & 1, np.uint32(share), np.uint32(0))
        tables.append(table)
    return tables, np.uint32(zero)
