"""The keyring: what the rest of the house asks of keys. Bodies and events are sealed, objects, secrets and subjects
get their own keys, logs and tokens their signing keys. The hierarchy is in `keytable`, the cryptography in `sealing`.
"""

import base64
import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from falaj.asof.space_keys import SpaceKeys, derive_hash_key, derive_space_key
from falaj.core.context import HOUSE, Context
from falaj.core.ports import Key, Secrets
from falaj.govern.keytable import FRESH_S, PROJECT, KeyTable, Slot
from falaj.govern.sealing import HEAD, Lane, Opener, bound, sealed_version, unwrap, wrap, wrapped_version
from falaj.govern.subjects import Subjects
from falaj.store.ledger import Ledger, Writer

if TYPE_CHECKING:
    # Most commands sign nothing, and do not wait for what signs.
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

LANES = 4096
OPENERS = 8192
ONLINE_SETTLE_S = 120.0
"""Seconds between a new version of the key of the online store and its first use: longer than any reader beside the
platform goes without asking for keys."""
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
Where = tuple[str, str, str]


class _Local(threading.local):
    def __init__(self) -> None:
        self.lanes: dict[Where, Lane] = {}


class Keyring:
    """Cipher of the ledger, keys of objects, signers of logs and tokens. One instance a process; threads share it."""

    def __init__(
        self,
        ledger: Ledger,
        secrets: Secrets,
        root: str = "falaj",
        *,
        home: str = "home",
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = KeyTable(ledger, secrets, root, home, now, clock)
        self.table.on_drop, self.table.on_settle, self.table.on_make = self._forget, self._settle, _publish
        self.subjects = Subjects(self.table)
        self._clock = clock
        self._lanes: dict[Where, Lane] = {}
        self._openers: dict[tuple[Where, bytes], Opener] = {}
        self._openers_until = 0.0
        self._local = _Local()

    def prepare(self, tenant: str, zone: str) -> None:
        """Make the keys of a tenant in a zone ahead of their first use, outside any call of a user."""
        for purpose in ("meta", "secret", "log", "name", "pepper"):
            self.table.held(Slot(tenant, zone, purpose))

    def warm(self, most: int = 1000) -> None:
        """Bring the data keys of tenants into memory at start, so that a first rush of readers need not wait."""
        for tenant, zone in self.table.ledger.logs()[:most]:
            self.table.newest(Slot(tenant, zone, "meta"))

    # the Cipher of the ledger

    def seal(self, tenant: str, zone: str, data: bytes, aad: bytes) -> bytes:
        """Seal a record's body or an event under the tenant's data key in the zone."""
        return self._seal((tenant, zone, "meta"), data, aad)

    def unseal(self, tenant: str, zone: str, sealed: bytes, aad: bytes) -> bytes:
        """What `seal` was given, or Corrupt when anything at all differs."""
        return self._unseal((tenant, zone, "meta"), sealed, aad)

    def secret_seal(self, tenant: str, zone: str, data: bytes, aad: bytes) -> bytes:
        """Seal a secret's value under the tenant's secret key in the zone, which opens nothing else."""
        return self._seal((tenant, zone, "secret"), data, aad)

    def secret_unseal(self, tenant: str, zone: str, sealed: bytes, aad: bytes) -> bytes:
        """What `secret_seal` was given, or Corrupt."""
        return self._unseal((tenant, zone, "secret"), sealed, aad)

    # the keys of objects

    def new_object_key(self, tenant: str, zone: str) -> tuple[bytes, str]:
        """A random key for one object, plain and wrapped; the wrapped form is kept beside the object as `dek`."""
        version, kek = self.table.aead(Slot(tenant, zone, "tenant"))
        key = os.urandom(32)
        return key, wrap(kek, version, key, _object_aad(tenant, zone))

    def object_key(self, tenant: str, zone: str, wrapped: str) -> bytes:
        """The key inside, or Corrupt when it is not of this tenant and zone."""
        _, kek = self.table.aead(Slot(tenant, zone, "tenant"), wrapped_version(wrapped))
        return unwrap(kek, wrapped, _object_aad(tenant, zone))

    def rewrap_object_key(self, tenant: str, zone: str, wrapped: str) -> str:
        """The same key under the newest version of the tenant's key."""
        version, kek = self.table.aead(Slot(tenant, zone, "tenant"))
        return wrap(kek, version, self.object_key(tenant, zone, wrapped), _object_aad(tenant, zone))

    def name_key(self, tenant: str, zone: str) -> bytes:
        """The pepper of storage names: who runs the store learns no digest from a name."""
        return self.table.newest(Slot(tenant, zone, "name"))[1]

    def online_keys(self, tenant: str, space: str) -> SpaceKeys:
        """The keys that encrypt one space of the tenant's online store, and the key that hashes its entity keys."""
        slot = Slot(tenant, self.table.home, "online")
        sealing = self.table.settled_version(slot, ONLINE_SETTLE_S)
        held = self.table.held(slot)
        by_version = {
            version: derive_space_key(self.table.version(slot, version), space)
            for version in held.wrapped
            if version >= held.least
        }
        hash_key = derive_hash_key(self.name_key(tenant, self.table.home), space)
        return SpaceKeys(by_version, sealing, held.least, hash_key)

    # signing keys

    def log_signer(self, tenant: str, zone: str) -> "Ed25519PrivateKey":
        """What signs the checkpoints of one log; its public half is a record of kind log-key."""
        return _ed25519(self.table.newest(Slot(tenant, zone, "log"))[1])

    def model_signer(self, tenant: str, zone: str) -> "EllipticCurvePrivateKey":
        """What signs models, on the curve their verifiers know; each signature travels with the public half."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        # 16 bytes more than the order of the curve has, so that no scalar is likelier than another
        wide = HKDF(hashes.SHA256(), 48, None, b"falaj model signer").derive(
            self.table.newest(Slot(tenant, zone, "model"))[1]
        )
        return ec.derive_private_key(1 + int.from_bytes(wide) % (P256_ORDER - 1), ec.SECP256R1())

    def token_signer(self) -> "Ed25519PrivateKey":
        """What signs the workload tokens of this installation."""
        return _ed25519(self.table.newest(Slot(HOUSE, HOUSE, "token"))[1])

    def permit_key(self) -> bytes:
        """The secret between the guard and storage, shared by the replicas of this installation."""
        return self.table.newest(Slot(HOUSE, HOUSE, "permit"))[1]

    # subjects

    def subject_seal(self, tenant: str, zone: str, subject: str, data: bytes) -> str:
        """Seal what names a data subject, for `Event.sealed`."""
        return self.subjects.seal(tenant, zone, subject, data)

    def subject_open(self, tenant: str, zone: str, sealed: str) -> bytes:
        """What `subject_seal` was given; NotFound once the subject is forgotten."""
        return self.subjects.open(tenant, zone, sealed)

    def subject_forget(
        self, ctx: Context, zone: str, subject: str, *, holds: tuple[str, ...] = (), retain_until: float = 0.0
    ) -> str:
        """Destroy the subject's key in a zone, for ever; gives the pseudonym that the proof is about."""
        return self.subjects.forget(ctx, zone, subject, holds=holds, retain_until=retain_until)

    def _seal(self, where: Where, data: bytes, aad: bytes) -> bytes:
        lane = self._lanes.get(where)
        if lane is None or lane.until < self._clock():
            lane = self._lane(where)
        sealed = lane.seal(data, aad)
        while sealed is None:
            self._lanes.pop(where, None)
            self._local.lanes.pop(where, None)
            sealed = self._lane(where).seal(data, aad)
        return sealed

    def _unseal(self, where: Where, sealed: bytes, aad: bytes) -> bytes:
        if self._openers_until < self._clock():
            self._openers.clear()
            self._openers_until = self._clock() + FRESH_S
        opener = self._openers.get((where, sealed[:HEAD]))
        if opener is None:
            opener = self._opener(where, sealed)
        return opener.open(sealed, aad)

    def _lane(self, where: Where) -> Lane:
        lane = self._local.lanes.get(where)
        if lane is not None and lane.until > self._clock():
            return lane
        slot = Slot(*where)
        version, key = self.table.newest(slot)
        until = min(self._clock(), self.table.held(slot).until) + FRESH_S
        lane = Lane(key, version, bound(*where, version), until)
        shared = self.table.shared(slot)
        lanes = self._lanes if shared else self._local.lanes
        if len(lanes) >= LANES:
            lanes.clear()
        lanes[where] = lane
        return lane

    def _opener(self, where: Where, sealed: bytes) -> Opener:
        version = sealed_version(sealed)
        slot = Slot(*where)
        opener = Opener(self.table.version(slot, version), sealed[:HEAD], bound(*where, version))
        if self.table.shared(slot):
            if len(self._openers) >= OPENERS:
                self._openers.clear()
            self._openers[where, sealed[:HEAD]] = opener
        return opener

    def _forget(self) -> None:
        self._lanes.clear()
        self._openers.clear()
        self._settle()

    def _settle(self) -> None:
        self._local.lanes.clear()

    def __repr__(self) -> str:
        return "Keyring(…)"

    def __reduce__(self) -> str:
        raise TypeError("a keyring is never pickled")


def _ed25519(key: bytes) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(key)


def key_id(public: "Ed25519PublicKey") -> str:
    """The short name of a public key: the first 16 hex digits of the SHA-256 of its raw bytes."""
    return hashlib.sha256(public.public_bytes_raw()).hexdigest()[:16]


def _publish(tx: Writer, slot: Slot, version: int, key: bytes) -> None:
    if slot.purpose != "log":
        return
    public = _ed25519(key).public_key()
    raw = public.public_bytes_raw()
    body: dict[str, Any] = {"key_id": key_id(public), "public": base64.b64encode(raw).decode(), "zone": slot.zone}
    tx.put(Key(slot.tenant, "log-key", PROJECT, slot.key.name, f"v{version}"), body, zone=slot.zone)


def _object_aad(tenant: str, zone: str) -> bytes:
    return bound("object", tenant, zone)
