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

from falaj.asof.records import KEY_TYPES, SCALAR_TYPES, FeatureField
from falaj.core.data import dataclass
from falaj.core.errors import CorruptData, Invalid

Fetch = Callable[[int, int], bytes | memoryview]
"""The bytes of a file from start to stop, cut where the file ends."""
Ints = NDArray[np.int64]
ByteArray = NDArray[np.uint8]
MAGIC = b"FALAJSG1"
_HEADER_FORMAT = struct.Struct("<8sII")
_COUNTS_FORMAT = struct.Struct("<QQHH")
_FIELD_FORMAT = struct.Struct("<BH")
_FIRST_READ_BYTES = 1 << 16
_MAX_BODY_BYTES = 1 << 20
_ALIGNMENT = 64
_LIST_FLAG = 16
_WIDTHS = {"int32": 4, "int64": 8, "float32": 4, "float64": 8, "time": 8}
_DTYPES = {"int32": "<i4", "int64": "<i8", "float32": "<f4", "float64": "<f8", "time": "<i8"}


class SegmentColumn(NamedTuple):
    """One column's buffers."""

    type: str
    num: int
    validity: ByteArray | None
    """Bits, lowest first; None when nothing is null."""
    offsets: Ints | None = None
    """Of text, bytes and lists: num + 1."""
    data: NDArray[Any] | None = None
    """Numbers, bits of bools, or bytes of texts."""
    items: "SegmentColumn | None" = None
    """Of a list."""

    def buffers(self) -> list[NDArray[Any] | None]:
        """In the order of the file."""
        own_buffers: list[NDArray[Any] | None] = [self.validity]
        if self.offsets is not None:
            own_buffers.append(self.offsets)
        if self.items is not None:
            return own_buffers + self.items.buffers()
        return [*own_buffers, self.data]

    def valid(self) -> NDArray[np.bool_]:
        """Which are not null."""
        if self.validity is None:
            return np.ones(self.num, np.bool_)
        return np.unpackbits(self.validity, count=self.num, bitorder="little").view(np.bool_)


@dataclass(frozen=True, slots=True)
class SegmentRanks:
    """The part of a segment that says which rows are whose, and when."""

    run_starts: Ints
    keys: Sequence[SegmentColumn]
    event: Ints
    created: Ints
    seq: Ints


class FileFetcher:
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
    path: Path,
    num_rows: int,
    columns: Mapping[str, SegmentColumn],
    keys: Sequence[FeatureField] = (),
    ranks: SegmentRanks | None = None,
) -> int:
    """Write a segment; gives its size in bytes. With `keys` and `ranks` it is the face that has them."""
    fields = [*keys, *(FeatureField(name, column.type) for name, column in columns.items())]
    buffers: list[NDArray[Any] | None] = []
    num_runs = 0
    if ranks is not None:
        num_runs = len(ranks.run_starts) - 1
        buffers += [ranks.run_starts, *(buffer for key in ranks.keys for buffer in key.buffers())]
        buffers += [ranks.event, ranks.created, ranks.seq]
    buffers += [buffer for column in columns.values() for buffer in column.buffers()]
    body = _COUNTS_FORMAT.pack(num_rows, num_runs, len(keys), len(columns))
    for field in fields:
        name = field.name.encode()
        body += _FIELD_FORMAT.pack(_encode_type(field.type), len(name)) + name
    body += b"".join(struct.pack("<Q", 0 if buffer is None else buffer.nbytes) for buffer in buffers)
    if len(body) > _MAX_BODY_BYTES:
        raise Invalid("these columns are too many for one segment", "split the view")
    with path.open("wb") as file:
        file.write(_HEADER_FORMAT.pack(MAGIC, len(body), crc32(body)) + body)
        _pad_file(file)
        for buffer in buffers:
            if buffer is not None:
                file.write(np.ascontiguousarray(buffer).data)
                _pad_file(file)
        return file.tell()


class Segment:
    """Reads a segment, each column when it is asked for."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        first_bytes = fetch(0, _FIRST_READ_BYTES)
        if len(first_bytes) < _HEADER_FORMAT.size:
            raise _corrupt_segment_error("it is too short")
        magic, length, checksum = _HEADER_FORMAT.unpack_from(first_bytes)
        if magic != MAGIC or not _COUNTS_FORMAT.size <= length <= _MAX_BODY_BYTES:
            raise _corrupt_segment_error("it does not begin as one")
        body = bytes(first_bytes[_HEADER_FORMAT.size : _HEADER_FORMAT.size + length])
        if len(body) < length:
            body = bytes(fetch(_HEADER_FORMAT.size, _HEADER_FORMAT.size + length))
        if len(body) != length or crc32(body) != checksum:
            raise _corrupt_segment_error("its head is damaged")
        self.num_rows, self.num_runs, num_keys, num_columns = _COUNTS_FORMAT.unpack_from(body)
        fields, end = _parse_fields(body, num_keys + num_columns)
        self.keys, self.columns = tuple(fields[:num_keys]), tuple(fields[num_keys:])
        if any(key.type not in KEY_TYPES for key in self.keys) or (self.num_runs and not num_keys):
            raise _corrupt_segment_error("its keys cannot be")
        self._buffer_ranges = self._locate_buffers(body, end, _align_up(_HEADER_FORMAT.size + length))
        size = self._buffer_ranges[-1][1] if self._buffer_ranges else _align_up(_HEADER_FORMAT.size + length)
        _check_size(fetch, len(first_bytes), _align_up(size))

    def ranks(self, created: bool = True, seq: bool = True) -> SegmentRanks:
        """Whose the rows are and when; what is not wanted comes empty."""
        if not self.keys:
            raise Invalid("this face of the rows has no keys", "read them from the face without a name")
        starts = self._read_numbers(0, "<i8", self.num_runs + 1)
        if starts[0] != 0 or starts[-1] != self.num_rows or bool(np.any(starts[1:] <= starts[:-1])):
            raise _corrupt_segment_error("its runs do not follow each other")
        position, keys = 1, []
        for field in self.keys:
            column = self._read_column(position, field.type, self.num_runs)
            if column.validity is not None:
                raise _corrupt_segment_error("a key is null")
            keys.append(column)
            position += _count_buffers(field.type)
        event = self._read_numbers(position, "<i8", self.num_rows)
        fall_positions = np.flatnonzero(event[1:] < event[:-1]) + 1
        if len(fall_positions) and not bool(np.all(starts[np.searchsorted(starts, fall_positions)] == fall_positions)):
            raise _corrupt_segment_error("its rows are out of order")
        no_values = np.empty(0, np.int64)
        return SegmentRanks(
            starts,
            keys,
            event,
            self._read_numbers(position + 1, "<i8", self.num_rows) if created else no_values,
            self._read_numbers(position + 2, "<i8", self.num_rows) if seq else no_values,
        )

    def column(self, name: str) -> SegmentColumn:
        """The whole of one column."""
        position = self._first_column_buffer()
        for field in self.columns:
            if field.name == name:
                return self._read_column(position, field.type, self.num_rows)
            position += _count_buffers(field.type)
        raise Invalid(f"these rows have no column {name}", "it may lie in a face that was not opened")

    def _first_column_buffer(self) -> int:
        return 4 + sum(_count_buffers(key.type) for key in self.keys) if self.keys else 0

    def _locate_buffers(self, body: bytes, end: int, start: int) -> list[tuple[int, int]]:
        """Where each buffer begins and ends."""
        count = self._first_column_buffer() + sum(_count_buffers(field.type) for field in self.columns)
        if len(body) != end + 8 * count:
            raise _corrupt_segment_error("its head has another length")
        ranges = []
        for (length,) in struct.iter_unpack("<Q", body[end:]):
            ranges.append((start, start + length))
            start = _align_up(start + length)
        return ranges

    def _read_numbers(self, position: int, dtype: str, num: int) -> NDArray[Any]:
        start, stop = self._buffer_ranges[position]
        if stop - start != num * np.dtype(dtype).itemsize:
            raise _corrupt_segment_error("a column has another length")
        data = self._fetch(start, stop)
        if len(data) != stop - start:
            raise _corrupt_segment_error("it ends early")
        return np.frombuffer(data, dtype)

    def _read_bits(self, position: int, num: int) -> ByteArray:
        return self._read_numbers(position, "|u1", (num + 7) // 8)

    def _read_column(self, position: int, kind: str, num: int) -> SegmentColumn:
        start, stop = self._buffer_ranges[position]
        validity = None if start == stop else self._read_bits(position, num)
        if kind == "bool":
            return SegmentColumn(kind, num, validity, None, self._read_bits(position + 1, num))
        if kind in _WIDTHS:
            return SegmentColumn(kind, num, validity, None, self._read_numbers(position + 1, _DTYPES[kind], num))
        offsets = self._read_numbers(position + 1, "<i8", num + 1)
        if offsets[0] != 0 or bool(np.any(offsets[1:] < offsets[:-1])):
            raise _corrupt_segment_error("its offsets do not follow each other")
        total = int(offsets[-1])
        if kind.startswith("list["):
            return SegmentColumn(kind, num, validity, offsets, None, self._read_column(position + 2, kind[5:-1], total))
        data = self._read_numbers(position + 2, "|u1", total)
        if kind == "string":
            _check_text(data, offsets)
        return SegmentColumn(kind, num, validity, offsets, data)


def _encode_type(kind: str) -> int:
    item_kind = kind[5:-1] if kind.startswith("list[") and kind.endswith("]") else kind
    if item_kind not in SCALAR_TYPES:
        raise Invalid(f"{kind} is not a type", f"types are {', '.join(SCALAR_TYPES)} and list[...] of one of them")
    return SCALAR_TYPES.index(item_kind) + (_LIST_FLAG if item_kind != kind else 0)


def _count_buffers(kind: str) -> int:
    if kind.startswith("list["):
        return 2 + _count_buffers(kind[5:-1])
    return 3 if kind in {"string", "bytes"} else 2


def _parse_fields(body: bytes, count: int) -> tuple[list[FeatureField], int]:
    position, fields = _COUNTS_FORMAT.size, []
    for _ in range(count):
        if position + _FIELD_FORMAT.size > len(body):
            raise _corrupt_segment_error("its head ends early")
        code, length = _FIELD_FORMAT.unpack_from(body, position)
        position += _FIELD_FORMAT.size
        if code & ~_LIST_FLAG >= len(SCALAR_TYPES) or position + length > len(body):
            raise _corrupt_segment_error("a column of it cannot be")
        try:
            name = body[position : position + length].decode()
        except UnicodeDecodeError:
            raise _corrupt_segment_error("a column's name is not text") from None
        item_kind = SCALAR_TYPES[code & ~_LIST_FLAG]
        fields.append(FeatureField(name, f"list[{item_kind}]" if code & _LIST_FLAG else item_kind))
        position += length
    if len({field.name for field in fields}) != count:
        raise _corrupt_segment_error("two columns have one name")
    return fields, position


def _check_size(fetch: Fetch, first_length: int, size: int) -> None:
    """Before any large read: the file must end where its head says, so that nobody makes us ask for more."""
    is_complete = (
        first_length == size
        if first_length < _FIRST_READ_BYTES
        else size >= first_length and len(fetch(size - 1, size + 1)) == 1
    )
    if not is_complete:
        raise _corrupt_segment_error("it has another length than its head says")


def _check_text(data: ByteArray, offsets: Ints) -> None:
    """All of it is UTF-8 and no offset falls inside a character, so each piece is UTF-8 too."""
    try:
        str(data.data, "utf-8")
    except UnicodeDecodeError:
        raise _corrupt_segment_error("a text is not UTF-8") from None
    inner_offsets = offsets[(offsets > 0) & (offsets < len(data))]
    if bool(np.any((data[inner_offsets] & 0xC0) == 0x80)):
        raise _corrupt_segment_error("a text begins inside a character")


def _align_up(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _pad_file(file: BinaryIO) -> None:
    offset = file.tell()
    file.write(bytes(_align_up(offset) - offset))


def _corrupt_segment_error(problem: str) -> CorruptData:
    return CorruptData(f"this is not a segment of rows: {problem}", "fetch the file again, or build its edition anew")
