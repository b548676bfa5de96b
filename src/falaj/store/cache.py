"""A block cache on a local disk before a far blob store. What it keeps is what the store keeps: sealed bytes.

    <folder>/blocks/<2 hex>/<hash of key>-<number>   a checksum and up to 1 MiB of the object; a short one is its last
    <folder>/pins/<hash of key>                      objects whose blocks are never taken away
    <folder>/incoming/<random>                       what is being written; cleared when its writer is gone

Several processes may share a folder: a block appears by renaming, and two who fetch the same one write the same bytes.
A block that is not what its checksum says is fetched again. Nothing that goes wrong with the folder fails a read or a
write of the store behind it.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from pathlib import Path

from blake3 import blake3

from falaj.core.errors import Invalid
from falaj.core.ports import Blobs, Stat

BLOCK = 1 << 20
LEAST = 16 * BLOCK
_RUN = 8
"""So many neighbouring blocks are fetched in one request."""
_SUM = 16
_SHARE = 20
"""Such a part of the limit is filled, by one process, between two looks at what others filled."""
_KEPT = 64
"""So many blocks of an object are kept on its way up."""
_STALE_S = 3600.0
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class CachedBlobs:
    """`inner` with the blocks last used kept in `folder`, at most `limit_bytes` of them."""

    def __init__(self, inner: Blobs, folder: Path, limit_bytes: int) -> None:
        if limit_bytes < LEAST:
            raise Invalid(f"a cache of {limit_bytes:,} bytes is too small", f"give it at least {LEAST:,} bytes")
        self.inner = inner  # whoever checks what the store holds must not ask its cache
        self._folder, self._limit = folder, limit_bytes
        self._blocks, self._pins, self._incoming = (folder / name for name in ("blocks", "pins", "incoming"))
        for path in (folder, self._blocks, self._pins, self._incoming):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._coming: dict[tuple[str, int], threading.Event] = {}
        self.hits = self.misses = 0
        self._room = max(limit_bytes // _SHARE, 2 * (BLOCK + _SUM))
        self._left = self._due = 0

    @property
    def requests(self) -> int:
        """How many requests at once the store behind it wants; 0 for one that is near."""
        return int(getattr(self.inner, "requests", 0))

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Write to the store behind, all or nothing, durable on return; what was written is then near."""
        name, drafts = _hashed(key), deque[Path]()
        try:
            size = self.inner.put(key, self._copied(name, chunks, drafts))
            for number, draft in enumerate(drafts):
                self._place_draft(draft, name, number)
        finally:
            for draft in drafts:
                _remove(draft)
        return size

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to `stop`; fewer where the object is shorter."""
        number, name = start // BLOCK, _hashed(key)
        while stop is None or (start < stop and number * BLOCK < stop):
            last = number + _RUN if stop is None else min(number + _RUN, -(-stop // BLOCK))
            for data in self._some(key, name, number, last):
                end = BLOCK if stop is None else stop - number * BLOCK
                if piece := data[max(start - number * BLOCK, 0) : end]:
                    yield piece
                if len(data) < BLOCK:
                    return
                number += 1

    def stat(self, keys: Iterable[str]) -> dict[str, Stat]:
        """What is known of those of `keys` that exist."""
        return self.inner.stat(keys)

    def list(self, prefix: str = "") -> Iterator[Stat]:
        """Every object whose key begins with `prefix`, in no order."""
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        """Remove the object there and here; one that is not there is removed already."""
        self.inner.delete(key)
        self.unpin((key,))
        name = _hashed(key)
        for path in (self._blocks / name[:2]).glob(f"{name}-*"):
            _remove(path)

    def close(self) -> None:
        """Let go of the store behind; the blocks stay for the next process."""
        self.inner.close()

    def pin(self, keys: Iterable[str]) -> None:
        """Never take away the blocks of these objects, those here and those still to come; remembered on disk."""
        for key in keys:
            (self._pins / _hashed(key)).touch(mode=0o600)

    def unpin(self, keys: Iterable[str]) -> None:
        """Let the blocks of these objects go as others do."""
        for key in keys:
            (self._pins / _hashed(key)).unlink(missing_ok=True)

    def _some(self, key: str, name: str, first: int, last: int) -> Sequence[bytes]:
        """The block `first`, and where it must be fetched some after it, none of them behind `last`."""
        while (data := self._load(name, first)) is None:
            with self._lock:
                other = self._coming.get((name, first))
                mine = range(0) if other else self._claim(name, first, last)
            if other is None:
                return self._bring(key, name, mine)
            other.wait()
        return (data,)

    def _claim(self, name: str, first: int, last: int) -> range:
        """As many blocks in a row as are neither here nor coming."""
        stop = first + 1
        while stop < last and (name, stop) not in self._coming and not self._place(name, stop).exists():
            stop += 1
        for number in range(first, stop):
            self._coming[name, number] = threading.Event()
        return range(first, stop)

    def _bring(self, key: str, name: str, numbers: range) -> Sequence[bytes]:
        # Nothing is handed out while blocks are claimed: whoever waits for them must not wait for our reader.
        try:
            # Another may have brought the first one between our look and our claim.
            again = self._load(name, numbers.start)
            return self._fetch(key, name, numbers) if again is None else (again,)
        finally:
            with self._lock:
                for number in numbers:
                    self._coming.pop((name, number)).set()

    def _fetch(self, key: str, name: str, numbers: range) -> Sequence[bytes]:
        self.misses += len(numbers)
        data = b"".join(self.inner.open(key, numbers.start * BLOCK, numbers.stop * BLOCK))
        blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
        if len(blocks) < len(numbers) and len(data) % BLOCK == 0:
            blocks.append(b"")  # the object ends where a block does, and that is worth remembering
        for number, block in zip(numbers, blocks, strict=False):
            if (draft := self._draft(name, number, block)) is not None:
                self._place_draft(draft, name, number)
        return blocks

    def _copied(
        self, name: str, chunks: Iterable[bytes | memoryview], drafts: MutableSequence[Path]
    ) -> Iterator[bytes | memoryview]:
        """The same chunks; the first of what passes by is kept in drafts."""
        held, keeping = bytearray(), True

        def keep(data: bytes) -> bool:
            draft = self._draft(name, len(drafts), data)
            drafts.extend((draft,) if draft is not None else ())
            return draft is not None and len(drafts) < _KEPT

        for chunk in chunks:
            held += chunk if keeping else b""
            while keeping and len(held) >= BLOCK:
                keeping = keep(bytes(held[:BLOCK]))
                del held[:BLOCK]
            yield chunk
        if keeping:
            keep(bytes(held))

    def _load(self, name: str, number: int) -> bytes | None:
        place = self._place(name, number)
        try:
            with os.fdopen(os.open(place, _READ), "rb", buffering=0) as file:
                right, data = (file.read(size) or b"" for size in (_SUM, BLOCK + 1))
                os.utime(file.fileno(), ns=(now := time.time_ns(), now))
        except OSError:
            return None
        if right != _checksum(name, number, data):
            _remove(place)
            return None
        self.hits += 1
        return data

    def _draft(self, name: str, number: int, data: bytes) -> Path | None:
        """A block beside its place; None when there is no room for it."""
        self._due -= _SUM + len(data)
        if self._due < 0:
            self._trim()
        if self._left < _SUM + len(data):
            return None
        self._left -= _SUM + len(data)
        draft = self._incoming / secrets.token_hex(16)
        try:
            with os.fdopen(os.open(draft, _WRITE, 0o600), "wb") as file:
                file.writelines((_checksum(name, number, data), data))
            os.utime(draft, ns=(now := time.time_ns(), now))
        except OSError:
            _remove(draft)
            return None
        return draft

    def _place_draft(self, draft: Path, name: str, number: int) -> None:
        place = self._place(name, number)
        try:
            place.parent.mkdir(mode=0o700, exist_ok=True)
            draft.rename(place)
        except OSError:
            _remove(draft)

    def _place(self, name: str, number: int) -> Path:
        return self._blocks / name[:2] / f"{name}-{number}"

    def _trim(self) -> None:
        """Take away the blocks that were used longest ago until there is room; one process at a time."""
        self._due = self._room
        with contextlib.suppress(OSError):
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._clear_stale()
                self._evict()
            finally:
                os.close(lock)

    def _evict(self) -> None:
        pinned = {path.name for path in self._pins.iterdir()}
        found = sorted(_aged(self._blocks))
        left = self._limit - sum(size for _, size, _ in found)
        wanted = 2 * self._room if left < self._room else left
        for _, size, path in found:
            if left >= wanted:
                break
            if path.rpartition("/")[2].partition("-")[0] not in pinned:
                _remove(Path(path))
                left += size
        self._left = left

    def _clear_stale(self) -> None:
        for path in self._incoming.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    path.unlink()


def _aged(blocks: Path) -> Iterator[tuple[int, int, str]]:
    """(when it was last used, its size, its path) of every block."""
    for fan in blocks.iterdir():
        with contextlib.suppress(OSError), os.scandir(fan) as entries:
            for entry in entries:
                about = entry.stat(follow_symlinks=False)
                yield about.st_mtime_ns, about.st_size, entry.path


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:40]


def _checksum(name: str, number: int, data: bytes) -> bytes:
    """Of the block and of where it belongs, so that none can stand in for another."""
    return blake3(f"{name}-{number}\0".encode()).update(data).digest(_SUM)
