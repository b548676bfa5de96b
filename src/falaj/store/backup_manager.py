"""Backups by themselves: the ledger and the bytes it names, on a shelf, every so often, and so many kept.

Order of one: the ledger's copy, from one snapshot; then those of its bytes that the shelf lacks, each opened under its
key and held against its digest on the way; then the list of all of them; the manifest last. What is killed before that
leaves the backups there were, and the next one takes away what it left.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from blake3 import blake3

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Conflict, CorruptData, FalajError, Invalid, NotFound, StaleRevision, Unavailable
from falaj.core.event import generate_id
from falaj.core.ports import ObjectStore, RemoteZoneObjects, SupportsFileRestore
from falaj.core.ref import Ref
from falaj.store.backup import LogDigest, RowIterator, RowTally, encode_rows, require_dump_support
from falaj.store.backup_inventory import BackupInventory, DestroyedKey, JudgeHolder, SkippedObject
from falaj.store.backup_target import (
    FORM_ROWS,
    FORM_SQLITE,
    TARGET_FORMAT,
    BackedUpObject,
    BackupContents,
    BackupManifest,
    BackupTarget,
    HashedChunks,
    encode_contents,
    make_backup_name,
    make_blob_key,
)
from falaj.store.blob_store import BlobStore, run_in_order
from falaj.store.copy_fence import require_not_fenced
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LEASE_S, LoopIteration
from falaj.store.series_backup import SeriesDump
from falaj.store.stored_objects import StoredObject, make_cursor_key

LEASE_NAME = "loop:backup"
CHECK_INTERVAL_S = 60.0
MAX_WAIT_S, WAIT_STEP_S = 900.0, 0.5
"""How long a backup by hand waits for another one, and between its tries."""
RETRY_AFTER_S = 600.0
_COPY_THREADS = 3
_RENEW_INTERVAL_S = 3.0
_MAX_LISTED_SKIPPED = 100
_READ_BYTES = 1 << 20
_PART_FOLDERS = ("ledger", "series", "contents")
HoldsLease = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """What the settings say of backups, and of who makes them."""

    to: str
    every_s: float
    keep: int
    place: str
    """The zone that the shelf stands in."""
    zone: str
    """The zone that the house stands in."""
    holders: tuple[str, ...]
    bytes: bool = True


@dataclass(frozen=True, slots=True)
class BackupAccess:
    """How backups reach what the store does not know of."""

    shelf: Callable[[], ObjectStore]
    admits: Callable[[], None]
    """Denied when no backup at all may go to the shelf's zone."""
    judge: JudgeHolder
    roots: Callable[[str, str, int], str]
    """The root of the running house's log of so many events, held against its signed checkpoint."""
    series: Callable[[], Any]
    """The house's store of series, as a context."""
    scratch: Callable[[str], Any]
    """A ledger in an empty folder, with a keyring on the house's own root keys: (Ledger, ObjectKeys), as a context."""


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """One backup as lists show it."""

    COLUMNS: ClassVar = ("name", "age_s", "size_bytes", "blobs", "left", "place")

    name: str
    at: float
    age_s: float
    size_bytes: int
    ledger_bytes: int
    blobs: int
    left: int
    """How much stayed behind because it may not lie there, or could not be read."""
    place: str
    zone: str
    logs: tuple[LogDigest, ...]
    left_first: tuple[SkippedObject, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyObserver:
    """What is learnt of a ledger while it is copied."""

    tally: RowTally
    holding: BackupInventory
    lost: HoldsLease

    def check(self) -> None:
        """Stale once somebody else makes the backups."""
        require_lease(self.lost)

    def through(self, rows: RowIterator) -> RowIterator:
        """The same rows, looked at."""
        for table, values in rows:
            self.check()
            self.holding.row(table, values)
            yield table, values


class BackupScheduler:
    """Makes, lists and prunes them."""

    def __init__(self, ledger: Ledger, blobs: BlobStore, backup_plan: BackupPlan, access: BackupAccess) -> None:
        self.ledger, self.blobs, self.plan, self.ways = ledger, blobs, backup_plan, access
        self._shelf: BackupTarget | None = None

    @property
    def shelf(self) -> BackupTarget:
        """Where they are; opened once somebody asks."""
        if not self.plan.to:
            raise Invalid("no place for backups is set", 'write in falaj.toml: [backup] to = "dir:/var/backups/falaj"')
        self._shelf = self._shelf or BackupTarget(self.ways.shelf())
        return self._shelf

    def all(self, now: float) -> tuple[BackupSummary, ...]:
        """Every backup, newest first."""
        target = self.shelf
        return tuple(to_summary(target.manifest(name), now) for name in reversed(target.names()))

    def make(self, ctx: CallContext, holds_lease: HoldsLease) -> BackupSummary:
        """One backup now; whoever calls holds the lease, and `holds_lease` says whether it still does."""
        self.ways.admits()
        self.mark_erased(ctx)
        target, log_cursor = self.shelf, self.ledger.store.end()
        newest_manifest = target.newest()
        # A clock that was set back must not make the newest backup the oldest.
        now = max(ctx.now(), newest_manifest.at + 0.001) if newest_manifest is not None else ctx.now()
        name = make_backup_name(now)
        with _keep_lease(holds_lease) as has_lost_lease:
            try:
                manifest = self._written(target, name, now, has_lost_lease)
                require_lease(has_lost_lease)
                target.write(manifest)
            except FalajError:
                with contextlib.suppress(FalajError):
                    target.drop(name)
                raise
            self._record(ctx, manifest, log_cursor)
            self._prune(target, has_lost_lease)
        return to_summary(manifest, ctx.now())

    def now(self, ctx: CallContext) -> BackupSummary:
        """Make a backup now; wait for one under way, and raise Conflict if that takes longer than WAIT_S."""
        require_not_fenced(
            self.ledger
        )  # pruning would delete backups of the installation that this one was copied from
        owner = f"by-hand-{generate_id()}"
        token = self._await_lease(ctx, owner)
        try:
            return self.make(ctx, lambda: self.ledger.lease(LEASE_NAME, owner, LEASE_S, ctx.now()) == token)
        finally:
            self.ledger.release(LEASE_NAME, owner)

    def _await_lease(self, ctx: CallContext, owner: str) -> int:
        """The token of the lease: a server's loop holds it while it makes a backup, and for seconds after each look."""
        deadline = time.monotonic() + MAX_WAIT_S
        while (token := self.ledger.lease(LEASE_NAME, owner, LEASE_S, ctx.now())) is None:
            if time.monotonic() > deadline:
                hint = "falaj store backups shows it once it is made; then repeat"
                raise Conflict(f"another backup has been under way for {MAX_WAIT_S / 60:.0f} minutes", hint)
            time.sleep(WAIT_STEP_S)
        return token

    def last(self, ctx: CallContext) -> dict[str, Any]:
        """What the ledger knows of the newest backup: `at`, `name`, `size`, `to`, `every_s`."""
        with self.ledger.read(ctx) as tx:
            record = tx.key(make_cursor_key(SYSTEM_TENANT, "backup"))
        return dict(record.body) if record is not None else {}

    def mark_erased(self, ctx: CallContext) -> int:
        """Take to the shelf which keys of persons were destroyed since we looked last; gives how many."""
        last_backup = self.last(ctx)
        after, end_cursor = str(last_backup.get("erased", "")), self.ledger.store.end()
        if not last_backup or after == end_cursor:
            return 0
        destroyed_keys, certified_requests = list[DestroyedKey](), list[DestroyedKey]()
        for operation, entries in (("subjects.forget", destroyed_keys), ("privacy.certify", certified_requests)):
            for row in self.ledger.store.events(after, verb=operation, limit=100_000):
                entries.append(DestroyedKey(row.tenant, row.subject.name, row.at))
        if destroyed_keys or certified_requests:
            self.shelf.note_erased(destroyed_keys, certified_requests, ctx.now())
        self._note(ctx, {**last_backup, "erased": end_cursor})
        return len(destroyed_keys)

    def _written(self, target: BackupTarget, name: str, now: float, has_lost_lease: HoldsLease) -> BackupManifest:
        backup_plan, row_tally = self.plan, RowTally()
        inventory = BackupInventory(self.ledger.cipher, backup_plan.holders)
        ledger_stream, form = self._ledger(target, name, CopyObserver(row_tally, inventory, has_lost_lease))
        allowed, skipped = inventory.sorted_out(backup_plan.place, self.ways.judge) if backup_plan.bytes else ([], [])
        copied = self._copied(target, allowed, skipped, has_lost_lease)
        series = self._series(target, name) if backup_plan.bytes else (0, 0, "")
        certified_requests = target.erased()[1]
        packed_contents = encode_contents(BackupContents(copied, skipped, inventory.tombs, certified_requests))
        target.store.put(f"contents/{name}", [packed_contents])
        return BackupManifest(
            TARGET_FORMAT,
            name,
            now,
            backup_plan.zone,
            backup_plan.place,
            row_tally.rows,
            row_tally.logs(),
            ledger_stream.size,
            ledger_stream.digest.hexdigest(),
            blake3(packed_contents).hexdigest(),
            len(copied),
            sum(copied_object.size for copied_object in copied),
            len(skipped),
            tuple(skipped[:_MAX_LISTED_SKIPPED]),
            form,
            *series,
        )

    def _ledger(self, target: BackupTarget, name: str, observer: "CopyObserver") -> tuple[HashedChunks[bytes], str]:
        """The whole ledger on the shelf, and in what form."""
        store = self.ledger.store
        if not isinstance(store, SupportsFileRestore):
            stream = HashedChunks(
                encode_rows(observer.through(require_dump_support(self.ledger).dump()), observer.tally)
            )
            target.store.put(f"ledger/{name}", stream)
            return stream, FORM_ROWS
        with store.snapshot() as file, Path(file.path).open("rb") as data:
            for table, values in observer.through(file.rows()):
                observer.tally.row(table, values)
            for tenant, zone, leaves in file.leaves():
                observer.check()
                observer.tally.leaves(tenant, zone, leaves)
            stream = HashedChunks(iter(lambda: data.read(_READ_BYTES), b""))
            target.store.put(f"ledger/{name}", stream)
        return stream, FORM_SQLITE

    def _series(self, target: BackupTarget, name: str) -> tuple[int, int, str]:
        """Measurements on the shelf; how many blocks, how many bytes, and their digest."""
        with self.ways.series() as series:
            dump = SeriesDump(series, "" if self.plan.place == self.plan.zone else self.plan.place)
            stream = HashedChunks(dump)
            target.store.put(f"series/{name}", stream)
        return dump.blocks, stream.size, stream.digest.hexdigest()

    def _copied(
        self,
        target: BackupTarget,
        allowed: list[StoredObject],
        skipped: list[SkippedObject],
        has_lost_lease: HoldsLease,
    ) -> list[BackedUpObject]:
        """Every object that goes, on the shelf; what cannot be read is said and does not hold up the rest."""
        newest_manifest, stored = target.newest(), target.blobs()
        previous = target.contents(newest_manifest).blobs if newest_manifest is not None else []
        previous_by_key = {make_blob_key(result.zone, result.key): result for result in previous}
        copied = list[BackedUpObject]()

        def copy_object(stored_object: StoredObject) -> BackedUpObject | SkippedObject:
            previous_copy = previous_by_key.get(make_blob_key(stored_object.zone, stored_object.key))
            if previous_copy is not None and make_blob_key(stored_object.zone, stored_object.key) in stored:
                return previous_copy
            try:
                return self._copy(target, stored_object)
            except (CorruptData, NotFound) as error:
                return SkippedObject("", stored_object.zone, stored_object.digest, error.message)

        for result in run_in_order(iter(allowed), copy_object, _COPY_THREADS, 2):
            require_lease(has_lost_lease)
            if isinstance(result, BackedUpObject):
                copied.append(result)
            else:
                skipped.append(result)
        return copied

    def _copy(self, target: BackupTarget, stored_object: StoredObject) -> BackedUpObject | SkippedObject:
        store = self.blobs.open_zone(stored_object.zone)
        if isinstance(store, RemoteZoneObjects):
            return SkippedObject("", stored_object.zone, stored_object.digest, store.refusal().message)
        uncached_store: ObjectStore = getattr(store, "inner", store)
        data = b"".join(uncached_store.open(stored_object.key))
        digest = blake3()
        for chunk in stored_object.seal(self.blobs.keys).open_all(data):
            digest.update(chunk)
        if digest.hexdigest() != stored_object.digest:
            raise CorruptData(f"the bytes read are not b3:{stored_object.digest[:16]}…", "run: falaj store scrub")
        target.store.put(make_blob_key(stored_object.zone, stored_object.key), [data])
        return BackedUpObject(stored_object.zone, stored_object.key, len(data), blake3(data).digest())

    def _record(self, ctx: CallContext, manifest: BackupManifest, cursor: str) -> None:
        size = manifest.ledger_bytes + manifest.blobs_bytes + manifest.series_bytes
        summary = {
            "at": manifest.at,
            "name": manifest.name,
            "size": size,
            "to": self.plan.to,
            "every_s": self.plan.every_s,
        }
        self._note(ctx, {**summary, "erased": cursor})
        ref = Ref("backup", self.plan.zone, manifest.name, "r1")
        with self.ledger.write(ctx) as tx:
            events = manifest.rows["events"]
            tx.emit("store.preserve", ref, place=manifest.place, bytes=size, events=events, left=manifest.left)

    def _note(self, ctx: CallContext, body: dict[str, Any]) -> None:
        with self.ledger.project(ctx) as tx:
            record = tx.key(make_cursor_key(SYSTEM_TENANT, "backup"))
            tx.put(make_cursor_key(SYSTEM_TENANT, "backup"), body, rev=record.rev if record is not None else None)

    def _prune(self, target: BackupTarget, has_lost_lease: HoldsLease) -> None:
        """Let the oldest go, what dead attempts left, and bytes that no kept backup names."""
        names = target.names()
        kept_names = names[-max(1, self.plan.keep) :]
        for name in {*names, *(part_name for kind in _PART_FOLDERS for part_name in target.names(kind))} - set(
            kept_names
        ):
            if not has_lost_lease():
                target.drop(name)
        needed_keys = set[str]()
        for name in kept_names:
            needed_keys |= {
                make_blob_key(part_name.zone, part_name.key)
                for part_name in target.contents(target.manifest(name)).blobs
            }
        for key in target.blobs():
            if key not in needed_keys and not has_lost_lease():
                target.store.delete(key)
        for name in target.names("erased"):
            if name < kept_names[-1] and not has_lost_lease():
                target.store.delete(f"erased/{name}")


class BackupLoop:
    """Makes a backup when one is due, and takes to the shelf at once whose keys were destroyed."""

    name, every_s = "backup", CHECK_INTERVAL_S

    def __init__(self, backups: BackupScheduler) -> None:
        self._backups = backups
        self._last_try_at = 0.0

    def step(self, iteration: LoopIteration) -> bool:
        """Look whether one is due. After a failure the next try is not before ten minutes."""
        now, backup_plan = iteration.ctx.now(), self._backups.plan
        self._backups.mark_erased(iteration.ctx)
        last_backup = self._backups.last(iteration.ctx)
        is_due = (
            last_backup.get("to") != backup_plan.to or now - float(last_backup.get("at", 0.0)) >= backup_plan.every_s
        )
        if is_due and now - self._last_try_at >= min(RETRY_AFTER_S, backup_plan.every_s):
            self._last_try_at = now
            self._backups.make(iteration.ctx, iteration.alive)
        return False


def to_summary(manifest: BackupManifest, now: float) -> BackupSummary:
    """A backup as lists show it."""
    size = manifest.ledger_bytes + manifest.blobs_bytes + manifest.series_bytes
    return BackupSummary(
        manifest.name,
        manifest.at,
        round(now - manifest.at, 1),
        size,
        manifest.ledger_bytes,
        manifest.blobs,
        manifest.left,
        manifest.place,
        manifest.zone,
        manifest.logs,
        manifest.left_first,
    )


def require_lease(has_lost_lease: HoldsLease) -> None:
    """Stale once somebody else makes the backups."""
    if has_lost_lease():
        raise StaleRevision("another replica makes the backups now", "look again")


@contextlib.contextmanager
def _keep_lease(holds_lease: HoldsLease) -> Iterator[HoldsLease]:
    """Keeps a lease from a thread while long work goes on; gives what says that it was lost."""
    lost_event, done_event = threading.Event(), threading.Event()

    def renew_lease() -> None:
        while not done_event.wait(_RENEW_INTERVAL_S):
            try:
                is_held = holds_lease()
            except Unavailable:
                is_held = False
            if not is_held:
                lost_event.set()
                return

    thread = threading.Thread(target=renew_lease, name="falaj-backup-lease", daemon=True)
    thread.start()
    try:
        yield lost_event.is_set
    finally:
        done_event.set()
        thread.join()
