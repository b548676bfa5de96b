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
_FEWEST = 5.0
"""Cells of which fewer are expected are counted together: what chi-square says of them is not true."""
_erfc = np.frompyfunc(math.erfc, 1, 1)


def shares(counts: NDArray[Any]) -> Floats:
    """Of the whole; zeros where there is nothing."""
    return np.asarray(counts / np.maximum(counts.sum(-1, keepdims=True), 1), np.float64)


def ks(ours: Ints, theirs: Ints) -> Floats:
    """The largest step between the distributions (Kolmogorov-Smirnov), over bins in order."""
    apart = np.cumsum(shares(ours), -1) - np.cumsum(shares(theirs), -1)
    return np.asarray(np.abs(apart).max(-1, initial=0.0), np.float64)


def total_variation(ours: Ints, theirs: Ints) -> Floats:
    """The share of rows that are in another bin."""
    return np.asarray(np.abs(shares(ours) - shares(theirs)).sum(-1) / 2, np.float64)


def psi(ours: Ints, theirs: Ints) -> Floats:
    """Population stability index, with half a row more in each bin: an empty one would be infinitely far away."""
    used = (ours + theirs) > 0
    bins = np.maximum(np.count_nonzero(used, axis=-1)[..., None], 1)
    a, b = ((one + 0.5) / (one.sum(-1, keepdims=True) + 0.5 * bins) for one in (ours, theirs))
    return np.asarray(np.where(used, (a - b) * np.log(a / b), 0.0).sum(-1), np.float64)


def js(ours: Ints, theirs: Ints) -> Floats:
    """Jensen-Shannon distance, 0 (the same) to 1 (nothing in common)."""
    a, b = shares(ours), shares(theirs)
    middle = np.where(a + b > 0, (a + b) / 2, 1.0)
    parts = [np.where(one > 0, one * np.log2(np.where(one > 0, one, 1.0) / middle), 0.0).sum(-1) for one in (a, b)]
    empty = (ours.sum(-1) == 0) | (theirs.sum(-1) == 0)
    return np.asarray(np.where(empty, 0.0, np.sqrt(np.clip((parts[0] + parts[1]) / 2, 0.0, 1.0))), np.float64)


def distance(ours: Ints, theirs: Ints, places: Floats) -> Floats:
    """The area between the distributions (Wasserstein), rows being where `places` says of their bin."""
    apart = np.abs(np.cumsum(shares(ours), -1) - np.cumsum(shares(theirs), -1))
    return np.asarray((apart[..., :-1] * np.diff(places, axis=-1)).sum(-1), np.float64)


def tenths(ours: Ints, theirs: Ints, bins: int = 10) -> tuple[Ints, Ints]:
    """Bins in order joined to tenths of `theirs`: a bin goes where its middle lies; a heavy one stays by itself."""
    upto = np.cumsum(theirs, -1)
    whole = np.maximum(upto[..., -1:], 1)
    place = np.minimum(((upto - theirs / 2) * bins / whole).astype(np.int64), bins - 1)
    flat = place.reshape(-1, place.shape[-1]) + np.arange(place.size // place.shape[-1])[:, None] * bins
    size = bins * len(flat)
    both = [np.bincount(flat.ravel(), weights=one.ravel(), minlength=size).astype(np.int64) for one in (ours, theirs)]
    shape = (*place.shape[:-1], bins)
    return both[0].reshape(shape), both[1].reshape(shape)


def chi2(ours: Ints, theirs: Ints) -> tuple[Floats, Ints]:
    """Whether both come from one distribution: the statistic, and its degrees of freedom.

    The lesser of Pearson's and of the likelihood ratio: each cries wolf at rare cells, and not at the same ones.
    """
    ours, theirs = _joined(ours, theirs)
    pooled, rows, others = ours + theirs, ours.sum(-1, keepdims=True), theirs.sum(-1, keepdims=True)
    whole = np.maximum(rows + others, 1)
    pearson, ratio = np.zeros(rows.shape[:-1]), np.zeros(rows.shape[:-1])
    for one, size in ((ours, rows), (theirs, others)):
        expected = np.where(pooled > 0, pooled * size / whole, 1.0)
        expected = np.where(expected > 0, expected, 1.0)
        pearson = pearson + np.where(pooled > 0, (one - expected) ** 2 / expected, 0.0).sum(-1)
        ratio = ratio + 2 * np.where(one > 0, one * np.log(np.where(one > 0, one, 1) / expected), 0.0).sum(-1)
    free = np.maximum(np.count_nonzero(pooled, axis=-1) - 1, 0)
    empty = (rows[..., 0] == 0) | (others[..., 0] == 0)
    return np.where(empty, 0.0, np.minimum(pearson, ratio)), np.asarray(np.where(empty, 0, free), np.int64)


def _joined(ours: Ints, theirs: Ints) -> tuple[Ints, Ints]:
    """Rare cells as one; left out where even that is rare."""
    pooled, rows, others = ours + theirs, ours.sum(-1, keepdims=True), theirs.sum(-1, keepdims=True)
    scale = np.minimum(rows, others) / np.maximum(rows + others, 1)
    rare = pooled * scale < _FEWEST
    rest = np.where(rare, pooled, 0).sum(-1, keepdims=True) * scale >= _FEWEST
    found = []
    for one in (ours, theirs):
        last = np.where(rest, np.where(rare, one, 0).sum(-1, keepdims=True), 0)
        found.append(np.concatenate([np.where(rare, 0, one), last], -1))
    return found[0], found[1]


def ks_p(step: Floats, rows: NDArray[Any], others: NDArray[Any]) -> Floats:
    """How often chance makes such a step between samples of so many rows (more often than not less: bins hide some)."""
    size = rows * others / np.maximum(rows + others, 1)
    at = np.sqrt(size) * step
    term = np.arange(1, 21)
    signs = np.where(term % 2 == 1, 2.0, -2.0)
    found = (signs * np.exp(-2.0 * np.square(np.maximum(at, 0.3)[..., None] * term))).sum(-1)
    return np.asarray(np.where(at < 0.3, 1.0, np.clip(found, 0.0, 1.0)), np.float64)


def rank_p(ours: Ints, theirs: Ints) -> Floats:
    """How often chance puts rows of bins in order so far up or down (Mann-Whitney, equal values counted half).

    It sees a shift in fewer rows than the largest step does, and no value is further out than its rank.
    """
    rows, others = ours.sum(-1, dtype=np.float64), theirs.sum(-1, dtype=np.float64)
    pooled, whole = (ours + theirs).astype(np.float64), np.maximum(rows + others, 2.0)
    won = (ours * (np.cumsum(theirs, -1) - theirs / 2)).sum(-1) - rows * others / 2
    ties = (pooled**3 - pooled).sum(-1) / (whole * (whole - 1))
    spread = rows * others / 12 * np.maximum(whole + 1 - ties, 0.0)
    normal = np.abs(won) / np.sqrt(np.where(spread > 0, spread, 1.0))
    return np.asarray(np.where(spread > 0, np.minimum(1.0, above(normal) * 2), 1.0), np.float64)


def chi2_p(statistic: Floats, free: NDArray[Any]) -> Floats:
    """How often chance reaches it (Wilson and Hilferty; by definition where there is one degree of freedom)."""
    some = np.where(free > 0, free, 1)
    third = 2 / (9 * some)
    normal = (np.cbrt(statistic / some) - (1 - third)) / np.sqrt(third)
    two_sided = above(np.sqrt(np.maximum(statistic, 0.0))) * 2
    return np.asarray(np.where(free <= 0, 1.0, np.where(some == 1, two_sided, above(normal))), np.float64)


def above(normal: NDArray[Any]) -> Floats:
    """How often a normal number is greater."""
    return np.asarray(_erfc(np.asarray(normal) / math.sqrt(2)), np.float64) / 2


def tail_p(hits: NDArray[Any], rows: NDArray[Any], other_hits: NDArray[Any], others: NDArray[Any]) -> Floats:
    """At most how often chance puts so many of all hits into our rows, were the rate no higher there (Chernoff).

    True for any number of hits, a single one too, which no normal approximation is.
    """
    hits, other_hits = np.asarray(hits, np.float64), np.asarray(other_hits, np.float64)
    every = np.maximum(hits + other_hits, 1e-300)
    fair = np.clip(rows / np.maximum(rows + others, 1), 1e-12, 1 - 1e-12)
    share = hits / every
    gain = _log_part(share, fair) + _log_part(1 - share, 1 - fair)
    return np.asarray(np.where(share > fair, np.exp(-every * gain), 1.0), np.float64)


def _log_part(share: Floats, fair: Floats) -> Floats:
    return np.asarray(np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0) / fair), 0.0), np.float64)


def discoveries(p: Floats, alpha: float) -> Bools:
    """Which of many tests found something, so that `alpha` of the finds are wrong (Benjamini and Hochberg)."""
    order = np.argsort(p, axis=None)
    ranked = p.ravel()[order]
    below = np.nonzero(ranked <= alpha * np.arange(1, ranked.size + 1) / max(1, ranked.size))[0]
    found = np.zeros(ranked.size, np.bool_)
    if len(below):
        found[order[: below[-1] + 1]] = True
    return found.reshape(p.shape)
