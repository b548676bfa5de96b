"""Zones: the desk of legal places, regimes and transfer grants, and the door through which the guard asks place().

Zones belong to the house; grants belong to the tenant whose data they are about. What does not live here: the rules
themselves (place.py), what a zone or a grant must be (manifest.py, grants.py), how people approve (approvals.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.event import generate_id
from falaj.core.label import Label
from falaj.core.operation import operation
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.govern import declassification, residency_cache
from falaj.govern.approvals import ApprovalService, make_approval_ref
from falaj.govern.copies import CopyOperations
from falaj.govern.duties import list_duties
from falaj.govern.duty_facts import CanSee, DutyFactReader
from falaj.govern.grant_proposals import propose_grant, resolve_grant_documents
from falaj.govern.grants import digest_grant, parse_outside_target, parse_time, parse_whole_number, require_valid_grant
from falaj.govern.legal_calendars import Calendar, load_calendars
from falaj.govern.records import (
    DataMovement,
    DeclassificationRecord,
    DutyFacts,
    GrantState,
    KeepingDuty,
    LegalRegime,
    LegalZone,
    ResidencySnapshot,
    ResidencyVerdict,
    TransferGrant,
)
from falaj.govern.regimes import JURISDICTION_PATTERN, resolve_regime_ids
from falaj.govern.residency_check import check_residency
from falaj.govern.zone_manifest import apply_manifest, require_valid_zone
from falaj.plugins import find_entry_point
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord, with_next_cursor

_EMPTY_FIELDS: dict[str, str] = {}
GRANT_FIELDS = ("expires", "max_bytes", "not_before", "reason")


class ZoneService(CopyOperations):
    """Legal places, regimes, transfer grants: what may lie or go where."""

    def __init__(
        self,
        ledger: Ledger,
        regimes: Mapping[str, LegalRegime],
        approvals: ApprovalService | None = None,
        calendars: Callable[[], Mapping[str, Calendar]] = load_calendars,
    ) -> None:
        self._ledger = ledger
        self.calendars = calendars
        self._regimes = regimes
        self._approvals = approvals or ApprovalService(ledger)
        self.residency_cache = residency_cache.ResidencyCache(ledger, regimes)
        self._approvals.watch(self.residency_cache.forget)
        self._approvals.check_removal(self.list_document_keepers)

    @operation(group="govern")
    def add(
        self,
        ctx: CallContext,
        id: Annotated[str, "its name, for example ae-dubai"],  # noqa: A002 - the user's word
        region: Annotated[str, "where the machines stand, ISO 3166-2, for example AE-DU"],
        jurisdiction: Annotated[str, "whose law holds: a country, AE-DIFC or AE-ADGM"],
        regimes: Annotated[tuple[str, ...], "the regimes it is cleared for"] = (),
        max_class: Annotated[int, "the highest class it may hold: 0 open to 3 secret"] = 0,
        store: Annotated[str, "the address of its blob store"] = "",
        more: Annotated[
            dict[str, str], "operator, domicile, custody, key_jurisdiction, executors, backup_zone, …"
        ] = _EMPTY_FIELDS,
    ) -> LegalZone:
        """Declare a zone: a legal place where things may lie.

        Example:
            falaj zones add eu-west IE-D IE --regimes EU-GDPR --max-class 2 --store s3://falaj-eu --more operator=Acme
        """
        declared_zone = LegalZone(
            id=id, region=region, jurisdiction=jurisdiction, regimes=regimes, max_class=max_class, store=store
        )
        zone = apply_manifest(require_valid_zone(declared_zone, self._regimes), more, self._regimes, ctx.now())
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            return self.save_zone(tx, zone, "zones.add")

    @operation(group="govern")
    def change(
        self,
        ctx: CallContext,
        zone: Annotated[str, "the zone"],
        more: Annotated[dict[str, str], "what to change: regimes, max_class, custody, backup_zone, …"],
    ) -> LegalZone:
        """Change what a zone may hold, who runs it or where its keys are. Its place never changes.

        Example:
            falaj zones change eu-west --more max_class=1 --more backup_zone=eu-north
        """
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            current_zone, record = _require_zone(tx, zone)
            return self.save_zone(
                tx, apply_manifest(current_zone, more, self._regimes, ctx.now()), "zones.change", record
            )

    @operation(group="govern")
    def retire(self, ctx: CallContext, zone: Annotated[str, "the zone"]) -> LegalZone:
        """Take a zone out of use: nothing goes in any more; what lies there can still be taken out.

        Example:
            falaj zones retire eu-west
        """
        if zone == ctx.zone:
            raise Conflict("this process stands in that zone", "retire it from another zone")
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            current_zone, record = _require_zone(tx, zone)
            return self.save_zone(tx, replace(current_zone, active=False), "zones.retire", record)

    @operation()
    def list(self, ctx: CallContext) -> tuple[LegalZone, ...]:
        """List the zones.

        Example:
            falaj zones list
        """
        with self._ledger.read(ctx) as tx:
            return tuple(_redact_for_tenant(ctx, zone) for zone in residency_cache.read_zones(tx))

    @operation()
    def show(self, ctx: CallContext, zone: Annotated[str, "the zone"]) -> LegalZone:
        """Show one zone: whose law, what it may hold, who runs it, where its keys are.

        Example:
            falaj zones show ae-dubai
        """
        with self._ledger.read(ctx) as tx:
            return _redact_for_tenant(ctx, _require_zone(tx, zone.removeprefix(f"zone:{SYSTEM_TENANT}/"))[0])

    @operation()
    def regimes(self, ctx: CallContext) -> tuple[LegalRegime, ...]:
        """List the regimes: each law as data, with its source, how far that was checked and when to look again.

        Example:
            falaj zones regimes
        """
        del ctx
        return tuple({regime.id: regime for regime in self._regimes.values()}.values())

    @operation(reads=("thing",), group="see")
    def check(
        self,
        ctx: CallContext,
        thing: Annotated[Ref, "what would move"],
        to: Annotated[str, "the zone, or outside:GB for a receiver in no zone"],
        op: Annotated[str, "copy, read, view, schedule, serve, egress, replicate, backup, cache, delete"] = "copy",
        purpose: Annotated[str, "what for"] = "",
    ) -> ResidencyVerdict:
        """Ask whether a thing may go there, without moving it: every rule that forbids it, and what would allow it.

        Example:
            falaj zones check dataset:fraud/transactions@v3 eu-west --purpose fraud
        """
        with self._ledger.read(ctx) as tx:
            record = tx.need(thing)
        outside_jurisdiction = parse_outside_target(to)
        movement = DataMovement(
            op="view" if outside_jurisdiction and op == "copy" else op,
            label=record.label,
            thing=str(thing),
            tenant=ctx.tenant,
            src=record.zone or ctx.zone,
            dst="" if outside_jurisdiction else to,
            purpose=purpose or ctx.purpose,
            jurisdiction=outside_jurisdiction,
            restricted=record.restricted,
            since=record.at,
            facts=self.read_duty_facts(ctx, record) if op == "delete" else None,
        )
        return self.verdict(movement, ctx.now())

    @operation(group="write")
    def grant(
        self,
        ctx: CallContext,
        basis: Annotated[str, "regime and basis, for example AE-PDPL:23a"],
        src: Annotated[str, "the zone it goes from"],
        dst: Annotated[str, "the zone it goes to, or outside:GB"],
        scope: Annotated[str, "what may go: kind:project/name, the name may hold * and ?"],
        purposes: Annotated[tuple[str, ...], "what for; each is named"],
        documents: Annotated[
            dict[str, str],
            "the stored documents that the basis demands: contract=document:fraud/contract",
        ],
        more: Annotated[dict[str, str], "expires (90d, or a day), not_before, max_bytes, reason"] = _EMPTY_FIELDS,
    ) -> GrantState:
        """Propose a transfer grant. It counts once two other people have approved exactly it, until it ends.

        Example:
            falaj zones grant AE-PDPL:23a --src ae-dubai --dst eu-west --scope 'dataset:fraud/*' --purposes fraud \\
                --documents contract=document:fraud/contract --more expires=90d
        """
        unknown_fields = sorted(set(more) - set(GRANT_FIELDS))
        if unknown_fields:
            raise Invalid(f"a grant has no {', '.join(unknown_fields)[:200]}", f"it has: {', '.join(GRANT_FIELDS)}")
        regime, name = self.parse_basis(basis)
        now = ctx.now()
        proposal = TransferGrant(
            id=f"g-{generate_id()[:20]}",
            tenant=ctx.tenant,
            regime=regime.id,
            basis=name,
            src=src,
            dst=dst,
            scope=scope,
            purposes=tuple(sorted(set(purposes))),
            documents=dict(documents),
            not_before=parse_time(more["not_before"], now) if "not_before" in more else now,
            expires=parse_time(more.get("expires", "90d"), now),
            max_bytes=parse_whole_number(more, "max_bytes"),
            author=ctx.actor.person,
            reason=more.get("reason", ""),
        )
        with self._ledger.write(ctx) as tx:
            _require_valid_route(tx, src, dst)
            stored_grant, names = resolve_grant_documents(tx, proposal)
            propose_grant(ctx, tx, self._approvals, require_valid_grant(stored_grant, regime, now), regime, names)
            return self.build_grant_state(tx, stored_grant, now)

    @operation()
    def grants(
        self,
        ctx: CallContext,
        state: Annotated[str, "only those: waiting, active, early, expired, revoked, refused"] = "",
        limit: Annotated[int, "at most so many, newest first"] = 100,
        name: Annotated[str, "only this one, for example g-0199…"] = "",
        after: Annotated[str, "`more` of the last one before"] = "",
    ) -> tuple[GrantState, ...]:
        """List transfer grants and where each stands.

        Example:
            falaj zones grants --state waiting
        """
        scopes, listed = ctx.cells("grant"), list[GrantState]()
        with self._ledger.read(ctx) as tx:
            while True:
                page = tx.find("grant", name=name, scopes=scopes, newest_first=True, after=after, limit=limit)
                states = [self.build_grant_state(tx, _read_grant(record), ctx.now()) for record in page.records]
                listed += [grant_state for grant_state in states if not state or grant_state.state == state]
                after = page.next
                if listed or not after:
                    return with_next_cursor(listed, after)

    @operation(writes=("grant",), group="govern")
    def revoke(
        self,
        ctx: CallContext,
        grant: Annotated[Ref, "the grant, for example grant:zones/g-…"],
        reason: Annotated[str, "why"],
    ) -> GrantState:
        """Revoke a transfer grant at once.

        Example:
            falaj zones revoke grant:zones/g-0199… --reason "the contract has ended"
        """
        with self._ledger.write(ctx) as tx:
            record = tx.need(grant.bare)
            revoked_grant = replace(_read_grant(record), revoked=True)
            record = tx.put(grant.bare, to_plain(revoked_grant), rev=record.rev, terms={"state": "closed"})
            tx.emit("zones.revoke", record.ref, digest=digest_grant(revoked_grant), reason=reason)
            tx.after(lambda durable: self.residency_cache.forget())
            return self.build_grant_state(tx, revoked_grant, ctx.now())

    @operation(reads=("thing",), group="write")
    def declassify(
        self,
        ctx: CallContext,
        thing: Annotated[Ref, "the version whose label should be lower"],
        target: Annotated[Label, "the label it should have"],
        method: Annotated[str, "how the danger was taken out: anonymised, aggregated, k-anonymity, …"],
        evidence: Annotated[dict[str, str], "what proves it: k=20, report=sha256:…, …"],
        reason: Annotated[str, "why, for those who decide"],
    ) -> DeclassificationRecord:
        """Ask that a version's label be lowered. Two other people must agree, one of them a data protection officer.

        Example:
            falaj zones declassify dataset:fraud/extract@v2 --target confidential --method k-anonymity \\
                --evidence k=20 --evidence report=sha256:9f… --reason "for the open portal"
        """
        with self._ledger.write(ctx) as tx:
            return declassification.request_declassification(
                ctx,
                tx,
                self._approvals,
                declassification.DeclassificationRequest(thing, target, method, evidence, reason),
            )

    @operation(writes=("request", "into"), group="write")
    def lower(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "the declassification that was approved"],
        into: Annotated[Ref, "the name under which the lowered version is published"],
    ) -> Ref:
        """Publish the approved declassification: a new version with the lower label, made from the old one.

        Example:
            falaj zones lower declassification:zones/d-0199… dataset:open/extract
        """
        with self._ledger.write(ctx) as tx:
            return declassification.publish_declassification(ctx, tx, self._approvals, request.bare, into.bare)

    def verdict(self, movement: DataMovement, now: float) -> ResidencyVerdict:
        """What place() says of this movement over the places as they stand."""
        snapshot = self.residency_cache.of(movement.tenant, now)
        return check_residency(movement, snapshot.zones, snapshot.regimes, snapshot.grants, now)

    def find_duties(
        self, ctx: CallContext, records: Sequence[LedgerRecord], pseudonym: str = "", can_see: CanSee | None = None
    ) -> dict[Ref, tuple[KeepingDuty, ...]]:
        """Ask for every duty to keep these versions: statutory periods, holds along lineage, contracts, breaches.

        With `pseudonym`, a pseudonym, also for their open requests for a copy of their data.
        """
        snapshot, now = self.residency_cache.of(ctx.tenant, ctx.now()), ctx.now()
        with self._ledger.read(ctx) as tx:
            reader = DutyFactReader(tx, ctx.tenant, snapshot.regimes, pseudonym, can_see)
            facts = {record.ref: reader.read_facts(record) for record in records}
        return {
            ref: list_duties(duty_facts, snapshot.regimes, snapshot.grants, now) for ref, duty_facts in facts.items()
        }

    def read_duty_facts(self, ctx: CallContext, record: LedgerRecord) -> DutyFacts:
        """Read what decides how long a version must be kept, as it stands in the caller's transaction."""
        with self._ledger.read(ctx) as tx:
            current = tx.get(record.ref) or record
            return DutyFactReader(tx, ctx.tenant, self._regimes).read_facts(current)

    def view(self, owner: CallContext | str, now: float | None = None) -> ResidencySnapshot:
        """Zones, regimes and the grants in force for a tenant, at most half a second old."""
        if isinstance(owner, CallContext):
            return self.residency_cache.of(owner.tenant, owner.now() if now is None else now)
        if now is None:
            raise Invalid("a view by tenant needs the time", "pass now")
        return self.residency_cache.of(owner, now)

    def has(self, ctx: CallContext, name: str) -> bool:
        """Whether a zone of that name was ever declared."""
        with self._ledger.read(_require_system_tenant(ctx)) as tx:
            return tx.key(_make_zone_key(name)) is not None

    def ensure(self, ctx: CallContext, zone: LegalZone) -> LegalZone:
        """The zone, made when no zone of that name exists; for the first start of a house."""
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            record = tx.key(_make_zone_key(zone.id))
            if record is not None:
                return _read_zone(record)
            return self.save_zone(tx, require_valid_zone(zone, self._regimes), "zones.add")

    def save_zone(
        self, tx: LedgerWriter, zone: LegalZone, operation_name: str, earlier_record: LedgerRecord | None = None
    ) -> LegalZone:
        if zone.backup_zone:
            _require_zone(tx, zone.backup_zone)
        if zone.store and (earlier_record is None or earlier_record.body["store"] != zone.store):
            find_entry_point("blobs", zone.store.partition(":")[0])  # said now, and not when the first bytes come
        record = tx.put(
            _make_zone_key(zone.id), to_plain(zone), rev=earlier_record.rev if earlier_record else None, label=Label()
        )
        tx.emit(
            operation_name,
            record.ref,
            jurisdiction=zone.jurisdiction,
            regimes=",".join(zone.regimes),
            max_class=zone.max_class,
            custody=zone.custody,
            key_jurisdiction=zone.key_jurisdiction,
            active=int(zone.active),
        )
        tx.after(lambda durable: self.residency_cache.forget())
        return zone

    def parse_basis(self, text: str) -> tuple[LegalRegime, str]:
        name, _, basis = text.partition(":")
        regime = self._regimes[resolve_regime_ids((name,), self._regimes)[0]]
        return regime, basis

    def list_document_keepers(self, ctx: CallContext, record: LedgerRecord) -> tuple[str, ...]:
        """Return what keeps a document: the duties on it, and grants in force or waiting that rest on it."""
        duties = self.find_duties(ctx, (record,))[record.ref]
        digest_of_document, now = record.body["sha256"], ctx.now()
        with self._ledger.read(ctx) as tx:
            grants = [
                grant
                for grant in residency_cache.read_grants(tx, ctx.tenant)
                if digest_of_document in grant.documents.values() and now < grant.expires
            ]
        return (*(duty.reason for duty in duties), *(f"the grant {grant.id} rests on it" for grant in grants))

    def build_grant_state(self, tx: LedgerReader, grant: TransferGrant, now: float) -> GrantState:
        grant_digest = digest_grant(grant)
        state = residency_cache.evaluate_grant(tx, grant, self._regimes, now)
        if grant.revoked:
            state = "revoked"
        elif state == "granted":
            state = "early" if now < grant.not_before else "active"
        return GrantState(grant, grant_digest, state, make_approval_ref(residency_cache.GRANT_ACTION, grant_digest))


def _require_system_tenant(ctx: CallContext) -> CallContext:
    if ctx.tenant != SYSTEM_TENANT:
        raise Denied("zones belong to the house", "ask the people who run this installation")
    return ctx


def _make_zone_key(name: str) -> RecordKey:
    return RecordKey(SYSTEM_TENANT, "zone", SYSTEM_TENANT, name)


def _require_zone(tx: LedgerReader, name: str) -> tuple[LegalZone, LedgerRecord]:
    record = tx.key(_make_zone_key(name))
    if record is None:
        raise NotFound(f"there is no zone {name!r:.60}", "falaj zones list shows them")
    return _read_zone(record), record


def _read_zone(record: LedgerRecord) -> LegalZone:
    zone: LegalZone = from_plain(LegalZone, record.body)
    return zone


def _redact_for_tenant(ctx: CallContext, zone: LegalZone) -> LegalZone:
    """A tenant sees the place; where exactly its stores and machines answer is the house's business."""
    return zone if ctx.tenant == SYSTEM_TENANT else replace(zone, store="", executors=())


def _require_valid_route(tx: LedgerReader, src: str, dst: str) -> None:
    _require_zone(tx, src)
    outside_jurisdiction = parse_outside_target(dst)
    if src == dst:
        raise Invalid("a grant goes from one place to another", "name another destination")
    if outside_jurisdiction and not JURISDICTION_PATTERN.fullmatch(outside_jurisdiction):
        raise Invalid(f"{outside_jurisdiction!r:.40} is no jurisdiction", "outside:GB")
    if not outside_jurisdiction:
        _require_zone(tx, dst)


def _read_grant(record: LedgerRecord) -> TransferGrant:
    grant: TransferGrant = from_plain(TransferGrant, record.body)
    return grant
