"""How backups reach what the store does not know of: where they may go, the signed log they are held against, keys."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from falaj.audit import merkle, signed_note
from falaj.audit.log_sealing import LogSealer, SealedLog, ShortTransactionReads
from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import CorruptData, Denied
from falaj.core.label import Label
from falaj.core.ports import ObjectStore
from falaj.core.settings import Settings
from falaj.govern.keyring import Keyring
from falaj.govern.records import DataMovement
from falaj.govern.residency_check import residency_error
from falaj.govern.zones import ZoneService
from falaj.store.backup_inventory import HeldRecord
from falaj.store.backup_manager import BackupAccess, BackupPlan, BackupScheduler
from falaj.store.blob_store import BlobStore
from falaj.store.ledger import Ledger
from falaj.store.stored_objects import ObjectKeys

OpenBackend = Callable[[str, str], Any]
"""A port and an address, opened."""


def create_backup_manager(
    blobs: BlobStore,
    keyring: Keyring,
    zones: ZoneService,
    sealer: Callable[[], LogSealer],
    settings: Settings,
    holder_kinds: tuple[str, ...],
    open_backend: OpenBackend,
) -> BackupScheduler:
    """The backups of a house as its settings want them."""
    backup_settings, ledger = settings.backup, blobs.ledger
    zone = settings.zone
    plan = BackupPlan(
        backup_settings.to,
        3600 * backup_settings.every_h,
        backup_settings.keep,
        backup_settings.zone or zone,
        zone,
        holder_kinds,
        backup_settings.bytes,
    )
    residency = _BackupResidency(zones, plan)

    def open_target() -> ObjectStore:
        target_store: ObjectStore = open_backend("blobs", settings.at(backup_settings.to))
        return target_store

    @contextmanager
    def open_scratch_ledger(folder: str) -> Iterator[tuple[Ledger, ObjectKeys]]:
        scratch_ledger = Ledger(open_backend("store", f"sqlite:{folder}/ledger.db"))
        try:
            scratch_keyring = Keyring(
                scratch_ledger, keyring.table.secrets, keyring.table.root, home_zone=settings.zone
            )
            scratch_ledger.cipher = scratch_keyring
            yield scratch_ledger, scratch_keyring
        finally:
            scratch_ledger.close()

    def open_series() -> Any:
        return closing(open_backend("series", settings.series_url))

    get_log_root = _LogRootReader(ledger, sealer, settings.zone).at
    return BackupScheduler(
        ledger,
        blobs,
        plan,
        BackupAccess(open_target, residency.admits, residency.judge, get_log_root, open_series, open_scratch_ledger),
    )


class _BackupResidency:
    """What may go to the zone of the shelf."""

    def __init__(self, zones: ZoneService, plan: BackupPlan) -> None:
        self._zones, self._plan = zones, plan

    def admits(self) -> None:
        """Denied unless people named the shelf's zone as the backup zone of ours, and it stands."""
        server_zone, target_zone, now = self._plan.zone, self._plan.place, time.time()
        if target_zone == server_zone:
            return
        movement = DataMovement(
            "backup", Label(), f"backup:{server_zone}/ledger", SYSTEM_TENANT, server_zone, target_zone
        )
        verdict = self._zones.verdict(movement, now)
        if not verdict.allowed:
            raise residency_error(verdict, movement)
        if self._zones.view(SYSTEM_TENANT, now).zones[server_zone].backup_zone != target_zone:
            raise Denied(
                f"the zone {server_zone} does not name {target_zone} as its backup zone",
                f"whoever governs zones may: falaj zones change {server_zone} --more backup_zone={target_zone}",
            )

    def judge(self, held_record: HeldRecord, zone: str) -> str:
        """What place() has against the bytes of a record going from a zone to the shelf's."""
        movement = DataMovement(
            "backup",
            held_record.label,
            held_record.thing.partition("@")[0],
            held_record.tenant,
            zone,
            self._plan.place,
            restricted=held_record.restricted,
            size=held_record.size,
            since=held_record.at,
        )
        return "; ".join(self._zones.verdict(movement, time.time()).reasons)


class _LogRootReader:
    """Roots of the house's logs as they were, held against what is signed now."""

    def __init__(self, ledger: Ledger, _get_sealer: Callable[[], LogSealer], zone: str) -> None:
        self._ledger, self._get_sealer = ledger, _get_sealer
        self._ctx = CallContext(Actor("drill", SYSTEM_TENANT, kind="service"), zone)

    def at(self, tenant: str, zone: str, size: int) -> str:
        """The root of the first `size` events; Corrupt when the newest checkpoint does not stand over them."""
        ctx = replace(self._ctx, tenant=tenant, zone=zone)
        self._get_sealer().seal_all(ctx, tenant, zone)
        log = SealedLog(ShortTransactionReads(self._ledger, ctx), tenant, zone)
        newest = log.newest()
        text, lines = signed_note.split_note(newest.note)
        if not any(
            signed_note.verify_signature_line(text, line, newest.origin, signed_note.decode_base64(newest.key))
            for line in lines
        ):
            raise CorruptData(f"checkpoint {newest.number} is not signed by the key it names", "run: falaj audit check")
        if merkle.compute_frontier(newest.size, log.tiles.subtree).root() != signed_note.decode_base64(newest.root):
            raise CorruptData(
                f"the log does not lead to the root of checkpoint {newest.number}", "run: falaj audit check"
            )
        if size > newest.size:
            raise CorruptData("it is longer than the house's own", "is this another house's backup?")
        return merkle.compute_frontier(size, log.tiles.subtree).root().hex()
