"""Curves of runs: asked for by range, drawn with what was folded as a band, smoothed where a reader wants it."""

from collections.abc import Sequence

from falaj.console import components
from falaj.console.components import FormField
from falaj.console.markup import Html, h
from falaj.console.page_view import PageView
from falaj.console.plots import TIME_AXIS, LineSeries
from falaj.core.ref import Ref
from falaj.track.records import Curve

NUM_BINS = 300
_POINTS_PER_BIN = 3
"""So many points at most stand for a bin of a down-sampled curve: its lowest, its highest and its last."""


def load_series(view: PageView, runs: Sequence[Ref], metrics: Sequence[str], bins: int = NUM_BINS) -> list[LineSeries]:
    """Curves as the address wants them: of each run every metric, named by the metric."""
    axis_name = "time" if view.query("x") == "time" else "step"
    range_ends = [_parse_number(view.query(item)) for item in ("from", "to")]
    step_range = tuple(item for item in range_ends if item is not None)
    run_curves = view.here.track.curves(
        tuple(runs), tuple(metrics), bins=bins, span=step_range if len(step_range) == 2 else (), by=axis_name
    )
    return [smooth_series(to_series(item.curve, item.curve.key, axis_name), get_smoothing(view)) for item in run_curves]


def to_series(curve: Curve, name: str, axis_name: str) -> LineSeries:
    """The points; where each stands for many, with the band between the lowest and the highest."""
    points = curve.points
    x_values = [item.at if axis_name == "time" else float(item.step) for item in points]
    values = [None if item.odd else item.value for item in points]
    if curve.total is None or curve.total <= len(points):
        return LineSeries(name, x_values, values)
    groups = [values[n : n + _POINTS_PER_BIN] for n in range(0, len(points), _POINTS_PER_BIN)]
    finite_groups = [[item for item in group if item is not None] for group in groups]
    return LineSeries(
        name,
        x_values[_POINTS_PER_BIN - 1 :: _POINTS_PER_BIN]
        + x_values[len(x_values) - len(x_values) % _POINTS_PER_BIN :][-1:],
        [group[-1] for group in groups],
        [min(group, default=None) for group in finite_groups],
        [max(group, default=None) for group in finite_groups],
    )


def smooth_series(raw_series: LineSeries, share: float) -> LineSeries:
    """Each value with so much of what went before it; the beginning is not drawn towards nothing."""
    if not share:
        return raw_series
    level = weight = 0.0
    smoothed_values: list[float | None] = []
    for value in raw_series.ys:
        if value is None:
            smoothed_values.append(None)
            continue
        level, weight = share * level + (1 - share) * value, share * weight + (1 - share)
        smoothed_values.append(level / weight)
    return LineSeries(
        raw_series.name,
        raw_series.xs,
        smoothed_values,
        raw_series.low or raw_series.ys,
        raw_series.high or raw_series.ys,
    )


def get_smoothing(view: PageView) -> float:
    """How much, from 0 to almost 1."""
    return min(0.99, max(0.0, _parse_number(view.query("smooth")) or 0.0))


def get_axis_title(view: PageView) -> str:
    """The name of the axis that points run along."""
    return TIME_AXIS if view.query("x") == "time" else str(view.t("track.step"))


def render_choices(view: PageView, metrics: Sequence[str], chosen_metric: str) -> Html:
    """What is drawn, and how."""
    t = view.t
    return components.filter_form(
        view,
        (
            FormField("metric", t("track.metric"), "select", chosen_metric, [(option, option) for option in metrics]),
            FormField("x", t("track.along"), "select", options=(("", t("track.step")), ("time", t("track.time")))),
            FormField(
                "smooth",
                t("track.smooth"),
                "select",
                options=[("", t("console.none")), *((option, option) for option in ("0.3", "0.6", "0.9", "0.97"))],
            ),
            FormField(
                "log", t("track.scale"), "select", options=(("", t("track.linear")), ("1", t("track.logarithmic")))
            ),
        ),
    )


def render_reset_link(view: PageView) -> Html | None:
    """The way back from a range."""
    if not (view.query("from") and view.query("to")):
        return None
    return h.p(h.a(view.t("track.whole_curve"), href=view.link(**{"from": "", "to": ""})))


def _parse_number(number_text: str) -> float | None:
    try:
        parsed = float(number_text)
    except ValueError:
        return None
    return parsed if abs(parsed) < 1e300 else None
