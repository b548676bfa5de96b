"""Encrypts the rows of an online store: whoever reads the file, the dump or the server's memory sees no value.

    key    keyed BLAKE2b of the entity key (16 bytes)
    row    rank (24 bytes) | key version (4) | nonce (12) | AES-256-GCM of the sealed part, and tag (16)
           sealed part: the row, its rank included | the entity key | the length of the entity key (4)
    mark   key version (4) | nonce (12) | AES-256-GCM of the mark and tag

The store orders rows by the plain rank. Readers use the rank inside the ciphertext, which is authenticated. The hash of
the entity key is associated data and each space has keys of its own, so a row moved to another key, space or tenant
does not open. Stores do not scrub pages that they free: with hashed keys no identifier is left in them. `scan` takes
entity keys out of the rows. A row that is a rank and nothing else has no value to hide; it is stored as it is, and
`scan` leaves it out.
"""

import contextlib
import hashlib
import hmac
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from falaj.asof.space_keys import NONCE_BYTES, FindKeys, SpaceKeys
from falaj.core.dependency_health import probe_backend
from falaj.core.errors import CorruptData, Invalid, Unavailable
from falaj.core.online_rows import RANK_BYTES, pack_entry, unpack_entry
from falaj.core.ports import OnlineStore

KEY_REFRESH_INTERVAL_S = 30.0
"""Seconds after which the keys of a space are looked up again: a rotation or a retirement is known by then."""
_MAX_CACHED_SPACES = 4096
_VERSION_BYTES = 4
_NONCE_OFFSET = RANK_BYTES + _VERSION_BYTES
_BODY_OFFSET = _NONCE_OFFSET + NONCE_BYTES
_MARK_OFFSET = _VERSION_BYTES + NONCE_BYTES
_TAG_BYTES = 16
_LENGTH_BYTES = 4
_HASH_BYTES = 16
_nonce_of: Any = itemgetter(slice(_NONCE_OFFSET, _BODY_OFFSET))
_body_of: Any = itemgetter(slice(_BODY_OFFSET, None))
_T = TypeVar("_T")


class EncryptedOnlineStore:
    """An online store whose rows and marks are encrypted with the keys of their space."""

    def __init__(self, store: OnlineStore, find_keys: FindKeys, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._find_keys, self._clock = store, find_keys, clock
        self._ciphers: dict[str, _SpaceCipher] = {}

    def put(self, space: str, rows: Sequence[tuple[bytes, bytes]], now_us: int) -> int:
        """Encrypt rows and store them, newest wins."""
        return self._store.put(space, self._get_space_cipher(space).seal_rows(rows), now_us)

    def get(self, requests: Sequence[tuple[str, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """The cells of keys of several spaces, decrypted."""
        ciphers, hashed = [], []
        for space, keys in requests:
            cipher = self._get_space_cipher(space)
            ciphers.append(cipher)
            hashed.append((space, cipher.hash_keys(keys)))
        opened = []
        for cipher, (space, keys), (_, hashes), entries in zip(
            ciphers, requests, hashed, self._store.get(hashed), strict=True
        ):
            try:
                opened.append(cipher.open_cells(keys, hashes, entries))
            except _UnknownKeyVersion:
                work = partial(_SpaceCipher.open_cells, keys=keys, hashes=hashes, entries=entries)
                opened.append(self._open_anew(space, work))
        return opened

    def scan(self, space: str, after: bytes | None = None, limit: int = 10_000) -> list[tuple[bytes, bytes]]:
        """(entity key, decrypted cell) behind an entity key. Rows of a retired version and bare ranks are left out."""
        cursor = None if after is None else self._get_space_cipher(space).hash_keys([after])[0]
        while page := self._store.scan(space, cursor, limit):
            try:
                rows = self._get_space_cipher(space).open_page(page)
            except _UnknownKeyVersion:
                rows = self._open_anew(space, partial(_SpaceCipher.open_page, page=page))
            if rows:
                return rows
            cursor = page[-1][0]
        return []

    def delete(self, space: str, keys: Sequence[bytes]) -> int:
        """Remove keys; returns how many were there."""
        return self._store.delete(space, self._get_space_cipher(space).hash_keys(keys))

    def probe(self) -> None:
        """Raise the reason the store cannot be used, where it can say so."""
        probe_backend(self._store)

    def drop(self, space: str) -> None:
        """Remove a space."""
        self._store.drop(space)

    def note(self, space: str, value: bytes | None = None) -> bytes | None:
        """Read, or write, the mark of a space."""
        if value is not None:
            self._store.note(space, self._get_space_cipher(space).seal_mark(value))
            return value
        stored = self._store.note(space)
        if stored is None:
            return None
        if not self._get_space_cipher(space).knows(stored[:_VERSION_BYTES]):
            self._ciphers.pop(space, None)  # made by another process since the keys were looked up
        return self._get_space_cipher(space).open_mark(stored)

    def is_unreadable(self, space: str) -> bool:
        """Whether the space was filled with rows that do not open here: their key was retired, or never was ours."""
        return self._store.note(space) is not None and self.note(space) is None

    def admit_reader(self, password_digest: str) -> str:
        """The address at which a replica reads the store beneath; it needs the keys of its spaces besides."""
        return self._store.admit_reader(password_digest)

    def dismiss_reader(self, password_digest: str) -> None:
        """Take back what `admit_reader` gave to this password."""
        self._store.dismiss_reader(password_digest)

    def close(self) -> None:
        """Close the store beneath."""
        self._store.close()

    def _open_anew(self, space: str, open_rows: "Callable[[_SpaceCipher], _T]") -> _T:
        """Open rows with keys that are looked up again: another process made their version since, or it was retired."""
        self._ciphers.pop(space, None)
        cipher = self._get_space_cipher(space)
        try:
            return open_rows(cipher)
        except _UnknownKeyVersion as error:
            raise error.explain(cipher.least) from None

    def _get_space_cipher(self, space: str) -> "_SpaceCipher":
        cipher = self._ciphers.get(space)
        if cipher is None or cipher.until < self._clock():
            if len(self._ciphers) >= _MAX_CACHED_SPACES:
                self._ciphers.clear()
            cipher = self._ciphers[space] = _SpaceCipher(self._find_keys(space), self._clock() + KEY_REFRESH_INTERVAL_S)
        return cipher

    def __repr__(self) -> str:
        return f"EncryptedOnline({self._store!r})"

    def __reduce__(self) -> str:
        raise TypeError("a key is never pickled")


class _SpaceCipher:
    """The ciphers of one space. Made once and kept: making an AES key schedule costs more than a row."""

    def __init__(self, keys: SpaceKeys, expires_at: float) -> None:
        self.until, self.least = expires_at, keys.least
        self._keys = keys
        self._hash = hashlib.blake2b(digest_size=_HASH_BYTES, key=keys.hash_key) if keys.hash_key else None
        self._ciphers = {version: AESGCM(key) for version, key in keys.by_version.items()}
        # Nearly every row was encrypted by the sealing version; a reader tries the newest that is in use.
        default_cipher = self._ciphers.get(keys.sealing) or self._ciphers.get(max(self._ciphers, default=0))
        self._decrypt = default_cipher.decrypt if default_cipher is not None else None

    def hash_keys(self, keys: Sequence[bytes]) -> list[bytes]:
        """What the store has in place of entity keys."""
        if self._hash is None:
            raise Unavailable("online rows: the keys of their space are not known here yet", "try again")
        # A copy of the keyed state costs half of what keying it anew does.
        copy, hashes = self._hash.copy, []
        for key in keys:
            state = copy()
            state.update(key)
            hashes.append(state.digest())
        return hashes

    def seal_rows(self, rows: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Rows as they are stored."""
        rows = list(rows)
        encrypt, version = self._get_sealing_cipher()
        nonces = os.urandom(NONCE_BYTES * len(rows))
        hashes = self.hash_keys([key for key, _ in rows])
        sealed = []
        for start, (key, row), digest in zip(range(0, len(nonces), NONCE_BYTES), rows, hashes, strict=True):
            if len(row) <= RANK_BYTES:
                sealed.append((digest, row))
                continue
            nonce, plain = nonces[start : start + NONCE_BYTES], row + key + len(key).to_bytes(_LENGTH_BYTES)
            sealed.append((digest, b"".join((row[:RANK_BYTES], version, nonce, encrypt(nonce, plain, digest)))))
        return sealed

    def open_cells(
        self, keys: Sequence[bytes], hashes: Sequence[bytes], entries: Sequence[bytes | None]
    ) -> list[bytes | None]:
        """Cells as they were before `seal_rows`."""
        decrypt = self._decrypt
        if decrypt is not None and None not in entries:
            # Another version, several rows, a bare rank or bytes of others end this; then it goes row by row.
            # `map` over itemgetters takes a tenth less than a comprehension, and this is most of what a read costs.
            with contextlib.suppress(InvalidTag, ValueError):
                opened = map(decrypt, map(_nonce_of, entries), map(_body_of, entries), hashes)
                return [plain[: -_LENGTH_BYTES - len(key)] for plain, key in zip(opened, keys, strict=True)]
        return [
            None if entry is None else pack_entry([self._decrypt_row(digest, row)[1] for row in unpack_entry(entry)])
            for digest, entry in zip(hashes, entries, strict=True)
        ]

    def open_page(self, page: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """(entity key, cell) of what a scan gave, without bare ranks and without rows of a retired version."""
        opened = []
        for digest, cell in page:
            live = [row for row in unpack_entry(cell) if len(row) > RANK_BYTES and not self._is_retired(row)]
            rows = [self._decrypt_row(digest, row) for row in live]
            if rows:
                opened.append((rows[0][0], pack_entry([row for _, row in rows])))
        return opened

    def seal_mark(self, mark: bytes) -> bytes:
        """A mark as it is stored."""
        nonce, version = os.urandom(NONCE_BYTES), self._get_sealing_cipher()[1]
        return version + nonce + self._make_mark_cipher(self._keys.sealing).encrypt(nonce, mark, None)

    def knows(self, version: bytes) -> bool:
        """Whether there is a key of this version."""
        return _parse_version(version) in self._ciphers

    def open_mark(self, stored: bytes) -> bytes | None:
        """The mark; None where it does not open, as if the space had never been filled."""
        if not self.knows(stored[:_VERSION_BYTES]):
            return None
        nonce, body = stored[_VERSION_BYTES:_MARK_OFFSET], stored[_MARK_OFFSET:]
        try:
            return self._make_mark_cipher(_parse_version(stored[:_VERSION_BYTES])).decrypt(nonce, body, None)
        except (InvalidTag, ValueError):
            return None

    def _decrypt_row(self, digest: bytes, row: bytes) -> tuple[bytes, bytes]:
        """The entity key (empty where the row is a bare rank) and the row."""
        if len(row) == RANK_BYTES:
            return b"", row
        if len(row) < _BODY_OFFSET + RANK_BYTES + _LENGTH_BYTES + _TAG_BYTES:
            raise _unreadable_rows_error()
        version = _parse_version(row[RANK_BYTES:_NONCE_OFFSET])
        cipher = self._ciphers.get(version)
        if cipher is None:
            raise _UnknownKeyVersion(version)
        try:
            plain = cipher.decrypt(row[_NONCE_OFFSET:_BODY_OFFSET], row[_BODY_OFFSET:], digest)
        except InvalidTag:
            raise _unreadable_rows_error() from None
        row_end = len(plain) - _LENGTH_BYTES - int.from_bytes(plain[-_LENGTH_BYTES:])
        return plain[row_end:-_LENGTH_BYTES], plain[:row_end]

    def _is_retired(self, row: bytes) -> bool:
        return _parse_version(row[RANK_BYTES:_NONCE_OFFSET]) < self.least

    def _get_sealing_cipher(self) -> tuple[Callable[[bytes, bytes, bytes | None], bytes], bytes]:
        cipher = self._ciphers.get(self._keys.sealing)
        if cipher is None:
            raise Invalid("this process has keys for reading the online store only", "write through the platform")
        return cipher.encrypt, self._keys.sealing.to_bytes(_VERSION_BYTES)

    def _make_mark_cipher(self, version: int) -> AESGCM:
        return AESGCM(hmac.digest(self._keys.by_version[version], b"falaj online mark", "sha256"))


class _UnknownKeyVersion(Exception):
    """A row names a key version that is not among those of its space."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version

    def explain(self, oldest_version: int) -> CorruptData | Unavailable:
        """The error for the reader."""
        if self.version < oldest_version:
            return CorruptData(
                f"online rows: their key version {self.version} was retired",
                "fill them anew: falaj features materialize",
            )
        return Unavailable(f"online rows: their key version {self.version} is not known here yet", "try again")


def _parse_version(stored: bytes) -> int:
    return int.from_bytes(stored)


def _unreadable_rows_error() -> CorruptData:
    return CorruptData(
        "online rows: expected rows encrypted for this tenant, space and key, got other bytes",
        "the store was altered, or holds rows of another tenant; fill it anew: falaj features materialize --full",
    )
