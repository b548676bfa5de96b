"""What a sweep does next, and which trials it stops. Pure: the same table gives the same answer, on any replica.

Trials are compared at rungs: `min_steps` steps of the metric, eta times that, and so on. A trial counts at a rung once
it has passed it, and is judged at the highest one it passed against all that ever passed there, running or over.
Nothing is remembered but the values at rungs, so the order in which reports came does not matter.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from falaj.core.data import dataclass
from falaj.study.records import BAD, BEHIND, GOOD, LIVE, SweepPlan
from falaj.study.space import Params

FEW = 3
"""The median of fewer others says nothing."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is known of one trial."""

    number: int
    params: Params
    state: str = LIVE
    value: float | None = None
    """None: it measured nothing yet, or nothing that is a number."""
    step: int = 0
    rungs: Mapping[int, float | None] = field(default_factory=dict)
    note: str = ""


class Move(NamedTuple):
    """What is to be done next."""

    start: int = 0
    finish: bool = False
    give_up: str = ""


def next_move(plan: SweepPlan, trials: Sequence[Trial], most: int) -> Move:
    """Start so many trials, finish, give up, or wait. `most`: there are no more points than that in its space."""
    failed = [trial for trial in trials if trial.state == BAD]
    hope = any(one.state in (GOOD, BEHIND) or (one.state == LIVE and one.value is not None) for one in trials)
    if len(failed) >= min(plan.give_up, plan.trials) and not hope:
        return Move(give_up=f"the first {len(failed)} trials failed, the last: {failed[-1].note}")
    live = sum(trial.state == LIVE for trial in trials)
    left = min(plan.trials, most) - len(trials)
    if left <= 0:
        return Move(finish=not live)
    if plan.gang and live:
        return Move()
    return Move(start=max(0, min(left, plan.at_once - live)))


def stops(plan: SweepPlan, trials: Iterable[Trial]) -> dict[int, str]:
    """The running trials that shall end now, by number, with the reason."""
    if plan.stopper == "none":
        return {}
    known = list(trials)
    found = {}
    for trial in known:
        if trial.state == LIVE and trial.rungs:
            rung = max(trial.rungs)
            values = [_loss(plan, other.rungs[rung]) for other in known if rung in other.rungs]
            mine = _loss(plan, trial.rungs[rung])
            behind = sum(value < mine for value in values)
            if behind and _is_out(plan, mine, values, behind):
                found[trial.number] = (
                    f"stopped early: {_said(trial.rungs[rung])} at step {rung} is behind {behind} of {len(values)}"
                )
    return found


def ranked(plan: SweepPlan, trials: Iterable[Trial]) -> list[Trial]:
    """Best first: by value, those without one last."""
    return sorted(trials, key=lambda trial: (_loss(plan, trial.value), trial.number))


def best(plan: SweepPlan, trials: Iterable[Trial]) -> Trial | None:
    """The best of those that came to their end well; one that was stopped early left nothing behind."""
    done = [trial for trial in trials if trial.state == GOOD and trial.value is not None]
    return ranked(plan, done)[0] if done else None


class Reading(NamedTuple):
    """What is taken from a trial's curve, as far as it was read."""

    value: float | None = None
    step: int = 0
    rungs: Mapping[int, float | None] = {}
    seen: bool = False
    """True once there was a point at all."""

    def after(self, plan: SweepPlan, points: Iterable[tuple[int, float]]) -> "Reading":
        """With more points of the metric, by step."""
        value, step, rungs, seen = self.value, self.step, dict(self.rungs), self.seen
        rung = plan.min_steps
        while seen and rung <= step:
            rung *= plan.eta
        for at, number in points:
            while rung < at:
                if seen:  # at a rung before its first point nothing is known of it
                    rungs[rung] = value
                rung *= plan.eta
            new = number if math.isfinite(number) else None
            if plan.take == "last" or _loss(plan, new) < _loss(plan, value):
                value = new
            step, seen = max(step, at), True
            if rung == at:
                rungs[rung] = value
                rung *= plan.eta
        return Reading(value, step, rungs, seen)


def _is_out(plan: SweepPlan, mine: float, values: Sequence[float], behind: int) -> bool:
    if plan.stopper == "asha":
        return behind >= math.ceil(len(values) / plan.eta)
    # The median of the others: ours is taken out once.
    others = sorted(values)
    others.remove(mine)
    return len(others) >= FEW and mine > others[len(others) // 2]


def _loss(plan: SweepPlan, value: float | None) -> float:
    """Smaller is better, and what is no number is worst."""
    return math.inf if value is None else value if plan.goal == "min" else -value


def _said(value: float | None) -> str:
    return "no number" if value is None else f"{value:.4g}"
