"""Cron against going through every minute, in zones whose clocks jump and zones whose do not."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.core.errors import Invalid
from falaj.flows.cron import load_time_zone, parse_cron
from falaj.flows.schedules import list_due_moments

ZONES = ("UTC", "Asia/Dubai", "Europe/London", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo")
JUMPS = (
    date(2026, 3, 8),
    date(2026, 3, 29),
    date(2026, 4, 5),
    date(2026, 10, 4),
    date(2026, 10, 25),
    date(2026, 11, 1),
)


def test_the_usual_ones() -> None:
    zone, noon = ZoneInfo("Asia/Dubai"), datetime(2026, 11, 15, 12, tzinfo=ZoneInfo("Asia/Dubai")).timestamp()
    table = {
        "@hourly": "2026-11-15T13:00", "@daily": "2026-11-16T00:00", "@weekly": "2026-11-22T00:00",
        "@yearly": "2027-01-01T00:00", "*/20 * * * *": "2026-11-15T12:20", "30 3 * * sun-thu": "2026-11-16T03:30",
        "0 9 1,15 * *": "2026-12-01T09:00", "0 9 13 * fri": "2026-11-20T09:00", "0 0 29 feb *": "2028-02-29T00:00",
        "5-50/15 14 * * 7": "2026-11-15T14:05", "0 12 15 11 *": "2027-11-15T12:00", "0 0 * * mon": "2026-11-16T00:00",
    }  # fmt: skip
    for text, wanted in table.items():
        found = parse_cron(text).after(noon, zone)
        assert found is not None
        assert datetime.fromtimestamp(found, zone).isoformat()[:16] == wanted, text
    assert parse_cron("0 0 30 2 *").after(noon, zone) is None
    assert parse_cron("0 0 29 2 *").after(datetime(2096, 3, 1, tzinfo=UTC).timestamp(), zone) is not None


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "5-1 * * * *",
     "*/0 * * * *", "a * * * *", "1,,2 * * * *", "-1 * * * *", "5/2 * * * *", "* * L * *", "@never", "\u0661 * * * *",
     "* * * foo *", "1-2-3 * * * *", "*" * 600],
)  # fmt: skip
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_cron(text)


@pytest.mark.parametrize("name", ["", "Mars/Base", "../etc/passwd", "/etc/localtime", "Asia", "x" * 100, "a\0b"])
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        load_time_zone(name)


def brute(text: str, zone: ZoneInfo, first: datetime, minutes: int) -> list[float]:
    """Every moment in a stretch, by what the module's docstring says and by nothing else."""
    cron, found = parse_cron(text), set()
    for n in range(-180, minutes + 180):
        at = first + timedelta(minutes=n)
        wall = at.astimezone(zone)
        fits = cron.on(wall.date()) and wall.hour in cron.hours and wall.minute in cron.minutes
        if fits and (cron.by_minutes or not wall.fold):
            found.add(at)
        # A clock that jumps over times of day: each of them is as much later as it jumped.
        before = (at - timedelta(minutes=1)).astimezone(zone)
        gap = int((wall.replace(tzinfo=None) - before.replace(tzinfo=None)) / timedelta(minutes=1)) - 1
        for skipped in range(gap if not cron.by_minutes else 0):
            missed = before.replace(tzinfo=None) + timedelta(minutes=1 + skipped)
            if cron.on(missed.date()) and missed.hour in cron.hours and missed.minute in cron.minutes:
                found.add(at + timedelta(minutes=skipped))
    until = first + timedelta(minutes=minutes)
    return sorted(at.timestamp() for at in found if first < at <= until)


fields = st.tuples(
    st.sampled_from(["0", "30", "*/20", "15,45", "7-9"]),
    st.sampled_from(["*", "*/2", "0", "1", "2", "0-3", "23", "2,14"]),
    st.sampled_from(["*", "1-10", "25-31", "*/2"]),
    st.sampled_from(["*", "3,10", "apr,nov"]),
    st.sampled_from(["*", "sun", "0,6", "mon-fri"]),
)


@settings(max_examples=40, deadline=None)
@given(fields, st.sampled_from(ZONES), st.sampled_from(JUMPS), st.integers(-600, 600))
def test_it_is_what_going_through_every_minute_finds(words: tuple[str, ...], name: str, day: date, shift: int) -> None:
    zone, text = ZoneInfo(name), " ".join(words)
    first = datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(minutes=shift)
    wanted = brute(text, zone, first, 1440)
    until = first.timestamp() + 86_400
    cron = parse_cron(text)
    assert cron.between(first.timestamp(), until, zone, 2000) == wanted
    if wanted:
        assert cron.before(until, zone) == wanted[-1]


def test_what_is_caught_up_does_not_depend_on_how_long_nothing_ran() -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    body = {"cron": "* * 1-19 * *", "zone": "UTC", "next_at": first, "catch_up": "last"}
    now = datetime(2026, 6, 28, 5, tzinfo=UTC).timestamp()
    moments, following = list_due_moments(body, now)
    assert [datetime.fromtimestamp(one, UTC).isoformat() for one in moments] == ["2026-06-19T23:59:00+00:00"]
    assert following == datetime(2026, 7, 1, tzinfo=UTC).timestamp()
    moments, following = list_due_moments({**body, "catch_up": "all"}, now)
    assert (len(moments), following) == (100, moments[-1] + 60)
    assert list_due_moments({**body, "catch_up": "none"}, now)[0] == []
    assert list_due_moments({**body, "catch_up": "none"}, first + 30)[0] == [first]
