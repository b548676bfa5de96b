"""Shards: where the chunks of a batch lie. One list of packs, then one record per chunk, sorted by digest.

A shard is looked into without being loaded: records have one size, digests are spread evenly, so a few probes find one.
"""

import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from falaj.core.errors import CorruptData
from falaj.snapshot.tree_format import FORMAT_VERSION, parse_digest

MAX_SHARD_PACKS = 4000
MAX_SHARD_CHUNKS = 160_000
"""So that a shard is one object of the house, and its making fits in memory."""

_SHARD_MAGIC = b"FSH"
_SHARD_HEAD = struct.Struct("<3sBII")
_PACK_RECORD = struct.Struct("<32sQ")
_CHUNK_RECORD = struct.Struct("<32sIIQ")
_PLACE_FORMAT = struct.Struct("<IIQ")
_MAX_SMALL_CHUNKS = 4096
_LEARN_DIVISOR = 16
_MAX_MERGED_CHUNKS = 131_072
_MAX_IN_MEMORY_BYTES = 1 << 20


class ChunkLocation(NamedTuple):
    """Where a chunk lies: its pack, and from where in it, how long."""

    pack: bytes
    start: int
    length: int


class ChunkShard:
    """A shard's bytes, in memory or mapped."""

    def __init__(self, data: bytes | bytearray | mmap.mmap) -> None:
        self._data = data
        try:
            magic, version, self.num_packs, self.num_chunks = _SHARD_HEAD.unpack_from(data)
        except struct.error:
            raise _corrupt_shard_error("ends early") from None
        if magic != _SHARD_MAGIC or version != FORMAT_VERSION:
            raise _corrupt_shard_error("is not of a format that this program reads")
        self._chunks_offset = _SHARD_HEAD.size + self.num_packs * _PACK_RECORD.size
        if len(data) != self._chunks_offset + self.num_chunks * _CHUNK_RECORD.size:
            raise _corrupt_shard_error("is not as long as it says")
        self._offset_by_digest: dict[bytes, int] = {}
        self._pack_cache: dict[int, tuple[bytes, int]] = {}

    def pack(self, index: int) -> tuple[bytes, int]:
        """Digest and size of a pack."""
        if index >= self.num_packs:
            raise _corrupt_shard_error("names a pack that it does not have")
        pack_record: tuple[bytes, int] = _PACK_RECORD.unpack_from(
            self._data, _SHARD_HEAD.size + index * _PACK_RECORD.size
        )
        return pack_record

    def find(self, digest: bytes) -> ChunkLocation | None:
        """Where a chunk lies, or None."""
        data, base, chunk_count = self._data, self._chunks_offset, self.num_chunks
        if self._offset_by_digest:
            offset = self._offset_by_digest.get(digest, 0)
            return self._to_location(_PLACE_FORMAT.unpack_from(data, offset)) if offset else None
        low, high, probe_count = 0, chunk_count, 0
        key = int.from_bytes(digest[:8], "big")
        guess = key * chunk_count >> 64
        while low < high:
            middle = low if guess < low else high - 1 if guess >= high else guess
            offset = base + middle * 48
            probed_digest = bytes(data[offset : offset + 32])
            if probed_digest == digest:
                return self._to_location(_PLACE_FORMAT.unpack_from(data, offset + 32))
            if probed_digest < digest:
                low = middle + 1
            else:
                high = middle
            probe_count += 1
            # The next guess comes from how far off this one was; what is not spread evenly falls back to halving.
            step = (key - int.from_bytes(probed_digest[:8], "big")) * chunk_count >> 64
            guess = middle + step if probe_count < 8 else (low + high) >> 1
        return None

    def learn(self) -> None:
        """Keep a map of all, which takes some memory: to make it costs what asking for a sixteenth by probes does."""
        offsets = range(self._chunks_offset, len(self._data), _CHUNK_RECORD.size)
        self._offset_by_digest = {bytes(self._data[offset : offset + 32]): offset + 32 for offset in offsets}

    def forget(self) -> None:
        """Give back the memory of the map."""
        self._offset_by_digest = {}

    def chunks(self) -> Iterator[tuple[bytes, ChunkLocation]]:
        """Every chunk with its place, by digest."""
        with memoryview(self._data) as view, view[self._chunks_offset :] as records:
            for digest, *place_fields in _CHUNK_RECORD.iter_unpack(records):
                yield digest, self._to_location(place_fields)

    def _to_location(self, place_fields: Sequence[int]) -> ChunkLocation:
        index, start, length = place_fields
        pack, size = self._pack_cache.get(index) or self._pack_cache.setdefault(index, self.pack(index))
        if start + length > size:
            raise _corrupt_shard_error("puts a chunk outside its pack")
        return ChunkLocation(pack, start, length)


class ShardIndex:
    """The shards of several batches, newest first, loaded when they are first asked.

    Whoever reads found much in a shard will find all: with `learns`, the one that was asked last keeps a map then."""

    def __init__(self, shard_loaders: Sequence[Callable[[], ChunkShard]], *, builds_map: bool = False) -> None:
        self._shard_loaders = shard_loaders
        self._builds_map = builds_map
        self._hit_count = 0
        self._next_batch = len(shard_loaders) - 1
        self._nonempty_batches: set[int] = set()
        self._large_shards: list[tuple[int, ChunkShard]] = []
        # Many small batches would mean many probes: theirs are kept together.
        self._small_chunks: dict[bytes, tuple[int, ChunkLocation]] = {}

    def find(self, digest: bytes) -> tuple[int, ChunkLocation] | None:
        """Which batch holds a chunk, and where in it."""
        small_hit = self._small_chunks.get(digest)
        if small_hit is not None:
            return small_hit
        for position, (number, shard) in enumerate(self._large_shards):
            location = shard.find(digest)
            if location is not None:
                if position:  # neighbours in a tree were sent together: the next will be here too
                    self._large_shards[0][1].forget()
                    self._large_shards.insert(0, self._large_shards.pop(position))
                    self._hit_count = 0
                self._hit_count += 1
                if self._builds_map and self._hit_count == shard.num_chunks // _LEARN_DIVISOR:
                    shard.learn()
                return number, location
        while self._next_batch >= 0:
            number = self._next_batch
            shard = self._shard_loaders[number]()
            self._next_batch -= 1
            self._add_shard(number, shard)
            location = shard.find(digest)
            if location is not None:
                return number, location
        return None

    def readable(self, number: int) -> bool:
        """Whether a batch's shard is here and not empty."""
        while self._next_batch >= number:
            self._add_shard(self._next_batch, self._shard_loaders[self._next_batch]())
            self._next_batch -= 1
        return number in self._nonempty_batches

    def _add_shard(self, number: int, shard: ChunkShard) -> None:
        if shard.num_chunks:
            self._nonempty_batches.add(number)
        if shard.num_chunks <= _MAX_SMALL_CHUNKS and len(self._small_chunks) < _MAX_MERGED_CHUNKS:
            for digest, location in shard.chunks():
                self._small_chunks.setdefault(digest, (number, location))
        else:
            self._large_shards.append((number, shard))


def encode_shard(packs: Sequence[tuple[str, int]], chunks: Iterable[tuple[bytes, int, int, int]]) -> bytearray:
    """A shard's bytes: packs as (digest, size), chunks as (digest, pack, start, length) in the order of digests."""
    data = bytearray(_SHARD_HEAD.size)
    for digest, size in packs:
        data += _PACK_RECORD.pack(parse_digest(digest), size)
    chunks_start = len(data)
    for chunk in chunks:
        data += _CHUNK_RECORD.pack(*chunk)
    _SHARD_HEAD.pack_into(
        data, 0, _SHARD_MAGIC, FORMAT_VERSION, len(packs), (len(data) - chunks_start) // _CHUNK_RECORD.size
    )
    return data


def to_mapped_bytes(blocks: Iterable[bytes | bytearray]) -> bytes | mmap.mmap:
    """Bytes in a nameless file, so that they need no memory of ours; few bytes as they are."""
    import tempfile

    with tempfile.SpooledTemporaryFile(_MAX_IN_MEMORY_BYTES, prefix="falaj-shard-") as file:
        for block in blocks:
            file.write(block)
        if file.tell() <= _MAX_IN_MEMORY_BYTES:
            file.seek(0)
            return file.read()
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _corrupt_shard_error(description: str) -> CorruptData:
    return CorruptData(f"the index of a batch {description}", "verify the version; restore its bytes, or publish again")
