"""How good answers are, and how much of that a variant loses."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[Any]
ACCURACY, AUC, RMSE, AGREEMENT = "accuracy", "auc", "rmse", "agreement"


def kind_of(scores: Scores, target: NDArray[Any] | None) -> str:
    """What is measured: classes by accuracy, yes or no by AUC, numbers by their error, else agreement with before."""
    if target is None:
        return AGREEMENT
    if target.dtype.kind == "i" and scores.ndim > 1 and scores.shape[-1] > 1:
        return ACCURACY
    return AUC if target.dtype.kind == "i" and set(np.unique(target)) == {0, 1} else RMSE


def quality(kind: str, scores: Scores, before: Scores, target: NDArray[Any] | None) -> float:
    """One number; NaN when there are answers that are no numbers where there were numbers before."""
    if scores.shape != before.shape or (~np.isfinite(scores) & np.isfinite(before)).any():
        return math.nan
    if kind == AGREEMENT or target is None:
        return _agreement(scores, before)
    if kind == ACCURACY:
        return float((scores.argmax(-1) == target.reshape(scores.shape[:-1])).mean())
    flat = scores.reshape(len(scores), -1)[:, 0].astype(np.float64)
    return _auc(flat, target.ravel()) if kind == AUC else float(np.sqrt(np.mean((flat - target.ravel()) ** 2)))


def loss(kind: str, was: float, now: float) -> float:
    """What is lost: points, or of an error its growth as a share. Negative when it became better."""
    if math.isnan(now):
        return math.inf
    if kind != RMSE:
        return was - now
    return (now - was) / was if was else (math.inf if now > 0 else 0.0)


def _agreement(scores: Scores, before: Scores) -> float:
    """The share of equal classes; of numbers one less the error beside their spread."""
    if scores.ndim > 1 and scores.shape[-1] > 1:
        return float((scores.argmax(-1) == before.argmax(-1)).mean())
    x, y = before.astype(np.float64), scores.astype(np.float64)
    apart, spread = np.sqrt(np.nanmean((x - y) ** 2)), float(np.nanstd(x))
    return max(0.0, 1.0 - float(apart) / spread) if spread else float(apart == 0)


def _auc(scores: Scores, target: NDArray[Any]) -> float:
    """How often a yes is scored above a no; equal scores count half."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    yes = target == 1
    wins = ranks[yes].sum() - yes.sum() * (yes.sum() + 1) / 2
    return float(wins / (yes.sum() * (~yes).sum()))
