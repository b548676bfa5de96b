"""Rows on disk: the same files whatever batches and memory, and nothing lost on the way."""

import hashlib
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.records import MISSING_MOMENT, FeatureField
from falaj.asof.row_files import (
    RowSchema,
    list_partition_segments,
    open_partition_segment,
    parse_part_name,
    to_row_table,
    write_rows,
)
from falaj.core.errors import Invalid
from tests.asof.worlds import World, worlds

PLAIN = RowSchema((FeatureField("k", "int64"),), {"": (FeatureField("x", "float64"),)})


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*.seg")
    }


@settings(max_examples=60, deadline=None)
@given(worlds(), st.integers(1, 9), st.sampled_from([1, 4]))
def test_batches_memory_and_order_do_not_change_a_byte(world: World, size: int, count: int):
    table = world.table()
    batches = [table[start : start + size] for start in range(0, table.num_rows, size)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows([table], world.schema, folder / "a", partitions=count)
        written = write_rows(batches[::-1], world.schema, folder / "b", partitions=count, memory_bytes=64)
        assert digests(folder / "a") == digests(folder / "b")
        assert written.num_rows == table.num_rows
        assert written.num_keys == len({row.key for row in world.rows})
        assert written.first_event == min((row.event for row in world.rows), default=MISSING_MOMENT)
        assert written.last_event == max((row.event for row in world.rows), default=MISSING_MOMENT)
        assert all(path.exists() for paths in written.files.values() for path in paths)
        assert not (folder / "b" / ".spill").exists()


def test_a_seq_is_given_once_to_each_row_in_the_order_of_arrival(tmp_path):
    batches = [
        pa.table({"k": [1, 2], "event": [5, 5], "x": [0.0, 1.0]}),
        pa.table({"k": [1], "event": [5], "x": [2.0]}),
    ]
    write_rows(batches, PLAIN, tmp_path, seq=100, created=9, partitions=1)
    (part,) = list_partition_segments(tmp_path)
    rows = to_row_table(open_partition_segment(part, ["int64"]), PLAIN.keys, ["x"])
    assert rows["seq"].to_pylist() == [100, 102, 101]
    assert rows["created"].to_pylist() == [9, 9, 9]
    assert rows["x"].to_pylist() == [0.0, 2.0, 1.0]
    (path,) = (tmp_path / "_").iterdir()
    assert parse_part_name(path.name) == (0, 1, 100)


def test_rows_without_created_became_known_at_their_event(tmp_path):
    table = pa.table({"k": [1, 1], "event": [5, 6], "created": pa.array([None, 8], pa.int64()), "x": [0.0, 1.0]})
    write_rows([table], PLAIN, tmp_path)
    (part,) = list_partition_segments(tmp_path)
    assert open_partition_segment(part, ["int64"]).created.tolist() == [5, 8]


def test_rows_are_cut_into_as_many_partitions_as_their_bytes_need(tmp_path):
    num = 40_000
    table = pa.table({"k": np.arange(num) % 997, "event": np.arange(num), "x": np.arange(num) / 7})
    written = write_rows(table.to_batches(1000), PLAIN, tmp_path, memory_bytes=1 << 18)
    assert written.partitions == 8
    assert written.num_keys == 997
    parts = list_partition_segments(tmp_path)
    assert sorted(part.partition for part in parts) == list(range(8))
    rows = pa.concat_tables(to_row_table(open_partition_segment(part, ["int64"]), PLAIN.keys, ["x"]) for part in parts)
    assert rows.sort_by("seq").drop_columns(["seq", "created"]).equals(table.select(["k", "event", "x"]))


@pytest.mark.parametrize(
    ("table", "match"),
    [
        ({"k": [None], "event": [1], "x": [1.0]}, "no key"),
        ({"k": [1], "event": pa.array([None], pa.int64()), "x": [1.0]}, "no event|no key"),
        ({"k": [1], "event": [1]}, "lack"),
        ({"k": [1], "event": [1], "x": ["one"]}, "does not fit"),
        ({"k": ["a"], "event": [1], "x": [1.0]}, "given as"),
    ],
)
def test_rows_that_cannot_be_kept_are_refused_and_nothing_is_left(table, match, tmp_path):
    with pytest.raises(Invalid, match=match):
        write_rows([pa.table(table)], PLAIN, tmp_path)
    assert not list(tmp_path.rglob("*.seg"))
    assert not (tmp_path / ".spill").exists()


def test_a_schema_that_cannot_be_is_refused(tmp_path):
    key = (FeatureField("k", "int64"),)
    for keys, faces in [
        ((), {"": ()}),
        (key, {"hr": ()}),
        (key, {"": (FeatureField("k", "bool"),)}),
        (key, {"": (FeatureField("event", "bool"),)}),
        (key, {"": (), "../x": ()}),
    ]:
        with pytest.raises(Invalid):
            RowSchema(keys, faces)
    for partitions in (3, -1, 8192):
        with pytest.raises(Invalid):
            write_rows([], PLAIN, tmp_path, partitions=partitions)
    with pytest.raises(Invalid):
        parse_part_name("../p0000-of-0001-0000000000000000.seg")
