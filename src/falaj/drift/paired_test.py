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

VERDICT_BETTER, VERDICT_FINE, VERDICT_WORSE, VERDICT_WAIT = "better", "fine", "worse", "wait"
HALF_STEPS = 500
"""Differences are kept to 1/500, rounded against the claim that is tried; -1, 0 and 1 exactly."""
MIN_ROWS, MIN_SEGMENT_ROWS = 100, 50
DEFAULT_ALPHA = 0.02
"""So often, at most, an equal model is called better, over all looks together."""
_DIFFERENCES = np.arange(-HALF_STEPS, HALF_STEPS + 1) / HALF_STEPS
_BET_SHARES = np.geomspace(0.02, 0.75, 10)
"""Shares that are bet: one of them is near enough to the best one for any difference worth finding."""
_BISECTION_STEPS = 30
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class PairedResult:
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
        loss_text = f"loss {self.challenger:.4f} against {self.champion:.4f} on {self.rows} rows"
        return f"{loss_text}, better by {self.low:+.4f} to {self.high:+.4f}: {self.verdict}"


@dataclass(frozen=True, slots=True)
class PairedVerdict:
    """What follows: better or fine may be promoted; worse and wait may not."""

    verdict: str
    whole: PairedResult
    segments: Mapping[str, PairedResult] = field(default_factory=dict)
    why: str = ""

    @property
    def passes(self) -> bool:
        """Whether the challenger may take the champion's place."""
        return self.verdict in (VERDICT_BETTER, VERDICT_FINE)


class PairedCounts:
    """How often which difference came. Bounded, and adding up in any order."""

    __slots__ = ("challenger", "champion", "floor", "roof", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.champion = self.challenger = 0.0
        self.floor, self.roof = np.zeros(2 * HALF_STEPS + 1, np.int64), np.zeros(2 * HALF_STEPS + 1, np.int64)

    def add(self, champion: Array, challenger: Array) -> "PairedCounts":
        """Losses of both on the same rows, each between 0 and 1. Where either has none (NaN) the row is left out."""
        champion_losses, challenger_losses = (
            np.asarray(champion, np.float64).ravel(),
            np.asarray(challenger, np.float64).ravel(),
        )
        if champion_losses.shape != challenger_losses.shape:
            raise Invalid(
                f"{champion_losses.size} losses against {challenger_losses.size}",
                "both models must answer the same rows",
            )
        is_known = ~(np.isnan(champion_losses) | np.isnan(challenger_losses))
        champion_losses, challenger_losses = (
            np.clip(champion_losses[is_known], 0.0, 1.0),
            np.clip(challenger_losses[is_known], 0.0, 1.0),
        )
        scaled = (champion_losses - challenger_losses) * HALF_STEPS
        nearest = np.rint(scaled)
        is_exact = np.abs(scaled - nearest) < 1e-7
        low, high = (
            np.where(is_exact, nearest, round_to(scaled)).astype(np.int64) + HALF_STEPS
            for round_to in (np.floor, np.ceil)
        )
        self.floor += np.bincount(low, minlength=2 * HALF_STEPS + 1)
        self.roof += np.bincount(high, minlength=2 * HALF_STEPS + 1)
        self.rows += int(is_known.sum())
        self.champion += float(champion_losses.sum())
        self.challenger += float(challenger_losses.sum())
        return self

    def merged(self, other: "PairedCounts") -> "PairedCounts":
        """Both together."""
        merged = PairedCounts()
        for part in (self, other):
            merged.rows += part.rows
            merged.champion += part.champion
            merged.challenger += part.challenger
            merged.floor += part.floor
            merged.roof += part.roof
        return merged

    def better(self, than: float = 0.0) -> float:
        """The logarithm of the evidence that the mean difference exceeds `than`."""
        return _log_mean_capital(self.floor, _DIFFERENCES - than, 1.0 + than)

    def worse(self, than: float = 0.0) -> float:
        """The logarithm of the evidence that the mean difference is below `than`."""
        return _log_mean_capital(self.roof, than - _DIFFERENCES, 1.0 - than)

    def interval(self, alpha: float = DEFAULT_ALPHA) -> tuple[float, float]:
        """What the mean difference may be: the values that are not refuted."""
        if not self.rows:
            return -1.0, 1.0
        bound, middle = np.log(2 / alpha), (self.champion - self.challenger) / self.rows
        low = _find_turning_point(-1.0, middle, lambda claim: self.better(claim) >= bound)
        high = -_find_turning_point(-1.0, -middle, lambda claim: self.worse(-claim) >= bound)
        return low, high

    def read(self, margin: float = 0.0, alpha: float = DEFAULT_ALPHA, min_rows: int = MIN_ROWS) -> PairedResult:
        """Better, fine (worse by the margin at most), worse (by more than that), or wait."""
        p_better, p_fine, p_worse = (
            float(np.exp(-max(0.0, log_evidence)))
            for log_evidence in (self.better(), self.better(-margin), self.worse(-margin))
        )
        verdict = VERDICT_WAIT
        if self.rows >= min_rows:
            log_evidence = (
                (VERDICT_BETTER, p_better),
                (VERDICT_FINE, p_fine if margin else 1.0),
                (VERDICT_WORSE, p_worse),
            )
            verdict = next((verdict_name for verdict_name, p in log_evidence if p <= alpha), VERDICT_WAIT)
        rows, (low, high) = max(self.rows, 1), self.interval(alpha)
        means = self.champion / rows, self.challenger / rows
        return PairedResult(self.rows, *means, low, high, p_better, p_fine, p_worse, verdict)


def judge_challenger(
    champion: Array,
    challenger: Array,
    truth: Array,
    *,
    task: str = "",
    segments: Array | None = None,
    margin: float = 0.01,
    alpha: float = DEFAULT_ALPHA,
) -> PairedVerdict:
    """May the challenger take the champion's place, by their predictions on rows whose truth is known?

    It must be shown to be better, or worse by no more than `margin` of the loss (0 to 1), over all rows, and must not
    be shown to be worse in any segment. Predictions are classes, a score of the second class, a score for each class
    (a row each), or numbers (regression: absolute errors, as a share of what the champion's wildest twentieth begins
    at). Call it as often as you like with more rows.
    """
    row_losses = compute_losses(champion, challenger, truth, task)
    overall = PairedCounts().add(*row_losses).read(margin, alpha)
    parts: dict[str, PairedResult] = {}
    if segments is not None:
        names, segment_numbers = np.unique(np.asarray(segments).astype(str), return_inverse=True)
        for number, name in enumerate(names):
            is_segment = segment_numbers.ravel() == number
            pairs = PairedCounts().add(row_losses[0][is_segment], row_losses[1][is_segment])
            parts[str(name)] = pairs.read(margin, alpha / len(names), MIN_SEGMENT_ROWS)
    worse_segments = {
        name: segment_result for name, segment_result in parts.items() if segment_result.verdict == VERDICT_WORSE
    }
    verdict = VERDICT_WORSE if worse_segments and overall.verdict in (VERDICT_BETTER, VERDICT_FINE) else overall.verdict
    reasons = [
        f"all rows: {overall.said()}",
        *(f"segment {name}: {segment_result.said()}" for name, segment_result in sorted(worse_segments.items())[:5]),
    ]
    return PairedVerdict(verdict, overall, parts, "; ".join(reasons))


def compute_losses(champion: Array, challenger: Array, truth: Array, task: str = "") -> tuple[Array, Array]:
    """What each row cost either model, between 0 and 1; NaN where the truth is not known. A NaN answer costs 1."""
    truth_values = np.asarray(truth)
    answers = [np.asarray(model_answers) for model_answers in (champion, challenger)]
    if not answers[0].shape[:1] == answers[1].shape[:1] == truth_values.shape[:1]:
        raise Invalid(
            f"{len(answers[0])}, {len(answers[1])} and {len(truth_values)} rows",
            "both models must answer the same rows",
        )
    is_missing = (
        np.isnan(truth_values.astype(np.float64))
        if truth_values.dtype.kind == "f"
        else np.zeros(len(truth_values), bool)
    )
    if task == "regression":
        absolute_errors = [
            np.abs(model_answers.astype(np.float64).reshape(len(truth_values)) - truth_values)
            for model_answers in answers
        ]
        usual_errors = absolute_errors[0][np.isfinite(absolute_errors[0]) & ~is_missing]
        span = float(np.quantile(usual_errors, 0.95)) if usual_errors.size else 0.0
        costs = [
            np.where(np.isfinite(model_answers), np.clip(model_answers / (2 * span or 1.0), 0.0, 1.0), 1.0)
            for model_answers in absolute_errors
        ]
    else:
        costs = [
            (to_classes(model_answers) != truth_values.astype(to_classes(model_answers).dtype)).astype(np.float64)
            for model_answers in answers
        ]
    return np.where(is_missing, np.nan, costs[0]), np.where(is_missing, np.nan, costs[1])


def to_classes(answers: Array) -> Array:
    """The class that answers name: themselves, from half on the second one, or that of the highest score."""
    if answers.dtype.kind in "OSU":
        return answers.astype(str).reshape(len(answers), -1)[:, 0]
    rows = answers.astype(np.float64).reshape(len(answers), -1)
    is_broken = np.isnan(rows).any(axis=1)
    if rows.shape[1] > 1:
        class_numbers = np.nan_to_num(rows).argmax(axis=1).astype(np.float64)
    else:
        single_scores = rows[:, 0]
        scores = single_scores[~is_broken]
        # Scores between 0 and 1 that are not all whole are chances; anything else is the class itself.
        are_chances = bool(((scores >= 0) & (scores <= 1)).all() and (scores != np.rint(scores)).any())
        class_numbers = (single_scores >= 0.5).astype(np.float64) if are_chances else single_scores
    return np.where(is_broken, np.nan, class_numbers)


def _log_mean_capital(counts: Array, gains: Array, max_loss: float) -> float:
    """The logarithm of the mean capital. `gains` by difference; none is below -most, so that no bet loses all."""
    if max_loss <= 0:
        return 0.0
    shares = _BET_SHARES / max_loss
    capital = np.log1p(np.outer(shares, gains)) @ counts
    largest = float(capital.max())
    return largest + float(np.log(np.exp(capital - largest).mean()))


def _find_turning_point(low: float, high: float, is_refuted: Any) -> float:
    """Where a claim about the mean stops being refuted."""
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
