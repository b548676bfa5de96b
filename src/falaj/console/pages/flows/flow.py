"""A flow: the graph of its steps, what it takes, how it is begun, and its runs."""

import json
from typing import Any

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.page import Page
from falaj.console.pages.flows import starts
from falaj.console.pages.flows.listing import runs_table
from falaj.console.parts import Field
from falaj.console.plots import Node, graph
from falaj.console.view import View
from falaj.core.ref import Ref
from falaj.core.sketch import kind_of
from falaj.flows.decide import needs
from falaj.flows.records import FlowPlan, FlowView, StepPlan

SHOWN = 20


def page(view: View, ref: Ref) -> Page:
    """One flow, at its newest version or the one that is named."""
    flow: FlowView = view.here.flows.show(ref)
    bare = flow.ref.bare
    body = join(
        h.div(_actions(view, flow), class_="actions"),
        parts.card(
            view.t("console.overview"),
            parts.facts([
                (view.t("console.version"), h.bdi(flow.ref.version)),
                (view.t("console.made"), join(view.when(flow.made_at), " ", h.bdi(flow.made_by))),
                (view.t("flows.code"), parts.ref(view, flow.code) if flow.code else ""),
                (view.t("flows.queue"), h.bdi(flow.plan.queue) if flow.plan.queue else ""),
                (view.t("flows.at_once"), view.number(flow.plan.at_once)),
                (view.t("flows.runs"), view.number(flow.runs)),
                (view.t("console.note"), h.span(flow.message, dir="auto") if flow.message else ""),
            ]),
        ),
        h.section(steps_graph(view, flow.plan, {}), class_="card", id="graph"),
        parts.card(view.t("flows.steps"), _steps(view, flow.plan), id="steps"),
        _params(view, flow.plan),
        parts.card(view.t("flows.runs"), view.part(lambda: _runs(view, bare)), id="runs"),
        _begins(view, bare),
    )  # fmt: skip
    return Page(h.bdi(bare.name), body, live=("flows",), scripts=("plots.js",))


def steps_graph(view: View, plan: FlowPlan, states: dict[str, str], links: dict[str, str] | None = None) -> Html:
    """Steps and what they wait for, with how each stands where that is known."""
    nodes = [
        Node(step.name, step.name, str(view.t.of("flows.kind", step.kind)), states.get(step.name, ""),
             (links or {}).get(step.name, f"#{parts.slug(f'step-{step.name}')}"))
        for step in plan.steps
    ]  # fmt: skip
    return graph(view, nodes, edges_of(plan), title=str(view.t("flows.graph")))


def edges_of(plan: FlowPlan) -> list[tuple[str, str]]:
    """From a step to those that need it."""
    return [(before, step.name) for step in plan.steps for before in sorted(needs(step))]


def _steps(view: View, plan: FlowPlan) -> Html:
    rows = [
        parts.Row((h.bdi(step.name), view.t.of("flows.kind", step.kind), h.code(step.entry, dir="ltr"),
                   _outputs(view, step), _rules(view, step)), id=f"step-{step.name}")
        for step in plan.steps
    ]  # fmt: skip
    heads = (view.t("flows.step"), view.t("console.kind"), view.t("flows.does"), view.t("flows.makes"),
             view.t("flows.rules"))  # fmt: skip
    return parts.table(view, heads, rows, view.t("flows.steps"))


def _outputs(view: View, step: StepPlan) -> Html:
    return join([h.div(parts.ref(view, one)) for one in step.outputs.values()])


def _rules(view: View, step: StepPlan) -> Html:
    t, said = view.t, list[Html]()
    said += [t("flows.only_when")] if step.when else []
    said += [t("flows.for_each", what=step.over)] if step.over else []
    said += [t("flows.retries", n=step.retries)] if step.retries else []
    said += [t("flows.always")] if step.always else []
    said += [join(t("flows.at_most"), " ", view.duration(step.timeout_s))] if step.timeout_s else []
    return join([h.div(one) for one in said])


def _params(view: View, plan: FlowPlan) -> Html:
    if not plan.params:
        return join()
    rows = [(h.bdi(name), value_of(view, value) if value is not None else view.t("flows.must_be_given"))
            for name, value in plan.params.items()]  # fmt: skip
    heads = (view.t("flows.parameter"), view.t("flows.default"))
    return parts.card(view.t("flows.parameters"), parts.table(view, heads, rows, view.t("flows.parameters")))


def value_of(view: View, value: Any) -> Html:
    """A parameter or a result: a link where it names a thing, else as JSON writes it."""
    if kind_of(value):
        return parts.ref(view, str(value))
    return h.code(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)[:300], dir="ltr")


def _actions(view: View, flow: FlowView) -> Html:
    t, bare = view.t, flow.ref.bare
    asked = [
        *(param_field(name, value) for name, value in flow.plan.params.items()),
        Field("cause", t("flows.cause"), hint=t("flows.cause_hint")),
        Field("fresh", t("flows.fresh"), "checkbox"),
    ]
    cron = (
        Field("cron", t("flows.cron"), value="30 3 * * sun-thu", required=True, hint=t("flows.cron_hint")),
        Field("zone", t("flows.clock"), value="Asia/Dubai"),
        Field("name", t("console.name"), hint=t("flows.name_hint")),
    )
    return join(
        parts.action(view, "flows", "start", {"flow": bare}, t("flows.start"), asked, primary=True, id="start"),
        parts.action(view, "flows", "schedule", {"flow": bare}, t("flows.set_clock"), cron),
        parts.action(view, "flows", "remove", {"flow": bare}, t("console.delete"), danger=True,
                     confirm=t("flows.remove_sure"), back="/console/flows"),
    )  # fmt: skip


def param_field(name: str, default: Any) -> Field:
    """How a parameter is asked for: a text as it is, anything else as JSON writes it."""
    if isinstance(default, str) or default is None:
        return Field(f"params.{name}", h.bdi(name), value=default or "", required=default is None)
    return Field(f"params:{name}", h.bdi(name), value=json.dumps(default, ensure_ascii=False))


def _runs(view: View, flow: Ref) -> Html:
    found = view.here.flows.runs(flow=flow, after=view.query("page"), limit=SHOWN)
    if not found.runs:
        return parts.empty(view, view.t("flows.no_runs"), view.t("flows.start_hint"), f"falaj flows run {flow}")
    return join(runs_table(view, found.runs), parts.pager(view, found.next))


def _begins(view: View, flow: Ref) -> Html:
    def clocks() -> Html:
        found = [one for one in view.here.flows.schedules(project=flow.project) if one.flow.bare == flow]
        return starts.schedules(view, found, flow)

    def events() -> Html:
        found = [one for one in view.here.flows.triggers(project=flow.project) if one.flow.bare == flow]
        return starts.triggers(view, found, flow)

    return join(
        parts.card(view.t("flows.schedules"), view.part(clocks), id="schedules"),
        parts.card(view.t("flows.triggers"), view.part(events), id="triggers"),
    )
