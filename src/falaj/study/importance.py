"""How much each parameter matters: the share of the metric's variance between groups of trials that it tells apart.

The main effects of an analysis of variance over ranks, less what chance alone would give. Optuna's own importances
would load scikit-learn into the server, for seconds.
"""

from collections.abc import Sequence
from itertools import groupby, pairwise
from statistics import fmean

from falaj.study.decide import Trial
from falaj.study.records import SweepPlan
from falaj.study.space import Value, read_space

LEAST, MOST_GROUPS = 6, 6
"""With fewer trials nothing is said; a range is cut into so many parts at most."""


def importance(plan: SweepPlan, trials: Sequence[Trial]) -> dict[str, float]:
    """The share of each parameter in what they explain, greatest first; together 1, or nothing can be said."""
    known = [trial for trial in trials if trial.value is not None]
    if len(known) < LEAST:
        return {}
    order = _ranks([trial.value or 0.0 for trial in known])
    found = {a.name: _explained(_groups([t.params[a.name] for t in known], order)) for a in read_space(plan.space)}
    total = sum(found.values())
    shares = {name: round(value / total, 4) for name, value in found.items()} if total > 0 else {}
    return dict(sorted(shares.items(), key=lambda pair: (-pair[1], pair[0])))


def _groups(values: Sequence[Value], ranks: Sequence[float]) -> list[list[float]]:
    """The ranks of the metric, by value where there are few, by parts of the range where there are many."""
    pairs = sorted(zip(values, ranks, strict=True), key=lambda pair: (str(type(pair[0])), pair[0]))
    if len(set(values)) <= MOST_GROUPS or isinstance(values[0], str):
        return [[rank for _, rank in group] for _, group in groupby(pairs, key=lambda pair: pair[0])]
    count = min(MOST_GROUPS, len(pairs) // 3)
    cuts = [len(pairs) * n // count for n in range(count + 1)]
    return [[rank for _, rank in pairs[low:high]] for low, high in pairwise(cuts)]


def _explained(groups: Sequence[Sequence[float]]) -> float:
    """The variance between groups, less what as many groups would have by chance; as a part of the whole."""
    every = [rank for group in groups for rank in group]
    mean = fmean(every)
    whole = sum((rank - mean) ** 2 for rank in every)
    between = sum(len(group) * (fmean(group) - mean) ** 2 for group in groups)
    free = len(every) - len(groups)
    if not whole or not free:
        return 0.0
    return max(0.0, between - (len(groups) - 1) * (whole - between) / free) / whole


def _ranks(values: Sequence[float]) -> list[float]:
    """Places in order, equal values sharing theirs."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [fmean(places[value]) for value in values]
