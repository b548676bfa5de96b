"""The tree of queues as one page, and one queue of it as another."""

from collections.abc import Mapping, Sequence

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.formatting import NO_VALUE
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.jobs.job_list import render_job_table as job_rows
from falaj.console.pages.queues.fair_shares import ResourceShares, compute_fair_amounts, compute_shares
from falaj.console.plots import share_bar
from falaj.core.context import SYSTEM_TENANT
from falaj.core.errors import NotFound
from falaj.fleet.records import NodeView, QueueView
from falaj.jobs.records import RUNNING, WAITING

MAX_JOBS = 25
LIVE_SERVICES = ("queues", "jobs")


def render_queues_page(view: PageView) -> Page:
    """The tree, or the queue that the address names."""
    queues: tuple[QueueView, ...] = view.here.queues.list()
    queue_name = view.query("at")
    return _render_queue_page(view, queues, queue_name) if queue_name else _render_tree_page(view, queues)


def _render_tree_page(view: PageView, queues: Sequence[QueueView]) -> Page:
    t = view.t
    if len(queues) < 2:
        return Page(
            t("console.room.queues"),
            components.empty_state(view, t("queues.none"), "", "falaj queues list"),
            live=LIVE_SERVICES,
        )
    body = join_html(
        view.part(lambda: _render_shares(view, queues, "root")), _render_table(view, queues), _render_add_button(view)
    )
    return Page(t("console.room.queues"), body, live=LIVE_SERVICES, scripts=("plots.js",))


def _render_shares(view: PageView, queues: Sequence[QueueView], parent: str) -> Html:
    """What the queues below one have now, beside what is fair."""
    child_queues = [queue for queue in queues if queue.name.rpartition("/")[0] == parent]
    nodes: tuple[NodeView, ...] = view.here.clusters.nodes()
    parent_queue = next((queue for queue in queues if queue.name == parent), None)
    share_cards = [
        _render_share(view, resource_shares) for resource_shares in compute_shares(child_queues, nodes, parent_queue)
    ]
    return components.card_grid(*share_cards) if share_cards else EMPTY


def _render_share(view: PageView, resource_shares: ResourceShares) -> Html:
    t = view.t
    current_parts = [(name.rpartition("/")[2], amount, "") for name, amount in resource_shares.used.items()]
    current_parts += [(str(t("queues.others")), resource_shares.others, "")] if resource_shares.others else []
    current_parts += [(str(t("queues.free")), resource_shares.free, "")] if resource_shares.free else []
    charts = [share_bar(view, current_parts, title=t("queues.now"))]
    if view.actor.tenant == SYSTEM_TENANT:
        # Who does not see every queue cannot be told what is fair among them.
        fair_parts = [
            (name.rpartition("/")[2], amount, "") for name, amount in compute_fair_amounts(resource_shares).items()
        ]
        charts += [share_bar(view, fair_parts, title=t("queues.fair")), h.p(t("queues.fair_hint"), class_="soft small")]
    return components.card(
        t.of("queues.resource", resource_shares.resource), *charts, id=f"share-{resource_shares.resource}"
    )


def _render_table(view: PageView, queues: Sequence[QueueView]) -> Html:
    t = view.t
    columns = (
        t("jobs.queue"),
        ColumnHeader(t("jobs.running"), "n"),
        ColumnHeader(t("jobs.waiting"), "n"),
        t("queues.used"),
        t("queues.guarantee"),
        t("queues.limit"),
        t("queues.borrowed"),
        ColumnHeader(t("queues.weight"), "n"),
        t("queues.budget"),
    )
    return components.table(view, columns, [_make_row(view, queue) for queue in queues], t("console.room.queues"))


def _make_row(view: PageView, queue: QueueView) -> TableRow:
    depth = min(6, queue.name.count("/"))
    name = h.span(
        h.a(h.bdi(queue.name.rpartition("/")[2]), href=build_url("queues", {"at": queue.name}), class_="ref"),
        class_=f"deep-{depth}",
        title=queue.name,
    )
    cells = (
        name,
        view.number(queue.running),
        view.number(queue.waiting),
        render_amounts(queue.used),
        render_amounts(queue.guarantee),
        render_amounts(queue.limit),
        render_amounts(queue.borrowed),
        view.number(queue.weight),
        _render_budgets(queue),
    )
    return TableRow(cells, id=f"queue-{queue.name}")


def render_amounts(amount_by_name: Mapping[str, str]) -> Html:
    """So much of each, one a line; also for nodes."""
    return (
        join_html(*(h.div(h.bdi(f"{name} {amount}", dir="ltr")) for name, amount in amount_by_name.items())) or NO_VALUE
    )


def _render_budgets(queue: QueueView) -> Html:
    return join_html(*(h.div(h.bdi(budget_text, dir="ltr")) for budget_text in queue.budget)) or NO_VALUE


def _render_queue_page(view: PageView, queues: Sequence[QueueView], name: str) -> Page:
    shown_queue = next((queue for queue in queues if queue.name == name), None)
    if shown_queue is None:
        raise NotFound(f"there is no queue {name[:80]!r}", "the list of queues shows those you may see")
    t = view.t
    queue_facts = components.fact_list(
        {
            t("jobs.running"): view.number(shown_queue.running),
            t("jobs.waiting"): view.number(shown_queue.waiting),
            t("queues.used"): render_amounts(shown_queue.used),
            t("queues.guarantee"): render_amounts(shown_queue.guarantee),
            t("queues.limit"): render_amounts(shown_queue.limit),
            t("queues.borrowed"): render_amounts(shown_queue.borrowed),
            t("queues.lend"): render_amounts(shown_queue.lend) if shown_queue.lend else "",
            t("queues.weight"): view.number(shown_queue.weight),
            t("queues.top_band"): t.of("jobs.band", shown_queue.top_band),
            t("queues.budget"): _render_budgets(shown_queue),
            t("queues.projects"): join_html(*(components.tag(project) for project in shown_queue.projects)),
        }
    )
    children = [queue for queue in queues if queue.name.startswith(f"{name}/")]
    children_view = (
        join_html(_render_table(view, children), view.part(lambda: _render_shares(view, queues, name)))
        if children
        else EMPTY
    )
    job_lists = join_html(
        view.part(lambda: _render_jobs(view, shown_queue, WAITING)),
        view.part(lambda: _render_jobs(view, shown_queue, RUNNING)),
    )
    body = join_html(
        components.card(t("console.details"), queue_facts, id="facts"),
        _render_change_form(view, shown_queue),
        children_view,
        job_lists,
    )
    parent_names = name.split("/")[:-1]
    parent_crumbs = [
        (h.bdi(parent_name), build_url("queues", {"at": "/".join(parent_names[: n + 1])}))
        for n, parent_name in enumerate(parent_names)
    ]
    crumbs = ((t("console.room.queues"), build_url("queues")), *parent_crumbs)
    return Page(h.bdi(name.rpartition("/")[2]), body, crumbs, live=LIVE_SERVICES, scripts=("plots.js",))


def _render_jobs(view: PageView, queue: QueueView, state: str) -> Html:
    job_page = view.here.jobs.list(
        state=state, queue=queue.name, limit=MAX_JOBS, more={"why": "yes"} if state == WAITING else {}
    )
    title = view.t("queues.waits_here") if state == WAITING else view.t("queues.runs_here")
    if not job_page.jobs:
        return EMPTY
    return components.card(
        title, job_rows(view, job_page.jobs), heading_link=build_url("jobs", {"queue": queue.name, "state": state})
    )


def _render_change_form(view: PageView, queue: QueueView) -> Html:
    """Forms for the people who run the house; for others, who they are."""
    t = view.t
    if view.actor.tenant != SYSTEM_TENANT:
        return components.notice("plain", t("jobs.house_only"))
    current_lines = [f"weight={queue.weight}"]
    current_lines += [f"top_band={queue.top_band}"] if queue.top_band != "normal" else []
    current_lines += [
        f"{kind}.{name}={amount}"
        for kind in ("guarantee", "limit", "lend")
        for name, amount in getattr(queue, kind).items()
    ]
    current_lines += [f"projects={','.join(queue.projects)}"] if queue.projects else []
    settings_field = FormField(
        "more", t("queues.rules"), "textarea", "\n".join(current_lines), required=True, hint=t("queues.rules_hint")
    )
    change_button = components.action_button(
        view, "queues", "change", {"name": queue.name}, t("queues.change"), (settings_field,), id="change"
    )
    remove_button = components.action_button(
        view,
        "queues",
        "remove",
        {"name": queue.name},
        t("queues.remove"),
        danger=True,
        confirm=t("queues.remove_sure", name=queue.name),
        back=build_url("queues"),
    )
    return h.div(change_button, remove_button, class_="actions")


def _render_add_button(view: PageView) -> Html:
    t = view.t
    if view.actor.tenant != SYSTEM_TENANT:
        return components.notice("plain", t("jobs.house_only"))
    fields = (
        FormField("name", t("console.name"), value="root/", required=True),
        FormField("weight", t("queues.weight"), "number", "1"),
        FormField("guarantee", t("queues.guarantee"), "textarea", hint="gpu=4"),
        FormField("limit", t("queues.limit"), "textarea", hint="gpu=8"),
        FormField("projects", t("queues.projects"), hint="bank/fraud, bank/*"),
        FormField("budget", t("queues.budget"), hint="gpu-hours=500/month:stop"),
    )
    return h.div(
        components.action_button(view, "queues", "add", {}, t("queues.add"), fields, primary=True), class_="actions"
    )
