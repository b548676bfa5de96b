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

from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Corrupt, NotFound, Stale
from falaj.core.event import new_id
from falaj.core.label import Label
from falaj.core.ports import Key
from falaj.store.ledger import Reader, Writer
from falaj.store.records import Record
from falaj.store.sealed import Place, Seal, new_head

KIND = "object"
WRITING, LIVE, BROKEN, CONDEMNED, DELETING = "writing", "live", "broken", "condemned", "deleting"
READABLE = frozenset({LIVE, BROKEN, CONDEMNED})
"""A broken object is still tried: most of it may be whole, and what broke may have been the way to it."""
_OBJECTS, _INTENTS, _CURSORS = "store", "intents", "cursors"
FRESH_S = 60.0
"""So long is a touch as good as a new one; it must be far below the collector's grace."""
_OPEN = Label()


class ObjectKeys(Protocol):
    """What blobs need of key keeping."""

    def new_object_key(self, tenant: str, zone: str) -> tuple[bytes, str]:
        """A fresh data key, plain and wrapped under the tenant's key in that zone."""
        ...

    def object_key(self, tenant: str, zone: str, wrapped: str) -> bytes: ...
    def name_key(self, tenant: str, zone: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to write an object: its storage name, its wrapped key, and the head of its sealed form."""

    key: str
    dek: str
    head: str


@dataclass(frozen=True, slots=True)
class Object:
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
    def record_key(self) -> Key:
        """Where its record lies."""
        return Key(self.tenant, KIND, _OBJECTS, self.digest, self.zone)

    @property
    def storage_keys(self) -> tuple[str, ...]:
        """Every name in the blob store that was ever begun for it and is not known to be gone."""
        return (self.key, *self.stray) if self.key else self.stray

    def seal(self, keys: ObjectKeys) -> Seal:
        """The way in and out of its bytes."""
        dek = keys.object_key(self.tenant, self.zone, self.dek)
        return Seal(dek, Place(self.tenant, self.zone, self.digest), self.size, bytes.fromhex(self.head))


def as_object(record: Record) -> Object:
    """The object of a record."""
    key, body = record.key, record.body
    try:
        return Object(
            key.tenant, key.version, key.name, body["state"], body["size"], body["key"], body["dek"], body["head"],
            tuple(body["parts"]), tuple(body["stray"]), record.rev, record.at, body.get("bundle", False),
        )  # fmt: skip
    except KeyError as error:
        raise Corrupt(f"the record of object {key.name[:16]} cannot be read", "restore it from a backup") from error


def find_object(tx: Reader, tenant: str, zone: str, digest: str) -> Object | None:
    """The object of that digest in that zone, in any state."""
    record = tx.key(Key(tenant, KIND, _OBJECTS, digest, zone))
    return None if record is None else as_object(record)


def readable(tx: Reader, tenant: str, zone: str, digest: str) -> Object:
    """The object, if there are bytes to read; else NotFound."""
    found = find_object(tx, tenant, zone, digest)
    if found is None or found.state not in READABLE:
        raise NotFound(f"the bytes b3:{digest[:16]}… do not lie in zone {zone}", "copy them there first")
    return found


def objects_after(tx: Reader, tenant: str, after: str = "", limit: int = 100) -> tuple[list[Object], str]:
    """A page of a tenant's objects by digest, and the cursor of the next."""
    page = tx.find(KIND, tenant=tenant, project=_OBJECTS, after=after, limit=limit)
    return [as_object(record) for record in page.records], page.next


def wholes_of(tx: Reader, part: Object) -> list[Object]:
    """The objects in the same zone that are made of this part."""
    page = tx.find(KIND, tenant=part.tenant, project=_OBJECTS, terms={f"part.{part.digest}": part.zone}, limit=100)
    return [as_object(record) for record in page.records]


def save(tx: Writer, thing: Object) -> None:
    """Write the object over exactly the revision it was read at."""
    body = {
        "state": thing.state, "size": thing.size, "key": thing.key, "dek": thing.dek, "head": thing.head,
        "parts": thing.parts, "stray": thing.stray, **({"bundle": True} if thing.bundle else {}),
    }  # fmt: skip
    terms = {"state": thing.state, **{f"part.{part}": thing.zone for part in thing.parts}}
    try:
        tx.put(thing.record_key, body, rev=thing.rev or None, label=_OPEN, zone=thing.zone, terms=terms)
    except Conflict as error:
        # Somebody made it since we looked: for us that is the same as having changed it.
        raise Stale("another writer of the same bytes was first", "look again") from error


def erase(tx: Writer, thing: Object) -> None:
    """Forget the object at exactly the revision it was read at."""
    tx.delete(thing.record_key, thing.rev)


def new_attempt(keys: ObjectKeys, tenant: str, zone: str, digest: str) -> Attempt:
    """A fresh data key and a storage name that tells the store's operator nothing."""
    name = hmac.new(keys.name_key(tenant, zone), f"{digest}:{secrets.token_hex(16)}".encode(), hashlib.sha256)
    return Attempt(name.hexdigest(), keys.new_object_key(tenant, zone)[1], new_head().hex())


def touch(tx: Writer, tenant: str, zone: str, digest: str) -> Object:
    """Say in this transaction that the object is wanted: no collector that decided before can delete it now."""
    found = readable(tx, tenant, zone, digest)
    save(tx, replace(found, state=LIVE if found.state == CONDEMNED else found.state))
    return found


def is_there(tx: Writer, wanted: Object) -> bool:
    """True when whole bytes lie there, which are then wanted again, since `wanted.at`."""
    old = find_object(tx, wanted.tenant, wanted.zone, wanted.digest)
    if old is None or old.state not in (LIVE, CONDEMNED):
        return False
    _refresh(tx, old, wanted.at)
    return True


def claim(tx: Writer, wanted: Object, attempt: Attempt) -> bool:
    """Announce that bytes will be written; False when whole ones lie there already, which are then wanted again."""
    if is_there(tx, wanted):
        return False
    old = find_object(tx, wanted.tenant, wanted.zone, wanted.digest)
    stray = old.storage_keys if old is not None else ()
    rev = old.rev if old is not None else 0
    fresh = replace(wanted, state=WRITING, key=attempt.key, dek=attempt.dek, head=attempt.head, stray=stray, rev=rev)
    save(tx, fresh)
    return True


def take_note(tx: Writer, made: Object) -> bool:
    """Bytes that an agent wrote and sealed in its own zone are there; False when equal ones were, which stay."""
    if is_there(tx, made):
        return False
    old = find_object(tx, made.tenant, made.zone, made.digest)
    stray = tuple(key for key in old.storage_keys if key != made.key) if old is not None else ()
    save(tx, replace(made, stray=stray, rev=old.rev if old is not None else 0))
    return True


def settle(tx: Writer, wanted: Object, attempt: Attempt) -> Attempt | None:
    """The bytes are durable: make them the object's. Gives the attempt that won; None when it was given up for dead."""
    old = find_object(tx, wanted.tenant, wanted.zone, wanted.digest)
    if old is not None and old.state in (LIVE, CONDEMNED):
        _refresh(tx, old, wanted.at)
        return Attempt(old.key, old.dek, old.head)
    if old is None or old.state != WRITING or attempt.key not in old.storage_keys:
        return None
    if old.key == attempt.key:
        # Its key may have been wrapped anew meanwhile, by a rotation: keep what the record says.
        save(tx, replace(old, state=LIVE))
    else:
        stray = tuple(key for key in old.storage_keys if key != attempt.key)
        save(tx, replace(old, state=LIVE, key=attempt.key, dek=attempt.dek, head=attempt.head, stray=stray))
    return attempt


def _refresh(tx: Writer, old: Object, now: float) -> None:
    """Keep bytes from the collector for another grace; not again within a minute, so that writers do not collide."""
    if old.state != LIVE or now - old.at >= FRESH_S:
        save(tx, replace(old, state=LIVE))


def assemble(tx: Writer, whole: Object) -> None:
    """Make an object out of parts, every one of which must be there; those condemned meanwhile are wanted again."""
    if is_there(tx, whole):
        return
    for part in dict.fromkeys(whole.parts):
        found = find_object(tx, whole.tenant, whole.zone, part)
        if found is None or found.state not in READABLE:
            raise Conflict("the write took so long that its parts were taken back", "write again")
        if found.state == CONDEMNED:
            save(tx, replace(found, state=LIVE))
    old = find_object(tx, whole.tenant, whole.zone, whole.digest)
    stray = old.storage_keys if old is not None else ()
    save(tx, replace(whole, state=LIVE, stray=stray, rev=old.rev if old is not None else 0))


def open_intent(tx: Writer, ctx: Context, op: str, thing: str, zone: str) -> Key:
    """Announce a put or copy; while it is kept fresh, nothing that it touched is collected."""
    key = intent_key(ctx.tenant, new_id())
    tx.put(key, {"op": op, "thing": thing, "since": ctx.now()}, label=_OPEN, zone=zone)
    return key


def intent_key(tenant: str, name: str) -> Key:
    """Where an open put or copy is announced."""
    return Key(tenant, KIND, _INTENTS, name)


def refresh_intent(tx: Writer, key: Key, now: float) -> None:
    """Say that the put or copy goes on; not again within a minute, so that its threads do not wait on each other."""
    record = tx.key(key)
    if record is None:
        raise Conflict(
            "the write stood still so long that it was given up", "write again; parts already there are kept"
        )
    if now - record.at >= FRESH_S:
        tx.put(key, record.body, rev=record.rev, label=_OPEN)


def close_intent(tx: Writer, key: Key) -> None:
    """The put or copy is over, well or not."""
    record = tx.key(key)
    if record is not None:
        tx.delete(key, record.rev)


def intents(tx: Reader, tenant: str) -> Iterable[Record]:
    """Every open put and copy of a tenant."""
    after = ""
    while True:
        page = tx.find(KIND, tenant=tenant, project=_INTENTS, after=after, limit=1000)
        yield from page.records
        if not page.next:
            return
        after = page.next


def cursor_key(tenant: str, name: str) -> Key:
    """Where a loop keeps how far it has come with a tenant's objects."""
    return Key(tenant, KIND, _CURSORS, name)
