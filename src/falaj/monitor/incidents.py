"""Incidents: one for each cause, as people work on it: open, acknowledged, resolved. One part of the desk (service.py).

The loop opens them with the alert and closes those that are gone; a trouble that is back within a day is the same
incident, open again.
"""

from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.monitor import decide
from falaj.monitor.machine import BREAKAGE, Episode, Machine, machine_body, machine_in
from falaj.monitor.records import ACKNOWLEDGED, OPEN, RESOLVED, Incident, Verdict
from falaj.monitor.watches import Watches, endpoint_of, incident_ref, saved, watch_of
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record, going_on

INCIDENT = "incident"
MOST_PAGE, MOST_NOTES, MOST_NAMED, LONGEST = 1_000, 100, 10, 2_000


class Incidents(Watches):
    """What people do with incidents."""

    @verb()
    def incidents(
        self,
        ctx: Context,
        project: Annotated[str, "of one project only"] = "",
        state: Annotated[str, "open, acknowledged or resolved"] = "",
        limit: Annotated[int, "how many at most"] = 100,
        after: Annotated[str, "`more` of the last one before"] = "",
    ) -> tuple[Incident, ...]:
        """List incidents, newest first.

        Example:
            falaj monitor incidents --project fraud --state open
        """
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a list of {limit} incidents", f"ask for 1 to {MOST_PAGE}")
        if state not in ("", OPEN, ACKNOWLEDGED, RESOLVED):
            raise Invalid(f"no incident is {state[:40]!r}", f"{OPEN}, {ACKNOWLEDGED} or {RESOLVED}")
        terms = {"state": state} if state else {}
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells(INCIDENT)
            page = tx.find(INCIDENT, project=project, terms=terms, cells=cells, newest=True, after=after, limit=limit)
        return going_on([incident_in(record) for record in page.records], page.next)

    @verb(reads=("incident",))
    def incident(self, ctx: Context, incident: Annotated[Ref, "which incident"]) -> Incident:
        """Show one incident: what was found, since when, who looks after it, and what was said.

        Example:
            falaj monitor incident incident:fraud/score-3
        """
        with self._ledger.read(ctx) as tx:
            return incident_in(_need(tx, incident))

    @verb(writes=("incident",), group="control")
    def acknowledge(
        self,
        ctx: Context,
        incident: Annotated[Ref, "which incident"],
        note: Annotated[str, "what others should know"] = "",
    ) -> Incident:
        """Say that you look after an incident.

        Example:
            falaj monitor acknowledge incident:fraud/score-3 --note "the feed of yesterday was late"
        """
        with self._ledger.write(ctx) as tx:
            old = _need(tx, incident)
            found = incident_in(old)
            if found.state != OPEN:
                raise Conflict(f"{incident.bare} is {found.state}", "only an open one is acknowledged", incident)
            who = ctx.actor.behalf or ctx.actor.id
            made = replace(found, state=ACKNOWLEDGED, acknowledged_by=who, acknowledged_at=ctx.now())
            return self._said(ctx, tx, old, made, "monitor.acknowledge", note)

    @verb(writes=("incident",), group="control")
    def resolve(
        self,
        ctx: Context,
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
            old = _need(tx, incident)
            found = incident_in(old)
            if found.state == RESOLVED:
                raise Conflict(f"{incident.bare} is resolved already", "a note can be added to it", incident)
            who = ctx.actor.behalf or ctx.actor.id
            self._forget(ctx, tx, old, f"resolved by {who}")
            made = replace(found, state=RESOLVED, resolved_by=who, resolved_at=ctx.now(), cause=cause[:LONGEST])
            return self._said(ctx, tx, old, made, "monitor.resolve", "")

    @verb(writes=("incident",))
    def note(
        self,
        ctx: Context,
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
            old = _need(tx, incident)
            return self._said(ctx, tx, old, incident_in(old), "monitor.note", text)

    def _said(self, ctx: Context, tx: Writer, old: Record, made: Incident, event: str, note: str) -> Incident:
        if note.strip():
            line = f"{ctx.actor.behalf or ctx.actor.id}: {note.strip()[:LONGEST]}"
            made = replace(made, notes=(*made.notes, line)[-MOST_NOTES:])
        record = _put(tx, old, made, old.body["key"])
        told = made.cause if made.state == RESOLVED else note
        tx.emit(event, record.ref, endpoint=str(made.endpoint), what=made.what, state=made.state, note=told[:500])
        return replace(made, ref=record.ref.bare)

    def _forget(self, ctx: Context, tx: Writer, incident: Record, why: str) -> None:
        """The watch takes note, so that the windows of before open nothing again."""
        endpoint = Ref.parse(incident.body["endpoint"])
        record = tx.get(watch_of(endpoint))
        if record is not None:
            machine = decide.resolved(machine_in(record.body, str(endpoint)), incident.body["key"], ctx.now(), why)
            saved(tx, record, {**record.body, "machine": machine_body(machine), "state": machine.state})


def opened(tx: Writer, watch: Record, verdict: Verdict, now: float) -> Record:
    """The incident of an alert: a new one, or the one of this cause open again. One that is open learns the news."""
    endpoint, old = endpoint_of(watch.ref), of_cause(tx, watch, verdict.cause)
    if old is None:
        number = 1
        found = tx.find(INCIDENT, project=endpoint.project, terms={"watch": watch.body["id"]}, newest=True, limit=1)
        if found.records:
            number += int(found.records[0].key.name.rpartition("-")[2])
        while tx.get(incident_ref(endpoint, number)) is not None:
            number += 1  # of an endpoint that had this name before
        ref = incident_ref(endpoint, number)
        since = verdict.since or now
        made = Incident(ref, endpoint, OPEN, verdict.what, verdict.said[:LONGEST], since, now, verdict.evidence)
        return _put(tx, None, made, verdict.cause, watch)
    was = incident_in(old)
    if was.state != RESOLVED:
        made = replace(was, notes=(*was.notes, f"falaj: {verdict.said[:LONGEST]}")[-MOST_NOTES:])
    else:
        back = f"falaj: it is back; it was resolved by {was.resolved_by}: {was.cause}"
        made = replace(
            was, state=OPEN, said=verdict.said[:LONGEST], findings=verdict.evidence or was.findings, resolved_by="",
            resolved_at=0.0, cause="", notes=(*was.notes, back)[-MOST_NOTES:],
        )  # fmt: skip
    return _put(tx, old, made, verdict.cause)


def closed(tx: Writer, watch: Record, episode: Episode, now: float) -> Record | None:
    """The incident of a trouble that is over; None where a person was quicker."""
    old = of_cause(tx, watch, episode.cause)
    if old is None or old.body["state"] == RESOLVED:
        return None
    made = replace(incident_in(old), state=RESOLVED, resolved_by="falaj", resolved_at=now, cause=episode.why)
    return _put(tx, old, made, episode.cause)


def openly(verdict: Verdict) -> str:
    """What the log, and whoever hears it, is told: columns and figures, and no value that somebody sent.

    The words of findings may name values (a new category, say). They stand in the incident, under its label, where
    they can be erased; an event stays for ever.
    """
    found = [] if verdict.what == BREAKAGE else verdict.evidence[:MOST_NAMED]
    told = [f"{one.what} {one.column}".strip() + f": {one.measure} {one.value:.3g}" for one in found]
    return "; ".join(told) or verdict.said[:LONGEST]


def gone(old: Machine, new: Machine) -> list[Episode]:
    """Troubles that came to their end between the two."""
    known = {one.cause for one in old.episodes if one.open}
    return [one for one in new.episodes if not one.open and one.cause in known]


def of_cause(tx: Reader, watch: Record, cause: str) -> Record | None:
    """The incident of a cause."""
    found = tx.find(INCIDENT, project=watch.key.project, terms={"key": cause}, limit=1).records
    return found[0] if found else None


def open_of(tx: Reader, watch: Record) -> tuple[Ref, ...]:
    """Incidents of a watch that are not resolved, newest first."""
    terms = {"watch": str(watch.body["id"]), "live": "1"}
    page = tx.find(INCIDENT, project=watch.key.project, terms=terms, newest=True, limit=MOST_PAGE)
    return tuple(one.ref.bare for one in page.records)


def incident_in(record: Record) -> Incident:
    """An incident as people see it."""
    body = {name: value for name, value in record.body.items() if name not in ("key", "watch")}
    made: Incident = from_plain(Incident, {**body, "ref": str(record.ref.bare)})
    return made


def _put(tx: Writer, old: Record | None, made: Incident, cause: str, watch: Record | None = None) -> Record:
    id_ = str(watch.body["id"]) if watch is not None else str(old.body["watch"]) if old is not None else ""
    body: dict[str, Any] = {**to_plain(made), "key": cause, "watch": id_}
    live = "0" if made.state == RESOLVED else "1"
    terms = {"watch": id_, "key": cause, "state": made.state, "live": live}
    if old is not None:
        return tx.put(old.key, body, rev=old.rev, terms=terms)
    label, zone = (watch.label, watch.zone) if watch is not None else (None, "")
    return tx.put(made.ref, body, label=label, zone=zone, terms=terms)


def _need(tx: Reader, incident: Ref) -> Record:
    if incident.kind != INCIDENT:
        raise Invalid(f"{incident} names no incident", "for example incident:fraud/score-3", incident)
    return tx.need(incident.bare)
