"""What a publish sends: chunks that are nowhere yet go into packs, packs into batches, and what arrived into a journal.

Chunks that the base holds, or that an interrupted publish has sent, are not sent again. The others go, in the order
met, into packs of at most 16 MiB, which two threads send while the next is filled; pages and recipes go into packs of
their own, so that a tree is listed without touching its data. A batch ends with a shard and is tied into a bundle.
"""

import mmap
import sqlite3
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from blake3 import blake3

from falaj.core.data import dataclass
from falaj.core.errors import Conflict, Corrupt, Denied, FalajError, NotFound
from falaj.core.transfer import Receipt
from falaj.snapshot.format import PACK_BYTES, Piece, decode_content, decode_recipe, raw, written
from falaj.snapshot.read import Snapshot
from falaj.snapshot.records import Batch, Tree
from falaj.snapshot.shard import MOST_CHUNKS, MOST_PACKS, Index, Shard, encode_shard, mapped
from falaj.snapshot.state import SentBatch, SentPack, State

if TYPE_CHECKING:
    from concurrent.futures import Future

MANY_BATCHES = 256
"""From here on a publish sends the chunks of small old batches again, so that a tree never lies in too many of them."""

_SENDERS = 2
_SEND_BYTES = 1 << 20
_FEW_CHUNKS = 4096
_SENT = struct.Struct("<32sII")
_NONE = Shard(encode_shard((), ()))
_DATA, _META = 0, 1


class Sink(Protocol):
    """Where the bytes go: a ticket to write, bound by the caller. Threads share it."""

    def put(self, chunks: Iterable[bytes]) -> Receipt:
        """Store one piece; durable on return."""
        ...

    def bundle(self, receipts: tuple[Receipt, ...]) -> Receipt:
        """Tie pieces together."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """What a publish made."""

    tree: Tree
    receipts: tuple[Receipt, ...] = ()
    """Of the bundles that are new in it."""
    new_bytes: int = 0
    new_chunks: int = 0
    read_files: int = 0
    kept_files: int = 0
    notes: tuple[str, ...] = ()
    """What a person should know of what was passed: links that no checkout writes, folders that are not kept."""


class TakenBack(Exception):
    """What an earlier publish sent is not there any more."""


class _Slices:
    """A buffer in pieces that are copied one at a time, as often as a sender asks."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, len(self._view), _SEND_BYTES):
            yield bytes(self._view[at : at + _SEND_BYTES])


class _Pack:
    """A pack as it fills."""

    def __init__(self, number: int, buffer: memoryview) -> None:
        self.number = number
        self.buffer = buffer
        self.used = 0
        self.chunks = bytearray()

    def __iter__(self) -> Iterator[bytes]:
        return iter(_Slices(self.buffer[: self.used]))

    def add(self, digest: bytes, data: bytes | memoryview) -> int:
        """Append a chunk; gives where it begins."""
        start, self.used = self.used, self.used + len(data)
        self.buffer[start : self.used] = data
        self.chunks += _SENT.pack(digest, start, len(data))
        return start


class _Done(NamedTuple):
    """A whole batch of ours."""

    batch: Batch
    receipts: tuple[Receipt, ...]
    shard: Shard
    tied: Receipt | None = None
    """Of the bundle, where it was tied by this publish."""


class Outbox:
    """What a publish keeps and sends: dedup, packs, batches, and the journal of what has arrived."""

    def __init__(self, sink: Sink, base: Snapshot | None, state: State, kept: frozenset[int] | None = None) -> None:
        """`kept`: of which batches of the base something may be kept; of all where it is not said."""
        self._sink = sink
        self._base = base
        self._state = state
        self._whole = kept is None
        shards = base.shards if base is not None else ()
        named = [load if kept is None or n in kept else lambda: _NONE for n, load in enumerate(shards)]
        self._index = Index(_worth_keeping(named))
        self.filled = 0
        """How many bytes the batch has that is filled now."""
        self._base_used: set[int] = set()
        self._base_numbers = {raw(batch.bundle): n for n, batch in enumerate(base.tree.batches)} if base else {}
        self._touched: set[int] = set()
        self._done: list[_Done] = []
        self._done_used: set[int] = set()
        # A bit for what may lie in a batch of ours, so that a new chunk is not looked for in all of them.
        self._marks = mmap.mmap(-1, 1 << 24)
        self._places: dict[bytes, int] = {}  # length, pack and start in one number: a tuple would take twice as much
        self._receipts: dict[int, Receipt] = {}
        self._used: set[int] = set()
        self._number = 0
        self._buffers: list[memoryview] = []
        from concurrent.futures import ThreadPoolExecutor  # not loaded to find that nothing is to be sent

        self._sending: deque[tuple[_Pack, Future[Receipt]]] = deque()
        self._senders = ThreadPoolExecutor(_SENDERS, thread_name_prefix="falaj-send")
        self._new_bytes = self._new_chunks = 0
        self._resumed = self._resume()
        self._filling = [self._new_pack(), self._new_pack()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Whatever stopped us, what has arrived is written down."""
        try:
            while self._sending:
                try:
                    self._arrived()
                except (FalajError, OSError, sqlite3.Error):
                    if error is None:
                        raise
        finally:
            self._senders.shutdown()

    def chunk(self, data: bytes | memoryview) -> bytes:
        """Keep bytes of a file."""
        return self._keep(_DATA, data)

    def page(self, data: bytes) -> bytes:
        """Keep a page or a recipe."""
        return self._keep(_META, data)

    def holds(self, body: bytes) -> bool:
        """Whether every chunk of an encoded content is in the house, so that its file need not be read."""
        if body[8:10] == b"\0\1":  # one piece: by far the most files
            return self.has(body[10:42])
        content, _ = decode_content(body)
        return self._holds(content.pieces, content.depth)

    def take(self, page: bytes, bundles: Iterable[bytes]) -> bool:
        """Whether a page and all that its files are made of lie in these batches of the base; counts them as used."""
        numbers = {self._base_numbers.get(bundle, -1) for bundle in bundles}
        if not numbers or not all(number >= 0 and self._index.readable(number) for number in numbers):
            return False
        if not self.has(page):
            return False
        self._base_used |= numbers
        self._touched.clear()
        return True

    def touched(self) -> frozenset[int]:
        """The batches of what was kept or found since this was last asked; `bundles` knows their names at the end."""
        touched = frozenset(self._touched)
        self._touched.clear()
        return touched

    def bundles(self, touched: frozenset[int]) -> tuple[bytes, ...]:
        """The names of batches, when all is sent; none where one was not needed and never closed."""
        if any(-1 - n >= len(self._done) for n in touched):
            return ()
        base = self._base.tree.batches if self._base is not None else ()
        return tuple(raw((base[n] if n >= 0 else self._done[-1 - n].batch).bundle) for n in sorted(touched))

    def adopt(self, receipt: Receipt) -> None:
        """Count a whole blob as a chunk of the batch."""
        digest = raw(receipt.digest)
        if not self.has(digest):
            self._make_room()
            self._number += 1
            self._receipts[self._number] = receipt
            self._used.add(self._number)
            self.filled += receipt.size
            self._places[digest] = receipt.size << 64 | self._number << 32

    def pour(self, data: Iterable[bytes]) -> None:
        """Keep a chunk that is too large for a pack."""
        self.adopt(self._sink.put(data))

    @property
    def alone(self) -> bool:
        """Whether all there is lies in the batch that is filled now."""
        return not self._base_used and not self._done

    def end_batch(self) -> None:
        """Send what there is: what follows goes into another batch."""
        if self._used:
            self._close_batch()

    def finish(self, root: bytes, num_files: int, size_bytes: int) -> Written:
        """Send the rest and give the tree."""
        base = self._base
        if base is not None and self._whole and base.tree.root == written(root):
            return Written(base.tree, (), self._new_bytes, self._new_chunks)
        self.end_batch()
        held = [base.tree.batches[number] for number in sorted(self._base_used)] if base is not None else []
        ours = [self._done[number] for number in sorted(self._done_used)]
        self._state.forget(done.batch.bundle for n, done in enumerate(self._done) if n not in self._done_used)
        tree = Tree(written(root), num_files, size_bytes, (*held, *(done.batch for done in ours)))
        # Tied again, a batch of an earlier publish proves that the house still has it.
        receipts = tuple(done.tied or self._tie(done.receipts) for done in ours)
        return Written(tree, receipts, self._new_bytes, self._new_chunks)

    def _keep(self, kind: int, data: bytes | memoryview) -> bytes:
        digest: bytes = blake3(data).digest()
        if self.has(digest):
            return digest
        self._make_room()
        if self._filling[kind].used + len(data) > PACK_BYTES:
            self._send(kind)
        pack = self._filling[kind]
        self._places[digest] = len(data) << 64 | pack.number << 32 | pack.add(digest, data)
        self._used.add(pack.number)
        self._touched.add(-1 - len(self._done))
        self._new_chunks += 1
        self.filled += len(data)
        return digest

    def has(self, digest: bytes) -> bool:
        """Whether a chunk is in the house; counts it as used."""
        place = self._places.get(digest)
        if place is not None:
            self._used.add(place >> 32 & 0xFFFFFFFF)
            self._touched.add(-1 - len(self._done))
            return True
        found = self._index.find(digest)
        if found is not None:
            self._base_used.add(found[0])
            self._touched.add(found[0])
            return True
        if self._done and self._marks[int.from_bytes(digest[:3], "big")] >> (digest[3] & 7) & 1:
            for number, done in enumerate(self._done):
                if done.shard.find(digest) is not None:
                    self._done_used.add(number)
                    self._touched.add(-1 - number)
                    return True
        return False

    def _holds(self, pieces: Iterable[Piece], depth: int) -> bool:
        for digest, _ in pieces:
            if not self.has(digest):
                return False
            if not depth:
                continue
            if self._base is None or self._index.find(digest) is None:
                return False  # a recipe that was sent, and cannot be read back yet
            if not self._holds(decode_recipe(self._base.chunk(digest), depth), depth - 1):
                return False
        return True

    def _make_room(self) -> None:
        if len(self._places) >= MOST_CHUNKS or len(self._used) >= MOST_PACKS:
            self._close_batch()

    def _new_pack(self) -> _Pack:
        self._number += 1
        # Mapped memory is taken page by page as it fills; a bytearray would be cleared first.
        buffer = self._buffers.pop() if self._buffers else memoryview(mmap.mmap(-1, PACK_BYTES))
        return _Pack(self._number, buffer)

    def _send(self, kind: int) -> None:
        """Hand a pack to the senders; waits while they are busy, so memory stays bounded."""
        while len(self._sending) >= _SENDERS:
            self._arrived()
        pack = self._filling[kind]
        self._sending.append((pack, self._senders.submit(self._sink.put, pack)))
        self._filling[kind] = self._new_pack()

    def _arrived(self) -> None:
        pack, sending = self._sending.popleft()
        receipt = sending.result()
        self._receipts[pack.number] = receipt
        self._new_bytes += receipt.size
        self._state.sent_pack(SentPack(receipt, bytes(pack.chunks)))
        self._buffers.append(pack.buffer)

    def _close_batch(self) -> None:
        for kind in (_DATA, _META):
            if self._filling[kind].used:
                self._send(kind)
        while self._sending:
            self._arrived()
        order = {number: index for index, number in enumerate(sorted(self._used))}
        packs = [self._receipts[number] for number in order]
        data = encode_shard([(pack.digest, pack.size) for pack in packs], _records(self._places, order))
        shard = self._sink.put(_Slices(memoryview(data)))
        self._new_bytes += shard.size
        tied = self._tie((*packs, shard))
        batch = Batch(tied.digest, shard.digest)
        self._state.sent_batch(SentBatch(batch, (*packs, shard), data))
        self._done_used.add(len(self._done))
        self._finished(_Done(batch, (*packs, shard), Shard(mapped((data,))), tied), self._places)
        self._places, self._receipts, self._used = {}, {}, set()
        self.filled = 0

    def _finished(self, done: _Done, digests: Iterable[bytes]) -> None:
        self._done.append(done)
        for digest in digests:
            self._marks[int.from_bytes(digest[:3], "big")] |= 1 << (digest[3] & 7)

    def _tie(self, receipts: tuple[Receipt, ...]) -> Receipt:
        try:
            return self._sink.bundle(receipts)
        except (Conflict, Denied, NotFound):
            if self._resumed:
                raise TakenBack from None
            raise

    def _resume(self) -> bool:
        """Take up what an earlier publish sent and never committed."""
        held = {batch.bundle for batch in self._base.tree.batches} if self._base is not None else set()
        dropped: list[str] = []
        for batch, receipts, data in self._state.batches():
            if batch.bundle in held or blake3(data).digest() != raw(batch.shard):
                dropped.append(batch.bundle)
            else:
                done = _Done(batch, receipts, Shard(mapped((data,))))
                self._finished(done, (digest for digest, _ in done.shard.chunks()))
        self._state.forget(dropped)
        for receipt, chunks in self._state.packs():
            self._number += 1
            self._receipts[self._number] = receipt
            for digest, start, length in _SENT.iter_unpack(chunks):
                self._places.setdefault(digest, length << 64 | self._number << 32 | start)
        return bool(self._done or self._places)


def _records(places: dict[bytes, int], order: dict[int, int]) -> Iterator[tuple[bytes, int, int, int]]:
    for digest in sorted(places):
        place = places[digest]
        index = order.get(place >> 32 & 0xFFFFFFFF)
        if index is not None:
            yield digest, index, place & 0xFFFFFFFF, place >> 64


def _worth_keeping(shards: Sequence[Callable[[], Shard]]) -> Sequence[Callable[[], Shard]]:
    """The base's shards but for the unreadable and, among very many, the small: their chunks are sent again."""
    least = 0 if len(shards) <= MANY_BATCHES else _FEW_CHUNKS

    def loaded(load: Callable[[], Shard]) -> Shard:
        try:
            shard = load()
        except (Corrupt, NotFound):
            return _NONE
        return shard if shard.num_chunks >= least else _NONE

    return [partial(loaded, load) for load in shards]
