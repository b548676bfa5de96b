"""All clusters together: the list, every GPU, pools over time, alerts and health, and what is bought."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join, text
from falaj.console.page import Page, address
from falaj.console.pages.clusters.gpus import gpu_heat
from falaj.console.pages.clusters.sandbox import sandbox_notices
from falaj.console.pages.jobs.figures import span_filter
from falaj.console.parts import Column, Field, Row
from falaj.console.plots import TIME, Series, line
from falaj.console.view import View
from falaj.core.context import HOUSE
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.fleet.alerts import Alert
from falaj.fleet.elastic import ScalingView
from falaj.fleet.health import NodeHealth
from falaj.fleet.records import Cluster, NodeView
from falaj.fleet.signs import NodeFigures, PoolLoad

if TYPE_CHECKING:
    from falaj.fleet.trend import Forecast

LIVE, SOON_S, RECENT = ("clusters", "jobs"), 20.0, "15m"
SPANS = ("24h", "7d", "28d", "90d")
MOST, AHEAD_H = 100, 72


def clusters(view: View) -> Page:
    """The page, one tab at a time."""
    t = view.t
    makes = {"overview": _overview, "pools": _pools, "health": _health, "scaling": _scaling}
    tab = view.query("tab") if view.query("tab") in makes else "overview"
    tabs = parts.tabs(view, [(name, t.of("clusters.tab", name)) for name in makes])
    body = join(tabs, view.part(lambda: makes[tab](view)))
    return Page(t("console.room.clusters"), body, live=LIVE, every_s=SOON_S, scripts=("plots.js",))


def _overview(view: View) -> Html:
    here, t = view.here, view.t
    found: tuple[Cluster, ...] = here.clusters.list()
    nodes: tuple[NodeView, ...] = here.clusters.nodes()
    seen: tuple[NodeFigures, ...] = here.clusters.figures(RECENT)
    alerts: tuple[Alert, ...] = here.clusters.alerts()
    gpus, busy = sum(node.gpus for node in nodes), sum(float(node.used.get("gpu", 0)) for node in nodes)
    sums = h.div(
        parts.stat(t("clusters.nodes"), view.number(len(nodes)),
                   t("clusters.open_nodes", n=sum(node.state == "open" for node in nodes))),
        parts.stat(t("clusters.gpus"), view.number(gpus), t("clusters.held", n=_plain(busy))),
        parts.stat(t("clusters.jobs"), view.number(sum(node.jobs for node in nodes)),
                   link=address("jobs", {"state": "running"})),
        parts.stat(t("clusters.alerts"), view.number(len(alerts)), link=view.link(tab="health"),
                   state="warn" if alerts else "good"),
        class_="stats",
    )  # fmt: skip
    heat = gpu_heat(view, nodes, seen)
    return join(sandbox_notices(view, found), sums, _list(view, found, nodes), heat, _add(view))


def _plain(value: float) -> float:
    return int(value) if value == int(value) else value


def _list(view: View, found: Sequence[Cluster], nodes: Sequence[NodeView]) -> Html:
    t = view.t
    columns = (t("clusters.cluster"), t("console.state"), t("console.kind"), t("console.zone"),
               Column(t("clusters.nodes"), "n"), Column(t("clusters.gpus"), "n"),
               Column(t("clusters.jobs"), "n"))  # fmt: skip
    rows = []
    for one in found:
        mine = [node for node in nodes if node.node.partition("/")[0] == one.name]
        ready = sum(node.state == "open" for node in mine)
        name = h.a(h.bdi(one.name), href=address(f"clusters/{one.name}"), class_="ref")
        rows.append(Row((name, parts.badge(view, one.state), h.bdi(one.address.partition(":")[0]), parts.tag(one.zone),
                         h.bdi(f"{ready}/{len(mine)}", dir="ltr"), view.number(sum(node.gpus for node in mine)),
                         view.number(sum(node.jobs for node in mine))), id=f"cluster-{one.name}"))  # fmt: skip
    return parts.table(view, columns, rows, t("console.room.clusters"))


def _add(view: View) -> Html:
    t = view.t
    if view.actor.tenant != HOUSE:
        return parts.notice("plain", t("jobs.house_only"))
    fields = (Field("name", t("console.name"), required=True),
              Field("address", t("clusters.address"), required=True, hint="slurm:  kubernetes:  ray:https://head:8265"),
              Field("zone", t("console.zone")),
              Field("more", t("clusters.more"), "textarea", hint="tenants=bank"))  # fmt: skip
    return h.div(parts.action(view, "clusters", "add", {}, t("clusters.add"), fields, primary=True), class_="actions")


def _pools(view: View) -> Html:
    since = view.query("since") if view.query("since") in SPANS else "7d"
    found: tuple[PoolLoad, ...] = view.here.clusters.pools(since)
    bar = span_filter(view, since, SPANS)
    if not found:
        return join(bar, parts.empty(view, view.t("clusters.no_pools"), view.t("clusters.no_pools_hint")))
    return join(bar, parts.cards(*(_pool(view, pool) for pool in found)))


def _pool(view: View, pool: PoolLoad) -> Html:
    t = view.t
    xs = [pool.since + 3600 * n for n in range(len(pool.hours))]
    series = [Series(str(t("clusters.in_use")), xs, pool.hours),
              Series(str(t("clusters.capacity")), [xs[0], xs[-1]], [pool.capacity] * 2)] if xs else []  # fmt: skip
    full = None
    if ahead := expected(pool):
        series.append(Series(str(t("clusters.expected")), [xs[-1] + 3600 * n for n in range(AHEAD_H)], ahead.middle))
        hour = ahead.full(pool.capacity)[0]
        full = h.p(t("clusters.full_at", when=view.when(xs[-1] + 3600 * hour))) if hour >= 0 else None
    said = ((t("clusters.capacity"), pool.capacity), (t("clusters.in_use"), pool.held),
            (t("clusters.waited_for"), pool.waiting), (t("clusters.largest"), pool.largest))  # fmt: skip
    facts = h.p(
        [h.span(name, " ", h.strong(view.number(value)), class_="nowrap") for name, value in said], class_="row soft"
    )
    title = pool.pool.removeprefix("gpu:") if pool.pool != "cpu" else str(t("queues.resource.cpu"))
    drawn = line(view, series, title=t("clusters.in_use"), x=TIME, height=200)
    return h.section(h.h2(h.bdi(title)), drawn, full, facts, class_="card", id=parts.slug(f"pool-{pool.pool}"))


def expected(pool: PoolLoad) -> "Forecast | None":
    """Where its use goes, if two days of it are known; the hour that is not over says nothing yet."""
    import numpy as np  # arrays: for those who look at pools, and not for every page

    from falaj.fleet.trend import forecast

    return forecast(np.array([np.nan if value is None else value for value in pool.hours[:-1]], np.float64), AHEAD_H)


def _health(view: View) -> Html:
    t = view.t
    every = view.query("every") == "yes"
    alerts: tuple[Alert, ...] = view.here.clusters.alerts(every=every)
    nodes: tuple[NodeHealth, ...] = view.here.clusters.health(every=True)
    other = h.p(h.a(t("clusters.only_lasting") if every else t("clusters.also_over"),
                    href=view.link(every="" if every else "yes")))  # fmt: skip
    told = alert_table(view, alerts) if alerts else parts.empty(view, t("clusters.no_alerts"))
    return join(
        parts.card(t("clusters.alerts"), other, told), parts.card(t("clusters.health"), health_table(view, nodes))
    )


def alert_table(view: View, alerts: Sequence[Alert]) -> Html:
    """What looks wrong, and what to do."""
    t = view.t
    columns = (t("clusters.what"), t("clusters.node"), t("console.job"), t("console.since"), t("console.until"),
               t("clusters.advice"))  # fmt: skip
    rows = [(join(h.strong(t.of("clusters.alert", one.kind)), h.br(), h.span(one.text, dir="auto")),
             node_link(one.node), _job(view, one.job),
             view.ago(one.since), view.ago(one.until) if one.until else t("clusters.lasts"),
             h.span(one.advice, dir="auto")) for one in alerts[:MOST]]  # fmt: skip
    return parts.table(view, columns, rows, t("clusters.alerts"))


def health_table(view: View, nodes: Sequence[NodeHealth]) -> Html:
    """How well nodes look; those that look ill first."""
    t = view.t
    columns = (t("clusters.node"), t("console.state"), Column(t("clusters.score"), "n"), t("clusters.why"),
               t("clusters.advice"))  # fmt: skip
    rows = [(node_link(one.node), _verdict(view, one.verdict), view.number(one.score),
             join(*(h.div(said, dir="auto") for said in one.why)), h.span(one.advice, dir="auto"))
            for one in sorted(nodes, key=lambda one: one.score)[:MOST]]  # fmt: skip
    return parts.table(view, columns, rows, t("clusters.health"))


def node_link(name: str) -> Html:
    """The page of a node."""
    return h.a(h.bdi(name), href=address(f"clusters/{name}"), class_="ref") if "/" in name else h.bdi(name)


def _verdict(view: View, verdict: str) -> Html:
    tone = {"well": "good", "watch": "warn", "ill": "bad"}.get(verdict, "")
    return h.span(view.t.of("clusters.verdict", verdict), class_=f"badge {tone}".strip())


def _job(view: View, job: str) -> Html:
    try:
        return parts.ref(view, Ref.parse(job), short=True) if job.startswith("job:") else h.bdi(job)
    except FalajError:
        return text(job)


def _scaling(view: View) -> Html:
    t = view.t
    found: tuple[ScalingView, ...] = view.here.clusters.scaling()
    if not found:
        return parts.empty(view, t("clusters.no_scaling"), t("clusters.no_scaling_hint"), "falaj clusters scaling")
    columns = (t("console.kind"), Column(t("clusters.nodes"), "n"), Column(t("clusters.wanted"), "n"),
               Column(t("clusters.most"), "n"), Column(t("clusters.price"), "n"), Column(t("clusters.spent"), "n"),
               Column(t("clusters.saved"), "n"), t("clusters.why"))  # fmt: skip
    rows = [Row((h.bdi(one.kind), view.number(one.nodes), view.number(one.wanted), view.number(one.most),
                 view.number(one.price), view.number(one.spent), view.number(one.saved),
                 h.span(one.why, dir="auto")), id=f"kind-{one.kind}") for one in found]  # fmt: skip
    steps = [Series(one.kind, [step.at for step in one.history], [float(step.wanted) for step in one.history])
             for one in found if one.history]  # fmt: skip
    drawn = h.section(line(view, steps, title=t("clusters.wanted"), x=TIME), class_="card") if steps else EMPTY
    return join(_tune(view), parts.table(view, columns, rows, t("clusters.tab.scaling")), drawn)


def _tune(view: View) -> Html:
    t = view.t
    if view.actor.tenant != HOUSE:
        return EMPTY
    fields = (Field("hourly", t("clusters.hourly"), "number"), Field("wait", t("clusters.wait"), hint="2m"),
              Field("idle", t("clusters.idle"), hint="10m"))  # fmt: skip
    return h.div(parts.action(view, "clusters", "tune", {}, t("clusters.tune"), fields), class_="actions")
