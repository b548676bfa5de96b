"""Trials as a record's body sees them: every path from begun to over, and plans that are refused."""

from typing import Any

import pytest

from falaj.core.errors import Conflict, Invalid
from falaj.serve import endpoint_repository, rollout_state
from falaj.serve.records import TrialRequest
from falaj.serve.rollout_state import RolloutMove
from falaj.serve.sequential_test import VERDICT_FINE, VERDICT_WAIT, VERDICT_WORSE, ArmVerdict

NOW = 1_800_000_000.0


def body(**more: Any) -> dict[str, Any]:
    """An endpoint whose revision 1 has the traffic, and which has a revision 2."""
    return {
        "id": "e1", "current": 1, "wanted": 1, "before": 0, "switched": 0.0, "rollout": None, "stopped": False,
        "note": "", "woken": 0.0, "trouble": {}, "trail": [], "revisions": [{"number": 1}, {"number": 2}], **more,
    }  # fmt: skip


def begun(kind: str = "canary", share: float = 0.1, *, judge: bool = True, **plan: Any) -> dict[str, Any]:
    return rollout_state.start_rollout(body(), TrialRequest(kind, share, judge, plan), 2, NOW)


def trial_of(found: dict[str, Any]) -> Any:
    trial = endpoint_repository.read_running_rollout(found)
    assert trial is not None
    return trial


def said(verdict: str) -> ArmVerdict:
    return ArmVerdict("canary", verdict, ())


def test_nothing_goes_to_a_revision_that_is_not_ready() -> None:
    found = begun()
    assert endpoint_repository.read_shares(found) == {"base": (1, 1.0), "canary": (2, 0.0)}
    assert rollout_state.decide_without_judging(found, trial_of(found), {1: 1}, NOW) is None
    assert rollout_state.decide_without_judging(found, trial_of(found), {1: 1, 2: 1}, NOW) == RolloutMove("step")


def test_a_canary_goes_through_its_steps_and_is_promoted() -> None:
    found = rollout_state.apply_move(begun(), RolloutMove("step"), NOW + 1)
    assert endpoint_repository.read_shares(found)["canary"] == (2, pytest.approx(0.1))
    move = rollout_state.decide_from_verdict(trial_of(found), said(VERDICT_FINE), NOW + 2)
    assert move is not None
    assert move.name == "step"
    found = rollout_state.apply_move(found, move, NOW + 2)
    assert (trial_of(found).step, trial_of(found).step_at) == (1, NOW + 2)
    assert endpoint_repository.read_shares(found)["canary"] == (2, 0.5)
    last = rollout_state.decide_from_verdict(trial_of(found), said(VERDICT_FINE), NOW + 3)
    assert last is not None
    over = rollout_state.apply_move(found, last, NOW + 3)
    assert (over["current"], over["before"], over["rollout"]["state"]) == (2, 1, "promoted")
    assert endpoint_repository.read_shares(over) == {"base": (2, 1.0)}


def test_without_a_replica_the_promoted_revision_waits_for_one() -> None:
    over = rollout_state.apply_move(begun(), RolloutMove("promote", "by hand"), NOW, is_ready=False)
    assert (over["current"], over["wanted"], over["rollout"]["state"]) == (1, 2, "promoted")


@pytest.mark.parametrize(("name", "state"), [("rollback", "rolled back"), ("inconclusive", "inconclusive")])
def test_the_base_has_everything_again(name: str, state: str) -> None:
    over = rollout_state.apply_move(
        rollout_state.apply_move(begun(), RolloutMove("step"), NOW), RolloutMove(name, "errors"), NOW + 9
    )
    assert endpoint_repository.read_shares(over) == {"base": (1, 1.0)}
    assert (over["rollout"]["state"], over["rollout"]["why"], over["rollout"]["ended_at"]) == (state, "errors", NOW + 9)
    assert over["wanted"] == 1


def test_verdicts_become_moves() -> None:
    trial = trial_of(rollout_state.apply_move(begun(most_s=60), RolloutMove("step"), NOW))
    worse = rollout_state.decide_from_verdict(trial, said(VERDICT_WORSE), NOW + 1)
    assert worse is not None
    assert worse.name == "rollback"
    assert rollout_state.decide_from_verdict(trial, said(VERDICT_WAIT), NOW + 59) is None
    late = rollout_state.decide_from_verdict(trial, said(VERDICT_WAIT), NOW + 61)
    assert late is not None
    assert late.name == "inconclusive"


def test_a_canary_that_loses_its_replicas_pauses_and_goes_on_where_it_was() -> None:
    found = rollout_state.apply_move(
        rollout_state.apply_move(begun(), RolloutMove("step"), NOW), RolloutMove("step"), NOW + 1
    )
    pause = rollout_state.decide_without_judging(found, trial_of(found), {1: 1}, NOW + 2)
    assert pause is not None
    assert pause.name == "pause"
    paused = rollout_state.apply_move(found, pause, NOW + 2)
    assert endpoint_repository.read_shares(paused)["base"] == (1, 1.0)
    again = rollout_state.apply_move(paused, RolloutMove("step"), NOW + 3)
    assert (trial_of(again).step, endpoint_repository.read_shares(again)["canary"]) == (1, (2, 0.5))


def test_a_canary_that_keeps_crashing_is_rolled_back_whoever_judges() -> None:
    found = rollout_state.apply_move(begun(judge=False), RolloutMove("step"), NOW)
    found["trouble"] = {"2": {"fails": 3, "at": NOW, "why": "segmentation fault"}}
    move = rollout_state.decide_without_judging(found, trial_of(found), {1: 1}, NOW + 1)
    assert move is not None
    assert move.name == "rollback"
    assert "segmentation fault" in move.why


def test_one_that_never_gets_ready_is_given_up_when_its_time_is_over() -> None:
    found = begun(most_s=60)
    assert rollout_state.decide_without_judging(found, trial_of(found), {}, NOW + 59) is None
    move = rollout_state.decide_without_judging(found, trial_of(found), {}, NOW + 61)
    assert move is not None
    assert move.name == "inconclusive"


def test_a_shadow_is_copied_to_and_answers_nobody() -> None:
    found = rollout_state.apply_move(begun("shadow", 1.0), RolloutMove("step"), NOW)
    assert endpoint_repository.read_shares(found) == {"base": (1, 1.0)}
    assert endpoint_repository.read_shadow(found) == (2, 1.0)


def test_plans_as_flags_say_them() -> None:
    plan = rollout_state.parse_criteria(
        {"errors": "0.5%", "steps": "0.05:0.2:0.5", "least": "50", "output": "y"}, "canary", 0.05
    )
    assert plan.margins == {"errors": 0.005, "slow": 0.05, "quality": 0.02}
    assert (plan.steps, plan.least) == ((0.05, 0.2, 0.5), 50)
    assert all(metric.proves for metric in plan.metrics)
    test = rollout_state.parse_criteria({"output": "y", "how": "squared"}, "ab", 0.5)
    assert [(one.name, one.margin, one.proves) for one in test.metrics] == [
        ("errors", 0.01, False), ("slow", 0.05, False), ("quality", 0.0, True),
    ]  # fmt: skip
    assert rollout_state.read_criteria(trial_of(begun(steps="0.01:0.3"))).steps == (0.01, 0.3)


@pytest.mark.parametrize(
    ("plan", "kind", "share"),
    [
        ({"erors": "1%"}, "canary", 0.1), ({"errors": "much"}, "canary", 0.1), ({"errors": "nan"}, "canary", 0.1),
        ({"errors": 2}, "canary", 0.1), ({"quality": 0.1}, "canary", 0.1), ({"how": "match"}, "canary", 0.1),
        ({"output": "y", "how": "guess"}, "canary", 0.1), ({"output": "y", "low": 1, "high": 1}, "canary", 0.1),
        ({"steps": "0.5:0.1"}, "canary", 0.1), ({"steps": "0.5:1"}, "canary", 0.1), ({"steps": []}, "canary", 0.1),
        ({"steps": "0.1:0.5"}, "ab", 0.1), ({"goal": "quality"}, "ab", 0.5), ({"goal": "errors"}, "canary", 0.1),
        ({}, "canary", 1.0), ({}, "canary", 0.0), ({}, "sudden", 0.5), ({"alpha": 0.9}, "canary", 0.1),
    ],
)  # fmt: skip
def test_plans_that_are_none(plan: dict[str, Any], kind: str, share: float) -> None:
    with pytest.raises(Invalid):
        rollout_state.parse_criteria(plan, kind, share)


def test_there_must_be_something_to_compare_with() -> None:
    with pytest.raises(Conflict):
        rollout_state.start_rollout(body(current=0), TrialRequest("canary"), 1, NOW)
    with pytest.raises(Conflict):
        rollout_state.apply_move(body(), RolloutMove("promote"), NOW)
