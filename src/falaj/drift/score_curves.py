"""What scores are worth, laid over the bins of an axis: for each bin its score, how often that came true, and how else
it might have been for all that is known. Made once for a profile, used for every window."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from falaj.drift.records import TASK_BINARY, TASK_CLASSES, TASK_REGRESSION, ModelQuality, ProfileAxis

Numbers = NDArray[np.float64]
CERTAIN_SCORE = 0.5
"""A class with a score above this is the one that is said."""
DRAW_COUNT = 64


class ScoreCurve:
    """One axis. Points ascend; a bin in which a choice changes is two points, each with a part of its rows."""

    __slots__ = ("_bin_numbers", "_noise", "_row_shares", "behind", "beside", "chances", "drawn", "points")

    def __init__(self, axis: ProfileAxis, quality: ModelQuality) -> None:
        bin_edges = np.array([min((axis.low, *axis.edges[:1])), *axis.edges, max((axis.high, *axis.edges[-1:]))])
        scores, weights = np.asarray(quality.scores, np.float64), get_score_weights(quality)
        points, bin_numbers, row_shares = (
            _compute_bin_scores(bin_edges, scores, weights),
            np.arange(axis.bins),
            np.ones(axis.bins),
        )
        if quality.task != TASK_REGRESSION:
            cut_score = quality.threshold if quality.task == TASK_BINARY else CERTAIN_SCORE
            points, bin_numbers, row_shares = _split_threshold_bin(
                (points, bin_numbers, row_shares), bin_edges, cut_score, (scores, weights)
            )
        points = np.concatenate([scores[:1], points, scores[-1:]])
        order = np.argsort(points, kind="stable")
        self.points = points[order]
        # Of the odd ones, those beyond both ends of the reference have a score.
        self._bin_numbers = np.concatenate([[axis.bins + 2], bin_numbers, [axis.bins + 3]])[order]
        self._row_shares = np.concatenate([[1.0], row_shares, [1.0]])[order]
        self.chances = np.interp(self.points, scores, quality.chances)
        self.beside = np.interp(self.points, scores, quality.beside) if quality.beside else self.chances
        self.behind = np.interp(self.points, scores, weights)
        if quality.task != TASK_REGRESSION:
            random = np.random.default_rng(0)
            self.drawn = _draw_chances(self.points, quality, weights, random)
            self._noise = random.standard_normal(self.drawn.shape) * np.sqrt(self.drawn * (1 - self.drawn))

    def laid(self, counts: NDArray[np.int64]) -> Numbers:
        """Rows at each point, from the counts of the axis."""
        return np.asarray(counts[self._bin_numbers] * self._row_shares)

    def came(self, rows: Numbers) -> Numbers:
        """How many of them come true, in many draws. Normal deviates: binomial ones cost ten times as much."""
        drawn: Numbers = rows * self.drawn + np.sqrt(rows) * self._noise
        return np.clip(drawn, 0, rows, out=drawn)


def is_usable(quality: ModelQuality) -> bool:
    """Whether the curve is one: profiles come from others, and estimates act on what they say."""
    size, has_chances = len(quality.scores), quality.task in (TASK_BINARY, TASK_CLASSES)
    rows = (quality.scores, quality.chances, *filter(None, (quality.beside, quality.weights)))
    if not size or not (has_chances or quality.task == TASK_REGRESSION) or any(len(column) != size for column in rows):
        return False
    try:
        scores, *other_columns = np.array([*rows, [quality.threshold] * size], np.float64)
    except (TypeError, ValueError):
        return False
    is_finite = bool(np.isfinite([scores, *other_columns]).all() and (np.diff(scores) >= 0).all())
    is_in_range = all(bool((column >= 0).all()) for column in other_columns[:-1]) and bool(
        other_columns[0].max() <= 1 or not has_chances
    )
    return is_finite and is_in_range and isinstance(quality.output, str)


def get_score_weights(quality: ModelQuality) -> Numbers:
    """Rows behind each score; alike where nobody says."""
    has_weights = len(quality.weights) == len(quality.scores)
    return np.asarray(
        quality.weights if has_weights else [quality.rows / len(quality.scores)] * len(quality.scores), float
    )


def _compute_bin_scores(bin_edges: Numbers, scores: Numbers, weights: Numbers) -> Numbers:
    """The score that stands for each bin: the mean of those it was measured at, else its middle."""
    bin_numbers = np.clip(np.searchsorted(bin_edges[1:-1], scores, side="left"), 0, len(bin_edges) - 2)
    rows, sums = (np.bincount(bin_numbers, values, len(bin_edges) - 1) for values in (weights, weights * scores))
    return np.where(rows > 0, sums / np.maximum(rows, 1e-300), (bin_edges[1:] + bin_edges[:-1]) / 2)


def _split_threshold_bin(
    points_and_bins: tuple[Numbers, NDArray[np.int64], Numbers],
    bin_edges: Numbers,
    threshold: float,
    scores_and_weights: tuple[Numbers, Numbers],
) -> tuple[Numbers, NDArray[np.int64], Numbers]:
    """The bin that holds the threshold as two: by the scores that were measured in it, else by its length."""
    bin_number = int(np.searchsorted(bin_edges[1:-1], threshold, side="left"))
    low, high = bin_edges[bin_number], bin_edges[bin_number + 1]
    if not low < threshold <= high:
        return points_and_bins
    scores, weights = scores_and_weights
    is_below, is_above = (low < scores) & (scores < threshold), (threshold <= scores) & (scores <= high)
    share, halves = float((threshold - low) / (high - low)), [(low + threshold) / 2, (threshold + high) / 2]
    if is_below.any() or is_above.any():
        share = float(weights[is_below].sum() / weights[is_below | is_above].sum())
        halves = [
            float(np.average(scores[is_part], weights=weights[is_part])) if is_part.any() else threshold
            for is_part in (is_below, is_above)
        ]
    halves[0] = min(halves[0], float(np.nextafter(threshold, -np.inf)))
    points, bin_numbers, row_shares = points_and_bins
    return (
        np.concatenate([points[:bin_number], halves, points[bin_number + 1 :]]),
        np.concatenate(
            [
                bin_numbers[:bin_number],
                [bin_numbers[bin_number], bin_numbers[bin_number]],
                bin_numbers[bin_number + 1 :],
            ]
        ),
        np.concatenate([row_shares[:bin_number], [share, 1 - share], row_shares[bin_number + 1 :]]),
    )


def _draw_chances(points: Numbers, quality: ModelQuality, weights: Numbers, chance: np.random.Generator) -> Numbers:
    """Chances as they might be as well, for all that the held-out rows say: [draws, points]."""
    levels, block_numbers = np.unique(quality.chances, return_inverse=True)
    rows = np.bincount(block_numbers, weights)
    # Shrunk a little towards one half, so that what was always true is not sure for ever.
    levels = (levels * rows + 0.5) / (rows + 1)
    drawn = levels + chance.standard_normal((DRAW_COUNT, len(levels))) * np.sqrt(levels * (1 - levels) / (rows + 2))
    return _interpolate_rows(points, quality.scores, drawn[:, block_numbers].clip(0, 1))


def _interpolate_rows(points: Numbers, known_points: Sequence[float], values: Numbers) -> Numbers:
    """np.interp for many rows of values at once."""
    scores = np.asarray(known_points)
    if len(scores) == 1:
        return np.repeat(values, len(points), 1)
    left_positions = np.clip(np.searchsorted(scores, points, side="right") - 1, 0, len(scores) - 2)
    share = np.clip(
        (points - scores[left_positions]) / np.maximum(scores[left_positions + 1] - scores[left_positions], 1e-300),
        0,
        1,
    )
    return np.asarray(values[:, left_positions] * (1 - share) + values[:, left_positions + 1] * share)
