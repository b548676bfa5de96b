"""Whether a model does the same by everybody: differences between groups, with intervals that know small groups."""

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from falaj.drift.performance import MIN_ROWS, to_texts
from falaj.drift.records import MAX_SEGMENTS, DriftFinding, DriftRules


def measure_fairness(
    truth: Any, chosen_flags: Any, groups: Any, rules: DriftRules, min_rows: int = MIN_ROWS
) -> tuple[DriftFinding, ...]:
    """Differences between groups: who is chosen (demographic parity), who is rightly chosen (equal opportunity), and
    the larger of that and of who is wrongly chosen (equalised odds). `truth` may be None: then parity alone. A finding
    is an alarm when all of its interval, over all pairs of groups, lies beyond what is harmless."""
    is_chosen, column = np.asarray(chosen_flags).astype(bool), to_texts(groups)
    all_rows = np.ones(len(is_chosen), bool)
    is_positive = None if truth is None else np.asarray(truth).astype(bool)
    gap_findings = [_find_widest_gap("demographic parity", is_chosen, {"chosen": all_rows}, column, rules, min_rows)]
    if is_positive is not None:
        gap_findings.append(
            _find_widest_gap("equal opportunity", is_chosen, {"rightly chosen": is_positive}, column, rules, min_rows)
        )
        outcome_groups = {"rightly chosen": is_positive, "wrongly chosen": ~is_positive}
        gap_findings.append(_find_widest_gap("equalised odds", is_chosen, outcome_groups, column, rules, min_rows))
    return tuple(finding for finding in gap_findings if finding)


def _find_widest_gap(
    measure: str, is_chosen: Any, members_by_outcome: Mapping[str, Any], column: Any, rules: DriftRules, min_rows: int
) -> DriftFinding | None:
    """The widest difference between two groups, with an interval that holds for all pairs together."""
    widest: tuple[float, float, str, int] | None = None
    names = np.unique(column)[: MAX_SEGMENTS + 1]
    pairs = len(names) * (len(names) - 1) / 2 * len(members_by_outcome)
    z = _normal_quantile(rules.alpha / max(1.0, pairs) / 2)
    for outcome, is_member in members_by_outcome.items():
        rows = {name: int((is_member & (column == name)).sum()) for name in names}
        hits = {name: int((is_member & is_chosen & (column == name)).sum()) for name in names}
        for group, other_group in combinations([name for name in names if rows[name] >= min_rows], 2):
            first, second = sorted((group, other_group), key=lambda name: -hits[name] / rows[name])
            (a, b), (m, n) = (hits[first], hits[second]), (rows[first], rows[second])
            gap, least_gap = a / m - b / n, _compute_least_gap((a, m), (b, n), z)
            message = f"{outcome}: {a / m:.1%} of {first}, {b / n:.1%} of {second}"
            widest = max(widest or (-1.0, 0.0, "", 0), (gap, least_gap, message, m + n))
    if widest is None:
        return None
    gap, least_gap, message, count = widest
    return DriftFinding(
        "fairness",
        measure=measure,
        value=gap,
        bound=rules.least_gap,
        rows=count,
        alarm=least_gap > rules.least_gap,
        said=f"{measure}: {message}; the difference is at least {max(0.0, least_gap):.1%}",
        measures={"least": least_gap},
    )


def _compute_least_gap(first: tuple[int, int], second: tuple[int, int], z: float) -> float:
    """The lower end of the interval of a difference of shares (Agresti and Caffo: also near 0 and 1)."""
    (a, m), (b, n) = first, second
    p, q = (a + 1) / (m + 2), (b + 1) / (n + 2)
    return p - q - z * math.sqrt(p * (1 - p) / (m + 2) + q * (1 - q) / (n + 2))


def _normal_quantile(tail: float) -> float:
    """The normal deviate that chance exceeds so often."""
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle / math.sqrt(2)) / 2 > tail else (low, middle)
    return low
