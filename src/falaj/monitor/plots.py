"""Plots: block characters for a terminal, and SVG for the page. Pure; what is drawn comes from strangers."""

from collections.abc import Sequence
from html import escape

from falaj.catalog.reading import printable
from falaj.drift.records import NUMBER, ODD
from falaj.monitor.records import AxisView, Window

_BLOCKS = " ▁▂▃▄▅▆▇█"
_LONGEST = 28
WIDE, HIGH = 640, 150


def shown(text: str) -> str:
    """A stranger's text as a page may have it."""
    return escape(printable(text))


def spark(values: Sequence[float], most: float = 0.0) -> str:
    """Values as blocks; something is never drawn as nothing."""
    top = most or max(values, default=0.0) or 1.0
    return "".join(_BLOCKS[min(8, max(int(value > 0), round(8 * value / top)))] for value in values)


def histogram(axis: AxisView) -> list[str]:
    """A column then and now, as lines."""
    name = printable(axis.name)[:_LONGEST]
    top = max([*axis.then, *axis.now, 1e-9])
    if axis.kind == NUMBER:
        plain = [at for at, one in enumerate(axis.bins) if one not in ODD]
        ends = f"{axis.bins[0]} … {axis.bins[plain[-1]]}" if plain else ""
        sides = [spark([side[at] for at in plain], top) for side in (axis.then, axis.now)]
        odd = ", ".join(
            f"{one} {axis.now[at]:.1%}" for at, one in enumerate(axis.bins) if one in ODD and axis.now[at] >= 0.0005
        )
        return [f"{name}  ({ends})", f"  then {sides[0]}", f"  now  {sides[1]}{f'  {odd}' if odd else ''}"]
    lines = [name]
    for value, then, now in zip(axis.bins, axis.then, axis.now, strict=True):
        if then or now:
            word = printable(value)[:_LONGEST]
            lines.append(
                f"  {word:<{_LONGEST}} then {then:6.1%} {_bar(then, top)} now {now:6.1%} {_bar(now, top)}".rstrip()
            )
    return lines


def timeline(windows: Sequence[Window]) -> list[str]:
    """Windows in the order of time: how much came, and under it where there were alarms."""
    if not windows:
        return []
    lines = [f"  rows   {spark([one.rows or one.requests for one in windows])}"]
    marks = "".join("!" if one.alarms else "·" for one in windows)
    return [*lines, f"  alarms {marks}"]


def svg_histogram(axis: AxisView) -> str:
    """Two bars for each bin: pale then, strong now."""
    top, count = max([*axis.then, *axis.now, 1e-9]), max(1, len(axis.bins))
    wide, floor = WIDE / count, HIGH - 18
    drawn = []
    for at, (name, then, now) in enumerate(zip(axis.bins, axis.then, axis.now, strict=True)):
        title = f"<title>{shown(name)}: then {then:.2%}, now {now:.2%}</title>"
        for side, (value, kind) in enumerate(((then, "then"), (now, "now"))):
            high = (floor - 6) * value / top
            x = at * wide + 1 + side * (wide - 2) / 2
            drawn.append(
                f'<rect class="{kind}" x="{x:.1f}" y="{floor - high:.1f}" width="{max(0.5, (wide - 3) / 2):.1f}" '
                f'height="{high:.1f}">{title}</rect>'
            )
    drawn += [
        f'<text x="{at * wide + 1:.1f}" y="{HIGH - 4}">{shown(axis.bins[at][:12])}</text>'
        for at in range(0, len(axis.bins), max(1, count // 8))
    ]
    return _svg(drawn, f"{axis.name} then and now")


def svg_timeline(windows: Sequence[Window]) -> str:
    """A bar for each window; those with alarms stand out."""
    top, wide = max([*(one.rows or one.requests for one in windows), 1]), WIDE / max(1, len(windows))
    drawn = []
    for at, one in enumerate(windows):
        high = (HIGH - 24) * (one.rows or one.requests) / top
        kind = "alarm" if one.alarms else "now"
        said = shown(f"{one.rows:,} rows, {one.alarms} alarms, {one.state}")
        drawn.append(
            f'<rect class="{kind}" x="{at * wide:.1f}" y="{HIGH - high:.1f}" width="{max(0.5, wide - 1):.1f}" '
            f'height="{high:.1f}"><title>{said}</title></rect>'
        )
    return _svg(drawn, "windows in the order of time")


def _bar(share: float, top: float, wide: int = 16) -> str:
    return ("█" * max(int(share > 0), round(wide * share / top))).ljust(wide)


def _svg(drawn: Sequence[str], label: str) -> str:
    return f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{shown(label)}">{"".join(drawn)}</svg>'
