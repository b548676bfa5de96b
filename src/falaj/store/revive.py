"""A house brought back from a shelf of backups: its ledger and its bytes, all or nothing, in its zone or in another.

In its own zone sealed bytes are laid where they were, as they are. In another zone they are sealed anew under that
zone's keys, and every record that holds them says so; what was left behind stays with its zone, which says so when
asked. Keys of persons that were destroyed after the backup was made are never let in.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, cast

from falaj.core.context import Context
from falaj.core.errors import Conflict
from falaj.core.ports import Blobs, Key
from falaj.store import measures
from falaj.store.backup import LogState, Progress, Tally
from falaj.store.blobs import BlobStore, in_order
from falaj.store.bringing import Files, Way, bring
from falaj.store.envelope import open_record, seal_record
from falaj.store.holding import Tomb, row_of, tomb_of
from falaj.store.ledger import Ledger, Writer
from falaj.store.objects import find_object
from falaj.store.records import Record
from falaj.store.shelf import Contents, Copied, Shelf, blob_key

_THREADS = 3
Check = Callable[[Record], None]


@dataclass(frozen=True, slots=True)
class Revived:
    """What a restore brought back."""

    backup: str
    zone: str
    rows: dict[str, int]
    logs: tuple[LogState, ...]
    blobs: int
    bytes: int
    left: int
    """How much of what the ledger names stayed behind, by place() or because it could not be read."""
    erased: int
    """Keys of persons that were destroyed after this backup, and were not let in again."""
    repeat: tuple[str, ...] = ()
    """Requests for erasure certified after this backup: what they deleted beside keys is back, so do them again."""
    series: int = 0
    """Blocks of measurements."""


class Revival:
    """One restore from a shelf."""

    def __init__(self, shelf: Shelf, name: str, progress: Progress | None = None) -> None:
        self.shelf, self.made = shelf, shelf.manifest(name)
        self.contents: Contents = shelf.contents(self.made)
        self.tally = Tally(progress)
        tombs, certified = shelf.erased()
        self._tombs = {(one.tenant, one.name): one for one in tombs}
        self.buried: list[Tomb] = []
        self.repeat = tuple(f"{one.tenant}: {one.name}" for one in certified if one.at > self.made.at)
        self.moved = self.moved_bytes = self.measured = 0

    def load(self, ledger: Ledger, own: Blobs | None, check: Check, files: Files) -> None:
        """The ledger into its empty store and, in the house's own zone, the bytes into `own` beside it.

        The ledger commits when the bytes are there: what was killed before leaves an empty store, to be tried again.
        """
        laying: list[Future[None]] = []
        with ThreadPoolExecutor(1, "falaj-restore") as beside:  # which waits for what it began, whatever happens

            def begin() -> None:
                if own is not None:
                    laying.append(beside.submit(self._lay_own, own))

            def ready() -> None:
                for one in laying:
                    one.result()

            way = Way(self.tally, files, lambda values: self._buried(values, check), begin, ready)
            bring(ledger, self.shelf, self.made, way)

    def lay(self, wanted: Iterable[Copied], store: Blobs) -> None:
        """Sealed bytes into a zone's store, those it lacks, each held against its digest."""
        wanted = list(wanted)
        there = {stat.key: stat.size for stat in store.list()}

        def put(one: Copied) -> int:
            if there.get(one.key) == one.size:
                return 0
            return store.put(one.key, self.shelf.blob(one))

        for size in in_order(iter(wanted), put, _THREADS, 2):
            self.moved, self.moved_bytes = self.moved + (size > 0), self.moved_bytes + size

    def measure(self, opened: Callable[[], Any]) -> None:
        """Measurements into the house's store of series; what is there already is left as it is."""
        if self.made.series_digest:
            with opened() as series:
                self.measured = measures.bring(self.shelf.series(self.made), series)

    def _lay_own(self, own: Blobs) -> None:
        self.lay([one for one in self.contents.blobs if one.zone == self.made.zone], own)

    def told(self, zone: str, left: int) -> Revived:
        """The report."""
        rows, logs = dict(self.tally.rows), self.tally.logs()
        return Revived(
            self.made.name, zone, rows, logs, self.moved, self.moved_bytes, left, len(self.buried), self.repeat,
            self.measured,
        )  # fmt: skip

    def _buried(self, values: tuple[Any, ...], check: Check) -> tuple[Any, ...]:
        """A key's row, as a tomb where the key was destroyed since. Rows of keys are not sealed."""
        record = open_record(None, row_of(values))
        tomb = self._tombs.get((record.key.tenant, record.key.name))
        if tomb is None or tomb_of(record) is not None:
            check(record)
            return values
        self.buried.append(tomb)
        body = {"versions": {}, "made": {}, "current": 0, "min": 0, "forgotten": tomb.at}
        row = seal_record(None, replace(record, rev=record.rev + 1, body=body))
        return (*row.key, row.rev, row.cell, row.body, row.at, values[9])


class Evacuation:
    """A house in another zone than its own: what came along is sealed anew there, and its records say so."""

    def __init__(self, revival: Revival, blobs: BlobStore, zone: str) -> None:
        self._there = {(one.zone, one.key) for one in revival.contents.blobs}
        self._zone, self._revival = zone, revival
        names = {one.zone for one in revival.contents.blobs} - {zone}
        sources: dict[str, Blobs] = {name: cast(Blobs, _OnShelf(revival.shelf, name)) for name in names}
        self._blobs = blobs.with_zones(sources.get)
        self.left = 0

    def carry(self, ctx: Context, record: Record) -> None:
        """Bring the bytes of one record over; those that did not come are counted."""
        ctx = replace(ctx, tenant=record.key.tenant)
        digests = [v for k, v in sorted(record.terms.items()) if k == "digest" or k.startswith("digest.")]
        zones = [name[3:] for name in sorted(record.terms) if name.startswith("at.")] or [record.zone]
        if not digests or self._zone in zones:
            return
        source = next((zone for zone in zones if all(self._whole(ctx, zone, one) for one in digests)), "")
        if not source:
            self.left += 1
            return
        for digest in digests:
            size = self._blobs.carry(ctx, str(record.ref.bare), digest, source, self._zone).size
            self._revival.moved, self._revival.moved_bytes = self._revival.moved + 1, self._revival.moved_bytes + size
        self._blobs.ledger.retry(ctx, lambda tx: self._say(tx, ctx, record.key, source))

    def _whole(self, ctx: Context, zone: str, digest: str) -> bool:
        with self._blobs.ledger.read(ctx) as tx:
            todo = [digest.partition(":")[2]]
            while todo:
                thing = find_object(tx, ctx.tenant, zone, todo.pop())
                if thing is None or (not thing.parts and (zone, thing.key) not in self._there):
                    return False
                todo += thing.parts
        return True

    def _say(self, tx: Writer, ctx: Context, key: Key, source: str) -> None:
        record = tx.key(key)
        if record is None:
            raise Conflict("a record went while it was restored", "restore into a store that nobody uses")
        for name, digest in record.terms.items():
            if name == "digest" or name.startswith("digest."):
                self._blobs.hold(tx, ctx, self._zone, digest)
        body, terms = dict(record.body), {**record.terms, f"at.{self._zone}": "yes"}
        if "zones" in body:
            body["zones"] = list(dict.fromkeys((*body["zones"], self._zone)))
        kept = tx.put(key, body, rev=record.rev, zone="" if "zones" in body else self._zone, terms=terms)
        ref = kept.ref
        tx.emit("store.copy", ref, phase="restored", source=source, to=self._zone, backup=self._revival.made.name)


class _OnShelf:
    """The bytes of one zone as they lie on a shelf: to be read, and nothing else."""

    requests = 0

    def __init__(self, shelf: Shelf, zone: str) -> None:
        self._shelf, self._zone = shelf, zone

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        return self._shelf.store.open(blob_key(self._zone, key), start, stop)
