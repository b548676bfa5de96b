"""Moments and bases that callers say are checked before anything is stored."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.govern.regimes import load_regimes
from falaj.privacy import input_checks

LAWS = load_regimes()
ADGM, GDPR = LAWS["AE-ADGM"], LAWS["EU-GDPR"]


@given(st.integers(0, 4_000_000_000), st.integers(-12, 14), st.integers(-12, 14))
def test_an_instant_is_the_same_in_every_offset(at: int, east: int, west: int) -> None:
    instant = datetime.fromtimestamp(at, UTC)
    texts = [instant.astimezone(timezone(timedelta(hours=hours))).isoformat() for hours in (east, west)]
    first, second = (input_checks.parse_moment(text, 5e9) for text in texts)
    assert first == second == instant.timestamp()


def test_a_basis_is_judged_by_every_regime() -> None:
    input_checks.require_known_basis("legitimate-interest", [ADGM, GDPR])
    with pytest.raises(Invalid, match="AE-PDPL"):
        input_checks.require_known_basis("legitimate-interest", [GDPR, LAWS["AE-PDPL"]])


@pytest.mark.parametrize("text", ["yesterday", "2026-11-01T09:00:00", "2026-13-01T09:00:00+04:00"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        input_checks.parse_moment(text, 5e9)


def test_what_has_not_happened_yet_cannot_have_come_in() -> None:
    with pytest.raises(Invalid, match="future"):
        input_checks.parse_moment("2026-11-01T09:00:00+00:00", 1000.0)
