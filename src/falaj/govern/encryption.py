"""How one key seals another and how bytes are sealed: AES-256-GCM bound to where they belong. Pure: no store, no clock.

    wrapped key   v<version of the wrapping key>:<base64 of suite (1) | nonce (12) | ciphertext and tag>
    sealed bytes  suite (1) | key version (3) | lane (12) | nonce (12) | ciphertext and tag

A lane is one process's own key, derived from the data key and 12 random bytes. Each lane counts its messages into the
nonce and ends long before 2^32, so no two messages under one AES key share a nonce however many replicas, restarts,
forks and snapshots there are, and nobody has to count across them.
"""

import base64
import hmac
import itertools
import os
from collections.abc import Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from falaj.core.errors import CorruptData

CIPHER_SUITE = 1
"""AES-256-GCM. Another suite gets another number and both stay readable."""
MAX_MESSAGES_PER_KEY = 1 << 30
HEAD_BYTES = 16
_MIN_SEALED_BYTES = HEAD_BYTES + 12 + 16


def build_aad(*parts: str | int) -> bytes:
    """Associated data of these parts; lengths first, so that no two lists share it."""
    texts = [str(part).encode() for part in parts]
    return bytes((CIPHER_SUITE,)) + b"".join(len(text).to_bytes(4, "big") + text for text in texts)


def wrap_key(kek: AESGCM, version: int, key: bytes, aad: bytes) -> str:
    """The wrapped form of `key` under version `version` of the wrapping key."""
    nonce = os.urandom(12)
    sealed = bytes((CIPHER_SUITE,)) + nonce + kek.encrypt(nonce, key, aad + version.to_bytes(4, "big"))
    return f"v{version}:{base64.b64encode(sealed).decode()}"


def read_wrapping_version(wrapped: str) -> int:
    """The version of the wrapping key that a wrapped key names."""
    head, colon, _ = wrapped.partition(":")
    if not colon or head[:1] != "v" or not head[1:].isdigit() or len(head) > 10:
        raise CorruptData("a wrapped key has a form that is not known", "restore the record from a backup")
    return int(head[1:])


def unwrap_key(kek: AESGCM, wrapped: str, aad: bytes) -> bytes:
    """The key inside, or Corrupt when it was altered or belongs to another place, purpose or version."""
    version = read_wrapping_version(wrapped)
    try:
        sealed = base64.b64decode(wrapped.partition(":")[2], validate=True)
    except ValueError as error:
        raise CorruptData("a wrapped key cannot be read", "restore the record from a backup") from error
    if len(sealed) < 29 or sealed[0] != CIPHER_SUITE:
        raise CorruptData(
            "a wrapped key is sealed in a form this release does not know", "it may be of a newer release"
        )
    try:
        return kek.decrypt(sealed[1:13], sealed[13:], aad + version.to_bytes(4, "big"))
    except InvalidTag:
        raise CorruptData(
            "a wrapped key does not open", "it was altered, or belongs to another tenant, zone or purpose"
        ) from None


class DataEncryptor:
    """The way in: seals under one derived key until its count is full."""

    __slots__ = ("_aad", "_head", "cipher", "message_counter", "until")

    def __init__(self, key: bytes, version: int, aad: bytes, expires_at: float) -> None:
        key_nonce = os.urandom(12)
        self._head = bytes((CIPHER_SUITE,)) + version.to_bytes(3, "big") + key_nonce
        self.cipher = AESGCM(_derive_key(key, key_nonce))
        self._aad = aad
        self.message_counter: Iterator[int] = itertools.count()
        self.until = expires_at

    def seal(self, data: bytes, aad: bytes) -> bytes | None:
        """The sealed bytes; None when the lane is full and another must be opened."""
        count = next(self.message_counter)
        if count >= MAX_MESSAGES_PER_KEY:
            return None
        # the random half keeps a forked or restored process apart from its twin, which counts the same numbers
        nonce = count.to_bytes(4, "big") + os.urandom(8)
        return self._head + nonce + self.cipher.encrypt(nonce, data, self._aad + aad)

    def __repr__(self) -> str:
        return "Lane(…)"

    def __reduce__(self) -> str:
        raise TypeError("a key is never pickled")


class DataDecryptor:
    """The way out for everything one lane sealed."""

    __slots__ = ("_aad", "cipher")

    def __init__(self, key: bytes, head: bytes, aad: bytes) -> None:
        self.cipher = AESGCM(_derive_key(key, head[4:HEAD_BYTES]))
        self._aad = aad

    def open(self, sealed: bytes, aad: bytes) -> bytes:
        """What was sealed, or Corrupt when one bit of it, or of where it belongs, differs."""
        try:
            return self.cipher.decrypt(sealed[HEAD_BYTES : HEAD_BYTES + 12], sealed[HEAD_BYTES + 12 :], self._aad + aad)
        except (InvalidTag, ValueError):  # ValueError: cut so short that no nonce is left
            raise CorruptData(
                "sealed bytes do not open", "they were altered, or belong to another tenant, zone or record"
            ) from None

    def __repr__(self) -> str:
        return "Opener(…)"

    def __reduce__(self) -> str:
        raise TypeError("a key is never pickled")


def read_key_version(sealed: bytes) -> int:
    """The version of the data key that sealed bytes name."""
    if len(sealed) < _MIN_SEALED_BYTES or sealed[0] != CIPHER_SUITE:
        raise CorruptData(
            "bytes are sealed in a form this release does not know", "they may be of a newer release, or damaged"
        )
    return int.from_bytes(sealed[1:4], "big")


def _derive_key(key: bytes, _key_nonce: bytes) -> bytes:
    return hmac.digest(key, b"falaj lane\0" + _key_nonce, "sha256")
