"""The sealed form of bytes at rest: AES-256-GCM in chunks, bound to the tenant, zone and object they belong to.

    head    suite id (1 byte), nonce prefix (7 random bytes)
    chunk   up to 1 MiB of plaintext, encrypted, and a 16-byte tag; the last chunk may be shorter, never absent

The nonce of a chunk is prefix || counter || last flag (STREAM), and suite, tenant, zone, object and chunk index are
associated data. So a chunk that is cut off, moved, repeated, or carried to another object, tenant or zone does not
open. Any chunk opens alone: a range is read by opening the chunks it touches and no other.
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from falaj.core.data import dataclass
from falaj.core.errors import Corrupt, Invalid

SUITE = 1
"""AES-256-GCM, 1 MiB chunks, STREAM nonces. Another suite gets another number and both stay readable."""
CHUNK = 1 << 20
TAG = 16
HEAD = 8
_SCRUB = "restore it from a copy or a backup, and run: falaj store scrub"


@dataclass(frozen=True, slots=True)
class Place:
    """What sealed bytes belong to; they open nowhere else."""

    tenant: str
    zone: str
    name: str

    def bind(self, suite: int) -> bytes:
        """The associated data but for the chunk index; lengths first, so that no two places share it."""
        parts = (self.tenant.encode(), self.zone.encode(), self.name.encode())
        return bytes((suite,)) + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@dataclass(frozen=True, slots=True)
class Seal:
    """The way in and out of one sealed object of `size` plain bytes. The key must be used for no other object."""

    key: bytes = field(repr=False)
    place: Place
    size: int
    head: bytes
    _aead: AESGCM = field(init=False, repr=False, compare=False)
    _bound: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.head) != HEAD or self.head[0] != SUITE:
            raise Corrupt(
                f"the object {self.place.name[:16]} is sealed in a form this release does not know",
                "it may be of a newer release; else " + _SCRUB,
            )
        object.__setattr__(self, "_aead", AESGCM(self.key))
        object.__setattr__(self, "_bound", self.place.bind(self.head[0]))

    @property
    def chunks(self) -> int:
        """How many chunks there are; an empty object has one, so that emptiness is authenticated too."""
        return max(1, -(-self.size // CHUNK))

    @property
    def sealed_size(self) -> int:
        """How many bytes the sealed form has."""
        return HEAD + self.size + TAG * self.chunks

    def seal(self, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """The sealed form of `pieces`, each of which but the last is exactly one chunk.

        What it yields is valid until the next is asked for: fresh memory for every chunk costs more than the cipher.
        """
        yield self.head
        buffer = memoryview(bytearray(min(self.size, CHUNK) + TAG))
        done = index = 0
        for piece in pieces:
            done += len(piece)
            if index >= self.chunks or len(piece) != self._length(index):
                break
            sealed = buffer[: len(piece) + TAG]
            self._aead.encrypt_into(self._nonce(index), piece, self._aad(index), sealed)
            yield sealed
            index += 1
        if not index and not self.size and not done:
            yield self._aead.encrypt(self._nonce(0), b"", self._aad(0))
        elif done != self.size or index != self.chunks:
            raise Invalid("the bytes to seal are not as many as were announced", "this is a bug of the caller")

    def check_head(self, head: bytes) -> None:
        """Corrupt unless this is the head that the object was written with."""
        if head != self.head:
            raise Corrupt(f"the head of object {self.place.name[:16]} is not the one written", _SCRUB)

    def open_chunk(self, index: int, sealed: bytes | memoryview) -> bytes:
        """The plain bytes of chunk `index`, or Corrupt."""
        try:
            if not 0 <= index < self.chunks or len(sealed) != self._length(index) + TAG:
                raise InvalidTag
            return self._aead.decrypt(self._nonce(index), sealed, self._aad(index))
        except InvalidTag:
            raise Corrupt(f"chunk {index} of object {self.place.name[:16]} is not what was written", _SCRUB) from None

    def open_run(self, first: int, sealed: bytes | memoryview) -> list[bytes]:
        """The plain chunks of a run of whole sealed chunks that starts at chunk `first`."""
        view, step = memoryview(sealed), CHUNK + TAG
        return [self.open_chunk(first + i, view[at : at + step]) for i, at in enumerate(range(0, len(view), step))]

    def open_all(self, sealed: bytes) -> list[bytes]:
        """Every plain chunk of a whole sealed object, or Corrupt."""
        if len(sealed) != self.sealed_size:
            raise Corrupt(f"object {self.place.name[:16]} has {len(sealed)} bytes, not {self.sealed_size}", _SCRUB)
        self.check_head(sealed[:HEAD])
        return self.open_run(0, memoryview(sealed)[HEAD:])

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Where chunks `first` to `last` (not included) lie in the sealed form."""
        return HEAD + first * (CHUNK + TAG), min(HEAD + last * (CHUNK + TAG), self.sealed_size)

    def _length(self, index: int) -> int:
        return CHUNK if index < self.chunks - 1 else self.size - (self.chunks - 1) * CHUNK

    def _nonce(self, index: int) -> bytes:
        return self.head[1:] + index.to_bytes(4, "big") + bytes((index == self.chunks - 1,))

    def _aad(self, index: int) -> bytes:
        return self._bound + index.to_bytes(8, "big")


def new_head() -> bytes:
    """The head of a new object: the suite and a random nonce prefix."""
    return bytes((SUITE,)) + secrets.token_bytes(HEAD - 1)


def rechunk(chunks: Iterable[bytes], size: int = CHUNK) -> Iterator[bytes]:
    """The same bytes in pieces of exactly `size` but the last; pieces that fit already are passed on uncopied."""
    held: list[bytes | memoryview] = []
    have = 0
    for chunk in chunks:
        if not have and len(chunk) == size and isinstance(chunk, bytes):
            yield chunk
            continue
        view = memoryview(chunk)
        while have + len(view) >= size:
            cut = size - have
            yield b"".join((*held, view[:cut]))
            held, have, view = [], 0, view[cut:]
        if len(view):
            # A caller may reuse its buffer, so what waits for more is copied.
            held.append(bytes(view))
            have += len(view)
    if have:
        yield b"".join(held)
