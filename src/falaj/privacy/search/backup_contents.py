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

from falaj.asof.person_sealing import PSEUDONYM_BYTES, decode_person_keys
from falaj.core.errors import FalajError
from falaj.core.ports import ObjectStat
from falaj.core.transfer_permits import PermitAuthority
from falaj.features.person_keys import KEYS_SUFFIX
from falaj.govern.key_table import KeySlot
from falaj.privacy.search.data_estate import DataEstate
from falaj.privacy.search.isolated_files import STATE_CLEAR, STATE_FOUND, STATE_UNREAD
from falaj.privacy.search.ledger_entries import report_short_identifier, search_records
from falaj.privacy.search.records import STATE_KEPT, SearchCase, SearchOutcome, SearchStep
from falaj.privacy.search.version_files import RECORD_FILE_KINDS, VERSION_KINDS, search_record_files, search_versions
from falaj.store.backup import RowTally
from falaj.store.backup_inventory import find_destroyed_key
from falaj.store.backup_manager import BackupScheduler
from falaj.store.backup_target import BackupManifest, BackupTarget, make_blob_key
from falaj.store.blob_store import BlobStore
from falaj.store.collector import Collector
from falaj.store.ledger_restore import RestoreSteps, restore_ledger
from falaj.store.series_backup import read_frames

MAX_LEDGER_BYTES = 8 << 30  # a backup with a larger ledger is listed as unread
_MIN_FREE_DISK_BYTES = 1 << 30  # disk space that stays free
_NUMERIC_SERIES_PATTERN = re.compile(r"tele\.|[0-9a-f]{32}$")
"""Series of telemetry and of runs: they hold numbers, no texts."""


class _BackupZoneStore:
    """The bytes of one zone as they lie in a backup; read only."""

    def __init__(self, _target: BackupTarget, zone: str) -> None:
        self._store, self._zone = _target.store, zone

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The sealed bytes of an object."""
        return self._store.open(make_blob_key(self._zone, key), start, stop)

    def stat(self, keys: Iterable[str]) -> dict[str, ObjectStat]:
        """Which of these there are."""
        names = {make_blob_key(self._zone, key): key for key in keys}
        return {names[name]: object_stat for name, object_stat in self._store.stat(names).items()}


def search_backups(estate: DataEstate, case: SearchCase, after: str) -> Iterator[SearchStep]:
    """Search every backup. One that holds the person is listed with what it holds: it cannot be changed."""
    backup_manager: BackupScheduler | None = None if case.wants_rows else estate.service("store").kept
    if backup_manager is None or not backup_manager.plan.to:  # this platform makes no backups
        yield (), ""
        return
    try:
        names = [name for name in reversed(backup_manager.shelf.names()) if not after or name < after]
    except FalajError as error:
        yield (SearchOutcome("backups", STATE_UNREAD, f"they cannot be read: {error.message}"),), ""
        return
    for name in names:
        yield (_search_backup(estate, case, backup_manager, name),), name
    yield (), ""


def _search_backup(estate: DataEstate, case: SearchCase, backup_manager: BackupScheduler, name: str) -> SearchOutcome:
    memo_key = (f"backup {name}", ())
    if memo_key in case.seen:
        remembered: SearchOutcome = case.seen[memo_key]
        return remembered
    try:
        outcome = _open_backup(estate, case, backup_manager, backup_manager.shelf.manifest(name))
    except (FalajError, OSError) as error:
        reason = error.message if isinstance(error, FalajError) else str(error.strerror)
        return SearchOutcome(f"backup {name}", STATE_UNREAD, f"it cannot be searched: {reason}")
    if outcome.state != STATE_UNREAD:
        case.seen[memo_key] = outcome
    return outcome


def _open_backup(
    estate: DataEstate, case: SearchCase, backup_manager: BackupScheduler, manifest: BackupManifest
) -> SearchOutcome:
    day = datetime.fromtimestamp(manifest.at, UTC).date().isoformat()
    free_bytes = disk_usage(tempfile.gettempdir()).free - _MIN_FREE_DISK_BYTES
    if 2 * manifest.ledger_bytes > free_bytes or manifest.ledger_bytes > MAX_LEDGER_BYTES:
        reason = f"its ledger of {manifest.ledger_bytes >> 20} MiB is too large to be opened; it is of {day}"
        return SearchOutcome(f"backup {manifest.name}", STATE_UNREAD, reason)
    target = backup_manager.shelf
    with (
        tempfile.TemporaryDirectory(prefix="falaj-search-") as folder,
        backup_manager.ways.scratch(folder) as (ledger, keys),
    ):
        restore_ledger(ledger, target, manifest, RestoreSteps(RowTally()))
        zones: dict[str, Any] = {}
        permit_authority = PermitAuthority(token_bytes(32))  # reading a backup redeems none
        blobs = BlobStore(
            ledger, lambda zone: zones.setdefault(zone, _BackupZoneStore(target, zone)), keys, permit_authority
        )
        backup_estate = estate._replace(
            ledger=ledger, blobs=blobs, collector=partial(Collector, blobs, backup_manager.plan.holders)
        )
        outcomes = [
            outcome
            for outcome in _search_contents(estate, backup_estate, case, target, manifest)
            if outcome.state != STATE_CLEAR
        ]
    states = {outcome.state for outcome in outcomes}
    if not states:
        return SearchOutcome(f"backup {manifest.name}", STATE_CLEAR)
    worst_outcome = next(
        candidate
        for candidate in outcomes
        if candidate.state in (STATE_FOUND, STATE_KEPT) or not states & {STATE_FOUND, STATE_KEPT}
    )
    others = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
    holds_text = "holds the person" if states & {STATE_FOUND, STATE_KEPT} else "has parts that are not searched"
    reason = (
        f"the backup of {day} {holds_text}: {worst_outcome.ref}{others} "
        f"({worst_outcome.reason}); root keys open it until newer backups "
        "replace it"
    )
    return SearchOutcome(
        f"backup {manifest.name}", STATE_KEPT if states & {STATE_FOUND, STATE_KEPT} else STATE_UNREAD, reason
    )


def _search_contents(
    estate: DataEstate, backup_estate: DataEstate, case: SearchCase, target: BackupTarget, manifest: BackupManifest
) -> Iterator[SearchOutcome]:
    """What a backup holds, source by source; `backup_estate` reads the backup, `data_estate` the platform as it is."""
    yield from report_short_identifier(case)
    yield from _search_subject_keys(backup_estate, case)
    for outcomes, _ in search_records(backup_estate, case, ""):
        yield from outcomes
    if manifest.series_digest:
        yield from _search_changed_blocks(estate, case, target, manifest)
    if not manifest.blobs:
        return
    for kind in VERSION_KINDS:
        for outcomes, _ in search_versions(backup_estate, case, kind, ""):
            yield from outcomes
    for kind in RECORD_FILE_KINDS:
        for outcomes, _ in search_record_files(backup_estate, case, kind, ""):
            yield from outcomes
    yield from _search_row_keys(backup_estate, case)
    if unreached_count := backup_estate.collector().count_unreached(case.ctx):
        yield SearchOutcome(
            "deleted data", STATE_UNREAD, f"{unreached_count} stored objects that nothing named any more"
        )


def _search_subject_keys(backup_estate: DataEstate, case: SearchCase) -> Iterator[SearchOutcome]:
    """The person's own keys, which open what was sealed for them in the log."""
    for zone, pseudonym in sorted(case.pseudonyms):
        with backup_estate.ledger.read(case.ctx) as tx:
            record = tx.key(KeySlot(case.ctx.tenant, zone, "subject", pseudonym).key)
        if record is not None and find_destroyed_key(record) is None:
            yield SearchOutcome("the person's key", STATE_FOUND, f"it is not destroyed there, in zone {zone}")


def _search_row_keys(backup_estate: DataEstate, case: SearchCase) -> Iterator[SearchOutcome]:
    """The person's keys of sealed feature rows."""
    for record, _ in backup_estate.records(case.ctx, "dataset", live="yes"):
        if not record.key.name.endswith(KEYS_SUFFIX):
            continue
        names = [
            bytes.fromhex(name)[:PSEUDONYM_BYTES] for zone, name in case.pseudonyms if zone in record.body["zones"]
        ]
        snapshot = backup_estate.snapshot(case.ctx, record)
        for entry in snapshot.entries():
            if entry.kind == "file" and len(decode_person_keys(b"".join(snapshot.read(entry))).missing(names)) < len(
                names
            ):
                yield SearchOutcome(str(record.ref), STATE_FOUND, "it has the person's key of sealed rows")


def _search_changed_blocks(
    estate: DataEstate, case: SearchCase, target: BackupTarget, manifest: BackupManifest
) -> Iterator[SearchOutcome]:
    """Blocks of series that the platform does not have any more as they are; those that it has are searched there."""
    live_blocks: dict[tuple[str, str], set[str]] = {}
    count, series = 0, estate.series()
    for frame in read_frames(target.series(manifest)):
        for block in frame:
            if block.tenant != case.ctx.tenant or _NUMERIC_SERIES_PATTERN.match(block.series):
                continue
            series_and_tier = (block.series, block.shelf)
            if series_and_tier not in live_blocks:
                live_blocks[series_and_tier] = {
                    live_block.id for live_block in series.read(block.tenant, (block.series,), block.shelf)
                }
            count += block.id not in live_blocks[series_and_tier]
    if count:
        reason = f"{count} blocks of requests, labels or pushed rows, which were deleted or joined since"
        yield SearchOutcome("series", STATE_UNREAD, reason)
