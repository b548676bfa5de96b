"""How an endpoint is asked: requests, failures and times of every arm, over time and as histograms."""

from collections.abc import Callable, Sequence

from falaj.console import components
from falaj.console.formatting import NO_VALUE
from falaj.console.markup import Html, h, join_html
from falaj.console.page_view import PageView
from falaj.console.plots import TIME_AXIS, LineSeries, histogram, line_chart
from falaj.serve.records import EndpointView
from falaj.serve.request_counts import EDGE_ARM
from falaj.serve.traffic_operations import LatencyHistogram, TrafficInterval, TrafficView

SPAN_SECONDS = {"hour": 3600.0, "six": 6 * 3600.0, "day": 86400.0, "week": 7 * 86400.0}
_NUM_BEATS = 96


def render_figures(view: PageView, endpoint_view: EndpointView) -> Html:
    """The last hour in four numbers."""
    t = view.t
    traffic_view: TrafficView = view.here.serve.traffic(endpoint_view.ref)
    num_requests, num_errors = (
        sum(beat.requests for beat in traffic_view.beats),
        sum(beat.errors for beat in traffic_view.beats),
    )
    worst_p95_ms = max(
        (beat.p95_ms for beat in traffic_view.beats if beat.requests and beat.arm != EDGE_ARM), default=0.0
    )
    num_ready = sum(replica.state == "ready" for replica in endpoint_view.replicas)
    traffic_url = view.link(tab="traffic")
    tiles = (
        components.stat_tile(t("serve.asked"), view.number(num_requests), t("serve.last_hour"), traffic_url),
        components.stat_tile(
            t("serve.failed"),
            view.percent(num_errors / num_requests) if num_requests else NO_VALUE,
            t("serve.last_hour"),
            traffic_url,
            "bad" if num_requests and num_errors / num_requests > 0.02 else "good" if num_requests else "",
        ),
        components.stat_tile(
            t("serve.p95_worst"),
            view.duration(worst_p95_ms / 1000) if worst_p95_ms else NO_VALUE,
            t("serve.last_hour"),
            traffic_url,
        ),
        components.stat_tile(
            t("serve.replicas"),
            view.number(num_ready),
            t("serve.of_n", n=len(endpoint_view.replicas)),
            "",
            "good" if num_ready else "warn",
        ),
    )
    return h.div(tiles, class_="stats", id="figures")


def render_traffic(view: PageView, endpoint_view: EndpointView) -> Html:
    """Curves and histograms of a chosen time."""
    t = view.t
    span_name = view.query("span") if view.query("span") in SPAN_SECONDS else "hour"
    traffic_view: TrafficView = view.here.serve.traffic(
        endpoint_view.ref, since_s=SPAN_SECONDS[span_name], beats=_NUM_BEATS
    )
    span_labels = [(name, t.of("serve.span", name)) for name in SPAN_SECONDS]
    span_tabs = components.tabs(view, span_labels, "span")
    if not traffic_view.beats:
        return join_html(span_tabs, components.empty_state(view, t("serve.nobody"), t("serve.nobody_hint")))
    value_by_title: tuple[tuple[str, Callable[[TrafficInterval], float]], ...] = (
        (t("serve.per_s"), lambda beat: beat.requests / traffic_view.step_s),
        (t("serve.failed_percent"), lambda beat: 100 * beat.errors / beat.requests if beat.requests else 0.0),
        (t("serve.p95_ms"), lambda beat: beat.p95_ms),
    )
    curve_charts = [
        h.div(
            line_chart(view, make_series(traffic_view, get_value), title=title, x=TIME_AXIS, height=200), class_="card"
        )
        for title, get_value in value_by_title
    ]
    histograms = [
        h.div(
            histogram(view, spread.edges_ms, spread.counts, title=t("serve.times", arm=_format_arm(spread))),
            class_="card",
        )
        for spread in traffic_view.spreads[:6]
    ]
    return join_html(span_tabs, components.card_grid(*curve_charts), components.card_grid(*histograms))


def make_series(traffic_view: TrafficView, get_value: Callable[[TrafficInterval], float]) -> Sequence[LineSeries]:
    """A curve for each arm and revision."""
    beats_by_arm: dict[tuple[str, int], list[TrafficInterval]] = {}
    for beat in traffic_view.beats:
        beats_by_arm.setdefault((beat.arm, beat.revision), []).append(beat)
    return [
        LineSeries(_format_arm(beats[0]), [beat.at for beat in beats], [get_value(beat) for beat in beats])
        for _, beats in sorted(beats_by_arm.items())
    ]


def _format_arm(arm_counts: TrafficInterval | LatencyHistogram) -> str:
    return f"{arm_counts.arm} · {arm_counts.revision}"
