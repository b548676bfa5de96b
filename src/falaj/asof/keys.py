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

from falaj.asof.moments import micros, moments
from falaj.asof.records import KEYS, MISSING
from falaj.core.data import dataclass
from falaj.core.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
MAX_KEY_BYTES = 1 << 16
NUMBERS = ("int64", "time")
"""Types whose single key is a number, compared as one."""


def key_bytes(values: Sequence[object], types: Sequence[str]) -> bytes | None:
    """The bytes of one key, or None where a part is null."""
    if len(values) != len(types):
        raise Invalid(f"this key has {len(values)} parts, not {len(types)}", "give one value for each key")
    parts = []
    last = len(types) - 1
    for at, (value, kind) in enumerate(zip(values, types, strict=True)):
        if value is None:
            return None
        part = _part(value, kind)
        parts.append(part if at == last or kind not in {"string", "bytes"} else len(part).to_bytes(4, "little") + part)
    whole = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(whole) > MAX_KEY_BYTES:
        raise Invalid("this key is too long", f"keys have at most {MAX_KEY_BYTES} bytes")
    return whole


def partition_of(key: bytes, count: int) -> int:
    """Which of `count` (a power of two) partitions the key lies in."""
    return crc32(key) & (count - 1)


class Keys(NamedTuple):
    """Each row's key by its place among the distinct ones; -1 where it has none."""

    codes: Ints
    distinct: list[bytes]


def keys_of(columns: Sequence["pa.Array"], types: Sequence[str], zone: str = "") -> Keys:
    """The keys of rows, for whoever needs their bytes."""
    import pyarrow as pa

    coded = key_column(columns, types, zone).packed_bytes().dictionary_encode()
    codes = coded.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return Keys(codes, coded.dictionary.to_pylist())


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
        return KeyColumn(self.valid[rows], None, self.packed.take(_indices(rows)))

    def packed_bytes(self) -> "pa.LargeBinaryArray":
        """As bytes, null where there is no key."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.numbers is None:
            return self.packed
        fixed = pa.Array.from_buffers(pa.binary(8), len(self), [None, pa.py_buffer(_little(self.numbers))])
        return pc.if_else(pa.array(self.valid), fixed.cast(pa.large_binary()), None)

    def partitions(self, count: int) -> NDArray[np.uint16]:
        """Each key's partition among `count`; 0 where there is no key."""
        if count == 1:
            return np.zeros(len(self), np.uint16)
        if self.numbers is not None:
            hashed = _crc_of_ints(self.numbers)
        else:
            coded = self.packed.dictionary_encode()
            each = np.fromiter((crc32(key) for key in coded.dictionary.to_pylist()), np.uint32, len(coded.dictionary))
            codes = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
            hashed = each[codes] if len(each) else np.zeros(len(self), np.uint32)
        found: NDArray[np.uint16] = (hashed & np.uint32(count - 1)).astype(np.uint16)
        return np.where(self.valid, found, np.uint16(0))

    def places_in(self, distinct: "KeyColumn") -> Ints:
        """Where each key stands among distinct, ascending ones; -1 where it does not."""
        if len(distinct) == 0:
            return np.full(len(self), -1, np.int64)
        if self.numbers is None:
            import pyarrow.compute as pc

            found = pc.index_in(self.packed, value_set=distinct.packed, skip_nulls=True)
            places: Ints = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            return places
        others = distinct.numbers
        assert others is not None  # noqa: S101  # nosec B101 - both sides have the same types
        places = np.searchsorted(others, self.numbers).astype(np.int64, copy=False)
        places[places == len(others)] = 0
        return np.where((others[places] == self.numbers) & self.valid, places, -1)

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

        coded = self.packed.dictionary_encode()
        order = pc.sort_indices(coded.dictionary).to_numpy(zero_copy_only=False)
        rank = np.empty(len(order) + 1, np.int64)
        rank[order] = np.arange(len(order))
        rank[-1] = -1
        found: Ints = rank[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        return found


def key_column(columns: Sequence["pa.Array"], types: Sequence[str], zone: str = "") -> KeyColumn:
    """Columns of key parts, cast to their types, as one column of keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
    parts = [typed_key(column, kind, zone) for column, kind in zip(whole, types, strict=True)]
    if len(parts) == 1 and types[0] in NUMBERS:
        there = parts[0].is_valid().to_numpy(zero_copy_only=False)
        numbers = parts[0].cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return KeyColumn(there, numbers)
    last = len(parts) - 1
    packed = [_packed(part, kind, at == last) for at, (part, kind) in enumerate(zip(parts, types, strict=True))]
    joined = packed[0] if len(packed) == 1 else _joined(packed)
    longest = pc.max(pc.binary_length(joined)).as_py()
    if longest is not None and longest > MAX_KEY_BYTES:
        raise Invalid("a key is too long", f"keys have at most {MAX_KEY_BYTES} bytes")
    return KeyColumn(joined.is_valid().to_numpy(zero_copy_only=False), None, joined)


def typed_key(column: "pa.Array", kind: str, zone: str = "") -> "pa.Array":
    """A column as the type of key it is to be; whole floats (a frame with gaps in it) count as ints."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, have = pa.types, column.type
    if types.is_dictionary(have):
        column = column.dictionary_decode()
        have = column.type
    texts = types.is_string(have) or types.is_large_string(have) or types.is_string_view(have)
    raw = types.is_binary(have) or types.is_large_binary(have) or types.is_binary_view(have)
    fits = {
        "int64": types.is_integer(have) or types.is_floating(have),
        "bool": types.is_boolean(have),
        "string": texts,
        "bytes": raw or types.is_fixed_size_binary(have),
        "time": True,
    }
    if kind not in KEYS:
        raise Invalid(f"{kind} cannot be a key", f"keys are {', '.join(KEYS)}")
    if not (fits[kind] or types.is_null(have)):
        raise Invalid(f"a key of type {kind} is given as {have}", f"cast the column to {kind} first")
    if kind == "time" and not types.is_null(have):
        found = moments(column, zone)
        return pa.array(found, pa.int64(), mask=found == MISSING).cast(pa.timestamp("us", "UTC"))
    if types.is_floating(have):
        column = pc.if_else(pc.is_nan(column), None, column)
    to = {"int64": pa.int64(), "bool": pa.bool_(), "string": pa.large_string(), "bytes": pa.large_binary()}
    try:
        return column.cast(to.get(kind, pa.timestamp("us", "UTC")))
    except pa.ArrowInvalid:
        raise Invalid(f"a key is not {kind}", "keys are whole numbers within 64 bits, or text") from None


def _part(value: Any, kind: str) -> bytes:
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
        return micros(value).to_bytes(8, "little", signed=True)
    if kind == "int64" and not isinstance(value, bool | np.bool_):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if hasattr(value, "__index__") and -(1 << 63) <= index(value) < 1 << 63:
            return index(value).to_bytes(8, "little", signed=True)
    raise Invalid(f"a key is not {kind}", f"give a value of type {kind} (kinds of key: {', '.join(KEYS)})")


def _packed(part: "pa.Array", kind: str, last: bool) -> "pa.Array":
    """One part of each key as LargeBinary, with its length before it unless it is the last."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind in NUMBERS:
        numbers = part.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return KeyColumn(part.is_valid().to_numpy(zero_copy_only=False), numbers).packed_bytes()
    if kind == "bool":
        return pc.if_else(part, pa.scalar(b"\1", pa.large_binary()), pa.scalar(b"\0", pa.large_binary()))
    raw = part.cast(pa.large_binary())
    if last:
        return raw
    lengths = pc.binary_length(raw).fill_null(0).to_numpy(zero_copy_only=False).astype("<u4")
    heads = pa.Array.from_buffers(pa.binary(4), len(raw), [None, pa.py_buffer(lengths)]).cast(pa.large_binary())
    return _joined([heads, raw])


def _joined(parts: Sequence["pa.Array"]) -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _indices(rows: Ints) -> "pa.Array":
    import pyarrow as pa

    return pa.array(rows, pa.int64())


def _little(numbers: Ints) -> NDArray[Any]:
    return np.ascontiguousarray(numbers.astype("<i8", copy=False))


def _crc_of_ints(numbers: Ints) -> NDArray[np.uint32]:
    """CRC-32 of each number's 8 bytes. It is linear, so each 16 bits bring their share from a table."""
    tables, zero = _crc_tables()
    halves = _little(numbers).view("<u2").reshape(-1, 4)
    found: NDArray[np.uint32] = tables[0][halves[:, 0]]
    for at in range(1, 4):
        found ^= tables[at][halves[:, at]]
    found ^= zero
    return found


@cache
def _crc_tables() -> tuple[list[NDArray[np.uint32]], np.uint32]:
    zero = crc32(bytes(8))
    values = np.arange(1 << 16)
    tables = []
    for at in range(4):
        bits = [crc32((1 << (16 * at + bit)).to_bytes(8, "little")) ^ zero for bit in range(16)]
        table = np.zeros(1 << 16, np.uint32)
        for bit, share in enumerate(bits):
            table ^= np.where(values >> bit & 1, np.uint32(share), np.uint32(0))
        tables.append(table)
    return tables, np.uint32(zero)
