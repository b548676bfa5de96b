"""Copies, on this node's own disk, of files that lie on slow storage: a shared folder, a mount over the network.

One copy a node, made by whoever comes first under a lock, under another name until it is whole: a process killed in
the middle leaves nothing that could be taken for a file. The least lately used go for new ones, never one in use.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from falaj.core.errors import CorruptData

SLOW_FILESYSTEMS = (
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "fuse",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "smb",
    "virtiofs",
    "wekafs",
)
FOLDER_VARIABLE, LIMIT_VARIABLE = "FALAJ_CACHE", "FALAJ_CACHE_BYTES"


class FileCache:
    """A folder of copies that together stay below `limit_bytes`, which may be less than what is read."""

    def __init__(self, folder: Path | str, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = Path(folder), limit_bytes
        self.folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def local(self, path: Path, digest: str = "") -> Iterator[Path]:
        """The copy, which stays while it is held; the file itself where there is no room for one."""
        file_stat = path.stat()
        key = hashlib.sha256(
            f"{path.resolve()}\0{file_stat.st_size}\0{file_stat.st_mtime_ns}\0{digest}".encode()
        ).hexdigest()[:32]
        copy = self.folder / f"{key}{path.suffix}"
        with self._open_lock(key) as lock:
            while True:
                fcntl.flock(lock, fcntl.LOCK_SH)
                if _is_complete(copy, file_stat.st_size):
                    os.utime(copy)
                    yield copy
                    return
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_complete(copy, file_stat.st_size) and not self._copy_file(
                    path, copy, file_stat.st_size, digest
                ):
                    break
        yield path

    @contextlib.contextmanager
    def _open_lock(self, key: str) -> Iterator[int]:
        lock = os.open(self.folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield lock
        finally:
            os.close(lock)

    def _copy_file(self, path: Path, copy: Path, size: int, digest: str) -> bool:
        """Copy it; False when there is no room. Whoever calls holds the lock of this copy alone."""
        draft = copy.with_suffix(".tmp")
        draft.unlink(missing_ok=True)
        if not self._reserve_space(draft, size):
            return False
        hasher = hashlib.sha256()
        try:
            with path.open("rb") as source, draft.open("r+b") as target:
                while block := source.read(1 << 20):
                    hasher.update(block if digest else b"")
                    target.write(block)
                copied = target.tell()
        except OSError as error:
            draft.unlink(missing_ok=True)
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                return False
            raise
        if copied != size or (digest and hasher.hexdigest() != digest):
            draft.unlink()
            raise CorruptData(
                f"{path} is not what its manifest says, or changed while it was copied", "publish it again"
            )
        draft.replace(copy)
        return True

    def _reserve_space(self, draft: Path, size: int) -> bool:
        """Room is taken by a draft of full length, so that copies made at the same time know of each other."""
        with self._open_lock("room") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            cached_files = [(file.stat(), file) for file in self.folder.iterdir() if file.suffix != ".lock"]
            total = sum(file_stat.st_size for file_stat, _ in cached_files)
            for file_stat, file in sorted(cached_files, key=lambda entry: entry[0].st_mtime_ns):
                if total + size <= self.limit_bytes:
                    break
                total -= file_stat.st_size if self._drop_file(file) else 0
            if total + size > self.limit_bytes:
                return False
            with draft.open("wb") as draft_file:
                draft_file.truncate(size)
            return True

    def _drop_file(self, file: Path) -> bool:
        with self._open_lock(file.stem) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            file.unlink(missing_ok=True)
            return True


class SourceFile:
    """A file as it was when it was first seen, read where that is fastest."""

    def __init__(self, path: Path, cache: FileCache | None = None, digest: str = "") -> None:
        self.path, self.cache, self.digest, self.seen = path, cache, digest, _read_stamp(path)

    @contextlib.contextmanager
    def local(self) -> Iterator[Path]:
        """Where to read it now; Corrupt when it is no longer the file that was opened."""
        if _read_stamp(self.path) != self.seen:
            raise CorruptData(f"{self.path} changed after it was opened", "datasets in use are not written to")
        with (
            self.cache.local(self.path, self.digest) if self.cache else contextlib.nullcontext(self.path) as local_path
        ):
            yield local_path


def find_node_cache(folder: Path) -> FileCache | None:
    """The node's cache, when this folder lies on slow storage; FALAJ_CACHE says where, and makes it always used."""
    configured = os.environ.get(FOLDER_VARIABLE, "")
    if not configured and not is_slow_storage(folder):
        return None
    cache_folder = Path(configured or Path(tempfile.gettempdir()) / f"falaj-cache-{os.getuid()}")
    cache_folder.mkdir(parents=True, exist_ok=True)
    return FileCache(
        cache_folder, int(os.environ.get(LIMIT_VARIABLE, "0")) or shutil.disk_usage(cache_folder).free // 2
    )


def is_slow_storage(folder: Path) -> bool:
    """Whether the file system below is one that is asked over a wire."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return False
    resolved = folder.resolve()
    mounts_above = [
        (mount_point, kind)
        for mount_point, kind in mounts
        if resolved.is_relative_to(mount_point.replace("\\040", " "))
    ]
    return bool(mounts_above) and max(mounts_above, key=lambda mount: len(mount[0]))[1].startswith(SLOW_FILESYSTEMS)


def _read_stamp(path: Path) -> tuple[int, int]:
    file_stat = path.stat()
    return file_stat.st_size, file_stat.st_mtime_ns


def _is_complete(copy: Path, size: int) -> bool:
    try:
        return copy.stat().st_size == size
    except FileNotFoundError:
        return False
