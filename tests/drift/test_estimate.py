"""Estimates without labels: right where only inputs changed, with intervals that hold; silent about what they cannot
know."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from falaj.drift.performance import measure_quality
from falaj.drift.performance_estimate import (
    _pool_neighbours,
    calibrate_quality,
    compare_estimates,
    estimate_performance,
    list_score_axes,
)
from falaj.drift.profiles import build_profile, encode_profile, read_profile
from falaj.drift.records import ROLE_PREDICTION, TASK_BINARY, TASK_CLASSES, TASK_REGRESSION, DataProfile, DriftRules
from falaj.drift.tally import DataTally

ROWS = 20_000
JUDGED = ("accuracy", "auc", "f1")


def people(rows: int, seed: int, shift: float = 0.0) -> tuple[Any, Any, Any]:
    """Something known of each, the model's score, which is too sure of itself, and the truth."""
    chance = np.random.default_rng(seed)
    x = chance.normal(shift, 1, rows)
    true = chance.random(rows) < 1 / (1 + np.exp(-2 * x))
    return x, 1 / (1 + np.exp(-3.5 * x)), true


def made(rows: int = ROWS, city: Any = None) -> DataProfile:
    x, score, true = people(rows, 1)
    quality = calibrate_quality(TASK_BINARY, true, score)
    columns: dict[str, Any] = {} if city is None else {"x": x, "city": city}
    segment = "" if city is None else "city"
    return build_profile(columns, predictions={"score": score}, quality=quality, segment=segment)


def window(profile: DataProfile, columns: dict[str, Any]) -> DataTally:
    tally = DataTally(profile, seed=0)
    tally.add(columns)
    return tally


def counts(profile: DataProfile, tally: DataTally) -> dict[int, Any]:
    return {at: tally.of(at) for at in list_score_axes(profile)}


@pytest.fixture(scope="module")
def profile() -> DataProfile:
    return made()


@pytest.mark.parametrize("shift", [0.0, -0.8, 0.5, 1.5])
def test_a_change_of_inputs_is_foretold(profile: DataProfile, shift: float) -> None:
    x, score, true = people(ROWS, 2, shift)
    found = estimate_performance(profile, counts(profile, window(profile, {"x": x, "score": score})))
    real = measure_quality(TASK_BINARY, true, score)
    assert found is not None
    assert found.rows == ROWS
    for name in (*JUDGED, "brier"):
        assert found.metrics[name] == pytest.approx(
            real.metrics[name], abs=4 * found.errors.get(name, 0.001) + 0.003
        ), name


def test_intervals_hold_what_they_say() -> None:
    """Over many references and windows, chance of both included."""
    inside = dict.fromkeys(JUDGED, 0)
    for seed in range(60):
        _, score, true = people(1500, seed)
        profile = build_profile({}, predictions={"score": score}, quality=calibrate_quality(TASK_BINARY, true, score))
        _, now, truth = people(1000, 1000 + seed)
        found = estimate_performance(profile, counts(profile, window(profile, {"score": now})))
        real = measure_quality(TASK_BINARY, truth, now).metrics
        assert found is not None
        for name in JUDGED:
            inside[name] += abs(found.metrics[name] - real[name]) <= 1.96 * found.errors[name] + 0.002
    assert all(hits >= 52 for hits in inside.values()), inside


def test_findings_alarm_for_a_drop_and_not_for_chance() -> None:
    city = np.where(np.arange(ROWS) % 4 == 0, "Al Ain", "Dubai")
    profile = made(city=city)
    false = 0
    for seed in range(30):
        x, score, _ = people(1000, 100 + seed)
        found = compare_estimates(profile, window(profile, {"x": x, "score": score, "city": city[:1000]}), DriftRules())
        false += any(one.alarm for one in found)
    assert false <= 1
    # In one city people come that the model knows little of: their scores are near one half.
    x, score, _ = people(4000, 7)
    score = np.where(city[:4000] == "Al Ain", 0.5 + (score - 0.5) / 8, score)
    found = compare_estimates(profile, window(profile, {"x": x, "score": score, "city": city[:4000]}), DriftRules())
    worst = {one.segment: one for one in found if one.measure == "accuracy"}
    assert worst["Al Ain"].alarm
    assert not worst["Dubai"].alarm
    assert worst["Al Ain"].value < worst["Al Ain"].bound < worst["Al Ain"].then
    assert "without labels" in worst["Al Ain"].said


def test_classes_from_the_scores_of_all() -> None:
    chance = np.random.default_rng(5)

    def fruit(rows: int, sure: float) -> tuple[Any, Any]:
        scores = chance.dirichlet([sure, sure, sure], rows)
        return scores, (scores.cumsum(1) < chance.random((rows, 1))).sum(1)

    scores, truth = fruit(ROWS, 0.3)
    names = ("pear", "fig", "date")
    profile = build_profile(
        {"x": chance.normal(size=ROWS)},
        predictions={name: scores[:, at] for at, name in enumerate(names)},
        quality=calibrate_quality(TASK_CLASSES, truth, scores),
    )
    for sure in (0.3, 1.0):
        now, true = fruit(5000, sure)
        tally = window(profile, {name: now[:, at] for at, name in enumerate(names)})
        found, real = (
            estimate_performance(profile, counts(profile, tally)),
            measure_quality(TASK_CLASSES, true, now).metrics,
        )
        assert found is not None
        assert found.metrics["accuracy"] == pytest.approx(real["accuracy"], abs=0.025)
        assert found.metrics["recall"] == pytest.approx(real["recall"], abs=0.03)
    assert [one.alarm for one in compare_estimates(profile, tally, DriftRules())] == [True]


def test_numbers_by_where_predictions_lie() -> None:
    chance = np.random.default_rng(6)
    said = chance.uniform(0, 10, ROWS)
    truth = said + chance.normal(0, 0.2 + 0.3 * said)
    profile = build_profile(
        {"x": said}, predictions={"y": said}, quality=calibrate_quality(TASK_REGRESSION, truth, said)
    )
    for low, alarm in ((0, False), (6, True)):
        now = chance.uniform(low, 10, 5000)
        real = measure_quality(TASK_REGRESSION, now + chance.normal(0, 0.2 + 0.3 * now), now)
        tally = window(profile, {"y": now})
        found = estimate_performance(profile, counts(profile, tally))
        assert found is not None
        for name in ("mae", "rmse"):
            near = 4 * (found.errors[name] ** 2 + real.errors[name] ** 2) ** 0.5
            assert found.metrics[name] == pytest.approx(real.metrics[name], abs=near)
        assert any(one.alarm for one in compare_estimates(profile, tally, DriftRules())) == alarm


def test_chances_rise_as_scikit_learn_lets_them() -> None:
    chance = np.random.default_rng(7)
    values, weights = chance.random(60), chance.integers(1, 9, 60).astype(float)
    wanted = IsotonicRegression().fit(np.arange(60), values, weights).predict(np.arange(60))
    assert _pool_neighbours(values, weights) == pytest.approx(wanted)


def test_where_nothing_is_known_nothing_is_said() -> None:
    x, score, true = people(500, 3)
    bare = build_profile({"x": x}, predictions={"score": score})
    assert compare_estimates(bare, window(bare, {"x": x, "score": score}), DriftRules()) == ()
    profile = made(500)
    assert estimate_performance(profile, counts(profile, window(profile, {"x": x}))) is None
    assert compare_estimates(profile, window(profile, {"x": x, "score": np.full(500, np.nan)}), DriftRules()) == ()
    # Truths of one kind, scores all alike, few rows: figures where there are any, and no error.
    for truth, said in ((np.ones(50), score[:50]), (true[:50], np.full(50, 0.5)), (true[:1], score[:1])):
        quality = calibrate_quality(TASK_BINARY, truth, said)
        one = build_profile({"x": x[: len(said)]}, predictions={"score": said}, quality=quality)
        compare_estimates(one, window(one, {"score": score}), DriftRules())
    empty = calibrate_quality(TASK_REGRESSION, np.array([np.nan]), np.array([1.0]))
    assert (empty.metrics, empty.scores) == ({}, ())


def test_a_profile_carries_it_through_its_file() -> None:
    profile = read_profile(encode_profile(made(2000)))
    assert profile.quality == made(2000).quality
    assert profile.axes[-1].role == ROLE_PREDICTION
    _, score, _ = people(2000, 9)
    assert estimate_performance(profile, counts(profile, window(profile, {"score": score}))) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"task": "evil"},
        {"scores": (0.5, 0.1), "chances": (0.1, 0.2), "weights": ()},
        {"scores": (0.1, 0.5), "chances": (0.1, 7.0), "weights": ()},
        {"scores": (0.1, 0.5), "chances": (0.1, 0.2), "beside": (0.1,), "weights": ()},
        {"scores": (0.1, "x"), "chances": (0.1, 0.2), "weights": ()},
        {"scores": (0.1, 0.5), "chances": (0.1, 0.2), "weights": (-1, 2)},
        {"threshold": "half"},
        {"output": {"a": 1}},
    ],
)
def test_a_curve_that_is_none_tells_nothing(profile: DataProfile, wrong: dict[str, Any]) -> None:
    bad = replace(profile, quality=replace(profile.quality, **wrong))
    assert estimate_performance(bad, {at: np.asarray(counts) for at, counts in enumerate(bad.counts)}) is None
    assert compare_estimates(bad, window(bad, {"score": np.array([0.5])}), DriftRules()) == ()
