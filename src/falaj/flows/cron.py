"""Cron: five fields in a time zone. Pure.

Where clocks jump, a fixed time of day comes once a day: one that does not exist (clocks go forward) comes as much later
as the clock jumped, one that comes twice (clocks go back) the first time. Times whose hour is `*` or `*/n` go by real
minutes: they are left out where they do not exist, and come twice where the clock shows them twice.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from falaj.core.data import dataclass
from falaj.core.errors import Invalid

NAMED_SCHEDULES = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
MONTH_NUMBERS = {name: n for n, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}  # noqa: SIM905
DAY_NUMBERS = {name: n for n, name in enumerate("sun mon tue wed thu fri sat".split())}  # noqa: SIM905
CRON_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}), ("hour", 0, 23, {}), ("day of the month", 1, 31, {}), ("month", 1, 12, MONTH_NUMBERS),
    ("day of the week", 0, 7, DAY_NUMBERS),
)  # fmt: skip
MAX_LOOKAHEAD_DAYS = 366 * 9
"""Leap days are up to eight years apart."""
_CLOCK_MARGIN = timedelta(hours=3)
_HINT = "five fields: minute hour day month weekday, as in '30 3 * * mon-fri'; or @daily"


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """When something is due."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either: bool
    """Day of the month or weekday, when both are said; else both."""
    by_minutes: bool
    """The hour is `*`: real minutes count, not times of day."""

    def on(self, day: date) -> bool:
        """True when something is due on a day."""
        if day.month not in self.months:
            return False
        day_matches = (day.day in self.days, day.isoweekday() % 7 in self.weekdays)
        return any(day_matches) if self.either else all(day_matches)

    def after(self, moment: float, zone: ZoneInfo) -> float | None:
        """The first moment after one; None when there is none in the next nine years."""
        local_time = datetime.fromtimestamp(moment, zone).replace(tzinfo=None)
        first_day, earliest = local_time.date() - timedelta(days=1), local_time - _CLOCK_MARGIN
        for number in range(MAX_LOOKAHEAD_DAYS):
            day = first_day + timedelta(days=number)
            best_moment = None
            for moment_s in self._iterate_moments(day, zone, earliest) if self.on(day) else ():
                best_moment = min(moment_s, best_moment or moment_s) if moment_s > moment else best_moment
                if best_moment and moment_s > best_moment + _CLOCK_MARGIN.total_seconds():
                    break  # no clock jumps so far that an earlier one could follow
            if best_moment:
                return best_moment
        return None

    def before(self, moment: float, zone: ZoneInfo) -> float | None:
        """The last moment that is not after one; None when there was none in the nine years before."""
        today = datetime.fromtimestamp(moment, zone).date()
        for number in range(-1, MAX_LOOKAHEAD_DAYS):
            # A time that a jump of the clock moves may come after the first ones of the next day.
            days = (today - timedelta(days=number), today - timedelta(days=number + 1))
            past_moments = [
                moment_s
                for day in days
                if self.on(day)
                for moment_s in self._iterate_moments(day, zone)
                if moment_s <= moment
            ]
            if past_moments:
                return max(past_moments)
        return None

    def between(self, after: float, until: float, zone: ZoneInfo, max_count: int) -> list[float]:
        """Every moment after one, up to and with another, oldest first; of more than `max_count` only the first."""
        moments: list[float] = []
        while len(moments) < max_count and (moment_s := self.after(after, zone)) is not None and moment_s <= until:
            moments.append(moment_s)
            after = moment_s
        return moments

    def _iterate_moments(self, day: date, zone: ZoneInfo, earliest: datetime | None = None) -> Iterator[float]:
        for hour in self.hours:
            if earliest and datetime(day.year, day.month, day.day, hour, 59) < earliest:  # noqa: DTZ001 - on the wall
                continue
            for minute in self.minutes:
                clock_time = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                wall_times = (clock_time, clock_time.replace(fold=1)) if self.by_minutes else (clock_time,)
                for wall_time in wall_times:
                    utc_time = wall_time.astimezone(UTC)
                    exists = utc_time.astimezone(zone).replace(tzinfo=None) == clock_time.replace(tzinfo=None, fold=0)
                    if exists or not self.by_minutes:
                        yield utc_time.timestamp()


def parse_cron(text: str) -> CronSchedule:
    """What five fields, or a name, say; Invalid when they say nothing."""
    field_texts = NAMED_SCHEDULES.get(text.strip().lower(), text).lower().split()
    if len(field_texts) != 5 or len(text) > 500:
        raise Invalid(f"{text[:80]!r} is no schedule", _HINT)
    minutes, hours, days, months, weekdays = (
        _parse_field(field_text, *rule) for field_text, rule in zip(field_texts, CRON_FIELDS, strict=True)
    )
    return CronSchedule(
        tuple(sorted(minutes)), tuple(sorted(hours)), days, months, frozenset(day % 7 for day in weekdays),
        either=field_texts[2][0] != "*" and field_texts[4][0] != "*", by_minutes=field_texts[1][0] == "*",
    )  # fmt: skip


def load_time_zone(name: str) -> ZoneInfo:
    """A time zone by its IANA name; Invalid when there is none."""
    try:
        if len(name) > 60 or name.startswith((".", "/")):
            raise ValueError(name)
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise Invalid(f"{name[:60]!r} is no time zone", "UTC, Asia/Dubai, Asia/Riyadh, Europe/London …") from error


def _parse_field(text: str, field_name: str, low: int, high: int, names: dict[str, int]) -> frozenset[int]:
    values: set[int] = set()
    for field_part in text.split(","):
        range_text, slash, step_text = field_part.partition("/")
        begin, dash, end = range_text.partition("-")
        first, last = (
            (low, high)
            if range_text == "*"
            else (_parse_number(begin, names), _parse_number(end if dash else begin, names))
        )
        step = _parse_number(step_text, {}) if slash else 1
        is_valid = low <= first <= last <= high and step > 0
        if not is_valid or (slash and range_text != "*" and not dash):
            raise Invalid(
                f"{field_part[:40]!r} is no {field_name}", f"{low} to {high}: 5, 1-5, */15, 10-50/10; {_HINT}"
            )
        values |= set(range(first, last + 1, step))
    return frozenset(values)


def _parse_number(text: str, names: dict[str, int]) -> int:
    if text in names:
        return names[text]
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else -1
