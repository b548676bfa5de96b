"""The judge of roll-outs: is an arm worse than the base, or surely not? Pure, and right however often it is asked.

Everything judged is a rate of bad outcomes between 0 and 1: errors, slow answers, one minus the quality. For two arms
with n requests and k bad ones each, evidence against "the arm's rate exceeds the base's by at most d" is

    E(d) = (likelihood averaged over a prior of both rates) / (largest likelihood that the claim allows)

Under the claim the average over the true likelihood is a martingale, and the denominator is at least the true one, so
the chance that E(d) ever reaches 1/alpha is at most alpha (Ville): looking after each request costs nothing, and 1/E is
a p-value that is valid at any moment. It holds for bounded means as for yes and no: k may be a sum of values in [0, 1].
"""

from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, lgamma, log, log1p
from typing import NamedTuple

from falaj.core.data import dataclass

VERDICT_WAIT, VERDICT_WORSE, VERDICT_FINE = "wait", "worse", "fine"
_RATE_PRIORS = ((0.5, 0.5), (0.5, 50.0))
"""Any rate, and small ones: most rates here are small, and most arms like their base. Priors that say so, too, decide
with a quarter fewer requests."""
_SEARCH_STEPS = 50


class OutcomeTally(NamedTuple):
    """What one arm did: how many outcomes, and how many of them bad (or the sum of how bad each was, 0 to 1)."""

    n: float
    bad: float

    @property
    def rate(self) -> float:
        """The share of bad ones."""
        return self.bad / self.n if self.n else 0.0


@dataclass(frozen=True, slots=True)
class JudgedMetric:
    """One thing that is watched."""

    name: str
    margin: float
    """How much worse than the base is still good enough: 0.01 is one of a hundred requests."""
    proves: bool = True
    """Whether an arm must be shown to be good enough here before it is promoted; all can show it worse."""
    least: int = 200
    """Outcomes that each arm must have before it is called fine, and the base before anything is said."""


@dataclass(frozen=True, slots=True)
class MetricReading:
    """How an arm stands against the base in one metric."""

    metric: str
    arm: str
    base: OutcomeTally
    tally: OutcomeTally
    low: float
    high: float
    """The rates differ by this much, with the confidence asked for, at every moment together."""
    p_worse: float
    """Always-valid p-value of "not worse beyond the margin": when it is small, the arm is worse."""
    p_fine: float
    """Always-valid p-value of "worse beyond the margin": when it is small, the arm is good enough."""
    verdict: str

    def said(self) -> str:
        """In words."""
        base_text, rate_text = (
            f"{self.base.rate:.3%} of {self.base.n:.0f}",
            f"{self.tally.rate:.3%} of {self.tally.n:.0f}",
        )
        interval_text = f"between {self.low:+.3%} and {self.high:+.3%}"
        p_text = f"p {self.p_worse:.2g}" if self.verdict == VERDICT_WORSE else f"p {self.p_fine:.2g}"
        return f"{self.metric}: {rate_text} against {base_text}, {interval_text}, {p_text}: {self.verdict}"


@dataclass(frozen=True, slots=True)
class ArmVerdict:
    """What follows for one arm."""

    arm: str
    verdict: str
    readings: tuple[MetricReading, ...]

    @property
    def why(self) -> str:
        """The readings that decided, in words."""
        deciding = [
            reading for reading in self.readings if self.verdict != VERDICT_WORSE or reading.verdict == VERDICT_WORSE
        ]
        return f"{self.arm}: " + "; ".join(reading.said() for reading in deciding)


def judge_arm(
    arm: str,
    metrics: Sequence[JudgedMetric],
    base_tallies: Mapping[str, OutcomeTally],
    arm_tallies: Mapping[str, OutcomeTally],
    *,
    alpha: float = 0.05,
    looks: int = 1,
) -> ArmVerdict:
    """One arm against the base. Worse in any metric is worse; good enough in all that must show it is fine.

    A good arm is called worse with a chance of at most alpha over all metrics and `looks` (steps and arms that are
    judged each by itself), and a bad one fine with a chance of at most alpha, whenever and however often one asks.
    """
    worse_at = alpha / (len(metrics) * looks or 1)
    readings = tuple(
        read_metric(
            metric,
            arm,
            base_tallies.get(metric.name, OutcomeTally(0, 0)),
            arm_tallies.get(metric.name, OutcomeTally(0, 0)),
            (worse_at, alpha),
        )
        for metric in metrics
    )
    needed = [reading.verdict for reading, metric in zip(readings, metrics, strict=True) if metric.proves]
    if any(reading.verdict == VERDICT_WORSE for reading in readings):
        return ArmVerdict(arm, VERDICT_WORSE, readings)
    return ArmVerdict(arm, VERDICT_FINE if needed and set(needed) == {VERDICT_FINE} else VERDICT_WAIT, readings)


def read_metric(
    metric: JudgedMetric, arm: str, base: OutcomeTally, tally: OutcomeTally, alphas: tuple[float, float]
) -> MetricReading:
    """One metric of one arm. `alphas`: the chances of calling a good one worse, and a bad one fine."""
    p_worse = exp(-max(0.0, log_evidence(base, tally, metric.margin)))
    p_fine = exp(-max(0.0, log_evidence(tally, base, -metric.margin)))
    low, high = difference_interval(base, tally, alphas[0])
    verdict = VERDICT_WAIT
    if base.n >= metric.least and p_worse <= alphas[0]:
        verdict = VERDICT_WORSE  # the evidence is good however few they were, and each one more is a caller's
    elif min(base.n, tally.n) >= metric.least and p_fine <= alphas[1]:
        verdict = VERDICT_FINE
    return MetricReading(metric.name, arm, base, tally, low, high, p_worse, p_fine, verdict)


def log_evidence(base: OutcomeTally, tally: OutcomeTally, margin: float) -> float:
    """The logarithm of E against "the rate of `tally` exceeds that of `base` by `margin` at most"."""
    if margin >= 1.0 or not (base.n and tally.n):
        return -inf
    return _log_averaged_likelihood(base, tally) - _log_best_likelihood(base, tally, margin)


def difference_interval(base: OutcomeTally, tally: OutcomeTally, alpha: float) -> tuple[float, float]:
    """By how much the rates differ: the margins that are not refuted. Right at all moments together."""
    if not (base.n and tally.n):
        return -1.0, 1.0
    bound, difference = log(2 / alpha), tally.rate - base.rate
    low = _find_boundary(-1.0, difference, lambda margin: log_evidence(base, tally, margin) >= bound)
    high = -_find_boundary(-1.0, -difference, lambda margin: log_evidence(tally, base, margin) >= bound)
    return low, high


def _find_boundary(low: float, high: float, is_refuted: Callable[[float], bool]) -> float:
    """Where a claim about the margin stops being refuted."""
    for _ in range(_SEARCH_STEPS // 2):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def _log_averaged_likelihood(base: OutcomeTally, tally: OutcomeTally) -> float:
    """The logarithm of the likelihood averaged over priors of both rates: each by itself, or one and the same."""
    pooled = OutcomeTally(base.n + tally.n, base.bad + tally.bad)
    parts = [_log_prior_likelihood(base, prior) + _log_prior_likelihood(tally, prior) for prior in _RATE_PRIORS]
    parts += [_log_prior_likelihood(pooled, prior) for prior in _RATE_PRIORS]
    largest = max(parts)
    return largest + log(sum(exp(part - largest) for part in parts) / len(parts))


def _log_prior_likelihood(tally: OutcomeTally, prior: tuple[float, float]) -> float:
    n, k = tally
    a, b = prior
    return _log_beta(k + a, n - k + b) - _log_beta(a, b)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def _log_best_likelihood(base: OutcomeTally, tally: OutcomeTally, margin: float) -> float:
    """The logarithm of the largest likelihood with a rate that exceeds the base's by `margin` at most."""
    if tally.rate - base.rate <= margin:
        return _log_likelihood(base, base.rate) + _log_likelihood(tally, tally.rate)
    low, high = max(0.0, -margin), min(1.0, 1.0 - margin)
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if _likelihood_slope(base, middle) + _likelihood_slope(tally, middle + margin) > 0
            else (low, middle)
        )
    middle = (low + high) / 2
    return _log_likelihood(base, middle) + _log_likelihood(tally, middle + margin)


def _log_likelihood(tally: OutcomeTally, rate: float) -> float:
    good_outcomes = tally.n - tally.bad
    bad_term = tally.bad * log(rate) if rate > 0 else -inf if tally.bad > 0 else 0.0
    good_term = good_outcomes * log1p(-rate) if rate < 1 else -inf if good_outcomes > 1e-9 else 0.0
    return bad_term + good_term


def _likelihood_slope(tally: OutcomeTally, rate: float) -> float:
    """How the likelihood's logarithm grows with the rate."""
    good_outcomes = tally.n - tally.bad
    up = tally.bad / rate if rate > 0 else inf if tally.bad > 0 else 0.0
    down = good_outcomes / (1 - rate) if rate < 1 else inf if good_outcomes > 1e-9 else 0.0
    return up - down if up < inf or down < inf else 0.0
