"""Whether a model does the same by everybody: differences between groups, with intervals that know small groups."""

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from falaj.drift.performance import FEWEST, texts
from falaj.drift.records import MOST_SEGMENTS, Finding, Rules


def fairness(truth: Any, chosen: Any, groups: Any, rules: Rules, least: int = FEWEST) -> tuple[Finding, ...]:
    """Differences between groups: who is chosen (demographic parity), who is rightly chosen (equal opportunity), and
    the larger of that and of who is wrongly chosen (equalised odds). `truth` may be None: then parity alone. A finding
    is an alarm when all of its interval, over all pairs of groups, lies beyond what is harmless."""
    picked, column = np.asarray(chosen).astype(bool), texts(groups)
    everybody = np.ones(len(picked), bool)
    positive = None if truth is None else np.asarray(truth).astype(bool)
    made = [_gap("demographic parity", picked, {"chosen": everybody}, column, rules, least)]
    if positive is not None:
        made.append(_gap("equal opportunity", picked, {"rightly chosen": positive}, column, rules, least))
        both = {"rightly chosen": positive, "wrongly chosen": ~positive}
        made.append(_gap("equalised odds", picked, both, column, rules, least))
    return tuple(one for one in made if one)


def _gap(measure: str, picked: Any, among: Mapping[str, Any], column: Any, rules: Rules, least: int) -> Finding | None:
    """The widest difference between two groups, with an interval that holds for all pairs together."""
    widest: tuple[float, float, str, int] | None = None
    names = np.unique(column)[: MOST_SEGMENTS + 1]
    pairs = len(names) * (len(names) - 1) / 2 * len(among)
    z = _quantile(rules.alpha / max(1.0, pairs) / 2)
    for what, those in among.items():
        rows = {name: int((those & (column == name)).sum()) for name in names}
        hits = {name: int((those & picked & (column == name)).sum()) for name in names}
        for one, other in combinations([name for name in names if rows[name] >= least], 2):
            first, second = sorted((one, other), key=lambda name: -hits[name] / rows[name])
            (a, b), (m, n) = (hits[first], hits[second]), (rows[first], rows[second])
            gap, low = a / m - b / n, _least_gap((a, m), (b, n), z)
            said = f"{what}: {a / m:.1%} of {first}, {b / n:.1%} of {second}"
            widest = max(widest or (-1.0, 0.0, "", 0), (gap, low, said, m + n))
    if widest is None:
        return None
    gap, low, said, count = widest
    return Finding(
        "fairness", measure=measure, value=gap, bound=rules.least_gap, rows=count, alarm=low > rules.least_gap,
        said=f"{measure}: {said}; the difference is at least {max(0.0, low):.1%}", measures={"least": low},
    )  # fmt: skip


def _least_gap(first: tuple[int, int], second: tuple[int, int], z: float) -> float:
    """The lower end of the interval of a difference of shares (Agresti and Caffo: also near 0 and 1)."""
    (a, m), (b, n) = first, second
    p, q = (a + 1) / (m + 2), (b + 1) / (n + 2)
    return p - q - z * math.sqrt(p * (1 - p) / (m + 2) + q * (1 - q) / (n + 2))


def _quantile(tail: float) -> float:
    """The normal deviate that chance exceeds so often."""
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle / math.sqrt(2)) / 2 > tail else (low, middle)
    return low
