"""Incidents: what happened when, who looks after it, and where it leads."""

from typing import NamedTuple

from falaj.console import components
from falaj.console.components import FormField, TableRow
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_resource_url, build_url
from falaj.console.page_view import PageView
from falaj.console.pages.monitor.drift_page import render_finding_table
from falaj.console.pages.monitor.watch_list import make_watch_ref, render_incident_state
from falaj.core.ref import Ref
from falaj.monitor.records import INCIDENT_ACKNOWLEDGED, INCIDENT_OPEN, INCIDENT_RESOLVED, Incident, WatchVerdict

PAGE_SIZE = 100


class IncidentMoment(NamedTuple):
    """Something that happened."""

    at: float
    what: str
    said: Html


def render_incidents_page(view: PageView) -> Page:
    """Incidents, newest first."""
    t, state = view.t, view.query("state")
    chosen_state = state if state in (INCIDENT_OPEN, INCIDENT_ACKNOWLEDGED, INCIDENT_RESOLVED) else ""
    incident_list: tuple[Incident, ...] = view.here.monitor.incidents(
        project=view.query("project"), state=chosen_state, limit=PAGE_SIZE, after=view.query("page")
    )
    state_options = [
        ("", t("console.all")),
        *((item, t.of("console.state", item)) for item in (INCIDENT_OPEN, INCIDENT_ACKNOWLEDGED, INCIDENT_RESOLVED)),
    ]
    fields = (
        FormField("state", t("console.state"), "select", options=state_options),
        FormField("project", t("console.project")),
    )
    headers = (
        t("monitor.incident"),
        t("console.state"),
        t("console.kind"),
        t("monitor.began"),
        t("monitor.said"),
        t("monitor.looks_after"),
    )
    rows = [
        TableRow(
            (
                components.ref_link(view, item.ref, short=True),
                render_incident_state(view, item),
                t.of("monitor.what", item.what),
                view.when(item.since),
                view.english(item.said, class_="words"),
                h.bdi(item.resolved_by or item.acknowledged_by),
            ),
            id=str(item.ref),
        )
        for item in incident_list
    ]
    incident_table = (
        components.table(view, headers, rows, t("monitor.incidents"))
        if rows
        else components.empty_state(view, t("monitor.no_incidents"))
    )
    page_links = components.pager(view, incident_list[-1].more if incident_list else "")
    return Page(
        t("monitor.incidents"),
        join_html(components.filter_form(view, fields), incident_table, page_links),
        live=("monitor",),
    )


def render_incident_page(view: PageView) -> Page:
    """One incident."""
    incident_record: Incident = view.here.monitor.incident(Ref.parse(view.args["ref"]).bare)
    t = view.t
    state_line = h.p(
        render_incident_state(view, incident_record),
        " ",
        t.of("monitor.what", incident_record.what),
        " · ",
        components.ref_link(view, incident_record.endpoint),
        id="state",
    )
    fact_list = components.fact_list(
        [
            (t("monitor.began"), view.when(incident_record.since)),
            (t("monitor.told"), view.when(incident_record.opened_at)),
            (
                t("monitor.looks_after"),
                h.bdi(incident_record.acknowledged_by) if incident_record.acknowledged_by else "",
            ),
            (t("monitor.cause"), h.span(incident_record.cause, dir="auto") if incident_record.cause else ""),
        ]
    )
    watch = h.a(t("monitor.watch"), href=build_url(f"monitor/{make_watch_ref(incident_record.endpoint)}"))
    evidence = (
        render_finding_table(view, incident_record.endpoint, incident_record.findings, t("monitor.evidence"))
        if incident_record.findings
        else EMPTY
    )
    body = join_html(
        state_line,
        components.notice(
            "bad" if incident_record.state == INCIDENT_OPEN else "plain", view.english(incident_record.said)
        ),
        _render_actions(view, incident_record),
        fact_list,
        view.part(lambda: _render_story(view, incident_record)),
        _render_notes(view, incident_record),
        components.card(t("monitor.evidence"), evidence, h.p(watch)),
    )
    crumbs = ((t("monitor.incidents"), build_url("monitor/incidents")),)
    return Page(h.bdi(incident_record.ref.name), body, crumbs=crumbs, live=("monitor",))


def _render_actions(view: PageView, incident: Incident) -> Html:
    t, incident_argument = view.t, {"incident": incident.ref}
    note_field = FormField("note", t("console.note"), "textarea")
    cause_field = FormField("cause", t("monitor.cause"), "textarea", required=True)
    text_field = FormField("text", t("console.note"), "textarea", required=True)
    buttons = (
        [
            components.action_button(
                view, "monitor", "acknowledge", incident_argument, t("monitor.acknowledge"), (note_field,), primary=True
            )
        ]
        if incident.state == INCIDENT_OPEN
        else []
    )
    buttons += (
        [components.action_button(view, "monitor", "resolve", incident_argument, t("monitor.resolve"), (cause_field,))]
        if incident.state != INCIDENT_RESOLVED
        else []
    )
    buttons += [
        components.action_button(view, "monitor", "note", incident_argument, t("monitor.add_note"), (text_field,))
    ]
    return h.div(buttons, class_="actions")


def _render_story(view: PageView, incident: Incident) -> Html:
    """What happened, in order: what the incident remembers, and what was decided meanwhile."""
    t = view.t
    ended_at = incident.resolved_at or view.now
    verdicts: tuple[WatchVerdict, ...] = view.here.monitor.verdicts(incident.endpoint)
    opening_verdict = next((verdict for verdict in verdicts if verdict.at == incident.opened_at), None)
    verdict_url = ""
    if opening_verdict:
        verdicts_url = build_resource_url(make_watch_ref(incident.endpoint), tab="verdicts")
        verdict_url = f"{verdicts_url}#verdict-{components.to_element_id(opening_verdict.id)}"
    moments = [
        IncidentMoment(incident.since, t("monitor.story_began"), EMPTY),
        IncidentMoment(
            incident.opened_at,
            t("monitor.story_told"),
            h.a(t("monitor.verdict"), href=verdict_url) if verdict_url else EMPTY,
        ),
    ]
    moments += [
        IncidentMoment(verdict.at, t.of("monitor.action", verdict.action), _render_outcome(view, verdict))
        for verdict in verdicts
        if incident.since <= verdict.at <= ended_at
        and verdict.what in ("", incident.what)
        and verdict.action != "alert"
    ]
    if incident.acknowledged_at:
        moments.append(
            IncidentMoment(incident.acknowledged_at, t("monitor.story_acknowledged"), h.bdi(incident.acknowledged_by))
        )
    if incident.resolved_at:
        moments.append(IncidentMoment(incident.resolved_at, t("monitor.story_resolved"), h.bdi(incident.resolved_by)))
    moment_lines = [
        h.li(view.when(moment.at), " ", h.strong(moment.what), " ", moment.said)
        for moment in sorted(moments, key=lambda moment: moment.at)
    ]
    model_line = view.part(lambda: _render_model(view, incident, verdicts))
    log_link = h.p(h.a(t("monitor.in_log"), href=build_url("audit", {"about": str(incident.ref)})))
    return components.card(t("monitor.story"), h.ol(moment_lines, class_="story"), model_line, log_link, id="story")


def _render_outcome(view: PageView, verdict: WatchVerdict) -> Html:
    outcome_link = (
        components.ref_link(view, verdict.run)
        if verdict.run
        else components.ref_link(view, verdict.flow)
        if verdict.flow
        else EMPTY
    )
    return join_html(components.badge(view, verdict.state), " ", outcome_link, " ", h.span(verdict.outcome, dir="auto"))


def _render_model(view: PageView, incident: Incident, verdicts: tuple[WatchVerdict, ...]) -> Html:
    """The model that answered when it was told."""
    revision_number = next((verdict.revision for verdict in verdicts if verdict.at == incident.opened_at), 0)
    revisions = view.here.serve.show(incident.endpoint).revisions
    revision = next((candidate for candidate in revisions if candidate.number == revision_number), revisions[-1])
    return h.p(view.t("console.model"), ": ", components.ref_link(view, revision.model), class_="soft")


def _render_notes(view: PageView, incident: Incident) -> Html:
    if not incident.notes:
        return EMPTY
    authors_and_texts = [line.partition(": ") for line in incident.notes]
    rows = [
        h.li(h.strong(h.bdi(author)), " ", h.span(note_text, dir="auto")) for author, _, note_text in authors_and_texts
    ]
    return components.card(view.t("monitor.notes"), h.ul(rows, class_="plain-list"), id="notes")
