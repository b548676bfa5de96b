"""Moments and spans: every kind of time becomes int64 microseconds since 1970 UTC, and is said again in one way.

What is finer than a microsecond is cut towards the past. A time without a zone is refused unless `zone` says which
one it means; then a time that a clock showed twice is the first of the two, and one that a clock skipped is moved on
by what was skipped (02:30 in a gap of an hour is 03:30). A date is its midnight, and needs a zone too.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from operator import index
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from falaj.asof.records import MISSING
from falaj.core.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

Moments = NDArray[np.int64]
LIMIT = 1 << 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_894
"""Days that a clock can be asked about on either side: the years 1 to 9999."""
_UNITS_US = {"w": 7 * _DAY_US, "d": _DAY_US, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_SPAN = re.compile(r"(\d{1,18})\s*(ms|us|w|d|h|m|s)\s*")
_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": -1_000}


def micros(value: object, zone: str = "") -> int:
    """The moment that a datetime, a date, ISO text or an int (already microseconds) names."""
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=_zone(zone, "a time without a zone"), fold=0)
        return (value - _EPOCH) // _MICRO
    if isinstance(value, date):
        return micros(datetime.combine(value, time()), zone)
    if isinstance(value, bool | float) or not hasattr(value, "__index__"):
        raise Invalid("this is not a moment", "give a datetime, ISO text, or microseconds since 1970 as an int")
    moment = index(value)
    if not -LIMIT < moment < LIMIT:
        raise Invalid("this moment is out of range", "microseconds since 1970 fit 64 bits")
    return moment


def moments(column: "pa.Array | pa.ChunkedArray", zone: str = "") -> Moments:
    """The moments of a column of timestamps, dates, ISO text or int64 microseconds; MISSING where it is null."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return moments(column.dictionary_decode(), zone)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _of_texts(column, zone)
    if pa.types.is_null(kind):
        return np.full(len(column), MISSING, np.int64)
    if pa.types.is_date(kind):
        column, kind = column.cast(pa.timestamp("ms")), pa.timestamp("ms")
    if pa.types.is_timestamp(kind):
        found = _scaled(_ints(column, pa.int64()), _PER_UNIT[kind.unit])
        return found if kind.tz else _placed(found, _zone(zone, "a column of times without a zone"))
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return _ints(column, pa.int64())
    raise Invalid(f"a column of {kind} holds no moments", "use a timestamp, a date, ISO text or int64 microseconds")


def span_us(value: object) -> int:
    """A length of time in microseconds: "90d", "1h30m", a timedelta, or an int (already microseconds)."""
    if isinstance(value, timedelta):
        span = value // _MICRO
    elif isinstance(value, str):
        span = _read_span(value)
    elif isinstance(value, bool | float) or not hasattr(value, "__index__"):
        raise Invalid("this is not a length of time", 'give text such as "90d" or "1h30m", or a timedelta')
    else:
        span = index(value)
    if not 0 <= span < LIMIT:
        raise Invalid("this length of time is out of range", "give one of at least 0, below 292,000 years")
    return span


def say_span(us: int) -> str:
    """The shortest text that `span_us` reads back: 5400000000 is 1h30m."""
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        many, us = divmod(us, _UNITS_US[unit])
        if many:
            parts.append(f"{many}{unit}")
    return "".join(parts) or "0s"


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Invalid("this text is not a moment", "write it as 2026-11-15T09:30:00+04:00") from None


def _read_span(text: str) -> int:
    text = text.strip()
    if text == "0":
        return 0
    total = end = 0
    while found := _SPAN.match(text, end):
        total += int(found[1]) * _UNITS_US[found[2]]
        end = found.end()
    if end != len(text) or not text:
        raise Invalid("this text is not a length of time", 'write it as "90d", "1h30m" or "250ms"')
    return total


def _zone(zone: str, what: str) -> ZoneInfo:
    if not zone:
        raise Invalid(f"{what} can mean many moments", 'name its zone, for example zone="Asia/Dubai", or use UTC')
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise Invalid("there is no such time zone here", "name it as in Asia/Dubai or Europe/Paris") from None


def _ints(column: "pa.Array", kind: "pa.DataType") -> Moments:
    """The column's numbers, MISSING where it is null."""
    numbers = column.cast(kind)
    if numbers.null_count:
        numbers = numbers.fill_null(MISSING)
    found: Moments = numbers.to_numpy(zero_copy_only=False)
    return found


def _scaled(ints: Moments, per: int) -> Moments:
    """To microseconds: `per` of them each, or -per parts to one of them."""
    there = ints != MISSING
    if per < 0:
        return np.where(there, np.floor_divide(ints, -per), MISSING)
    if per == 1:
        return ints
    most = (LIMIT - 1) // per
    if bool(np.any(there & ((ints > most) | (ints < -most)))):
        raise Invalid("a moment of this column is out of range", "microseconds since 1970 fit 64 bits")
    return np.where(there, ints * np.int64(per), MISSING)


def _placed(local: Moments, zone: ZoneInfo) -> Moments:
    """Clock times in `zone` as moments, by the same rules as `micros`, asking the zone once a day that occurs."""
    there = local != MISSING
    days, which = np.unique(np.floor_divide(local[there], _DAY_US), return_inverse=True)
    if len(days) == 0:
        return local.copy()
    if days[0] < _FIRST_DAY or days[-1] > _LAST_DAY:
        raise Invalid("a time without a zone is beyond the calendar", "only the years 1 to 9999 have clocks")
    first = np.array([_offset(int(day) * _DAY_US, zone) for day in days], np.int64)
    after = np.array([_offset(int(day + 1) * _DAY_US, zone) for day in days], np.int64)
    shift = first[which]
    # A day on which clocks changed: ask about each time of it.
    (changed,) = np.nonzero((first != after)[which])
    if len(changed):
        times, again = np.unique(local[there][changed], return_inverse=True)
        shift[changed] = np.array([_offset(int(each), zone) for each in times], np.int64)[again]
    found = local.copy()
    found[there] -= shift
    return found


def _offset(local_us: int, zone: ZoneInfo) -> int:
    clock = datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=local_us)  # wall-clock arithmetic
    gone = clock.utcoffset()
    return 0 if gone is None else gone // _MICRO


def _of_texts(column: Any, zone: str) -> Moments:
    coded = column.dictionary_encode()
    known = np.array(
        [MISSING if text is None else micros(text, zone) for text in coded.dictionary.to_pylist()], np.int64
    )
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.where(codes < 0, MISSING, np.append(known, MISSING)[codes])
