"""Lists of flows: the flows themselves, their runs, what begins them, who is told."""

from collections.abc import Iterable

from falaj.console import parts
from falaj.console.markup import Html, h, join
from falaj.console.pages.flows import starts
from falaj.console.parts import Column, Field, Row
from falaj.console.view import View
from falaj.flows.records import CANCELLED, FAILED, RUNNING, SUCCEEDED, FlowView, RunView

SHOWN, PAGE = 100, 50


def body(view: View) -> Html:
    """Tabs, and the list that is asked for."""
    t = view.t
    made = {"": _flows, "runs": _runs, "clocks": _clocks, "hooks": _hooks}.get(view.query("tab"), _flows)
    named = (
        ("", t("flows.flows")),
        ("runs", t("flows.runs")),
        ("clocks", t("flows.begins")),
        ("hooks", t("flows.told")),
    )
    return join(parts.tabs(view, named), made(view))


def _flows(view: View) -> Html:
    wanted, project = view.query("q").casefold(), view.query("project")
    every: tuple[FlowView, ...] = view.here.flows.list(project=project)
    found = [one for one in every if wanted in f"{one.ref} {one.message} {one.steps}".casefold()]
    asked = parts.filters(view, (Field("q", view.t("console.search")), Field("project", view.t("console.project"))))
    if not found:
        hint = view.t("flows.no_flows_hint")
        return join(asked, parts.empty(view, view.t("flows.no_flows"), hint, "falaj flows save retrain.py"))
    rows = [
        Row((parts.ref(view, one.ref.bare), _steps(view, one), view.number(one.runs),
             h.code(one.schedule, dir="ltr") if one.schedule else "", view.ago(one.made_at), h.bdi(one.made_by)),
            id=str(one.ref.bare))
        for one in found[:SHOWN]
    ]  # fmt: skip
    heads = (view.t("console.name"), view.t("flows.steps"), Column(view.t("flows.runs"), "n"),
             view.t("flows.schedule"), view.t("console.made"), view.t("console.by"))  # fmt: skip
    more = h.p(view.t("flows.more", n=len(found) - SHOWN), class_="soft") if len(found) > SHOWN else None
    return join(asked, parts.table(view, heads, rows, view.t("flows.flows")), more)


def _steps(view: View, flow: FlowView) -> Html:
    names = [one.name for one in flow.plan.steps]
    return h.span(h.bdi(" → ".join(names[:6]) + (" …" if len(names) > 6 else ""), dir="ltr"),
                  title=view.t("flows.num_steps", n=len(names)))  # fmt: skip


def _runs(view: View) -> Html:
    states = [("", view.t("console.all"))] + [
        (one, view.t.of("console.state", one)) for one in (RUNNING, SUCCEEDED, FAILED, CANCELLED)
    ]
    asked = parts.filters(view, (Field("state", view.t("console.state"), "select", options=states),
                                 Field("project", view.t("console.project"))))  # fmt: skip
    page = view.here.flows.runs(
        state=view.query("state"), project=view.query("project"), after=view.query("page"), limit=PAGE
    )
    if not page.runs:
        hint = view.t("flows.no_runs_hint")
        return join(asked, parts.empty(view, view.t("flows.no_runs"), hint, "falaj flows run retrain.py"))
    return join(asked, runs_table(view, page.runs), parts.pager(view, page.next))


def runs_table(view: View, runs: Iterable[RunView]) -> Html:
    """Runs, one a row."""
    rows = [
        Row((parts.ref(view, one.ref, short=True), parts.badge(view, one.state), _done(view, one),
             view.ago(one.started_at), view.duration((one.ended_at or view.now) - one.started_at),
             h.bdi(one.begun_by), h.span(one.note or one.cause, dir="auto")), id=str(one.ref))
        for one in runs
    ]  # fmt: skip
    heads = (view.t("console.run"), view.t("console.state"), Column(view.t("flows.steps"), "n"),
             view.t("console.started"), Column(view.t("console.took"), "n"), view.t("flows.begun_by"),
             view.t("console.note"))  # fmt: skip
    return parts.table(view, heads, rows, view.t("flows.runs"))


def _done(view: View, run: RunView) -> Html:
    over = sum(one.ended_at > 0 or one.state in ("skipped", CANCELLED) for one in run.steps)
    return view.t("flows.of", done=over, all=len(run.steps))


def _clocks(view: View) -> Html:
    return join(
        parts.card(view.t("flows.schedules"), starts.schedules(view, view.here.flows.schedules())),
        parts.card(view.t("flows.triggers"), starts.triggers(view, view.here.flows.triggers())),
    )


def _hooks(view: View) -> Html:
    return join(
        parts.card(view.t("flows.hooks"), view.part(lambda: starts.hooks(view, view.here.flows.hooks()))),
        parts.card(view.t("flows.knocks"), view.part(lambda: starts.knocks(view, view.here.flows.knocks()))),
    )
