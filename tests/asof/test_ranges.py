"""Questions about ranges equal their plain answers, for ranges of every length."""

import numpy as np
import pytest

from falaj.asof.range_queries import RangeColumn, expand_ranges, find_extremes, from_sort_keys, to_sort_keys


def every_range(count: int) -> tuple[np.ndarray, np.ndarray]:
    lo, hi = np.triu_indices(count + 1, 1)
    return lo.astype(np.int64), hi.astype(np.int64)


def test_least_and_greatest_of_every_range() -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(-(1 << 62), 1 << 62, 70)
    lo, hi = every_range(70)
    for pick in (np.minimum, np.maximum):
        truth = [int(pick.reduce(keys[a:b])) for a, b in zip(lo, hi, strict=True)]
        assert find_extremes(keys, lo, hi, pick).tolist() == truth


@pytest.mark.parametrize("kinds", [2, 9, 60])
def test_distinct_and_last_of_every_range(kinds: int) -> None:
    rng = np.random.default_rng(kinds)
    numbers = rng.integers(0, kinds, 60)
    valid = rng.random(60) < 0.8
    lo, hi = every_range(60)
    for values in (numbers, numbers / 3, [f"é{n}" for n in numbers.tolist()]):
        column = RangeColumn(values, valid)
        cells = [[values[i] for i in range(a, b) if valid[i]] for a, b in zip(lo, hi, strict=True)]
        places = column.place(lo), column.place(hi)
        assert column.distinct(*places).tolist() == [len(set(each)) for each in cells]
        assert column.last(3, *places) == [each[-3:] for each in cells]


def test_sort_keys_order_floats_and_come_back() -> None:
    ordered = [-np.inf, -1e308, -1.5, -5e-324, -0.0, 0.0, 5e-324, 0.1, 1e308, np.inf]
    keys = to_sort_keys(np.array(ordered), "min")
    assert (np.diff(keys) > 0).all()
    assert from_sort_keys(keys, np.dtype("float64")).tobytes() == np.array(ordered).tobytes()
    for how in ("min", "max"):
        key = to_sort_keys(np.array([np.nan, -np.nan]), how)
        assert (key < keys.min()).all() if how == "min" else (key > keys.max()).all()
        assert np.isnan(from_sort_keys(key, np.dtype("float32"))).all()


def test_spread_goes_through_empty_ranges() -> None:
    assert expand_ranges(np.array([3, 5, 0]), np.array([5, 5, 2])).tolist() == [3, 4, 0, 1]
