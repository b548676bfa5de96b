"""How far counts are from counts: measures and chances, for one column or for a matrix of columns, a row each.

The last dimension is the bins of a column; shorter ones are filled up with bins that nobody uses, which change nothing.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_MIN_EXPECTED = 5.0
"""Cells of which fewer are expected are counted together: what chi-square says of them is not true."""
_erfc = np.frompyfunc(math.erfc, 1, 1)


def compute_shares(counts: NDArray[Any]) -> Floats:
    """Of the whole; zeros where there is nothing."""
    return np.asarray(counts / np.maximum(counts.sum(-1, keepdims=True), 1), np.float64)


def compute_ks(current: Ints, reference: Ints) -> Floats:
    """The largest step between the distributions (Kolmogorov-Smirnov), over bins in order."""
    cumulative_gap = np.cumsum(compute_shares(current), -1) - np.cumsum(compute_shares(reference), -1)
    return np.asarray(np.abs(cumulative_gap).max(-1, initial=0.0), np.float64)


def compute_total_variation(current: Ints, reference: Ints) -> Floats:
    """The share of rows that are in another bin."""
    return np.asarray(np.abs(compute_shares(current) - compute_shares(reference)).sum(-1) / 2, np.float64)


def compute_psi(current: Ints, reference: Ints) -> Floats:
    """Population stability index, with half a row more in each bin: an empty one would be infinitely far away."""
    is_used = (current + reference) > 0
    bins = np.maximum(np.count_nonzero(is_used, axis=-1)[..., None], 1)
    a, b = ((counts + 0.5) / (counts.sum(-1, keepdims=True) + 0.5 * bins) for counts in (current, reference))
    return np.asarray(np.where(is_used, (a - b) * np.log(a / b), 0.0).sum(-1), np.float64)


def compute_js(current: Ints, reference: Ints) -> Floats:
    """Jensen-Shannon distance, 0 (the same) to 1 (nothing in common)."""
    a, b = compute_shares(current), compute_shares(reference)
    middle = np.where(a + b > 0, (a + b) / 2, 1.0)
    parts = [
        np.where(shares_part > 0, shares_part * np.log2(np.where(shares_part > 0, shares_part, 1.0) / middle), 0.0).sum(
            -1
        )
        for shares_part in (a, b)
    ]
    empty = (current.sum(-1) == 0) | (reference.sum(-1) == 0)
    return np.asarray(np.where(empty, 0.0, np.sqrt(np.clip((parts[0] + parts[1]) / 2, 0.0, 1.0))), np.float64)


def compute_distance(current: Ints, reference: Ints, places: Floats) -> Floats:
    """The area between the distributions (Wasserstein), rows being where `places` says of their bin."""
    cumulative_gap = np.abs(np.cumsum(compute_shares(current), -1) - np.cumsum(compute_shares(reference), -1))
    return np.asarray((cumulative_gap[..., :-1] * np.diff(places, axis=-1)).sum(-1), np.float64)


def join_to_tenths(current: Ints, reference: Ints, bins: int = 10) -> tuple[Ints, Ints]:
    """Bins in order joined to tenths of `reference`: a bin goes where its middle lies; a heavy one stays by itself."""
    cumulative = np.cumsum(reference, -1)
    totals = np.maximum(cumulative[..., -1:], 1)
    bin_numbers = np.minimum(((cumulative - reference / 2) * bins / totals).astype(np.int64), bins - 1)
    flat = (
        bin_numbers.reshape(-1, bin_numbers.shape[-1])
        + np.arange(bin_numbers.size // bin_numbers.shape[-1])[:, None] * bins
    )
    size = bins * len(flat)
    joined_counts = [
        np.bincount(flat.ravel(), weights=counts.ravel(), minlength=size).astype(np.int64)
        for counts in (current, reference)
    ]
    shape = (*bin_numbers.shape[:-1], bins)
    return joined_counts[0].reshape(shape), joined_counts[1].reshape(shape)


def compute_chi2(current: Ints, reference: Ints) -> tuple[Floats, Ints]:
    """Whether both come from one distribution: the statistic, and its degrees of freedom.

    The lesser of Pearson's and of the likelihood ratio: each cries wolf at rare cells, and not at the same ones.
    """
    current, reference = _join_rare_cells(current, reference)
    pooled, current_rows, reference_rows = (
        current + reference,
        current.sum(-1, keepdims=True),
        reference.sum(-1, keepdims=True),
    )
    totals = np.maximum(current_rows + reference_rows, 1)
    pearson, ratio = np.zeros(current_rows.shape[:-1]), np.zeros(current_rows.shape[:-1])
    for counts, size in ((current, current_rows), (reference, reference_rows)):
        expected = np.where(pooled > 0, pooled * size / totals, 1.0)
        expected = np.where(expected > 0, expected, 1.0)
        pearson = pearson + np.where(pooled > 0, (counts - expected) ** 2 / expected, 0.0).sum(-1)
        ratio = ratio + 2 * np.where(counts > 0, counts * np.log(np.where(counts > 0, counts, 1) / expected), 0.0).sum(
            -1
        )
    degrees = np.maximum(np.count_nonzero(pooled, axis=-1) - 1, 0)
    empty = (current_rows[..., 0] == 0) | (reference_rows[..., 0] == 0)
    return np.where(empty, 0.0, np.minimum(pearson, ratio)), np.asarray(np.where(empty, 0, degrees), np.int64)


def _join_rare_cells(current: Ints, reference: Ints) -> tuple[Ints, Ints]:
    """Rare cells as one; left out where even that is rare."""
    pooled, current_rows, reference_rows = (
        current + reference,
        current.sum(-1, keepdims=True),
        reference.sum(-1, keepdims=True),
    )
    scale = np.minimum(current_rows, reference_rows) / np.maximum(current_rows + reference_rows, 1)
    is_rare = pooled * scale < _MIN_EXPECTED
    has_enough_rare = np.where(is_rare, pooled, 0).sum(-1, keepdims=True) * scale >= _MIN_EXPECTED
    joined = []
    for counts in (current, reference):
        last = np.where(has_enough_rare, np.where(is_rare, counts, 0).sum(-1, keepdims=True), 0)
        joined.append(np.concatenate([np.where(is_rare, 0, counts), last], -1))
    return joined[0], joined[1]


def compute_ks_p(step: Floats, rows: NDArray[Any], others: NDArray[Any]) -> Floats:
    """How often chance makes such a step between samples of so many rows (more often than not less: bins hide some)."""
    size = rows * others / np.maximum(rows + others, 1)
    scaled_step = np.sqrt(size) * step
    term = np.arange(1, 21)
    signs = np.where(term % 2 == 1, 2.0, -2.0)
    p_values = (signs * np.exp(-2.0 * np.square(np.maximum(scaled_step, 0.3)[..., None] * term))).sum(-1)
    return np.asarray(np.where(scaled_step < 0.3, 1.0, np.clip(p_values, 0.0, 1.0)), np.float64)


def compute_rank_p(current: Ints, reference: Ints) -> Floats:
    """How often chance puts rows of bins in order so far up or down (Mann-Whitney, equal values counted half).

    It sees a shift in fewer rows than the largest step does, and no value is further out than its rank.
    """
    current_rows, reference_rows = current.sum(-1, dtype=np.float64), reference.sum(-1, dtype=np.float64)
    pooled, totals = (current + reference).astype(np.float64), np.maximum(current_rows + reference_rows, 2.0)
    rank_excess = (current * (np.cumsum(reference, -1) - reference / 2)).sum(-1) - current_rows * reference_rows / 2
    ties = (pooled**3 - pooled).sum(-1) / (totals * (totals - 1))
    spread = current_rows * reference_rows / 12 * np.maximum(totals + 1 - ties, 0.0)
    normal = np.abs(rank_excess) / np.sqrt(np.where(spread > 0, spread, 1.0))
    return np.asarray(np.where(spread > 0, np.minimum(1.0, normal_tail(normal) * 2), 1.0), np.float64)


def compute_chi2_p(statistic: Floats, free: NDArray[Any]) -> Floats:
    """How often chance reaches it (Wilson and Hilferty; by definition where there is one degree of freedom)."""
    degrees = np.where(free > 0, free, 1)
    third = 2 / (9 * degrees)
    normal = (np.cbrt(statistic / degrees) - (1 - third)) / np.sqrt(third)
    two_sided = normal_tail(np.sqrt(np.maximum(statistic, 0.0))) * 2
    return np.asarray(np.where(free <= 0, 1.0, np.where(degrees == 1, two_sided, normal_tail(normal))), np.float64)


def normal_tail(normal: NDArray[Any]) -> Floats:
    """How often a normal number is greater."""
    return np.asarray(_erfc(np.asarray(normal) / math.sqrt(2)), np.float64) / 2


def compute_tail_p(hits: NDArray[Any], rows: NDArray[Any], other_hits: NDArray[Any], others: NDArray[Any]) -> Floats:
    """At most how often chance puts so many of all hits into our rows, were the rate no higher there (Chernoff).

    True for any number of hits, a single one too, which no normal approximation is.
    """
    hits, other_hits = np.asarray(hits, np.float64), np.asarray(other_hits, np.float64)
    all_hits = np.maximum(hits + other_hits, 1e-300)
    expected_share = np.clip(rows / np.maximum(rows + others, 1), 1e-12, 1 - 1e-12)
    share = hits / all_hits
    log_gain = _relative_entropy(share, expected_share) + _relative_entropy(1 - share, 1 - expected_share)
    return np.asarray(np.where(share > expected_share, np.exp(-all_hits * log_gain), 1.0), np.float64)


def _relative_entropy(share: Floats, expected_share: Floats) -> Floats:
    return np.asarray(
        np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0) / expected_share), 0.0), np.float64
    )


def find_discoveries(p: Floats, alpha: float) -> Bools:
    """Which of many tests found something, so that `alpha` of the finds are wrong (Benjamini and Hochberg)."""
    order = np.argsort(p, axis=None)
    ranked = p.ravel()[order]
    passing = np.nonzero(ranked <= alpha * np.arange(1, ranked.size + 1) / max(1, ranked.size))[0]
    is_discovery = np.zeros(ranked.size, np.bool_)
    if len(passing):
        is_discovery[order[: passing[-1] + 1]] = True
    return is_discovery.reshape(p.shape)
