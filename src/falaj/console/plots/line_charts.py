"""Curves: one or more series over steps or time, with bands where points were folded; `spark` is a small one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from falaj.console.formatting import NO_VALUE
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.plots.axis_scales import (
    TIME_AXIS,
    AxisScale,
    ChartView,
    format_period,
    format_short,
    make_scale,
    to_drawable_number,
)
from falaj.console.plots.chart_frame import (
    chart_figure,
    chart_legend,
    empty_chart,
    format_percentage,
    get_series_class,
    horizontal_grid,
    to_plain_text,
)

PLOT_WIDTH = 1000
# Points of a curve, of all curves, and curves: what a browser gets at most.
MAX_POINTS_PER_CURVE, MAX_POINTS, MAX_CURVES = 2000, 16_000, 64
_CurvePoint = tuple[float, float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class LineSeries:
    """A curve; `low` and `high` are the smallest and largest value where each point stands for many."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


def _render_plane(curve_elements: Sequence[Html], plot_height: int) -> Html:
    """Stretch the curves over the width of the plot."""
    return h.svg(
        curve_elements,
        class_="plane",
        y=6,
        width="100%",
        height=plot_height,
        viewBox=f"0 0 {PLOT_WIDTH} {plot_height}",
        preserveAspectRatio="none",
    )


def line_chart(
    view: ChartView,
    series: Sequence[LineSeries],
    *,
    title: str,
    x: str = "",
    y: str = "",
    log_y: bool = False,
    height: int = 260,
) -> Html:
    """Curves over a common axis. `x=TIME` says that xs are seconds since 1970. Gaps are values that are no numbers.
    Inside an element with `data-refetch` a zoom asks the server for the range (`from`, `to` in the address)."""
    series_count, series = len(series), series[:MAX_CURVES]
    points_by_series = [
        _prepare_points(curve, log_y, min(MAX_POINTS_PER_CURVE, MAX_POINTS // len(series))) for curve in series
    ]
    if not any(point[1] is not None for points in points_by_series for point in points):
        return empty_chart(view, "line", title)
    x_scale = make_scale((p[0] for points in points_by_series for p in points), time=x == TIME_AXIS)
    y_scale = make_scale(
        (value for points in points_by_series for p in points for value in p[1:]), log=log_y, rounded=True
    )
    plot_height = height - (42 if x and x != TIME_AXIS else 26)
    curve_elements = [
        _render_curve(i, curve, points_by_series, x_scale, y_scale, plot_height) for i, curve in enumerate(series)
    ]
    ticks = y_scale.ticks()
    tick_ys = [6 + plot_height - plot_height * y_scale.at(tick) for tick in ticks]
    grid, y_axis = horizontal_grid([y_scale.label(view, tick, ticks) for tick in ticks], tick_ys, height)
    plane = _render_plane(curve_elements, plot_height)
    plot_area = h.svg(
        grid,
        h.g(_render_x_ticks(view, x_scale, plot_height), class_="ticks"),
        plane,
        x not in ("", TIME_AXIS) and h.text(x, x="50%", y=height - 4, text_anchor="middle", class_="axis-name"),
        class_="area",
        width="100%",
        height=height,
        role="img",
        tabindex=0,
        aria_label=_describe_chart(view, title, series, points_by_series),
        aria_keyshortcuts="ArrowLeft ArrowRight Home End Escape",
    )
    # Time and numbers run from left to right in Arabic, too: curves are read as in every other tool.
    scale_attributes = _make_scale_attributes(x_scale, y_scale, plot_height)
    plot_box = h.div(y_axis, plot_area, class_="plot-box", dir="ltr", **scale_attributes)
    is_legend_needed = len(series) > 1 or series[0].name not in ("", title)
    legend_list = chart_legend([curve.name for curve in series]) if is_legend_needed else EMPTY
    notes = (y, format_period(view, x_scale) if x == TIME_AXIS else "")
    note_elements = [h.span(note, class_="plot-unit") for note in notes if note]
    truncation = view.t("plots.more", shown=MAX_CURVES, all=series_count)
    truncation_note = series_count > MAX_CURVES and h.p(truncation, class_="plot-unit")
    return chart_figure(
        "line",
        title,
        plot_box,
        truncation_note,
        h.output(class_="plot-out"),
        legend=join_html(note_elements, legend_list),
    )


def sparkline(view: ChartView, ys: Sequence[float | None], *, title: str) -> Html:
    """A curve as small as a word."""
    points = _fold_points([(float(i), to_drawable_number(value), None, None) for i, value in enumerate(ys)], 200)
    if not any(p[1] is not None for p in points):
        return h.span(NO_VALUE, class_="spark none", title=title)
    x_scale, y_scale = make_scale(p[0] for p in points), make_scale(p[1] for p in points)
    last_value = next(p[1] for p in reversed(points) if p[1] is not None)
    plot_points = [(2 + 96 * x_scale.at(p[0]), None if p[1] is None else 22 - 20 * y_scale.at(p[1])) for p in points]
    path_data, dot_data = _build_path(plot_points)
    return h.svg(
        h.path(d=path_data, class_="stroke") if path_data else None,
        h.path(d=dot_data, class_="lone") if dot_data else None,
        class_="spark s0",
        viewBox="0 0 100 24",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{to_plain_text(title)}: {format_short(view, last_value)}",
    )


def _prepare_points(curve: LineSeries, is_log: bool, max_points: int) -> list[_CurvePoint]:
    ys = _clean_values(curve.ys, is_log)
    has_bands = len(curve.low) == len(curve.high) == len(ys)
    low, high = (_clean_values(values, is_log) if has_bands else [None] * len(ys) for values in (curve.low, curve.high))
    rows = zip(map(to_drawable_number, curve.xs), ys, low, high, strict=False)
    valid_points = [(x, y, low_value, high_value) for x, y, low_value, high_value in rows if x is not None]
    valid_points.sort(key=lambda point: point[0])
    return _fold_points(valid_points, max_points)


def _clean_values(values: Sequence[float | None], is_log: bool) -> list[float | None]:
    real_values = [to_drawable_number(value) for value in values]
    return [value if value is not None and value > 1e-300 else None for value in real_values] if is_log else real_values


def _fold_points(points: list[_CurvePoint], max_points: int) -> list[_CurvePoint]:
    """Several points as one with a band, so that no more than `max_points` are sent."""
    group_size = -(-len(points) // max_points)
    if group_size <= 1:
        return points
    folded: list[_CurvePoint] = []
    for start in range(0, len(points), group_size):
        group = points[start : start + group_size]
        group_values = [value for p in group for value in p[1:] if value is not None]
        ys = [p[1] for p in group if p[1] is not None]
        mean_value = sum(value / len(ys) for value in ys) if ys else None
        folded.append((group[0][0], mean_value, min(group_values, default=None), max(group_values, default=None)))
    return folded


def _render_curve(
    index: int,
    curve: LineSeries,
    points_by_series: Sequence[list[_CurvePoint]],
    x_scale: AxisScale,
    y_scale: AxisScale,
    plot_height: int,
) -> Html:
    points = points_by_series[index]
    xs = [PLOT_WIDTH * x_scale.at(p[0]) for p in points]
    rows = [
        [
            value if value is None else plot_height - plot_height * y_scale.at(value)
            for value in (p[component] for p in points)
        ]
        for component in (1, 2, 3)
    ]
    # Among more curves than there are colours, bands would hide what they surround.
    band_data = _build_band(xs, rows[1], rows[2]) if len(points_by_series) <= 8 else ""
    # Curves of one run have the same steps: they are sent once.
    shares_xs = index > 0 and [p[0] for p in points] == [p[0] for p in points_by_series[0]]
    path_data, dot_data = _build_path(zip(xs, rows[0], strict=True))
    curve_path = h.path(
        d=path_data,
        class_="stroke",
        data_x=None if shares_xs else ",".join([f"{p[0] - x_scale.low:.7g}" for p in points]),
        data_y=",".join(["" if p[1] is None else f"{p[1]:.5g}" for p in points]),
    )
    band_path = h.path(d=band_data, class_="band") if band_data else None
    dot_path = h.path(d=dot_data, class_="lone") if dot_data else None
    return h.g(
        band_path, curve_path, dot_path, class_=get_series_class(index), data_series=index, data_name=curve.name or None
    )


def _build_path(plot_points: Iterable[tuple[float, float | None]]) -> tuple[str, str]:
    """A line through the places that are there, and dots for those that stand alone."""
    runs: list[list[str]] = [[]]
    for x, y in plot_points:
        if y is None:
            runs += [[]] if runs[-1] else []
        else:
            runs[-1].append(f"{x:.1f},{y:.1f}")
    lines = " ".join("M" + " ".join(run) for run in runs if len(run) > 1)
    return _strip_zeros(lines), _strip_zeros(" ".join(f"M{run[0]}h0" for run in runs if len(run) == 1))


def _strip_zeros(path_data: str) -> str:
    """Coordinates without a zero behind the point."""
    return f"{path_data} ".replace(".0,", ",").replace(".0 ", " ").replace(".0h", "h").rstrip()


def _build_band(xs: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]) -> str:
    banded_points = [(x, a, b) for x, a, b in zip(xs, low, high, strict=True) if a is not None and b is not None]
    if len(banded_points) < 2:
        return ""
    upper_edge = " ".join(f"{x:.1f},{b:.1f}" for x, _, b in banded_points)
    lower_edge = " ".join(f"{x:.1f},{a:.1f}" for x, a, _ in reversed(banded_points))
    return _strip_zeros(f"M{upper_edge} {lower_edge}") + "Z"


def _render_x_ticks(view: ChartView, x_scale: AxisScale, plot_height: int) -> list[Html]:
    ticks = x_scale.ticks(6)
    return [
        h.text(
            x_scale.label(view, tick, ticks),
            x=format_percentage(x_scale.at(tick)),
            y=plot_height + 22,
            text_anchor="middle",
            class_="odd" if n % 2 else None,
        )
        for n, tick in enumerate(ticks)
    ]


def _make_scale_attributes(x_scale: AxisScale, y_scale: AxisScale, plot_height: int) -> dict[str, object]:
    """What the browser needs to put new marks where a zoom wants them."""
    ends = (x_scale.low, x_scale.high, y_scale.low, y_scale.high)
    return {
        "data_scale": " ".join(f"{value!r}" for value in ends),
        "data_time": x_scale.time,
        "data_log": y_scale.log,
        "data_tall": plot_height,
    }


def _describe_chart(
    view: ChartView, title: str, series: Sequence[LineSeries], points_by_series: Sequence[list[_CurvePoint]]
) -> str:
    last_values = [next((p[1] for p in reversed(points) if p[1] is not None), None) for points in points_by_series]
    endings = [
        f"{to_plain_text(curve.name)} {format_short(view, last_value)}"
        for curve, last_value in zip(series, last_values, strict=True)
        if last_value is not None
    ]
    return f"{to_plain_text(title)}: {', '.join(endings[:8])}"
