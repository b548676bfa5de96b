"""A window against its reference: what is broken, what moved, what is harmless, and how it is said."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.drift.drift_tests import compare_tally, filter_persistent
from falaj.drift.profiles import build_profile
from falaj.drift.records import DataProfile, DriftFinding, DriftRules
from falaj.drift.tally import DataTally

Columns = dict[str, NDArray[np.generic]]
Row = tuple[float, str | None, int]
THEN, NOW = 10_000, 4_000
RULES = DriftRules()


def table(rows: int, seed: int) -> Columns:
    draw = np.random.default_rng(seed)
    return {
        "amount": np.exp(4 + draw.normal(size=rows)),
        "age": draw.normal(40, 10, rows),
        "ties": np.round(draw.normal(size=rows) * 2) / 2,
        "gaps": np.where(draw.random(rows) < 0.1, np.nan, draw.normal(size=rows)),
        "still": np.full(rows, 7.0),
        "never": np.full(rows, np.nan),
        "city": draw.choice(["Abu Dhabi", "Dubai", "Sharjah"], rows, p=[0.3, 0.5, 0.2]),
        "user": np.char.add("u", draw.integers(0, 800, rows).astype(str)),
        "flag": (draw.random(rows) < 0.002).astype(np.int64),
    }


@pytest.fixture(scope="module")
def profile() -> DataProfile:
    return build_profile(table(THEN, 1), segment="city", weights={"age": 0.5, "amount": 1.0})


def alarms(profile: DataProfile, columns: Columns, rules: DriftRules = RULES) -> list[DriftFinding]:
    return [one for one in compare_tally(profile, counted(profile, columns), rules) if one.alarm]


def counted(profile: DataProfile, columns: Columns) -> DataTally:
    tally = DataTally(profile, seed=0)
    tally.add(columns)
    return tally


def names(found: list[DriftFinding]) -> set[tuple[str, str, str]]:
    return {(one.what, one.column, one.measure) for one in found}


def test_nothing_is_found_where_nothing_changed(profile: DataProfile) -> None:
    tally = counted(profile, table(NOW, 2))
    every = compare_tally(profile, tally, RULES)
    assert not [one for one in every if one.alarm]
    assert {one.column for one in every if one.what == "input"} == set(table(1, 0))
    age = next(one for one in every if one.column == "age")
    assert {"psi", "js", "distance", "missing", "out of range"} <= set(age.measures)
    assert age.measures["distance"] < 0.1
    assert 0 < age.value < 0.04
    assert re.fullmatch(r"age: median [\d.]+, before [\d.]+.*", age.said)


def test_columns_that_moved_are_named_with_how_much(profile: DataProfile) -> None:
    now = table(NOW, 3)
    now["amount"], now["age"] = now["amount"].astype(float) * 1.5, now["age"].astype(float) + 4
    found = [one for one in alarms(profile, now) if one.what == "input"]
    assert [one.column for one in found] == [
        "amount",
        "age",
    ]  # By how much the model heeds them, and how far they went.
    assert re.fullmatch(r"age: median 4[34][\d.]*, before (40|39)[\d.]* \(higher; 0\.\d+ sd apart\)", found[1].said)
    assert found[0].measures["distance"] == pytest.approx(0.5 * 1.65 / 2, abs=0.25)


def test_a_move_in_one_segment_is_found_there(profile: DataProfile) -> None:
    now = table(NOW, 4)
    now["age"] = np.where(now["city"] == "Sharjah", now["age"].astype(float) + 8, now["age"])
    found = next(one for one in alarms(profile, now) if one.segment)
    assert (found.column, found.segment) == ("age", "Sharjah")
    assert "age where city is Sharjah: median 4" in found.said


def test_another_mix_of_a_category_is_drift_and_a_new_value_is_quality(profile: DataProfile) -> None:
    now = table(NOW, 5)
    now["city"] = np.where(np.random.default_rng(0).random(NOW) < 0.3, "Dubai", now["city"])
    found = alarms(profile, now)
    assert names(found) == {("input", "city", "total variation")}
    assert re.search(r"city: 6\d\.\d% are 'Dubai', before (50|49)\.\d%", found[0].said)
    now = table(NOW, 5)
    now["city"] = np.where(np.random.default_rng(0).random(NOW) < 0.1, "Dubay", now["city"])
    found = alarms(profile, now)
    assert names(found) == {("quality", "city", "new values")}
    assert "'Dubay' (" in found[0].said


def test_texts_that_become_numbers_are_of_another_type(profile: DataProfile) -> None:
    now = table(NOW, 6)
    now["city"] = np.where(np.random.default_rng(0).random(NOW) < 0.5, "17", now["city"])
    assert ("quality", "city", "type") in names(alarms(profile, now))


@pytest.mark.parametrize(
    ("column", "change", "measure"),
    [
        ("age", lambda values, chosen: np.where(chosen, np.nan, values), "missing"),
        ("age", lambda values, chosen: np.full(len(values), np.nan), "missing"),
        ("age", lambda values, chosen: np.where(chosen, np.inf, values), "infinite"),
        ("age", lambda values, chosen: np.where(chosen, 1e6, values), "out of range"),
        ("age", lambda values, chosen: np.full(len(values), 41.0), "constant"),
        ("city", lambda values, chosen: np.full(len(values), "Dubai"), "constant"),
        ("user", lambda values, chosen: np.where(chosen, "root", values), "new values"),
    ],
)
def test_broken_columns_are_quality_and_only_that(
    profile: DataProfile, column: str, change: object, measure: str
) -> None:
    now = table(NOW, 7)
    assert callable(change)
    now[column] = change(now[column], np.random.default_rng(1).random(NOW) < 0.035)
    found = [one for one in alarms(profile, now) if one.column == column or one.what == "together"]
    assert names(found) == {("quality", column, measure)}


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        (lambda values: values + 20, False), (lambda values: values + 30, False), (lambda values: values * 1.8, False),
        (lambda values: values * 100, True), (lambda values: np.where(values % 1 < 0.1, -999.0, values), True),
    ],
)  # fmt: skip
def test_values_that_moved_out_of_range_are_drift_and_wrong_ones_quality(
    profile: DataProfile, change: Callable[[NDArray[np.float64]], NDArray[np.float64]], *, broken: bool
) -> None:
    now = table(NOW, 15)
    now["age"] = change(now["age"].astype(float))
    found = [one for one in alarms(profile, now) if one.column == "age"]
    assert any(one.what == "input" for one in found)
    assert any(one.measure == "out of range" for one in found) == broken


def test_rows_that_do_not_fit_are_said(profile: DataProfile) -> None:
    tally = counted(profile, table(NOW, 8))
    tally.odd = 400
    assert names([one for one in compare_tally(profile, tally, RULES) if one.alarm]) == {("quality", "", "type")}


@pytest.mark.parametrize("wild", [1e9, -1e9, np.inf, np.nan, 3e38])
def test_one_bad_value_neither_hides_nor_makes_a_drift(wild: float) -> None:
    draw = np.random.default_rng(9)
    then, now, moved = draw.normal(size=20_000), draw.normal(size=20_000), draw.normal(0.2, 1, 20_000)
    for spoiled in (then, now, moved):
        spoiled[17] = wild
    profile = build_profile({"x": then})
    assert not alarms(profile, {"x": now})
    found = alarms(profile, {"x": moved})
    assert names(found) == {("input", "x", "ks")}
    assert found[0].measures["distance"] == pytest.approx(0.2, abs=0.05)


def test_too_few_rows_are_no_alarm_and_harmless_steps_neither(profile: DataProfile) -> None:
    now = table(400, 10)
    now["age"] = now["age"].astype(float) + 20
    assert not alarms(profile, now)
    now = table(60_000, 11)
    now["age"] = now["age"].astype(float) + 0.3
    every = compare_tally(profile, counted(profile, now), RULES)
    assert not [one for one in every if one.alarm]
    assert min(one.p for one in every if one.column == "age") < 1e-3
    assert [one for one in alarms(profile, now, DriftRules(least_step=0.005)) if one.column == "age"]


def test_a_window_may_be_compared_with_another(profile: DataProfile) -> None:
    now, before = table(NOW, 12), table(NOW, 13)
    for one in (now, before):
        one["age"] = one["age"].astype(float) + 6
    tally = counted(profile, now)
    assert [one for one in compare_tally(profile, tally, RULES) if one.alarm]
    assert not [one for one in compare_tally(profile, tally, RULES, reference=counted(profile, before)) if one.alarm]


def test_nothing_came(profile: DataProfile) -> None:
    every = compare_tally(profile, DataTally(profile), RULES)
    assert not [one for one in every if one.alarm]
    assert {one.said for one in every if one.column == "age"} == {"age: no values"}


def test_a_tally_of_another_profile_is_refused(profile: DataProfile) -> None:
    other = build_profile({"x": np.arange(100.0)})
    with pytest.raises(Invalid, match="another profile"):
        compare_tally(profile, DataTally(other), RULES)


def test_a_profile_without_counts_of_segments_is_compared_as_a_whole(profile: DataProfile) -> None:
    now = table(NOW, 4)
    now["age"] = now["age"].astype(float) + 8
    found = alarms(replace(profile, by_segment=()), now)
    assert {(one.column, one.segment) for one in found if one.what == "input"} == {("age", "")}


def test_a_column_that_never_had_a_value_may_get_some() -> None:
    profile = build_profile({"text": np.array([None] * 2_000, object), "label": np.arange(2_000.0)})
    found = alarms(profile, {"text": np.array(["a", None] * 500, object)})
    assert names(found) == {("quality", "text", "new values")}


def test_numbers_as_large_as_there_are() -> None:
    draw = np.random.default_rng(3)
    wide = draw.choice([-1e150, 0.0, 1e150], 2_000, p=[0.001, 0.998, 0.001])
    profile = build_profile({"x": wide, "y": wide * 0.5 + draw.normal(size=2_000)})
    assert not alarms(profile, {"x": wide[:1_000], "y": wide[1_000:] * 0.5 + draw.normal(size=1_000)})


numbers = st.floats(allow_nan=True, allow_infinity=True, width=32) | st.sampled_from([0.0, 1.0])
rows = st.lists(st.tuples(numbers, st.sampled_from(["a", "b", "c", None]), st.integers(-3, 3)), max_size=30)


@settings(max_examples=40, deadline=None)
@given(rows.filter(bool), rows)
def test_any_two_tables_compare(then: list[Row], now: list[Row]) -> None:
    profile = build_profile(_columns(then), segment="text")
    for one in compare_tally(profile, counted(profile, _columns(now)), DriftRules(least_rows=2)):
        assert 0.0 <= one.p <= 1.0
        assert one.said
        assert all(np.isfinite([one.value, one.then, one.bound, *one.measures.values()]))


def _columns(rows: list[Row]) -> Columns:
    number, text, whole = zip(*rows, strict=True) if rows else ((), (), ())
    return {"number": np.array(number, float), "text": np.array(text, object), "whole": np.array(whole, np.int64)}


def test_what_lasts() -> None:
    alarm, calm = DriftFinding("input", "age", alarm=True), DriftFinding("input", "age")
    other = DriftFinding("input", "age", "Dubai", alarm=True)
    cases = [
        ([], 0), ([[alarm]], 0), ([[alarm], [alarm]], 1), ([[alarm], [calm], [alarm]], 1),
        ([[alarm], [calm], [calm], [alarm]], 0), ([[alarm], [alarm], [calm]], 0), ([[other], [alarm]], 0),
    ]  # fmt: skip
    for history, many in cases:
        assert len(filter_persistent(history, RULES)) == many
