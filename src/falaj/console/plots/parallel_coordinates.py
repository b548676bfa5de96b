"""Parallel coordinates: an upright axis for each parameter and metric, a line across them for each run."""

from collections.abc import Sequence
from dataclasses import dataclass

from falaj.console.markup import Html, h
from falaj.console.plots.axis_scales import AxisScale, ChartView, make_scale, to_drawable_number
from falaj.console.plots.chart_frame import (
    chart_figure,
    empty_chart,
    format_coordinate,
    format_percentage,
    truncate_middle,
)

MAX_LINES = 1000
_PLOT_WIDTH, _PLOT_HEIGHT, _TOP_MARGIN, _NUM_SHADES, _FEW_LINES = 1000, 240, 34, 8, 60


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    """An upright axis; with `choices` its values are words, in that order from below."""

    name: str
    log: bool = False
    choices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ParallelLine:
    """A run: a value (number or word) for each axis; None where it has none."""

    id: str
    name: str
    values: Sequence[float | str | None]
    link: str = ""


def parallel_coordinates(
    view: ChartView, axes: Sequence[ParallelAxis], lines: Sequence[ParallelLine], *, title: str
) -> Html:
    """Lines shaded by the last axis. Drag on an axis to choose a range: the ids of the lines within go to the hidden
    input `brushed` and into an event `falaj:brushed`."""
    if not axes or not lines:
        return empty_chart(view, "parallel", title)
    shown_lines = lines[:MAX_LINES]
    scales = [
        _make_axis_scale(axis, [line.values[n] for line in shown_lines if n < len(line.values)])
        for n, axis in enumerate(axes)
    ]
    # An axis in the middle of its column leaves room for its words on both sides.
    axis_positions = [(n + 0.5) / len(axes) for n in range(len(axes))]
    plane = h.svg(
        [_render_line(line, axes, scales, axis_positions) for line in shown_lines],
        class_="plane few" if len(shown_lines) <= _FEW_LINES else "plane",
        y=_TOP_MARGIN,
        width="100%",
        height=_PLOT_HEIGHT,
        viewBox=f"0 0 {_PLOT_WIDTH} {_PLOT_HEIGHT}",
        preserveAspectRatio="none",
    )
    axis_elements = [
        _render_axis(view, *axis_arguments)
        for axis_arguments in zip(range(len(axes)), axes, scales, axis_positions, strict=True)
    ]
    plot_area = h.svg(
        plane,
        axis_elements,
        class_="area",
        width="100%",
        height=_TOP_MARGIN + _PLOT_HEIGHT + 12,
        role="group",
        aria_label=title,
    )
    scroll_box = h.div(
        h.div(plot_area, class_=f"plot-box axes-{min(len(axes), 16)}", dir="ltr"),
        class_="plot-scroll",
        tabindex=0,
        role="region",
        aria_label=title,
    )
    truncation_note = len(lines) > MAX_LINES and h.p(
        view.t("plots.more", shown=MAX_LINES, all=len(lines)), class_="plot-unit"
    )
    hidden_input = h.input(type="hidden", name="brushed", value="")
    return chart_figure(
        "parallel",
        title,
        scroll_box,
        truncation_note,
        hidden_input,
        h.output(class_="plot-out", data_chosen=view.t("plots.chosen")),
    )


def _make_axis_scale(axis: ParallelAxis, values: Sequence[float | str | None]) -> AxisScale:
    if axis.choices:
        return AxisScale(-0.5, len(axis.choices) - 0.5) if len(axis.choices) > 1 else AxisScale(-1.0, 1.0)
    return make_scale((value for value in values if not isinstance(value, str)), log=axis.log)


def _get_level(axis: ParallelAxis, axis_scale: AxisScale, value: float | str | None) -> float | None:
    """0 below, 1 above; None where a value has no place."""
    if isinstance(value, str):
        return axis_scale.at(axis.choices.index(value)) if value in axis.choices else None
    number = to_drawable_number(value)
    return None if number is None or axis.choices or (axis_scale.log and number <= 1e-300) else axis_scale.at(number)


def _render_line(
    line: ParallelLine, axes: Sequence[ParallelAxis], scales: Sequence[AxisScale], axis_positions: Sequence[float]
) -> Html:
    levels = [
        _get_level(axis, axis_scale, value) for axis, axis_scale, value in zip(axes, scales, line.values, strict=False)
    ]
    line_points = [
        (_PLOT_WIDTH * position, _PLOT_HEIGHT * (1 - level))
        for position, level in zip(axis_positions, levels, strict=False)
        if level is not None
    ]
    last_level = levels[-1] if len(levels) == len(axes) else None
    shade_class = "pn" if last_level is None else f"p{max(0, min(_NUM_SHADES - 1, int(last_level * _NUM_SHADES)))}"
    return h.path(
        d="M" + " ".join(f"{format_coordinate(x)},{format_coordinate(y)}" for x, y in line_points)
        if line_points
        else "M0,0",
        class_=f"run {shade_class}",
        data_id=line.id,
        data_name=line.name,
        data_link=line.link or None,
        data_at=",".join("" if level is None else f"{level:.3f}" for level in levels),
    )


def _render_axis(view: ChartView, index: int, axis: ParallelAxis, axis_scale: AxisScale, position: float) -> Html:
    ticks = [float(n) for n in range(len(axis.choices))] if axis.choices else axis_scale.ticks(5)
    tick_labels = (
        [truncate_middle(choice, 12) for choice in axis.choices]
        if axis.choices
        else [axis_scale.label(view, tick, ticks) for tick in ticks]
    )
    x_position = format_percentage(position)
    label_elements = [
        h.text(
            tick_label,
            x=x_position,
            dx=7,
            y=format_coordinate(_TOP_MARGIN + _PLOT_HEIGHT * (1 - axis_scale.at(tick))),
            dy=".32em",
        )
        for tick, tick_label in zip(ticks, tick_labels, strict=True)
    ]
    name_element = h.text(
        h.title(axis.name), truncate_middle(axis.name, 16), x=x_position, y=16, text_anchor="middle", class_="axis-name"
    )
    axis_line = h.line(x1=x_position, x2=x_position, y1=_TOP_MARGIN, y2=_TOP_MARGIN + _PLOT_HEIGHT)
    return h.g(
        axis_line,
        label_elements,
        name_element,
        class_="upright",
        tabindex=0,
        role="group",
        aria_label=axis.name,
        data_axis=index,
        data_x=f"{position:.4f}",
        data_name=axis.name,
    )
