"""The keyring: what the rest of the house asks of keys. Bodies and events are sealed, objects, secrets and subjects
get their own keys, logs and tokens their signing keys. The hierarchy is in `key_table`, the cryptography in `sealing`.
"""

import base64
import hashlib
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from falaj.asof.space_keys import SpaceKeys, derive_hash_key, derive_space_key
from falaj.core.context import SYSTEM_TENANT, CallContext
from falaj.core.ports import RecordKey, RootKeyProvider
from falaj.govern.encryption import (
    HEAD_BYTES,
    DataDecryptor,
    DataEncryptor,
    build_aad,
    read_key_version,
    read_wrapping_version,
    unwrap_key,
    wrap_key,
)
from falaj.govern.key_table import KEY_REFRESH_S, KEYS_PROJECT, KeySlot, KeyTable
from falaj.govern.subject_keys import SubjectKeys
from falaj.store.ledger import Ledger, LedgerWriter

if TYPE_CHECKING:
    # Most commands sign nothing, and do not wait for what signs.
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAX_ENCRYPTORS = 4096
MAX_DECRYPTORS = 8192
ONLINE_SETTLE_S = 120.0
"""Seconds between a new version of the key of the online store and its first use: longer than any reader beside the
platform goes without asking for keys."""
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
KeyLocation = tuple[str, str, str]


class _ThreadEncryptors(threading.local):
    def __init__(self) -> None:
        self.lanes: dict[KeyLocation, DataEncryptor] = {}


class Keyring:
    """Cipher of the ledger, keys of objects, signers of logs and tokens. One instance a process; threads share it."""

    def __init__(
        self,
        ledger: Ledger,
        secrets: RootKeyProvider,
        root_name: str = "falaj",
        *,
        home_zone: str = "home",
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = KeyTable(ledger, secrets, root_name, home_zone, wall_clock, clock)
        self.table.on_drop, self.table.on_settle, self.table.on_make = (
            self.clear_derived,
            self.clear_thread_encryptors,
            _publish_log_key,
        )
        self.subjects = SubjectKeys(self.table)
        self._clock = clock
        self.encryptors: dict[KeyLocation, DataEncryptor] = {}
        self.decryptors: dict[tuple[KeyLocation, bytes], DataDecryptor] = {}
        self.decryptors_until = 0.0
        self._local = _ThreadEncryptors()

    def prepare(self, tenant: str, zone: str) -> None:
        """Make the keys of a tenant in a zone ahead of their first use, outside any call of a user."""
        for purpose in ("meta", "secret", "log", "name", "pepper"):
            self.table.held(KeySlot(tenant, zone, purpose))

    def warm(self, max_logs: int = 1000) -> None:
        """Bring the data keys of tenants into memory at start, so that a first rush of readers need not wait."""
        for tenant, zone in self.table.ledger.logs()[:max_logs]:
            self.table.newest(KeySlot(tenant, zone, "meta"))

    # the Cipher of the ledger

    def seal(self, tenant: str, zone: str, data: bytes, aad: bytes) -> bytes:
        """Seal a record's body or an event under the tenant's data key in the zone."""
        return self.encrypt_at((tenant, zone, "meta"), data, aad)

    def unseal(self, tenant: str, zone: str, ciphertext: bytes, aad: bytes) -> bytes:
        """What `seal` was given, or Corrupt when anything at all differs."""
        return self.decrypt_at((tenant, zone, "meta"), ciphertext, aad)

    def secret_seal(self, tenant: str, zone: str, data: bytes, aad: bytes) -> bytes:
        """Seal a secret's value under the tenant's secret key in the zone, which opens nothing else."""
        return self.encrypt_at((tenant, zone, "secret"), data, aad)

    def secret_unseal(self, tenant: str, zone: str, sealed: bytes, aad: bytes) -> bytes:
        """What `secret_seal` was given, or Corrupt."""
        return self.decrypt_at((tenant, zone, "secret"), sealed, aad)

    # the keys of objects

    def new_object_key(self, tenant: str, zone: str) -> tuple[bytes, str]:
        """A random key for one object, plain and wrapped; the wrapped form is kept beside the object as `dek`."""
        version, kek = self.table.aead(KeySlot(tenant, zone, "tenant"))
        key = os.urandom(32)
        return key, wrap_key(kek, version, key, _make_object_aad(tenant, zone))

    def object_key(self, tenant: str, zone: str, wrapped: str) -> bytes:
        """The key inside, or Corrupt when it is not of this tenant and zone."""
        _, kek = self.table.aead(KeySlot(tenant, zone, "tenant"), read_wrapping_version(wrapped))
        return unwrap_key(kek, wrapped, _make_object_aad(tenant, zone))

    def rewrap_object_key(self, tenant: str, zone: str, wrapped: str) -> str:
        """The same key under the newest version of the tenant's key."""
        version, kek = self.table.aead(KeySlot(tenant, zone, "tenant"))
        return wrap_key(kek, version, self.object_key(tenant, zone, wrapped), _make_object_aad(tenant, zone))

    def name_key(self, tenant: str, zone: str) -> bytes:
        """The pepper of storage names: who runs the store learns no digest from a name."""
        return self.table.newest(KeySlot(tenant, zone, "name"))[1]

    def online_keys(self, tenant: str, space: str) -> SpaceKeys:
        """The keys that encrypt one space of the tenant's online store, and the key that hashes its entity keys."""
        slot = KeySlot(tenant, self.table.home, "online")
        encrypting_version = self.table.settled_version(slot, ONLINE_SETTLE_S)
        loaded_key = self.table.held(slot)
        by_version = {
            version: derive_space_key(self.table.version(slot, version), space)
            for version in loaded_key.wrapped
            if version >= loaded_key.least
        }
        hash_key = derive_hash_key(self.name_key(tenant, self.table.home), space)
        return SpaceKeys(by_version, encrypting_version, loaded_key.least, hash_key)

    # signing keys

    def log_signer(self, tenant: str, zone: str) -> "Ed25519PrivateKey":
        """What signs the checkpoints of one log; its public half is a record of kind log-key."""
        return _load_ed25519_key(self.table.newest(KeySlot(tenant, zone, "log"))[1])

    def model_signer(self, tenant: str, zone: str) -> "EllipticCurvePrivateKey":
        """What signs models, on the curve their verifiers know; each signature travels with the public half."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        # 16 bytes more than the order of the curve has, so that no scalar is likelier than another
        wide_secret = HKDF(hashes.SHA256(), 48, None, b"falaj model signer").derive(
            self.table.newest(KeySlot(tenant, zone, "model"))[1]
        )
        return ec.derive_private_key(1 + int.from_bytes(wide_secret) % (P256_ORDER - 1), ec.SECP256R1())

    def token_signer(self) -> "Ed25519PrivateKey":
        """What signs the workload tokens of this installation."""
        return _load_ed25519_key(self.table.newest(KeySlot(SYSTEM_TENANT, SYSTEM_TENANT, "token"))[1])

    def permit_key(self) -> bytes:
        """The secret between the guard and storage, shared by the replicas of this installation."""
        return self.table.newest(KeySlot(SYSTEM_TENANT, SYSTEM_TENANT, "permit"))[1]

    # subjects

    def subject_seal(self, tenant: str, zone: str, subject: str, data: bytes) -> str:
        """Seal what names a data subject, for `Event.sealed`."""
        return self.subjects.seal(tenant, zone, subject, data)

    def subject_open(self, tenant: str, zone: str, sealed: str) -> bytes:
        """What `subject_seal` was given; NotFound once the subject is forgotten."""
        return self.subjects.open(tenant, zone, sealed)

    def subject_forget(
        self, ctx: CallContext, zone: str, subject: str, *, legal_holds: tuple[str, ...] = (), retain_until: float = 0.0
    ) -> str:
        """Destroy the subject's key in a zone, for ever; gives the pseudonym that the proof is about."""
        return self.subjects.forget(ctx, zone, subject, legal_holds=legal_holds, retain_until=retain_until)

    def encrypt_at(self, location: KeyLocation, data: bytes, aad: bytes) -> bytes:
        encryptor = self.encryptors.get(location)
        if encryptor is None or encryptor.until < self._clock():
            encryptor = self.get_encryptor(location)
        sealed = encryptor.seal(data, aad)
        while sealed is None:
            self.encryptors.pop(location, None)
            self._local.lanes.pop(location, None)
            sealed = self.get_encryptor(location).seal(data, aad)
        return sealed

    def decrypt_at(self, location: KeyLocation, sealed: bytes, aad: bytes) -> bytes:
        if self.decryptors_until < self._clock():
            self.decryptors.clear()
            self.decryptors_until = self._clock() + KEY_REFRESH_S
        decryptor = self.decryptors.get((location, sealed[:HEAD_BYTES]))
        if decryptor is None:
            decryptor = self.create_decryptor(location, sealed)
        return decryptor.open(sealed, aad)

    def get_encryptor(self, location: KeyLocation) -> DataEncryptor:
        encryptor = self._local.lanes.get(location)
        if encryptor is not None and encryptor.until > self._clock():
            return encryptor
        slot = KeySlot(*location)
        version, key = self.table.newest(slot)
        expires_at = min(self._clock(), self.table.held(slot).until) + KEY_REFRESH_S
        encryptor = DataEncryptor(key, version, build_aad(*location, version), expires_at)
        is_shared = self.table.shared(slot)
        encryptors = self.encryptors if is_shared else self._local.lanes
        if len(encryptors) >= MAX_ENCRYPTORS:
            encryptors.clear()
        encryptors[location] = encryptor
        return encryptor

    def create_decryptor(self, location: KeyLocation, sealed: bytes) -> DataDecryptor:
        version = read_key_version(sealed)
        slot = KeySlot(*location)
        decryptor = DataDecryptor(self.table.version(slot, version), sealed[:HEAD_BYTES], build_aad(*location, version))
        if self.table.shared(slot):
            if len(self.decryptors) >= MAX_DECRYPTORS:
                self.decryptors.clear()
            self.decryptors[location, sealed[:HEAD_BYTES]] = decryptor
        return decryptor

    def clear_derived(self) -> None:
        self.encryptors.clear()
        self.decryptors.clear()
        self.clear_thread_encryptors()

    def clear_thread_encryptors(self) -> None:
        self._local.lanes.clear()

    def __repr__(self) -> str:
        return "Keyring(…)"

    def __reduce__(self) -> str:
        raise TypeError("a keyring is never pickled")


def _load_ed25519_key(key: bytes) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(key)


def compute_key_id(public: "Ed25519PublicKey") -> str:
    """The short name of a public key: the first 16 hex digits of the SHA-256 of its raw bytes."""
    return hashlib.sha256(public.public_bytes_raw()).hexdigest()[:16]


def _publish_log_key(tx: LedgerWriter, slot: KeySlot, version: int, key: bytes) -> None:
    if slot.purpose != "log":
        return
    public = _load_ed25519_key(key).public_key()
    raw_public_key = public.public_bytes_raw()
    body: dict[str, Any] = {
        "key_id": compute_key_id(public),
        "public": base64.b64encode(raw_public_key).decode(),
        "zone": slot.zone,
    }
    tx.put(RecordKey(slot.tenant, "log-key", KEYS_PROJECT, slot.key.name, f"v{version}"), body, zone=slot.zone)


def _make_object_aad(tenant: str, zone: str) -> bytes:
    return build_aad("object", tenant, zone)
