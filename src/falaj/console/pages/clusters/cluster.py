"""One cluster with its nodes, and one node over time."""

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.clusters.cluster_overview import (
    LIVE_SERVICES,
    RECENT_WINDOW,
    REFRESH_INTERVAL_S,
    render_alert_table,
    render_health_table,
    render_node_link,
)
from falaj.console.pages.clusters.gpu_map import render_gpu_map
from falaj.console.pages.jobs.job_figures import TIME_SPANS, render_charts, render_span_filter
from falaj.console.pages.queues.queue_pages import render_amounts
from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from falaj.fleet.records import Cluster, NodeView

MAX_NODES = 200


def render_cluster_page(view: PageView) -> Page:
    """The page of one cluster."""
    t, client = view.t, view.here
    name = Ref.parse(view.args["ref"]).name if "ref" in view.args else view.args["name"]
    cluster: Cluster = client.clusters.show(name)
    nodes: tuple[NodeView, ...] = client.clusters.nodes(cluster=cluster.name)
    gpu_map = view.part(lambda: render_gpu_map(view, nodes, client.clusters.figures(RECENT_WINDOW))) if nodes else EMPTY
    page_head = join_html(
        h.p(components.badge(view, cluster.state), " ", components.tag(cluster.zone)), _render_actions(view, cluster)
    )
    node_table = (
        _render_nodes(view, nodes)
        if nodes
        else components.empty_state(view, t("clusters.no_nodes"), t("clusters.no_nodes_hint"))
    )
    body = join_html(
        page_head, gpu_map, components.card(t("clusters.nodes"), node_table, id="nodes"), _render_facts(view, cluster)
    )
    return Page(h.bdi(cluster.name), body, live=LIVE_SERVICES, every_s=REFRESH_INTERVAL_S, scripts=("plots.js",))


def _render_facts(view: PageView, cluster: Cluster) -> Html:
    t = view.t
    tenants = join_html(*(components.tag(tenant) for tenant in cluster.tenants)) or t("clusters.everybody")
    return components.card(
        t("console.details"),
        components.fact_list(
            {
                t("clusters.address"): h.code(cluster.address, dir="ltr"),
                t("clusters.tenants"): tenants,
                t("clusters.folder"): h.code(cluster.folder, dir="ltr") if cluster.folder else "",
                t("clusters.drained"): join_html(*(components.tag(node) for node in cluster.drained)),
                t("clusters.options"): join_html(
                    *(components.tag(f"{key}={value}") for key, value in cluster.options.items())
                ),
            }
        ),
        id="facts",
    )


def _render_actions(view: PageView, cluster: Cluster) -> Html:
    t = view.t
    if view.actor.tenant != SYSTEM_TENANT:
        return components.notice("plain", t("jobs.house_only"))
    target_state = "closed" if cluster.state == "open" else "open"
    confirmation = t("clusters.close_sure", name=cluster.name) if target_state == "closed" else ""
    label = t("clusters.close") if target_state == "closed" else t("clusters.reopen")
    settings_field = FormField(
        "more", t("clusters.more"), "textarea", f"tenants={','.join(cluster.tenants)}", required=True
    )
    return h.div(
        components.action_button(view, "clusters", "check", {"name": cluster.name}, t("clusters.check"), show=True),
        components.action_button(
            view,
            "clusters",
            "change",
            {"name": cluster.name, "more": {"state": target_state}},
            label,
            confirm=confirmation,
            danger=target_state == "closed",
            id="state",
        ),
        components.action_button(
            view, "clusters", "change", {"name": cluster.name}, t("clusters.change"), (settings_field,)
        ),
        components.action_button(
            view,
            "clusters",
            "remove",
            {"name": cluster.name},
            t("clusters.remove"),
            danger=True,
            confirm=t("clusters.remove_sure", name=cluster.name),
            back=build_url("clusters"),
        ),
        class_="actions",
    )


def _render_nodes(view: PageView, nodes: tuple[NodeView, ...]) -> Html:
    t, is_operator = view.t, view.actor.tenant == SYSTEM_TENANT
    columns: list[ColumnHeader | str] = [
        t("clusters.node"),
        t("console.state"),
        ColumnHeader(t("queues.resource.cpu"), "n"),
        ColumnHeader(t("clusters.ram"), "n"),
        ColumnHeader(t("clusters.gpus"), "n"),
        t("console.model"),
        t("queues.used"),
        ColumnHeader(t("clusters.jobs"), "n"),
    ]
    rows = []
    for node in nodes[:MAX_NODES]:
        cells = [
            render_node_link(node.node),
            components.badge(view, node.state),
            h.bdi(node.cpu),
            h.bdi(node.memory, dir="ltr"),
            view.number(node.gpus),
            h.bdi(node.model),
            render_amounts(node.used),
            view.number(node.jobs),
        ]
        rows.append(
            TableRow([*cells, _render_drain_button(view, node)] if is_operator else cells, id=f"node-{node.node}")
        )
    truncation_note = h.p(t("clusters.more_nodes", n=len(nodes) - MAX_NODES)) if len(nodes) > MAX_NODES else EMPTY
    return join_html(
        components.table(view, [*columns, t("console.actions")] if is_operator else columns, rows, t("clusters.nodes")),
        truncation_note,
    )


def _render_drain_button(view: PageView, node: NodeView) -> Html:
    operation_name, label = (
        ("open", view.t("clusters.reopen")) if node.state == "drained" else ("drain", view.t("clusters.drain"))
    )
    return components.action_button(view, "clusters", operation_name, {"node": node.node}, label)


def render_node_page(view: PageView) -> Page:
    """One node: what it has, how well it looks, and what it did."""
    t, client = view.t, view.here
    name = f"{view.args['name']}/{view.args['node']}"
    node_view = next((node for node in client.clusters.nodes(cluster=view.args["name"]) if node.node == name), None)
    if node_view is None:
        raise NotFound(f"there is no node {name[:80]!r}", "the page of its cluster lists them")
    since = view.query("since") if view.query("since") in TIME_SPANS else "6h"
    alerts = [alert for alert in client.clusters.alerts() if alert.node == name]
    node_health = [node_health for node_health in client.clusters.health(every=True) if node_health.node == name]
    figures = client.clusters.history(name, since)
    node_facts = components.fact_list(
        {
            t("console.state"): components.badge(view, node_view.state),
            t("queues.resource.cpu"): h.bdi(node_view.cpu),
            t("clusters.ram"): h.bdi(node_view.memory, dir="ltr"),
            t("clusters.gpus"): view.number(node_view.gpus),
            t("console.model"): h.bdi(node_view.model),
            t("queues.used"): render_amounts(node_view.used),
            t("clusters.jobs"): view.number(node_view.jobs),
            t("console.zone"): components.tag(node_view.zone),
            t("clusters.seen_at"): view.when(node_view.seen_at),
            t("console.label"): join_html(
                *(components.tag(f"{key}={value}") for key, value in node_view.labels.items())
            ),
        }
    )
    action_bar = (
        h.div(_render_drain_button(view, node_view), class_="actions") if view.actor.tenant == SYSTEM_TENANT else EMPTY
    )
    charts = (
        render_charts(view, figures, since)
        if figures
        else components.empty_state(view, t("jobs.no_figures"), t("jobs.figures_hint"))
    )
    body = join_html(
        action_bar,
        components.card(t("console.details"), node_facts, id="facts"),
        components.card(t("clusters.alerts"), render_alert_table(view, alerts)) if alerts else EMPTY,
        components.card(t("clusters.health"), render_health_table(view, node_health)) if node_health else EMPTY,
        render_span_filter(view, since),
        charts,
    )
    crumbs = ((h.bdi(view.args["name"]), build_url(f"clusters/{view.args['name']}")),)
    return Page(
        h.bdi(view.args["node"]), body, crumbs, live=LIVE_SERVICES, every_s=REFRESH_INTERVAL_S, scripts=("plots.js",)
    )
