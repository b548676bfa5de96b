"""Samplers: the same question has the same answer, several at once differ, and what was measured counts."""

import subprocess
import sys
from dataclasses import replace

import pytest

from falaj.core.errors import Invalid
from falaj.study.records import SAMPLER_NAMES, TRIAL_FAILED, TRIAL_RUNNING, TRIAL_STOPPED, TRIAL_SUCCEEDED, SweepPlan
from falaj.study.samplers import check_sampler, suggest_params
from falaj.study.sweep_decisions import SweepTrial

PLAN = SweepPlan(space=("x=float:0..1", "lr=log:1e-5..1e-1", "n=int:1..9", "k=a|b"), metric="loss", trials=30)
COUNTED = ("x=float:0..1/0.1", "n=int:1..9", "k=a|b")


def history(count: int, plan: SweepPlan = PLAN) -> list[SweepTrial]:
    """Trials whose loss is least at x = 0.3."""
    known: list[SweepTrial] = []
    for number in range(1, count + 1):
        params = suggest_params(plan, number, known)
        value = (float(params["x"]) - 0.3) ** 2
        state = TRIAL_STOPPED if number % 4 == 0 else TRIAL_SUCCEEDED
        known.append(SweepTrial(number, params, state, value, 10, {10: value}))
    return known


@pytest.mark.parametrize("sampler", SAMPLER_NAMES)
def test_the_same_question_has_the_same_answer(sampler: str) -> None:
    plan = replace(PLAN, sampler=sampler, space=COUNTED)
    known = [
        *history(12),
        SweepTrial(13, {"x": 0.5, "n": 2, "k": "a"}, TRIAL_RUNNING),
        SweepTrial(14, {"x": 0.1, "n": 3, "k": "b"}, TRIAL_FAILED),
    ]
    known = [replace(one, params={name: one.params[name] for name in ("x", "n", "k")}) for one in known]
    known = [replace(one, params={**one.params, "x": round(float(one.params["x"]), 1)}) for one in known]
    first, again = suggest_params(plan, 15, known), suggest_params(plan, 15, list(reversed(known)))
    assert first == again
    assert set(first) == {"x", "n", "k"}
    if sampler != "grid":
        assert any(suggest_params(replace(plan, seed=seed), 15, known) != first for seed in range(1, 6))


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc"])
def test_trials_asked_for_at_once_differ(sampler: str) -> None:
    plan, known = replace(PLAN, sampler=sampler), history(12)
    for number in range(13, 21):
        known.append(SweepTrial(number, suggest_params(plan, number, known)))
    assert len({trial.params["x"] for trial in known}) == 20


def test_what_was_measured_counts() -> None:
    late = [abs(float(trial.params["x"]) - 0.3) for trial in history(30)[15:]]
    blind = [abs(float(suggest_params(replace(PLAN, sampler="random"), n, [])["x"]) - 0.3) for n in range(16, 31)]
    assert sum(late) < 0.75 * sum(blind)


def test_numbers_that_are_none_harm_nobody() -> None:
    known = [replace(trial, value=None, rungs={10: None}) if trial.number % 2 else trial for trial in history(12)]
    assert 0 <= float(suggest_params(PLAN, 13, known)["x"]) <= 1


def test_a_quasi_random_sequence_fills_the_space() -> None:
    plan = replace(PLAN, sampler="qmc", space=("x=float:0..1",))
    found = sorted(int(float(suggest_params(plan, number, [])["x"]) * 8) for number in range(1, 9))
    assert found == list(range(8))


def test_a_grid_has_so_many_trials_and_no_more() -> None:
    assert check_sampler(replace(PLAN, sampler="grid", space=COUNTED)) == 11 * 9 * 2
    with pytest.raises(Invalid, match="cannot count x"):
        check_sampler(replace(PLAN, sampler="grid"))


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(Invalid) as caught:
        check_sampler(PLAN)
    assert "falaj[sweeps]" in caught.value.hint
    assert set(suggest_params(replace(PLAN, sampler="random"), 1, [])) == {"x", "lr", "n", "k"}


def test_optuna_is_loaded_by_who_asks_it() -> None:
    text = (
        "import sys, falaj.study.sweep_loop, falaj.study.client_commands; "
        "print({'optuna', 'scipy', 'torch'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "set()"
