"""What the law's numbers say: which basis a purpose may rest on, when something is due. Pure; every number is data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime

from falaj.core.errors import Invalid
from falaj.govern.records import Regime
from falaj.privacy.records import Clock

HOUR_S = 3600.0
BREACH, REQUEST = "breach", "request"


def check_basis(basis: str, regimes: Iterable[Regime]) -> None:
    """Invalid unless every regime knows this basis."""
    for regime in regimes:
        if regime.lawful_bases and basis not in regime.lawful_bases:
            raise Invalid(
                f"{regime.id} does not know the basis {basis[:40]!r}",
                f"it knows {', '.join(regime.lawful_bases)} ({regime.status}, checked: {regime.checked})",
            )


def clocks(timer: str, regimes: Iterable[Regime], since: float) -> tuple[Clock, ...]:
    """When each regime wants something done that became known at `since`; in seconds, so no time zone matters."""
    found = []
    for regime in sorted(regimes, key=lambda one: one.id):
        rule = regime.timers.get(timer)
        if rule is None:
            found.append(Clock(regime.id, regime.version, 0.0, "pending", "its profile sets no such time"))
            continue
        due = since + rule.hours * HOUR_S
        longest = due + rule.extend_hours * HOUR_S if rule.extend_hours else 0.0
        found.append(Clock(regime.id, regime.version, due, rule.status, rule.note, longest))
    return tuple(found)


def strictest(times: Sequence[Clock]) -> float:
    """The first moment at which something that nobody did yet is due; 0 when nothing is."""
    return min((one.due for one in times if one.due and not one.done), default=0.0)


def extended(times: Sequence[Clock]) -> tuple[Clock, ...]:
    """The same clocks, each as late as its regime lets it be; Invalid when the strictest lets nothing be extended."""
    later = tuple(replace(one, due=one.extended, extended=0.0) if one.extended else one for one in times)
    if strictest(later) <= strictest(times):
        first = min((one for one in times if one.due), key=lambda one: one.due, default=None)
        which = first.regime if first else "no regime"
        raise Invalid(f"{which} does not let this be extended", "answer it in time, or refuse it and say why")
    return later


def moment_of(text: str, now: float) -> float:
    """Seconds since 1970 of an instant with its offset, `2026-11-01T09:00:00+04:00`; now when none is given."""
    if not text:
        return now
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text[:60]!r} is no instant", "for example 2026-11-01T09:00:00+04:00") from None
    if found.tzinfo is None:
        raise Invalid(f"{text[:60]!r} does not say in which time zone", "add the offset, for example +04:00")
    if found.timestamp() > now + 60:
        raise Invalid(f"{text[:60]!r} is in the future", "say when it happened")
    return found.timestamp()


def day_of(text: str) -> str:
    """A day as ISO 8601 writes it, or Invalid."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise Invalid(f"{text[:40]!r} is no day", "for example 2027-06-30") from None


def today(now: float) -> str:
    """The day at a moment, in UTC."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def missing_texts(text: Mapping[str, str], languages: Sequence[str]) -> list[str]:
    """The languages in which nothing, or nothing but blanks, is said."""
    return [one for one in languages if not text.get(one, "").strip()]
