"""Blobs in a folder: `dir:/var/lib/falaj/blobs`. A local disk, or any mount that renames atomically.

With `?mount=/mnt/ceph` nothing is made or read unless something is mounted there: the empty folder below a mount that
is away is no store. A mount that went away and came back is found again by the next call.

    <root>/objects/<2 hex>/<key>   one file an object, spread over 256 folders by the hash of its key
    <root>/incoming/<random>       what is being written; locked by its writer, cleared when the writer is gone

Every open goes through a directory descriptor and follows no link, and a key is checked before it becomes a file name,
so no key leads out of the root.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from falaj.core.errors import Corrupt, FalajError, Invalid, NotFound, Unavailable
from falaj.core.ports import Poured, Stat, open_url

_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}(/[A-Za-z0-9_-]{1,128}){0,3}", re.ASCII)
_NAME_MAX = 240
_READ = 4 << 20
_POUR = 1 << 30
_STALE_S, _UNLOCKED_S = 60.0, 86_400.0
"""A draft that nobody holds is cleared after so long; where files cannot be locked, one that is a day old."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_GONE = (errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ESHUTDOWN)
_LACKS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What a file system says of a call that it does not have."""


class DirBlobs:
    """Objects as files of one folder, all or nothing and durable."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        root, _, query = open_url(url)[1].partition("?")
        if not root:
            raise Invalid("the address of a folder of blobs names no folder", "for example dir:/var/lib/falaj/blobs")
        self._path = Path("/" + root.lstrip("/") if root.startswith("//") else root).expanduser()
        self._mount = _mount(query, self._path)
        self._former: list[int] = []
        self._again = threading.Lock()
        try:
            self._check_mount()
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._objects = _subfolder(self._root, "objects")
            self._incoming = _subfolder(self._root, "incoming")
        except OSError as error:
            raise _failure(error) from None
        self._clear_stale()

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Write all or nothing, durable on return; gives the size."""
        fan, name = _where(key)
        draft = secrets.token_hex(16)
        try:
            size = self._write(draft, chunks)
            folder = _subfolder(self._objects, fan)
            try:
                os.rename(draft, name, src_dir_fd=self._incoming, dst_dir_fd=folder)
                _settle(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._failed(error) from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=self._incoming)
        return size

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to `stop`; fewer where the object is shorter."""
        with self._object(key) as file:
            while stop is None or start < stop:
                data = os.pread(file, _READ if stop is None else min(_READ, stop - start), start)
                if not data:
                    return
                start += len(data)
                yield data

    def pour(self, key: str, file: int) -> int:
        """A whole object into an open file, from file to file inside the kernel; gives the size."""
        with self._object(key) as source:
            return _poured(source, file)

    def stat(self, keys: Iterable[str]) -> dict[str, Stat]:
        """What is known of those of `keys` that exist."""
        sizes = {key: self._size(*_where(key)) for key in keys}
        return {key: Stat(key, size) for key, size in sizes.items() if size is not None}

    def list(self, prefix: str = "") -> Iterator[Stat]:
        """Every object whose key begins with `prefix`, in no order."""
        start = _encode(prefix)
        try:
            for fan in _names(self._objects):
                with self._folder(fan) as folder, os.scandir(folder) as entries:
                    for entry in entries:
                        # A mount keeps what is deleted while it is read under a hidden name (.nfs…): that is no key.
                        known = entry.name.startswith(start) and not entry.name.startswith(".")
                        if known and entry.is_file(follow_symlinks=False):
                            yield Stat(_decode(entry.name), entry.stat(follow_symlinks=False).st_size)
        except OSError as error:
            raise self._failed(error) from None

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is removed already."""
        fan, name = _where(key)
        try:
            with self._folder(fan) as folder:
                os.unlink(name, dir_fd=folder)
                _settle(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed(error) from None

    def close(self) -> None:
        """Let go of the folder."""
        for descriptor in (self._incoming, self._objects, self._root, *self._former):
            with contextlib.suppress(OSError):  # a mount that is gone says so once more
                os.close(descriptor)

    @contextlib.contextmanager
    def _object(self, key: str) -> Iterator[int]:
        """The open file of an object, which is a plain one; what fails while it is read is said in our words."""
        fan, name = _where(key)
        try:
            with self._folder(fan) as folder, _opened(name, os.O_RDONLY, folder) as file:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise OSError(errno.ELOOP, "no file")
                yield file
        except OSError as error:
            raise self._failed(error) from None

    def _write(self, draft: str, chunks: Iterable[bytes | memoryview]) -> int:
        size = 0
        with _opened(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, self._incoming) as file:
            # The lock tells `_clear_stale` of another process that the writer lives.
            _locked(file, fcntl.LOCK_EX)
            if isinstance(chunks, Poured):
                size = chunks.pour(file)
            else:
                for chunk in chunks:
                    view = memoryview(chunk)
                    while view:
                        done = os.write(file, view)
                        size += done
                        view = view[done:]
            os.fsync(file)
        return size

    def _size(self, fan: str, name: str) -> int | None:
        try:
            about = os.stat(f"{fan}/{name}", dir_fd=self._objects, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(error) from None
        return about.st_size if stat.S_ISREG(about.st_mode) else None

    def _clear_stale(self) -> None:
        for name in _names(self._incoming):
            with contextlib.suppress(OSError), _opened(name, os.O_RDONLY, self._incoming) as file:
                held = _locked(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Between its making and its locking a draft looks abandoned, so a young one is left alone.
                if time.time() - os.fstat(file).st_mtime > (_STALE_S if held else _UNLOCKED_S):
                    os.unlink(name, dir_fd=self._incoming)

    def _check_mount(self) -> None:
        if self._mount and not os.path.ismount(self._mount):
            raise Unavailable("nothing is mounted where the blob store lies", "mount it; nothing has to be restarted")

    def _failed(self, error: OSError) -> FalajError:
        """What went wrong. Descriptors of a mount that went away stay dead, so the folder is opened anew."""
        if error.errno in _GONE:
            with self._again, contextlib.suppress(OSError, Unavailable):
                self._reopen()
        return _failure(error)

    def _reopen(self) -> None:
        with contextlib.suppress(OSError):
            os.scandir(self._objects).close()
            return  # another thread was first, or one file alone was stale
        self._check_mount()
        # Nothing is made here: an empty folder below a mount that is away is no store.
        found: list[int] = []
        try:
            found.append(os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            found += [os.open(name, _FOLDER, dir_fd=found[0]) for name in ("objects", "incoming")]
        except OSError:
            for descriptor in found:
                os.close(descriptor)
            raise
        # Other threads may be about to use the old ones; their numbers must not become something else meanwhile.
        self._former += [self._root, self._objects, self._incoming]
        self._root, self._objects, self._incoming = found

    @contextlib.contextmanager
    def _folder(self, fan: str) -> Iterator[int]:
        folder = os.open(fan, _FOLDER, dir_fd=self._objects)
        try:
            yield folder
        finally:
            os.close(folder)


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: int) -> Iterator[int]:
    # O_NONBLOCK: something planted in the folder (a pipe) must not hold us.
    file = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def _mount(query: str, path: Path) -> str:
    name, _, mount = query.partition("=")
    if query and (name != "mount" or not mount or not path.is_relative_to(mount)):
        raise Invalid("a folder of blobs knows one option: the mount it lies on", "dir:/mnt/ceph/falaj?mount=/mnt/ceph")
    return mount


def _settle(folder: int) -> None:
    """Make names durable. Where folders cannot be synced the file system has to see to it: there is no other call."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _LACKS:
            raise


def _locked(file: int, how: int) -> bool:
    """Lock a file; False where the file system has no locks."""
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno not in _LACKS:
            raise
        return False
    return True


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries)


def _poured(source: int, target: int) -> int:
    """All of one file at another's end."""
    size = 0
    try:
        while done := os.copy_file_range(source, target, _POUR):
            size += done
    except OSError as error:
        if error.errno not in (errno.EXDEV, *_LACKS):
            raise
        while done := os.sendfile(target, source, None, _POUR):  # to another file system, or by one that cannot
            size += done
    return size


def _subfolder(parent: int, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
        _settle(parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _where(key: str) -> tuple[str, str]:
    name = _encode(key)
    if not _KEY.fullmatch(key) or len(name) > _NAME_MAX:
        raise Invalid("this is no key of an object", "keys are made by the platform: letters, digits, - and _")
    return hashlib.sha256(key.encode()).hexdigest()[:2], name


def _encode(key: str) -> str:
    return key.replace("/", "~")


def _decode(name: str) -> str:
    return name.replace("~", "/")


def _failure(error: OSError) -> FalajError:
    """What went wrong, without the path where it did."""
    if error.errno == errno.ENOENT:
        return NotFound("the blob store has no such object", "run: falaj store scrub")
    if error.errno in _FULL:
        return Unavailable("the disk of the blob store is full", "free some space, or run: falaj store collect")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Unavailable("the blob store may not be written or read", "give the platform's user the folder of blobs")
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
        return Corrupt("something else lies where the blob store keeps an object", "look for links in its folder")
    if error.errno == errno.EXDEV:
        return Unavailable(
            "the folder of blobs is not one file system", "keep incoming and objects on one, in one quota"
        )
    if error.errno in _GONE:
        return Unavailable("the mount of the blob store went away", "mount it again; nothing has to be restarted")
    return Unavailable(f"the blob store does not answer ({errno.errorcode.get(error.errno or 0, 'EIO')})", "try again")
