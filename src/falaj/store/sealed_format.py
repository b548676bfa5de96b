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
from falaj.core.errors import CorruptData, Invalid

SUITE = 1
"""AES-256-GCM, 1 MiB chunks, STREAM nonces. Another suite gets another number and both stay readable."""
CHUNK_BYTES = 1 << 20
TAG_BYTES = 16
HEAD_BYTES = 8
_RESTORE_HINT = "restore it from a copy or a backup, and run: falaj store scrub"


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """What sealed bytes belong to; they open nowhere else."""

    tenant: str
    zone: str
    name: str

    def bind(self, suite: int) -> bytes:
        """The associated data but for the chunk index; lengths first, so that no two places share it."""
        parts = (self.tenant.encode(), self.zone.encode(), self.name.encode())
        return bytes((suite,)) + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


@dataclass(frozen=True, slots=True)
class ObjectCipher:
    """The way in and out of one sealed object of `size` plain bytes. The key must be used for no other object."""

    key: bytes = field(repr=False)
    place: ObjectIdentity
    size: int
    head: bytes
    _aead: AESGCM = field(init=False, repr=False, compare=False)
    _associated_data: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.head) != HEAD_BYTES or self.head[0] != SUITE:
            raise CorruptData(
                f"the object {self.place.name[:16]} is sealed in a form this release does not know",
                "it may be of a newer release; else " + _RESTORE_HINT,
            )
        object.__setattr__(self, "_aead", AESGCM(self.key))
        object.__setattr__(self, "_associated_data", self.place.bind(self.head[0]))

    @property
    def chunks(self) -> int:
        """How many chunks there are; an empty object has one, so that emptiness is authenticated too."""
        return max(1, -(-self.size // CHUNK_BYTES))

    @property
    def sealed_size(self) -> int:
        """How many bytes the sealed form has."""
        return HEAD_BYTES + self.size + TAG_BYTES * self.chunks

    def seal(self, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """The sealed form of `pieces`, each of which but the last is exactly one chunk.

        What it yields is valid until the next is asked for: fresh memory for every chunk costs more than the cipher.
        """
        yield self.head
        buffer = memoryview(bytearray(min(self.size, CHUNK_BYTES) + TAG_BYTES))
        plain_bytes = index = 0
        for piece in pieces:
            plain_bytes += len(piece)
            if index >= self.chunks or len(piece) != self._chunk_length(index):
                break
            ciphertext = buffer[: len(piece) + TAG_BYTES]
            self._aead.encrypt_into(self._make_nonce(index), piece, self._make_aad(index), ciphertext)
            yield ciphertext
            index += 1
        if not index and not self.size and not plain_bytes:
            yield self._aead.encrypt(self._make_nonce(0), b"", self._make_aad(0))
        elif plain_bytes != self.size or index != self.chunks:
            raise Invalid("the bytes to seal are not as many as were announced", "this is a bug of the caller")

    def check_head(self, head: bytes) -> None:
        """Corrupt unless this is the head that the object was written with."""
        if head != self.head:
            raise CorruptData(f"the head of object {self.place.name[:16]} is not the one written", _RESTORE_HINT)

    def open_chunk(self, index: int, sealed: bytes | memoryview) -> bytes:
        """The plain bytes of chunk `index`, or Corrupt."""
        try:
            if not 0 <= index < self.chunks or len(sealed) != self._chunk_length(index) + TAG_BYTES:
                raise InvalidTag
            return self._aead.decrypt(self._make_nonce(index), sealed, self._make_aad(index))
        except InvalidTag:
            raise CorruptData(
                f"chunk {index} of object {self.place.name[:16]} is not what was written", _RESTORE_HINT
            ) from None

    def open_run(self, first_chunk: int, sealed: bytes | memoryview) -> list[bytes]:
        """The plain chunks of a run of whole sealed chunks that starts at chunk `first_chunk`."""
        sealed_view, sealed_chunk_bytes = memoryview(sealed), CHUNK_BYTES + TAG_BYTES
        return [
            self.open_chunk(first_chunk + chunk_offset, sealed_view[byte_offset : byte_offset + sealed_chunk_bytes])
            for chunk_offset, byte_offset in enumerate(range(0, len(sealed_view), sealed_chunk_bytes))
        ]

    def open_all(self, sealed: bytes) -> list[bytes]:
        """Every plain chunk of a whole sealed object, or Corrupt."""
        if len(sealed) != self.sealed_size:
            raise CorruptData(
                f"object {self.place.name[:16]} has {len(sealed)} bytes, not {self.sealed_size}", _RESTORE_HINT
            )
        self.check_head(sealed[:HEAD_BYTES])
        return self.open_run(0, memoryview(sealed)[HEAD_BYTES:])

    def span(self, first_chunk: int, last_chunk: int) -> tuple[int, int]:
        """Where chunks `first_chunk` to `last_chunk` (not included) lie in the sealed form."""
        return HEAD_BYTES + first_chunk * (CHUNK_BYTES + TAG_BYTES), min(
            HEAD_BYTES + last_chunk * (CHUNK_BYTES + TAG_BYTES), self.sealed_size
        )

    def _chunk_length(self, index: int) -> int:
        return CHUNK_BYTES if index < self.chunks - 1 else self.size - (self.chunks - 1) * CHUNK_BYTES

    def _make_nonce(self, index: int) -> bytes:
        return self.head[1:] + index.to_bytes(4, "big") + bytes((index == self.chunks - 1,))

    def _make_aad(self, index: int) -> bytes:
        return self._associated_data + index.to_bytes(8, "big")


def create_sealed_head() -> bytes:
    """The head of a new object: the suite and a random nonce prefix."""
    return bytes((SUITE,)) + secrets.token_bytes(HEAD_BYTES - 1)


def split_into_chunks(chunks: Iterable[bytes], size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The same bytes in pieces of exactly `size` but the last; pieces that fit already are passed on uncopied."""
    pending: list[bytes | memoryview] = []
    pending_bytes = 0
    for chunk in chunks:
        if not pending_bytes and len(chunk) == size and isinstance(chunk, bytes):
            yield chunk
            continue
        view = memoryview(chunk)
        while pending_bytes + len(view) >= size:
            missing = size - pending_bytes
            yield b"".join((*pending, view[:missing]))
            pending, pending_bytes, view = [], 0, view[missing:]
        if len(view):
            # A caller may reuse its buffer, so what waits for more is copied.
            pending.append(bytes(view))
            pending_bytes += len(view)
    if pending_bytes:
        yield b"".join(pending)
