"""All clusters together: the list, every GPU, pools over time, alerts and health, and what is bought."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import EMPTY, Html, escape_text, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.clusters.gpu_map import render_gpu_map
from falaj.console.pages.clusters.sandbox_notices import render_sandbox_notices
from falaj.console.pages.jobs.job_figures import render_span_filter
from falaj.console.plots import TIME_AXIS, LineSeries, line_chart
from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.fleet.alerts import Alert
from falaj.fleet.elastic_capacity import ScalingView
from falaj.fleet.health import NodeHealth
from falaj.fleet.records import Cluster, NodeView
from falaj.fleet.telemetry_operations import NodeFigures, PoolLoad

if TYPE_CHECKING:
    from falaj.fleet.usage_trend import UsageForecast

LIVE_SERVICES, REFRESH_INTERVAL_S, RECENT_WINDOW = ("clusters", "jobs"), 20.0, "15m"
TIME_SPANS = ("24h", "7d", "28d", "90d")
MAX_ROWS, FORECAST_HOURS = 100, 72


def render_clusters_page(view: PageView) -> Page:
    """The page, one tab at a time."""
    t = view.t
    renderers = {
        "overview": _render_overview,
        "pools": _render_pools,
        "health": _render_health,
        "scaling": _render_scaling,
    }
    current_tab = view.query("tab") if view.query("tab") in renderers else "overview"
    tab_bar = components.tabs(view, [(name, t.of("clusters.tab", name)) for name in renderers])
    body = join_html(tab_bar, view.part(lambda: renderers[current_tab](view)))
    return Page(t("console.room.clusters"), body, live=LIVE_SERVICES, every_s=REFRESH_INTERVAL_S, scripts=("plots.js",))


def _render_overview(view: PageView) -> Html:
    client, t = view.here, view.t
    clusters: tuple[Cluster, ...] = client.clusters.list()
    nodes: tuple[NodeView, ...] = client.clusters.nodes()
    node_figures: tuple[NodeFigures, ...] = client.clusters.figures(RECENT_WINDOW)
    alerts: tuple[Alert, ...] = client.clusters.alerts()
    gpus, gpus_used = sum(node.gpus for node in nodes), sum(float(node.used.get("gpu", 0)) for node in nodes)
    tiles = h.div(
        components.stat_tile(
            t("clusters.nodes"),
            view.number(len(nodes)),
            t("clusters.open_nodes", n=sum(node.state == "open" for node in nodes)),
        ),
        components.stat_tile(
            t("clusters.gpus"), view.number(gpus), t("clusters.held", n=_drop_zero_fraction(gpus_used))
        ),
        components.stat_tile(
            t("clusters.jobs"),
            view.number(sum(node.jobs for node in nodes)),
            link=build_url("jobs", {"state": "running"}),
        ),
        components.stat_tile(
            t("clusters.alerts"),
            view.number(len(alerts)),
            link=view.link(tab="health"),
            state="warn" if alerts else "good",
        ),
        class_="stats",
    )
    gpu_map = render_gpu_map(view, nodes, node_figures)
    return join_html(
        render_sandbox_notices(view, clusters),
        tiles,
        _render_cluster_table(view, clusters, nodes),
        gpu_map,
        _render_add_button(view),
    )


def _drop_zero_fraction(value: float) -> float:
    return int(value) if value == int(value) else value


def _render_cluster_table(view: PageView, clusters: Sequence[Cluster], nodes: Sequence[NodeView]) -> Html:
    t = view.t
    columns = (
        t("clusters.cluster"),
        t("console.state"),
        t("console.kind"),
        t("console.zone"),
        ColumnHeader(t("clusters.nodes"), "n"),
        ColumnHeader(t("clusters.gpus"), "n"),
        ColumnHeader(t("clusters.jobs"), "n"),
    )
    rows = []
    for cluster in clusters:
        cluster_nodes = [node for node in nodes if node.node.partition("/")[0] == cluster.name]
        num_ready = sum(node.state == "open" for node in cluster_nodes)
        name = h.a(h.bdi(cluster.name), href=build_url(f"clusters/{cluster.name}"), class_="ref")
        rows.append(
            TableRow(
                (
                    name,
                    components.badge(view, cluster.state),
                    h.bdi(cluster.address.partition(":")[0]),
                    components.tag(cluster.zone),
                    h.bdi(f"{num_ready}/{len(cluster_nodes)}", dir="ltr"),
                    view.number(sum(node.gpus for node in cluster_nodes)),
                    view.number(sum(node.jobs for node in cluster_nodes)),
                ),
                id=f"cluster-{cluster.name}",
            )
        )
    return components.table(view, columns, rows, t("console.room.clusters"))


def _render_add_button(view: PageView) -> Html:
    t = view.t
    if view.actor.tenant != SYSTEM_TENANT:
        return components.notice("plain", t("jobs.house_only"))
    fields = (
        FormField("name", t("console.name"), required=True),
        FormField("address", t("clusters.address"), required=True, hint="slurm:  kubernetes:  ray:https://head:8265"),
        FormField("zone", t("console.zone")),
        FormField("more", t("clusters.more"), "textarea", hint="tenants=bank"),
    )
    return h.div(
        components.action_button(view, "clusters", "add", {}, t("clusters.add"), fields, primary=True), class_="actions"
    )


def _render_pools(view: PageView) -> Html:
    since = view.query("since") if view.query("since") in TIME_SPANS else "7d"
    pools: tuple[PoolLoad, ...] = view.here.clusters.pools(since)
    filter_bar = render_span_filter(view, since, TIME_SPANS)
    if not pools:
        return join_html(
            filter_bar, components.empty_state(view, view.t("clusters.no_pools"), view.t("clusters.no_pools_hint"))
        )
    return join_html(filter_bar, components.card_grid(*(_render_pool(view, pool) for pool in pools)))


def _render_pool(view: PageView, pool: PoolLoad) -> Html:
    t = view.t
    xs = [pool.since + 3600 * n for n in range(len(pool.hours))]
    series = (
        [
            LineSeries(str(t("clusters.in_use")), xs, pool.hours),
            LineSeries(str(t("clusters.capacity")), [xs[0], xs[-1]], [pool.capacity] * 2),
        ]
        if xs
        else []
    )
    full_note = None
    if pool_forecast := forecast_pool(pool):
        series.append(
            LineSeries(
                str(t("clusters.expected")), [xs[-1] + 3600 * n for n in range(FORECAST_HOURS)], pool_forecast.middle
            )
        )
        hour = pool_forecast.full(pool.capacity)[0]
        full_note = h.p(t("clusters.full_at", when=view.when(xs[-1] + 3600 * hour))) if hour >= 0 else None
    facts_by_name = (
        (t("clusters.capacity"), pool.capacity),
        (t("clusters.in_use"), pool.held),
        (t("clusters.waited_for"), pool.waiting),
        (t("clusters.largest"), pool.largest),
    )
    facts = h.p(
        [h.span(name, " ", h.strong(view.number(value)), class_="nowrap") for name, value in facts_by_name],
        class_="row soft",
    )
    title = pool.pool.removeprefix("gpu:") if pool.pool != "cpu" else str(t("queues.resource.cpu"))
    chart = line_chart(view, series, title=t("clusters.in_use"), x=TIME_AXIS, height=200)
    return h.section(
        h.h2(h.bdi(title)), chart, full_note, facts, class_="card", id=components.to_element_id(f"pool-{pool.pool}")
    )


def forecast_pool(pool: PoolLoad) -> "UsageForecast | None":
    """Where its use goes, if two days of it are known; the hour that is not over says nothing yet."""
    import numpy as np  # arrays: for those who look at pools, and not for every page

    from falaj.fleet.usage_trend import forecast_usage

    return forecast_usage(
        np.array([np.nan if value is None else value for value in pool.hours[:-1]], np.float64), FORECAST_HOURS
    )


def _render_health(view: PageView) -> Html:
    t = view.t
    shows_all = view.query("every") == "yes"
    alerts: tuple[Alert, ...] = view.here.clusters.alerts(every=shows_all)
    nodes: tuple[NodeHealth, ...] = view.here.clusters.health(every=True)
    toggle_link = h.p(
        h.a(
            t("clusters.only_lasting") if shows_all else t("clusters.also_over"),
            href=view.link(every="" if shows_all else "yes"),
        )
    )
    alert_list = render_alert_table(view, alerts) if alerts else components.empty_state(view, t("clusters.no_alerts"))
    return join_html(
        components.card(t("clusters.alerts"), toggle_link, alert_list),
        components.card(t("clusters.health"), render_health_table(view, nodes)),
    )


def render_alert_table(view: PageView, alerts: Sequence[Alert]) -> Html:
    """What looks wrong, and what to do."""
    t = view.t
    columns = (
        t("clusters.what"),
        t("clusters.node"),
        t("console.job"),
        t("console.since"),
        t("console.until"),
        t("clusters.advice"),
    )
    rows = [
        (
            join_html(h.strong(t.of("clusters.alert", alert.kind)), h.br(), h.span(alert.text, dir="auto")),
            render_node_link(alert.node),
            _render_job_link(view, alert.job),
            view.ago(alert.since),
            view.ago(alert.until) if alert.until else t("clusters.lasts"),
            h.span(alert.advice, dir="auto"),
        )
        for alert in alerts[:MAX_ROWS]
    ]
    return components.table(view, columns, rows, t("clusters.alerts"))


def render_health_table(view: PageView, nodes: Sequence[NodeHealth]) -> Html:
    """How well nodes look; those that look ill first."""
    t = view.t
    columns = (
        t("clusters.node"),
        t("console.state"),
        ColumnHeader(t("clusters.score"), "n"),
        t("clusters.why"),
        t("clusters.advice"),
    )
    rows = [
        (
            render_node_link(node_health.node),
            _render_verdict_badge(view, node_health.verdict),
            view.number(node_health.score),
            join_html(*(h.div(reason, dir="auto") for reason in node_health.why)),
            h.span(node_health.advice, dir="auto"),
        )
        for node_health in sorted(nodes, key=lambda node_health: node_health.score)[:MAX_ROWS]
    ]
    return components.table(view, columns, rows, t("clusters.health"))


def render_node_link(name: str) -> Html:
    """The page of a node."""
    return h.a(h.bdi(name), href=build_url(f"clusters/{name}"), class_="ref") if "/" in name else h.bdi(name)


def _render_verdict_badge(view: PageView, verdict: str) -> Html:
    tone = {"well": "good", "watch": "warn", "ill": "bad"}.get(verdict, "")
    return h.span(view.t.of("clusters.verdict", verdict), class_=f"badge {tone}".strip())


def _render_job_link(view: PageView, job: str) -> Html:
    try:
        return components.ref_link(view, Ref.parse(job), short=True) if job.startswith("job:") else h.bdi(job)
    except FalajError:
        return escape_text(job)


def _render_scaling(view: PageView) -> Html:
    t = view.t
    scaling_views: tuple[ScalingView, ...] = view.here.clusters.scaling()
    if not scaling_views:
        return components.empty_state(
            view, t("clusters.no_scaling"), t("clusters.no_scaling_hint"), "falaj clusters scaling"
        )
    columns = (
        t("console.kind"),
        ColumnHeader(t("clusters.nodes"), "n"),
        ColumnHeader(t("clusters.wanted"), "n"),
        ColumnHeader(t("clusters.most"), "n"),
        ColumnHeader(t("clusters.price"), "n"),
        ColumnHeader(t("clusters.spent"), "n"),
        ColumnHeader(t("clusters.saved"), "n"),
        t("clusters.why"),
    )
    rows = [
        TableRow(
            (
                h.bdi(scaling_view.kind),
                view.number(scaling_view.nodes),
                view.number(scaling_view.wanted),
                view.number(scaling_view.most),
                view.number(scaling_view.price),
                view.number(scaling_view.spent),
                view.number(scaling_view.saved),
                h.span(scaling_view.why, dir="auto"),
            ),
            id=f"kind-{scaling_view.kind}",
        )
        for scaling_view in scaling_views
    ]
    series = [
        LineSeries(
            scaling_view.kind,
            [step.at for step in scaling_view.history],
            [float(step.wanted) for step in scaling_view.history],
        )
        for scaling_view in scaling_views
        if scaling_view.history
    ]
    chart = (
        h.section(line_chart(view, series, title=t("clusters.wanted"), x=TIME_AXIS), class_="card") if series else EMPTY
    )
    return join_html(_render_tune_button(view), components.table(view, columns, rows, t("clusters.tab.scaling")), chart)


def _render_tune_button(view: PageView) -> Html:
    t = view.t
    if view.actor.tenant != SYSTEM_TENANT:
        return EMPTY
    fields = (
        FormField("hourly", t("clusters.hourly"), "number"),
        FormField("wait", t("clusters.wait"), hint="2m"),
        FormField("idle", t("clusters.idle"), hint="10m"),
    )
    return h.div(components.action_button(view, "clusters", "tune", {}, t("clusters.tune"), fields), class_="actions")
