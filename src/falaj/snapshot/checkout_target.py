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

from falaj.core.errors import Conflict, CorruptData
from falaj.snapshot import hand
from falaj.snapshot.folder_scan import (
    OPEN_FILE_FLAGS,
    OPEN_FOLDER_FLAGS,
    RESERVED_FOLDER,
    STAMP_BYTES,
    hash_file_range,
    make_stamp,
)
from falaj.snapshot.publish_state import PublishState
from falaj.snapshot.scribes import Order
from falaj.snapshot.tree_format import TreeEntry, format_path
from falaj.snapshot.tree_reader import TreeSnapshot

WrittenRecord = tuple[bytes, bytes, bytes]
"""Path, stamp and digest of a file that was written."""

_allocate = getattr(ctypes.CDLL(None), "fallocate64", None)  # Python's own writes zeros where a disk does not know it
if _allocate is not None:
    _allocate.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64

_LIST_FILE = "checkout"
_MAX_NAME_BYTES = 255
_LOCK_TRIES, _LOCK_PAUSE_S = 100, 0.02  # under load a process takes its time to end


class CheckoutTarget:
    """The open folder, and the folders in it that are open until somebody takes them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._top_fd = os.open(folder, OPEN_FOLDER_FLAGS)
        self._open_folders: dict[bytes, int] = {}
        self.opened: set[int] = set()
        self._name_counter = itertools.count()
        self.own = b""
        """The stamp of the entry that was asked about last, where an earlier checkout wrote it and it is replaced."""
        try:
            names = _list_folder(self._top_fd)
            self._is_new_folder = names in ([], [RESERVED_FOLDER])
            if not self._is_new_folder and not (folder / os.fsdecode(RESERVED_FOLDER) / _LIST_FILE).is_file():
                raise Conflict(f"{folder} is not empty, and no checkout made it", "name a new folder")
            self.inbox = self._open_inbox()
        except BaseException:
            os.close(self._top_fd)
            raise
        self._folded_names = FoldedNames() if _folds_names(self.inbox) else None
        self._checkout_state = PublishState(
            folder / os.fsdecode(RESERVED_FOLDER) / _LIST_FILE, lambda _path, _row: False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._checkout_state.__exit__(kind, error, None)
        self.close(*self.opened)
        os.close(self.inbox)
        os.close(self._top_fd)

    @property
    def num_folders(self) -> int:
        """How many folders are open."""
        return len(self._open_folders)

    def sweep(self, paths: Iterable[bytes]) -> None:
        """Remove what earlier checkouts wrote, nobody changed, and the tree does not have."""
        if self._is_new_folder:
            return
        self._checkout_state.__exit__(None, None, None)
        list_path = self._folder / os.fsdecode(RESERVED_FOLDER) / _LIST_FILE
        with PublishState(list_path, self._remove_stale_file) as state:
            for path in paths:
                state.match(path, b"")
            state.finish()
        self._checkout_state = PublishState(list_path, lambda _path, _row: False)

    def stands(self, entry: TreeEntry, snapshot: TreeSnapshot) -> bool:
        """Whether an entry is there already; Conflict when something else is that no checkout wrote."""
        if self._folded_names is not None:
            self._folded_names.claim(entry.path)
        self.own = b""
        if self._is_new_folder:
            return False
        folder, name = self.folder_of(entry.path)
        try:
            file_stat = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            self._checkout_state.match(entry.path, b"")
            return False
        recorded_digest = self._checkout_state.match(entry.path, make_stamp(file_stat))
        is_same = (
            recorded_digest == _encode_digest(entry)
            if recorded_digest is not None
            else _has_same_content(entry, snapshot, (folder, name, file_stat))
        )
        if recorded_digest is None and not is_same:
            raise Conflict(f"{format_path(entry.path)} is in the way: no checkout wrote it as it is", "move it away")
        if not is_same or (entry.kind == "file" and bool(file_stat.st_mode & stat.S_IXUSR) != entry.executable):
            self.own = make_stamp(file_stat)
            return False
        if recorded_digest is None:
            self.record((entry.path, make_stamp(file_stat), _encode_digest(entry)))
        return True

    def small(self, entry: TreeEntry) -> "SmallFile":
        """A file that is written in one go."""
        return SmallFile(self, entry, *self.folder_of(entry.path))

    def large(self, entry: TreeEntry) -> "LargeFile":
        """A file that is written piece by piece."""
        return LargeFile(self, entry)

    def link(self, entry: TreeEntry, replaced_stamp: bytes) -> None:
        """Make a link."""
        folder, name = self.folder_of(entry.path)
        try:
            with contextlib.suppress(FileNotFoundError):
                if replaced_stamp and replaced_stamp == make_stamp(os.stat(name, dir_fd=folder, follow_symlinks=False)):
                    os.unlink(name, dir_fd=folder)
        except OSError:
            raise Conflict(
                f"{format_path(entry.path)} is a link and a folder at once", "publish the tree again"
            ) from None
        os.symlink(entry.target, name, dir_fd=folder)
        link_stat = os.stat(name, dir_fd=folder, follow_symlinks=False)
        self.record((entry.path, make_stamp(link_stat), _encode_digest(entry)))

    def record(self, *written_records: WrittenRecord | None) -> None:
        """Remember what was written."""
        for written_record in written_records:
            if written_record is not None:
                self._checkout_state.save(*written_record)

    def finish(self) -> None:
        """All is written."""
        self._checkout_state.finish()

    def new_name(self) -> bytes:
        """A name in the inbox that nobody has."""
        return b"new-%x" % next(self._name_counter)

    def folder_of(self, path: bytes) -> tuple[int, bytes]:
        """The open folder of a path, made where it is not there, and the path's name in it."""
        parent, _, name = path.rpartition(b"/")
        if not parent:
            return self._top_fd, name
        folder_fd = self._open_folders.get(parent)
        if folder_fd is None:
            folder_fd = self._open_folders[parent] = self._open_folder(parent, creates_missing=True)
            self.opened.add(folder_fd)
        return folder_fd, name

    def take_folders(self) -> dict[bytes, int]:
        """The open folders, for the caller to close."""
        open_folders, self._open_folders = self._open_folders, {}
        return open_folders

    def close(self, *fds: int) -> None:
        """Close folders and files."""
        for fd in fds:
            self.opened.remove(fd)
            os.close(fd)

    def _open_folder(self, path: bytes, *, creates_missing: bool) -> int:
        fd = os.dup(self._top_fd)
        for part in path.split(b"/"):
            try:
                if creates_missing:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=fd)
                next_fd = os.open(part, OPEN_FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=fd)
            except NotADirectoryError:
                description = f"in the folder {format_path(path)}, {format_path(part)} is a file or a link"
                raise Conflict(description, "move it away, or check out into a new folder") from None
            finally:
                os.close(fd)
            fd = next_fd
        return fd

    def _remove_stale_file(self, path: bytes, row: bytes) -> bool:
        parent, _, name = path.rpartition(b"/")
        with contextlib.suppress(OSError, Conflict):
            fd = self._open_folder(parent, creates_missing=False) if parent else os.dup(self._top_fd)
            try:
                if make_stamp(os.stat(name, dir_fd=fd, follow_symlinks=False)) == row[:STAMP_BYTES]:
                    os.unlink(name, dir_fd=fd)
            finally:
                os.close(fd)
            while parent:  # until one is not empty
                grandparent, _, name = parent.rpartition(b"/")
                fd = self._open_folder(grandparent, creates_missing=False) if grandparent else os.dup(self._top_fd)
                try:
                    os.rmdir(name, dir_fd=fd)
                finally:
                    os.close(fd)
                parent = grandparent
        return True

    def _open_inbox(self) -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(RESERVED_FOLDER, 0o700, dir_fd=self._top_fd)
        inbox_fd = os.open(RESERVED_FOLDER, OPEN_FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=self._top_fd)
        if not _lock_inbox(inbox_fd):
            os.close(inbox_fd)
            raise Conflict(f"another checkout is writing into {self._folder}", "wait for it")
        for name in _list_folder(inbox_fd):
            if name.startswith(b"new-"):
                os.unlink(name, dir_fd=inbox_fd)
        return inbox_fd


class SmallFile:
    """A file of one chunk."""

    __slots__ = ("_entry", "_folder", "_name", "_replaced_stamp", "_target")

    def __init__(self, target: CheckoutTarget, entry: TreeEntry, folder: int, name: bytes) -> None:
        self._target = target
        self._entry = entry
        self._folder = folder
        self._name = name
        self._replaced_stamp = target.own

    def write(self, data: bytes | memoryview) -> WrittenRecord:
        """Write it, and put it in its place."""
        write_arguments = (
            self._target.inbox,
            self._target.new_name(),
            (self._folder, self._name),
            _file_mode(self._entry),
            data,
        )
        file_stat = (
            hand.replace_file(*write_arguments, self._replaced_stamp)
            if self._replaced_stamp
            else hand.write_file(*write_arguments)
        )
        return _create_record(self._entry, make_stamp(file_stat))

    def order(self, data: memoryview) -> Order | None:
        """What another process needs to know to write it; None when it cannot."""
        if self._replaced_stamp or len(data) > hand.SLOT_BYTES or len(self._name) > _MAX_NAME_BYTES:
            return None
        return Order(self._folder, self._name, _file_mode(self._entry), data)

    def written(self, stamp: bytes) -> WrittenRecord:
        """Another process wrote it, and it has this stamp."""
        return _create_record(self._entry, stamp)


class LargeFile:
    """A file of many chunks, written wherever they belong as they come."""

    def __init__(self, target: CheckoutTarget, entry: TreeEntry) -> None:
        self.complete = False
        self._entry, self._replaced_stamp = entry, target.own
        self._inbox_name = target.new_name()
        self._fd = os.open(self._inbox_name, hand.NEW, _file_mode(entry), dir_fd=target.inbox)
        target.opened.add(self._fd)
        os.ftruncate(self._fd, entry.size)
        self._last_digest, self._unallocated_from, self._expected_until = b"", 0, 0

    def expect(self, offset: int, digest: bytes, length: int) -> None:
        """The next of its chunks. Two of the same side by side may be a hole, and room is made for what is none."""
        if digest == self._last_digest:
            self.make_room()
            self._unallocated_from = offset + length
        self._last_digest, self._expected_until = digest, offset + length

    def make_room(self) -> None:
        """Have a place on the disk for what it expects: to look for one with every write takes half as long again."""
        if self._expected_until > self._unallocated_from and _allocate is not None:
            _allocate(
                self._fd, 0, self._unallocated_from, self._expected_until - self._unallocated_from
            )  # in vain: then writing looks for it
        self._unallocated_from = self._expected_until

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Write one chunk; threads may do so at once. What is nothing but zeros stays a hole, as it may have been."""
        if data[:1] != b"\0" or data != bytes(len(data)):
            hand.write_at(self._fd, data, offset)

    def finish(self, target: CheckoutTarget) -> WrittenRecord:
        """Put it in its place."""
        target.close(self._fd)
        file_stat = hand.put_in_place(
            target.inbox, self._inbox_name, target.folder_of(self._entry.path), self._replaced_stamp
        )
        return _create_record(self._entry, make_stamp(file_stat))


class FoldedNames:
    """For a folder that takes different names for one: refuses the second, where it would overwrite the first."""

    def __init__(self) -> None:
        self._path_by_folded: dict[str, bytes] = {}

    def claim(self, path: bytes) -> None:
        """Conflict when a path, or a folder on its way, is another one to this file system."""
        slash_position = path.find(b"/")
        while True:
            part = path if slash_position < 0 else path[:slash_position]
            text = unicodedata.normalize("NFC", part.decode(errors="surrogateescape")).casefold()
            claimed_part = self._path_by_folded.setdefault(text, part)
            if claimed_part != part:
                description = f"{format_path(part)} and {format_path(claimed_part)} are one name on this file system"
                raise Conflict(description, "check out where names are told apart, or check out one of them")
            if slash_position < 0:
                return
            slash_position = path.find(b"/", slash_position + 1)


def _list_folder(folder: int) -> list[bytes]:
    with os.scandir(folder) as listing:
        return [os.fsencode(entry.name) for entry in listing]


def _folds_names(inbox: int) -> bool:
    """Whether a file system confuses upper and lower case, or two ways to write one letter."""
    os.close(os.open(b"new-\xc3\xa9", hand.NEW, 0o600, dir_fd=inbox))
    try:
        for variant in (b"NEW-\xc3\xa9", b"new-e\xcc\x81"):
            with contextlib.suppress(FileNotFoundError):
                os.stat(variant, dir_fd=inbox)
                return True
        return False
    finally:
        os.unlink(b"new-\xc3\xa9", dir_fd=inbox)


def _encode_digest(entry: TreeEntry) -> bytes:
    return entry.digest.encode()


def _has_same_content(
    entry: TreeEntry, snapshot: TreeSnapshot, folder_name_stat: tuple[int, bytes, os.stat_result]
) -> bool:
    """Whether what stands there has the entry's content; read piece by piece."""
    folder, name, file_stat = folder_name_stat
    if entry.kind == "link":
        return stat.S_ISLNK(file_stat.st_mode) and os.readlink(name, dir_fd=folder) == entry.target
    if not stat.S_ISREG(file_stat.st_mode) or file_stat.st_size != entry.size:
        return False
    fd = os.open(name, OPEN_FILE_FLAGS, dir_fd=folder)
    try:
        pieces = snapshot.pieces(entry.content)
        return all(hash_file_range(fd, offset, length) == digest for offset, digest, length in pieces)
    finally:
        os.close(fd)


def _file_mode(entry: TreeEntry) -> int:
    return 0o777 if entry.executable else 0o666


def _create_record(entry: TreeEntry, stamp: bytes) -> WrittenRecord:
    if int.from_bytes(stamp[:8], "little") != entry.size:
        raise CorruptData(f"{format_path(entry.path)} is not as long as the tree says", "publish it again")
    return entry.path, stamp, _encode_digest(entry)


def _lock_inbox(inbox: int) -> bool:
    """Whether we have the folder for ourselves; what a killed checkout left running ends within a moment."""
    for attempt in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(inbox, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if attempt + 1 < _LOCK_TRIES:
            time.sleep(_LOCK_PAUSE_S)
    return False
