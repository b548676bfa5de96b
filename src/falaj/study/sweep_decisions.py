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
from falaj.study.records import TRIAL_FAILED, TRIAL_RUNNING, TRIAL_STOPPED, TRIAL_SUCCEEDED, SweepPlan
from falaj.study.search_space import TrialParams

MIN_OTHERS = 3
"""The median of fewer others says nothing."""


@dataclass(frozen=True, slots=True)
class SweepTrial:
    """What is known of one trial."""

    number: int
    params: TrialParams
    state: str = TRIAL_RUNNING
    value: float | None = None
    """None: it measured nothing yet, or nothing that is a number."""
    step: int = 0
    rungs: Mapping[int, float | None] = field(default_factory=dict)
    note: str = ""


class SweepMove(NamedTuple):
    """What is to be done next."""

    start: int = 0
    finish: bool = False
    give_up: str = ""


def choose_next_move(plan: SweepPlan, trials: Sequence[SweepTrial], max_points: int) -> SweepMove:
    """Start so many trials, finish, give up, or wait. `max_points`: there are no more points than that in its space."""
    failed = [trial for trial in trials if trial.state == TRIAL_FAILED]
    has_promise = any(
        trial_with_value.state in (TRIAL_SUCCEEDED, TRIAL_STOPPED)
        or (trial_with_value.state == TRIAL_RUNNING and trial_with_value.value is not None)
        for trial_with_value in trials
    )
    if len(failed) >= min(plan.give_up, plan.trials) and not has_promise:
        return SweepMove(give_up=f"the first {len(failed)} trials failed, the last: {failed[-1].note}")
    live_count = sum(trial.state == TRIAL_RUNNING for trial in trials)
    remaining = min(plan.trials, max_points) - len(trials)
    if remaining <= 0:
        return SweepMove(finish=not live_count)
    if plan.gang and live_count:
        return SweepMove()
    return SweepMove(start=max(0, min(remaining, plan.at_once - live_count)))


def find_stops(plan: SweepPlan, trials: Iterable[SweepTrial]) -> dict[int, str]:
    """The running trials that shall end now, by number, with the reason."""
    if plan.stopper == "none":
        return {}
    all_trials = list(trials)
    reasons = {}
    for trial in all_trials:
        if trial.state == TRIAL_RUNNING and trial.rungs:
            rung = max(trial.rungs)
            values = [_to_loss(plan, other.rungs[rung]) for other in all_trials if rung in other.rungs]
            own_loss = _to_loss(plan, trial.rungs[rung])
            better_count = sum(value < own_loss for value in values)
            if better_count and _is_stopped(plan, own_loss, values, better_count):
                reasons[trial.number] = (
                    f"stopped early: {_format_value(trial.rungs[rung])} at step "
                    f"{rung} is behind {better_count} of {len(values)}"
                )
    return reasons


def rank_trials(plan: SweepPlan, trials: Iterable[SweepTrial]) -> list[SweepTrial]:
    """Best first: by value, those without one last."""
    return sorted(trials, key=lambda trial: (_to_loss(plan, trial.value), trial.number))


def find_best(plan: SweepPlan, trials: Iterable[SweepTrial]) -> SweepTrial | None:
    """The best of those that came to their end well; one that was stopped early left nothing behind."""
    succeeded = [trial for trial in trials if trial.state == TRIAL_SUCCEEDED and trial.value is not None]
    return rank_trials(plan, succeeded)[0] if succeeded else None


class CurveReading(NamedTuple):
    """What is taken from a trial's curve, as far as it was read."""

    value: float | None = None
    step: int = 0
    rungs: Mapping[int, float | None] = {}
    seen: bool = False
    """True once there was a point at all."""

    def after(self, plan: SweepPlan, points: Iterable[tuple[int, float]]) -> "CurveReading":
        """With more points of the metric, by step."""
        value, step, rungs, has_points = self.value, self.step, dict(self.rungs), self.seen
        rung = plan.min_steps
        while has_points and rung <= step:
            rung *= plan.eta
        for point_step, number in points:
            while rung < point_step:
                if has_points:  # at a rung before its first point nothing is known of it
                    rungs[rung] = value
                rung *= plan.eta
            finite_value = number if math.isfinite(number) else None
            if plan.take == "last" or _to_loss(plan, finite_value) < _to_loss(plan, value):
                value = finite_value
            step, has_points = max(step, point_step), True
            if rung == point_step:
                rungs[rung] = value
                rung *= plan.eta
        return CurveReading(value, step, rungs, has_points)


def _is_stopped(plan: SweepPlan, own_loss: float, values: Sequence[float], better_count: int) -> bool:
    if plan.stopper == "asha":
        return better_count >= math.ceil(len(values) / plan.eta)
    # The median of the others: ours is taken out once.
    others = sorted(values)
    others.remove(own_loss)
    return len(others) >= MIN_OTHERS and own_loss > others[len(others) // 2]


def _to_loss(plan: SweepPlan, value: float | None) -> float:
    """Smaller is better, and what is no number is worst."""
    return math.inf if value is None else value if plan.goal == "min" else -value


def _format_value(value: float | None) -> str:
    return "no number" if value is None else f"{value:.4g}"
