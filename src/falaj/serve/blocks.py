"""Rows of an endpoint in sealed blocks on the Series port: what counts, logs and labels have in common."""

import hashlib
import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from falaj.core.errors import Corrupt
from falaj.core.event import new_id
from falaj.core.ports import Block, Series
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger

log = logging.getLogger(__name__)
T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_SMALL = 512
MOST_PLAIN = 256 << 20


class Whose(NamedTuple):
    """The endpoint that rows belong to, and where they lie."""

    tenant: str
    ref: Ref
    zone: str


class Blocks(Generic[T]):
    """Blocks of rows of one type under one prefix. Their names say nothing of the endpoint."""

    def __init__(self, prefix: str, kind: type[T], series: Callable[[], Series], ledger: Ledger) -> None:
        self.prefix, self._series, self._ledger = prefix, series, ledger
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode  # type: ignore[valid-type]

    def name(self, tenant: str, ref: Ref) -> str:
        """The series of an endpoint."""
        return self.prefix + hashlib.sha256(f"{tenant}\0{ref.bare}".encode()).hexdigest()[:24]

    def sealed(self, whose: Whose, rows: Sequence[T], span: tuple[float, float], id_: str = "") -> Block:
        """A block of rows between two moments. The same id twice is kept once."""
        low, high = place(span[0]), place(span[1])
        where = (whose.tenant, self.name(whose.tenant, whose.ref), "", id_ or new_id(), whose.zone)
        bare = Block(*where, low, high, len(rows), span[1], b"", told=False)
        packed = _encode(rows)
        plain = b"\0" + packed if len(packed) < _SMALL else b"\1" + zlib.compress(packed, 1)
        cipher = self._ledger.cipher
        data = plain if cipher is None else cipher.seal(whose.tenant, whose.zone, plain, _aad(bare))
        return bare._replace(data=data)

    def append(self, blocks: Sequence[Block]) -> None:
        """Durable on return."""
        if blocks:
            self._series().append(blocks)

    def blocks(self, tenant: str, ref: Ref, since: float = 0.0, limit: int = 1_000_000) -> list[Block]:
        """Those that end at a moment or later, in the order of time."""
        return self._series().read(tenant, (self.name(tenant, ref),), "", place(since), limit)

    def rows(self, block: Block) -> list[T]:
        """What a block holds; nothing, and a line in the log, for a damaged one: it must not hide all the others."""
        cipher = self._ledger.cipher
        try:
            plain = block.data if cipher is None else cipher.unseal(block.tenant, block.zone, block.data, _aad(block))
            return self._decode(_inflated(plain))
        except (Corrupt, msgspec.MsgspecError, zlib.error) as error:
            log.warning("a block of an endpoint is damaged", extra={"series": block.series, "reason": str(error)})
            return []

    def swap(self, tenant: str, ref: Ref, gone: Sequence[str], blocks: Sequence[Block]) -> bool:
        """Other blocks instead of these; False, and nothing happened, when one of them is gone."""
        return self._series().swap(tenant, self.name(tenant, ref), gone, blocks)

    def expire(self, tenant: str, ref: Ref, before: float) -> int:
        """Remove blocks that ended before a moment."""
        return self._series().expire(tenant, self.name(tenant, ref), before)

    def delete(self, tenant: str, ref: Ref) -> None:
        """Remove all of an endpoint."""
        self._series().delete(tenant, self.name(tenant, ref))


def place(at: float) -> str:
    """A moment as a text that sorts as moments do, to the millisecond."""
    return f"{max(0, int(at * 1000)):015d}"


def _inflated(plain: bytes) -> bytes:
    if plain[:1] == b"\0":
        return plain[1:]
    inflate = zlib.decompressobj()
    found = inflate.decompress(plain[1:], MOST_PLAIN)
    if not inflate.eof:
        raise Corrupt("a block is larger than any that is written", "it may be damaged")
    return found


def _aad(block: Block) -> bytes:
    """What the ciphertext is bound to: all that stands beside it in the clear."""
    parts: tuple[Any, ...] = ("serve", *block[:7], str(block.length), repr(block.at))
    return "\0".join(parts).encode()
