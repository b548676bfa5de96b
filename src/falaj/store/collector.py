"""Collection and scrub: bytes no record reaches go, with a grace before each of two steps; the rest is proven whole.

What keeps bytes alive: a record whose terms name their digest (`digest`, `digest.1`, …; with `at.<zone>` terms it keeps
only the copies in those zones), an object made of them, and any open put or copy begun before they were last touched.
Every step is guarded by the object's revision, so a put of the same bytes at the same moment wins.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import CorruptData, NotFound, StaleRevision, Unavailable
from falaj.core.ports import RemoteZoneObjects
from falaj.core.ref import Ref
from falaj.store.blob_store import BlobStore, format_digest
from falaj.store.copy_fence import require_not_fenced
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.store.stored_objects import (
    BROKEN,
    CONDEMNED,
    DELETING,
    LIVE,
    READABLE,
    TOUCH_INTERVAL_S,
    WRITING,
    StoredObject,
    erase_object,
    find_stored_object,
    list_containing_objects,
    list_intents,
    list_objects_after,
    save_object,
)

GRACE_S = 3600.0
_MAX_STALE_GRACES = 4
"""How many graces a put may stand still before it is given up for dead."""
KEEP, CONDEMN, DELETE, REVIVE, TIDY = "keep", "condemn", "delete", "revive", "tidy"
_STORE_REF = Ref("desk", SYSTEM_TENANT, "store", "r1")
_PAGE_SIZE = 200
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """What one collection did."""

    condemned: int = 0
    deleted: int = 0
    size_bytes: int = 0
    """How many plain bytes the deleted objects held."""
    skipped: int = 0
    """Objects in a store that did not answer, or that somebody wrote at the same moment."""


@dataclass(frozen=True, slots=True)
class BrokenObject:
    """An object that cannot be read as it was written, and what needs it."""

    digest: str
    zone: str
    problem: str
    refs: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class ScrubResult:
    """What one scrub found; `next` is where to go on, empty at the end."""

    checked: int = 0
    size_bytes: int = 0
    broken: tuple[BrokenObject, ...] = ()
    next: str = ""


@dataclass(frozen=True, slots=True)
class ReachableDigests:
    """Which digests are kept alive, by which records, and in which zones (none named: in every zone)."""

    found: dict[str, list[tuple[Ref, frozenset[str]]]] = field(default_factory=dict)

    def add(self, record: LedgerRecord) -> None:
        """Take in what one record keeps alive."""
        zones = frozenset(name[3:] for name in record.terms if name.startswith("at."))
        for name, digest in record.terms.items():
            if name == "digest" or name.startswith("digest."):
                self.found.setdefault(digest, []).append((record.ref, zones))

    def refs(self, stored_object: StoredObject) -> tuple[Ref, ...]:
        """The records that need this object, itself and not only a part of it."""
        holders = self.found.get(format_digest(stored_object.digest), ())
        return tuple(ref for ref, zones in holders if not zones or stored_object.zone in zones)


def decide_action(stored_object: StoredObject, is_reached: bool, horizon: float) -> str:
    """What to do with an object. Nothing touched since `horizon` is judged at all."""
    if stored_object.state == DELETING:
        return DELETE
    if stored_object.at >= horizon:
        return KEEP
    if stored_object.state == WRITING:
        # Reached and being written again: it was broken, and its strays may be all that is left of it.
        return KEEP if is_reached else DELETE
    if is_reached:
        return (
            REVIVE
            if stored_object.state == CONDEMNED
            else TIDY
            if stored_object.state == LIVE and stored_object.stray
            else KEEP
        )
    return DELETE if stored_object.state == CONDEMNED else CONDEMN


class Collector:
    """Takes space back and proves what is kept. `holders`: every kind of record that names digests in its terms."""

    def __init__(self, blobs: BlobStore, holders: tuple[str, ...] = ("blob",), grace_s: float = GRACE_S) -> None:
        self._blobs = blobs
        self._ledger = blobs.ledger
        self.holders = holders
        self._grace_s = grace_s

    def collect(
        self, ctx: CallContext, holds_lease: Callable[[], bool] = lambda: True, *, without_grace: bool = False
    ) -> CollectionResult:
        """One pass over the objects of the context's tenant; stops early when `holds_lease` says so.

        `without_grace` deletes what no record reaches in one step, without the grace: an erasure asks for it. What an
        open put or copy may have been told of stays.
        """
        require_not_fenced(self._ledger)
        horizon = self._compute_horizon(ctx, without_grace=without_grace)
        with self._ledger.read(ctx) as tx:
            reachable = self._load_reachable(tx, ctx.tenant)
        total = CollectionResult()
        for stored_object in self._iterate_objects(ctx):
            if not holds_lease():
                break
            with self._ledger.read(ctx) as tx:
                action = decide_action(stored_object, _is_reached(tx, reachable, stored_object), horizon)
            if without_grace and action == CONDEMN:
                action = DELETE
            total = _add_results(total, self._apply_action(ctx, stored_object, action)) if action != KEEP else total
        return total

    def count_unreached(self, ctx: CallContext) -> int:
        """Count the stored objects of the context's tenant that no record reaches, and whose bytes are still there."""
        with self._ledger.read(ctx) as tx:
            reachable = self._load_reachable(tx, ctx.tenant)
        count = 0
        for stored_object in self._iterate_objects(ctx):
            with self._ledger.read(ctx) as tx:
                count += stored_object.state in (*READABLE, DELETING) and not _is_reached(tx, reachable, stored_object)
        return count

    def drop(self, ctx: CallContext, zone: str, digest: str) -> CollectionResult:
        """Delete a bundle that was refused, without a grace: itself, and of its pieces what was written for it alone.

        What was written a moment ago is condemned only while others put or copy into the zone: they may have been told
        that these bytes are there, which nothing shows so soon.
        """
        with self._ledger.read(ctx) as tx:
            bundle = find_stored_object(tx, ctx.tenant, zone, digest)
            if bundle is None or not bundle.bundle:
                return CollectionResult()
            parts = [
                part
                for part_digest in bundle.parts
                if (part := find_stored_object(tx, ctx.tenant, zone, part_digest)) is not None
            ]
            has_open_intents = any(intent.zone == zone for intent in list_intents(tx, ctx.tenant))
        total, fresh_limit = CollectionResult(), ctx.now() - (TOUCH_INTERVAL_S if has_open_intents else 0.0)
        for stored_object in (bundle, *parts) if _is_untouched(bundle) else ():
            if _is_untouched(stored_object):
                total = _add_results(
                    total,
                    self._apply_action(ctx, stored_object, DELETE if stored_object.at <= fresh_limit else CONDEMN),
                )
        return total

    def scrub(
        self,
        ctx: CallContext,
        after: str = "",
        limit: int = 0,
        progress: Callable[[StoredObject], None] = lambda stored_object: None,
    ) -> ScrubResult:
        """Read and prove objects after a cursor, `limit` of them or all; tell the log of what is broken."""
        checked = size = 0
        broken: list[BrokenObject] = []
        while True:
            with self._ledger.read(ctx) as tx:
                page, after = list_objects_after(
                    tx, ctx.tenant, after, min(limit - checked, _PAGE_SIZE) if limit else _PAGE_SIZE
                )
            for stored_object in page:
                if stored_object.state in READABLE:
                    problems = self._check_object(ctx, stored_object)
                    broken += problems
                    size += 0 if stored_object.parts else stored_object.size
                    progress(stored_object)
                checked += 1
            if not after or (limit and checked >= limit):
                return ScrubResult(checked, size, tuple(broken), after)

    def _compute_horizon(self, ctx: CallContext, *, without_grace: bool = False) -> float:
        """Nothing touched after this moment may go; intents that nobody kept fresh are dropped on the way."""
        with self._ledger.read(ctx) as tx:
            open_intents = list(list_intents(tx, ctx.tenant))
        fresh_s = TOUCH_INTERVAL_S if open_intents else 0.0  # a touch within this time may not have been written down
        oldest = ctx.now() - (fresh_s if without_grace else self._grace_s)
        for intent in open_intents:
            if intent.at < ctx.now() - _MAX_STALE_GRACES * self._grace_s:
                with suppress(StaleRevision), self._ledger.project(ctx) as writer:
                    writer.delete(intent.key, intent.rev)
            else:
                oldest = min(oldest, float(intent.body["since"]))
        return oldest

    def _load_reachable(self, tx: LedgerReader, tenant: str) -> ReachableDigests:
        reachable = ReachableDigests()
        for kind in self.holders:
            after = ""
            while True:
                page = tx.find(kind, tenant=tenant, after=after, limit=1000)
                for record in page.records:
                    reachable.add(record)
                after = page.next
                if not after:
                    break
        return reachable

    def _iterate_objects(self, ctx: CallContext) -> Iterator[StoredObject]:
        after = ""
        while True:
            with self._ledger.read(ctx) as tx:
                page, after = list_objects_after(tx, ctx.tenant, after, _PAGE_SIZE)
            yield from page
            if not after:
                return

    def _apply_action(self, ctx: CallContext, stored_object: StoredObject, action: str) -> CollectionResult:
        try:
            if action == DELETE:
                self._delete_object(ctx, stored_object)
                return CollectionResult(deleted=1, size_bytes=stored_object.size)
            if action == TIDY:
                self._remove_bytes(stored_object.zone, stored_object.stray)
                self._save_object(ctx, stored_object, replace(stored_object, stray=()))
                return CollectionResult()
            self._save_object(
                ctx, stored_object, replace(stored_object, state=CONDEMNED if action == CONDEMN else LIVE)
            )
            return CollectionResult(condemned=int(action == CONDEMN))
        except (StaleRevision, NotFound, Unavailable) as error:
            _log.info(
                "an object was left for the next collection", extra={"zone": stored_object.zone, "why": error.code}
            )
            return CollectionResult(skipped=1)

    def _delete_object(self, ctx: CallContext, stored_object: StoredObject) -> None:
        """Say so, delete the bytes, say that it is done. A put that comes between writes under another storage name."""
        if stored_object.state != DELETING:
            with self._ledger.write(ctx) as tx:
                self._require_unreached(tx, stored_object)
                save_object(tx, replace(stored_object, state=DELETING))
                self._emit_collect_event(tx, stored_object, "intent")
            stored_object = replace(stored_object, state=DELETING, rev=stored_object.rev + 1)
        self._remove_bytes(stored_object.zone, stored_object.storage_keys)
        with self._ledger.write(ctx) as tx:
            erase_object(tx, stored_object)
            self._emit_collect_event(tx, stored_object, "outcome")

    def _save_object(self, ctx: CallContext, observed: StoredObject, desired: StoredObject) -> None:
        with self._ledger.project(ctx) as tx:
            if desired.state == CONDEMNED:
                self._require_unreached(tx, observed)
            save_object(tx, desired)

    def _require_unreached(self, tx: LedgerReader, observed: StoredObject) -> None:
        """Ask the index once more: who wrote a record without holding its bytes must not lose them to us."""
        for kind in self.holders:
            page = tx.find(kind, tenant=observed.tenant, terms={"digest": format_digest(observed.digest)}, limit=100)
            reachable = ReachableDigests()
            for record in page.records:
                reachable.add(record)
            if reachable.refs(observed) or page.next:
                raise StaleRevision("a record came to need this object", "look again")
        if list_containing_objects(tx, observed):
            raise StaleRevision("an object came to need this part", "look again")

    def _remove_bytes(self, zone: str, keys: tuple[str, ...]) -> None:
        zone_store = self._blobs.open_zone(zone)
        for key in keys:
            zone_store.delete(key)

    def _emit_collect_event(self, tx: LedgerWriter, stored_object: StoredObject, phase: str) -> None:
        digest = format_digest(stored_object.digest)
        tx.emit(
            "store.collect",
            _STORE_REF,
            phase=phase,
            digest=digest,
            place=stored_object.zone,
            size_bytes=stored_object.size,
        )

    def _check_object(self, ctx: CallContext, stored_object: StoredObject) -> list[BrokenObject]:
        try:
            self._verify_object(ctx, stored_object)
        except (CorruptData, NotFound) as error:
            return self._report_broken(ctx, stored_object, error.message)
        if stored_object.state == BROKEN:
            with suppress(StaleRevision), self._ledger.project(ctx) as tx:
                save_object(tx, replace(stored_object, state=LIVE))
        return []

    def _verify_object(self, ctx: CallContext, stored_object: StoredObject) -> None:
        store = self._blobs.open_zone(stored_object.zone)
        if isinstance(store, RemoteZoneObjects) and not stored_object.parts:
            # Its agent proves its bytes by its own keys; one that is away proves nothing, and breaks nothing.
            with suppress(Unavailable):
                if stored_object.key not in store.stat([stored_object.key]):
                    raise NotFound(
                        f"object {stored_object.digest[:16]} of zone {stored_object.zone} is not with its agent"
                    )
            return
        if not stored_object.parts:
            for _ in self._blobs.read(ctx, stored_object, verify_digest=True):
                pass
            return
        # The parts prove themselves when their turn comes; here it is enough that they are there.
        with self._ledger.read(ctx) as tx:
            for index, part in enumerate(stored_object.parts):
                part_object = find_stored_object(tx, stored_object.tenant, stored_object.zone, part)
                if part_object is None or part_object.state not in READABLE:
                    raise CorruptData(f"part {index} of object {stored_object.digest[:16]} is lost")

    def _report_broken(self, ctx: CallContext, stored_object: StoredObject, problem: str) -> list[BrokenObject]:
        """Mark the object, so that a put of the same bytes heals it, and say which records need it."""
        with self._ledger.read(ctx) as tx:
            current = find_stored_object(tx, stored_object.tenant, stored_object.zone, stored_object.digest)
            if current is None or current.key != stored_object.key or current.state not in READABLE:
                return []
            reachable = self._load_reachable(tx, ctx.tenant)
            wholes = list_containing_objects(tx, stored_object)
        refs = tuple(dict.fromkeys(ref for affected in (stored_object, *wholes) for ref in reachable.refs(affected)))
        with suppress(StaleRevision), self._ledger.write(ctx) as tx:
            save_object(tx, replace(current, state=BROKEN))
            for ref in refs or (_STORE_REF,):
                tx.emit(
                    "store.broken",
                    ref,
                    digest=format_digest(stored_object.digest),
                    place=stored_object.zone,
                    problem=problem,
                )
        return [BrokenObject(format_digest(stored_object.digest), stored_object.zone, problem, refs)]


def _is_untouched(stored_object: StoredObject) -> bool:
    """True while nobody but its writer had to do with it: whoever holds bytes, or finds them there, revises them."""
    # A bundle is tied, and an agent's piece noted, in one step; ours are claimed and settled.
    return stored_object.state == LIVE and stored_object.rev <= (
        1 if stored_object.bundle or not stored_object.dek else 2
    )


def _is_reached(tx: LedgerReader, reachable: ReachableDigests, stored_object: StoredObject) -> bool:
    return bool(reachable.refs(stored_object)) or bool(list_containing_objects(tx, stored_object))


def _add_results(a: CollectionResult, b: CollectionResult) -> CollectionResult:
    return CollectionResult(
        a.condemned + b.condemned, a.deleted + b.deleted, a.size_bytes + b.size_bytes, a.skipped + b.skipped
    )
