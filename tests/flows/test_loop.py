"""The loop of flows, turn by turn: what it asks for, in whose name, and what becomes of it when things go wrong."""

from collections.abc import Iterator

import pytest

from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.flows.records import STEP_GATE, STEP_OPERATION, FlowPlan, StepPlan
from falaj.jobs.records import FAILED
from tests.flows.yard import Yard, function, taken
from tests.people import enroll
from tests.town import Town, refusal


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    home = tmp_path_factory.mktemp("flows")
    town = Town(home / "town")
    town.as_("admin").clusters.change("local", {"tenants": "bank,clinic"})
    made = Yard(town)
    for name, text in (("code", "x = 1"), ("rows", "1,2"), ("more", "3,4")):
        (home / name).mkdir()
        (home / name / "f.py").write_text(text)
    made.me.catalog.publish("code:fraud/flows", str(home / "code"))
    made.me.catalog.publish("dataset:fraud/rows", str(home / "rows"))
    made.me.catalog.publish("dataset:fraud/rows", str(home / "more"))
    yield made
    town.close()


def test_steps_follow_each_other_with_what_they_gave(yard: Yard) -> None:
    steps = (
        function("clean", takes={"raw": {"param": "data"}}, outputs={"rows": "dataset:fraud/clean"}),
        function("score", takes={"i": taken("clean", "parts"), "rows": taken("clean", "rows")}, over="i"),
        function("sum", takes={"xs": taken("score"), "label": {"value": {"a": 1}}}),
        StepPlan("tag", STEP_OPERATION, entry="catalog.tag", takes={"name": taken("clean", "rows"), "alias": "good"},
                 when=taken("sum", "ok")),
    )  # fmt: skip
    run = yard.start("line", *steps, params={"data": "dataset:fraud/rows"}, at_once=2)
    # Parameters that are read are pinned when the run begins.
    assert (run.params, run.begun_by, str(run.flow)) == (
        {"data": "dataset:fraud/rows@v2"},
        "amal",
        "flow:fraud/line@v1",
    )
    assert yard.jobs() == ["line-1.clean"]
    assert run.steps[0].note == "it waits for a place: falaj jobs why job:fraud/line-1.clean"
    job = yard.me.jobs.show("job:fraud/line-1.clean")
    assert {role: str(ref) for role, ref in job.inputs.items()} == {"raw": "dataset:fraud/rows@v2"}
    assert str(job.code) == "code:fraud/flows@v1"
    yard.end("line-1.clean", {"parts": [5, 6, 7]}, rows="dataset:fraud/rows@v1")
    run = yard.turn(run)
    assert yard.jobs() == ["line-1.score.0", "line-1.score.1"], "two at once"
    yard.end("line-1.score.1", 12)
    run = yard.turn(run, again=True)
    assert yard.jobs() == ["line-1.score.0", "line-1.score.2"]
    yard.end("line-1.score.0", 10)
    yard.end("line-1.score.2", 14)
    run = yard.turn(run)
    told = yard.me.jobs.show("job:fraud/line-1.sum").spec.env["FALAJ_PARAM_STEP"]
    assert '"args": {"xs": [10, 12, 14], "label": {"a": 1}}' in told
    yard.end("line-1.sum", {"ok": True})
    run = yard.turn(run)
    assert (run.state, run.done) == ("succeeded", "4 of 4")
    assert run.steps[1].outputs == {"items": [{"value": 10}, {"value": 12}, {"value": 14}]}
    assert yard.me.catalog.show("dataset:fraud/rows@good").ref == Ref.parse("dataset:fraud/rows@v1")
    said = [(event.verb, event.behalf) for event in yard.town.events() if event.actor.startswith("run.")]
    assert {("jobs.add", "amal"), ("flows.step", "amal"), ("flows.end", "amal")} <= set(said)
    ends = [event for event in yard.town.events(verb="flows.end") if event.subject.name == "line-1"]
    assert [(event.body["state"], event.body["flow"]) for event in ends] == [("succeeded", "flow:fraud/line@v1")]


def test_the_same_cause_finds_the_same_run(yard: Yard) -> None:
    flow = yard.save("cause", function("a"))
    one = yard.me.flows.start(flow, cause="verdict-1", begun_by="a verdict")
    assert yard.me.flows.start(flow, cause="verdict-1").ref == one.ref
    assert one.begun_by == "amal", "a person is not a verdict"
    two = yard.me.flows.start(flow, cause="verdict-2")
    other = yard.me.flows.start(yard.save("cause2", function("a")), cause="verdict-1")
    assert len({one.ref, two.ref, other.ref}) == 3
    for run in (one, two, other):
        yard.me.flows.cancel(run.ref)
    yard.turn(one)


def test_a_failure_skips_what_needs_it_and_retry_goes_on_from_there(yard: Yard) -> None:
    steps = (
        function("a"), function("b", takes={"x": taken("a")}),
        function("c", takes={"x": taken("b")}), function("d", after=("b",), always=True, takes={"x": taken("b")}),
    )  # fmt: skip
    run = yard.start("fails", *steps)
    yard.end("fails-1.a", 1)
    yard.turn(run)
    yard.end("fails-1.b", state=FAILED, error="ValueError: no luck")
    run = yard.turn(run)
    assert yard.jobs() == ["fails-1.d"], "always"
    yard.end("fails-1.d")
    run = yard.turn(run)
    assert yard.states(run) == {"a": "succeeded", "b": "failed", "c": "skipped", "d": "succeeded"}
    assert (run.state, run.note.split(" [")[0]) == ("failed", "b: ValueError: no luck")
    log = [event.body["note"] for event in yard.town.events(verb="flows.end") if event.subject.name == "fails-1"]
    assert log == ["b: its code failed; the run has what it said"], "what code says of data goes into no event"
    assert run.steps[2].note == "it needs b, which failed"
    yard.me.flows.retry(run.ref)
    run = yard.turn(run)
    assert yard.jobs() == ["fails-1.b.t2"], "what succeeded stays; another try is another job"
    yard.end("fails-1.b.t2", 2)
    run = yard.turn(run)
    yard.end("fails-1.c", 3)
    assert yard.turn(run).state == "succeeded"
    assert isinstance(refusal(lambda: yard.me.flows.retry(run.ref)), Conflict)


def test_a_result_that_is_known_is_taken_while_it_lives_and_by_who_may_read_it(yard: Yard) -> None:
    data = {"ref": "dataset:fraud/rows@v1"}
    steps = (
        function("make", takes={"raw": data, "n": {"param": "n"}}, outputs={"out": "dataset:fraud/made"}, cache=True),
    )
    made = str(yard.me.catalog.publish("dataset:fraud/made", str(yard.town.house.settings.home) + "/../rows").ref)
    run = yard.start("memo", *steps, params={"n": 1})
    yard.end("memo-1.make", {"x": 1}, out=made)
    yard.turn(run)
    flow = run.flow
    again = yard.turn(yard.me.flows.start(flow, params={"n": 1}))
    assert (again.state, again.steps[0].cached, again.steps[0].outputs) == (
        "succeeded", "turn:fraud/memo-1", {"x": 1, "out": made},
    )  # fmt: skip
    other = [yard.me.flows.start(flow, params={"n": 2}), yard.me.flows.start(flow, params={"n": 1}, fresh=True)]
    yard.turn(other[0])
    assert yard.jobs() == ["memo-3.make", "memo-4.make"], "another value; and whoever wants it fresh"
    for run in other:
        yard.me.flows.cancel(run.ref)
    assert yard.turn(other[0], 2).state == "cancelled"
    yard.town.as_("salem").catalog.delete(made, reason="wrong")
    gone = yard.turn(yard.me.flows.start(flow, params={"n": 1}))
    assert yard.jobs() == ["memo-5.make"], "what it made is no more"
    yard.me.flows.cancel(gone.ref)
    yard.turn(gone)


def test_gates_wait_for_people_and_for_events(yard: Yard) -> None:
    gates = (
        StepPlan("ask", STEP_GATE, entry="approval", takes={"reason": "Shall it?", "needs": 1}),
        StepPlan("seen", STEP_GATE, entry="event", after=("ask",),
                 takes={"verb": "catalog.annotate", "subject": {"ref": "dataset:fraud/rows"}}),
    )  # fmt: skip
    run = yard.start("gate", *gates)
    approval = run.steps[0].note.rpartition(" ")[2]
    assert run.steps[0].state == "running"
    yard.town.as_("badr").approvals.give(approval)
    yard.loop._retry_at.clear()
    run = yard.turn(run, again=True)
    assert yard.states(run) == {"ask": "succeeded", "seen": "running"}
    yard.me.catalog.annotate("dataset:fraud/rows@v1", "red")
    run = yard.turn(run, again=True)
    assert run.state == "succeeded"
    assert run.steps[1].outputs["subject"].startswith("dataset:fraud/rows@v1")
    refused = yard.turn(yard.me.flows.start(run.flow))
    yard.town.as_("badr").approvals.refuse(refused.steps[0].note.rpartition(" ")[2], reason="no")
    refused = yard.turn(refused, again=True)
    assert (refused.state, "refused it" in refused.note) == ("failed", True)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (function("a", takes={"x": {"ref": "dataset:fraud/none"}}), "there is no dataset:fraud/none"),
        (function("a", takes={"x": "y" * 200_000}), "arguments of a have"),
        (function("a", takes={"x": {"param": "n"}}, over="x"), "a goes through a int"),
        (StepPlan("a", STEP_OPERATION, entry="people.suspend", takes={"name": "mona"}), "lets you govern here"),
        (
            StepPlan("a", STEP_OPERATION, entry="catalog.tag", takes={"name": "dataset:fraud/none", "alias": "x"}),
            "there is no",
        ),
        (
            StepPlan("a", STEP_GATE, entry="event", takes={"verb": "x.y", "subject": "dataset:clinic/none"}),
            "there is no",
        ),
        (
            StepPlan(
                "a", STEP_OPERATION, entry="jobs.add", takes={"job": "job:fraud/x", "spec": {"value": {"command": 1}}}
            ),
            "does not fit",
        ),
        (
            StepPlan("a", STEP_OPERATION, entry="approvals.list", takes={"limit": "x"}),
            "limit: expected a whole number, got text 'x'",
        ),
    ],
    ids=["input gone", "too long", "no list", "not allowed", "nothing there", "not seen", "misfit", "no number"],
)
def test_what_cannot_be_fails_with_why(yard: Yard, step: StepPlan, said: str) -> None:
    run = yard.start("odd", step, params={"n": 3})
    assert (run.state, run.steps[0].state) == ("failed", "failed")
    assert said in run.note, run.note


def test_what_steps_say_is_bounded_and_holds_no_secret(yard: Yard) -> None:
    steps = (function("a"), function("b"), function("c"), function("d", outputs={"out": "dataset:fraud/x"}))
    run = yard.start("said", *steps)
    yard.end("said-1.a", {"key": "AKIA" + "IOSFODNN7EXAMPLE"})
    yard.end("said-1.b", state=FAILED, error="login failed: password=hunter2hunter2")
    yard.end("said-1.c", "x" * 70_000)
    run = yard.turn(run)
    notes = {one.name: one.note for one in run.steps}
    assert "looks like a secret, and is not kept" in notes["a"]
    assert "whose text looks like a secret" in notes["b"]
    assert "too long" in notes["c"]
    yard.me.jobs.cancel("job:fraud/said-1.d")
    run = yard.turn(run)
    assert (run.state, run.steps[3].state) == ("failed", "cancelled")
    text = str([event.body for event in yard.town.events()])
    assert "hunter2" not in text
    assert "AKIA" not in text


@pytest.mark.parametrize("how", ["suspend", "remove"])
def test_run_rests_while_its_owner_is_suspended_and_ends_with_their_account(yard: Yard, how: str) -> None:
    town = yard.town
    people, name = town.as_("fatima").people, f"noor-{how}"
    town.tokens[name] = enroll(town.as_("fatima"), name, ("data-scientist",), jurisdiction="AE")
    flow = yard.save(f"goes-{how}", function("a"), function("b", takes={"x": taken("a")}))
    run = town.as_(name).flows.start(flow)
    yard.turn(run)
    assert yard.jobs() == [f"goes-{how}-1.a"]
    if how == "suspend":
        people.suspend(name)
        yard.turn(run, again=True)
        run = yard.turn(run, 2)
        assert (run.state, yard.jobs()) == ("running", ["goes-suspend-1.a"])
        people.resume(name)
    people.remove(name)
    yard.turn(run, again=True)
    run = yard.turn(run, 2)
    assert (run.state, run.note) == ("cancelled", f"the account {name} was removed")
    assert yard.jobs() == []


def test_who_may_not_hears_so(yard: Yard) -> None:
    sara, omar = yard.town.as_("sara"), yard.town.as_("omar")
    flow = yard.save("mine", function("a"))
    assert isinstance(refusal(lambda: sara.flows.start(flow)), NotFound)
    assert isinstance(refusal(lambda: omar.flows.start(flow)), Denied)
    assert sara.flows.list() == ()
    yard.me.flows.schedule(flow.bare, "0 6 * * *", zone="Asia/Dubai")
    listed = {str(one.ref): one.schedule for one in yard.me.flows.list(project="fraud")}
    assert listed["flow:fraud/mine@v1"] == yard.me.flows.show(flow).schedule == "0 6 * * * Asia/Dubai"


def test_flows_have_versions_and_go(yard: Yard) -> None:
    one = yard.save("versions", function("a"))
    assert yard.save("versions", function("a")) == one, "the same again is no new version"
    two = yard.save("versions", function("a"), function("b"))
    assert (one.version, two.version) == ("v1", "v2")
    run = yard.turn(yard.me.flows.start(one.bare))
    assert run.flow == two
    assert isinstance(refusal(lambda: yard.me.flows.remove(one.bare)), (Conflict, Denied))
    yard.me.flows.cancel(run.ref)
    run = yard.turn(run, 2)
    yard.town.as_("salem").flows.remove(one.bare)
    assert isinstance(refusal(lambda: yard.me.flows.start(one.bare)), NotFound)
    assert yard.look(run).state == "cancelled", "its runs stay"
    with pytest.raises(Invalid, match="functions are nowhere"):
        yard.me.flows.add("flow:fraud/none", FlowPlan((function("a"),)))
    found = yard.me.flows.runs(flow="flow:fraud/line").runs
    assert [one.ref.name for one in found] == ["line-1"]


def test_a_thousand_items_are_asked_for_in_parts(yard: Yard) -> None:
    run = yard.start("wide", function("a", takes={"i": [*range(40)]}, over="i"), at_once=30)
    assert len(yard.jobs()) == 30
    assert isinstance(refusal(lambda: yard.me.flows.retry(run.ref)), Conflict)
    yard.me.flows.cancel(run.ref)
    run = yard.turn(run, 2)
    assert (run.state, yard.jobs()) == ("cancelled", [])
    assert yard.me.flows.retry(run.ref).state == "running"
    yard.turn(run)
    assert len(yard.jobs()) == 30
    yard.me.flows.cancel(run.ref)
    yard.turn(run, 2)


def test_a_job_of_that_name_fails_the_step_and_no_other(yard: Yard) -> None:
    yard.me.jobs.add("job:fraud/taken-1.a", {"command": ["sleep", "1"]})
    run = yard.start("taken", function("a"), function("b"))
    assert "exists already" in run.steps[0].note
    assert yard.states(run) == {"a": "failed", "b": "running"}
    yard.me.jobs.cancel("job:fraud/taken-1.a")
    yard.end("taken-1.b", 1)
    assert yard.turn(run).state == "failed"


def test_whoever_leads_next_asks_for_nothing_twice(yard: Yard) -> None:
    run = yard.start("lead", function("a"), function("b"))
    other = Yard(yard.town)
    for loop in (yard, other, yard, other):
        loop.turn(run, 2, again=True)
    assert yard.jobs() == ["lead-1.a", "lead-1.b"]
    yard.end("lead-1.a", 1)
    yard.end("lead-1.b", 2)
    assert other.turn(run, again=True).state == "succeeded"
    assert yard.turn(run, 2).state == "succeeded"
    told = [event for event in yard.town.events(verb="flows.end") if event.subject.name == "lead-1"]
    assert len(told) == 1
