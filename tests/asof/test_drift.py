"""Measures of drift against what they are by definition, and a verdict that does not cry wolf."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.column_drift import (
    VERDICT_DRIFT,
    VERDICT_OTHER_TYPE,
    VERDICT_SAME,
    VERDICT_TOO_FEW_ROWS,
    VERDICT_WATCH,
    compare_stats,
    compute_ks,
    compute_wasserstein,
)
from falaj.asof.column_stats import ColumnStats, measure_column, merge_column_stats

some = np.random.default_rng(6)


def of(values: object, *, personal: bool = False) -> ColumnStats:
    return measure_column(pa.array(values), personal=personal)


def test_the_same_values_have_not_moved() -> None:
    for values in (some.normal(size=5_000), np.exp(some.normal(size=5_000) * 3), some.integers(0, 3, 5_000)):
        found = compare_stats(of(values), of(values))
        assert (found.verdict, found.psi, found.ks, found.distance, found.js) == (VERDICT_SAME, 0.0, 0.0, 0.0, 0.0)


def test_two_samples_of_the_same_are_rarely_called_moved() -> None:
    verdicts = [compare_stats(of(some.normal(size=400)), of(some.normal(size=4_000))).verdict for _ in range(100)]
    assert VERDICT_DRIFT not in verdicts
    assert verdicts.count(VERDICT_WATCH) <= 10


def test_a_tail_without_end_is_no_drift_and_a_wrong_unit_in_one_of_a_hundred_is_seen() -> None:
    tail = of(some.pareto(1.2, 20_000))
    verdicts = [compare_stats(of(some.pareto(1.2, 2_000)), tail).verdict for _ in range(50)]
    assert verdicts.count(VERDICT_SAME) >= 45
    wrong = np.exp(some.normal(size=5_000))
    wrong[:50] *= 1_000
    found = compare_stats(of(wrong), of(np.exp(some.normal(size=5_000))))
    assert (found.verdict, found.psi < 0.1) == (VERDICT_WATCH, True)


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, VERDICT_SAME), (0.15, VERDICT_WATCH), (1.0, VERDICT_DRIFT)])
def test_a_shift_of_the_mean(shift: float, verdict: str) -> None:
    found = compare_stats(of(some.normal(shift, size=20_000)), of(some.normal(size=20_000)))
    assert found.verdict == verdict
    assert found.distance == pytest.approx(shift, abs=0.04)
    assert found.ks == pytest.approx(math.erf(shift / 2 / math.sqrt(2)), abs=0.03)


def test_a_change_is_seen_far_from_zero_and_in_a_constant() -> None:
    assert (
        compare_stats(of(1e9 + some.normal(1, size=2_000)), of(1e9 + some.normal(size=2_000))).verdict == VERDICT_DRIFT
    )
    assert compare_stats(of([5.0] * 1_000), of([4.0] * 1_000)).verdict == VERDICT_DRIFT
    assert compare_stats(of([4.0] * 1_000), of([4.0] * 1_000)).verdict == VERDICT_SAME


def test_nulls_and_nan_that_come_up_are_drift() -> None:
    values = some.normal(size=2_000)
    gaps = pa.array(values, mask=some.random(2_000) < 0.3)
    assert compare_stats(measure_column(gaps), of(values)).verdict == VERDICT_DRIFT
    assert compare_stats(of(np.where(some.random(2_000) < 0.3, math.nan, values)), of(values)).verdict == VERDICT_DRIFT


def test_few_rows_say_nothing_whatever_they_are() -> None:
    assert compare_stats(of([9.0] * 60), of(some.normal(size=9_000))).verdict == VERDICT_TOO_FEW_ROWS
    assert compare_stats(of(some.normal(5, size=120)), of(some.normal(size=120))).verdict == VERDICT_TOO_FEW_ROWS
    assert compare_stats(ColumnStats("number"), of([1.0])).verdict == VERDICT_TOO_FEW_ROWS
    assert compare_stats(of(["a"]), of([1.0])).verdict == VERDICT_OTHER_TYPE


def texts(shares: dict[str, float], count: int) -> list[str]:
    return some.choice(list(shares), count, p=list(shares.values())).tolist()


def test_texts_by_their_shares() -> None:
    then = of(texts({"card": 0.6, "cash": 0.3, "bank": 0.1}, 5_000))
    assert compare_stats(of(texts({"card": 0.6, "cash": 0.3, "bank": 0.1}, 5_000)), then).verdict == VERDICT_SAME
    assert compare_stats(of(texts({"card": 0.2, "cash": 0.7, "bank": 0.1}, 5_000)), then).verdict == VERDICT_DRIFT
    new = compare_stats(of(texts({"card": 0.4, "cash": 0.3, "coin": 0.3}, 5_000)), then)
    assert (new.verdict, new.ks, new.distance) == (VERDICT_DRIFT, None, None)


def test_many_texts_are_compared_by_their_cells_and_so_are_personal_ones() -> None:
    names = [f"name {n}" for n in range(20_000)]
    assert compare_stats(of(names), of(names)).verdict == VERDICT_SAME
    lopsided = [*names[:5_000], *["name 7"] * 15_000]
    assert compare_stats(of(lopsided), of(names)).verdict == VERDICT_DRIFT
    assert compare_stats(of(lopsided, personal=True), of(names, personal=True)).verdict == VERDICT_DRIFT
    assert (
        compare_stats(of(some.normal(size=999) * 9, personal=True), of(some.normal(size=999), personal=True)).ks is None
    )


samples = st.lists(st.integers(-20, 20), min_size=1, max_size=80)


@settings(max_examples=150, deadline=None)
@given(samples, samples)
def test_measures_of_few_distinct_values_are_exact(a: list[int], b: list[int]) -> None:
    ours, theirs = of(a), of(b)
    steps = sorted({*a, *b})
    apart = [abs(sum(x <= at for x in a) / len(a) - sum(x <= at for x in b) / len(b)) for at in steps]
    assert compute_ks(ours, theirs) == pytest.approx(max(apart))
    area = sum(gap * (right - left) for gap, left, right in zip(apart, steps, steps[1:], strict=False))
    scale = np.std(b) or (steps[-1] - steps[0]) or 1.0
    assert compute_wasserstein(ours, theirs) == pytest.approx(area / scale, abs=1e-9)
    found = compare_stats(ours, theirs)
    assert found.psi >= 0
    assert 0 <= found.js <= 1
    assert found.js == pytest.approx(0, abs=1e-7) or a != b
    assert compare_stats(merge_column_stats(ours, theirs), merge_column_stats(theirs, ours)).psi == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.floats(), max_size=30), st.lists(st.none() | st.floats(), max_size=30))
def test_no_number_breaks_a_comparison(a: list[float | None], b: list[float | None]) -> None:
    ours, theirs = (measure_column(pa.array(one, pa.float64())) for one in (a, b))
    found = compare_stats(ours, theirs)
    assert found.psi >= 0
    assert found.verdict == VERDICT_TOO_FEW_ROWS
    assert not any(math.isnan(one) for one in (found.psi, found.js, found.ks or 0.0, found.distance or 0.0))
