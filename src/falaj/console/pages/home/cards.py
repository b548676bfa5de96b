"""The parts of the home page that stand for other rooms: endpoints, drift, approvals, clusters, and the figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import address, href
from falaj.console.pages.home.answers import Answers
from falaj.console.pages.home.work import SHOWN, items
from falaj.console.plots import spark
from falaj.console.view import View
from falaj.core.context import Actor
from falaj.fleet.records import NodeView
from falaj.govern.records import ApprovalState
from falaj.serve.records import EndpointView

MEASURED = 4
"""So many endpoints are shown with their figures."""
DAY_S = 86_400.0


def figures(view: View, told: Answers) -> Html:
    """The numbers that matter; what the reader may not see is left out."""
    made = [
        _figure(view, "busy", view.t("home.running"), "jobs", {"state": "running"}, _jobs(told, "running")),
        _figure(view, "wait", view.t("home.waiting"), "jobs", {"state": "waiting"}, _jobs(told, "waiting")),
        _figure(view, "good", view.t("home.serving"), "serve", {}, _serving(told)),
        _figure(view, "bad", view.t("home.incidents"), "monitor", {}, _length(_open(told))),
        _figure(view, "warn", view.t("home.to_approve"), "approvals", {}, _length(_for_me(view, told))),
    ]
    return join(made)


def _figure(
    view: View, tone: str, name: Html, room: str, query: dict[str, str], found: tuple[int, bool] | None
) -> Html:
    if found is None:
        return EMPTY
    count, more = found
    return parts.stat(name, join(view.number(count), "+" if more else None), link=address(room, query),
                      state=tone if count else "")  # fmt: skip


def _length(found: Sequence[Any] | None) -> tuple[int, bool] | None:
    return None if found is None else (len(found), False)


def _jobs(told: Answers, state: str) -> tuple[int, bool] | None:
    page = told.seen("jobs", "list", state=state, limit=50)
    return (len(page.jobs), bool(page.next)) if page else None


def _serving(told: Answers) -> tuple[int, bool] | None:
    page = told.seen("serve", "list", limit=50)
    return (sum(one.state == "ready" for one in page.endpoints), bool(page.next)) if page else None


def _open(told: Answers) -> Any:
    return told.seen("monitor", "incidents", state="open", limit=50)


def _for_me(view: View, told: Answers) -> list[ApprovalState] | None:
    found = told.seen("approvals", "list", state="waiting", limit=100)
    return None if found is None else [one for one in found if awaits(one, view.actor)]


def awaits(one: ApprovalState, actor: Actor) -> bool:
    """True when this person's word would count: of a role that is asked, not barred, and not spoken yet."""
    question = one.approval
    barred = {name.rpartition("/")[2] for name in (*question.barred, question.asker)}
    spoken = {voice.actor.rpartition("/")[2] for voice in question.voices}
    return bool(actor.roles & set(question.roles)) and actor.id not in barred | spoken


def approvals(view: View, told: Answers) -> Html:
    """What waits for the reader's word."""
    told.ask("approvals", "list", state="waiting", limit=100)
    return items(
        h.li(
            h.div(h.a(h.bdi(one.approval.about or one.approval.action), href=href(one.ref), class_="ref"),
                  h.small(view.ago(one.approval.asked), class_="soft"), class_="between"),
            h.small(view.t("home.asks", who=one.approval.asker.rpartition("/")[2], what=one.approval.action),
                    class_="soft"),
            h.div(_short(one.approval.reason), class_="soft", dir="auto"),
            id=parts.slug(f"home-{one.ref}"),
        )
        for one in (_for_me(view, told) or [])[:SHOWN]
    )  # fmt: skip


def drifts(view: View, told: Answers) -> Html:
    """Open incidents."""
    found = told.ask("monitor", "incidents", state="open", limit=50)
    return items(
        h.li(h.div(parts.ref(view, one.ref), h.small(view.ago(one.since), class_="soft"), class_="between"),
             h.div(view.t.of("monitor.what", one.what), ": ", view.english(_short(one.said)), class_="soft"),
             id=parts.slug(f"home-{one.ref}"))
        for one in found[:SHOWN]
    )  # fmt: skip


def serves(view: View, told: Answers) -> Html:
    """Endpoints, and what they were asked in a day."""
    found: tuple[EndpointView, ...] = told.ask("serve", "list", limit=50).endpoints
    awake = [one for one in found if one.state != "stopped"]
    return items(
        h.li(h.div(parts.ref(view, one.ref), parts.badge(view, one.state), class_="between"),
             _asked_of(view, told, one), id=parts.slug(f"home-{one.ref}"))
        for one in awake[:MEASURED]
    )  # fmt: skip


def _asked_of(view: View, told: Answers, one: EndpointView) -> Html:
    """Requests and errors as the watch counted them; its windows are a line."""
    page = told.seen("monitor", "windows", one.ref, since_s=DAY_S, limit=100)
    windows = list(reversed(page.windows)) if page else []
    asked = sum(window.requests for window in windows)
    if not asked:
        return h.small(view.t("home.no_requests"), class_="soft")
    share = sum(window.errors for window in windows) / asked
    said = view.t("home.requests", n=asked, errors=view.percent(share, 2))
    line = spark(view, [float(window.requests) for window in windows], title=str(view.t("home.requests_of_day")))
    return h.div(h.small(said, class_="soft"), line, class_="between")


def use(view: View, told: Answers) -> Html:
    """Clusters at a glance."""
    return items(
        h.li(h.div(h.a(h.bdi(one.name), href=address(f"clusters/{one.name}"), class_="ref"),
                   h.small(view.t("home.nodes", n=one.nodes), class_="soft"), class_="between"),
             _meter(view, view.t("home.gpus"), one.gpus_used, one.gpus),
             _meter(view, view.t("home.cpus"), one.cpus_used, one.cpus), id=parts.slug(f"home-use-{one.name}"))
        for one in gathered(told.ask("clusters", "nodes"))[:SHOWN]
    )  # fmt: skip


@dataclass(slots=True)
class Use:
    """One cluster's nodes together."""

    name: str
    nodes: int = 0
    gpus: float = 0.0
    gpus_used: float = 0.0
    cpus: float = 0.0
    cpus_used: float = 0.0


def gathered(nodes: Sequence[NodeView]) -> list[Use]:
    """Nodes by cluster, the busiest first."""
    found: dict[str, Use] = {}
    for node in nodes:
        name = node.node.partition("/")[0]
        one = found.setdefault(name, Use(name))
        one.nodes += 1
        one.gpus += node.gpus
        one.cpus += node.amounts.get("cpu", 0) / 1000
        one.gpus_used += float(node.used.get("gpu", 0))
        one.cpus_used += float(node.used.get("cpu", 0))
    return sorted(found.values(), key=lambda one: (-one.gpus_used, -one.cpus_used, one.name))


def _meter(view: View, name: Html, used: float, whole: float) -> Html:
    if not whole:
        return EMPTY
    said = view.t("home.of", used=view.number(round(used, 2)), all=view.number(whole))
    return h.div(h.small(name, class_="soft"), h.meter(value=used, max=whole, aria_label=join(name, " ", said)),
                 h.small(said, class_="n soft"), class_="meter-row")  # fmt: skip


def _short(words: str, most: int = 200) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"
