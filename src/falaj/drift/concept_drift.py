"""What the truth says once labels have come: does the model err more often, and do its scores mean what they did?

Errors are judged by evidence that may be looked at after every window (streams.Evidence): whoever acts on it is wrong
with a chance of at most alpha, ever. Scores are judged by bins: inputs may have moved, but a score of 0.8 should still
be true eight times in ten.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from falaj.drift.change_detectors import SequentialEvidence
from falaj.drift.measures import Floats, compute_chi2_p
from falaj.drift.records import TASK_BINARY, TASK_CLASSES, DriftFinding, DriftRules, ModelQuality

_BIN_COUNT = 10
_MIN_BIN_ROWS = 20
_MIN_MEAN_GAP = 0.03
"""Truth and what the scores promised, in the mean over all rows; less is harmless."""
_ALPHA_SHARE = 0.1
"""Of alpha: the other findings of a window have the rest."""
EVIDENCE_ALPHA = 0.001
"""Of evidence that acts."""


def compute_error_bound(quality: ModelQuality, rules: DriftRules) -> float | None:
    """The error rate that is still harmless: of the reference, with what its own rows leave open; None: unknown."""
    accuracy = quality.metrics.get("accuracy")
    if accuracy is None or quality.task not in {TASK_BINARY, TASK_CLASSES} or not quality.rows:
        return None
    rate = min(max(1 - accuracy, 0.0), 1.0)
    noise = 3 * float(np.sqrt(max(rate * (1 - rate), 1 / quality.rows) / quality.rows))
    return float(np.clip(rate + max(noise, rules.least_drop * accuracy), 1e-3, 0.999))


def detect_error_drift(
    quality: ModelQuality, wrong_answers: ArrayLike, rules: DriftRules, state: Sequence[float] = ()
) -> tuple[DriftFinding | None, tuple[float, ...]]:
    """Answers whose truth came since the last time, in order: 1 for each that was wrong. And the state to go on from.

    A new revision begins with no state; so does a new reference.
    """
    new_errors = np.asarray(wrong_answers, np.float64).ravel()
    max_rate = compute_error_bound(quality, rules)
    if max_rate is None or not len(new_errors):
        return None, tuple(state)
    evidence = SequentialEvidence(max_rate, EVIDENCE_ALPHA, state)
    evidence.add(new_errors)
    current_rate, reference_rate = float(new_errors.mean()), 1 - quality.metrics["accuracy"]
    message = f"{current_rate:.1%} of {len(new_errors)} answers were wrong, before {reference_rate:.1%}"
    if evidence.found and current_rate > max_rate:  # Found once is found for ever; but it may be over.
        message += f"; more than {max_rate:.1%} for certain"
    finding = DriftFinding(
        "performance",
        "",
        "",
        "errors",
        current_rate,
        reference_rate,
        max_rate,
        evidence.p,
        len(new_errors),
        evidence.found and current_rate > max_rate,
        message,
    )
    return finding, evidence.state


def detect_calibration_drift(
    quality: ModelQuality, scores: ArrayLike, truth: ArrayLike, rules: DriftRules
) -> DriftFinding | None:
    """Whether scores mean what they did, however many of each there are now."""
    score_values, truth_values = np.asarray(scores, np.float64).ravel(), np.asarray(truth, np.float64).ravel()
    is_finite = np.isfinite(score_values) & np.isfinite(truth_values)
    score_values, truth_values = score_values[is_finite], truth_values[is_finite]
    if quality.task != TASK_BINARY or not quality.scores or len(score_values) < rules.least_rows:
        return None
    expected_chances = np.clip(np.interp(score_values, quality.scores, quality.chances), 1e-4, 1 - 1e-4)
    bin_numbers = _assign_tenths(expected_chances)
    rows, hits, expected_hits = (
        np.bincount(bin_numbers, row_weights, _BIN_COUNT)
        for row_weights in (np.ones(len(score_values)), truth_values, expected_chances)
    )
    noise = np.bincount(
        bin_numbers, expected_chances * (1 - expected_chances), _BIN_COUNT
    ) + rows**2 * _estimate_uncertainty(quality, expected_chances, bin_numbers)
    is_used = rows >= _MIN_BIN_ROWS
    statistic = float(((hits - expected_hits)[is_used] ** 2 / noise[is_used]).sum())
    p = float(compute_chi2_p(np.array(statistic), np.array(int(is_used.sum()))))
    mean_gap = float(np.abs(hits - expected_hits)[is_used].sum() / max(1.0, rows[is_used].sum()))
    is_alarm = p <= rules.alpha * _ALPHA_SHARE and mean_gap >= _MIN_MEAN_GAP
    widest_bin = int(np.where(is_used, np.abs(hits - expected_hits) / np.maximum(rows, 1), -1.0).argmax())
    summary = "scores mean something else" if is_alarm else "scores mean what they did"
    message = (
        f"{summary}: where {expected_hits[widest_bin] / max(rows[widest_bin], 1):.1%} were "
        f"to be true, {hits[widest_bin] / max(rows[widest_bin], 1):.1%} are"
    )
    return DriftFinding(
        "concept",
        "",
        "",
        "calibration",
        mean_gap,
        0.0,
        _MIN_MEAN_GAP,
        p,
        len(score_values),
        is_alarm,
        message,
        {"chi2": statistic},
    )


def _assign_tenths(expected_chances: Floats) -> NDArray[np.intp]:
    """Rows in order of what they promise, in parts of about the same size; the same promise is in the same part."""
    ends = np.unique(np.quantile(expected_chances, np.arange(1, _BIN_COUNT) / _BIN_COUNT))
    return np.searchsorted(ends, expected_chances, side="left")


def _estimate_uncertainty(quality: ModelQuality, expected_chances: Floats, bin_numbers: NDArray[np.intp]) -> Floats:
    """How wrong the promises of a part may be themselves: they were measured on a tenth of the reference or so."""
    rows = np.maximum(np.bincount(bin_numbers, minlength=_BIN_COUNT), 1)
    share = rows / max(1, len(expected_chances))
    spread = np.bincount(bin_numbers, expected_chances * (1 - expected_chances), _BIN_COUNT) / rows
    return np.asarray(spread / np.maximum(1.0, quality.rows * share), np.float64)
