"""Verifying a tree: everything is read, every digest computed, each broken chunk named with what it breaks."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from falaj.core.errors import Corrupt, NotFound
from falaj.snapshot.format import Entry, PageRef, written
from falaj.snapshot.read import Run, Snapshot

_WINDOW_BYTES, _WINDOW_PIECES = 64 << 20, 8192


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is broken, and a file that suffers from it."""

    path: bytes
    """The file; of a broken page the first path in it, of the tree itself nothing."""
    digest: str
    """The chunk, or the root."""
    problem: str


def verify(snapshot: Snapshot, advance: Callable[[int], None] = lambda _bytes: None) -> Iterator[Fault]:
    """Every fault of a tree; none means that each byte of each file is what was published."""
    seen = _Seen()
    window: list[tuple[bytes, bytes, int]] = []
    have = 0
    for item in _entries(snapshot, snapshot.root(), seen):
        if isinstance(item, Fault):
            yield item
            continue
        try:
            for _, digest, length in snapshot.pieces(item.content):
                window.append((digest, item.path, length))
                have += length
                if have > _WINDOW_BYTES or len(window) >= _WINDOW_PIECES:
                    yield from _check(snapshot, window)
                    advance(have)
                    window, have = [], 0
        except (Corrupt, NotFound) as error:
            yield Fault(item.path, item.digest, error.message)
    yield from _check(snapshot, window)
    advance(have)
    yield from seen.differs(snapshot)


class _Seen:
    """How much a tree really holds."""

    def __init__(self) -> None:
        self.num_files = self.size_bytes = 0
        self.whole = True

    def differs(self, snapshot: Snapshot) -> Iterator[Fault]:
        """A fault when the record says otherwise; what is broken anyway cannot be counted."""
        tree = snapshot.tree
        if self.whole and (self.num_files, self.size_bytes) != (tree.num_files, tree.size_bytes):
            found = f"{self.num_files} files of {self.size_bytes} bytes"
            yield Fault(b"", tree.root, f"the tree holds {found}, its record says otherwise")


def _entries(snapshot: Snapshot, ref: PageRef, seen: _Seen) -> Iterator[Entry | Fault]:
    try:
        page = snapshot.page(ref)
    except (Corrupt, NotFound) as error:
        seen.whole = False
        yield Fault(ref.first, written(ref.digest), f"a page of the tree is lost: {error.message}")
        return
    for entry in page.entries:
        seen.num_files += 1
        seen.size_bytes += entry.size
        yield entry
    for below in page.pages:
        yield from _entries(snapshot, below, seen)


def _check(snapshot: Snapshot, window: list[tuple[bytes, bytes, int]]) -> Iterator[Fault]:
    broken: dict[bytes, str] = {}
    wanted = set[bytes]()
    for digest in {digest for digest, _, _ in window}:
        try:
            snapshot.locate(digest)
            wanted.add(digest)
        except Corrupt as error:
            broken[digest] = error.message
    for run in snapshot.plan(wanted):
        broken |= _broken(snapshot, run)
    if broken:
        for digest, path, _ in window:
            if digest in broken:
                yield Fault(path, written(digest), broken[digest])


def _broken(snapshot: Snapshot, run: Run) -> dict[bytes, str]:
    """The broken chunks of a run. One that does not come whole is asked for chunk by chunk."""
    try:
        if run.is_large:
            deque(snapshot.stream(run.chunks[0][0]), maxlen=0)
        else:
            deque(snapshot.each(run), maxlen=0)
    except (Corrupt, NotFound) as error:
        if len(run.chunks) == 1:
            return {run.chunks[0][0]: error.message}
        alone = [
            Run(run.pack, start, start + length, [(digest, start, length)]) for digest, start, length in run.chunks
        ]
        return {digest: why for each in alone for digest, why in _broken(snapshot, each).items()}
    return {}
