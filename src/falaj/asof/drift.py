"""How far values have moved from a reference: four measures of one pair of statistics, and a verdict that knows noise.

Shares are compared over the bins of the reference: tenths of its numbers, its twenty most common texts and the rest,
and a bin each for nulls, NaN and infinities. Two samples of the same values differ too. Where they may differ by as
much as the first threshold with one chance in twenty, the verdict is that there are too few rows, whatever the number.
"""

import math
from collections.abc import Mapping

import numpy as np

from falaj.asof.sketch import Ints, aligned, bounds
from falaj.asof.stats import ColumnStats
from falaj.core.data import dataclass
from falaj.drift import measures

WATCH, DRIFTED = 0.1, 0.25
"""Population stability index: below the first nothing moved; from the second on, look at the model."""
FAR = 0.1
"""A distance of so many standard deviations, or so large a step between distributions, is worth a look."""
LEAST_ROWS = 100
SAME, LOOK, MOVED, FEW, OTHER = "same", "watch", "drift", "too few rows", "other type"
_TEXTS = 20


@dataclass(frozen=True, slots=True)
class Drift:
    """How two columns compare. A measure that says nothing of this kind of column is None."""

    verdict: str
    psi: float
    """Population stability index."""
    noise: float
    """What it reaches by chance alone in one case of twenty, with so many rows."""
    ks: float | None = None
    """The largest step between the two distributions (Kolmogorov-Smirnov), 0 to 1."""
    distance: float | None = None
    """How far values moved, in standard deviations of the reference (Wasserstein)."""
    js: float = 0.0
    """Jensen-Shannon distance of the shares, 0 to 1."""


def compare(now: ColumnStats, then: ColumnStats) -> Drift:
    """Values now against those of a reference, for example of the training set."""
    if now.kind != then.kind:
        return Drift(OTHER, math.inf, 0.0)
    ours, theirs = _shares(now, then)
    index, noise = float(measures.psi(ours, theirs)), _noise(ours, theirs)
    # Lengths of texts are no measure of them; the few buckets of a personal column are too coarse for these two.
    plain = now.kind == "number" and not (now.personal or then.personal)
    step, distance = (ks(now, then), wasserstein(now, then)) if plain else (None, None)
    fewest = int(min(ours.sum(), theirs.sum()))
    verdict = _verdict(index, noise, fewest, far=_is_far(now, then, step or 0.0, distance or 0.0))
    return Drift(verdict, index, noise, step, distance, float(measures.js(ours, theirs)))


def ks(now: ColumnStats, then: ColumnStats) -> float | None:
    """The largest difference of the cumulated shares; None where either has no finite number."""
    _, ours, theirs, _ = aligned(now.numbers, then.numbers)
    if not ours.sum() or not theirs.sum():
        return None
    return float(measures.ks(ours, theirs))


def wasserstein(now: ColumnStats, then: ColumnStats) -> float | None:
    """The area between the cumulated shares, in standard deviations of `then` (of both, where that has none)."""
    keys, ours, theirs, shift = aligned(now.numbers, then.numbers)
    if not ours.sum() or not theirs.sum():
        return None
    # In halves: the widest span there is fits no float64.
    low, high = bounds(keys, shift)
    middle = low / 4 + high / 4
    area = float(measures.distance(ours, theirs, middle))
    return area / ((then.std or 0.0) / 2 or float(middle[-1] - middle[0]) or 1.0)


def common_texts(values: Mapping[str, int], most: int) -> list[str]:
    """The texts that occur most, most common first."""
    return sorted(values, key=lambda text: (-values[text], text))[:most]


def _shares(now: ColumnStats, then: ColumnStats) -> tuple[Ints, Ints]:
    """How many rows of each lie in each bin; bins that both leave empty are none."""
    ours, theirs = _text_bins(now, then) if now.kind == "text" else _number_bins(now, then)
    odd = np.array([[one.nulls, one.nan, one.infinite] for one in (now, then)], np.int64)
    both = np.concatenate([np.stack([ours, theirs]), odd], axis=1)
    both = both[:, both.sum(axis=0) > 0]
    return both[0], both[1]


def _number_bins(now: ColumnStats, then: ColumnStats) -> tuple[Ints, Ints]:
    _, ours, theirs, _ = aligned(now.numbers, then.numbers)
    if not len(ours):
        return ours, theirs
    return measures.tenths(ours, theirs)


def _text_bins(now: ColumnStats, then: ColumnStats) -> tuple[Ints, Ints]:
    if now.values is None or then.values is None:
        return np.array(now.cells, np.int64), np.array(then.cells, np.int64)
    common = common_texts(then.values, _TEXTS)
    found = ([*(values.get(text, 0) for text in common), 0] for values in (now.values, then.values))
    ours, theirs = (np.array(counts, np.int64) for counts in found)
    ours[-1], theirs[-1] = sum(now.values.values()) - ours.sum(), sum(then.values.values()) - theirs.sum()
    return ours, theirs


def _noise(ours: Ints, theirs: Ints) -> float:
    """Of equal distributions the index is chi-square over the rows: its 95th percentile (Wilson and Hilferty)."""
    rows, others, free = int(ours.sum()), int(theirs.sum()), len(ours) - 1
    if not rows or not others:
        return math.inf
    if free < 1:
        return 0.0
    third = 2 / (9 * free)
    return float(free * (1 - third + 1.645 * math.sqrt(third)) ** 3 * (1 / rows + 1 / others))


def _is_far(now: ColumnStats, then: ColumnStats, step: float, distance: float) -> bool:
    """Whether a step or a distance is large, and larger than samples of the same show once in a hundred times.

    Of the distance that is as large as the error of the two means; of tails without end it is large, too.
    """
    one, other = 1 / max(1, now.numbers.size), 1 / max(1, then.numbers.size)
    wide = (now.std or 0.0) / (then.std or math.inf)
    return step >= max(FAR, 1.63 * math.sqrt(one + other)) or distance >= max(
        FAR, 2.58 * math.hypot(wide * math.sqrt(one), math.sqrt(other))
    )


def _verdict(index: float, noise: float, rows: int, *, far: bool) -> str:
    if rows < LEAST_ROWS or noise > WATCH:
        return FEW
    if index >= DRIFTED:
        return MOVED
    return LOOK if index >= WATCH or far else SAME
