"""Who is stopped, who is best, what comes next: tables and properties over pure functions."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.study.records import TRIAL_CANCELLED, TRIAL_FAILED, TRIAL_RUNNING, TRIAL_STOPPED, TRIAL_SUCCEEDED, SweepPlan
from falaj.study.sweep_decisions import (
    CurveReading,
    SweepMove,
    SweepTrial,
    choose_next_move,
    find_best,
    find_stops,
    rank_trials,
)

PLAN = SweepPlan(space=("x=float:0..1",), metric="loss", trials=10, at_once=4, min_steps=10)


def at(rung: int, *values: float | None, state: str = TRIAL_RUNNING) -> list[SweepTrial]:
    """Trials 1, 2, … that all passed one rung."""
    return [SweepTrial(number, {"x": 0.0}, state, value, rung, {rung: value}) for number, value in enumerate(values, 1)]


def test_a_trial_behind_the_top_third_is_stopped_and_told_why() -> None:
    found = find_stops(PLAN, at(100, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.71, 0.8, 0.9))
    assert sorted(found) == [4, 5, 6, 7, 8, 9]
    assert found[7] == "stopped early: 0.71 at step 100 is behind 6 of 9"


@pytest.mark.parametrize(
    ("values", "out"),
    [
        ((0.5,), []),
        ((0.5, 0.4), [1]),
        ((0.5, 0.5, 0.5), []),
        ((0.1, 0.2, 0.3, 0.4), [3, 4]),
        ((None, 0.4), [1]),
        ((None, None), []),
    ],
)
def test_few_trials(values: tuple[float | None, ...], out: list[int]) -> None:
    assert sorted(find_stops(PLAN, at(10, *values))) == out


def test_where_more_is_better_the_least_is_stopped() -> None:
    assert sorted(find_stops(replace(PLAN, goal="max"), at(10, 0.1, 0.9, 0.2))) == [1, 3]


def test_trials_are_judged_at_their_own_rung() -> None:
    ahead = SweepTrial(1, {}, TRIAL_RUNNING, 0.9, 30, {10: 0.9, 30: 0.9})
    late = SweepTrial(2, {}, TRIAL_RUNNING, 0.5, 10, {10: 0.5})
    assert find_stops(PLAN, [ahead, late]) == {}
    assert sorted(find_stops(PLAN, [replace(ahead, rungs={10: 0.9}), late])) == [1]


def test_those_that_are_over_still_count_and_are_not_stopped_again() -> None:
    over = at(10, 0.1, 0.2, state=TRIAL_SUCCEEDED)
    assert sorted(find_stops(PLAN, [*over, SweepTrial(9, {}, TRIAL_RUNNING, 0.3, 10, {10: 0.3})])) == [9]
    assert find_stops(PLAN, over) == {}


def test_nobody_is_stopped_where_nobody_shall_be() -> None:
    assert find_stops(replace(PLAN, stopper="none"), at(10, 0.1, 0.2, 0.9)) == {}


def test_the_median_needs_others_and_stops_the_worse_half() -> None:
    plan = replace(PLAN, stopper="median")
    assert find_stops(plan, at(10, 0.1, 0.9, 0.8)) == {}
    assert sorted(find_stops(plan, at(10, 0.1, 0.2, 0.3, 0.4, 0.5))) == [4, 5]


rung_values = st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=30)
plans = st.builds(
    lambda goal, stopper, eta: replace(PLAN, goal=goal, stopper=stopper, eta=eta),
    st.sampled_from(("min", "max")),
    st.sampled_from(("asha", "median")),
    st.integers(2, 5),
)


@settings(deadline=None)
@given(plans, rung_values)
def test_the_best_of_a_rung_is_never_stopped(plan: SweepPlan, values: list[float | None]) -> None:
    trials = at(10, *values)
    first = rank_trials(plan, trials)[0]
    assert first.number not in find_stops(plan, trials)


@settings(deadline=None)
@given(plans, rung_values)
def test_whoever_is_stopped_is_worse_than_everybody_who_is_not(plan: SweepPlan, values: list[float | None]) -> None:
    trials = at(10, *values)
    out = find_stops(plan, trials)
    order = [(trial.value, trial.number in out) for trial in rank_trials(plan, trials)]
    # Best first: once one is out, so is whoever is worse; those with the same value share their fate.
    assert all(b or not a or x == y for (x, a), (y, b) in pairwise(order))
    assert all(a == b for (x, a), (y, b) in pairwise(order) if x == y)


@settings(deadline=None)
@given(rung_values, st.integers(2, 5))
def test_as_many_go_on_as_shall(values: list[float | None], eta: int) -> None:
    plan = replace(PLAN, eta=eta)
    left = len(values) - len(find_stops(plan, at(10, *values)))
    assert left >= math.ceil(len(values) / eta)
    if len(set(values)) == len(values):
        assert left == math.ceil(len(values) / eta)


@settings(deadline=None)
@given(plans, rung_values, st.randoms(use_true_random=False))
def test_the_order_of_reports_does_not_matter(
    plan: SweepPlan, values: list[float | None], chance: random.Random
) -> None:
    trials = at(10, *values)
    mixed = chance.sample(trials, len(trials))
    assert find_stops(plan, trials) == find_stops(plan, mixed)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=20, unique=True), st.randoms(use_true_random=False))
def test_asynchronous_reports_end_with_the_same_survivors(values: list[float], chance: random.Random) -> None:
    """Each arrives at the rung in turn, and whoever is behind is stopped at once: the best third is left either way."""
    arrived: list[SweepTrial] = []
    for trial in chance.sample(at(10, *values), len(values)):
        arrived.append(trial)
        out = find_stops(PLAN, arrived)
        arrived = [replace(one, state=TRIAL_STOPPED) if one.number in out else one for one in arrived]
    left = {one.number for one in arrived if one.state == TRIAL_RUNNING}
    together = {one.number for one in at(10, *values)} - set(find_stops(PLAN, at(10, *values)))
    # Who was stopped while few had arrived does not come back; nobody is left who should not be.
    assert left <= together
    assert rank_trials(PLAN, at(10, *values))[0].number in left


def test_a_curve_is_read_in_pieces_as_in_one() -> None:
    points = [(step, 1.0 / (step + 1) + (step % 3)) for step in range(100)]
    for take in ("best", "last"):
        plan = replace(PLAN, take=take)
        whole = CurveReading().after(plan, points)
        pieces = CurveReading()
        for begin in range(0, 100, 7):
            pieces = pieces.after(plan, points[begin : begin + 7])
        assert pieces == whole
        assert sorted(whole.rungs) == [10, 30, 90]


def test_a_rung_has_the_value_of_its_step() -> None:
    reading = CurveReading().after(PLAN, [(5, 3.0), (10, 2.0), (11, 1.0), (40, 0.5)])
    assert reading == CurveReading(0.5, 40, {10: 2.0, 30: 1.0}, seen=True)
    assert CurveReading().after(replace(PLAN, take="last"), [(5, 1.0), (10, 2.0)]).rungs == {10: 2.0}
    assert CurveReading().after(PLAN, [(50, 1.0)]).rungs == {}  # nothing is known of it at 10 and 30


def test_what_is_no_number_is_worst_and_no_value() -> None:
    reading = CurveReading().after(PLAN, [(10, math.nan)])
    assert (reading.value, reading.rungs) == (None, {10: None})
    assert CurveReading().after(PLAN, [(5, 1.0), (10, math.inf)]).value == 1.0
    assert CurveReading().after(replace(PLAN, take="last"), [(5, 1.0), (10, math.nan)]).value is None


def trials(*states: str, value: float | None = None) -> list[SweepTrial]:
    return [
        SweepTrial(n, {}, state, value if state != TRIAL_FAILED else None, note="exit 1")
        for n, state in enumerate(states, 1)
    ]


@pytest.mark.parametrize(
    ("known", "plan", "move"),
    [
        ([], PLAN, SweepMove(start=4)),
        (trials(TRIAL_RUNNING, TRIAL_RUNNING, TRIAL_RUNNING), PLAN, SweepMove(start=1)),
        (trials(TRIAL_RUNNING, TRIAL_RUNNING, TRIAL_RUNNING, TRIAL_RUNNING), PLAN, SweepMove()),
        (trials(TRIAL_RUNNING, TRIAL_SUCCEEDED, TRIAL_STOPPED, value=1.0), replace(PLAN, trials=4), SweepMove(start=1)),
        (trials(TRIAL_SUCCEEDED, TRIAL_SUCCEEDED, value=1.0), replace(PLAN, trials=2), SweepMove(finish=True)),
        (trials(TRIAL_SUCCEEDED, TRIAL_RUNNING, value=1.0), replace(PLAN, trials=2), SweepMove()),
        (trials(TRIAL_SUCCEEDED, TRIAL_RUNNING, value=1.0), replace(PLAN, gang=True), SweepMove()),
        (trials(TRIAL_SUCCEEDED, TRIAL_SUCCEEDED, value=1.0), replace(PLAN, gang=True), SweepMove(start=4)),
        (trials(TRIAL_FAILED, TRIAL_FAILED, TRIAL_RUNNING), PLAN, SweepMove(start=3)),
        (trials(TRIAL_FAILED, TRIAL_FAILED, TRIAL_CANCELLED), replace(PLAN, trials=3), SweepMove(finish=True)),
    ],
)
def test_what_comes_next(known: list[SweepTrial], plan: SweepPlan, move: SweepMove) -> None:
    assert choose_next_move(plan, known, 1000) == move


def test_a_grid_ends_when_it_is_through() -> None:
    assert choose_next_move(PLAN, trials(TRIAL_SUCCEEDED, TRIAL_SUCCEEDED, value=1.0), 2) == SweepMove(finish=True)


def test_a_sweep_that_only_fails_is_given_up_with_the_reason() -> None:
    assert (
        "exit 1"
        in choose_next_move(PLAN, trials(TRIAL_FAILED, TRIAL_FAILED, TRIAL_FAILED, TRIAL_RUNNING), 1000).give_up
    )
    assert (
        choose_next_move(
            PLAN, [*trials(TRIAL_FAILED, TRIAL_FAILED, TRIAL_FAILED), *trials(TRIAL_SUCCEEDED, value=1.0)], 1000
        ).give_up
        == ""
    )
    assert choose_next_move(replace(PLAN, trials=1), trials(TRIAL_FAILED), 1000).give_up
    told = [
        replace(trial, value=0.5) for trial in trials(TRIAL_FAILED, TRIAL_FAILED, TRIAL_FAILED)
    ]  # they all measured something, and then fell
    assert choose_next_move(PLAN, told, 1000).give_up
    assert choose_next_move(PLAN, [*told, SweepTrial(4, {}, TRIAL_RUNNING, 0.5)], 1000).start


def test_the_best_came_to_its_end() -> None:
    known = [
        SweepTrial(1, {}, TRIAL_STOPPED, 0.1),
        SweepTrial(2, {}, TRIAL_SUCCEEDED, 0.3),
        SweepTrial(3, {}, TRIAL_SUCCEEDED, 0.2),
        SweepTrial(4, {}, TRIAL_SUCCEEDED, None),
        SweepTrial(5, {}, TRIAL_RUNNING, 0.05),
    ]
    assert getattr(find_best(PLAN, known), "number", 0) == 3
    assert getattr(find_best(replace(PLAN, goal="max"), known), "number", 0) == 2
    assert find_best(PLAN, []) is None
    assert [trial.number for trial in rank_trials(PLAN, known)] == [5, 1, 3, 2, 4]
