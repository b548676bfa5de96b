"""How much each parameter matters: by PED-ANOVA where Optuna is there, else how well its rank explains the metric's."""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from falaj.study.decide import Trial
from falaj.study.records import GOOD, SweepPlan
from falaj.study.space import Axis, read_space
from falaj.study.suggest import study_of

LEAST = 4
"""With fewer trials nothing can be said."""


def importance(plan: SweepPlan, trials: Sequence[Trial], *, thorough: bool = False) -> dict[str, float]:
    """The share of the metric's change that each parameter explains, greatest first; together 1.

    Thorough loads Optuna: for once, at the end.
    """
    axes = [axis for axis in read_space(plan.space) if len({trial.params[axis.name] for trial in trials}) > 1]
    known = [trial for trial in trials if trial.value is not None]
    if len(known) < LEAST or not axes or len({trial.value for trial in known}) < 2:
        return {}
    if thorough and importlib.util.find_spec("optuna"):
        found = _ped_anova(plan, axes, known)
    else:
        ranks = _ranks([trial.value or 0.0 for trial in known])
        found = {axis.name: _explained(axis, known, ranks) for axis in axes}
    total = sum(found.values())
    shares = {name: round(value / total, 4) for name, value in found.items()} if total > 0 else {}
    return dict(sorted(shares.items(), key=lambda pair: (-pair[1], pair[0])))


def _ped_anova(plan: SweepPlan, axes: Sequence[Axis], trials: Sequence[Trial]) -> dict[str, float]:
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    # Those that were stopped early count with what they had: without them only good regions would be seen.
    names = {axis.name for axis in axes}
    told = [replace(one, state=GOOD, params={k: v for k, v in one.params.items() if k in names}) for one in trials]
    found = get_param_importances(study_of(plan, axes, told), evaluator=PedAnovaImportanceEvaluator())
    return {name: float(value) for name, value in found.items()}


def _explained(axis: Axis, trials: Sequence[Trial], ranks: Sequence[float]) -> float:
    """The squared rank correlation of a number; of a choice, the share of the variance between its groups."""
    values = [trial.params[axis.name] for trial in trials]
    numbers = [value for value in values if isinstance(value, (int, float))]
    mean = fmean(ranks)
    whole = sum((rank - mean) ** 2 for rank in ranks)
    if axis.choices or len(numbers) < len(values):
        groups = {value: [rank for one, rank in zip(values, ranks, strict=True) if one == value] for value in values}
        return sum(len(group) * (fmean(group) - mean) ** 2 for group in groups.values()) / whole
    mine = _ranks(numbers)
    spread = sum((rank - mean) ** 2 for rank in mine)
    return float(sum((a - mean) * (b - mean) for a, b in zip(mine, ranks, strict=True)) ** 2 / (whole * spread))


def _ranks(values: Sequence[float]) -> list[float]:
    """Places in order, equal values sharing theirs."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [fmean(places[value]) for value in values]
