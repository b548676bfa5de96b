"""Dates, moments, periods and durations in words, in Arabic and English."""

from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from falaj.core.errors import Invalid

_MONTHS = {
    "en": (
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ),
    "ar": (
        "يناير",
        "فبراير",
        "مارس",
        "أبريل",
        "مايو",
        "يونيو",
        "يوليو",
        "أغسطس",
        "سبتمبر",
        "أكتوبر",
        "نوفمبر",
        "ديسمبر",
    ),
}
NO_DATE = "\N{EN DASH}"
_MICROSECONDS_FROM = 1e13  # a Unix time above this is in microseconds, as events have it: 1e13 s is the year 318,857
_YEAR_S, _DAY_S, _HOUR_S, _MINUTE_S = 31_536_000, 86_400, 3600, 60
_UNITS = {
    "year": ("سنة واحدة", "سنتان", "سنوات", "سنة"),
    "month": ("شهر واحد", "شهران", "أشهر", "شهرًا"),
    "day": ("يوم واحد", "يومان", "أيام", "يومًا"),
    "hour": ("ساعة واحدة", "ساعتان", "ساعات", "ساعة"),
    "minute": ("دقيقة واحدة", "دقيقتان", "دقائق", "دقيقة"),
}


def find_time_zone(name: str) -> tzinfo:
    """Return the time zone of an IANA name; UTC for an empty name."""
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Invalid(
            f"time zone {name[:60]!r}: no such IANA name on this machine", "for example Asia/Dubai or UTC"
        ) from error


def describe_date(unix_time: float, language: str, timezone: str = "") -> str:
    """Return the day of a Unix time in words: "18 November 2026"; a dash for 0."""
    if not unix_time:
        return NO_DATE
    moment = _to_datetime(unix_time, timezone)
    return f"{moment.day} {_MONTHS[language][moment.month - 1]} {moment.year}"


def describe_day(day: str, language: str) -> str:
    """Return an ISO day in words: "31 March 2027"; as it is written if it is no day."""
    try:
        parsed = date.fromisoformat(day)
    except ValueError:
        return day
    return f"{parsed.day} {_MONTHS[language][parsed.month - 1]} {parsed.year}"


def describe_moment(unix_time: float, language: str, timezone: str = "") -> str:
    """Return day and time of a Unix time in words, with the offset from UTC; a dash for 0."""
    if not unix_time:
        return NO_DATE
    moment = _to_datetime(unix_time, timezone)
    connector = "الساعة" if language == "ar" else "at"
    return (
        f"{describe_date(unix_time, language, timezone)} {connector} "
        f"{moment:%H:%M} ({_describe_offset(moment, language)})"
    )


def describe_period(since: float, until: float, language: str, timezone: str = "") -> str:
    """Return a period in words. `since` 0 is from the beginning, `until` 0 is with no end; `until` is exclusive."""
    last = describe_date(until - 1, language, timezone) if until else ""
    first = describe_date(since, language, timezone) if since else ""
    if language == "ar":
        if first and last:
            return first if first == last else f"من {first} إلى {last}"
        return f"من {first}" if first else f"حتى {last}" if last else "منذ بدء التشغيل"
    if first and last:
        return first if first == last else f"{first} to {last}"
    return f"from {first}" if first else f"up to {last}" if last else "since operation began"


def describe_duration(seconds: float, language: str) -> str:
    """Return a duration in words, in its two largest units: "5 years", "30 days", "2 days 4 hours"."""
    remaining_s, parts = int(max(seconds, 0)), []
    for unit, length in (("year", _YEAR_S), ("day", _DAY_S), ("hour", _HOUR_S), ("minute", _MINUTE_S)):
        count, remaining_s = divmod(remaining_s, length)
        if count:
            parts.append(count_units(count, unit, language))
    if not parts:
        return "أقل من دقيقة" if language == "ar" else "less than a minute"
    return (" و" if language == "ar" else " ").join(parts[:2])


def count_units(count: int, unit: str, language: str) -> str:
    """Return a number of years, months, days, hours or minutes as the language counts them."""
    if language == "en":
        return f"{count} {unit}{'' if count == 1 else 's'}"
    single, dual, few, many = _UNITS[unit]
    if count == 1:
        return single
    if count == 2:
        return dual
    return f"{count} {few if 3 <= count % 100 <= 10 else many if count % 100 >= 11 else single.split()[0]}"


def _to_datetime(unix_time: float, timezone: str) -> datetime:
    seconds = unix_time / 1e6 if unix_time > _MICROSECONDS_FROM else unix_time
    try:
        return datetime.fromtimestamp(seconds, find_time_zone(timezone))
    except (OverflowError, OSError, ValueError) as error:
        raise Invalid(f"time {unix_time!r}: not a Unix time that a calendar has") from error


def _describe_offset(moment: datetime, language: str) -> str:
    offset = moment.utcoffset() or timedelta()
    if not offset:
        return "التوقيت العالمي" if language == "ar" else "UTC"
    minutes = int(offset.total_seconds() // 60)
    clock = f"{'+' if minutes >= 0 else '-'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
    return f"التوقيت العالمي {clock}" if language == "ar" else f"UTC{clock}"
