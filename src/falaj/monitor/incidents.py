"""Incidents: one for each cause, as people work on it: open, acknowledged, resolved. One part of the desk (service.py).

The loop opens them with the alert and closes those that are gone; a trouble that is back within a day is the same
incident, open again.
"""

from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.monitor import watch_decisions
from falaj.monitor.records import INCIDENT_ACKNOWLEDGED, INCIDENT_OPEN, INCIDENT_RESOLVED, Incident, WatchVerdict
from falaj.monitor.watch_machine import GROUP_BREAKAGE, AlarmEpisode, WatchMachine, encode_machine, read_machine
from falaj.monitor.watch_operations import (
    WatchOperations,
    get_watched_endpoint,
    make_incident_ref,
    make_watch_ref,
    save_watch,
)
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord, with_next_cursor

INCIDENT_KIND = "incident"
MAX_PAGE, MAX_NOTES, MAX_NAMED_FINDINGS, MAX_TEXT_CHARS = 1_000, 100, 10, 2_000


class IncidentOperations(WatchOperations):
    """What people do with incidents."""

    @operation()
    def incidents(
        self,
        ctx: CallContext,
        project: Annotated[str, "of one project only"] = "",
        state: Annotated[str, "open, acknowledged or resolved"] = "",
        limit: Annotated[int, "how many at most"] = 100,
        after: Annotated[str, "`more` of the last one before"] = "",
    ) -> tuple[Incident, ...]:
        """List incidents, newest first.

        Example:
            falaj monitor incidents --project fraud --state open
        """
        if not 0 < limit <= MAX_PAGE:
            raise Invalid(f"a list of {limit} incidents", f"ask for 1 to {MAX_PAGE}")
        if state not in ("", INCIDENT_OPEN, INCIDENT_ACKNOWLEDGED, INCIDENT_RESOLVED):
            raise Invalid(
                f"no incident is {state[:40]!r}", f"{INCIDENT_OPEN}, {INCIDENT_ACKNOWLEDGED} or {INCIDENT_RESOLVED}"
            )
        terms = {"state": state} if state else {}
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells(INCIDENT_KIND)
            page = tx.find(
                INCIDENT_KIND, project=project, terms=terms, scopes=cells, newest_first=True, after=after, limit=limit
            )
        return with_next_cursor([read_incident(record) for record in page.records], page.next)

    @operation(reads=("incident",))
    def incident(self, ctx: CallContext, incident: Annotated[Ref, "which incident"]) -> Incident:
        """Show one incident: what was found, since when, who looks after it, and what was said.

        Example:
            falaj monitor incident incident:fraud/score-3
        """
        with self._ledger.read(ctx) as tx:
            return read_incident(_require_incident(tx, incident))

    @operation(writes=("incident",), group="control")
    def acknowledge(
        self,
        ctx: CallContext,
        incident: Annotated[Ref, "which incident"],
        note: Annotated[str, "what others should know"] = "",
    ) -> Incident:
        """Say that you look after an incident.

        Example:
            falaj monitor acknowledge incident:fraud/score-3 --note "the feed of yesterday was late"
        """
        with self._ledger.write(ctx) as tx:
            old = _require_incident(tx, incident)
            current = read_incident(old)
            if current.state != INCIDENT_OPEN:
                raise Conflict(f"{incident.bare} is {current.state}", "only an open one is acknowledged", incident)
            actor_id = ctx.actor.behalf or ctx.actor.id
            changed = replace(current, state=INCIDENT_ACKNOWLEDGED, acknowledged_by=actor_id, acknowledged_at=ctx.now())
            return self._save_change(ctx, tx, old, changed, "monitor.acknowledge", note)

    @operation(writes=("incident",), group="control")
    def resolve(
        self,
        ctx: CallContext,
        incident: Annotated[Ref, "which incident"],
        cause: Annotated[str, "what it was, and what was done about it"],
    ) -> Incident:
        """Close an incident with its cause. Should the trouble show again within a day it is open again.

        Example:
            falaj monitor resolve incident:fraud/score-3 --cause "the bank changed its codes; the feed maps them now"
        """
        if not cause.strip():
            raise Invalid("an incident is resolved with its cause", "--cause says what it was")
        with self._ledger.write(ctx) as tx:
            old = _require_incident(tx, incident)
            current = read_incident(old)
            if current.state == INCIDENT_RESOLVED:
                raise Conflict(f"{incident.bare} is resolved already", "a note can be added to it", incident)
            actor_id = ctx.actor.behalf or ctx.actor.id
            self._resolve_in_watch(ctx, tx, old, f"resolved by {actor_id}")
            changed = replace(
                current,
                state=INCIDENT_RESOLVED,
                resolved_by=actor_id,
                resolved_at=ctx.now(),
                cause=cause[:MAX_TEXT_CHARS],
            )
            return self._save_change(ctx, tx, old, changed, "monitor.resolve", "")

    @operation(writes=("incident",))
    def note(
        self,
        ctx: CallContext,
        incident: Annotated[Ref, "which incident"],
        text: Annotated[str, "what others should know"],
    ) -> Incident:
        """Add a note to an incident.

        Example:
            falaj monitor note incident:fraud/score-3 "asked the data team"
        """
        if not text.strip():
            raise Invalid("a note without words", "say what others should know")
        with self._ledger.write(ctx) as tx:
            old = _require_incident(tx, incident)
            return self._save_change(ctx, tx, old, read_incident(old), "monitor.note", text)

    def _save_change(
        self, ctx: CallContext, tx: LedgerWriter, old: LedgerRecord, changed: Incident, event: str, note: str
    ) -> Incident:
        if note.strip():
            line = f"{ctx.actor.behalf or ctx.actor.id}: {note.strip()[:MAX_TEXT_CHARS]}"
            changed = replace(changed, notes=(*changed.notes, line)[-MAX_NOTES:])
        record = _put_incident(tx, old, changed, old.body["key"])
        note_text = changed.cause if changed.state == INCIDENT_RESOLVED else note
        tx.emit(
            event,
            record.ref,
            endpoint=str(changed.endpoint),
            what=changed.what,
            state=changed.state,
            note=note_text[:500],
        )
        return replace(changed, ref=record.ref.bare)

    def _resolve_in_watch(self, ctx: CallContext, tx: LedgerWriter, incident: LedgerRecord, why: str) -> None:
        """The watch takes note, so that the windows of before open nothing again."""
        endpoint = Ref.parse(incident.body["endpoint"])
        record = tx.get(make_watch_ref(endpoint))
        if record is not None:
            machine = watch_decisions.resolve_cause(
                read_machine(record.body, str(endpoint)), incident.body["key"], ctx.now(), why
            )
            save_watch(tx, record, {**record.body, "machine": encode_machine(machine), "state": machine.state})


def open_incident(tx: LedgerWriter, watch: LedgerRecord, verdict: WatchVerdict, now: float) -> LedgerRecord:
    """The incident of an alert: a new one, or the one of this cause open again. One that is open learns the news."""
    endpoint, old = get_watched_endpoint(watch.ref), find_by_cause(tx, watch, verdict.cause)
    if old is None:
        number = 1
        newest_page = tx.find(
            INCIDENT_KIND, project=endpoint.project, terms={"watch": watch.body["id"]}, newest_first=True, limit=1
        )
        if newest_page.records:
            number += int(newest_page.records[0].key.name.rpartition("-")[2])
        while tx.get(make_incident_ref(endpoint, number)) is not None:
            number += 1  # of an endpoint that had this name before
        ref = make_incident_ref(endpoint, number)
        since = verdict.since or now
        incident = Incident(
            ref, endpoint, INCIDENT_OPEN, verdict.what, verdict.said[:MAX_TEXT_CHARS], since, now, verdict.evidence
        )
        return _put_incident(tx, None, incident, verdict.cause, watch)
    current = read_incident(old)
    if current.state != INCIDENT_RESOLVED:
        incident = replace(current, notes=(*current.notes, f"falaj: {verdict.said[:MAX_TEXT_CHARS]}")[-MAX_NOTES:])
    else:
        reopened_note = f"falaj: it is back; it was resolved by {current.resolved_by}: {current.cause}"
        incident = replace(
            current,
            state=INCIDENT_OPEN,
            said=verdict.said[:MAX_TEXT_CHARS],
            findings=verdict.evidence or current.findings,
            resolved_by="",
            resolved_at=0.0,
            cause="",
            notes=(*current.notes, reopened_note)[-MAX_NOTES:],
        )
    return _put_incident(tx, old, incident, verdict.cause)


def close_incident(tx: LedgerWriter, watch: LedgerRecord, episode: AlarmEpisode, now: float) -> LedgerRecord | None:
    """The incident of a trouble that is over; None where a person was quicker."""
    open_record = find_by_cause(tx, watch, episode.cause)
    if open_record is None or open_record.body["state"] == INCIDENT_RESOLVED:
        return None
    closed_incident = replace(
        read_incident(open_record), state=INCIDENT_RESOLVED, resolved_by="falaj", resolved_at=now, cause=episode.why
    )
    return _put_incident(tx, open_record, closed_incident, episode.cause)


def to_public_text(verdict: WatchVerdict) -> str:
    """What the log, and whoever hears it, is told: columns and figures, and no value that somebody sent.

    The words of findings may name values (a new category, say). They stand in the incident, under its label, where
    they can be erased; an event stays for ever.
    """
    named_findings = [] if verdict.what == GROUP_BREAKAGE else verdict.evidence[:MAX_NAMED_FINDINGS]
    texts = [f"{item.what} {item.column}".strip() + f": {item.measure} {item.value:.3g}" for item in named_findings]
    return "; ".join(texts) or verdict.said[:MAX_TEXT_CHARS]


def list_ended_episodes(old: WatchMachine, new: WatchMachine) -> list[AlarmEpisode]:
    """Troubles that came to their end between the two."""
    open_causes = {episode.cause for episode in old.episodes if episode.open}
    return [episode for episode in new.episodes if not episode.open and episode.cause in open_causes]


def find_by_cause(tx: LedgerReader, watch: LedgerRecord, cause: str) -> LedgerRecord | None:
    """The incident of a cause."""
    records = tx.find(INCIDENT_KIND, project=watch.key.project, terms={"key": cause}, limit=1).records
    return records[0] if records else None


def list_open(tx: LedgerReader, watch: LedgerRecord) -> tuple[Ref, ...]:
    """Incidents of a watch that are not resolved, newest first."""
    terms = {"watch": str(watch.body["id"]), "live": "1"}
    page = tx.find(INCIDENT_KIND, project=watch.key.project, terms=terms, newest_first=True, limit=MAX_PAGE)
    return tuple(record.ref.bare for record in page.records)


def read_incident(record: LedgerRecord) -> Incident:
    """An incident as people see it."""
    body = {name: value for name, value in record.body.items() if name not in ("key", "watch")}
    parsed: Incident = from_plain(Incident, {**body, "ref": str(record.ref.bare)})
    return parsed


def _put_incident(
    tx: LedgerWriter, old: LedgerRecord | None, incident: Incident, cause: str, watch: LedgerRecord | None = None
) -> LedgerRecord:
    id_ = str(watch.body["id"]) if watch is not None else str(old.body["watch"]) if old is not None else ""
    body: dict[str, Any] = {**to_plain(incident), "key": cause, "watch": id_}
    live_term = "0" if incident.state == INCIDENT_RESOLVED else "1"
    terms = {"watch": id_, "key": cause, "state": incident.state, "live": live_term}
    if old is not None:
        return tx.put(old.key, body, rev=old.rev, terms=terms)
    label, zone = (watch.label, watch.zone) if watch is not None else (None, "")
    return tx.put(incident.ref, body, label=label, zone=zone, terms=terms)


def _require_incident(tx: LedgerReader, incident: Ref) -> LedgerRecord:
    if incident.kind != INCIDENT_KIND:
        raise Invalid(f"{incident} names no incident", "for example incident:fraud/score-3", incident)
    return tx.need(incident.bare)
