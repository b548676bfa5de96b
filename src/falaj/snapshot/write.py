"""Publishing: a folder, or blobs that lie in the house already, become a tree."""

import contextlib
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from falaj.core.transfer import Receipt
from falaj.snapshot.again import look_at
from falaj.snapshot.format import EXECUTABLE, FILE, LINK, Content, PageWriter, raw, shown, stays_inside
from falaj.snapshot.lists import Lists
from falaj.snapshot.outbox import Outbox, Sink, TakenBack, Written
from falaj.snapshot.read import Snapshot
from falaj.snapshot.scan import KEYS, Found, Marks, mark, meet, read_file, read_link, refuse_home, runs, stamp_of
from falaj.snapshot.state import State, discard, is_settled
from falaj.snapshot.whole import Fingerprint, KeptPage, Plan, fingerprint_of

__all__ = ["Sink", "Written", "compose", "publish_folder"]

_TELL_BYTES = 4 << 20


def publish_folder(
    folder: Path,
    sink: Sink,
    *,
    base: Snapshot | None = None,
    state: Path | None = None,
    advance: Callable[[int], None] = lambda _bytes: None,
    plan: Plan | None = None,
) -> Written:
    """Send what a folder (or one file) holds and the house does not; gives the tree to commit.

    Links are kept as links, empty folders are not kept, and only the owner's right to execute is. `state` is a file
    between publishes of one thing: with it an unchanged file is not read again and an interrupted publish goes on where
    it stopped. Nothing in it is taken for granted; it may be deleted at any time. `plan` is what a look at the folder
    found a moment ago (again.py).
    """
    try:
        return _publish(folder, sink, base, state, advance, plan)
    except (sqlite3.Error, UnicodeError):  # SQLite may quote a spoiled file in its message
        discard(state)
        state = None
    except TakenBack:
        with State(state) as kept:
            kept.forget()
    return _publish(folder, sink, base, state, advance)


def compose(files: Iterable[tuple[bytes, Receipt]], sink: Sink) -> Written:
    """A tree over whole blobs that were sent before; each is one piece of one file, and no byte is copied."""
    with State(None) as state, Outbox(sink, None, state) as out:
        pages = PageWriter(out.page)
        num_files = size_bytes = 0
        for path, receipt in sorted(files, key=lambda file: file[0]):
            if receipt.size:
                out.adopt(receipt)
            pieces = ((raw(receipt.digest), receipt.size),) if receipt.size else ()
            pages.add(path, FILE, Content(receipt.size, 0, pieces).encode())
            num_files += 1
            size_bytes += receipt.size
        return out.finish(pages.finish(), num_files, size_bytes)


def _publish(
    folder: Path,
    sink: Sink,
    base: Snapshot | None,
    state: Path | None,
    advance: Callable[[int], None],
    plan: Plan | None = None,
) -> Written:
    with State(state) as kept:
        if base is None or kept.recall("root") != base.tree.root.encode():
            plan = Plan()
        elif plan is None:
            plan = look_at(folder, kept)
        if base is not None and plan.fingerprint and plan.fingerprint == kept.recall("fingerprint"):
            advance(base.tree.size_bytes)
            return Written(base.tree, kept_files=base.tree.num_files)
        with Outbox(sink, base, kept) as out:
            folder_read = _Folder(out, kept, plan, advance)
            done = folder_read.publish(folder)
            pages = folder_read.kept_pages()
        with contextlib.suppress(sqlite3.Error):  # all is sent: a cache that cannot be written is no reason to fail
            root, sizes = done.tree.root.encode(), f"{done.tree.num_files} {done.tree.size_bytes}".encode()
            kept.finish(pages, root=root, sizes=sizes, fingerprint=folder_read.fingerprint)
        return done


class _Folder:
    """One pass over a folder: reads what changed, lists everything."""

    def __init__(self, out: Outbox, state: State, plan: Plan, advance: Callable[[int], None]) -> None:
        self._out = out
        self._state = state
        self._plan = plan
        self._advance = advance
        self._done = 0
        self._settled = True
        self._read = self._kept = 0
        self._num_files = self._size_bytes = 0
        self.page = out.page
        self._pages = PageWriter(self._store)
        self._closed: list[tuple[KeptPage, frozenset[int]]] = []
        self._open = _OpenPage()
        self._cut, self._whole = -1, False
        self._outward, self._empty = _Some(), _Some()

    @property
    def fingerprint(self) -> bytes:
        """Of all that was seen; empty where a file is so young that it may change unseen."""
        # What changed since the first look has other stamps than those of that look, and is found the next time.
        stamps = [page.stamps for page, _ in self._closed]
        return fingerprint_of(stamps, Fingerprint(self._open.marks).digest()) if self._settled else b""

    def publish(self, folder: Path) -> Written:
        """The whole pass."""
        with Lists(self._state) as lists:
            for run in runs(folder, self._plan.cuts, partial(self._names, lists)):
                if not self._takes(run.cut):
                    for found in meet(run):
                        self._add(found)
        done = self._out.finish(self._pages.finish(), self._num_files, self._size_bytes)
        self._advance(self._done)
        notes = (
            self._outward.told("links that lead out of the folder, which no checkout writes"),
            self._empty.told("empty folders, which are not kept"),
            "" if self._num_files else "there is no file in it",
        )
        return replace(done, read_files=self._read, kept_files=self._kept, notes=tuple(filter(None, notes)))

    def kept_pages(self) -> list[KeptPage]:
        """Every page that ends by itself and not with the folder, for the next publish."""
        return [page._replace(bundles=page.bundles or self._out.bundles(touched)) for page, touched in self._closed]

    def chunk(self, data: bytes | memoryview) -> bytes:
        """Keep bytes of a file, and say so now and then."""
        self._tell(len(data))
        return self._out.chunk(data)

    def _names(self, lists: Lists, fd: int, path: bytes) -> list[bytes]:
        names = lists.of(fd, path)
        if path and not names:
            self._empty.add(path)
        if KEYS in names:
            refuse_home(fd, path)
        return names

    def _takes(self, cut: int) -> bool:
        """Whether the files before a cut are those of an unchanged page that can stand here as it is."""
        if cut == self._cut:
            return self._whole
        page = self._plan.pages[cut] if cut in self._plan.same else None
        self._cut = cut
        self._whole = page is not None and self._pages.between and self._out.take(page.digest, page.bundles)
        if page is not None and self._whole:
            self._pages.take(page.first, page.last, page.digest)
            self._state.skip(page.first, page.last)
            self._closed.append((page, frozenset()))
            self._kept += page.num_files
            self._num_files += page.num_files
            self._size_bytes += page.size_bytes
            self._tell(page.size_bytes)
        return self._whole

    def _add(self, found: Found) -> None:
        mode, body, stamp, settled = self._entry(found)
        size = 0 if mode == LINK else int.from_bytes(body[:8], "little")
        page = self._open
        page.lines.append(mark(found.path, stamp))
        page.first = page.first or found.path
        page.size_bytes += size
        page.settled = page.settled and settled
        self._pages.add(found.path, mode, body)
        self._num_files += 1
        self._size_bytes += size
        self._settled = self._settled and settled
        if self._pages.between:
            self._close(found.path)

    def _close(self, last: bytes) -> None:
        page, self._open = self._open, _OpenPage()
        marks = Fingerprint(page.marks).digest() if page.settled else bytes(32)
        kept = KeptPage(page.first, last, self._pages.leaf, marks, len(page.lines), page.size_bytes, ())
        self._closed.append((kept, page.touched))
        self._out.touched()  # what the pages above it lie in is not what it lies in

    def _store(self, data: bytes) -> bytes:
        """Keep a page; the first one that is kept at the end of a run of files is theirs."""
        digest = self._out.page(data)
        self._open.touched = self._open.touched or self._out.touched()
        return digest

    def _entry(self, found: Found) -> tuple[int, bytes, bytes, bool]:
        stamp = stamp_of(found.stat)
        if stat.S_ISLNK(found.stat.st_mode):
            target = read_link(found)
            if not stays_inside(found.path, target):
                self._outward.add(found.path)
            return LINK, target, stamp, is_settled(stamp, time.time_ns())
        mode = EXECUTABLE if found.stat.st_mode & stat.S_IXUSR else FILE
        body = self._state.match(found.path, stamp)
        if body is not None and self._out.holds(body):
            self._kept += 1
            self._tell(found.stat.st_size)
            return mode, body, stamp, True
        begun = time.time_ns()
        content, stamp = read_file(found, self)
        body = content.encode()
        self._read += 1
        settled = is_settled(stamp, begun)
        if settled:
            self._state.save(found.path, stamp, body)
        return mode, body, stamp, settled

    def _tell(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._done >= _TELL_BYTES:
            self._advance(self._done)
            self._done = 0


class _Some:
    """Paths of one sort: how many there were, and the first."""

    def __init__(self) -> None:
        self._first, self._count = b"", 0

    def add(self, path: bytes) -> None:
        """One more."""
        self._first, self._count = self._first or path, self._count + 1

    def told(self, what: str) -> str:
        """In words; nothing where there was none."""
        more = f" and {self._count - 1} more" if self._count > 1 else ""
        return f"{what}: {shown(self._first)}{more}" if self._count else ""


class _OpenPage:
    """What is known of the files since the last page ended."""

    def __init__(self) -> None:
        self.first = b""
        self.lines: list[Marks] = []
        self.size_bytes = 0
        self.settled = True
        self.touched: frozenset[int] = frozenset()

    @property
    def marks(self) -> Marks:
        """Of all of them."""
        return b"".join([path for path, _ in self.lines]), b"".join([stamp for _, stamp in self.lines])
