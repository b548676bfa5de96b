"""The parts of the home page that stand for other rooms: endpoints, drift, approvals, clusters, and the figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from falaj.console import components
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.home.answers import CachedAnswers
from falaj.console.pages.home.own_work import MAX_SHOWN, render_items
from falaj.console.plots import sparkline
from falaj.core.context import Actor
from falaj.fleet.records import NodeView
from falaj.govern.records import ApprovalState
from falaj.serve.records import EndpointView

MAX_MEASURED_ENDPOINTS = 4
"""So many endpoints are shown with their figures."""
DAY_S = 86_400.0


def render_figures(view: PageView, answers: CachedAnswers) -> Html:
    """The numbers that matter; what the reader may not see is left out."""
    tiles = [
        _render_figure(
            view, "busy", view.t("home.running"), "jobs", {"state": "running"}, _count_jobs(answers, "running")
        ),
        _render_figure(
            view, "wait", view.t("home.waiting"), "jobs", {"state": "waiting"}, _count_jobs(answers, "waiting")
        ),
        _render_figure(view, "good", view.t("home.serving"), "serve", {}, _count_serving(answers)),
        _render_figure(
            view, "bad", view.t("home.incidents"), "monitor", {}, _count_items(_get_open_incidents(answers))
        ),
        _render_figure(
            view, "warn", view.t("home.to_approve"), "approvals", {}, _count_items(_list_own_approvals(view, answers))
        ),
    ]
    return join_html(tiles)


def _render_figure(
    view: PageView, tone: str, name: Html, section: str, query: dict[str, str], count_and_more: tuple[int, bool] | None
) -> Html:
    if count_and_more is None:
        return EMPTY
    count, has_more = count_and_more
    return components.stat_tile(
        name,
        join_html(view.number(count), "+" if has_more else None),
        link=build_url(section, query),
        state=tone if count else "",
    )


def _count_items(items: Sequence[Any] | None) -> tuple[int, bool] | None:
    return None if items is None else (len(items), False)


def _count_jobs(answers: CachedAnswers, state: str) -> tuple[int, bool] | None:
    page = answers.seen("jobs", "list", state=state, limit=50)
    return (len(page.jobs), bool(page.next)) if page else None


def _count_serving(answers: CachedAnswers) -> tuple[int, bool] | None:
    page = answers.seen("serve", "list", limit=50)
    return (sum(endpoint.state == "ready" for endpoint in page.endpoints), bool(page.next)) if page else None


def _get_open_incidents(answers: CachedAnswers) -> Any:
    return answers.seen("monitor", "incidents", state="open", limit=50)


def _list_own_approvals(view: PageView, answers: CachedAnswers) -> list[ApprovalState] | None:
    approvals = answers.seen("approvals", "list", state="waiting", limit=100)
    return (
        None
        if approvals is None
        else [approval_state for approval_state in approvals if awaits_actor(approval_state, view.actor)]
    )


def awaits_actor(approval_state: ApprovalState, actor: Actor) -> bool:
    """True when this person's word would count: of a role that is asked, not barred, and not spoken yet."""
    question = approval_state.approval
    barred_names = {name.rpartition("/")[2] for name in (*question.barred, question.asker)}
    voter_names = {vote.actor.rpartition("/")[2] for vote in question.voices}
    return bool(actor.roles & set(question.roles)) and actor.id not in barred_names | voter_names


def render_approvals(view: PageView, answers: CachedAnswers) -> Html:
    """What waits for the reader's word."""
    answers.ask("approvals", "list", state="waiting", limit=100)
    return render_items(
        h.li(
            h.div(
                h.a(
                    h.bdi(approval_state.approval.about or approval_state.approval.action),
                    href=build_resource_url(approval_state.ref),
                    class_="ref",
                ),
                h.small(view.ago(approval_state.approval.asked), class_="soft"),
                class_="between",
            ),
            h.small(
                view.t(
                    "home.asks",
                    who=approval_state.approval.asker.rpartition("/")[2],
                    what=approval_state.approval.action,
                ),
                class_="soft",
            ),
            h.div(_truncate_text(approval_state.approval.reason), class_="soft", dir="auto"),
            id=components.to_element_id(f"home-{approval_state.ref}"),
        )
        for approval_state in (_list_own_approvals(view, answers) or [])[:MAX_SHOWN]
    )


def render_drifts(view: PageView, answers: CachedAnswers) -> Html:
    """Open incidents."""
    incidents = answers.ask("monitor", "incidents", state="open", limit=50)
    return render_items(
        h.li(
            h.div(
                components.ref_link(view, incident.ref),
                h.small(view.ago(incident.since), class_="soft"),
                class_="between",
            ),
            h.div(
                view.t.of("monitor.what", incident.what),
                ": ",
                view.english(_truncate_text(incident.said)),
                class_="soft",
            ),
            id=components.to_element_id(f"home-{incident.ref}"),
        )
        for incident in incidents[:MAX_SHOWN]
    )


def render_endpoints(view: PageView, answers: CachedAnswers) -> Html:
    """Endpoints, and what they were asked in a day."""
    endpoints: tuple[EndpointView, ...] = answers.ask("serve", "list", limit=50).endpoints
    running_endpoints = [endpoint for endpoint in endpoints if endpoint.state != "stopped"]
    return render_items(
        h.li(
            h.div(components.ref_link(view, endpoint.ref), components.badge(view, endpoint.state), class_="between"),
            _render_requests(view, answers, endpoint),
            id=components.to_element_id(f"home-{endpoint.ref}"),
        )
        for endpoint in running_endpoints[:MAX_MEASURED_ENDPOINTS]
    )


def _render_requests(view: PageView, answers: CachedAnswers, endpoint: EndpointView) -> Html:
    """Requests and errors as the watch counted them; its windows are a line."""
    page = answers.seen("monitor", "windows", endpoint.ref, since_s=DAY_S, limit=100)
    windows = list(reversed(page.windows)) if page else []
    num_requests = sum(window.requests for window in windows)
    if not num_requests:
        return h.small(view.t("home.no_requests"), class_="soft")
    error_share = sum(window.errors for window in windows) / num_requests
    summary_text = view.t("home.requests", n=num_requests, errors=view.percent(error_share, 2))
    chart = sparkline(view, [float(window.requests) for window in windows], title=str(view.t("home.requests_of_day")))
    return h.div(h.small(summary_text, class_="soft"), chart, class_="between")


def render_cluster_use(view: PageView, answers: CachedAnswers) -> Html:
    """Clusters at a glance."""
    return render_items(
        h.li(
            h.div(
                h.a(h.bdi(cluster_use.name), href=build_url(f"clusters/{cluster_use.name}"), class_="ref"),
                h.small(view.t("home.nodes", n=cluster_use.nodes), class_="soft"),
                class_="between",
            ),
            _render_meter(view, view.t("home.gpus"), cluster_use.gpus_used, cluster_use.gpus),
            _render_meter(view, view.t("home.cpus"), cluster_use.cpus_used, cluster_use.cpus),
            id=components.to_element_id(f"home-use-{cluster_use.name}"),
        )
        for cluster_use in sum_nodes_by_cluster(answers.ask("clusters", "nodes"))[:MAX_SHOWN]
    )


@dataclass(slots=True)
class ClusterUse:
    """One cluster's nodes together."""

    name: str
    nodes: int = 0
    gpus: float = 0.0
    gpus_used: float = 0.0
    cpus: float = 0.0
    cpus_used: float = 0.0


def sum_nodes_by_cluster(nodes: Sequence[NodeView]) -> list[ClusterUse]:
    """Nodes by cluster, the busiest first."""
    use_by_cluster: dict[str, ClusterUse] = {}
    for node in nodes:
        name = node.node.partition("/")[0]
        cluster_use = use_by_cluster.setdefault(name, ClusterUse(name))
        cluster_use.nodes += 1
        cluster_use.gpus += node.gpus
        cluster_use.cpus += node.amounts.get("cpu", 0) / 1000
        cluster_use.gpus_used += float(node.used.get("gpu", 0))
        cluster_use.cpus_used += float(node.used.get("cpu", 0))
    return sorted(
        use_by_cluster.values(),
        key=lambda cluster_use: (-cluster_use.gpus_used, -cluster_use.cpus_used, cluster_use.name),
    )


def _render_meter(view: PageView, name: Html, used: float, capacity: float) -> Html:
    if not capacity:
        return EMPTY
    label_text = view.t("home.of", used=view.number(round(used, 2)), all=view.number(capacity))
    return h.div(
        h.small(name, class_="soft"),
        h.meter(value=used, max=capacity, aria_label=join_html(name, " ", label_text)),
        h.small(label_text, class_="n soft"),
        class_="meter-row",
    )


def _truncate_text(text: str, max_length: int = 200) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
