"""Where use is going: a robust seasonal trend with an interval, and when a pool runs full. Pure."""

import numpy as np

from falaj.core.data import dataclass
from falaj.fleet.figure_frames import FloatArray

HOUR_S, DAY, WEEK = 3600, 24, 168


@dataclass(frozen=True, slots=True)
class UsageForecast:
    """The hours to come: the middle, and the bounds within which four of five should fall."""

    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def full(self, capacity: float) -> tuple[int, int]:
        """The hour from now in which the middle, and in which the upper bound, first reaches capacity; -1 for never."""
        full_hours = []
        for values in (self.middle, self.high):
            hours = [hour for hour, value in enumerate(values) if value >= capacity > 0]
            full_hours.append(hours[0] if hours else -1)
        return full_hours[0], full_hours[1]


def forecast_usage(values: FloatArray, hours: int) -> UsageForecast | None:
    """What follows hourly values (NaN where nobody looked); None with less than two days of them.

    The season is a week where four are known, else a day. The trend is the median slope between the same hours of
    different seasons, so that the season cannot be taken for a trend; the season is the median of what is left.
    """
    is_known = ~np.isnan(values)
    if is_known.sum() < 2 * DAY:
        return None
    period = WEEK if is_known.sum() >= 4 * WEEK else DAY
    x = np.arange(len(values), dtype=np.float64)
    slope = _compute_seasonal_slope(values, period)
    level = values - slope * x
    season = np.array([_compute_median(level[phase::period]) for phase in range(period)])
    season = np.where(np.isnan(season), _compute_median(level), season)
    residuals = level - season[np.arange(len(values)) % period]
    low, high = (float(bound) for bound in np.nanquantile(residuals, [0.1, 0.9]))
    future_hours = len(values) + np.arange(hours)
    middle = slope * future_hours + season[future_hours % period]
    # What is further off is known less: the interval widens as the uncertainty of the slope does.
    wider = np.sqrt(1 + np.arange(hours) / max(period, is_known.sum() / 2))
    clipped = (
        np.maximum(line, 0.0).round(3).tolist() for line in (middle, middle + low * wider, middle + high * wider)
    )
    return UsageForecast(*(tuple(line) for line in clipped))


def _compute_seasonal_slope(values: FloatArray, period: int) -> float:
    """The median over pairs that are whole seasons apart."""
    slopes = []
    for season_gap in range(period, len(values), period):
        change = (values[season_gap:] - values[:-season_gap]) / season_gap
        slopes.append(change[~np.isnan(change)])
    all_slopes = np.concatenate(slopes) if slopes else np.empty(0)
    return float(np.median(all_slopes)) if len(all_slopes) else 0.0


def _compute_median(values: FloatArray) -> float:
    known_values = values[~np.isnan(values)]
    return float(np.median(known_values)) if len(known_values) else float("nan")
