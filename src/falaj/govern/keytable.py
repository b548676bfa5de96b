"""The table of keys: where each key of the hierarchy is recorded, how it is made once, found, unwrapped and remembered.

    root (Secrets port) -> zone -> tenant in zone -> meta, secret, log, model, name, pepper, subject, online
                        -> token, permit (of the installation)

A key is a record of kind `key` whose body holds every version, each wrapped by the key above it. What is unwrapped
stays in memory, in a bounded cache, for one to two times FRESH_S, so that a rotation by another replica is noticed.
What is read or made inside a transaction is this thread's own until the transaction is durable: were it undone, bytes
that another thread sealed under it could never be opened.
"""

import base64
import binascii
import contextlib
import secrets as random
import threading
from collections.abc import Callable, Iterator
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Corrupt, NotFound, Unavailable
from falaj.core.ports import Key, Secrets
from falaj.core.ref import Ref
from falaj.govern.sealing import bound, unwrap, wrap, wrapped_version
from falaj.store.ledger import Ledger, Writer
from falaj.store.records import Record

FRESH_S = 30.0
CACHED = 4096
OF_ROOT = frozenset({"zone", "token", "permit"})
PROJECT = "keys"


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one key in the hierarchy."""

    tenant: str
    zone: str
    purpose: str
    subject: str = ""

    @property
    def key(self) -> Key:
        """Where it is recorded."""
        tail = f".{self.subject}" if self.subject else ""
        return Key(self.tenant, "key", PROJECT, f"{self.purpose}.{self.zone}{tail}")

    @staticmethod
    def of(key: Key) -> "Slot":
        """The slot whose record has this key."""
        purpose, _, rest = key.name.partition(".")
        zone, _, subject = rest.rpartition(".") if purpose == "subject" else (rest, "", "")
        return Slot(key.tenant, zone, purpose, subject)

    @property
    def ref(self) -> Ref:
        """Its name."""
        return Ref("key", PROJECT, self.key.name)

    @property
    def parent(self) -> "Slot | None":
        """The key that wraps it; None when the root does."""
        if self.purpose in OF_ROOT:
            return None
        return Slot(HOUSE, self.zone, "zone") if self.purpose == "tenant" else Slot(self.tenant, self.zone, "tenant")

    def aad(self, version: int) -> bytes:
        """What a wrapped version is bound to."""
        return bound("key", self.tenant, self.zone, self.purpose, self.subject, version)


class Held:
    """One key in memory: its versions wrapped, and those unwrapped that were needed."""

    __slots__ = ("aeads", "least", "made_at", "newest", "open", "rev", "slot", "until", "wrapped")

    def __init__(self, slot: Slot, record: Record, until: float) -> None:
        try:
            self.wrapped = {int(version): str(text) for version, text in record.body["versions"].items()}
            self.newest, self.least = int(record.body["current"]), int(record.body["min"])
            self.made_at = {int(version): float(at) for version, at in record.body["made"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt(f"the record of key {slot.key.name} cannot be read", "restore it from a backup") from error
        self.slot, self.rev, self.until = slot, record.rev, until
        self.open: dict[int, bytes] = {}
        self.aeads: dict[int, AESGCM] = {}

    def __repr__(self) -> str:
        return f"Held({self.slot.key.name}, newest {self.newest})"

    def __reduce__(self) -> str:
        raise TypeError("a key is never pickled")


class _Local(threading.local):
    def __init__(self) -> None:
        self.held: dict[Slot, Held] = {}


class KeyTable:
    """Keys by slot, over the ledger and the holder of the root key."""

    def __init__(
        self,
        ledger: Ledger,
        secrets: Secrets,
        root: str,
        home: str,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.ledger, self.secrets, self.root = ledger, secrets, root
        self.clock = clock
        self.home, self._now = home, now
        self._held: dict[Slot, Held] = {}
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._local = _Local()
        self.on_drop: Callable[[], None] = lambda: None
        self.on_settle: Callable[[], None] = lambda: None
        self.on_make: Callable[[Writer, Slot, int, bytes], None] = lambda tx, slot, version, key: None

    def context(self, tenant: str, zone: str) -> Context:
        """Who acts when a key is made on the way to something else."""
        return Context(Actor("keyring", HOUSE, "service"), zone=zone, tenant=tenant, now=self._now)

    def held(self, slot: Slot, make: bool = True, *, old: bool = False) -> Held:
        """The key, made when there is none and `make`, else NotFound; `old` when an old reading will do."""
        found = self._local.held.get(slot) or self._held.get(slot)
        if found is not None and found.until > self.clock():
            return found
        if found is None or slot.subject or not (old or found.until + FRESH_S > self.clock()):
            return self._sought(slot, make)
        # One thread looks again while the others go on with what they have: were they all to ask the store at once,
        # each already holding one of its connections, none might get a second.
        if not self._refreshing.acquire(blocking=False):
            return found
        try:
            return self._sought(slot, make)
        finally:
            self._refreshing.release()

    def _sought(self, slot: Slot, make: bool) -> Held:
        for _ in range(8):
            found = self._load(slot)
            if found is not None:
                return found
            if not make:
                raise NotFound("there is no such key", "it was never made, or it was destroyed")
            # another replica or thread may have made it first: then read the winner's
            with contextlib.suppress(Conflict):
                self._make(slot)
        raise Unavailable("a key could not be made, others kept changing it", "call again")

    def version(self, slot: Slot, version: int) -> bytes:
        """The plain key of one version, or Corrupt when that version is retired or was never there."""
        try:
            held = self.held(slot, make=False, old=True)
            if version not in held.wrapped:
                self.drop(slot)
                held = self.held(slot, make=False)
        except NotFound as error:
            raise Corrupt(
                f"no {slot.purpose} key of this tenant and zone opens this",
                "it belongs to another, or its key was destroyed",
            ) from error
        if version < held.least or version not in held.wrapped:
            raise Corrupt(
                f"version {version} of a {slot.purpose} key is retired or unknown",
                "restore from a backup that fits these keys",
            )
        key = held.open.get(version)
        if key is None:
            key = held.open[version] = self.unwrapped(slot, version, held.wrapped[version])
        return key

    def newest(self, slot: Slot) -> tuple[int, bytes]:
        """The version that encrypts now, made when there is none."""
        held = self.held(slot)
        return held.newest, self.version(slot, held.newest)

    def aead(self, slot: Slot, version: int = 0) -> tuple[int, AESGCM]:
        """A version (0: the newest) ready to wrap or unwrap."""
        version = version or self.held(slot).newest
        held = self._local.held.get(slot) or self._held.get(slot)
        aead = held.aeads.get(version) if held is not None and held.until > self.clock() else None
        if aead is None:
            aead = AESGCM(self.version(slot, version))
            self.held(slot, make=False, old=True).aeads[version] = aead
        return version, aead

    def wrapped(self, slot: Slot, version: int, key: bytes) -> str:
        """`key` as version `version` of the slot, wrapped by the newest version of what stands above it."""
        if slot.parent is None:
            return "root:" + base64.b64encode(self.secrets.wrap(self.root, key, slot.aad(version))).decode()
        parent_version, parent = self.aead(slot.parent)
        return wrap(parent, parent_version, key, slot.aad(version))

    def unwrapped(self, slot: Slot, version: int, text: str) -> bytes:
        """The reverse of `wrapped`, under whichever version it names."""
        if slot.parent is None:
            return self.secrets.unwrap(self.root, root_wrapped(text), slot.aad(version))
        _, parent = self.aead(slot.parent, wrapped_version(text))
        return unwrap(parent, text, slot.aad(version))

    def settled_version(self, slot: Slot, after_s: float) -> int:
        """The newest version that every holder of keys has known for `after_s` seconds, or the only one there is."""
        held = self.held(slot)
        latest = self._now() - after_s
        versions = [version for version in held.wrapped if version >= held.least]
        return max((version for version in versions if held.made_at.get(version, 0.0) <= latest), default=min(versions))

    def grow(self, tx: Writer, slot: Slot) -> Record:
        """Add a version that encrypts from the end of this transaction on; the older ones still decrypt."""
        record = tx.key(slot.key)
        if record is None or not record.body["current"]:
            raise NotFound("there is no such key to rotate", "keys are made when they are first needed", slot.ref)
        version, key = int(record.body["current"]) + 1, random.token_bytes(32)
        body = {
            **record.body,
            "versions": {**record.body["versions"], str(version): self.wrapped(slot, version, key)},
            "made": {**record.body["made"], str(version): self._now()},
            "current": version,
        }
        grown = tx.put(slot.key, body, rev=record.rev)
        self.on_make(tx, slot, version, key)
        tx.after(lambda durable: self.drop(slot))
        return grown

    def shared(self, slot: Slot) -> bool:
        """True when what this thread holds of the slot is durable, so that others may use what is made from it."""
        return slot not in self._local.held and slot in self._held

    def drop(self, slot: Slot | None = None) -> None:
        """Forget a key in memory (all of them when no slot is given): it changed, or it is gone."""
        with self._lock:
            for table in (self._held, self._local.held):
                if slot is None:
                    table.clear()
                else:
                    table.pop(slot, None)
        self.on_drop()

    def _load(self, slot: Slot) -> Held | None:
        ctx = self.context(slot.tenant, slot.zone)
        if not self.ledger.busy:
            with self.ledger.read(ctx) as tx:
                record = tx.key(slot.key)
            return None if record is None else self._share(Held(slot, record, self.clock() + FRESH_S))
        with self.ledger.write(ctx) as tx:
            record = tx.key(slot.key)
            return None if record is None else self._own(tx, Held(slot, record, self.clock() + FRESH_S))

    def _make(self, slot: Slot) -> None:
        """Make a key and whatever must stand above it or carry the event of it."""
        with self.ledger.write(self.context(slot.tenant, slot.zone)) as tx:
            made = [one for one in self._line(slot) if self._put(tx, one)]
            for one in made:
                with self.ledger.write(self.context(one.tenant, self._log_zone(one))) as log:
                    log.emit("keys.create", one.ref.at("r1"), purpose=one.purpose, zone=one.zone, version=1)

    def _log_zone(self, slot: Slot) -> str:
        return self.home if slot.purpose in ("token", "permit") else slot.zone

    def _line(self, slot: Slot) -> Iterator[Slot]:
        """The slot after all that stands above it and the data keys that seal the events about them, top first."""
        zone = self._log_zone(slot)
        line = [Slot(HOUSE, zone, "zone")]
        for tenant in (HOUSE, slot.tenant):
            line += [Slot(tenant, zone, "tenant"), Slot(tenant, zone, "meta")]
        yield from dict.fromkeys([*line, slot])

    def _put(self, tx: Writer, slot: Slot) -> bool:
        if slot in self._local.held or tx.key(slot.key) is not None:
            return False
        key = random.token_bytes(32)
        body: dict[str, Any] = {
            "versions": {"1": self.wrapped(slot, 1, key)},
            "made": {"1": self._now()},
            "current": 1,
            "min": 1,
        }
        record = tx.put(slot.key, body, zone=slot.zone)
        self._own(tx, Held(slot, record, self.clock() + FRESH_S)).open[1] = key
        self.on_make(tx, slot, 1, key)
        return True

    def _own(self, tx: Writer, held: Held) -> Held:
        mine = self._local.held
        mine[held.slot] = held

        def settle(durable: bool) -> None:
            if mine.get(held.slot) is held:
                del mine[held.slot]
            if durable:
                self._share(held)
            self.on_settle()

        tx.after(settle)
        return held

    def _share(self, held: Held) -> Held:
        with self._lock:
            there = self._held.get(held.slot)
            if there is not None and there.rev > held.rev:
                return there
            if there is not None and there.rev == held.rev:
                held.open, held.aeads = there.open, there.aeads
            self._held.pop(held.slot, None)
            self._held[held.slot] = held
            while len(self._held) > CACHED:
                del self._held[next(iter(self._held))]
        return held

    def __repr__(self) -> str:
        return f"KeyTable({len(self._held)} in memory)"

    def __reduce__(self) -> str:
        raise TypeError("a key is never pickled")


def root_wrapped(text: str) -> bytes:
    """The provider's bytes inside a version that the root wrapped."""
    scheme, _, rest = text.partition(":")
    try:
        if scheme != "root":
            raise ValueError(scheme)
        return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error) as error:
        raise Corrupt("a key that the root wrapped cannot be read", "restore the record from a backup") from error
