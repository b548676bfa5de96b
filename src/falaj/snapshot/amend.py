"""Amending: the tree after another, some of its files written anew, with nothing stored kept of what those were.

A version hands out every batch it names, whole. So a batch of the base is kept only where each chunk of it belongs to a
file that stays; what lay beside others is sent again. What is sent is tied into batches of a few megabytes, so that
whoever amends next sends little; pages, which change every time, come last, in a batch of their own.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from heapq import merge
from pathlib import Path

from blake3 import blake3

from falaj.core.errors import Invalid
from falaj.snapshot.format import EXECUTABLE, FILE, LINK, Content, Entry, PageWriter, Piece, decode_recipe
from falaj.snapshot.outbox import Outbox, Sink, Written
from falaj.snapshot.read import Snapshot
from falaj.snapshot.scan import content_of
from falaj.snapshot.state import State

BATCH_BYTES, _BATCHES = 2 << 20, 64
"""How much is tied together at least, and into how many batches a large tree is cut."""
_RUN_BYTES = 4 << 20
Changes = Mapping[bytes, Path | bytes]
"""Files by their paths in the tree; bytes where they are at hand, and will have nothing in common with later ones."""


def amend(base: Snapshot | None, changed: Changes, sink: Sink) -> Written:
    """Send the files that changed, and what may not be kept where it lies; gives the tree to commit."""
    pages: list[bytes] = []

    def page(data: bytes) -> bytes:
        pages.append(data)
        return blake3(data).digest()

    size = base.tree.size_bytes if base is not None else sum(map(_size, changed.values()))
    with State(None) as state, Outbox(sink, base, state, kept=_clean(base, changed)) as out:
        tree, num_files, size_bytes = PageWriter(page), 0, 0
        for path, entry in _paths(base, changed):
            file = changed.get(path)
            mode, body, num_bytes = _sent(base, entry, None if file is None else content_of(file, out), out)
            tree.add(path, mode, body)
            num_files, size_bytes = num_files + 1, size_bytes + num_bytes
            if out.filled >= max(BATCH_BYTES, size // _BATCHES):
                out.end_batch()
        root = tree.finish()
        if not out.alone:  # else they go with it, as all of it goes when any of it changes
            out.end_batch()
        for each in pages:
            out.page(each)
        return out.finish(root, num_files, size_bytes)


def holding(snapshot: Snapshot, entries: Iterable[Entry]) -> frozenset[str]:
    """The batches in which a chunk of these files lies, by the digests of their bundles."""
    wanted = {digest for entry in entries for digest in _chunks(snapshot, entry.content.pieces, entry.content.depth)}
    shards = zip(snapshot.tree.batches, snapshot.shards, strict=True)
    return frozenset(batch.bundle for batch, load in shards if any(map(load().find, wanted)))


def _size(file: Path | bytes) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size


def _clean(base: Snapshot | None, changed: Changes) -> frozenset[int]:
    """The batches that hold nothing but chunks of files that stay."""
    if base is None:
        return frozenset()
    contents = (entry.content for entry in base.entries() if entry.path not in changed)
    used = {digest for content in contents for digest in _chunks(base, content.pieces, content.depth)}
    shards = enumerate(load() for load in base.shards)
    return frozenset(number for number, shard in shards if all(digest in used for digest, _ in shard.chunks()))


def _paths(base: Snapshot | None, changed: Changes) -> Iterator[tuple[bytes, Entry | None]]:
    """Every path in order, with what the base has there."""
    last = b""
    known = ((entry.path, 0, entry) for entry in base.entries()) if base is not None else ()
    for path, _, entry in merge(known, ((path, 1, None) for path in sorted(changed)), key=lambda one: one[:2]):
        if path != last:
            yield path, entry
        last = path


def _sent(base: Snapshot | None, entry: Entry | None, new: Content | None, out: Outbox) -> tuple[int, bytes, int]:
    """Mode, content and size of a file, all of which is then in the house."""
    mode = EXECUTABLE if entry is not None and entry.executable else FILE
    if new is not None:
        return mode, new.encode(), new.size
    if base is None or entry is None:
        raise Invalid("a file is neither in the tree nor given", "give it")
    if entry.kind == "link":
        return LINK, entry.target, 0
    body = entry.content.encode()
    if not out.holds(body):
        _send_again(base, entry.content, out)
    return mode, body, entry.size


def _send_again(base: Snapshot, content: Content, out: Outbox) -> None:
    """Keep every chunk of a file as the base has it."""
    for recipe in _recipes(base, content.pieces, content.depth):
        out.page(recipe)
    wanted, have = dict[bytes, None](), 0
    for _, digest, length in base.pieces(content):
        if have and have + length > _RUN_BYTES:
            _fetch_into(base, wanted, out)
            wanted, have = {}, 0
        if not out.has(digest):
            wanted[digest] = None
            have += length
    _fetch_into(base, wanted, out)


def _fetch_into(base: Snapshot, wanted: Collection[bytes], out: Outbox) -> None:
    for run in base.plan(wanted):
        if run.is_large:
            out.pour(base.stream(run.chunks[0][0]))
            continue
        for data, chunks in base.each(run):
            for _, begin, end in chunks:
                out.chunk(data[begin:end])


def _chunks(base: Snapshot, pieces: Iterable[Piece], depth: int) -> Iterator[bytes]:
    """The digests of all that a file is made of, recipes too."""
    for digest, _ in pieces:
        yield digest
        if depth:
            yield from _chunks(base, decode_recipe(base.chunk(digest), depth), depth - 1)


def _recipes(base: Snapshot, pieces: Iterable[Piece], depth: int) -> Iterator[bytes]:
    for digest, _ in pieces if depth else ():
        data = base.chunk(digest)
        yield data
        yield from _recipes(base, decode_recipe(data, depth), depth - 1)
