"""Sums: exact over columns and of one key, whatever the order; the same bits as fractions give."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof import exact_sums
from falaj.core.errors import Invalid

FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e6, 1e6),
    st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1, 1 / 3, 2.0**53]),
)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def nearest(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def ranges(count: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(lo, hi) for lo in range(count) for hi in range(lo + 1, count + 1)]
    return np.array([lo for lo, _ in pairs], np.int64), np.array([hi for _, hi in pairs], np.int64)


@settings(max_examples=200, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=12))
def test_float_sums_and_means_are_the_nearest_to_the_truth(values: list[float]) -> None:
    of = exact_sums.compute_running_sums(np.array(values))
    lo, hi = ranges(len(values))
    truths = [sum(map(Fraction, values[i:j]), Fraction(0)) for i, j in zip(lo, hi, strict=True)]
    sums = [nearest(truth) for truth in truths]
    means = [nearest(truth / int(n)) for truth, n in zip(truths, hi - lo, strict=True)]
    assert exact_sums.sum_ranges(of, lo, hi).tobytes() == np.array(sums).tobytes()
    assert exact_sums.average_ranges(of, lo, hi).tobytes() == np.array(means).tobytes()
    whole = [int(truth / Fraction(2) ** exact_sums.MIN_EXPONENT) for truth in truths]
    assert [exact_sums.round_to_float(total) for total in whole] == sums
    assert [exact_sums.round_mean(total, int(n)) for total, n in zip(whole, hi - lo, strict=True)] == means
    width, shift, data = exact_sums.pack_range_sums(of, lo, hi)
    read = [int.from_bytes(data[i * width : (i + 1) * width], "little", signed=True) << shift for i in range(len(lo))]
    assert read == whole


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(INT64, st.integers(-1000, 1000)), min_size=1, max_size=8))
def test_whole_sums_are_exact_or_refused(values: list[int]) -> None:
    of = exact_sums.compute_running_sums(np.array(values, np.int64))
    lo, hi = ranges(len(values))
    for i, j in zip(lo, hi, strict=True):
        truth = sum(values[i:j])
        one = (np.array([i]), np.array([j]))
        assert exact_sums.sum_ranges(of, *one)[0] == float(truth)
        assert exact_sums.average_ranges(of, *one)[0] == truth / int(j - i)
        width, shift, data = exact_sums.pack_range_sums(of, *one)
        assert int.from_bytes(data[:width], "little", signed=True) << shift == truth << 1074
        if -(1 << 63) <= truth < 1 << 63:
            assert exact_sums.sum_integer_ranges(of, *one)[0] == truth == exact_sums.to_int64(truth << 1074)
        else:
            with pytest.raises(Invalid):
                exact_sums.sum_integer_ranges(of, *one)
            with pytest.raises(Invalid):
                exact_sums.to_int64(truth << 1074)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([math.nan, math.inf, -math.inf, 1.5, 0.0, 1e308]), min_size=1, max_size=6))
def test_nan_and_infinities(values: list[float]) -> None:
    of = exact_sums.compute_running_sums(np.array(values))
    sums = exact_sums.sum_ranges(of, np.array([0]), np.array([len(values)]))
    finite = sum(map(Fraction, filter(math.isfinite, values)), Fraction(0))
    odd = exact_sums.resolve_special_sum(sum(map(math.isnan, values)), values.count(math.inf), values.count(-math.inf))
    assert repr(float(sums[0])) == repr(nearest(finite) if odd is None else odd)


@pytest.mark.parametrize("scale", [1.0, 1e-310, 1e290])
def test_order_and_cut_do_not_matter(scale: float) -> None:
    rng = random.Random(7)
    values = [rng.gauss(0, 1) * scale * 10 ** rng.randint(-12, 12) for _ in range(5000)]
    seen = set()
    for _ in range(3):
        rng.shuffle(values)
        of = exact_sums.compute_running_sums(np.array(values))
        seen.add(float(exact_sums.sum_ranges(of, np.array([0]), np.array([5000]))[0]).hex())
    truth = nearest(sum(map(Fraction, values), Fraction(0)))
    assert seen == {truth.hex()}


def test_nothing_and_zeros_sum_to_plus_zero() -> None:
    for values in (np.array([]), np.array([-0.0, -0.0])):
        of = exact_sums.compute_running_sums(values)
        total = exact_sums.sum_ranges(of, np.array([0]), np.array([len(values)]))
        assert str(total[0]) == "0.0"
    assert str(exact_sums.round_to_float(0)) == "0.0"


def test_many_rows_with_outliers_of_every_size() -> None:
    rng = np.random.default_rng(3)
    values = np.ldexp(rng.standard_normal(3000), rng.integers(-1070, 1000, 3000))
    of = exact_sums.compute_running_sums(values)
    lo = rng.integers(0, 1500, 200)
    hi = lo + rng.integers(1, 1400, 200)
    truths = [sum(map(Fraction, values[i:j].tolist()), Fraction(0)) for i, j in zip(lo, hi, strict=True)]
    assert exact_sums.sum_ranges(of, lo, hi).tolist() == [nearest(truth) for truth in truths]
    assert exact_sums.average_ranges(of, lo, hi).tolist() == [
        nearest(t / int(n)) for t, n in zip(truths, hi - lo, strict=True)
    ]
