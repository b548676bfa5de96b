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

NAMED = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
MONTHS = {name: n for n, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}  # noqa: SIM905
DAYS = {name: n for n, name in enumerate("sun mon tue wed thu fri sat".split())}  # noqa: SIM905
FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}), ("hour", 0, 23, {}), ("day of the month", 1, 31, {}), ("month", 1, 12, MONTHS),
    ("day of the week", 0, 7, DAYS),
)  # fmt: skip
FAR_DAYS = 366 * 9
"""Leap days are up to eight years apart."""
_MARGIN = timedelta(hours=3)
_HINT = "five fields: minute hour day month weekday, as in '30 3 * * mon-fri'; or @daily"


@dataclass(frozen=True, slots=True)
class Cron:
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
        found = (day.day in self.days, day.isoweekday() % 7 in self.weekdays)
        return any(found) if self.either else all(found)

    def after(self, moment: float, zone: ZoneInfo) -> float | None:
        """The first moment after one; None when there is none in the next nine years."""
        here = datetime.fromtimestamp(moment, zone).replace(tzinfo=None)
        first, earliest = here.date() - timedelta(days=1), here - _MARGIN
        for number in range(FAR_DAYS):
            day = first + timedelta(days=number)
            best = None
            for at in self._moments(day, zone, earliest) if self.on(day) else ():
                best = min(at, best or at) if at > moment else best
                if best and at > best + _MARGIN.total_seconds():
                    break  # no clock jumps so far that an earlier one could follow
            if best:
                return best
        return None

    def before(self, moment: float, zone: ZoneInfo) -> float | None:
        """The last moment that is not after one; None when there was none in the nine years before."""
        today = datetime.fromtimestamp(moment, zone).date()
        for number in range(-1, FAR_DAYS):
            # A time that a jump of the clock moves may come after the first ones of the next day.
            days = (today - timedelta(days=number), today - timedelta(days=number + 1))
            found = [at for day in days if self.on(day) for at in self._moments(day, zone) if at <= moment]
            if found:
                return max(found)
        return None

    def between(self, after: float, until: float, zone: ZoneInfo, most: int) -> list[float]:
        """Every moment after one, up to and with another, oldest first; of more than `most` only the first."""
        found: list[float] = []
        while len(found) < most and (at := self.after(after, zone)) is not None and at <= until:
            found.append(at)
            after = at
        return found

    def _moments(self, day: date, zone: ZoneInfo, earliest: datetime | None = None) -> Iterator[float]:
        for hour in self.hours:
            if earliest and datetime(day.year, day.month, day.day, hour, 59) < earliest:  # noqa: DTZ001 - on the wall
                continue
            for minute in self.minutes:
                wall = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                both = (wall, wall.replace(fold=1)) if self.by_minutes else (wall,)
                for one in both:
                    at = one.astimezone(UTC)
                    exists = at.astimezone(zone).replace(tzinfo=None) == wall.replace(tzinfo=None, fold=0)
                    if exists or not self.by_minutes:
                        yield at.timestamp()


def read_cron(text: str) -> Cron:
    """What five fields, or a name, say; Invalid when they say nothing."""
    words = NAMED.get(text.strip().lower(), text).lower().split()
    if len(words) != 5 or len(text) > 500:
        raise Invalid(f"{text[:80]!r} is no schedule", _HINT)
    minutes, hours, days, months, weekdays = (_field(word, *rule) for word, rule in zip(words, FIELDS, strict=True))
    return Cron(
        tuple(sorted(minutes)), tuple(sorted(hours)), days, months, frozenset(day % 7 for day in weekdays),
        either=words[2][0] != "*" and words[4][0] != "*", by_minutes=words[1][0] == "*",
    )  # fmt: skip


def read_zone(name: str) -> ZoneInfo:
    """A time zone by its IANA name; Invalid when there is none."""
    try:
        if len(name) > 60 or name.startswith((".", "/")):
            raise ValueError(name)
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise Invalid(f"{name[:60]!r} is no time zone", "UTC, Asia/Dubai, Asia/Riyadh, Europe/London …") from error


def _field(text: str, what: str, low: int, high: int, names: dict[str, int]) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        begin, dash, end = span.partition("-")
        first, last = (low, high) if span == "*" else (_number(begin, names), _number(end if dash else begin, names))
        step = _number(step_text, {}) if slash else 1
        whole = low <= first <= last <= high and step > 0
        if not whole or (slash and span != "*" and not dash):
            raise Invalid(f"{part[:40]!r} is no {what}", f"{low} to {high}: 5, 1-5, */15, 10-50/10; {_HINT}")
        found |= set(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, names: dict[str, int]) -> int:
    if text in names:
        return names[text]
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else -1
