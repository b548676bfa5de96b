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

from falaj.asof.records import MISSING_MOMENT
from falaj.core.errors import Invalid

if TYPE_CHECKING:
    import pyarrow as pa

Moments = NDArray[np.int64]
MOMENT_LIMIT = 1 << 63
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_894
"""Days that a clock can be asked about on either side: the years 1 to 9999."""
_UNITS_US = {"w": 7 * _DAY_US, "d": _DAY_US, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_SPAN_PATTERN = re.compile(r"(\d{1,18})\s*(ms|us|w|d|h|m|s)\s*")
_MICROS_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": -1_000}


def to_micros(value: object, zone: str = "") -> int:
    """The moment that a datetime, a date, ISO text or an int (already microseconds) names."""
    if isinstance(value, str):
        value = _parse_iso_text(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=_load_zone(zone, "a time without a zone"), fold=0)
        return (value - _EPOCH) // _MICROSECOND
    if isinstance(value, date):
        return to_micros(datetime.combine(value, time()), zone)
    if isinstance(value, bool | float) or not hasattr(value, "__index__"):
        raise Invalid("this is not a moment", "give a datetime, ISO text, or microseconds since 1970 as an int")
    moment = index(value)
    if not -MOMENT_LIMIT < moment < MOMENT_LIMIT:
        raise Invalid("this moment is out of range", "microseconds since 1970 fit 64 bits")
    return moment


def to_moments(column: "pa.Array | pa.ChunkedArray", zone: str = "") -> Moments:
    """The moments of a column of timestamps, dates, ISO text or int64 microseconds; MISSING where it is null."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return to_moments(column.dictionary_decode(), zone)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _parse_text_column(column, zone)
    if pa.types.is_null(kind):
        return np.full(len(column), MISSING_MOMENT, np.int64)
    if pa.types.is_date(kind):
        column, kind = column.cast(pa.timestamp("ms")), pa.timestamp("ms")
    if pa.types.is_timestamp(kind):
        scaled = _scale_to_micros(_to_int_values(column, pa.int64()), _MICROS_PER_UNIT[kind.unit])
        return scaled if kind.tz else _localize_moments(scaled, _load_zone(zone, "a column of times without a zone"))
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return _to_int_values(column, pa.int64())
    raise Invalid(f"a column of {kind} holds no moments", "use a timestamp, a date, ISO text or int64 microseconds")


def parse_span(value: object) -> int:
    """A length of time in microseconds: "90d", "1h30m", a timedelta, or an int (already microseconds)."""
    if isinstance(value, timedelta):
        length_us = value // _MICROSECOND
    elif isinstance(value, str):
        length_us = _parse_span_text(value)
    elif isinstance(value, bool | float) or not hasattr(value, "__index__"):
        raise Invalid("this is not a length of time", 'give text such as "90d" or "1h30m", or a timedelta')
    else:
        length_us = index(value)
    if not 0 <= length_us < MOMENT_LIMIT:
        raise Invalid("this length of time is out of range", "give one of at least 0, below 292,000 years")
    return length_us


def format_span(us: int) -> str:
    """The shortest text that `parse_span` reads back: 5400000000 is 1h30m."""
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, us = divmod(us, _UNITS_US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _parse_iso_text(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise Invalid("this text is not a moment", "write it as 2026-11-15T09:30:00+04:00") from None


def _parse_span_text(text: str) -> int:
    text = text.strip()
    if text == "0":
        return 0
    total = end = 0
    while match := _SPAN_PATTERN.match(text, end):
        total += int(match[1]) * _UNITS_US[match[2]]
        end = match.end()
    if end != len(text) or not text:
        raise Invalid("this text is not a length of time", 'write it as "90d", "1h30m" or "250ms"')
    return total


def _load_zone(zone: str, subject: str) -> ZoneInfo:
    if not zone:
        raise Invalid(f"{subject} can mean many moments", 'name its zone, for example zone="Asia/Dubai", or use UTC')
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        raise Invalid("there is no such time zone here", "name it as in Asia/Dubai or Europe/Paris") from None


def _to_int_values(column: "pa.Array", kind: "pa.DataType") -> Moments:
    """The column's numbers, MISSING where it is null."""
    numbers = column.cast(kind)
    if numbers.null_count:
        numbers = numbers.fill_null(MISSING_MOMENT)
    values: Moments = numbers.to_numpy(zero_copy_only=False)
    return values


def _scale_to_micros(ints: Moments, micros_per_unit: int) -> Moments:
    """To microseconds: `micros_per_unit` of them each, or -per parts to one of them."""
    is_present = ints != MISSING_MOMENT
    if micros_per_unit < 0:
        return np.where(is_present, np.floor_divide(ints, -micros_per_unit), MISSING_MOMENT)
    if micros_per_unit == 1:
        return ints
    max_value = (MOMENT_LIMIT - 1) // micros_per_unit
    if bool(np.any(is_present & ((ints > max_value) | (ints < -max_value)))):
        raise Invalid("a moment of this column is out of range", "microseconds since 1970 fit 64 bits")
    return np.where(is_present, ints * np.int64(micros_per_unit), MISSING_MOMENT)


def _localize_moments(local: Moments, zone: ZoneInfo) -> Moments:
    """Clock times in `zone` as moments, by the same rules as `micros`, asking the zone once a day that occurs."""
    is_present = local != MISSING_MOMENT
    days, day_index = np.unique(np.floor_divide(local[is_present], _DAY_US), return_inverse=True)
    if len(days) == 0:
        return local.copy()
    if days[0] < _FIRST_DAY or days[-1] > _LAST_DAY:
        raise Invalid("a time without a zone is beyond the calendar", "only the years 1 to 9999 have clocks")
    day_offsets = np.array([_find_offset(int(day) * _DAY_US, zone) for day in days], np.int64)
    next_day_offsets = np.array([_find_offset(int(day + 1) * _DAY_US, zone) for day in days], np.int64)
    shift = day_offsets[day_index]
    # A day on which clocks changed: ask about each time of it.
    (changed,) = np.nonzero((day_offsets != next_day_offsets)[day_index])
    if len(changed):
        clock_times, time_index = np.unique(local[is_present][changed], return_inverse=True)
        shift[changed] = np.array([_find_offset(int(clock_time), zone) for clock_time in clock_times], np.int64)[
            time_index
        ]
    moments_us = local.copy()
    moments_us[is_present] -= shift
    return moments_us


def _find_offset(local_us: int, zone: ZoneInfo) -> int:
    clock_time = datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=local_us)  # wall-clock arithmetic
    utc_offset = clock_time.utcoffset()
    return 0 if utc_offset is None else utc_offset // _MICROSECOND


def _parse_text_column(column: Any, zone: str) -> Moments:
    encoded = column.dictionary_encode()
    moments_by_code = np.array(
        [MISSING_MOMENT if text is None else to_micros(text, zone) for text in encoded.dictionary.to_pylist()], np.int64
    )
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.where(codes < 0, MISSING_MOMENT, np.append(moments_by_code, MISSING_MOMENT)[codes])
