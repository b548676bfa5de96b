"""How good predictions are while the truth is not known: what scores were worth on held-out rows, applied to the scores
of a window (confidence-based for classes; the error foretold from where the prediction lies, for numbers).

It sees what a change of inputs does to the metric. It does not see that the world behind the same inputs has changed:
it is called an estimate wherever it is told, and labels overrule it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.drift import metric_formulas
from falaj.drift.performance import (
    JUDGED_METRICS,
    MIN_ROWS,
    MeasuredQuality,
    compute_chance_of_worse,
    compute_errors,
    compute_metric_bound,
    count_scores,
    get_positive_score,
    is_positive,
    join_points,
    measure_counts,
    measure_quality,
    to_texts,
)
from falaj.drift.records import (
    KIND_NUMBER,
    MAX_CLASS_SCORES,
    ROLE_PREDICTION,
    TASK_BINARY,
    TASK_CLASSES,
    TASK_REGRESSION,
    DataProfile,
    DriftFinding,
    DriftRules,
    ModelQuality,
)
from falaj.drift.score_curves import CERTAIN_SCORE, Numbers, ScoreCurve, is_usable
from falaj.drift.tally import DataTally

CURVE_POINTS = 128
"""Scores at which chances are kept."""
CHUNK_ROWS = 1000
MetricsAndErrors = tuple[dict[str, float], dict[str, float]]
"""Metrics, and their errors."""


def calibrate_quality(
    task: str, truth: Any, answers: Any, *, labels: Sequence[Any] = (), threshold: float = 0.5, seed: int = 0
) -> ModelQuality:
    """What the model is worth on rows that it was not trained on: metrics, and how often scores came true."""
    truth, answer_values = np.asarray(truth), np.asarray(answers)
    if task == TASK_BINARY:
        score = get_positive_score(answer_values)
        is_known = np.isfinite(score) & (np.isfinite(truth) if truth.dtype.kind == "f" else True)
        table = count_scores(score[is_known], is_positive(truth[is_known], labels)) if is_known.any() else None
        metrics_and_errors = measure_counts(*table, threshold=threshold, seed=seed) if table else ({}, {})
        measured, curve = (
            MeasuredQuality(task, *metrics_and_errors, rows=int(is_known.sum())),
            _build_rising_curve(*table) if table else {},
        )
    else:
        measured = measure_quality(task, truth, answer_values, labels=labels, seed=seed)
        is_numeric = task == TASK_REGRESSION
        curve = (
            _build_residual_curve(truth, answer_values) if is_numeric else _class_curve(truth, answer_values, labels)
        )
    spread = {name: error * (measured.rows / CHUNK_ROWS) ** 0.5 for name, error in measured.errors.items()}
    return ModelQuality(task, measured.metrics, threshold=threshold, rows=measured.rows, spread=spread, **curve)


class PerformanceEstimator:
    """What the scores of one profile let expect, of any window."""

    def __init__(self, profile: DataProfile) -> None:
        self._profile, self._quality = profile, profile.quality
        self._axes = list_score_axes(profile) if is_usable(profile.quality) else []
        self._curves = [ScoreCurve(profile.axes[position], profile.quality) for position in self._axes]
        self._reference_estimates: dict[str, MeasuredQuality | None] = {}

    def estimate(self, counts: Mapping[int, NDArray[Any]]) -> MeasuredQuality | None:
        """Metrics that these counts of the prediction axes (by place in the profile) let expect, each with its error
        from chance and from the calibration; nothing where the profile cannot tell."""
        if not self._axes or any(position not in counts for position in self._axes):
            return None
        rows_by_curve = [
            curve.laid(np.asarray(counts[position])) for position, curve in zip(self._axes, self._curves, strict=True)
        ]
        rows, total_rows = round(rows_by_curve[0].sum()), int(np.sum(counts[self._axes[0]]))
        if not rows:
            return None
        estimate_task = {
            TASK_BINARY: _estimate_binary,
            TASK_CLASSES: _estimate_classes,
            TASK_REGRESSION: _estimate_regression,
        }[self._quality.task]
        return MeasuredQuality(
            self._quality.task, *estimate_task(self._curves, rows_by_curve, self._quality), rows, total_rows - rows
        )

    def findings(self, tally: DataTally, rules: DriftRules) -> tuple[DriftFinding, ...]:
        """A window against the reference; whole, and by segment."""
        segments_and_numbers = [("", None), *((name, position) for position, name in enumerate(self._profile.segments))]
        windows = [
            (name, self.estimate({position: tally.of(position, part) for position in self._axes}))
            for name, part in segments_and_numbers
        ]
        estimates = [
            (name, estimated, self._estimate_reference(name))
            for name, estimated in windows
            if estimated and estimated.rows >= MIN_ROWS
        ]
        judged_metrics = JUDGED_METRICS.get(self._quality.task, ())
        test_count = max(1, len(estimates) * len(judged_metrics))
        return tuple(
            _make_estimate_finding(name, current, reference.metrics[name], segment, rules, test_count)
            for segment, current, reference in estimates
            for name in judged_metrics
            if reference is not None and name in current.metrics and name in reference.metrics
        )

    def _estimate_reference(self, segment: str) -> MeasuredQuality | None:
        """What was to be expected of the reference: of this segment, or of all where too few rows tell."""
        if segment not in self._reference_estimates:
            profile = self._profile
            segment_counts = (
                profile.by_segment[profile.segments.index(segment)] if segment and profile.by_segment else None
            )
            estimated = self.estimate(
                {position: np.asarray((segment_counts or profile.counts)[position]) for position in self._axes}
            )
            is_enough = estimated is not None and (not segment or estimated.rows >= MIN_ROWS)
            self._reference_estimates[segment] = (
                estimated if is_enough else self._estimate_reference("") if segment else None
            )
        return self._reference_estimates[segment]


def estimate_performance(profile: DataProfile, counts: Mapping[int, NDArray[Any]]) -> MeasuredQuality | None:
    """Metrics that these counts of the prediction axes let expect; nothing where the profile cannot tell."""
    return PerformanceEstimator(profile).estimate(counts)


def compare_estimates(profile: DataProfile, tally: DataTally, rules: DriftRules) -> tuple[DriftFinding, ...]:
    """What is to be expected of a window against what was to be expected of the reference."""
    return PerformanceEstimator(profile).findings(tally, rules)


def list_score_axes(profile: DataProfile) -> list[int]:
    """Where the scores are: one axis, or one for each class."""
    names = profile.tensors.get(profile.quality.output) or [axis.name for axis in profile.axes]
    axis_numbers = [
        position
        for position, axis in enumerate(profile.axes)
        if axis.role == ROLE_PREDICTION and axis.kind == KIND_NUMBER and axis.name in names
    ]
    return (
        axis_numbers[-1:]
        if profile.quality.task == TASK_BINARY
        else axis_numbers
        if profile.quality.task == TASK_CLASSES
        else axis_numbers[:1]
    )


def _estimate_binary(
    curves: Sequence[ScoreCurve], rows_by_curve: Sequence[Numbers], quality: ModelQuality
) -> MetricsAndErrors:
    curve, rows = curves[0], rows_by_curve[0]
    measured = partial(metric_formulas.score_binary, curve.points, threshold=quality.threshold)
    positives = curve.came(rows)
    return _with_errors(
        measured(rows * curve.chances, rows * (1 - curve.chances)), measured(positives, rows - positives, chances=False)
    )


def _estimate_classes(
    curves: Sequence[ScoreCurve], rows_by_curve: Sequence[Numbers], quality: ModelQuality
) -> MetricsAndErrors:
    """Of each class: how often it is rightly said, and true; accuracy, and means over classes."""
    total, share = max(1.0, float(rows_by_curve[0].sum())), _compute_prediction_shares(curves, rows_by_curve)
    curve_rows = list(zip(curves, rows_by_curve, share, strict=True))
    hits = np.array([(rows * curve.chances) @ prediction_share for curve, rows, prediction_share in curve_rows])
    true = np.array([rows @ curve.beside for curve, rows, _ in curve_rows]).clip(1e-9)
    drawn = np.stack([curve.came(rows) @ prediction_share for curve, rows, prediction_share in curve_rows], 1)
    expected, drawn_metrics = {"accuracy": hits.sum() / total}, {"accuracy": drawn.sum(1) / total}
    if quality.beside:
        expected["recall"], drawn_metrics["recall"] = (hits / true).clip(0, 1).mean(), (drawn / true).mean(1)
    return _with_errors(expected, drawn_metrics)


def _compute_prediction_shares(curves: Sequence[ScoreCurve], rows_by_curve: Sequence[Numbers]) -> list[Numbers]:
    """How much more often than in the reference a class is said at each score. Above one half it is always said; how
    often below, depends on the other classes; but every row has one that is said, so all together are known."""
    if any(curve.points[0] < 0 or curve.points[-1] > 1 for curve in curves):
        return [np.ones(len(curve.points)) for curve in curves]
    likely_rows = [
        rows * (curve.chances / curve.beside.clip(1e-9)).clip(0, 1)
        for curve, rows in zip(curves, rows_by_curve, strict=True)
    ]
    certain_rows = sum(
        float(rows[curve.points > CERTAIN_SCORE].sum()) for curve, rows in zip(curves, rows_by_curve, strict=True)
    )
    uncertain_rows = sum(
        float(rows[curve.points <= CERTAIN_SCORE].sum()) for curve, rows in zip(curves, likely_rows, strict=True)
    )
    factor = max(0.0, float(rows_by_curve[0].sum()) - certain_rows) / uncertain_rows if uncertain_rows else 1.0
    return [np.where(curve.points > CERTAIN_SCORE, 1.0, factor) for curve in curves]


def _estimate_regression(
    curves: Sequence[ScoreCurve], rows_by_curve: Sequence[Numbers], quality: ModelQuality
) -> MetricsAndErrors:
    del quality
    curve, rows = curves[0], rows_by_curve[0].sum()
    share = rows_by_curve[0] / rows
    mae, mse = float(share @ curve.chances), float(share @ curve.beside)
    # From the window's rows, and from the held-out rows behind each figure, as far as the window leans on it.
    noise = np.maximum(curve.beside - curve.chances**2, 0) * (share / rows + share**2 / np.maximum(curve.behind, 1))
    error = float(noise.sum()) ** 0.5
    return {"mae": mae, "rmse": mse**0.5}, {"mae": error, "rmse": error * mse**0.5 / mae if mae else 0.0}


def _with_errors(expected: Mapping[str, Any], drawn: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    metrics = metric_formulas.drop_undefined(expected)
    return metrics, compute_errors(drawn, metrics)


def _make_estimate_finding(
    name: str, current: MeasuredQuality, reference: float, segment: str, rules: DriftRules, test_count: int
) -> DriftFinding:
    value, error = current.metrics[name], current.errors.get(name, 0.0)
    p = compute_chance_of_worse(name, value, reference, error, rules)
    message = (
        f"{name.replace('_', ' ')} is estimated at {value:.4g} ± "
        f"{1.96 * error:.2g} without labels, {reference:.4g} then"
    )
    return DriftFinding(
        "estimate",
        "",
        segment,
        name,
        value,
        reference,
        compute_metric_bound(name, reference, rules),
        p,
        current.rows,
        p <= rules.alpha / test_count,
        message,
        {"error": error, **current.metrics},
    )


def _build_rising_curve(points: Numbers, positives: Numbers, negatives: Numbers) -> dict[str, Any]:
    """How often scores came true, never falling as they rise (pooled neighbours, isotonic)."""
    points, positives, negatives = join_points(points, positives, negatives, CURVE_POINTS)
    rows = positives + negatives
    return {
        "scores": tuple(points.tolist()),
        "chances": tuple(_pool_neighbours(positives / rows, rows).tolist()),
        "weights": tuple(int(weight) for weight in rows),
    }


def _pool_neighbours(values: Numbers, weights: Numbers) -> Numbers:
    """The nearest that never falls: neighbours that fall are joined to their mean."""
    blocks: list[list[float]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            last_block, previous_block = blocks.pop(), blocks[-1]
            joined_weight = previous_block[1] + last_block[1]
            previous_block[:] = [
                (previous_block[0] * previous_block[1] + last_block[0] * last_block[1]) / joined_weight,
                joined_weight,
                previous_block[2] + last_block[2],
            ]
    return np.repeat([block[0] for block in blocks], [int(block[2]) for block in blocks])


def _class_curve(truth: NDArray[Any], class_scores: NDArray[Any], labels: Sequence[Any]) -> dict[str, Any]:
    """From the scores of all classes: at such a score, how often that class was said and true, and how often true."""
    if class_scores.ndim != 2 or class_scores.dtype.kind != "f" or class_scores.shape[1] > MAX_CLASS_SCORES:
        return {}
    names = to_texts(labels) if len(labels) else np.arange(class_scores.shape[1]).astype(str)
    is_true = to_texts(truth)[:, None] == names[None, :]
    hits = is_true & (class_scores.argmax(1)[:, None] == np.arange(class_scores.shape[1]))
    flat_scores = class_scores.reshape(-1).astype(np.float64)
    is_finite = np.isfinite(flat_scores)
    curve, truth_curve = (
        _build_rising_curve(*count_scores(flat_scores[is_finite], is_hit.reshape(-1)[is_finite]))
        for is_hit in (hits, is_true)
    )
    return {**curve, "beside": truth_curve["chances"]}


def _build_residual_curve(truth: NDArray[Any], predictions: NDArray[Any]) -> dict[str, Any]:
    """How far off predictions are, by where they lie."""
    truth, predictions = truth.astype(np.float64), predictions.reshape(len(predictions)).astype(np.float64)
    is_finite = np.isfinite(truth) & np.isfinite(predictions)
    order = np.argsort(predictions[is_finite])
    predictions, absolute_errors = predictions[is_finite][order], np.abs(predictions - truth)[is_finite][order]
    bins = max(1, min(CURVE_POINTS // 4, len(predictions) // MIN_ROWS))
    bin_starts = (
        np.unique(np.linspace(0, len(predictions), bins + 1).astype(np.int64)[:-1])
        if len(predictions)
        else np.array([], int)
    )
    if len(bin_starts):
        bin_starts = bin_starts[np.concatenate([[True], np.diff(predictions[bin_starts]) > 0])]
    if not len(bin_starts):
        return {}
    rows = np.diff(np.append(bin_starts, len(predictions)))
    middle, mean, square = (
        np.add.reduceat(bin_values, bin_starts) / rows
        for bin_values in (predictions, absolute_errors, absolute_errors**2)
    )
    return {
        "scores": tuple(middle.tolist()),
        "chances": tuple(mean.tolist()),
        "beside": tuple(square.tolist()),
        "weights": tuple(int(bin_values) for bin_values in rows),
    }
