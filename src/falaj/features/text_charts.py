"""Features as pictures in a terminal: the shape of a column in one line, or as bars beside what it was. Pure."""

from collections.abc import Sequence

import numpy as np

from falaj.asof.column_drift import find_common_texts
from falaj.asof.column_stats import ColumnStats
from falaj.asof.histograms import compute_bucket_bounds
from falaj.track.text_charts import format_sparkline

_FULL_BLOCK, _PARTIAL_BLOCKS, _REFERENCE_MARK = "█", " ▏▎▍▌▋▊▉", "│"
OTHERS_NAME = "others"
NamedBins = list[tuple[str, int]]


def draw_sparkline(stats: ColumnStats, bins: int = 16) -> str:
    """A column in one line: how many of its numbers lie where; of texts, the most common first. Personal ones: none."""
    counts = [count for _, count in compute_bins(stats, stats, bins)]
    return "" if sum(counts) < 2 else format_sparkline([float(count) for count in counts], bins)


def draw_histogram(stats: ColumnStats, reference: ColumnStats | None = None, *, bins: int = 12, width: int = 40) -> str:
    """Bars of the shares in each bin, and a stroke where the share of the reference is."""
    basis = stats if reference is None or reference.kind != stats.kind else reference
    current_bins = compute_bins(stats, basis, bins)
    reference_bins = compute_bins(basis, basis, bins) if basis is not stats else []
    if not any(count for _, count in current_bins):
        return "personal: not drawn" if stats.personal else "nothing to draw"
    current_shares = _compute_shares([count for _, count in current_bins])
    reference_shares = (
        _compute_shares([count for _, count in reference_bins]) if reference_bins else [None] * len(current_shares)
    )
    largest_share = max(*current_shares, *(share or 0.0 for share in reference_shares))
    name_width = max(len(name) for name, _ in current_bins)
    return "\n".join(
        f"{name:>{name_width}} {_draw_bar(share, reference_share, largest_share, width)} {share:6.1%}"
        + ("" if reference_share is None else f"  was {reference_share:.1%}")
        for (name, _), share, reference_share in zip(current_bins, current_shares, reference_shares, strict=True)
    )


def draw_trend(values: Sequence[float | None]) -> str:
    """How a number went from one arrival to the next; nothing for a single one."""
    plotted_values = [float("nan") if value is None else value for value in values]
    return format_sparkline(plotted_values) if sum(value is not None for value in values) > 1 else ""


def compute_bins(stats: ColumnStats, basis: ColumnStats, max_bins: int) -> NamedBins:
    """Named bins of a column, cut where the basis lies; its ends take what is beyond them."""
    if stats.personal or basis.personal:
        return []
    if stats.kind == "text" and stats.values is not None and basis.values is not None:
        texts = find_common_texts(basis.values, max_bins - 1)
        text_counts = [(text, stats.values.get(text, 0)) for text in texts]
        return [*text_counts, (OTHERS_NAME, sum(stats.values.values()) - sum(count for _, count in text_counts))]
    low_end, high_end = basis.at(0.005), basis.at(0.995)
    if low_end is None or high_end is None:
        return []
    # In halves: the widest span there is fits no float64.
    starts = (
        np.linspace(low_end / 2, high_end / 2, max_bins, endpoint=False)
        if low_end < high_end
        else np.array([low_end / 2])
    )
    low, high = compute_bucket_bounds(np.array(stats.numbers.keys, np.int64), stats.numbers.shift)
    bin_index = np.maximum(np.searchsorted(starts, low / 4 + high / 4, side="right") - 1, 0)
    counts = np.bincount(bin_index, weights=np.array(stats.numbers.counts), minlength=len(starts))
    return [(f"{start:.4g}", int(count)) for start, count in zip(starts * 2, counts, strict=True)]


def _compute_shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts) or 1
    return [count / total for count in counts]


def _draw_bar(share: float, reference_share: float | None, largest_share: float, width: int) -> str:
    eighths = round(share / largest_share * width * 8)
    bar = (_FULL_BLOCK * (eighths // 8) + _PARTIAL_BLOCKS[eighths % 8].strip()).ljust(width + 1)
    if reference_share is None:
        return bar
    mark_position = round(reference_share / largest_share * width)
    return f"{bar[:mark_position]}{_REFERENCE_MARK}{bar[mark_position + 1 :]}"
