"""The restore drill: a backup goes into an empty place and must prove itself against the house that made it.

Every row is loaded and every log's root computed again; each log must be the beginning of the running house's own, by
its signed checkpoint; every object's record must open under the root keys; all bytes must be there, and a sample, or
all, is opened by digest. Then the place is removed, and the log says how it went.
"""

import random
import tempfile
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar

from blake3 import blake3

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import CorruptData, FalajError
from falaj.core.ref import Ref
from falaj.store.backup import RowTally
from falaj.store.backup_manager import BackupScheduler
from falaj.store.backup_target import BackedUpObject, BackupManifest, BackupTarget, make_blob_key
from falaj.store.ledger import Ledger
from falaj.store.ledger_restore import RestoreSteps, restore_ledger
from falaj.store.series_backup import read_frames
from falaj.store.stored_objects import READABLE, ObjectKeys, StoredObject, list_objects_after

SAMPLE_SIZE = 32
_PAGE_SIZE = 1000
_MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class DrillResult:
    """How a drill went."""

    COLUMNS: ClassVar = ("ok", "backup", "rows", "logs", "blobs", "opened", "seconds")

    ok: bool
    backup: str
    rows: int
    logs: int
    root: str
    """Of the house's own log, as the backup has it."""
    blobs: int
    opened: int
    """How many of the bytes were opened."""
    bytes: int
    seconds: float
    wrong: tuple[str, ...] = ()


def run_drill(backups: BackupScheduler, ctx: CallContext, name: str = "", *, check_all: bool = False) -> DrillResult:
    """Do it, and say in the log how it went, well or not."""
    started = perf_counter()
    drill_run = _DrillRun(backups, ctx, check_all)
    try:
        drill_run.run(name)
    except FalajError as error:
        drill_run.wrong.append(error.message)
    result = drill_run.told(perf_counter() - started)
    zone = backups.plan.zone
    with backups.ledger.write(ctx) as tx:
        tx.emit(
            "store.drill", Ref("backup", zone, result.backup or "none", "r1"), ok=int(result.ok), rows=result.rows,
            logs=result.logs, root=result.root, seconds=round(result.seconds, 3), bytes=result.bytes,
            opened=result.opened, why="; ".join(result.wrong)[:_MAX_REASON_CHARS],
        )  # fmt: skip
    return result


class _DrillRun:
    """One drill on its way: what was found so far, and what is wrong."""

    def __init__(self, backups: BackupScheduler, ctx: CallContext, check_all: bool) -> None:
        self._backups, self._ctx, self._check_all = backups, ctx, check_all
        self._manifest: BackupManifest | None = None
        self._row_tally = RowTally()
        self._opened = self._bytes = 0
        self.wrong: list[str] = []

    def run(self, name: str) -> None:
        target = self._backups.shelf
        self._manifest = manifest = target.manifest(name)
        with (
            tempfile.TemporaryDirectory(prefix="falaj-drill-") as folder,
            self._backups.ways.scratch(folder) as (ledger, keys),
        ):
            restore_ledger(ledger, target, manifest, RestoreSteps(self._row_tally))
            self._bytes += manifest.ledger_bytes
            self._check_series(target, manifest)
            self._check_log_prefixes(manifest)
            self._check_blobs(target, manifest, ledger, keys)

    def told(self, seconds: float) -> DrillResult:
        manifest, logs = self._manifest, self._row_tally.logs()
        server_roots = [
            log.root for log in logs if (log.tenant, log.zone) == (SYSTEM_TENANT, manifest.zone if manifest else "")
        ]
        rows = sum(self._row_tally.rows.values())
        return DrillResult(
            not self.wrong, manifest.name if manifest else "", rows, len(logs), server_roots[0] if server_roots else "",
            manifest.blobs if manifest else 0, self._opened, self._bytes, seconds, tuple(self.wrong),
        )  # fmt: skip

    def _check_series(self, target: BackupTarget, manifest: BackupManifest) -> None:
        """Every block of measurements can be read, and none is missing."""
        if manifest.series_digest:
            block_count = sum(len(frame) for frame in read_frames(target.series(manifest)))
            self._bytes += manifest.series_bytes
            if block_count != manifest.series:
                self.wrong.append(f"there are {block_count} blocks of measurements, and {manifest.series} were written")

    def _check_log_prefixes(self, manifest: BackupManifest) -> None:
        """What was backed up is the beginning of what the house has now."""
        for log in manifest.logs:
            try:
                if self._backups.ways.roots(log.tenant, log.zone, log.size) != log.root:
                    self.wrong.append(f"the log of {log.tenant} in {log.zone} is not the beginning of the house's own")
            except FalajError as error:
                self.wrong.append(f"the log of {log.tenant} in {log.zone}: {error.message}")

    def _check_blobs(self, target: BackupTarget, manifest: BackupManifest, ledger: Ledger, keys: ObjectKeys) -> None:
        contents, stored = target.contents(manifest), target.blobs()
        for copied_object in contents.blobs:
            stat = stored.get(make_blob_key(copied_object.zone, copied_object.key))
            if stat is None or stat.size != copied_object.size:
                self.wrong.append(
                    f"bytes of zone {copied_object.zone} are {'cut' if stat else 'not there'}: {copied_object.key[:16]}"
                )
        by_key = {(copied_object.zone, copied_object.key): copied_object for copied_object in contents.blobs}
        # Bytes that are missing are told already; the sample is of those that are there.
        available = sorted(
            pair
            for pair, copied_object in by_key.items()
            if make_blob_key(copied_object.zone, copied_object.key) in stored
        )
        chosen = set(
            available
            if self._check_all or len(available) <= SAMPLE_SIZE
            else random.SystemRandom().sample(available, SAMPLE_SIZE)
        )
        for tenant in sorted({tenant for tenant, _ in ledger.logs()}):
            after = ""
            while True:
                with ledger.read(self._ctx) as tx:
                    page, after = list_objects_after(tx, tenant, after, _PAGE_SIZE)
                for stored_object in page:
                    if stored_object.state in READABLE and (stored_object.zone, stored_object.key) in chosen:
                        self._check_object(target, by_key[stored_object.zone, stored_object.key], stored_object, keys)
                if not after:
                    break

    def _check_object(
        self, target: BackupTarget, copied_object: BackedUpObject, stored_object: StoredObject, keys: ObjectKeys
    ) -> None:
        try:
            data = b"".join(target.blob(copied_object))
            digest = blake3()
            for chunk in stored_object.seal(keys).open_all(data):
                digest.update(chunk)
            if digest.hexdigest() != stored_object.digest:
                raise CorruptData(f"the bytes read are not b3:{stored_object.digest[:16]}…", "")
            self._opened, self._bytes = self._opened + 1, self._bytes + len(data)
        except FalajError as error:
            self.wrong.append(error.message)
