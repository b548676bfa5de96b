"""Samplers: the parameters of the next trial, from the seed, its number and all that is known of the others.

Nothing is kept between two questions: Optuna's study is made anew from the trials each time, those that still run told
as running, so that several at once do not try the same. The same seed and trials give the same answer on any replica.
"""

import importlib.util
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from falaj.core.errors import Invalid
from falaj.study.records import TRIAL_RUNNING, TRIAL_STOPPED, TRIAL_SUCCEEDED, SweepPlan
from falaj.study.search_space import ParamValue, SpaceAxis, TrialParams, count_grid_points, find_grid_point, read_space
from falaj.study.sweep_decisions import SweepTrial

if TYPE_CHECKING:
    import optuna

STARTUP_TRIALS = 10
"""So many trials are drawn at random before what they measured counts."""


def suggest_params(plan: SweepPlan, number: int, trials: Sequence[SweepTrial]) -> TrialParams:
    """The parameters of trial `number`, counted from 1."""
    axes = read_space(plan.space)
    if plan.sampler == "grid":
        return find_grid_point(axes, number - 1)
    if plan.sampler == "qmc":
        return _place_on_axes(axes, _sample_sobol(axes, plan.seed, number))
    if plan.sampler == "tpe" and any(trial.state in (TRIAL_SUCCEEDED, TRIAL_STOPPED) for trial in trials):
        return _sample_tpe(plan, axes, number, trials)
    generator = random.Random(f"{plan.seed}/{number}")  # noqa: S311  # nosec B311 - a search, and no secret
    return _place_on_axes(axes, [generator.random() for _ in axes])


def check_sampler(plan: SweepPlan) -> int:
    """How many different trials it can give at most; Invalid where what it needs is not installed."""
    package = {"tpe": "optuna", "qmc": "scipy"}.get(plan.sampler, "")
    if package and importlib.util.find_spec(package) is None:
        raise _missing_package_error(plan.sampler, package)
    return count_grid_points(read_space(plan.space)) if plan.sampler == "grid" else plan.trials


def _build_study(plan: SweepPlan, axes: Sequence[SpaceAxis], trials: Sequence[SweepTrial]) -> "optuna.Study":
    """The trials as Optuna knows them."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise _missing_package_error(plan.sampler, "optuna") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {axis.name: _to_distribution(axis) for axis in axes}
    study = optuna.create_study(direction="minimize" if plan.goal == "min" else "maximize")
    states = optuna.trial.TrialState
    states_by_trial_state = {
        TRIAL_SUCCEEDED: states.COMPLETE,
        TRIAL_STOPPED: states.PRUNED,
        TRIAL_RUNNING: states.RUNNING,
    }
    for trial in sorted(trials, key=lambda candidate: candidate.number):
        state = (
            states_by_trial_state.get(trial.state, states.FAIL)
            if trial.value is not None or trial.state == TRIAL_RUNNING
            else states.FAIL
        )
        frozen_trial = optuna.trial.create_trial(
            state=state,
            value=trial.value if state in (states.COMPLETE, states.PRUNED) else None,
            params=dict(trial.params),
            distributions=distributions,
            intermediate_values={step: value for step, value in trial.rungs.items() if value is not None},
        )
        study.add_trial(frozen_trial)
    return study


def _sample_tpe(plan: SweepPlan, axes: Sequence[SpaceAxis], number: int, trials: Sequence[SweepTrial]) -> TrialParams:
    study = _build_study(plan, axes, trials)
    from optuna.samplers import TPESampler

    # A sampler that is made anew would draw the same numbers each time: its seed goes with the trial.
    seed = random.Random(f"{plan.seed}/{number}").getrandbits(32)  # noqa: S311  # nosec B311 - a search, and no secret
    study.sampler = TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, constant_liar=True)
    optuna_trial = study.ask({axis.name: _to_distribution(axis) for axis in axes})
    return {axis.name: axis.fit(optuna_trial.params[axis.name]) for axis in axes}


def _sample_sobol(axes: Sequence[SpaceAxis], seed: int, number: int) -> list[float]:
    try:
        from scipy.stats import qmc  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise _missing_package_error("qmc", "scipy") from error
    engine = qmc.Sobol(len(axes), scramble=True, rng=seed)
    if number > 1:
        engine.fast_forward(number - 1)
    return [float(fraction) for fraction in engine.random(1)[0]]


def _place_on_axes(axes: Sequence[SpaceAxis], fractions: Sequence[float]) -> TrialParams:
    return {axis.name: axis.at(min(fraction, 1 - 1e-12)) for axis, fraction in zip(axes, fractions, strict=True)}


def _to_distribution(axis: SpaceAxis) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if axis.choices:
        choices: tuple[ParamValue, ...] = axis.choices
        return CategoricalDistribution(choices)
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log, step=int(axis.step) or 1)
    return FloatDistribution(axis.low, axis.high, log=axis.log, step=axis.step or None)


def _missing_package_error(sampler: str, package: str) -> Invalid:
    return Invalid(
        f"the sampler {sampler} needs the package {package}", "pip install 'falaj[sweeps]', or --sampler random"
    )
