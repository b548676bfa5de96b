"""How good an estimator is on some rows. Each is asked once: going through every tree again, only to hear which chance
was the highest, would cost as much as the first time.
"""

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ARGMAX_CLASSIFIERS = frozenset(
    {
        "AdaBoostClassifier", "BaggingClassifier", "BernoulliNB", "CalibratedClassifierCV", "CategoricalNB",
        "ComplementNB", "DecisionTreeClassifier", "ExtraTreeClassifier", "ExtraTreesClassifier", "GaussianNB",
        "GradientBoostingClassifier", "HistGradientBoostingClassifier", "LinearDiscriminantAnalysis",
        "LogisticRegression", "LogisticRegressionCV", "MLPClassifier", "MultinomialNB",
        "QuadraticDiscriminantAnalysis", "RandomForestClassifier",
    }
)  # fmt: skip
"""Of scikit-learn: they say the class with the highest chance. Of support vectors and some others that is not so."""
_NEAR_GAP = 1e-5
"""Chances that are no further apart may have been told apart by what rounding took from them."""


class EstimatorAnswers:
    """What an estimator says of rows: asked when it is first wanted, and once."""

    def __init__(self, estimator: Any, x: Any) -> None:
        self._estimator, self._x = estimator, x

    @cached_property
    def chances(self) -> NDArray[Any]:
        """Of every class, in their order."""
        return np.asarray(self._estimator.predict_proba(self._x))

    @cached_property
    def said(self) -> NDArray[Any]:
        """As its `predict` would."""
        classes: Any = getattr(self._estimator, "classes_", 0)
        estimator_type = type(_unwrap_estimator(self._estimator))
        is_argmax = estimator_type.__module__.startswith("sklearn.") and estimator_type.__name__ in _ARGMAX_CLASSIFIERS
        if not is_argmax or not isinstance(self._x, np.ndarray) or np.ndim(classes) != 1 or np.size(classes) < 2:
            return np.asarray(self._estimator.predict(self._x))
        probabilities, classes = self.chances, np.asarray(classes)
        highest, gap = _find_highest(probabilities)
        labels: NDArray[Any] = classes[highest]
        # What is no number is near to everything.
        if len(close_rows := np.flatnonzero(~(gap > _NEAR_GAP))):
            labels[close_rows] = self._estimator.predict(self._x[close_rows])
        return labels


def measure_estimator(estimator: Any, y: Any, answers: EstimatorAnswers, prefix: str = "") -> dict[str, float]:
    """By what it is, a classifier or something that foretells a number. `prefix` begins the name of every figure."""
    if y is None or not hasattr(estimator, "predict"):
        return {}
    if hasattr(estimator, "classes_"):
        metrics = _measure_classifier(estimator, np.asarray(y), answers)
    else:
        metrics_module = import_module("sklearn.metrics")
        regress = {
            "r2": metrics_module.r2_score,
            "rmse": metrics_module.root_mean_squared_error,
            "mae": metrics_module.mean_absolute_error,
        }
        metrics = {name: score(y, answers.said) for name, score in regress.items()}
    return {f"{prefix}{name}": float(value) for name, value in metrics.items()}


def _measure_classifier(estimator: Any, y: NDArray[Any], answers: EstimatorAnswers) -> Mapping[str, float]:
    if y.ndim != 1 or np.ndim(estimator.classes_) != 1:
        return {"accuracy": import_module("sklearn.metrics").accuracy_score(y, answers.said)}
    classes = np.asarray(estimator.classes_)
    metrics = {"accuracy": float(np.mean(answers.said == y))}
    class_indexes = find_class_indexes(y, classes)
    is_measurable = (
        len(classes) > 1
        and class_indexes.min(initial=0) >= 0
        and np.bincount(class_indexes, minlength=len(classes)).all()
    )
    if is_measurable and hasattr(estimator, "predict_proba") and np.isfinite(answers.chances).all():
        metrics["log_loss"], metrics["auc"] = (
            compute_log_loss(class_indexes, answers.chances),
            compute_auc(class_indexes, answers.chances),
        )
    return metrics


def find_class_indexes(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Which of the classes each is; -1: none."""
    if y.dtype.kind in "biuf" and classes.dtype.kind in "biuf" and (classes[1:] > classes[:-1]).all():
        positions = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        return np.where(classes[positions] == y, positions, -1)
    index_by_value = {value: positions for positions, value in enumerate(classes.tolist())}
    return np.fromiter((index_by_value.get(value, -1) for value in y.tolist()), np.int64, len(y))


def compute_log_loss(class_indexes: NDArray[np.int64], probabilities: NDArray[Any]) -> float:
    """Mean of minus the logarithm of the chance that the truth was given."""
    smallest = np.finfo(probabilities.dtype).eps
    true_probabilities = np.clip(probabilities[np.arange(len(class_indexes)), class_indexes], smallest, 1 - smallest)
    return float(-np.log(true_probabilities.astype(np.float64)).mean())


def compute_auc(class_indexes: NDArray[np.int64], probabilities: NDArray[Any]) -> float:
    """How often one of a class has a higher chance of it than one of another; equal ones are half won. Of more than two
    classes the mean."""
    if probabilities.shape[1] == 2:
        return _compute_rank_auc(probabilities[:, 1], class_indexes == 1)
    return float(
        np.mean(
            [
                _compute_rank_auc(probabilities[:, class_index], class_indexes == class_index)
                for class_index in range(probabilities.shape[1])
            ]
        )
    )


def _compute_rank_auc(scores: NDArray[Any], is_positive: NDArray[np.bool_]) -> float:
    positive_scores, negative_scores = np.sort(scores[is_positive]), np.sort(scores[~is_positive])
    won = sum(int(np.searchsorted(negative_scores, positive_scores, side).sum()) for side in ("left", "right"))
    return won / (2 * len(positive_scores) * len(negative_scores))


def _find_highest(probabilities: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Whose chance is highest, the first of equal ones; and how far above the next."""
    if probabilities.shape[1] == 2:
        gap = probabilities[:, 1] - probabilities[:, 0]
        return (gap > 0).astype(np.int64), np.abs(gap)
    top_two = np.partition(probabilities, -2, axis=1)[:, -2:]
    return probabilities.argmax(1), top_two[:, 1] - top_two[:, 0]


def _unwrap_estimator(estimator: Any) -> Any:
    """What decides in the end: the last step of a pipeline, what a search has found."""
    while True:
        if type(estimator).__module__.startswith("sklearn.pipeline"):
            estimator = estimator.steps[-1][1]
        elif type(estimator).__module__.startswith("sklearn.model_selection") and hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        else:
            return estimator
