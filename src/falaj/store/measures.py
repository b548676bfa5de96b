"""Measurements on a shelf of backups: curves of metrics, telemetry, what gateways counted, as the blocks they lie in.

    frames    length (4 bytes), and so many bytes of msgpack: a list of blocks

Blocks are sealed under the keys of their tenant and zone, and have no label: so into another zone go those of that zone
alone. A block is known by its id: what is brought twice is there once.
"""

import struct
from collections.abc import Iterable, Iterator

import msgspec

from falaj.core.errors import Corrupt
from falaj.core.ports import Block, Series
from falaj.store.backup import Source

_HEAD = struct.Struct(">I")
_FRAME = 1 << 20
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Block]).decode


class Measured:
    """Chunks of what a store of series holds, and how many blocks went by."""

    def __init__(self, series: Series, zone: str = "") -> None:
        """All of it, or the blocks of one zone alone."""
        self._series, self._zone = series, zone
        self.blocks = 0

    def __iter__(self) -> Iterator[bytes]:
        frame, size = list[Block](), 0
        for block in self._series.dump():
            if self._zone and block.zone != self._zone:
                continue
            frame.append(block)
            size += len(block.data) + 256
            if size >= _FRAME:
                yield self._framed(frame)
                frame, size = [], 0
        if frame:
            yield self._framed(frame)

    def _framed(self, frame: list[Block]) -> bytes:
        self.blocks += len(frame)
        data = _pack(frame)
        return _HEAD.pack(len(data)) + data


def bring(chunks: Iterable[bytes], series: Series) -> int:
    """Blocks into a store, each durable; gives how many there were. Whoever gives the chunks checks them."""
    count = 0
    for frame in read(chunks):
        series.append(frame)
        count += len(frame)
    return count


def read(chunks: Iterable[bytes]) -> Iterator[list[Block]]:
    """Every frame; Corrupt where there is none."""
    source = Source(chunks, _damaged)
    while source.more():
        (length,) = _HEAD.unpack(source.take(_HEAD.size))
        yield _decoded(source.take(length))


def _decoded(data: bytes) -> list[Block]:
    try:
        return _unpack(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged("a part of them is none") from error


def _damaged(what: str) -> Corrupt:
    return Corrupt(f"the measurements of the backup cannot be read: {what}", "use another backup")
