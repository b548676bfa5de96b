"""Quality of a view from its records: what is said, what is drawn, and what stays unsaid of people."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from falaj.asof.column_stats import ColumnStats, measure_column
from falaj.cli.output import print_result, to_plain
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.features.quality import collect_stats, compute_drift, compute_quality, list_personal_columns
from falaj.features.records import FeatureDef, RuleDef, SourceDef, ViewDef
from falaj.features.row_stream import RowSegment, RowStream
from falaj.features.text_charts import draw_histogram, draw_sparkline, draw_trend

DAY_S = 86_400.0
NOW_S = 1_800_000_000.0
VIEW = Ref.parse("view:fraud/spend")
some = np.random.default_rng(4)

DEFINITION = ViewDef(
    "fraud/spend",
    "fraud/customer",
    SourceDef("push"),
    (FeatureDef("amount", "float64"), FeatureDef("city", "string")),
    rules=(RuleDef("fresh", "", {"within": "2d"}, "warn"),),
    ttl_us=7 * 86_400_000_000,
)


def chapter(generation: int, rows: int, apart: int = 0, *findings: str) -> RowSegment:
    at = NOW_S - (10 - generation) * DAY_S
    return RowSegment(generation, rows, {}, 0, round(at * 1e6), at, "ingest", quarantined=apart, findings=findings)


def stream(*chapters: RowSegment, age_s: float = 60.0, filled: int = 99) -> RowStream:
    newest = max((one.generation for one in chapters), default=0)
    newest_us = round((NOW_S - age_s) * 1e6) if chapters else 0
    return RowStream(VIEW, 1, generation=newest, chapters=chapters, newest_us=newest_us, filled=filled)


def amounts(mean: float, size: int = 2_000) -> dict[str, ColumnStats]:
    cities = some.choice(["Dubai", "Abu Dhabi"], size).tolist()
    return collect_stats([pa.table({"amount": some.normal(mean, size=size), "city": cities})])


def test_all_is_well() -> None:
    found = compute_quality(
        DEFINITION, stream(chapter(1, 100), chapter(2, 120)), NOW_S, [amounts(0), amounts(0)], amounts(0)
    )
    assert (found.verdict, found.why, found.rows, found.age, found.quarantined) == ("well", (), 220, "1m", 0.0)
    assert [(one.feature, one.rows, one.drift) for one in found.columns] == [
        ("amount", 4_000, "same"),
        ("city", 4_000, "same"),
    ]
    assert [one.rows for one in found.arrivals] == [120, 100]
    assert len(found.rows_trend) == len(found.columns[0].trend) == 2


@pytest.mark.parametrize(
    ("kept", "verdict", "said"),
    [
        (stream(), "watch", "no row came in yet"),
        (
            stream(chapter(1, 9), age_s=3 * DAY_S),
            "watch",
            "not fresh: the newest row is 3d old",
        ),
        (
            stream(chapter(1, 9), age_s=20 * DAY_S),
            "ill",
            "every value has expired: the newest row is 20d old",
        ),
        (stream(chapter(3, 9), filled=2), "watch", "the online store lacks what came after generation 2 of 3"),
        (stream(chapter(1, 95, 5)), "watch", "5.0% of the last arrival was kept apart"),
        (
            stream(chapter(1, 99, 1), chapter(2, 80, 20)),
            "ill",
            "20.0% of the last arrival was kept apart, usually",
        ),
        (stream(chapter(1, 80, 20), chapter(2, 100)), "well", ""),
    ],
)
def test_what_is_wrong_is_said(kept: RowStream, verdict: str, said: str) -> None:
    found = compute_quality(DEFINITION, kept, NOW_S)
    assert found.verdict == verdict
    assert next(iter(found.why), "").startswith(said)
    assert bool(found.why) is bool(said)


def test_drift_from_the_training_set_is_said() -> None:
    found = compute_quality(DEFINITION, stream(chapter(1, 9)), NOW_S, [amounts(0), amounts(3)], amounts(0))
    assert (found.verdict, found.why) == ("watch", ("moved from the training set: amount",))
    assert [one.drift for one in found.columns] == ["drift", "same"]


def test_a_column_that_changed_its_kind_begins_anew() -> None:
    stats = [collect_stats([pa.table({"x": [1.0, 2.0]})]), collect_stats([pa.table({"x": ["a"]})])]
    (column,) = compute_quality(DEFINITION, stream(chapter(1, 3)), NOW_S, stats).columns
    assert (column.rows, column.distinct) == (1, 1)


def test_drift_names_new_and_lost_columns_and_puts_the_furthest_first() -> None:
    size = 1_000
    then = {name: measure_column(pa.array(some.normal(size=size))) for name in ("a", "b", "gone")}
    now = {"a": then["a"], "b": measure_column(pa.array(some.normal(2, size=size))), "new": then["gone"]}
    assert [(one.feature, one.verdict) for one in compute_drift(now, then)] == [
        ("b", "drift"),
        ("a", "same"),
        ("new", "new"),
        ("gone", "gone"),
    ]
    (other,) = compute_drift({"a": measure_column(pa.array(["x"]))}, {"a": then["a"]})
    assert (other.verdict, other.psi) == ("other type", None)


def test_of_people_nothing_is_shown() -> None:
    secret = Label.parse("AE-PDPL,sensitive,purpose=fraud")
    features = (FeatureDef("amount", "float64"), FeatureDef("salary", "float64", label=secret))
    view = replace(DEFINITION, features=features)
    assert list_personal_columns(view) == {"salary"}
    assert list_personal_columns(replace(view, sealed=True)) == {"amount", "salary"}
    table = pa.table({"amount": [10.5] * 50, "salary": [43210.5] * 50})
    stats = collect_stats([table], list_personal_columns(view))
    found = compute_quality(view, stream(chapter(1, 50)), NOW_S, [stats], stats)
    salary = found.columns[1]
    assert (salary.mean, salary.low, salary.median, salary.distinct, salary.shape) == (None, None, None, None, "")
    assert "4321" not in json.dumps(to_plain(found))
    assert draw_histogram(stats["salary"]) == "personal: not drawn"


def test_it_prints_as_tables_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = compute_quality(
        DEFINITION, stream(chapter(1, 9, 1, "range(amount): 1 of 10 rows break it")), NOW_S, [amounts(0)]
    )
    print_result(found)
    shown = capsys.readouterr().out
    assert "ill" in shown
    assert "amount" in shown
    assert "range(amount): 1 of 10 rows break it" in shown
    print_result(compute_drift(amounts(0), amounts(1)))
    assert "psi" in capsys.readouterr().out
    print_result(found, as_json=True)
    assert json.loads(capsys.readouterr().out, parse_constant=_refused)["rows"] == 9


def _refused(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


def test_shapes() -> None:
    normal = measure_column(pa.array(some.normal(size=5_000)))
    line = draw_sparkline(normal)
    assert len(line) == 16
    assert line[0] < line[8] > line[-1]
    assert draw_sparkline(measure_column(pa.array([1.0]))) == ""
    assert draw_sparkline(ColumnStats("number")) == ""
    assert draw_sparkline(measure_column(pa.array(["a", "a", "b"])), bins=3) != ""
    assert (draw_trend([1.0]), len(draw_trend([1.0, None, 2.0]))) == ("", 3)


def test_bars_beside_what_was() -> None:
    then = measure_column(pa.array(some.normal(size=5_000)))
    lines = draw_histogram(measure_column(pa.array(some.normal(1, size=5_000))), then, bins=8, width=20).splitlines()
    assert len(lines) == 8
    assert all("│" in line and "was" in line for line in lines)
    cities = draw_histogram(measure_column(pa.array(["Dubai"] * 3 + ["Sharjah"]))).splitlines()
    assert [line.split()[0] for line in cities] == ["Dubai", "Sharjah", "others"]
    assert "75.0%" in cities[0]
    assert draw_histogram(ColumnStats("number")) == "nothing to draw"
    assert draw_histogram(measure_column(pa.array([4.0] * 9))).endswith("100.0%")


@pytest.mark.parametrize(
    "values",
    [[1.7e308, -1.7e308], [5e-324, 0.0], [float("inf"), 1.0], [float("nan")], [None, 1.0], [1e300, 1e-300, -5.0]],
)
def test_no_number_breaks_a_picture(values: list[float | None]) -> None:
    stats = measure_column(pa.array(values, pa.float64()))
    assert isinstance(draw_histogram(stats, stats), str)
    assert isinstance(draw_sparkline(stats), str)
    (found,) = compute_quality(
        DEFINITION, stream(chapter(1, 2)), NOW_S, [{"x": stats}, {"x": stats}], {"x": stats}
    ).columns
    json.dumps(to_plain(found), allow_nan=False)
