"""Moments and spans: one number whatever way it was written."""

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falaj.asof.moments import format_span, parse_span, to_micros, to_moments
from falaj.asof.records import MISSING_MOMENT
from falaj.core.errors import Invalid

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = ["Asia/Dubai", "America/New_York", "Europe/London", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"]
CLOCKS = st.datetimes(datetime.fromisoformat("0002-01-01"), datetime.fromisoformat("9998-01-01"))
CHANGES = st.sampled_from(["2026-03-08", "2026-11-01", "2026-03-29", "2026-10-25", "2026-04-05", "2026-10-04"])


@given(CLOCKS, st.integers(-23 * 60, 23 * 60))
def test_a_moment_with_a_zone_is_itself_however_it_is_given(clock, offset):
    when = clock.replace(tzinfo=timezone(timedelta(minutes=offset)))
    us = to_micros(when)
    assert EPOCH + timedelta(microseconds=us) == when
    assert to_micros(when.isoformat()) == to_micros(us) == to_micros(np.int64(us)) == us
    for unit, step in {"us": 1, "ms": 1_000, "s": 1_000_000}.items():
        column = pa.array([us // step, None], pa.timestamp(unit, "Asia/Dubai"))
        assert to_moments(column).tolist() == [us // step * step, MISSING_MOMENT]
    assert to_moments(pa.chunked_array([[when.isoformat()], [None]])).tolist() == [us, MISSING_MOMENT]


@settings(max_examples=200)
@given(
    st.lists(st.one_of(CLOCKS, st.tuples(CHANGES, st.integers(0, 1_439)).map(lambda at: _clock(*at))), max_size=8),
    st.sampled_from(ZONES),
)
def test_clock_times_of_a_zone_are_the_same_one_by_one_and_as_a_column(clocks, zone):
    want = [to_micros(clock, zone) for clock in clocks]
    assert to_moments(pa.array(clocks, pa.timestamp("us")), zone).tolist() == want
    assert to_moments(pa.array([str(clock) for clock in clocks], pa.string()), zone).tolist() == want
    for clock, us in zip(clocks, want, strict=True):
        assert us == to_micros(clock.replace(tzinfo=ZoneInfo(zone)))


def _clock(day: str, minute: int) -> datetime:
    return datetime.fromisoformat(day) + timedelta(minutes=minute)


@pytest.mark.parametrize(
    ("text", "zone", "utc"),
    [
        ("2026-11-01T01:30", "America/New_York", "2026-11-01T05:30:00Z"),  # shown twice: the first
        ("2026-03-08T02:30", "America/New_York", "2026-03-08T07:30:00Z"),  # skipped: 03:30
        ("2026-03-08T03:30", "America/New_York", "2026-03-08T07:30:00Z"),
        ("2026-11-15T13:00", "Asia/Dubai", "2026-11-15T09:00:00Z"),
    ],
)
def test_clocks_that_change(text, zone, utc):
    us = to_micros(utc)
    assert to_micros(text, zone) == us
    assert to_micros(datetime.fromisoformat(text).replace(fold=1), zone) == us
    assert to_moments(pa.array([text]), zone).tolist() == [us]


def test_what_is_finer_than_a_microsecond_is_cut_towards_the_past():
    assert to_moments(pa.array([1_999, -1, -1_000, None], pa.timestamp("ns", "UTC"))).tolist() == [
        1,
        -1,
        -1,
        MISSING_MOMENT,
    ]
    assert to_micros("1969-12-31T23:59:59.9999999Z") == -1


def test_dates_are_midnights_of_a_zone():
    want = to_micros("2026-11-14T20:00:00Z")
    assert to_micros(date(2026, 11, 15), "Asia/Dubai") == want
    for kind in (pa.date32(), pa.date64()):
        assert to_moments(pa.array([date(2026, 11, 15), None], kind), "Asia/Dubai").tolist() == [want, MISSING_MOMENT]
    coded = pa.array(["2026-11-15", None, "2026-11-15"]).dictionary_encode()
    assert to_moments(coded, "Asia/Dubai").tolist() == [want, MISSING_MOMENT, want]


@pytest.mark.parametrize(
    "value",
    [True, 1.5, None, b"x", "soon", "", 1 << 63, -(1 << 63), datetime.fromisoformat("2026-01-01"), date(2026, 1, 1)],
)
def test_what_is_no_moment_is_refused(value):
    with pytest.raises(Invalid):
        to_micros(value)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.5]),
        pa.array([True]),
        pa.array([b"x"]),
        pa.array([1], pa.timestamp("us")),
        pa.array([1], pa.date32()),
        pa.array([1 << 60], pa.timestamp("s", "UTC")),
        pa.array(["soon"]),
        pa.array([1], pa.uint64()),
    ],
)
def test_a_column_without_moments_is_refused(column):
    with pytest.raises(Invalid):
        to_moments(column)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../../etc/passwd", "/etc/passwd", "a\0b", "America"])
def test_a_zone_that_is_none_is_refused(zone):
    with pytest.raises(Invalid):
        to_micros("2026-01-01", zone)
    with pytest.raises(Invalid):
        to_moments(pa.array([1 << 60], pa.timestamp("us")), "UTC")


def test_spans():
    assert parse_span("90d") == parse_span(timedelta(days=90)) == parse_span(90 * 86_400_000_000)
    assert parse_span(" 1h 30m ") == 5_400_000_000
    assert (parse_span("0"), parse_span("1w2ms3us")) == (0, 7 * 86_400_000_000 + 2_003)
    for bad in ("", "h", "1", "1y", "-1d", "1d x", "1.5h", 1.5, True, None, -1, timedelta(-1), "9" * 18 + "w"):
        with pytest.raises(Invalid):
            parse_span(bad)


@given(st.integers(0, 1 << 62))
def test_a_span_is_read_as_it_is_said(us):
    assert parse_span(format_span(us)) == us
