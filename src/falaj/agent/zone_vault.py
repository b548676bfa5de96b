"""The vault: the zone's bytes, sealed under keys that are the zone's alone.

    root key (the zone's own Secrets provider) -> zone key -> a tenant's key -> one data key for each piece

A piece lies in the zone's store as: length of what follows (4 bytes), its wrapped data key and head as JSON, and the
sealed form of store/sealed_format.py, bound to tenant, zone and digest. Its name is random; the platform knows it, and
no key.
"""

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from falaj.agent.agent_identity import write_private_file
from falaj.core.errors import CorruptData, Invalid, NotFound
from falaj.core.ports import ObjectStore, RootKeyProvider
from falaj.store.sealed_format import CHUNK_BYTES, ObjectCipher, ObjectIdentity, create_sealed_head

_LENGTH_BYTES, _MAX_HEADER_BYTES = 4, 4096


class ZoneVault:
    """Seals and opens; what it holds makes no sense anywhere else."""

    def __init__(self, zone: str, object_store: ObjectStore, root_key_provider: RootKeyProvider, home: Path) -> None:
        self._zone = zone
        self.store = object_store
        self._zone_key = _load_zone_key(zone, root_key_provider, home / "zone.key")

    def put(self, tenant: str, data: bytes) -> tuple[str, str]:
        """Seal and write one piece; gives its digest and the name it lies under, durable."""
        digest, storage_key = blake3(data).hexdigest(), secrets.token_hex(32)
        data_key, sealed_head = os.urandom(32), create_sealed_head()
        nonce = os.urandom(12)
        wrapped_key = nonce + AESGCM(self._derive_tenant_key(tenant)).encrypt(
            nonce, data_key, f"{storage_key}/{digest}".encode()
        )
        header = json.dumps({"dek": wrapped_key.hex(), "head": sealed_head.hex()}).encode()
        view = memoryview(data)
        chunks = [view[offset : offset + CHUNK_BYTES] for offset in range(0, len(data), CHUNK_BYTES)]
        object_cipher = ObjectCipher(data_key, ObjectIdentity(tenant, self._zone, digest), len(data), sealed_head)

        def iterate_sealed() -> Iterator[bytes | memoryview]:
            yield len(header).to_bytes(_LENGTH_BYTES, "big") + header
            yield from object_cipher.seal(chunks)

        self.store.put(storage_key, iterate_sealed())
        return f"b3:{digest}", storage_key

    def get(self, tenant: str, digest: str, storage_key: str, byte_range: tuple[int, int, int]) -> Iterator[bytes]:
        """The plain bytes from start to stop of a piece of this size, every chunk authenticated."""
        start, stop, size = byte_range
        if not 0 <= start <= stop <= size:
            raise Invalid(f"a range from {start} to {stop} of {size}", "ranges lie within the piece")
        header, header_bytes = self._read_header(storage_key)
        object_cipher = self._open_cipher(tenant, digest, storage_key, size, header)
        first_chunk, last_chunk = start // CHUNK_BYTES, max(-(-stop // CHUNK_BYTES), start // CHUNK_BYTES + 1)
        sealed_start, sealed_stop = object_cipher.span(first_chunk, last_chunk)
        ciphertext = b"".join(self.store.open(storage_key, header_bytes + sealed_start, header_bytes + sealed_stop))
        offset = start - first_chunk * CHUNK_BYTES
        remaining_bytes = stop - start
        for chunk in object_cipher.open_run(first_chunk, ciphertext):
            piece = chunk[offset : offset + remaining_bytes]
            offset, remaining_bytes = 0, remaining_bytes - len(piece)
            if piece:
                yield piece

    def _read_header(self, storage_key: str) -> tuple[dict[str, str], int]:
        data = b"".join(self.store.open(storage_key, 0, _LENGTH_BYTES + _MAX_HEADER_BYTES))
        length = int.from_bytes(data[:_LENGTH_BYTES], "big")
        if not 0 < length <= _MAX_HEADER_BYTES:
            raise CorruptData(f"the piece {storage_key[:16]}… is not what was written", "restore it from a copy")
        return json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length]), _LENGTH_BYTES + length

    def _open_cipher(
        self, tenant: str, digest: str, storage_key: str, size: int, header: dict[str, str]
    ) -> ObjectCipher:
        hex_digest, wrapped_key = digest.removeprefix("b3:"), bytes.fromhex(header["dek"])
        try:
            data_key = AESGCM(self._derive_tenant_key(tenant)).decrypt(
                wrapped_key[:12], wrapped_key[12:], f"{storage_key}/{hex_digest}".encode()
            )
        except InvalidTag:
            raise CorruptData(
                f"the key of the piece {storage_key[:16]}… does not open", "it belongs elsewhere"
            ) from None
        return ObjectCipher(
            data_key, ObjectIdentity(tenant, self._zone, hex_digest), size, bytes.fromhex(header["head"])
        )

    def _derive_tenant_key(self, tenant: str) -> bytes:
        return hmac.new(self._zone_key, b"tenant\0" + tenant.encode(), hashlib.sha256).digest()


def _load_zone_key(zone: str, root_key_provider: RootKeyProvider, path: Path) -> bytes:
    """The zone's key: made once, kept wrapped under the root key of the zone's own provider."""
    context = f"falaj agent {zone}".encode()
    if not path.exists():
        write_private_file(path, root_key_provider.wrap(zone, os.urandom(32), context))
    try:
        return root_key_provider.unwrap(zone, path.read_bytes(), context)
    except NotFound as error:
        raise CorruptData("the root key of this zone is gone", "bring it back from its backup") from error
