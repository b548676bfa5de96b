"""Training sets equal brute force, whatever the rows, however they are cut."""

import multiprocessing
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.records import EXPIRED, FUTURE, NOT_FOUND, NULL, PRESENT, FeatureField, ViewPlan, Window
from falaj.asof.row_files import RowSchema, list_partition_segments, write_rows
from falaj.asof.training_sets import (
    JoinedView,
    SegmentRows,
    assemble_pieces,
    build_partition,
    build_training_set,
    count_partitions,
)
from falaj.core.errors import CorruptData, Invalid
from tests.asof.oracle import Row, as_of
from tests.asof.worlds import World, answer_of, same, worlds

COUNTS = st.sampled_from([1, 2, 4, 16])


def joined(world: World, own: SegmentRows) -> pa.Table:
    return build_training_set(
        world.label_table(), "at", [JoinedView(world.plan, own)], known_at=world.known_at, status=True
    )


@settings(max_examples=150, deadline=None)
@given(worlds(), COUNTS)
def test_one_segment_equals_brute_force(world, count):
    with tempfile.TemporaryDirectory() as folder:
        same(joined(world, world.write(Path(folder), [world.rows], [count])), world)


@settings(max_examples=150, deadline=None)
@given(worlds(), st.lists(st.integers(0, 2), min_size=40, max_size=40), COUNTS, COUNTS)
def test_any_cut_into_segments_and_rows_of_memory_changes_nothing(world, where, first, second):
    """Rows in two segments of different partitions and in memory, in any order of arrival."""
    cuts = [[row for row in world.rows if where[row.seq] == each] for each in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        own = world.write(Path(folder), cuts[:2], [first, second])
        extra = world.table(cuts[2]).cast(world.schema.arrow())
        same(joined(world, SegmentRows(own.parts, extra)), world)


@settings(max_examples=80, deadline=None)
@given(worlds(extremes=False), st.integers(-10, 30), st.data())
def test_rows_known_later_never_change_what_was_known(world, known, data):
    """Neither rows of the future nor rows that came in after the instant can be told from their absence."""
    world = world._replace(known_at=known, ttl=0)
    kept = [row for row in world.rows if row.created <= known or data.draw(st.booleans())]
    with tempfile.TemporaryDirectory() as folder:
        whole = joined(world, world.write(Path(folder) / "a", [world.rows], [2]))
        less = joined(world, world.write(Path(folder) / "b", [kept], [1]))
    assert answer_of(whole, world.plan.names) == answer_of(less, world.plan.names)


@settings(max_examples=60, deadline=None)
@given(worlds(), COUNTS, COUNTS)
def test_pieces_in_any_order_are_the_whole(world, first, second):
    cuts = [world.rows[at::3] for at in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        own = world.write(Path(folder), cuts[:2], [first, second])
        view = JoinedView(world.plan, SegmentRows(own.parts, world.table(cuts[2]).cast(world.schema.arrow())))
        bare = world.label_table().drop_columns(["y"])
        pieces = [
            build_partition(bare, "at", view, partition, known_at=world.known_at)
            for partition in range(count_partitions(view))
        ]
        made = assemble_pieces(world.label_table(), [view], [pieces[::-1]], status=True)
        whole = build_training_set(world.label_table(), "at", [view], known_at=world.known_at, status=True)
    assert answer_of(made, world.plan.names) == answer_of(whole, world.plan.names)
    same(made, world)


def plan(ttl: int = 0, names: tuple[str, ...] = ("x",)) -> ViewPlan:
    return ViewPlan(
        "view:p/v@v1", "v", (FeatureField("k", "int64"),), (FeatureField("x", "int64"),), ("x",), names, ttl
    )


def rows(folder: Path, *events: int, count: int = 1) -> SegmentRows:
    schema = RowSchema((FeatureField("k", "int64"),), {"": (FeatureField("x", "int64"),)})
    table = pa.table({"k": [at % 5 for at in events], "event": events, "x": events})
    write_rows([table], schema, folder, partitions=count)
    return SegmentRows(list_partition_segments(folder))


@pytest.mark.parametrize(
    ("at", "ttl", "status", "value"),
    [
        (9, 0, FUTURE, None),
        (10, 0, PRESENT, 10),
        (10, 1, PRESENT, 10),
        (11, 1, EXPIRED, None),
        (19, 10, PRESENT, 10),
        (20, 10, EXPIRED, None),
        (1 << 62, 0, PRESENT, 10),
    ],
)
def test_the_edges_of_time_are_as_written(tmp_path, at, ttl, status, value):
    labels = pa.table({"k": [0], "at": [at]})
    made = build_training_set(labels, "at", [JoinedView(plan(ttl), rows(tmp_path, 10))], status=True)
    assert (made["x__status"][0].as_py(), made["x"][0].as_py()) == (status, value)


def test_a_view_without_rows_and_a_set_without_labels(tmp_path):
    labels = pa.table({"k": [0, None], "at": [1, 2]})
    made = build_training_set(labels, "at", [JoinedView(plan(), SegmentRows(()))], status=True)
    assert made["x"].to_pylist() == [None, None]
    assert made["x__status"].to_pylist() == [NOT_FOUND, NOT_FOUND]
    made = build_training_set(labels[:0], "at", [JoinedView(plan(), rows(tmp_path, 10, count=4))], status=True)
    assert made.schema.names == ["k", "at", "x", "x__status"]
    assert made.num_rows == 0
    assert made.schema.field("x").type == pa.int64()


def test_nobodys_value_lies_under_a_null(tmp_path):
    labels = pa.table({"k": [0, 1, 0], "at": [9, 9, 1]})
    made = build_training_set(labels, "at", [JoinedView(plan(), rows(tmp_path, 5))])["x"].chunk(0)
    assert made.is_valid().to_pylist() == [True, False, False]
    assert pa.Array.from_buffers(made.type, 3, [None, made.buffers()[1]]).to_pylist()[1:] == [0, 0]


def test_a_name_that_is_taken_or_lacking_is_refused(tmp_path):
    view = JoinedView(plan(), rows(tmp_path, 10))
    with pytest.raises(Invalid, match="called x"):
        build_training_set(pa.table({"k": [1], "at": [1], "x": [1]}), "at", [view])
    with pytest.raises(Invalid, match="called x"):
        build_training_set(pa.table({"k": [1], "at": [1]}), "at", [view, view])
    with pytest.raises(Invalid, match="one column k"):
        build_training_set(pa.table({"at": [1]}), "at", [view])
    with pytest.raises(Invalid, match="without a zone"):
        build_training_set(pa.table({"k": [1], "at": pa.array([1], pa.timestamp("us"))}), "at", [view])
    with pytest.raises(Invalid, match="not all"):
        assemble_pieces(
            pa.table({"k": [1], "at": [1]}), [view], [[build_partition(pa.table({"k": [], "at": []}), "at", view, 0)]]
        )
    two = pa.table({"k": [1, 2], "at": [1, 1]})
    piece = build_partition(two[:1], "at", view, 0)
    with pytest.raises(Invalid, match="not all"):
        assemble_pieces(two, [view], [[piece, piece]])


def test_rows_of_other_keys_than_the_plan_says_are_refused(tmp_path):
    own = rows(tmp_path, 10)
    other = ViewPlan("v", "v", (FeatureField("k", "string"),), (FeatureField("x", "int64"),), ("x",), ("x",))
    with pytest.raises(CorruptData, match="other keys"):
        build_training_set(pa.table({"k": ["a"], "at": [1]}), "at", [JoinedView(other, own)])
    wide = ViewPlan("v", "v", (FeatureField("k", "int64"),), (FeatureField("x", "float64"),), ("x",), ("x",))
    with pytest.raises(CorruptData, match="another type"):
        build_training_set(pa.table({"k": [0], "at": [11]}), "at", [JoinedView(wide, own)])


def test_a_face_that_was_not_given_is_never_read(tmp_path):
    schema = RowSchema(
        (FeatureField("k", "int64"),), {"": (FeatureField("x", "int64"),), "hr": (FeatureField("pay", "int64"),)}
    )
    write_rows([pa.table({"k": [1], "event": [1], "x": [2], "pay": [3]})], schema, tmp_path)
    assert b"pay" not in next((tmp_path / "_").glob("*.seg")).read_bytes()
    labels = pa.table({"k": [1], "at": [1]})
    asks = ViewPlan("v", "v", schema.keys, schema.columns, ("pay",), ("pay",))
    with pytest.raises(Invalid, match="may not read"):
        build_training_set(labels, "at", [JoinedView(asks, SegmentRows(list_partition_segments(tmp_path)))])
    made = build_training_set(
        labels, "at", [JoinedView(asks, SegmentRows(list_partition_segments(tmp_path, ("", "hr"))))]
    )
    assert made["pay"].to_pylist() == [3]


def test_two_processes_give_the_bits_of_one(tmp_path):
    own = rows(tmp_path, *range(0, 4000, 3), count=4)
    labels = pa.table({"k": [at % 6 for at in range(900)], "at": [at * 7 % 4100 for at in range(900)]})
    view = JoinedView(plan(500), own)
    told: list[int] = []
    whole = build_training_set(labels, "at", [view], known_at="label", status=True, report_progress=told.append)
    work = [(labels, "at", view, partition) for partition in range(count_partitions(view))]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pieces = pool.starmap(_known_part, work)
    assert assemble_pieces(labels, [view], [pieces], status=True).equals(whole)
    assert sum(told) == len(labels)


def _known_part(labels: pa.Table, moment: str, view: JoinedView, partition: int) -> pa.Table:
    return build_partition(labels, moment, view, partition, known_at="label")


def test_progress_and_a_moment_of_knowledge_as_text(tmp_path):
    own = rows(tmp_path, 10, 15)
    labels = pa.table({"k": [0], "at": [20]})
    made = build_training_set(labels, "at", [JoinedView(plan(), own)], known_at="1970-01-01T00:00:00.000012Z")
    assert made["x"].to_pylist() == [10]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_windows_are_those_of_all_segments_together(data):
    """Counts and sums over rows of two segments and of memory, against the rows themselves."""
    moment = st.integers(0, 40)
    drawn = data.draw(st.lists(st.tuples(st.integers(0, 2), moment, moment, st.integers(0, 2)), max_size=25))
    made = [Row((key,), event, created, seq, (seq,)) for seq, (key, event, created, _) in enumerate(drawn)]
    cuts = [[row for row in made if drawn[row.seq][3] == each] for each in range(3)]
    schema = RowSchema((FeatureField("k", "int64"),), {"": (FeatureField("x", "int64"),)})
    labels = data.draw(st.lists(st.tuples(st.tuples(st.integers(0, 3)), st.one_of(st.none(), moment)), max_size=10))
    world = World(schema, made, labels, data.draw(st.sampled_from([0, 5])), data.draw(st.sampled_from([None, "label"])))
    windows = (Window("n", "count", "", 10, 1, "int64"), Window("s", "sum", "x", 10, 1, "int64"))
    asks = replace(world.plan, wanted=("n", "s"), names=("n", "s"), windows=windows)
    with tempfile.TemporaryDirectory() as folder:
        own = world.write(Path(folder), cuts[:2], [4, 2])
        own = SegmentRows(own.parts, world.table(cuts[2]).cast(schema.arrow()))
        table = build_training_set(
            world.label_table(), "at", [JoinedView(asks, own)], known_at=world.known_at, status=True
        )
    for place, (key, at) in enumerate(labels):
        status, _ = as_of(made, key, at, world.ttl, at if world.known_at else None)
        got = [table[name][place].as_py() for name in ("n__status", "n", "s__status", "s")]
        if status != PRESENT:
            assert got == [status, None, status, None]
            continue
        mine = [row for row in made if row.key == key and at - 10 < row.event <= at]
        mine = [row.seq for row in mine if not world.known_at or row.created <= at]
        total = [PRESENT, sum(mine)] if mine else [NULL, None]
        assert got == [PRESENT, len(mine), *total]
