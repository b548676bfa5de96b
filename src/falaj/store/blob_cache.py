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
from falaj.core.ports import ObjectStat, ObjectStore

BLOCK_BYTES = 1 << 20
MIN_CACHE_BYTES = 16 * BLOCK_BYTES
_BLOCKS_PER_REQUEST = 8
"""So many neighbouring blocks are fetched in one request."""
_CHECKSUM_BYTES = 16
_TRIM_FRACTION = 20
"""Such a part of the limit is filled, by one process, between two looks at what others filled."""
_MAX_UPLOAD_BLOCKS = 64
"""So many blocks of an object are kept on its way up."""
_STALE_S = 3600.0
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class CachedObjectStore:
    """`inner` with the blocks last used kept in `folder`, at most `limit_bytes` of them."""

    def __init__(self, inner: ObjectStore, folder: Path, limit_bytes: int) -> None:
        if limit_bytes < MIN_CACHE_BYTES:
            raise Invalid(
                f"a cache of {limit_bytes:,} bytes is too small", f"give it at least {MIN_CACHE_BYTES:,} bytes"
            )
        self.inner = inner  # whoever checks what the store holds must not ask its cache
        self._folder, self._limit_bytes = folder, limit_bytes
        self._blocks, self._pins, self._incoming = (folder / name for name in ("blocks", "pins", "incoming"))
        for path in (folder, self._blocks, self._pins, self._incoming):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._pending_blocks: dict[tuple[str, int], threading.Event] = {}
        self.hits = self.misses = 0
        self._trim_interval_bytes = max(limit_bytes // _TRIM_FRACTION, 2 * (BLOCK_BYTES + _CHECKSUM_BYTES))
        self._free_bytes = self._bytes_until_trim = 0

    @property
    def requests(self) -> int:
        """How many requests at once the store behind it wants; 0 for one that is near."""
        return int(getattr(self.inner, "requests", 0))

    def put(self, key: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Write to the store behind, all or nothing, durable on return; what was written is then near."""
        name, drafts = _hash_key(key), deque[Path]()
        try:
            size = self.inner.put(key, self._copy_to_drafts(name, chunks, drafts))
            for number, draft in enumerate(drafts):
                self._publish_draft(draft, name, number)
        finally:
            for draft in drafts:
                _remove_file(draft)
        return size

    def open(self, key: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to `stop`; fewer where the object is shorter."""
        number, name = start // BLOCK_BYTES, _hash_key(key)
        while stop is None or (start < stop and number * BLOCK_BYTES < stop):
            last_number = (
                number + _BLOCKS_PER_REQUEST
                if stop is None
                else min(number + _BLOCKS_PER_REQUEST, -(-stop // BLOCK_BYTES))
            )
            for data in self._read_blocks(key, name, number, last_number):
                end = BLOCK_BYTES if stop is None else stop - number * BLOCK_BYTES
                if piece := data[max(start - number * BLOCK_BYTES, 0) : end]:
                    yield piece
                if len(data) < BLOCK_BYTES:
                    return
                number += 1

    def stat(self, keys: Iterable[str]) -> dict[str, ObjectStat]:
        """What is known of those of `keys` that exist."""
        return self.inner.stat(keys)

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """Every object whose key begins with `prefix`, in no order."""
        return self.inner.list(prefix)

    def delete(self, key: str) -> None:
        """Remove the object there and here; one that is not there is removed already."""
        self.inner.delete(key)
        self.unpin((key,))
        name = _hash_key(key)
        for path in (self._blocks / name[:2]).glob(f"{name}-*"):
            _remove_file(path)

    def close(self) -> None:
        """Let go of the store behind; the blocks stay for the next process."""
        self.inner.close()

    def pin(self, keys: Iterable[str]) -> None:
        """Never take away the blocks of these objects, those here and those still to come; remembered on disk."""
        for key in keys:
            (self._pins / _hash_key(key)).touch(mode=0o600)

    def unpin(self, keys: Iterable[str]) -> None:
        """Let the blocks of these objects go as others do."""
        for key in keys:
            (self._pins / _hash_key(key)).unlink(missing_ok=True)

    def _read_blocks(self, key: str, name: str, first_number: int, last_number: int) -> Sequence[bytes]:
        """The block `first_number`, and where it must be fetched some after it, none of them behind `last_number`."""
        while (data := self._load_block(name, first_number)) is None:
            with self._lock:
                pending_block = self._pending_blocks.get((name, first_number))
                claimed_numbers = range(0) if pending_block else self._claim_blocks(name, first_number, last_number)
            if pending_block is None:
                return self._fetch_claimed(key, name, claimed_numbers)
            pending_block.wait()
        return (data,)

    def _claim_blocks(self, name: str, first_number: int, last_number: int) -> range:
        """As many blocks in a row as are neither here nor coming."""
        stop = first_number + 1
        while (
            stop < last_number
            and (name, stop) not in self._pending_blocks
            and not self._block_path(name, stop).exists()
        ):
            stop += 1
        for number in range(first_number, stop):
            self._pending_blocks[name, number] = threading.Event()
        return range(first_number, stop)

    def _fetch_claimed(self, key: str, name: str, numbers: range) -> Sequence[bytes]:
        # Nothing is handed out while blocks are claimed: whoever waits for them must not wait for our reader.
        try:
            # Another may have brought the first one between our look and our claim.
            cached = self._load_block(name, numbers.start)
            return self._fetch_blocks(key, name, numbers) if cached is None else (cached,)
        finally:
            with self._lock:
                for number in numbers:
                    self._pending_blocks.pop((name, number)).set()

    def _fetch_blocks(self, key: str, name: str, numbers: range) -> Sequence[bytes]:
        self.misses += len(numbers)
        data = b"".join(self.inner.open(key, numbers.start * BLOCK_BYTES, numbers.stop * BLOCK_BYTES))
        blocks = [data[offset : offset + BLOCK_BYTES] for offset in range(0, len(data), BLOCK_BYTES)]
        if len(blocks) < len(numbers) and len(data) % BLOCK_BYTES == 0:
            blocks.append(b"")  # the object ends where a block does, and that is worth remembering
        for number, block in zip(numbers, blocks, strict=False):
            if (draft := self._write_draft(name, number, block)) is not None:
                self._publish_draft(draft, name, number)
        return blocks

    def _copy_to_drafts(
        self, name: str, chunks: Iterable[bytes | memoryview], drafts: MutableSequence[Path]
    ) -> Iterator[bytes | memoryview]:
        """The same chunks; the first of what passes by is kept in drafts."""
        buffer, is_keeping = bytearray(), True

        def keep_block(data: bytes) -> bool:
            draft = self._write_draft(name, len(drafts), data)
            drafts.extend((draft,) if draft is not None else ())
            return draft is not None and len(drafts) < _MAX_UPLOAD_BLOCKS

        for chunk in chunks:
            buffer += chunk if is_keeping else b""
            while is_keeping and len(buffer) >= BLOCK_BYTES:
                is_keeping = keep_block(bytes(buffer[:BLOCK_BYTES]))
                del buffer[:BLOCK_BYTES]
            yield chunk
        if is_keeping:
            keep_block(bytes(buffer))

    def _load_block(self, name: str, number: int) -> bytes | None:
        block_path = self._block_path(name, number)
        try:
            with os.fdopen(os.open(block_path, _READ_FLAGS), "rb", buffering=0) as file:
                checksum, data = (file.read(size) or b"" for size in (_CHECKSUM_BYTES, BLOCK_BYTES + 1))
                os.utime(file.fileno(), ns=(now := time.time_ns(), now))
        except OSError:
            return None
        if checksum != _compute_checksum(name, number, data):
            _remove_file(block_path)
            return None
        self.hits += 1
        return data

    def _write_draft(self, name: str, number: int, data: bytes) -> Path | None:
        """A block beside its place; None when there is no room for it."""
        self._bytes_until_trim -= _CHECKSUM_BYTES + len(data)
        if self._bytes_until_trim < 0:
            self._trim_cache()
        if self._free_bytes < _CHECKSUM_BYTES + len(data):
            return None
        self._free_bytes -= _CHECKSUM_BYTES + len(data)
        draft = self._incoming / secrets.token_hex(16)
        try:
            with os.fdopen(os.open(draft, _WRITE_FLAGS, 0o600), "wb") as file:
                file.writelines((_compute_checksum(name, number, data), data))
            os.utime(draft, ns=(now := time.time_ns(), now))
        except OSError:
            _remove_file(draft)
            return None
        return draft

    def _publish_draft(self, draft: Path, name: str, number: int) -> None:
        block_path = self._block_path(name, number)
        try:
            block_path.parent.mkdir(mode=0o700, exist_ok=True)
            draft.rename(block_path)
        except OSError:
            _remove_file(draft)

    def _block_path(self, name: str, number: int) -> Path:
        return self._blocks / name[:2] / f"{name}-{number}"

    def _trim_cache(self) -> None:
        """Take away the blocks that were used longest ago until there is room; one process at a time."""
        self._bytes_until_trim = self._trim_interval_bytes
        with contextlib.suppress(OSError):
            lock_fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._clear_stale()
                self._evict_blocks()
            finally:
                os.close(lock_fd)

    def _evict_blocks(self) -> None:
        pinned = {path.name for path in self._pins.iterdir()}
        blocks_by_age = sorted(_list_blocks_by_age(self._blocks))
        free_bytes = self._limit_bytes - sum(size for _, size, _ in blocks_by_age)
        target_free = 2 * self._trim_interval_bytes if free_bytes < self._trim_interval_bytes else free_bytes
        for _, size, path in blocks_by_age:
            if free_bytes >= target_free:
                break
            if path.rpartition("/")[2].partition("-")[0] not in pinned:
                _remove_file(Path(path))
                free_bytes += size
        self._free_bytes = free_bytes

    def _clear_stale(self) -> None:
        for path in self._incoming.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    path.unlink()


def _list_blocks_by_age(blocks: Path) -> Iterator[tuple[int, int, str]]:
    """(when it was last used, its size, its path) of every block."""
    for fan in blocks.iterdir():
        with contextlib.suppress(OSError), os.scandir(fan) as entries:
            for entry in entries:
                entry_stat = entry.stat(follow_symlinks=False)
                yield entry_stat.st_mtime_ns, entry_stat.st_size, entry.path


def _remove_file(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _hash_key(key: str) -> str:
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:40]


def _compute_checksum(name: str, number: int, data: bytes) -> bytes:
    """Of the block and of where it belongs, so that none can stand in for another."""
    return blake3(f"{name}-{number}\0".encode()).update(data).digest(_CHECKSUM_BYTES)
