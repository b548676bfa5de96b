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

from falaj.core.errors import Corrupt, Invalid, NotFound
from falaj.snapshot.format import (
    PACK_BYTES,
    Content,
    Entry,
    Page,
    PageRef,
    Piece,
    decode_page,
    decode_recipe,
    raw,
    shown,
    written,
)
from falaj.snapshot.records import Tree
from falaj.snapshot.shard import Index, Place, Shard, mapped

Fetch = Callable[[str, int, int | None], Iterator[bytes]]
"""Bytes by digest, from and to a place in them; a stop beyond the end gives what there is."""

__all__ = ["Entry", "Fetch", "Part", "Run", "Snapshot"]

RUN_BYTES = PACK_BYTES
"""What is fetched in one go."""
_BLOCK = 1 << 20
_BLOCKS, _PAGES = 16, 64
_GAP = 128 << 10
_READ_RUN = 4 << 20


class Run(NamedTuple):
    """Chunks of one pack that are fetched in one go: digest, start and length of each."""

    pack: bytes
    start: int
    stop: int
    chunks: list[tuple[bytes, int, int]]

    @property
    def is_large(self) -> bool:
        """Whether it is one chunk that does not fit in memory."""
        return self.stop - self.start > PACK_BYTES


Part = tuple[memoryview, list[tuple[bytes, int, int]]]
"""Some bytes, and the chunks in them: digest, begin and end of each."""


class Snapshot:
    """A tree and a way to its bytes. Threads may share one."""

    def __init__(self, tree: Tree, fetch: Fetch, cache: Path | None = None) -> None:
        self.tree = tree
        self.shards = [partial(self._shard, batch.shard) for batch in tree.batches]
        self._fetch = fetch
        self._cache = cache
        self._shards: dict[str, Shard] = {}
        self._index = Index(self.shards, learns=True)
        self._blocks: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._pages: OrderedDict[bytes, Page] = OrderedDict()
        self._lock = Lock()

    def entries(self, prefix: bytes = b"") -> Iterator[Entry]:
        """The entries whose paths begin with `prefix`, sorted by path."""
        last = b""
        for page in self._leaves(self.root(), None, prefix):
            for entry in page.entries:
                if entry.path <= last:
                    raise Corrupt(f"{shown(entry.path)} is out of order in the tree", "publish it again")
                last = entry.path
                if last.startswith(prefix):
                    yield entry

    def entry(self, path: bytes) -> Entry:
        """The entry of one path; reads the pages on the way to it only."""
        page = self.page(self.root())
        while page.level:
            at = bisect_right(page.pages, path, key=lambda ref: ref.first) - 1
            if at < 0:
                break
            page = self.page(page.pages[at])
        for entry in page.entries:
            if entry.path == path:
                return entry
        raise NotFound(f"there is no file {shown(path)} in the tree", "list its files")

    def read(self, entry: Entry, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """A file's bytes, or a range of them. Every chunk's digest is checked before any of it is handed out.

        A file that was composed of one large blob is checked as a whole when it is read whole; a range of it rests on
        the store, which authenticates every block.
        """
        if entry.kind != "file":
            raise Invalid(f"{shown(entry.path)} is a link to {shown(entry.target)}", "read the file it points to")
        stop = entry.size if stop is None else min(stop, entry.size)
        if start < 0 or (stop < start and start <= entry.size):
            raise Invalid(f"a range from {start} to {stop}", "ranges count bytes from 0 and end after they begin")
        for group in _groups(self.pieces(entry.content, start, stop)):
            at = group[0][0]
            yield from self._read_pieces([(digest, length) for _, digest, length in group], start - at, stop - at)

    def root(self) -> PageRef:
        """The topmost page."""
        return PageRef(-1, b"", raw(self.tree.root))

    def page(self, ref: PageRef) -> Page:
        """A page, checked against what the page above says of it."""
        with self._lock:
            page = self._pages.get(ref.digest)
        if page is None:
            page = decode_page(self.chunk(ref.digest))
        with self._lock:
            self._pages[ref.digest] = page
            self._pages.move_to_end(ref.digest)
            if len(self._pages) > _PAGES:
                self._pages.popitem(last=False)
        first = page.pages[0].first if page.level else page.entries[0].path if page.entries else b""
        if ref.level >= 0 and (page.level != ref.level or first != ref.first):
            raise Corrupt(f"page {written(ref.digest)[:20]}… is not where it belongs", "publish the tree again")
        return page

    def pieces(self, content: Content, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, bytes, int]]:
        """The pieces that hold a range of a file: place in it, digest, length. Other recipes are not read."""
        return self._pieces(content.pieces, content.depth, 0, (start, content.size if stop is None else stop))

    def locate(self, digest: bytes) -> Place:
        """Where a chunk lies, or Corrupt."""
        with self._lock:
            found = self._index.find(digest)
        if found is None:
            raise _nowhere(digest)
        return found[1]

    def chunk(self, digest: bytes, *, keep: bool = True) -> bytes:
        """A page, a recipe or a small file; `keep` allows the cache folder."""
        place = self.locate(digest)
        if place.length > PACK_BYTES:
            raise Corrupt(f"chunk {written(digest)[:20]}… is too large for what it should be", "publish the tree again")
        for fresh in (False, True):
            data = self._from_blocks(place, keep=keep, fresh=fresh)
            if blake3(data).digest() == digest:
                return data
        raise _spoiled(digest, place)

    def plan(self, digests: Collection[bytes]) -> list[Run]:
        """The fetches that bring these chunks: neighbours in a pack come together."""
        places = sorted(self._places(digests))
        runs: list[Run] = []
        first = last = 0
        for at, (pack, start, length, _) in enumerate(places):
            stop, before = start + length, places[at - 1][0]
            if at and (pack != before or start > last + _GAP or max(stop, last) - places[first][1] > RUN_BYTES):
                runs.append(_run(places[first:at], last))
                first, last = at, 0
            last = max(last, stop)
        if places:
            runs.append(_run(places[first:], last))
        return runs

    def each(self, run: Run) -> Iterator[Part]:
        """The chunks of a run as their bytes come, checked: a block goes from hand to hand while the processor still
        has it near. A chunk that came in several blocks is put together, by itself."""
        waiting, held, at = deque(run.chunks), list[memoryview](), run.start
        for block in self._fetch(written(run.pack), run.start, run.stop):
            view, end, inside = memoryview(block), at + len(block), list[tuple[bytes, int, int]]()
            if held:
                digest, start, length = waiting[0]
                held.append(view[: start + length - at])
                if start + length > end:
                    at = end
                    continue
                waiting.popleft()
                yield self._checked(run, memoryview(b"".join(held)), [(digest, 0, length)])
                held = []
            while waiting and waiting[0][1] + waiting[0][2] <= end:
                digest, start, length = waiting.popleft()
                inside.append((digest, start - at, start - at + length))
            yield self._checked(run, view, inside)
            if waiting and waiting[0][1] < end:
                held = [view[waiting[0][1] - at :]]
            at = end
        if waiting:
            digest, start, length = waiting[0]
            raise _spoiled(digest, Place(run.pack, start, length))

    def stream(self, digest: bytes) -> Iterator[bytes]:
        """A chunk that is too large for memory; its last block only when the digest of the whole is right."""
        place = self.locate(digest)
        hashed, held = blake3(), b""
        for block in self._fetch(written(place.pack), place.start, place.start + place.length):
            if held:
                yield held
            hashed.update(block)
            held = block
        if hashed.digest() != digest:
            raise _spoiled(digest, place)
        yield held

    def _places(self, digests: Collection[bytes]) -> Iterator[tuple[bytes, int, int, bytes]]:
        find = self._index.find
        with self._lock:
            for digest in digests:
                found = find(digest)
                if found is None:
                    raise _nowhere(digest)
                yield (*found[1], digest)

    def _checked(self, run: Run, data: memoryview, chunks: list[tuple[bytes, int, int]]) -> Part:
        for digest, begin, end in chunks:
            if blake3(data[begin:end]).digest() != digest:
                raise _spoiled(digest, next(Place(run.pack, *where) for known, *where in run.chunks if known == digest))
        return data, chunks

    def _read_pieces(self, pieces: list[Piece], start: int, stop: int) -> Iterator[bytes]:
        """Neighbouring pieces, cut to a range that counts from the first of them."""
        if pieces[0][1] > PACK_BYTES:
            yield from self._read_blob(pieces[0], start, stop)
            return
        got: dict[bytes, memoryview] = {}
        if sum(length for _, length in pieces) > _BLOCK // 2:
            for run in self.plan({digest for digest, _ in pieces}):
                got |= {digest: data[begin:end] for data, all_ in self.each(run) for digest, begin, end in all_}
        at = 0
        for digest, length in pieces:
            piece = got[digest] if got else self.chunk(digest, keep=False)
            if len(piece) != length:
                raise Corrupt(f"chunk {written(digest)[:20]}… is not as long as its file says", "publish it again")
            yield bytes(piece[max(start - at, 0) : stop - at])
            at += length

    def _read_blob(self, piece: Piece, start: int, stop: int) -> Iterator[bytes]:
        digest, length = piece
        if start <= 0 and stop >= length:
            return self.stream(digest)
        place = self.locate(digest)
        return self._fetch(written(place.pack), place.start + max(start, 0), place.start + min(stop, length))

    def _pieces(
        self, pieces: Iterable[Piece], depth: int, at: int, span: tuple[int, int]
    ) -> Iterator[tuple[int, bytes, int]]:
        for digest, length in pieces:
            if at >= span[1]:
                return
            if at + length > span[0] and not depth:
                yield at, digest, length
            elif at + length > span[0]:
                below = decode_recipe(self.chunk(digest), depth)
                if sum(each for _, each in below) != length:
                    raise Corrupt(f"recipe {written(digest)[:20]}… is not as long as its file says", "publish it again")
                yield from self._pieces(below, depth - 1, at, span)
            at += length

    def _leaves(self, ref: PageRef, until: bytes | None, prefix: bytes) -> Iterator[Page]:
        """The leaf pages that can hold paths with a prefix; `until` is the first path after this page."""
        if until is not None and until <= prefix:
            return
        if ref.first > prefix and not ref.first.startswith(prefix):
            return
        page = self.page(ref)
        if not page.level:
            yield page
        for below, after in itertools.zip_longest(page.pages, page.pages[1:]):
            yield from self._leaves(below, after.first if after else until, prefix)

    def _from_blocks(self, place: Place, *, keep: bool, fresh: bool) -> bytes:
        if not place.length:
            return b""
        first, last = place.start // _BLOCK, (place.start + place.length - 1) // _BLOCK
        data = b"".join(self._block(place.pack, number, keep=keep, fresh=fresh) for number in range(first, last + 1))
        return data[place.start - first * _BLOCK :][: place.length]

    def _block(self, pack: bytes, number: int, *, keep: bool, fresh: bool) -> bytes:
        key = (pack, number)
        file = self._cache / f"{pack.hex()}-{number}" if keep and self._cache is not None else None
        block = None
        if not fresh:
            with self._lock:
                block = self._blocks.get(key)
            if block is None and file is not None:
                with contextlib.suppress(OSError):
                    block = file.read_bytes()
        if block is None:
            block = b"".join(self._fetch(written(pack), number * _BLOCK, (number + 1) * _BLOCK))
            if file is not None:
                _keep(file, block)
        with self._lock:
            self._blocks[key] = block
            self._blocks.move_to_end(key)
            if len(self._blocks) > _BLOCKS:
                self._blocks.popitem(last=False)
        return block

    def _shard(self, digest: str) -> Shard:
        if digest not in self._shards:
            self._shards[digest] = self._load(digest)
        return self._shards[digest]

    def _load(self, digest: str) -> Shard:
        file = self._cache / f"{raw(digest).hex()}-shard" if self._cache is not None else None
        if file is not None:
            with contextlib.suppress(OSError, ValueError), file.open("rb") as kept:
                data = mmap.mmap(kept.fileno(), 0, access=mmap.ACCESS_READ)
                if blake3(data).digest() == raw(digest):
                    return Shard(data)
        found = mapped(self._fetch(digest, 0, None))
        if blake3(found).digest() != raw(digest):
            raise Corrupt(f"the index {digest[:20]}… of a batch is spoiled", "restore it, or publish the tree again")
        if file is not None:
            _keep(file, found)
        return Shard(found)


def _run(places: list[tuple[bytes, int, int, bytes]], stop: int) -> Run:
    chunks = [(digest, start, length) for _, start, length, digest in places]
    return Run(places[0][0], chunks[0][1], stop, chunks)


def _groups(pieces: Iterator[tuple[int, bytes, int]]) -> Iterator[list[tuple[int, bytes, int]]]:
    """Pieces in groups that fit in memory; one that does not is alone."""
    group: list[tuple[int, bytes, int]] = []
    have = 0
    for piece in pieces:
        if group and have + piece[2] > _READ_RUN:
            yield group
            group, have = [], 0
        group.append(piece)
        have += piece[2]
    if group:
        yield group


def _keep(file: Path, data: bytes | mmap.mmap) -> None:
    """Write a file of the cache whole or not at all; where it cannot be written there is no cache."""
    part = file.with_name(f".{file.name}-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(data)
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


def _nowhere(digest: bytes) -> Corrupt:
    return Corrupt(f"chunk {written(digest)[:20]}… is in no batch of the tree", "publish the tree again")


def _spoiled(digest: bytes, place: Place) -> Corrupt:
    where = f"{written(place.pack)[:20]}… at {place.start}"
    return Corrupt(f"chunk {written(digest)[:20]}… in pack {where} is spoiled", "restore it, or publish the tree again")
