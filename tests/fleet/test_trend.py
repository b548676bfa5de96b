"""Forecasts of pools: the season is not a trend, outliers move nothing, and the interval tells the truth."""

from random import Random

import numpy as np
import pytest

from falaj.fleet.usage_trend import forecast_usage


def use(random: Random, hours: int, slope: float, noise: float = 2.0) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """A pool that is busy by day and on workdays, and outages and holes in what was seen."""
    found = []
    for hour in range(hours):
        day = 20 + 12 * np.sin((hour % 24 - 8) / 24 * 2 * np.pi) - (8 if hour // 24 % 7 >= 5 else 0)
        value = day + slope * hour + random.gauss(0, noise)
        found.append(np.nan if random.random() < 0.05 else 0.0 if random.random() < 0.02 else max(0.0, value))
    return np.array(found)


@pytest.mark.parametrize("seed", range(5))
def test_four_of_five_hours_fall_into_the_interval(seed: int) -> None:
    random = Random(seed)
    whole = use(random, 24 * 7 * 7, 0.02)
    known, truth = whole[: 24 * 35], whole[24 * 35 :]
    ahead = forecast_usage(known, len(truth))
    assert ahead is not None
    told = ~np.isnan(truth) & (truth > 0)
    inside = (truth >= np.array(ahead.low)) & (truth <= np.array(ahead.high))
    assert inside[told].mean() > 0.7
    error = np.abs(np.array(ahead.middle) - truth)[told].mean()
    naive = np.abs(known[-len(truth) :] - truth)
    assert error < np.nanmean(naive[told])


def test_a_pool_that_fills_up_says_when() -> None:
    ahead = forecast_usage(use(Random(1), 24 * 28, 0.05, noise=1.0), 24 * 14)
    assert ahead is not None
    middle, worst = ahead.full(24 * 28 * 0.05 + 40)
    assert 0 < worst <= middle < 24 * 14
    assert forecast_usage(use(Random(1), 24 * 28, 0.0), 24 * 14).full(60) == (-1, -1)  # type: ignore[union-attr]


def test_with_little_seen_nobody_knows() -> None:
    assert forecast_usage(np.full(47, 1.0), 24) is None
    short = forecast_usage(np.full(48, 3.0), 24)
    assert short is not None
    assert set(short.middle) == {3.0}
