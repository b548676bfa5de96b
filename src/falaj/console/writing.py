"""Writing: numbers, sizes, times and moments as people of each language read them. Moments are in Gulf time."""

import math
from datetime import UTC, datetime, timedelta, timezone

from falaj.console.markup import Html, h, text
from falaj.console.words import Words

# The Emirates have had no summer time, so their clock is an offset and needs no table of zones.
GULF = timezone(timedelta(hours=4), "GST")
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
_SPANS = ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
NOTHING = Html("\u2013")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(t: Words, value: float | None) -> Html:
    """A count as it is; a measurement with four figures that say something."""
    if value is None or math.isnan(value):
        return NOTHING
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15 if math.isfinite(value) else False):
        return text(t.digits(f"{int(value):,}"))
    if not math.isfinite(value):
        return Html("∞" if value > 0 else "-∞")
    written = f"{value:,.4g}" if 1e-4 <= abs(value) < 1e7 else f"{value:.3e}"
    return text(t.digits(written))


def percent(t: Words, share: float, places: int = 1) -> Html:
    """A share of one."""
    return text(t.digits(f"{100 * share:.{places}f}%")) if math.isfinite(share) else NOTHING


def size(t: Words, num_bytes: float) -> Html:
    """How many bytes, in the unit that reads best; units stay as engineers write them, in their own direction."""
    amount, unit = float(num_bytes), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    written = f"{amount:.0f}" if unit == 0 or amount >= 100 else f"{amount:.1f}"
    return h.bdi(f"{t.digits(written)} {_UNITS[unit]}", dir="ltr")


def duration(t: Words, seconds: float) -> Html:
    """How long, in its two largest units."""
    if not math.isfinite(seconds):
        return NOTHING
    if 0 < seconds < 1:
        return h.bdi(f"{t.digits(f'{1000 * seconds:.3g}')} ms", dir="ltr")
    whole, said = max(0, round(seconds)), list[str]()
    for span, letter in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        amount, whole = divmod(whole, span)
        if amount or (span == 1 and not said):
            said.append(f"{t.digits(str(amount))} {letter}")
        if len(said) == 2:
            break
    return h.bdi(" ".join(said), dir="ltr")


def moment(t: Words, at: float) -> str:
    """A moment in Gulf time."""
    there = datetime.fromtimestamp(at, GULF)
    month, comma = _MONTHS[t.lang][there.month - 1], "،" if t.lang == "ar" else ","
    return t.digits(f"{there.day} {month} {there.year}") + comma + t.digits(f" {there:%H:%M}")


def relative(t: Words, at: float, now: float) -> Html:
    """How long ago, or how long until."""
    away = abs(now - at)
    if away < 5:
        return t("console.just_now")
    span, unit = next((span, unit) for span, unit in _SPANS if away >= span)
    count = int(away // span)
    return t(_AGO[unit] if at <= now else _UNTIL[unit], n=count)


def stamp(t: Words, at: float, now: float, *, ago: bool = False) -> Html:
    """A moment on a page: one of both ways to say it is shown, and the other when one points at it."""
    if not at or not math.isfinite(at):
        return NOTHING
    exact, near = moment(t, at), relative(t, at, now)
    iso = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return h.time(near if ago else exact, datetime=iso, title=exact + " GST" if ago else near)


_AGO = {
    "days": "console.days_ago",
    "hours": "console.hours_ago",
    "minutes": "console.minutes_ago",
    "seconds": "console.seconds_ago",
}
_UNTIL = {
    "days": "console.in_days",
    "hours": "console.in_hours",
    "minutes": "console.in_minutes",
    "seconds": "console.in_seconds",
}
