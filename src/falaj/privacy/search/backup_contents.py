"""Searches backups: what one holds of the person can be read as long as the root keys can, whatever was erased since.

A backup is opened beside the platform, in a private folder: its ledger under the platform's own root keys, its bytes on
the shelf as they lie there. Its log is the beginning of the platform's own, which is searched itself. A backup never
changes, so what was found in one is remembered.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from secrets import token_bytes
from shutil import disk_usage
from typing import Any

from falaj.asof.sealed import NAME_BYTES, unpack_keys
from falaj.core.errors import FalajError
from falaj.core.permit import PermitDesk
from falaj.core.ports import Stat
from falaj.features.persons import KEYS_SUFFIX
from falaj.govern.keytable import Slot
from falaj.privacy.search.estate import Estate
from falaj.privacy.search.isolated_files import CLEAR, FOUND, UNREAD
from falaj.privacy.search.ledger_entries import search_records, short_identifier
from falaj.privacy.search.records import KEPT, SearchCase, SearchOutcome, SearchStep
from falaj.privacy.search.version_files import RECORD_FILE_KINDS, VERSION_KINDS, search_record_files, search_versions
from falaj.store.backup import Tally
from falaj.store.backups import Backups
from falaj.store.blobs import BlobStore
from falaj.store.bringing import Way, bring
from falaj.store.collect import Collector
from falaj.store.holding import tomb_of
from falaj.store.measures import read
from falaj.store.shelf import Manifest, Shelf, blob_key

MAX_LEDGER_BYTES = 8 << 30  # a backup with a larger ledger is listed as unread
_SPARE_BYTES = 1 << 30  # disk space that stays free
_NUMBERS = re.compile(r"tele\.|[0-9a-f]{32}$")
"""Series of telemetry and of runs: they hold numbers, no texts."""


class _ShelfZone:
    """The bytes of one zone as they lie in a backup; read only."""

    def __init__(self, shelf: Shelf, zone: str) -> None:
        self._store, self._zone = shelf.store, zone

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The sealed bytes of an object."""
        return self._store.open(blob_key(self._zone, key), start, stop)

    def stat(self, keys: Iterable[str]) -> dict[str, Stat]:
        """Which of these there are."""
        names = {blob_key(self._zone, key): key for key in keys}
        return {names[name]: stat for name, stat in self._store.stat(names).items()}


def search_backups(estate: Estate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search every backup. One that holds the person is listed with what it holds: it cannot be changed."""
    keeper: Backups | None = None if case.wants_rows else estate.service("store").kept
    if keeper is None or not keeper.plan.to:  # this platform makes no backups
        yield (), ""
        return
    try:
        names = [name for name in reversed(keeper.shelf.names()) if not after or name < after]
    except FalajError as error:
        yield (SearchOutcome("backups", UNREAD, f"they cannot be read: {error.message}"),), ""
        return
    for name in names:
        yield (_search_backup(estate, case, keeper, name),), name
    yield (), ""


def _search_backup(estate: Estate, case: SearchCase, keeper: Backups, name: str) -> SearchOutcome:
    memo = (f"backup {name}", ())
    if memo in case.seen:
        remembered: SearchOutcome = case.seen[memo]
        return remembered
    try:
        outcome = _open_backup(estate, case, keeper, keeper.shelf.manifest(name))
    except (FalajError, OSError) as error:
        reason = error.message if isinstance(error, FalajError) else str(error.strerror)
        return SearchOutcome(f"backup {name}", UNREAD, f"it cannot be searched: {reason}")
    if outcome.state != UNREAD:
        case.seen[memo] = outcome
    return outcome


def _open_backup(estate: Estate, case: SearchCase, keeper: Backups, manifest: Manifest) -> SearchOutcome:
    day = datetime.fromtimestamp(manifest.at, UTC).date().isoformat()
    free = disk_usage(tempfile.gettempdir()).free - _SPARE_BYTES
    if 2 * manifest.ledger_bytes > free or manifest.ledger_bytes > MAX_LEDGER_BYTES:
        reason = f"its ledger of {manifest.ledger_bytes >> 20} MiB is too large to be opened; it is of {day}"
        return SearchOutcome(f"backup {manifest.name}", UNREAD, reason)
    shelf = keeper.shelf
    with tempfile.TemporaryDirectory(prefix="falaj-search-") as folder, keeper.ways.scratch(folder) as (ledger, keys):
        bring(ledger, shelf, manifest, Way(Tally()))
        zones: dict[str, Any] = {}
        permits = PermitDesk(token_bytes(32))  # reading a backup redeems none
        blobs = BlobStore(ledger, lambda zone: zones.setdefault(zone, _ShelfZone(shelf, zone)), keys, permits)
        opened = estate._replace(ledger=ledger, blobs=blobs, collector=partial(Collector, blobs, keeper.plan.holders))
        outcomes = [outcome for outcome in _contents(estate, opened, case, shelf, manifest) if outcome.state != CLEAR]
    states = {outcome.state for outcome in outcomes}
    if not states:
        return SearchOutcome(f"backup {manifest.name}", CLEAR)
    worst = next(each for each in outcomes if each.state in (FOUND, KEPT) or not states & {FOUND, KEPT})
    others = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
    holds = "holds the person" if states & {FOUND, KEPT} else "has parts that are not searched"
    reason = (
        f"the backup of {day} {holds}: {worst.ref}{others} ({worst.reason}); root keys open it until newer backups "
        "replace it"
    )
    return SearchOutcome(f"backup {manifest.name}", KEPT if states & {FOUND, KEPT} else UNREAD, reason)


def _contents(
    estate: Estate, opened: Estate, case: SearchCase, shelf: Shelf, manifest: Manifest
) -> Iterator[SearchOutcome]:
    """What a backup holds, source by source; `opened` reads the backup, `estate` the platform as it is."""
    yield from short_identifier(case)
    yield from _subject_keys(opened, case)
    for outcomes, _ in search_records(opened, case, ""):
        yield from outcomes
    if manifest.series_digest:
        yield from _changed_blocks(estate, case, shelf, manifest)
    if not manifest.blobs:
        return
    for kind in VERSION_KINDS:
        for outcomes, _ in search_versions(opened, case, kind, ""):
            yield from outcomes
    for kind in RECORD_FILE_KINDS:
        for outcomes, _ in search_record_files(opened, case, kind, ""):
            yield from outcomes
    yield from _row_keys(opened, case)
    if left := opened.collector().count_unreached(case.ctx):
        yield SearchOutcome("deleted data", UNREAD, f"{left} stored objects that nothing named any more")


def _subject_keys(opened: Estate, case: SearchCase) -> Iterator[SearchOutcome]:
    """The person's own keys, which open what was sealed for them in the log."""
    for zone, pseudonym in sorted(case.pseudonyms):
        with opened.ledger.read(case.ctx) as tx:
            record = tx.key(Slot(case.ctx.tenant, zone, "subject", pseudonym).key)
        if record is not None and tomb_of(record) is None:
            yield SearchOutcome("the person's key", FOUND, f"it is not destroyed there, in zone {zone}")


def _row_keys(opened: Estate, case: SearchCase) -> Iterator[SearchOutcome]:
    """The person's keys of sealed feature rows."""
    for record, _ in opened.records(case.ctx, "dataset", live="yes"):
        if not record.key.name.endswith(KEYS_SUFFIX):
            continue
        names = [bytes.fromhex(name)[:NAME_BYTES] for zone, name in case.pseudonyms if zone in record.body["zones"]]
        snapshot = opened.snapshot(case.ctx, record)
        for entry in snapshot.entries():
            if entry.kind == "file" and len(unpack_keys(b"".join(snapshot.read(entry))).missing(names)) < len(names):
                yield SearchOutcome(str(record.ref), FOUND, "it has the person's key of sealed rows")


def _changed_blocks(estate: Estate, case: SearchCase, shelf: Shelf, manifest: Manifest) -> Iterator[SearchOutcome]:
    """Blocks of series that the platform does not have any more as they are; those that it has are searched there."""
    live: dict[tuple[str, str], set[str]] = {}
    count, series = 0, estate.series()
    for frame in read(shelf.series(manifest)):
        for block in frame:
            if block.tenant != case.ctx.tenant or _NUMBERS.match(block.series):
                continue
            place = (block.series, block.shelf)
            if place not in live:
                live[place] = {each.id for each in series.read(block.tenant, (block.series,), block.shelf)}
            count += block.id not in live[place]
    if count:
        reason = f"{count} blocks of requests, labels or pushed rows, which were deleted or joined since"
        yield SearchOutcome("series", UNREAD, reason)
