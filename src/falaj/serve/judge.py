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

WAIT, WORSE, FINE = "wait", "worse", "fine"
_PRIORS = ((0.5, 0.5), (0.5, 50.0))
"""Any rate, and small ones: most rates here are small, and most arms like their base. Priors that say so, too, decide
with a quarter fewer requests."""
_TURNS = 50


class Tally(NamedTuple):
    """What one arm did: how many outcomes, and how many of them bad (or the sum of how bad each was, 0 to 1)."""

    n: float
    bad: float

    @property
    def rate(self) -> float:
        """The share of bad ones."""
        return self.bad / self.n if self.n else 0.0


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is watched."""

    name: str
    margin: float
    """How much worse than the base is still good enough: 0.01 is one of a hundred requests."""
    proves: bool = True
    """Whether an arm must be shown to be good enough here before it is promoted; all can show it worse."""
    least: int = 200
    """Outcomes that each arm must have before it is called fine, and the base before anything is said."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How an arm stands against the base in one metric."""

    metric: str
    arm: str
    base: Tally
    tally: Tally
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
        base, rate = f"{self.base.rate:.3%} of {self.base.n:.0f}", f"{self.tally.rate:.3%} of {self.tally.n:.0f}"
        by = f"between {self.low:+.3%} and {self.high:+.3%}"
        p = f"p {self.p_worse:.2g}" if self.verdict == WORSE else f"p {self.p_fine:.2g}"
        return f"{self.metric}: {rate} against {base}, {by}, {p}: {self.verdict}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows for one arm."""

    arm: str
    verdict: str
    readings: tuple[Reading, ...]

    @property
    def why(self) -> str:
        """The readings that decided, in words."""
        told = [one for one in self.readings if self.verdict != WORSE or one.verdict == WORSE]
        return f"{self.arm}: " + "; ".join(one.said() for one in told)


def judge(
    arm: str,
    metrics: Sequence[Metric],
    base: Mapping[str, Tally],
    found: Mapping[str, Tally],
    *,
    alpha: float = 0.05,
    looks: int = 1,
) -> Verdict:
    """One arm against the base. Worse in any metric is worse; good enough in all that must show it is fine.

    A good arm is called worse with a chance of at most alpha over all metrics and `looks` (steps and arms that are
    judged each by itself), and a bad one fine with a chance of at most alpha, whenever and however often one asks.
    """
    worse_at = alpha / (len(metrics) * looks or 1)
    readings = tuple(
        read(one, arm, base.get(one.name, Tally(0, 0)), found.get(one.name, Tally(0, 0)), (worse_at, alpha))
        for one in metrics
    )
    needed = [reading.verdict for reading, one in zip(readings, metrics, strict=True) if one.proves]
    if any(reading.verdict == WORSE for reading in readings):
        return Verdict(arm, WORSE, readings)
    return Verdict(arm, FINE if needed and set(needed) == {FINE} else WAIT, readings)


def read(metric: Metric, arm: str, base: Tally, tally: Tally, alphas: tuple[float, float]) -> Reading:
    """One metric of one arm. `alphas`: the chances of calling a good one worse, and a bad one fine."""
    worse = exp(-max(0.0, evidence(base, tally, metric.margin)))
    fine = exp(-max(0.0, evidence(tally, base, -metric.margin)))
    low, high = interval(base, tally, alphas[0])
    verdict = WAIT
    if base.n >= metric.least and worse <= alphas[0]:
        verdict = WORSE  # the evidence is good however few they were, and each one more is a caller's
    elif min(base.n, tally.n) >= metric.least and fine <= alphas[1]:
        verdict = FINE
    return Reading(metric.name, arm, base, tally, low, high, worse, fine, verdict)


def evidence(base: Tally, tally: Tally, margin: float) -> float:
    """The logarithm of E against "the rate of `tally` exceeds that of `base` by `margin` at most"."""
    if margin >= 1.0 or not (base.n and tally.n):
        return -inf
    return _averaged(base, tally) - _best(base, tally, margin)


def interval(base: Tally, tally: Tally, alpha: float) -> tuple[float, float]:
    """By how much the rates differ: the margins that are not refuted. Right at all moments together."""
    if not (base.n and tally.n):
        return -1.0, 1.0
    bound, difference = log(2 / alpha), tally.rate - base.rate
    low = _turning(-1.0, difference, lambda margin: evidence(base, tally, margin) >= bound)
    high = -_turning(-1.0, -difference, lambda margin: evidence(tally, base, margin) >= bound)
    return low, high


def _turning(low: float, high: float, refuted: Callable[[float], bool]) -> float:
    """Where a claim about the margin stops being refuted."""
    for _ in range(_TURNS // 2):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _averaged(base: Tally, tally: Tally) -> float:
    """The logarithm of the likelihood averaged over priors of both rates: each by itself, or one and the same."""
    both = Tally(base.n + tally.n, base.bad + tally.bad)
    parts = [_under(base, prior) + _under(tally, prior) for prior in _PRIORS]
    parts += [_under(both, prior) for prior in _PRIORS]
    top = max(parts)
    return top + log(sum(exp(part - top) for part in parts) / len(parts))


def _under(tally: Tally, prior: tuple[float, float]) -> float:
    n, k = tally
    a, b = prior
    return _beta(k + a, n - k + b) - _beta(a, b)


def _beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def _best(base: Tally, tally: Tally, margin: float) -> float:
    """The logarithm of the largest likelihood with a rate that exceeds the base's by `margin` at most."""
    if tally.rate - base.rate <= margin:
        return _likelihood(base, base.rate) + _likelihood(tally, tally.rate)
    low, high = max(0.0, -margin), min(1.0, 1.0 - margin)
    for _ in range(_TURNS):
        middle = (low + high) / 2
        low, high = (middle, high) if _slope(base, middle) + _slope(tally, middle + margin) > 0 else (low, middle)
    middle = (low + high) / 2
    return _likelihood(base, middle) + _likelihood(tally, middle + margin)


def _likelihood(tally: Tally, rate: float) -> float:
    good = tally.n - tally.bad
    first = tally.bad * log(rate) if rate > 0 else -inf if tally.bad > 0 else 0.0
    second = good * log1p(-rate) if rate < 1 else -inf if good > 1e-9 else 0.0
    return first + second


def _slope(tally: Tally, rate: float) -> float:
    """How the likelihood's logarithm grows with the rate."""
    good = tally.n - tally.bad
    up = tally.bad / rate if rate > 0 else inf if tally.bad > 0 else 0.0
    down = good / (1 - rate) if rate < 1 else inf if good > 1e-9 else 0.0
    return up - down if up < inf or down < inf else 0.0
