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

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Conflict, Corrupt, FalajError, Invalid, NotFound, Stale, Unavailable
from falaj.core.event import new_id
from falaj.core.ports import Blobs, CanAdopt, KeepsOut
from falaj.core.ref import Ref
from falaj.store.backup import LogState, Rows, Tally, copier, written
from falaj.store.blobs import BlobStore, in_order
from falaj.store.fence import check_not_fenced
from falaj.store.holding import Holding, Judge, Left, Tomb
from falaj.store.ledger import Ledger
from falaj.store.loop import LEASE_S, Turn
from falaj.store.measures import Measured
from falaj.store.objects import Object, cursor_key
from falaj.store.shelf import (
    FORMAT,
    ROWS,
    SQLITE,
    Contents,
    Copied,
    Manifest,
    Passing,
    Shelf,
    blob_key,
    new_name,
    packed,
)

LEASE = "loop:backup"
LOOK_S = 60.0
WAIT_S, WAIT_STEP_S = 900.0, 0.5
"""How long a backup by hand waits for another one, and between its tries."""
AGAIN_S = 600.0
_THREADS = 3
_BEAT_S = 3.0
_NAMED = 100
_CHUNK = 1 << 20
_PARTS = ("ledger", "series", "contents")
Alive = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Plan:
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
class Ways:
    """How backups reach what the store does not know of."""

    shelf: Callable[[], Blobs]
    admits: Callable[[], None]
    """Denied when no backup at all may go to the shelf's zone."""
    judge: Judge
    roots: Callable[[str, str, int], str]
    """The root of the running house's log of so many events, held against its signed checkpoint."""
    series: Callable[[], Any]
    """The house's store of series, as a context."""
    scratch: Callable[[str], Any]
    """A ledger in an empty folder, with a keyring on the house's own root keys: (Ledger, ObjectKeys), as a context."""


@dataclass(frozen=True, slots=True)
class Kept:
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
    logs: tuple[LogState, ...]
    left_first: tuple[Left, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What is learnt of a ledger while it is copied."""

    tally: Tally
    holding: Holding
    lost: Alive

    def check(self) -> None:
        """Stale once somebody else makes the backups."""
        check(self.lost)

    def through(self, rows: Rows) -> Rows:
        """The same rows, looked at."""
        for table, values in rows:
            self.check()
            self.holding.row(table, values)
            yield table, values


class Backups:
    """Makes, lists and prunes them."""

    def __init__(self, ledger: Ledger, blobs: BlobStore, plan: Plan, ways: Ways) -> None:
        self.ledger, self.blobs, self.plan, self.ways = ledger, blobs, plan, ways
        self._shelf: Shelf | None = None

    @property
    def shelf(self) -> Shelf:
        """Where they are; opened once somebody asks."""
        if not self.plan.to:
            raise Invalid("no place for backups is set", 'write in falaj.toml: [backup] to = "dir:/var/backups/falaj"')
        self._shelf = self._shelf or Shelf(self.ways.shelf())
        return self._shelf

    def all(self, now: float) -> tuple[Kept, ...]:
        """Every backup, newest first."""
        shelf = self.shelf
        return tuple(kept(shelf.manifest(name), now) for name in reversed(shelf.names()))

    def make(self, ctx: Context, alive: Alive) -> Kept:
        """One backup now; whoever calls holds the lease, and `alive` says whether it still does."""
        self.ways.admits()
        self.mark_erased(ctx)
        shelf, cursor = self.shelf, self.ledger.store.end()
        newest = shelf.newest()
        # A clock that was set back must not make the newest backup the oldest.
        now = max(ctx.now(), newest.at + 0.001) if newest is not None else ctx.now()
        name = new_name(now)
        with _beating(alive) as lost:
            try:
                made = self._written(shelf, name, now, lost)
                check(lost)
                shelf.write(made)
            except FalajError:
                with contextlib.suppress(FalajError):
                    shelf.drop(name)
                raise
            self._record(ctx, made, cursor)
            self._prune(shelf, lost)
        return kept(made, ctx.now())

    def now(self, ctx: Context) -> Kept:
        """Make a backup now; wait for one under way, and raise Conflict if that takes longer than WAIT_S."""
        check_not_fenced(self.ledger)  # pruning would delete backups of the installation that this one was copied from
        owner = f"by-hand-{new_id()}"
        token = self._await_lease(ctx, owner)
        try:
            return self.make(ctx, lambda: self.ledger.lease(LEASE, owner, LEASE_S, ctx.now()) == token)
        finally:
            self.ledger.release(LEASE, owner)

    def _await_lease(self, ctx: Context, owner: str) -> int:
        """The token of the lease: a server's loop holds it while it makes a backup, and for seconds after each look."""
        until = time.monotonic() + WAIT_S
        while (token := self.ledger.lease(LEASE, owner, LEASE_S, ctx.now())) is None:
            if time.monotonic() > until:
                hint = "falaj store backups shows it once it is made; then repeat"
                raise Conflict(f"another backup has been under way for {WAIT_S / 60:.0f} minutes", hint)
            time.sleep(WAIT_STEP_S)
        return token

    def last(self, ctx: Context) -> dict[str, Any]:
        """What the ledger knows of the newest backup: `at`, `name`, `size`, `to`, `every_s`."""
        with self.ledger.read(ctx) as tx:
            record = tx.key(cursor_key(HOUSE, "backup"))
        return dict(record.body) if record is not None else {}

    def mark_erased(self, ctx: Context) -> int:
        """Take to the shelf which keys of persons were destroyed since we looked last; gives how many."""
        last = self.last(ctx)
        after, end = str(last.get("erased", "")), self.ledger.store.end()
        if not last or after == end:
            return 0
        tombs, certified = list[Tomb](), list[Tomb]()
        for verb, found in (("subjects.forget", tombs), ("privacy.certify", certified)):
            for row in self.ledger.store.events(after, verb=verb, limit=100_000):
                found.append(Tomb(row.tenant, row.subject.name, row.at))
        if tombs or certified:
            self.shelf.note_erased(tombs, certified, ctx.now())
        self._note(ctx, {**last, "erased": end})
        return len(tombs)

    def _written(self, shelf: Shelf, name: str, now: float, lost: Alive) -> Manifest:
        plan, tally = self.plan, Tally()
        holding = Holding(self.ledger.cipher, plan.holders)
        passing, form = self._ledger(shelf, name, Seen(tally, holding, lost))
        go, left = holding.sorted_out(plan.place, self.ways.judge) if plan.bytes else ([], [])
        copied = self._copied(shelf, go, left, lost)
        series = self._series(shelf, name) if plan.bytes else (0, 0, "")
        certified = shelf.erased()[1]
        listed = packed(Contents(copied, left, holding.tombs, certified))
        shelf.store.put(f"contents/{name}", [listed])
        return Manifest(
            FORMAT, name, now, plan.zone, plan.place, tally.rows, tally.logs(), passing.size,
            passing.digest.hexdigest(), blake3(listed).hexdigest(), len(copied), sum(one.size for one in copied),
            len(left), tuple(left[:_NAMED]), form, *series,
        )  # fmt: skip

    def _ledger(self, shelf: Shelf, name: str, seen: "Seen") -> tuple[Passing[bytes], str]:
        """The whole ledger on the shelf, and in what form."""
        store = self.ledger.store
        if not isinstance(store, CanAdopt):
            passing = Passing(written(seen.through(copier(self.ledger).dump()), seen.tally))
            shelf.store.put(f"ledger/{name}", passing)
            return passing, ROWS
        with store.snapshot() as file, Path(file.path).open("rb") as data:
            for table, values in seen.through(file.rows()):
                seen.tally.row(table, values)
            for tenant, zone, leaves in file.leaves():
                seen.check()
                seen.tally.leaves(tenant, zone, leaves)
            passing = Passing(iter(lambda: data.read(_CHUNK), b""))
            shelf.store.put(f"ledger/{name}", passing)
        return passing, SQLITE

    def _series(self, shelf: Shelf, name: str) -> tuple[int, int, str]:
        """Measurements on the shelf; how many blocks, how many bytes, and their digest."""
        with self.ways.series() as series:
            measured = Measured(series, "" if self.plan.place == self.plan.zone else self.plan.place)
            passing = Passing(measured)
            shelf.store.put(f"series/{name}", passing)
        return measured.blocks, passing.size, passing.digest.hexdigest()

    def _copied(self, shelf: Shelf, go: list[Object], left: list[Left], lost: Alive) -> list[Copied]:
        """Every object that goes, on the shelf; what cannot be read is said and does not hold up the rest."""
        newest, there = shelf.newest(), shelf.blobs()
        old = shelf.contents(newest).blobs if newest is not None else []
        known = {blob_key(one.zone, one.key): one for one in old}
        found = list[Copied]()

        def copy(thing: Object) -> Copied | Left:
            before = known.get(blob_key(thing.zone, thing.key))
            if before is not None and blob_key(thing.zone, thing.key) in there:
                return before
            try:
                return self._copy(shelf, thing)
            except (Corrupt, NotFound) as error:
                return Left("", thing.zone, thing.digest, error.message)

        for one in in_order(iter(go), copy, _THREADS, 2):
            check(lost)
            if isinstance(one, Copied):
                found.append(one)
            else:
                left.append(one)
        return found

    def _copy(self, shelf: Shelf, thing: Object) -> Copied | Left:
        store = self.blobs.open_zone(thing.zone)
        if isinstance(store, KeepsOut):
            return Left("", thing.zone, thing.digest, store.refusal().message)
        behind: Blobs = getattr(store, "inner", store)
        data = b"".join(behind.open(thing.key))
        digest = blake3()
        for chunk in thing.seal(self.blobs.keys).open_all(data):
            digest.update(chunk)
        if digest.hexdigest() != thing.digest:
            raise Corrupt(f"the bytes read are not b3:{thing.digest[:16]}…", "run: falaj store scrub")
        shelf.store.put(blob_key(thing.zone, thing.key), [data])
        return Copied(thing.zone, thing.key, len(data), blake3(data).digest())

    def _record(self, ctx: Context, made: Manifest, cursor: str) -> None:
        size = made.ledger_bytes + made.blobs_bytes + made.series_bytes
        known = {"at": made.at, "name": made.name, "size": size, "to": self.plan.to, "every_s": self.plan.every_s}
        self._note(ctx, {**known, "erased": cursor})
        ref = Ref("backup", self.plan.zone, made.name, "r1")
        with self.ledger.write(ctx) as tx:
            events = made.rows["events"]
            tx.emit("store.preserve", ref, place=made.place, bytes=size, events=events, left=made.left)

    def _note(self, ctx: Context, body: dict[str, Any]) -> None:
        with self.ledger.project(ctx) as tx:
            record = tx.key(cursor_key(HOUSE, "backup"))
            tx.put(cursor_key(HOUSE, "backup"), body, rev=record.rev if record is not None else None)

    def _prune(self, shelf: Shelf, lost: Alive) -> None:
        """Let the oldest go, what dead attempts left, and bytes that no kept backup names."""
        names = shelf.names()
        keep = names[-max(1, self.plan.keep) :]
        for name in {*names, *(one for kind in _PARTS for one in shelf.names(kind))} - set(keep):
            if not lost():
                shelf.drop(name)
        wanted = set[str]()
        for name in keep:
            wanted |= {blob_key(one.zone, one.key) for one in shelf.contents(shelf.manifest(name)).blobs}
        for key in shelf.blobs():
            if key not in wanted and not lost():
                shelf.store.delete(key)
        for name in shelf.names("erased"):
            if name < keep[-1] and not lost():
                shelf.store.delete(f"erased/{name}")


class BackupLoop:
    """Makes a backup when one is due, and takes to the shelf at once whose keys were destroyed."""

    name, every_s = "backup", LOOK_S

    def __init__(self, backups: Backups) -> None:
        self._backups = backups
        self._tried = 0.0

    def step(self, turn: Turn) -> bool:
        """Look whether one is due. After a failure the next try is not before ten minutes."""
        now, plan = turn.ctx.now(), self._backups.plan
        self._backups.mark_erased(turn.ctx)
        last = self._backups.last(turn.ctx)
        due = last.get("to") != plan.to or now - float(last.get("at", 0.0)) >= plan.every_s
        if due and now - self._tried >= min(AGAIN_S, plan.every_s):
            self._tried = now
            self._backups.make(turn.ctx, turn.alive)
        return False


def kept(made: Manifest, now: float) -> Kept:
    """A backup as lists show it."""
    size = made.ledger_bytes + made.blobs_bytes + made.series_bytes
    return Kept(
        made.name, made.at, round(now - made.at, 1), size, made.ledger_bytes, made.blobs, made.left, made.place,
        made.zone, made.logs, made.left_first,
    )  # fmt: skip


def check(lost: Alive) -> None:
    """Stale once somebody else makes the backups."""
    if lost():
        raise Stale("another replica makes the backups now", "look again")


@contextlib.contextmanager
def _beating(alive: Alive) -> Iterator[Alive]:
    """Keeps a lease from a thread while long work goes on; gives what says that it was lost."""
    gone, done = threading.Event(), threading.Event()

    def beat() -> None:
        while not done.wait(_BEAT_S):
            try:
                held = alive()
            except Unavailable:
                held = False
            if not held:
                gone.set()
                return

    thread = threading.Thread(target=beat, name="falaj-backup-lease", daemon=True)
    thread.start()
    try:
        yield gone.is_set
    finally:
        done.set()
        thread.join()
