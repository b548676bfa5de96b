"""Keys that encrypt rows of the online store: one for each space and key version, derived from the tenant's key.

Each space also has one key for the hash of entity keys, which no rotation changes: rows of every version, and the marks
of people who may not be used, stay where readers look for them. A key of one space opens no row of another space.
Readers beside the platform (replicas, programs that read the store directly) receive the keys of the spaces in their
plan and never the tenant's key.
"""

import base64
import binascii
import hmac
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from falaj.core.data import dataclass
from falaj.core.errors import Invalid

NONCE_BYTES = 12
KeyTexts = Mapping[str, Mapping[str, str]]
"""Keys as they travel: space to key version, or `hash`, to the key in base64."""
_HASH = "hash"


@dataclass(frozen=True, slots=True)
class SpaceKeys:
    """The keys of one space."""

    by_version: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    sealing: int = 0
    """The version that encrypts new rows; 0 for a holder that only reads."""
    least: int = 0
    """Older versions were retired: what they encrypted cannot be read any more."""
    hash_key: bytes = field(default=b"", repr=False)
    """The key of the hash that the store has in place of an entity key; empty for a holder without access."""


FindKeys = Callable[[str], SpaceKeys]
"""From the name of a space to its keys."""


def derive_space_key(tenant_key: bytes, space: str) -> bytes:
    """The AES-256 key of one space."""
    return hmac.digest(tenant_key, b"falaj online space\0" + space.encode(), "sha256")


def derive_hash_key(name_key: bytes, space: str) -> bytes:
    """The key that hashes the entity keys of one space."""
    return hmac.digest(name_key, b"falaj online entity keys\0" + space.encode(), "sha256")


def encode_space_keys(keys: SpaceKeys) -> dict[str, str]:
    """Keys of one space as they travel."""
    named = {_HASH: keys.hash_key, **{str(version): key for version, key in keys.by_version.items()}}
    return {name: base64.b64encode(key).decode() for name, key in named.items()}


def make_key_finder(texts: KeyTexts) -> FindKeys:
    """Look keys up that travelled here; a space that is not among them has none."""
    keys_by_space = {space: _decode_space_keys(keys) for space, keys in texts.items()}
    return partial(_find_space_keys, keys_by_space)


def encrypt_space_keys(endpoint_key: str, texts: KeyTexts) -> str:
    """Keys for the replicas of an endpoint, encrypted under its secret."""
    nonce = os.urandom(NONCE_BYTES)
    plain = json.dumps({space: dict(keys) for space, keys in texts.items()}).encode()
    return base64.b64encode(nonce + _make_endpoint_cipher(endpoint_key).encrypt(nonce, plain, None)).decode()


def decrypt_space_keys(endpoint_key: str, sealed: str) -> KeyTexts:
    """What `encrypt_space_keys` was given; Invalid for anything that the platform did not seal for this endpoint."""
    try:
        data = base64.b64decode(sealed, validate=True)
        plain = _make_endpoint_cipher(endpoint_key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], None)
    except (InvalidTag, ValueError):
        raise Invalid(
            "keys of the online store: expected keys sealed for this endpoint, got other bytes",
            "deploy the endpoint again",
        ) from None
    texts: KeyTexts = json.loads(plain)
    return texts


def _make_endpoint_cipher(endpoint_key: str) -> AESGCM:
    return AESGCM(hmac.digest(endpoint_key.encode(), b"falaj online keys", "sha256"))


def _find_space_keys(keys_by_space: Mapping[str, SpaceKeys], space: str) -> SpaceKeys:
    return keys_by_space.get(space, SpaceKeys())


def _decode_space_keys(texts: Mapping[str, str]) -> SpaceKeys:
    try:
        keys = {name: base64.b64decode(key, validate=True) for name, key in texts.items()}
        hash_key = keys.pop(_HASH, b"")
        return SpaceKeys({int(version): key for version, key in keys.items()}, hash_key=hash_key)
    except (ValueError, binascii.Error):
        raise Invalid("keys of the online store: expected base64 by version", "ask the platform for them") from None
