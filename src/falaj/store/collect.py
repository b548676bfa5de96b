"""Collection and scrub: bytes no record reaches go, with a grace before each of two steps; the rest is proven whole.

What keeps bytes alive: a record whose terms name their digest (`digest`, `digest.1`, …; with `at.<zone>` terms it keeps
only the copies in those zones), an object made of them, and any open put or copy begun before they were last touched.
Every step is guarded by the object's revision, so a put of the same bytes at the same moment wins.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Corrupt, NotFound, Stale, Unavailable
from falaj.core.ports import KeepsOut
from falaj.core.ref import Ref
from falaj.store.blobs import BlobStore, digest_of
from falaj.store.fence import check_not_fenced
from falaj.store.ledger import Reader, Writer
from falaj.store.objects import (
    BROKEN,
    CONDEMNED,
    DELETING,
    FRESH_S,
    LIVE,
    READABLE,
    WRITING,
    Object,
    erase,
    find_object,
    intents,
    objects_after,
    save,
    wholes_of,
)
from falaj.store.records import Record

GRACE_S = 3600.0
_PATIENCE = 4
"""How many graces a put may stand still before it is given up for dead."""
KEEP, CONDEMN, DELETE, REVIVE, TIDY = "keep", "condemn", "delete", "revive", "tidy"
_DESK = Ref("desk", HOUSE, "store", "r1")
_PAGE = 200
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Collected:
    """What one collection did."""

    condemned: int = 0
    deleted: int = 0
    size_bytes: int = 0
    """How many plain bytes the deleted objects held."""
    skipped: int = 0
    """Objects in a store that did not answer, or that somebody wrote at the same moment."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An object that cannot be read as it was written, and what needs it."""

    digest: str
    zone: str
    problem: str
    refs: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class Scrubbed:
    """What one scrub found; `next` is where to go on, empty at the end."""

    checked: int = 0
    size_bytes: int = 0
    broken: tuple[Broken, ...] = ()
    next: str = ""


@dataclass(frozen=True, slots=True)
class Reach:
    """Which digests are kept alive, by which records, and in which zones (none named: in every zone)."""

    found: dict[str, list[tuple[Ref, frozenset[str]]]] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        """Take in what one record keeps alive."""
        zones = frozenset(name[3:] for name in record.terms if name.startswith("at."))
        for name, digest in record.terms.items():
            if name == "digest" or name.startswith("digest."):
                self.found.setdefault(digest, []).append((record.ref, zones))

    def refs(self, thing: Object) -> tuple[Ref, ...]:
        """The records that need this object, itself and not only a part of it."""
        holders = self.found.get(digest_of(thing.digest), ())
        return tuple(ref for ref, zones in holders if not zones or thing.zone in zones)


def judge(thing: Object, reached: bool, horizon: float) -> str:
    """What to do with an object. Nothing touched since `horizon` is judged at all."""
    if thing.state == DELETING:
        return DELETE
    if thing.at >= horizon:
        return KEEP
    if thing.state == WRITING:
        # Reached and being written again: it was broken, and its strays may be all that is left of it.
        return KEEP if reached else DELETE
    if reached:
        return REVIVE if thing.state == CONDEMNED else TIDY if thing.state == LIVE and thing.stray else KEEP
    return DELETE if thing.state == CONDEMNED else CONDEMN


class Collector:
    """Takes space back and proves what is kept. `holders`: every kind of record that names digests in its terms."""

    def __init__(self, blobs: BlobStore, holders: tuple[str, ...] = ("blob",), grace_s: float = GRACE_S) -> None:
        self._blobs = blobs
        self._ledger = blobs.ledger
        self.holders = holders
        self._grace_s = grace_s

    def collect(self, ctx: Context, alive: Callable[[], bool] = lambda: True, *, at_once: bool = False) -> Collected:
        """One pass over the objects of the context's tenant; stops early when `alive` says so.

        `at_once` deletes what no record reaches in one step, without the grace: an erasure asks for it. What an open
        put or copy may have been told of stays.
        """
        check_not_fenced(self._ledger)
        horizon = self._horizon(ctx, at_once=at_once)
        with self._ledger.read(ctx) as tx:
            reach = self._reach(tx, ctx.tenant)
        total = Collected()
        for thing in self._objects(ctx):
            if not alive():
                break
            with self._ledger.read(ctx) as tx:
                verdict = judge(thing, _reached(tx, reach, thing), horizon)
            if at_once and verdict == CONDEMN:
                verdict = DELETE
            total = _plus(total, self._act(ctx, thing, verdict)) if verdict != KEEP else total
        return total

    def count_unreached(self, ctx: Context) -> int:
        """Count the stored objects of the context's tenant that no record reaches, and whose bytes are still there."""
        with self._ledger.read(ctx) as tx:
            reach = self._reach(tx, ctx.tenant)
        count = 0
        for thing in self._objects(ctx):
            with self._ledger.read(ctx) as tx:
                count += thing.state in (*READABLE, DELETING) and not _reached(tx, reach, thing)
        return count

    def drop(self, ctx: Context, zone: str, digest: str) -> Collected:
        """Delete a bundle that was refused, without a grace: itself, and of its pieces what was written for it alone.

        What was written a moment ago is condemned only while others put or copy into the zone: they may have been told
        that these bytes are there, which nothing shows so soon.
        """
        with self._ledger.read(ctx) as tx:
            whole = find_object(tx, ctx.tenant, zone, digest)
            if whole is None or not whole.bundle:
                return Collected()
            parts = [part for one in whole.parts if (part := find_object(tx, ctx.tenant, zone, one)) is not None]
            shared = any(intent.zone == zone for intent in intents(tx, ctx.tenant))
        total, still = Collected(), ctx.now() - (FRESH_S if shared else 0.0)
        for thing in (whole, *parts) if _untouched(whole) else ():
            if _untouched(thing):
                total = _plus(total, self._act(ctx, thing, DELETE if thing.at <= still else CONDEMN))
        return total

    def scrub(
        self, ctx: Context, after: str = "", limit: int = 0, progress: Callable[[Object], None] = lambda thing: None
    ) -> Scrubbed:
        """Read and prove objects after a cursor, `limit` of them or all; tell the log of what is broken."""
        checked = size = 0
        broken: list[Broken] = []
        while True:
            with self._ledger.read(ctx) as tx:
                page, after = objects_after(tx, ctx.tenant, after, min(limit - checked, _PAGE) if limit else _PAGE)
            for thing in page:
                if thing.state in READABLE:
                    found = self._check(ctx, thing)
                    broken += found
                    size += 0 if thing.parts else thing.size
                    progress(thing)
                checked += 1
            if not after or (limit and checked >= limit):
                return Scrubbed(checked, size, tuple(broken), after)

    def _horizon(self, ctx: Context, *, at_once: bool = False) -> float:
        """Nothing touched after this moment may go; intents that nobody kept fresh are dropped on the way."""
        with self._ledger.read(ctx) as tx:
            found = list(intents(tx, ctx.tenant))
        shared = FRESH_S if found else 0.0  # a touch within this time may not have been written down
        oldest = ctx.now() - (shared if at_once else self._grace_s)
        for intent in found:
            if intent.at < ctx.now() - _PATIENCE * self._grace_s:
                with suppress(Stale), self._ledger.project(ctx) as writer:
                    writer.delete(intent.key, intent.rev)
            else:
                oldest = min(oldest, float(intent.body["since"]))
        return oldest

    def _reach(self, tx: Reader, tenant: str) -> Reach:
        reach = Reach()
        for kind in self.holders:
            after = ""
            while True:
                page = tx.find(kind, tenant=tenant, after=after, limit=1000)
                for record in page.records:
                    reach.add(record)
                after = page.next
                if not after:
                    break
        return reach

    def _objects(self, ctx: Context) -> Iterator[Object]:
        after = ""
        while True:
            with self._ledger.read(ctx) as tx:
                page, after = objects_after(tx, ctx.tenant, after, _PAGE)
            yield from page
            if not after:
                return

    def _act(self, ctx: Context, thing: Object, verdict: str) -> Collected:
        try:
            if verdict == DELETE:
                self._delete(ctx, thing)
                return Collected(deleted=1, size_bytes=thing.size)
            if verdict == TIDY:
                self._remove(thing.zone, thing.stray)
                self._save(ctx, thing, replace(thing, stray=()))
                return Collected()
            self._save(ctx, thing, replace(thing, state=CONDEMNED if verdict == CONDEMN else LIVE))
            return Collected(condemned=int(verdict == CONDEMN))
        except (Stale, NotFound, Unavailable) as error:
            _log.info("an object was left for the next collection", extra={"zone": thing.zone, "why": error.code})
            return Collected(skipped=1)

    def _delete(self, ctx: Context, thing: Object) -> None:
        """Say so, delete the bytes, say that it is done. A put that comes between writes under another storage name."""
        if thing.state != DELETING:
            with self._ledger.write(ctx) as tx:
                self._guard(tx, thing)
                save(tx, replace(thing, state=DELETING))
                self._tell(tx, thing, "intent")
            thing = replace(thing, state=DELETING, rev=thing.rev + 1)
        self._remove(thing.zone, thing.storage_keys)
        with self._ledger.write(ctx) as tx:
            erase(tx, thing)
            self._tell(tx, thing, "outcome")

    def _save(self, ctx: Context, seen: Object, wanted: Object) -> None:
        with self._ledger.project(ctx) as tx:
            if wanted.state == CONDEMNED:
                self._guard(tx, seen)
            save(tx, wanted)

    def _guard(self, tx: Reader, seen: Object) -> None:
        """Ask the index once more: who wrote a record without holding its bytes must not lose them to us."""
        for kind in self.holders:
            page = tx.find(kind, tenant=seen.tenant, terms={"digest": digest_of(seen.digest)}, limit=100)
            reach = Reach()
            for record in page.records:
                reach.add(record)
            if reach.refs(seen) or page.next:
                raise Stale("a record came to need this object", "look again")
        if wholes_of(tx, seen):
            raise Stale("an object came to need this part", "look again")

    def _remove(self, zone: str, keys: tuple[str, ...]) -> None:
        blobs = self._blobs.open_zone(zone)
        for key in keys:
            blobs.delete(key)

    def _tell(self, tx: Writer, thing: Object, phase: str) -> None:
        digest = digest_of(thing.digest)
        tx.emit("store.collect", _DESK, phase=phase, digest=digest, place=thing.zone, size_bytes=thing.size)

    def _check(self, ctx: Context, thing: Object) -> list[Broken]:
        try:
            self._prove(ctx, thing)
        except (Corrupt, NotFound) as error:
            return self._report(ctx, thing, error.message)
        if thing.state == BROKEN:
            with suppress(Stale), self._ledger.project(ctx) as tx:
                save(tx, replace(thing, state=LIVE))
        return []

    def _prove(self, ctx: Context, thing: Object) -> None:
        store = self._blobs.open_zone(thing.zone)
        if isinstance(store, KeepsOut) and not thing.parts:
            # Its agent proves its bytes by its own keys; one that is away proves nothing, and breaks nothing.
            with suppress(Unavailable):
                if thing.key not in store.stat([thing.key]):
                    raise NotFound(f"object {thing.digest[:16]} of zone {thing.zone} is not with its agent")
            return
        if not thing.parts:
            for _ in self._blobs.read(ctx, thing, whole=True):
                pass
            return
        # The parts prove themselves when their turn comes; here it is enough that they are there.
        with self._ledger.read(ctx) as tx:
            for index, part in enumerate(thing.parts):
                found = find_object(tx, thing.tenant, thing.zone, part)
                if found is None or found.state not in READABLE:
                    raise Corrupt(f"part {index} of object {thing.digest[:16]} is lost")

    def _report(self, ctx: Context, thing: Object, problem: str) -> list[Broken]:
        """Mark the object, so that a put of the same bytes heals it, and say which records need it."""
        with self._ledger.read(ctx) as tx:
            now = find_object(tx, thing.tenant, thing.zone, thing.digest)
            if now is None or now.key != thing.key or now.state not in READABLE:
                return []
            reach = self._reach(tx, ctx.tenant)
            wholes = wholes_of(tx, thing)
        refs = tuple(dict.fromkeys(ref for each in (thing, *wholes) for ref in reach.refs(each)))
        with suppress(Stale), self._ledger.write(ctx) as tx:
            save(tx, replace(now, state=BROKEN))
            for ref in refs or (_DESK,):
                tx.emit("store.broken", ref, digest=digest_of(thing.digest), place=thing.zone, problem=problem)
        return [Broken(digest_of(thing.digest), thing.zone, problem, refs)]


def _untouched(thing: Object) -> bool:
    """True while nobody but its writer had to do with it: whoever holds bytes, or finds them there, revises them."""
    # A bundle is tied, and an agent's piece noted, in one step; ours are claimed and settled.
    return thing.state == LIVE and thing.rev <= (1 if thing.bundle or not thing.dek else 2)


def _reached(tx: Reader, reach: Reach, thing: Object) -> bool:
    return bool(reach.refs(thing)) or bool(wholes_of(tx, thing))


def _plus(a: Collected, b: Collected) -> Collected:
    return Collected(
        a.condemned + b.condemned, a.deleted + b.deleted, a.size_bytes + b.size_bytes, a.skipped + b.skipped
    )
