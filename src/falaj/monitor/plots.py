"""Plots: block characters for a terminal, and SVG for the page. Pure; what is drawn comes from strangers."""

from collections.abc import Sequence
from html import escape

from falaj.catalog.version_reader import to_printable
from falaj.drift.records import KIND_NUMBER, SPECIAL_BINS
from falaj.monitor.records import AxisView, MonitorWindow

_BLOCKS = " ▁▂▃▄▅▆▇█"
_MAX_NAME_CHARS = 28
SVG_WIDTH, SVG_HEIGHT = 640, 150


def escape_text(text: str) -> str:
    """A stranger's text as a page may have it."""
    return escape(to_printable(text))


def draw_spark(values: Sequence[float], top_value: float = 0.0) -> str:
    """Values as blocks; something is never drawn as nothing."""
    largest = top_value or max(values, default=0.0) or 1.0
    return "".join(_BLOCKS[min(8, max(int(value > 0), round(8 * value / largest)))] for value in values)


def draw_histogram(axis: AxisView) -> list[str]:
    """A column then and now, as lines."""
    name = to_printable(axis.name)[:_MAX_NAME_CHARS]
    largest = max([*axis.then, *axis.now, 1e-9])
    if axis.kind == KIND_NUMBER:
        plain_bins = [bin_number for bin_number, bin_name in enumerate(axis.bins) if bin_name not in SPECIAL_BINS]
        ends = f"{axis.bins[0]} … {axis.bins[plain_bins[-1]]}" if plain_bins else ""
        spark_lines = [
            draw_spark([side_shares[bin_number] for bin_number in plain_bins], largest)
            for side_shares in (axis.then, axis.now)
        ]
        special_text = ", ".join(
            f"{bin_name} {axis.now[bin_number]:.1%}"
            for bin_number, bin_name in enumerate(axis.bins)
            if bin_name in SPECIAL_BINS and axis.now[bin_number] >= 0.0005
        )
        return [
            f"{name}  ({ends})",
            f"  then {spark_lines[0]}",
            f"  now  {spark_lines[1]}{f'  {special_text}' if special_text else ''}",
        ]
    lines = [name]
    for value, reference_share, current_share in zip(axis.bins, axis.then, axis.now, strict=True):
        if reference_share or current_share:
            value_text = to_printable(value)[:_MAX_NAME_CHARS]
            lines.append(
                f"  {value_text:<{_MAX_NAME_CHARS}} then {reference_share:6.1%} {_draw_bar(reference_share, largest)} "
                f"now {current_share:6.1%} {_draw_bar(current_share, largest)}".rstrip()
            )
    return lines


def draw_timeline(windows: Sequence[MonitorWindow]) -> list[str]:
    """Windows in the order of time: how much came, and under it where there were alarms."""
    if not windows:
        return []
    lines = [f"  rows   {draw_spark([window.rows or window.requests for window in windows])}"]
    alarm_marks = "".join("!" if window.alarms else "·" for window in windows)
    return [*lines, f"  alarms {alarm_marks}"]


def render_svg_histogram(axis: AxisView) -> str:
    """Two bars for each bin: pale then, strong now."""
    largest, count = max([*axis.then, *axis.now, 1e-9]), max(1, len(axis.bins))
    bar_width, base_line = SVG_WIDTH / count, SVG_HEIGHT - 18
    rects = []
    for bin_number, (name, reference_share, current_share) in enumerate(
        zip(axis.bins, axis.then, axis.now, strict=True)
    ):
        title = f"<title>{escape_text(name)}: then {reference_share:.2%}, now {current_share:.2%}</title>"
        for side, (value, css_class) in enumerate(((reference_share, "then"), (current_share, "now"))):
            bar_height = (base_line - 6) * value / largest
            x = bin_number * bar_width + 1 + side * (bar_width - 2) / 2
            rects.append(
                f'<rect class="{css_class}" x="{x:.1f}" y="{base_line - bar_height:.1f}" '
                f'width="{max(0.5, (bar_width - 3) / 2):.1f}" '
                f'height="{bar_height:.1f}">{title}</rect>'
            )
    rects += [
        f'<text x="{bin_number * bar_width + 1:.1f}" '
        f'y="{SVG_HEIGHT - 4}">{escape_text(axis.bins[bin_number][:12])}</text>'
        for bin_number in range(0, len(axis.bins), max(1, count // 8))
    ]
    return _wrap_svg(rects, f"{axis.name} then and now")


def render_svg_timeline(windows: Sequence[MonitorWindow]) -> str:
    """A bar for each window; those with alarms stand out."""
    largest, bar_width = (
        max([*(window.rows or window.requests for window in windows), 1]),
        SVG_WIDTH / max(1, len(windows)),
    )
    rects = []
    for position, window in enumerate(windows):
        bar_height = (SVG_HEIGHT - 24) * (window.rows or window.requests) / largest
        css_class = "alarm" if window.alarms else "now"
        title_text = escape_text(f"{window.rows:,} rows, {window.alarms} alarms, {window.state}")
        rects.append(
            f'<rect class="{css_class}" x="{position * bar_width:.1f}" '
            f'y="{SVG_HEIGHT - bar_height:.1f}" width="{max(0.5, bar_width - 1):.1f}" '
            f'height="{bar_height:.1f}"><title>{title_text}</title></rect>'
        )
    return _wrap_svg(rects, "windows in the order of time")


def _draw_bar(share: float, largest: float, width: int = 16) -> str:
    return ("█" * max(int(share > 0), round(width * share / largest))).ljust(width)


def _wrap_svg(elements: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {SVG_WIDTH} {SVG_HEIGHT}" role="img" '
        f'aria-label="{escape_text(label)}">{"".join(elements)}</svg>'
    )
