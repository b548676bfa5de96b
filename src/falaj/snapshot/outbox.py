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

from falaj.core.byte_channel import UploadReceipt
from falaj.core.data import dataclass
from falaj.core.errors import Conflict, CorruptData, Denied, FalajError, NotFound
from falaj.snapshot.publish_state import PublishState, SentBatch, SentPack
from falaj.snapshot.records import PublishedTree, TreeBatch
from falaj.snapshot.shard import (
    MAX_SHARD_CHUNKS,
    MAX_SHARD_PACKS,
    ChunkShard,
    ShardIndex,
    encode_shard,
    to_mapped_bytes,
)
from falaj.snapshot.tree_format import (
    MAX_PACK_BYTES,
    ContentPiece,
    decode_content,
    decode_recipe,
    format_digest,
    parse_digest,
)
from falaj.snapshot.tree_reader import TreeSnapshot

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_KEPT_BATCHES = 256
"""From here on a publish sends the chunks of small old batches again, so that a tree never lies in too many of them."""

_SENDER_THREADS = 2
_SEND_BLOCK_BYTES = 1 << 20
_MIN_KEPT_CHUNKS = 4096
_SENT_CHUNK = struct.Struct("<32sII")
_EMPTY_SHARD = ChunkShard(encode_shard((), ()))
_DATA_PACK, _META_PACK = 0, 1


class PieceSink(Protocol):
    """Where the bytes go: a ticket to write, bound by the caller. Threads share it."""

    def put(self, chunks: Iterable[bytes]) -> UploadReceipt:
        """Store one piece; durable on return."""
        ...

    def bundle(self, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        """Tie pieces together."""
        ...


@dataclass(frozen=True, slots=True)
class WrittenTree:
    """What a publish made."""

    tree: PublishedTree
    receipts: tuple[UploadReceipt, ...] = ()
    """Of the bundles that are new in it."""
    new_bytes: int = 0
    new_chunks: int = 0
    read_files: int = 0
    kept_files: int = 0
    notes: tuple[str, ...] = ()
    """What a person should know of what was passed: links that no checkout writes, folders that are not kept."""


class SentDataLost(Exception):
    """What an earlier publish sent is not there any more."""


class _BufferSlices:
    """A buffer in pieces that are copied one at a time, as often as a sender asks."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def __iter__(self) -> Iterator[bytes]:
        for offset in range(0, len(self._view), _SEND_BLOCK_BYTES):
            yield bytes(self._view[offset : offset + _SEND_BLOCK_BYTES])


class _FillingPack:
    """A pack as it fills."""

    def __init__(self, number: int, buffer: memoryview) -> None:
        self.number = number
        self.buffer = buffer
        self.used = 0
        self.chunks = bytearray()

    def __iter__(self) -> Iterator[bytes]:
        return iter(_BufferSlices(self.buffer[: self.used]))

    def add(self, digest: bytes, data: bytes | memoryview) -> int:
        """Append a chunk; gives where it begins."""
        start, self.used = self.used, self.used + len(data)
        self.buffer[start : self.used] = data
        self.chunks += _SENT_CHUNK.pack(digest, start, len(data))
        return start


class _SentBatchState(NamedTuple):
    """A whole batch of ours."""

    batch: TreeBatch
    receipts: tuple[UploadReceipt, ...]
    shard: ChunkShard
    tied: UploadReceipt | None = None
    """Of the bundle, where it was tied by this publish."""


class PublishOutbox:
    """What a publish keeps and sends: dedup, packs, batches, and the journal of what has arrived."""

    def __init__(
        self,
        sink: PieceSink,
        base: TreeSnapshot | None,
        state: PublishState,
        reusable_batches: frozenset[int] | None = None,
    ) -> None:
        """`reusable_batches`: of which batches of the base something may be kept; of all where it is not said."""
        self._sink = sink
        self._base = base
        self._state = state
        self._keeps_all_batches = reusable_batches is None
        shards = base.shards if base is not None else ()
        shard_loaders = [
            load_shard if reusable_batches is None or batch_number in reusable_batches else lambda: _EMPTY_SHARD
            for batch_number, load_shard in enumerate(shards)
        ]
        self._base_index = ShardIndex(_filter_shards(shard_loaders))
        self.filled = 0
        """How many bytes the batch has that is filled now."""
        self._used_base_batches: set[int] = set()
        self._base_batch_numbers = (
            {parse_digest(batch.bundle): batch_number for batch_number, batch in enumerate(base.tree.batches)}
            if base
            else {}
        )
        self._touched_batches: set[int] = set()
        self._own_batches: list[_SentBatchState] = []
        self._used_own_batches: set[int] = set()
        # A bit for what may lie in a batch of ours, so that a new chunk is not looked for in all of them.
        self._digest_bitmap = mmap.mmap(-1, 1 << 24)
        self._chunk_places: dict[
            bytes, int
        ] = {}  # length, pack and start in one number: a tuple would take twice as much
        self._receipt_by_pack: dict[int, UploadReceipt] = {}
        self._used_packs: set[int] = set()
        self._last_pack_number = 0
        self._free_buffers: list[memoryview] = []
        from concurrent.futures import ThreadPoolExecutor  # not loaded to find that nothing is to be sent

        self._sending: deque[tuple[_FillingPack, Future[UploadReceipt]]] = deque()
        self._sender_pool = ThreadPoolExecutor(_SENDER_THREADS, thread_name_prefix="falaj-send")
        self._new_bytes = self._new_chunks = 0
        self._has_resumed = self._resume_publish()
        self._filling_packs = [self._new_pack(), self._new_pack()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Whatever stopped us, what has arrived is written down."""
        try:
            while self._sending:
                try:
                    self._on_pack_arrived()
                except (FalajError, OSError, sqlite3.Error):
                    if error is None:
                        raise
        finally:
            self._sender_pool.shutdown()

    def chunk(self, data: bytes | memoryview) -> bytes:
        """Keep bytes of a file."""
        return self._store_chunk(_DATA_PACK, data)

    def page(self, data: bytes) -> bytes:
        """Keep a page or a recipe."""
        return self._store_chunk(_META_PACK, data)

    def holds(self, encoded: bytes) -> bool:
        """Whether every chunk of an encoded content is in the house, so that its file need not be read."""
        if encoded[8:10] == b"\0\1":  # one piece: by far the most files
            return self.has(encoded[10:42])
        content, _ = decode_content(encoded)
        return self._holds_pieces(content.pieces, content.depth)

    def take(self, page: bytes, bundles: Iterable[bytes]) -> bool:
        """Whether a page and all that its files are made of lie in these batches of the base; counts them as used."""
        numbers = {self._base_batch_numbers.get(bundle, -1) for bundle in bundles}
        if not numbers or not all(number >= 0 and self._base_index.readable(number) for number in numbers):
            return False
        if not self.has(page):
            return False
        self._used_base_batches |= numbers
        self._touched_batches.clear()
        return True

    def touched(self) -> frozenset[int]:
        """The batches of what was kept or found since this was last asked; `bundles` knows their names at the end."""
        touched_batches = frozenset(self._touched_batches)
        self._touched_batches.clear()
        return touched_batches

    def bundles(self, touched_batches: frozenset[int]) -> tuple[bytes, ...]:
        """The names of batches, when all is sent; none where one was not needed and never closed."""
        if any(-1 - batch_number >= len(self._own_batches) for batch_number in touched_batches):
            return ()
        base = self._base.tree.batches if self._base is not None else ()
        return tuple(
            parse_digest(
                (base[batch_number] if batch_number >= 0 else self._own_batches[-1 - batch_number].batch).bundle
            )
            for batch_number in sorted(touched_batches)
        )

    def adopt(self, receipt: UploadReceipt) -> None:
        """Count a whole blob as a chunk of the batch."""
        digest = parse_digest(receipt.digest)
        if not self.has(digest):
            self._close_full_batch()
            self._last_pack_number += 1
            self._receipt_by_pack[self._last_pack_number] = receipt
            self._used_packs.add(self._last_pack_number)
            self.filled += receipt.size
            self._chunk_places[digest] = receipt.size << 64 | self._last_pack_number << 32

    def pour(self, data: Iterable[bytes]) -> None:
        """Keep a chunk that is too large for a pack."""
        self.adopt(self._sink.put(data))

    @property
    def alone(self) -> bool:
        """Whether all there is lies in the batch that is filled now."""
        return not self._used_base_batches and not self._own_batches

    def end_batch(self) -> None:
        """Send what there is: what follows goes into another batch."""
        if self._used_packs:
            self._close_batch()

    def finish(self, root: bytes, num_files: int, size_bytes: int) -> WrittenTree:
        """Send the rest and give the tree."""
        base = self._base
        if base is not None and self._keeps_all_batches and base.tree.root == format_digest(root):
            return WrittenTree(base.tree, (), self._new_bytes, self._new_chunks)
        self.end_batch()
        base_batches = (
            [base.tree.batches[number] for number in sorted(self._used_base_batches)] if base is not None else []
        )
        own_batches = [self._own_batches[number] for number in sorted(self._used_own_batches)]
        self._state.forget(
            own_batch.batch.bundle
            for batch_number, own_batch in enumerate(self._own_batches)
            if batch_number not in self._used_own_batches
        )
        tree = PublishedTree(
            format_digest(root), num_files, size_bytes, (*base_batches, *(own_batch.batch for own_batch in own_batches))
        )
        # Tied again, a batch of an earlier publish proves that the house still has it.
        receipts = tuple(own_batch.tied or self._bundle_batch(own_batch.receipts) for own_batch in own_batches)
        return WrittenTree(tree, receipts, self._new_bytes, self._new_chunks)

    def _store_chunk(self, pack_kind: int, data: bytes | memoryview) -> bytes:
        digest: bytes = blake3(data).digest()
        if self.has(digest):
            return digest
        self._close_full_batch()
        if self._filling_packs[pack_kind].used + len(data) > MAX_PACK_BYTES:
            self._send_pack(pack_kind)
        pack = self._filling_packs[pack_kind]
        self._chunk_places[digest] = len(data) << 64 | pack.number << 32 | pack.add(digest, data)
        self._used_packs.add(pack.number)
        self._touched_batches.add(-1 - len(self._own_batches))
        self._new_chunks += 1
        self.filled += len(data)
        return digest

    def has(self, digest: bytes) -> bool:
        """Whether a chunk is in the house; counts it as used."""
        packed_place = self._chunk_places.get(digest)
        if packed_place is not None:
            self._used_packs.add(packed_place >> 32 & 0xFFFFFFFF)
            self._touched_batches.add(-1 - len(self._own_batches))
            return True
        index_hit = self._base_index.find(digest)
        if index_hit is not None:
            self._used_base_batches.add(index_hit[0])
            self._touched_batches.add(index_hit[0])
            return True
        if self._own_batches and self._digest_bitmap[int.from_bytes(digest[:3], "big")] >> (digest[3] & 7) & 1:
            for number, own_batch in enumerate(self._own_batches):
                if own_batch.shard.find(digest) is not None:
                    self._used_own_batches.add(number)
                    self._touched_batches.add(-1 - number)
                    return True
        return False

    def _holds_pieces(self, pieces: Iterable[ContentPiece], depth: int) -> bool:
        for digest, _ in pieces:
            if not self.has(digest):
                return False
            if not depth:
                continue
            if self._base is None or self._base_index.find(digest) is None:
                return False  # a recipe that was sent, and cannot be read back yet
            if not self._holds_pieces(decode_recipe(self._base.chunk(digest), depth), depth - 1):
                return False
        return True

    def _close_full_batch(self) -> None:
        if len(self._chunk_places) >= MAX_SHARD_CHUNKS or len(self._used_packs) >= MAX_SHARD_PACKS:
            self._close_batch()

    def _new_pack(self) -> _FillingPack:
        self._last_pack_number += 1
        # Mapped memory is taken page by page as it fills; a bytearray would be cleared first.
        buffer = self._free_buffers.pop() if self._free_buffers else memoryview(mmap.mmap(-1, MAX_PACK_BYTES))
        return _FillingPack(self._last_pack_number, buffer)

    def _send_pack(self, pack_kind: int) -> None:
        """Hand a pack to the senders; waits while they are busy, so memory stays bounded."""
        while len(self._sending) >= _SENDER_THREADS:
            self._on_pack_arrived()
        pack = self._filling_packs[pack_kind]
        self._sending.append((pack, self._sender_pool.submit(self._sink.put, pack)))
        self._filling_packs[pack_kind] = self._new_pack()

    def _on_pack_arrived(self) -> None:
        pack, send_future = self._sending.popleft()
        receipt = send_future.result()
        self._receipt_by_pack[pack.number] = receipt
        self._new_bytes += receipt.size
        self._state.sent_pack(SentPack(receipt, bytes(pack.chunks)))
        self._free_buffers.append(pack.buffer)

    def _close_batch(self) -> None:
        for pack_kind in (_DATA_PACK, _META_PACK):
            if self._filling_packs[pack_kind].used:
                self._send_pack(pack_kind)
        while self._sending:
            self._on_pack_arrived()
        pack_order = {number: index for index, number in enumerate(sorted(self._used_packs))}
        packs = [self._receipt_by_pack[number] for number in pack_order]
        shard_data = encode_shard(
            [(pack.digest, pack.size) for pack in packs], _chunk_records(self._chunk_places, pack_order)
        )
        shard = self._sink.put(_BufferSlices(memoryview(shard_data)))
        self._new_bytes += shard.size
        bundle_receipt = self._bundle_batch((*packs, shard))
        batch = TreeBatch(bundle_receipt.digest, shard.digest)
        self._state.sent_batch(SentBatch(batch, (*packs, shard), shard_data))
        self._used_own_batches.add(len(self._own_batches))
        self._add_own_batch(
            _SentBatchState(batch, (*packs, shard), ChunkShard(to_mapped_bytes((shard_data,))), bundle_receipt),
            self._chunk_places,
        )
        self._chunk_places, self._receipt_by_pack, self._used_packs = {}, {}, set()
        self.filled = 0

    def _add_own_batch(self, own_batch: _SentBatchState, digests: Iterable[bytes]) -> None:
        self._own_batches.append(own_batch)
        for digest in digests:
            self._digest_bitmap[int.from_bytes(digest[:3], "big")] |= 1 << (digest[3] & 7)

    def _bundle_batch(self, receipts: tuple[UploadReceipt, ...]) -> UploadReceipt:
        try:
            return self._sink.bundle(receipts)
        except (Conflict, Denied, NotFound):
            if self._has_resumed:
                raise SentDataLost from None
            raise

    def _resume_publish(self) -> bool:
        """Take up what an earlier publish sent and never committed."""
        base_bundles = {batch.bundle for batch in self._base.tree.batches} if self._base is not None else set()
        dropped: list[str] = []
        for batch, receipts, data in self._state.batches():
            if batch.bundle in base_bundles or blake3(data).digest() != parse_digest(batch.shard):
                dropped.append(batch.bundle)
            else:
                own_batch = _SentBatchState(batch, receipts, ChunkShard(to_mapped_bytes((data,))))
                self._add_own_batch(own_batch, (digest for digest, _ in own_batch.shard.chunks()))
        self._state.forget(dropped)
        for receipt, chunks in self._state.packs():
            self._last_pack_number += 1
            self._receipt_by_pack[self._last_pack_number] = receipt
            for digest, start, length in _SENT_CHUNK.iter_unpack(chunks):
                self._chunk_places.setdefault(digest, length << 64 | self._last_pack_number << 32 | start)
        return bool(self._own_batches or self._chunk_places)


def _chunk_records(places: dict[bytes, int], pack_order: dict[int, int]) -> Iterator[tuple[bytes, int, int, int]]:
    for digest in sorted(places):
        packed_place = places[digest]
        index = pack_order.get(packed_place >> 32 & 0xFFFFFFFF)
        if index is not None:
            yield digest, index, packed_place & 0xFFFFFFFF, packed_place >> 64


def _filter_shards(shards: Sequence[Callable[[], ChunkShard]]) -> Sequence[Callable[[], ChunkShard]]:
    """The base's shards but for the unreadable and, among very many, the small: their chunks are sent again."""
    min_chunks = 0 if len(shards) <= MAX_KEPT_BATCHES else _MIN_KEPT_CHUNKS

    def load_or_empty(load_shard: Callable[[], ChunkShard]) -> ChunkShard:
        try:
            shard = load_shard()
        except (CorruptData, NotFound):
            return _EMPTY_SHARD
        return shard if shard.num_chunks >= min_chunks else _EMPTY_SHARD

    return [partial(load_or_empty, load) for load in shards]
