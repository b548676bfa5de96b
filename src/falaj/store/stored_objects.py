"""Objects: what the ledger knows of sealed bytes in a zone, and how a write claims them, wins or loses.

    (none) --claim--> writing --settle--> live --unreached--> condemned --still unreached--> deleting --> (none)
                         |                  ^----------- put again -----------|                  |
                         '--writer died--> deleting                  put again: writing, under a new storage name

A storage name is used by one attempt to write and never again. So a collector that deletes and a writer that writes the
same digest never touch the same bytes: whoever loses leaves a stray, which the record remembers until it is deleted.
An intent is an open put or copy: nothing touched since the oldest one began is ever collected.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, CorruptData, NotFound, StaleRevision
from falaj.core.event import generate_id
from falaj.core.label import Label
from falaj.core.ports import RecordKey
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.store.sealed_format import ObjectCipher, ObjectIdentity, create_sealed_head

KIND = "object"
WRITING, LIVE, BROKEN, CONDEMNED, DELETING = "writing", "live", "broken", "condemned", "deleting"
READABLE = frozenset({LIVE, BROKEN, CONDEMNED})
"""A broken object is still tried: most of it may be whole, and what broke may have been the way to it."""
_OBJECT_PROJECT, _INTENT_PROJECT, _CURSOR_PROJECT = "store", "intents", "cursors"
TOUCH_INTERVAL_S = 60.0
"""So long is a touch as good as a new one; it must be far below the collector's grace."""
_OPEN_LABEL = Label()


class ObjectKeys(Protocol):
    """What blobs need of key keeping."""

    def new_object_key(self, tenant: str, zone: str) -> tuple[bytes, str]:
        """A fresh data key, plain and wrapped under the tenant's key in that zone."""
        ...

    def object_key(self, tenant: str, zone: str, wrapped: str) -> bytes: ...
    def name_key(self, tenant: str, zone: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class WriteAttempt:
    """One attempt to write an object: its storage name, its wrapped key, and the head of its sealed form."""

    key: str
    dek: str
    head: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Plain bytes of one digest, lying sealed in one zone: whole, or in parts that are objects themselves."""

    tenant: str
    zone: str
    digest: str
    state: str
    size: int
    key: str = ""
    dek: str = ""
    head: str = ""
    parts: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()
    rev: int = 0
    at: float = 0.0
    bundle: bool = False
    """True when the parts are only kept together, and are not one run of bytes."""

    @property
    def record_key(self) -> RecordKey:
        """Where its record lies."""
        return RecordKey(self.tenant, KIND, _OBJECT_PROJECT, self.digest, self.zone)

    @property
    def storage_keys(self) -> tuple[str, ...]:
        """Every name in the blob store that was ever begun for it and is not known to be gone."""
        return (self.key, *self.stray) if self.key else self.stray

    def seal(self, keys: ObjectKeys) -> ObjectCipher:
        """The way in and out of its bytes."""
        data_key = keys.object_key(self.tenant, self.zone, self.dek)
        return ObjectCipher(
            data_key, ObjectIdentity(self.tenant, self.zone, self.digest), self.size, bytes.fromhex(self.head)
        )


def to_stored_object(record: LedgerRecord) -> StoredObject:
    """The object of a record."""
    key, body = record.key, record.body
    try:
        return StoredObject(
            key.tenant,
            key.version,
            key.name,
            body["state"],
            body["size"],
            body["key"],
            body["dek"],
            body["head"],
            tuple(body["parts"]),
            tuple(body["stray"]),
            record.rev,
            record.at,
            body.get("bundle", False),
        )
    except KeyError as error:
        raise CorruptData(f"the record of object {key.name[:16]} cannot be read", "restore it from a backup") from error


def find_stored_object(tx: LedgerReader, tenant: str, zone: str, digest: str) -> StoredObject | None:
    """The object of that digest in that zone, in any state."""
    record = tx.key(RecordKey(tenant, KIND, _OBJECT_PROJECT, digest, zone))
    return None if record is None else to_stored_object(record)


def require_readable(tx: LedgerReader, tenant: str, zone: str, digest: str) -> StoredObject:
    """The object, if there are bytes to read; else NotFound."""
    stored_object = find_stored_object(tx, tenant, zone, digest)
    if stored_object is None or stored_object.state not in READABLE:
        raise NotFound(f"the bytes b3:{digest[:16]}… do not lie in zone {zone}", "copy them there first")
    return stored_object


def list_objects_after(
    tx: LedgerReader, tenant: str, after: str = "", limit: int = 100
) -> tuple[list[StoredObject], str]:
    """A page of a tenant's objects by digest, and the cursor of the next."""
    page = tx.find(KIND, tenant=tenant, project=_OBJECT_PROJECT, after=after, limit=limit)
    return [to_stored_object(record) for record in page.records], page.next


def list_containing_objects(tx: LedgerReader, part_object: StoredObject) -> list[StoredObject]:
    """The objects in the same zone that are made of this part."""
    page = tx.find(
        KIND,
        tenant=part_object.tenant,
        project=_OBJECT_PROJECT,
        terms={f"part.{part_object.digest}": part_object.zone},
        limit=100,
    )
    return [to_stored_object(record) for record in page.records]


def save_object(tx: LedgerWriter, stored_object: StoredObject) -> None:
    """Write the object over exactly the revision it was read at."""
    body = {
        "state": stored_object.state,
        "size": stored_object.size,
        "key": stored_object.key,
        "dek": stored_object.dek,
        "head": stored_object.head,
        "parts": stored_object.parts,
        "stray": stored_object.stray,
        **({"bundle": True} if stored_object.bundle else {}),
    }
    terms = {"state": stored_object.state, **{f"part.{part}": stored_object.zone for part in stored_object.parts}}
    try:
        tx.put(
            stored_object.record_key,
            body,
            rev=stored_object.rev or None,
            label=_OPEN_LABEL,
            zone=stored_object.zone,
            terms=terms,
        )
    except Conflict as error:
        # Somebody made it since we looked: for us that is the same as having changed it.
        raise StaleRevision("another writer of the same bytes was first", "look again") from error


def erase_object(tx: LedgerWriter, stored_object: StoredObject) -> None:
    """Forget the object at exactly the revision it was read at."""
    tx.delete(stored_object.record_key, stored_object.rev)


def create_attempt(keys: ObjectKeys, tenant: str, zone: str, digest: str) -> WriteAttempt:
    """A fresh data key and a storage name that tells the store's operator nothing."""
    name_hash = hmac.new(keys.name_key(tenant, zone), f"{digest}:{secrets.token_hex(16)}".encode(), hashlib.sha256)
    return WriteAttempt(name_hash.hexdigest(), keys.new_object_key(tenant, zone)[1], create_sealed_head().hex())


def touch_object(tx: LedgerWriter, tenant: str, zone: str, digest: str) -> StoredObject:
    """Say in this transaction that the object is wanted: no collector that decided before can delete it now."""
    stored_object = require_readable(tx, tenant, zone, digest)
    save_object(tx, replace(stored_object, state=LIVE if stored_object.state == CONDEMNED else stored_object.state))
    return stored_object


def has_bytes(tx: LedgerWriter, target_object: StoredObject) -> bool:
    """True when whole bytes lie there, which are then wanted again, since `target_object.at`."""
    existing = find_stored_object(tx, target_object.tenant, target_object.zone, target_object.digest)
    if existing is None or existing.state not in (LIVE, CONDEMNED):
        return False
    _refresh_object(tx, existing, target_object.at)
    return True


def claim_object(tx: LedgerWriter, target_object: StoredObject, attempt: WriteAttempt) -> bool:
    """Announce that bytes will be written; False when whole ones lie there already, which are then wanted again."""
    if has_bytes(tx, target_object):
        return False
    existing = find_stored_object(tx, target_object.tenant, target_object.zone, target_object.digest)
    stray = existing.storage_keys if existing is not None else ()
    rev = existing.rev if existing is not None else 0
    claimed = replace(
        target_object, state=WRITING, key=attempt.key, dek=attempt.dek, head=attempt.head, stray=stray, rev=rev
    )
    save_object(tx, claimed)
    return True


def record_remote_object(tx: LedgerWriter, remote_object: StoredObject) -> bool:
    """Bytes that an agent wrote and sealed in its own zone are there; False when equal ones were, which stay."""
    if has_bytes(tx, remote_object):
        return False
    existing = find_stored_object(tx, remote_object.tenant, remote_object.zone, remote_object.digest)
    stray = tuple(key for key in existing.storage_keys if key != remote_object.key) if existing is not None else ()
    save_object(tx, replace(remote_object, stray=stray, rev=existing.rev if existing is not None else 0))
    return True


def settle_object(tx: LedgerWriter, target_object: StoredObject, attempt: WriteAttempt) -> WriteAttempt | None:
    """The bytes are durable: make them the object's. Gives the attempt that won; None when it was given up for dead."""
    existing = find_stored_object(tx, target_object.tenant, target_object.zone, target_object.digest)
    if existing is not None and existing.state in (LIVE, CONDEMNED):
        _refresh_object(tx, existing, target_object.at)
        return WriteAttempt(existing.key, existing.dek, existing.head)
    if existing is None or existing.state != WRITING or attempt.key not in existing.storage_keys:
        return None
    if existing.key == attempt.key:
        # Its key may have been wrapped anew meanwhile, by a rotation: keep what the record says.
        save_object(tx, replace(existing, state=LIVE))
    else:
        stray = tuple(key for key in existing.storage_keys if key != attempt.key)
        save_object(tx, replace(existing, state=LIVE, key=attempt.key, dek=attempt.dek, head=attempt.head, stray=stray))
    return attempt


def _refresh_object(tx: LedgerWriter, existing: StoredObject, now: float) -> None:
    """Keep bytes from the collector for another grace; not again within a minute, so that writers do not collide."""
    if existing.state != LIVE or now - existing.at >= TOUCH_INTERVAL_S:
        save_object(tx, replace(existing, state=LIVE))


def assemble_object(tx: LedgerWriter, assembled: StoredObject) -> None:
    """Make an object out of parts, every one of which must be there; those condemned meanwhile are wanted again."""
    if has_bytes(tx, assembled):
        return
    for part in dict.fromkeys(assembled.parts):
        part_object = find_stored_object(tx, assembled.tenant, assembled.zone, part)
        if part_object is None or part_object.state not in READABLE:
            raise Conflict("the write took so long that its parts were taken back", "write again")
        if part_object.state == CONDEMNED:
            save_object(tx, replace(part_object, state=LIVE))
    existing = find_stored_object(tx, assembled.tenant, assembled.zone, assembled.digest)
    stray = existing.storage_keys if existing is not None else ()
    save_object(tx, replace(assembled, state=LIVE, stray=stray, rev=existing.rev if existing is not None else 0))


def open_intent(tx: LedgerWriter, ctx: CallContext, operation: str, resource: str, zone: str) -> RecordKey:
    """Announce a put or copy; while it is kept fresh, nothing that it touched is collected."""
    key = make_intent_key(ctx.tenant, generate_id())
    tx.put(key, {"op": operation, "thing": resource, "since": ctx.now()}, label=_OPEN_LABEL, zone=zone)
    return key


def make_intent_key(tenant: str, name: str) -> RecordKey:
    """Where an open put or copy is announced."""
    return RecordKey(tenant, KIND, _INTENT_PROJECT, name)


def refresh_intent(tx: LedgerWriter, key: RecordKey, now: float) -> None:
    """Say that the put or copy goes on; not again within a minute, so that its threads do not wait on each other."""
    record = tx.key(key)
    if record is None:
        raise Conflict(
            "the write stood still so long that it was given up", "write again; parts already there are kept"
        )
    if now - record.at >= TOUCH_INTERVAL_S:
        tx.put(key, record.body, rev=record.rev, label=_OPEN_LABEL)


def close_intent(tx: LedgerWriter, key: RecordKey) -> None:
    """The put or copy is over, well or not."""
    record = tx.key(key)
    if record is not None:
        tx.delete(key, record.rev)


def list_intents(tx: LedgerReader, tenant: str) -> Iterable[LedgerRecord]:
    """Every open put and copy of a tenant."""
    after = ""
    while True:
        page = tx.find(KIND, tenant=tenant, project=_INTENT_PROJECT, after=after, limit=1000)
        yield from page.records
        if not page.next:
            return
        after = page.next


def make_cursor_key(tenant: str, name: str) -> RecordKey:
    """Where a loop keeps how far it has come with a tenant's objects."""
    return RecordKey(tenant, KIND, _CURSOR_PROJECT, name)
