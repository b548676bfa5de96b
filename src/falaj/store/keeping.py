"""What can be brought back: backups by hand and by themselves, and the drill that proves them."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Denied, Invalid
from falaj.core.stream import Stream
from falaj.core.verb import verb
from falaj.store.backup import backup
from falaj.store.backups import Backups, Kept
from falaj.store.drill import Drilled, drill
from falaj.store.ledger import Ledger
from falaj.store.sealed import CHUNK


class Keeping:
    """A part of the desk of bytes."""

    _ledger: Ledger
    kept: Backups | None

    @verb(group="operate", outside=True)
    def backup(self, ctx: Context) -> Stream:
        """Write the whole ledger, of every tenant, into one file: ciphertext, proven by the root of each log.

        Only who runs the installation may. Root keys and the bytes of blobs are not in it: keep the keys apart, and let
        `preserve` keep the bytes.

        Example:
            falaj store backup --out ledger.backup
        """
        _house(ctx)
        with tempfile.TemporaryDirectory(prefix="falaj-") as folder:
            path = Path(folder) / "backup"
            report = backup(self._ledger, str(path))
            # Opened before its folder goes: whatever becomes of the reader, nothing is left behind.
            file = path.open("rb")
        return Stream(_drained(file), report.size_bytes)

    @verb(group="operate", outside=True)
    def preserve(self, ctx: Context) -> Kept:
        """Make a backup of ledger and bytes now, into the place that the settings name; a loop does it by itself.

        Only what the place lacks is copied, each piece held against its digest. Where the place stands in another zone,
        what may not lie there stays out and is listed. Root keys are never in it.

        Example:
            falaj store preserve
        """
        return self._keeper(ctx).now(ctx)

    @verb(group="operate")
    def backups(self, ctx: Context) -> tuple[Kept, ...]:
        """List the backups in the place that the settings name, newest first: age, size, the root of every log.

        Example:
            falaj store backups
        """
        return self._keeper(ctx).all(ctx.now())

    @verb(group="operate", outside=True)
    def drill(
        self,
        ctx: Context,
        backup: Annotated[str, "which one; the newest when left out"] = "",
        all_blobs: Annotated[bool, "open all bytes, and not only a sample"] = False,
    ) -> Drilled:
        """Restore a backup into an empty place, prove it against this house's signed log, and remove the place again.

        What was found is one event in the log, well or not; evidence packs and findings read it.

        Example:
            falaj store drill --all-blobs
        """
        return drill(self._keeper(ctx), ctx, backup, every=all_blobs)

    def _keeper(self, ctx: Context) -> Backups:
        _house(ctx)
        if self.kept is None:
            raise Invalid("this house keeps no backups of itself", "set [backup] to in falaj.toml")
        return self.kept


def _house(ctx: Context) -> None:
    if ctx.tenant != HOUSE:
        raise Denied("a backup holds every tenant's records", "ask whoever runs this installation")


def _drained(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk
