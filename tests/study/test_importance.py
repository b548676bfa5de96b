"""Which parameters matter."""

import random
from dataclasses import replace

import pytest

from falaj.study.parameter_importance import compute_importance
from falaj.study.records import TRIAL_STOPPED, TRIAL_SUCCEEDED, SweepPlan
from falaj.study.sweep_decisions import SweepTrial

PLAN = SweepPlan(space=("x=float:0..1", "y=float:0..1", "k=a|b"), metric="loss")


def trials(count: int) -> list[SweepTrial]:
    chance = random.Random(7)
    made = [{"x": chance.random(), "y": chance.random(), "k": chance.choice("ab")} for _ in range(count)]
    return [
        SweepTrial(
            n,
            params,
            TRIAL_SUCCEEDED if n % 2 else TRIAL_STOPPED,
            5 * params["x"] + (params["k"] == "a") + 0.01 * chance.random(),
        )
        for n, params in enumerate(made, 1)
    ]


def test_what_changes_the_metric_most_comes_first() -> None:
    found = compute_importance(PLAN, trials(60))
    assert next(iter(found)) == "x"
    assert found["y"] < 0.1
    assert sum(found.values()) == pytest.approx(1, abs=0.01)


def test_what_is_best_in_the_middle_counts_too() -> None:
    known = [replace(trial, value=(float(trial.params["x"]) - 0.5) ** 2) for trial in trials(60)]
    assert compute_importance(PLAN, known)["x"] > 0.8


def test_a_choice_counts_by_its_groups() -> None:
    known = [replace(trial, value=1.0 if trial.params["k"] == "a" else 2.0) for trial in trials(40)]
    assert next(iter(compute_importance(PLAN, known))) == "k"


def test_of_little_nothing_is_said() -> None:
    assert compute_importance(PLAN, trials(3)) == {}
    assert compute_importance(PLAN, []) == {}
    assert compute_importance(PLAN, [replace(trial, value=1.0) for trial in trials(20)]) == {}
    assert compute_importance(PLAN, [replace(trial, value=None) for trial in trials(20)]) == {}
    same = [replace(trial, params={**trial.params, "y": 0.5}) for trial in trials(20)]
    assert compute_importance(PLAN, same)["y"] == 0
