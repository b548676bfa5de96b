"""Champion against challenger: right however often one looks, quick enough, and the same in any order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.drift import paired_test
from falaj.drift.paired_test import (
    VERDICT_BETTER,
    VERDICT_FINE,
    VERDICT_WAIT,
    VERDICT_WORSE,
    PairedCounts,
    judge_challenger,
)

LOOKS, EVERY = 200, 100


def _stops(wins: float, losses: float, seed: int, runs: int) -> np.ndarray:
    """After how many rows each run called the challenger better, looking every 100 rows up to 20,000; inf: never."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(runs):
        counts = chance.multinomial(EVERY, [losses, 1 - wins - losses, wins], size=LOOKS).cumsum(0)
        pairs, at = PairedCounts(), np.inf
        for look in range(LOOKS):
            for place, count in zip((0, paired_test.HALF_STEPS, 2 * paired_test.HALF_STEPS), counts[look], strict=True):
                pairs.floor[place] = count
            if pairs.better() >= np.log(1 / paired_test.DEFAULT_ALPHA):
                at = (look + 1) * EVERY
                break
        found.append(at)
    return np.array(found)


def _peeked(wins: float, seed: int, runs: int) -> float:
    """The share of runs in which a t-test that is looked at as often calls an equal model better or worse."""
    counts = np.random.default_rng(seed).multinomial(EVERY, [wins, wins, 1 - 2 * wins], size=(runs, LOOKS)).cumsum(1)
    gap, discordant = counts[..., 1] - counts[..., 0], counts[..., 0] + counts[..., 1]
    return float((np.abs(gap) > 1.96 * np.sqrt(np.maximum(discordant, 1))).any(axis=1).mean())


def test_an_equal_model_is_seldom_called_better() -> None:
    assert np.isfinite(_stops(0.03, 0.03, 1, 60)).mean() <= 0.05
    assert _peeked(0.03, 1, 1000) > 0.35, "what everybody else does"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_rates_of_a_thousand_runs() -> None:
    for wins in (0.03, 0.09):
        assert np.isfinite(_stops(wins, wins, 2, 1000)).mean() <= 0.02
    better = _stops(0.035, 0.025, 3, 300)  # 10 % against 9 % of errors, most of them the same ones
    assert np.isfinite(better).mean() > 0.97
    assert np.median(better) <= 6_500


def test_a_better_model_is_found_in_time() -> None:
    stops = _stops(0.035, 0.025, 4, 20)
    assert np.median(stops) <= 8_000
    assert np.median(_stops(0.045, 0.025, 5, 20)) <= 3_000


def _errors(n: int, rate: float, seed: int) -> np.ndarray:
    return (np.random.default_rng(seed).random(n) < rate).astype(float)


@pytest.mark.parametrize(
    ("champion", "challenger", "margin", "verdict"),
    [
        (0.30, 0.05, 0.01, VERDICT_BETTER),
        (0.05, 0.30, 0.01, VERDICT_WORSE),
        (0.10, 0.10, 0.0, VERDICT_WAIT),
        (0.10, 0.10, 0.05, VERDICT_FINE),
    ],
)
def test_verdicts(champion: float, challenger: float, margin: float, verdict: str) -> None:
    reading = PairedCounts().add(_errors(4000, champion, 1), _errors(4000, challenger, 2)).read(margin)
    assert reading.verdict == verdict, reading.said()
    assert reading.low <= champion - challenger <= reading.high


def test_few_rows_say_nothing() -> None:
    assert PairedCounts().read().verdict == VERDICT_WAIT
    assert PairedCounts().add(np.ones(99), np.zeros(99)).read().verdict == VERDICT_WAIT
    assert PairedCounts().add(np.ones(100), np.zeros(100)).read().verdict == VERDICT_BETTER


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(-1, 2), st.floats(-1, 2)), min_size=1, max_size=40), st.randoms())
def test_order_and_pieces_do_not_matter(rows: list[tuple[float, float]], chance: object) -> None:
    both = np.array(rows)
    whole = PairedCounts().add(both[:, 0], both[:, 1])
    mixed = np.random.default_rng(chance.randrange(100)).permutation(both)  # type: ignore[attr-defined]
    cut = len(mixed) // 2
    parts = (
        PairedCounts().add(mixed[:cut, 0], mixed[:cut, 1]).merged(PairedCounts().add(mixed[cut:, 0], mixed[cut:, 1]))
    )
    assert np.array_equal(whole.floor, parts.floor)
    assert whole.better() == pytest.approx(parts.better())
    # Rounding is against the claim: never more evidence than the exact differences give.
    exact = np.clip(both[:, 0], 0, 1) - np.clip(both[:, 1], 0, 1)
    capital = np.log1p(np.outer(paired_test._BET_SHARES, exact)).sum(axis=1)
    assert whole.better() <= np.log(np.exp(capital).mean()) + 1e-6


def test_judge_reads_what_models_answer() -> None:
    chance = np.random.default_rng(0)
    truth = (chance.random(2000) < 0.5).astype(float)
    good = np.clip(truth * 0.8 + 0.1 + chance.normal(0, 0.1, 2000), 0, 1)
    bad = chance.random(2000)
    found = judge_challenger(bad, good, truth)
    assert found.passes
    assert found.verdict == VERDICT_BETTER, found.why
    assert judge_challenger(good, bad, truth).verdict == VERDICT_WORSE
    assert judge_challenger(good, good, truth).verdict == VERDICT_FINE, "the same model may take its own place"
    many = np.stack([1 - good, good], axis=1)
    assert judge_challenger(bad, many, truth.astype(int)).verdict == VERDICT_BETTER
    words = np.where(truth > 0, "yes", "no")
    assert judge_challenger(np.where(bad > 0.5, "yes", "no"), words, words).verdict == VERDICT_BETTER
    amounts = truth * 1000
    assert (
        judge_challenger(amounts + 300 * chance.normal(size=2000), amounts + 5, amounts, task="regression").verdict
        == VERDICT_BETTER
    )
    broken = np.full(2000, np.nan)
    assert judge_challenger(good, broken, truth).verdict == VERDICT_WORSE, "an answer that is none is the worst one"
    assert judge_challenger(good, broken, np.full(2000, np.nan)).verdict == VERDICT_WAIT, (
        "nothing is known where there are no labels"
    )


def test_a_segment_that_loses_stops_it() -> None:
    chance = np.random.default_rng(1)
    truth = (chance.random(4000) < 0.5).astype(float)
    city = np.where(np.arange(4000) % 10 == 0, "ajman", "dubai")
    champion = np.where(chance.random(4000) < 0.2, 1 - truth, truth)
    challenger = np.where(city == "ajman", 1 - truth, truth)
    found = judge_challenger(champion, challenger, truth, segments=city)
    assert (found.verdict, found.whole.verdict) == (VERDICT_WORSE, VERDICT_BETTER)
    assert "ajman" in found.why
    assert found.segments["dubai"].verdict == VERDICT_BETTER


def test_rows_must_be_the_same_ones() -> None:
    with pytest.raises(Invalid, match="3 losses against 2"):
        PairedCounts().add(np.zeros(3), np.zeros(2))
    with pytest.raises(Invalid, match="rows"):
        judge_challenger(np.zeros(3), np.zeros(2), np.zeros(3))
