"""How far values have moved from a reference: four measures of one pair of statistics, and a verdict that knows noise.

Shares are compared over the bins of the reference: tenths of its numbers, its twenty most common texts and the rest,
and a bin each for nulls, NaN and infinities. Two samples of the same values differ too. Where they may differ by as
much as the first threshold with one chance in twenty, the verdict is that there are too few rows, whatever the number.
"""

import math
from collections.abc import Mapping

import numpy as np

from falaj.asof.column_stats import ColumnStats
from falaj.asof.histograms import Ints, align_histograms, compute_bucket_bounds
from falaj.core.data import dataclass
from falaj.drift import measures

WATCH_PSI, DRIFT_PSI = 0.1, 0.25
"""Population stability index: below the first nothing moved; from the second on, look at the model."""
MIN_DISTANCE = 0.1
"""A distance of so many standard deviations, or so large a step between distributions, is worth a look."""
MIN_ROWS = 100
VERDICT_SAME, VERDICT_WATCH, VERDICT_DRIFT, VERDICT_TOO_FEW_ROWS, VERDICT_OTHER_TYPE = (
    "same",
    "watch",
    "drift",
    "too few rows",
    "other type",
)
_MAX_COMPARED_TEXTS = 20


@dataclass(frozen=True, slots=True)
class StatsDrift:
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


def compare_stats(current: ColumnStats, reference: ColumnStats) -> StatsDrift:
    """Values now against those of a reference, for example of the training set."""
    if current.kind != reference.kind:
        return StatsDrift(VERDICT_OTHER_TYPE, math.inf, 0.0)
    current_counts, reference_counts = _count_by_bin(current, reference)
    psi, psi_noise = (
        float(measures.compute_psi(current_counts, reference_counts)),
        _estimate_psi_noise(current_counts, reference_counts),
    )
    # Lengths of texts are no measure of them; the few buckets of a personal column are too coarse for these two.
    is_comparable = current.kind == "number" and not (current.personal or reference.personal)
    step, distance = (
        (compute_ks(current, reference), compute_wasserstein(current, reference)) if is_comparable else (None, None)
    )
    row_count = int(min(current_counts.sum(), reference_counts.sum()))
    verdict = _choose_verdict(
        psi, psi_noise, row_count, is_far=_is_far(current, reference, step or 0.0, distance or 0.0)
    )
    return StatsDrift(
        verdict, psi, psi_noise, step, distance, float(measures.compute_js(current_counts, reference_counts))
    )


def compute_ks(current: ColumnStats, reference: ColumnStats) -> float | None:
    """The largest difference of the cumulated shares; None where either has no finite number."""
    _, current_counts, reference_counts, _ = align_histograms(current.numbers, reference.numbers)
    if not current_counts.sum() or not reference_counts.sum():
        return None
    return float(measures.compute_ks(current_counts, reference_counts))


def compute_wasserstein(current: ColumnStats, reference: ColumnStats) -> float | None:
    """The area between the cumulated shares, in standard deviations of `reference` (of both, where that has none)."""
    keys, current_counts, reference_counts, shift = align_histograms(current.numbers, reference.numbers)
    if not current_counts.sum() or not reference_counts.sum():
        return None
    # In halves: the widest span there is fits no float64.
    low, high = compute_bucket_bounds(keys, shift)
    middle = low / 4 + high / 4
    area = float(measures.compute_distance(current_counts, reference_counts, middle))
    return area / ((reference.std or 0.0) / 2 or float(middle[-1] - middle[0]) or 1.0)


def find_common_texts(counts_by_text: Mapping[str, int], max_count: int) -> list[str]:
    """The texts that occur most, most common first."""
    return sorted(counts_by_text, key=lambda text: (-counts_by_text[text], text))[:max_count]


def _count_by_bin(current: ColumnStats, reference: ColumnStats) -> tuple[Ints, Ints]:
    """How many rows of each lie in each bin; bins that both leave empty are none."""
    current_counts, reference_counts = (
        _count_text_bins(current, reference) if current.kind == "text" else _count_number_bins(current, reference)
    )
    special_counts = np.array([[stats.nulls, stats.nan, stats.infinite] for stats in (current, reference)], np.int64)
    all_counts = np.concatenate([np.stack([current_counts, reference_counts]), special_counts], axis=1)
    all_counts = all_counts[:, all_counts.sum(axis=0) > 0]
    return all_counts[0], all_counts[1]


def _count_number_bins(current: ColumnStats, reference: ColumnStats) -> tuple[Ints, Ints]:
    _, current_counts, reference_counts, _ = align_histograms(current.numbers, reference.numbers)
    if not len(current_counts):
        return current_counts, reference_counts
    return measures.join_to_tenths(current_counts, reference_counts)


def _count_text_bins(current: ColumnStats, reference: ColumnStats) -> tuple[Ints, Ints]:
    if current.values is None or reference.values is None:
        return np.array(current.cells, np.int64), np.array(reference.cells, np.int64)
    texts = find_common_texts(reference.values, _MAX_COMPARED_TEXTS)
    counts_by_side = ([*(values.get(text, 0) for text in texts), 0] for values in (current.values, reference.values))
    current_counts, reference_counts = (np.array(counts, np.int64) for counts in counts_by_side)
    current_counts[-1], reference_counts[-1] = (
        sum(current.values.values()) - current_counts.sum(),
        sum(reference.values.values()) - reference_counts.sum(),
    )
    return current_counts, reference_counts


def _estimate_psi_noise(current_counts: Ints, reference_counts: Ints) -> float:
    """Of equal distributions the index is chi-square over the rows: its 95th percentile (Wilson and Hilferty)."""
    current_rows, reference_rows, degrees = (
        int(current_counts.sum()),
        int(reference_counts.sum()),
        len(current_counts) - 1,
    )
    if not current_rows or not reference_rows:
        return math.inf
    if degrees < 1:
        return 0.0
    third = 2 / (9 * degrees)
    return float(degrees * (1 - third + 1.645 * math.sqrt(third)) ** 3 * (1 / current_rows + 1 / reference_rows))


def _is_far(current: ColumnStats, reference: ColumnStats, step: float, distance: float) -> bool:
    """Whether a step or a distance is large, and larger than samples of the same show once in a hundred times.

    Of the distance that is as large as the error of the two means; of tails without end it is large, too.
    """
    inverse_size, inverse_reference_size = 1 / max(1, current.numbers.size), 1 / max(1, reference.numbers.size)
    std_ratio = (current.std or 0.0) / (reference.std or math.inf)
    return step >= max(MIN_DISTANCE, 1.63 * math.sqrt(inverse_size + inverse_reference_size)) or distance >= max(
        MIN_DISTANCE, 2.58 * math.hypot(std_ratio * math.sqrt(inverse_size), math.sqrt(inverse_reference_size))
    )


def _choose_verdict(psi: float, noise: float, rows: int, *, is_far: bool) -> str:
    if rows < MIN_ROWS or noise > WATCH_PSI:
        return VERDICT_TOO_FEW_ROWS
    if psi >= DRIFT_PSI:
        return VERDICT_DRIFT
    return VERDICT_WATCH if psi >= WATCH_PSI or is_far else VERDICT_SAME
