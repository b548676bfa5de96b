"""Rotation: a new version encrypts at once, what older ones wrapped is rewrapped in small guarded steps, then they end.

Only wrapped keys are rewritten (key records, and the `dek` of objects), never bulk data. Each step is one transaction
that moves some records and the cursor together, so a crash at any point loses nothing and repeats nothing. Versions end
only after a whole round that found nothing left to move and began `grace_s` after the start: by then no replica has the
old version in its cache and no upload that took its key before is still under way.
"""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.errors import Conflict, Invalid, NotFound, StaleRevision
from falaj.core.ports import RecordKey, SupportsKeyRetirement
from falaj.govern.encryption import read_wrapping_version
from falaj.govern.key_records import Rotation
from falaj.govern.key_table import KEY_REFRESH_S, KEYS_PROJECT, PURPOSES_UNDER_ROOT, KeySlot, decode_root_wrapped
from falaj.govern.keyring import ONLINE_SETTLE_S, Keyring
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

GRACE_PERIOD_S = 86_400.0
BATCH_SIZE = 200
WRAPPING_SCOPES = ("root", "zone", "tenant")
"""Scopes whose old versions end by themselves; old versions of data keys stay to read what they sealed. Those of
`online` end by `retire`, since every row of the online store can be filled anew."""
DATA_SCOPES = ("meta", "secret", "log", "model", "online")
RecordChange = tuple[LedgerRecord, dict[str, Any]]


class KeyRotations:
    """Begins rotations and carries each on, a batch a step."""

    def __init__(self, keyring: Keyring, grace_s: float = GRACE_PERIOD_S, batch_size: int = BATCH_SIZE) -> None:
        self.keyring, self._table, self._ledger = keyring, keyring.table, keyring.table.ledger
        self._grace_s, self.batch_size = grace_s, batch_size

    def begin(self, ctx: CallContext, scope: str, tenant: str, zone: str) -> Rotation:
        """Make the new version and the intention to carry everything over to it."""
        if scope not in (*WRAPPING_SCOPES, *DATA_SCOPES):
            raise Invalid(f"{scope[:40]!r} is no scope of a rotation", ", ".join((*WRAPPING_SCOPES, *DATA_SCOPES)))
        slot = _make_slot(scope, tenant, zone)
        now = ctx.now()
        self.unwrap_parent(slot)
        with self._ledger.write(ctx) as tx:
            earlier_record = tx.key(_make_rotation_key(scope, tenant, zone))
            if earlier_record is not None and earlier_record.body["phase"] != "done":
                raise Conflict("this key is being rotated already", "run: falaj keys status")
            changed_key = None if slot is None else self._table.grow(tx, slot)
            version = 0 if changed_key is None else int(changed_key.body["current"])
            phase = "done" if scope in DATA_SCOPES else "root" if slot is None else "sweep"
            rotation = Rotation(scope, tenant, zone, version, phase, now, now, finished=now if phase == "done" else 0.0)
            record = self.save_rotation(tx, rotation, earlier_record.rev if earlier_record is not None else None)
            tx.emit("keys.rotate", (changed_key or record).ref, scope=scope, zone=zone, version=version)
        return rotation

    def hurry(self, ctx: CallContext, scope: str, tenant: str, zone: str) -> Rotation:
        """Do not wait the whole grace time: the old versions end after the next clean round."""
        with self._ledger.write(ctx) as tx:
            record = tx.key(_make_rotation_key(scope, tenant, zone))
            if record is None or record.body["phase"] == "done":
                raise NotFound("no rotation of this key is under way", "run: falaj keys rotate")
            rotation = replace(_read_rotation(record), hurry=True)
            saved_record = self.save_rotation(tx, rotation, record.rev)
            tx.emit("keys.retire", saved_record.ref, scope=scope, zone=zone)
        return rotation

    def retire_online(self, ctx: CallContext, tenant: str, zone: str) -> Rotation:
        """End the versions of the tenant's online key before the newest, once every writer uses that."""
        with self._ledger.write(ctx) as tx:
            record = tx.key(_make_rotation_key("online", tenant, zone))
            if record is None:
                raise NotFound("the key of the online store was never rotated", "run: falaj keys rotate online")
            rotation = _read_rotation(record)
            wait_s = rotation.since + ONLINE_SETTLE_S + 3 * KEY_REFRESH_S - ctx.now()
            if wait_s > 0:
                hint = f"call again in {wait_s:.0f} seconds"
                raise Conflict("the old version of the online key may still encrypt rows somewhere", hint)
            self._end_versions(tx, KeySlot(tenant, zone, "online"), rotation.version)
            tx.emit("keys.end", record.ref, scope="online", zone=zone, version=rotation.version, moved=0)
        self._table.drop()
        return rotation

    def find(
        self, tx: LedgerReader, *, tenant: str = "", open_only: bool = False
    ) -> list[tuple[LedgerRecord, Rotation]]:
        """Rotations of one tenant (all of them for the house), newest names last."""
        terms = {"state": "open"} if open_only else {}
        entries: list[tuple[LedgerRecord, Rotation]] = []
        after = ""
        while True:
            page = tx.find("rotation", tenant=SYSTEM_TENANT, project=KEYS_PROJECT, terms=terms, after=after, limit=100)
            entries += [(record, _read_rotation(record)) for record in page.records]
            after = page.next
            if not after:
                return [
                    (entry_record, rotation)
                    for entry_record, rotation in entries
                    if tenant in (SYSTEM_TENANT, "", rotation.tenant)
                ]

    def step(self, ctx: CallContext, holds_lease: Callable[[], bool] = lambda: True) -> bool:
        """One batch of every rotation under way; True when there is more to do now."""
        with self._ledger.read(ctx) as tx:
            rotations = self.find(tx, open_only=True)
        has_more = False
        for record, rotation in rotations:
            if not holds_lease():
                return False
            try:
                has_more = (
                    self.advance_rotation(replace(ctx, tenant=SYSTEM_TENANT, zone=record.zone), record, rotation)
                    or has_more
                )
            except StaleRevision:
                has_more = True  # somebody changed a key meanwhile: look again
        return has_more

    def advance_rotation(self, ctx: CallContext, record: LedgerRecord, rotation: Rotation) -> bool:
        if rotation.phase == "root":
            version = self._table.secrets.rotate(self._table.root)
            sweeping = replace(rotation, phase="sweep", version=version, since=ctx.now(), round_since=ctx.now())
            self.write_changes(ctx, record, sweeping, [])
            return True
        is_due = ctx.now() >= self.compute_end_allowed_at(rotation)
        if rotation.phase == "wait":
            if is_due:
                self.write_changes(
                    ctx, record, replace(rotation, phase="sweep", round_since=ctx.now(), cursor="", moved_round=0), []
                )
            return is_due
        if (slot := _make_slot(rotation.scope, rotation.tenant, rotation.zone)) is not None:
            self._table.drop(slot)  # another replica may have begun this: what is in memory here may be older
        with self._ledger.read(ctx) as tx:
            records, cursor = self.find_wrapped_records(tx, rotation)
        changes = [
            (wrapped_record, body)
            for wrapped_record in records
            if (body := self.rewrap_body(wrapped_record)) is not None
        ]
        advanced = replace(
            rotation,
            cursor=cursor,
            moved=rotation.moved + len(changes),
            moved_round=rotation.moved_round + len(changes),
        )
        if cursor:
            self.write_changes(ctx, record, advanced, changes)
            return True
        return self.end_round(ctx, record, advanced, changes)

    def compute_end_allowed_at(self, rotation: Rotation) -> float:
        """From when on nobody can use an old version; even in a hurry the caches of other replicas must empty."""
        return rotation.since + (min(self._grace_s, 3 * KEY_REFRESH_S) if rotation.hurry else self._grace_s)

    def end_round(
        self, ctx: CallContext, record: LedgerRecord, rotation: Rotation, changes: list[RecordChange]
    ) -> bool:
        is_past_grace = rotation.round_since >= self.compute_end_allowed_at(rotation)
        if is_past_grace and rotation.moved_round == 0:
            self.finish_rotation(ctx, record, rotation)
            return False
        next_state = (
            replace(rotation, moved_round=0, round_since=ctx.now())
            if is_past_grace
            else replace(rotation, phase="wait")
        )
        self.write_changes(ctx, record, next_state, changes)
        return ctx.now() >= self.compute_end_allowed_at(rotation)

    def finish_rotation(self, ctx: CallContext, record: LedgerRecord, rotation: Rotation) -> None:
        slot = _make_slot(rotation.scope, rotation.tenant, rotation.zone)
        root_key_provider = self._table.secrets
        if slot is None and isinstance(root_key_provider, SupportsKeyRetirement):
            root_key_provider.retire(self._table.root, rotation.version)
        with self._ledger.write(ctx) as tx:
            saved_record = self.save_rotation(tx, replace(rotation, phase="done", finished=ctx.now()), record.rev)
            if slot is not None:
                self._end_versions(tx, slot, rotation.version)
            tx.emit(
                "keys.end",
                saved_record.ref,
                scope=rotation.scope,
                zone=rotation.zone,
                version=rotation.version,
                moved=rotation.moved,
            )
        self._table.drop()

    def _end_versions(self, tx: LedgerWriter, slot: KeySlot, min_version: int) -> None:
        record = tx.key(slot.key)
        if record is None:
            raise NotFound("the key that was rotated is gone", "restore it from a backup", slot.ref)
        kept_versions = {
            version_text: text
            for version_text, text in record.body["versions"].items()
            if int(version_text) >= min_version
        }
        kept_times = {
            version_text: made_at
            for version_text, made_at in record.body["made"].items()
            if version_text in kept_versions
        }
        tx.put(
            slot.key, {**record.body, "versions": kept_versions, "made": kept_times, "min": min_version}, rev=record.rev
        )

    def find_wrapped_records(self, tx: LedgerReader, rotation: Rotation) -> tuple[list[LedgerRecord], str]:
        """Some of the records that the rotated key wraps, and the cursor after them; empty at the end of the round."""
        if rotation.scope == "zone":
            tenants = sorted(
                tenant for tenant, zone in self._ledger.logs() if zone == rotation.zone and tenant > rotation.cursor
            )
            batch_tenants = tenants[: self.batch_size]
            tenant_keys = [tx.key(KeySlot(tenant, rotation.zone, "tenant").key) for tenant in batch_tenants]
            return [key_record for key_record in tenant_keys if key_record is not None], batch_tenants[-1] if len(
                tenants
            ) > len(batch_tenants) else ""
        cursor_part, _, after = rotation.cursor.partition(":")
        if cursor_part != "object":
            tenant = SYSTEM_TENANT if rotation.scope == "root" else rotation.tenant
            page = tx.find("key", tenant=tenant, project=KEYS_PROJECT, after=after, limit=self.batch_size)
            wrapped_records = [key_record for key_record in page.records if _is_wrapped_by(rotation, key_record)]
            next_cursor = "object:" if rotation.scope == "tenant" else ""
            return wrapped_records, f"key:{page.next}" if page.next else next_cursor
        page = tx.find("object", tenant=rotation.tenant, project="store", after=after, limit=self.batch_size)
        wrapped_records = [
            key_record
            for key_record in page.records
            if key_record.key.version == rotation.zone and key_record.body.get("dek")
        ]
        return wrapped_records, f"object:{page.next}" if page.next else ""

    def rewrap_body(self, record: LedgerRecord) -> dict[str, Any] | None:
        """The body with every wrapped key under the newest version above it; None when it is so already."""
        if record.key.kind == "object":
            tenant, zone, wrapped_key = record.key.tenant, record.key.version, str(record.body["dek"])
            if read_wrapping_version(wrapped_key) == self._table.held(KeySlot(tenant, zone, "tenant")).newest:
                return None
            return {**record.body, "dek": self.keyring.rewrap_object_key(tenant, zone, wrapped_key)}
        slot = KeySlot.of(record.key)
        versions = {
            version: self._table.wrapped(slot, int(version), self._table.unwrapped(slot, int(version), wrapped_text))
            if self.is_wrapped_by_old(slot, wrapped_text)
            else wrapped_text
            for version, wrapped_text in record.body["versions"].items()
        }
        return {**record.body, "versions": versions} if versions != record.body["versions"] else None

    def is_wrapped_by_old(self, slot: KeySlot, wrapped_text: str) -> bool:
        if slot.parent is not None:
            return read_wrapping_version(wrapped_text) != self._table.held(slot.parent).newest
        root_key_provider = self._table.secrets
        if not isinstance(root_key_provider, SupportsKeyRetirement):
            return False
        return root_key_provider.version(decode_root_wrapped(wrapped_text)) != root_key_provider.newest(
            self._table.root
        )

    def write_changes(
        self, ctx: CallContext, record: LedgerRecord, rotation: Rotation, changes: list[RecordChange]
    ) -> None:
        with self._ledger.write(ctx) as tx:
            for changed_record, body in changes:
                tx.put(changed_record.key, body, rev=changed_record.rev)
            saved_record = self.save_rotation(tx, rotation, record.rev)
            tx.emit(
                "keys.rewrap",
                saved_record.ref,
                scope=rotation.scope,
                zone=rotation.zone,
                moved=len(changes),
                phase=rotation.phase,
            )
            tx.after(lambda durable: self.drop_changed_keys(changes))

    def drop_changed_keys(self, changes: list[RecordChange]) -> None:
        for changed_record, _ in changes:
            if changed_record.key.kind == "key":
                self._table.drop(KeySlot.of(changed_record.key))

    def save_rotation(self, tx: LedgerWriter, rotation: Rotation, rev: int | None) -> LedgerRecord:
        terms = {"state": "done" if rotation.phase == "done" else "open"}
        zone = rotation.zone or self._table.home
        return tx.put(
            _make_rotation_key(rotation.scope, rotation.tenant, rotation.zone),
            asdict(rotation),
            rev=rev,
            zone=zone,
            terms=terms,
        )

    def unwrap_parent(self, slot: KeySlot | None) -> None:
        """Unwrap what stands above before the transaction: a key service may take its time to answer."""
        if slot is not None and slot.parent is not None:
            self._table.aead(slot.parent)


def _make_slot(scope: str, tenant: str, zone: str) -> KeySlot | None:
    if scope == "root":
        return None
    return KeySlot(SYSTEM_TENANT, zone, "zone") if scope == "zone" else KeySlot(tenant, zone, scope)


def _make_rotation_key(scope: str, tenant: str, zone: str) -> RecordKey:
    # tenant and zone together may be longer than a name may be
    digest = hashlib.sha256(f"{tenant}\0{zone}".encode()).hexdigest()[:24]
    return RecordKey(SYSTEM_TENANT, "rotation", KEYS_PROJECT, f"{scope}.{digest}")


def _read_rotation(record: LedgerRecord) -> Rotation:
    return Rotation(**record.body)


def _is_wrapped_by(rotation: Rotation, record: LedgerRecord) -> bool:
    slot = KeySlot.of(record.key)
    if rotation.scope == "root":
        return slot.purpose in PURPOSES_UNDER_ROOT
    return slot.parent == KeySlot(rotation.tenant, rotation.zone, "tenant")
