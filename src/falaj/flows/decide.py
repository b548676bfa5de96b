"""What a run does next. Pure: the same stand gives the same moves, on any replica, however often it is asked.

A step begins when all it needs is over. What needs something that did not succeed is skipped, unless it is to run
always; what runs already goes on. The run ends when every step is over.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from falaj.core.errors import Invalid
from falaj.flows.records import CANCELLED, FAILED, GATE, OVER, RUNNING, SKIPPED, SUCCEEDED, WAITING, FlowPlan, StepPlan


class Stand(NamedTuple):
    """One step as decisions see it: its items are known once it has begun."""

    state: str = WAITING
    items: tuple[str, ...] = ()


class Moves(NamedTuple):
    """What is due now."""

    begin: tuple[str, ...] = ()
    """Steps that all is there for: their items can be counted."""
    start: tuple[tuple[str, int], ...] = ()
    """Items there is room for."""
    over: tuple[tuple[str, str, str], ...] = ()
    """Steps that come to an end: how, and why."""
    end: str = ""
    """How the run ended, once nothing is left."""


def next_moves(
    plan: FlowPlan, stands: Mapping[str, Stand], met: Callable[[StepPlan], bool], *, cancel: bool = False
) -> Moves:
    """All that is due. `met` says of a step whose needs are over whether its condition holds."""
    begin: list[str] = []
    over: list[tuple[str, str, str]] = []
    start: list[tuple[str, int]] = []
    room = plan.at_once - _running(plan, stands)
    for step in plan.steps:
        stand = stands[step.name]
        if stand.state == WAITING:
            if cancel:
                over.append((step.name, CANCELLED, ""))
            elif all(stands[name].state in OVER for name in needs(step)):
                why = _barred(step, stands) or ("" if met(step) else "its condition is not met")
                over += [(step.name, SKIPPED, why)] if why else []
                begin += [] if why else [step.name]
        elif stand.state == RUNNING:
            if all(state in OVER for state in stand.items):
                over.append((step.name, _sum(stand.items), ""))
                continue
            waiting = [] if cancel else [at for at, state in enumerate(stand.items) if state == WAITING]
            free = len(waiting) if step.kind == GATE else max(0, room)
            start += [(step.name, at) for at in waiting[:free]]
            room -= 0 if step.kind == GATE else len(waiting[:free])
    ended = all(stand.state in OVER for stand in stands.values())
    return Moves(tuple(begin), tuple(start), tuple(over), _end(stands) if ended else "")


def needs(step: StepPlan) -> frozenset[str]:
    """The steps that must be over before this one begins."""
    sources = (*step.takes.values(), step.when)
    return frozenset(step.after) | {str(one["step"]) for source in sources for one in leaves(source) if "step" in one}


def leaves(source: Any) -> Iterator[Mapping[str, Any]]:
    """The references, parameters and results in what a step is given."""
    if not isinstance(source, Mapping):
        return
    for name in ("list", "all"):
        for one in source.get(name, ()):
            yield from leaves(one)
    for one in source.get("map", {}).values():
        yield from leaves(one)
    if "step" in source or "param" in source or "ref" in source:
        yield source


def in_order(plan: FlowPlan) -> tuple[str, ...]:
    """The steps so that each stands behind all it needs; Invalid where they need each other."""
    left = {step.name: needs(step) for step in plan.steps}
    done: list[str] = []
    while left:
        ready = [name for name, wanted in left.items() if wanted <= set(done)]
        if not ready:
            raise Invalid(f"the steps {', '.join(sorted(left))[:200]} wait for each other", "one of them must be first")
        done += ready
        left = {name: wanted for name, wanted in left.items() if name not in ready}
    return tuple(done)


def _running(plan: FlowPlan, stands: Mapping[str, Stand]) -> int:
    counted = [stands[step.name] for step in plan.steps if step.kind != GATE]
    return sum(state == RUNNING for stand in counted for state in stand.items)


def _barred(step: StepPlan, stands: Mapping[str, Stand]) -> str:
    """Why a step whose needs are over is not run."""
    if step.always:
        return ""
    bad = next((name for name in sorted(needs(step)) if stands[name].state != SUCCEEDED), "")
    return f"it needs {bad}, which {_SAID[stands[bad].state]}" if bad else ""


def _sum(items: tuple[str, ...]) -> str:
    return next((state for state in (FAILED, CANCELLED) if state in items), SUCCEEDED)


def _end(stands: Mapping[str, Stand]) -> str:
    return _sum(tuple(stand.state for stand in stands.values()))


_SAID = {FAILED: "failed", SKIPPED: "was skipped", CANCELLED: "was cancelled"}
