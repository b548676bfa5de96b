"""Shards: where the chunks of a batch lie. One list of packs, then one record per chunk, sorted by digest.

A shard is looked into without being loaded: records have one size, digests are spread evenly, so a few probes find one.
"""

import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from falaj.core.errors import Corrupt
from falaj.snapshot.format import VERSION, raw

MOST_PACKS = 4000
MOST_CHUNKS = 160_000
"""So that a shard is one object of the house, and its making fits in memory."""

_MAGIC = b"FSH"
_HEAD = struct.Struct("<3sBII")
_PACK = struct.Struct("<32sQ")
_CHUNK = struct.Struct("<32sIIQ")
_PLACE = struct.Struct("<IIQ")
_SMALL = 4096
_MUCH = 16
_MEMORY = 131_072
_MAPPED_BYTES = 1 << 20


class Place(NamedTuple):
    """Where a chunk lies: its pack, and from where in it, how long."""

    pack: bytes
    start: int
    length: int


class Shard:
    """A shard's bytes, in memory or mapped."""

    def __init__(self, data: bytes | bytearray | mmap.mmap) -> None:
        self._data = data
        try:
            magic, version, self.num_packs, self.num_chunks = _HEAD.unpack_from(data)
        except struct.error:
            raise _broken("ends early") from None
        if magic != _MAGIC or version != VERSION:
            raise _broken("is not of a format that this program reads")
        self._chunks = _HEAD.size + self.num_packs * _PACK.size
        if len(data) != self._chunks + self.num_chunks * _CHUNK.size:
            raise _broken("is not as long as it says")
        self._known: dict[bytes, int] = {}
        self._packs: dict[int, tuple[bytes, int]] = {}

    def pack(self, index: int) -> tuple[bytes, int]:
        """Digest and size of a pack."""
        if index >= self.num_packs:
            raise _broken("names a pack that it does not have")
        found: tuple[bytes, int] = _PACK.unpack_from(self._data, _HEAD.size + index * _PACK.size)
        return found

    def find(self, digest: bytes) -> Place | None:
        """Where a chunk lies, or None."""
        data, base, num = self._data, self._chunks, self.num_chunks
        if self._known:
            at = self._known.get(digest, 0)
            return self._place(_PLACE.unpack_from(data, at)) if at else None
        low, high, turns = 0, num, 0
        key = int.from_bytes(digest[:8], "big")
        guess = key * num >> 64
        while low < high:
            middle = low if guess < low else high - 1 if guess >= high else guess
            at = base + middle * 48
            found = bytes(data[at : at + 32])
            if found == digest:
                return self._place(_PLACE.unpack_from(data, at + 32))
            if found < digest:
                low = middle + 1
            else:
                high = middle
            turns += 1
            # The next guess comes from how far off this one was; what is not spread evenly falls back to halving.
            step = (key - int.from_bytes(found[:8], "big")) * num >> 64
            guess = middle + step if turns < 8 else (low + high) >> 1
        return None

    def learn(self) -> None:
        """Keep a map of all, which takes some memory: to make it costs what asking for a sixteenth by probes does."""
        places = range(self._chunks, len(self._data), _CHUNK.size)
        self._known = {bytes(self._data[at : at + 32]): at + 32 for at in places}

    def forget(self) -> None:
        """Give back the memory of the map."""
        self._known = {}

    def chunks(self) -> Iterator[tuple[bytes, Place]]:
        """Every chunk with its place, by digest."""
        with memoryview(self._data) as view, view[self._chunks :] as records:
            for digest, *place in _CHUNK.iter_unpack(records):
                yield digest, self._place(place)

    def _place(self, found: Sequence[int]) -> Place:
        index, start, length = found
        pack, size = self._packs.get(index) or self._packs.setdefault(index, self.pack(index))
        if start + length > size:
            raise _broken("puts a chunk outside its pack")
        return Place(pack, start, length)


class Index:
    """The shards of several batches, newest first, loaded when they are first asked.

    Whoever reads found much in a shard will find all: with `learns`, the one that was asked last keeps a map then."""

    def __init__(self, load: Sequence[Callable[[], Shard]], *, learns: bool = False) -> None:
        self._load = load
        self._learns = learns
        self._hits = 0
        self._next = len(load) - 1
        self._full: set[int] = set()
        self._large: list[tuple[int, Shard]] = []
        # Many small batches would mean many probes: theirs are kept together.
        self._small: dict[bytes, tuple[int, Place]] = {}

    def find(self, digest: bytes) -> tuple[int, Place] | None:
        """Which batch holds a chunk, and where in it."""
        found = self._small.get(digest)
        if found is not None:
            return found
        for at, (number, shard) in enumerate(self._large):
            place = shard.find(digest)
            if place is not None:
                if at:  # neighbours in a tree were sent together: the next will be here too
                    self._large[0][1].forget()
                    self._large.insert(0, self._large.pop(at))
                    self._hits = 0
                self._hits += 1
                if self._learns and self._hits == shard.num_chunks // _MUCH:
                    shard.learn()
                return number, place
        while self._next >= 0:
            number = self._next
            shard = self._load[number]()
            self._next -= 1
            self._keep(number, shard)
            place = shard.find(digest)
            if place is not None:
                return number, place
        return None

    def readable(self, number: int) -> bool:
        """Whether a batch's shard is here and not empty."""
        while self._next >= number:
            self._keep(self._next, self._load[self._next]())
            self._next -= 1
        return number in self._full

    def _keep(self, number: int, shard: Shard) -> None:
        if shard.num_chunks:
            self._full.add(number)
        if shard.num_chunks <= _SMALL and len(self._small) < _MEMORY:
            for digest, place in shard.chunks():
                self._small.setdefault(digest, (number, place))
        else:
            self._large.append((number, shard))


def encode_shard(packs: Sequence[tuple[str, int]], chunks: Iterable[tuple[bytes, int, int, int]]) -> bytearray:
    """A shard's bytes: packs as (digest, size), chunks as (digest, pack, start, length) in the order of digests."""
    data = bytearray(_HEAD.size)
    for digest, size in packs:
        data += _PACK.pack(raw(digest), size)
    begun = len(data)
    for chunk in chunks:
        data += _CHUNK.pack(*chunk)
    _HEAD.pack_into(data, 0, _MAGIC, VERSION, len(packs), (len(data) - begun) // _CHUNK.size)
    return data


def mapped(blocks: Iterable[bytes | bytearray]) -> bytes | mmap.mmap:
    """Bytes in a nameless file, so that they need no memory of ours; few bytes as they are."""
    import tempfile

    with tempfile.SpooledTemporaryFile(_MAPPED_BYTES, prefix="falaj-shard-") as file:
        for block in blocks:
            file.write(block)
        if file.tell() <= _MAPPED_BYTES:
            file.seek(0)
            return file.read()
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _broken(what: str) -> Corrupt:
    return Corrupt(f"the index of a batch {what}", "verify the version; restore its bytes, or publish again")
