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

from falaj.asof.person_sealing import PSEUDONYM_BYTES, PersonKeys, decrypt_blocks, encrypt_runs
from falaj.asof.records import FeatureField
from falaj.asof.segment import Fetch, Segment, SegmentColumn, SegmentRanks, write_segment
from falaj.core.errors import CorruptData, Invalid

PERSON_COLUMN, POSITION_COLUMN, BLOCK_COLUMN = "person", "place", "block"
SEALED_FIELDS = (
    FeatureField(PERSON_COLUMN, "bytes"),
    FeatureField(POSITION_COLUMN, "int64"),
    FeatureField(BLOCK_COLUMN, "bytes"),
)
_RANK_FIELDS = (FeatureField("event", "int64"), FeatureField("created", "int64"), FeatureField("seq", "int64"))
_VALUE_DTYPES = {"bool": "|u1", "int32": "<i4", "int64": "<i8", "float32": "<f4", "float64": "<f8", "time": "<i8"}
Ints = NDArray[np.int64]
Stream = tuple[NDArray[np.uint8], Ints]
"""An array's bytes, and where in them each run begins."""


def list_people(segment: Segment, key_position: int) -> list[bytes]:
    """Of each run, the bytes of the part of its key that names a person: those that `encode_key` gives for it alone."""
    column = segment.ranks(created=False, seq=False).keys[key_position]
    streams = list(_iterate_streams([column], np.arange(column.num + 1)))
    if column.offsets is not None:
        return list(_iterate_pieces(*streams[1]))
    return [record[:-1] for record in _iterate_pieces(*streams[0])]


def seal_segment(
    segment: Segment, starts: Ints, pseudonyms: Sequence[bytes], keys: PersonKeys, aad: bytes, target_path: Path
) -> int:
    """Write the sealed form of a face; `starts` are the runs of the face that has keys. Gives the size in bytes."""
    if len(starts) != len(pseudonyms) + 1 or int(starts[-1]) != segment.num_rows:
        raise Invalid("the runs are those of other rows", "give those of the first face of the same rows")
    streams = [
        stream
        for columns, bounds in _iterate_column_groups(segment, starts)
        for stream in _iterate_streams(columns, bounds)
    ]
    stream_lengths = np.stack([np.diff(bounds) for _, bounds in streams], 1)
    if stream_lengths.size and int(stream_lengths.max()) >= 1 << 32:
        raise Invalid("one person's rows are too large for one block", "cut the rows in more segments")
    length_offsets = np.arange(len(pseudonyms) + 1, dtype=np.int64) * (4 * len(streams))
    run_pieces = [
        _iterate_pieces(_to_byte_array(stream_lengths.astype("<u4")).reshape(-1), length_offsets),
        *(_iterate_pieces(*stream) for stream in streams),
    ]
    runs = [b"".join(pieces) for pieces in zip(*run_pieces, strict=True)]
    blocks = encrypt_runs(runs, pseudonyms, keys, aad)
    columns = {
        PERSON_COLUMN: _to_bytes_column(pseudonyms),
        POSITION_COLUMN: SegmentColumn(
            "int64", len(pseudonyms), None, None, np.arange(len(pseudonyms), dtype=np.int64)
        ),
        BLOCK_COLUMN: _to_bytes_column(blocks),
    }
    return write_segment(target_path, len(pseudonyms), columns)


def unseal_segment(
    fetch: Fetch,
    key_fields: Sequence[FeatureField],
    fields: Sequence[FeatureField],
    keys: PersonKeys,
    aad: bytes,
    target_path: Path,
) -> int:
    """Write the rows of those whose keys stand as a plain segment; gives how many rows there are.

    `key_fields` are those of the face that has keys, and none for others.
    """
    segment = Segment(fetch)
    if segment.columns != SEALED_FIELDS:
        raise CorruptData("these rows are not sealed", "build their edition anew")
    pseudonyms, blocks = (
        list(_iterate_pieces(*_to_stream(segment.column(name)))) for name in (PERSON_COLUMN, BLOCK_COLUMN)
    )
    if any(len(name) != PSEUDONYM_BYTES for name in pseudonyms):
        raise CorruptData("a pseudonym has another length", "fetch the file again, or build its edition anew")
    positions = segment.column(POSITION_COLUMN).data
    decrypted = decrypt_blocks(
        blocks, pseudonyms, keys, aad, [] if positions is None else (positions & ((1 << 62) - 1)).tolist()
    )
    all_fields = (*_RANK_FIELDS, *fields) if key_fields else tuple(fields)
    opened_runs = [run for run in decrypted if run is not None]
    streams = iter(_split_runs(opened_runs, _count_streams(key_fields) + _count_streams(all_fields)))
    key_columns = _join_streams(key_fields, next(streams), streams) if key_fields else []
    first_stream = next(streams)
    record_bytes = _make_record_dtype([field.type for field in all_fields]).itemsize
    starts = np.concatenate(([0], np.cumsum([len(piece) // record_bytes for piece in first_stream], dtype=np.int64)))
    columns = dict(
        zip((field.name for field in all_fields), _join_streams(all_fields, first_stream, streams), strict=True)
    )
    num_rows = int(starts[-1])
    if not key_fields:
        write_segment(target_path, num_rows, columns)
        return num_rows
    event, created, seq = (_to_byte_array(columns.pop(field.name).data).view("<i8") for field in _RANK_FIELDS)
    write_segment(target_path, num_rows, columns, key_fields, SegmentRanks(starts, key_columns, event, created, seq))
    return num_rows


def _iterate_column_groups(segment: Segment, starts: Ints) -> Iterator[tuple[list[SegmentColumn], Ints]]:
    """Columns that are cut alike: of keys one a run, of all else by rows."""
    columns = [segment.column(field.name) for field in segment.columns]
    if segment.keys:
        ranks = segment.ranks()
        yield list(ranks.keys), np.arange(segment.num_runs + 1)
        columns = [
            SegmentColumn("int64", segment.num_rows, None, None, rank_values)
            for rank_values in (ranks.event, ranks.created, ranks.seq)
        ] + columns
    yield columns, starts


def _make_record_dtype(types: Sequence[str]) -> np.dtype[Any]:
    """One row: the value or the length of each column, then a bit for each that is there."""
    values = [(f"x{i}", _VALUE_DTYPES.get(kind, "<i8")) for i, kind in enumerate(types)]
    return np.dtype([*values, ("there", "|u1", (-(-len(types) // 8),))])


def _iterate_streams(columns: Sequence[SegmentColumn], bounds: Ints) -> Iterator[Stream]:
    """The arrays of some columns, with where each run begins in their bytes."""
    rows = np.empty(int(bounds[-1]), _make_record_dtype([column.type for column in columns]))
    rows["there"] = 0xFF
    if any(column.validity is not None for column in columns):
        rows["there"] = np.packbits(np.stack([column.valid() for column in columns], 1), 1, "little")
    for i, column in enumerate(columns):
        if column.offsets is not None:
            rows[f"x{i}"] = np.diff(column.offsets)
        elif column.type == "bool":
            rows[f"x{i}"] = np.unpackbits(_to_byte_array(column.data), count=column.num, bitorder="little")
        else:
            rows[f"x{i}"] = column.data
    yield rows.view(np.uint8), bounds * rows.dtype.itemsize
    for column in columns:
        if column.items is not None and column.offsets is not None:
            yield from _iterate_streams([column.items], column.offsets[bounds])
        elif column.offsets is not None:
            yield _to_byte_array(column.data), column.offsets[bounds]


def _join_streams(
    fields: Sequence[FeatureField], first_stream: Sequence[bytes], streams: Iterator[list[bytes]]
) -> list[SegmentColumn]:
    """The reverse, for all runs together; the streams behind the first come from `streams`."""
    record, record_bytes = _make_record_dtype([field.type for field in fields]), b"".join(first_stream)
    if len(record_bytes) % record.itemsize:
        raise _misfit_block_error()
    rows = np.frombuffer(record_bytes, record)
    has_no_nulls = bool((rows["there"] == 0xFF).all())
    present_bits = None if has_no_nulls else np.unpackbits(rows["there"], 1, len(fields), "little")
    columns = []
    for i, field in enumerate(fields):
        values = np.ascontiguousarray(rows[f"x{i}"])
        validity = (
            None
            if present_bits is None or present_bits[:, i].all()
            else np.packbits(present_bits[:, i], bitorder="little")
        )
        if field.type == "bool":
            columns.append(SegmentColumn(field.type, len(rows), validity, None, np.packbits(values, bitorder="little")))
        elif field.type in _VALUE_DTYPES:
            columns.append(SegmentColumn(field.type, len(rows), validity, None, values))
        else:
            columns.append(_join_variable_column(field.type, validity, values, streams))
    return columns


def _join_variable_column(kind: str, validity: Any, lengths: Ints, streams: Iterator[list[bytes]]) -> SegmentColumn:
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    if kind.startswith("list["):
        (items,) = _join_streams([FeatureField("", kind[5:-1])], next(streams), streams)
        if items.num != int(offsets[-1]):
            raise _misfit_block_error()
        return SegmentColumn(kind, len(lengths), validity, offsets, None, items)
    data = np.frombuffer(b"".join(next(streams)), np.uint8)
    if len(data) != int(offsets[-1]):
        raise _misfit_block_error()
    return SegmentColumn(kind, len(lengths), validity, offsets, data)


def _count_streams(fields: Sequence[FeatureField]) -> int:
    variable_kinds = [field.type for field in fields if field.type not in _VALUE_DTYPES]
    return bool(fields) + sum(
        _count_streams([FeatureField("", kind[5:-1])]) if kind.startswith("list[") else 1 for kind in variable_kinds
    )


def _split_runs(runs: Sequence[bytes], count: int) -> list[list[bytes]]:
    """Opened blocks as streams, each in the pieces of its runs."""
    streams: list[list[bytes]] = [[] for _ in range(count)]
    header = struct.Struct(f"<{count}I")
    try:
        for run in runs:
            position = header.size
            for pieces, length in zip(streams, header.unpack_from(run), strict=True):
                pieces.append(run[position : position + length])
                position += length
            if position != len(run):
                raise _misfit_block_error()
    except struct.error:
        raise _misfit_block_error() from None
    return streams


def _iterate_pieces(data: NDArray[np.uint8], bounds: Ints) -> Iterator[bytes]:
    data_bytes, offsets = data.tobytes(), bounds.tolist()
    return (data_bytes[a:b] for a, b in pairwise(offsets))


def _to_stream(column: SegmentColumn) -> Stream:
    return _to_byte_array(column.data), column.offsets if column.offsets is not None else np.zeros(1, np.int64)


def _to_bytes_column(values: Sequence[bytes]) -> SegmentColumn:
    offsets = np.concatenate(([0], np.cumsum([len(value) for value in values], dtype=np.int64)))
    return SegmentColumn("bytes", len(values), None, offsets, np.frombuffer(b"".join(values), np.uint8))


def _to_byte_array(data: NDArray[Any] | None) -> NDArray[np.uint8]:
    return np.zeros(0, np.uint8) if data is None else np.ascontiguousarray(data).view(np.uint8)


def _misfit_block_error() -> CorruptData:
    return CorruptData(
        "a block of rows does not fit the columns of its view", "open it with the version it was made for"
    )
