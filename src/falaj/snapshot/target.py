"""The folder that a checkout writes into: reached by descriptors only, so that no link in it leads anywhere else.

`.falaj/` in it holds files that are not whole yet, and a list of what checkouts wrote: a file that still has the stamp
it was given is the checkout's own, any other belongs to somebody.
"""

import contextlib
import ctypes
import fcntl
import itertools
import os
import stat
import time
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from falaj.core.errors import Conflict, Corrupt
from falaj.snapshot import hand
from falaj.snapshot.format import Entry, shown
from falaj.snapshot.read import Snapshot
from falaj.snapshot.scan import FOLDER, READ, RESERVED, STAMP_BYTES, digest_of_file, stamp_of
from falaj.snapshot.scribes import Order
from falaj.snapshot.state import State

Record = tuple[bytes, bytes, bytes]
"""Path, stamp and digest of a file that was written."""

_allocate = getattr(ctypes.CDLL(None), "fallocate64", None)  # Python's own writes zeros where a disk does not know it
if _allocate is not None:
    _allocate.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64

_LIST = "checkout"
_NAME_BYTES = 255
_LOCK_TRIES, _LOCK_S = 100, 0.02  # under load a process takes its time to end


class Target:
    """The open folder, and the folders in it that are open until somebody takes them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._top = os.open(folder, FOLDER)
        self._folders: dict[bytes, int] = {}
        self.opened: set[int] = set()
        self._count = itertools.count()
        self.own = b""
        """The stamp of the entry that was asked about last, where an earlier checkout wrote it and it is replaced."""
        try:
            names = _names(self._top)
            self._fresh = names in ([], [RESERVED])
            if not self._fresh and not (folder / os.fsdecode(RESERVED) / _LIST).is_file():
                raise Conflict(f"{folder} is not empty, and no checkout made it", "name a new folder")
            self.inbox = self._open_inbox()
        except BaseException:
            os.close(self._top)
            raise
        self._names = Names() if _folds(self.inbox) else None
        self._state = State(folder / os.fsdecode(RESERVED) / _LIST, lambda _path, _row: False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._state.__exit__(kind, error, None)
        self.close(*self.opened)
        os.close(self.inbox)
        os.close(self._top)

    @property
    def num_folders(self) -> int:
        """How many folders are open."""
        return len(self._folders)

    def sweep(self, paths: Iterable[bytes]) -> None:
        """Remove what earlier checkouts wrote, nobody changed, and the tree does not have."""
        if self._fresh:
            return
        self._state.__exit__(None, None, None)
        place = self._folder / os.fsdecode(RESERVED) / _LIST
        with State(place, self._remove) as state:
            for path in paths:
                state.match(path, b"")
            state.finish()
        self._state = State(place, lambda _path, _row: False)

    def stands(self, entry: Entry, snapshot: Snapshot) -> bool:
        """Whether an entry is there already; Conflict when something else is that no checkout wrote."""
        if self._names is not None:
            self._names.claim(entry.path)
        self.own = b""
        if self._fresh:
            return False
        folder, name = self.folder_of(entry.path)
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            self._state.match(entry.path, b"")
            return False
        known = self._state.match(entry.path, stamp_of(found))
        same = known == _digest(entry) if known is not None else _equals(entry, snapshot, (folder, name, found))
        if known is None and not same:
            raise Conflict(f"{shown(entry.path)} is in the way: no checkout wrote it as it is", "move it away")
        if not same or (entry.kind == "file" and bool(found.st_mode & stat.S_IXUSR) != entry.executable):
            self.own = stamp_of(found)
            return False
        if known is None:
            self.record((entry.path, stamp_of(found), _digest(entry)))
        return True

    def small(self, entry: Entry) -> "SmallFile":
        """A file that is written in one go."""
        return SmallFile(self, entry, *self.folder_of(entry.path))

    def large(self, entry: Entry) -> "LargeFile":
        """A file that is written piece by piece."""
        return LargeFile(self, entry)

    def link(self, entry: Entry, own: bytes) -> None:
        """Make a link."""
        folder, name = self.folder_of(entry.path)
        try:
            with contextlib.suppress(FileNotFoundError):
                if own and own == stamp_of(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                    os.unlink(name, dir_fd=folder)
        except OSError:
            raise Conflict(f"{shown(entry.path)} is a link and a folder at once", "publish the tree again") from None
        os.symlink(entry.target, name, dir_fd=folder)
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        self.record((entry.path, stamp_of(found), _digest(entry)))

    def record(self, *written: Record | None) -> None:
        """Remember what was written."""
        for each in written:
            if each is not None:
                self._state.save(*each)

    def finish(self) -> None:
        """All is written."""
        self._state.finish()

    def new_name(self) -> bytes:
        """A name in the inbox that nobody has."""
        return b"new-%x" % next(self._count)

    def folder_of(self, path: bytes) -> tuple[int, bytes]:
        """The open folder of a path, made where it is not there, and the path's name in it."""
        parent, _, name = path.rpartition(b"/")
        if not parent:
            return self._top, name
        found = self._folders.get(parent)
        if found is None:
            found = self._folders[parent] = self._descend(parent, make=True)
            self.opened.add(found)
        return found, name

    def take_folders(self) -> dict[bytes, int]:
        """The open folders, for the caller to close."""
        taken, self._folders = self._folders, {}
        return taken

    def close(self, *opened: int) -> None:
        """Close folders and files."""
        for fd in opened:
            self.opened.remove(fd)
            os.close(fd)

    def _descend(self, path: bytes, *, make: bool) -> int:
        fd = os.dup(self._top)
        for part in path.split(b"/"):
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=fd)
                below = os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=fd)
            except NotADirectoryError:
                what = f"in the folder {shown(path)}, {shown(part)} is a file or a link"
                raise Conflict(what, "move it away, or check out into a new folder") from None
            finally:
                os.close(fd)
            fd = below
        return fd

    def _remove(self, path: bytes, row: bytes) -> bool:
        parent, _, name = path.rpartition(b"/")
        with contextlib.suppress(OSError, Conflict):
            fd = self._descend(parent, make=False) if parent else os.dup(self._top)
            try:
                if stamp_of(os.stat(name, dir_fd=fd, follow_symlinks=False)) == row[:STAMP_BYTES]:
                    os.unlink(name, dir_fd=fd)
            finally:
                os.close(fd)
            while parent:  # until one is not empty
                above, _, name = parent.rpartition(b"/")
                fd = self._descend(above, make=False) if above else os.dup(self._top)
                try:
                    os.rmdir(name, dir_fd=fd)
                finally:
                    os.close(fd)
                parent = above
        return True

    def _open_inbox(self) -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(RESERVED, 0o700, dir_fd=self._top)
        inbox = os.open(RESERVED, FOLDER | os.O_NOFOLLOW, dir_fd=self._top)
        if not _locked(inbox):
            os.close(inbox)
            raise Conflict(f"another checkout is writing into {self._folder}", "wait for it")
        for name in _names(inbox):
            if name.startswith(b"new-"):
                os.unlink(name, dir_fd=inbox)
        return inbox


class SmallFile:
    """A file of one chunk."""

    __slots__ = ("_entry", "_folder", "_name", "_own", "_target")

    def __init__(self, target: Target, entry: Entry, folder: int, name: bytes) -> None:
        self._target = target
        self._entry = entry
        self._folder = folder
        self._name = name
        self._own = target.own

    def write(self, data: bytes | memoryview) -> Record:
        """Write it, and put it in its place."""
        order = (self._target.inbox, self._target.new_name(), (self._folder, self._name), _mode(self._entry), data)
        now = hand.replace_file(*order, self._own) if self._own else hand.write_file(*order)
        return _record(self._entry, stamp_of(now))

    def order(self, data: memoryview) -> Order | None:
        """What another process needs to know to write it; None when it cannot."""
        if self._own or len(data) > hand.SLOT_BYTES or len(self._name) > _NAME_BYTES:
            return None
        return Order(self._folder, self._name, _mode(self._entry), data)

    def written(self, stamp: bytes) -> Record:
        """Another process wrote it, and it has this stamp."""
        return _record(self._entry, stamp)


class LargeFile:
    """A file of many chunks, written wherever they belong as they come."""

    def __init__(self, target: Target, entry: Entry) -> None:
        self.complete = False
        self._entry, self._own = entry, target.own
        self._new = target.new_name()
        self._fd = os.open(self._new, hand.NEW, _mode(entry), dir_fd=target.inbox)
        target.opened.add(self._fd)
        os.ftruncate(self._fd, entry.size)
        self._last, self._since, self._until = b"", 0, 0

    def expect(self, at: int, digest: bytes, length: int) -> None:
        """The next of its chunks. Two of the same side by side may be a hole, and room is made for what is none."""
        if digest == self._last:
            self.make_room()
            self._since = at + length
        self._last, self._until = digest, at + length

    def make_room(self) -> None:
        """Have a place on the disk for what it expects: to look for one with every write takes half as long again."""
        if self._until > self._since and _allocate is not None:
            _allocate(self._fd, 0, self._since, self._until - self._since)  # in vain: then writing looks for it
        self._since = self._until

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Write one chunk; threads may do so at once. What is nothing but zeros stays a hole, as it may have been."""
        if data[:1] != b"\0" or data != bytes(len(data)):
            hand.write_at(self._fd, data, at)

    def finish(self, target: Target) -> Record:
        """Put it in its place."""
        target.close(self._fd)
        now = hand.put_in_place(target.inbox, self._new, target.folder_of(self._entry.path), self._own)
        return _record(self._entry, stamp_of(now))


class Names:
    """For a folder that takes different names for one: refuses the second, where it would overwrite the first."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def claim(self, path: bytes) -> None:
        """Conflict when a path, or a folder on its way, is another one to this file system."""
        at = path.find(b"/")
        while True:
            part = path if at < 0 else path[:at]
            text = unicodedata.normalize("NFC", part.decode(errors="surrogateescape")).casefold()
            known = self._known.setdefault(text, part)
            if known != part:
                what = f"{shown(part)} and {shown(known)} are one name on this file system"
                raise Conflict(what, "check out where names are told apart, or check out one of them")
            if at < 0:
                return
            at = path.find(b"/", at + 1)


def _names(folder: int) -> list[bytes]:
    with os.scandir(folder) as listing:
        return [os.fsencode(entry.name) for entry in listing]


def _folds(inbox: int) -> bool:
    """Whether a file system confuses upper and lower case, or two ways to write one letter."""
    os.close(os.open(b"new-\xc3\xa9", hand.NEW, 0o600, dir_fd=inbox))
    try:
        for other in (b"NEW-\xc3\xa9", b"new-e\xcc\x81"):
            with contextlib.suppress(FileNotFoundError):
                os.stat(other, dir_fd=inbox)
                return True
        return False
    finally:
        os.unlink(b"new-\xc3\xa9", dir_fd=inbox)


def _digest(entry: Entry) -> bytes:
    return entry.digest.encode()


def _equals(entry: Entry, snapshot: Snapshot, there: tuple[int, bytes, os.stat_result]) -> bool:
    """Whether what stands there has the entry's content; read piece by piece."""
    folder, name, found = there
    if entry.kind == "link":
        return stat.S_ISLNK(found.st_mode) and os.readlink(name, dir_fd=folder) == entry.target
    if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size:
        return False
    fd = os.open(name, READ, dir_fd=folder)
    try:
        pieces = snapshot.pieces(entry.content)
        return all(digest_of_file(fd, at, length) == digest for at, digest, length in pieces)
    finally:
        os.close(fd)


def _mode(entry: Entry) -> int:
    return 0o777 if entry.executable else 0o666


def _record(entry: Entry, stamp: bytes) -> Record:
    if int.from_bytes(stamp[:8], "little") != entry.size:
        raise Corrupt(f"{shown(entry.path)} is not as long as the tree says", "publish it again")
    return entry.path, stamp, _digest(entry)


def _locked(inbox: int) -> bool:
    """Whether we have the folder for ourselves; what a killed checkout left running ends within a moment."""
    for turn in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(inbox, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if turn + 1 < _LOCK_TRIES:
            time.sleep(_LOCK_S)
    return False
