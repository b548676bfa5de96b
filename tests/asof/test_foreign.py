"""Every engine gives the same bits over files of others."""

import tempfile
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.external_rows import ExternalRows
from falaj.asof.records import FeatureField, ViewPlan
from falaj.asof.training_sets import JoinedView, build_training_set
from falaj.core.errors import CorruptData, Invalid, NotFound
from tests.asof.worlds import World, same, worlds

WAYS = [
    {"engine": "kernel"},
    {"engine": "polars"},
    {"engine": "duckdb"},
    {"memory_bytes": 0},
    {"sql": "SELECT * FROM rows"},
]


def write(world: World, folder: Path, cuts: list[int]) -> list[Path]:
    """Rows without a seq, so that the order of files and rows is what decides."""
    table = world.table(sorted(world.rows, key=lambda row: row.seq)).drop_columns(["seq"])
    edges = sorted({0, table.num_rows, *(cut for cut in cuts if cut < table.num_rows)})
    paths = []
    for at, (start, stop) in enumerate(pairwise(edges or [0])):
        paths.append(folder / f"{at}.parquet")
        pq.write_table(table[start:stop], paths[-1], row_group_size=7)
    if not paths:
        paths.append(folder / "none.parquet")
        pq.write_table(table, paths[-1])
    return paths


@pytest.mark.parametrize("way", WAYS, ids=["kernel", "polars", "duckdb", "spilled", "sql"])
@settings(max_examples=40, deadline=None)
@given(worlds(), st.lists(st.integers(1, 30), max_size=2))
def test_every_engine_equals_brute_force(way, world, cuts):
    with tempfile.TemporaryDirectory() as folder:
        rows = ExternalRows(write(world, Path(folder), cuts), "event", "created", **way)
        view = JoinedView(world.plan, rows)
        made = build_training_set(world.label_table(), "at", [view], known_at=world.known_at, status=True)
    same(made, world)


PLAN = ViewPlan("v", "v", (FeatureField("k", "int64"),), (FeatureField("x", "int64"),), ("x",), ("x",))


@pytest.mark.parametrize("way", WAYS, ids=["kernel", "polars", "duckdb", "spilled", "sql"])
def test_nulls_other_names_and_clocks(way, tmp_path):
    """A row without key or moment is never joined; moments of a zone through a change of clocks; names of their own."""
    new_york = ZoneInfo("America/New_York")
    texts = ["2026-11-01T01:30", "2026-11-01T02:30", None, "2026-11-01T00:30"]
    clock = [None if text is None else datetime.fromisoformat(text) for text in texts]
    made = [clock[0], None, clock[0], clock[1]]
    table = pa.table(
        {
            "who": pa.array([1, 1, 1, None], pa.int32()),
            "when": pa.array(clock, pa.timestamp("ms")),
            "known": pa.array(made, pa.timestamp("s")),
            "value": pa.array([1, 2, 3, 4], pa.int32()),
        }
    )
    pq.write_table(table, tmp_path / "rows [1].parquet")
    paths = [tmp_path / "rows [1].parquet"]
    rows = ExternalRows(paths, "when", "known", ["who"], {"x": "value"}, "America/New_York", **way)
    first = clock[0].replace(tzinfo=new_york)
    at = [first, first - timedelta(microseconds=1), datetime(2026, 11, 1, 7, 30, tzinfo=UTC)]
    labels = pa.table({"k": [1, 1, 1], "at": pa.array(at, pa.timestamp("ns", "UTC"))})
    answer = build_training_set(labels, "at", [JoinedView(PLAN, rows)], known_at="label")
    assert answer["x"].to_pylist() == [1, None, 2]


@pytest.mark.parametrize("way", WAYS, ids=["kernel", "polars", "duckdb", "spilled", "sql"])
def test_a_key_may_be_called_as_a_feature_is(way, tmp_path):
    """Labels call the key of a view as they like."""
    pq.write_table(pa.table({"who": ["a"], "event": [1], "x": [7]}), tmp_path / "a.parquet")
    plan = ViewPlan("v", "v", (FeatureField("x", "string"),), (FeatureField("x", "int64"),), ("x",), ("y",))
    rows = ExternalRows([tmp_path / "a.parquet"], "event", keys=("who",), **way)
    made = build_training_set(pa.table({"x": ["a", "b"], "at": [1, 1]}), "at", [JoinedView(plan, rows)])
    assert made["y"].to_pylist() == [7, None]


def test_sql_reads_the_files_it_was_given_and_nothing_else(tmp_path):
    pq.write_table(pa.table({"k": [1, 2], "event": [1, 1], "x": [1, 2]}), tmp_path / "a.parquet")
    (tmp_path / "secret.csv").write_text("k,event,x\n1,1,7\n")
    labels = pa.table({"k": [1, 2], "at": [5, 5]})

    def asked(sql: str) -> list[int | None]:
        rows = ExternalRows([tmp_path / "a.parquet"], "event", sql=sql)
        return build_training_set(labels, "at", [JoinedView(PLAN, rows)])["x"].to_pylist()

    assert asked("SELECT k, event, 10 * x AS x FROM rows WHERE k < 2") == [10, None]
    for sql in (
        f"SELECT * FROM '{tmp_path}/secret.csv'",  # noqa: S608
        "SET enable_external_access = true",
        "ATTACH 'x.db'",
        "COPY rows TO 'out.csv'",
        "SELECT nothing FROM rows",
        "CREATE TABLE other AS SELECT 1",
    ):
        with pytest.raises(Invalid):
            asked(sql)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "secret.csv"]


def test_an_engine_that_is_not_one_is_refused():
    with pytest.raises(Invalid, match="engine"):
        ExternalRows([], "event", engine="spark")


def test_files_that_are_not_there_not_parquet_or_not_alike_are_refused(tmp_path):
    labels = pa.table({"k": [1], "at": [5]})
    pq.write_table(pa.table({"k": [1], "event": [1], "x": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"k": [1], "event": [1]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"k": ["a"], "event": [1], "x": [1]}), tmp_path / "c.parquet")
    (tmp_path / "d.parquet").write_bytes(b"PAR1 and nothing else")
    for name, error in {"b": Invalid, "c": Invalid, "d": CorruptData, "e": NotFound}.items():
        rows = ExternalRows([tmp_path / "a.parquet", tmp_path / f"{name}.parquet"], "event")
        with pytest.raises(error):
            build_training_set(labels, "at", [JoinedView(PLAN, rows)])
