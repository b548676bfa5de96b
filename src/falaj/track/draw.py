"""Curves as text: braille dots where one curve or colours tell them apart, marks elsewhere; and sparklines. Pure."""

import math
from collections.abc import Sequence

Spots = Sequence[tuple[float, float]]
"""(step, value) of a curve, in order."""
MARKS = "●○■□▲△◆◇★☆"
COLOURS = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92)
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BARS = "▁▂▃▄▅▆▇█"


def draw(
    curves: Sequence[tuple[str, Spots]], width: int, height: int, *, colour: bool = False, log: bool = False
) -> str:
    """Curves over one another on one pair of axes, with a legend. What is not finite is left out."""
    kept = [(name, [(x, _scaled(y, log)) for x, y in spots if _shown(y, log)]) for name, spots in curves]
    every = [spot for _, spots in kept for spot in spots]
    if not every:
        return "nothing to draw"
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)
    canvas = _Canvas(width, height, (left, right, low, high))
    plain = len(kept) > 1 and not colour
    for number, (_, spots) in enumerate(kept):
        canvas.line(number, spots, coarse=plain)
    lines = canvas.lines(colour, plain)
    labels = [_unscaled(high, log), *[""] * (height - 2), _unscaled(low, log)][:height]
    room = max(map(len, labels))
    body = [f"{label:>{room}} ┤{line}" for label, line in zip(labels, lines, strict=True)]
    foot = f"{'':>{room}} └{'─' * width}"
    ends = f"{_short(left)}{_short(right):>{max(1, width - len(_short(left)))}}"
    legend = [_legend(number, name, spots, colour, log) for number, (name, spots) in enumerate(kept)]
    return "\n".join([*body, foot, f"{'':>{room}}  {ends}", *legend])


def spark(values: Sequence[float], width: int = 24) -> str:
    """A curve in one line; a gap where a number is not finite."""
    if len(values) > width:
        values = [values[n * len(values) // width] for n in range(width)]
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    # Halved first, so that the span of the widest numbers there are is finite too.
    span = high / 2 - low / 2
    scale = [int((value / 2 - low / 2) / span * 7.999) if span else 3 for value in values if math.isfinite(value)]
    bars = iter(scale)
    return "".join(_BARS[next(bars)] if math.isfinite(value) else " " for value in values)


def bar(part: float, width: int = 24) -> str:
    """A part of a whole as a line of blocks, in eighths of one."""
    eighths = round(max(0.0, min(1.0, part)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


class _Canvas:
    """Cells of 2 by 4 dots, and which curve drew there last."""

    def __init__(self, width: int, height: int, span: tuple[float, float, float, float]) -> None:
        self._width, self._height = width, height
        self._left, self._low = span[0], span[2]
        self._wide = (span[1] / 2 - span[0] / 2) or 1.0
        self._high = (span[3] / 2 - span[2] / 2) or 1.0
        self._dots = [[0] * width for _ in range(height)]
        self._who = [[-1] * width for _ in range(height)]

    def line(self, who: int, spots: Spots, *, coarse: bool) -> None:
        """Dots along a curve; coarse: only at its spots."""
        last: tuple[int, int] | None = None
        for x, y in spots:
            across = round((x / 2 - self._left / 2) / self._wide * (self._width * 2 - 1))
            down = round((1 - (y / 2 - self._low / 2) / self._high) * (self._height * 4 - 1))
            steps = 1 if last is None or coarse else max(abs(across - last[0]), abs(down - last[1]), 1)
            start = last or (across, down)
            for n in range(1, steps + 1):
                part = n / steps
                self._dot(who, round(start[0] + (across - start[0]) * part), round(start[1] + (down - start[1]) * part))
            last = (across, down)

    def lines(self, colour: bool, plain: bool) -> list[str]:
        """The picture, line by line."""
        found: list[str] = []
        for dots, owners in zip(self._dots, self._who, strict=True):
            cells = [_cell(dot, who, colour, plain) for dot, who in zip(dots, owners, strict=True)]
            found.append("".join(cells).rstrip() if not colour else "".join(cells))
        return found

    def _dot(self, who: int, across: int, down: int) -> None:
        row, column = min(max(down // 4, 0), self._height - 1), min(max(across // 2, 0), self._width - 1)
        self._dots[row][column] |= _DOTS[down % 4][across % 2]
        self._who[row][column] = who


def _cell(dots: int, who: int, colour: bool, plain: bool) -> str:
    if not dots:
        return " "
    if plain:
        return MARKS[who % len(MARKS)]
    text = chr(0x2800 + dots)
    return f"\x1b[{COLOURS[who % len(COLOURS)]}m{text}\x1b[0m" if colour else text


def _legend(number: int, name: str, spots: Spots, colour: bool, log: bool) -> str:
    last = _unscaled(spots[-1][1], log) if spots else "no points"
    mark = MARKS[number % len(MARKS)]
    mark = f"\x1b[{COLOURS[number % len(COLOURS)]}m●\x1b[0m" if colour else mark
    return f"{mark} {name}  {last}"


def _shown(value: float, log: bool) -> bool:
    return math.isfinite(value) and (not log or value > 0)


def _scaled(value: float, log: bool) -> float:
    return math.log10(value) if log else value


def _unscaled(value: float, log: bool) -> str:
    return _short(10**value if log else value)


def _short(value: float) -> str:
    return f"{value:.4g}"
