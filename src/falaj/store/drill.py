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

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Corrupt, FalajError
from falaj.core.ref import Ref
from falaj.store.backup import Tally
from falaj.store.backups import Backups
from falaj.store.bringing import Way, bring
from falaj.store.ledger import Ledger
from falaj.store.measures import read
from falaj.store.objects import READABLE, Object, ObjectKeys, objects_after
from falaj.store.shelf import Copied, Manifest, Shelf, blob_key

SAMPLE = 32
_PAGE = 1000
_TOLD = 500


@dataclass(frozen=True, slots=True)
class Drilled:
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


def drill(backups: Backups, ctx: Context, name: str = "", *, every: bool = False) -> Drilled:
    """Do it, and say in the log how it went, well or not."""
    began = perf_counter()
    trial = _Trial(backups, ctx, every)
    try:
        trial.run(name)
    except FalajError as error:
        trial.wrong.append(error.message)
    found = trial.told(perf_counter() - began)
    zone = backups.plan.zone
    with backups.ledger.write(ctx) as tx:
        tx.emit(
            "store.drill", Ref("backup", zone, found.backup or "none", "r1"), ok=int(found.ok), rows=found.rows,
            logs=found.logs, root=found.root, seconds=round(found.seconds, 3), bytes=found.bytes,
            opened=found.opened, why="; ".join(found.wrong)[:_TOLD],
        )  # fmt: skip
    return found


class _Trial:
    """One drill on its way: what was found so far, and what is wrong."""

    def __init__(self, backups: Backups, ctx: Context, every: bool) -> None:
        self._backups, self._ctx, self._every = backups, ctx, every
        self._made: Manifest | None = None
        self._tally = Tally()
        self._opened = self._bytes = 0
        self.wrong: list[str] = []

    def run(self, name: str) -> None:
        shelf = self._backups.shelf
        self._made = made = shelf.manifest(name)
        with (
            tempfile.TemporaryDirectory(prefix="falaj-drill-") as folder,
            self._backups.ways.scratch(folder) as (ledger, keys),
        ):
            bring(ledger, shelf, made, Way(self._tally))
            self._bytes += made.ledger_bytes
            self._measured(shelf, made)
            self._prefix(made)
            self._blobs(shelf, made, ledger, keys)

    def told(self, seconds: float) -> Drilled:
        made, logs = self._made, self._tally.logs()
        own = [log.root for log in logs if (log.tenant, log.zone) == (HOUSE, made.zone if made else "")]
        rows = sum(self._tally.rows.values())
        return Drilled(
            not self.wrong, made.name if made else "", rows, len(logs), own[0] if own else "",
            made.blobs if made else 0, self._opened, self._bytes, seconds, tuple(self.wrong),
        )  # fmt: skip

    def _measured(self, shelf: Shelf, made: Manifest) -> None:
        """Every block of measurements can be read, and none is missing."""
        if made.series_digest:
            found = sum(len(frame) for frame in read(shelf.series(made)))
            self._bytes += made.series_bytes
            if found != made.series:
                self.wrong.append(f"there are {found} blocks of measurements, and {made.series} were written")

    def _prefix(self, made: Manifest) -> None:
        """What was backed up is the beginning of what the house has now."""
        for log in made.logs:
            try:
                if self._backups.ways.roots(log.tenant, log.zone, log.size) != log.root:
                    self.wrong.append(f"the log of {log.tenant} in {log.zone} is not the beginning of the house's own")
            except FalajError as error:
                self.wrong.append(f"the log of {log.tenant} in {log.zone}: {error.message}")

    def _blobs(self, shelf: Shelf, made: Manifest, ledger: Ledger, keys: ObjectKeys) -> None:
        contents, there = shelf.contents(made), shelf.blobs()
        for one in contents.blobs:
            stat = there.get(blob_key(one.zone, one.key))
            if stat is None or stat.size != one.size:
                self.wrong.append(f"bytes of zone {one.zone} are {'cut' if stat else 'not there'}: {one.key[:16]}")
        by_key = {(one.zone, one.key): one for one in contents.blobs}
        # Bytes that are missing are told already; the sample is of those that are there.
        known = sorted(pair for pair, one in by_key.items() if blob_key(one.zone, one.key) in there)
        chosen = set(known if self._every or len(known) <= SAMPLE else random.SystemRandom().sample(known, SAMPLE))
        for tenant in sorted({tenant for tenant, _ in ledger.logs()}):
            after = ""
            while True:
                with ledger.read(self._ctx) as tx:
                    page, after = objects_after(tx, tenant, after, _PAGE)
                for thing in page:
                    if thing.state in READABLE and (thing.zone, thing.key) in chosen:
                        self._open(shelf, by_key[thing.zone, thing.key], thing, keys)
                if not after:
                    break

    def _open(self, shelf: Shelf, one: Copied, thing: Object, keys: ObjectKeys) -> None:
        try:
            data = b"".join(shelf.blob(one))
            digest = blake3()
            for chunk in thing.seal(keys).open_all(data):
                digest.update(chunk)
            if digest.hexdigest() != thing.digest:
                raise Corrupt(f"the bytes read are not b3:{thing.digest[:16]}…", "")
            self._opened, self._bytes = self._opened + 1, self._bytes + len(data)
        except FalajError as error:
            self.wrong.append(error.message)
