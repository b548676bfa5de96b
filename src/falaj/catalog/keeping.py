"""Keeping: holds, deletion that leaves a tombstone, copies in other zones, and what stays in the local cache."""

import hashlib
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

from falaj.catalog.life_records import Kept
from falaj.catalog.limits import MESSAGE, check_text
from falaj.catalog.origins import covered
from falaj.catalog.records import KINDS, STAGES, Version, VersionPage
from falaj.catalog.shelf import FINDABLE, Act, Shelf, as_version, nearest, sight, tree_of
from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.duties import RECORDED_EVENTS, is_personal
from falaj.govern.duty_facts import EVENTS
from falaj.govern.grants import outside
from falaj.govern.records import KeepingDuty
from falaj.govern.refusals import STEWARD
from falaj.govern.regimes import JURISDICTION
from falaj.store.ledger import Reader, Writer
from falaj.store.objects import close_intent, open_intent, refresh_intent
from falaj.store.records import Record

DAY_S = 86_400
DELETE_ACTION = "catalog.delete"
WHY = "why"
_WHY = r"[^\s,=*][^,=*\r\n\0]{0,199}"
_NAMED = 5


class Keeping(Shelf):
    """How long a version stays, and where."""

    @verb(reads=("name",), group="govern")
    def hold(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        why: Annotated[str, "the case it is kept for, for example 'case 2027-114'"],
    ) -> Version:
        """Put a version under a legal hold: it cannot be deleted until the hold is released.

        What is made from it, and the next version of the same name while this is the newest, is under the hold too;
        what was made from it before cannot be deleted either while the hold stands.

        Example:
            falaj catalog hold dataset:fraud/tx@v3 "case 2027-114"
        """
        if not re.fullmatch(_WHY, why):
            raise Invalid(f"{why[:60]!r} cannot name a hold", "a few words without , = and *")
        with self._ledger.write(ctx) as tx:
            record = self._live(tx, name)
            label = replace(record.label, holds=record.label.holds | {why})
            return self._relabel(tx, record, label, "catalog.hold", why)

    @verb(reads=("name",), group="govern")
    def release(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        why: Annotated[str, "the hold that ends, as show names it"],
    ) -> Version:
        """Release a legal hold. Others that stand on the version stay.

        Example:
            falaj catalog release dataset:fraud/tx@v3 "case 2027-114"
        """
        with self._ledger.write(ctx) as tx:
            record = self._live(tx, name)
            if why not in record.label.holds:
                held = ", ".join(sorted(record.label.holds)) or "none"
                raise NotFound(f"{record.ref} is not under the hold {why[:60]!r}", f"holds on it: {held}", record.ref)
            label = replace(record.label, holds=record.label.holds - {why})
            return self._relabel(tx, record, label, "catalog.release", why)

    @verb(reads=("name",), group="govern")
    def record_event(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        event: Annotated[str, f"what happened: {' or '.join(RECORDED_EVENTS)}"],
        at: Annotated[str, "the day, 2026-11-01, or the instant with its offset"],
        reason: Annotated[str, "how you know, for the log"],
    ) -> Version:
        """Record when something happened from which a law counts how long a version must be kept.

        `end-of-relationship` is when that with the last person in it ended, `last-procedure` the last health procedure.
        Until it is recorded the duty has no end. It counts for all that was made from this version, too.

        Example:
            falaj catalog record-event dataset:bank/accounts@v3 end-of-relationship 2026-06-30 --reason "file 44"
        """
        check_text("the reason", reason, MESSAGE)
        if event not in RECORDED_EVENTS:
            raise Invalid(f"event {event[:40]!r}: expected {' or '.join(RECORDED_EVENTS)}", "name one of them", name)
        if not reason.strip():
            raise Invalid("the date of an event needs a reason", "--reason says how you know, for the log", name)
        moment = parse_day(at, ctx.now())
        with self._ledger.write(ctx) as tx:
            record = self._live(tx, name)
            before = record.body.get(EVENTS) or {}
            record = self._rewrite(tx, record, **{EVENTS: {**before, event: moment}})
            tx.emit("catalog.record_event", record.ref, event=event, date=at, before=before.get(event, 0.0), why=reason)
            return as_version(record, self._aliases(tx, name))

    @verb(reads=("names",))
    def kept(self, ctx: Context, names: Annotated[tuple[Ref, ...], "which versions"]) -> tuple[Kept, ...]:
        """Say which of these versions (blobs, too) must be kept now: by which law, hold or contract, why, until when.

        Example:
            falaj catalog kept dataset:fraud/tx@v2 dataset:fraud/tx@v3
        """
        with self._ledger.read(ctx) as tx:
            records = [tx.get(self._pinned(tx, name)) for name in names]
            live = [record for record in records if record is not None and record.body.get("state", "live") == "live"]
            sees = sight(self._ledger, ctx, live[0].ref) if live else None
            duties = self._zones.find_duties(ctx, live, sees=sees)
        return tuple(as_kept(ref, each) for ref, each in duties.items() if each)

    @verb(reads=("name",), group="erase")
    def delete(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        reason: Annotated[str, "why, for the log"],
        force: Annotated[bool, "also when others were made from it"] = False,
    ) -> Version:
        """Delete a version. It can no longer be read, and its bytes go when nothing else needs them.

        Refused while a hold (also on what it was made from), a retention period of its label or of a law, a contract
        or an open breach demands that it is kept, while it is in staging or production, and, unless forced, while other
        versions were made from it. Who is no data steward needs a second person for a dataset with personal data:
        the refusal says how to ask. A tombstone stays with its name, label, root and the reason. `falaj audit prove`
        proves the deletion, `falaj audit impact` says who would be hit.

        Example:
            falaj catalog delete dataset:fraud/tx@v2 --reason "consent withdrawn"
        """
        check_text("the reason", reason, MESSAGE)
        if not reason.strip():
            raise Invalid("a deletion needs a reason", "--reason says why, for the log", name)
        with self._ledger.write(ctx) as tx:
            record = self._live(tx, name)
            aliases = [alias for alias, to in self._aliases(tx, name).items() if to == record.key.version]
            if duties := self._duties(ctx, record):
                kept = as_kept(record.ref, duties)
                raise Denied(kept.why, kept.do, kept.ref)
            _check_stages(record.ref, aliases)
            self._check_second_person(ctx, record)
            made = self._made_from(tx, record.ref)
            if made and not force:
                raise _needed(record.ref, made, self._seen(ctx, record.ref, made))
            permits = {zone: ctx.permit("delete", str(name.bare), zone) for zone in record.body["zones"]}
            for zone, permit in permits.items():
                self._blobs.delete(ctx, str(name.bare), zone, tree_of(record).batches[0].bundle, permit)
            for alias in aliases:
                self._point(tx, name, alias, "", Act("delete", reason))
            return self._bury(tx, ctx, record, reason, len(made))

    @verb(reads=("name",), heads=("name",))
    def deleted(
        self,
        ctx: Context,
        name: Annotated[Ref, "the name, without a version"],
        why: Annotated[str, "the reason that was given, up to its first colon"],
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 1000,
    ) -> VersionPage:
        """List the tombstones of versions of a name that were deleted for a reason.

        Example:
            falaj catalog deleted dataset:fraud/tx "consent withdrawn"
        """
        of = (name.kind, name.project, name.name)
        with self._ledger.read(ctx) as tx:
            # Tombstones of names that are older than this question are not found by it: those are looked through.
            terms = {WHY: _cause(why)} if tx.need(name.bare).body.get(FINDABLE) else {}
            found, following = self._page(tx, ctx, of, terms, after, limit)
            stones = [as_version(one, {}) for one in found if one.body.get("state") == "deleted"]
            sees = sight(self._ledger, ctx, name)
            wanted = (covered(stone, sees) for stone in stones if _cause(stone.message) == _cause(why))
            return VersionPage(tuple(wanted), following)

    @verb(reads=("name",), group="move", into="to", outside=True)
    def copy(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        to: Annotated[str, "the zone that shall have a copy"],
    ) -> Version:
        """Copy a version into another zone, encrypted anew under that zone's keys.

        Allowed only where its label may lie in that zone, or where a transfer grant with two approvers says so. A copy
        that broke off is taken up where it stopped when it is asked for again.

        Example:
            falaj catalog copy dataset:fraud/tx@v3 --to difc
        """
        with self._ledger.read(ctx) as tx:
            record = self._live(tx, name)
            aliases = self._aliases(tx, name)
        if to in record.body["zones"]:
            return as_version(record, aliases)
        thing, source = str(name.bare), nearest(record, ctx)
        self._ledger.retry(ctx, lambda tx: tx.emit("catalog.copy", record.ref, phase="begin", source=source, to=to))
        # One intent over all batches: the first is still safe when the last one arrives.
        intent = self._blobs.project(ctx, lambda tx: open_intent(tx, ctx, "copy", thing, to))
        try:
            for batch in tree_of(record).batches:
                permits = (ctx.permit("read", thing, source), ctx.permit("copy", thing, to))
                self._blobs.copy(ctx, thing, batch.bundle, source, to, permits)
                self._blobs.project(ctx, lambda tx: refresh_intent(tx, intent, ctx.now()))
            return self._ledger.retry(ctx, lambda tx: self._add_zone(tx, ctx, record.ref, source, to))
        finally:
            self._blobs.project(ctx, lambda tx: close_intent(tx, intent))

    @verb(reads=("name",), group="move")
    def carry(
        self,
        ctx: Context,
        name: Annotated[Ref, "which version; the newest when none is given"],
        to: Annotated[str, "where it goes, as those who read the log shall see it"],
        country: Annotated[str, "whose law holds there: a country, AE-DIFC or AE-ADGM"] = "",
    ) -> Version:
        """Say that you carry a version out of the platform, and where to; whoever may not, hears it here.

        Allowed only where its label may go, or where a transfer grant with two approvers says so. Without a country
        only what is open goes; of hosts in the setting `registries` the platform knows it. `falaj catalog push` does
        this before it sends anything.

        Example:
            falaj catalog carry model:fraud/scorer@v7 registry.example/fraud/scorer:v7 --country AE
        """
        if not 0 < len(to) <= 500:
            raise Invalid("a place of no or too many letters", "name where it goes in at most 500 characters", name)
        law = self._law_at(to, country)
        ctx.permit("egress", str(name.bare), outside(law))
        with self._ledger.write(ctx) as tx:
            record = self._live(tx, name)
            tx.emit("catalog.carry", record.ref, to=to, country=law)
            return as_version(record, self._aliases(tx, name))

    @verb(reads=("name",), group="write")
    def pin(self, ctx: Context, name: Annotated[Ref, "which version; the newest when none is given"]) -> Version:
        """Keep a version in the block cache of the server that answers, whatever else is read there.

        Example:
            falaj catalog pin dataset:fraud/tx@v3
        """
        return self._set_pin(ctx, name, pinned=True)

    @verb(reads=("name",), group="write")
    def unpin(self, ctx: Context, name: Annotated[Ref, "which version; the newest when none is given"]) -> Version:
        """Let the block cache drop a version again.

        Example:
            falaj catalog unpin dataset:fraud/tx@v3
        """
        return self._set_pin(ctx, name, pinned=False)

    @verb(reads=("name",))
    def users(
        self, ctx: Context, name: Annotated[Ref, "which version; the newest when none is given"]
    ) -> tuple[Ref, ...]:
        """Say which versions name this one among what they were made from; `falaj audit lineage` goes further.

        Example:
            falaj catalog users dataset:fraud/tx@v3
        """
        with self._ledger.read(ctx) as tx:
            ref = self._pinned(tx, name)
            return tuple(map(Ref.parse, self._seen(ctx, ref, self._made_from(tx, ref))))

    def _law_at(self, to: str, country: str) -> str:
        """Whose law holds where something goes: as this installation knows it of the host, else as its carrier says."""
        host, said = to.partition("/")[0].lower().removesuffix(":443"), country.upper()
        known = self._registries.get(host, "")
        if said and not JURISDICTION.fullmatch(said):
            raise Invalid(f"{country!r:.40} is no country", "two letters such as AE, or AE-DIFC or AE-ADGM")
        if known and said not in ("", known):
            hint = "leave --country out; whoever runs this installation can change the setting `registries`"
            raise Invalid(f"{host} stands in {known}, as this installation is set", hint)
        return known or said

    def _set_pin(self, ctx: Context, name: Ref, *, pinned: bool) -> Version:
        with self._ledger.write(ctx) as tx:
            record = self._rewrite(tx, self._live(tx, name), pinned=pinned)
            tx.emit("catalog.pin" if pinned else "catalog.unpin", record.ref)
            tx.after(lambda durable: self._pin_bytes(ctx, record, pinned=pinned) if durable else None)
            return as_version(record, self._aliases(tx, name))

    def _pin_bytes(self, ctx: Context, record: Record, *, pinned: bool) -> None:
        for batch in tree_of(record).batches:
            self._blobs.pin(ctx, nearest(record, ctx), batch.bundle, pinned=pinned)

    def _relabel(self, tx: Writer, record: Record, label: Label, said: str, why: str) -> Version:
        record = tx.put(record.ref, record.body, rev=record.rev, label=label)
        tx.emit(said, record.ref, why=why, holds=", ".join(sorted(label.holds))[:500])
        return as_version(record, self._aliases(tx, record.ref))

    def _add_zone(self, tx: Writer, ctx: Context, ref: Ref, source: str, to: str) -> Version:
        record = self._live(tx, ref)
        for batch in tree_of(record).batches:
            self._blobs.hold(tx, ctx, to, batch.bundle)
        zones = list(dict.fromkeys((*record.body["zones"], to)))
        terms = {**record.terms, f"at.{to}": "yes"}
        record = tx.put(ref, {**record.body, "zones": zones}, rev=record.rev, label=record.label, terms=terms)
        size = record.body["size"]
        tx.emit("catalog.copy", ref, phase="done", source=source, to=to, root=record.body["root"], size_bytes=size)
        return as_version(record, self._aliases(tx, ref))

    def _made_from(self, tx: Reader, ref: Ref) -> list[Record]:
        """Versions that are live and name this one among what they were made from."""
        pages = (tx.find(kind, terms={f"from.{ref}": "yes"}, limit=1000) for kind in KINDS)
        return [record for page in pages for record in page.records]

    def _duties(self, ctx: Context, record: Record) -> tuple[KeepingDuty, ...]:
        """Every duty to keep a version: the one function that deletions, lists and erasures ask."""
        return self._zones.find_duties(ctx, (record,), sees=sight(self._ledger, ctx, record.ref))[record.ref]

    def _check_second_person(self, ctx: Context, record: Record) -> None:
        """Denied where somebody whose work is not the data would delete personal data alone."""
        columns = (record.body.get("table") or {}).get("columns", ())
        if record.key.kind == "dataset" and STEWARD not in ctx.actor.roles and is_personal(record.label, columns):
            digest = hashlib.sha256(f"{record.ref} {record.body['root']}".encode()).hexdigest()
            self._approvals.demand(ctx, DELETE_ACTION, f"sha256:{digest}", needs=1, authors=(ctx.actor.id,))

    def _seen(self, ctx: Context, ref: Ref, made: list[Record]) -> list[str]:
        sees = sight(self._ledger, ctx, ref)
        return [str(record.ref) for record in made if sees(str(record.ref))]

    def _bury(self, tx: Writer, ctx: Context, record: Record, reason: str, hit: int) -> Version:
        """A tombstone: nothing in it shows what the version held."""
        body = record.body
        stone = {
            "root": body["root"], "num_files": body["num_files"], "size": body["size"], "made_at": body["made_at"],
            "inputs": body.get("inputs", {}), "stage": "destroyed", "state": "deleted", "zones": [], "batches": [],
            "message": reason, "deleted_by": ctx.actor.id, "deleted_at": ctx.now(),
            EVENTS: body.get(EVENTS) or {},  # what was made from it still counts from these dates
        }  # fmt: skip
        terms = {WHY: _cause(reason)}
        buried = tx.put(record.ref, stone, rev=record.rev, label=record.label, terms=terms, restricted=False)
        self._step_back(tx, record.ref)
        tx.emit(
            "catalog.delete", record.ref, root=body["root"], size_bytes=body["size"], num_files=body["num_files"],
            label=record.label.digest, reason=reason, made_from_it=hit,
        )  # fmt: skip
        return as_version(buried, {})

    def _step_back(self, tx: Writer, deleted: Ref) -> None:
        """When the newest version goes, the newest of those that are left takes its place."""
        if tx.need(deleted.bare).body["newest"] != deleted.version:
            return
        newest: Record | None = None
        for number in range(int(deleted.version[1:]) - 1, 0, -1):
            found = tx.get(deleted.at(f"v{number}"))
            if found is not None and found.body["state"] == "live":
                newest = found
                break
        if newest is not None:
            terms = {**newest.terms, "newest": "yes"}
            tx.put(newest.ref, newest.body, rev=newest.rev, label=newest.label, terms=terms)
        self._write_head(tx, deleted, {"newest": newest.key.version if newest else ""})


def parse_day(text: str, now: float) -> float:
    """Seconds since 1970 of a day (its end, in UTC) or of an instant with its offset; Invalid when it is to come."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text[:60]!r}: expected a day or an instant", "for example 2026-06-30") from None
    if moment.tzinfo is None:
        if len(text) > len("2026-06-30"):
            raise Invalid(f"{text[:60]!r} does not say in which time zone", "add the offset, for example +04:00")
        moment = moment.replace(tzinfo=UTC) + timedelta(days=1)
    if moment.timestamp() > now + DAY_S:
        raise Invalid(f"{text[:60]!r} is in the future", "record an event once it has happened")
    return moment.timestamp()


def as_kept(ref: Ref, duties: tuple[KeepingDuty, ...]) -> Kept:
    """The duties on a version as an answer to its readers."""
    reasons = "; ".join(dict.fromkeys(duty.reason for duty in duties))
    return Kept(ref, reasons, "; ".join(dict.fromkeys(duty.hint for duty in duties)), duties)


def _cause(reason: str) -> str:
    """What tombstones are found by."""
    return reason.partition(":")[0].strip()[:200] or "-"


def _check_stages(ref: Ref, aliases: list[str]) -> None:
    stages = sorted(set(aliases) & set(STAGES))
    if stages:
        hint = f"falaj catalog promote {ref} retired, or promote another version first"
        raise Conflict(f"{ref} is in {', '.join(stages)}", hint, ref)


def _needed(ref: Ref, made: list[Record], seen: list[str]) -> Conflict:
    hidden = len(made) - len(seen)
    more = [f"{len(seen) - _NAMED} more"] if len(seen) > _NAMED else []
    unseen = [f"{hidden} that you may not see"] if hidden else []
    told = ", ".join([*seen[:_NAMED], *more, *unseen])
    return Conflict(
        f"made from {ref}: {told}", f"falaj audit impact {ref} shows all of it; --force deletes anyway", ref
    )
