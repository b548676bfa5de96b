"""What a run does next. Pure: the same stand gives the same moves, on any replica, however often it is asked.

A step begins when all it needs is over. What needs something that did not succeed is skipped, unless it is to run
always; what runs already goes on. The run ends when every step is over.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from falaj.core.errors import Invalid
from falaj.flows.records import (
    CANCELLED,
    ENDED_STATES,
    FAILED,
    RUNNING,
    SKIPPED,
    STEP_GATE,
    SUCCEEDED,
    WAITING,
    FlowPlan,
    StepPlan,
)


class StepState(NamedTuple):
    """One step as decisions see it: its items are known once it has begun."""

    state: str = WAITING
    items: tuple[str, ...] = ()


class NextMoves(NamedTuple):
    """What is due now."""

    begin: tuple[str, ...] = ()
    """Steps that all is there for: their items can be counted."""
    start: tuple[tuple[str, int], ...] = ()
    """Items there is room for."""
    over: tuple[tuple[str, str, str], ...] = ()
    """Steps that come to an end: how, and why."""
    end: str = ""
    """How the run ended, once nothing is left."""


def decide_moves(
    plan: FlowPlan,
    step_states: Mapping[str, StepState],
    is_condition_met: Callable[[StepPlan], bool],
    *,
    is_cancelled: bool = False,
) -> NextMoves:
    """All that is due. `is_condition_met` says of a step whose needs are over whether its condition holds."""
    steps_to_begin: list[str] = []
    ended_steps: list[tuple[str, str, str]] = []
    items_to_start: list[tuple[str, int]] = []
    free_slots = plan.at_once - _count_running(plan, step_states)
    for step in plan.steps:
        step_state = step_states[step.name]
        if step_state.state == WAITING:
            if is_cancelled:
                ended_steps.append((step.name, CANCELLED, ""))
            elif all(step_states[name].state in ENDED_STATES for name in list_needed_steps(step)):
                reason = _explain_skip(step, step_states) or (
                    "" if is_condition_met(step) else "its condition is not met"
                )
                ended_steps += [(step.name, SKIPPED, reason)] if reason else []
                steps_to_begin += [] if reason else [step.name]
        elif step_state.state == RUNNING:
            if all(state in ENDED_STATES for state in step_state.items):
                ended_steps.append((step.name, _combine_states(step_state.items), ""))
                continue
            waiting_items = (
                []
                if is_cancelled
                else [item_number for item_number, state in enumerate(step_state.items) if state == WAITING]
            )
            startable = len(waiting_items) if step.kind == STEP_GATE else max(0, free_slots)
            items_to_start += [(step.name, item_number) for item_number in waiting_items[:startable]]
            free_slots -= 0 if step.kind == STEP_GATE else len(waiting_items[:startable])
    is_over = all(step_state.state in ENDED_STATES for step_state in step_states.values())
    return NextMoves(
        tuple(steps_to_begin), tuple(items_to_start), tuple(ended_steps), _get_end_state(step_states) if is_over else ""
    )


def list_needed_steps(step: StepPlan) -> frozenset[str]:
    """The steps that must be over before this one begins."""
    sources = (*step.takes.values(), step.when)
    return frozenset(step.after) | {
        str(leaf["step"]) for source in sources for leaf in iterate_leaves(source) if "step" in leaf
    }


def iterate_leaves(source: Any) -> Iterator[Mapping[str, Any]]:
    """The references, parameters and results in what a step is given."""
    if not isinstance(source, Mapping):
        return
    for name in ("list", "all"):
        for element in source.get(name, ()):
            yield from iterate_leaves(element)
    for element in source.get("map", {}).values():
        yield from iterate_leaves(element)
    if "step" in source or "param" in source or "ref" in source:
        yield source


def sort_steps(plan: FlowPlan) -> tuple[str, ...]:
    """The steps so that each stands behind all it needs; Invalid where they need each other."""
    unsorted = {step.name: list_needed_steps(step) for step in plan.steps}
    sorted_names: list[str] = []
    while unsorted:
        ready_names = [name for name, needed_names in unsorted.items() if needed_names <= set(sorted_names)]
        if not ready_names:
            raise Invalid(
                f"the steps {', '.join(sorted(unsorted))[:200]} wait for each other", "one of them must be first"
            )
        sorted_names += ready_names
        unsorted = {name: needed_names for name, needed_names in unsorted.items() if name not in ready_names}
    return tuple(sorted_names)


def _count_running(plan: FlowPlan, step_states: Mapping[str, StepState]) -> int:
    step_states_counted = [step_states[step.name] for step in plan.steps if step.kind != STEP_GATE]
    return sum(state == RUNNING for step_state in step_states_counted for state in step_state.items)


def _explain_skip(step: StepPlan, step_states: Mapping[str, StepState]) -> str:
    """Why a step whose needs are over is not run."""
    if step.always:
        return ""
    failed_need = next((name for name in sorted(list_needed_steps(step)) if step_states[name].state != SUCCEEDED), "")
    return f"it needs {failed_need}, which {_STATE_TEXTS[step_states[failed_need].state]}" if failed_need else ""


def _combine_states(items: tuple[str, ...]) -> str:
    return next((state for state in (FAILED, CANCELLED) if state in items), SUCCEEDED)


def _get_end_state(step_states: Mapping[str, StepState]) -> str:
    return _combine_states(tuple(step_state.state for step_state in step_states.values()))


_STATE_TEXTS = {FAILED: "failed", SKIPPED: "was skipped", CANCELLED: "was cancelled"}
