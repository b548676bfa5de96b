"""Verifying a tree: everything is read, every digest computed, each broken chunk named with what it breaks."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from falaj.core.errors import CorruptData, NotFound
from falaj.snapshot.tree_format import PageRef, TreeEntry, format_digest
from falaj.snapshot.tree_reader import FetchRun, TreeSnapshot

_MAX_WINDOW_BYTES, _MAX_WINDOW_PIECES = 64 << 20, 8192


@dataclass(frozen=True, slots=True)
class TreeFault:
    """One thing that is broken, and a file that suffers from it."""

    path: bytes
    """The file; of a broken page the first path in it, of the tree itself nothing."""
    digest: str
    """The chunk, or the root."""
    problem: str


def verify_tree(snapshot: TreeSnapshot, advance: Callable[[int], None] = lambda _bytes: None) -> Iterator[TreeFault]:
    """Every fault of a tree; none means that each byte of each file is what was published."""
    tree_totals = _TreeTotals()
    window: list[tuple[bytes, bytes, int]] = []
    window_bytes = 0
    for item in _iterate_entries(snapshot, snapshot.root(), tree_totals):
        if isinstance(item, TreeFault):
            yield item
            continue
        try:
            for _, digest, length in snapshot.pieces(item.content):
                window.append((digest, item.path, length))
                window_bytes += length
                if window_bytes > _MAX_WINDOW_BYTES or len(window) >= _MAX_WINDOW_PIECES:
                    yield from _check_window(snapshot, window)
                    advance(window_bytes)
                    window, window_bytes = [], 0
        except (CorruptData, NotFound) as error:
            yield TreeFault(item.path, item.digest, error.message)
    yield from _check_window(snapshot, window)
    advance(window_bytes)
    yield from tree_totals.differs(snapshot)


class _TreeTotals:
    """How much a tree really holds."""

    def __init__(self) -> None:
        self.num_files = self.size_bytes = 0
        self.whole = True

    def differs(self, snapshot: TreeSnapshot) -> Iterator[TreeFault]:
        """A fault when the record says otherwise; what is broken anyway cannot be counted."""
        tree = snapshot.tree
        if self.whole and (self.num_files, self.size_bytes) != (tree.num_files, tree.size_bytes):
            totals_text = f"{self.num_files} files of {self.size_bytes} bytes"
            yield TreeFault(b"", tree.root, f"the tree holds {totals_text}, its record says otherwise")


def _iterate_entries(snapshot: TreeSnapshot, ref: PageRef, tree_totals: _TreeTotals) -> Iterator[TreeEntry | TreeFault]:
    try:
        page = snapshot.page(ref)
    except (CorruptData, NotFound) as error:
        tree_totals.whole = False
        yield TreeFault(ref.first, format_digest(ref.digest), f"a page of the tree is lost: {error.message}")
        return
    for entry in page.entries:
        tree_totals.num_files += 1
        tree_totals.size_bytes += entry.size
        yield entry
    for page_ref in page.pages:
        yield from _iterate_entries(snapshot, page_ref, tree_totals)


def _check_window(snapshot: TreeSnapshot, window: list[tuple[bytes, bytes, int]]) -> Iterator[TreeFault]:
    broken: dict[bytes, str] = {}
    wanted_digests = set[bytes]()
    for digest in {digest for digest, _, _ in window}:
        try:
            snapshot.locate(digest)
            wanted_digests.add(digest)
        except CorruptData as error:
            broken[digest] = error.message
    for run in snapshot.plan(wanted_digests):
        broken |= _find_broken(snapshot, run)
    if broken:
        for digest, path, _ in window:
            if digest in broken:
                yield TreeFault(path, format_digest(digest), broken[digest])


def _find_broken(snapshot: TreeSnapshot, run: FetchRun) -> dict[bytes, str]:
    """The broken chunks of a run. One that does not come whole is asked for chunk by chunk."""
    try:
        if run.is_large:
            deque(snapshot.stream(run.chunks[0][0]), maxlen=0)
        else:
            deque(snapshot.each(run), maxlen=0)
    except (CorruptData, NotFound) as error:
        if len(run.chunks) == 1:
            return {run.chunks[0][0]: error.message}
        single_runs = [
            FetchRun(run.pack, start, start + length, [(digest, start, length)]) for digest, start, length in run.chunks
        ]
        return {
            digest: reason
            for single_run in single_runs
            for digest, reason in _find_broken(snapshot, single_run).items()
        }
    return {}
