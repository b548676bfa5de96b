"""Parts of a moment by the calendar of a time zone: the hour, the weekday, the day, the month, the year."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from falaj.asof.column_values import Array

CalendarPart = Callable[..., tuple[Array, Array]]
_SECOND_US = 1_000_000
_HOUR_US = 3600 * _SECOND_US
_DAY_US = 24 * _HOUR_US
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST_US = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def is_known_zone(zone: str) -> bool:
    """Whether a time zone of that name exists here."""
    try:
        return zone in ("", "UTC") or bool(ZoneInfo(zone).key)
    except (ValueError, OSError, LookupError):
        return False


def _make_part(part: Callable[[Array], Array]) -> CalendarPart:
    def compute_part(moments_us: Array, zone: str = "") -> tuple[Array, Array]:
        is_in_range = (moments_us >= _FIRST_US) & (moments_us <= _LAST_US)
        moments_us = np.where(is_in_range, moments_us, 0)
        local = moments_us if zone in ("", "UTC") else moments_us + _find_offsets(moments_us, ZoneInfo(zone))
        return part(local).astype(np.int64), is_in_range

    return compute_part


def _find_offsets(moments_us: Array, zone: ZoneInfo) -> Array:
    """How far local time is ahead, in microseconds: asked once for each hour, and by row where it changes within."""
    hours, hour_index = np.unique(moments_us // _HOUR_US, return_inverse=True)
    first = [_find_offset(hour * _HOUR_US, zone) for hour in hours.tolist()]
    last = [_find_offset(hour * _HOUR_US + _HOUR_US - 1, zone) for hour in hours.tolist()]
    offsets = np.array(first, np.int64)[hour_index]
    for row in np.flatnonzero((np.array(first, np.int64) != np.array(last, np.int64))[hour_index]):
        offsets[row] = _find_offset(int(moments_us[row]), zone)
    return offsets


def _find_offset(at_us: int, zone: ZoneInfo) -> int:
    utc_offset = (_EPOCH + timedelta(microseconds=at_us)).astimezone(zone).utcoffset() or timedelta()
    return utc_offset // timedelta(microseconds=1)


def _make_calendar_part(unit: str, within: str, add: int) -> Callable[[Array], Array]:
    def count_units(local: Array) -> Array:
        truncated = local.astype("datetime64[us]").astype(f"datetime64[{unit}]")
        period_start = (
            truncated.astype(f"datetime64[{within}]").astype(truncated.dtype)
            if within
            else np.zeros(len(truncated), truncated.dtype)
        )
        count: Array = truncated.astype(np.int64) - period_start.astype(np.int64) + add
        return count

    return count_units


PARTS: dict[str, CalendarPart] = {
    "year": _make_part(_make_calendar_part("Y", "", 1970)),
    "month": _make_part(_make_calendar_part("M", "Y", 1)),
    "day": _make_part(_make_calendar_part("D", "M", 1)),
    "weekday": _make_part(lambda local: (local // _DAY_US + 3) % 7),
    "hour": _make_part(lambda local: local // _HOUR_US % 24),
}
"""Each takes moments and a zone, and gives the part and where there is one. Monday is weekday 0."""
