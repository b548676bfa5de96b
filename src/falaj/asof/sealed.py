"""Rows of people, each person's sealed under a key of their own: one block for a person's rows in a segment.

To destroy the key is to make every copy of the rows unreadable, in old editions and in backups too, while their digests
still verify: the bytes do not change. A person is known here by a pseudonym only (16 bytes; the secret that makes it
stays with the platform), and the table of keys is 48 bytes a person, sorted, searched without a loop.

    block   suite (1) | nonce (12) | AES-256-GCM ciphertext and tag
    bound to   tenant, zone, rows and segment (`bound_to`), the pseudonym, and the place of the block in its segment

The nonce is random. A key seals one block for each run of one person in each segment, some thousands in a life, and two
equal nonces among 2^32 blocks of one key are less likely than 2^-33; a nonce counted or derived from the segment would
repeat when a killed writer writes the same segment again with other rows.
"""

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from falaj.core.errors import Conflict, Corrupt, Invalid

NAME_BYTES, KEY_BYTES, NONCE_BYTES, TAG_BYTES = 16, 32, 12, 16
SUITE = 1
"""AES-256-GCM. Another suite gets another number, and both stay readable."""
LEAST_BYTES = 1 + NONCE_BYTES + TAG_BYTES
_MAGIC = b"falaj keys 1\0\0\0\0"
_HEAD = len(_MAGIC) + 8
_NAME, _KEY = np.dtype("S16"), np.dtype("V32")
Array = np.ndarray[Any, np.dtype[Any]]


class Keys:
    """Pseudonym to key. Never changed: `merge` and `without` give another."""

    __slots__ = ("keys", "names")

    def __init__(self, names: Array, keys: Array) -> None:
        if names.dtype != _NAME or keys.dtype != _KEY or names.shape != keys.shape or names.ndim != 1:
            raise Corrupt("a table of keys has another shape than tables of keys have", "restore it from a backup")
        # Fixed width on both sides, so that comparing them as texts is comparing all sixteen bytes.
        if len(names) > 1 and not bool((names[1:] > names[:-1]).all()):
            raise Corrupt("a table of keys is out of order, or names somebody twice", "restore it from a backup")
        self.names, self.keys = names, keys

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys) and pack_keys(self) == pack_keys(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Keys({len(self)} people)"

    def __reduce__(self) -> str:
        raise TypeError("a key is never pickled")

    def find(self, names: Sequence[bytes]) -> Array:
        """The place of each name in the table; -1 where it has no key."""
        wanted = _as_names(names)
        if not len(self):
            return np.full(len(wanted), -1, np.int64)
        at = np.minimum(np.searchsorted(self.names, wanted), len(self) - 1)
        return np.where(self.names[at] == wanted, at, -1)

    def missing(self, names: Sequence[bytes]) -> list[bytes]:
        """Those that have no key, each once, sorted."""
        gone = np.flatnonzero(self.find(names) < 0)
        return sorted({names[int(i)] for i in gone})

    def take(self, names: Sequence[bytes]) -> list[bytes | None]:
        """The key of each name; None where there is none."""
        at = self.find(names)
        if not len(self):
            return [None] * len(at)
        raw = self.keys[at].tobytes()
        found = (at >= 0).tolist()
        return [raw[i * KEY_BYTES : (i + 1) * KEY_BYTES] if has else None for i, has in enumerate(found)]

    def merge(self, other: "Keys") -> "Keys":
        """Both together; Conflict when they hold different keys for one person."""
        names = np.concatenate((self.names, other.names))
        keys = np.concatenate((self.keys, other.keys))
        order = np.argsort(names, kind="stable")
        names, keys = names[order], keys[order]
        first = np.concatenate((np.ones(min(len(names), 1), bool), names[1:] != names[:-1]))
        again = np.flatnonzero(~first)
        if len(again) and keys[again].tobytes() != keys[again - 1].tobytes():
            raise Conflict("two tables hold different keys for one person", "take the one that rows were sealed under")
        return Keys(names[first], keys[first])

    def without(self, names: Sequence[bytes]) -> "Keys":
        """The same without some people, whose rows nobody can then open."""
        at = self.find(names)
        left = np.ones(len(self), bool)
        left[at[at >= 0]] = False
        return Keys(self.names[left], self.keys[left])

    def parts(self, bounds: Sequence[int]) -> list["Keys"]:
        """The same in parts: people whose first four bytes, as a number, reach the next bound go into the next."""
        firsts = np.frombuffer(b"".join(bound.to_bytes(4, "big").ljust(NAME_BYTES, b"\0") for bound in bounds), _NAME)
        ends = [0, *np.searchsorted(self.names, firsts).tolist(), len(self)]
        return [Keys(self.names[a:b], self.keys[a:b]) for a, b in pairwise(ends)]


def joined(parts: Sequence[Keys]) -> Keys:
    """What `parts` gave, in one."""
    if len(parts) == 1:
        return parts[0]
    names, keys = [one.names for one in parts], [one.keys for one in parts]
    return Keys(np.concatenate(names), np.concatenate(keys)) if parts else new_keys([])


def new_keys(names: Sequence[bytes]) -> Keys:
    """A random key for each of these people."""
    unique = np.unique(_as_names(names))
    return Keys(unique, np.frombuffer(os.urandom(len(unique) * KEY_BYTES), _KEY))


def pack_keys(keys: Keys) -> bytes:
    """The table as bytes: a head, all names in order, all keys."""
    count = len(keys).to_bytes(8, "little")
    return b"".join((_MAGIC, count, keys.names.tobytes(), keys.keys.tobytes()))


def unpack_keys(data: bytes | memoryview) -> Keys:
    """The reverse; Corrupt for whatever `pack_keys` does not make."""
    data = bytes(data)
    count = int.from_bytes(data[len(_MAGIC) : _HEAD], "little")
    if data[: len(_MAGIC)] != _MAGIC or len(data) != _HEAD + count * (NAME_BYTES + KEY_BYTES):
        raise Corrupt("these bytes are no table of keys", "restore it from a backup, or use a newer release")
    names = np.frombuffer(data, _NAME, count, _HEAD)
    return Keys(names, np.frombuffer(data, _KEY, count, _HEAD + count * NAME_BYTES))


def bound_to(tenant: str, zone: str, rows: str, segment: str) -> bytes:
    """What every block of a segment is bound to; lengths first, so that no two lists give the same."""
    texts = [text.encode() for text in (tenant, zone, rows, segment)]
    return bytes((SUITE,)) + b"".join(len(text).to_bytes(4, "big") + text for text in texts)


def seal_runs(runs: Sequence[bytes | memoryview], names: Sequence[bytes], keys: Keys, aad: bytes) -> list[bytes]:
    """Each run of a segment under the key of whom it is about; every one must have a key."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if len(runs) != len(names):
        raise Invalid(f"{len(runs)} runs of {len(names)} people", "name the person of each run")
    nonces, suite = os.urandom(NONCE_BYTES * len(runs)), bytes((SUITE,))
    sealed: list[bytes] = []
    for number, (run, name, key) in enumerate(zip(runs, names, keys.take(names), strict=True)):
        if key is None:
            raise Invalid("a run is about a person who has no key", "make the key first, unless they were erased")
        nonce = nonces[number * NONCE_BYTES : (number + 1) * NONCE_BYTES]
        bound = aad + name + number.to_bytes(8, "big")
        sealed.append(suite + nonce + AESGCM(key).encrypt(nonce, run, bound))
    return sealed


def open_runs(
    blocks: Sequence[bytes | memoryview],
    names: Sequence[bytes],
    keys: Keys,
    aad: bytes,
    places: Sequence[int] | None = None,
) -> list[bytes | None]:
    """What `seal_runs` was given; None for a person whose key is gone, Corrupt for what was altered or moved.

    `places`: which blocks of the segment these are, when they are not all of them in order.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    places = range(len(blocks)) if places is None else places
    opened: list[bytes | None] = []
    try:
        for block, name, key, place in zip(blocks, names, keys.take(names), places, strict=True):
            if len(block) < LEAST_BYTES or block[0] != SUITE:
                raise Corrupt("a sealed block has a form that is not known", "it was altered, or is of a newer release")
            if key is None:
                opened.append(None)
                continue
            bound = aad + name + place.to_bytes(8, "big")
            opened.append(AESGCM(key).decrypt(block[1 : 1 + NONCE_BYTES], block[1 + NONCE_BYTES :], bound))
    except InvalidTag:
        raise Corrupt("a sealed block does not open", "it was altered, or belongs to another segment") from None
    except ValueError as error:
        raise Invalid("as many blocks as names and places", "give one of each for every block") from error
    return opened


def _as_names(names: Sequence[bytes]) -> Array:
    if any(len(name) != NAME_BYTES for name in names):
        raise Invalid("a pseudonym has another length", f"pseudonyms have {NAME_BYTES} bytes")
    return np.frombuffer(b"".join(names), _NAME)
