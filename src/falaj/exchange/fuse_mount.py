"""A version as a read-only folder: FUSE operations over a snapshot, and the life of a mount."""

import errno
import os
import stat
import subprocess  # nosec B404: our own command line, as it was typed
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from falaj.core.errors import Conflict, Denied, FalajError, Invalid, NotFound, Unavailable
from falaj.snapshot.tree_format import PageRef, TreeEntry
from falaj.snapshot.tree_reader import TreeSnapshot

_MAX_SCANNED_SIBLINGS = 256
"""So many files of a folder below are passed by one by one; then the rest of it is jumped over."""
_CACHE_TIMEOUT_S = 86400.0
_MOUNT_TIMEOUT_S = 60.0
_BACKGROUND_FLAG = "--background"


@contextmanager
def _errors_as_errno() -> Iterator[None]:
    """Our errors as the kernel knows them."""
    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(errno.ENOENT, error.message) from error
    except Denied as error:
        raise PermissionError(errno.EACCES, error.message) from error
    except FalajError as error:
        raise OSError(errno.EIO, error.message) from error


class SnapshotFilesystem:
    """What FUSE asks, answered from a snapshot. There is nothing in it that could write."""

    use_ns = True

    def __init__(self, snapshot: TreeSnapshot, made_at: float = 0.0) -> None:
        self._snapshot = snapshot
        self._time_ns = int(made_at * 1e9)

    def init(self, path: str) -> None:
        """Nothing is to be made ready."""

    @_errors_as_errno()
    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """A file, a link, or a folder: whatever has something below it."""
        del fh
        name = _entry_path(path)
        try:
            entry = self._snapshot.entry(name)
        except NotFound:
            if name and next(iter(self._snapshot.entries(name + b"/")), None) is None:
                raise
            return self._build_attributes(stat.S_IFDIR | 0o555, 0, 2)
        return self._build_attributes(_file_mode(entry), len(entry.target) if entry.kind == "link" else entry.size, 1)

    def readdir(self, path: str, fh: int) -> Iterator[tuple[str, dict[str, int], int]]:
        """What lies in a folder, as it is read: a million names need no more memory than one."""
        del fh
        for dots in (".", ".."):
            yield dots, {"st_mode": stat.S_IFDIR}, 0
        with _errors_as_errno():
            for name, mode in self._iterate_children(_entry_path(path)):
                yield os.fsdecode(name), {"st_mode": mode}, 0

    @_errors_as_errno()
    def open(self, path: str, flags: int) -> int:
        """Files need no handle: a version does not change."""
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        self._snapshot.entry(_entry_path(path))
        return 0

    @_errors_as_errno()
    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Bytes of a file, each chunk checked against its digest before it is handed out."""
        del fh
        entry = self._snapshot.entry(_entry_path(path))
        stop = min(offset + size, entry.size)
        if offset >= stop:
            return b""
        return b"".join(self._snapshot.read(entry, offset, stop))

    @_errors_as_errno()
    def readlink(self, path: str) -> str:
        """Where a link points, as it was published; the kernel follows it, not we."""
        entry = self._snapshot.entry(_entry_path(path))
        if entry.kind != "link":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return os.fsdecode(entry.target)

    def statfs(self, path: str) -> dict[str, int]:
        """Full, as far as anybody who would write is concerned."""
        del path
        return {"f_bsize": 1 << 20, "f_frsize": 4096, "f_namemax": 255}

    def _iterate_children(self, folder: bytes) -> Iterator[tuple[bytes, int]]:
        prefix = folder + b"/" if folder else b""
        next_key: bytes | None = prefix
        while next_key is not None:
            start, next_key, last_name, sibling_count = next_key, None, b"", 0
            for entry in self._entries_since(start, self._snapshot.root()):
                if not entry.path.startswith(prefix):
                    break
                name, has_children, _ = entry.path[len(prefix) :].partition(b"/")
                sibling_count = sibling_count + 1 if has_children and name == last_name else 0
                if sibling_count == _MAX_SCANNED_SIBLINGS:
                    next_key = prefix + name + b"0"  # what follows everything with a slash there
                    break
                if not sibling_count:
                    last_name = name
                    yield name, stat.S_IFDIR | 0o555 if has_children else _file_mode(entry)

    def _entries_since(self, key: bytes, ref: PageRef, next_first: bytes | None = None) -> Iterator[TreeEntry]:
        """The entries from `key` on; pages before it are not read."""
        if next_first is not None and next_first <= key:
            return
        page = self._snapshot.page(ref)
        yield from (entry for entry in page.entries if entry.path >= key)
        for page_ref, next_ref in zip_longest(page.pages, page.pages[1:]):
            yield from self._entries_since(key, page_ref, next_ref.first if next_ref else next_first)

    def _build_attributes(self, mode: int, size: int, links: int) -> dict[str, int]:
        mount_time_ns = self._time_ns
        owner_fields = {"st_uid": os.getuid(), "st_gid": os.getgid()}
        times = {"st_atime": mount_time_ns, "st_mtime": mount_time_ns, "st_ctime": mount_time_ns}
        return {
            "st_mode": mode,
            "st_nlink": links,
            "st_size": size,
            "st_blocks": -(-size // 512),
            **owner_fields,
            **times,
        }


def mount_snapshot(filesystem: SnapshotFilesystem, folder: Path, name: str) -> None:
    """Mount and serve until somebody unmounts, or this process is told to end; the mount is gone on return."""
    fuse = _import_fuse()
    try:
        # One at a time: what is slow is the store behind it, and the snapshot's caches are then nobody else's.
        fuse.FUSE(
            filesystem,
            str(folder),
            foreground=True,
            nothreads=True,
            ro=True,
            fsname=name,
            subtype="falaj",
            attr_timeout=_CACHE_TIMEOUT_S,
            entry_timeout=_CACHE_TIMEOUT_S,
            kernel_cache=True,
        )
    except RuntimeError as error:
        if error.args and isinstance(error.args[0], int) and error.args[0] < 8:  # from 8 on: told to end by a signal
            raise Unavailable(
                f"{folder} cannot be mounted", "the line above says why; it may need root, or fuse3"
            ) from error


def prepare_mount_folder(at: str) -> tuple[Path, bool]:
    """The empty folder to mount at, and whether it was made for that."""
    path = Path(at).expanduser().absolute()
    if os.path.ismount(path):
        raise Conflict(f"something is mounted at {path}", f"unmount it first: fusermount3 -u {path}")
    was_created = not path.exists()
    if was_created:
        path.mkdir(parents=True)
    elif not path.is_dir() or next(path.iterdir(), None) is not None:
        raise Invalid(f"{path} is not an empty folder", "mount at an empty folder, or at a name that is not there yet")
    return path, was_created


def start_background_mount(folder: Path) -> int:
    """The same command once more, in a session of its own; gives its process id when the mount stands."""
    command_words = list(sys.orig_argv)
    if _BACKGROUND_FLAG not in command_words:
        raise Invalid("only the command line mounts in the background", "mount in a process of your own")
    command_words.remove(_BACKGROUND_FLAG)
    with tempfile.TemporaryFile() as error_output:
        command = [sys.executable, *command_words[1:]]
        child = subprocess.Popen(  # noqa: S603  # nosec B603
            command, env=dict(os.environ), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=error_output,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + _MOUNT_TIMEOUT_S
        while child.poll() is None and not os.path.ismount(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        if os.path.ismount(folder):
            child.returncode = 0  # it lives on, and is nobody's to wait for
            return child.pid
        child.kill()
        child.wait()
        error_output.seek(0)
        raise Unavailable(
            f"{folder} cannot be mounted: {error_output.read(500).decode(errors='replace')}", "mount without it"
        )


def _import_fuse() -> Any:
    try:
        import mfusepy
    except ImportError as error:
        raise Invalid("mounting needs the package mfusepy", "pip install 'falaj[mount]'") from error
    except OSError as error:
        raise Invalid("mounting needs libfuse", "apt-get install fuse3, or your system's name for it") from error
    return mfusepy


def _entry_path(path: str) -> bytes:
    return os.fsencode(path.lstrip("/"))


def _file_mode(entry: TreeEntry) -> int:
    if entry.kind == "link":
        return stat.S_IFLNK | 0o777
    return stat.S_IFREG | (0o555 if entry.executable else 0o444)
