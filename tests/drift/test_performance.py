"""Metrics as scikit-learn has them, from arrays and from counts; alarms only for what is worse and no chance."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as known

from falaj.core.errors import Invalid
from falaj.drift import metric_formulas
from falaj.drift.performance import (
    compare_performance,
    count_scores,
    detect_task,
    join_points,
    measure_by_segment,
    measure_quality,
)
from falaj.drift.records import TASK_BINARY, TASK_CLASSES, TASK_REGRESSION, DriftRules, ModelQuality

CHANCE = np.random.default_rng(3)


def scored(rows: int, digits: int = 3, seed: int = 0) -> tuple[Any, Any]:
    chance = np.random.default_rng(seed)
    scores = np.round(chance.beta(1, 2, rows), digits)
    return chance.random(rows) < scores, scores


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 200), st.integers(1, 16), st.integers(0, 2**32 - 1))
def test_two_classes_as_scikit_learn_measures_them(rows: int, digits: int, seed: int) -> None:
    truth, scores = scored(rows, digits, seed)
    truth[:2] = [True, False]
    found, said = measure_quality(TASK_BINARY, truth, scores).metrics, scores >= 0.5
    wanted = {
        "accuracy": known.accuracy_score(truth, said),
        "balanced_accuracy": known.balanced_accuracy_score(truth, said),
        "recall": known.recall_score(truth, said),
        "f1": known.f1_score(truth, said, zero_division=0),
        "auc": known.roc_auc_score(truth, scores),
        "average_precision": known.average_precision_score(truth, scores),
        "log_loss": known.log_loss(truth, scores, labels=[False, True]),
        "brier": known.brier_score_loss(truth, scores),
    }
    if said.any():
        wanted["precision"] = known.precision_score(truth, said)
    assert {name: found.get(name) for name in wanted} == pytest.approx(wanted, abs=1e-9)


def test_several_classes_as_scikit_learn_measures_them() -> None:
    scores = CHANCE.dirichlet([1, 2, 3, 1], 900)
    truth = np.array([CHANCE.choice(4, p=one) for one in scores])
    names = np.array(["pear", "fig", "date", "plum"])
    said = scores.argmax(1)
    wanted = {
        "accuracy": known.accuracy_score(truth, said),
        "balanced_accuracy": known.balanced_accuracy_score(truth, said),
        "precision": known.precision_score(truth, said, average="macro"),
        "recall": known.recall_score(truth, said, average="macro"),
        "f1": known.f1_score(truth, said, average="macro"),
    }
    more = {
        "log_loss": known.log_loss(truth, scores),
        "auc": known.roc_auc_score(truth, scores, multi_class="ovr"),
    }
    assert measure_quality(TASK_CLASSES, truth, scores).metrics == pytest.approx(wanted | more, abs=1e-9)
    assert measure_quality(TASK_CLASSES, names[truth], scores, labels=names).metrics == pytest.approx(
        wanted | more, abs=1e-9
    )
    assert measure_quality(TASK_CLASSES, names[truth].astype(object), names[said]).metrics == pytest.approx(wanted)
    # A truth that the model has never heard of is one it gets wrong.
    strange = np.where(np.arange(900) < 90, "melon", names[truth])
    found = measure_quality(TASK_CLASSES, strange, scores, labels=names)
    assert found.metrics["accuracy"] == pytest.approx((strange == names[said]).mean())


def test_numbers_as_scikit_learn_measures_them() -> None:
    truth = CHANCE.normal(5, 3, 700)
    said = truth + CHANCE.normal(0, 1, 700)
    found = measure_quality(TASK_REGRESSION, truth, said)
    wanted = {
        "mae": known.mean_absolute_error(truth, said),
        "rmse": known.root_mean_squared_error(truth, said),
        "r2": known.r2_score(truth, said),
    }
    assert {name: found.metrics[name] for name in wanted} == pytest.approx(wanted)
    assert measure_quality(TASK_REGRESSION, truth * 0, said).metrics.keys() == {"mae", "rmse"}


def test_errors_are_what_chance_does() -> None:
    """The standard errors told of one sample are the spread of the metrics of many."""
    each = [measure_quality(TASK_BINARY, *scored(1000, seed=seed)) for seed in range(60)]
    for name in ("accuracy", "auc", "f1", "brier"):
        spread = np.std([one.metrics[name] for one in each])
        assert np.mean([one.errors[name] for one in each]) == pytest.approx(spread, rel=0.35), name


def test_counts_of_joined_points_tell_nearly_the_same() -> None:
    truth, scores = scored(50_000, 16)
    exact = metric_formulas.drop_undefined(metric_formulas.score_binary(*count_scores(scores, truth)))
    fewer = join_points(*count_scores(scores, truth))
    assert len(fewer[0]) == 128
    assert metric_formulas.drop_undefined(metric_formulas.score_binary(*fewer)) == pytest.approx(exact, abs=6e-3)


@pytest.mark.parametrize(
    ("truth", "answers", "task"),
    [
        ([0, 1, 1], [0.2, 0.7, 0.9], TASK_BINARY),
        ([True, False], [0.5, 0.1], TASK_BINARY),
        (["yes", "no"], [0.5, 0.1], TASK_BINARY),
        ([0, 1], [[0.2, 0.8], [0.5, 0.5]], TASK_BINARY),
        ([0, 1, 2], [[0.2, 0.3, 0.5]] * 3, TASK_CLASSES),
        (["a", "b"], ["a", "a"], TASK_CLASSES),
        ([1, 2, 3], [1, 2, 2], TASK_CLASSES),
        ([1.5, 2.0], [1.1, 2.2], TASK_REGRESSION),
        ([10, 2000], [11.0, 1990.5], TASK_REGRESSION),
        ([0.0, 1.0, np.nan], [0.1, 0.4, 0.5], TASK_BINARY),
    ],
)
def test_what_is_foretold_is_told_by_the_values(truth: Any, answers: Any, task: str) -> None:
    assert detect_task(truth, answers) == task


def test_rows_without_truth_or_answer_are_left_out_and_said() -> None:
    found = measure_quality(TASK_BINARY, np.array([1.0, 0.0, np.nan, 1.0]), np.array([0.9, 0.1, 0.5, np.nan]))
    assert (found.rows, found.left_out, found.metrics["accuracy"]) == (2, 2, 1.0)
    assert measure_quality(TASK_BINARY, np.array([np.nan]), np.array([0.5])).metrics == {}
    assert "auc" not in measure_quality(TASK_BINARY, np.array([1, 1]), np.array([0.5, 0.6])).metrics
    assert measure_quality(TASK_BINARY, np.array([1, 0]), np.array([[0.1, 0.9], [0.8, 0.2]])).metrics["accuracy"] == 1.0
    for wrong in (np.array([0, 1, 2]), np.array(["a", "b", "c"])):
        with pytest.raises(Invalid, match="more than two values"):
            measure_quality(TASK_BINARY, wrong, np.array([0.1, 0.2, 0.3]))
    with pytest.raises(Invalid, match="2 truths for 1 answers"):
        measure_quality(TASK_BINARY, np.array([0, 1]), np.array([0.1]))


def test_an_alarm_is_worse_than_harmless_and_no_chance() -> None:
    rules, false = DriftRules(), 0
    made = ModelQuality(TASK_BINARY, measure_quality(TASK_BINARY, *scored(20_000, seed=999)).metrics, rows=20_000)
    for seed in range(60):
        false += any(
            one.alarm
            for one in compare_performance(made, measure_quality(TASK_BINARY, *scored(2000, seed=seed)), rules)
        )
    assert false <= 3
    truth, scores = scored(2000)
    worse = np.where(np.arange(2000) % 5 == 0, ~truth, truth)
    found = {
        one.measure: one
        for one in compare_performance(made, measure_quality(TASK_BINARY, worse, scores), rules, "Ajman")
    }
    assert found["accuracy"].alarm
    assert (found["accuracy"].segment, found["accuracy"].what) == ("Ajman", "performance")
    assert "when it was made" in found["accuracy"].said
    assert not found["brier"].alarm  # told, not judged
    few = compare_performance(made, measure_quality(TASK_BINARY, worse[:20], scores[:20]), rules)
    assert not any(one.alarm for one in few)
    assert not any(
        one.alarm for one in compare_performance(ModelQuality(), measure_quality(TASK_BINARY, worse, scores), rules)
    )


def test_a_larger_error_is_worse_and_a_smaller_one_is_not() -> None:
    truth = CHANCE.normal(0, 3, 4000)
    noise = CHANCE.normal(0, 1, 4000)
    made = ModelQuality(TASK_REGRESSION, measure_quality(TASK_REGRESSION, truth, truth + noise).metrics, rows=4000)
    for factor, alarm in ((1.2, True), (0.5, False), (1.0, False)):
        findings = compare_performance(
            made, measure_quality(TASK_REGRESSION, truth, truth + factor * noise), DriftRules()
        )
        assert any(one.alarm for one in findings) == alarm


def test_each_segment_by_itself() -> None:
    truth, scores = scored(4000)
    city = np.where(np.arange(4000) % 4 == 0, "Al Ain", "Dubai")
    truth = np.where(city == "Al Ain", ~truth, truth)
    found = measure_by_segment(TASK_BINARY, truth, scores, city)
    assert found["Al Ain"].metrics["auc"] < 0.5 < found["Dubai"].metrics["auc"]
    assert found["Al Ain"].rows == 1000
