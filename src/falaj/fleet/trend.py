"""Where use is going: a robust seasonal trend with an interval, and when a pool runs full. Pure."""

import numpy as np

from falaj.core.data import dataclass
from falaj.fleet.frames import Numbers

HOUR_S, DAY, WEEK = 3600, 24, 168


@dataclass(frozen=True, slots=True)
class Forecast:
    """The hours to come: the middle, and the bounds within which four of five should fall."""

    middle: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def full(self, capacity: float) -> tuple[int, int]:
        """The hour from now in which the middle, and in which the upper bound, first reaches capacity; -1 for never."""
        found = []
        for values in (self.middle, self.high):
            hours = [hour for hour, value in enumerate(values) if value >= capacity > 0]
            found.append(hours[0] if hours else -1)
        return found[0], found[1]


def forecast(values: Numbers, hours: int) -> Forecast | None:
    """What follows hourly values (NaN where nobody looked); None with less than two days of them.

    The season is a week where four are known, else a day. The trend is the median slope between the same hours of
    different seasons, so that the season cannot be taken for a trend; the season is the median of what is left.
    """
    known = ~np.isnan(values)
    if known.sum() < 2 * DAY:
        return None
    period = WEEK if known.sum() >= 4 * WEEK else DAY
    x = np.arange(len(values), dtype=np.float64)
    slope = _slope(values, period)
    level = values - slope * x
    season = np.array([_median(level[phase::period]) for phase in range(period)])
    season = np.where(np.isnan(season), _median(level), season)
    rest = level - season[np.arange(len(values)) % period]
    low, high = (float(q) for q in np.nanquantile(rest, [0.1, 0.9]))
    ahead = len(values) + np.arange(hours)
    middle = slope * ahead + season[ahead % period]
    # What is further off is known less: the interval widens as the uncertainty of the slope does.
    wider = np.sqrt(1 + np.arange(hours) / max(period, known.sum() / 2))
    clipped = (
        np.maximum(line, 0.0).round(3).tolist() for line in (middle, middle + low * wider, middle + high * wider)
    )
    return Forecast(*(tuple(line) for line in clipped))


def _slope(values: Numbers, period: int) -> float:
    """The median over pairs that are whole seasons apart."""
    slopes = []
    for apart in range(period, len(values), period):
        change = (values[apart:] - values[:-apart]) / apart
        slopes.append(change[~np.isnan(change)])
    every = np.concatenate(slopes) if slopes else np.empty(0)
    return float(np.median(every)) if len(every) else 0.0


def _median(values: Numbers) -> float:
    told = values[~np.isnan(values)]
    return float(np.median(told)) if len(told) else float("nan")
