"""Rules: what is kept apart and why; nothing is lost, nothing twice, nothing quoted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.casting import cast_column
from falaj.asof.column_stats import ColumnStats, measure_column
from falaj.asof.quality_rules import REASONS_COLUMN, CheckedRows, ExpectedRows, RowValidator, split_checked_rows
from falaj.asof.records import FeatureField
from falaj.asof.rule_limits import check_limits
from falaj.core.errors import Invalid

NOW = 1_800_000_000_000_000
DAY = 86_400_000_000


@dataclass(frozen=True)
class R:
    """A rule as anybody may write one."""

    kind: str
    column: str = ""
    limits: Mapping[str, object] = field(default_factory=dict)
    action: str = "quarantine"


def check(
    table: Any, rules: Sequence[R], now_us: int, reference: Mapping[str, ColumnStats] | None = None, **more: Any
) -> CheckedRows:
    """Of rows that are all there is of an arrival."""
    watch = RowValidator(rules, now_us, reference, ExpectedRows(**more))
    seen = watch.take(table)
    return CheckedRows(seen.table, seen.good, seen.why, watch.finish())


def refusals(found: CheckedRows) -> list[str]:
    return [one.message for one in found.findings if one.action == "refuse"]


def checked(column: object, rule: R, type_: str = "") -> CheckedRows:
    table = pa.table({"x": column, "event": [NOW] * len(column)})  # type: ignore[arg-type]
    return check(table, [rule], NOW, fields=[FeatureField("x", type_)] if type_ else [])


def broken(column: object, rule: R, type_: str = "") -> list[int]:
    return np.flatnonzero(~checked(column, rule, type_).good).tolist()


@pytest.mark.parametrize(
    ("column", "rule", "rows"),
    [
        ([1, None, 3], R("not_null", "x"), [1]),
        ([1.0, 2.0, 3.0, None, math.nan], R("range", "x", {"low": 1, "high": 2}), [2, 4]),
        ([1.0, 1.5, 2.0], R("range", "x", {"low": 1, "high": 2, "inclusive": False}), [0, 2]),
        ([1.0, 1.5, 2.0], R("range", "x", {"low": 1, "high": 2, "inclusive": "low"}), [2]),
        ([2**53, 2**53 + 1, -(2**63)], R("range", "x", {"high": 2**53}), [1]),
        (["a", "b", None], R("among", "x", {"values": ["a"]}), [1]),
        ([1, 2, None], R("among", "x", {"values": [1, 3]}), [1]),
        (["AE12", "ae12", "xAE12", None, "AE12\n"], R("match", "x", {"pattern": "[A-Z]{2}[0-9]+"}), [1, 2, 4]),
        (["ab", "abc", "م", None], R("length", "x", {"low": 2, "high": 2}), [1, 2]),
        ([[1], [], None], R("length", "x", {"low": 1}), [1]),
        ([b"ab", b""], R("length", "x", {"low": 1}), [1]),
        (["a", "b", "a", None, None], R("unique", "x"), [2]),
        ([0.0, -0.0, math.nan, math.nan, 1.0], R("unique", "x"), [1, 3]),
        ([1, 2, 1], R("unique", limits={"columns": ["x", "event"]}), [2]),
        ([True, False, True], R("unique", "x"), [2]),
    ],
)
def test_a_rule_points_at_rows(column: list[object], rule: R, rows: list[int]) -> None:
    assert broken(column, rule) == rows
    found = checked(column, rule)
    assert [(one.broken, one.action) for one in found.findings] == [(len(rows), "quarantine")]


def test_times_have_ranges_too() -> None:
    at = pa.array([0, NOW], pa.timestamp("us", "UTC"))
    assert broken(at, R("range", "x", {"low": "2020-01-01T00:00:00Z"})) == [0]
    assert broken(at, R("range", "x", {"high": 5})) == [1]


def test_events_of_the_future_are_kept_apart() -> None:
    table = pa.table({"event": [NOW, NOW + 600_000_000, NOW + 600_000_001]})
    assert check(table, [R("future")], NOW).good.tolist() == [True, True, False]
    assert check(table, [R("future", limits={"skew": "1s"})], NOW).good.tolist() == [True, False, False]


def test_what_is_always_on() -> None:
    table = pa.table({"id": ["a", None, "c", "d"], "x": ["1", "2", "three", "4"], "event": [1, 2, 3, None]})
    found = check(table, [], NOW, fields=[FeatureField("id", "string"), FeatureField("x", "int64")], keys=["id"])
    good, bad = split_checked_rows(table, found)
    assert good.to_pydict() == {"id": ["a"], "x": [1], "event": [1]}
    assert bad.to_pydict() == {
        "id": [None, "c", "d"],
        "x": ["2", "three", "4"],
        "event": [2, 3, None],
        REASONS_COLUMN: ["key(id)", "type(x)", "event(event)"],
    }
    assert not any("three" in one.message for one in found.findings)


def test_a_row_may_have_many_reasons() -> None:
    table = pa.table({"x": [5, -5], "event": [NOW, NOW]})
    rules = [R("range", "x", {"low": 0}), R("among", "x", {"values": [5]})]
    _, bad = split_checked_rows(table, check(table, rules, NOW))
    assert bad.column(REASONS_COLUMN).to_pylist() == ["range(x); among(x)"]


def test_two_rules_of_one_kind_are_told_apart() -> None:
    rules = [
        R("range", "x", {"low": 0}),
        R("range", "x", {"high": 10}),
        R("unique", limits={"columns": ["x", "event"]}),
    ]
    found = check(pa.table({"x": [5, -5, -6, 11, 5], "event": [NOW] * 5}), rules, NOW)
    assert [(one.broken, one.message.split(":")[0]) for one in found.findings] == [
        (2, "range(x)"),
        (1, "range(x)"),
        (1, "unique(x, event)"),
    ]


def test_warn_keeps_rows_and_refuse_says_so() -> None:
    warned = checked([1, None], R("not_null", "x", action="warn"))
    assert warned.good.all()
    assert [one.action for one in warned.findings] == ["warn"]
    assert not refusals(warned)
    refused = checked([1, None], R("not_null", "x", action="refuse"))
    assert refusals(refused) == ["not_null(x): 1 of 2 rows break it"]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (R("rows", limits={"low": 4}), "rows: the number of rows is below its bound"),
        (R("rows", limits={"low": 2, "high": 3}), ""),
        (R("not_null", "x", {"share": 0.5}), ""),
        (R("not_null", "x", {"share": 0.1}), "not_null(x): the share of nulls is above its bound"),
        (R("fresh", limits={"within": "2d"}), ""),
        (R("fresh", limits={"within": "12h"}), "fresh: the newest row is older than 12h"),
        (R("distribution", "x", {"mean": [0, 1]}), "distribution(x): the mean is above its bound"),
        (R("distribution", "x", {"mean": [None, 5], "std": [0, 1], "nulls": [0, 0.5]}), ""),
        (R("distribution", "x", {"quantiles": {"0.5": [3, None]}}), "distribution(x): the quantile 0.5 is below its"),
        (R("distribution", "t", {"shares": {"a": [0.9, 1]}}), "distribution(t): the share of a text is below its"),
    ],
)
def test_rules_of_all_rows_blame_none(rule: R, said: str) -> None:
    table = pa.table({"x": [2.0, None, 3.0], "t": ["a", "b", "b"], "event": [NOW - DAY, NOW - 2 * DAY, NOW - 3 * DAY]})
    found = check(table, [rule], NOW)
    assert found.good.all()
    assert len(found.findings) == bool(said)
    assert all(one.message.startswith(said) and one.action == "warn" for one in found.findings)
    refusing = check(table, [R(rule.kind, rule.column, rule.limits, "refuse")], NOW)
    assert bool(refusals(refusing)) is bool(said)


def test_a_distribution_is_held_against_a_reference() -> None:
    some = np.random.default_rng(3)
    then = {"x": measure_column(pa.array(some.normal(size=3_000)))}
    rule = R("distribution", "x", {"psi": 0.2})

    def findings(values: object) -> list[str]:
        table = pa.table({"x": values, "event": [NOW] * len(values)})  # type: ignore[arg-type]
        return [one.message.split(" (")[0] for one in check(table, [rule], NOW, then).findings]

    assert findings(some.normal(size=3_000)) == []
    assert findings(some.normal(2, size=3_000)) == ["distribution(x): it moved from the reference"]
    assert findings(some.normal(2, size=30)) == []
    assert findings(["a"] * 300) == ["distribution(x): the type differs from the reference"]


def test_batches_are_looked_at_together_in_the_end() -> None:
    rules = [R("unique", "x"), R("rows", limits={"low": 5}), R("fresh", limits={"within": "1d"}, action="refuse")]
    watch = RowValidator(rules, NOW, None, ExpectedRows())
    first = watch.take(pa.table({"x": ["a", "b"], "event": [NOW, NOW]}))
    second = watch.take(pa.record_batch({"x": ["b", "c", "c"], "event": [NOW - 9 * DAY] * 3}))
    assert first.good.all()
    assert second.good.tolist() == [False, True, False]
    assert [one.broken for one in second.findings] == [2]
    assert [(one.rule, one.broken, one.action) for one in watch.finish()] == [
        ("unique", 2, "quarantine"),
        ("rows", 0, "warn"),
    ]


rules_ = st.lists(
    st.sampled_from(
        [
            R("range", "x", {"low": 0}),
            R("not_null", "y"),
            R("unique", "y"),
            R("among", "y", {"values": ["a", "b"]}),
            R("match", "y", {"pattern": "a*"}, "warn"),
            R("length", "y", {"high": 1}),
            R("future"),
            R("rows", limits={"high": 3}),
        ]
    ),
    max_size=4,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["1", "2", "", "x", None]),
            st.sampled_from(["a", "b", "aa", None]),
            st.sampled_from([NOW, 2 * NOW, None]),
        ),
        max_size=25,
    ),
    rules_,
)
def test_good_and_bad_are_all_rows(rows: list[tuple[str | None, str | None, int | None]], rules: list[R]) -> None:
    x, y, event = (list(part) for part in zip(*rows, strict=True)) if rows else ([], [], [])
    table = pa.table(
        {
            "n": pa.array(range(len(rows)), pa.int64()),
            "x": pa.array(x, pa.string()),
            "y": pa.array(y, pa.string()),
            "event": pa.array(event, pa.int64()),
        }
    )
    fields = [
        FeatureField("n", "int64"),
        FeatureField("x", "float64"),
        FeatureField("y", "string"),
        FeatureField("event", "int64"),
    ]
    found = check(table, rules, NOW, fields=fields, keys=["y"])
    good, bad = split_checked_rows(table, found)
    assert sorted(good.column("n").to_pylist() + bad.column("n").to_pylist()) == list(range(len(rows)))
    assert bad.drop_columns([REASONS_COLUMN]).equals(table.take(bad.column("n")))
    assert all(bad.column(REASONS_COLUMN).to_pylist())
    assert good.schema.names == table.schema.names
    assert good.column("y").null_count == good.column("event").null_count == 0
    # What is good stays good, and only what is good can have come before.
    assert check(good, rules, NOW, fields=fields, keys=["y"]).good.all()
    others = [rule for rule in rules if rule.kind != "unique"]
    without, _ = split_checked_rows(table, check(table, others, NOW, fields=fields, keys=["y"]))
    assert set(good.column("y").to_pylist()) == set(without.column("y").to_pylist())


@pytest.mark.parametrize(
    ("column", "type_", "made", "bad"),
    [
        (["1", "-2", "x", None, "1.5", "99999999999999999999"], "int64", [1, -2, None, None, None, None], [2, 4, 5]),
        ([1.0, 1.5, math.nan, None], "int64", [1, None, None, None], [1, 2]),
        ([1, 2**40, None], "int32", [1, None, None], [1]),
        ([0, 1, 2], "bool", [False, True, None], [2]),
        ([1.5, 1e300, -1e300, math.inf], "float32", [1.5, None, None, math.inf], [1, 2]),
        ([2**53, 2**53 + 1], "float64", [2.0**53, None], [1]),
        ([b"ok", b"\xff"], "string", ["ok", None], [1]),
        ([["1"], ["x"], None, ["2", "3"]], "list[int64]", [[1], None, None, [2, 3]], [1]),
        ([{"a": 1}, None], "int64", [None, None], [0]),
        ([None, None], "string", [None, None], []),
        ([], "int64", [], []),
    ],
)
def test_casting_points_at_what_has_no_place(
    column: list[object], type_: str, made: list[object], bad: list[int]
) -> None:
    found, mask = cast_column(pa.chunked_array([pa.array(column)]), type_)
    assert found.to_pylist() == made
    assert np.flatnonzero(mask).tolist() == bad


def test_casting_times() -> None:
    texts = pa.array(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00", "soon", None])
    found, bad = cast_column(texts, "time")
    assert found.type == pa.timestamp("us", "UTC")
    assert bad.tolist() == [False, True, True, False]
    found, bad = cast_column(texts, "time", "Asia/Dubai")
    assert bad.tolist() == [False, False, True, False]
    assert (found[0].value - found[1].value) == 4 * 3_600_000_000
    with pytest.raises(Invalid, match="without a zone"):
        cast_column(pa.array([0, None], pa.timestamp("s")), "time")
    assert cast_column(pa.array(["a", "b", "a"]).dictionary_encode(), "string")[0].to_pylist() == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        (R("sum", "x"), "rules are"),
        (R("range"), "which column"),
        (R("range", "x", {"most": 1}), "its limits are"),
        (R("range", "x", {"low": "soon"}), "a number, or a moment"),
        (R("range", "x", {"low": True}), "a number"),
        (R("range", "x", {"inclusive": "up"}), "low or high"),
        (R("not_null", "x", {"share": 2}), "0 to 1"),
        (R("among", "x", {"values": "abc"}), "a list"),
        (R("match", "x", {"pattern": "(?<=a)b"}), "RE2"),
        (R("match", "x", {"pattern": "a)|(b"}), "RE2"),
        (R("match", "x", {"pattern": "(((a{999}){999}){999})"}), "RE2"),
        (R("match", "x", {"pattern": "a" * 1_001}), "RE2"),
        (R("fresh"), "within"),
        (R("fresh", limits={"within": "2 fortnights"}), "length of time"),
        (R("rows", limits={"low": -1}), "at least 0"),
        (R("unique"), "which column"),
        (R("unique", limits={"columns": "x"}), "column"),
        (R("unique", limits={"columns": ["y"]}), "name one of"),
        (R("length", "y", {"low": 1}), "name one of"),
        (R("distribution", "x", {"mean": 3}), "[low, high]"),
        (R("distribution", "x", {"quantiles": {"2": [0, 1]}}), "shares and their bounds"),
        (R("not_null", "x", action="drop"), "actions are"),
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused_where_it_is_made(rule: R, hint: str) -> None:
    with pytest.raises(Invalid) as error:
        check_limits(rule, {"x"})
    assert hint in error.value.hint


@pytest.mark.parametrize(
    "rule", [R("range", "x", {"low": 1}), R("match", "event", {"pattern": "a"}), R("among", "event", {"values": ["a"]})]
)
def test_a_rule_that_does_not_suit_a_type_is_refused(rule: R) -> None:
    with pytest.raises(Invalid, match="does not suit"):
        checked(["a"], rule)


def test_rows_without_a_column_are_refused() -> None:
    with pytest.raises(Invalid, match="no column 'y'"):
        check(pa.table({"event": [1]}), [], NOW, fields=[FeatureField("y", "int64")])
    with pytest.raises(Invalid, match="no column 'event'"):
        check(pa.table({"x": [1]}), [], NOW)
    assert check(pa.table({"x": [1]}), [], NOW, event="").good.all()


def test_a_pattern_that_would_take_for_ever_does_not() -> None:
    """RE2 has no backtracking: (a+)+$ over a long text is one pass."""
    assert broken(["a" * 100_000 + "!"], R("match", "x", {"pattern": "(a+)+"})) == [0]
