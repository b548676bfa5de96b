"""How good predictions were, once the truth is known: figures, and what chance does to them.

found = measure(BINARY, truth, scores)
findings = performed(profile.quality, found, rules)
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.drift import metric_formulas
from falaj.drift.records import (
    MAX_SEGMENTS,
    TASK_BINARY,
    TASK_CLASSES,
    TASK_REGRESSION,
    DriftFinding,
    DriftRules,
    ModelQuality,
)

JUDGED_METRICS = {
    TASK_BINARY: ("accuracy", "auc", "f1"),
    TASK_CLASSES: ("accuracy", "f1"),
    TASK_REGRESSION: ("mae", "rmse"),
}
"""What can raise an alarm; everything else is told."""
MIN_ROWS = 30
"""Rows below which nothing is said of a metric or a group."""
_DRAW_COUNT, _MAX_POINTS, _MAX_CLASSES = 100, 128, 256


@dataclass(frozen=True, slots=True)
class MeasuredQuality:
    """Metrics of some rows, and how far each may be off by chance (standard error)."""

    task: str
    metrics: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0
    left_out: int = 0
    """Rows without truth or without an answer."""


def detect_task(truth: Any, answers: Any) -> str:
    """What is foretold, where nobody says it: texts, few whole numbers or truths are classes."""
    answer_values, truth_values = np.asarray(answers), np.asarray(truth)
    if answer_values.ndim == 2 and answer_values.shape[1] > 1:
        return TASK_BINARY if answer_values.shape[1] == 2 else TASK_CLASSES
    if truth_values.dtype.kind in "OSUb" or answer_values.dtype.kind in "OSU":
        return (
            TASK_BINARY if answer_values.dtype.kind == "f" and len(_list_distinct(truth_values)) <= 2 else TASK_CLASSES
        )
    truth_values = truth_values[np.isfinite(truth_values)] if truth_values.dtype.kind == "f" else truth_values
    is_integer = truth_values.dtype.kind in "iu" or bool((truth_values == np.rint(truth_values)).all())
    distinct_values = _list_distinct(truth_values[:100_000]) if is_integer else ()
    if answer_values.dtype.kind == "f" and is_integer and set(distinct_values) <= {0, 1}:
        return TASK_BINARY
    return (
        TASK_CLASSES
        if is_integer and answer_values.dtype.kind in "iub" and 1 < len(distinct_values) <= _MAX_CLASSES
        else TASK_REGRESSION
    )


def measure_quality(
    task: str, truth: Any, answers: Any, *, labels: Sequence[Any] = (), threshold: float = 0.5, seed: int = 0
) -> MeasuredQuality:
    """Metrics of these rows. Answers are scores for the second of two labels (binary), a score for each label or the
    label itself (classes), numbers (regression)."""
    truth, answer_values = np.asarray(truth), np.asarray(answers)
    if len(truth) != len(answer_values) or truth.ndim != 1:
        raise Invalid(f"{len(truth)} truths for {len(answer_values)} answers", "give one truth for each row")
    is_usable = _is_present(truth) & _is_present(answer_values)
    truth, answer_values, skipped_count = (
        truth[is_usable],
        answer_values[is_usable],
        int(len(is_usable) - is_usable.sum()),
    )
    if not len(truth):
        return MeasuredQuality(task, {}, {}, 0, skipped_count)
    if task == TASK_REGRESSION:
        metrics, errors = metric_formulas.score_regression(
            truth.astype(np.float64), answer_values.reshape(len(answer_values)).astype(np.float64)
        )
    elif task == TASK_BINARY:
        metrics, errors = measure_counts(
            *count_scores(get_positive_score(answer_values), is_positive(truth, labels)), threshold, seed
        )
    elif task == TASK_CLASSES:
        metrics, errors = _measure_classes(truth, answer_values, labels, seed)
    else:
        raise Invalid(f"{task[:40]!r} is no task", f"{TASK_BINARY}, {TASK_CLASSES} or {TASK_REGRESSION}")
    return MeasuredQuality(task, metrics, errors, len(truth), skipped_count)


def measure_by_segment(
    task: str, truth: Any, answers: Any, segments: Any, **options: Any
) -> dict[str, MeasuredQuality]:
    """The same for each value of a column; the rarest beyond a bound are left out."""
    truth, answer_values, column = np.asarray(truth), np.asarray(answers), to_texts(segments)
    names, counts = np.unique(column, return_counts=True)
    common_segments = names[np.argsort(-counts, kind="stable")][:MAX_SEGMENTS]
    return {
        str(name): measure_quality(task, truth[column == name], answer_values[column == name], **options)
        for name in common_segments
    }


def compare_performance(
    quality: ModelQuality, measured: MeasuredQuality, rules: DriftRules, segment: str = ""
) -> tuple[DriftFinding, ...]:
    """Real metrics against those of when the model was made. An alarm: worse than harmless, and that is no chance."""
    judged_metrics = [
        name for name in JUDGED_METRICS.get(measured.task, ()) if name in quality.metrics and name in measured.errors
    ]
    has_enough_rows = measured.rows >= MIN_ROWS
    # The figure of then was measured on a sample, too.
    error_factor = math.sqrt(1 + measured.rows / quality.rows) if quality.rows else 1.0
    findings = []
    for name, value in sorted(
        measured.metrics.items(), key=lambda metric: (metric[0] not in judged_metrics, metric[0])
    ):
        reference, error = quality.metrics.get(name, math.nan), measured.errors.get(name, 0.0) * error_factor
        p = (
            compute_chance_of_worse(name, value, reference, error, rules)
            if name in judged_metrics and has_enough_rows
            else 1.0
        )
        finding = DriftFinding(
            "performance",
            "",
            segment,
            name,
            value,
            reference if math.isfinite(reference) else 0.0,
            compute_metric_bound(name, reference, rules),
            p,
            measured.rows,
            p <= rules.alpha / max(1, len(judged_metrics)),
            _describe_metric(name, value, reference, error, measured.rows),
            {"error": error},
        )
        findings.append(finding)
    return tuple(findings)


def compute_chance_of_worse(name: str, value: float, reference: float, error: float, rules: DriftRules) -> float:
    """How likely chance alone makes it worse than the bound by so much."""
    if not math.isfinite(reference) or not math.isfinite(value):
        return 1.0
    gap = compute_metric_bound(name, reference, rules) - value
    gap = -gap if name in metric_formulas.LOWER_IS_BETTER else gap
    if not error:
        return 0.0 if gap > 0 else 1.0
    return math.erfc(gap / error / math.sqrt(2)) / 2


def compute_metric_bound(name: str, reference: float, rules: DriftRules) -> float:
    """Worse than this is worse than harmless."""
    if not math.isfinite(reference):
        return 0.0
    return reference + abs(reference) * rules.least_drop * (1 if name in metric_formulas.LOWER_IS_BETTER else -1)


def is_positive(truth: NDArray[Any], labels: Sequence[Any] = ()) -> NDArray[np.bool_]:
    """Whether each is the second of the two labels: by order where they are not named."""
    if len(labels) == 2:
        return np.asarray(truth == np.asarray(labels, truth.dtype)[1])
    if truth.dtype.kind == "b":
        return truth
    if truth.dtype.kind in "iuf":
        is_above_zero = truth > 0
        if ((truth != 0) & (truth != 1) & (truth != -1)).any():
            raise Invalid("the truth has more than two values", f"the task is {TASK_CLASSES}, or name the labels")
        return np.asarray(is_above_zero)
    distinct_values = _list_distinct(truth)
    if len(distinct_values) > 2:
        raise Invalid("the truth has more than two values", f"the task is {TASK_CLASSES}, or name the labels")
    if len(distinct_values) < 2:
        raise Invalid("the truth has one value only", "name both labels")
    return np.asarray(truth == distinct_values[1])


def get_positive_score(answers: NDArray[Any]) -> NDArray[np.float64]:
    """The score of the second label, whether the model gives one or both."""
    scores = answers[:, -1] if answers.ndim == 2 else answers
    return scores.astype(np.float64)


def count_scores(scores: NDArray[Any], positive: NDArray[np.bool_]) -> tuple[Any, Any, Any]:
    """Different scores, ascending, and how many positives and negatives had each."""
    order = np.argsort(scores)
    scores, positive = scores[order], positive[order]
    group_starts = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    positive_counts = np.add.reduceat(positive.astype(np.float64), group_starts)
    return scores[group_starts], positive_counts, np.diff(np.append(group_starts, len(scores))) - positive_counts


def measure_counts(
    points: Any, up: Any, down: Any, threshold: float = 0.5, seed: int = 0
) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of two classes, and their errors, from how many of each had which score."""
    metrics = metric_formulas.drop_undefined(metric_formulas.score_binary(points, up, down, threshold))
    # What chance does is drawn on few points, however many rows there are.
    points, up, down = join_points(points, up, down)
    random = np.random.default_rng(seed)
    drawn_counts = [
        np.maximum(counts + np.sqrt(counts) * random.standard_normal((_DRAW_COUNT, len(counts))), 0)
        for counts in (up, down)
    ]
    return metrics, compute_errors(
        metric_formulas.score_binary(points, drawn_counts[0], drawn_counts[1], threshold), metrics
    )


def join_points(points: Any, up: Any, down: Any, max_points: int = _MAX_POINTS) -> tuple[Any, Any, Any]:
    """The same with neighbours joined where there are more than `max_points`, each with as many rows as the others."""
    if len(points) <= max_points:
        return points, up, down
    rows = up + down
    rows_before = np.cumsum(rows) - rows
    group_starts = np.unique(np.searchsorted(rows_before, np.linspace(0, rows.sum(), max_points + 1)[:-1], "right") - 1)
    positive_counts, total_counts, means = (
        np.add.reduceat(values, group_starts) for values in (up, rows, points * rows)
    )
    return means / total_counts, positive_counts, total_counts - positive_counts


def to_texts(values: Any) -> NDArray[Any]:
    """A column as texts: whole numbers in floats as such, what is not there as nothing."""
    column = np.asarray(values)
    if column.dtype.kind == "f" and np.isfinite(column).all() and (column == np.rint(column)).all():
        column = column.astype(np.int64)
    if column.dtype.kind == "O":
        return np.array(
            ["" if value is None else value.decode() if isinstance(value, bytes) else str(value) for value in column]
        )
    return column.astype(str)


def _measure_classes(
    truth: Any, answers: Any, labels: Sequence[Any], seed: int
) -> tuple[dict[str, float], dict[str, float]]:
    truth, answers = (to_texts(values) if values.dtype.kind == "O" else values for values in (truth, answers))
    names = (
        np.asarray(labels) if len(labels) else _list_distinct(truth if answers.ndim == 2 else np.append(truth, answers))
    )
    if answers.ndim == 2 and not len(labels) and truth.dtype.kind in "iub":
        names = np.arange(answers.shape[1])
    if len(names) > _MAX_CLASSES or (answers.ndim == 2 and answers.shape[1] != len(names)):
        raise Invalid(f"{len(names)} labels for the answers", "name the labels in the order of the model's scores")
    true_classes, is_known = _find_positions(truth, names)
    chosen_classes = answers.argmax(1) if answers.ndim == 2 else _find_positions(answers, names)[0]
    size = len(names)
    # A truth that the model does not know of is one it gets wrong.
    confusion = (
        np.bincount((true_classes * size + chosen_classes)[is_known], minlength=size * size)
        .reshape(size, size)
        .astype(np.float64)
    )
    unknown_count = int((~is_known).sum())
    metrics = metric_formulas.drop_undefined(metric_formulas.score_classes(confusion))
    metrics["accuracy"] *= (len(truth) - unknown_count) / len(truth)
    if answers.ndim == 2 and answers.dtype.kind == "f" and not unknown_count:
        metrics |= _measure_class_scores(true_classes, answers.astype(np.float64))
    drawn = metric_formulas.score_classes(np.random.default_rng(seed).poisson(confusion, (_DRAW_COUNT, size, size)))
    return metrics, compute_errors(drawn, metrics)


def _measure_class_scores(true_classes: Any, scores: Any) -> dict[str, float]:
    """From all class scores: log loss, and how well each class is told from the rest, in the mean."""
    metrics = {}
    if (scores >= 0).all():  # Chances, and no logits.
        true_class_chances = scores[np.arange(len(true_classes)), true_classes] / np.maximum(scores.sum(1), 1e-300)
        metrics["log_loss"] = float(-np.log(np.clip(true_class_chances, 1e-15, 1)).mean())
    if scores.shape[1] <= 32 and len(np.unique(true_classes)) == scores.shape[1]:
        class_aucs = [
            metric_formulas.score_binary(*count_scores(scores[:, class_number], true_classes == class_number))["auc"]
            for class_number in range(scores.shape[1])
        ]
        metrics["auc"] = float(np.mean(class_aucs))
    return metrics


def _find_positions(values: Any, names: Any) -> tuple[Any, Any]:
    """The place of each value among the names, and whether it has one."""
    order = np.argsort(names)
    positions = np.minimum(np.searchsorted(names[order], values), len(names) - 1)
    return order[positions], names[order][positions] == values


def compute_errors(drawn: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    """Standard deviations of what was drawn, for those metrics that say something in every draw."""
    measured_names = [name for name in names if name in drawn]
    drawn_values = np.stack([drawn[name] for name in measured_names]) if measured_names else np.zeros((0, 0))
    spread = drawn_values.std(1) if drawn_values.size else [np.nan] * len(measured_names)
    return {
        name: float(deviation) for name, deviation in zip(measured_names, spread, strict=True) if np.isfinite(deviation)
    }


def _is_present(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind == "f":
        is_finite: NDArray[np.bool_] = np.isfinite(values)
        return is_finite if values.ndim == 1 else np.asarray(is_finite.all(1))
    if values.dtype.kind == "O":
        return np.array([value is not None and value == value for value in values], bool)  # NaN is not itself
    return np.ones(len(values), bool)


def _list_distinct(values: Any) -> NDArray[Any]:
    return np.unique(values.astype(str) if values.dtype.kind == "O" else values)


def _describe_metric(name: str, value: float, reference: float, error: float, rows: int) -> str:
    metric_name = name.replace("_", " ")
    error_text = f" ± {1.96 * error:.2g}" if error else ""
    reference_text = f", {reference:.4g} when it was made" if math.isfinite(reference) else ""
    return f"{metric_name} {value:.4g}{error_text} on {rows:,} rows{reference_text}"
