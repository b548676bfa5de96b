"""A run of a flow: its graph as it goes, its steps with their jobs, the gates it waits at, what it made."""

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField
from falaj.console.markup import EMPTY, Html, h, join_html
from falaj.console.page import Page, build_resource_url
from falaj.console.page_view import PageView
from falaj.console.pages.flows.flow_page import render_step_graph, render_value
from falaj.console.plots import TimelineSpan, timeline
from falaj.core.ref import Ref
from falaj.flows.records import CANCELLED, FAILED, RUNNING, STEP_GATE, FlowPlan, RunView, StepView

APPROVAL_COMMAND = "falaj approvals give "
"""How the note of a gate begins that waits for people."""
MAX_SHOWN_JOBS = 5


def render_run_page(view: PageView, ref: Ref) -> Page:
    """One run."""
    run: RunView = view.here.flows.look(ref)
    plan: FlowPlan | None = None

    def render_graph() -> Html:
        nonlocal plan
        plan = view.here.flows.show(run.flow).plan
        states = {step.name: step.state for step in run.steps}
        return render_step_graph(
            view, plan, states, {step.name: build_resource_url(step.jobs[0]) for step in run.steps if step.jobs}
        )

    step_graph = view.part(render_graph)
    body = join_html(
        h.div(components.badge(view, run.state), _render_actions(view, run), class_="actions", id="state"),
        components.notice("bad" if run.state == FAILED else "plain", run.note) if run.note else None,
        _render_gates(view, run, plan) if plan else None,
        h.section(step_graph, class_="card", id="graph"),
        components.card(view.t("flows.steps"), _render_steps(view, run), id="steps"),
        _render_timeline(view, run),
        components.card(view.t("console.overview"), _render_facts(view, run), _render_params(view, run)),
    )
    crumbs = ((h.bdi(run.flow.name), build_resource_url(run.flow.bare)),)
    return Page(h.bdi(run.ref.name), body, crumbs, live=("flows", "jobs", "approvals"), scripts=("plots.js",))


def _render_actions(view: PageView, run: RunView) -> Html:
    t = view.t
    if run.state in (FAILED, CANCELLED):
        return components.action_button(view, "flows", "retry", {"turn": run.ref}, t("flows.retry"), primary=True)
    if run.over:
        return EMPTY
    reason_fields = (FormField("reason", t("console.reason")),)
    return components.action_button(
        view, "flows", "cancel", {"turn": run.ref}, t("flows.cancel"), reason_fields, danger=True
    )


def _render_facts(view: PageView, run: RunView) -> Html:
    return components.fact_list(
        [
            (view.t("flows.flow"), components.ref_link(view, run.flow)),
            (view.t("flows.begun_by"), h.bdi(run.begun_by)),
            (view.t("flows.cause"), h.span(run.cause, dir="auto") if run.cause else ""),
            (view.t("console.started"), view.when(run.started_at)),
            (view.t("console.ended"), view.when(run.ended_at) if run.ended_at else ""),
            (view.t("console.took"), view.duration((run.ended_at or view.now) - run.started_at)),
        ]
    )


def _render_params(view: PageView, run: RunView) -> Html:
    return components.fact_list([(h.bdi(name), render_value(view, value)) for name, value in run.params.items()])


def _render_gates(view: PageView, run: RunView, plan: FlowPlan) -> Html:
    """What somebody must do before it goes on."""
    gate_names = {step.name for step in plan.steps if step.kind == STEP_GATE}
    waiting_steps = [
        waiting_step for waiting_step in run.steps if waiting_step.name in gate_names and waiting_step.state == RUNNING
    ]
    gate_notices = [
        view.part(lambda waiting_step=waiting_step: _render_gate(view, waiting_step))  # type: ignore[misc]
        for waiting_step in waiting_steps
    ]
    return components.card(view.t("flows.gates"), *gate_notices, id="gates") if gate_notices else EMPTY


def _render_gate(view: PageView, step: StepView) -> Html:
    if not step.note.startswith(APPROVAL_COMMAND):
        return components.notice("warn", join_html(h.bdi(step.name), ": ", step.note))
    approval = Ref.parse(step.note.removeprefix(APPROVAL_COMMAND))
    approval_state = view.here.approvals.show(approval)
    exact_arguments = {"approval": approval, "digest": approval_state.approval.digest}
    reason_fields = (FormField("reason", view.t("console.reason")),)
    return join_html(
        components.notice(
            "warn", join_html(h.bdi(step.name), ": ", approval_state.approval.reason), approval_state.standing.why
        ),
        h.div(
            components.action_button(
                view, "approvals", "give", exact_arguments, view.t("flows.approve"), reason_fields, primary=True
            ),
            components.action_button(
                view, "approvals", "refuse", exact_arguments, view.t("flows.refuse"), reason_fields, danger=True
            ),
            components.ref_link(view, approval),
            class_="actions",
        ),
    )


def _render_steps(view: PageView, run: RunView) -> Html:
    rows = [
        components.TableRow(
            (
                h.bdi(step.name),
                components.badge(view, step.state),
                _render_jobs(view, step),
                _format_duration(view, step),
                view.number(step.tries),
                _render_outputs(view, step),
                h.span(step.note, dir="auto"),
            ),
            id=f"step-{step.name}",
            state="bad" if step.state == FAILED else "",
        )
        for step in run.steps
    ]
    headers = (
        view.t("flows.step"),
        view.t("console.state"),
        view.t("flows.jobs"),
        ColumnHeader(view.t("console.took"), "n"),
        ColumnHeader(view.t("flows.tries"), "n"),
        view.t("flows.gave"),
        view.t("console.note"),
    )
    return components.table(view, headers, rows, view.t("flows.steps"))


def _render_jobs(view: PageView, step: StepView) -> Html:
    if step.cached:
        return h.span(view.t("flows.known"), " ", components.ref_link(view, step.cached, short=True), class_="soft")
    job_links = [
        h.div(
            components.ref_link(view, job, short=True),
            " ",
            h.small(h.a(view.t("flows.logs"), href=build_resource_url(job, tab="logs"))),
        )
        for job in step.jobs[:MAX_SHOWN_JOBS]
    ]
    num_hidden = len(step.jobs) - MAX_SHOWN_JOBS
    return join_html(job_links, h.small(view.t("flows.more", n=num_hidden), class_="soft") if num_hidden > 0 else None)


def _format_duration(view: PageView, step: StepView) -> Html:
    return view.duration((step.ended_at or view.now) - step.started_at) if step.started_at else EMPTY


def _render_outputs(view: PageView, step: StepView) -> Html:
    shown_outputs = list(step.outputs.items())[:6]
    return join_html(
        [h.div(h.small(h.bdi(name), " ", class_="soft"), render_value(view, value)) for name, value in shown_outputs]
    )


def _render_timeline(view: PageView, run: RunView) -> Html:
    spans = [
        TimelineSpan(
            step.name,
            step.name,
            step.started_at,
            step.ended_at or view.now,
            step.state,
            build_resource_url(step.jobs[0]) if step.jobs else "",
        )
        for step in run.steps
        if step.started_at
    ]
    if not spans:
        return EMPTY
    return h.section(timeline(view, spans, title=str(view.t("flows.times"))), class_="card", id="times")
