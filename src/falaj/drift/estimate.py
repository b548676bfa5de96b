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

from falaj.drift import scoring
from falaj.drift.curves import SURE, Curve, Numbers, is_usable
from falaj.drift.performance import (
    FEWEST,
    JUDGED,
    Measured,
    bound_of,
    counted,
    errors_of,
    is_positive,
    joined,
    measure,
    measure_counts,
    one_score,
    texts,
    worse_by_chance,
)
from falaj.drift.records import (
    BINARY,
    CLASSES,
    MOST_SCORES,
    NUMBER,
    PREDICTION,
    REGRESSION,
    Finding,
    Profile,
    Quality,
    Rules,
)
from falaj.drift.tally import Tally

POINTS = 128
"""Scores at which chances are kept."""
CHUNK = 1000
Told = tuple[dict[str, float], dict[str, float]]
"""Metrics, and their errors."""


def calibrate(
    task: str, truth: Any, answers: Any, *, labels: Sequence[Any] = (), threshold: float = 0.5, seed: int = 0
) -> Quality:
    """What the model is worth on rows that it was not trained on: metrics, and how often scores came true."""
    truth, said = np.asarray(truth), np.asarray(answers)
    if task == BINARY:
        score = one_score(said)
        known = np.isfinite(score) & (np.isfinite(truth) if truth.dtype.kind == "f" else True)
        table = counted(score[known], is_positive(truth[known], labels)) if known.any() else None
        told = measure_counts(*table, threshold=threshold, seed=seed) if table else ({}, {})
        found, curve = Measured(task, *told, rows=int(known.sum())), _risen(*table) if table else {}
    else:
        found = measure(task, truth, said, labels=labels, seed=seed)
        numbers = task == REGRESSION
        curve = _residuals(truth, said) if numbers else _class_curve(truth, said, labels)
    spread = {name: error * (found.rows / CHUNK) ** 0.5 for name, error in found.errors.items()}
    return Quality(task, found.metrics, threshold=threshold, rows=found.rows, spread=spread, **curve)


class Foresight:
    """What the scores of one profile let expect, of any window."""

    def __init__(self, profile: Profile) -> None:
        self._profile, self._quality = profile, profile.quality
        self._axes = score_axes(profile) if is_usable(profile.quality) else []
        self._curves = [Curve(profile.axes[at], profile.quality) for at in self._axes]
        self._then: dict[str, Measured | None] = {}

    def estimate(self, counts: Mapping[int, NDArray[Any]]) -> Measured | None:
        """Metrics that these counts of the prediction axes (by place in the profile) let expect, each with its error
        from chance and from the calibration; nothing where the profile cannot tell."""
        if not self._axes or any(at not in counts for at in self._axes):
            return None
        laid = [curve.laid(np.asarray(counts[at])) for at, curve in zip(self._axes, self._curves, strict=True)]
        rows, came = round(laid[0].sum()), int(np.sum(counts[self._axes[0]]))
        if not rows:
            return None
        work = {BINARY: _binary, CLASSES: _classes, REGRESSION: _regression}[self._quality.task]
        return Measured(self._quality.task, *work(self._curves, laid, self._quality), rows, came - rows)

    def findings(self, tally: Tally, rules: Rules) -> tuple[Finding, ...]:
        """A window against the reference; whole, and by segment."""
        parts = [("", None), *((name, at) for at, name in enumerate(self._profile.segments))]
        windows = [(name, self.estimate({at: tally.of(at, part) for at in self._axes})) for name, part in parts]
        found = [(name, one, self._before(name)) for name, one in windows if one and one.rows >= FEWEST]
        judged = JUDGED.get(self._quality.task, ())
        looks = max(1, len(found) * len(judged))
        return tuple(
            _finding(name, now, then.metrics[name], segment, rules, looks)
            for segment, now, then in found for name in judged
            if then is not None and name in now.metrics and name in then.metrics
        )  # fmt: skip

    def _before(self, segment: str) -> Measured | None:
        """What was to be expected of the reference: of this segment, or of all where too few rows tell."""
        if segment not in self._then:
            profile = self._profile
            part = profile.by_segment[profile.segments.index(segment)] if segment and profile.by_segment else None
            found = self.estimate({at: np.asarray((part or profile.counts)[at]) for at in self._axes})
            enough = found is not None and (not segment or found.rows >= FEWEST)
            self._then[segment] = found if enough else self._before("") if segment else None
        return self._then[segment]


def estimate(profile: Profile, counts: Mapping[int, NDArray[Any]]) -> Measured | None:
    """Metrics that these counts of the prediction axes let expect; nothing where the profile cannot tell."""
    return Foresight(profile).estimate(counts)


def foreseen(profile: Profile, tally: Tally, rules: Rules) -> tuple[Finding, ...]:
    """What is to be expected of a window against what was to be expected of the reference."""
    return Foresight(profile).findings(tally, rules)


def score_axes(profile: Profile) -> list[int]:
    """Where the scores are: one axis, or one for each class."""
    names = profile.tensors.get(profile.quality.output) or [axis.name for axis in profile.axes]
    found = [
        at for at, axis in enumerate(profile.axes)
        if axis.role == PREDICTION and axis.kind == NUMBER and axis.name in names
    ]  # fmt: skip
    return found[-1:] if profile.quality.task == BINARY else found if profile.quality.task == CLASSES else found[:1]


def _binary(curves: Sequence[Curve], laid: Sequence[Numbers], quality: Quality) -> Told:
    curve, rows = curves[0], laid[0]
    measured = partial(scoring.binary, curve.points, threshold=quality.threshold)
    positives = curve.came(rows)
    return _told(measured(rows * curve.chances, rows * (1 - curve.chances)),
                 measured(positives, rows - positives, chances=False))  # fmt: skip


def _classes(curves: Sequence[Curve], laid: Sequence[Numbers], quality: Quality) -> Told:
    """Of each class: how often it is rightly said, and true; accuracy, and means over classes."""
    whole, share = max(1.0, float(laid[0].sum())), _shares_said(curves, laid)
    each = list(zip(curves, laid, share, strict=True))
    hits = np.array([(rows * curve.chances) @ part for curve, rows, part in each])
    true = np.array([rows @ curve.beside for curve, rows, _ in each]).clip(1e-9)
    drawn = np.stack([curve.came(rows) @ part for curve, rows, part in each], 1)
    expected, many = {"accuracy": hits.sum() / whole}, {"accuracy": drawn.sum(1) / whole}
    if quality.beside:
        expected["recall"], many["recall"] = (hits / true).clip(0, 1).mean(), (drawn / true).mean(1)
    return _told(expected, many)


def _shares_said(curves: Sequence[Curve], laid: Sequence[Numbers]) -> list[Numbers]:
    """How much more often than in the reference a class is said at each score. Above one half it is always said; how
    often below, depends on the other classes; but every row has one that is said, so all together are known."""
    if any(one.points[0] < 0 or one.points[-1] > 1 for one in curves):
        return [np.ones(len(one.points)) for one in curves]
    said = [rows * (one.chances / one.beside.clip(1e-9)).clip(0, 1) for one, rows in zip(curves, laid, strict=True)]
    sure = sum(float(rows[one.points > SURE].sum()) for one, rows in zip(curves, laid, strict=True))
    open_ones = sum(float(rows[one.points <= SURE].sum()) for one, rows in zip(curves, said, strict=True))
    factor = max(0.0, float(laid[0].sum()) - sure) / open_ones if open_ones else 1.0
    return [np.where(one.points > SURE, 1.0, factor) for one in curves]


def _regression(curves: Sequence[Curve], laid: Sequence[Numbers], quality: Quality) -> Told:
    del quality
    curve, rows = curves[0], laid[0].sum()
    share = laid[0] / rows
    mae, mse = float(share @ curve.chances), float(share @ curve.beside)
    # From the window's rows, and from the held-out rows behind each figure, as far as the window leans on it.
    noise = np.maximum(curve.beside - curve.chances**2, 0) * (share / rows + share**2 / np.maximum(curve.behind, 1))
    error = float(noise.sum()) ** 0.5
    return {"mae": mae, "rmse": mse**0.5}, {"mae": error, "rmse": error * mse**0.5 / mae if mae else 0.0}


def _told(expected: Mapping[str, Any], drawn: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    metrics = scoring.plain(expected)
    return metrics, errors_of(drawn, metrics)


def _finding(name: str, now: Measured, then: float, segment: str, rules: Rules, looks: int) -> Finding:
    value, error = now.metrics[name], now.errors.get(name, 0.0)
    p = worse_by_chance(name, value, then, error, rules)
    said = f"{name.replace('_', ' ')} is estimated at {value:.4g} ± {1.96 * error:.2g} without labels, {then:.4g} then"
    return Finding(
        "estimate", "", segment, name, value, then, bound_of(name, then, rules), p, now.rows, p <= rules.alpha / looks,
        said, {"error": error, **now.metrics},
    )  # fmt: skip


def _risen(points: Numbers, up: Numbers, down: Numbers) -> dict[str, Any]:
    """How often scores came true, never falling as they rise (pooled neighbours, isotonic)."""
    points, up, down = joined(points, up, down, POINTS)
    rows = up + down
    return {
        "scores": tuple(points.tolist()), "chances": tuple(_rising(up / rows, rows).tolist()),
        "weights": tuple(int(one) for one in rows),
    }  # fmt: skip


def _rising(values: Numbers, weights: Numbers) -> Numbers:
    """The nearest that never falls: neighbours that fall are joined to their mean."""
    blocks: list[list[float]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            last, before = blocks.pop(), blocks[-1]
            both = before[1] + last[1]
            before[:] = [(before[0] * before[1] + last[0] * last[1]) / both, both, before[2] + last[2]]
    return np.repeat([one[0] for one in blocks], [int(one[2]) for one in blocks])


def _class_curve(truth: NDArray[Any], said: NDArray[Any], labels: Sequence[Any]) -> dict[str, Any]:
    """From the scores of all classes: at such a score, how often that class was said and true, and how often true."""
    if said.ndim != 2 or said.dtype.kind != "f" or said.shape[1] > MOST_SCORES:
        return {}
    names = texts(labels) if len(labels) else np.arange(said.shape[1]).astype(str)
    true = texts(truth)[:, None] == names[None, :]
    hits = true & (said.argmax(1)[:, None] == np.arange(said.shape[1]))
    flat = said.reshape(-1).astype(np.float64)
    kept = np.isfinite(flat)
    curve, beside = (_risen(*counted(flat[kept], one.reshape(-1)[kept])) for one in (hits, true))
    return {**curve, "beside": beside["chances"]}


def _residuals(truth: NDArray[Any], said: NDArray[Any]) -> dict[str, Any]:
    """How far off predictions are, by where they lie."""
    truth, said = truth.astype(np.float64), said.reshape(len(said)).astype(np.float64)
    kept = np.isfinite(truth) & np.isfinite(said)
    order = np.argsort(said[kept])
    said, far = said[kept][order], np.abs(said - truth)[kept][order]
    bins = max(1, min(POINTS // 4, len(said) // FEWEST))
    first = np.unique(np.linspace(0, len(said), bins + 1).astype(np.int64)[:-1]) if len(said) else np.array([], int)
    if len(first):
        first = first[np.concatenate([[True], np.diff(said[first]) > 0])]
    if not len(first):
        return {}
    rows = np.diff(np.append(first, len(said)))
    middle, mean, square = (np.add.reduceat(one, first) / rows for one in (said, far, far**2))
    return {
        "scores": tuple(middle.tolist()), "chances": tuple(mean.tolist()), "beside": tuple(square.tolist()),
        "weights": tuple(int(one) for one in rows),
    }  # fmt: skip
