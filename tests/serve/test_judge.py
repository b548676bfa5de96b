"""The judge: wrong no more often than it says however often it is asked, and decided where the difference is plain."""

from math import isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.serve.sequential_test import (
    VERDICT_FINE,
    VERDICT_WAIT,
    VERDICT_WORSE,
    JudgedMetric,
    OutcomeTally,
    difference_interval,
    judge_arm,
    log_evidence,
    read_metric,
)

ERRORS = JudgedMetric("errors", 0.01, least=50)
TRIALS, PEEKS = 150, 40


def trials(
    base: float, arm: float, share: float, seed: int, *, mean: bool = False
) -> list[list[tuple[OutcomeTally, OutcomeTally]]]:
    """Trials as they go on: what stood at every look, from a few requests to some thousands."""
    random = np.random.default_rng(seed)
    sizes = np.unique(np.geomspace(20, 6000, PEEKS).astype(int))
    found = []
    for _ in range(TRIALS):
        picked = random.random(sizes[-1]) < share
        rates = np.where(picked, arm, base)
        # A mean is as bounded as yes and no are: here, values between 0 and 1 that have these means.
        bad = random.beta(rates * 4, (1 - rates) * 4) if mean else random.random(sizes[-1]) < rates
        counts = [np.cumsum(picked), np.cumsum(bad * picked), np.cumsum(~picked), np.cumsum(bad * ~picked)]
        found.append(
            [
                (
                    OutcomeTally(*(float(one[n - 1]) for one in counts[2:])),
                    OutcomeTally(*(float(one[n - 1]) for one in counts[:2])),
                )
                for n in sizes
            ]
        )
    return found


@pytest.mark.parametrize(("base", "share", "mean"), [(0.02, 0.5, False), (0.1, 0.2, False), (0.3, 0.5, True)])
def test_a_good_arm_is_rarely_called_worse_however_often_one_looks(base: float, share: float, mean: bool) -> None:
    margin, alpha = 0.01, 0.1
    wrong = 0
    for trial in trials(base, base + margin, share, 1, mean=mean):
        p = min(np.exp(-log_evidence(one, other, margin)) for one, other in trial if one.n and other.n)
        wrong += bool(p <= alpha)
    assert wrong / TRIALS <= alpha


@pytest.mark.parametrize("base", [0.0, 0.05])
def test_a_bad_arm_is_rarely_called_fine_however_often_one_looks(base: float) -> None:
    margin, alpha = 0.02, 0.1
    wrong = sum(
        any(one.n and other.n and log_evidence(other, one, -margin) >= -np.log(alpha) for one, other in trial)
        for trial in trials(base, base + margin, 0.3, 2)
    )
    assert wrong / TRIALS <= alpha


def test_the_interval_holds_the_truth_at_all_looks_together() -> None:
    missed = 0
    for trial in trials(0.05, 0.08, 0.5, 3)[:60]:
        looks = [difference_interval(one, other, 0.1) for one, other in trial[::6] if one.n and other.n]
        missed += any(not low <= 0.03 <= high for low, high in looks)
    assert missed / 60 <= 0.1


def met(rate: float, worse: float, share: float, total: float) -> str:
    """What is said after so many requests, rates met exactly."""
    base, arm = total * (1 - share), total * share
    return read_metric(
        ERRORS, "", OutcomeTally(base, base * rate), OutcomeTally(arm, arm * worse), (0.05, 0.05)
    ).verdict


def test_plain_differences_are_found_soon() -> None:
    assert met(0.001, 0.001, 0.5, 3_000) == VERDICT_FINE
    assert met(0.01, 0.05, 0.5, 3_000) == VERDICT_WORSE
    assert met(0.001, 1.0, 0.1, 1_000) == VERDICT_WORSE
    assert met(0.05, 0.06, 0.5, 1e9) == VERDICT_WAIT, "exactly at the margin nothing can be said"


def test_power_in_trials_and_not_only_on_paper() -> None:
    found = sum(
        any(min(one.n, other.n) > 50 and log_evidence(one, other, 0.01) >= np.log(20) for one, other in trial)
        for trial in trials(0.01, 0.06, 0.5, 4)
    )
    assert found / TRIALS >= 0.95


@given(st.integers(1, 5000), st.integers(1, 5000), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.2))
@settings(max_examples=60, deadline=None)
def test_an_arm_is_never_worse_and_fine_at_once(n: int, m: int, one: float, other: float, margin: float) -> None:
    base, tally = OutcomeTally(n, n * one), OutcomeTally(m, m * other)
    reading = read_metric(JudgedMetric("x", margin, least=1), "b", base, tally, (0.05, 0.05))
    assert 0 <= reading.p_worse <= 1
    assert 0 <= reading.p_fine <= 1
    assert max(reading.p_worse, reading.p_fine) == 1, "one of the two claims always holds for what was seen"
    assert reading.low <= tally.rate - base.rate + 1e-6
    assert reading.high >= tally.rate - base.rate - 1e-6


def test_worse_in_one_metric_is_worse_and_fine_takes_all() -> None:
    metrics = (ERRORS, JudgedMetric("slow", 0.05, least=50))
    good, bad, few = OutcomeTally(5000, 5), OutcomeTally(5000, 900), OutcomeTally(20, 0)
    base = {"errors": good, "slow": good}
    assert judge_arm("b", metrics, base, {"errors": good, "slow": bad}).verdict == VERDICT_WORSE
    assert judge_arm("b", metrics, base, {"errors": good, "slow": good}).verdict == VERDICT_FINE
    assert judge_arm("b", metrics, base, {"errors": good, "slow": few}).verdict == VERDICT_WAIT
    assert judge_arm("b", metrics, base, {"errors": good}).verdict == VERDICT_WAIT
    assert judge_arm("b", (), base, {}).verdict == VERDICT_WAIT, "nothing watched, nothing said"


def test_what_need_not_be_shown_can_still_show_the_arm_worse() -> None:
    metrics = (JudgedMetric("quality", 0.0, least=50), JudgedMetric("errors", 0.01, proves=False, least=50))
    base = {"quality": OutcomeTally(3000, 600), "errors": OutcomeTally(3000, 3)}
    better, unsure, broken = OutcomeTally(3000, 300), OutcomeTally(60, 0), OutcomeTally(3000, 300)
    assert judge_arm("b", metrics, base, {"quality": better, "errors": unsure}).verdict == VERDICT_FINE
    assert judge_arm("b", metrics, base, {"quality": better, "errors": broken}).verdict == VERDICT_WORSE


def test_few_can_show_an_arm_worse_but_not_fine() -> None:
    strict = (0.05, 0.05)
    assert (
        read_metric(JudgedMetric("x", 0.01), "b", OutcomeTally(199, 0), OutcomeTally(199, 199), strict).verdict
        == VERDICT_WAIT
    )
    assert (
        read_metric(JudgedMetric("x", 0.01), "b", OutcomeTally(200, 0), OutcomeTally(20, 20), strict).verdict
        == VERDICT_WORSE
    )
    assert (
        read_metric(JudgedMetric("x", 0.2), "b", OutcomeTally(5000, 0), OutcomeTally(199, 0), strict).verdict
        == VERDICT_WAIT
    )
    assert (
        read_metric(JudgedMetric("x", 0.2), "b", OutcomeTally(5000, 0), OutcomeTally(200, 0), strict).verdict
        == VERDICT_FINE
    )


def test_the_verdict_says_its_figures() -> None:
    why = judge_arm("canary", (ERRORS,), {"errors": OutcomeTally(1000, 1)}, {"errors": OutcomeTally(1000, 100)}).why
    assert why.startswith("canary: errors: 10.000% of 1000 against 0.100% of 1000, between +")
    assert why.endswith("worse")


def test_edges() -> None:
    assert log_evidence(OutcomeTally(0, 0), OutcomeTally(10, 1), 0.1) == -np.inf
    assert difference_interval(OutcomeTally(0, 0), OutcomeTally(0, 0), 0.05) == (-1.0, 1.0)
    assert log_evidence(OutcomeTally(10, 0), OutcomeTally(10, 10), 0.0) > 5
    assert isclose(
        difference_interval(OutcomeTally(10_000, 0), OutcomeTally(10_000, 10_000), 0.05)[1], 1.0, abs_tol=0.01
    )
