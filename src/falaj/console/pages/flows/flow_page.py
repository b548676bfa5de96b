"""A flow: the graph of its steps, what it takes, how it is begun, and its runs."""

import json
from typing import Any

from falaj.console import components
from falaj.console.components import FormField
from falaj.console.markup import Html, h, join_html
from falaj.console.page import Page
from falaj.console.page_view import PageView
from falaj.console.pages.flows import flow_triggers
from falaj.console.pages.flows.flow_list import render_run_table
from falaj.console.plots import GraphNode, node_graph
from falaj.core.flow_draft import detect_resource_kind
from falaj.core.ref import Ref
from falaj.flows.records import FlowPlan, FlowView, StepPlan
from falaj.flows.run_decisions import list_needed_steps

MAX_SHOWN = 20


def render_flow_page(view: PageView, ref: Ref) -> Page:
    """One flow, at its newest version or the one that is named."""
    flow: FlowView = view.here.flows.show(ref)
    flow_ref = flow.ref.bare
    body = join_html(
        h.div(_render_actions(view, flow), class_="actions"),
        components.card(
            view.t("console.overview"),
            components.fact_list(
                [
                    (view.t("console.version"), h.bdi(flow.ref.version)),
                    (view.t("console.made"), join_html(view.when(flow.made_at), " ", h.bdi(flow.made_by))),
                    (view.t("flows.code"), components.ref_link(view, flow.code) if flow.code else ""),
                    (view.t("flows.queue"), h.bdi(flow.plan.queue) if flow.plan.queue else ""),
                    (view.t("flows.at_once"), view.number(flow.plan.at_once)),
                    (view.t("flows.runs"), view.number(flow.runs)),
                    (view.t("console.note"), h.span(flow.message, dir="auto") if flow.message else ""),
                ]
            ),
        ),
        h.section(render_step_graph(view, flow.plan, {}), class_="card", id="graph"),
        components.card(view.t("flows.steps"), _render_steps(view, flow.plan), id="steps"),
        _render_params(view, flow.plan),
        components.card(view.t("flows.runs"), view.part(lambda: _render_runs(view, flow_ref)), id="runs"),
        _render_triggers(view, flow_ref),
    )
    return Page(h.bdi(flow_ref.name), body, live=("flows",), scripts=("plots.js",))


def render_step_graph(
    view: PageView, plan: FlowPlan, states: dict[str, str], links: dict[str, str] | None = None
) -> Html:
    """Steps and what they wait for, with how each stands where that is known."""
    nodes = [
        GraphNode(
            step.name,
            step.name,
            str(view.t.of("flows.kind", step.kind)),
            states.get(step.name, ""),
            (links or {}).get(step.name, f"#{components.to_element_id(f'step-{step.name}')}"),
        )
        for step in plan.steps
    ]
    return node_graph(view, nodes, list_step_edges(plan), title=str(view.t("flows.graph")))


def list_step_edges(plan: FlowPlan) -> list[tuple[str, str]]:
    """From a step to those that need it."""
    return [(needed_step, step.name) for step in plan.steps for needed_step in sorted(list_needed_steps(step))]


def _render_steps(view: PageView, plan: FlowPlan) -> Html:
    rows = [
        components.TableRow(
            (
                h.bdi(step.name),
                view.t.of("flows.kind", step.kind),
                h.code(step.entry, dir="ltr"),
                _render_outputs(view, step),
                _render_rules(view, step),
            ),
            id=f"step-{step.name}",
        )
        for step in plan.steps
    ]
    headers = (
        view.t("flows.step"),
        view.t("console.kind"),
        view.t("flows.does"),
        view.t("flows.makes"),
        view.t("flows.rules"),
    )
    return components.table(view, headers, rows, view.t("flows.steps"))


def _render_outputs(view: PageView, step: StepPlan) -> Html:
    return join_html([h.div(components.ref_link(view, output_ref)) for output_ref in step.outputs.values()])


def _render_rules(view: PageView, step: StepPlan) -> Html:
    t, rule_texts = view.t, list[Html]()
    rule_texts += [t("flows.only_when")] if step.when else []
    rule_texts += [t("flows.for_each", what=step.over)] if step.over else []
    rule_texts += [t("flows.retries", n=step.retries)] if step.retries else []
    rule_texts += [t("flows.always")] if step.always else []
    rule_texts += [join_html(t("flows.at_most"), " ", view.duration(step.timeout_s))] if step.timeout_s else []
    return join_html([h.div(rule_text) for rule_text in rule_texts])


def _render_params(view: PageView, plan: FlowPlan) -> Html:
    if not plan.params:
        return join_html()
    rows = [
        (h.bdi(name), render_value(view, value) if value is not None else view.t("flows.must_be_given"))
        for name, value in plan.params.items()
    ]
    headers = (view.t("flows.parameter"), view.t("flows.default"))
    return components.card(
        view.t("flows.parameters"), components.table(view, headers, rows, view.t("flows.parameters"))
    )


def render_value(view: PageView, value: Any) -> Html:
    """A parameter or a result: a link where it names a thing, else as JSON writes it."""
    if detect_resource_kind(value):
        return components.ref_link(view, str(value))
    return h.code(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)[:300], dir="ltr")


def _render_actions(view: PageView, flow: FlowView) -> Html:
    t, flow_ref = view.t, flow.ref.bare
    start_fields = [
        *(make_param_field(name, value) for name, value in flow.plan.params.items()),
        FormField("cause", t("flows.cause"), hint=t("flows.cause_hint")),
        FormField("fresh", t("flows.fresh"), "checkbox"),
    ]
    cron_fields = (
        FormField("cron", t("flows.cron"), value="30 3 * * sun-thu", required=True, hint=t("flows.cron_hint")),
        FormField("zone", t("flows.clock"), value="Asia/Dubai"),
        FormField("name", t("console.name"), hint=t("flows.name_hint")),
    )
    return join_html(
        components.action_button(
            view, "flows", "start", {"flow": flow_ref}, t("flows.start"), start_fields, primary=True, id="start"
        ),
        components.action_button(view, "flows", "schedule", {"flow": flow_ref}, t("flows.set_clock"), cron_fields),
        components.action_button(
            view,
            "flows",
            "remove",
            {"flow": flow_ref},
            t("console.delete"),
            danger=True,
            confirm=t("flows.remove_sure"),
            back="/console/flows",
        ),
    )


def make_param_field(name: str, default: Any) -> FormField:
    """How a parameter is asked for: a text as it is, anything else as JSON writes it."""
    if isinstance(default, str) or default is None:
        return FormField(f"params.{name}", h.bdi(name), value=default or "", required=default is None)
    return FormField(f"params:{name}", h.bdi(name), value=json.dumps(default, ensure_ascii=False))


def _render_runs(view: PageView, flow: Ref) -> Html:
    run_page = view.here.flows.runs(flow=flow, after=view.query("page"), limit=MAX_SHOWN)
    if not run_page.runs:
        return components.empty_state(
            view, view.t("flows.no_runs"), view.t("flows.start_hint"), f"falaj flows run {flow}"
        )
    return join_html(render_run_table(view, run_page.runs), components.pager(view, run_page.next))


def _render_triggers(view: PageView, flow: Ref) -> Html:
    def render_schedules() -> Html:
        schedule_views = [
            schedule_view
            for schedule_view in view.here.flows.schedules(project=flow.project)
            if schedule_view.flow.bare == flow
        ]
        return flow_triggers.render_schedule_table(view, schedule_views, flow)

    def render_event_triggers() -> Html:
        trigger_views = [
            trigger_view
            for trigger_view in view.here.flows.triggers(project=flow.project)
            if trigger_view.flow.bare == flow
        ]
        return flow_triggers.render_trigger_table(view, trigger_views, flow)

    return join_html(
        components.card(view.t("flows.schedules"), view.part(render_schedules), id="schedules"),
        components.card(view.t("flows.triggers"), view.part(render_event_triggers), id="triggers"),
    )
