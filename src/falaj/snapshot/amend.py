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
from falaj.snapshot.folder_scan import keep_content
from falaj.snapshot.outbox import PieceSink, PublishOutbox, WrittenTree
from falaj.snapshot.publish_state import PublishState
from falaj.snapshot.tree_format import (
    MODE_EXECUTABLE,
    MODE_FILE,
    MODE_LINK,
    ContentPiece,
    FileContent,
    PageWriter,
    TreeEntry,
    decode_recipe,
)
from falaj.snapshot.tree_reader import TreeSnapshot

MIN_BATCH_BYTES, _MAX_BATCHES = 2 << 20, 64
"""How much is tied together at least, and into how many batches a large tree is cut."""
_FETCH_BYTES = 4 << 20
ChangedFiles = Mapping[bytes, Path | bytes]
"""Files by their paths in the tree; bytes where they are at hand, and will have nothing in common with later ones."""


def amend_tree(base: TreeSnapshot | None, changed: ChangedFiles, sink: PieceSink) -> WrittenTree:
    """Send the files that changed, and what may not be kept where it lies; gives the tree to commit."""
    pages: list[bytes] = []

    def keep_page(data: bytes) -> bytes:
        pages.append(data)
        return blake3(data).digest()

    total_bytes = base.tree.size_bytes if base is not None else sum(map(_content_size, changed.values()))
    with (
        PublishState(None) as state,
        PublishOutbox(sink, base, state, reusable_batches=_reusable_batches(base, changed)) as outbox,
    ):
        page_writer, num_files, size_bytes = PageWriter(keep_page), 0, 0
        for path, entry in _merge_paths(base, changed):
            file = changed.get(path)
            mode, body, num_bytes = _ensure_sent(
                base, entry, None if file is None else keep_content(file, outbox), outbox
            )
            page_writer.add(path, mode, body)
            num_files, size_bytes = num_files + 1, size_bytes + num_bytes
            if outbox.filled >= max(MIN_BATCH_BYTES, total_bytes // _MAX_BATCHES):
                outbox.end_batch()
        root = page_writer.finish()
        if not outbox.alone:  # else they go with it, as all of it goes when any of it changes
            outbox.end_batch()
        for page_data in pages:
            outbox.page(page_data)
        return outbox.finish(root, num_files, size_bytes)


def find_holding_batches(snapshot: TreeSnapshot, entries: Iterable[TreeEntry]) -> frozenset[str]:
    """The batches in which a chunk of these files lies, by the digests of their bundles."""
    wanted_digests = {
        digest for entry in entries for digest in _iterate_digests(snapshot, entry.content.pieces, entry.content.depth)
    }
    shards = zip(snapshot.tree.batches, snapshot.shards, strict=True)
    return frozenset(batch.bundle for batch, load_shard in shards if any(map(load_shard().find, wanted_digests)))


def _content_size(file: Path | bytes) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size


def _reusable_batches(base: TreeSnapshot | None, changed: ChangedFiles) -> frozenset[int]:
    """The batches that hold nothing but chunks of files that stay."""
    if base is None:
        return frozenset()
    contents = (entry.content for entry in base.entries() if entry.path not in changed)
    used_digests = {digest for content in contents for digest in _iterate_digests(base, content.pieces, content.depth)}
    shards = enumerate(load_shard() for load_shard in base.shards)
    return frozenset(
        batch_number for batch_number, shard in shards if all(digest in used_digests for digest, _ in shard.chunks())
    )


def _merge_paths(base: TreeSnapshot | None, changed: ChangedFiles) -> Iterator[tuple[bytes, TreeEntry | None]]:
    """Every path in order, with what the base has there."""
    last_path = b""
    base_entries = ((entry.path, 0, entry) for entry in base.entries()) if base is not None else ()
    for path, _, entry in merge(
        base_entries, ((path, 1, None) for path in sorted(changed)), key=lambda merge_item: merge_item[:2]
    ):
        if path != last_path:
            yield path, entry
        last_path = path


def _ensure_sent(
    base: TreeSnapshot | None, entry: TreeEntry | None, new_content: FileContent | None, outbox: PublishOutbox
) -> tuple[int, bytes, int]:
    """Mode, content and size of a file, all of which is then in the house."""
    mode = MODE_EXECUTABLE if entry is not None and entry.executable else MODE_FILE
    if new_content is not None:
        return mode, new_content.encode(), new_content.size
    if base is None or entry is None:
        raise Invalid("a file is neither in the tree nor given", "give it")
    if entry.kind == "link":
        return MODE_LINK, entry.target, 0
    encoded = entry.content.encode()
    if not outbox.holds(encoded):
        _resend_chunks(base, entry.content, outbox)
    return mode, encoded, entry.size


def _resend_chunks(base: TreeSnapshot, content: FileContent, outbox: PublishOutbox) -> None:
    """Keep every chunk of a file as the base has it."""
    for recipe in _iterate_recipes(base, content.pieces, content.depth):
        outbox.page(recipe)
    wanted_digests, wanted_bytes = dict[bytes, None](), 0
    for _, digest, length in base.pieces(content):
        if wanted_bytes and wanted_bytes + length > _FETCH_BYTES:
            _fetch_chunks(base, wanted_digests, outbox)
            wanted_digests, wanted_bytes = {}, 0
        if not outbox.has(digest):
            wanted_digests[digest] = None
            wanted_bytes += length
    _fetch_chunks(base, wanted_digests, outbox)


def _fetch_chunks(base: TreeSnapshot, wanted_digests: Collection[bytes], outbox: PublishOutbox) -> None:
    for run in base.plan(wanted_digests):
        if run.is_large:
            outbox.pour(base.stream(run.chunks[0][0]))
            continue
        for data, chunks in base.each(run):
            for _, start, stop in chunks:
                outbox.chunk(data[start:stop])


def _iterate_digests(base: TreeSnapshot, pieces: Iterable[ContentPiece], depth: int) -> Iterator[bytes]:
    """The digests of all that a file is made of, recipes too."""
    for digest, _ in pieces:
        yield digest
        if depth:
            yield from _iterate_digests(base, decode_recipe(base.chunk(digest), depth), depth - 1)


def _iterate_recipes(base: TreeSnapshot, pieces: Iterable[ContentPiece], depth: int) -> Iterator[bytes]:
    for digest, _ in pieces if depth else ():
        data = base.chunk(digest)
        yield data
        yield from _iterate_recipes(base, decode_recipe(data, depth), depth - 1)
