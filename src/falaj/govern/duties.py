"""Decides which laws, holds and contracts keep one version, until when. Pure; every deletion asks only this.

A statutory period starts at the event that its law names (`LegalRegime.retention`): the creation of the data, the last
procedure, or the end of the relationship. While the date of that event is not recorded, the duty is open-ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar

from falaj.core.data import dataclass
from falaj.core.label import Label
from falaj.govern.grants import is_in_scope
from falaj.govern.legal_calendars import compute_retention_end
from falaj.govern.legal_periods import CREATED, START_EVENT_TEXTS, START_EVENTS
from falaj.govern.legal_periods import RetentionPeriod as StatutoryPeriod
from falaj.govern.records import DutyFacts, KeepingDuty, LegalRegime, TransferGrant

RECORDED_EVENTS = tuple(event for event in START_EVENTS if event != CREATED)
"""Events whose date a person records; the date of creation is known."""
_RELEASE_HINT = "falaj catalog release ends a hold"
_RETAIN_HINT = "restrict it instead of deleting it"
_VERSIONS = ("dataset:", "model:", "code:")
_SECONDS_PER_YEAR, _SECONDS_PER_DAY = 31_557_600, 86_400


@dataclass(frozen=True, slots=True)
class RetentionSummary:
    """When the duties on a thing end, taken together."""

    COLUMNS: ClassVar = ("laws", "until", "open_ended")

    laws: tuple[str, ...]
    until: float
    """The latest date among the duties that have one; 0 when none has."""
    open_ended: bool
    """True when a duty has no date yet."""


def list_duties(
    facts: DutyFacts, regimes: Mapping[str, LegalRegime], grants: Sequence[TransferGrant], now: float
) -> tuple[KeepingDuty, ...]:
    """List every duty to keep that stands at `now`, holds first."""
    return (
        *_list_hold_duties(facts),
        *_list_retention_duties(facts, regimes, now),
        *_list_grant_duties(facts, regimes, grants, now),
        *_list_pending_duties(facts),
    )


def summarize_duties(duties: Sequence[KeepingDuty]) -> RetentionSummary:
    """Return the laws of these duties, and the date at which the last of them ends."""
    return RetentionSummary(
        tuple(dict.fromkeys(duty.law for duty in duties)),
        max((duty.until for duty in duties), default=0.0),
        any(not duty.until for duty in duties),
    )


def describe_until(until: float) -> str:
    """Write the end of a duty as a day, for people."""
    return datetime.fromtimestamp(until, UTC).date().isoformat() if until else "further notice"


def _list_hold_duties(facts: DutyFacts) -> Iterator[KeepingDuty]:
    ref = facts.ref
    if facts.label.holds:
        reason = f"{ref} is under legal hold: {', '.join(sorted(facts.label.holds))}"
        yield KeepingDuty("hold", "legal hold", "", reason, _RELEASE_HINT, 0.0, ref)
    for source in facts.held_sources:
        reason = f"{ref} was made from {source}, which is under legal hold"
        yield KeepingDuty("hold", "legal hold", "", reason, _RELEASE_HINT, 0.0, ref)


def _list_retention_duties(facts: DutyFacts, regimes: Mapping[str, LegalRegime], now: float) -> Iterator[KeepingDuty]:
    min_retain_s = facts.label.min_retain_s
    until = _compute_period_end(facts.made_at, min_retain_s)
    if min_retain_s and not 0 < until <= now:
        reason = (
            f"{facts.ref} must be kept {_describe_duration(min_retain_s)} from its "
            f"creation{_describe_remaining(until, now)}, as its label says"
        )
        yield KeepingDuty("min-retain", "label", "", reason, "its label sets how long it is kept", until, facts.ref)
    for tag in sorted(facts.label.regimes):
        regime = regimes.get(tag)
        if regime is None:
            reason = f"no profile describes the regime {tag}"
            hint = "falaj zones regimes lists the known ones"
            yield KeepingDuty(f"regime-unknown:{tag}", tag, "", reason, hint, 0.0, facts.ref)
        elif regime.retention is not None and (duty := _find_statutory_duty(facts, regime, regime.retention, now)):
            yield duty


def _find_statutory_duty(
    facts: DutyFacts, regime: LegalRegime, period: StatutoryPeriod, now: float
) -> KeepingDuty | None:
    started_at = facts.made_at if period.starts == CREATED else facts.events.get(period.starts, 0.0)
    until = compute_retention_end(period, started_at, regime.calendar) if started_at > 0 else 0.0
    if 0 < until <= now:
        return None
    period_text = f"{period.count} {period.unit} from {START_EVENT_TEXTS[period.starts]}"
    reason = f"{regime.id} keeps {facts.ref} at least {period_text}{_describe_remaining(until, now)}"
    hint = _RETAIN_HINT
    if not until and period.starts != CREATED:
        name = facts.ref if facts.ref.startswith(_VERSIONS) else "DATASET (what it was made from)"
        hint = f"{_RETAIN_HINT}; when it has happened: falaj catalog record-event {name} {period.starts} DATE"
    return KeepingDuty("min-retain", regime.id, period.source.article, reason, hint, until, facts.ref)


def _list_grant_duties(
    facts: DutyFacts, regimes: Mapping[str, LegalRegime], grants: Sequence[TransferGrant], now: float
) -> Iterator[KeepingDuty]:
    for grant in grants:
        if grant.src in facts.zones and _requires_copy(grant, facts, regimes, now):
            reason = f"the grant {grant.id} lets copies go on condition that this one stays"
            yield KeepingDuty(
                "retain-copy", grant.regime, grant.basis, reason, "revoke the grant first", grant.expires, facts.ref
            )


def _requires_copy(grant: TransferGrant, facts: DutyFacts, regimes: Mapping[str, LegalRegime], now: float) -> bool:
    basis = regimes[grant.regime].bases.get(grant.basis) if grant.regime in regimes else None
    return (
        (basis is None or "retain_copy_in" in basis.obligations)
        and not grant.revoked
        and grant.tenant == facts.tenant
        and now < grant.expires
        and is_in_scope(grant.scope, facts.ref)
    )


def _list_pending_duties(facts: DutyFacts) -> Iterator[KeepingDuty]:
    if facts.restricted:
        reason = "it is restricted: it may be kept and nothing else"
        hint = "the data protection officer lifts a restriction"
        yield KeepingDuty("restricted", "restriction", "", reason, hint, 0.0, facts.ref)
    for breach in facts.breaches:
        reason = f"{breach} is being investigated, and is about {facts.ref} or what it was made from"
        yield KeepingDuty("breach", "breach", "", reason, f"falaj privacy settle {breach} ends it", 0.0, facts.ref)
    for request in facts.requests:
        reason = f"the person asks for a copy of it: {request}"
        yield KeepingDuty("request", "request", "", reason, "answer that request first", 0.0, facts.ref)


def _compute_period_end(started_at: float, min_retain_s: int) -> float:
    return started_at + min_retain_s if started_at > 0 else 0.0


def _describe_remaining(until: float, now: float) -> str:
    if not until:
        return ", and that is not known"
    remaining_days = -(-(until - now) // _SECONDS_PER_DAY)
    return f": {remaining_days:.0f} days more, until {describe_until(until)}"


def _describe_duration(seconds: int) -> str:
    return (
        f"{seconds / _SECONDS_PER_YEAR:.0f} years"
        if seconds >= _SECONDS_PER_YEAR
        else f"{seconds / _SECONDS_PER_DAY:.0f} days"
    )


def is_personal(label: Label, columns: Sequence[Mapping[str, str]] = ()) -> bool:
    """True when a label or a column says that a thing holds data about people."""
    return bool(label.regimes - {"NONE"} or label.categories or any(column.get("category") for column in columns))
