"""Zones: the desk of legal places, regimes and transfer grants, and the door through which the guard asks place().

Zones belong to the house; grants belong to the tenant whose data they are about. What does not live here: the rules
themselves (place.py), what a zone or a grant must be (manifest.py, grants.py), how people approve (approvals.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.event import new_id
from falaj.core.label import Label
from falaj.core.ports import Key
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern import declassify, view
from falaj.govern.approvals import Approvals, approval_ref
from falaj.govern.copies import Copies
from falaj.govern.duties import find_duties
from falaj.govern.duty_facts import DutyReader, Sight
from falaj.govern.grant_proposals import propose_grant, store_documents
from falaj.govern.grants import checked, digest, moment, number, outside_of
from falaj.govern.legal_calendars import Calendar, load_calendars
from falaj.govern.manifest import checked_zone, described
from falaj.govern.place import place
from falaj.govern.records import (
    Declassification,
    DutyFacts,
    Grant,
    GrantState,
    KeepingDuty,
    Move,
    Places,
    Regime,
    Verdict,
    Zone,
)
from falaj.govern.regimes import JURISDICTION, canonical
from falaj.plugins import registered
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, Reader, Writer
from falaj.store.records import Record, going_on

_NOTHING: dict[str, str] = {}
MORE_OF_GRANT = ("expires", "max_bytes", "not_before", "reason")


class Zones(Copies):
    """Legal places, regimes, transfer grants: what may lie or go where."""

    def __init__(
        self,
        ledger: Ledger,
        regimes: Mapping[str, Regime],
        approvals: Approvals | None = None,
        calendars: Callable[[], Mapping[str, Calendar]] = load_calendars,
    ) -> None:
        self._ledger = ledger
        self.calendars = calendars
        self._regimes = regimes
        self._approvals = approvals or Approvals(ledger)
        self._places = view.PlaceView(ledger, regimes)
        self._approvals.watch(self._places.forget)
        self._approvals.check_removal(self._keeping_document)

    @verb(group="govern")
    def add(
        self,
        ctx: Context,
        id: Annotated[str, "its name, for example ae-dubai"],  # noqa: A002 - the user's word
        region: Annotated[str, "where the machines stand, ISO 3166-2, for example AE-DU"],
        jurisdiction: Annotated[str, "whose law holds: a country, AE-DIFC or AE-ADGM"],
        regimes: Annotated[tuple[str, ...], "the regimes it is cleared for"] = (),
        max_class: Annotated[int, "the highest class it may hold: 0 open to 3 secret"] = 0,
        store: Annotated[str, "the address of its blob store"] = "",
        more: Annotated[
            dict[str, str], "operator, domicile, custody, key_jurisdiction, executors, backup_zone, …"
        ] = _NOTHING,
    ) -> Zone:
        """Declare a zone: a legal place where things may lie.

        Example:
            falaj zones add eu-west IE-D IE --regimes EU-GDPR --max-class 2 --store s3://falaj-eu --more operator=Acme
        """
        bare = Zone(id=id, region=region, jurisdiction=jurisdiction, regimes=regimes, max_class=max_class, store=store)
        zone = described(checked_zone(bare, self._regimes), more, self._regimes, ctx.now())
        with self._ledger.write(_house(ctx)) as tx:
            return self._save(tx, zone, "zones.add")

    @verb(group="govern")
    def change(
        self,
        ctx: Context,
        zone: Annotated[str, "the zone"],
        more: Annotated[dict[str, str], "what to change: regimes, max_class, custody, backup_zone, …"],
    ) -> Zone:
        """Change what a zone may hold, who runs it or where its keys are. Its place never changes.

        Example:
            falaj zones change eu-west --more max_class=1 --more backup_zone=eu-north
        """
        with self._ledger.write(_house(ctx)) as tx:
            old, record = _zone(tx, zone)
            return self._save(tx, described(old, more, self._regimes, ctx.now()), "zones.change", record)

    @verb(group="govern")
    def retire(self, ctx: Context, zone: Annotated[str, "the zone"]) -> Zone:
        """Take a zone out of use: nothing goes in any more; what lies there can still be taken out.

        Example:
            falaj zones retire eu-west
        """
        if zone == ctx.zone:
            raise Conflict("this process stands in that zone", "retire it from another zone")
        with self._ledger.write(_house(ctx)) as tx:
            old, record = _zone(tx, zone)
            return self._save(tx, replace(old, active=False), "zones.retire", record)

    @verb()
    def list(self, ctx: Context) -> tuple[Zone, ...]:
        """List the zones.

        Example:
            falaj zones list
        """
        with self._ledger.read(ctx) as tx:
            return tuple(_shown(ctx, zone) for zone in view.read_zones(tx))

    @verb()
    def show(self, ctx: Context, zone: Annotated[str, "the zone"]) -> Zone:
        """Show one zone: whose law, what it may hold, who runs it, where its keys are.

        Example:
            falaj zones show ae-dubai
        """
        with self._ledger.read(ctx) as tx:
            return _shown(ctx, _zone(tx, zone.removeprefix(f"zone:{HOUSE}/"))[0])

    @verb()
    def regimes(self, ctx: Context) -> tuple[Regime, ...]:
        """List the regimes: each law as data, with its source, how far that was checked and when to look again.

        Example:
            falaj zones regimes
        """
        del ctx
        return tuple({regime.id: regime for regime in self._regimes.values()}.values())

    @verb(reads=("thing",), group="see")
    def check(
        self,
        ctx: Context,
        thing: Annotated[Ref, "what would move"],
        to: Annotated[str, "the zone, or outside:GB for a receiver in no zone"],
        op: Annotated[str, "copy, read, view, schedule, serve, egress, replicate, backup, cache, delete"] = "copy",
        purpose: Annotated[str, "what for"] = "",
    ) -> Verdict:
        """Ask whether a thing may go there, without moving it: every rule that forbids it, and what would allow it.

        Example:
            falaj zones check dataset:fraud/transactions@v3 eu-west --purpose fraud
        """
        with self._ledger.read(ctx) as tx:
            record = tx.need(thing)
        abroad = outside_of(to)
        move = Move(
            op="view" if abroad and op == "copy" else op,
            label=record.label,
            thing=str(thing),
            tenant=ctx.tenant,
            src=record.zone or ctx.zone,
            dst="" if abroad else to,
            purpose=purpose or ctx.purpose,
            jurisdiction=abroad,
            restricted=record.restricted,
            since=record.at,
            facts=self.read_duty_facts(ctx, record) if op == "delete" else None,
        )
        return self.verdict(move, ctx.now())

    @verb(group="write")
    def grant(
        self,
        ctx: Context,
        basis: Annotated[str, "regime and basis, for example AE-PDPL:23a"],
        src: Annotated[str, "the zone it goes from"],
        dst: Annotated[str, "the zone it goes to, or outside:GB"],
        scope: Annotated[str, "what may go: kind:project/name, the name may hold * and ?"],
        purposes: Annotated[tuple[str, ...], "what for; each is named"],
        documents: Annotated[
            dict[str, str],
            "the stored documents that the basis demands: contract=document:fraud/contract",
        ],
        more: Annotated[dict[str, str], "expires (90d, or a day), not_before, max_bytes, reason"] = _NOTHING,
    ) -> GrantState:
        """Propose a transfer grant. It counts once two other people have approved exactly it, until it ends.

        Example:
            falaj zones grant AE-PDPL:23a --src ae-dubai --dst eu-west --scope 'dataset:fraud/*' --purposes fraud \\
                --documents contract=document:fraud/contract --more expires=90d
        """
        unknown = sorted(set(more) - set(MORE_OF_GRANT))
        if unknown:
            raise Invalid(f"a grant has no {', '.join(unknown)[:200]}", f"it has: {', '.join(MORE_OF_GRANT)}")
        regime, name = self._basis(basis)
        now = ctx.now()
        proposal = Grant(
            id=f"g-{new_id()[:20]}",
            tenant=ctx.tenant,
            regime=regime.id,
            basis=name,
            src=src,
            dst=dst,
            scope=scope,
            purposes=tuple(sorted(set(purposes))),
            documents=dict(documents),
            not_before=moment(more["not_before"], now) if "not_before" in more else now,
            expires=moment(more.get("expires", "90d"), now),
            max_bytes=number(more, "max_bytes"),
            author=ctx.actor.person,
            reason=more.get("reason", ""),
        )
        with self._ledger.write(ctx) as tx:
            _check_way(tx, src, dst)
            stored, names = store_documents(tx, proposal)
            propose_grant(ctx, tx, self._approvals, checked(stored, regime, now), regime, names)
            return self._grant_state(tx, stored, now)

    @verb()
    def grants(
        self,
        ctx: Context,
        state: Annotated[str, "only those: waiting, active, early, expired, revoked, refused"] = "",
        limit: Annotated[int, "at most so many, newest first"] = 100,
        name: Annotated[str, "only this one, for example g-0199…"] = "",
        after: Annotated[str, "`more` of the last one before"] = "",
    ) -> tuple[GrantState, ...]:
        """List transfer grants and where each stands.

        Example:
            falaj zones grants --state waiting
        """
        cells, found = ctx.cells("grant"), list[GrantState]()
        with self._ledger.read(ctx) as tx:
            while True:
                page = tx.find("grant", name=name, cells=cells, newest=True, after=after, limit=limit)
                states = [self._grant_state(tx, _grant(record), ctx.now()) for record in page.records]
                found += [one for one in states if not state or one.state == state]
                after = page.next
                if found or not after:
                    return going_on(found, after)

    @verb(writes=("grant",), group="govern")
    def revoke(
        self,
        ctx: Context,
        grant: Annotated[Ref, "the grant, for example grant:zones/g-…"],
        reason: Annotated[str, "why"],
    ) -> GrantState:
        """Revoke a transfer grant at once.

        Example:
            falaj zones revoke grant:zones/g-0199… --reason "the contract has ended"
        """
        with self._ledger.write(ctx) as tx:
            record = tx.need(grant.bare)
            changed = replace(_grant(record), revoked=True)
            record = tx.put(grant.bare, to_plain(changed), rev=record.rev, terms={"state": "closed"})
            tx.emit("zones.revoke", record.ref, digest=digest(changed), reason=reason)
            tx.after(lambda durable: self._places.forget())
            return self._grant_state(tx, changed, ctx.now())

    @verb(reads=("thing",), group="write")
    def declassify(
        self,
        ctx: Context,
        thing: Annotated[Ref, "the version whose label should be lower"],
        target: Annotated[Label, "the label it should have"],
        method: Annotated[str, "how the danger was taken out: anonymised, aggregated, k-anonymity, …"],
        evidence: Annotated[dict[str, str], "what proves it: k=20, report=sha256:…, …"],
        reason: Annotated[str, "why, for those who decide"],
    ) -> Declassification:
        """Ask that a version's label be lowered. Two other people must agree, one of them a data protection officer.

        Example:
            falaj zones declassify dataset:fraud/extract@v2 --target confidential --method k-anonymity \\
                --evidence k=20 --evidence report=sha256:9f… --reason "for the open portal"
        """
        with self._ledger.write(ctx) as tx:
            return declassify.request(
                ctx, tx, self._approvals, declassify.Wish(thing, target, method, evidence, reason)
            )

    @verb(writes=("request", "into"), group="write")
    def lower(
        self,
        ctx: Context,
        request: Annotated[Ref, "the declassification that was approved"],
        into: Annotated[Ref, "the name under which the lowered version is published"],
    ) -> Ref:
        """Publish the approved declassification: a new version with the lower label, made from the old one.

        Example:
            falaj zones lower declassification:zones/d-0199… dataset:open/extract
        """
        with self._ledger.write(ctx) as tx:
            return declassify.publish(ctx, tx, self._approvals, request.bare, into.bare)

    def verdict(self, move: Move, now: float) -> Verdict:
        """What place() says of this movement over the places as they stand."""
        places = self._places.of(move.tenant, now)
        return place(move, places.zones, places.regimes, places.grants, now)

    def find_duties(
        self, ctx: Context, records: Sequence[Record], person: str = "", sees: Sight | None = None
    ) -> dict[Ref, tuple[KeepingDuty, ...]]:
        """Ask for every duty to keep these versions: statutory periods, holds along lineage, contracts, breaches.

        With `person`, a pseudonym, also for their open requests for a copy of their data.
        """
        places, now = self._places.of(ctx.tenant, ctx.now()), ctx.now()
        with self._ledger.read(ctx) as tx:
            reader = DutyReader(tx, ctx.tenant, places.regimes, person, sees)
            facts = {record.ref: reader.read_facts(record) for record in records}
        return {ref: find_duties(each, places.regimes, places.grants, now) for ref, each in facts.items()}

    def read_duty_facts(self, ctx: Context, record: Record) -> DutyFacts:
        """Read what decides how long a version must be kept, as it stands in the caller's transaction."""
        with self._ledger.read(ctx) as tx:
            current = tx.get(record.ref) or record
            return DutyReader(tx, ctx.tenant, self._regimes).read_facts(current)

    def view(self, of: Context | str, now: float | None = None) -> Places:
        """Zones, regimes and the grants in force for a tenant, at most half a second old."""
        if isinstance(of, Context):
            return self._places.of(of.tenant, of.now() if now is None else now)
        if now is None:
            raise Invalid("a view by tenant needs the time", "pass now")
        return self._places.of(of, now)

    def has(self, ctx: Context, name: str) -> bool:
        """Whether a zone of that name was ever declared."""
        with self._ledger.read(_house(ctx)) as tx:
            return tx.key(_key(name)) is not None

    def ensure(self, ctx: Context, zone: Zone) -> Zone:
        """The zone, made when no zone of that name exists; for the first start of a house."""
        with self._ledger.write(_house(ctx)) as tx:
            record = tx.key(_key(zone.id))
            if record is not None:
                return _as_zone(record)
            return self._save(tx, checked_zone(zone, self._regimes), "zones.add")

    def _save(self, tx: Writer, zone: Zone, said: str, old: Record | None = None) -> Zone:
        if zone.backup_zone:
            _zone(tx, zone.backup_zone)
        if zone.store and (old is None or old.body["store"] != zone.store):
            registered("blobs", zone.store.partition(":")[0])  # said now, and not when the first bytes come
        record = tx.put(_key(zone.id), to_plain(zone), rev=old.rev if old else None, label=Label())
        tx.emit(
            said,
            record.ref,
            jurisdiction=zone.jurisdiction,
            regimes=",".join(zone.regimes),
            max_class=zone.max_class,
            custody=zone.custody,
            key_jurisdiction=zone.key_jurisdiction,
            active=int(zone.active),
        )
        tx.after(lambda durable: self._places.forget())
        return zone

    def _basis(self, text: str) -> tuple[Regime, str]:
        name, _, basis = text.partition(":")
        regime = self._regimes[canonical((name,), self._regimes)[0]]
        return regime, basis

    def _keeping_document(self, ctx: Context, record: Record) -> tuple[str, ...]:
        """Return what keeps a document: the duties on it, and grants in force or waiting that rest on it."""
        duties = self.find_duties(ctx, (record,))[record.ref]
        digest_of_document, now = record.body["sha256"], ctx.now()
        with self._ledger.read(ctx) as tx:
            grants = [
                grant
                for grant in view.read_grants(tx, ctx.tenant)
                if digest_of_document in grant.documents.values() and now < grant.expires
            ]
        return (*(duty.reason for duty in duties), *(f"the grant {grant.id} rests on it" for grant in grants))

    def _grant_state(self, tx: Reader, grant: Grant, now: float) -> GrantState:
        exact = digest(grant)
        state = view.grant_standing(tx, grant, self._regimes, now)
        if grant.revoked:
            state = "revoked"
        elif state == "granted":
            state = "early" if now < grant.not_before else "active"
        return GrantState(grant, exact, state, approval_ref(view.GRANT_ACTION, exact))


def _house(ctx: Context) -> Context:
    if ctx.tenant != HOUSE:
        raise Denied("zones belong to the house", "ask the people who run this installation")
    return ctx


def _key(name: str) -> Key:
    return Key(HOUSE, "zone", HOUSE, name)


def _zone(tx: Reader, name: str) -> tuple[Zone, Record]:
    record = tx.key(_key(name))
    if record is None:
        raise NotFound(f"there is no zone {name!r:.60}", "falaj zones list shows them")
    return _as_zone(record), record


def _as_zone(record: Record) -> Zone:
    zone: Zone = from_plain(Zone, record.body)
    return zone


def _shown(ctx: Context, zone: Zone) -> Zone:
    """A tenant sees the place; where exactly its stores and machines answer is the house's business."""
    return zone if ctx.tenant == HOUSE else replace(zone, store="", executors=())


def _check_way(tx: Reader, src: str, dst: str) -> None:
    _zone(tx, src)
    abroad = outside_of(dst)
    if src == dst:
        raise Invalid("a grant goes from one place to another", "name another destination")
    if abroad and not JURISDICTION.fullmatch(abroad):
        raise Invalid(f"{abroad!r:.40} is no jurisdiction", "outside:GB")
    if not abroad:
        _zone(tx, dst)


def _grant(record: Record) -> Grant:
    grant: Grant = from_plain(Grant, record.body)
    return grant
