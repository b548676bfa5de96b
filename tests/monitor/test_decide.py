"""What follows from windows and facts: tables, and properties over any stream of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.ref import Ref
from falaj.drift.records import DriftFinding
from falaj.monitor import watch_decisions
from falaj.monitor.records import ActionPlan, MonitorWindow, WatchPlan, WatchVerdict
from falaj.monitor.watch_decisions import (
    DAY_S,
    apply_facts,
    apply_window,
    compute_log_evidence,
    describe_breakage,
    end_action,
    release_machine,
    resolve_cause,
)
from falaj.monitor.watch_machine import EndpointFacts, ServiceSign, WatchMachine, encode_machine, read_machine
from falaj.store.codec import to_json

HOUR = 3600.0
NOT = "not promoted: its roll-out ended"
RUN = "turn:fraud/retrain-1"
ACTS = WatchPlan(
    acting=ActionPlan(retrain=Ref.parse("flow:fraud/retrain"), rollback=True, cool_s=6 * HOUR, most_a_day=2)
)
START = WatchMachine(whose="endpoint:fraud/score")


def window(number: int, *alarms: str, revision: int = 1, rows: int = 1000) -> MonitorWindow:
    """The nth hour, with alarms written as what:column."""
    found = tuple(
        DriftFinding(
            *text.partition(":")[::2], measure="ks", value=0.2, p=0.0, rows=rows, alarm=True, said=f"{text} moved"
        )
        for text in alarms
    )
    return MonitorWindow(number * HOUR, (number + 1) * HOUR, revision, rows, found)


def run(
    windows: list[MonitorWindow], plan: WatchPlan = ACTS, machine: WatchMachine = START
) -> tuple[WatchMachine, list[WatchVerdict], list[str]]:
    """The machine after these windows, what was decided, and the states."""
    told, states = [], []
    for one in windows:
        machine, verdicts = apply_window(machine, one, plan, one.until)
        machine = read_machine({"machine": encode_machine(machine), "paused": machine.paused}, machine.whose)
        told += verdicts
        states.append(machine.state)
    return machine, told, states


def actions(verdicts: list[WatchVerdict]) -> list[str]:
    return [one.action for one in verdicts]


def test_drift_that_lasts_retrains_once() -> None:
    machine, told, states = run([window(0), *(window(at, "input:age", "prediction:y") for at in range(1, 40))])
    assert states[:4] == ["ok", "suspect", "acting", "acting"]
    assert actions(told) == ["alert", "retrain"], "one alert and one retraining, however long it lasts"
    alert, retrain = told
    assert (alert.cause, alert.since, alert.what) == (retrain.cause, HOUR, "drift")
    assert (retrain.state, retrain.flow, retrain.id) == ("begun", "flow:fraud/retrain", f"retrain-{retrain.cause}")
    assert "input:age moved" in retrain.said
    assert machine.doing is not None


@pytest.mark.parametrize(
    ("alarms", "expected"),
    [
        ([("input:a",), ("input:b",), ("input:c",)], []),  # chance finds another column each time
        ([("input:a",), (), ("input:a",)], ["alert", "retrain"]),  # two of three
        ([("input:a",), (), (), ("input:a",)], []),
        ([("quality:a",), ("quality:a",), ("quality:a",)], ["alert"]),
        ([("errors:",), ("errors:",)], ["alert"]),
        ([("fairness:city",), ("fairness:city",)], ["alert"]),
        (
            [("quality:a", "input:a"), ("quality:a", "input:a")],
            ["alert", "alert"],
        ),  # broken data: nothing to learn from
        ([("performance:accuracy",), ("performance:accuracy",)], ["alert", "retrain"]),
        ([("estimate:accuracy",), ("estimate:accuracy",)], ["alert", "retrain"]),
    ],
)
def test_what_follows(alarms: list[tuple[str, ...]], expected: list[str]) -> None:
    _, told, _ = run([window(at, *one) for at, one in enumerate(alarms)])
    assert actions(told) == expected


def test_without_a_flow_people_are_told() -> None:
    _, told, states = run([window(at, "input:a") for at in range(5)], WatchPlan())
    assert actions(told) == ["alert"]
    assert states == ["suspect", *["confirmed"] * 4]


def test_while_a_revision_is_tried_none_is_trained() -> None:
    tried, _ = apply_facts(START, ACTS, 0.0, EndpointFacts(1, 2, live=(1, 2)))
    machine, told, _ = run([window(at, "input:a") for at in range(4)], machine=tried)
    assert actions(told) == ["alert"]
    machine, _ = apply_facts(machine, ACTS, 4 * HOUR, EndpointFacts(1, 2, live=(1,)))
    assert actions(run([window(5, "input:a")], machine=machine)[1]) == ["retrain"]


def test_small_windows_say_nothing() -> None:
    few = [window(at, rows=10) for at in range(2, 12)]
    machine, told, states = run([window(0, "input:a"), *few, window(12, "input:a")], WatchPlan())
    assert actions(told) == ["alert"], "what is too small does not make a trouble forgotten"
    assert states[1] == "suspect"
    assert run([window(0, "input:a"), *few], WatchPlan())[0].recent == {"1": machine.recent["1"][:1]}


def test_gone_by_itself_and_back_within_a_day_is_the_same() -> None:
    machine, told, states = run([*(window(at, "quality:a") for at in range(2)), *(window(at) for at in range(2, 5))])
    assert states[-1] == "ok"
    assert [(one.open, one.why) for one in machine.episodes] == [(False, "gone by itself")]
    machine, again, _ = run([window(at, "quality:a") for at in (5, 6)], machine=machine)
    assert [one.cause for one in again] == [told[0].cause]
    assert [one.open for one in machine.episodes] == [True]
    machine, later, _ = run(
        [*(window(at) for at in range(7, 36)), *(window(at, "quality:a") for at in (36, 37))], machine=machine
    )
    assert len(later) == 1
    assert later[0].cause != told[0].cause, "after a day it is another trouble"


def _begun() -> WatchMachine:
    return run([window(at, "input:a") for at in range(2)])[0]


@pytest.mark.parametrize(
    ("facts", "state", "outcome"),
    [
        (EndpointFacts(1, 1, run=RUN, ended="failed", note="no rows"), "failed", f"{RUN} failed: no rows"),
        (EndpointFacts(1, 1, run=RUN, ended="cancelled"), "failed", f"{RUN} cancelled"),
        (EndpointFacts(1, 1, run=RUN, ended="succeeded"), "done", "not deployed: its checks said no"),
        (EndpointFacts(2, 2, run=RUN, ended="succeeded"), "done", "revision 2 promoted"),
        (EndpointFacts(1, 2, trial="rolled back", run="t", ended="succeeded"), "done", f"{NOT} rolled back"),
        (EndpointFacts(1, 2, trial="inconclusive", run="t", ended="succeeded"), "done", f"{NOT} inconclusive"),
    ],
)
def test_how_a_retraining_ends(facts: EndpointFacts, state: str, outcome: str) -> None:
    machine, told = apply_facts(_begun(), ACTS, 3 * HOUR, facts)
    assert (told[0].state, told[0].outcome) == (state, outcome)
    assert actions(list(told)) == (["retrain", "alert"] if state == "failed" else ["retrain"])
    assert (machine.doing, machine.state) == (None, "cooling")
    assert machine.cool_until == 3 * HOUR + ACTS.acting.cool_s
    _, more, _ = run([window(at, "input:a") for at in range(3, 60)], machine=machine)
    assert more == [], "the same cause never asks for a second one"


def test_a_run_or_a_canary_under_way_is_waited_for() -> None:
    for facts in (
        EndpointFacts(1, 1),
        EndpointFacts(1, 1, run="t"),
        EndpointFacts(1, 2, trial="running", run="t", ended="succeeded"),
        EndpointFacts(1, 2, run="t", ended="succeeded"),
    ):
        machine, told = apply_facts(_begun(), ACTS, 3 * HOUR, facts)
        assert (machine.state, told) == ("acting", ())
    machine, told = apply_facts(_begun(), ACTS, 2 * HOUR + watch_decisions.FLOW_START_TIMEOUT_S, EndpointFacts(1, 1))
    assert [one.state for one in told] == ["failed", "done"]
    assert told[0].outcome == "its flow did not begin"
    long, _ = apply_facts(_begun(), ACTS, 3 * HOUR, EndpointFacts(1, 1, run="t"))
    assert (
        apply_facts(long, ACTS, 2 * HOUR + watch_decisions.FLOW_TIMEOUT_S, EndpointFacts(1, 1, run="t"))[1][0].outcome
        == "t did not end"
    )


def test_a_person_must_agree_first() -> None:
    plan = replace(ACTS, acting=replace(ACTS.acting, approval=True))
    machine, told, _ = run([window(at, "input:a") for at in range(2)], plan)
    assert [one.state for one in told] == ["done", "waiting"]
    assert apply_facts(machine, plan, 9 * HOUR, EndpointFacts(1, 1, approval="waiting")) == (machine, ())
    begun, said = apply_facts(machine, plan, 9 * HOUR, EndpointFacts(1, 1, approval="granted"))
    assert [(one.id, one.state, one.flow) for one in said] == [(told[1].id, "begun", "flow:fraud/retrain")]
    assert begun.doing is not None
    for answer in ("refused", "expired"):
        machine_, said = apply_facts(
            machine, plan, 9 * HOUR, EndpointFacts(1, 1, approval=answer, note="badr: not now")
        )
        assert [(one.state, one.outcome) for one in said] == [("refused", f"the approval was {answer}: badr: not now")]
        assert run([window(at, "input:a") for at in range(20, 40)], plan, machine_)[1] == []


FAILS = (ServiceSign("errors", 40, 40, 0.02),)


def test_a_broken_revision_is_left_at_once() -> None:
    facts = EndpointFacts(2, 2, 2, 100.0, 1, (2,), signs=FAILS)
    machine, told = apply_facts(START, ACTS, 110.0, facts)
    assert [(one.action, one.state, one.revision) for one in told] == [
        ("alert", "done", 2),
        ("rollback", "proposed", 2),
    ]
    assert "40 of 40 requests failed" in told[1].said
    assert apply_facts(machine, ACTS, 112.0, facts) == (machine, ()), "once, while it is under way"
    done, said = apply_facts(machine, ACTS, 114.0, EndpointFacts(1, 2, 1, 113.0, 0, (1,)))
    assert (done.state, said[0].state, said[0].outcome) == ("frozen", "done", "revision 1 has the traffic")
    _, more, _ = run([window(at, "input:a") for at in range(10, 40)], machine=done)
    assert actions(more) == ["alert"], "nothing is done by itself until there is a newer revision"
    assert apply_facts(done, ACTS, 2 * DAY_S, EndpointFacts(3, 3, live=(3,)))[0].state == "ok"
    assert release_machine(done, 115.0).state == "confirmed", "what broke is still to be looked at"


def test_a_rollback_overtakes_a_retraining_and_no_cool_down_holds_it() -> None:
    facts = EndpointFacts(2, 2, 2, 3 * HOUR, 1, (2,), signs=FAILS)
    _, told = apply_facts(_begun(), ACTS, 3 * HOUR, replace(facts, run="t"))
    assert [(one.action, one.state) for one in told] == [
        ("retrain", "done"),
        ("alert", "done"),
        ("rollback", "proposed"),
    ]
    cooling = replace(START, cool_until=9 * HOUR)
    assert actions(list(apply_facts(cooling, ACTS, HOUR, facts)[1])) == ["alert", "rollback"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"machine": replace(START, paused="mona")}, ["alert"]),
        ({"machine": replace(START, frozen=2)}, ["alert"]),
        ({"plan": replace(ACTS, acting=replace(ACTS.acting, rollback=False))}, ["alert"]),
        ({"facts": EndpointFacts(2, 2, 2, 100.0, 0, (2,), signs=FAILS)}, ["alert"]),
        ({"facts": EndpointFacts(2, 2, 0, 0.0, 0, (2,), signs=FAILS)}, []),
        ({"facts": EndpointFacts(2, 2, 2, 100.0, 1, (2,), signs=())}, []),
    ],
)
def test_when_nothing_is_rolled_back(change: dict[str, object], expected: list[str]) -> None:
    words = {
        "machine": START,
        "plan": ACTS,
        "now": 110.0,
        "facts": EndpointFacts(2, 2, 2, 100.0, 1, (2,), signs=FAILS),
        **change,
    }
    machine, told = apply_facts(**words)  # type: ignore[arg-type]
    assert actions(list(told)) == expected
    assert apply_facts(**{**words, "machine": machine})[1] == (), "and people are told once"  # type: ignore[arg-type]
    if change.get("machine") and machine.paused:
        assert actions(list(apply_facts(replace(machine, paused=""), ACTS, 120.0, words["facts"])[1])) == ["rollback"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sign", "broken"),
    [
        (ServiceSign("errors", 19, 19, 0.02), False),  # too few
        (ServiceSign("errors", 20, 20, 0.02), True),
        (ServiceSign("errors", 100, 3, 0.02), False),
        (ServiceSign("errors", 40, 10, 0.02), True),
        (ServiceSign("errors", 1000, 300, 0.3), False),  # so was the one before
        (ServiceSign("odd", 50, 50, 0.01), True),
        (ServiceSign("same", 200, 200, 0.45), True),
        (ServiceSign("errors", 40, 1, 0.0), True),
        (ServiceSign("errors", 0, 0, 0.02), False),
    ],
)
def test_signs(sign: ServiceSign, broken: bool) -> None:
    assert bool(describe_breakage((sign,))) == broken


def test_good_revisions_are_left_alone() -> None:
    """With exactly the share that is allowed, looked at after every request: the bound of chance holds."""
    came = np.random.default_rng(0).random((400, 500)) < 0.02
    bad = came.cumsum(axis=1)
    worst = [max(compute_log_evidence(n + 1, int(one[n]), 0.02) for n in range(19, 500, 5)) for one in bad]
    assert max(worst) < -np.log(watch_decisions.MAX_BREAKAGE_CHANCE)


def test_resolved_by_a_person_needs_new_windows() -> None:
    machine, told, _ = run([window(at, "quality:a") for at in range(3)])
    machine = resolve_cause(machine, told[0].cause, 3 * HOUR, "resolved by mona")
    assert machine.state == "ok"
    machine, more, states = run([window(3, "quality:a")], machine=machine)
    assert (more, states) == ([], ["suspect"])
    _, more, _ = run([window(4, "quality:a")], machine=machine)
    assert [one.cause for one in more] == [told[0].cause]


def test_a_revision_without_traffic_has_no_troubles() -> None:
    machine, _, _ = run([window(at, "quality:a") for at in range(3)])
    machine, _ = apply_facts(machine, ACTS, 4 * HOUR, EndpointFacts(2, 2, live=(2,)))
    assert [(one.open, one.why) for one in machine.episodes] == [(False, "revision 1 has no traffic any more")]
    machine, told, _ = run([window(4, "quality:a"), window(5, "quality:a")], machine=machine)
    assert told == [], "what comes late of it opens nothing again"
    assert not any(one.open for one in machine.episodes)


# Any stream.

ALARMS = st.lists(
    st.sampled_from(["input:a", "input:b", "prediction:y", "quality:a", "errors:", "performance:auc"]),
    max_size=3,
    unique=True,
)
STEP = st.one_of(
    st.tuples(st.just("window"), ALARMS, st.integers(1, 3)),
    st.tuples(st.just("facts"), st.sampled_from(["", "failed", "succeeded"]), st.integers(1, 3)),
    st.tuples(st.just("broken"), st.just(""), st.integers(2, 3)),
    st.tuples(st.just("pause"), st.just(""), st.just(0)),
    st.tuples(st.just("resume"), st.just(""), st.just(0)),
    st.tuples(st.just("crash"), st.just(""), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, min_size=3, max_size=60), st.integers(0, 3))
def test_any_stream(steps: list[tuple[str, object, int]], most: int) -> None:
    plan = replace(ACTS, acting=replace(ACTS.acting, most_a_day=most, cool_s=2 * HOUR))
    machine, now, begun, told = START, 0.0, dict[str, float](), list[WatchVerdict]()
    newest, current = 1, 1
    for at, (what, more, number) in enumerate(steps):
        now, verdicts, was = (at + 1) * HOUR, (), machine
        if what == "window":
            machine, verdicts = apply_window(machine, window(at, *more, revision=min(number, newest)), plan, now)  # type: ignore[misc]
            assert apply_window(was, window(at, *more, revision=min(number, newest)), plan, now) == (machine, verdicts)  # type: ignore[misc]
        elif what in ("facts", "broken"):
            newest = max(newest, number)
            doing = machine.doing
            current = doing.revision - 1 if doing and doing.action == "rollback" else newest
            fresh = (newest, now, newest - 1) if what == "broken" and newest > 1 else (0, 0.0, 0)
            facts = EndpointFacts(
                current, newest, *fresh, (current,), run="t" if more else "", ended=str(more), signs=FAILS
            )
            machine, verdicts = apply_facts(machine, plan, now, facts)
            assert apply_facts(was, plan, now, facts) == (machine, verdicts), "decided again it is the same"
        elif what == "pause":
            machine = replace(machine, paused="somebody")
        elif what == "resume":
            machine = release_machine(machine, now)
        else:
            machine = read_machine({"machine": encode_machine(machine), "paused": machine.paused}, machine.whose)
            assert machine == was, "what is kept is all there is"
        acts = [one for one in verdicts if one.action != "alert" and one.state in ("proposed", "begun")]
        assert len(acts) <= 1, "one action at a time"
        for one in acts:
            assert not was.paused, "nothing while it is paused"
            assert one.id not in begun, "never two for one cause"
            assert one.action == "rollback" or (was.doing is None and now >= was.cool_until and not was.frozen)
            assert not (
                one.action == "retrain" and {f.what for f in one.evidence} & {"quality", "errors"} == {"quality"}
            )
            begun[one.id] = now
        trained = [when for id_, when in begun.items() if id_.startswith("retrain") and now - when < DAY_S]
        assert len(trained) <= most
        assert len(to_json(encode_machine(machine))) < 100_000
        told += verdicts
    alerts = [one.cause for one in told if one.action == "alert" and one.id == f"alert-{one.cause}"]
    assert len(alerts) <= len(steps)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=30, max_size=120))
def test_oscillating_streams_do_not_loop(comes: list[bool]) -> None:
    """Whatever rhythm a drift has, one model is trained for it, and each one that fails is cooled down from."""
    machine, begun = START, 0
    for at, drifts in enumerate(comes):
        machine, told = apply_window(machine, window(at, *(["input:a"] if drifts else [])), ACTS, (at + 1) * HOUR)
        begun += sum(one.action == "retrain" for one in told)
        if machine.doing is not None:
            machine, _ = end_action(machine, ACTS, (at + 1) * HOUR, "done", "not deployed")
    quiet = 0
    for end in range(len(comes)):
        # A day of quiet makes the next one another trouble; without it there is one.
        quiet += end >= 27 and not any(comes[end - 26 : end + 1])
    assert begun <= 1 + quiet
