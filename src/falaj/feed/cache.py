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

from falaj.core.errors import Corrupt

SLOW = (
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
FOLDER, LIMIT = "FALAJ_CACHE", "FALAJ_CACHE_BYTES"


class Cache:
    """A folder of copies that together stay below `limit_bytes`, which may be less than what is read."""

    def __init__(self, folder: Path | str, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = Path(folder), limit_bytes
        self.folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def local(self, path: Path, digest: str = "") -> Iterator[Path]:
        """The copy, which stays while it is held; the file itself where there is no room for one."""
        seen = path.stat()
        key = hashlib.sha256(f"{path.resolve()}\0{seen.st_size}\0{seen.st_mtime_ns}\0{digest}".encode()).hexdigest()[
            :32
        ]
        copy = self.folder / f"{key}{path.suffix}"
        with self._lock(key) as lock:
            while True:
                fcntl.flock(lock, fcntl.LOCK_SH)
                if _whole(copy, seen.st_size):
                    os.utime(copy)
                    yield copy
                    return
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _whole(copy, seen.st_size) and not self._fill(path, copy, seen.st_size, digest):
                    break
        yield path

    @contextlib.contextmanager
    def _lock(self, key: str) -> Iterator[int]:
        lock = os.open(self.folder / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield lock
        finally:
            os.close(lock)

    def _fill(self, path: Path, copy: Path, size: int, digest: str) -> bool:
        """Copy it; False when there is no room. Whoever calls holds the lock of this copy alone."""
        draft = copy.with_suffix(".tmp")
        draft.unlink(missing_ok=True)
        if not self._reserve(draft, size):
            return False
        found = hashlib.sha256()
        try:
            with path.open("rb") as source, draft.open("r+b") as target:
                while block := source.read(1 << 20):
                    found.update(block if digest else b"")
                    target.write(block)
                copied = target.tell()
        except OSError as error:
            draft.unlink(missing_ok=True)
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                return False
            raise
        if copied != size or (digest and found.hexdigest() != digest):
            draft.unlink()
            raise Corrupt(f"{path} is not what its manifest says, or changed while it was copied", "publish it again")
        draft.replace(copy)
        return True

    def _reserve(self, draft: Path, size: int) -> bool:
        """Room is taken by a draft of full length, so that copies made at the same time know of each other."""
        with self._lock("room") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = [(file.stat(), file) for file in self.folder.iterdir() if file.suffix != ".lock"]
            total = sum(seen.st_size for seen, _ in kept)
            for seen, file in sorted(kept, key=lambda one: one[0].st_mtime_ns):
                if total + size <= self.limit_bytes:
                    break
                total -= seen.st_size if self._drop(file) else 0
            if total + size > self.limit_bytes:
                return False
            with draft.open("wb") as made:
                made.truncate(size)
            return True

    def _drop(self, file: Path) -> bool:
        with self._lock(file.stem) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            file.unlink(missing_ok=True)
            return True


class Kept:
    """A file as it was when it was first seen, read where that is fastest."""

    def __init__(self, path: Path, cache: Cache | None = None, digest: str = "") -> None:
        self.path, self.cache, self.digest, self.seen = path, cache, digest, _stamp(path)

    @contextlib.contextmanager
    def local(self) -> Iterator[Path]:
        """Where to read it now; Corrupt when it is no longer the file that was opened."""
        if _stamp(self.path) != self.seen:
            raise Corrupt(f"{self.path} changed after it was opened", "datasets in use are not written to")
        with self.cache.local(self.path, self.digest) if self.cache else contextlib.nullcontext(self.path) as found:
            yield found


def cache_for(folder: Path) -> Cache | None:
    """The node's cache, when this folder lies on slow storage; FALAJ_CACHE says where, and makes it always used."""
    said = os.environ.get(FOLDER, "")
    if not said and not is_slow(folder):
        return None
    place = Path(said or Path(tempfile.gettempdir()) / f"falaj-cache-{os.getuid()}")
    place.mkdir(parents=True, exist_ok=True)
    return Cache(place, int(os.environ.get(LIMIT, "0")) or shutil.disk_usage(place).free // 2)


def is_slow(folder: Path) -> bool:
    """Whether the file system below is one that is asked over a wire."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return False
    here = folder.resolve()
    above = [(where, kind) for where, kind in mounts if here.is_relative_to(where.replace("\\040", " "))]
    return bool(above) and max(above, key=lambda mount: len(mount[0]))[1].startswith(SLOW)


def _stamp(path: Path) -> tuple[int, int]:
    seen = path.stat()
    return seen.st_size, seen.st_mtime_ns


def _whole(copy: Path, size: int) -> bool:
    try:
        return copy.stat().st_size == size
    except FileNotFoundError:
        return False
