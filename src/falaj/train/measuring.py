"""How good an estimator is on some rows. Each is asked once: going through every tree again, only to hear which chance
was the highest, would cost as much as the first time.
"""

from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BY_CHANCES = frozenset(
    {
        "AdaBoostClassifier", "BaggingClassifier", "BernoulliNB", "CalibratedClassifierCV", "CategoricalNB",
        "ComplementNB", "DecisionTreeClassifier", "ExtraTreeClassifier", "ExtraTreesClassifier", "GaussianNB",
        "GradientBoostingClassifier", "HistGradientBoostingClassifier", "LinearDiscriminantAnalysis",
        "LogisticRegression", "LogisticRegressionCV", "MLPClassifier", "MultinomialNB",
        "QuadraticDiscriminantAnalysis", "RandomForestClassifier",
    }
)  # fmt: skip
"""Of scikit-learn: they say the class with the highest chance. Of support vectors and some others that is not so."""
_NEAR = 1e-5
"""Chances that are no further apart may have been told apart by what rounding took from them."""


class Answers:
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
        known = type(_inmost(self._estimator))
        ours = known.__module__.startswith("sklearn.") and known.__name__ in _BY_CHANCES
        if not ours or not isinstance(self._x, np.ndarray) or np.ndim(classes) != 1 or np.size(classes) < 2:
            return np.asarray(self._estimator.predict(self._x))
        chances, classes = self.chances, np.asarray(classes)
        highest, gap = _highest(chances)
        found: NDArray[Any] = classes[highest]
        # What is no number is near to everything.
        if len(near := np.flatnonzero(~(gap > _NEAR))):
            found[near] = self._estimator.predict(self._x[near])
        return found


def measure(estimator: Any, y: Any, answers: Answers, before: str = "") -> dict[str, float]:
    """By what it is, a classifier or something that foretells a number. `before` begins the name of every figure."""
    if y is None or not hasattr(estimator, "predict"):
        return {}
    if hasattr(estimator, "classes_"):
        found = _of_classes(estimator, np.asarray(y), answers)
    else:
        known = import_module("sklearn.metrics")
        regress = {"r2": known.r2_score, "rmse": known.root_mean_squared_error, "mae": known.mean_absolute_error}
        found = {name: score(y, answers.said) for name, score in regress.items()}
    return {f"{before}{name}": float(value) for name, value in found.items()}


def _of_classes(estimator: Any, y: NDArray[Any], answers: Answers) -> Mapping[str, float]:
    if y.ndim != 1 or np.ndim(estimator.classes_) != 1:
        return {"accuracy": import_module("sklearn.metrics").accuracy_score(y, answers.said)}
    classes = np.asarray(estimator.classes_)
    found = {"accuracy": float(np.mean(answers.said == y))}
    at = places(y, classes)
    told = len(classes) > 1 and at.min(initial=0) >= 0 and np.bincount(at, minlength=len(classes)).all()
    if told and hasattr(estimator, "predict_proba") and np.isfinite(answers.chances).all():
        found["log_loss"], found["auc"] = log_loss(at, answers.chances), auc(at, answers.chances)
    return found


def places(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Which of the classes each is; -1: none."""
    if y.dtype.kind in "biuf" and classes.dtype.kind in "biuf" and (classes[1:] > classes[:-1]).all():
        at = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
        return np.where(classes[at] == y, at, -1)
    known = {value: at for at, value in enumerate(classes.tolist())}
    return np.fromiter((known.get(value, -1) for value in y.tolist()), np.int64, len(y))


def log_loss(at: NDArray[np.int64], chances: NDArray[Any]) -> float:
    """Mean of minus the logarithm of the chance that the truth was given."""
    least = np.finfo(chances.dtype).eps
    given = np.clip(chances[np.arange(len(at)), at], least, 1 - least)
    return float(-np.log(given.astype(np.float64)).mean())


def auc(at: NDArray[np.int64], chances: NDArray[Any]) -> float:
    """How often one of a class has a higher chance of it than one of another; equal ones are half won. Of more than two
    classes the mean."""
    if chances.shape[1] == 2:
        return _ranked(chances[:, 1], at == 1)
    return float(np.mean([_ranked(chances[:, one], at == one) for one in range(chances.shape[1])]))


def _ranked(scores: NDArray[Any], true: NDArray[np.bool_]) -> float:
    ups, downs = np.sort(scores[true]), np.sort(scores[~true])
    won = sum(int(np.searchsorted(downs, ups, side).sum()) for side in ("left", "right"))
    return won / (2 * len(ups) * len(downs))


def _highest(chances: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Whose chance is highest, the first of equal ones; and how far above the next."""
    if chances.shape[1] == 2:
        gap = chances[:, 1] - chances[:, 0]
        return (gap > 0).astype(np.int64), np.abs(gap)
    two = np.partition(chances, -2, axis=1)[:, -2:]
    return chances.argmax(1), two[:, 1] - two[:, 0]


def _inmost(estimator: Any) -> Any:
    """What decides in the end: the last step of a pipeline, what a search has found."""
    while True:
        if type(estimator).__module__.startswith("sklearn.pipeline"):
            estimator = estimator.steps[-1][1]
        elif type(estimator).__module__.startswith("sklearn.model_selection") and hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        else:
            return estimator
