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

from falaj.core.errors import CorruptData, FalajError, Invalid, NotFound, Unavailable
from falaj.core.ports import FileWritable, ObjectStat, split_backend_url

_KEY_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}(/[A-Za-z0-9_-]{1,128}){0,3}", re.ASCII)
_MAX_NAME_CHARS = 240
_READ_BYTES = 4 << 20
_COPY_BYTES = 1 << 30
_STALE_DRAFT_S, _UNLOCKED_DRAFT_S = 60.0, 86_400.0
"""A draft that nobody holds is cleared after so long; where files cannot be locked, one that is a day old."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MOUNT_GONE_ERRORS = (errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ESHUTDOWN)
_UNSUPPORTED_ERRORS = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What a file system says of a call that it does not have."""


class FolderObjectStore:
    """Objects as files of one folder, all or nothing and durable."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        folder_text, _, query = split_backend_url(url)[1].partition("?")
        if not folder_text:
            raise Invalid("the address of a folder of blobs names no folder", "for example dir:/var/lib/falaj/blobs")
        self._path = Path("/" + folder_text.lstrip("/") if folder_text.startswith("//") else folder_text).expanduser()
        self._mount_point = _parse_mount(query, self._path)
        self._replaced_fds: list[int] = []
        self._reopen_lock = threading.Lock()
        try:
            self._check_mount()
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root_fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._objects_fd = _open_subfolder(self._root_fd, "objects")
            self._incoming_fd = _open_subfolder(self._root_fd, "incoming")
        except OSError as error:
            raise _translate_error(error) from None
        self._delete_stale_drafts()

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Write all or nothing, durable on return; gives the size."""
        shard, name = _locate_key(key)
        draft = secrets.token_hex(16)
        try:
            size = self._write_draft(draft, chunks)
            shard_fd = _open_subfolder(self._objects_fd, shard)
            try:
                os.rename(draft, name, src_dir_fd=self._incoming_fd, dst_dir_fd=shard_fd)
                _sync_folder(shard_fd)
            finally:
                os.close(shard_fd)
        except OSError as error:
            raise self._to_error(error) from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=self._incoming_fd)
        return size

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to `stop`; fewer where the object is shorter."""
        with self._open_object(key) as fd:
            while stop is None or start < stop:
                data = os.pread(fd, _READ_BYTES if stop is None else min(_READ_BYTES, stop - start), start)
                if not data:
                    return
                start += len(data)
                yield data

    def pour(self, key: str, fd: int) -> int:
        """A whole object into an open file, from file to file inside the kernel; gives the size."""
        with self._open_object(key) as source_fd:
            return _copy_file(source_fd, fd)

    def stat(self, keys: Iterable[str]) -> dict[str, ObjectStat]:
        """What is known of those of `keys` that exist."""
        sizes = {key: self._get_size(*_locate_key(key)) for key in keys}
        return {key: ObjectStat(key, size) for key, size in sizes.items() if size is not None}

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """Every object whose key begins with `prefix`, in no order."""
        name_prefix = _key_to_name(prefix)
        try:
            for shard in _list_names(self._objects_fd):
                with self._open_shard(shard) as shard_fd, os.scandir(shard_fd) as entries:
                    for entry in entries:
                        # A mount keeps what is deleted while it is read under a hidden name (.nfs…): that is no key.
                        is_object = entry.name.startswith(name_prefix) and not entry.name.startswith(".")
                        if is_object and entry.is_file(follow_symlinks=False):
                            yield ObjectStat(_name_to_key(entry.name), entry.stat(follow_symlinks=False).st_size)
        except OSError as error:
            raise self._to_error(error) from None

    def delete(self, key: str) -> None:
        """Remove the object; one that is not there is removed already."""
        shard, name = _locate_key(key)
        try:
            with self._open_shard(shard) as shard_fd:
                os.unlink(name, dir_fd=shard_fd)
                _sync_folder(shard_fd)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._to_error(error) from None

    def close(self) -> None:
        """Let go of the folder."""
        for descriptor in (self._incoming_fd, self._objects_fd, self._root_fd, *self._replaced_fds):
            with contextlib.suppress(OSError):  # a mount that is gone says so once more
                os.close(descriptor)

    @contextlib.contextmanager
    def _open_object(self, key: str) -> Iterator[int]:
        """The open file of an object, which is a plain one; what fails while it is read is said in our words."""
        shard, name = _locate_key(key)
        try:
            with self._open_shard(shard) as shard_fd, _open_file(name, os.O_RDONLY, shard_fd) as fd:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise OSError(errno.ELOOP, "no file")
                yield fd
        except OSError as error:
            raise self._to_error(error) from None

    def _write_draft(self, draft: str, chunks: Iterable[bytes | memoryview]) -> int:
        size = 0
        with _open_file(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, self._incoming_fd) as fd:
            # The lock tells `_clear_stale` of another process that the writer lives.
            _lock_file(fd, fcntl.LOCK_EX)
            if isinstance(chunks, FileWritable):
                size = chunks.pour(fd)
            else:
                for chunk in chunks:
                    view = memoryview(chunk)
                    while view:
                        written_bytes = os.write(fd, view)
                        size += written_bytes
                        view = view[written_bytes:]
            os.fsync(fd)
        return size

    def _get_size(self, shard: str, name: str) -> int | None:
        try:
            file_status = os.stat(f"{shard}/{name}", dir_fd=self._objects_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._to_error(error) from None
        return file_status.st_size if stat.S_ISREG(file_status.st_mode) else None

    def _delete_stale_drafts(self) -> None:
        for name in _list_names(self._incoming_fd):
            with contextlib.suppress(OSError), _open_file(name, os.O_RDONLY, self._incoming_fd) as fd:
                is_locked = _lock_file(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Between its making and its locking a draft looks abandoned, so a young one is left alone.
                if time.time() - os.fstat(fd).st_mtime > (_STALE_DRAFT_S if is_locked else _UNLOCKED_DRAFT_S):
                    os.unlink(name, dir_fd=self._incoming_fd)

    def _check_mount(self) -> None:
        if self._mount_point and not os.path.ismount(self._mount_point):
            raise Unavailable("nothing is mounted where the blob store lies", "mount it; nothing has to be restarted")

    def _to_error(self, error: OSError) -> FalajError:
        """What went wrong. Descriptors of a mount that went away stay dead, so the folder is opened anew."""
        if error.errno in _MOUNT_GONE_ERRORS:
            with self._reopen_lock, contextlib.suppress(OSError, Unavailable):
                self._reopen_folders()
        return _translate_error(error)

    def _reopen_folders(self) -> None:
        with contextlib.suppress(OSError):
            os.scandir(self._objects_fd).close()
            return  # another thread was first, or one file alone was stale
        self._check_mount()
        # Nothing is made here: an empty folder below a mount that is away is no store.
        fds: list[int] = []
        try:
            fds.append(os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            fds += [os.open(name, _FOLDER_FLAGS, dir_fd=fds[0]) for name in ("objects", "incoming")]
        except OSError:
            for descriptor in fds:
                os.close(descriptor)
            raise
        # Other threads may be about to use the old ones; their numbers must not become something else meanwhile.
        self._replaced_fds += [self._root_fd, self._objects_fd, self._incoming_fd]
        self._root_fd, self._objects_fd, self._incoming_fd = fds

    @contextlib.contextmanager
    def _open_shard(self, shard: str) -> Iterator[int]:
        shard_fd = os.open(shard, _FOLDER_FLAGS, dir_fd=self._objects_fd)
        try:
            yield shard_fd
        finally:
            os.close(shard_fd)


@contextlib.contextmanager
def _open_file(name: str, flags: int, folder_fd: int) -> Iterator[int]:
    # O_NONBLOCK: something planted in the folder (a pipe) must not hold us.
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=folder_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def _parse_mount(query: str, path: Path) -> str:
    name, _, mount = query.partition("=")
    if query and (name != "mount" or not mount or not path.is_relative_to(mount)):
        raise Invalid("a folder of blobs knows one option: the mount it lies on", "dir:/mnt/ceph/falaj?mount=/mnt/ceph")
    return mount


def _sync_folder(folder_fd: int) -> None:
    """Make names durable. Where folders cannot be synced the file system has to see to it: there is no other call."""
    try:
        os.fsync(folder_fd)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRORS:
            raise


def _lock_file(fd: int, lock_operation: int) -> bool:
    """Lock a file; False where the file system has no locks."""
    try:
        fcntl.flock(fd, lock_operation)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRORS:
            raise
        return False
    return True


def _list_names(folder_fd: int) -> list[str]:
    with os.scandir(folder_fd) as entries:
        return sorted(entry.name for entry in entries)


def _copy_file(source_fd: int, target_fd: int) -> int:
    """All of one file at another's end."""
    size = 0
    try:
        while copied_bytes := os.copy_file_range(source_fd, target_fd, _COPY_BYTES):
            size += copied_bytes
    except OSError as error:
        if error.errno not in (errno.EXDEV, *_UNSUPPORTED_ERRORS):
            raise
        while copied_bytes := os.sendfile(
            target_fd, source_fd, None, _COPY_BYTES
        ):  # to another file system, or by one that cannot
            size += copied_bytes
    return size


def _open_subfolder(parent_fd: int, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent_fd)
        _sync_folder(parent_fd)
    return os.open(name, _FOLDER_FLAGS, dir_fd=parent_fd)


def _locate_key(key: str) -> tuple[str, str]:
    name = _key_to_name(key)
    if not _KEY_PATTERN.fullmatch(key) or len(name) > _MAX_NAME_CHARS:
        raise Invalid("this is no key of an object", "keys are made by the platform: letters, digits, - and _")
    return hashlib.sha256(key.encode()).hexdigest()[:2], name


def _key_to_name(key: str) -> str:
    return key.replace("/", "~")


def _name_to_key(name: str) -> str:
    return name.replace("~", "/")


def _translate_error(error: OSError) -> FalajError:
    """What went wrong, without the path where it did."""
    if error.errno == errno.ENOENT:
        return NotFound("the blob store has no such object", "run: falaj store scrub")
    if error.errno in _DISK_FULL_ERRORS:
        return Unavailable("the disk of the blob store is full", "free some space, or run: falaj store collect")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Unavailable("the blob store may not be written or read", "give the platform's user the folder of blobs")
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR):
        return CorruptData("something else lies where the blob store keeps an object", "look for links in its folder")
    if error.errno == errno.EXDEV:
        return Unavailable(
            "the folder of blobs is not one file system", "keep incoming and objects on one, in one quota"
        )
    if error.errno in _MOUNT_GONE_ERRORS:
        return Unavailable("the mount of the blob store went away", "mount it again; nothing has to be restarted")
    return Unavailable(f"the blob store does not answer ({errno.errorcode.get(error.errno or 0, 'EIO')})", "try again")
