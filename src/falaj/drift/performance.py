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
from falaj.drift import scoring
from falaj.drift.records import BINARY, CLASSES, MOST_SEGMENTS, REGRESSION, Finding, Quality, Rules

JUDGED = {BINARY: ("accuracy", "auc", "f1"), CLASSES: ("accuracy", "f1"), REGRESSION: ("mae", "rmse")}
"""What can raise an alarm; everything else is told."""
FEWEST = 30
"""Rows below which nothing is said of a metric or a group."""
_DRAWS, _POINTS, _MOST_CLASSES = 100, 128, 256


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics of some rows, and how far each may be off by chance (standard error)."""

    task: str
    metrics: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0
    left_out: int = 0
    """Rows without truth or without an answer."""


def task_of(truth: Any, answers: Any) -> str:
    """What is foretold, where nobody says it: texts, few whole numbers or truths are classes."""
    said, known = np.asarray(answers), np.asarray(truth)
    if said.ndim == 2 and said.shape[1] > 1:
        return BINARY if said.shape[1] == 2 else CLASSES
    if known.dtype.kind in "OSUb" or said.dtype.kind in "OSU":
        return BINARY if said.dtype.kind == "f" and len(_values(known)) <= 2 else CLASSES
    known = known[np.isfinite(known)] if known.dtype.kind == "f" else known
    whole = known.dtype.kind in "iu" or bool((known == np.rint(known)).all())
    few = _values(known[:100_000]) if whole else ()
    if said.dtype.kind == "f" and whole and set(few) <= {0, 1}:
        return BINARY
    return CLASSES if whole and said.dtype.kind in "iub" and 1 < len(few) <= _MOST_CLASSES else REGRESSION


def measure(
    task: str, truth: Any, answers: Any, *, labels: Sequence[Any] = (), threshold: float = 0.5, seed: int = 0
) -> Measured:
    """Metrics of these rows. Answers are scores for the second of two labels (binary), a score for each label or the
    label itself (classes), numbers (regression)."""
    truth, said = np.asarray(truth), np.asarray(answers)
    if len(truth) != len(said) or truth.ndim != 1:
        raise Invalid(f"{len(truth)} truths for {len(said)} answers", "give one truth for each row")
    kept = _there(truth) & _there(said)
    truth, said, lost = truth[kept], said[kept], int(len(kept) - kept.sum())
    if not len(truth):
        return Measured(task, {}, {}, 0, lost)
    if task == REGRESSION:
        metrics, errors = scoring.regression(truth.astype(np.float64), said.reshape(len(said)).astype(np.float64))
    elif task == BINARY:
        metrics, errors = measure_counts(*counted(one_score(said), is_positive(truth, labels)), threshold, seed)
    elif task == CLASSES:
        metrics, errors = _classes(truth, said, labels, seed)
    else:
        raise Invalid(f"{task[:40]!r} is no task", f"{BINARY}, {CLASSES} or {REGRESSION}")
    return Measured(task, metrics, errors, len(truth), lost)


def by_segment(task: str, truth: Any, answers: Any, segments: Any, **more: Any) -> dict[str, Measured]:
    """The same for each value of a column; the rarest beyond a bound are left out."""
    truth, said, column = np.asarray(truth), np.asarray(answers), texts(segments)
    names, counts = np.unique(column, return_counts=True)
    common = names[np.argsort(-counts, kind="stable")][:MOST_SEGMENTS]
    return {str(name): measure(task, truth[column == name], said[column == name], **more) for name in common}


def performed(quality: Quality, found: Measured, rules: Rules, segment: str = "") -> tuple[Finding, ...]:
    """Real metrics against those of when the model was made. An alarm: worse than harmless, and that is no chance."""
    judged = [name for name in JUDGED.get(found.task, ()) if name in quality.metrics and name in found.errors]
    enough = found.rows >= FEWEST
    # The figure of then was measured on a sample, too.
    wider = math.sqrt(1 + found.rows / quality.rows) if quality.rows else 1.0
    made = []
    for name, value in sorted(found.metrics.items(), key=lambda one: (one[0] not in judged, one[0])):
        then, error = quality.metrics.get(name, math.nan), found.errors.get(name, 0.0) * wider
        p = worse_by_chance(name, value, then, error, rules) if name in judged and enough else 1.0
        finding = Finding(
            "performance", "", segment, name, value, then if math.isfinite(then) else 0.0,
            bound_of(name, then, rules), p, found.rows, p <= rules.alpha / max(1, len(judged)),
            _said(name, value, then, error, found.rows), {"error": error},
        )  # fmt: skip
        made.append(finding)
    return tuple(made)


def worse_by_chance(name: str, value: float, then: float, error: float, rules: Rules) -> float:
    """How likely chance alone makes it worse than the bound by so much."""
    if not math.isfinite(then) or not math.isfinite(value):
        return 1.0
    gap = bound_of(name, then, rules) - value
    gap = -gap if name in scoring.LOWER else gap
    if not error:
        return 0.0 if gap > 0 else 1.0
    return math.erfc(gap / error / math.sqrt(2)) / 2


def bound_of(name: str, then: float, rules: Rules) -> float:
    """Worse than this is worse than harmless."""
    if not math.isfinite(then):
        return 0.0
    return then + abs(then) * rules.least_drop * (1 if name in scoring.LOWER else -1)


def is_positive(truth: NDArray[Any], labels: Sequence[Any] = ()) -> NDArray[np.bool_]:
    """Whether each is the second of the two labels: by order where they are not named."""
    if len(labels) == 2:
        return np.asarray(truth == np.asarray(labels, truth.dtype)[1])
    if truth.dtype.kind == "b":
        return truth
    if truth.dtype.kind in "iuf":
        found = truth > 0
        if ((truth != 0) & (truth != 1) & (truth != -1)).any():
            raise Invalid("the truth has more than two values", f"the task is {CLASSES}, or name the labels")
        return np.asarray(found)
    known = _values(truth)
    if len(known) > 2:
        raise Invalid("the truth has more than two values", f"the task is {CLASSES}, or name the labels")
    if len(known) < 2:
        raise Invalid("the truth has one value only", "name both labels")
    return np.asarray(truth == known[1])


def one_score(said: NDArray[Any]) -> NDArray[np.float64]:
    """The score of the second label, whether the model gives one or both."""
    flat = said[:, -1] if said.ndim == 2 else said
    return flat.astype(np.float64)


def counted(scores: NDArray[Any], positive: NDArray[np.bool_]) -> tuple[Any, Any, Any]:
    """Different scores, ascending, and how many positives and negatives had each."""
    order = np.argsort(scores)
    scores, positive = scores[order], positive[order]
    first = np.flatnonzero(np.concatenate([[True], scores[1:] != scores[:-1]]))
    up = np.add.reduceat(positive.astype(np.float64), first)
    return scores[first], up, np.diff(np.append(first, len(scores))) - up


def measure_counts(
    points: Any, up: Any, down: Any, threshold: float = 0.5, seed: int = 0
) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of two classes, and their errors, from how many of each had which score."""
    metrics = scoring.plain(scoring.binary(points, up, down, threshold))
    # What chance does is drawn on few points, however many rows there are.
    points, up, down = joined(points, up, down)
    chance = np.random.default_rng(seed)
    many = [np.maximum(one + np.sqrt(one) * chance.standard_normal((_DRAWS, len(one))), 0) for one in (up, down)]
    return metrics, errors_of(scoring.binary(points, many[0], many[1], threshold), metrics)


def joined(points: Any, up: Any, down: Any, most: int = _POINTS) -> tuple[Any, Any, Any]:
    """The same with neighbours joined where there are more than `most`, each with as many rows as the others."""
    if len(points) <= most:
        return points, up, down
    rows = up + down
    before = np.cumsum(rows) - rows
    first = np.unique(np.searchsorted(before, np.linspace(0, rows.sum(), most + 1)[:-1], "right") - 1)
    ups, whole, means = (np.add.reduceat(one, first) for one in (up, rows, points * rows))
    return means / whole, ups, whole - ups


def texts(values: Any) -> NDArray[Any]:
    """A column as texts: whole numbers in floats as such, what is not there as nothing."""
    column = np.asarray(values)
    if column.dtype.kind == "f" and np.isfinite(column).all() and (column == np.rint(column)).all():
        column = column.astype(np.int64)
    if column.dtype.kind == "O":
        return np.array(["" if one is None else one.decode() if isinstance(one, bytes) else str(one) for one in column])
    return column.astype(str)


def _classes(truth: Any, said: Any, labels: Sequence[Any], seed: int) -> tuple[dict[str, float], dict[str, float]]:
    truth, said = (texts(one) if one.dtype.kind == "O" else one for one in (truth, said))
    names = np.asarray(labels) if len(labels) else _values(truth if said.ndim == 2 else np.append(truth, said))
    if said.ndim == 2 and not len(labels) and truth.dtype.kind in "iub":
        names = np.arange(said.shape[1])
    if len(names) > _MOST_CLASSES or (said.ndim == 2 and said.shape[1] != len(names)):
        raise Invalid(f"{len(names)} labels for the answers", "name the labels in the order of the model's scores")
    true, known = _placed(truth, names)
    picks = said.argmax(1) if said.ndim == 2 else _placed(said, names)[0]
    size = len(names)
    # A truth that the model does not know of is one it gets wrong.
    table = np.bincount((true * size + picks)[known], minlength=size * size).reshape(size, size).astype(np.float64)
    wrong = int((~known).sum())
    metrics = scoring.plain(scoring.classes(table))
    metrics["accuracy"] *= (len(truth) - wrong) / len(truth)
    if said.ndim == 2 and said.dtype.kind == "f" and not wrong:
        metrics |= _class_scores(true, said.astype(np.float64))
    drawn = scoring.classes(np.random.default_rng(seed).poisson(table, (_DRAWS, size, size)))
    return metrics, errors_of(drawn, metrics)


def _class_scores(true: Any, scores: Any) -> dict[str, float]:
    """From all class scores: log loss, and how well each class is told from the rest, in the mean."""
    found = {}
    if (scores >= 0).all():  # Chances, and no logits.
        own = scores[np.arange(len(true)), true] / np.maximum(scores.sum(1), 1e-300)
        found["log_loss"] = float(-np.log(np.clip(own, 1e-15, 1)).mean())
    if scores.shape[1] <= 32 and len(np.unique(true)) == scores.shape[1]:
        each = [scoring.binary(*counted(scores[:, at], true == at))["auc"] for at in range(scores.shape[1])]
        found["auc"] = float(np.mean(each))
    return found


def _placed(values: Any, names: Any) -> tuple[Any, Any]:
    """The place of each value among the names, and whether it has one."""
    order = np.argsort(names)
    at = np.minimum(np.searchsorted(names[order], values), len(names) - 1)
    return order[at], names[order][at] == values


def errors_of(drawn: Mapping[str, Any], names: Iterable[str]) -> dict[str, float]:
    """Standard deviations of what was drawn, for those metrics that say something in every draw."""
    told = [name for name in names if name in drawn]
    many = np.stack([drawn[name] for name in told]) if told else np.zeros((0, 0))
    spread = many.std(1) if many.size else [np.nan] * len(told)
    return {name: float(one) for name, one in zip(told, spread, strict=True) if np.isfinite(one)}


def _there(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind == "f":
        found: NDArray[np.bool_] = np.isfinite(values)
        return found if values.ndim == 1 else np.asarray(found.all(1))
    if values.dtype.kind == "O":
        return np.array([one is not None and one == one for one in values], bool)  # NaN is not itself
    return np.ones(len(values), bool)


def _values(values: Any) -> NDArray[Any]:
    return np.unique(values.astype(str) if values.dtype.kind == "O" else values)


def _said(name: str, value: float, then: float, error: float, rows: int) -> str:
    word = name.replace("_", " ")
    near = f" ± {1.96 * error:.2g}" if error else ""
    before = f", {then:.4g} when it was made" if math.isfinite(then) else ""
    return f"{word} {value:.4g}{near} on {rows:,} rows{before}"
