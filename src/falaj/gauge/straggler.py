"""Who is slower than the others. A pure function of what ranks tell (`rank/R/compute_s`): nobody has to meet for it."""

import statistics
from collections.abc import Mapping, Sequence

_MADS, _SHARE = 3.0, 0.10
_SCALE = 1.4826
"""Of a median deviation, to stand for a standard deviation."""


def middle(values: Sequence[float]) -> tuple[float, float]:
    """The median, and how far from it values usually lie."""
    median = statistics.median(values)
    return median, _SCALE * statistics.median(abs(value - median) for value in values)


def stragglers(compute_s: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """The ranks whose usual time is far above that of the others, and how many times as long they take."""
    usual = {rank: statistics.median(values) for rank, values in compute_s.items() if values}
    found = {}
    for rank, own in usual.items():
        others = [value for other, value in usual.items() if other != rank]
        if not others:
            return {}
        median, spread = middle(others)
        if own > median + max(_MADS * spread, _SHARE * median) and median > 0:
            found[rank] = own / median
    return found
