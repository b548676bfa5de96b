"""Columns that go together in another way, though each by itself is as before: by sums, and by a classifier."""

import numpy as np
import pytest

from falaj.drift.domain_classifier import classify_samples, compare_domains
from falaj.drift.drift_tests import compare_tally
from falaj.drift.joint_features import (
    FEATURE_COUNT,
    FREE_KEY,
    SCALE_KEY,
    WIDE_KEY,
    compute_chance,
    compute_features,
    measure_gap,
    prepare_reference,
)
from falaj.drift.measures import Floats
from falaj.drift.profiles import build_profile
from falaj.drift.records import DataProfile, DriftRules
from falaj.drift.tally import DataTally

NAMES = tuple(f"x{at}" for at in range(8))


def rows(many: int, seed: int, *, tied: float = 0.0) -> Floats:
    found = np.random.default_rng(seed).normal(size=(many, len(NAMES)))
    found[:, 1] = tied * found[:, 0] + np.sqrt(1 - tied**2) * found[:, 1]
    return found


def test_chance_is_what_it_says() -> None:
    then = prepare_reference(rows(4_000, 1))
    found = []
    for seed in range(200):
        now = compute_features(rows(500, 100 + seed)).astype(np.float64)
        side = (np.array(then.mean) * 4_000, 4_000.0)
        found.append(compute_chance(measure_gap((now.sum(0), 500.0), side, np.array(then.spread)), then.tests))
    assert np.mean(np.array(found) <= 0.05) <= 0.1
    assert np.mean(np.array(found) <= 0.5) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("tied", [0.0, 0.9])
def test_what_chance_does_is_told_by_some_rows_as_by_all(tied: float) -> None:
    every = compute_features(rows(40_000, 5, tied=tied)).astype(np.float64)
    alone = np.linalg.eigvalsh(np.corrcoef(every.T))
    second, third = (alone**2).sum(), (alone**3).sum()
    for many in (500, 20_000):
        found = [prepare_reference(rows(many, 50 + seed, tied=tied)).tests for seed in range(8)]
        assert np.mean([one[FREE_KEY] for one in found]) == pytest.approx(second**3 / third**2, rel=0.05)
        assert np.mean([one[WIDE_KEY] for one in found]) == pytest.approx(np.sqrt(2 * second) / FEATURE_COUNT, rel=0.05)
        assert all(1 <= one[SCALE_KEY] < 1.1 for one in found)


def test_what_is_missing_or_infinite_does_no_harm() -> None:
    odd = compute_features(np.array([[np.nan, np.inf, -np.inf, 1e300]]))
    assert odd.shape == (1, FEATURE_COUNT)
    assert np.isfinite(odd).all()
    assert prepare_reference(np.empty((0, 3))).mean == ()
    assert prepare_reference(np.zeros((50, 2))).tests


@pytest.fixture(scope="module")
def profile() -> DataProfile:
    then = rows(8_000, 2)
    return build_profile({name: then[:, at] for at, name in enumerate(NAMES)})


def test_a_changed_correlation_is_seen_in_a_window(profile: DataProfile) -> None:
    for tied, alarm in ((0.0, False), (0.8, True)):
        now = rows(40_000, 3, tied=tied)
        tally = DataTally(profile, seed=0)
        for part in np.split(now, 40):
            tally.add({name: part[:, at] for at, name in enumerate(NAMES)})
        found = [one for one in compare_tally(profile, tally, DriftRules()) if one.alarm or one.what == "together"]
        assert [(one.what, one.alarm) for one in found] == [("together", alarm)]


def test_a_classifier_tells_samples_apart_only_where_they_differ() -> None:
    then = rows(600, 4)
    same = [classify_samples(rows(300, 10 + seed), rows(300, 500 + seed)).p for seed in range(25)]
    assert sum(p <= 0.05 for p in same) <= 4
    tied = classify_samples(rows(600, 50, tied=0.8), then)
    assert tied.p < 1e-3
    assert set(tied.columns[:2]) == {0, 1}
    moved = rows(600, 51)
    moved[:, 5] += 0.6
    found = compare_domains(moved, then, NAMES, DriftRules())
    assert found.alarm
    assert "most by x5" in found.said
    moved[:, 5] = np.nan
    assert classify_samples(moved, then).p < 1e-6
    assert classify_samples(then[:5], then).p == 1.0
