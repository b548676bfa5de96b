"""Columns as they are drawn: a few bars of the same width, then and now, whatever the profile's own cuts are. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.drift.records import KIND_NUMBER, ROLE_LABEL, SPECIAL_BINS, DataProfile, DriftFinding, ProfileAxis
from falaj.drift.tally import DataTally
from falaj.monitor.records import AxisView, MonitorWindow

BAR_COUNT, MAX_BAR_VALUES, MAX_DRAWN_AXES = 24, 12, 60


def draw_columns(profile: DataProfile, tally: DataTally, findings: Sequence[DriftFinding]) -> tuple[AxisView, ...]:
    """What a report shows of every column: those with alarms first, then answers, then the others."""
    alarms = {finding.column for finding in findings if finding.alarm}
    axis_order = sorted(
        range(len(profile.axes)),
        key=lambda axis_number: (
            profile.axes[axis_number].name not in alarms,
            profile.axes[axis_number].role == "input",
            axis_number,
        ),
    )
    drawn_axes = [
        axis_number
        for axis_number in axis_order
        if profile.axes[axis_number].role != ROLE_LABEL or tally.of(axis_number).any()
    ]
    return tuple(
        draw_column(profile.axes[axis_number], profile.counts[axis_number], tally.of(axis_number))
        for axis_number in drawn_axes[:MAX_DRAWN_AXES]
    )


def draw_column(axis: ProfileAxis, reference_counts: Sequence[int], current_counts: "NDArray[Any]") -> AxisView:
    """One column, then and now."""
    both_counts = [np.asarray(reference_counts, np.float64), np.asarray(current_counts, np.float64)]
    names, bars = _draw_number(axis, both_counts) if axis.kind == KIND_NUMBER else _draw_categories(axis, both_counts)
    special_counts = [counts[-len(SPECIAL_BINS) :] for counts in both_counts]
    shown_specials = [
        special_number
        for special_number in range(len(SPECIAL_BINS))
        if special_counts[0][special_number] or special_counts[1][special_number]
    ]
    shares = [
        [
            *(bar / max(1.0, counts.sum())),
            *(side_values[special_number] / max(1.0, counts.sum()) for special_number in shown_specials),
        ]
        for bar, counts, side_values in zip(bars, both_counts, special_counts, strict=True)
    ]
    first, second = (tuple(round(float(share_value), 6) for share_value in side_values) for side_values in shares)
    return AxisView(
        axis.name,
        axis.role,
        axis.kind,
        (*names, *(SPECIAL_BINS[special_number] for special_number in shown_specials)),
        first,
        second,
    )


def find_alarm_start(windows: Sequence[MonitorWindow], finding: DriftFinding, revision: int) -> float:
    """When the run of windows began that have this alarm without a gap of more than one; 0: no window has it."""
    key, began_at, gap_length = (finding.what, finding.column, finding.segment), 0.0, 0
    for window in reversed([item for item in windows if item.revision == revision]):
        if any(item.alarm and (item.what, item.column, item.segment) == key for item in window.findings):
            began_at, gap_length = window.since, 0
        elif began_at or gap_length:
            gap_length += 1
            if gap_length > 1:
                break
        else:
            gap_length = 1
    return began_at


def _draw_number(axis: ProfileAxis, both_counts: "list[NDArray[Any]]") -> "tuple[list[str], list[NDArray[Any]]]":
    """Bars of one width over where nearly all of the reference lies; the rest is in the outer ones."""
    bin_edges = np.array([min([axis.low, *axis.edges[:1]]), *axis.edges, max([axis.high, *axis.edges[-1:]])])
    low, high = (bin_edges[1], bin_edges[-2]) if len(bin_edges) > 8 else (bin_edges[0], bin_edges[-1])
    if not high > low:
        return [f"{low:.6g}"], [np.array([counts[: axis.bins].sum()]) for counts in both_counts]
    grid = np.linspace(low, high, BAR_COUNT + 1)
    bars = []
    for counts in both_counts:
        cumulative = np.concatenate([[0.0], np.cumsum(counts[: axis.bins])])
        interpolated = np.interp(grid, bin_edges, cumulative)
        interpolated[0], interpolated[-1] = 0.0, cumulative[-1]
        bars.append(np.diff(interpolated))
    return [f"{grid_value:.4g}" for grid_value in grid[:-1]], bars


def _draw_categories(axis: ProfileAxis, both_counts: "list[NDArray[Any]]") -> "tuple[list[str], list[NDArray[Any]]]":
    """The most common values, and the others together."""
    shown_count = min(len(axis.values), MAX_BAR_VALUES)
    bars = [np.append(counts[:shown_count], counts[shown_count : axis.bins].sum()) for counts in both_counts]
    return [*axis.values[:shown_count], "others"], bars
