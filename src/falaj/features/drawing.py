"""Features as pictures in a terminal: the shape of a column in one line, or as bars beside what it was. Pure."""

from collections.abc import Sequence

import numpy as np

from falaj.asof.drift import common_texts
from falaj.asof.sketch import bounds
from falaj.asof.stats import ColumnStats
from falaj.track.draw import spark

_FULL, _PARTS, _WAS = "█", " ▏▎▍▌▋▊▉", "│"
OTHERS = "others"
Bins = list[tuple[str, int]]


def shape(stats: ColumnStats, bins: int = 16) -> str:
    """A column in one line: how many of its numbers lie where; of texts, the most common first. Personal ones: none."""
    counts = [count for _, count in bins_of(stats, stats, bins)]
    return "" if sum(counts) < 2 else spark([float(count) for count in counts], bins)


def histogram(stats: ColumnStats, reference: ColumnStats | None = None, *, bins: int = 12, width: int = 40) -> str:
    """Bars of the shares in each bin, and a stroke where the share of the reference is."""
    basis = stats if reference is None or reference.kind != stats.kind else reference
    now = bins_of(stats, basis, bins)
    then = bins_of(basis, basis, bins) if basis is not stats else []
    if not any(count for _, count in now):
        return "personal: not drawn" if stats.personal else "nothing to draw"
    ours = _shares([count for _, count in now])
    theirs = _shares([count for _, count in then]) if then else [None] * len(ours)
    top = max(*ours, *(share or 0.0 for share in theirs))
    room = max(len(name) for name, _ in now)
    return "\n".join(
        f"{name:>{room}} {_bar(share, was, top, width)} {share:6.1%}" + ("" if was is None else f"  was {was:.1%}")
        for (name, _), share, was in zip(now, ours, theirs, strict=True)
    )


def trend(values: Sequence[float | None]) -> str:
    """How a number went from one arrival to the next; nothing for a single one."""
    known = [float("nan") if value is None else value for value in values]
    return spark(known) if sum(value is not None for value in values) > 1 else ""


def bins_of(stats: ColumnStats, basis: ColumnStats, most: int) -> Bins:
    """Named bins of a column, cut where the basis lies; its ends take what is beyond them."""
    if stats.personal or basis.personal:
        return []
    if stats.kind == "text" and stats.values is not None and basis.values is not None:
        texts = common_texts(basis.values, most - 1)
        found = [(text, stats.values.get(text, 0)) for text in texts]
        return [*found, (OTHERS, sum(stats.values.values()) - sum(count for _, count in found))]
    first, last = basis.at(0.005), basis.at(0.995)
    if first is None or last is None:
        return []
    # In halves: the widest span there is fits no float64.
    starts = np.linspace(first / 2, last / 2, most, endpoint=False) if first < last else np.array([first / 2])
    low, high = bounds(np.array(stats.numbers.keys, np.int64), stats.numbers.shift)
    place = np.maximum(np.searchsorted(starts, low / 4 + high / 4, side="right") - 1, 0)
    counts = np.bincount(place, weights=np.array(stats.numbers.counts), minlength=len(starts))
    return [(f"{start:.4g}", int(count)) for start, count in zip(starts * 2, counts, strict=True)]


def _shares(counts: Sequence[int]) -> list[float]:
    whole = sum(counts) or 1
    return [count / whole for count in counts]


def _bar(share: float, was: float | None, top: float, width: int) -> str:
    eighths = round(share / top * width * 8)
    bar = (_FULL * (eighths // 8) + _PARTS[eighths % 8].strip()).ljust(width + 1)
    if was is None:
        return bar
    at = round(was / top * width)
    return f"{bar[:at]}{_WAS}{bar[at + 1 :]}"
