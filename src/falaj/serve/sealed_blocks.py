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

from falaj.core.errors import CorruptData
from falaj.core.event import generate_id
from falaj.core.ports import SeriesBlock, SeriesStore
from falaj.core.ref import Ref
from falaj.store.ledger import Ledger

log = logging.getLogger(__name__)
RowT = TypeVar("RowT")
_encode = msgspec.msgpack.Encoder().encode
_MIN_COMPRESS_BYTES = 512
_MARKS_TRAILER = b"\0falaj marks 1\n"
MAX_PLAIN_BYTES = 256 << 20


class RowOwner(NamedTuple):
    """The endpoint that rows belong to, and where they lie."""

    tenant: str
    ref: Ref
    zone: str


class SealedBlocks(Generic[RowT]):
    """Blocks of rows of one type under one prefix. Their names say nothing of the endpoint."""

    def __init__(
        self, prefix: str, row_type: type[RowT], get_series: Callable[[], SeriesStore], ledger: Ledger
    ) -> None:
        self.prefix, self._get_series, self._ledger = prefix, get_series, ledger
        self._decode = msgspec.msgpack.Decoder(list[row_type]).decode  # type: ignore[valid-type]

    def name(self, tenant: str, ref: Ref) -> str:
        """The series of an endpoint."""
        return self.prefix + hashlib.sha256(f"{tenant}\0{ref.bare}".encode()).hexdigest()[:24]

    def sealed(
        self,
        owner: RowOwner,
        rows: Sequence[RowT],
        time_span: tuple[float, float],
        id_: str = "",
        names: Iterable[str] = (),
    ) -> SeriesBlock:
        """A block of rows between two moments, with marks of `names`. The same id twice is kept once."""
        low, high = format_position(time_span[0]), format_position(time_span[1])
        block_address = (owner.tenant, self.name(owner.tenant, owner.ref), "", id_ or generate_id(), owner.zone)
        unsealed_block = SeriesBlock(*block_address, low, high, len(rows), time_span[1], b"", told=False)
        packed = _encode(rows)
        encoded = b"\0" + packed if len(packed) < _MIN_COMPRESS_BYTES else b"\1" + zlib.compress(packed, 1)
        cipher = self._ledger.cipher
        marks = _compute_marks(names)
        parts = [(encoded, _associated_data(unsealed_block))] + (
            [(marks, _associated_data(unsealed_block, "marks"))] if marks else []
        )
        data = [part if cipher is None else cipher.seal(owner.tenant, owner.zone, part, aad) for part, aad in parts]
        marks_trailer = data[1] + len(data[1]).to_bytes(4, "little") + _MARKS_TRAILER if marks else b""
        return unsealed_block._replace(data=data[0] + marks_trailer)

    def append(self, blocks: Sequence[SeriesBlock]) -> None:
        """Durable on return."""
        if blocks:
            self._get_series().append(blocks)

    def blocks(self, tenant: str, ref: Ref, ended_after: float = 0.0, limit: int = 1_000_000) -> list[SeriesBlock]:
        """Those that end at a moment or later, in the order of time."""
        return self._get_series().read(tenant, (self.name(tenant, ref),), "", format_position(ended_after), limit)

    def rows(self, block: SeriesBlock) -> list[RowT]:
        """What a block holds; nothing, and a line in the log, for a damaged one: it must not hide all the others."""
        cipher, (data, _) = self._ledger.cipher, _split_marks(block.data)
        try:
            encoded = data if cipher is None else cipher.unseal(block.tenant, block.zone, data, _associated_data(block))
            return self._decode(_decompress_rows(encoded))
        except (CorruptData, msgspec.MsgspecError, zlib.error) as error:
            log.warning("a block of an endpoint is damaged", extra={"series": block.series, "reason": str(error)})
            return []

    def may_name(self, block: SeriesBlock, names: Iterable[str]) -> bool:
        """False when no row of a block names any of these; True where nobody can tell without opening it."""
        cipher, (_, marks) = self._ledger.cipher, _split_marks(block.data)
        if not marks:
            return True
        try:
            sealed_marks = (
                marks
                if cipher is None
                else cipher.unseal(block.tenant, block.zone, marks, _associated_data(block, "marks"))
            )
        except CorruptData:
            return True
        import numpy as np

        if len(sealed_marks) % 4:
            return True
        block_marks, wanted_marks = np.frombuffer(sealed_marks, "<u4"), np.frombuffer(_compute_marks(names), "<u4")
        return any(bool((block_marks == mark).any()) for mark in wanted_marks)

    def swap(self, tenant: str, ref: Ref, removed_ids: Sequence[str], blocks: Sequence[SeriesBlock]) -> bool:
        """Other blocks instead of these; False, and nothing happened, when one of them is gone."""
        return self._get_series().swap(tenant, self.name(tenant, ref), removed_ids, blocks)

    def expire(self, tenant: str, ref: Ref, ended_before: float) -> int:
        """Remove blocks that ended before a moment."""
        return self._get_series().expire(tenant, self.name(tenant, ref), ended_before)

    def delete(self, tenant: str, ref: Ref) -> None:
        """Remove all of an endpoint."""
        self._get_series().delete(tenant, self.name(tenant, ref))


def format_position(unix_time: float) -> str:
    """A moment as a text that sorts as moments do, to the millisecond."""
    return f"{max(0, int(unix_time * 1000)):015d}"


def _decompress_rows(encoded: bytes) -> bytes:
    if encoded[:1] == b"\0":
        return encoded[1:]
    decompressor = zlib.decompressobj()
    decompressed = decompressor.decompress(encoded[1:], MAX_PLAIN_BYTES)
    if not decompressor.eof:
        raise CorruptData("a block is larger than any that is written", "it may be damaged")
    return decompressed


def _compute_marks(names: Iterable[str]) -> bytes:
    """The mark of each name, sorted and each once."""
    import numpy as np

    hashes = [zlib.crc32(name.encode()) for name in names if name]
    return np.unique(np.array(hashes, "<u4")).tobytes()


def _split_marks(data: bytes) -> tuple[bytes, bytes]:
    """The rows of a block and the marks behind them, both as they lie; whoever wrote it before there were marks, or
    took them away, leaves none."""
    if not data.endswith(_MARKS_TRAILER):
        return data, b""
    end = len(data) - len(_MARKS_TRAILER) - 4
    start = end - int.from_bytes(data[end : end + 4], "little")
    return (data[:start], data[start:end]) if 0 < start < end else (data, b"")


def _associated_data(block: SeriesBlock, part: str = "serve") -> bytes:
    """What the ciphertext is bound to: all that stands beside it in the clear."""
    parts: tuple[Any, ...] = (part, *block[:7], str(block.length), repr(block.at))
    return "\0".join(parts).encode()
