"""Statistics merge to the same bits however rows are cut, and are what numpy and Python say of all rows."""

import json
import math
import statistics
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.column_stats import (
    MAX_CATEGORIES,
    ColumnStats,
    measure_column,
    measure_table,
    merge_column_stats,
    stats_from_plain,
    stats_to_plain,
)
from falaj.asof.histograms import (
    MAX_BUCKETS,
    build_histogram,
    compute_bucket_bounds,
    compute_mean_and_std,
    merge_histograms,
    sum_exactly,
)
from falaj.core.errors import CorruptData, Invalid

floats = st.one_of(
    st.floats(),
    st.integers(-50, 50).map(float),
    st.floats(1e9, 1e9 + 1),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1.7976931348623157e308, math.nan, math.inf, -math.inf]),
)
columns = st.one_of(
    st.lists(st.none() | floats, max_size=60).map(lambda one: pa.array(one, pa.float64())),
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=60).map(lambda one: pa.array(one, pa.int64())),
    st.lists(st.none() | st.text(max_size=90), max_size=60).map(lambda one: pa.array(one, pa.string())),
    st.lists(st.none() | st.booleans(), max_size=60).map(lambda one: pa.array(one, pa.bool_())),
    st.lists(st.none() | st.lists(st.integers(0, 9), max_size=5), max_size=30).map(
        lambda one: pa.array(one, pa.list_(pa.int64()))
    ),
    st.lists(st.none() | st.binary(max_size=9), max_size=30).map(lambda one: pa.array(one, pa.binary())),
)


@settings(max_examples=150, deadline=None)
@given(columns, st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_any_cut_gives_the_same_bits(column: pa.Array, first: int, second: int, personal: bool) -> None:
    a, b = sorted((min(first, len(column)), min(second, len(column))))
    parts = [
        measure_column(part, personal=personal)
        for part in (column.slice(0, a), column.slice(a, b - a), column.slice(b))
    ]
    whole = measure_column(column, personal=personal)
    assert merge_column_stats(merge_column_stats(parts[0], parts[1]), parts[2]) == whole
    assert merge_column_stats(parts[2], merge_column_stats(parts[1], parts[0])) == whole
    assert stats_from_plain(json.loads(json.dumps(stats_to_plain(whole), allow_nan=False))) == whole


@pytest.mark.parametrize("size", [MAX_BUCKETS, MAX_BUCKETS + 1, 9_000, 40_000])
@pytest.mark.parametrize("make", ["normal", "wide", "far", "whole"])
def test_a_histogram_of_many_is_the_same_in_any_cut(size: int, make: str) -> None:
    some = np.random.default_rng(size)
    values = {
        "normal": some.normal(size=size),
        "wide": np.exp(some.normal(size=size) * 50),
        "far": 1e9 + some.normal(size=size),
        "whole": some.integers(0, 3_000, size).astype(np.float64),
    }[make]
    whole = build_histogram(values)
    cut = build_histogram(values[:7])
    for part in np.array_split(values[7:], 9):
        cut = merge_histograms(build_histogram(part), cut)
    assert cut == whole
    assert len(whole.keys) <= MAX_BUCKETS
    assert whole.size == size
    if whole.shift:
        once = np.unique(values)
        bits = once.view(np.int64) ^ ((once.view(np.int64) >> 63) & (2**63 - 1))
        assert len(np.unique(bits >> (whole.shift - 1))) > MAX_BUCKETS, "one bit more would have had room"
    low, high = compute_bucket_bounds(np.array(whole.keys), whole.shift)
    inside = sum(int(np.count_nonzero((values >= a) & (values <= b))) for a, b in zip(low, high, strict=True))
    assert inside == size


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_totals_are_exact(values: list[float]) -> None:
    sums, squares = sum_exactly(np.array(values))
    assert Fraction(sums[0]) * Fraction(2) ** sums[1] == sum(map(Fraction, values))
    assert Fraction(squares[0]) * Fraction(2) ** squares[1] == sum(Fraction(one) ** 2 for one in values)
    mean, std = compute_mean_and_std(sums, squares, len(values))
    assert mean == float(sum(map(Fraction, values)) / len(values))
    assert math.isfinite(std)
    assert std >= 0


def test_a_small_spread_far_from_zero_is_seen() -> None:
    values = 1e9 + np.random.default_rng(1).normal(size=10_000) * 1e-3
    stats = measure_column(pa.array(values))
    assert stats.std == pytest.approx(statistics.pstdev(values.tolist()), rel=1e-15)
    assert stats.at(0.5) == pytest.approx(np.median(values), abs=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.25, 0.5, 0.9, 0.999, 1.0])
def test_quantiles_are_near(share: float) -> None:
    values = np.exp(np.random.default_rng(2).normal(size=20_000))
    found = measure_column(pa.array(values)).at(share)
    assert found == pytest.approx(np.quantile(values, share), rel=0.03)


def test_distinct_values_are_counted_while_few() -> None:
    assert measure_column(pa.array([1, 1, 2, None])).distinct == 2
    assert measure_column(pa.array(["a", "b", "a", None])).distinct == 2
    assert measure_column(pa.array(range(MAX_BUCKETS))).distinct == MAX_BUCKETS
    assert measure_column(pa.array(range(MAX_BUCKETS + 1))).distinct is None
    assert measure_column(pa.array([[1], [2]])).distinct is None


def test_texts_are_counted_until_they_are_too_many_or_too_long() -> None:
    assert measure_column(pa.array(["a", "b", "a", None])).values == {"a": 2, "b": 1}
    assert measure_column(pa.array([f"{n}" for n in range(MAX_CATEGORIES + 1)])).values is None
    assert measure_column(pa.array(["x" * 65])).values is None
    half = MAX_CATEGORIES // 2 + 1
    a, b = (measure_column(pa.array([f"{start + n}" for n in range(half)])) for start in (0, half))
    assert a.values is not None
    assert merge_column_stats(a, b).values is None


def test_of_a_personal_column_nothing_shows_a_person() -> None:
    table = pa.table({"salary": [4321.5, None, 777.25], "name": ["Amal", "Noor", None]})
    kept = measure_table(table, personal={"salary", "name"})
    said = json.dumps({name: stats_to_plain(one) for name, one in kept.items()})
    assert not any(word in said for word in ("4321", "777", "Amal", "Noor"))
    salary = kept["salary"]
    assert (salary.rows, salary.nulls, salary.mean, salary.std, salary.low, salary.distinct, salary.at(0.5)) == (
        *(3, 1),
        *(None,) * 5,
    )


def test_nan_and_infinity_are_counted_apart() -> None:
    stats = measure_column(pa.array([1.0, math.nan, math.inf, -math.inf, None, 3.0]))
    assert (stats.rows, stats.nulls, stats.nan, stats.infinite) == (6, 1, 1, 2)
    assert (stats.mean, stats.low, stats.high) == (2.0, 1.0, 3.0)


def test_times_are_microseconds() -> None:
    at = pa.array([0, 1_000], pa.timestamp("ms", "UTC"))
    assert measure_column(at).high == 1_000_000
    assert measure_column(pa.array([1], pa.date32())).high == 86_400_000_000
    assert measure_column(pa.nulls(3)).nulls == 3


def test_other_types_are_refused() -> None:
    with pytest.raises(Invalid, match="has no statistics"):
        measure_column(pa.array([{"a": 1}]))
    with pytest.raises(Invalid, match="do not merge"):
        merge_column_stats(measure_column(pa.array([1])), measure_column(pa.array(["a"])))


SOUND = stats_to_plain(measure_column(pa.array([1.0, 2.0, None])))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "code"},
        {"rows": -1},
        {"rows": "3"},
        {"rows": 4},
        {"numbers": [64, [], []]},
        {"numbers": [0, [2, 1], [1, 1]]},
        {"numbers": [0, [1], [1, 1]]},
        {"numbers": [0, [1 << 70, 1 << 71], [1, 1]]},
        {"numbers": "no"},
        {"total": ["zz", 0]},
        {"total": ["1", 10**9]},
        {"squares": ["0", 0]},
        {"total": ["f" * 1000, 4000]},
        {"low": math.nan},
        {"low": "1"},
        {"values": {"a": -1}},
        {"values": [1]},
        {"cells": [1]},
        {"personal": "yes"},
        {"more": 1},
    ],
)
def test_strange_data_is_corrupt(change: dict[str, object]) -> None:
    assert stats_from_plain(SOUND) == measure_column(pa.array([1.0, 2.0, None]))
    with pytest.raises(CorruptData):
        stats_from_plain({**SOUND, **change})


def test_nothing_is_empty() -> None:
    empty = ColumnStats("number")
    assert (empty.mean, empty.at(0.5), empty.distinct) == (None, None, 0)
    assert stats_from_plain(stats_to_plain(empty)) == empty
    with pytest.raises(CorruptData):
        stats_from_plain({})
