"""What a policy would have done, on windows that are kept: the same function, other rules, no effect."""

from dataclasses import replace

import pytest

from falaj.core.ref import Ref
from falaj.drift.records import DriftFinding, DriftRules
from falaj.monitor import policy_replay
from falaj.monitor.records import ActionPlan, MonitorWindow, WatchPlan

HOUR = 3600.0
SCORE = Ref.parse("endpoint:fraud/score")
PLAN = WatchPlan(acting=ActionPlan(retrain=Ref.parse("flow:fraud/retrain"), rollback=True))


def moved(column: str, value: float, p: float, **more: object) -> DriftFinding:
    return DriftFinding("input", column, measure="ks", value=value, p=p, rows=1000, **more)  # type: ignore[arg-type]


def hour(number: int, *findings: DriftFinding, revision: int = 1, errors: int = 0) -> MonitorWindow:
    return MonitorWindow(number * HOUR, (number + 1) * HOUR, revision, 1000, findings, requests=1000, errors=errors)


def test_other_rules_judge_anew() -> None:
    found = (
        moved("a", 0.05, 1e-6),
        moved("b", 0.2, 1e-9, alarm=True),
        moved("c", 0.3, 0.04),
        moved("d", 0.01, 0.9),
        DriftFinding("quality", "a", alarm=True),
        DriftFinding("together", measure="mmd", value=0.1, p=0.001, rows=1000),
        DriftFinding("errors", measure="share", value=0.05, rows=1000),
        DriftFinding("latency", value=80.0, rows=1000),
    )

    def alarms(plan: WatchPlan) -> str:
        judged = policy_replay.rejudge_window(hour(1, *found), plan).findings
        return " ".join(f"{one.what}{f':{one.column}' * bool(one.column)}" for one in judged if one.alarm)

    assert alarms(PLAN) == "input:a input:b quality:a together errors"
    assert alarms(replace(PLAN, rules=DriftRules(least_step=0.1), errors=0.1)) == "input:b quality:a together"
    assert alarms(replace(PLAN, rules=DriftRules(least_rows=5000), latency_ms=50)) == "quality:a errors latency"
    assert alarms(replace(PLAN, rules=DriftRules(alpha=1e-7), errors=0)) == "input:b quality:a"
    assert alarms(replace(PLAN, rules=DriftRules(alpha=0.5))) == "input:a input:b input:c quality:a together errors"


@pytest.mark.parametrize(
    ("plan", "actions"),
    [
        (PLAN, ["alert", "retrain"]),
        (replace(PLAN, acting=ActionPlan()), ["alert"]),
        (replace(PLAN, rules=DriftRules(least_step=0.5)), []),
        (replace(PLAN, rules=DriftRules(persist=(9, 9))), []),
    ],
)
def test_policies_differ(plan: WatchPlan, actions: list[str]) -> None:
    windows = [hour(0), *(hour(at, moved("a", 0.3, 1e-9)) for at in range(1, 6))]
    states, verdicts = policy_replay.replay_windows(str(SCORE), windows, plan)
    assert [one.action for one in verdicts] == actions
    assert policy_replay.replay_windows(str(SCORE), windows, plan) == (states, verdicts), "the same again"
    assert len(states) == len(windows)


def test_a_new_revision_that_fails_had_been_left() -> None:
    windows = [hour(0), hour(1), hour(2, revision=2, errors=400), hour(3)]
    states, verdicts = policy_replay.replay_windows(str(SCORE), windows, PLAN)
    assert [(one.action, one.revision) for one in verdicts] == [("alert", 2), ("rollback", 2)]
    assert states == ["ok", "ok", "acting", "frozen"]
    said = "\n".join(policy_replay.format_replay(SCORE, windows, states, verdicts))
    assert "..AF" in said
    assert "400 of 1000 requests failed" in said
    assert "1 alert, 0 retrains, 1 rollback" in said
    assert policy_replay.format_replay(SCORE, [], [], []) == ["endpoint:fraud/score has no windows in this time"]
