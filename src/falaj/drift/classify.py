"""Can a small model tell the rows of now from those of then? If it can, they differ, and it says in what.

Logistic regression on all columns and on those products of two that differ most, judged on rows it did not see. The
bound needs no permutations: on unseen rows that are alike, ranks are as by chance. Missing values count as ordinary,
with a column of their own that says so.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.drift.measures import Bools, Floats, above
from falaj.drift.records import Finding, Rules

_FOLDS, _PAIRS, _ROUNDS = 5, 24, 12
_CLIP = 4.0
_RIDGE = 1e-2
_KEPT = 2.25
"""Folds share rows: the variance of the mean over them is up to so many times that of independent ones (measured)."""
_LEAST_AUC = 0.05
"""Above one half; less is harmless."""
_NAMED = 3


class Told(NamedTuple):
    """How well two samples are told apart."""

    auc: float
    p: float
    columns: tuple[int, ...]
    """Those that helped most, in order."""


def told_apart(now: NDArray[np.floating], then: NDArray[np.floating], *, seed: int = 0) -> Told:
    """Rows of both, in standard deviations of the reference (`Tally.sample.values`)."""
    if min(len(now), len(then)) < 4 * _FOLDS or not now.shape[1]:
        return Told(0.5, 1.0, ())
    rows = np.concatenate([now, then]).astype(np.float64)
    ours = np.arange(len(rows)) < len(now)
    fold = np.random.default_rng(seed).permutation(len(rows)) % _FOLDS
    blank = np.isnan(rows)
    tame = np.clip(np.nan_to_num(rows, nan=0.0, posinf=_CLIP, neginf=-_CLIP), -_CLIP, _CLIP)
    aucs, wide, helped = [], [], np.zeros(rows.shape[1])
    for one in range(_FOLDS):
        train = fold != one
        pairs = _pairs(tame[train], ours[train])
        told = np.concatenate([tame, blank[:, blank[train].any(0)], tame[:, pairs[0]] * tame[:, pairs[1]]], axis=1)
        weights, scores = _fitted(told, ours, train)
        aucs.append(_auc(scores[~train], ours[~train]))
        hits, misses = int(ours[~train].sum()), int((~ours[~train]).sum())
        wide.append((hits + misses + 1) / (12 * max(1, hits * misses)))
        helped += _whose(np.abs(weights), tame.shape[1], pairs)
    auc, deviation = float(np.mean(aucs)), float(np.sqrt(np.mean(wide) / _FOLDS * _KEPT))
    best = np.argsort(-helped)[:_NAMED]
    return Told(auc, float(above(np.array((auc - 0.5) / deviation))), tuple(best.tolist()))


def domain(now: NDArray[np.floating], then: NDArray[np.floating], names: Sequence[str], rules: Rules) -> Finding:
    """As a finding of a window or a report."""
    told = told_apart(now, then)
    alarm = told.p <= rules.alpha and told.auc - 0.5 >= _LEAST_AUC
    most = ", ".join(names[at] for at in told.columns) if alarm else ""
    said = f"a model tells rows of now from those of then in {told.auc:.1%} of pairs" + (most and f", most by {most}")
    return Finding(
        "together", "", "", "auc", told.auc, 0.5, 0.5 + _LEAST_AUC, told.p, len(now), alarm, said, {"auc": told.auc}
    )


def _pairs(rows: Floats, ours: Bools) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The pairs of columns (a column with itself, too) whose product differs most between the samples."""
    moments = [part.T @ part / max(1, len(part)) for part in (rows[ours], rows[~ours])]
    left, right = np.triu_indices(rows.shape[1])
    apart = np.abs(moments[0] - moments[1])[left, right]
    most = np.argsort(-apart)[:_PAIRS]
    return left[most], right[most]


def _fitted(told: Floats, ours: Bools, train: Bools) -> tuple[Floats, Floats]:
    """Logistic regression with a small ridge (Newton), both samples counting the same."""
    mean, spread = told[train].mean(0), told[train].std(0)
    whole = np.column_stack([(told - mean) / np.where(spread > 0, spread, 1.0), np.ones(len(told))])
    x, y = whole[train], ours[train].astype(np.float64)
    balance = np.where(y > 0, 0.5 / max(y.mean(), 1e-9), 0.5 / max(1 - y.mean(), 1e-9))
    weights = np.zeros(x.shape[1])
    ridge = np.eye(x.shape[1]) * _RIDGE * len(x)
    for _ in range(_ROUNDS):
        chance = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        slope = x.T @ (balance * (y - chance)) - ridge @ weights
        bend = (x * (balance * chance * (1 - chance))[:, None]).T @ x + ridge
        step = np.linalg.solve(bend, slope)
        weights += step
        if np.abs(step).max() < 1e-4:
            break
    return weights[:-1], whole @ weights


def _auc(scores: Floats, ours: Bools) -> float:
    """How often one of ours scores higher than one of theirs; ties count half."""
    _, place, size = np.unique(scores, return_inverse=True, return_counts=True)
    upto = np.cumsum(size)
    rank = (upto - (size - 1) / 2)[place]
    hits, misses = int(ours.sum()), int((~ours).sum())
    if not hits or not misses:
        return 0.5
    return float((rank[ours].sum() - hits * (hits + 1) / 2) / (hits * misses))


def _whose(weights: Floats, columns: int, pairs: tuple[NDArray[np.intp], NDArray[np.intp]]) -> Floats:
    """Which columns the weights belong to; a product belongs to both."""
    found = weights[:columns].copy()
    last = weights[len(weights) - len(pairs[0]) :]
    for part in pairs:
        np.add.at(found, part, last)
    return found
