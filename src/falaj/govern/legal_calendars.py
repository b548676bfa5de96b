"""Calendars of jurisdictions (time zone, weekend, public holidays) and the date arithmetic of legal periods.

Calendars are data: the shipped files are beside this module in `calendars/`, and a folder `calendars` inside the folder
of the setting `regimes` adds or replaces them by id. A public holiday that no calendar lists makes a deadline end
earlier, never later.
"""

import calendar as month_lengths
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec

from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.govern.legal_periods import (
    AT_ONCE,
    DAYS,
    HOURS,
    MONTHS,
    WORKING_DAYS,
    DutyDeadline,
    LegalCitation,
    RetentionPeriod,
)

FOLDER = Path(__file__).parent / "calendars"
SATURDAY, SUNDAY = 6, 7  # ISO weekday numbers
MAX_CLOSED_DAYS = 60  # a calendar with more closed days in a row is a mistake in its data


@dataclass(frozen=True, slots=True)
class Calendar:
    """Which days are working days in a jurisdiction, and which time zone its dates are in."""

    id: str
    timezone: str = "UTC"
    """An IANA name, for example Asia/Dubai."""
    weekend: tuple[int, ...] = (SATURDAY, SUNDAY)
    """ISO weekday numbers, 1 (Monday) to 7 (Sunday)."""
    half_days: tuple[int, ...] = ()
    """ISO weekdays with shorter hours. They are working days."""
    holidays: tuple[str, ...] = ()
    """`MM-DD` for a holiday of every year, `YYYY-MM-DD` for one date."""
    source: LegalCitation = LegalCitation()

    def is_working_day(self, day: date) -> bool:
        """Return True unless `day` is a weekend day or a public holiday."""
        text = day.isoformat()
        return day.isoweekday() not in self.weekend and text not in self.holidays and text[5:] not in self.holidays

    def next_working_day(self, day: date) -> date:
        """Return `day` itself if it is a working day, else the first working day after it."""
        for offset in range(MAX_CLOSED_DAYS):
            candidate = day + timedelta(days=offset)
            if self.is_working_day(candidate):
                return candidate
        raise Invalid(
            f"calendar {self.id}: no working day in the {MAX_CLOSED_DAYS} days from {day}",
            "correct `weekend` and `holidays` of that calendar",
        )

    def local_day(self, moment: float) -> date:
        """Return the date in this calendar's time zone at `moment` (seconds since 1970)."""
        return datetime.fromtimestamp(moment, ZoneInfo(self.timezone)).date()

    def end_of_day(self, day: date) -> float:
        """Return 23:59:59 local time of `day`, in seconds since 1970."""
        return datetime.combine(day, time(23, 59, 59), ZoneInfo(self.timezone)).timestamp()


UTC_CALENDAR = Calendar("UTC")


def add_months(day: date, months: int) -> date:
    """Return the same day of a later month, or the last day of that month if it has no such day."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    return date(year, month + 1, min(day.day, month_lengths.monthrange(year, month + 1)[1]))


def compute_deadline_end(
    deadline: DutyDeadline,
    started_at: float,
    calendar: Calendar,
    *,
    extended: bool = False,
    stops: Sequence[tuple[float, float]] = (),
) -> float:
    """Return when a deadline ends that began at `started_at`, in seconds since 1970.

    Hours run from the moment itself. Every other unit is counted in local dates, the day of the event excluded, and
    ends at 23:59:59 of its last day. `stops` are the times (from, to) during which the period did not run.
    """
    count = deadline.count + (deadline.extension if extended else 0)
    if deadline.unit == AT_ONCE:
        return started_at
    if deadline.unit == HOURS:
        return started_at + 3600.0 * count + sum(until_day - from_time for from_time, until_day in stops)
    first_day = calendar.local_day(started_at)
    days = [(calendar.local_day(from_time), calendar.local_day(until_day)) for from_time, until_day in stops]
    if deadline.unit == WORKING_DAYS:
        stopped_days = sum(_count_working_days(calendar, from_time, until_day) for from_time, until_day in days)
        return calendar.end_of_day(_add_working_days(calendar, first_day, count + stopped_days))
    last_day = _add_period(first_day, deadline.unit, count) + sum(
        (until_day - from_time for from_time, until_day in days), timedelta()
    )
    return calendar.end_of_day(calendar.next_working_day(last_day) if deadline.ends_on_working_day else last_day)


def _add_period(day: date, unit: str, count: int) -> date:
    """Return `day` plus `count` days, months or years."""
    if unit == DAYS:
        return day + timedelta(days=count)
    return add_months(day, count if unit == MONTHS else 12 * count)


def _add_working_days(calendar: Calendar, day: date, count: int) -> date:
    for _ in range(count):
        day = calendar.next_working_day(day + timedelta(days=1))
    return day


def _count_working_days(calendar: Calendar, from_day: date, until_day: date) -> int:
    """Return how many working days lie after `from_day` up to and including `until_day`."""
    days = (from_day + timedelta(days=offset) for offset in range(1, (until_day - from_day).days + 1))
    return sum(calendar.is_working_day(day) for day in days)


def compute_retention_end(retention: RetentionPeriod, started_at: float, calendar: Calendar = UTC_CALENDAR) -> float:
    """Return when a retention period ends that began at `started_at`: the last second of its last day, local time.

    `started_at` is the moment of the event that `retention.starts` names; pass it only once it is known.
    """
    return calendar.end_of_day(_add_period(calendar.local_day(started_at), retention.unit, retention.count))


@cache
def load_calendars(extra: str = "") -> dict[str, Calendar]:
    """Return every calendar by id: the shipped ones, replaced and completed by those under `extra`/calendars."""
    calendars = {UTC_CALENDAR.id: UTC_CALENDAR, **_load_shipped_calendars()}
    folder = Path(extra).expanduser() / "calendars" if extra else None
    return {**calendars, **_read_folder(folder)} if folder is not None and folder.is_dir() else calendars


@cache
def _load_shipped_calendars() -> Mapping[str, Calendar]:
    return _read_folder(FOLDER)


def _read_folder(folder: Path) -> dict[str, Calendar]:
    calendars = [read_calendar(path) for path in sorted(folder.glob("*.toml"))]
    return {calendar.id: calendar for calendar in calendars}


def read_calendar(path: Path) -> Calendar:
    """Read and check one calendar file; raise Invalid naming the wrong field."""
    import tomllib

    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
        calendar = msgspec.convert(tree, Calendar, strict=True)
    except (OSError, ValueError, RecursionError) as error:
        raise Invalid(f"calendar {path.name} cannot be read: {error}", "compare it with a shipped calendar") from error
    problems = [f"unknown field {name!r}" for name in tree if name not in Calendar.__slots__]
    problems += [f"timezone {calendar.timezone!r}"] if not _is_timezone(calendar.timezone) else []
    problems += [f"holiday {day!r}" for day in calendar.holidays if not _is_holiday(day)]
    weekdays = set(calendar.weekend) | set(calendar.half_days)
    if not weekdays <= set(range(1, 8)) or len(set(calendar.weekend)) > 6:
        problems.append("weekend and half_days: expected ISO weekday numbers 1 to 7, with one working day at least")
    if problems:
        raise Invalid(f"calendar {path.name} is wrong: {'; '.join(problems)}", "compare it with a shipped calendar")
    return calendar


def _is_timezone(name: str) -> bool:
    try:
        return bool(ZoneInfo(name).key)
    except (ValueError, OSError, LookupError):
        return False


def _is_holiday(text: str) -> bool:
    try:
        return date.fromisoformat(text if len(text) == 10 else f"2000-{text}").isoformat().endswith(text)
    except ValueError:
        return False
