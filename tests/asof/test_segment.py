"""Segments come back as they were written, and bytes of others are refused."""

import struct
import tempfile
import tracemalloc
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.arrow_columns import from_segment_column, to_segment_column
from falaj.asof.records import FeatureField
from falaj.asof.row_files import RowSchema, list_partition_segments, open_partition_segment, to_row_table, write_rows
from falaj.asof.segment import FileFetcher, Segment, write_segment
from falaj.core.errors import CorruptData, Invalid
from tests.asof.worlds import FEATURES, POOLS, World, bits, worlds

NUMBER = FeatureField("k", "int64")


def made(tmp_path: Path) -> bytes:
    """A segment with every type of column."""
    schema = RowSchema((NUMBER, FeatureField("name", "string")), {"": FEATURES})
    table = {"k": [3, 1, 1, 2], "name": ["\u65e5", "b", "b", ""], "event": [4, 3, 2, 1]}
    for field in FEATURES:
        table[field.name] = pa.array([*(POOLS[field.type] * 3)[:3], None], schema.arrow().field(field.name).type)
    write_rows([pa.table(table)], schema, tmp_path, partitions=1)
    return next((tmp_path / "_").iterdir()).read_bytes()


def over(data: bytes):
    return lambda start, stop: data[start:stop]


def read_all(data: bytes) -> None:
    """All that a reader does with a segment."""
    segment = Segment(over(data))
    if segment.keys:
        segment.ranks()
    for field in segment.columns:
        array = from_segment_column(segment.column(field.name))
        array.validate(full=True)
        array.to_pylist()


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_rows_come_back_as_they_were(world: World):
    with tempfile.TemporaryDirectory() as folder:
        own = world.write(Path(folder), [world.rows], [1])
        names = [field.name for field in world.schema.columns]
        types = [field.type for field in world.schema.keys]
        tables = [to_row_table(open_partition_segment(part, types), world.schema.keys, names) for part in own.parts]
    found = [row for table in tables for row in table.to_pylist()]
    want = world.table().to_pylist()
    key = [field.name for field in world.schema.keys]
    assert {row["seq"]: _flat(row) for row in found} == {row["seq"]: _flat(row) for row in want}
    ranks = [(row["event"], row["created"], row["seq"]) for row in found]
    whose = [tuple(bits(row[name]) for name in key) for row in found]
    assert len(set(whose)) == 1 + sum(a != b for a, b in pairwise(whose)) if whose else True
    for at in range(1, len(found)):
        assert whose[at] != whose[at - 1] or ranks[at] > ranks[at - 1]


def _flat(row: dict) -> dict:
    return {name: bits(value) for name, value in row.items()}


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_no_flipped_byte_and_no_cut_does_harm(data, tmp_path_factory):
    good = _good(tmp_path_factory)
    bad = bytearray(good)
    how = data.draw(st.sampled_from(["head", "anywhere", "cut", "grown"]))
    if how == "cut":
        del bad[data.draw(st.integers(0, len(bad) - 1)) :]
    elif how == "grown":
        bad += data.draw(st.binary(min_size=1, max_size=100))
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(bad) - 1 if how == "anywhere" else 400))
            bad[at] = data.draw(st.integers(0, 255))
        # A liar would have its head's check agree.
        (length,) = struct.unpack_from("<I", bad, 8)
        if data.draw(st.booleans()):
            struct.pack_into("<I", bad, 12, crc32(bad[16 : 16 + length]))
    try:
        read_all(bytes(bad))
    except CorruptData:
        return
    assert how == "anywhere" or bytes(bad[:16]) == good[:16] or how == "head"


_CACHE: list[bytes] = []


def _good(factory: pytest.TempPathFactory) -> bytes:
    if not _CACHE:
        _CACHE.append(made(factory.mktemp("segment")))
        read_all(_CACHE[0])
    return _CACHE[0]


def forged(rows: int, runs: int, lengths: list[int], tail: bytes = b"", fields: bytes = b"") -> bytes:
    """A head that says what it likes, and buffers behind it."""
    body = struct.pack("<QQHH", rows, runs, 1, 0) + (fields or struct.pack("<BH", 2, 1) + b"k")
    body += b"".join(struct.pack("<Q", length) for length in lengths)
    head = b"FALAJSG1" + struct.pack("<II", len(body), crc32(body)) + body
    return head + bytes(-len(head) % 64) + tail


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"FALAJSG1",
        b"FALAJSG1" + b"\xff" * 8,
        b"PAR1" * 40,
        forged(1 << 60, 1 << 60, [1 << 63] * 6),
        forged(1 << 60, 1, [16, 0, 8, 1 << 63, 1 << 63, 1 << 63]),
        forged((1 << 64) - 1, (1 << 64) - 1, [0, 0, 0, 0, 0, 0]),
        forged(0, 0, [8, 0, 0, 0, 0, 0], b"\1" * 64),
        forged(0, 0, [8, 0]),
        forged(1, 1, [0] * 6, fields=struct.pack("<BH", 0xFF, 1) + b"k"),
        forged(1, 1, [0] * 6, fields=struct.pack("<BH", 18, 1) + b"k"),
        forged(1, 1, [0] * 6, fields=struct.pack("<BH", 2, 65535) + b"k"),
        forged(1, 1, [0] * 6, fields=struct.pack("<BH", 2, 1) + b"\xff"),
    ],
)
def test_a_head_that_lies_is_refused_before_anything_is_allocated(data):
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData):
            read_all(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def text(values: list[bytes], offsets: list[int] | None = None) -> pa.Array:
    places = offsets or np.cumsum([0, *map(len, values)]).tolist()
    buffers = [None, pa.py_buffer(np.array(places, np.int64)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


@pytest.mark.parametrize(
    "array",
    [text([b"\xff"]), text([b"\xe6\x97", b"\xa5"]), text([b"a", b"b"], [0, 2, 1]), text([b"a", b"b"], [0, -1, 2])],
    ids=["not UTF-8", "cut inside a character", "back", "below nothing"],
)
def test_text_that_is_not_text_is_refused(array, tmp_path):
    column = to_segment_column(array, "bytes")._replace(type="string")
    write_segment(tmp_path / "x", len(array), {"s": column})
    with pytest.raises(CorruptData):
        Segment(FileFetcher(tmp_path / "x")).column("s")


@pytest.mark.parametrize(
    ("at", "value"),
    [("event", [5, 1, 2]), ("starts", [0, 2, 2, 3]), ("starts", [0, 4, 3]), ("starts", [1, 3]), ("keys", [2, 1])],
)
def test_rows_out_of_order_are_refused(at, value, tmp_path):
    write_rows([pa.table({"k": [1, 1, 2], "event": [1, 2, 1]})], RowSchema((NUMBER,), {"": ()}), tmp_path, partitions=1)
    (part,) = list_partition_segments(tmp_path)
    rows = Segment(part.fetch_by_face[""]).ranks()
    keys, starts, event = list(rows.keys), rows.run_starts, rows.event
    if at == "event":
        event, starts, keys = np.array(value), np.array([0, 3]), [to_segment_column(pa.array([1]), "int64")]
    elif at == "starts":
        starts = np.array(value)
        keys = [to_segment_column(pa.array(range(len(value) - 1)), "int64")]
    else:
        keys = [to_segment_column(pa.array(value), "int64")]
    bad = type(rows)(starts, keys, event, rows.created, rows.seq)
    write_segment(part.fetch_by_face[""].path, 3, {}, (NUMBER,), bad)
    with pytest.raises(CorruptData):
        open_partition_segment(part, ["int64"])


def test_faces_of_different_rows_are_not_laid_together(tmp_path):
    schema = RowSchema((NUMBER,), {"": (), "hr": (FeatureField("x", "bool"),)})
    write_rows([pa.table({"k": [1, 2], "event": [1, 1], "x": [True, None]})], schema, tmp_path, partitions=1)
    (part,) = list_partition_segments(tmp_path, ("", "hr"))
    write_segment(part.fetch_by_face["hr"].path, 1, {"x": to_segment_column(pa.array([True]), "bool")})
    with pytest.raises(CorruptData, match="belong together"):
        open_partition_segment(part, ["int64"])


def test_a_column_that_is_not_there_and_a_type_that_is_none(tmp_path):
    write_segment(tmp_path / "x", 0, {})
    with pytest.raises(Invalid, match="no column"):
        Segment(FileFetcher(tmp_path / "x")).column("y")
    with pytest.raises(Invalid, match="no keys"):
        Segment(FileFetcher(tmp_path / "x")).ranks()
    with pytest.raises(Invalid, match="not a type"):
        write_segment(
            tmp_path / "y",
            0,
            {"a": to_segment_column(pa.array([], pa.int64()), "int64")._replace(type="list[list[x]]")},
        )
