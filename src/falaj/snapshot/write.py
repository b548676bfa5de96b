"""Publishing: a folder, or blobs that lie in the house already, become a tree."""

import contextlib
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from blake3 import blake3

from falaj.core.transfer import Receipt
from falaj.snapshot.format import EXECUTABLE, FILE, LINK, Content, PageWriter, raw
from falaj.snapshot.outbox import Outbox, Sink, TakenBack, Written
from falaj.snapshot.read import Snapshot
from falaj.snapshot.scan import Found, read_file, read_link, stamp_of, stamps, walk
from falaj.snapshot.state import State, discard, is_settled

__all__ = ["Sink", "Written", "compose", "publish_folder"]

_TELL_BYTES = 4 << 20


def publish_folder(
    folder: Path,
    sink: Sink,
    *,
    base: Snapshot | None = None,
    state: Path | None = None,
    advance: Callable[[int], None] = lambda _bytes: None,
) -> Written:
    """Send what a folder (or one file) holds and the house does not; gives the tree to commit.

    Links are kept as links, empty folders are not kept, and only the owner's right to execute is. `state` is a file
    between publishes of one thing: with it an unchanged file is not read again and an interrupted publish goes on where
    it stopped. Nothing in it is taken for granted; it may be deleted at any time.
    """
    try:
        return _publish(folder, sink, base, state, advance)
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
    folder: Path, sink: Sink, base: Snapshot | None, state: Path | None, advance: Callable[[int], None]
) -> Written:
    with State(state) as kept:
        if base is not None and _is_unchanged(folder, base, kept):
            advance(base.tree.size_bytes)
            return Written(base.tree, kept_files=base.tree.num_files)
        with Outbox(sink, base, kept) as out:
            folder_read = _Folder(out, kept, advance)
            done = folder_read.publish(folder)
        with contextlib.suppress(sqlite3.Error):  # all is sent: a cache that cannot be written is no reason to fail
            kept.finish(root=done.tree.root.encode(), fingerprint=folder_read.fingerprint)
        return done


def _is_unchanged(folder: Path, base: Snapshot, kept: State) -> bool:
    known = kept.recall("fingerprint") if kept.recall("root") == base.tree.root.encode() else b""
    return bool(known) and fingerprint(folder) == known


def fingerprint(folder: Path) -> bytes:
    """One digest over every path and stamp of a folder; no file is opened."""
    hashed = blake3()
    for some in stamps(folder):
        hashed.update(some)
    return hashed.digest()


class _Folder:
    """One pass over a folder: reads what changed, lists everything."""

    def __init__(self, out: Outbox, state: State, advance: Callable[[int], None]) -> None:
        self._out = out
        self._state = state
        self._advance = advance
        self._done = 0
        self._hashed = blake3()
        self._settled = True
        self._read = self._kept = 0
        self.page = out.page

    @property
    def fingerprint(self) -> bytes:
        """Of all that was seen; empty where a file is so young that it may change unseen."""
        return self._hashed.digest() if self._settled else b""

    def publish(self, folder: Path) -> Written:
        """The whole pass."""
        pages = PageWriter(self.page)
        num_files = size_bytes = 0
        for found in walk(folder):
            mode, body, stamp = self._entry(found)
            pages.add(found.path, mode, body)
            self._hashed.update(found.path + b"\0" + stamp)
            num_files += 1
            size_bytes += 0 if mode == LINK else int.from_bytes(body[:8], "little")
        done = self._out.finish(pages.finish(), num_files, size_bytes)
        self._advance(self._done)
        return replace(done, read_files=self._read, kept_files=self._kept)

    def chunk(self, data: bytes | memoryview) -> bytes:
        """Keep bytes of a file, and say so now and then."""
        self._tell(len(data))
        return self._out.chunk(data)

    def _entry(self, found: Found) -> tuple[int, bytes, bytes]:
        stamp = stamp_of(found.stat)
        if stat.S_ISLNK(found.stat.st_mode):
            self._settled = self._settled and is_settled(stamp, time.time_ns())
            return LINK, read_link(found), stamp
        mode = EXECUTABLE if found.stat.st_mode & stat.S_IXUSR else FILE
        body = self._state.match(found.path, stamp)
        if body is not None and self._out.holds(body):
            self._kept += 1
            self._tell(found.stat.st_size)
            return mode, body, stamp
        begun = time.time_ns()
        content, stamp = read_file(found, self)
        body = content.encode()
        self._read += 1
        if is_settled(stamp, begun):
            self._state.save(found.path, stamp, body)
        else:
            self._settled = False
        return mode, body, stamp

    def _tell(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._done >= _TELL_BYTES:
            self._advance(self._done)
            self._done = 0
