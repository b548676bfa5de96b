"""What estimators are measured by: the same figures as scikit-learn's, with each asked once."""

from typing import Any

import numpy as np
import pytest
from sklearn import metrics
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import all_estimators

from falaj.train import estimator_metrics
from falaj.train.estimator_metrics import (
    EstimatorAnswers,
    compute_auc,
    compute_log_loss,
    find_class_indexes,
    measure_estimator,
)

KNOWN = {
    name: kind
    for name, kind in all_estimators(type_filter="classifier")
    if name in estimator_metrics._ARGMAX_CLASSIFIERS
}

FEWER: dict[str, dict[str, Any]] = {
    "GradientBoostingClassifier": {"n_estimators": 5}, "HistGradientBoostingClassifier": {"max_iter": 5},
    "LogisticRegressionCV": {"Cs": 2, "cv": 2}, "MLPClassifier": {"max_iter": 5},
    "AdaBoostClassifier": {"n_estimators": 5}, "RandomForestClassifier": {"n_estimators": 6},
    "ExtraTreesClassifier": {"n_estimators": 6},
}  # fmt: skip


def rows(classes: int, seed: int = 0, size: int = 400) -> tuple[Any, Any]:
    """Small whole numbers, which every kind of estimator takes, and many of which are alike."""
    chance = np.random.default_rng(seed)
    x = chance.integers(0, 4, (size, 5)).astype(np.float64)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] + chance.normal(size=size)).astype(np.int64) % classes


def test_all_that_say_the_highest_chance_are_there() -> None:
    assert set(KNOWN) == estimator_metrics._ARGMAX_CLASSIFIERS


@pytest.mark.filterwarnings("ignore")  # of convergence: none is asked for
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_what_is_said_is_what_predict_says(name: str, classes: int) -> None:
    x, y = rows(classes)
    for labels in (y, np.array(["no", "yes", "perhaps"])[y]):
        made = KNOWN[name](**FEWER.get(name, {})).fit(x, labels)
        answers = EstimatorAnswers(made, x)
        assert (answers.said == made.predict(x)).all()
        assert "chances" in vars(answers)


def test_chances_that_rounding_made_equal_are_decided_by_the_estimator() -> None:
    x = np.array([[-1.0], [1.0]] * 20)
    made = LogisticRegression().fit(x, np.arange(40) % 2)
    made.coef_[:], made.intercept_[:] = 1.0, 0.0
    tiny = np.array([[1e-18], [-1e-18], [0.0], [2.0], [-2.0]])
    assert made.predict_proba(tiny)[0, 0] == made.predict_proba(tiny)[0, 1]
    assert EstimatorAnswers(made, tiny).said.tolist() == made.predict(tiny).tolist() == [1, 0, 0, 1, 0]


def test_others_are_asked_themselves() -> None:
    class Stubborn(ClassifierMixin, BaseEstimator):
        classes_ = np.array([0, 1])

        def predict(self, x: Any) -> Any:
            return np.zeros(len(x), int)

        def predict_proba(self, x: Any) -> Any:
            return np.tile([0.1, 0.9], (len(x), 1))

    x, y = rows(2)
    assert not EstimatorAnswers(Stubborn(), x).said.any()
    for made in (SVC().fit(x, y), make_pipeline(StandardScaler(), SVC()).fit(x, y)):
        assert (EstimatorAnswers(made, x).said == made.predict(x)).all()


@pytest.mark.parametrize("classes", [2, 4])
def test_figures_are_those_of_scikit_learn(classes: int) -> None:
    x, y = rows(classes)
    names = np.array(["d", "a", "c", "b"], object)
    for truth in (y, names[y], names[y].astype("U1"), y.astype(np.float32), y % 2 == 1):
        for made in (RandomForestClassifier(7, random_state=0), LogisticRegression()):
            made.fit(x[:200], truth[:200])
            found = measure_estimator(made, truth, EstimatorAnswers(made, x), "train_")
            chances = made.predict_proba(x)
            scores = chances if len(made.classes_) > 2 else chances[:, 1]
            wanted = {
                "train_accuracy": metrics.accuracy_score(truth, made.predict(x)),
                "train_log_loss": metrics.log_loss(truth, chances),
                "train_auc": metrics.roc_auc_score(truth, scores, multi_class="ovr"),
            }
            assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 5])
def test_ties_and_certainty(kind: Any, classes: int) -> None:
    chance = np.random.default_rng(1)
    at = np.concatenate([np.arange(classes), chance.integers(0, classes, 300)])
    chances = chance.integers(0, 4, (len(at), classes)).astype(kind)
    chances[:, 0] += ~chances.any(1)
    chances /= chances.sum(1, keepdims=True)
    scores = chances if classes > 2 else chances[:, 1]
    assert (chances[np.arange(len(at)), at] == 0).any()
    assert compute_auc(at, chances) == pytest.approx(metrics.roc_auc_score(at, scores, multi_class="ovr"), rel=1e-12)
    rel = 1e-6 if kind is np.float32 else 1e-12  # of which scikit-learn sums the logarithms as they are
    assert compute_log_loss(at, chances) == pytest.approx(metrics.log_loss(at, chances), rel=rel)


def test_what_cannot_be_measured_is_left_out() -> None:
    x, y = rows(3)
    made = LogisticRegression().fit(x, y)
    assert set(measure_estimator(made, y[y < 2], EstimatorAnswers(made, x[y < 2]))) == {"accuracy"}
    odd = np.where(y == 2, 7, y)  # as many classes, but not the same
    assert measure_estimator(made, odd, EstimatorAnswers(made, x)) == {
        "accuracy": metrics.accuracy_score(odd, made.predict(x))
    }
    assert measure_estimator(made, None, EstimatorAnswers(made, x)) == {}
    assert find_class_indexes(np.array([0, 2, 5, -1]), np.array([0, 2])).tolist() == [0, 1, -1, -1]
    line = Ridge().fit(x, y)
    wanted = {"r2": metrics.r2_score(y, line.predict(x)), "mae": metrics.mean_absolute_error(y, line.predict(x))}
    assert measure_estimator(line, y, EstimatorAnswers(line, x)).items() >= wanted.items()


def test_an_estimator_is_asked_once() -> None:
    x, y = rows(2)
    asked: list[str] = []

    class Counting(RandomForestClassifier):
        def predict_proba(self, x: Any) -> Any:
            asked.append("chances")
            return super().predict_proba(x)

    Counting.__module__, Counting.__name__ = "sklearn.ensemble._forest", "RandomForestClassifier"
    search = GridSearchCV(make_pipeline(StandardScaler(), Counting(5)), {}, cv=2, scoring="f1").fit(x, y)
    asked.clear()
    answers = EstimatorAnswers(search, x)
    found = measure_estimator(search, y, answers)
    assert set(found) == {"accuracy", "log_loss", "auc"}
    gap = np.abs(np.diff(answers.chances, axis=1))
    assert asked == ["chances"] * (1 + bool((gap == 0).any()))  # once more for rows that only it can decide
    assert (answers.said == search.predict(x)).all()
