"""Lists of flows: the flows themselves, their runs, what begins them, who is told."""

from collections.abc import Iterable

from falaj.console import components
from falaj.console.components import ColumnHeader, FormField, TableRow
from falaj.console.markup import Html, h, join_html
from falaj.console.page_view import PageView
from falaj.console.pages.flows import flow_triggers
from falaj.flows.records import CANCELLED, FAILED, RUNNING, SUCCEEDED, FlowView, RunView

MAX_SHOWN, PAGE_SIZE = 100, 50


def render_list(view: PageView) -> Html:
    """Tabs, and the list that is asked for."""
    t = view.t
    render_tab = {"": _render_flows, "runs": _render_runs, "clocks": _render_schedules, "hooks": _render_webhooks}.get(
        view.query("tab"), _render_flows
    )
    tab_labels = (
        ("", t("flows.flows")),
        ("runs", t("flows.runs")),
        ("clocks", t("flows.begins")),
        ("hooks", t("flows.told")),
    )
    return join_html(components.tabs(view, tab_labels), render_tab(view))


def _render_flows(view: PageView) -> Html:
    search_text, project = view.query("q").casefold(), view.query("project")
    flow_views: tuple[FlowView, ...] = view.here.flows.list(project=project)
    matching_flows = [
        flow for flow in flow_views if search_text in f"{flow.ref} {flow.message} {flow.steps}".casefold()
    ]
    filter_bar = components.filter_form(
        view, (FormField("q", view.t("console.search")), FormField("project", view.t("console.project")))
    )
    if not matching_flows:
        hint = view.t("flows.no_flows_hint")
        return join_html(
            filter_bar, components.empty_state(view, view.t("flows.no_flows"), hint, "falaj flows save retrain.py")
        )
    rows = [
        TableRow(
            (
                components.ref_link(view, flow.ref.bare),
                _render_steps(view, flow),
                view.number(flow.runs),
                h.code(flow.schedule, dir="ltr") if flow.schedule else "",
                view.ago(flow.made_at),
                h.bdi(flow.made_by),
            ),
            id=str(flow.ref.bare),
        )
        for flow in matching_flows[:MAX_SHOWN]
    ]
    headers = (
        view.t("console.name"),
        view.t("flows.steps"),
        ColumnHeader(view.t("flows.runs"), "n"),
        view.t("flows.schedule"),
        view.t("console.made"),
        view.t("console.by"),
    )
    truncation_note = (
        h.p(view.t("flows.more", n=len(matching_flows) - MAX_SHOWN), class_="soft")
        if len(matching_flows) > MAX_SHOWN
        else None
    )
    return join_html(filter_bar, components.table(view, headers, rows, view.t("flows.flows")), truncation_note)


def _render_steps(view: PageView, flow: FlowView) -> Html:
    step_names = [step.name for step in flow.plan.steps]
    return h.span(
        h.bdi(" → ".join(step_names[:6]) + (" …" if len(step_names) > 6 else ""), dir="ltr"),
        title=view.t("flows.num_steps", n=len(step_names)),
    )


def _render_runs(view: PageView) -> Html:
    states = [("", view.t("console.all"))] + [
        (state, view.t.of("console.state", state)) for state in (RUNNING, SUCCEEDED, FAILED, CANCELLED)
    ]
    filter_bar = components.filter_form(
        view,
        (
            FormField("state", view.t("console.state"), "select", options=states),
            FormField("project", view.t("console.project")),
        ),
    )
    page = view.here.flows.runs(
        state=view.query("state"), project=view.query("project"), after=view.query("page"), limit=PAGE_SIZE
    )
    if not page.runs:
        hint = view.t("flows.no_runs_hint")
        return join_html(
            filter_bar, components.empty_state(view, view.t("flows.no_runs"), hint, "falaj flows run retrain.py")
        )
    return join_html(filter_bar, render_run_table(view, page.runs), components.pager(view, page.next))


def render_run_table(view: PageView, runs: Iterable[RunView]) -> Html:
    """Runs, one a row."""
    rows = [
        TableRow(
            (
                components.ref_link(view, run.ref, short=True),
                components.badge(view, run.state),
                _format_step_count(view, run),
                view.ago(run.started_at),
                view.duration((run.ended_at or view.now) - run.started_at),
                h.bdi(run.begun_by),
                h.span(run.note or run.cause, dir="auto"),
            ),
            id=str(run.ref),
        )
        for run in runs
    ]
    headers = (
        view.t("console.run"),
        view.t("console.state"),
        ColumnHeader(view.t("flows.steps"), "n"),
        view.t("console.started"),
        ColumnHeader(view.t("console.took"), "n"),
        view.t("flows.begun_by"),
        view.t("console.note"),
    )
    return components.table(view, headers, rows, view.t("flows.runs"))


def _format_step_count(view: PageView, run: RunView) -> Html:
    num_ended = sum(step.ended_at > 0 or step.state in ("skipped", CANCELLED) for step in run.steps)
    return view.t("flows.of", done=num_ended, all=len(run.steps))


def _render_schedules(view: PageView) -> Html:
    return join_html(
        components.card(
            view.t("flows.schedules"), flow_triggers.render_schedule_table(view, view.here.flows.schedules())
        ),
        components.card(view.t("flows.triggers"), flow_triggers.render_trigger_table(view, view.here.flows.triggers())),
    )


def _render_webhooks(view: PageView) -> Html:
    return join_html(
        components.card(
            view.t("flows.hooks"), view.part(lambda: flow_triggers.render_webhook_table(view, view.here.flows.hooks()))
        ),
        components.card(
            view.t("flows.knocks"),
            view.part(lambda: flow_triggers.render_inbound_webhook_table(view, view.here.flows.knocks())),
        ),
    )
