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

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, CorruptData, NotFound, Unavailable
from falaj.core.ports import RecordKey, RootKeyProvider
from falaj.core.ref import Ref
from falaj.govern.encryption import build_aad, read_wrapping_version, unwrap_key, wrap_key
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.records import LedgerRecord

KEY_REFRESH_S = 30.0
MAX_CACHED_KEYS = 4096
PURPOSES_UNDER_ROOT = frozenset({"zone", "token", "permit"})
KEYS_PROJECT = "keys"


@dataclass(frozen=True, slots=True)
class KeySlot:
    """The place of one key in the hierarchy."""

    tenant: str
    zone: str
    purpose: str
    subject: str = ""

    @property
    def key(self) -> RecordKey:
        """Where it is recorded."""
        subject_suffix = f".{self.subject}" if self.subject else ""
        return RecordKey(self.tenant, "key", KEYS_PROJECT, f"{self.purpose}.{self.zone}{subject_suffix}")

    @staticmethod
    def of(key: RecordKey) -> "KeySlot":
        """The slot whose record has this key."""
        purpose, _, rest = key.name.partition(".")
        zone, _, subject = rest.rpartition(".") if purpose == "subject" else (rest, "", "")
        return KeySlot(key.tenant, zone, purpose, subject)

    @property
    def ref(self) -> Ref:
        """Its name."""
        return Ref("key", KEYS_PROJECT, self.key.name)

    @property
    def parent(self) -> "KeySlot | None":
        """The key that wraps it; None when the root does."""
        if self.purpose in PURPOSES_UNDER_ROOT:
            return None
        return (
            KeySlot(SYSTEM_TENANT, self.zone, "zone")
            if self.purpose == "tenant"
            else KeySlot(self.tenant, self.zone, "tenant")
        )

    def aad(self, version: int) -> bytes:
        """What a wrapped version is bound to."""
        return build_aad("key", self.tenant, self.zone, self.purpose, self.subject, version)


class LoadedKey:
    """One key in memory: its versions wrapped, and those unwrapped that were needed."""

    __slots__ = ("aeads", "least", "made_at", "newest", "open", "rev", "slot", "until", "wrapped")

    def __init__(self, slot: KeySlot, record: LedgerRecord, expires_at: float) -> None:
        try:
            self.wrapped = {int(version): str(text) for version, text in record.body["versions"].items()}
            self.newest, self.least = int(record.body["current"]), int(record.body["min"])
            self.made_at = {int(version): float(made_at) for version, made_at in record.body["made"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptData(
                f"the record of key {slot.key.name} cannot be read", "restore it from a backup"
            ) from error
        self.slot, self.rev, self.until = slot, record.rev, expires_at
        self.open: dict[int, bytes] = {}
        self.aeads: dict[int, AESGCM] = {}

    def __repr__(self) -> str:
        return f"Held({self.slot.key.name}, newest {self.newest})"

    def __reduce__(self) -> str:
        raise TypeError("a key is never pickled")


class _ThreadKeys(threading.local):
    def __init__(self) -> None:
        self.held: dict[KeySlot, LoadedKey] = {}


class KeyTable:
    """Keys by slot, over the ledger and the holder of the root key."""

    def __init__(
        self,
        ledger: Ledger,
        root_key_provider: RootKeyProvider,
        root_name: str,
        home_zone: str,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self.ledger, self.secrets, self.root = ledger, root_key_provider, root_name
        self.clock = clock
        self.home, self.wall_clock = home_zone, wall_clock
        self.loaded_keys: dict[KeySlot, LoadedKey] = {}
        self._lock = threading.Lock()
        self.refresh_lock = threading.Lock()
        self._local = _ThreadKeys()
        self.on_drop: Callable[[], None] = lambda: None
        self.on_settle: Callable[[], None] = lambda: None
        self.on_make: Callable[[LedgerWriter, KeySlot, int, bytes], None] = lambda tx, slot, version, key: None

    def context(self, tenant: str, zone: str) -> CallContext:
        """Who acts when a key is made on the way to something else."""
        return CallContext(Actor("keyring", SYSTEM_TENANT, "service"), zone=zone, tenant=tenant, now=self.wall_clock)

    def held(self, slot: KeySlot, create_missing: bool = True, *, allow_stale: bool = False) -> LoadedKey:
        """The key, made when there is none and `create_missing`, else NotFound; `allow_stale` when an old reading will
        do."""
        loaded_key = self._local.held.get(slot) or self.loaded_keys.get(slot)
        if loaded_key is not None and loaded_key.until > self.clock():
            return loaded_key
        if loaded_key is None or slot.subject or not (allow_stale or loaded_key.until + KEY_REFRESH_S > self.clock()):
            return self.find_or_create(slot, create_missing)
        # One thread looks again while the others go on with what they have: were they all to ask the store at once,
        # each already holding one of its connections, none might get a second.
        if not self.refresh_lock.acquire(blocking=False):
            return loaded_key
        try:
            return self.find_or_create(slot, create_missing)
        finally:
            self.refresh_lock.release()

    def find_or_create(self, slot: KeySlot, create_missing: bool) -> LoadedKey:
        for _ in range(8):
            loaded_key = self.load_key(slot)
            if loaded_key is not None:
                return loaded_key
            if not create_missing:
                raise NotFound("there is no such key", "it was never made, or it was destroyed")
            # another replica or thread may have made it first: then read the winner's
            with contextlib.suppress(Conflict):
                self.create_key(slot)
        raise Unavailable("a key could not be made, others kept changing it", "call again")

    def version(self, slot: KeySlot, version: int) -> bytes:
        """The plain key of one version, or Corrupt when that version is retired or was never there."""
        try:
            loaded_key = self.held(slot, create_missing=False, allow_stale=True)
            if version not in loaded_key.wrapped:
                self.drop(slot)
                loaded_key = self.held(slot, create_missing=False)
        except NotFound as error:
            raise CorruptData(
                f"no {slot.purpose} key of this tenant and zone opens this",
                "it belongs to another, or its key was destroyed",
            ) from error
        if version < loaded_key.least or version not in loaded_key.wrapped:
            raise CorruptData(
                f"version {version} of a {slot.purpose} key is retired or unknown",
                "restore from a backup that fits these keys",
            )
        key = loaded_key.open.get(version)
        if key is None:
            key = loaded_key.open[version] = self.unwrapped(slot, version, loaded_key.wrapped[version])
        return key

    def newest(self, slot: KeySlot) -> tuple[int, bytes]:
        """The version that encrypts now, made when there is none."""
        loaded_key = self.held(slot)
        return loaded_key.newest, self.version(slot, loaded_key.newest)

    def aead(self, slot: KeySlot, version: int = 0) -> tuple[int, AESGCM]:
        """A version (0: the newest) ready to wrap or unwrap."""
        version = version or self.held(slot).newest
        loaded_key = self._local.held.get(slot) or self.loaded_keys.get(slot)
        cipher = loaded_key.aeads.get(version) if loaded_key is not None and loaded_key.until > self.clock() else None
        if cipher is None:
            cipher = AESGCM(self.version(slot, version))
            self.held(slot, create_missing=False, allow_stale=True).aeads[version] = cipher
        return version, cipher

    def wrapped(self, slot: KeySlot, version: int, key: bytes) -> str:
        """`key` as version `version` of the slot, wrapped by the newest version of what stands above it."""
        if slot.parent is None:
            return "root:" + base64.b64encode(self.secrets.wrap(self.root, key, slot.aad(version))).decode()
        parent_version, parent_cipher = self.aead(slot.parent)
        return wrap_key(parent_cipher, parent_version, key, slot.aad(version))

    def unwrapped(self, slot: KeySlot, version: int, wrapped_text: str) -> bytes:
        """The reverse of `wrapped`, under whichever version it names."""
        if slot.parent is None:
            return self.secrets.unwrap(self.root, decode_root_wrapped(wrapped_text), slot.aad(version))
        _, parent_cipher = self.aead(slot.parent, read_wrapping_version(wrapped_text))
        return unwrap_key(parent_cipher, wrapped_text, slot.aad(version))

    def settled_version(self, slot: KeySlot, settle_s: float) -> int:
        """The newest version that every holder of keys has known for `settle_s` seconds, or the only one there is."""
        loaded_key = self.held(slot)
        latest = self.wall_clock() - settle_s
        versions = [version for version in loaded_key.wrapped if version >= loaded_key.least]
        return max(
            (version for version in versions if loaded_key.made_at.get(version, 0.0) <= latest), default=min(versions)
        )

    def grow(self, tx: LedgerWriter, slot: KeySlot) -> LedgerRecord:
        """Add a version that encrypts from the end of this transaction on; the older ones still decrypt."""
        record = tx.key(slot.key)
        if record is None or not record.body["current"]:
            raise NotFound("there is no such key to rotate", "keys are made when they are first needed", slot.ref)
        version, key = int(record.body["current"]) + 1, random.token_bytes(32)
        body = {
            **record.body,
            "versions": {**record.body["versions"], str(version): self.wrapped(slot, version, key)},
            "made": {**record.body["made"], str(version): self.wall_clock()},
            "current": version,
        }
        changed_record = tx.put(slot.key, body, rev=record.rev)
        self.on_make(tx, slot, version, key)
        tx.after(lambda durable: self.drop(slot))
        return changed_record

    def shared(self, slot: KeySlot) -> bool:
        """True when what this thread holds of the slot is durable, so that others may use what is made from it."""
        return slot not in self._local.held and slot in self.loaded_keys

    def drop(self, slot: KeySlot | None = None) -> None:
        """Forget a key in memory (all of them when no slot is given): it changed, or it is gone."""
        with self._lock:
            for key_map in (self.loaded_keys, self._local.held):
                if slot is None:
                    key_map.clear()
                else:
                    key_map.pop(slot, None)
        self.on_drop()

    def load_key(self, slot: KeySlot) -> LoadedKey | None:
        ctx = self.context(slot.tenant, slot.zone)
        if not self.ledger.busy:
            with self.ledger.read(ctx) as tx:
                record = tx.key(slot.key)
            return None if record is None else self.share_key(LoadedKey(slot, record, self.clock() + KEY_REFRESH_S))
        with self.ledger.write(ctx) as tx:
            record = tx.key(slot.key)
            return (
                None
                if record is None
                else self.keep_in_thread(tx, LoadedKey(slot, record, self.clock() + KEY_REFRESH_S))
            )

    def create_key(self, slot: KeySlot) -> None:
        """Make a key and whatever must stand above it or carry the event of it."""
        with self.ledger.write(self.context(slot.tenant, slot.zone)) as tx:
            created_slots = [
                created_slot for created_slot in self.list_missing_slots(slot) if self.put_key(tx, created_slot)
            ]
            for created_slot in created_slots:
                with self.ledger.write(self.context(created_slot.tenant, self.get_log_zone(created_slot))) as log_tx:
                    log_tx.emit(
                        "keys.create",
                        created_slot.ref.at("r1"),
                        purpose=created_slot.purpose,
                        zone=created_slot.zone,
                        version=1,
                    )

    def get_log_zone(self, slot: KeySlot) -> str:
        return self.home if slot.purpose in ("token", "permit") else slot.zone

    def list_missing_slots(self, slot: KeySlot) -> Iterator[KeySlot]:
        """The slot after all that stands above it and the data keys that seal the events about them, top first."""
        zone = self.get_log_zone(slot)
        slots = [KeySlot(SYSTEM_TENANT, zone, "zone")]
        for tenant in (SYSTEM_TENANT, slot.tenant):
            slots += [KeySlot(tenant, zone, "tenant"), KeySlot(tenant, zone, "meta")]
        yield from dict.fromkeys([*slots, slot])

    def put_key(self, tx: LedgerWriter, slot: KeySlot) -> bool:
        if slot in self._local.held or tx.key(slot.key) is not None:
            return False
        key = random.token_bytes(32)
        body: dict[str, Any] = {
            "versions": {"1": self.wrapped(slot, 1, key)},
            "made": {"1": self.wall_clock()},
            "current": 1,
            "min": 1,
        }
        record = tx.put(slot.key, body, zone=slot.zone)
        self.keep_in_thread(tx, LoadedKey(slot, record, self.clock() + KEY_REFRESH_S)).open[1] = key
        self.on_make(tx, slot, 1, key)
        return True

    def keep_in_thread(self, tx: LedgerWriter, loaded_key: LoadedKey) -> LoadedKey:
        thread_keys = self._local.held
        thread_keys[loaded_key.slot] = loaded_key

        def settle_key(durable: bool) -> None:
            if thread_keys.get(loaded_key.slot) is loaded_key:
                del thread_keys[loaded_key.slot]
            if durable:
                self.share_key(loaded_key)
            self.on_settle()

        tx.after(settle_key)
        return loaded_key

    def share_key(self, loaded_key: LoadedKey) -> LoadedKey:
        with self._lock:
            shared_key = self.loaded_keys.get(loaded_key.slot)
            if shared_key is not None and shared_key.rev > loaded_key.rev:
                return shared_key
            if shared_key is not None and shared_key.rev == loaded_key.rev:
                loaded_key.open, loaded_key.aeads = shared_key.open, shared_key.aeads
            self.loaded_keys.pop(loaded_key.slot, None)
            self.loaded_keys[loaded_key.slot] = loaded_key
            while len(self.loaded_keys) > MAX_CACHED_KEYS:
                del self.loaded_keys[next(iter(self.loaded_keys))]
        return loaded_key

    def __repr__(self) -> str:
        return f"KeyTable({len(self.loaded_keys)} in memory)"

    def __reduce__(self) -> str:
        raise TypeError("a key is never pickled")


def decode_root_wrapped(text: str) -> bytes:
    """The provider's bytes inside a version that the root wrapped."""
    scheme, _, rest = text.partition(":")
    try:
        if scheme != "root":
            raise ValueError(scheme)
        return base64.b64decode(rest, validate=True)
    except (ValueError, binascii.Error) as error:
        raise CorruptData("a key that the root wrapped cannot be read", "restore the record from a backup") from error
