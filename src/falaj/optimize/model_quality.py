"""How good answers are, and how much of that a variant loses."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

ScoreArray = NDArray[Any]
ACCURACY, AUC, RMSE, AGREEMENT = "accuracy", "auc", "rmse", "agreement"


def choose_measure(scores: ScoreArray, target: NDArray[Any] | None) -> str:
    """What is measured: classes by accuracy, yes or no by AUC, numbers by their error, else agreement with before."""
    if target is None:
        return AGREEMENT
    if target.dtype.kind == "i" and scores.ndim > 1 and scores.shape[-1] > 1:
        return ACCURACY
    return AUC if target.dtype.kind == "i" and set(np.unique(target)) == {0, 1} else RMSE


def compute_quality(
    measure: str, scores: ScoreArray, original_scores: ScoreArray, target: NDArray[Any] | None
) -> float:
    """One number; NaN when there are answers that are no numbers where there were numbers before."""
    if scores.shape != original_scores.shape or (~np.isfinite(scores) & np.isfinite(original_scores)).any():
        return math.nan
    if measure == AGREEMENT or target is None:
        return _compute_agreement(scores, original_scores)
    if measure == ACCURACY:
        return float((scores.argmax(-1) == target.reshape(scores.shape[:-1])).mean())
    flat = scores.reshape(len(scores), -1)[:, 0].astype(np.float64)
    return (
        _compute_auc(flat, target.ravel()) if measure == AUC else float(np.sqrt(np.mean((flat - target.ravel()) ** 2)))
    )


def compute_loss(measure: str, old_quality: float, new_quality: float) -> float:
    """What is lost: points, or of an error its growth as a share. Negative when it became better."""
    if math.isnan(new_quality):
        return math.inf
    if measure != RMSE:
        return old_quality - new_quality
    return (new_quality - old_quality) / old_quality if old_quality else (math.inf if new_quality > 0 else 0.0)


def _compute_agreement(scores: ScoreArray, original_scores: ScoreArray) -> float:
    """The share of equal classes; of numbers one less the error beside their spread."""
    if scores.ndim > 1 and scores.shape[-1] > 1:
        return float((scores.argmax(-1) == original_scores.argmax(-1)).mean())
    x, y = original_scores.astype(np.float64), scores.astype(np.float64)
    rms_error, spread = np.sqrt(np.nanmean((x - y) ** 2)), float(np.nanstd(x))
    return max(0.0, 1.0 - float(rms_error) / spread) if spread else float(rms_error == 0)


def _compute_auc(scores: ScoreArray, target: NDArray[Any]) -> float:
    """How often a yes is scored above a no; equal scores count half."""
    _, rank_indexes, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[rank_indexes]
    is_positive = target == 1
    wins = ranks[is_positive].sum() - is_positive.sum() * (is_positive.sum() + 1) / 2
    return float(wins / (is_positive.sum() * (~is_positive).sum()))
