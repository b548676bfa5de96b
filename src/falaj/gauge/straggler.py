"""Who is slower than the others. A pure function of what ranks tell (`rank/R/compute_s`): nobody has to meet for it."""

import statistics
from collections.abc import Mapping, Sequence

_MIN_DEVIATIONS, _MIN_EXCESS_SHARE = 3.0, 0.10
_MAD_SCALE = 1.4826
"""Of a median deviation, to stand for a standard deviation."""


def compute_median_spread(values: Sequence[float]) -> tuple[float, float]:
    """The median, and how far from it values usually lie."""
    median = statistics.median(values)
    return median, _MAD_SCALE * statistics.median(abs(value - median) for value in values)


def find_stragglers(compute_s: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """The ranks whose usual time is far above that of the others, and how many times as long they take."""
    median_by_rank = {rank: statistics.median(values) for rank, values in compute_s.items() if values}
    slowdown_by_rank = {}
    for rank, own_median in median_by_rank.items():
        others = [value for other, value in median_by_rank.items() if other != rank]
        if not others:
            return {}
        median, spread = compute_median_spread(others)
        if own_median > median + max(_MIN_DEVIATIONS * spread, _MIN_EXCESS_SHARE * median) and median > 0:
            slowdown_by_rank[rank] = own_median / median
    return slowdown_by_rank
