"""What scores are worth, laid over the bins of an axis: for each bin its score, how often that came true, and how else
it might have been for all that is known. Made once for a profile, used for every window."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from falaj.drift.records import BINARY, CLASSES, REGRESSION, Axis, Quality

Numbers = NDArray[np.float64]
SURE = 0.5
"""A class with a score above this is the one that is said."""
DRAWS = 64


class Curve:
    """One axis. Points ascend; a bin in which a choice changes is two points, each with a part of its rows."""

    __slots__ = ("_noise", "_part", "_take", "behind", "beside", "chances", "drawn", "points")

    def __init__(self, axis: Axis, quality: Quality) -> None:
        cuts = np.array([min((axis.low, *axis.edges[:1])), *axis.edges, max((axis.high, *axis.edges[-1:]))])
        scores, weights = np.asarray(quality.scores, np.float64), weights_of(quality)
        points, take, part = _middles(cuts, scores, weights), np.arange(axis.bins), np.ones(axis.bins)
        if quality.task != REGRESSION:
            where = quality.threshold if quality.task == BINARY else SURE
            points, take, part = _parted((points, take, part), cuts, where, (scores, weights))
        points = np.concatenate([scores[:1], points, scores[-1:]])
        order = np.argsort(points, kind="stable")
        self.points = points[order]
        # Of the odd ones, those beyond both ends of the reference have a score.
        self._take = np.concatenate([[axis.bins + 2], take, [axis.bins + 3]])[order]
        self._part = np.concatenate([[1.0], part, [1.0]])[order]
        self.chances = np.interp(self.points, scores, quality.chances)
        self.beside = np.interp(self.points, scores, quality.beside) if quality.beside else self.chances
        self.behind = np.interp(self.points, scores, weights)
        if quality.task != REGRESSION:
            chance = np.random.default_rng(0)
            self.drawn = _drawn(self.points, quality, weights, chance)
            self._noise = chance.standard_normal(self.drawn.shape) * np.sqrt(self.drawn * (1 - self.drawn))

    def laid(self, counts: NDArray[np.int64]) -> Numbers:
        """Rows at each point, from the counts of the axis."""
        return np.asarray(counts[self._take] * self._part)

    def came(self, rows: Numbers) -> Numbers:
        """How many of them come true, in many draws. Normal deviates: binomial ones cost ten times as much."""
        drawn: Numbers = rows * self.drawn + np.sqrt(rows) * self._noise
        return np.clip(drawn, 0, rows, out=drawn)


def is_usable(quality: Quality) -> bool:
    """Whether the curve is one: profiles come from others, and estimates act on what they say."""
    size, chances = len(quality.scores), quality.task in (BINARY, CLASSES)
    rows = (quality.scores, quality.chances, *filter(None, (quality.beside, quality.weights)))
    if not size or not (chances or quality.task == REGRESSION) or any(len(one) != size for one in rows):
        return False
    try:
        scores, *others = np.array([*rows, [quality.threshold] * size], np.float64)
    except (TypeError, ValueError):
        return False
    known = bool(np.isfinite([scores, *others]).all() and (np.diff(scores) >= 0).all())
    within = all(bool((one >= 0).all()) for one in others[:-1]) and bool(others[0].max() <= 1 or not chances)
    return known and within and isinstance(quality.output, str)


def weights_of(quality: Quality) -> Numbers:
    """Rows behind each score; alike where nobody says."""
    fits = len(quality.weights) == len(quality.scores)
    return np.asarray(quality.weights if fits else [quality.rows / len(quality.scores)] * len(quality.scores), float)


def _middles(cuts: Numbers, scores: Numbers, weights: Numbers) -> Numbers:
    """The score that stands for each bin: the mean of those it was measured at, else its middle."""
    at = np.clip(np.searchsorted(cuts[1:-1], scores, side="left"), 0, len(cuts) - 2)
    rows, sums = (np.bincount(at, one, len(cuts) - 1) for one in (weights, weights * scores))
    return np.where(rows > 0, sums / np.maximum(rows, 1e-300), (cuts[1:] + cuts[:-1]) / 2)


def _parted(
    laid: tuple[Numbers, NDArray[np.int64], Numbers], cuts: Numbers, where: float, known: tuple[Numbers, Numbers]
) -> tuple[Numbers, NDArray[np.int64], Numbers]:
    """The bin that holds the threshold as two: by the scores that were measured in it, else by its length."""
    at = int(np.searchsorted(cuts[1:-1], where, side="left"))
    low, high = cuts[at], cuts[at + 1]
    if not low < where <= high:
        return laid
    scores, weights = known
    under, over = (low < scores) & (scores < where), (where <= scores) & (scores <= high)
    share, halves = float((where - low) / (high - low)), [(low + where) / 2, (where + high) / 2]
    if under.any() or over.any():
        share = float(weights[under].sum() / weights[under | over].sum())
        halves = [float(np.average(scores[one], weights=weights[one])) if one.any() else where for one in (under, over)]
    halves[0] = min(halves[0], float(np.nextafter(where, -np.inf)))
    points, take, part = laid
    return (
        np.concatenate([points[:at], halves, points[at + 1 :]]),
        np.concatenate([take[:at], [take[at], take[at]], take[at + 1 :]]),
        np.concatenate([part[:at], [share, 1 - share], part[at + 1 :]]),
    )


def _drawn(points: Numbers, quality: Quality, weights: Numbers, chance: np.random.Generator) -> Numbers:
    """Chances as they might be as well, for all that the held-out rows say: [draws, points]."""
    level, block = np.unique(quality.chances, return_inverse=True)
    rows = np.bincount(block, weights)
    # Shrunk a little towards one half, so that what was always true is not sure for ever.
    level = (level * rows + 0.5) / (rows + 1)
    drawn = level + chance.standard_normal((DRAWS, len(level))) * np.sqrt(level * (1 - level) / (rows + 2))
    return _between(points, quality.scores, drawn[:, block].clip(0, 1))


def _between(points: Numbers, known: Sequence[float], values: Numbers) -> Numbers:
    """np.interp for many rows of values at once."""
    scores = np.asarray(known)
    if len(scores) == 1:
        return np.repeat(values, len(points), 1)
    at = np.clip(np.searchsorted(scores, points, side="right") - 1, 0, len(scores) - 2)
    share = np.clip((points - scores[at]) / np.maximum(scores[at + 1] - scores[at], 1e-300), 0, 1)
    return np.asarray(values[:, at] * (1 - share) + values[:, at + 1] * share)
