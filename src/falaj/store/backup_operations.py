"""What can be brought back: backups by hand and by themselves, and the drill that proves them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

from falaj.core.byte_stream import ByteStream
from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Denied, Invalid
from falaj.core.operation import operation
from falaj.store.backup import backup
from falaj.store.backup_manager import BackupScheduler, BackupSummary
from falaj.store.ledger import Ledger
from falaj.store.restore_drill import DrillResult, run_drill
from falaj.store.sealed_format import CHUNK_BYTES


class BackupOperations:
    """A part of the desk of bytes."""

    _ledger: Ledger
    kept: BackupScheduler | None

    @operation(group="operate", has_outside_effects=True)
    def backup(self, ctx: CallContext) -> ByteStream:
        """Write the whole ledger, of every tenant, into one file: ciphertext, proven by the root of each log.

        Only who runs the installation may. Root keys and the bytes of blobs are not in it: keep the keys apart, and let
        `preserve` keep the bytes.

        Example:
            falaj store backup --out ledger.backup
        """
        _require_system_tenant(ctx)
        with tempfile.TemporaryDirectory(prefix="falaj-") as folder:
            path = Path(folder) / "backup"
            report = backup(self._ledger, str(path))
            # Opened before its folder goes: whatever becomes of the reader, nothing is left behind.
            file = path.open("rb")
        return ByteStream(_read_to_end(file), report.size_bytes)

    @operation(group="operate", has_outside_effects=True)
    def preserve(self, ctx: CallContext) -> BackupSummary:
        """Make a backup of ledger and bytes now, into the place that the settings name; a loop does it by itself.

        Only what the place lacks is copied, each piece held against its digest. Where the place stands in another zone,
        what may not lie there stays out and is listed. Root keys are never in it.

        Example:
            falaj store preserve
        """
        return self._require_manager(ctx).now(ctx)

    @operation(group="operate")
    def backups(self, ctx: CallContext) -> tuple[BackupSummary, ...]:
        """List the backups in the place that the settings name, newest first: age, size, the root of every log.

        Example:
            falaj store backups
        """
        return self._require_manager(ctx).all(ctx.now())

    @operation(group="operate", has_outside_effects=True)
    def drill(
        self,
        ctx: CallContext,
        backup: Annotated[str, "which one; the newest when left out"] = "",
        all_blobs: Annotated[bool, "open all bytes, and not only a sample"] = False,
    ) -> DrillResult:
        """Restore a backup into an empty place, prove it against this house's signed log, and remove the place again.

        What was found is one event in the log, well or not; evidence packs and findings read it.

        Example:
            falaj store drill --all-blobs
        """
        return run_drill(self._require_manager(ctx), ctx, backup, check_all=all_blobs)

    def _require_manager(self, ctx: CallContext) -> BackupScheduler:
        _require_system_tenant(ctx)
        if self.kept is None:
            raise Invalid("this house keeps no backups of itself", "set [backup] to in falaj.toml")
        return self.kept


def _require_system_tenant(ctx: CallContext) -> None:
    if ctx.tenant != SYSTEM_TENANT:
        raise Denied("a backup holds every tenant's records", "ask whoever runs this installation")


def _read_to_end(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
