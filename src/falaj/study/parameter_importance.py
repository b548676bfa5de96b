"""How much each parameter matters: the share of the metric's variance between groups of trials that it tells apart.

The main effects of an analysis of variance over ranks, less what chance alone would give. Optuna's own importances
would load scikit-learn into the server, for seconds.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise
from statistics import fmean

from falaj.study.records import SweepPlan
from falaj.study.search_space import ParamValue, read_space
from falaj.study.sweep_decisions import SweepTrial

MIN_TRIALS, MAX_GROUPS = 6, 6
"""With fewer trials nothing is said; a range is cut into so many parts at most."""


def compute_importance(plan: SweepPlan, trials: Sequence[SweepTrial]) -> dict[str, float]:
    """The share of each parameter in what they explain, greatest first; together 1, or nothing can be said."""
    measured = [trial for trial in trials if trial.value is not None]
    if len(measured) < MIN_TRIALS:
        return {}
    ranks = _rank_values([trial.value or 0.0 for trial in measured])
    effects = {
        a.name: _explained_share(_group_ranks([t.params[a.name] for t in measured], ranks))
        for a in read_space(plan.space)
    }
    total = sum(effects.values())
    shares = {name: round(value / total, 4) for name, value in effects.items()} if total > 0 else {}
    return dict(sorted(shares.items(), key=lambda pair: (-pair[1], pair[0])))


def _group_ranks(values: Sequence[ParamValue], ranks: Sequence[float]) -> list[list[float]]:
    """The ranks of the metric, by value where there are few, by parts of the range where there are many."""
    pairs = sorted(zip(values, ranks, strict=True), key=lambda pair: (str(type(pair[0])), pair[0]))
    if len(set(values)) <= MAX_GROUPS or isinstance(values[0], str):
        return [[rank for _, rank in group] for _, group in groupby(pairs, key=lambda pair: pair[0])]
    count = min(MAX_GROUPS, len(pairs) // 3)
    boundaries = [len(pairs) * n // count for n in range(count + 1)]
    return [[rank for _, rank in pairs[low:high]] for low, high in pairwise(boundaries)]


def _explained_share(groups: Sequence[Sequence[float]]) -> float:
    """The variance between groups, less what as many groups would have by chance; as a part of the whole."""
    all_ranks = [rank for group in groups for rank in group]
    mean = fmean(all_ranks)
    total_variance = sum((rank - mean) ** 2 for rank in all_ranks)
    group_variance = sum(len(group) * (fmean(group) - mean) ** 2 for group in groups)
    degrees_of_freedom = len(all_ranks) - len(groups)
    if not total_variance or not degrees_of_freedom:
        return 0.0
    return (
        max(0.0, group_variance - (len(groups) - 1) * (total_variance - group_variance) / degrees_of_freedom)
        / total_variance
    )


def _rank_values(values: Sequence[float]) -> list[float]:
    """Places in order, equal values sharing theirs."""
    positions: dict[float, list[int]] = {}
    for position, value in enumerate(sorted(values)):
        positions.setdefault(value, []).append(position)
    return [fmean(positions[value]) for value in values]
