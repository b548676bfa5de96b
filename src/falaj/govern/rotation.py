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

from falaj.core.context import HOUSE, Context
from falaj.core.errors import Conflict, Invalid, NotFound, Stale
from falaj.core.ports import CanRetire, Key
from falaj.govern.key_records import Rotation
from falaj.govern.keys import ONLINE_SETTLE_S, Keyring
from falaj.govern.keytable import FRESH_S, OF_ROOT, PROJECT, Slot, root_wrapped
from falaj.govern.sealing import wrapped_version
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record

GRACE_S = 86_400.0
BATCH = 200
WRAPPING = ("root", "zone", "tenant")
"""Scopes whose old versions end by themselves; old versions of data keys stay to read what they sealed. Those of
`online` end by `retire`, since every row of the online store can be filled anew."""
DATA = ("meta", "secret", "log", "model", "online")
Change = tuple[Record, dict[str, Any]]


class Rotations:
    """Begins rotations and carries each on, a batch a step."""

    def __init__(self, keyring: Keyring, grace_s: float = GRACE_S, batch: int = BATCH) -> None:
        self._ring, self._table, self._ledger = keyring, keyring.table, keyring.table.ledger
        self._grace_s, self._batch = grace_s, batch

    def begin(self, ctx: Context, scope: str, tenant: str, zone: str) -> Rotation:
        """Make the new version and the intention to carry everything over to it."""
        if scope not in (*WRAPPING, *DATA):
            raise Invalid(f"{scope[:40]!r} is no scope of a rotation", ", ".join((*WRAPPING, *DATA)))
        slot = _slot(scope, tenant, zone)
        now = ctx.now()
        self._ready(slot)
        with self._ledger.write(ctx) as tx:
            old = tx.key(_key(scope, tenant, zone))
            if old is not None and old.body["phase"] != "done":
                raise Conflict("this key is being rotated already", "run: falaj keys status")
            grown = None if slot is None else self._table.grow(tx, slot)
            version = 0 if grown is None else int(grown.body["current"])
            phase = "done" if scope in DATA else "root" if slot is None else "sweep"
            job = Rotation(scope, tenant, zone, version, phase, now, now, finished=now if phase == "done" else 0.0)
            record = self._save(tx, job, old.rev if old is not None else None)
            tx.emit("keys.rotate", (grown or record).ref, scope=scope, zone=zone, version=version)
        return job

    def hurry(self, ctx: Context, scope: str, tenant: str, zone: str) -> Rotation:
        """Do not wait the whole grace time: the old versions end after the next clean round."""
        with self._ledger.write(ctx) as tx:
            record = tx.key(_key(scope, tenant, zone))
            if record is None or record.body["phase"] == "done":
                raise NotFound("no rotation of this key is under way", "run: falaj keys rotate")
            job = replace(_job(record), hurry=True)
            saved = self._save(tx, job, record.rev)
            tx.emit("keys.retire", saved.ref, scope=scope, zone=zone)
        return job

    def retire_online(self, ctx: Context, tenant: str, zone: str) -> Rotation:
        """End the versions of the tenant's online key before the newest, once every writer uses that."""
        with self._ledger.write(ctx) as tx:
            record = tx.key(_key("online", tenant, zone))
            if record is None:
                raise NotFound("the key of the online store was never rotated", "run: falaj keys rotate online")
            job = _job(record)
            wait_s = job.since + ONLINE_SETTLE_S + 3 * FRESH_S - ctx.now()
            if wait_s > 0:
                hint = f"call again in {wait_s:.0f} seconds"
                raise Conflict("the old version of the online key may still encrypt rows somewhere", hint)
            self._end_versions(tx, Slot(tenant, zone, "online"), job.version)
            tx.emit("keys.end", record.ref, scope="online", zone=zone, version=job.version, moved=0)
        self._table.drop()
        return job

    def find(self, tx: Reader, *, all_of: str = "", open_only: bool = False) -> list[tuple[Record, Rotation]]:
        """Rotations of one tenant (all of them for the house), newest names last."""
        terms = {"state": "open"} if open_only else {}
        found: list[tuple[Record, Rotation]] = []
        after = ""
        while True:
            page = tx.find("rotation", tenant=HOUSE, project=PROJECT, terms=terms, after=after, limit=100)
            found += [(record, _job(record)) for record in page.records]
            after = page.next
            if not after:
                return [(r, job) for r, job in found if all_of in (HOUSE, "", job.tenant)]

    def step(self, ctx: Context, alive: Callable[[], bool] = lambda: True) -> bool:
        """One batch of every rotation under way; True when there is more to do now."""
        with self._ledger.read(ctx) as tx:
            jobs = self.find(tx, open_only=True)
        more = False
        for record, job in jobs:
            if not alive():
                return False
            try:
                more = self._advance(replace(ctx, tenant=HOUSE, zone=record.zone), record, job) or more
            except Stale:
                more = True  # somebody changed a key meanwhile: look again
        return more

    def _advance(self, ctx: Context, record: Record, job: Rotation) -> bool:
        if job.phase == "root":
            version = self._table.secrets.rotate(self._table.root)
            swept = replace(job, phase="sweep", version=version, since=ctx.now(), round_since=ctx.now())
            self._write(ctx, record, swept, [])
            return True
        due = ctx.now() >= self._ripe(job)
        if job.phase == "wait":
            if due:
                self._write(
                    ctx, record, replace(job, phase="sweep", round_since=ctx.now(), cursor="", moved_round=0), []
                )
            return due
        if (slot := _slot(job.scope, job.tenant, job.zone)) is not None:
            self._table.drop(slot)  # another replica may have begun this: what is in memory here may be older
        with self._ledger.read(ctx) as tx:
            records, cursor = self._children(tx, job)
        changes = [(one, body) for one in records if (body := self._rewrapped(one)) is not None]
        moved = replace(job, cursor=cursor, moved=job.moved + len(changes), moved_round=job.moved_round + len(changes))
        if cursor:
            self._write(ctx, record, moved, changes)
            return True
        return self._round_end(ctx, record, moved, changes)

    def _ripe(self, job: Rotation) -> float:
        """From when on nobody can use an old version; even in a hurry the caches of other replicas must empty."""
        return job.since + (min(self._grace_s, 3 * FRESH_S) if job.hurry else self._grace_s)

    def _round_end(self, ctx: Context, record: Record, job: Rotation, changes: list[Change]) -> bool:
        over = job.round_since >= self._ripe(job)
        if over and job.moved_round == 0:
            self._finish(ctx, record, job)
            return False
        fresh = replace(job, moved_round=0, round_since=ctx.now()) if over else replace(job, phase="wait")
        self._write(ctx, record, fresh, changes)
        return ctx.now() >= self._ripe(job)

    def _finish(self, ctx: Context, record: Record, job: Rotation) -> None:
        slot = _slot(job.scope, job.tenant, job.zone)
        secrets = self._table.secrets
        if slot is None and isinstance(secrets, CanRetire):
            secrets.retire(self._table.root, job.version)
        with self._ledger.write(ctx) as tx:
            saved = self._save(tx, replace(job, phase="done", finished=ctx.now()), record.rev)
            if slot is not None:
                self._end_versions(tx, slot, job.version)
            tx.emit("keys.end", saved.ref, scope=job.scope, zone=job.zone, version=job.version, moved=job.moved)
        self._table.drop()

    def _end_versions(self, tx: Writer, slot: Slot, least: int) -> None:
        record = tx.key(slot.key)
        if record is None:
            raise NotFound("the key that was rotated is gone", "restore it from a backup", slot.ref)
        kept = {v: text for v, text in record.body["versions"].items() if int(v) >= least}
        made = {v: at for v, at in record.body["made"].items() if v in kept}
        tx.put(slot.key, {**record.body, "versions": kept, "made": made, "min": least}, rev=record.rev)

    def _children(self, tx: Reader, job: Rotation) -> tuple[list[Record], str]:
        """Some of the records that the rotated key wraps, and the cursor after them; empty at the end of the round."""
        if job.scope == "zone":
            tenants = sorted(tenant for tenant, zone in self._ledger.logs() if zone == job.zone and tenant > job.cursor)
            some = tenants[: self._batch]
            found = [tx.key(Slot(tenant, job.zone, "tenant").key) for tenant in some]
            return [one for one in found if one is not None], some[-1] if len(tenants) > len(some) else ""
        part, _, after = job.cursor.partition(":")
        if part != "object":
            tenant = HOUSE if job.scope == "root" else job.tenant
            page = tx.find("key", tenant=tenant, project=PROJECT, after=after, limit=self._batch)
            mine = [one for one in page.records if _is_child(job, one)]
            end = "object:" if job.scope == "tenant" else ""
            return mine, f"key:{page.next}" if page.next else end
        page = tx.find("object", tenant=job.tenant, project="store", after=after, limit=self._batch)
        mine = [one for one in page.records if one.key.version == job.zone and one.body.get("dek")]
        return mine, f"object:{page.next}" if page.next else ""

    def _rewrapped(self, record: Record) -> dict[str, Any] | None:
        """The body with every wrapped key under the newest version above it; None when it is so already."""
        if record.key.kind == "object":
            tenant, zone, dek = record.key.tenant, record.key.version, str(record.body["dek"])
            if wrapped_version(dek) == self._table.held(Slot(tenant, zone, "tenant")).newest:
                return None
            return {**record.body, "dek": self._ring.rewrap_object_key(tenant, zone, dek)}
        slot = Slot.of(record.key)
        versions = {
            version: self._table.wrapped(slot, int(version), self._table.unwrapped(slot, int(version), text))
            if self._is_old(slot, text)
            else text
            for version, text in record.body["versions"].items()
        }
        return {**record.body, "versions": versions} if versions != record.body["versions"] else None

    def _is_old(self, slot: Slot, text: str) -> bool:
        if slot.parent is not None:
            return wrapped_version(text) != self._table.held(slot.parent).newest
        secrets = self._table.secrets
        if not isinstance(secrets, CanRetire):
            return False
        return secrets.version(root_wrapped(text)) != secrets.newest(self._table.root)

    def _write(self, ctx: Context, record: Record, job: Rotation, changes: list[Change]) -> None:
        with self._ledger.write(ctx) as tx:
            for old, body in changes:
                tx.put(old.key, body, rev=old.rev)
            saved = self._save(tx, job, record.rev)
            tx.emit("keys.rewrap", saved.ref, scope=job.scope, zone=job.zone, moved=len(changes), phase=job.phase)
            tx.after(lambda durable: self._dropped(changes))

    def _dropped(self, changes: list[Change]) -> None:
        for old, _ in changes:
            if old.key.kind == "key":
                self._table.drop(Slot.of(old.key))

    def _save(self, tx: Writer, job: Rotation, rev: int | None) -> Record:
        terms = {"state": "done" if job.phase == "done" else "open"}
        zone = job.zone or self._table.home
        return tx.put(_key(job.scope, job.tenant, job.zone), asdict(job), rev=rev, zone=zone, terms=terms)

    def _ready(self, slot: Slot | None) -> None:
        """Unwrap what stands above before the transaction: a key service may take its time to answer."""
        if slot is not None and slot.parent is not None:
            self._table.aead(slot.parent)


def _slot(scope: str, tenant: str, zone: str) -> Slot | None:
    if scope == "root":
        return None
    return Slot(HOUSE, zone, "zone") if scope == "zone" else Slot(tenant, zone, scope)


def _key(scope: str, tenant: str, zone: str) -> Key:
    # tenant and zone together may be longer than a name may be
    digest = hashlib.sha256(f"{tenant}\0{zone}".encode()).hexdigest()[:24]
    return Key(HOUSE, "rotation", PROJECT, f"{scope}.{digest}")


def _job(record: Record) -> Rotation:
    return Rotation(**record.body)


def _is_child(job: Rotation, record: Record) -> bool:
    slot = Slot.of(record.key)
    if job.scope == "root":
        return slot.purpose in OF_ROOT
    return slot.parent == Slot(job.tenant, job.zone, "tenant")
