"""Champion against challenger on the same rows: an always-valid test on paired differences of loss.

One bets that the challenger is better by more than the margin: with a share s of the capital on each row, the capital
is multiplied by 1 + s * (difference + margin). Where the claim is false no such bet wins on average, and so the chance
that the mean capital over some fixed shares ever reaches 1/alpha is at most alpha (Ville), whatever the losses are, as
long as they lie between 0 and 1, and however often one looks. All that is kept of the rows is how often each difference
came: pairs of many replicas and days are added up in any order.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from falaj.core.data import dataclass
from falaj.core.errors import Invalid

BETTER, FINE, WORSE, WAIT = "better", "fine", "worse", "wait"
HALF = 500
"""Differences are kept to 1/500, rounded against the claim that is tried; -1, 0 and 1 exactly."""
LEAST, LEAST_SEGMENT = 100, 50
ALPHA = 0.02
"""So often, at most, an equal model is called better, over all looks together."""
_STEPS = np.arange(-HALF, HALF + 1) / HALF
_SHARES = np.geomspace(0.02, 0.75, 10)
"""Shares that are bet: one of them is near enough to the best one for any difference worth finding."""
_TURNS = 30
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """How two models compare over some rows. Positive differences say that the challenger loses less."""

    rows: int
    champion: float
    challenger: float
    """Mean losses."""
    low: float
    high: float
    """The mean difference lies between, with the confidence asked for, however often one looked before."""
    p_better: float
    p_fine: float
    p_worse: float
    """Always-valid p-values of: no better, worse by more than the margin, worse by the margin at most."""
    verdict: str

    def said(self) -> str:
        """In words."""
        lost = f"loss {self.challenger:.4f} against {self.champion:.4f} on {self.rows} rows"
        return f"{lost}, better by {self.low:+.4f} to {self.high:+.4f}: {self.verdict}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What follows: better or fine may be promoted; worse and wait may not."""

    verdict: str
    whole: Reading
    segments: Mapping[str, Reading] = field(default_factory=dict)
    why: str = ""

    @property
    def passes(self) -> bool:
        """Whether the challenger may take the champion's place."""
        return self.verdict in (BETTER, FINE)


class Pairs:
    """How often which difference came. Bounded, and adding up in any order."""

    __slots__ = ("challenger", "champion", "floor", "roof", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.champion = self.challenger = 0.0
        self.floor, self.roof = np.zeros(2 * HALF + 1, np.int64), np.zeros(2 * HALF + 1, np.int64)

    def add(self, champion: Array, challenger: Array) -> "Pairs":
        """Losses of both on the same rows, each between 0 and 1. Where either has none (NaN) the row is left out."""
        one, other = np.asarray(champion, np.float64).ravel(), np.asarray(challenger, np.float64).ravel()
        if one.shape != other.shape:
            raise Invalid(f"{one.size} losses against {other.size}", "both models must answer the same rows")
        known = ~(np.isnan(one) | np.isnan(other))
        one, other = np.clip(one[known], 0.0, 1.0), np.clip(other[known], 0.0, 1.0)
        scaled = (one - other) * HALF
        nearest = np.rint(scaled)
        exact = np.abs(scaled - nearest) < 1e-7
        low, high = (np.where(exact, nearest, cut(scaled)).astype(np.int64) + HALF for cut in (np.floor, np.ceil))
        self.floor += np.bincount(low, minlength=2 * HALF + 1)
        self.roof += np.bincount(high, minlength=2 * HALF + 1)
        self.rows += int(known.sum())
        self.champion += float(one.sum())
        self.challenger += float(other.sum())
        return self

    def merged(self, other: "Pairs") -> "Pairs":
        """Both together."""
        made = Pairs()
        for one in (self, other):
            made.rows += one.rows
            made.champion += one.champion
            made.challenger += one.challenger
            made.floor += one.floor
            made.roof += one.roof
        return made

    def better(self, than: float = 0.0) -> float:
        """The logarithm of the evidence that the mean difference exceeds `than`."""
        return _evidence(self.floor, _STEPS - than, 1.0 + than)

    def worse(self, than: float = 0.0) -> float:
        """The logarithm of the evidence that the mean difference is below `than`."""
        return _evidence(self.roof, than - _STEPS, 1.0 - than)

    def interval(self, alpha: float = ALPHA) -> tuple[float, float]:
        """What the mean difference may be: the values that are not refuted."""
        if not self.rows:
            return -1.0, 1.0
        bound, middle = np.log(2 / alpha), (self.champion - self.challenger) / self.rows
        low = _turning(-1.0, middle, lambda at: self.better(at) >= bound)
        high = -_turning(-1.0, -middle, lambda at: self.worse(-at) >= bound)
        return low, high

    def read(self, margin: float = 0.0, alpha: float = ALPHA, least: int = LEAST) -> Reading:
        """Better, fine (worse by the margin at most), worse (by more than that), or wait."""
        p_better, p_fine, p_worse = (
            float(np.exp(-max(0.0, found))) for found in (self.better(), self.better(-margin), self.worse(-margin))
        )
        verdict = WAIT
        if self.rows >= least:
            found = ((BETTER, p_better), (FINE, p_fine if margin else 1.0), (WORSE, p_worse))
            verdict = next((word for word, p in found if p <= alpha), WAIT)
        rows, (low, high) = max(self.rows, 1), self.interval(alpha)
        means = self.champion / rows, self.challenger / rows
        return Reading(self.rows, *means, low, high, p_better, p_fine, p_worse, verdict)


def judge(
    champion: Array,
    challenger: Array,
    truth: Array,
    *,
    task: str = "",
    segments: Array | None = None,
    margin: float = 0.01,
    alpha: float = ALPHA,
) -> Judgement:
    """May the challenger take the champion's place, by their predictions on rows whose truth is known?

    It must be shown to be better, or worse by no more than `margin` of the loss (0 to 1), over all rows, and must not
    be shown to be worse in any segment. Predictions are classes, a score of the second class, a score for each class
    (a row each), or numbers (regression: absolute errors, as a share of what the champion's wildest twentieth begins
    at). Call it as often as you like with more rows.
    """
    lost = losses(champion, challenger, truth, task)
    whole = Pairs().add(*lost).read(margin, alpha)
    parts: dict[str, Reading] = {}
    if segments is not None:
        names, which = np.unique(np.asarray(segments).astype(str), return_inverse=True)
        for number, name in enumerate(names):
            some = which.ravel() == number
            pairs = Pairs().add(lost[0][some], lost[1][some])
            parts[str(name)] = pairs.read(margin, alpha / len(names), LEAST_SEGMENT)
    bad = {name: one for name, one in parts.items() if one.verdict == WORSE}
    verdict = WORSE if bad and whole.verdict in (BETTER, FINE) else whole.verdict
    told = [f"all rows: {whole.said()}", *(f"segment {name}: {one.said()}" for name, one in sorted(bad.items())[:5])]
    return Judgement(verdict, whole, parts, "; ".join(told))


def losses(champion: Array, challenger: Array, truth: Array, task: str = "") -> tuple[Array, Array]:
    """What each row cost either model, between 0 and 1; NaN where the truth is not known. A NaN answer costs 1."""
    true = np.asarray(truth)
    given = [np.asarray(one) for one in (champion, challenger)]
    if not given[0].shape[:1] == given[1].shape[:1] == true.shape[:1]:
        raise Invalid(f"{len(given[0])}, {len(given[1])} and {len(true)} rows", "both models must answer the same rows")
    missing = np.isnan(true.astype(np.float64)) if true.dtype.kind == "f" else np.zeros(len(true), bool)
    if task == "regression":
        found = [np.abs(one.astype(np.float64).reshape(len(true)) - true) for one in given]
        usual = found[0][np.isfinite(found[0]) & ~missing]
        span = float(np.quantile(usual, 0.95)) if usual.size else 0.0
        costs = [np.where(np.isfinite(one), np.clip(one / (2 * span or 1.0), 0.0, 1.0), 1.0) for one in found]
    else:
        costs = [(classes_of(one) != true.astype(classes_of(one).dtype)).astype(np.float64) for one in given]
    return np.where(missing, np.nan, costs[0]), np.where(missing, np.nan, costs[1])


def classes_of(answers: Array) -> Array:
    """The class that answers name: themselves, from half on the second one, or that of the highest score."""
    if answers.dtype.kind in "OSU":
        return answers.astype(str).reshape(len(answers), -1)[:, 0]
    rows = answers.astype(np.float64).reshape(len(answers), -1)
    broken = np.isnan(rows).any(axis=1)
    if rows.shape[1] > 1:
        chosen = np.nan_to_num(rows).argmax(axis=1).astype(np.float64)
    else:
        flat = rows[:, 0]
        scores = flat[~broken]
        # Scores between 0 and 1 that are not all whole are chances; anything else is the class itself.
        chance = bool(((scores >= 0) & (scores <= 1)).all() and (scores != np.rint(scores)).any())
        chosen = (flat >= 0.5).astype(np.float64) if chance else flat
    return np.where(broken, np.nan, chosen)


def _evidence(counts: Array, gains: Array, most: float) -> float:
    """The logarithm of the mean capital. `gains` by difference; none is below -most, so that no bet loses all."""
    if most <= 0:
        return 0.0
    shares = _SHARES / most
    capital = np.log1p(np.outer(shares, gains)) @ counts
    top = float(capital.max())
    return top + float(np.log(np.exp(capital - top).mean()))


def _turning(low: float, high: float, refuted: Any) -> float:
    """Where a claim about the mean stops being refuted."""
    for _ in range(_TURNS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
