"""Rows of people, each person's sealed under a key of their own: one block for a person's rows in a segment.

To destroy the key is to make every copy of the rows unreadable, in old editions and in backups too, while their digests
still verify: the bytes do not change. A person is known here by a pseudonym only (16 bytes; the secret that makes it
stays with the platform), and the table of keys is 48 bytes a person, sorted, searched without a loop.

    block   suite (1) | nonce (12) | AES-256-GCM ciphertext and tag
    bound to   tenant, zone, rows and segment (`make_associated_data`), the pseudonym, and the place of the block in its
    segment

The nonce is random. A key seals one block for each run of one person in each segment, some thousands in a life, and two
equal nonces among 2^32 blocks of one key are less likely than 2^-33; a nonce counted or derived from the segment would
repeat when a killed writer writes the same segment again with other rows.
"""

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from falaj.core.errors import Conflict, CorruptData, Invalid

PSEUDONYM_BYTES, KEY_BYTES, NONCE_BYTES, TAG_BYTES = 16, 32, 12, 16
CIPHER_SUITE = 1
"""AES-256-GCM. Another suite gets another number, and both stay readable."""
MIN_BLOCK_BYTES = 1 + NONCE_BYTES + TAG_BYTES
_MAGIC = b"falaj keys 1\0\0\0\0"
_HEADER_BYTES = len(_MAGIC) + 8
_PSEUDONYM_DTYPE, _KEY_DTYPE = np.dtype("S16"), np.dtype("V32")
Array = np.ndarray[Any, np.dtype[Any]]


class PersonKeys:
    """Pseudonym to key. Never changed: `merge` and `without` give another."""

    __slots__ = ("keys", "names")

    def __init__(self, pseudonyms: Array, keys: Array) -> None:
        if (
            pseudonyms.dtype != _PSEUDONYM_DTYPE
            or keys.dtype != _KEY_DTYPE
            or pseudonyms.shape != keys.shape
            or pseudonyms.ndim != 1
        ):
            raise CorruptData("a table of keys has another shape than tables of keys have", "restore it from a backup")
        # Fixed width on both sides, so that comparing them as texts is comparing all sixteen bytes.
        if len(pseudonyms) > 1 and not bool((pseudonyms[1:] > pseudonyms[:-1]).all()):
            raise CorruptData("a table of keys is out of order, or names somebody twice", "restore it from a backup")
        self.names, self.keys = pseudonyms, keys

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PersonKeys) and encode_person_keys(self) == encode_person_keys(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Keys({len(self)} people)"

    def __reduce__(self) -> str:
        raise TypeError("a key is never pickled")

    def find(self, pseudonyms: Sequence[bytes]) -> Array:
        """The place of each name in the table; -1 where it has no key."""
        sought = _to_pseudonym_array(pseudonyms)
        if not len(self):
            return np.full(len(sought), -1, np.int64)
        positions = np.minimum(np.searchsorted(self.names, sought), len(self) - 1)
        return np.where(self.names[positions] == sought, positions, -1)

    def missing(self, pseudonyms: Sequence[bytes]) -> list[bytes]:
        """Those that have no key, each once, sorted."""
        missing_positions = np.flatnonzero(self.find(pseudonyms) < 0)
        return sorted({pseudonyms[int(i)] for i in missing_positions})

    def take(self, pseudonyms: Sequence[bytes]) -> list[bytes | None]:
        """The key of each name; None where there is none."""
        positions = self.find(pseudonyms)
        if not len(self):
            return [None] * len(positions)
        key_bytes = self.keys[positions].tobytes()
        has_keys = (positions >= 0).tolist()
        return [
            key_bytes[i * KEY_BYTES : (i + 1) * KEY_BYTES] if has_key else None for i, has_key in enumerate(has_keys)
        ]

    def merge(self, other: "PersonKeys") -> "PersonKeys":
        """Both together; Conflict when they hold different keys for one person."""
        pseudonyms = np.concatenate((self.names, other.names))
        keys = np.concatenate((self.keys, other.keys))
        order = np.argsort(pseudonyms, kind="stable")
        pseudonyms, keys = pseudonyms[order], keys[order]
        is_first = np.concatenate((np.ones(min(len(pseudonyms), 1), bool), pseudonyms[1:] != pseudonyms[:-1]))
        repeat_positions = np.flatnonzero(~is_first)
        if len(repeat_positions) and keys[repeat_positions].tobytes() != keys[repeat_positions - 1].tobytes():
            raise Conflict("two tables hold different keys for one person", "take the one that rows were sealed under")
        return PersonKeys(pseudonyms[is_first], keys[is_first])

    def without(self, pseudonyms: Sequence[bytes]) -> "PersonKeys":
        """The same without some people, whose rows nobody can then open."""
        positions = self.find(pseudonyms)
        is_kept = np.ones(len(self), bool)
        is_kept[positions[positions >= 0]] = False
        return PersonKeys(self.names[is_kept], self.keys[is_kept])

    def parts(self, bounds: Sequence[int]) -> list["PersonKeys"]:
        """The same in parts: people whose first four bytes, as a number, reach the next bound go into the next."""
        first_pseudonyms = np.frombuffer(
            b"".join(bound.to_bytes(4, "big").ljust(PSEUDONYM_BYTES, b"\0") for bound in bounds), _PSEUDONYM_DTYPE
        )
        ends = [0, *np.searchsorted(self.names, first_pseudonyms).tolist(), len(self)]
        return [PersonKeys(self.names[a:b], self.keys[a:b]) for a, b in pairwise(ends)]


def join_key_tables(parts: Sequence[PersonKeys]) -> PersonKeys:
    """What `parts` gave, in one."""
    if len(parts) == 1:
        return parts[0]
    pseudonyms, keys = [part.names for part in parts], [part.keys for part in parts]
    return PersonKeys(np.concatenate(pseudonyms), np.concatenate(keys)) if parts else generate_person_keys([])


def generate_person_keys(pseudonyms: Sequence[bytes]) -> PersonKeys:
    """A random key for each of these people."""
    unique_pseudonyms = np.unique(_to_pseudonym_array(pseudonyms))
    return PersonKeys(unique_pseudonyms, np.frombuffer(os.urandom(len(unique_pseudonyms) * KEY_BYTES), _KEY_DTYPE))


def encode_person_keys(keys: PersonKeys) -> bytes:
    """The table as bytes: a head, all names in order, all keys."""
    count = len(keys).to_bytes(8, "little")
    return b"".join((_MAGIC, count, keys.names.tobytes(), keys.keys.tobytes()))


def decode_person_keys(data: bytes | memoryview) -> PersonKeys:
    """The reverse; Corrupt for whatever `encode_person_keys` does not make."""
    data = bytes(data)
    count = int.from_bytes(data[len(_MAGIC) : _HEADER_BYTES], "little")
    if data[: len(_MAGIC)] != _MAGIC or len(data) != _HEADER_BYTES + count * (PSEUDONYM_BYTES + KEY_BYTES):
        raise CorruptData("these bytes are no table of keys", "restore it from a backup, or use a newer release")
    pseudonyms = np.frombuffer(data, _PSEUDONYM_DTYPE, count, _HEADER_BYTES)
    return PersonKeys(pseudonyms, np.frombuffer(data, _KEY_DTYPE, count, _HEADER_BYTES + count * PSEUDONYM_BYTES))


def make_associated_data(tenant: str, zone: str, rows_name: str, segment: str) -> bytes:
    """What every block of a segment is bound to; lengths first, so that no two lists give the same."""
    texts = [text.encode() for text in (tenant, zone, rows_name, segment)]
    return bytes((CIPHER_SUITE,)) + b"".join(len(text).to_bytes(4, "big") + text for text in texts)


def encrypt_runs(
    runs: Sequence[bytes | memoryview], pseudonyms: Sequence[bytes], keys: PersonKeys, aad: bytes
) -> list[bytes]:
    """Each run of a segment under the key of whom it is about; every one must have a key."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(runs) != len(pseudonyms):
        raise Invalid(f"{len(runs)} runs of {len(pseudonyms)} people", "name the person of each run")
    nonces, suite = os.urandom(NONCE_BYTES * len(runs)), bytes((CIPHER_SUITE,))
    sealed: list[bytes] = []
    for number, (run, pseudonym, key) in enumerate(zip(runs, pseudonyms, keys.take(pseudonyms), strict=True)):
        if key is None:
            raise Invalid("a run is about a person who has no key", "make the key first, unless they were erased")
        nonce = nonces[number * NONCE_BYTES : (number + 1) * NONCE_BYTES]
        associated_data = aad + pseudonym + number.to_bytes(8, "big")
        sealed.append(suite + nonce + AESGCM(key).encrypt(nonce, run, associated_data))
    return sealed


def decrypt_blocks(
    blocks: Sequence[bytes | memoryview],
    pseudonyms: Sequence[bytes],
    keys: PersonKeys,
    aad: bytes,
    positions: Sequence[int] | None = None,
) -> list[bytes | None]:
    """What `encrypt_runs` was given; None for a person whose key is gone, Corrupt for what was altered or moved.

    `positions`: which blocks of the segment these are, when they are not all of them in order.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    positions = range(len(blocks)) if positions is None else positions
    runs: list[bytes | None] = []
    try:
        for block, pseudonym, key, position in zip(blocks, pseudonyms, keys.take(pseudonyms), positions, strict=True):
            if len(block) < MIN_BLOCK_BYTES or block[0] != CIPHER_SUITE:
                raise CorruptData(
                    "a sealed block has a form that is not known", "it was altered, or is of a newer release"
                )
            if key is None:
                runs.append(None)
                continue
            associated_data = aad + pseudonym + position.to_bytes(8, "big")
            runs.append(AESGCM(key).decrypt(block[1 : 1 + NONCE_BYTES], block[1 + NONCE_BYTES :], associated_data))
    except InvalidTag:
        raise CorruptData("a sealed block does not open", "it was altered, or belongs to another segment") from None
    except ValueError as error:
        raise Invalid("as many blocks as names and places", "give one of each for every block") from error
    return runs


def _to_pseudonym_array(pseudonyms: Sequence[bytes]) -> Array:
    if any(len(pseudonym) != PSEUDONYM_BYTES for pseudonym in pseudonyms):
        raise Invalid("a pseudonym has another length", f"pseudonyms have {PSEUDONYM_BYTES} bytes")
    return np.frombuffer(b"".join(pseudonyms), _PSEUDONYM_DTYPE)
