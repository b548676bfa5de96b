"""Pages of endpoints: what they say, what they let people do, and a roll-out whose verdict comes while one looks."""

from typing import Any

import pytest

from falaj.console.pages.serve.input_forms import (
    ModelInput,
    parse_metadata_inputs,
    parse_signature_inputs,
    parse_values,
)
from falaj.console.pages.serve.rollout_card import compute_progress
from falaj.core.errors import Invalid
from falaj.serve.records import MetricJudgement
from falaj.serve.request_counts import CountRow, latency_bucket
from falaj.serve.rollout_state import parse_criteria
from tests.console.ground import Ground, Visitor
from tests.servers.browser import Chromium
from tests.town import refusal

ONE, PAGE = "endpoint:fraud/scorer", "/console/serve/endpoint:fraud/scorer"
PLAN = parse_criteria({}, "canary", 0.2)


def test_the_list_says_how_each_stands(amal: Visitor) -> None:
    seen = amal.get("/console/serve")
    rows = {row["id"]: row.text for row in seen.main.all("tbody tr")}
    assert "ready" in rows["endpoint-fraud-scorer"]
    assert "revision 1: 80% revision 2: 20%" in rows["endpoint-fraud-scorer"]
    assert "confirmed" in rows["endpoint-fraud-scorer"]
    assert "stopped" in rows["endpoint-fraud-old"]
    assert "falaj serve deploy" in amal.get("/console/serve?project=nothing").text


def test_others_see_no_endpoint(platform: Ground) -> None:
    sara = platform.visitor("sara")
    assert not sara.get("/console/serve").main.all("tbody tr")
    assert sara.get(PAGE).status == 404


def test_an_endpoint_and_its_canary(amal: Visitor) -> None:
    seen = amal.get(PAGE)
    assert [row.text.split()[0] for row in seen.main.all("#revisions tbody tr")] == ["2", "1"]
    assert len(seen.main.all("#replicas tbody tr")) == 2
    assert len(seen.main.all("#rollout tbody tr")) == 2
    assert "A person: promote it or roll it back here." in seen.main.one("#rollout").text


@pytest.mark.parametrize("span", ["", "&span=day", "&span=nonsense"])
def test_traffic_is_drawn_by_arm(amal: Visitor, span: str) -> None:
    seen = amal.get(f"{PAGE}?tab=traffic{span}")
    drawn = [one["aria-label"] for one in seen.main.all("svg[role=img]")]
    assert len(drawn) == 5
    assert all("canary · 2" in label and "base · 1" in label for label in drawn[:3])


def test_kept_requests_are_shown_to_whoever_may_read_them(platform: Ground, amal: Visitor) -> None:
    seen = amal.get(f"{PAGE}?tab=logs")
    assert len(seen.main.all("tbody tr")) == 12
    assert len(amal.get(f"{PAGE}?tab=logs&revision=2").main.all("tbody tr")) == 3
    assert "score" in seen.main.one("#line-request-3").text
    assert "request-3" not in platform.visitor("fatima").get(f"{PAGE}?tab=logs").text


def test_who_may_not_write_sees_why(platform: Ground) -> None:
    seen = platform.visitor("omar").get(PAGE)
    assert not [form for form in seen.main.all("form") if "/console/do/" in form["action"]]
    denied = [one.text for one in seen.main.all("#rollout .denied")]
    assert len(denied) == 2
    assert all("none of your roles lets you" in words for words in denied), denied


def test_scale_and_rules_by_form(platform: Ground, amal: Visitor) -> None:
    done = amal.press(f"{PAGE}?tab=settings", "serve", "scale", least="1", most="3", concurrency="4", idle_s="60")
    assert "most 3" in amal.follow(done).text.replace("Replicas at ", "").replace("  ", " ")
    amal.press(f"{PAGE}?tab=settings", "serve", "change", more="per_s=75\nburst=9")
    rules = platform.as_("amal").serve.show(ONE).rules
    assert (rules.per_s, rules.burst) == (75, 9)
    bad = amal.follow(amal.press(f"{PAGE}?tab=settings", "serve", "change", more="nonsense=1"))
    assert "has no rule" in bad.main.one(".notice.bad").text


def test_an_endpoint_is_started_and_stopped(platform: Ground, amal: Visitor) -> None:
    old = "/console/serve/endpoint:fraud/old"
    amal.press(old, "serve", "start")
    assert platform.as_("amal").serve.show("endpoint:fraud/old").state == "starting"
    amal.press(old, "serve", "stop", reason="not needed")
    assert platform.as_("amal").serve.show("endpoint:fraud/old").state == "stopped"


def test_deploying_by_form_begins_a_trial(platform: Ground, amal: Visitor) -> None:
    plan = '{"trial": {"kind": "shadow", "share": 1.0}}'
    page = "/console/serve/endpoint:fraud/old"
    assert plan in [one["value"] for one in amal.get(page).main.all("option")]
    bad = amal.follow(amal.press(page, "serve", "add", model="model:fraud/none@v1", plan=plan))
    assert bad.main.all(".notice.bad")


def test_no_form_is_taken_without_its_key(amal: Visitor) -> None:
    assert amal.post(f"{PAGE}?tab=try", {"whole": "{}"}).status == 403
    assert amal.post("/console/serve", {"whole": "{}"}).status == 404


def test_the_verdict_comes_while_one_looks_and_rolling_back_is_a_click(platform: Ground, chromium: Chromium) -> None:
    """No reload: a mark in the window stays. One test, since going back ends the roll-out."""
    tab = platform.tab(chromium, "amal")
    tab.open(PAGE)
    page, errors = tab.page, "#reading-errors [data-verdict]"
    assert page.locator(errors).get_attribute("data-verdict") == "wait"
    tab.tell("globalThis.falajMark = 'same'")
    _told(platform, 4000)
    page.wait_for_selector(f"{errors}[data-verdict=fine]", timeout=20_000)
    assert "of 4,000" in page.locator("#reading-errors").inner_text()
    assert tab.tell("globalThis.falajMark") == "same"
    page.locator("#rollout summary", has_text="Roll back").click()
    page.locator("#rollout [name='f.reason']").locator("visible=true").fill("complaints since noon")
    page.locator("#rollout button.danger").locator("visible=true").click()
    page.wait_for_selector("#rollout [data-state='rolled back']")
    assert "complaints since noon" in page.locator("#rollout").inner_text()
    shown = platform.as_("amal").serve.show(ONE)
    assert (shown.traffic, shown.rollout.why) == ({"1": 1.0}, "complaints since noon")
    assert tab.wrong() == []


def _told(platform: Ground, requests: int) -> None:
    """What a gateway would have counted of both arms since the step began."""
    at = platform.as_("amal").serve.show(ONE).rollout.step_at + 6
    base = CountRow(
        "bank", ONE, "base", 1, at, requests, requests // 100, {latency_bucket(900): requests}, 0, 0, "g1", "ae-dubai"
    )
    rows = [base, base._replace(arm="canary", revision=2)]
    platform.house.desks["serve"].counts.append(rows)


@pytest.mark.parametrize(
    ("reading", "low", "high"),
    [
        (MetricJudgement("errors", 0.01, 0, 0, 0, 0, -1, 1, 1.0, 1.0, "wait"), 0, 0),
        (MetricJudgement("errors", 0.01, 100, 0, 50, 0, -1, 1, 1.0, 0.05, "wait"), 0.2, 0.3),
        (MetricJudgement("errors", 0.01, 900, 0, 900, 0, -1, 1, 1.0, 0.2, "wait"), 0.5, 0.6),
        (MetricJudgement("errors", 0.01, 900, 0, 900, 0, -1, 1, 1.0, 1e-9, "fine"), 1, 1),
        (MetricJudgement("errors", 0.01, 900, 0, 3, 1, -1, 1, 1e-9, 1.0, "worse"), 1, 1),
    ],
)
def test_progress_is_the_lesser_of_outcomes_and_evidence(reading: MetricJudgement, low: float, high: float) -> None:
    assert low <= compute_progress(reading, PLAN) <= high


def test_few_values_are_fields_and_many_are_json() -> None:
    told = {"inputs": [
        {"name": "amount", "datatype": "FP32", "shape": [-1, 1]}, {"name": "city", "datatype": "BYTES", "shape": [-1]},
        {"name": "new", "datatype": "BOOL", "shape": [-1, 2]}, {"name": "x", "datatype": "FP32", "shape": [-1, 32]},
    ]}  # fmt: skip
    inputs = parse_metadata_inputs(told)
    assert [one.few for one in inputs] == [True, True, True, False]
    form = {"in.0.0": "1.5", "in.1.0": "Dubai", "in.2.1": "on", "json.3": "[[0.5]]"}
    wanted = {"amount": [[1.5]], "city": ["Dubai"], "new": [[False, True]], "x": [[0.5]]}
    assert parse_values(inputs, form) == wanted
    assert parse_values((), {"whole": '{"x": [1]}'}) == {"x": [1]}


@pytest.mark.parametrize(
    "form",
    [{}, {"in.0.0": "nan"}, {"in.0.0": "inf"}, {"in.0.0": "x"}, {"whole": "[1]"}, {"whole": '{"x": NaN}'},
     {"whole": "[" * 100_000}],
)  # fmt: skip
def test_what_is_no_value_is_refused(form: dict[str, str]) -> None:
    assert isinstance(refusal(lambda: parse_values((ModelInput("amount", "FP32", (-1, 1)),), form)), Invalid)


@pytest.mark.parametrize(
    ("signature", "wanted"),
    [
        ({}, ()),
        ({"inputs": "not json"}, ()),
        ({"inputs": '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}, "name": "x"}]'},
         (ModelInput("x", "FP32", (-1, 4)),)),
        ({"inputs": '[{"type": "double", "name": "amount"}, {"type": "string", "name": "city"}]'},
         (ModelInput("amount", "FP64", (-1,)), ModelInput("city", "BYTES", (-1,)))),
        ({"inputs": [{"name": "x", "shape": "odd"}]}, ()),
        ({"inputs": {"x": 1}}, ()),
        ({"inputs": [7]}, ()),
    ],
)  # fmt: skip
def test_signatures_as_they_are_published(signature: dict[str, Any], wanted: tuple[ModelInput, ...]) -> None:
    assert parse_signature_inputs(signature) == wanted
