"""Curves of runs: asked for by range, drawn with what was folded as a band, smoothed where a reader wants it."""

from collections.abc import Sequence

from falaj.console import parts
from falaj.console.markup import Html, h
from falaj.console.parts import Field
from falaj.console.plots import TIME, Series
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.track.records import Curve

BINS = 300
_EACH = 3
"""So many points at most stand for a bin of a down-sampled curve: its lowest, its highest and its last."""


def asked(view: View, runs: Sequence[Ref], metrics: Sequence[str], bins: int = BINS) -> list[Series]:
    """Curves as the address wants them: of each run every metric, named by the metric."""
    by = "time" if view.query("x") == "time" else "step"
    ends = [_number(view.query(one)) for one in ("from", "to")]
    span = tuple(one for one in ends if one is not None)
    found = view.here.track.curves(tuple(runs), tuple(metrics), bins=bins, span=span if len(span) == 2 else (), by=by)
    return [smoothed(series(one.curve, one.curve.key, by), smooth(view)) for one in found]


def series(curve: Curve, name: str, by: str) -> Series:
    """The points; where each stands for many, with the band between the lowest and the highest."""
    points = curve.points
    xs = [one.at if by == "time" else float(one.step) for one in points]
    values = [None if one.odd else one.value for one in points]
    if curve.total is None or curve.total <= len(points):
        return Series(name, xs, values)
    groups = [values[n : n + _EACH] for n in range(0, len(points), _EACH)]
    known = [[one for one in group if one is not None] for group in groups]
    return Series(
        name, xs[_EACH - 1 :: _EACH] + xs[len(xs) - len(xs) % _EACH :][-1:], [group[-1] for group in groups],
        [min(group, default=None) for group in known], [max(group, default=None) for group in known],
    )  # fmt: skip


def smoothed(one: Series, share: float) -> Series:
    """Each value with so much of what went before it; the beginning is not drawn towards nothing."""
    if not share:
        return one
    level = weight = 0.0
    ys: list[float | None] = []
    for value in one.ys:
        if value is None:
            ys.append(None)
            continue
        level, weight = share * level + (1 - share) * value, share * weight + (1 - share)
        ys.append(level / weight)
    return Series(one.name, one.xs, ys, one.low or one.ys, one.high or one.ys)


def smooth(view: View) -> float:
    """How much, from 0 to almost 1."""
    return min(0.99, max(0.0, _number(view.query("smooth")) or 0.0))


def axis(view: View) -> str:
    """The name of the axis that points run along."""
    return TIME if view.query("x") == "time" else str(view.t("track.step"))


def choices(view: View, metrics: Sequence[str], chosen: str) -> Html:
    """What is drawn, and how."""
    t = view.t
    return parts.filters(view, (
        Field("metric", t("track.metric"), "select", chosen, [(one, one) for one in metrics]),
        Field("x", t("track.along"), "select", options=(("", t("track.step")), ("time", t("track.time")))),
        Field("smooth", t("track.smooth"), "select",
              options=[("", t("console.none")), *((one, one) for one in ("0.3", "0.6", "0.9", "0.97"))]),
        Field("log", t("track.scale"), "select", options=(("", t("track.linear")), ("1", t("track.logarithmic")))),
    ))  # fmt: skip


def whole(view: View) -> Html | None:
    """The way back from a range."""
    if not (view.query("from") and view.query("to")):
        return None
    return h.p(h.a(view.t("track.whole_curve"), href=view.link(**{"from": "", "to": ""})))


def _number(said: str) -> float | None:
    try:
        found = float(said)
    except ValueError:
        return None
    return found if abs(found) < 1e300 else None
