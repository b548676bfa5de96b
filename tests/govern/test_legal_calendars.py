"""Date arithmetic of retention periods: start events, leap years, time zones."""

from datetime import datetime

import pytest

from falaj.govern.legal_calendars import Calendar, add_months, compute_retention_end, load_calendars
from falaj.govern.legal_periods import LegalCitation, RetentionPeriod

AE = load_calendars()["AE"]


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("count", "unit", "started", "end"),
    [
        (25, "years", "2001-03-04T10:00:00+04:00", "2026-03-04T23:59:59+04:00"),
        (5, "years", "2024-02-29T10:00:00+04:00", "2029-02-28T23:59:59+04:00"),
        (4, "years", "2024-02-29T10:00:00+04:00", "2028-02-29T23:59:59+04:00"),
        (1, "months", "2027-01-31T10:00:00+04:00", "2027-02-28T23:59:59+04:00"),
        (90, "days", "2026-12-31T23:30:00+04:00", "2027-03-31T23:59:59+04:00"),
        (5, "years", "2021-12-31T21:00:00+00:00", "2027-01-01T23:59:59+04:00"),
    ],
)
def test_retention_ends_with_the_last_hour_of_its_last_local_day(count: int, unit: str, started: str, end: str) -> None:
    retention = RetentionPeriod(count, unit, "created", LegalCitation())
    assert compute_retention_end(retention, moment(started), AE) == moment(end)


def test_add_months_goes_both_over_years_and_to_short_months() -> None:
    day = datetime.fromisoformat("2026-10-31").date()
    assert [add_months(day, months).isoformat() for months in (1, 2, 4, 16)] == [
        "2026-11-30", "2026-12-31", "2027-02-28", "2028-02-29",
    ]  # fmt: skip


def test_a_calendar_without_any_working_day_in_reach_is_an_error() -> None:
    days = tuple(f"{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 32))
    with pytest.raises(Exception, match="no working day"):
        Calendar("XX", holidays=days).next_working_day(datetime.fromisoformat("2026-10-31").date())
