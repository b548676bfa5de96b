"""Curves as text: braille dots where one curve or colours tell them apart, marks elsewhere; and sparklines. Pure."""

import math
from collections.abc import Sequence

CurvePoints = Sequence[tuple[float, float]]
"""(step, value) of a curve, in order."""
CURVE_MARKS = "●○■□▲△◆◇★☆"
ANSI_COLOURS = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92)
_BRAILLE_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_SPARK_BARS = "▁▂▃▄▅▆▇█"


def plot_curves(
    curves: Sequence[tuple[str, CurvePoints]],
    width: int,
    height: int,
    *,
    uses_colour: bool = False,
    is_logarithmic: bool = False,
) -> str:
    """Curves over one another on one pair of axes, with a legend. What is not finite is left out."""
    finite_curves = [
        (name, [(x, _scale_value(y, is_logarithmic)) for x, y in spots if _is_drawable(y, is_logarithmic)])
        for name, spots in curves
    ]
    all_spots = [spot for _, spots in finite_curves for spot in spots]
    if not all_spots:
        return "nothing to draw"
    min_x, max_x = min(x for x, _ in all_spots), max(x for x, _ in all_spots)
    min_y, max_y = min(y for _, y in all_spots), max(y for _, y in all_spots)
    canvas = _BrailleCanvas(width, height, (min_x, max_x, min_y, max_y))
    uses_marks = len(finite_curves) > 1 and not uses_colour
    for number, (_, spots) in enumerate(finite_curves):
        canvas.line(number, spots, only_spots=uses_marks)
    lines = canvas.lines(uses_colour, uses_marks)
    labels = [_format_scaled(max_y, is_logarithmic), *[""] * (height - 2), _format_scaled(min_y, is_logarithmic)][
        :height
    ]
    label_width = max(map(len, labels))
    body = [f"{label:>{label_width}} ┤{line}" for label, line in zip(labels, lines, strict=True)]
    axis_line = f"{'':>{label_width}} └{'─' * width}"
    axis_labels = f"{_format_number(min_x)}{_format_number(max_x):>{max(1, width - len(_format_number(min_x)))}}"
    legend = [
        _render_legend(number, name, spots, uses_colour, is_logarithmic)
        for number, (name, spots) in enumerate(finite_curves)
    ]
    return "\n".join([*body, axis_line, f"{'':>{label_width}}  {axis_labels}", *legend])


def format_sparkline(values: Sequence[float], width: int = 24) -> str:
    """A curve in one line; a gap where a number is not finite."""
    if len(values) > width:
        values = [values[index * len(values) // width] for index in range(width)]
    finite_values = [value for value in values if math.isfinite(value)]
    low, high = min(finite_values, default=0.0), max(finite_values, default=0.0)
    # Halved first, so that the span of the widest numbers there are is finite too.
    span = high / 2 - low / 2
    scale = [int((value / 2 - low / 2) / span * 7.999) if span else 3 for value in values if math.isfinite(value)]
    bars = iter(scale)
    return "".join(_SPARK_BARS[next(bars)] if math.isfinite(value) else " " for value in values)


def format_bar(share: float, width: int = 24) -> str:
    """A part of a whole as a line of blocks, in eighths of one."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


class _BrailleCanvas:
    """Cells of 2 by 4 dots, and which curve drew there last."""

    def __init__(self, width: int, height: int, span: tuple[float, float, float, float]) -> None:
        self._width, self._height = width, height
        self._min_x, self._min_y = span[0], span[2]
        self._half_width = (span[1] / 2 - span[0] / 2) or 1.0
        self._half_height = (span[3] / 2 - span[2] / 2) or 1.0
        self._dots = [[0] * width for _ in range(height)]
        self._curve_by_cell = [[-1] * width for _ in range(height)]

    def line(self, curve_index: int, spots: CurvePoints, *, only_spots: bool) -> None:
        """Dots along a curve; coarse: only at its spots."""
        last_dot: tuple[int, int] | None = None
        for x, y in spots:
            across = round((x / 2 - self._min_x / 2) / self._half_width * (self._width * 2 - 1))
            down = round((1 - (y / 2 - self._min_y / 2) / self._half_height) * (self._height * 4 - 1))
            steps = 1 if last_dot is None or only_spots else max(abs(across - last_dot[0]), abs(down - last_dot[1]), 1)
            start = last_dot or (across, down)
            for step_number in range(1, steps + 1):
                part = step_number / steps
                self._set_dot(
                    curve_index,
                    round(start[0] + (across - start[0]) * part),
                    round(start[1] + (down - start[1]) * part),
                )
            last_dot = (across, down)

    def lines(self, uses_colour: bool, uses_marks: bool) -> list[str]:
        """The picture, line by line."""
        rendered: list[str] = []
        for dots, owners in zip(self._dots, self._curve_by_cell, strict=True):
            cells = [
                _render_cell(dot, curve_index, uses_colour, uses_marks)
                for dot, curve_index in zip(dots, owners, strict=True)
            ]
            rendered.append("".join(cells).rstrip() if not uses_colour else "".join(cells))
        return rendered

    def _set_dot(self, curve_index: int, across: int, down: int) -> None:
        row, column = min(max(down // 4, 0), self._height - 1), min(max(across // 2, 0), self._width - 1)
        self._dots[row][column] |= _BRAILLE_DOTS[down % 4][across % 2]
        self._curve_by_cell[row][column] = curve_index


def _render_cell(dots: int, curve_index: int, uses_colour: bool, uses_marks: bool) -> str:
    if not dots:
        return " "
    if uses_marks:
        return CURVE_MARKS[curve_index % len(CURVE_MARKS)]
    text = chr(0x2800 + dots)
    return f"\x1b[{ANSI_COLOURS[curve_index % len(ANSI_COLOURS)]}m{text}\x1b[0m" if uses_colour else text


def _render_legend(number: int, name: str, spots: CurvePoints, uses_colour: bool, is_logarithmic: bool) -> str:
    last_value = _format_scaled(spots[-1][1], is_logarithmic) if spots else "no points"
    mark = CURVE_MARKS[number % len(CURVE_MARKS)]
    mark = f"\x1b[{ANSI_COLOURS[number % len(ANSI_COLOURS)]}m●\x1b[0m" if uses_colour else mark
    return f"{mark} {name}  {last_value}"


def _is_drawable(value: float, is_logarithmic: bool) -> bool:
    return math.isfinite(value) and (not is_logarithmic or value > 0)


def _scale_value(value: float, is_logarithmic: bool) -> float:
    return math.log10(value) if is_logarithmic else value


def _format_scaled(value: float, is_logarithmic: bool) -> str:
    return _format_number(10**value if is_logarithmic else value)


def _format_number(value: float) -> str:
    return f"{value:.4g}"
