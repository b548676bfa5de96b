"""Estimates without labels: right where only inputs changed, with intervals that hold; silent about what they cannot
know."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from falaj.drift.estimate import _rising, calibrate, estimate, foreseen, score_axes
from falaj.drift.performance import measure
from falaj.drift.profile import profile_of, read_profile, to_json
from falaj.drift.records import BINARY, CLASSES, PREDICTION, REGRESSION, Profile, Rules
from falaj.drift.tally import Tally

ROWS = 20_000
JUDGED = ("accuracy", "auc", "f1")


def people(rows: int, seed: int, shift: float = 0.0) -> tuple[Any, Any, Any]:
    """Something known of each, the model's score, which is too sure of itself, and the truth."""
    chance = np.random.default_rng(seed)
    x = chance.normal(shift, 1, rows)
    true = chance.random(rows) < 1 / (1 + np.exp(-2 * x))
    return x, 1 / (1 + np.exp(-3.5 * x)), true


def made(rows: int = ROWS, city: Any = None) -> Profile:
    x, score, true = people(rows, 1)
    quality = calibrate(BINARY, true, score)
    columns: dict[str, Any] = {} if city is None else {"x": x, "city": city}
    segment = "" if city is None else "city"
    return profile_of(columns, predictions={"score": score}, quality=quality, segment=segment)


def window(profile: Profile, columns: dict[str, Any]) -> Tally:
    tally = Tally(profile, seed=0)
    tally.add(columns)
    return tally


def counts(profile: Profile, tally: Tally) -> dict[int, Any]:
    return {at: tally.of(at) for at in score_axes(profile)}


@pytest.fixture(scope="module")
def profile() -> Profile:
    return made()


@pytest.mark.parametrize("shift", [0.0, -0.8, 0.5, 1.5])
def test_a_change_of_inputs_is_foretold(profile: Profile, shift: float) -> None:
    x, score, true = people(ROWS, 2, shift)
    found = estimate(profile, counts(profile, window(profile, {"x": x, "score": score})))
    real = measure(BINARY, true, score)
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
        profile = profile_of({}, predictions={"score": score}, quality=calibrate(BINARY, true, score))
        _, now, truth = people(1000, 1000 + seed)
        found = estimate(profile, counts(profile, window(profile, {"score": now})))
        real = measure(BINARY, truth, now).metrics
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
        found = foreseen(profile, window(profile, {"x": x, "score": score, "city": city[:1000]}), Rules())
        false += any(one.alarm for one in found)
    assert false <= 1
    # In one city people come that the model knows little of: their scores are near one half.
    x, score, _ = people(4000, 7)
    score = np.where(city[:4000] == "Al Ain", 0.5 + (score - 0.5) / 8, score)
    found = foreseen(profile, window(profile, {"x": x, "score": score, "city": city[:4000]}), Rules())
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
    profile = profile_of(
        {"x": chance.normal(size=ROWS)},
        predictions={name: scores[:, at] for at, name in enumerate(names)},
        quality=calibrate(CLASSES, truth, scores),
    )
    for sure in (0.3, 1.0):
        now, true = fruit(5000, sure)
        tally = window(profile, {name: now[:, at] for at, name in enumerate(names)})
        found, real = estimate(profile, counts(profile, tally)), measure(CLASSES, true, now).metrics
        assert found is not None
        assert found.metrics["accuracy"] == pytest.approx(real["accuracy"], abs=0.025)
        assert found.metrics["recall"] == pytest.approx(real["recall"], abs=0.03)
    assert [one.alarm for one in foreseen(profile, tally, Rules())] == [True]


def test_numbers_by_where_predictions_lie() -> None:
    chance = np.random.default_rng(6)
    said = chance.uniform(0, 10, ROWS)
    truth = said + chance.normal(0, 0.2 + 0.3 * said)
    profile = profile_of({"x": said}, predictions={"y": said}, quality=calibrate(REGRESSION, truth, said))
    for low, alarm in ((0, False), (6, True)):
        now = chance.uniform(low, 10, 5000)
        real = measure(REGRESSION, now + chance.normal(0, 0.2 + 0.3 * now), now)
        tally = window(profile, {"y": now})
        found = estimate(profile, counts(profile, tally))
        assert found is not None
        for name in ("mae", "rmse"):
            near = 4 * (found.errors[name] ** 2 + real.errors[name] ** 2) ** 0.5
            assert found.metrics[name] == pytest.approx(real.metrics[name], abs=near)
        assert any(one.alarm for one in foreseen(profile, tally, Rules())) == alarm


def test_chances_rise_as_scikit_learn_lets_them() -> None:
    chance = np.random.default_rng(7)
    values, weights = chance.random(60), chance.integers(1, 9, 60).astype(float)
    wanted = IsotonicRegression().fit(np.arange(60), values, weights).predict(np.arange(60))
    assert _rising(values, weights) == pytest.approx(wanted)


def test_where_nothing_is_known_nothing_is_said() -> None:
    x, score, true = people(500, 3)
    bare = profile_of({"x": x}, predictions={"score": score})
    assert foreseen(bare, window(bare, {"x": x, "score": score}), Rules()) == ()
    profile = made(500)
    assert estimate(profile, counts(profile, window(profile, {"x": x}))) is None
    assert foreseen(profile, window(profile, {"x": x, "score": np.full(500, np.nan)}), Rules()) == ()
    # Truths of one kind, scores all alike, few rows: figures where there are any, and no error.
    for truth, said in ((np.ones(50), score[:50]), (true[:50], np.full(50, 0.5)), (true[:1], score[:1])):
        quality = calibrate(BINARY, truth, said)
        one = profile_of({"x": x[: len(said)]}, predictions={"score": said}, quality=quality)
        foreseen(one, window(one, {"score": score}), Rules())
    empty = calibrate(REGRESSION, np.array([np.nan]), np.array([1.0]))
    assert (empty.metrics, empty.scores) == ({}, ())


def test_a_profile_carries_it_through_its_file() -> None:
    profile = read_profile(to_json(made(2000)))
    assert profile.quality == made(2000).quality
    assert profile.axes[-1].role == PREDICTION
    _, score, _ = people(2000, 9)
    assert estimate(profile, counts(profile, window(profile, {"score": score}))) is not None


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
def test_a_curve_that_is_none_tells_nothing(profile: Profile, wrong: dict[str, Any]) -> None:
    bad = replace(profile, quality=replace(profile.quality, **wrong))
    assert estimate(bad, {at: np.asarray(counts) for at, counts in enumerate(bad.counts)}) is None
    assert foreseen(bad, window(bad, {"score": np.array([0.5])}), Rules()) == ()
