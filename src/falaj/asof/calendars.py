"""Parts of a moment by the calendar of a time zone: the hour, the weekday, the day, the month, the year."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np

from falaj.asof.cells import Array

Part = Callable[..., tuple[Array, Array]]
_SECOND_US = 1_000_000
_HOUR_US = 3600 * _SECOND_US
_DAY_US = 24 * _HOUR_US
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LAST_US = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


def zone_known(zone: str) -> bool:
    """Whether a time zone of that name exists here."""
    try:
        return zone in ("", "UTC") or bool(ZoneInfo(zone).key)
    except (ValueError, OSError, LookupError):
        return False


def _part(part: Callable[[Array], Array]) -> Part:
    def work(at: Array, zone: str = "") -> tuple[Array, Array]:
        exist = (at >= _FIRST_US) & (at <= _LAST_US)
        at = np.where(exist, at, 0)
        local = at if zone in ("", "UTC") else at + _offsets(at, ZoneInfo(zone))
        return part(local).astype(np.int64), exist

    return work


def _offsets(at: Array, zone: ZoneInfo) -> Array:
    """How far local time is ahead, in microseconds: asked once for each hour, and by row where it changes within."""
    hours, which = np.unique(at // _HOUR_US, return_inverse=True)
    first = [_offset(hour * _HOUR_US, zone) for hour in hours.tolist()]
    last = [_offset(hour * _HOUR_US + _HOUR_US - 1, zone) for hour in hours.tolist()]
    found = np.array(first, np.int64)[which]
    for row in np.flatnonzero((np.array(first, np.int64) != np.array(last, np.int64))[which]):
        found[row] = _offset(int(at[row]), zone)
    return found


def _offset(at_us: int, zone: ZoneInfo) -> int:
    ahead = (_EPOCH + timedelta(microseconds=at_us)).astimezone(zone).utcoffset() or timedelta()
    return ahead // timedelta(microseconds=1)


def _calendar(unit: str, within: str, add: int) -> Callable[[Array], Array]:
    def part(local: Array) -> Array:
        at = local.astype("datetime64[us]").astype(f"datetime64[{unit}]")
        since = at.astype(f"datetime64[{within}]").astype(at.dtype) if within else np.zeros(len(at), at.dtype)
        count: Array = at.astype(np.int64) - since.astype(np.int64) + add
        return count

    return part


PARTS: dict[str, Part] = {
    "year": _part(_calendar("Y", "", 1970)),
    "month": _part(_calendar("M", "Y", 1)),
    "day": _part(_calendar("D", "M", 1)),
    "weekday": _part(lambda local: (local // _DAY_US + 3) % 7),
    "hour": _part(lambda local: local // _HOUR_US % 24),
}
"""Each takes moments and a zone, and gives the part and where there is one. Monday is weekday 0."""
