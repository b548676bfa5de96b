"""Metrics from counts: how many rows of each truth there were at each score. Counts may be expected ones, and many sets
of them are measured at once, so that what was seen, what is to be expected and what chance does to either are one code.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
LOWER_IS_BETTER = frozenset({"log_loss", "brier", "ece", "mae", "rmse", "mape"})
"""Of these, less is better."""
_CALIBRATION_BINS = 10
_EPSILON = float(np.finfo(np.float64).eps)


def score_binary(
    points: Any, positives: Any, negatives: Any, threshold: float = 0.5, *, chances: bool = True
) -> dict[str, Numbers]:
    """Everything that a score for one of two classes is measured by. Points ascend; counts are [..., points]; each
    metric has the leading dimensions. NaN where one says nothing, as without any positive. Without `chances`, only what
    is told by order and threshold."""
    score, positive_counts, negative_counts = (
        np.asarray(points, np.float64),
        _to_float_counts(positives),
        _to_float_counts(negatives),
    )
    total, ups, downs = (positive_counts + negative_counts).sum(-1), positive_counts.sum(-1), negative_counts.sum(-1)
    is_chosen = score >= threshold
    hits, false_alarms = positive_counts[..., is_chosen].sum(-1), negative_counts[..., is_chosen].sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        recall, spared = hits / ups, 1 - false_alarms / downs
        metrics = {
            "accuracy": (hits + downs - false_alarms) / total,
            "balanced_accuracy": (recall + spared) / 2,
            "precision": hits / (hits + false_alarms),
            "recall": recall,
            "f1": 2 * hits / (hits + false_alarms + ups),
            **_score_ranking(positive_counts, negative_counts, ups, downs),
        }
        if chances and len(score) and score[0] >= 0 and score[-1] <= 1:
            metrics |= _score_chances(score, positive_counts, negative_counts, total)
    return metrics


def score_classes(confusion: Any) -> dict[str, Numbers]:
    """The same of several classes, from [..., truth, said]: the mean over the classes that are said or true."""
    table = _to_float_counts(confusion)
    hits, predicted_counts, true_counts = table.diagonal(axis1=-2, axis2=-1), table.sum(-2), table.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        accuracy = hits.sum(-1) / table.sum((-2, -1))
    return {"accuracy": accuracy, **score_hits(hits, predicted_counts, true_counts)}


def score_hits(hits: Numbers, predicted: Numbers, actual: Numbers) -> dict[str, Numbers]:
    """Means over classes, from how often each was rightly said, said, and true."""
    is_present = (predicted + actual) > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        class_metrics = {
            "precision": np.where(predicted > 0, hits / predicted, 0.0),
            "recall": np.where(actual > 0, hits / actual, 0.0),
        }
        class_metrics["f1"] = np.where(is_present, 2 * hits / (predicted + actual), 0.0)
        metrics = {name: (values * is_present).sum(-1) / is_present.sum(-1) for name, values in class_metrics.items()}
        has_truth = actual > 0
        metrics["balanced_accuracy"] = (class_metrics["recall"] * has_truth).sum(-1) / has_truth.sum(-1)
    return metrics


def score_regression(truth: Numbers, predictions: Numbers) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of numbers, and the standard error of those that have one."""
    residuals = np.asarray(predictions, np.float64) - np.asarray(truth, np.float64)
    absolute_errors, squared_errors, rows = np.abs(residuals), residuals * residuals, len(residuals)
    if not rows:
        return {}, {}
    mae, mse, scale = float(absolute_errors.mean()), float(squared_errors.mean()), float(np.abs(truth).mean())
    metrics, spread = {"mae": mae, "rmse": mse**0.5}, float(np.var(truth))
    if scale:
        # Of the mean truth, not of each: one truth near nought would be all that counts.
        metrics["mape"] = mae / scale
    if spread:
        metrics["r2"] = 1 - mse / spread
    errors = {
        "mae": float(absolute_errors.std()) / rows**0.5,
        "rmse": float(squared_errors.std()) / rows**0.5 / (2 * mse**0.5 or 1.0),
    }
    return metrics, errors


def drop_undefined(metrics: Mapping[str, Any]) -> dict[str, float]:
    """One set of metrics, without those that say nothing."""
    return {name: float(value) for name, value in metrics.items() if np.isfinite(value)}


def _to_float_counts(counts: Any) -> Numbers:
    return np.asarray(counts, np.float64)


def _score_ranking(up: Numbers, down: Numbers, ups: Numbers, downs: Numbers) -> dict[str, Numbers]:
    """What only the order of scores decides; equal scores are half won."""
    below = np.cumsum(down, -1) - down / 2
    true_positives, predicted_positives = np.cumsum(up[..., ::-1], -1), np.cumsum((up + down)[..., ::-1], -1)
    precision = np.divide(
        true_positives, predicted_positives, out=np.zeros_like(true_positives), where=predicted_positives > 0
    )
    return {"auc": (up * below).sum(-1) / (ups * downs), "average_precision": (up[..., ::-1] * precision).sum(-1) / ups}


def _score_chances(score: Numbers, up: Numbers, down: Numbers, total: Numbers) -> dict[str, Numbers]:
    """What scores are worth as chances."""
    clipped = np.clip(score, _EPSILON, 1 - _EPSILON)
    bins = np.minimum((score * _CALIBRATION_BINS).astype(np.int64), _CALIBRATION_BINS - 1)
    bin_membership = (bins[:, None] == np.arange(_CALIBRATION_BINS)).astype(np.float64)
    gap = np.abs((up - score * (up + down)) @ bin_membership).sum(-1)
    return {
        "log_loss": -(up @ np.log(clipped) + down @ np.log1p(-clipped)) / total,
        "brier": (up @ (1 - score) ** 2 + down @ score**2) / total,
        "ece": gap / total,
    }
