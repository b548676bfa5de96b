"""Clocks: right in every time zone, across weekends and changes of the profile; the strictest regime wins."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.govern.records import Regime, Timer
from falaj.govern.regimes import load_regimes
from falaj.privacy import decide

LAWS = load_regimes()
ADGM, GDPR, HEALTH = LAWS["AE-ADGM"], LAWS["EU-GDPR"], LAWS["AE-HEALTH"]
HOURS = st.integers(1, 5000)


@given(st.integers(0, 4_000_000_000), st.integers(-12, 14), st.integers(-12, 14))
def test_an_instant_is_the_same_wherever_it_is_written(at: int, here: int, there: int) -> None:
    instant = datetime.fromtimestamp(at, UTC)
    texts = [instant.astimezone(timezone(timedelta(hours=hours))).isoformat() for hours in (here, there)]
    first, second = (decide.moment_of(text, 5e9) for text in texts)
    assert first == second == instant.timestamp()


@given(st.lists(st.tuples(HOURS, st.integers(0, 5000)), min_size=1, max_size=5), st.floats(0, 4e9))
def test_the_strictest_wins_and_an_extension_never_shortens(numbers: list[tuple[int, int]], since: float) -> None:
    laws = [_law(f"R-{at}", hours, more) for at, (hours, more) in enumerate(numbers)]
    clocks = decide.clocks(decide.REQUEST, laws, since)
    due = decide.strictest(clocks)
    assert due == since + min(hours for hours, _ in numbers) * 3600
    wanted = since + min(hours + more for hours, more in numbers) * 3600
    if wanted > due:
        assert decide.strictest(decide.extended(clocks)) == pytest.approx(wanted)
    else:
        with pytest.raises(Invalid):
            decide.extended(clocks)


def _law(name: str, hours: int, more: int) -> Regime:
    return replace(GDPR, id=name, timers={decide.REQUEST: Timer(hours, "assumed", more)})


def test_a_regime_without_a_timer_says_so_and_sets_nothing() -> None:
    (clock,) = decide.clocks(decide.REQUEST, [HEALTH], 1000.0)
    assert (clock.due, clock.status) == (0.0, "pending")
    assert decide.strictest((clock,)) == 0.0


def test_a_newer_profile_counts_for_what_comes_after_it() -> None:
    (before,) = decide.clocks(decide.BREACH, [ADGM], 0.0)
    newer = replace(ADGM, version=2, timers={**ADGM.timers, decide.BREACH: Timer(24, "verified")})
    (after,) = decide.clocks(decide.BREACH, [newer], 0.0)
    assert (before.version, after.version) == (1, 2)
    assert (before.due, after.due) == (ADGM.timers[decide.BREACH].hours * 3600.0, 24 * 3600.0)
    assert decide.strictest((replace(before, done=5.0), after)) == after.due


def test_a_basis_is_judged_by_every_regime() -> None:
    decide.check_basis("legitimate-interest", [ADGM, GDPR])
    with pytest.raises(Invalid, match="AE-PDPL"):
        decide.check_basis("legitimate-interest", [GDPR, LAWS["AE-PDPL"]])


@pytest.mark.parametrize("text", ["yesterday", "2026-11-01T09:00:00", "2026-13-01T09:00:00+04:00"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        decide.moment_of(text, 5e9)


def test_what_has_not_happened_yet_cannot_have_come_in() -> None:
    with pytest.raises(Invalid, match="future"):
        decide.moment_of("2026-11-01T09:00:00+00:00", 1000.0)
