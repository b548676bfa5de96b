"""The tree of queues as one page, and one queue of it as another."""

from collections.abc import Mapping, Sequence

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, address
from falaj.console.pages.jobs.listing import rows as job_rows
from falaj.console.pages.queues.fair import Held, fair, held
from falaj.console.parts import Column, Field, Row
from falaj.console.plots import shares
from falaj.console.view import View
from falaj.console.writing import NOTHING
from falaj.core.context import HOUSE
from falaj.core.errors import NotFound
from falaj.fleet.records import NodeView, QueueView
from falaj.jobs.records import RUNNING, WAITING

MOST = 25
LIVE = ("queues", "jobs")


def queues(view: View) -> Page:
    """The tree, or the queue that the address names."""
    found: tuple[QueueView, ...] = view.here.queues.list()
    at = view.query("at")
    return _one(view, found, at) if at else _tree(view, found)


def _tree(view: View, found: Sequence[QueueView]) -> Page:
    t = view.t
    if len(found) < 2:
        return Page(t("console.room.queues"), parts.empty(view, t("queues.none"), "", "falaj queues list"), live=LIVE)
    body = join(view.part(lambda: _shares(view, found, "root")), _table(view, found), _add(view))
    return Page(t("console.room.queues"), body, live=LIVE, scripts=("plots.js",))


def _shares(view: View, found: Sequence[QueueView], parent: str) -> Html:
    """What the queues below one have now, beside what is fair."""
    below = [one for one in found if one.name.rpartition("/")[0] == parent]
    nodes: tuple[NodeView, ...] = view.here.clusters.nodes()
    whole = next((one for one in found if one.name == parent), None)
    cards = [_share(view, have) for have in held(below, nodes, whole)]
    return parts.cards(*cards) if cards else EMPTY


def _share(view: View, have: Held) -> Html:
    t = view.t
    now = [(name.rpartition("/")[2], amount, "") for name, amount in have.used.items()]
    now += [(str(t("queues.others")), have.others, "")] if have.others else []
    now += [(str(t("queues.free")), have.free, "")] if have.free else []
    drawn = [shares(view, now, title=t("queues.now"))]
    if view.actor.tenant == HOUSE:
        # Who does not see every queue cannot be told what is fair among them.
        due = [(name.rpartition("/")[2], amount, "") for name, amount in fair(have).items()]
        drawn += [shares(view, due, title=t("queues.fair")), h.p(t("queues.fair_hint"), class_="soft small")]
    return parts.card(t.of("queues.resource", have.resource), *drawn, id=f"share-{have.resource}")


def _table(view: View, found: Sequence[QueueView]) -> Html:
    t = view.t
    columns = (
        t("jobs.queue"), Column(t("jobs.running"), "n"), Column(t("jobs.waiting"), "n"), t("queues.used"),
        t("queues.guarantee"), t("queues.limit"), t("queues.borrowed"), Column(t("queues.weight"), "n"),
        t("queues.budget"),
    )  # fmt: skip
    return parts.table(view, columns, [_row(view, one) for one in found], t("console.room.queues"))


def _row(view: View, one: QueueView) -> Row:
    depth = min(6, one.name.count("/"))
    name = h.span(h.a(h.bdi(one.name.rpartition("/")[2]), href=address("queues", {"at": one.name}), class_="ref"),
                  class_=f"deep-{depth}", title=one.name)  # fmt: skip
    cells = (name, view.number(one.running), view.number(one.waiting), amounts(one.used), amounts(one.guarantee),
             amounts(one.limit), amounts(one.borrowed), view.number(one.weight), _budgets(one))  # fmt: skip
    return Row(cells, id=f"queue-{one.name}")


def amounts(given: Mapping[str, str]) -> Html:
    """So much of each, one a line; also for nodes."""
    return join(*(h.div(h.bdi(f"{name} {amount}", dir="ltr")) for name, amount in given.items())) or NOTHING


def _budgets(one: QueueView) -> Html:
    return join(*(h.div(h.bdi(said, dir="ltr")) for said in one.budget)) or NOTHING


def _one(view: View, found: Sequence[QueueView], name: str) -> Page:
    one = next((queue for queue in found if queue.name == name), None)
    if one is None:
        raise NotFound(f"there is no queue {name[:80]!r}", "the list of queues shows those you may see")
    t = view.t
    facts = parts.facts({
        t("jobs.running"): view.number(one.running), t("jobs.waiting"): view.number(one.waiting),
        t("queues.used"): amounts(one.used), t("queues.guarantee"): amounts(one.guarantee),
        t("queues.limit"): amounts(one.limit), t("queues.borrowed"): amounts(one.borrowed),
        t("queues.lend"): amounts(one.lend) if one.lend else "", t("queues.weight"): view.number(one.weight),
        t("queues.top_band"): t.of("jobs.band", one.top_band), t("queues.budget"): _budgets(one),
        t("queues.projects"): join(*(parts.tag(project) for project in one.projects)),
    })  # fmt: skip
    children = [queue for queue in found if queue.name.startswith(f"{name}/")]
    below = join(_table(view, children), view.part(lambda: _shares(view, found, name))) if children else EMPTY
    lists = join(view.part(lambda: _jobs(view, one, WAITING)), view.part(lambda: _jobs(view, one, RUNNING)))
    body = join(parts.card(t("console.details"), facts, id="facts"), _change(view, one), below, lists)
    way = name.split("/")[:-1]
    up = [(h.bdi(part), address("queues", {"at": "/".join(way[: n + 1])})) for n, part in enumerate(way)]
    crumbs = ((t("console.room.queues"), address("queues")), *up)
    return Page(h.bdi(name.rpartition("/")[2]), body, crumbs, live=LIVE, scripts=("plots.js",))


def _jobs(view: View, one: QueueView, state: str) -> Html:
    page = view.here.jobs.list(state=state, queue=one.name, limit=MOST, more={"why": "yes"} if state == WAITING else {})
    title = view.t("queues.waits_here") if state == WAITING else view.t("queues.runs_here")
    if not page.jobs:
        return EMPTY
    return parts.card(title, job_rows(view, page.jobs), more=address("jobs", {"queue": one.name, "state": state}))


def _change(view: View, one: QueueView) -> Html:
    """Forms for the people who run the house; for others, who they are."""
    t = view.t
    if view.actor.tenant != HOUSE:
        return parts.notice("plain", t("jobs.house_only"))
    now = [f"weight={one.weight}"]
    now += [f"top_band={one.top_band}"] if one.top_band != "normal" else []
    now += [f"{kind}.{name}={amount}" for kind in ("guarantee", "limit", "lend")
            for name, amount in getattr(one, kind).items()]  # fmt: skip
    now += [f"projects={','.join(one.projects)}"] if one.projects else []
    more = Field("more", t("queues.rules"), "textarea", "\n".join(now), required=True, hint=t("queues.rules_hint"))
    change = parts.action(view, "queues", "change", {"name": one.name}, t("queues.change"), (more,), id="change")
    remove = parts.action(view, "queues", "remove", {"name": one.name}, t("queues.remove"), danger=True,
                          confirm=t("queues.remove_sure", name=one.name), back=address("queues"))  # fmt: skip
    return h.div(change, remove, class_="actions")


def _add(view: View) -> Html:
    t = view.t
    if view.actor.tenant != HOUSE:
        return parts.notice("plain", t("jobs.house_only"))
    fields = (
        Field("name", t("console.name"), value="root/", required=True),
        Field("weight", t("queues.weight"), "number", "1"),
        Field("guarantee", t("queues.guarantee"), "textarea", hint="gpu=4"),
        Field("limit", t("queues.limit"), "textarea", hint="gpu=8"),
        Field("projects", t("queues.projects"), hint="bank/fraud, bank/*"),
        Field("budget", t("queues.budget"), hint="gpu-hours=500/month:stop"),
    )  # fmt: skip
    return h.div(parts.action(view, "queues", "add", {}, t("queues.add"), fields, primary=True), class_="actions")
