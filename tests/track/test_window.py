"""Windows of the table of runs: what stands in them, how large the whole is, and what they cost nobody."""

from typing import Any

import pytest

from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.track.records import Metric, TableWindow
from falaj.track.search_language import format_column, parse_columns
from tests.town import refusal

EXPERIMENT = "experiment:fraud/scoring"


@pytest.fixture
def runs(amal: Any) -> list[Ref]:
    """Five runs; the third measured nothing, the last something odd."""
    made: list[Ref] = []
    for number in range(5):
        params = {"lr": str(number), "long": "x" * 300}
        run = amal.track.start(EXPERIMENT, f"run {number}", {"team": "a", "mlflow.user": "b"}, params, 100.0 + number)
        made.append(run.ref)
        if number != 2:
            value = float("nan") if number == 4 else number / 10
            amal.track.log(run.ref, (Metric("loss", value, 1.0, 1), Metric("valid loss", 2.0, 1.0, 1)))
    return made


def test_a_window_has_its_rows_and_columns_and_the_size_of_the_whole(amal: Any, runs: list[Ref]) -> None:
    found = amal.track.table(window=TableWindow(first=1, rows=2, left=3, width=3))
    assert found.columns == ("params.long", "params.lr", "metrics.loss")
    assert [row.ref for row in found.rows] == [runs[3], runs[2]]
    assert [row.cells[1:] for row in found.rows] == [("3", 0.3), ("2", None)]
    assert len(found.rows[0].cells[0]) == 200
    assert (found.first, found.left, found.num_rows, found.num_columns) == (1, 3, 5, 8)
    assert amal.track.table(window=TableWindow(first=99, left=99)).rows == ()


def test_columns_are_chosen_found_and_kept_by_a_filter(amal: Any, runs: list[Ref]) -> None:
    chosen = 'metrics."valid loss", start_time, params.lr'
    found = amal.track.table((EXPERIMENT,), where="metrics.loss < 0.2", order=("params.lr DESC",), columns=chosen)
    assert found.columns == ('metrics."valid loss"', "start_time", "params.lr")
    assert [row.cells for row in found.rows] == [(2.0, 101_000, "1"), (2.0, 100_000, "0")]
    assert (found.num_rows, found.num_columns) == (2, 3)
    narrow = amal.track.table(where="params.lr = 'none'", window=TableWindow(rows=0, find="LOSS"))
    assert (narrow.columns, narrow.num_rows) == (("metrics.loss", 'metrics."valid loss"'), 0)
    assert amal.track.table(columns="metrics.loss", window=TableWindow(rows=1)).rows[0].cells == ("nan",)


def test_a_window_follows_what_is_logged(amal: Any, runs: list[Ref]) -> None:
    before = amal.track.table(window=TableWindow(width=0))
    amal.track.log(runs[0], (Metric("new", 1.0),))
    amal.track.delete(runs[1])
    after = amal.track.table(window=TableWindow(width=0))
    assert (after.num_columns, after.num_rows) == (before.num_columns + 1, 4)
    assert amal.track.table(state="deleted").num_rows == 1


@pytest.mark.parametrize("window", [TableWindow(first=-1), TableWindow(rows=-1), TableWindow(rows=1000, width=1000)])
def test_a_window_has_bounds(amal: Any, window: TableWindow) -> None:
    assert isinstance(refusal(lambda: amal.track.table(window=window)), Invalid)


@pytest.mark.parametrize("key", ["loss", "valid loss", 'a"b', "a\\b", "a,b", "x.y", "`", "'", "a)b"])
def test_a_column_is_read_as_it_is_written(key: str) -> None:
    columns = tuple((family, key) for family in ("metrics", "params", "tags"))
    assert parse_columns(", ".join(map(format_column, columns))) == columns


@pytest.mark.parametrize("text", ["metrics.", "nothing", "dataset.name", "metrics.a metrics.b", "metrics.a = 1"])
def test_what_is_no_column_is_said_to_be_none(text: str) -> None:
    assert isinstance(refusal(lambda: parse_columns(text)), Invalid)


def test_a_span_of_a_curve(amal: Any, run: Ref) -> None:
    amal.track.log(run, tuple(Metric("loss", float(step), 1000.0 + step, step) for step in range(100)))

    def steps(*span: float, by: str = "step") -> list[int]:
        return [one.step for one in amal.track.history(run, "loss", bins=50, span=span, by=by).points]

    assert steps(10, 12.5) == [10, 11, 12]
    assert steps(1010, 1012.5, by="time") == [10, 11, 12]
    assert steps(200, 300) == []
    amal.track.log(run, (Metric("loss", 7.0, 1005.0, 200),))
    assert steps(1005, 1006, by="time") == [5, 6, 200]
    for wrong in ({"span": (1.0,), "bins": 5}, {"span": (1.0, 2.0)}, {"by": "value", "bins": 5}):
        assert isinstance(refusal(lambda given=wrong: amal.track.history(run, "loss", **given)), Invalid)


def test_many_curves_at_once(amal: Any, runs: list[Ref]) -> None:
    found = amal.track.curves((runs[0], runs[2]), ("loss", "valid loss"), bins=10)
    told = [(one.run, one.curve.key, [point.value for point in one.curve.points]) for one in found]
    assert told == [(runs[0], "loss", [0.0]), (runs[0], "valid loss", [2.0]), (runs[2], "loss", []),
                    (runs[2], "valid loss", [])]  # fmt: skip
    assert found[0].curve == amal.track.history(runs[0], "loss", bins=10)
    assert amal.track.curves((runs[0],), ("loss",), span=(5.0, 9.0))[0].curve.points == ()
    for wrong in ({"metrics": ("",)}, {"metrics": ("loss",), "bins": 0}, {"metrics": ("a",) * 501}):
        assert isinstance(refusal(lambda given=wrong: amal.track.curves((runs[0],), **given)), Invalid)


def test_the_newest_runs_are_read_and_no_others(amal: Any) -> None:
    """What a person began last, without a board of everything."""
    made = [amal.track.start(EXPERIMENT, f"late {number}").ref for number in range(3)]
    amal.track.log(made[2], (Metric("loss", 0.25, 1.0, 1),))
    found = amal.track.recent(limit=2).runs
    assert [one.ref for one in found] == [made[2], made[1]]
    assert found[0].metrics["loss"].value == 0.25
    amal.track.delete(made[2])
    assert amal.track.recent(limit=1).runs[0].ref == made[1]
    assert "newest" in refusal(lambda: amal.track.recent(limit=0)).message
