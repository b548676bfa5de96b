"""A run of a flow: its graph as it goes, its steps with their jobs, the gates it waits at, what it made."""

from falaj.console import parts
from falaj.console.markup import EMPTY, Html, h, join
from falaj.console.page import Page, href
from falaj.console.pages.flows.flow import steps_graph, value_of
from falaj.console.parts import Column, Field
from falaj.console.plots import Span, timeline
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.flows.records import CANCELLED, FAILED, GATE, RUNNING, FlowPlan, RunView, StepView

APPROVES = "falaj approvals give "
"""How the note of a gate begins that waits for people."""
SHOWN_JOBS = 5


def page(view: View, ref: Ref) -> Page:
    """One run."""
    run: RunView = view.here.flows.look(ref)
    plan: FlowPlan | None = None

    def drawn() -> Html:
        nonlocal plan
        plan = view.here.flows.show(run.flow).plan
        states = {one.name: one.state for one in run.steps}
        return steps_graph(view, plan, states, {one.name: href(one.jobs[0]) for one in run.steps if one.jobs})

    graph = view.part(drawn)
    body = join(
        h.div(parts.badge(view, run.state), _actions(view, run), class_="actions", id="state"),
        parts.notice("bad" if run.state == FAILED else "plain", run.note) if run.note else None,
        _gates(view, run, plan) if plan else None,
        h.section(graph, class_="card", id="graph"),
        parts.card(view.t("flows.steps"), _steps(view, run), id="steps"),
        _spans(view, run),
        parts.card(view.t("console.overview"), _facts(view, run), _params(view, run)),
    )
    crumbs = ((h.bdi(run.flow.name), href(run.flow.bare)),)
    return Page(h.bdi(run.ref.name), body, crumbs, live=("flows", "jobs", "approvals"), scripts=("plots.js",))


def _actions(view: View, run: RunView) -> Html:
    t = view.t
    if run.state in (FAILED, CANCELLED):
        return parts.action(view, "flows", "retry", {"turn": run.ref}, t("flows.retry"), primary=True)
    if run.over:
        return EMPTY
    why = (Field("reason", t("console.reason")),)
    return parts.action(view, "flows", "cancel", {"turn": run.ref}, t("flows.cancel"), why, danger=True)


def _facts(view: View, run: RunView) -> Html:
    return parts.facts([
        (view.t("flows.flow"), parts.ref(view, run.flow)),
        (view.t("flows.begun_by"), h.bdi(run.begun_by)),
        (view.t("flows.cause"), h.span(run.cause, dir="auto") if run.cause else ""),
        (view.t("console.started"), view.when(run.started_at)),
        (view.t("console.ended"), view.when(run.ended_at) if run.ended_at else ""),
        (view.t("console.took"), view.duration((run.ended_at or view.now) - run.started_at)),
    ])  # fmt: skip


def _params(view: View, run: RunView) -> Html:
    return parts.facts([(h.bdi(name), value_of(view, value)) for name, value in run.params.items()])


def _gates(view: View, run: RunView, plan: FlowPlan) -> Html:
    """What somebody must do before it goes on."""
    gates = {step.name for step in plan.steps if step.kind == GATE}
    waiting = [one for one in run.steps if one.name in gates and one.state == RUNNING]
    made = [view.part(lambda one=one: _gate(view, one)) for one in waiting]  # type: ignore[misc]
    return parts.card(view.t("flows.gates"), *made, id="gates") if made else EMPTY


def _gate(view: View, step: StepView) -> Html:
    if not step.note.startswith(APPROVES):
        return parts.notice("warn", join(h.bdi(step.name), ": ", step.note))
    approval = Ref.parse(step.note.removeprefix(APPROVES))
    asked = view.here.approvals.show(approval)
    given = {"approval": approval, "digest": asked.approval.digest}
    why = (Field("reason", view.t("console.reason")),)
    return join(
        parts.notice("warn", join(h.bdi(step.name), ": ", asked.approval.reason), asked.standing.why),
        h.div(
            parts.action(view, "approvals", "give", given, view.t("flows.approve"), why, primary=True),
            parts.action(view, "approvals", "refuse", given, view.t("flows.refuse"), why, danger=True),
            parts.ref(view, approval), class_="actions",
        ),
    )  # fmt: skip


def _steps(view: View, run: RunView) -> Html:
    rows = [
        parts.Row((h.bdi(one.name), parts.badge(view, one.state), _jobs(view, one), _took(view, one),
                   view.number(one.tries), _gave(view, one), h.span(one.note, dir="auto")),
                  id=f"step-{one.name}", state="bad" if one.state == FAILED else "")
        for one in run.steps
    ]  # fmt: skip
    heads = (view.t("flows.step"), view.t("console.state"), view.t("flows.jobs"), Column(view.t("console.took"), "n"),
             Column(view.t("flows.tries"), "n"), view.t("flows.gave"), view.t("console.note"))  # fmt: skip
    return parts.table(view, heads, rows, view.t("flows.steps"))


def _jobs(view: View, step: StepView) -> Html:
    if step.cached:
        return h.span(view.t("flows.known"), " ", parts.ref(view, step.cached, short=True), class_="soft")
    links = [
        h.div(parts.ref(view, job, short=True), " ", h.small(h.a(view.t("flows.logs"), href=href(job, tab="logs"))))
        for job in step.jobs[:SHOWN_JOBS]
    ]
    more = len(step.jobs) - SHOWN_JOBS
    return join(links, h.small(view.t("flows.more", n=more), class_="soft") if more > 0 else None)


def _took(view: View, step: StepView) -> Html:
    return view.duration((step.ended_at or view.now) - step.started_at) if step.started_at else EMPTY


def _gave(view: View, step: StepView) -> Html:
    shown = list(step.outputs.items())[:6]
    return join([h.div(h.small(h.bdi(name), " ", class_="soft"), value_of(view, one)) for name, one in shown])


def _spans(view: View, run: RunView) -> Html:
    spans = [
        Span(one.name, one.name, one.started_at, one.ended_at or view.now, one.state,
             href(one.jobs[0]) if one.jobs else "")
        for one in run.steps
        if one.started_at
    ]  # fmt: skip
    if not spans:
        return EMPTY
    return h.section(timeline(view, spans, title=str(view.t("flows.times"))), class_="card", id="times")
