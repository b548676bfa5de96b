"""Rows of an endpoint in sealed blocks on the Series port: what counts, logs and labels have in common.

A block may carry marks of whoever its rows name, sealed apart behind them: whether somebody is in it is then known
without opening the rows. Four bytes a name: a mark may deceive and have rows opened for nothing, never the reverse.
"""

import hashlib
import logging
import zlib
from collections.abc import Callable, Iterable, Sequence
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
_MARKED = b"\0falaj marks 1\n"
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

    def sealed(
        self, whose: Whose, rows: Sequence[T], span: tuple[float, float], id_: str = "", names: Iterable[str] = ()
    ) -> Block:
        """A block of rows between two moments, with marks of `names`. The same id twice is kept once."""
        low, high = place(span[0]), place(span[1])
        where = (whose.tenant, self.name(whose.tenant, whose.ref), "", id_ or new_id(), whose.zone)
        bare = Block(*where, low, high, len(rows), span[1], b"", told=False)
        packed = _encode(rows)
        plain = b"\0" + packed if len(packed) < _SMALL else b"\1" + zlib.compress(packed, 1)
        cipher = self._ledger.cipher
        marks = _marks(names)
        parts = [(plain, _aad(bare))] + ([(marks, _aad(bare, "marks"))] if marks else [])
        data = [part if cipher is None else cipher.seal(whose.tenant, whose.zone, part, aad) for part, aad in parts]
        behind = data[1] + len(data[1]).to_bytes(4, "little") + _MARKED if marks else b""
        return bare._replace(data=data[0] + behind)

    def append(self, blocks: Sequence[Block]) -> None:
        """Durable on return."""
        if blocks:
            self._series().append(blocks)

    def blocks(self, tenant: str, ref: Ref, since: float = 0.0, limit: int = 1_000_000) -> list[Block]:
        """Those that end at a moment or later, in the order of time."""
        return self._series().read(tenant, (self.name(tenant, ref),), "", place(since), limit)

    def rows(self, block: Block) -> list[T]:
        """What a block holds; nothing, and a line in the log, for a damaged one: it must not hide all the others."""
        cipher, (data, _) = self._ledger.cipher, _parted(block.data)
        try:
            plain = data if cipher is None else cipher.unseal(block.tenant, block.zone, data, _aad(block))
            return self._decode(_inflated(plain))
        except (Corrupt, msgspec.MsgspecError, zlib.error) as error:
            log.warning("a block of an endpoint is damaged", extra={"series": block.series, "reason": str(error)})
            return []

    def may_name(self, block: Block, names: Iterable[str]) -> bool:
        """False when no row of a block names any of these; True where nobody can tell without opening it."""
        cipher, (_, marks) = self._ledger.cipher, _parted(block.data)
        if not marks:
            return True
        try:
            found = marks if cipher is None else cipher.unseal(block.tenant, block.zone, marks, _aad(block, "marks"))
        except Corrupt:
            return True
        import numpy as np

        if len(found) % 4:
            return True
        known, wanted = np.frombuffer(found, "<u4"), np.frombuffer(_marks(names), "<u4")
        return any(bool((known == mark).any()) for mark in wanted)

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


def _marks(names: Iterable[str]) -> bytes:
    """The mark of each name, sorted and each once."""
    import numpy as np

    found = [zlib.crc32(name.encode()) for name in names if name]
    return np.unique(np.array(found, "<u4")).tobytes()


def _parted(data: bytes) -> tuple[bytes, bytes]:
    """The rows of a block and the marks behind them, both as they lie; whoever wrote it before there were marks, or
    took them away, leaves none."""
    if not data.endswith(_MARKED):
        return data, b""
    end = len(data) - len(_MARKED) - 4
    start = end - int.from_bytes(data[end : end + 4], "little")
    return (data[:start], data[start:end]) if 0 < start < end else (data, b"")


def _aad(block: Block, part: str = "serve") -> bytes:
    """What the ciphertext is bound to: all that stands beside it in the clear."""
    parts: tuple[Any, ...] = (part, *block[:7], str(block.length), repr(block.at))
    return "\0".join(parts).encode()
