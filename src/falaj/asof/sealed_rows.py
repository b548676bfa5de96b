"""Segments of people: the rows of a segment cut into one block a run, each sealed for whom it is about, and back.

A sealed segment is a segment too: a face without keys, one row a block, with the pseudonym, the place that the block is
bound to, and the block. So it is read by ranges and believed as little as any other, and it says nothing of keys, times
and values, only how many people there are and how large their blocks. A person's block can be taken out and the others
still open. Without the key of a person their rows are left out, in every face the same.

    plain block   the length u32 of each stream, then the streams

A stream is the run's part of one array: first a record a row (of each column its value or length, and what is there),
then the bytes of each text, and of lists the same again for the items.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.asof.records import Field
from falaj.asof.sealed import NAME_BYTES, Keys, open_runs, seal_runs
from falaj.asof.segment import Column, Fetch, Ranks, Segment, write_segment
from falaj.core.errors import Corrupt, Invalid

PERSON, PLACE, BLOCK = "person", "place", "block"
SEALED = (Field(PERSON, "bytes"), Field(PLACE, "int64"), Field(BLOCK, "bytes"))
_RANKS = (Field("event", "int64"), Field("created", "int64"), Field("seq", "int64"))
_VALUES = {"bool": "|u1", "int32": "<i4", "int64": "<i8", "float32": "<f4", "float64": "<f8", "time": "<i8"}
Ints = NDArray[np.int64]
Stream = tuple[NDArray[np.uint8], Ints]
"""An array's bytes, and where in them each run begins."""


def people_of(segment: Segment, at: int) -> list[bytes]:
    """Of each run, the bytes of the part of its key that names a person: those that `key_bytes` gives for it alone."""
    column = segment.ranks(created=False, seq=False).keys[at]
    streams = list(_streams([column], np.arange(column.num + 1)))
    if column.offsets is not None:
        return list(_pieces(*streams[1]))
    return [record[:-1] for record in _pieces(*streams[0])]


def seal_segment(segment: Segment, starts: Ints, names: Sequence[bytes], keys: Keys, aad: bytes, target: Path) -> int:
    """Write the sealed form of a face; `starts` are the runs of the face that has keys. Gives the size in bytes."""
    if len(starts) != len(names) + 1 or int(starts[-1]) != segment.num_rows:
        raise Invalid("the runs are those of other rows", "give those of the first face of the same rows")
    streams = [stream for columns, bounds in _parts(segment, starts) for stream in _streams(columns, bounds)]
    heads = np.stack([np.diff(bounds) for _, bounds in streams], 1)
    if heads.size and int(heads.max()) >= 1 << 32:
        raise Invalid("one person's rows are too large for one block", "cut the rows in more segments")
    marks = np.arange(len(names) + 1, dtype=np.int64) * (4 * len(streams))
    cut = [_pieces(_bytes(heads.astype("<u4")).reshape(-1), marks), *(_pieces(*stream) for stream in streams)]
    runs = [b"".join(pieces) for pieces in zip(*cut, strict=True)]
    blocks = seal_runs(runs, names, keys, aad)
    columns = {
        PERSON: _texts(names),
        PLACE: Column("int64", len(names), None, None, np.arange(len(names), dtype=np.int64)),
        BLOCK: _texts(blocks),
    }
    return write_segment(target, len(names), columns)


def open_segment(
    fetch: Fetch, key_fields: Sequence[Field], fields: Sequence[Field], keys: Keys, aad: bytes, target: Path
) -> int:
    """Write the rows of those whose keys stand as a plain segment; gives how many rows there are.

    `key_fields` are those of the face that has keys, and none for others.
    """
    segment = Segment(fetch)
    if segment.columns != SEALED:
        raise Corrupt("these rows are not sealed", "build their edition anew")
    names, blocks = (list(_pieces(*_text(segment.column(name)))) for name in (PERSON, BLOCK))
    if any(len(name) != NAME_BYTES for name in names):
        raise Corrupt("a pseudonym has another length", "fetch the file again, or build its edition anew")
    places = segment.column(PLACE).data
    opened = open_runs(blocks, names, keys, aad, [] if places is None else (places & ((1 << 62) - 1)).tolist())
    whole = (*_RANKS, *fields) if key_fields else tuple(fields)
    left = [run for run in opened if run is not None]
    streams = iter(_split(left, _num_streams(key_fields) + _num_streams(whole)))
    key_columns = _columns(key_fields, next(streams), streams) if key_fields else []
    first = next(streams)
    width = _record([field.type for field in whole]).itemsize
    starts = np.concatenate(([0], np.cumsum([len(piece) // width for piece in first], dtype=np.int64)))
    columns = dict(zip((field.name for field in whole), _columns(whole, first, streams), strict=True))
    num_rows = int(starts[-1])
    if not key_fields:
        write_segment(target, num_rows, columns)
        return num_rows
    event, created, seq = (_bytes(columns.pop(field.name).data).view("<i8") for field in _RANKS)
    write_segment(target, num_rows, columns, key_fields, Ranks(starts, key_columns, event, created, seq))
    return num_rows


def _parts(segment: Segment, starts: Ints) -> Iterator[tuple[list[Column], Ints]]:
    """Columns that are cut alike: of keys one a run, of all else by rows."""
    columns = [segment.column(field.name) for field in segment.columns]
    if segment.keys:
        ranks = segment.ranks()
        yield list(ranks.keys), np.arange(segment.num_runs + 1)
        columns = [
            Column("int64", segment.num_rows, None, None, each) for each in (ranks.event, ranks.created, ranks.seq)
        ] + columns
    yield columns, starts


def _record(types: Sequence[str]) -> np.dtype[Any]:
    """One row: the value or the length of each column, then a bit for each that is there."""
    values = [(f"x{i}", _VALUES.get(kind, "<i8")) for i, kind in enumerate(types)]
    return np.dtype([*values, ("there", "|u1", (-(-len(types) // 8),))])


def _streams(columns: Sequence[Column], bounds: Ints) -> Iterator[Stream]:
    """The arrays of some columns, with where each run begins in their bytes."""
    rows = np.empty(int(bounds[-1]), _record([column.type for column in columns]))
    rows["there"] = 0xFF
    if any(column.validity is not None for column in columns):
        rows["there"] = np.packbits(np.stack([column.valid() for column in columns], 1), 1, "little")
    for i, column in enumerate(columns):
        if column.offsets is not None:
            rows[f"x{i}"] = np.diff(column.offsets)
        elif column.type == "bool":
            rows[f"x{i}"] = np.unpackbits(_bytes(column.data), count=column.num, bitorder="little")
        else:
            rows[f"x{i}"] = column.data
    yield rows.view(np.uint8), bounds * rows.dtype.itemsize
    for column in columns:
        if column.items is not None and column.offsets is not None:
            yield from _streams([column.items], column.offsets[bounds])
        elif column.offsets is not None:
            yield _bytes(column.data), column.offsets[bounds]


def _columns(fields: Sequence[Field], first: Sequence[bytes], streams: Iterator[list[bytes]]) -> list[Column]:
    """The reverse, for all runs together; the streams behind the first come from `streams`."""
    record, raw = _record([field.type for field in fields]), b"".join(first)
    if len(raw) % record.itemsize:
        raise _odd()
    rows = np.frombuffer(raw, record)
    whole = bool((rows["there"] == 0xFF).all())
    there = None if whole else np.unpackbits(rows["there"], 1, len(fields), "little")
    made = []
    for i, field in enumerate(fields):
        values = np.ascontiguousarray(rows[f"x{i}"])
        bits = None if there is None or there[:, i].all() else np.packbits(there[:, i], bitorder="little")
        if field.type == "bool":
            made.append(Column(field.type, len(rows), bits, None, np.packbits(values, bitorder="little")))
        elif field.type in _VALUES:
            made.append(Column(field.type, len(rows), bits, None, values))
        else:
            made.append(_varied(field.type, bits, values, streams))
    return made


def _varied(kind: str, bits: Any, lengths: Ints, streams: Iterator[list[bytes]]) -> Column:
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    if kind.startswith("list["):
        (items,) = _columns([Field("", kind[5:-1])], next(streams), streams)
        if items.num != int(offsets[-1]):
            raise _odd()
        return Column(kind, len(lengths), bits, offsets, None, items)
    data = np.frombuffer(b"".join(next(streams)), np.uint8)
    if len(data) != int(offsets[-1]):
        raise _odd()
    return Column(kind, len(lengths), bits, offsets, data)


def _num_streams(fields: Sequence[Field]) -> int:
    inner = [field.type for field in fields if field.type not in _VALUES]
    return bool(fields) + sum(
        _num_streams([Field("", kind[5:-1])]) if kind.startswith("list[") else 1 for kind in inner
    )


def _split(runs: Sequence[bytes], count: int) -> list[list[bytes]]:
    """Opened blocks as streams, each in the pieces of its runs."""
    found: list[list[bytes]] = [[] for _ in range(count)]
    head = struct.Struct(f"<{count}I")
    try:
        for run in runs:
            at = head.size
            for pieces, length in zip(found, head.unpack_from(run), strict=True):
                pieces.append(run[at : at + length])
                at += length
            if at != len(run):
                raise _odd()
    except struct.error:
        raise _odd() from None
    return found


def _pieces(data: NDArray[np.uint8], bounds: Ints) -> Iterator[bytes]:
    whole, marks = data.tobytes(), bounds.tolist()
    return (whole[a:b] for a, b in pairwise(marks))


def _text(column: Column) -> Stream:
    return _bytes(column.data), column.offsets if column.offsets is not None else np.zeros(1, np.int64)


def _texts(values: Sequence[bytes]) -> Column:
    offsets = np.concatenate(([0], np.cumsum([len(one) for one in values], dtype=np.int64)))
    return Column("bytes", len(values), None, offsets, np.frombuffer(b"".join(values), np.uint8))


def _bytes(data: NDArray[Any] | None) -> NDArray[np.uint8]:
    return np.zeros(0, np.uint8) if data is None else np.ascontiguousarray(data).view(np.uint8)


def _odd() -> Corrupt:
    return Corrupt("a block of rows does not fit the columns of its view", "open it with the version it was made for")
