"""Samplers: the parameters of the next trial, from the seed, its number and all that is known of the others.

Nothing is kept between two questions: Optuna's study is made anew from the trials each time, those that still run told
as running, so that several at once do not try the same. The same seed and trials give the same answer on any replica.
"""

import importlib.util
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from falaj.core.errors import Invalid
from falaj.study.decide import Trial
from falaj.study.records import BEHIND, GOOD, LIVE, SweepPlan
from falaj.study.space import Axis, Params, Value, corner, grid, read_space

if TYPE_CHECKING:
    import optuna

STARTUP = 10
"""So many trials are drawn at random before what they measured counts."""


def suggest(plan: SweepPlan, number: int, trials: Sequence[Trial]) -> Params:
    """The parameters of trial `number`, counted from 1."""
    axes = read_space(plan.space)
    if plan.sampler == "grid":
        return corner(axes, number - 1)
    if plan.sampler == "qmc":
        return _placed(axes, _sobol(axes, plan.seed, number))
    if plan.sampler == "tpe" and any(trial.state in (GOOD, BEHIND) for trial in trials):
        return _tpe(plan, axes, number, trials)
    chance = random.Random(f"{plan.seed}/{number}")  # noqa: S311  # nosec B311 - a search, and no secret
    return _placed(axes, [chance.random() for _ in axes])


def check_sampler(plan: SweepPlan) -> int:
    """How many different trials it can give at most; Invalid where what it needs is not installed."""
    needs = {"tpe": "optuna", "qmc": "scipy"}.get(plan.sampler, "")
    if needs and importlib.util.find_spec(needs) is None:
        raise _lacking(plan.sampler, needs)
    return grid(read_space(plan.space)) if plan.sampler == "grid" else plan.trials


def _study(plan: SweepPlan, axes: Sequence[Axis], trials: Sequence[Trial]) -> "optuna.Study":
    """The trials as Optuna knows them."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise _lacking(plan.sampler, "optuna") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    known = {axis.name: _distribution(axis) for axis in axes}
    told = optuna.create_study(direction="minimize" if plan.goal == "min" else "maximize")
    states = optuna.trial.TrialState
    kinds = {GOOD: states.COMPLETE, BEHIND: states.PRUNED, LIVE: states.RUNNING}
    for trial in sorted(trials, key=lambda one: one.number):
        state = kinds.get(trial.state, states.FAIL) if trial.value is not None or trial.state == LIVE else states.FAIL
        made = optuna.trial.create_trial(
            state=state,
            value=trial.value if state in (states.COMPLETE, states.PRUNED) else None,
            params=dict(trial.params),
            distributions=known,
            intermediate_values={step: value for step, value in trial.rungs.items() if value is not None},
        )
        told.add_trial(made)
    return told


def _tpe(plan: SweepPlan, axes: Sequence[Axis], number: int, trials: Sequence[Trial]) -> Params:
    study = _study(plan, axes, trials)
    from optuna.samplers import TPESampler

    # A sampler that is made anew would draw the same numbers each time: its seed goes with the trial.
    seed = random.Random(f"{plan.seed}/{number}").getrandbits(32)  # noqa: S311  # nosec B311 - a search, and no secret
    study.sampler = TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=True, constant_liar=True)
    asked = study.ask({axis.name: _distribution(axis) for axis in axes})
    return {axis.name: axis.fit(asked.params[axis.name]) for axis in axes}


def _sobol(axes: Sequence[Axis], seed: int, number: int) -> list[float]:
    try:
        from scipy.stats import qmc  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise _lacking("qmc", "scipy") from error
    engine = qmc.Sobol(len(axes), scramble=True, rng=seed)
    if number > 1:
        engine.fast_forward(number - 1)
    return [float(part) for part in engine.random(1)[0]]


def _placed(axes: Sequence[Axis], parts: Sequence[float]) -> Params:
    return {axis.name: axis.at(min(part, 1 - 1e-12)) for axis, part in zip(axes, parts, strict=True)}


def _distribution(axis: Axis) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.choices:
        choices: tuple[Value, ...] = axis.choices
        return CategoricalDistribution(choices)
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log, step=int(axis.step) or 1)
    return FloatDistribution(axis.low, axis.high, log=axis.log, step=axis.step or None)


def _lacking(sampler: str, package: str) -> Invalid:
    return Invalid(
        f"the sampler {sampler} needs the package {package}", "pip install 'falaj[sweeps]', or --sampler random"
    )
