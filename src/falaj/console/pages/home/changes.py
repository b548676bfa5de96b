"""Changes: what became different since yesterday, from the log where the reader may read it, else from the rooms."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from falaj.audit.records import Entry
from falaj.console import parts
from falaj.console.markup import Html, h
from falaj.console.page import address, href
from falaj.console.pages.home.answers import Answers
from falaj.console.pages.home.work import OF_WORK
from falaj.console.pages.home.work import SHOWN as SHOWN_RUNS
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.jobs.records import JobView
from falaj.serve.records import EndpointView

DAY_S, SHOWN, OF_EACH, READ = 86_400.0, 16, 4, 200
TOLD = frozenset({
    "catalog.publish", "catalog.promote", "catalog.point", "catalog.rollback", "catalog.delete", "serve.add",
    "serve.stop", "serve.rollback", "flows.add", "flows.start", "flows.end", "flows.schedule", "flows.on",
    "approvals.ask", "approvals.give", "approvals.refuse", "zones.grant", "zones.revoke", "people.add",
    "people.suspend", "people.change", "policy.add", "policy.remove", "keys.rotate", "monitor.alert", "features.define",
    "clusters.add", "clusters.drain", "queues.add", "queues.change",
})  # fmt: skip
"""What a person wants to hear of; the log has much more. Jobs are told by their own room, with how they ended."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened: when, what (a verb's name), to what, by whom."""

    at: float
    verb: str
    about: Ref
    who: str = ""
    state: str = ""
    name: str = ""
    """What its people call it, where its reference says nothing."""


def changed(view: View, told: Answers) -> Html:
    """The newest moments, newest first."""
    # Whoever may not read the log is not made to try: each try would be a denial, and stand in it.
    may = not view.lacks("audit.log")
    acts = " ".join(sorted(TOLD))
    entries = told.seen("audit", "log", verb=acts, since=view.now - DAY_S, limit=READ) if may else None
    found = newest((*logged(entries.entries if entries else ()), *noticed(view, told)), view.now - DAY_S)
    more = address("audit") if entries else ""
    if not found:
        return parts.card(
            view.t("home.changed"), h.p(view.t("home.none_changed"), class_="soft"), id="changed", wide=True
        )
    rows = [
        parts.Row((view.ago(one.at), view.t.of("home.did", one.verb), _named(view, one),
                   parts.badge(view, one.state) if one.state else "", h.bdi(one.who)),
                  id=f"home-{one.verb}-{one.about}")
        for one in found
    ]  # fmt: skip
    heads = (view.t("console.when"), view.t("home.what"), view.t("home.about"), view.t("console.state"),
             view.t("console.who"))  # fmt: skip
    return parts.card(view.t("home.changed"), parts.table(view, heads, rows, view.t("home.changed")), id="changed",
                      more=more, wide=True)  # fmt: skip


def _named(view: View, one: Moment) -> Html:
    return h.a(h.bdi(one.name), href=href(one.about), class_="ref") if one.name else parts.ref(view, one.about)


def logged(entries: Iterable[Entry]) -> list[Moment]:
    """What of the log is told."""
    return [
        Moment(one.at, one.verb, one.subject.bare, one.behalf or one.actor)
        for one in entries
        if one.subject.kind != "desk"
    ]


def noticed(view: View, told: Answers) -> list[Moment]:
    """What the rooms themselves show as new, for whoever may look into them."""
    jobs, flows = told.seen("jobs", "list", limit=20), told.seen("flows", "runs", limit=5)
    serve, runs = told.seen("serve", "list", limit=50), told.seen("track", "recent", limit=SHOWN_RUNS)
    found = list(_of_jobs(jobs.jobs if jobs else ()))
    found += [Moment(one.ended_at or one.started_at, "flows.end" if one.over else "flows.start", one.ref, one.begun_by,
                     one.state) for one in (flows.runs if flows else ())]  # fmt: skip
    found += list(_of_endpoints(serve.endpoints if serve else ()))
    found += [
        Moment(one.ended, "track.end", one.ref, one.author, one.status, one.title)
        for one in (runs.runs if runs else ())
    ]
    return found


def _of_jobs(jobs: Iterable[JobView]) -> Iterable[Moment]:
    for one in (each for each in jobs if not each.author.startswith(OF_WORK)):
        at = one.ended_at or one.submitted_at
        yield Moment(at, "jobs.end" if one.over else "jobs.add", one.ref, one.author, one.state)


def _of_endpoints(endpoints: Iterable[EndpointView]) -> Iterable[Moment]:
    for one in endpoints:
        for revision in one.revisions[-2:]:
            yield Moment(revision.made_at, "serve.add", one.ref, revision.made_by)


def newest(moments: Iterable[Moment], since: float) -> list[Moment]:
    """One line for each thing and act: the last; not older than `since`, and not one act alone."""
    kept: dict[tuple[str, str], Moment] = {}
    for one in sorted(moments, key=lambda one: (one.at, one.state)):
        if one.at >= since:
            kept[one.verb, str(one.about)] = one
    found, counts = list[Moment](), Counter[str]()
    for one in sorted(kept.values(), key=lambda one: -one.at):
        counts[one.verb] += 1
        if counts[one.verb] <= OF_EACH:
            found.append(one)
    return found[:SHOWN]
