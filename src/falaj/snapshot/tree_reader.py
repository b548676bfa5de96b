"""Reading a tree: its entries in order, one entry by its path, the bytes of a file; every chunk checked before use.

Pages are read through blocks of a megabyte, which is what the house opens at once anyway, so that walking a tree does
not ask for each page by itself. Shards and those blocks are immutable and can be kept in a folder between uses.
"""

import contextlib
import itertools
import mmap
import secrets
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from blake3 import blake3

from falaj.core.errors import CorruptData, Invalid, NotFound
from falaj.snapshot.records import PublishedTree
from falaj.snapshot.shard import ChunkLocation, ChunkShard, ShardIndex, to_mapped_bytes
from falaj.snapshot.tree_format import (
    MAX_PACK_BYTES,
    ContentPiece,
    FileContent,
    PageRef,
    TreeEntry,
    TreePage,
    decode_page,
    decode_recipe,
    format_digest,
    format_path,
    parse_digest,
)

FetchBytes = Callable[[str, int, int | None], Iterator[bytes]]
"""Bytes by digest, from and to a place in them; a stop beyond the end gives what there is."""

__all__ = ["FetchBytes", "FetchRun", "FetchedPart", "TreeEntry", "TreeSnapshot"]

MAX_RUN_BYTES = MAX_PACK_BYTES
"""What is fetched in one go."""
_BLOCK_BYTES = 1 << 20
_MAX_CACHED_BLOCKS, _MAX_CACHED_PAGES = 16, 64
_MAX_GAP_BYTES = 128 << 10
_READ_GROUP_BYTES = 4 << 20


class FetchRun(NamedTuple):
    """Chunks of one pack that are fetched in one go: digest, start and length of each."""

    pack: bytes
    start: int
    stop: int
    chunks: list[tuple[bytes, int, int]]

    @property
    def is_large(self) -> bool:
        """Whether it is one chunk that does not fit in memory."""
        return self.stop - self.start > MAX_PACK_BYTES


FetchedPart = tuple[memoryview, list[tuple[bytes, int, int]]]
"""Some bytes, and the chunks in them: digest, begin and end of each."""


class TreeSnapshot:
    """A tree and a way to its bytes. Threads may share one."""

    def __init__(self, tree: PublishedTree, fetch_bytes: FetchBytes, cache_folder: Path | None = None) -> None:
        self.tree = tree
        self.shards = [partial(self._get_shard, batch.shard) for batch in tree.batches]
        self._fetch_bytes = fetch_bytes
        self._cache_folder = cache_folder
        self._loaded_shards: dict[str, ChunkShard] = {}
        self._index = ShardIndex(self.shards, builds_map=True)
        self._blocks: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._pages: OrderedDict[bytes, TreePage] = OrderedDict()
        self._lock = Lock()

    def entries(self, prefix: bytes = b"") -> Iterator[TreeEntry]:
        """The entries whose paths begin with `prefix`, sorted by path."""
        last_path = b""
        for page in self._iterate_leaves(self.root(), None, prefix):
            for entry in page.entries:
                if entry.path <= last_path:
                    raise CorruptData(f"{format_path(entry.path)} is out of order in the tree", "publish it again")
                last_path = entry.path
                if last_path.startswith(prefix):
                    yield entry

    def entry(self, path: bytes) -> TreeEntry:
        """The entry of one path; reads the pages on the way to it only."""
        page = self.page(self.root())
        while page.level:
            position = bisect_right(page.pages, path, key=lambda ref: ref.first) - 1
            if position < 0:
                break
            page = self.page(page.pages[position])
        for entry in page.entries:
            if entry.path == path:
                return entry
        raise NotFound(f"there is no file {format_path(path)} in the tree", "list its files")

    def read(self, entry: TreeEntry, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """A file's bytes, or a range of them. Every chunk's digest is checked before any of it is handed out.

        A file that was composed of one large blob is checked as a whole when it is read whole; a range of it rests on
        the store, which authenticates every block.
        """
        if entry.kind != "file":
            raise Invalid(
                f"{format_path(entry.path)} is a link to {format_path(entry.target)}", "read the file it points to"
            )
        stop = entry.size if stop is None else min(stop, entry.size)
        if start < 0 or (stop < start and start <= entry.size):
            raise Invalid(f"a range from {start} to {stop}", "ranges count bytes from 0 and end after they begin")
        for group in _group_pieces(self.pieces(entry.content, start, stop)):
            group_start = group[0][0]
            yield from self._read_pieces(
                [(digest, length) for _, digest, length in group], start - group_start, stop - group_start
            )

    def root(self) -> PageRef:
        """The topmost page."""
        return PageRef(-1, b"", parse_digest(self.tree.root))

    def page(self, ref: PageRef) -> TreePage:
        """A page, checked against what the page above says of it."""
        with self._lock:
            page = self._pages.get(ref.digest)
        if page is None:
            page = decode_page(self.chunk(ref.digest))
        with self._lock:
            self._pages[ref.digest] = page
            self._pages.move_to_end(ref.digest)
            if len(self._pages) > _MAX_CACHED_PAGES:
                self._pages.popitem(last=False)
        first_path = page.pages[0].first if page.level else page.entries[0].path if page.entries else b""
        if ref.level >= 0 and (page.level != ref.level or first_path != ref.first):
            raise CorruptData(
                f"page {format_digest(ref.digest)[:20]}… is not where it belongs", "publish the tree again"
            )
        return page

    def pieces(self, content: FileContent, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes, int]]:
        """The pieces that hold a range of a file: place in it, digest, length. Other recipes are not read."""
        return self._iterate_pieces(content.pieces, content.depth, 0, (start, content.size if stop is None else stop))

    def locate(self, digest: bytes) -> ChunkLocation:
        """Where a chunk lies, or Corrupt."""
        with self._lock:
            index_hit = self._index.find(digest)
        if index_hit is None:
            raise _missing_chunk_error(digest)
        return index_hit[1]

    def chunk(self, digest: bytes, *, allows_cache_folder: bool = True) -> bytes:
        """A page, a recipe or a small file; `allows_cache_folder` allows the cache folder."""
        location = self.locate(digest)
        if location.length > MAX_PACK_BYTES:
            raise CorruptData(
                f"chunk {format_digest(digest)[:20]}… is too large for what it should be", "publish the tree again"
            )
        for bypasses_cache in (False, True):
            data = self._read_from_blocks(
                location, allows_cache_folder=allows_cache_folder, bypasses_cache=bypasses_cache
            )
            if blake3(data).digest() == digest:
                return data
        raise _spoiled_chunk_error(digest, location)

    def plan(self, digests: Collection[bytes]) -> list[FetchRun]:
        """The fetches that bring these chunks: neighbours in a pack come together."""
        locations = sorted(self._locate_chunks(digests))
        runs: list[FetchRun] = []
        first_index = last_stop = 0
        for index, (pack, start, length, _) in enumerate(locations):
            stop, previous_pack = start + length, locations[index - 1][0]
            if index and (
                pack != previous_pack
                or start > last_stop + _MAX_GAP_BYTES
                or max(stop, last_stop) - locations[first_index][1] > MAX_RUN_BYTES
            ):
                runs.append(_create_run(locations[first_index:index], last_stop))
                first_index, last_stop = index, 0
            last_stop = max(last_stop, stop)
        if locations:
            runs.append(_create_run(locations[first_index:], last_stop))
        return runs

    def each(self, run: FetchRun) -> Iterator[FetchedPart]:
        """The chunks of a run as their bytes come, checked: a block goes from hand to hand while the processor still
        has it near. A chunk that came in several blocks is put together, by itself."""
        pending_chunks, partial_blocks, offset = deque(run.chunks), list[memoryview](), run.start
        for block in self._fetch_bytes(format_digest(run.pack), run.start, run.stop):
            view, block_end, complete_chunks = memoryview(block), offset + len(block), list[tuple[bytes, int, int]]()
            if partial_blocks:
                digest, start, length = pending_chunks[0]
                partial_blocks.append(view[: start + length - offset])
                if start + length > block_end:
                    offset = block_end
                    continue
                pending_chunks.popleft()
                yield self._check_chunks(run, memoryview(b"".join(partial_blocks)), [(digest, 0, length)])
                partial_blocks = []
            while pending_chunks and pending_chunks[0][1] + pending_chunks[0][2] <= block_end:
                digest, start, length = pending_chunks.popleft()
                complete_chunks.append((digest, start - offset, start - offset + length))
            yield self._check_chunks(run, view, complete_chunks)
            if pending_chunks and pending_chunks[0][1] < block_end:
                partial_blocks = [view[pending_chunks[0][1] - offset :]]
            offset = block_end
        if pending_chunks:
            digest, start, length = pending_chunks[0]
            raise _spoiled_chunk_error(digest, ChunkLocation(run.pack, start, length))

    def stream(self, digest: bytes) -> Iterator[bytes]:
        """A chunk that is too large for memory; its last block only when the digest of the whole is right."""
        location = self.locate(digest)
        hasher, held_block = blake3(), b""
        for block in self._fetch_bytes(format_digest(location.pack), location.start, location.start + location.length):
            if held_block:
                yield held_block
            hasher.update(block)
            held_block = block
        if hasher.digest() != digest:
            raise _spoiled_chunk_error(digest, location)
        yield held_block

    def _locate_chunks(self, digests: Collection[bytes]) -> Iterator[tuple[bytes, int, int, bytes]]:
        find = self._index.find
        with self._lock:
            for digest in digests:
                index_hit = find(digest)
                if index_hit is None:
                    raise _missing_chunk_error(digest)
                yield (*index_hit[1], digest)

    def _check_chunks(self, run: FetchRun, data: memoryview, chunks: list[tuple[bytes, int, int]]) -> FetchedPart:
        for digest, chunk_start, chunk_end in chunks:
            if blake3(data[chunk_start:chunk_end]).digest() != digest:
                raise _spoiled_chunk_error(
                    digest,
                    next(
                        ChunkLocation(run.pack, *pack_range)
                        for chunk_digest, *pack_range in run.chunks
                        if chunk_digest == digest
                    ),
                )
        return data, chunks

    def _read_pieces(self, pieces: list[ContentPiece], start: int, stop: int) -> Iterator[bytes]:
        """Neighbouring pieces, cut to a range that counts from the first of them."""
        if pieces[0][1] > MAX_PACK_BYTES:
            yield from self._read_blob(pieces[0], start, stop)
            return
        chunk_views: dict[bytes, memoryview] = {}
        if sum(length for _, length in pieces) > _BLOCK_BYTES // 2:
            for run in self.plan({digest for digest, _ in pieces}):
                chunk_views |= {
                    digest: data[chunk_start:chunk_end]
                    for data, chunks in self.each(run)
                    for digest, chunk_start, chunk_end in chunks
                }
        offset = 0
        for digest, length in pieces:
            piece = chunk_views[digest] if chunk_views else self.chunk(digest, allows_cache_folder=False)
            if len(piece) != length:
                raise CorruptData(
                    f"chunk {format_digest(digest)[:20]}… is not as long as its file says", "publish it again"
                )
            yield bytes(piece[max(start - offset, 0) : stop - offset])
            offset += length

    def _read_blob(self, piece: ContentPiece, start: int, stop: int) -> Iterator[bytes]:
        digest, length = piece
        if start <= 0 and stop >= length:
            return self.stream(digest)
        location = self.locate(digest)
        return self._fetch_bytes(
            format_digest(location.pack), location.start + max(start, 0), location.start + min(stop, length)
        )

    def _iterate_pieces(
        self, pieces: Iterable[ContentPiece], depth: int, offset: int, byte_span: tuple[int, int]
    ) -> Iterator[tuple[int, bytes, int]]:
        for digest, length in pieces:
            if offset >= byte_span[1]:
                return
            if offset + length > byte_span[0] and not depth:
                yield offset, digest, length
            elif offset + length > byte_span[0]:
                sub_pieces = decode_recipe(self.chunk(digest), depth)
                if sum(sub_length for _, sub_length in sub_pieces) != length:
                    raise CorruptData(
                        f"recipe {format_digest(digest)[:20]}… is not as long as its file says", "publish it again"
                    )
                yield from self._iterate_pieces(sub_pieces, depth - 1, offset, byte_span)
            offset += length

    def _iterate_leaves(self, ref: PageRef, next_first: bytes | None, prefix: bytes) -> Iterator[TreePage]:
        """The leaf pages that can hold paths with a prefix; `next_first` is the first path after this page."""
        if next_first is not None and next_first <= prefix:
            return
        if ref.first > prefix and not ref.first.startswith(prefix):
            return
        page = self.page(ref)
        if not page.level:
            yield page
        for page_ref, next_ref in itertools.zip_longest(page.pages, page.pages[1:]):
            yield from self._iterate_leaves(page_ref, next_ref.first if next_ref else next_first, prefix)

    def _read_from_blocks(self, location: ChunkLocation, *, allows_cache_folder: bool, bypasses_cache: bool) -> bytes:
        if not location.length:
            return b""
        first_block, last_block = location.start // _BLOCK_BYTES, (location.start + location.length - 1) // _BLOCK_BYTES
        data = b"".join(
            self._read_block(
                location.pack, number, allows_cache_folder=allows_cache_folder, bypasses_cache=bypasses_cache
            )
            for number in range(first_block, last_block + 1)
        )
        return data[location.start - first_block * _BLOCK_BYTES :][: location.length]

    def _read_block(self, pack: bytes, block_number: int, *, allows_cache_folder: bool, bypasses_cache: bool) -> bytes:
        key = (pack, block_number)
        cache_file = (
            self._cache_folder / f"{pack.hex()}-{block_number}"
            if allows_cache_folder and self._cache_folder is not None
            else None
        )
        block = None
        if not bypasses_cache:
            with self._lock:
                block = self._blocks.get(key)
            if block is None and cache_file is not None:
                with contextlib.suppress(OSError):
                    block = cache_file.read_bytes()
        if block is None:
            block = b"".join(
                self._fetch_bytes(format_digest(pack), block_number * _BLOCK_BYTES, (block_number + 1) * _BLOCK_BYTES)
            )
            if cache_file is not None:
                _write_cache_file(cache_file, block)
        with self._lock:
            self._blocks[key] = block
            self._blocks.move_to_end(key)
            if len(self._blocks) > _MAX_CACHED_BLOCKS:
                self._blocks.popitem(last=False)
        return block

    def _get_shard(self, digest: str) -> ChunkShard:
        if digest not in self._loaded_shards:
            self._loaded_shards[digest] = self._load_shard(digest)
        return self._loaded_shards[digest]

    def _load_shard(self, digest: str) -> ChunkShard:
        cache_file = (
            self._cache_folder / f"{parse_digest(digest).hex()}-shard" if self._cache_folder is not None else None
        )
        if cache_file is not None:
            with contextlib.suppress(OSError, ValueError), cache_file.open("rb") as open_file:
                data = mmap.mmap(open_file.fileno(), 0, access=mmap.ACCESS_READ)
                if blake3(data).digest() == parse_digest(digest):
                    return ChunkShard(data)
        shard_data = to_mapped_bytes(self._fetch_bytes(digest, 0, None))
        if blake3(shard_data).digest() != parse_digest(digest):
            raise CorruptData(
                f"the index {digest[:20]}… of a batch is spoiled", "restore it, or publish the tree again"
            )
        if cache_file is not None:
            _write_cache_file(cache_file, shard_data)
        return ChunkShard(shard_data)


def _create_run(locations: list[tuple[bytes, int, int, bytes]], stop: int) -> FetchRun:
    chunks = [(digest, start, length) for _, start, length, digest in locations]
    return FetchRun(locations[0][0], chunks[0][1], stop, chunks)


def _group_pieces(pieces: Iterator[tuple[int, bytes, int]]) -> Iterator[list[tuple[int, bytes, int]]]:
    """Pieces in groups that fit in memory; one that does not is alone."""
    group: list[tuple[int, bytes, int]] = []
    group_bytes = 0
    for piece in pieces:
        if group and group_bytes + piece[2] > _READ_GROUP_BYTES:
            yield group
            group, group_bytes = [], 0
        group.append(piece)
        group_bytes += piece[2]
    if group:
        yield group


def _write_cache_file(file: Path, data: bytes | mmap.mmap) -> None:
    """Write a file of the cache whole or not at all; where it cannot be written there is no cache."""
    draft_path = file.with_name(f".{file.name}-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft_path.write_bytes(data)
            draft_path.replace(file)
        finally:
            draft_path.unlink(missing_ok=True)


def _missing_chunk_error(digest: bytes) -> CorruptData:
    return CorruptData(f"chunk {format_digest(digest)[:20]}… is in no batch of the tree", "publish the tree again")


def _spoiled_chunk_error(digest: bytes, location: ChunkLocation) -> CorruptData:
    location_text = f"{format_digest(location.pack)[:20]}… at {location.start}"
    return CorruptData(
        f"chunk {format_digest(digest)[:20]}… in pack {location_text} is spoiled",
        "restore it, or publish the tree again",
    )
