"""The vault: the zone's bytes, sealed under keys that are the zone's alone.

    root key (the zone's own Secrets provider) -> zone key -> a tenant's key -> one data key for each piece

A piece lies in the zone's store as: length of what follows (4 bytes), its wrapped data key and head as JSON, and the
sealed form of store/sealed.py, bound to tenant, zone and digest. Its name is random; the platform knows it, and no key.
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

from falaj.agent.identity import write_private
from falaj.core.errors import Corrupt, Invalid, NotFound
from falaj.core.ports import Blobs, Secrets
from falaj.store.sealed import CHUNK, Place, Seal, new_head

_COUNT, _MOST_FRONT = 4, 4096


class Vault:
    """Seals and opens; what it holds makes no sense anywhere else."""

    def __init__(self, zone: str, store: Blobs, keys: Secrets, home: Path) -> None:
        self._zone = zone
        self.store = store
        self._key = _zone_key(zone, keys, home / "zone.key")

    def put(self, tenant: str, data: bytes) -> tuple[str, str]:
        """Seal and write one piece; gives its digest and the name it lies under, durable."""
        digest, name = blake3(data).hexdigest(), secrets.token_hex(32)
        dek, head = os.urandom(32), new_head()
        nonce = os.urandom(12)
        wrapped = nonce + AESGCM(self._tenant_key(tenant)).encrypt(nonce, dek, f"{name}/{digest}".encode())
        front = json.dumps({"dek": wrapped.hex(), "head": head.hex()}).encode()
        view = memoryview(data)
        pieces = [view[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        seal = Seal(dek, Place(tenant, self._zone, digest), len(data), head)

        def sealed() -> Iterator[bytes | memoryview]:
            yield len(front).to_bytes(_COUNT, "big") + front
            yield from seal.seal(pieces)

        self.store.put(name, sealed())
        return f"b3:{digest}", name

    def get(self, tenant: str, digest: str, name: str, span: tuple[int, int, int]) -> Iterator[bytes]:
        """The plain bytes from start to stop of a piece of this size, every chunk authenticated."""
        start, stop, size = span
        if not 0 <= start <= stop <= size:
            raise Invalid(f"a range from {start} to {stop} of {size}", "ranges lie within the piece")
        front, skip = self._front(name)
        seal = self._seal(tenant, digest, name, size, front)
        first, last = start // CHUNK, max(-(-stop // CHUNK), start // CHUNK + 1)
        begin, end = seal.span(first, last)
        sealed = b"".join(self.store.open(name, skip + begin, skip + end))
        at = start - first * CHUNK
        left = stop - start
        for chunk in seal.open_run(first, sealed):
            piece = chunk[at : at + left]
            at, left = 0, left - len(piece)
            if piece:
                yield piece

    def _front(self, name: str) -> tuple[dict[str, str], int]:
        data = b"".join(self.store.open(name, 0, _COUNT + _MOST_FRONT))
        length = int.from_bytes(data[:_COUNT], "big")
        if not 0 < length <= _MOST_FRONT:
            raise Corrupt(f"the piece {name[:16]}… is not what was written", "restore it from a copy")
        return json.loads(data[_COUNT : _COUNT + length]), _COUNT + length

    def _seal(self, tenant: str, digest: str, name: str, size: int, front: dict[str, str]) -> Seal:
        hexa, wrapped = digest.removeprefix("b3:"), bytes.fromhex(front["dek"])
        try:
            dek = AESGCM(self._tenant_key(tenant)).decrypt(wrapped[:12], wrapped[12:], f"{name}/{hexa}".encode())
        except InvalidTag:
            raise Corrupt(f"the key of the piece {name[:16]}… does not open", "it belongs elsewhere") from None
        return Seal(dek, Place(tenant, self._zone, hexa), size, bytes.fromhex(front["head"]))

    def _tenant_key(self, tenant: str) -> bytes:
        return hmac.new(self._key, b"tenant\0" + tenant.encode(), hashlib.sha256).digest()


def _zone_key(zone: str, keys: Secrets, path: Path) -> bytes:
    """The zone's key: made once, kept wrapped under the root key of the zone's own provider."""
    context = f"falaj agent {zone}".encode()
    if not path.exists():
        write_private(path, keys.wrap(zone, os.urandom(32), context))
    try:
        return keys.unwrap(zone, path.read_bytes(), context)
    except NotFound as error:
        raise Corrupt("the root key of this zone is gone", "bring it back from its backup") from error
