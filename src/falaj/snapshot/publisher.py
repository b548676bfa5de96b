"""Publishing: a folder, or blobs that lie in the house already, become a tree."""

import contextlib
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from falaj.core.byte_channel import UploadReceipt
from falaj.snapshot.fast_check import compare_with_state
from falaj.snapshot.folder_scan import (
    KEYS_FOLDER,
    FileMarks,
    FoundFile,
    iterate_runs,
    make_mark,
    make_stamp,
    read_into_chunks,
    read_link_target,
    refuse_platform_home,
    stat_run,
)
from falaj.snapshot.lists import Lists
from falaj.snapshot.outbox import PieceSink, PublishOutbox, SentDataLost, WrittenTree
from falaj.snapshot.page_reuse import KeptPage, ReusePlan, StampFingerprint, combine_fingerprints
from falaj.snapshot.publish_state import PublishState, discard_state, is_settled
from falaj.snapshot.tree_format import (
    MODE_EXECUTABLE,
    MODE_FILE,
    MODE_LINK,
    FileContent,
    PageWriter,
    format_path,
    parse_digest,
    stays_inside,
)
from falaj.snapshot.tree_reader import TreeSnapshot

__all__ = ["PieceSink", "WrittenTree", "compose_tree", "publish_folder"]

_PROGRESS_BYTES = 4 << 20


def publish_folder(
    folder: Path,
    sink: PieceSink,
    *,
    base: TreeSnapshot | None = None,
    state_path: Path | None = None,
    advance: Callable[[int], None] = lambda _bytes: None,
    plan: ReusePlan | None = None,
) -> WrittenTree:
    """Send what a folder (or one file) holds and the house does not; gives the tree to commit.

    Links are kept as links, empty folders are not kept, and only the owner's right to execute is. `state_path` is a
    file between publishes of one thing: with it an unchanged file is not read again and an interrupted publish goes on
    where it stopped. Nothing in it is taken for granted; it may be deleted at any time. `plan` is what a look at the
    folder found a moment ago (again.py).
    """
    try:
        return _publish_once(folder, sink, base, state_path, advance, plan)
    except (sqlite3.Error, UnicodeError):  # SQLite may quote a spoiled file in its message
        discard_state(state_path)
        state_path = None
    except SentDataLost:
        with PublishState(state_path) as publish_state:
            publish_state.forget()
    return _publish_once(folder, sink, base, state_path, advance)


def compose_tree(files: Iterable[tuple[bytes, UploadReceipt]], sink: PieceSink) -> WrittenTree:
    """A tree over whole blobs that were sent before; each is one piece of one file, and no byte is copied."""
    with PublishState(None) as state, PublishOutbox(sink, None, state) as outbox:
        pages = PageWriter(outbox.page)
        num_files = size_bytes = 0
        for path, receipt in sorted(files, key=lambda file: file[0]):
            if receipt.size:
                outbox.adopt(receipt)
            pieces = ((parse_digest(receipt.digest), receipt.size),) if receipt.size else ()
            pages.add(path, MODE_FILE, FileContent(receipt.size, 0, pieces).encode())
            num_files += 1
            size_bytes += receipt.size
        return outbox.finish(pages.finish(), num_files, size_bytes)


def _publish_once(
    folder: Path,
    sink: PieceSink,
    base: TreeSnapshot | None,
    state_path: Path | None,
    advance: Callable[[int], None],
    plan: ReusePlan | None = None,
) -> WrittenTree:
    with PublishState(state_path) as publish_state:
        if base is None or publish_state.recall("root") != base.tree.root.encode():
            plan = ReusePlan()
        elif plan is None:
            plan = compare_with_state(folder, publish_state)
        if base is not None and plan.fingerprint and plan.fingerprint == publish_state.recall("fingerprint"):
            advance(base.tree.size_bytes)
            return WrittenTree(base.tree, kept_files=base.tree.num_files)
        with PublishOutbox(sink, base, publish_state) as outbox:
            folder_read = _FolderPass(outbox, publish_state, plan, advance)
            publish_result = folder_read.publish(folder)
            pages = folder_read.kept_pages()
        with contextlib.suppress(sqlite3.Error):  # all is sent: a cache that cannot be written is no reason to fail
            root, sizes = (
                publish_result.tree.root.encode(),
                f"{publish_result.tree.num_files} {publish_result.tree.size_bytes}".encode(),
            )
            publish_state.finish(pages, root=root, sizes=sizes, fingerprint=folder_read.fingerprint)
        return publish_result


class _FolderPass:
    """One pass over a folder: reads what changed, lists everything."""

    def __init__(
        self, outbox: PublishOutbox, state: PublishState, plan: ReusePlan, advance: Callable[[int], None]
    ) -> None:
        self._outbox = outbox
        self._state = state
        self._plan = plan
        self._advance = advance
        self._unreported_bytes = 0
        self._all_settled = True
        self._read_files = self._kept_files = 0
        self._num_files = self._size_bytes = 0
        self.page = outbox.page
        self._page_writer = PageWriter(self._store_page)
        self._closed_pages: list[tuple[KeptPage, frozenset[int]]] = []
        self._open_page = _OpenPage()
        self._last_cut, self._takes_whole_page = -1, False
        self._outward_links, self._empty_folders = _PathSample(), _PathSample()

    @property
    def fingerprint(self) -> bytes:
        """Of all that was seen; empty where a file is so young that it may change unseen."""
        # What changed since the first look has other stamps than those of that look, and is found the next time.
        stamps = [page.stamps for page, _ in self._closed_pages]
        return (
            combine_fingerprints(stamps, StampFingerprint(self._open_page.marks).digest()) if self._all_settled else b""
        )

    def publish(self, folder: Path) -> WrittenTree:
        """The whole pass."""
        with Lists(self._state) as lists:
            for run in iterate_runs(folder, self._plan.cuts, partial(self._list_names, lists)):
                if not self._takes_page(run.cut):
                    for found_file in stat_run(run):
                        self._add_file(found_file)
        publish_result = self._outbox.finish(self._page_writer.finish(), self._num_files, self._size_bytes)
        self._advance(self._unreported_bytes)
        notes = (
            self._outward_links.told("links that lead out of the folder, which no checkout writes"),
            self._empty_folders.told("empty folders, which are not kept"),
            "" if self._num_files else "there is no file in it",
        )
        return replace(
            publish_result, read_files=self._read_files, kept_files=self._kept_files, notes=tuple(filter(None, notes))
        )

    def kept_pages(self) -> list[KeptPage]:
        """Every page that ends by itself and not with the folder, for the next publish."""
        return [
            page._replace(bundles=page.bundles or self._outbox.bundles(touched_batches))
            for page, touched_batches in self._closed_pages
        ]

    def chunk(self, data: bytes | memoryview) -> bytes:
        """Keep bytes of a file, and say so now and then."""
        self._report_progress(len(data))
        return self._outbox.chunk(data)

    def _list_names(self, lists: Lists, fd: int, path: bytes) -> list[bytes]:
        names = lists.of(fd, path)
        if path and not names:
            self._empty_folders.add(path)
        if KEYS_FOLDER in names:
            refuse_platform_home(fd, path)
        return names

    def _takes_page(self, cut: int) -> bool:
        """Whether the files before a cut are those of an unchanged page that can stand here as it is."""
        if cut == self._last_cut:
            return self._takes_whole_page
        page = self._plan.pages[cut] if cut in self._plan.same else None
        self._last_cut = cut
        self._takes_whole_page = (
            page is not None and self._page_writer.between and self._outbox.take(page.digest, page.bundles)
        )
        if page is not None and self._takes_whole_page:
            self._page_writer.take(page.first, page.last, page.digest)
            self._state.skip(page.first, page.last)
            self._closed_pages.append((page, frozenset()))
            self._kept_files += page.num_files
            self._num_files += page.num_files
            self._size_bytes += page.size_bytes
            self._report_progress(page.size_bytes)
        return self._takes_whole_page

    def _add_file(self, found_file: FoundFile) -> None:
        mode, encoded, stamp, is_settled_file = self._read_entry(found_file)
        size = 0 if mode == MODE_LINK else int.from_bytes(encoded[:8], "little")
        page = self._open_page
        page.lines.append(make_mark(found_file.path, stamp))
        page.first = page.first or found_file.path
        page.size_bytes += size
        page.settled = page.settled and is_settled_file
        self._page_writer.add(found_file.path, mode, encoded)
        self._num_files += 1
        self._size_bytes += size
        self._all_settled = self._all_settled and is_settled_file
        if self._page_writer.between:
            self._close_page(found_file.path)

    def _close_page(self, last_path: bytes) -> None:
        page, self._open_page = self._open_page, _OpenPage()
        stamps_digest = StampFingerprint(page.marks).digest() if page.settled else bytes(32)
        kept_page = KeptPage(
            page.first, last_path, self._page_writer.leaf, stamps_digest, len(page.lines), page.size_bytes, ()
        )
        self._closed_pages.append((kept_page, page.touched))
        self._outbox.touched()  # what the pages above it lie in is not what it lies in

    def _store_page(self, data: bytes) -> bytes:
        """Keep a page; the first one that is kept at the end of a run of files is theirs."""
        digest = self._outbox.page(data)
        self._open_page.touched = self._open_page.touched or self._outbox.touched()
        return digest

    def _read_entry(self, found_file: FoundFile) -> tuple[int, bytes, bytes, bool]:
        stamp = make_stamp(found_file.stat)
        if stat.S_ISLNK(found_file.stat.st_mode):
            target = read_link_target(found_file)
            if not stays_inside(found_file.path, target):
                self._outward_links.add(found_file.path)
            return MODE_LINK, target, stamp, is_settled(stamp, time.time_ns())
        mode = MODE_EXECUTABLE if found_file.stat.st_mode & stat.S_IXUSR else MODE_FILE
        encoded = self._state.match(found_file.path, stamp)
        if encoded is not None and self._outbox.holds(encoded):
            self._kept_files += 1
            self._report_progress(found_file.stat.st_size)
            return mode, encoded, stamp, True
        started_ns = time.time_ns()
        content, stamp = read_into_chunks(found_file, self)
        encoded = content.encode()
        self._read_files += 1
        is_settled_file = is_settled(stamp, started_ns)
        if is_settled_file:
            self._state.save(found_file.path, stamp, encoded)
        return mode, encoded, stamp, is_settled_file

    def _report_progress(self, num_bytes: int) -> None:
        self._unreported_bytes += num_bytes
        if self._unreported_bytes >= _PROGRESS_BYTES:
            self._advance(self._unreported_bytes)
            self._unreported_bytes = 0


class _PathSample:
    """Paths of one sort: how many there were, and the first."""

    def __init__(self) -> None:
        self._first_path, self._path_count = b"", 0

    def add(self, path: bytes) -> None:
        """One more."""
        self._first_path, self._path_count = self._first_path or path, self._path_count + 1

    def told(self, description: str) -> str:
        """In words; nothing where there was none."""
        more_text = f" and {self._path_count - 1} more" if self._path_count > 1 else ""
        return f"{description}: {format_path(self._first_path)}{more_text}" if self._path_count else ""


class _OpenPage:
    """What is known of the files since the last page ended."""

    def __init__(self) -> None:
        self.first = b""
        self.lines: list[FileMarks] = []
        self.size_bytes = 0
        self.settled = True
        self.touched: frozenset[int] = frozenset()

    @property
    def marks(self) -> FileMarks:
        """Of all of them."""
        return b"".join([path for path, _ in self.lines]), b"".join([stamp for _, stamp in self.lines])
