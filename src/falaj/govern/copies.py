"""Where copies lie, each judged again by place(): what was lawful when it was made may not be so today.

The ledger knows every copy the platform made: records that keep bytes name the zones they lie in, and every sealed
object is kept under its zone. What left the platform is not here to be counted: the log tells of it.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.core.operation import operation
from falaj.govern.records import CopyPage, DataMovement, MisplacedCopy, ResidencySnapshot, ResidencyVerdict
from falaj.govern.residency_cache import ResidencyCache
from falaj.govern.residency_check import check_residency
from falaj.store.blob_store import format_digest
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord
from falaj.store.stored_objects import DELETING, StoredObject, list_containing_objects, list_objects_after

HOLDER_KINDS = ("blob", "dataset", "model", "code", "artifact", "document")
"""Kinds of records that keep bytes alive."""
OBJECT_KIND = "object"
_MAX_PAGE_SIZE = 1000


class CopyOperations:
    """A part of the desk of zones."""

    _ledger: Ledger
    residency_cache: ResidencyCache

    @operation(group="audit")
    def copies(
        self,
        ctx: CallContext,
        kind: Annotated[str, "which kind of thing, for example dataset; `object` is the sealed bytes themselves"],
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many things at most"] = _MAX_PAGE_SIZE,
    ) -> CopyPage:
        """Count the copies of things zone by zone, and name those that may not lie where they are.

        Of objects, those are named that nothing accounts for: nobody can say which law holds for them.

        Example:
            falaj zones copies dataset
        """
        if not 0 < limit <= _MAX_PAGE_SIZE:
            raise Invalid(f"a page of {limit} things", f"ask for 1 to {_MAX_PAGE_SIZE} and go on with --after")
        residency = self.residency_cache.of(ctx.tenant, ctx.now())
        if kind == OBJECT_KIND:
            return self.check_objects(ctx, residency)
        with self._ledger.read(ctx) as tx:
            page = tx.find(kind, scopes=ctx.cells(kind), after=after, limit=limit)
        copies_by_zone: Counter[str] = Counter()
        misplaced: list[MisplacedCopy] = []
        for record in page.records:
            for zone in _list_record_zones(record):
                copies_by_zone[zone] += 1
                verdict = _judge_copy(record, zone, residency, ctx)
                if not verdict.allowed:
                    misplaced.append(MisplacedCopy(str(record.ref), zone, verdict.rules, "; ".join(verdict.reasons)))
        return CopyPage(len(page.records), dict(copies_by_zone), tuple(misplaced), page.next)

    def check_objects(self, ctx: CallContext, residency: ResidencySnapshot) -> CopyPage:
        """All of the tenant's objects in one pass: what accounts for them is read once."""
        copies_by_zone: Counter[str] = Counter()
        misplaced: list[MisplacedCopy] = []
        object_count = 0
        with self._ledger.read(ctx) as tx:
            zones_by_digest = _collect_zones_by_digest(tx, ctx.tenant)
            for stored_object in _iterate_objects(tx, ctx.tenant):
                object_count += 1
                copies_by_zone[stored_object.zone] += 1
                rules = _find_unaccounted_rules(tx, stored_object, zones_by_digest, residency)
                if rules:
                    name = f"object {format_digest(stored_object.digest)[:19]} ({stored_object.state})"
                    misplaced.append(
                        MisplacedCopy(name, stored_object.zone, rules, "nothing that may lie there accounts for it")
                    )
        return CopyPage(object_count, dict(copies_by_zone), tuple(misplaced))


def _list_record_zones(record: LedgerRecord) -> tuple[str, ...]:
    named_zones = tuple(sorted(name[3:] for name in record.terms if name.startswith("at.")))
    return named_zones or ((record.zone,) if record.zone else ())


def _judge_copy(record: LedgerRecord, zone: str, residency: ResidencySnapshot, ctx: CallContext) -> ResidencyVerdict:
    """Lying there is asked as keeping. A grant is for a purpose, so a copy may lie there for any that one names."""
    size = record.body.get("size")
    purposes = (
        "",
        *sorted(
            {
                granted_purpose
                for transfer_grant in residency.grants
                if transfer_grant.dst == zone
                for granted_purpose in transfer_grant.purposes
            }
        ),
    )
    verdict = ResidencyVerdict(False)
    for purpose in purposes if record.label.regimes else purposes[:1]:
        movement = DataMovement(
            "replicate", record.label, str(record.ref.bare), ctx.tenant, record.zone or zone, zone, purpose,
            size=size if isinstance(size, int) else None, since=record.at,
        )  # fmt: skip
        verdict = check_residency(movement, residency.zones, residency.regimes, residency.grants, ctx.now())
        if verdict.allowed:
            break
    return verdict


def _collect_zones_by_digest(tx: LedgerReader, tenant: str) -> dict[str, set[str]]:
    """Which digests records keep alive, and in which zones; `*` where they name none."""
    zones_by_digest: dict[str, set[str]] = {}
    for kind in HOLDER_KINDS:
        after = ""
        while True:
            page = tx.find(kind, tenant=tenant, after=after, limit=_MAX_PAGE_SIZE)
            for record in page.records:
                zones = {name[3:] for name in record.terms if name.startswith("at.")} or {"*"}
                for name, digest in record.terms.items():
                    if name == "digest" or name.startswith("digest."):
                        zones_by_digest.setdefault(digest, set()).update(zones)
            after = page.next
            if not after:
                break
    return zones_by_digest


def _iterate_objects(tx: LedgerReader, tenant: str) -> Iterator[StoredObject]:
    after = ""
    while True:
        page, after = list_objects_after(tx, tenant, after, _MAX_PAGE_SIZE)
        yield from page
        if not after:
            return


def _find_unaccounted_rules(
    tx: LedgerReader, stored_object: StoredObject, zones_by_digest: dict[str, set[str]], residency: ResidencySnapshot
) -> tuple[str, ...]:
    if stored_object.zone not in residency.zones:
        return ("zone-unknown",)
    zones = zones_by_digest.get(format_digest(stored_object.digest), set())
    if (
        stored_object.state == DELETING
        or {"*", stored_object.zone} & zones
        or list_containing_objects(tx, stored_object)
    ):
        return ()
    return ("unaccounted",)
