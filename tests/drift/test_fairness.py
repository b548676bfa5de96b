"""Groups: a difference is a finding when all of its interval lies beyond what is harmless."""

import numpy as np
import pytest

from falaj.drift.fairness_tests import measure_fairness
from falaj.drift.records import DriftRules

RULES = DriftRules(least_gap=0.05)


def people(rows: int, gap: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    group = chance.integers(0, 2, rows)
    truth = chance.random(rows) < 0.4
    chosen = chance.random(rows) < np.where(truth, 0.8, 0.2) - gap * group * truth
    return truth, chosen, np.where(group, "b", "a")


def test_a_gap_is_found_where_it_is_and_said() -> None:
    truth, chosen, group = people(20_000, 0.3)
    found = {one.measure: one for one in measure_fairness(truth, chosen, group, RULES)}
    assert set(found) == {"demographic parity", "equal opportunity", "equalised odds"}
    assert all(one.alarm and one.what == "fairness" for one in found.values())
    exact = chosen[truth & (group == "a")].mean() - chosen[truth & (group == "b")].mean()
    assert found["equal opportunity"].value == pytest.approx(exact)
    assert "rightly chosen: 79.9% of a" in found["equal opportunity"].said


def test_chance_and_small_groups_are_no_finding() -> None:
    alarms = sum(any(one.alarm for one in measure_fairness(*people(500, 0.0, seed), RULES)) for seed in range(100))
    assert alarms <= 3
    truth, chosen, group = people(40, 0.6)
    assert not any(one.alarm for one in measure_fairness(truth, chosen, group, RULES))
    assert measure_fairness(truth[:3], chosen[:3], group[:3], RULES) == ()


def test_without_truth_only_who_is_chosen() -> None:
    _, chosen, group = people(5000, 0.5)
    (only,) = measure_fairness(None, chosen, group, RULES)
    assert only.measure == "demographic parity"
