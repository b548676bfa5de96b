"""Checks of what a caller says: the lawful basis of a purpose, moments, days, languages. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime

from falaj.core.errors import Invalid
from falaj.govern.records import LegalRegime


def require_known_basis(basis: str, regimes: Iterable[LegalRegime]) -> None:
    """Invalid unless every regime knows this basis."""
    for regime in regimes:
        if regime.lawful_bases and basis not in regime.lawful_bases:
            raise Invalid(
                f"{regime.id} does not know the basis {basis[:40]!r}",
                f"it knows {', '.join(regime.lawful_bases)} ({regime.status}, checked: {regime.checked})",
            )


def parse_moment(text: str, now: float) -> float:
    """Seconds since 1970 of an instant with its offset, `2026-11-01T09:00:00+04:00`; now when none is given."""
    if not text:
        return now
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text[:60]!r} is no instant", "for example 2026-11-01T09:00:00+04:00") from None
    if parsed.tzinfo is None:
        raise Invalid(f"{text[:60]!r} does not say in which time zone", "add the offset, for example +04:00")
    if parsed.timestamp() > now + 60:
        raise Invalid(f"{text[:60]!r} is in the future", "say when it happened")
    return parsed.timestamp()


def parse_day(text: str) -> str:
    """A day as ISO 8601 writes it, or Invalid."""
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise Invalid(f"{text[:40]!r} is no day", "for example 2027-06-30") from None


def format_day(now: float) -> str:
    """The day at a moment, in UTC."""
    return datetime.fromtimestamp(now, UTC).date().isoformat()


def list_missing_languages(texts_by_language: Mapping[str, str], languages: Sequence[str]) -> list[str]:
    """The languages in which nothing, or nothing but blanks, is said."""
    return [language for language in languages if not texts_by_language.get(language, "").strip()]
