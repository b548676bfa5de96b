"""Any graph, any failures: a step runs after all it needs, once; nothing is left behind."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.flows.records import (
    CANCELLED,
    ENDED_STATES,
    FAILED,
    RUNNING,
    SKIPPED,
    STEP_GATE,
    STEP_JOB,
    SUCCEEDED,
    WAITING,
    FlowPlan,
    StepPlan,
)
from falaj.flows.run_decisions import StepState, decide_moves, iterate_leaves, list_needed_steps, sort_steps


@st.composite
def plans(draw: Any) -> FlowPlan:
    """A graph of up to nine steps, written in any order."""
    steps = []
    for number in range(draw(st.integers(1, 9))):
        before = [f"s{one}" for one in range(number)]
        taken = draw(st.lists(st.sampled_from(before), unique=True, max_size=3)) if before else []
        after = draw(st.lists(st.sampled_from(before), unique=True, max_size=2)) if before else []
        when = {"step": draw(st.sampled_from(before)), "out": "ok"} if before and draw(st.booleans()) else {}
        takes = {f"p{at}": {"list": [{"step": name, "out": ""}]} for at, name in enumerate(taken)}
        kind, always = (
            draw(st.sampled_from((STEP_JOB, STEP_JOB, STEP_GATE))),
            draw(st.booleans()) and draw(st.booleans()),
        )
        steps.append(StepPlan(f"s{number}", kind, tuple(after), takes=takes, when=when, always=always))
    return FlowPlan(tuple(draw(st.permutations(steps))), at_once=draw(st.integers(1, 3)))


class World:
    """Carries moves out, with jobs that end as chance has it."""

    def __init__(self, plan: FlowPlan, seed: int) -> None:
        self.plan, self.chance = plan, random.Random(seed)
        self.stands = {step.name: StepState() for step in plan.steps}
        self.steps = {step.name: step for step in plan.steps}
        self.begun: list[str] = []
        self.started: list[tuple[str, int]] = []
        self.truth = {step.name: self.chance.random() < 0.7 for step in plan.steps}

    def turn(self, cancel: bool = False) -> str:
        moves = decide_moves(
            self.plan, self.stands, lambda step: self.truth[step.name] or not step.when, is_cancelled=cancel
        )
        for name, state, _ in moves.over:
            self.stands[name] = replace_state(self.stands[name], state)
        for name in moves.begin:
            assert all(self.stands[one].state in ENDED_STATES for one in list_needed_steps(self.steps[name]))
            self.begun.append(name)
            self.stands[name] = StepState(RUNNING, (WAITING,) * self.chance.choice((0, 1, 1, 3)))
        for name, at in moves.start:
            self.started.append((name, at))
            self.set(name, at, RUNNING)
        jobs = [name for name, step in self.steps.items() if step.kind != STEP_GATE]
        assert sum(self.stands[name].items.count(RUNNING) for name in jobs) <= self.plan.at_once
        return moves.end

    def set(self, name: str, at: int, state: str) -> None:
        items = list(self.stands[name].items)
        items[at] = state
        self.stands[name] = StepState(self.stands[name].state, tuple(items))

    def happen(self) -> None:
        """One thing that runs ends."""
        live = [(name, at) for name, one in self.stands.items() for at, s in enumerate(one.items) if s == RUNNING]
        if live:
            self.set(*self.chance.choice(live), self.chance.choice((SUCCEEDED, SUCCEEDED, SUCCEEDED, FAILED)))


def replace_state(stand: StepState, state: str) -> StepState:
    return StepState(state, stand.items)


@settings(max_examples=100, deadline=None)
@given(plans(), st.integers(0, 1 << 30))
def test_every_step_once_after_all_it_needs_and_nothing_left(plan: FlowPlan, seed: int) -> None:
    world = World(plan, seed)
    for _ in range(400):
        end = world.turn()
        if end:
            break
        world.happen()
    assert end
    assert len(world.begun) == len(set(world.begun))
    assert len(world.started) == len(set(world.started))
    states = {name: stand.state for name, stand in world.stands.items()}
    assert set(states.values()) <= ENDED_STATES
    assert (end == FAILED) == (FAILED in states.values())
    for step in plan.steps:
        good = all(states[name] == SUCCEEDED for name in list_needed_steps(step))
        met = world.truth[step.name] or not step.when
        assert (states[step.name] == SKIPPED) == (not ((good or step.always) and met)), (step, states)


@settings(max_examples=40, deadline=None)
@given(plans(), st.integers(0, 1 << 30), st.integers(0, 6))
def test_cancelled_nothing_begins_any_more(plan: FlowPlan, seed: int, when: int) -> None:
    world = World(plan, seed)
    for _ in range(when):
        world.turn()
        world.happen()
    begun, started = len(world.begun), len(world.started)
    for name, stand in world.stands.items():
        world.stands[name] = StepState(stand.state, tuple(s if s in ENDED_STATES else CANCELLED for s in stand.items))
    end = world.turn(cancel=True) or world.turn(cancel=True) or world.turn(cancel=True)
    assert end in ENDED_STATES
    assert (len(world.begun), len(world.started)) == (begun, started)


def test_steps_that_wait_for_each_other_are_told() -> None:
    ring = FlowPlan((StepPlan("a", after=("b",)), StepPlan("b", takes={"x": {"step": "a", "out": ""}})))
    with pytest.raises(Invalid, match="a, b wait for each other"):
        sort_steps(ring)
    assert sort_steps(replace(ring, steps=(ring.steps[1], StepPlan("a")))) == ("a", "b")


def test_what_is_needed_is_found_wherever_it_stands() -> None:
    source = {"map": {"x": {"list": [1, {"step": "a", "out": "y"}]}, "y": {"param": "p"}}}
    step = StepPlan("c", takes={"x": source}, when={"all": [{"step": "b", "out": ""}]}, after=("d",))
    assert list_needed_steps(step) == {"a", "b", "d"}
    assert [one.get("param", "") for one in iterate_leaves(source)] == ["", "p"]
