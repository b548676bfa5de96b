"""Changes: what became different since yesterday, from the log where the reader may read it, else from the rooms."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from falaj.audit.records import LogEntry
from falaj.console import components
from falaj.console.markup import Html, h
from falaj.console.page import build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.home.answers import CachedAnswers
from falaj.console.pages.home.own_work import MAX_SHOWN as SHOWN_RUNS
from falaj.console.pages.home.own_work import WORKLOAD_PREFIX
from falaj.core.ref import Ref
from falaj.jobs.records import JobView
from falaj.serve.records import EndpointView

DAY_S, MAX_SHOWN, MAX_PER_ACTION, READ_LIMIT = 86_400.0, 16, 4, 200
SHOWN_ACTIONS = frozenset(
    {
        "catalog.publish",
        "catalog.promote",
        "catalog.point",
        "catalog.rollback",
        "catalog.delete",
        "serve.add",
        "serve.stop",
        "serve.rollback",
        "flows.add",
        "flows.start",
        "flows.end",
        "flows.schedule",
        "flows.on",
        "approvals.ask",
        "approvals.give",
        "approvals.refuse",
        "zones.grant",
        "zones.revoke",
        "people.add",
        "people.suspend",
        "people.change",
        "policy.add",
        "policy.remove",
        "keys.rotate",
        "monitor.alert",
        "features.define",
        "clusters.add",
        "clusters.drain",
        "queues.add",
        "queues.change",
    }
)
"""What a person wants to hear of; the log has much more. Jobs are told by their own room, with how they ended."""


@dataclass(frozen=True, slots=True)
class RecentChange:
    """Something that happened: when, what (a verb's name), to what, by whom."""

    at: float
    verb: str
    about: Ref
    who: str = ""
    state: str = ""
    name: str = ""
    """What its people call it, where its reference says nothing."""


def render_changes(view: PageView, answers: CachedAnswers) -> Html:
    """The newest moments, newest first."""
    # Whoever may not read the log is not made to try: each try would be a denial, and stand in it.
    may_read_log = not view.lacks("audit.log")
    action_names = " ".join(sorted(SHOWN_ACTIONS))
    entries = (
        answers.seen("audit", "log", verb=action_names, since=view.now - DAY_S, limit=READ_LIMIT)
        if may_read_log
        else None
    )
    changes = select_newest(
        (*list_logged_changes(entries.entries if entries else ()), *list_visible_changes(view, answers)),
        view.now - DAY_S,
    )
    log_url = build_url("audit") if entries else ""
    if not changes:
        return components.card(
            view.t("home.changed"), h.p(view.t("home.none_changed"), class_="soft"), id="changed", wide=True
        )
    rows = [
        components.TableRow(
            (
                view.ago(change.at),
                view.t.of("home.did", change.verb),
                _render_subject(view, change),
                components.badge(view, change.state) if change.state else "",
                h.bdi(change.who),
            ),
            id=f"home-{change.verb}-{change.about}",
        )
        for change in changes
    ]
    headers = (
        view.t("console.when"),
        view.t("home.what"),
        view.t("home.about"),
        view.t("console.state"),
        view.t("console.who"),
    )
    return components.card(
        view.t("home.changed"),
        components.table(view, headers, rows, view.t("home.changed")),
        id="changed",
        heading_link=log_url,
        wide=True,
    )


def _render_subject(view: PageView, change: RecentChange) -> Html:
    return (
        h.a(h.bdi(change.name), href=build_resource_url(change.about), class_="ref")
        if change.name
        else components.ref_link(view, change.about)
    )


def list_logged_changes(entries: Iterable[LogEntry]) -> list[RecentChange]:
    """What of the log is told."""
    return [
        RecentChange(entry.at, entry.verb, entry.subject.bare, entry.behalf or entry.actor)
        for entry in entries
        if entry.subject.kind != "desk"
    ]


def list_visible_changes(view: PageView, answers: CachedAnswers) -> list[RecentChange]:
    """What the rooms themselves show as new, for whoever may look into them."""
    job_page, flow_runs = answers.seen("jobs", "list", limit=20), answers.seen("flows", "runs", limit=5)
    endpoint_page, recent_runs = (
        answers.seen("serve", "list", limit=50),
        answers.seen("track", "recent", limit=SHOWN_RUNS),
    )
    changes = list(_list_job_changes(job_page.jobs if job_page else ()))
    changes += [
        RecentChange(
            flow_run.ended_at or flow_run.started_at,
            "flows.end" if flow_run.over else "flows.start",
            flow_run.ref,
            flow_run.begun_by,
            flow_run.state,
        )
        for flow_run in (flow_runs.runs if flow_runs else ())
    ]
    changes += list(_list_endpoint_changes(endpoint_page.endpoints if endpoint_page else ()))
    changes += [
        RecentChange(flow_run.ended, "track.end", flow_run.ref, flow_run.author, flow_run.status, flow_run.title)
        for flow_run in (recent_runs.runs if recent_runs else ())
    ]
    return changes


def _list_job_changes(jobs: Iterable[JobView]) -> Iterable[RecentChange]:
    for job in (candidate for candidate in jobs if not candidate.author.startswith(WORKLOAD_PREFIX)):
        changed_at = job.ended_at or job.submitted_at
        yield RecentChange(changed_at, "jobs.end" if job.over else "jobs.add", job.ref, job.author, job.state)


def _list_endpoint_changes(endpoints: Iterable[EndpointView]) -> Iterable[RecentChange]:
    for endpoint in endpoints:
        for revision in endpoint.revisions[-2:]:
            yield RecentChange(revision.made_at, "serve.add", endpoint.ref, revision.made_by)


def select_newest(changes: Iterable[RecentChange], since: float) -> list[RecentChange]:
    """One line for each thing and act: the last; not older than `since`, and not one act alone."""
    change_by_key: dict[tuple[str, str], RecentChange] = {}
    for change in sorted(changes, key=lambda change: (change.at, change.state)):
        if change.at >= since:
            change_by_key[change.verb, str(change.about)] = change
    selected, counts = list[RecentChange](), Counter[str]()
    for change in sorted(change_by_key.values(), key=lambda change: -change.at):
        counts[change.verb] += 1
        if counts[change.verb] <= MAX_PER_ACTION:
            selected.append(change)
    return selected[:MAX_SHOWN]
