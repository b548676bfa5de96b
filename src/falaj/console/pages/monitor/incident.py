"""Incidents: what happened when, who looks after it, and where it leads."""

from typing import NamedTuple

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, address, href
from falaj.console.pages.monitor.drift import finding_table
from falaj.console.pages.monitor.listing import incident_state, watch_ref
from falaj.console.parts import Field, Row
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.monitor.records import ACKNOWLEDGED, OPEN, RESOLVED, Incident, Verdict

PAGE = 100


class Moment(NamedTuple):
    """Something that happened."""

    at: float
    what: str
    said: Html


def incidents(view: View) -> Page:
    """Incidents, newest first."""
    t, state = view.t, view.query("state")
    wanted = state if state in (OPEN, ACKNOWLEDGED, RESOLVED) else ""
    found: tuple[Incident, ...] = view.here.monitor.incidents(
        project=view.query("project"), state=wanted, limit=PAGE, after=view.query("page")
    )
    states = [("", t("console.all")), *((one, t.of("console.state", one)) for one in (OPEN, ACKNOWLEDGED, RESOLVED))]
    fields = (Field("state", t("console.state"), "select", options=states), Field("project", t("console.project")))
    heads = (t("monitor.incident"), t("console.state"), t("console.kind"), t("monitor.began"), t("monitor.said"),
             t("monitor.looks_after"))  # fmt: skip
    rows = [
        Row((parts.ref(view, one.ref, short=True), incident_state(view, one), t.of("monitor.what", one.what),
             view.when(one.since), view.english(one.said, class_="words"),
             h.bdi(one.resolved_by or one.acknowledged_by)),
            id=str(one.ref))
        for one in found
    ]  # fmt: skip
    listed = (
        parts.table(view, heads, rows, t("monitor.incidents")) if rows else parts.empty(view, t("monitor.no_incidents"))
    )
    more = parts.pager(view, found[-1].more if found else "")
    return Page(t("monitor.incidents"), join(parts.filters(view, fields), listed, more), live=("monitor",))


def incident(view: View) -> Page:
    """One incident."""
    one: Incident = view.here.monitor.incident(Ref.parse(view.args["ref"]).bare)
    t = view.t
    state = h.p(incident_state(view, one), " ", t.of("monitor.what", one.what), " · ",
                parts.ref(view, one.endpoint), id="state")  # fmt: skip
    lists = parts.facts([
        (t("monitor.began"), view.when(one.since)), (t("monitor.told"), view.when(one.opened_at)),
        (t("monitor.looks_after"), h.bdi(one.acknowledged_by) if one.acknowledged_by else ""),
        (t("monitor.cause"), h.span(one.cause, dir="auto") if one.cause else ""),
    ])  # fmt: skip
    watch = h.a(t("monitor.watch"), href=address(f"monitor/{watch_ref(one.endpoint)}"))
    evidence = finding_table(view, one.endpoint, one.findings, t("monitor.evidence")) if one.findings else EMPTY
    body = join(
        state, parts.notice("bad" if one.state == OPEN else "plain", view.english(one.said)),
        _actions(view, one), lists,
        view.part(lambda: _story(view, one)), _notes(view, one),
        parts.card(t("monitor.evidence"), evidence, h.p(watch)),
    )  # fmt: skip
    crumbs = ((t("monitor.incidents"), address("monitor/incidents")),)
    return Page(h.bdi(one.ref.name), body, crumbs=crumbs, live=("monitor",))


def _actions(view: View, one: Incident) -> Html:
    t, named = view.t, {"incident": one.ref}
    note = Field("note", t("console.note"), "textarea")
    cause = Field("cause", t("monitor.cause"), "textarea", required=True)
    text = Field("text", t("console.note"), "textarea", required=True)
    made = (
        [parts.action(view, "monitor", "acknowledge", named, t("monitor.acknowledge"), (note,), primary=True)]
        if one.state == OPEN
        else []
    )
    made += (
        [parts.action(view, "monitor", "resolve", named, t("monitor.resolve"), (cause,))]
        if one.state != RESOLVED
        else []
    )
    made += [parts.action(view, "monitor", "note", named, t("monitor.add_note"), (text,))]
    return h.div(made, class_="actions")


def _story(view: View, one: Incident) -> Html:
    """What happened, in order: what the incident remembers, and what was decided meanwhile."""
    t = view.t
    until = one.resolved_at or view.now
    decided: tuple[Verdict, ...] = view.here.monitor.verdicts(one.endpoint)
    told = next((v for v in decided if v.at == one.opened_at), None)
    link = f"{href(watch_ref(one.endpoint), tab='verdicts')}#verdict-{parts.slug(told.id)}" if told else ""
    moments = [
        Moment(one.since, t("monitor.story_began"), EMPTY),
        Moment(one.opened_at, t("monitor.story_told"), h.a(t("monitor.verdict"), href=link) if link else EMPTY),
    ]
    moments += [Moment(v.at, t.of("monitor.action", v.action), _decided(view, v)) for v in decided
                if one.since <= v.at <= until and v.what in ("", one.what) and v.action != "alert"]  # fmt: skip
    if one.acknowledged_at:
        moments.append(Moment(one.acknowledged_at, t("monitor.story_acknowledged"), h.bdi(one.acknowledged_by)))
    if one.resolved_at:
        moments.append(Moment(one.resolved_at, t("monitor.story_resolved"), h.bdi(one.resolved_by)))
    lines = [h.li(view.when(m.at), " ", h.strong(m.what), " ", m.said) for m in sorted(moments, key=lambda m: m.at)]
    model = view.part(lambda: _model(view, one, decided))
    log = h.p(h.a(t("monitor.in_log"), href=address("audit", {"about": str(one.ref)})))
    return parts.card(t("monitor.story"), h.ol(lines, class_="story"), model, log, id="story")


def _decided(view: View, verdict: Verdict) -> Html:
    run = parts.ref(view, verdict.run) if verdict.run else parts.ref(view, verdict.flow) if verdict.flow else EMPTY
    return join(parts.badge(view, verdict.state), " ", run, " ", h.span(verdict.outcome, dir="auto"))


def _model(view: View, one: Incident, decided: tuple[Verdict, ...]) -> Html:
    """The model that answered when it was told."""
    number = next((v.revision for v in decided if v.at == one.opened_at), 0)
    served = view.here.serve.show(one.endpoint).revisions
    found = next((kept for kept in served if kept.number == number), served[-1])
    return h.p(view.t("console.model"), ": ", parts.ref(view, found.model), class_="soft")


def _notes(view: View, one: Incident) -> Html:
    if not one.notes:
        return EMPTY
    said = [line.partition(": ") for line in one.notes]
    rows = [h.li(h.strong(h.bdi(who)), " ", h.span(words, dir="auto")) for who, _, words in said]
    return parts.card(view.t("monitor.notes"), h.ul(rows, class_="plain-list"), id="notes")
