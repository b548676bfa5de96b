"""Segments: rows of one partition in one file, by column, as they lie in memory; written once, read by ranges.

    magic 8 | body length u32 | CRC-32 of the body u32 | body | buffers, each begun at a multiple of 64

The body: rows u64, runs u64, keys u16, columns u16; then each field (type u8, length of name u16, name), keys first;
then the length u64 of every buffer, in order. Nothing in it says where a buffer lies: one follows the other, so they
cannot overlap or point outside. All numbers are little-endian.

The buffers of the face that has keys: run starts (runs + 1 int64: where each key's rows begin), each key's parts (one
value a run), event, created, seq (int64, one a row; rows stand in the order of key, event, created, seq); then the
columns. A face without keys holds columns only, row by row in the same order. A column's buffers: validity (bits, empty
when nothing is null), then the values: bits for bool, numbers as they are, offsets (int64) and bytes for text, offsets
and the buffers of the items for lists. This is also how Arrow lays them out.

A reader believes nothing: what does not fit is Corrupt. Whether the bytes are those that were written is what the
catalogue's digests say.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from falaj.asof.records import KEYS, SCALARS, Field
from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, Invalid

Fetch = Callable[[int, int], bytes | memoryview]
"""The bytes of a file from start to stop, cut where the file ends."""
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
MAGIC = b"FALAJSG1"
_HEAD = struct.Struct("<8sII")
_COUNTS = struct.Struct("<QQHH")
_FIELD = struct.Struct("<BH")
_FIRST_BYTES = 1 << 16
_MAX_BODY_BYTES = 1 << 20
_ALIGN = 64
_LIST = 16
_WIDTHS = {"int32": 4, "int64": 8, "float32": 4, "float64": 8, "time": 8}
_DTYPES = {"int32": "<i4", "int64": "<i8", "float32": "<f4", "float64": "<f8", "time": "<i8"}


class Column(NamedTuple):
    """One column's buffers."""

    type: str
    num: int
    validity: Bytes | None
    """Bits, lowest first; None when nothing is null."""
    offsets: Ints | None = None
    """Of text, bytes and lists: num + 1."""
    data: NDArray[Any] | None = None
    """Numbers, bits of bools, or bytes of texts."""
    items: "Column | None" = None
    """Of a list."""

    def buffers(self) -> list[NDArray[Any] | None]:
        """In the order of the file."""
        own: list[NDArray[Any] | None] = [self.validity]
        if self.offsets is not None:
            own.append(self.offsets)
        if self.items is not None:
            return own + self.items.buffers()
        return [*own, self.data]

    def valid(self) -> NDArray[np.bool_]:
        """Which are not null."""
        if self.validity is None:
            return np.ones(self.num, np.bool_)
        return np.unpackbits(self.validity, count=self.num, bitorder="little").view(np.bool_)


@dataclass(frozen=True, slots=True)
class Ranks:
    """The part of a segment that says which rows are whose, and when."""

    run_starts: Ints
    keys: Sequence[Column]
    event: Ints
    created: Ints
    seq: Ints


class File:
    """Ranges of a file on this machine. Can go to other processes.

    Read, not mapped: a mapped file that somebody cuts short ends the process.
    """

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, start: int, stop: int) -> bytes:
        with self.path.open("rb") as file:
            length = max(min(stop, file.seek(0, 2)) - start, 0)
            file.seek(start)
            return file.read(length)


def write_segment(
    path: Path, num_rows: int, columns: Mapping[str, Column], keys: Sequence[Field] = (), ranks: Ranks | None = None
) -> int:
    """Write a segment; gives its size in bytes. With `keys` and `ranks` it is the face that has them."""
    fields = [*keys, *(Field(name, column.type) for name, column in columns.items())]
    buffers: list[NDArray[Any] | None] = []
    num_runs = 0
    if ranks is not None:
        num_runs = len(ranks.run_starts) - 1
        buffers += [ranks.run_starts, *(each for key in ranks.keys for each in key.buffers())]
        buffers += [ranks.event, ranks.created, ranks.seq]
    buffers += [each for column in columns.values() for each in column.buffers()]
    body = _COUNTS.pack(num_rows, num_runs, len(keys), len(columns))
    for field in fields:
        name = field.name.encode()
        body += _FIELD.pack(_code(field.type), len(name)) + name
    body += b"".join(struct.pack("<Q", 0 if each is None else each.nbytes) for each in buffers)
    if len(body) > _MAX_BODY_BYTES:
        raise Invalid("these columns are too many for one segment", "split the view")
    with path.open("wb") as file:
        file.write(_HEAD.pack(MAGIC, len(body), crc32(body)) + body)
        _pad(file)
        for each in buffers:
            if each is not None:
                file.write(np.ascontiguousarray(each).data)
                _pad(file)
        return file.tell()


class Segment:
    """Reads a segment, each column when it is asked for."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        first = fetch(0, _FIRST_BYTES)
        if len(first) < _HEAD.size:
            raise _corrupt("it is too short")
        magic, length, check = _HEAD.unpack_from(first)
        if magic != MAGIC or not _COUNTS.size <= length <= _MAX_BODY_BYTES:
            raise _corrupt("it does not begin as one")
        body = bytes(first[_HEAD.size : _HEAD.size + length])
        if len(body) < length:
            body = bytes(fetch(_HEAD.size, _HEAD.size + length))
        if len(body) != length or crc32(body) != check:
            raise _corrupt("its head is damaged")
        self.num_rows, self.num_runs, num_keys, num_columns = _COUNTS.unpack_from(body)
        fields, end = _fields(body, num_keys + num_columns)
        self.keys, self.columns = tuple(fields[:num_keys]), tuple(fields[num_keys:])
        if any(key.type not in KEYS for key in self.keys) or (self.num_runs and not num_keys):
            raise _corrupt("its keys cannot be")
        self._places = self._laid_out(body, end, _aligned(_HEAD.size + length))
        size = self._places[-1][1] if self._places else _aligned(_HEAD.size + length)
        _check_size(fetch, len(first), _aligned(size))

    def ranks(self, created: bool = True, seq: bool = True) -> Ranks:
        """Whose the rows are and when; what is not wanted comes empty."""
        if not self.keys:
            raise Invalid("this face of the rows has no keys", "read them from the face without a name")
        starts = self._numbers(0, "<i8", self.num_runs + 1)
        if starts[0] != 0 or starts[-1] != self.num_rows or bool(np.any(starts[1:] <= starts[:-1])):
            raise _corrupt("its runs do not follow each other")
        at, keys = 1, []
        for field in self.keys:
            column = self._column(at, field.type, self.num_runs)
            if column.validity is not None:
                raise _corrupt("a key is null")
            keys.append(column)
            at += _num_buffers(field.type)
        event = self._numbers(at, "<i8", self.num_rows)
        falls = np.flatnonzero(event[1:] < event[:-1]) + 1
        if len(falls) and not bool(np.all(starts[np.searchsorted(starts, falls)] == falls)):
            raise _corrupt("its rows are out of order")
        none = np.empty(0, np.int64)
        return Ranks(
            starts,
            keys,
            event,
            self._numbers(at + 1, "<i8", self.num_rows) if created else none,
            self._numbers(at + 2, "<i8", self.num_rows) if seq else none,
        )

    def column(self, name: str) -> Column:
        """The whole of one column."""
        at = self._first_column()
        for field in self.columns:
            if field.name == name:
                return self._column(at, field.type, self.num_rows)
            at += _num_buffers(field.type)
        raise Invalid(f"these rows have no column {name}", "it may lie in a face that was not opened")

    def _first_column(self) -> int:
        return 4 + sum(_num_buffers(key.type) for key in self.keys) if self.keys else 0

    def _laid_out(self, body: bytes, end: int, start: int) -> list[tuple[int, int]]:
        """Where each buffer begins and ends."""
        count = self._first_column() + sum(_num_buffers(field.type) for field in self.columns)
        if len(body) != end + 8 * count:
            raise _corrupt("its head has another length")
        places = []
        for (length,) in struct.iter_unpack("<Q", body[end:]):
            places.append((start, start + length))
            start = _aligned(start + length)
        return places

    def _numbers(self, at: int, dtype: str, num: int) -> NDArray[Any]:
        start, stop = self._places[at]
        if stop - start != num * np.dtype(dtype).itemsize:
            raise _corrupt("a column has another length")
        raw = self._fetch(start, stop)
        if len(raw) != stop - start:
            raise _corrupt("it ends early")
        return np.frombuffer(raw, dtype)

    def _bits(self, at: int, num: int) -> Bytes:
        return self._numbers(at, "|u1", (num + 7) // 8)

    def _column(self, at: int, kind: str, num: int) -> Column:
        start, stop = self._places[at]
        validity = None if start == stop else self._bits(at, num)
        if kind == "bool":
            return Column(kind, num, validity, None, self._bits(at + 1, num))
        if kind in _WIDTHS:
            return Column(kind, num, validity, None, self._numbers(at + 1, _DTYPES[kind], num))
        offsets = self._numbers(at + 1, "<i8", num + 1)
        if offsets[0] != 0 or bool(np.any(offsets[1:] < offsets[:-1])):
            raise _corrupt("its offsets do not follow each other")
        total = int(offsets[-1])
        if kind.startswith("list["):
            return Column(kind, num, validity, offsets, None, self._column(at + 2, kind[5:-1], total))
        data = self._numbers(at + 2, "|u1", total)
        if kind == "string":
            _check_text(data, offsets)
        return Column(kind, num, validity, offsets, data)


def _code(kind: str) -> int:
    inner = kind[5:-1] if kind.startswith("list[") and kind.endswith("]") else kind
    if inner not in SCALARS:
        raise Invalid(f"{kind} is not a type", f"types are {', '.join(SCALARS)} and list[...] of one of them")
    return SCALARS.index(inner) + (_LIST if inner != kind else 0)


def _num_buffers(kind: str) -> int:
    if kind.startswith("list["):
        return 2 + _num_buffers(kind[5:-1])
    return 3 if kind in {"string", "bytes"} else 2


def _fields(body: bytes, count: int) -> tuple[list[Field], int]:
    at, fields = _COUNTS.size, []
    for _ in range(count):
        if at + _FIELD.size > len(body):
            raise _corrupt("its head ends early")
        code, length = _FIELD.unpack_from(body, at)
        at += _FIELD.size
        if code & ~_LIST >= len(SCALARS) or at + length > len(body):
            raise _corrupt("a column of it cannot be")
        try:
            name = body[at : at + length].decode()
        except UnicodeDecodeError:
            raise _corrupt("a column's name is not text") from None
        inner = SCALARS[code & ~_LIST]
        fields.append(Field(name, f"list[{inner}]" if code & _LIST else inner))
        at += length
    if len({field.name for field in fields}) != count:
        raise _corrupt("two columns have one name")
    return fields, at


def _check_size(fetch: Fetch, first: int, size: int) -> None:
    """Before any large read: the file must end where its head says, so that nobody makes us ask for more."""
    ends = first == size if first < _FIRST_BYTES else size >= first and len(fetch(size - 1, size + 1)) == 1
    if not ends:
        raise _corrupt("it has another length than its head says")


def _check_text(data: Bytes, offsets: Ints) -> None:
    """All of it is UTF-8 and no offset falls inside a character, so each piece is UTF-8 too."""
    try:
        str(data.data, "utf-8")
    except UnicodeDecodeError:
        raise _corrupt("a text is not UTF-8") from None
    inside = offsets[(offsets > 0) & (offsets < len(data))]
    if bool(np.any((data[inside] & 0xC0) == 0x80)):
        raise _corrupt("a text begins inside a character")


def _aligned(at: int) -> int:
    return -(-at // _ALIGN) * _ALIGN


def _pad(file: BinaryIO) -> None:
    at = file.tell()
    file.write(bytes(_aligned(at) - at))


def _corrupt(what: str) -> Corrupt:
    return Corrupt(f"this is not a segment of rows: {what}", "fetch the file again, or build its edition anew")
