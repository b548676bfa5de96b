"""Pages of flows: the graph of a run as it goes, starting one by clicking, gates, clocks, hooks."""

import json

import pytest
from playwright.sync_api import expect

from falaj.console.operation_forms import bind_form_arguments
from falaj.console.pages.flows.flow_page import list_step_edges, make_param_field
from falaj.console.pages.flows.flow_triggers import list_upcoming_times
from falaj.core.operation import get_operation
from falaj.core.ref import Ref
from falaj.flows.records import STEP_GATE, FlowPlan, StepPlan
from falaj.flows.trigger_records import ScheduleView
from falaj.services import load_service_class
from tests.console.ground import Ground, Visitor
from tests.flows.yard import Yard, function, taken
from tests.servers.browser import Chromium

FLOW, RUN = "/console/flows/flow:fraud/retrain", "/console/flows/turn:fraud/retrain-3"


@pytest.fixture(scope="module")
def yard(platform: Ground) -> Yard:
    """The loop of flows, which takes a turn when the test says so; jobs end when it says so."""
    return Yard(platform)  # type: ignore[arg-type] # a ground has what a town has


def test_lists_tell_of_flows_runs_clocks_and_hooks(amal: Visitor) -> None:
    assert "prepare → train → validate" in amal.get("/console/flows").text
    runs = amal.get("/console/flows?tab=runs&state=failed").text
    assert "retrain-2" in runs
    assert "retrain-1" not in runs.partition("The same")[0]
    clocks = amal.get("/console/flows?tab=clocks").text
    assert "weekly" in clocks
    assert "new-rows" in clocks
    assert "Nobody is told of events" in amal.get("/console/flows?tab=hooks").text


def test_a_run_tells_what_failed_and_offers_to_go_on(amal: Visitor) -> None:
    seen = amal.get("/console/flows/turn:fraud/retrain-2")
    assert "3 values that are no numbers" in seen.text
    done = amal.press("/console/flows/turn:fraud/retrain-2", "flows", "retry")
    assert 'data-state="running"' in amal.follow(done).html


def test_a_flow_is_scheduled_by_a_form_and_stopped(amal: Visitor) -> None:
    amal.press(FLOW, "flows", "schedule", cron="15 4 * * *", zone="Asia/Dubai", name="early")
    page = amal.get("/console/flows/schedule:fraud/early")
    assert page.text.count("04:15") >= 5, "its next moments, in Gulf time"
    amal.press("/console/flows/schedule:fraud/early", "flows", "unschedule")
    assert amal.get("/console/flows/schedule:fraud/early").status == 404


def test_a_hook_is_pinged_and_shows_what_waits(platform: Ground) -> None:
    here, mona = platform.as_("mona"), platform.visitor("mona")
    here.flows.hook("hook:fraud/ci", "https://ci.example.com/falaj", event=("catalog.point",))
    mona.press("/console/flows/hook:fraud/ci", "flows", "ping")
    seen = mona.get("/console/flows/hook:fraud/ci")
    assert "flows.ping" in seen.tree.one("#deliveries").text
    assert "hook:fraud/ci" in mona.get("/console/flows?tab=hooks").html


def test_a_gate_is_opened_by_whoever_may(platform: Ground, yard: Yard) -> None:
    amal = platform.as_("amal")
    gate = StepPlan("ask", STEP_GATE, entry="approval", takes={"reason": "is it good?"})
    amal.flows.add("flow:fraud/asking", FlowPlan((gate,)))
    run = yard.turn(amal.flows.start("flow:fraud/asking"))
    page = f"/console/flows/{run.ref}"
    assert "is it good?" in platform.visitor("amal").get(page).tree.one("#gates").text
    assert "You cannot do this" in platform.visitor("amal").get(page).tree.one("#gates").text
    platform.visitor("badr").press(page, "approvals", "give")
    assert yard.turn(run, again=True).state == "succeeded"


def test_start_by_clicking_and_watch_the_graph_change(platform: Ground, yard: Yard, chromium: Chromium) -> None:
    tab = platform.tab(chromium, "amal")
    tab.open(FLOW)
    tab.page.locator("summary", has_text="Start").click()
    tab.page.locator("#start input[name='f.cause']").fill("by hand")
    tab.page.locator("#start").get_by_role("button", name="Start").click()
    expect(tab.page.locator(".notice.good")).to_be_visible()
    expect(tab.page.locator("#runs")).to_contain_text("by hand")
    run = next(one for one in yard.me.flows.runs().runs if one.cause == "by hand")
    tab.open(f"/console/flows/{run.ref}")
    node = tab.page.locator("#graph .node", has_text="prepare")
    expect(node).to_have_class("node t-wait")
    yard.turn(run)
    expect(node).to_have_class("node t-busy")
    yard.end(f"{run.ref.name}.prepare", {"rows": 600}, rows="dataset:fraud/transactions@v3")
    yard.turn(run)
    expect(node).to_have_class("node t-good")
    expect(tab.page.locator("#step-prepare")).to_contain_text("dataset:fraud/transactions@v3")
    assert tab.wrong() == []


@pytest.mark.parametrize(
    ("default", "name", "value", "required"),
    [("a text", "params.x", "a text", False), (None, "params.x", "", True), (0.5, "params:x", "0.5", False)],
)
def test_parameters_are_asked_for_by_their_kind(default: object, name: str, value: str, required: bool) -> None:
    field = make_param_field("x", default)
    assert (field.name, field.value, field.required) == (name, value, required)


def test_a_form_fills_a_mapping_key_by_key() -> None:
    start = get_operation(load_service_class("flows"), "start")
    form = {"_given": json.dumps({"flow": "flow:a/b"}), "f.params.city": "5", "f.params:rate": "0.5", "f.params:n": ""}
    assert bind_form_arguments(start, form)["params"] == {"city": "5", "rate": 0.5}


def test_edges_lead_from_what_is_needed() -> None:
    steps = (
        function("a"),
        function("b", takes={"x": taken("a")}),
        function("c", after=("b",), takes={"x": taken("a")}),
    )
    assert list_step_edges(FlowPlan(steps)) == [("a", "b"), ("a", "c"), ("b", "c")]


def test_the_next_moments_of_a_clock() -> None:
    ref = Ref.parse("schedule:a/b")
    one = ScheduleView(ref, Ref.parse("flow:a/b"), "0 3 * * *", "UTC", {}, "last", "amal", next_at=10_800.0)
    assert list_upcoming_times(one) == [10_800.0 + 86_400 * day for day in range(5)]
