"""How an endpoint is asked: requests, failures and times of every arm, over time and as histograms."""

from collections.abc import Callable, Sequence

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.plots import TIME, Series, histogram, line
from falaj.console.view import View
from falaj.console.writing import NOTHING
from falaj.serve.counts import EDGE
from falaj.serve.loads import Beat, Spread, TrafficView
from falaj.serve.records import EndpointView

SPANS = {"hour": 3600.0, "six": 6 * 3600.0, "day": 86400.0, "week": 7 * 86400.0}
_SOME = 96


def figures(view: View, one: EndpointView) -> Html:
    """The last hour in four numbers."""
    t = view.t
    told: TrafficView = view.here.serve.traffic(one.ref)
    asked, failed = sum(beat.requests for beat in told.beats), sum(beat.errors for beat in told.beats)
    slow = max((beat.p95_ms for beat in told.beats if beat.requests and beat.arm != EDGE), default=0.0)
    ready = sum(kept.state == "ready" for kept in one.replicas)
    link = view.link(tab="traffic")
    stats = (
        parts.stat(t("serve.asked"), view.number(asked), t("serve.last_hour"), link),
        parts.stat(t("serve.failed"), view.percent(failed / asked) if asked else NOTHING, t("serve.last_hour"), link,
                   "bad" if asked and failed / asked > 0.02 else "good" if asked else ""),
        parts.stat(t("serve.p95_worst"), view.duration(slow / 1000) if slow else NOTHING, t("serve.last_hour"), link),
        parts.stat(t("serve.replicas"), view.number(ready), t("serve.of_n", n=len(one.replicas)), "",
                   "good" if ready else "warn"),
    )  # fmt: skip
    return h.div(stats, class_="stats", id="figures")


def traffic(view: View, one: EndpointView) -> Html:
    """Curves and histograms of a chosen time."""
    t = view.t
    span = view.query("span") if view.query("span") in SPANS else "hour"
    told: TrafficView = view.here.serve.traffic(one.ref, since_s=SPANS[span], beats=_SOME)
    names = [(name, t.of("serve.span", name)) for name in SPANS]
    chosen = parts.tabs(view, names, "span")
    if not told.beats:
        return join(chosen, parts.empty(view, t("serve.nobody"), t("serve.nobody_hint")))
    curves: tuple[tuple[str, Callable[[Beat], float]], ...] = (
        (t("serve.per_s"), lambda beat: beat.requests / told.step_s),
        (t("serve.failed_percent"), lambda beat: 100 * beat.errors / beat.requests if beat.requests else 0.0),
        (t("serve.p95_ms"), lambda beat: beat.p95_ms),
    )
    drawn = [
        h.div(line(view, series(told, of), title=title, x=TIME, height=200), class_="card") for title, of in curves
    ]
    bars = [
        h.div(histogram(view, kept.edges_ms, kept.counts, title=t("serve.times", arm=_arm(kept))), class_="card")
        for kept in told.spreads[:6]
    ]
    return join(chosen, parts.cards(*drawn), parts.cards(*bars))


def series(told: TrafficView, of: Callable[[Beat], float]) -> Sequence[Series]:
    """A curve for each arm and revision."""
    arms: dict[tuple[str, int], list[Beat]] = {}
    for beat in told.beats:
        arms.setdefault((beat.arm, beat.revision), []).append(beat)
    return [
        Series(_arm(some[0]), [beat.at for beat in some], [of(beat) for beat in some])
        for _, some in sorted(arms.items())
    ]


def _arm(one: Beat | Spread) -> str:
    return f"{one.arm} · {one.revision}"
