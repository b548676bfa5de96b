"""Writing: numbers, sizes, times and moments as people of each language read them. Moments are in Gulf time."""

import math
from datetime import UTC, datetime, timedelta, timezone

from falaj.console.markup import Html, escape_text, h
from falaj.console.words import Translator

# The Emirates have had no summer time, so their clock is an offset and needs no table of zones.
GULF_TIMEZONE = timezone(timedelta(hours=4), "GST")
_MONTHS = {
    "en": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
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
_TIME_UNITS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
NO_VALUE = Html("\u2013")
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_number(t: Translator, value: float | None) -> Html:
    """A count as it is; a measurement with four figures that say something."""
    if value is None or math.isnan(value):
        return NO_VALUE
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15 if math.isfinite(value) else False):
        return escape_text(t.digits(f"{int(value):,}"))
    if not math.isfinite(value):
        return Html("∞" if value > 0 else "-∞")
    number_text = f"{value:,.4g}" if 1e-4 <= abs(value) < 1e7 else f"{value:.3e}"
    return escape_text(t.digits(number_text))


def format_percent(t: Translator, share: float, decimals: int = 1) -> Html:
    """A share of one."""
    return escape_text(t.digits(f"{100 * share:.{decimals}f}%")) if math.isfinite(share) else NO_VALUE


def format_size(t: Translator, num_bytes: float) -> Html:
    """How many bytes, in the unit that reads best; units stay as engineers write them, in their own direction."""
    amount, unit = float(num_bytes), 0
    while amount >= 1024 and unit < len(_SIZE_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    number_text = f"{amount:.0f}" if unit == 0 or amount >= 100 else f"{amount:.1f}"
    return h.bdi(f"{t.digits(number_text)} {_SIZE_UNITS[unit]}", dir="ltr")


def format_duration(t: Translator, seconds: float) -> Html:
    """How long, in its two largest units."""
    if not math.isfinite(seconds):
        return NO_VALUE
    if 0 < seconds < 1:
        return h.bdi(f"{t.digits(f'{1000 * seconds:.3g}')} ms", dir="ltr")
    remaining_s, parts = max(0, round(seconds)), list[str]()
    for unit_s, letter in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        amount, remaining_s = divmod(remaining_s, unit_s)
        if amount or (unit_s == 1 and not parts):
            parts.append(f"{t.digits(str(amount))} {letter}")
        if len(parts) == 2:
            break
    return h.bdi(" ".join(parts), dir="ltr")


def format_moment(t: Translator, timestamp: float) -> str:
    """A moment in Gulf time."""
    local_time = datetime.fromtimestamp(timestamp, GULF_TIMEZONE)
    month, comma = _MONTHS[t.lang][local_time.month - 1], "،" if t.lang == "ar" else ","
    return t.digits(f"{local_time.day} {month} {local_time.year}") + comma + t.digits(f" {local_time:%H:%M}")


def format_relative_time(t: Translator, timestamp: float, now: float) -> Html:
    """How long ago, or how long until."""
    distance_s = abs(now - timestamp)
    if distance_s < 5:
        return t("console.just_now")
    unit_s, unit = next((unit_s, unit) for unit_s, unit in _TIME_UNITS if distance_s >= unit_s)
    count = int(distance_s // unit_s)
    return t(_AGO_MESSAGES[unit] if timestamp <= now else _UNTIL_MESSAGES[unit], n=count)


def render_timestamp(t: Translator, timestamp: float, now: float, *, is_relative: bool = False) -> Html:
    """A moment on a page: one of both ways to say it is shown, and the other when one points at it."""
    if not timestamp or not math.isfinite(timestamp):
        return NO_VALUE
    exact_text, relative_text = format_moment(t, timestamp), format_relative_time(t, timestamp, now)
    iso = datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return h.time(
        relative_text if is_relative else exact_text,
        datetime=iso,
        title=exact_text + " GST" if is_relative else relative_text,
    )


_AGO_MESSAGES = {
    "days": "console.days_ago",
    "hours": "console.hours_ago",
    "minutes": "console.minutes_ago",
    "seconds": "console.seconds_ago",
}
_UNTIL_MESSAGES = {
    "days": "console.in_days",
    "hours": "console.in_hours",
    "minutes": "console.in_minutes",
    "seconds": "console.in_seconds",
}
