"""A house brought back from a shelf of backups: its ledger and its bytes, all or nothing, in its zone or in another.

In its own zone sealed bytes are laid where they were, as they are. In another zone they are sealed anew under that
zone's keys, and every record that holds them says so; what was left behind stays with its zone, which says so when
asked. Keys of persons that were destroyed after the backup was made are never let in.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, cast

from falaj.core.context import CallContext
from falaj.core.errors import Conflict
from falaj.core.ports import ObjectStore, RecordKey
from falaj.store import series_backup
from falaj.store.backup import LogDigest, ReportProgress, RowTally
from falaj.store.backup_inventory import DestroyedKey, find_destroyed_key, to_stored_row
from falaj.store.backup_target import BackedUpObject, BackupContents, BackupTarget, make_blob_key
from falaj.store.blob_store import BlobStore, run_in_order
from falaj.store.envelope import decrypt_record, encrypt_record
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.ledger_restore import OpenLedgerFile, RestoreSteps, restore_ledger
from falaj.store.records import LedgerRecord
from falaj.store.stored_objects import find_stored_object

_RESTORE_THREADS = 3
CheckRecord = Callable[[LedgerRecord], None]


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore brought back."""

    backup: str
    zone: str
    rows: dict[str, int]
    logs: tuple[LogDigest, ...]
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


class BackupRestore:
    """One restore from a shelf."""

    def __init__(self, target: BackupTarget, name: str, progress: ReportProgress | None = None) -> None:
        self.shelf, self.made = target, target.manifest(name)
        self.contents: BackupContents = target.contents(self.made)
        self.tally = RowTally(progress)
        destroyed_keys, certified_requests = target.erased()
        self._destroyed_keys = {(entry.tenant, entry.name): entry for entry in destroyed_keys}
        self.buried: list[DestroyedKey] = []
        self.repeat = tuple(f"{entry.tenant}: {entry.name}" for entry in certified_requests if entry.at > self.made.at)
        self.moved = self.moved_bytes = self.measured = 0

    def load(
        self, ledger: Ledger, own_store: ObjectStore | None, check_record: CheckRecord, open_file: OpenLedgerFile
    ) -> None:
        """The ledger into its empty store and, in the house's own zone, the bytes into `own_store` beside it.

        The ledger commits when the bytes are there: what was killed before leaves an empty store, to be tried again.
        """
        copies: list[Future[None]] = []
        with ThreadPoolExecutor(1, "falaj-restore") as executor:  # which waits for what it began, whatever happens

            def start_copy() -> None:
                if own_store is not None:
                    copies.append(executor.submit(self._copy_own_zone, own_store))

            def wait_for_copy() -> None:
                for copy in copies:
                    copy.result()

            steps = RestoreSteps(
                self.tally,
                open_file,
                lambda values: self._keep_destroyed(values, check_record),
                start_copy,
                wait_for_copy,
            )
            restore_ledger(ledger, self.shelf, self.made, steps)

    def lay(self, backed_up: Iterable[BackedUpObject], store: ObjectStore) -> None:
        """Sealed bytes into a zone's store, those it lacks, each held against its digest."""
        backed_up = list(backed_up)
        stored_sizes = {stat.key: stat.size for stat in store.list()}

        def put_if_missing(backed_up_object: BackedUpObject) -> int:
            if stored_sizes.get(backed_up_object.key) == backed_up_object.size:
                return 0
            return store.put(backed_up_object.key, self.shelf.blob(backed_up_object))

        for size in run_in_order(iter(backed_up), put_if_missing, _RESTORE_THREADS, 2):
            self.moved, self.moved_bytes = self.moved + (size > 0), self.moved_bytes + size

    def measure(self, open_series: Callable[[], Any]) -> None:
        """Measurements into the house's store of series; what is there already is left as it is."""
        if self.made.series_digest:
            with open_series() as series:
                self.measured = series_backup.restore_series(self.shelf.series(self.made), series)

    def _copy_own_zone(self, own_store: ObjectStore) -> None:
        self.lay(
            [backed_up_object for backed_up_object in self.contents.blobs if backed_up_object.zone == self.made.zone],
            own_store,
        )

    def told(self, zone: str, skipped_count: int) -> RestoreReport:
        """The report."""
        rows, logs = dict(self.tally.rows), self.tally.logs()
        return RestoreReport(
            self.made.name,
            zone,
            rows,
            logs,
            self.moved,
            self.moved_bytes,
            skipped_count,
            len(self.buried),
            self.repeat,
            self.measured,
        )

    def _keep_destroyed(self, values: tuple[Any, ...], check_record: CheckRecord) -> tuple[Any, ...]:
        """A key's row, as a tomb where the key was destroyed since. Rows of keys are not sealed."""
        record = decrypt_record(None, to_stored_row(values))
        destroyed_key = self._destroyed_keys.get((record.key.tenant, record.key.name))
        if destroyed_key is None or find_destroyed_key(record) is not None:
            check_record(record)
            return values
        self.buried.append(destroyed_key)
        body = {"versions": {}, "made": {}, "current": 0, "min": 0, "forgotten": destroyed_key.at}
        row = encrypt_record(None, replace(record, rev=record.rev + 1, body=body))
        return (*row.key, row.rev, row.cell, row.body, row.at, values[9])


class ZoneRelocation:
    """A house in another zone than its own: what came along is sealed anew there, and its records say so."""

    def __init__(self, restore: BackupRestore, blobs: BlobStore, zone: str) -> None:
        self._available_objects = {
            (backed_up_object.zone, backed_up_object.key) for backed_up_object in restore.contents.blobs
        }
        self._zone, self._restore = zone, restore
        names = {backed_up_object.zone for backed_up_object in restore.contents.blobs} - {zone}
        sources: dict[str, ObjectStore] = {
            name: cast(ObjectStore, _ZoneBackupReader(restore.shelf, name)) for name in names
        }
        self._blobs = blobs.with_zones(sources.get)
        self.left = 0

    def carry(self, ctx: CallContext, record: LedgerRecord) -> None:
        """Bring the bytes of one record over; those that did not come are counted."""
        ctx = replace(ctx, tenant=record.key.tenant)
        digests = [
            term_value
            for term, term_value in sorted(record.terms.items())
            if term == "digest" or term.startswith("digest.")
        ]
        zones = [name[3:] for name in sorted(record.terms) if name.startswith("at.")] or [record.zone]
        if not digests or self._zone in zones:
            return
        source = next(
            (zone for zone in zones if all(self._is_complete(ctx, zone, member_digest) for member_digest in digests)),
            "",
        )
        if not source:
            self.left += 1
            return
        for digest in digests:
            size = self._blobs.carry(ctx, str(record.ref.bare), digest, source, self._zone).size
            self._restore.moved, self._restore.moved_bytes = self._restore.moved + 1, self._restore.moved_bytes + size
        self._blobs.ledger.retry(ctx, lambda tx: self._record_relocation(tx, ctx, record.key, source))

    def _is_complete(self, ctx: CallContext, zone: str, digest: str) -> bool:
        with self._blobs.ledger.read(ctx) as tx:
            pending_digests = [digest.partition(":")[2]]
            while pending_digests:
                stored_object = find_stored_object(tx, ctx.tenant, zone, pending_digests.pop())
                if stored_object is None or (
                    not stored_object.parts and (zone, stored_object.key) not in self._available_objects
                ):
                    return False
                pending_digests += stored_object.parts
        return True

    def _record_relocation(self, tx: LedgerWriter, ctx: CallContext, key: RecordKey, source: str) -> None:
        record = tx.key(key)
        if record is None:
            raise Conflict("a record went while it was restored", "restore into a store that nobody uses")
        for name, digest in record.terms.items():
            if name == "digest" or name.startswith("digest."):
                self._blobs.hold(tx, ctx, self._zone, digest)
        body, terms = dict(record.body), {**record.terms, f"at.{self._zone}": "yes"}
        if "zones" in body:
            body["zones"] = list(dict.fromkeys((*body["zones"], self._zone)))
        updated = tx.put(key, body, rev=record.rev, zone="" if "zones" in body else self._zone, terms=terms)
        ref = updated.ref
        tx.emit("store.copy", ref, phase="restored", source=source, to=self._zone, backup=self._restore.made.name)


class _ZoneBackupReader:
    """The bytes of one zone as they lie on a shelf: to be read, and nothing else."""

    requests = 0

    def __init__(self, target: BackupTarget, zone: str) -> None:
        self._target, self._zone = target, zone

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        return self._target.store.open(make_blob_key(self._zone, key), start, stop)
