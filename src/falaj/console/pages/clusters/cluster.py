"""One cluster with its nodes, and one node over time."""

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, address
from falaj.console.pages.clusters.fleet import LIVE, RECENT, SOON_S, alert_table, health_table, node_link
from falaj.console.pages.clusters.gpus import gpu_heat
from falaj.console.pages.jobs.figures import SPANS, drawn, span_filter
from falaj.console.pages.queues.tree import amounts
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.core.context import HOUSE
from falaj.core.errors import NotFound
from falaj.core.ref import Ref
from falaj.fleet.records import Cluster, NodeView

MOST_NODES = 200


def cluster(view: View) -> Page:
    """The page of one cluster."""
    t, here = view.t, view.here
    name = Ref.parse(view.args["ref"]).name if "ref" in view.args else view.args["name"]
    one: Cluster = here.clusters.show(name)
    nodes: tuple[NodeView, ...] = here.clusters.nodes(cluster=one.name)
    heat = view.part(lambda: gpu_heat(view, nodes, here.clusters.figures(RECENT))) if nodes else EMPTY
    head = join(h.p(parts.badge(view, one.state), " ", parts.tag(one.zone)), _actions(view, one))
    listed = _nodes(view, nodes) if nodes else parts.empty(view, t("clusters.no_nodes"), t("clusters.no_nodes_hint"))
    body = join(head, heat, parts.card(t("clusters.nodes"), listed, id="nodes"), _facts(view, one))
    return Page(h.bdi(one.name), body, live=LIVE, every_s=SOON_S, scripts=("plots.js",))


def _facts(view: View, one: Cluster) -> Html:
    t = view.t
    tenants = join(*(parts.tag(tenant) for tenant in one.tenants)) or t("clusters.everybody")
    return parts.card(t("console.details"), parts.facts({
        t("clusters.address"): h.code(one.address, dir="ltr"), t("clusters.tenants"): tenants,
        t("clusters.folder"): h.code(one.folder, dir="ltr") if one.folder else "",
        t("clusters.drained"): join(*(parts.tag(node) for node in one.drained)),
        t("clusters.options"): join(*(parts.tag(f"{key}={value}") for key, value in one.options.items())),
    }), id="facts")  # fmt: skip


def _actions(view: View, one: Cluster) -> Html:
    t = view.t
    if view.actor.tenant != HOUSE:
        return parts.notice("plain", t("jobs.house_only"))
    other = "closed" if one.state == "open" else "open"
    sure = t("clusters.close_sure", name=one.name) if other == "closed" else ""
    label = t("clusters.close") if other == "closed" else t("clusters.reopen")
    more = Field("more", t("clusters.more"), "textarea", f"tenants={','.join(one.tenants)}", required=True)
    return h.div(
        parts.action(view, "clusters", "check", {"name": one.name}, t("clusters.check"), show=True),
        parts.action(view, "clusters", "change", {"name": one.name, "more": {"state": other}}, label, confirm=sure,
                     danger=other == "closed", id="state"),
        parts.action(view, "clusters", "change", {"name": one.name}, t("clusters.change"), (more,)),
        parts.action(view, "clusters", "remove", {"name": one.name}, t("clusters.remove"), danger=True,
                     confirm=t("clusters.remove_sure", name=one.name), back=address("clusters")),
        class_="actions",
    )  # fmt: skip


def _nodes(view: View, nodes: tuple[NodeView, ...]) -> Html:
    t, mine = view.t, view.actor.tenant == HOUSE
    columns: list[Column | str] = [t("clusters.node"), t("console.state"), Column(t("queues.resource.cpu"), "n"),
               Column(t("clusters.ram"), "n"), Column(t("clusters.gpus"), "n"), t("console.model"),
               t("queues.used"), Column(t("clusters.jobs"), "n")]  # fmt: skip
    rows = []
    for one in nodes[:MOST_NODES]:
        cells = [node_link(one.node), parts.badge(view, one.state), h.bdi(one.cpu), h.bdi(one.memory, dir="ltr"),
                 view.number(one.gpus), h.bdi(one.model), amounts(one.used), view.number(one.jobs)]  # fmt: skip
        rows.append(Row([*cells, _drain(view, one)] if mine else cells, id=f"node-{one.node}"))
    more = h.p(t("clusters.more_nodes", n=len(nodes) - MOST_NODES)) if len(nodes) > MOST_NODES else EMPTY
    return join(
        parts.table(view, [*columns, t("console.actions")] if mine else columns, rows, t("clusters.nodes")), more
    )


def _drain(view: View, one: NodeView) -> Html:
    verb, label = ("open", view.t("clusters.reopen")) if one.state == "drained" else ("drain", view.t("clusters.drain"))
    return parts.action(view, "clusters", verb, {"node": one.node}, label)


def node(view: View) -> Page:
    """One node: what it has, how well it looks, and what it did."""
    t, here = view.t, view.here
    name = f"{view.args['name']}/{view.args['node']}"
    one = next((node for node in here.clusters.nodes(cluster=view.args["name"]) if node.node == name), None)
    if one is None:
        raise NotFound(f"there is no node {name[:80]!r}", "the page of its cluster lists them")
    since = view.query("since") if view.query("since") in SPANS else "6h"
    alerts = [alert for alert in here.clusters.alerts() if alert.node == name]
    health = [health for health in here.clusters.health(every=True) if health.node == name]
    found = here.clusters.history(name, since)
    facts = parts.facts({
        t("console.state"): parts.badge(view, one.state), t("queues.resource.cpu"): h.bdi(one.cpu),
        t("clusters.ram"): h.bdi(one.memory, dir="ltr"), t("clusters.gpus"): view.number(one.gpus),
        t("console.model"): h.bdi(one.model), t("queues.used"): amounts(one.used),
        t("clusters.jobs"): view.number(one.jobs),
        t("console.zone"): parts.tag(one.zone), t("clusters.seen_at"): view.when(one.seen_at),
        t("console.label"): join(*(parts.tag(f"{key}={value}") for key, value in one.labels.items())),
    })  # fmt: skip
    act = h.div(_drain(view, one), class_="actions") if view.actor.tenant == HOUSE else EMPTY
    plots = drawn(view, found, since) if found else parts.empty(view, t("jobs.no_figures"), t("jobs.figures_hint"))
    body = join(act, parts.card(t("console.details"), facts, id="facts"),
                parts.card(t("clusters.alerts"), alert_table(view, alerts)) if alerts else EMPTY,
                parts.card(t("clusters.health"), health_table(view, health)) if health else EMPTY,
                span_filter(view, since), plots)  # fmt: skip
    crumbs = ((h.bdi(view.args["name"]), address(f"clusters/{view.args['name']}")),)
    return Page(h.bdi(view.args["node"]), body, crumbs, live=LIVE, every_s=SOON_S, scripts=("plots.js",))
