"""Metrics from counts: how many rows of each truth there were at each score. Counts may be expected ones, and many sets
of them are measured at once, so that what was seen, what is to be expected and what chance does to either are one code.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
LOWER = frozenset({"log_loss", "brier", "ece", "mae", "rmse", "mape"})
"""Of these, less is better."""
_TENTHS = 10
_TINY = float(np.finfo(np.float64).eps)


def binary(
    points: Any, positives: Any, negatives: Any, threshold: float = 0.5, *, chances: bool = True
) -> dict[str, Numbers]:
    """Everything that a score for one of two classes is measured by. Points ascend; counts are [..., points]; each
    metric has the leading dimensions. NaN where one says nothing, as without any positive. Without `chances`, only what
    is told by order and threshold."""
    score, up, down = np.asarray(points, np.float64), _counts(positives), _counts(negatives)
    whole, ups, downs = (up + down).sum(-1), up.sum(-1), down.sum(-1)
    chosen = score >= threshold
    hits, alarms = up[..., chosen].sum(-1), down[..., chosen].sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        recall, spared = hits / ups, 1 - alarms / downs
        found = {
            "accuracy": (hits + downs - alarms) / whole,
            "balanced_accuracy": (recall + spared) / 2,
            "precision": hits / (hits + alarms),
            "recall": recall,
            "f1": 2 * hits / (hits + alarms + ups),
            **_ranked(up, down, ups, downs),
        }
        if chances and len(score) and score[0] >= 0 and score[-1] <= 1:
            found |= _chances(score, up, down, whole)
    return found


def classes(confusion: Any) -> dict[str, Numbers]:
    """The same of several classes, from [..., truth, said]: the mean over the classes that are said or true."""
    table = _counts(confusion)
    hits, said, true = table.diagonal(axis1=-2, axis2=-1), table.sum(-2), table.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        accuracy = hits.sum(-1) / table.sum((-2, -1))
    return {"accuracy": accuracy, **of_hits(hits, said, true)}


def of_hits(hits: Numbers, said: Numbers, true: Numbers) -> dict[str, Numbers]:
    """Means over classes, from how often each was rightly said, said, and true."""
    there = (said + true) > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        each = {"precision": np.where(said > 0, hits / said, 0.0), "recall": np.where(true > 0, hits / true, 0.0)}
        each["f1"] = np.where(there, 2 * hits / (said + true), 0.0)
        found = {name: (values * there).sum(-1) / there.sum(-1) for name, values in each.items()}
        real = true > 0
        found["balanced_accuracy"] = (each["recall"] * real).sum(-1) / real.sum(-1)
    return found


def regression(truth: Numbers, said: Numbers) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of numbers, and the standard error of those that have one."""
    off = np.asarray(said, np.float64) - np.asarray(truth, np.float64)
    far, square, rows = np.abs(off), off * off, len(off)
    if not rows:
        return {}, {}
    mae, mse, scale = float(far.mean()), float(square.mean()), float(np.abs(truth).mean())
    found, spread = {"mae": mae, "rmse": mse**0.5}, float(np.var(truth))
    if scale:
        # Of the mean truth, not of each: one truth near nought would be all that counts.
        found["mape"] = mae / scale
    if spread:
        found["r2"] = 1 - mse / spread
    errors = {"mae": float(far.std()) / rows**0.5, "rmse": float(square.std()) / rows**0.5 / (2 * mse**0.5 or 1.0)}
    return found, errors


def plain(found: Mapping[str, Any]) -> dict[str, float]:
    """One set of metrics, without those that say nothing."""
    return {name: float(value) for name, value in found.items() if np.isfinite(value)}


def _counts(given: Any) -> Numbers:
    return np.asarray(given, np.float64)


def _ranked(up: Numbers, down: Numbers, ups: Numbers, downs: Numbers) -> dict[str, Numbers]:
    """What only the order of scores decides; equal scores are half won."""
    below = np.cumsum(down, -1) - down / 2
    above, both = np.cumsum(up[..., ::-1], -1), np.cumsum((up + down)[..., ::-1], -1)
    precise = np.divide(above, both, out=np.zeros_like(above), where=both > 0)
    return {"auc": (up * below).sum(-1) / (ups * downs), "average_precision": (up[..., ::-1] * precise).sum(-1) / ups}


def _chances(score: Numbers, up: Numbers, down: Numbers, whole: Numbers) -> dict[str, Numbers]:
    """What scores are worth as chances."""
    safe = np.clip(score, _TINY, 1 - _TINY)
    bins = np.minimum((score * _TENTHS).astype(np.int64), _TENTHS - 1)
    into = (bins[:, None] == np.arange(_TENTHS)).astype(np.float64)
    gap = np.abs((up - score * (up + down)) @ into).sum(-1)
    return {
        "log_loss": -(up @ np.log(safe) + down @ np.log1p(-safe)) / whole,
        "brier": (up @ (1 - score) ** 2 + down @ score**2) / whole,
        "ece": gap / whole,
    }
