"""Measurements on a shelf of backups: curves of metrics, telemetry, what gateways counted, as the blocks they lie in.

    frames    length (4 bytes), and so many bytes of msgpack: a list of blocks

Blocks are sealed under the keys of their tenant and zone, and have no label: so into another zone go those of that zone
alone. A block is known by its id: what is brought twice is there once.
"""

import struct
from collections.abc import Iterable, Iterator

import msgspec

from falaj.core.errors import CorruptData
from falaj.core.ports import SeriesBlock, SeriesStore
from falaj.store.backup import ChunkReader

_FRAME_HEAD = struct.Struct(">I")
_FRAME_BYTES = 1 << 20
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[SeriesBlock]).decode


class SeriesDump:
    """Chunks of what a store of series holds, and how many blocks went by."""

    def __init__(self, series: SeriesStore, zone: str = "") -> None:
        """All of it, or the blocks of one zone alone."""
        self._series, self._zone = series, zone
        self.blocks = 0

    def __iter__(self) -> Iterator[bytes]:
        frame, size = list[SeriesBlock](), 0
        for block in self._series.dump():
            if self._zone and block.zone != self._zone:
                continue
            frame.append(block)
            size += len(block.data) + 256
            if size >= _FRAME_BYTES:
                yield self._encode_frame(frame)
                frame, size = [], 0
        if frame:
            yield self._encode_frame(frame)

    def _encode_frame(self, frame: list[SeriesBlock]) -> bytes:
        self.blocks += len(frame)
        data = _pack(frame)
        return _FRAME_HEAD.pack(len(data)) + data


def restore_series(chunks: Iterable[bytes], series: SeriesStore) -> int:
    """Blocks into a store, each durable; gives how many there were. Whoever gives the chunks checks them."""
    count = 0
    for frame in read_frames(chunks):
        series.append(frame)
        count += len(frame)
    return count


def read_frames(chunks: Iterable[bytes]) -> Iterator[list[SeriesBlock]]:
    """Every frame; Corrupt where there is none."""
    reader = ChunkReader(chunks, _damaged_error)
    while reader.more():
        (length,) = _FRAME_HEAD.unpack(reader.take(_FRAME_HEAD.size))
        yield _decode_frame(reader.take(length))


def _decode_frame(data: bytes) -> list[SeriesBlock]:
    try:
        return _unpack(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged_error("a part of them is none") from error


def _damaged_error(problem: str) -> CorruptData:
    return CorruptData(f"the measurements of the backup cannot be read: {problem}", "use another backup")
