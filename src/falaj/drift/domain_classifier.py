"""Can a small model tell the rows of now from those of then? If it can, they differ, and it says in what.

Logistic regression on all columns and on those products of two that differ most, judged on rows it did not see. The
bound needs no permutations: on unseen rows that are alike, ranks are as by chance. Missing values count as ordinary,
with a column of their own that says so.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.drift.measures import Bools, Floats, normal_tail
from falaj.drift.records import DriftFinding, DriftRules

_FOLD_COUNT, _MAX_PAIRS, _MAX_ROUNDS = 5, 24, 12
_CLIP_DEVIATIONS = 4.0
_RIDGE = 1e-2
_FOLD_VARIANCE_FACTOR = 2.25
"""Folds share rows: the variance of the mean over them is up to so many times that of independent ones (measured)."""
_MIN_AUC_GAIN = 0.05
"""Above one half; less is harmless."""
_MAX_NAMED_COLUMNS = 3


class ClassifierResult(NamedTuple):
    """How well two samples are told apart."""

    auc: float
    p: float
    columns: tuple[int, ...]
    """Those that helped most, in order."""


def classify_samples(
    current: NDArray[np.floating], reference: NDArray[np.floating], *, seed: int = 0
) -> ClassifierResult:
    """Rows of both, in standard deviations of the reference (`Tally.sample.values`)."""
    if min(len(current), len(reference)) < 4 * _FOLD_COUNT or not current.shape[1]:
        return ClassifierResult(0.5, 1.0, ())
    rows = np.concatenate([current, reference]).astype(np.float64)
    is_current = np.arange(len(rows)) < len(current)
    fold = np.random.default_rng(seed).permutation(len(rows)) % _FOLD_COUNT
    is_missing = np.isnan(rows)
    clipped = np.clip(
        np.nan_to_num(rows, nan=0.0, posinf=_CLIP_DEVIATIONS, neginf=-_CLIP_DEVIATIONS),
        -_CLIP_DEVIATIONS,
        _CLIP_DEVIATIONS,
    )
    aucs, variances, column_scores = [], [], np.zeros(rows.shape[1])
    for fold_number in range(_FOLD_COUNT):
        is_training = fold != fold_number
        pairs = _select_pairs(clipped[is_training], is_current[is_training])
        design = np.concatenate(
            [clipped, is_missing[:, is_missing[is_training].any(0)], clipped[:, pairs[0]] * clipped[:, pairs[1]]],
            axis=1,
        )
        weights, scores = _fit_classifier(design, is_current, is_training)
        aucs.append(_compute_auc(scores[~is_training], is_current[~is_training]))
        hits, misses = int(is_current[~is_training].sum()), int((~is_current[~is_training]).sum())
        variances.append((hits + misses + 1) / (12 * max(1, hits * misses)))
        column_scores += _attribute_weights(np.abs(weights), clipped.shape[1], pairs)
    auc, deviation = float(np.mean(aucs)), float(np.sqrt(np.mean(variances) / _FOLD_COUNT * _FOLD_VARIANCE_FACTOR))
    best_columns = np.argsort(-column_scores)[:_MAX_NAMED_COLUMNS]
    return ClassifierResult(auc, float(normal_tail(np.array((auc - 0.5) / deviation))), tuple(best_columns.tolist()))


def compare_domains(
    current: NDArray[np.floating], reference: NDArray[np.floating], names: Sequence[str], rules: DriftRules
) -> DriftFinding:
    """As a finding of a window or a report."""
    result = classify_samples(current, reference)
    is_alarm = result.p <= rules.alpha and result.auc - 0.5 >= _MIN_AUC_GAIN
    named_columns = ", ".join(names[at] for at in result.columns) if is_alarm else ""
    message = f"a model tells rows of now from those of then in {result.auc:.1%} of pairs" + (
        named_columns and f", most by {named_columns}"
    )
    return DriftFinding(
        "together",
        "",
        "",
        "auc",
        result.auc,
        0.5,
        0.5 + _MIN_AUC_GAIN,
        result.p,
        len(current),
        is_alarm,
        message,
        {"auc": result.auc},
    )


def _select_pairs(rows: Floats, is_current: Bools) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The pairs of columns (a column with itself, too) whose product differs most between the samples."""
    moments = [sample.T @ sample / max(1, len(sample)) for sample in (rows[is_current], rows[~is_current])]
    left_columns, right_columns = np.triu_indices(rows.shape[1])
    moment_gaps = np.abs(moments[0] - moments[1])[left_columns, right_columns]
    widest_pairs = np.argsort(-moment_gaps)[:_MAX_PAIRS]
    return left_columns[widest_pairs], right_columns[widest_pairs]


def _fit_classifier(design: Floats, is_current: Bools, is_training: Bools) -> tuple[Floats, Floats]:
    """Logistic regression with a small ridge (Newton), both samples counting the same."""
    mean, spread = design[is_training].mean(0), design[is_training].std(0)
    standardized = np.column_stack([(design - mean) / np.where(spread > 0, spread, 1.0), np.ones(len(design))])
    x, y = standardized[is_training], is_current[is_training].astype(np.float64)
    balance = np.where(y > 0, 0.5 / max(y.mean(), 1e-9), 0.5 / max(1 - y.mean(), 1e-9))
    weights = np.zeros(x.shape[1])
    ridge = np.eye(x.shape[1]) * _RIDGE * len(x)
    for _ in range(_MAX_ROUNDS):
        chance = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        gradient = x.T @ (balance * (y - chance)) - ridge @ weights
        hessian = (x * (balance * chance * (1 - chance))[:, None]).T @ x + ridge
        step = np.linalg.solve(hessian, gradient)
        weights += step
        if np.abs(step).max() < 1e-4:
            break
    return weights[:-1], standardized @ weights


def _compute_auc(scores: Floats, is_current: Bools) -> float:
    """How often one of ours scores higher than one of theirs; ties count half."""
    _, score_numbers, size = np.unique(scores, return_inverse=True, return_counts=True)
    cumulative_sizes = np.cumsum(size)
    rank = (cumulative_sizes - (size - 1) / 2)[score_numbers]
    hits, misses = int(is_current.sum()), int((~is_current).sum())
    if not hits or not misses:
        return 0.5
    return float((rank[is_current].sum() - hits * (hits + 1) / 2) / (hits * misses))


def _attribute_weights(weights: Floats, columns: int, pairs: tuple[NDArray[np.intp], NDArray[np.intp]]) -> Floats:
    """Which columns the weights belong to; a product belongs to both."""
    column_weights = weights[:columns].copy()
    product_weights = weights[len(weights) - len(pairs[0]) :]
    for pair_side in pairs:
        np.add.at(column_weights, pair_side, product_weights)
    return column_weights
