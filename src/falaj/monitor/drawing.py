"""Columns as they are drawn: a few bars of the same width, then and now, whatever the profile's own cuts are. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.drift.records import LABEL, NUMBER, ODD, Axis, Finding, Profile
from falaj.drift.tally import Tally
from falaj.monitor.records import AxisView, Window

BARS, MOST_VALUES, MOST_AXES = 24, 12, 60


def drawn(profile: Profile, tally: Tally, findings: Sequence[Finding]) -> tuple[AxisView, ...]:
    """What a report shows of every column: those with alarms first, then answers, then the others."""
    alarms = {one.column for one in findings if one.alarm}
    order = sorted(
        range(len(profile.axes)),
        key=lambda at: (profile.axes[at].name not in alarms, profile.axes[at].role == "input", at),
    )
    there = [at for at in order if profile.axes[at].role != LABEL or tally.of(at).any()]
    return tuple(view(profile.axes[at], profile.counts[at], tally.of(at)) for at in there[:MOST_AXES])


def view(axis: Axis, then: Sequence[int], now: "NDArray[Any]") -> AxisView:
    """One column, then and now."""
    both = [np.asarray(then, np.float64), np.asarray(now, np.float64)]
    names, bars = _numbers(axis, both) if axis.kind == NUMBER else _words(axis, both)
    odd = [counts[-len(ODD) :] for counts in both]
    shown = [at for at in range(len(ODD)) if odd[0][at] or odd[1][at]]
    shares = [
        [*(bar / max(1.0, counts.sum())), *(side[at] / max(1.0, counts.sum()) for at in shown)]
        for bar, counts, side in zip(bars, both, odd, strict=True)
    ]
    first, second = (tuple(round(float(one), 6) for one in side) for side in shares)
    return AxisView(axis.name, axis.role, axis.kind, (*names, *(ODD[at] for at in shown)), first, second)


def since_when(windows: Sequence[Window], finding: Finding, revision: int) -> float:
    """When the run of windows began that have this alarm without a gap of more than one; 0: no window has it."""
    key, began, gap = (finding.what, finding.column, finding.segment), 0.0, 0
    for window in reversed([one for one in windows if one.revision == revision]):
        if any(one.alarm and (one.what, one.column, one.segment) == key for one in window.findings):
            began, gap = window.since, 0
        elif began or gap:
            gap += 1
            if gap > 1:
                break
        else:
            gap = 1
    return began


def _numbers(axis: Axis, both: "list[NDArray[Any]]") -> "tuple[list[str], list[NDArray[Any]]]":
    """Bars of one width over where nearly all of the reference lies; the rest is in the outer ones."""
    cuts = np.array([min([axis.low, *axis.edges[:1]]), *axis.edges, max([axis.high, *axis.edges[-1:]])])
    low, high = (cuts[1], cuts[-2]) if len(cuts) > 8 else (cuts[0], cuts[-1])
    if not high > low:
        return [f"{low:.6g}"], [np.array([counts[: axis.bins].sum()]) for counts in both]
    grid = np.linspace(low, high, BARS + 1)
    bars = []
    for counts in both:
        passed = np.concatenate([[0.0], np.cumsum(counts[: axis.bins])])
        at = np.interp(grid, cuts, passed)
        at[0], at[-1] = 0.0, passed[-1]
        bars.append(np.diff(at))
    return [f"{one:.4g}" for one in grid[:-1]], bars


def _words(axis: Axis, both: "list[NDArray[Any]]") -> "tuple[list[str], list[NDArray[Any]]]":
    """The most common values, and the others together."""
    most = min(len(axis.values), MOST_VALUES)
    bars = [np.append(counts[:most], counts[most : axis.bins].sum()) for counts in both]
    return [*axis.values[:most], "others"], bars
