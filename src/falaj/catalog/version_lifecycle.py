"""Keeping: holds, deletion that leaves a tombstone, copies in other zones, and what stays in the local cache."""

import hashlib
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated

from falaj.catalog.lifecycle_records import KeptVersion
from falaj.catalog.provenance import hide_unseen
from falaj.catalog.publish_limits import MAX_MESSAGE, require_short_text
from falaj.catalog.records import VERSION_KINDS, VERSION_STAGES, CatalogVersion, VersionPage
from falaj.catalog.service_base import (
    FINDABLE_FIELD,
    AliasMove,
    CatalogServiceBase,
    choose_read_zone,
    create_visibility_check,
    read_tree,
    to_version,
)
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.label import Label
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.duties import RECORDED_EVENTS, is_personal
from falaj.govern.duty_facts import EVENTS_FIELD
from falaj.govern.grants import make_outside_target
from falaj.govern.records import KeepingDuty
from falaj.govern.refusals import STEWARD_ROLE
from falaj.govern.regimes import JURISDICTION_PATTERN
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.store.stored_objects import close_intent, open_intent, refresh_intent

DAY_S = 86_400
DELETE_ACTION = "catalog.delete"
REASON_TERM = "why"
_HOLD_PATTERN = r"[^\s,=*][^,=*\r\n\0]{0,199}"
_MAX_NAMED_USERS = 5


class LifecycleOperations(CatalogServiceBase):
    """How long a version stays, and where."""

    @operation(reads=("name",), group="govern")
    def hold(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        why: Annotated[str, "the case it is kept for, for example 'case 2027-114'"],
    ) -> CatalogVersion:
        """Put a version under a legal hold: it cannot be deleted until the hold is released.

        What is made from it, and the next version of the same name while this is the newest, is under the hold too;
        what was made from it before cannot be deleted either while the hold stands.

        Example:
            falaj catalog hold dataset:fraud/tx@v3 "case 2027-114"
        """
        if not re.fullmatch(_HOLD_PATTERN, why):
            raise Invalid(f"{why[:60]!r} cannot name a hold", "a few words without , = and *")
        with self._ledger.write(ctx) as tx:
            record = self.require_live(tx, name)
            label = replace(record.label, holds=record.label.holds | {why})
            return self.change_label(tx, record, label, "catalog.hold", why)

    @operation(reads=("name",), group="govern")
    def release(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        why: Annotated[str, "the hold that ends, as show names it"],
    ) -> CatalogVersion:
        """Release a legal hold. Others that stand on the version stay.

        Example:
            falaj catalog release dataset:fraud/tx@v3 "case 2027-114"
        """
        with self._ledger.write(ctx) as tx:
            record = self.require_live(tx, name)
            if why not in record.label.holds:
                holds_text = ", ".join(sorted(record.label.holds)) or "none"
                raise NotFound(
                    f"{record.ref} is not under the hold {why[:60]!r}", f"holds on it: {holds_text}", record.ref
                )
            label = replace(record.label, holds=record.label.holds - {why})
            return self.change_label(tx, record, label, "catalog.release", why)

    @operation(reads=("name",), group="govern")
    def record_event(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        event: Annotated[str, f"what happened: {' or '.join(RECORDED_EVENTS)}"],
        at: Annotated[str, "the day, 2026-11-01, or the instant with its offset"],
        reason: Annotated[str, "how you know, for the log"],
    ) -> CatalogVersion:
        """Record when something happened from which a law counts how long a version must be kept.

        `end-of-relationship` is when that with the last person in it ended, `last-procedure` the last health procedure.
        Until it is recorded the duty has no end. It counts for all that was made from this version, too.

        Example:
            falaj catalog record-event dataset:bank/accounts@v3 end-of-relationship 2026-06-30 --reason "file 44"
        """
        require_short_text("the reason", reason, MAX_MESSAGE)
        if event not in RECORDED_EVENTS:
            raise Invalid(f"event {event[:40]!r}: expected {' or '.join(RECORDED_EVENTS)}", "name one of them", name)
        if not reason.strip():
            raise Invalid("the date of an event needs a reason", "--reason says how you know, for the log", name)
        moment = parse_past_day(at, ctx.now())
        with self._ledger.write(ctx) as tx:
            record = self.require_live(tx, name)
            earlier_events = record.body.get(EVENTS_FIELD) or {}
            record = self.update_version(tx, record, **{EVENTS_FIELD: {**earlier_events, event: moment}})
            tx.emit(
                "catalog.record_event",
                record.ref,
                event=event,
                date=at,
                before=earlier_events.get(event, 0.0),
                why=reason,
            )
            return to_version(record, self.read_aliases(tx, name))

    @operation(reads=("names",))
    def kept(self, ctx: CallContext, names: Annotated[tuple[Ref, ...], "which versions"]) -> tuple[KeptVersion, ...]:
        """Say which of these versions (blobs, too) must be kept now: by which law, hold or contract, why, until when.

        Example:
            falaj catalog kept dataset:fraud/tx@v2 dataset:fraud/tx@v3
        """
        with self._ledger.read(ctx) as tx:
            records = [tx.get(self.resolve_version(tx, name)) for name in names]
            live_records = [
                record for record in records if record is not None and record.body.get("state", "live") == "live"
            ]
            can_see = create_visibility_check(self._ledger, ctx, live_records[0].ref) if live_records else None
            duties = self._zones.find_duties(ctx, live_records, can_see=can_see)
        return tuple(to_kept_version(ref, record_duties) for ref, record_duties in duties.items() if record_duties)

    @operation(reads=("name",), group="erase")
    def delete(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        reason: Annotated[str, "why, for the log"],
        force: Annotated[bool, "also when others were made from it"] = False,
    ) -> CatalogVersion:
        """Delete a version. It can no longer be read, and its bytes go when nothing else needs them.

        Refused while a hold (also on what it was made from), a retention period of its label or of a law, a contract
        or an open breach demands that it is kept, while it is in staging or production, and, unless forced, while other
        versions were made from it. Who is no data steward needs a second person for a dataset with personal data:
        the refusal says how to ask. A tombstone stays with its name, label, root and the reason. `falaj audit prove`
        proves the deletion, `falaj audit impact` says who would be hit.

        Example:
            falaj catalog delete dataset:fraud/tx@v2 --reason "consent withdrawn"
        """
        require_short_text("the reason", reason, MAX_MESSAGE)
        if not reason.strip():
            raise Invalid("a deletion needs a reason", "--reason says why, for the log", name)
        with self._ledger.write(ctx) as tx:
            record = self.require_live(tx, name)
            aliases = [
                alias
                for alias, alias_version in self.read_aliases(tx, name).items()
                if alias_version == record.key.version
            ]
            if duties := self.list_duties(ctx, record):
                kept_version = to_kept_version(record.ref, duties)
                raise Denied(kept_version.why, kept_version.do, kept_version.ref)
            _require_not_staged(record.ref, aliases)
            self.require_second_person(ctx, record)
            derived_records = self.list_derived_versions(tx, record.ref)
            if derived_records and not force:
                raise _still_used_error(
                    record.ref, derived_records, self.list_visible_names(ctx, record.ref, derived_records)
                )
            permits = {zone: ctx.permit("delete", str(name.bare), zone) for zone in record.body["zones"]}
            for zone, permit in permits.items():
                self._blobs.delete(ctx, str(name.bare), zone, read_tree(record).batches[0].bundle, permit)
            for alias in aliases:
                self.move_alias(tx, name, alias, "", AliasMove("delete", reason))
            return self.write_tombstone(tx, ctx, record, reason, len(derived_records))

    @operation(reads=("name",), unpinned_params=("name",))
    def deleted(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "the name, without a version"],
        why: Annotated[str, "the reason that was given, up to its first colon"],
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 1000,
    ) -> VersionPage:
        """List the tombstones of versions of a name that were deleted for a reason.

        Example:
            falaj catalog deleted dataset:fraud/tx "consent withdrawn"
        """
        kind_project_name = (name.kind, name.project, name.name)
        with self._ledger.read(ctx) as tx:
            # Tombstones of names that are older than this question are not found by it: those are looked through.
            terms = {REASON_TERM: _extract_cause(why)} if tx.need(name.bare).body.get(FINDABLE_FIELD) else {}
            page_records, next_cursor = self.find_page(tx, ctx, kind_project_name, terms, after, limit)
            tombstones = [
                to_version(page_record, {})
                for page_record in page_records
                if page_record.body.get("state") == "deleted"
            ]
            can_see = create_visibility_check(self._ledger, ctx, name)
            shown_versions = (
                hide_unseen(tombstone, can_see)
                for tombstone in tombstones
                if _extract_cause(tombstone.message) == _extract_cause(why)
            )
            return VersionPage(tuple(shown_versions), next_cursor)

    @operation(reads=("name",), group="move", zone_param="to", has_outside_effects=True)
    def copy(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        to: Annotated[str, "the zone that shall have a copy"],
    ) -> CatalogVersion:
        """Copy a version into another zone, encrypted anew under that zone's keys.

        Allowed only where its label may lie in that zone, or where a transfer grant with two approvers says so. A copy
        that broke off is taken up where it stopped when it is asked for again.

        Example:
            falaj catalog copy dataset:fraud/tx@v3 --to difc
        """
        with self._ledger.read(ctx) as tx:
            record = self.require_live(tx, name)
            aliases = self.read_aliases(tx, name)
        if to in record.body["zones"]:
            return to_version(record, aliases)
        resource_name, source_zone = str(name.bare), choose_read_zone(record, ctx)
        self._ledger.retry(
            ctx, lambda tx: tx.emit("catalog.copy", record.ref, phase="begin", source=source_zone, to=to)
        )
        # One intent over all batches: the first is still safe when the last one arrives.
        intent = self._blobs.project(ctx, lambda tx: open_intent(tx, ctx, "copy", resource_name, to))
        try:
            for batch in read_tree(record).batches:
                permits = (ctx.permit("read", resource_name, source_zone), ctx.permit("copy", resource_name, to))
                self._blobs.copy(ctx, resource_name, batch.bundle, source_zone, to, permits)
                self._blobs.project(ctx, lambda tx: refresh_intent(tx, intent, ctx.now()))
            return self._ledger.retry(ctx, lambda tx: self._add_zone(tx, ctx, record.ref, source_zone, to))
        finally:
            self._blobs.project(ctx, lambda tx: close_intent(tx, intent))

    @operation(reads=("name",), group="move")
    def carry(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version; the newest when none is given"],
        to: Annotated[str, "where it goes, as those who read the log shall see it"],
        country: Annotated[str, "whose law holds there: a country, AE-DIFC or AE-ADGM"] = "",
    ) -> CatalogVersion:
        """Say that you carry a version out of the platform, and where to; whoever may not, hears it here.

        Allowed only where its label may go, or where a transfer grant with two approvers says so. Without a country
        only what is open goes; of hosts in the setting `registries` the platform knows it. `falaj catalog push` does
        this before it sends anything.

        Example:
            falaj catalog carry model:fraud/scorer@v7 registry.example/fraud/scorer:v7 --country AE
        """
        if not 0 < len(to) <= 500:
            raise Invalid("a place of no or too many letters", "name where it goes in at most 500 characters", name)
        target_jurisdiction = self.find_target_jurisdiction(to, country)
        ctx.permit("egress", str(name.bare), make_outside_target(target_jurisdiction))
        with self._ledger.write(ctx) as tx:
            record = self.require_live(tx, name)
            tx.emit("catalog.carry", record.ref, to=to, country=target_jurisdiction)
            return to_version(record, self.read_aliases(tx, name))

    @operation(reads=("name",), group="write")
    def pin(
        self, ctx: CallContext, name: Annotated[Ref, "which version; the newest when none is given"]
    ) -> CatalogVersion:
        """Keep a version in the block cache of the server that answers, whatever else is read there.

        Example:
            falaj catalog pin dataset:fraud/tx@v3
        """
        return self._set_pin(ctx, name, is_pinned=True)

    @operation(reads=("name",), group="write")
    def unpin(
        self, ctx: CallContext, name: Annotated[Ref, "which version; the newest when none is given"]
    ) -> CatalogVersion:
        """Let the block cache drop a version again.

        Example:
            falaj catalog unpin dataset:fraud/tx@v3
        """
        return self._set_pin(ctx, name, is_pinned=False)

    @operation(reads=("name",))
    def users(
        self, ctx: CallContext, name: Annotated[Ref, "which version; the newest when none is given"]
    ) -> tuple[Ref, ...]:
        """Say which versions name this one among what they were made from; `falaj audit lineage` goes further.

        Example:
            falaj catalog users dataset:fraud/tx@v3
        """
        with self._ledger.read(ctx) as tx:
            ref = self.resolve_version(tx, name)
            return tuple(map(Ref.parse, self.list_visible_names(ctx, ref, self.list_derived_versions(tx, ref))))

    def find_target_jurisdiction(self, target_address: str, country: str) -> str:
        """Whose law holds where something goes: as this installation knows it of the host, else as its carrier says."""
        host, declared_country = target_address.partition("/")[0].lower().removesuffix(":443"), country.upper()
        configured_country = self._registries.get(host, "")
        if declared_country and not JURISDICTION_PATTERN.fullmatch(declared_country):
            raise Invalid(f"{country!r:.40} is no country", "two letters such as AE, or AE-DIFC or AE-ADGM")
        if configured_country and declared_country not in ("", configured_country):
            hint = "leave --country out; whoever runs this installation can change the setting `registries`"
            raise Invalid(f"{host} stands in {configured_country}, as this installation is set", hint)
        return configured_country or declared_country

    def _set_pin(self, ctx: CallContext, name: Ref, *, is_pinned: bool) -> CatalogVersion:
        with self._ledger.write(ctx) as tx:
            record = self.update_version(tx, self.require_live(tx, name), pinned=is_pinned)
            tx.emit("catalog.pin" if is_pinned else "catalog.unpin", record.ref)
            tx.after(lambda durable: self._pin_bytes(ctx, record, is_pinned=is_pinned) if durable else None)
            return to_version(record, self.read_aliases(tx, name))

    def _pin_bytes(self, ctx: CallContext, record: LedgerRecord, *, is_pinned: bool) -> None:
        for batch in read_tree(record).batches:
            self._blobs.pin(ctx, choose_read_zone(record, ctx), batch.bundle, pinned=is_pinned)

    def change_label(
        self, tx: LedgerWriter, record: LedgerRecord, label: Label, operation_name: str, reason: str
    ) -> CatalogVersion:
        record = tx.put(record.ref, record.body, rev=record.rev, label=label)
        tx.emit(operation_name, record.ref, why=reason, holds=", ".join(sorted(label.holds))[:500])
        return to_version(record, self.read_aliases(tx, record.ref))

    def _add_zone(self, tx: LedgerWriter, ctx: CallContext, ref: Ref, source: str, target_zone: str) -> CatalogVersion:
        record = self.require_live(tx, ref)
        for batch in read_tree(record).batches:
            self._blobs.hold(tx, ctx, target_zone, batch.bundle)
        zones = list(dict.fromkeys((*record.body["zones"], target_zone)))
        terms = {**record.terms, f"at.{target_zone}": "yes"}
        record = tx.put(ref, {**record.body, "zones": zones}, rev=record.rev, label=record.label, terms=terms)
        size = record.body["size"]
        tx.emit(
            "catalog.copy", ref, phase="done", source=source, to=target_zone, root=record.body["root"], size_bytes=size
        )
        return to_version(record, self.read_aliases(tx, ref))

    def list_derived_versions(self, tx: LedgerReader, ref: Ref) -> list[LedgerRecord]:
        """Versions that are live and name this one among what they were made from."""
        pages = (tx.find(kind, terms={f"from.{ref}": "yes"}, limit=1000) for kind in VERSION_KINDS)
        return [record for page in pages for record in page.records]

    def list_duties(self, ctx: CallContext, record: LedgerRecord) -> tuple[KeepingDuty, ...]:
        """Every duty to keep a version: the one function that deletions, lists and erasures ask."""
        return self._zones.find_duties(ctx, (record,), can_see=create_visibility_check(self._ledger, ctx, record.ref))[
            record.ref
        ]

    def require_second_person(self, ctx: CallContext, record: LedgerRecord) -> None:
        """Denied where somebody whose work is not the data would delete personal data alone."""
        columns = (record.body.get("table") or {}).get("columns", ())
        if record.key.kind == "dataset" and STEWARD_ROLE not in ctx.actor.roles and is_personal(record.label, columns):
            digest = hashlib.sha256(f"{record.ref} {record.body['root']}".encode()).hexdigest()
            self._approvals.demand(ctx, DELETE_ACTION, f"sha256:{digest}", min_approvers=1, authors=(ctx.actor.id,))

    def list_visible_names(self, ctx: CallContext, ref: Ref, derived_records: list[LedgerRecord]) -> list[str]:
        can_see = create_visibility_check(self._ledger, ctx, ref)
        return [str(record.ref) for record in derived_records if can_see(str(record.ref))]

    def write_tombstone(
        self, tx: LedgerWriter, ctx: CallContext, record: LedgerRecord, reason: str, derived_count: int
    ) -> CatalogVersion:
        """A tombstone: nothing in it shows what the version held."""
        body = record.body
        tombstone_body = {
            "root": body["root"], "num_files": body["num_files"], "size": body["size"], "made_at": body["made_at"],
            "inputs": body.get("inputs", {}), "stage": "destroyed", "state": "deleted", "zones": [], "batches": [],
            "message": reason, "deleted_by": ctx.actor.id, "deleted_at": ctx.now(),
            EVENTS_FIELD: body.get(EVENTS_FIELD) or {},  # what was made from it still counts from these dates
        }  # fmt: skip
        terms = {REASON_TERM: _extract_cause(reason)}
        tombstone_record = tx.put(
            record.ref, tombstone_body, rev=record.rev, label=record.label, terms=terms, restricted=False
        )
        self.restore_previous_newest(tx, record.ref)
        tx.emit(
            "catalog.delete", record.ref, root=body["root"], size_bytes=body["size"], num_files=body["num_files"],
            label=record.label.digest, reason=reason, made_from_it=derived_count,
        )  # fmt: skip
        return to_version(tombstone_record, {})

    def restore_previous_newest(self, tx: LedgerWriter, deleted: Ref) -> None:
        """When the newest version goes, the newest of those that are left takes its place."""
        if tx.need(deleted.bare).body["newest"] != deleted.version:
            return
        newest: LedgerRecord | None = None
        for number in range(int(deleted.version[1:]) - 1, 0, -1):
            candidate = tx.get(deleted.at(f"v{number}"))
            if candidate is not None and candidate.body["state"] == "live":
                newest = candidate
                break
        if newest is not None:
            terms = {**newest.terms, "newest": "yes"}
            tx.put(newest.ref, newest.body, rev=newest.rev, label=newest.label, terms=terms)
        self._write_head(tx, deleted, {"newest": newest.key.version if newest else ""})


def parse_past_day(text: str, now: float) -> float:
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


def to_kept_version(ref: Ref, duties: tuple[KeepingDuty, ...]) -> KeptVersion:
    """The duties on a version as an answer to its readers."""
    reasons = "; ".join(dict.fromkeys(duty.reason for duty in duties))
    return KeptVersion(ref, reasons, "; ".join(dict.fromkeys(duty.hint for duty in duties)), duties)


def _extract_cause(reason: str) -> str:
    """What tombstones are found by."""
    return reason.partition(":")[0].strip()[:200] or "-"


def _require_not_staged(ref: Ref, aliases: list[str]) -> None:
    stages = sorted(set(aliases) & set(VERSION_STAGES))
    if stages:
        hint = f"falaj catalog promote {ref} retired, or promote another version first"
        raise Conflict(f"{ref} is in {', '.join(stages)}", hint, ref)


def _still_used_error(ref: Ref, derived_records: list[LedgerRecord], visible_names: list[str]) -> Conflict:
    hidden = len(derived_records) - len(visible_names)
    more_text = [f"{len(visible_names) - _MAX_NAMED_USERS} more"] if len(visible_names) > _MAX_NAMED_USERS else []
    hidden_text = [f"{hidden} that you may not see"] if hidden else []
    names_text = ", ".join([*visible_names[:_MAX_NAMED_USERS], *more_text, *hidden_text])
    return Conflict(
        f"made from {ref}: {names_text}", f"falaj audit impact {ref} shows all of it; --force deletes anyway", ref
    )
