"""How good predictions are while the truth is not known: what scores were worth on held-out rows, applied to the scores
of a window (confidence-based for classes; the error foretold from where the prediction lies, for numbers).

It sees what a change of inputs does to the metric. It does not see that the world behind the same inputs has changed:
it is called an estimate wherever it is told, and labels overrule it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.drift import scoring
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
    Axis,
    Finding,
    Profile,
    Quality,
    Rules,
)
from falaj.drift.tally import Tally

Numbers = NDArray[np.float64]
POINTS = 128
"""Scores at which chances are kept."""
CHUNK = 1000
_DRAWS = 100
_SURE = 0.5
_BELOW, _ABOVE = -2, -1
"""Where they stand in the counts of an axis."""


def calibrate(
    task: str, truth: Any, answers: Any, *, labels: Sequence[Any] = (), threshold: float = 0.5, seed: int = 0
) -> Quality:
    """What the model is worth on rows that it was not trained on: metrics, and how often scores came true."""
    found = measure(task, truth, answers, labels=labels, threshold=threshold, seed=seed)
    truth, said = np.asarray(truth), np.asarray(answers)
    if task == REGRESSION:
        curve = _residuals(truth.astype(np.float64), said.reshape(len(said)).astype(np.float64))
    elif task == BINARY:
        known = np.isfinite(one_score(said)) & (np.isfinite(truth) if truth.dtype.kind == "f" else True)
        curve = _risen(one_score(said)[known], is_positive(truth[known], labels)) if known.any() else {}
    else:
        curve = _class_curve(truth, said, labels)
    spread = {name: error * (found.rows / CHUNK) ** 0.5 for name, error in found.errors.items()}
    return Quality(task, found.metrics, threshold=threshold, rows=found.rows, spread=spread, **curve)


def estimate(profile: Profile, counts: Mapping[int, NDArray[Any]], *, seed: int = 0) -> Measured | None:
    """Metrics that these counts of the prediction axes (by place in the profile) let expect, each with its error from
    chance and from the calibration; nothing where the profile cannot tell."""
    quality, axes = profile.quality, score_axes(profile)
    if not quality.scores or not axes or any(at not in counts for at in axes):
        return None
    rows = int(sum(_inside(counts[at]).sum() for at in axes[:1]))
    if not rows:
        return None
    chance = np.random.default_rng(seed)
    parts = [_Part(profile.axes[at], counts[at], quality) for at in axes]
    made = {BINARY: _binary, CLASSES: _classes, REGRESSION: _regression}[quality.task](parts, quality, chance)
    return Measured(quality.task, made[0], made[1], rows, int(np.sum(counts[axes[0]])) - rows)


def foreseen(profile: Profile, tally: Tally, rules: Rules) -> tuple[Finding, ...]:
    """What is to be expected of a window against what was to be expected of the reference; whole, and by segment."""
    axes, judged = score_axes(profile), JUDGED.get(profile.quality.task, ())
    then = estimate(profile, {at: np.asarray(profile.counts[at]) for at in axes})
    if then is None:
        return ()
    found = [(name, one) for name, one in _windows(profile, tally, axes) if one and one.rows >= FEWEST]
    looks = max(1, len(found) * len(judged))
    made = []
    for segment, now in found:
        for name in judged:
            if name in now.metrics and name in then.metrics:
                was = _of_segment(profile, segment, axes, then).metrics.get(name, then.metrics[name])
                made.append(_finding(name, now, was, segment, rules, looks))
    return tuple(made)


def score_axes(profile: Profile) -> list[int]:
    """Where the scores are: one axis, or one for each class."""
    names = profile.tensors.get(profile.quality.output) or [axis.name for axis in profile.axes]
    found = [
        at for at, axis in enumerate(profile.axes)
        if axis.role == PREDICTION and axis.kind == NUMBER and axis.name in names
    ]  # fmt: skip
    return found[-1:] if profile.quality.task == BINARY else found if profile.quality.task == CLASSES else found[:1]


class _Part:
    """The counts of one axis with the score and the chance that belong to each bin; cut where a choice changes."""

    __slots__ = ("beside", "chances", "counts", "points")

    def __init__(self, axis: Axis, counts: NDArray[Any], quality: Quality) -> None:
        cuts = np.array([min((axis.low, *axis.edges[:1])), *axis.edges, max((axis.high, *axis.edges[-1:]))])
        points, rows = _middles(cuts, quality), np.asarray(counts)[: axis.bins]
        if quality.task != REGRESSION:
            points, rows = _parted(points, rows, cuts, quality.threshold if quality.task == BINARY else _SURE)
        ends = np.array([quality.scores[0], quality.scores[-1]])
        self.points = np.concatenate([ends[:1], points, ends[1:]])
        self.counts = np.concatenate([[counts[_BELOW]], rows, [counts[_ABOVE]]]).astype(np.int64)
        order = np.argsort(self.points, kind="stable")
        self.points, self.counts = self.points[order], self.counts[order]
        self.chances = np.interp(self.points, quality.scores, quality.chances)
        self.beside = np.interp(self.points, quality.scores, quality.beside) if quality.beside else self.chances


def _middles(cuts: Numbers, quality: Quality) -> Numbers:
    """The score that stands for each bin: the mean of those it was measured at, else its middle."""
    scores, weights = np.asarray(quality.scores), np.asarray(quality.weights or np.ones(len(quality.scores)), float)
    at = np.clip(np.searchsorted(cuts[1:-1], scores, side="left"), 0, len(cuts) - 2)
    rows = np.bincount(at, weights, len(cuts) - 1)
    means = np.bincount(at, weights * scores, len(cuts) - 1)
    return np.where(rows > 0, means / np.maximum(rows, 1e-300), (cuts[1:] + cuts[:-1]) / 2)


def _parted(points: Numbers, rows: NDArray[Any], cuts: Numbers, where: float) -> tuple[Numbers, NDArray[Any]]:
    """The bin that holds the threshold as two, each with its part of the rows."""
    at = int(np.searchsorted(cuts, where)) - 1
    if not 0 <= at < len(rows) or cuts[at + 1] <= where:
        return points, rows
    low, high = cuts[at], cuts[at + 1]
    under = round(float(rows[at]) * (where - low) / (high - low))
    halves = [(low + where) / 2, (where + high) / 2]
    return (
        np.concatenate([points[:at], halves, points[at + 1 :]]),
        np.concatenate([rows[:at], [under, rows[at] - under], rows[at + 1 :]]),
    )


def _inside(counts: NDArray[Any]) -> NDArray[Any]:
    """Without those that have no score."""
    return np.concatenate([counts[:-4], counts[_BELOW:]])


def _drawn(part: _Part, quality: Quality, chance: Any) -> Numbers:
    """Chances as they might be as well, for all that the held-out rows say: [draws, bins]."""
    level, block = np.unique(quality.chances, return_inverse=True)
    weights = np.bincount(block, quality.weights or np.full(len(block), quality.rows / len(block)))
    # Shrunk a little towards one half, so that what was always true is not sure for ever.
    level = (level * weights + 0.5) / (weights + 1)
    drawn = level + chance.standard_normal((_DRAWS, len(level))) * np.sqrt(level * (1 - level) / (weights + 2))
    return _between(part.points, quality.scores, drawn[:, block].clip(0, 1))


def _came(part: _Part, chances: Numbers, chance: Any) -> Numbers:
    """How many of each bin come true by such chances. Normal deviates: binomial ones cost ten times as much."""
    spread = np.sqrt(part.counts * chances * (1 - chances))
    drawn: Numbers = part.counts * chances + spread * chance.standard_normal(chances.shape)
    return np.clip(drawn, 0, part.counts, out=drawn)


def _between(points: Numbers, known: Sequence[float], values: Numbers) -> Numbers:
    """np.interp for many rows of values at once."""
    scores = np.asarray(known)
    if len(scores) == 1:
        return np.repeat(values, len(points), 1)
    at = np.clip(np.searchsorted(scores, points, side="right") - 1, 0, len(scores) - 2)
    share = np.clip((points - scores[at]) / np.maximum(scores[at + 1] - scores[at], 1e-300), 0, 1)
    return np.asarray(values[:, at] * (1 - share) + values[:, at + 1] * share)


def _binary(parts: Sequence[_Part], quality: Quality, chance: Any) -> tuple[dict[str, float], dict[str, float]]:
    part = parts[0]
    measured = partial(scoring.binary, part.points, threshold=quality.threshold)
    expected = measured(part.counts * part.chances, part.counts * (1 - part.chances))
    positives = _came(part, _drawn(part, quality, chance), chance)
    return _told(expected, measured(positives, part.counts - positives))


def _classes(parts: Sequence[_Part], quality: Quality, chance: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Of each class: how often it is rightly said, and true; accuracy, and means over classes."""
    rows, share = max(1, int(parts[0].counts.sum())), _shares_said(parts)
    hits = np.array([(one.counts * one.chances * part).sum() for one, part in zip(parts, share, strict=True)])
    true = np.array([(one.counts * one.beside).sum() for one in parts]).clip(1e-9)
    each = [_came(one, _drawn(one, quality, chance), chance) @ part for one, part in zip(parts, share, strict=True)]
    drawn = np.stack(each, 1)
    expected, many = {"accuracy": hits.sum() / rows}, {"accuracy": drawn.sum(1) / rows}
    if quality.beside:
        expected["recall"], many["recall"] = (hits / true).clip(0, 1).mean(), (drawn / true).mean(1)
    return _told(expected, many)


def _shares_said(parts: Sequence[_Part]) -> list[Numbers]:
    """How much more often than in the reference a class is said at each score. Above one half it is always said; how
    often below, depends on the other classes; but every row has one that is said, so all together are known."""
    plain = [np.ones(len(one.points)) for one in parts]
    if any(one.points[0] < 0 or one.points[-1] > 1 for one in parts):
        return plain
    said = [one.counts * np.clip(one.chances / np.maximum(one.beside, 1e-9), 0, 1) for one in parts]
    sure = sum(float(one.counts[one.points > _SURE].sum()) for one in parts)
    open_ones = sum(float(each[one.points <= _SURE].sum()) for one, each in zip(parts, said, strict=True))
    factor = max(0.0, float(parts[0].counts.sum()) - sure) / open_ones if open_ones else 1.0
    return [np.where(one.points > _SURE, 1.0, factor) for one in parts]


def _regression(parts: Sequence[_Part], quality: Quality, chance: Any) -> tuple[dict[str, float], dict[str, float]]:
    del chance
    part = parts[0]
    share, rows = part.counts / part.counts.sum(), part.counts.sum()
    mae, mse = float(share @ part.chances), float(share @ part.beside)
    known = np.asarray(quality.weights or np.full(len(quality.scores), quality.rows / len(quality.scores)), float)
    behind = np.interp(part.points, quality.scores, known)
    # From the window's rows, and from the held-out rows behind each figure, as far as the window leans on it.
    noise = np.maximum(part.beside - part.chances**2, 0) * (share / rows + share**2 / np.maximum(behind, 1))
    error = float(noise.sum()) ** 0.5
    wide = error * mse**0.5 / mae if mae else 0.0
    return {"mae": mae, "rmse": mse**0.5}, {"mae": error, "rmse": wide}


def _told(expected: Mapping[str, Any], drawn: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    metrics = scoring.plain(expected)
    return metrics, errors_of(drawn, metrics)


def _windows(profile: Profile, tally: Tally, axes: Sequence[int]) -> Iterator[tuple[str, Measured | None]]:
    yield "", estimate(profile, {at: tally.of(at) for at in axes})
    for number, name in enumerate(profile.segments):
        yield name, estimate(profile, {at: tally.of(at, number) for at in axes})


def _of_segment(profile: Profile, segment: str, axes: Sequence[int], whole: Measured) -> Measured:
    """What was to be expected of this segment then; of all, where too few rows tell."""
    if not segment or not profile.by_segment:
        return whole
    counts = profile.by_segment[profile.segments.index(segment)]
    found = estimate(profile, {at: np.asarray(counts[at]) for at in axes})
    return found if found and found.rows >= FEWEST else whole


def _finding(name: str, now: Measured, then: float, segment: str, rules: Rules, looks: int) -> Finding:
    value, error = now.metrics[name], now.errors.get(name, 0.0)
    p = worse_by_chance(name, value, then, error, rules)
    said = f"{name.replace('_', ' ')} is estimated at {value:.4g} ± {1.96 * error:.2g} without labels, {then:.4g} then"
    return Finding(
        "estimate", "", segment, name, value, then, bound_of(name, then, rules), p, now.rows, p <= rules.alpha / looks,
        said, {"error": error, **now.metrics},
    )  # fmt: skip


def _risen(scores: Numbers, true: NDArray[np.bool_]) -> dict[str, Any]:
    """How often scores came true, never falling as they rise (pooled neighbours, isotonic)."""
    points, up, down = joined(*counted(scores, true), POINTS)
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
    curve = _risen(flat[kept], hits.reshape(-1)[kept])
    return {**curve, "beside": _risen(flat[kept], true.reshape(-1)[kept])["chances"]}


def _residuals(truth: Numbers, said: Numbers) -> dict[str, Any]:
    """How far off predictions are, by where they lie."""
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
