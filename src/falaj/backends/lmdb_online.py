"""Online features of one tenant in a file of this machine: `lmdb:/path/to/folder`. Many readers, one writer at a time.

A put is one transaction, on disk when it returns: killed anywhere, its rows are all there or none. The file grows as it
must; no reader looks while this process maps it anew. LMDB may be opened once in a process, so all who name one folder
share it here. A space is 16 bytes of a hash; behind them stand its mark, its rows, and the keys that are too long for
LMDB, written out.

With the option `readonly` only the data file is opened, for reading, and no lock file: a process that could write the
lock file could corrupt the memory of the platform that shares it. Such a reader is not registered with the writer, so
the writer pins the snapshots of the last GRACE_S seconds and does not reuse their pages; a reader that took longer
than that reads again.
"""

import contextlib
import hashlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from falaj.core.errors import CorruptData, FalajError, Invalid, Unavailable
from falaj.core.online_rows import hash_space_name, merge_row_before, require_rank
from falaj.core.online_rows import pack_moment_bound as after_moment

INITIAL_MAP_BYTES = 1 << 30
"""The first size of the map: address space, not disk."""
SNAPSHOT_GRACE_S = 0.5
"""Seconds for which pages that a write replaced stay as they were, for readers that hold no lock: a read takes some ten
microseconds. The file holds what is written within that time in addition to its rows."""
_MAX_READERS = 2048
_DROP_BATCH_KEYS = 20_000
_MAX_TRIES = 64
_MARK_PREFIX, _ROW_PREFIX, _LONG_KEY_PREFIX = b"\x00", b"\x01", b"\x02"
_MAX_INLINE_KEY_BYTES = 440
"""Longer keys lie under their beginning and a hash: LMDB takes 511 bytes."""
_DIGEST_BYTES = 32
_ResultT = TypeVar("_ResultT")


class LmdbOnlineStore:
    """Options: `map_bytes`, the first size of the map; `readonly`, for a process that must not write."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        folder = url.partition(":")[2]
        if not folder:
            raise Invalid(f"{url[:200]!r} names no folder", "for example lmdb:/var/lib/falaj/online")
        settings = options or {}
        self._readonly, map_bytes = bool(settings.get("readonly")), int(settings.get("map_bytes", INITIAL_MAP_BYTES))
        self._environment_file: _SharedEnvironment | None = _open_shared_environment(
            Path(folder).resolve(), self._readonly, map_bytes
        )

    def put(self, space: str, rows: Sequence[tuple[bytes, bytes]], now_us: int) -> int:
        """Take rows in, newest wins; on disk when it returns."""
        key_prefix, moment_bound = hash_space_name(space) + _ROW_PREFIX, after_moment(now_us)
        rows_by_stored_key = [(_to_stored_key(key_prefix, key), key, require_rank(row)) for key, row in rows]
        # In the order of the file, neighbours share pages.
        rows_by_stored_key.sort(key=lambda stored_row: stored_row[0])

        def write_rows(txn: "lmdb.Transaction[bytes]") -> int:
            entries: dict[bytes, bytes] = {}
            changed = 0
            for stored_key, key, row in rows_by_stored_key:
                entry = entries.get(stored_key) or txn.get(stored_key)
                merged = merge_row_before(entry, row, moment_bound)
                if merged is not entry:
                    changed += 1
                    entries[stored_key] = merged
                    if len(stored_key) > len(key_prefix) + _MAX_INLINE_KEY_BYTES:
                        txn.put(key_prefix[:-1] + _LONG_KEY_PREFIX + stored_key[-_DIGEST_BYTES:], key)
            with txn.cursor() as cursor:
                cursor.putmulti(entries.items())
            return changed

        return self._require_writable().write(write_rows)

    def get(self, requests: Sequence[tuple[str, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """What lies under keys of several spaces, from one snapshot."""
        prefixed_requests = [(hash_space_name(space) + _ROW_PREFIX, keys) for space, keys in requests]

        def read_entries(txn: "lmdb.Transaction[bytes]") -> list[list[bytes | None]]:
            get_entry = txn.get
            return [
                [
                    get_entry(
                        key_prefix + key if len(key) <= _MAX_INLINE_KEY_BYTES else _to_stored_key(key_prefix, key)
                    )
                    for key in keys
                ]
                for key_prefix, keys in prefixed_requests
            ]

        return self._open_file().read(read_entries)

    def scan(self, space: str, after: bytes | None = None, limit: int = 10_000) -> list[tuple[bytes, bytes]]:
        """(key, cell) behind a key (none: from the beginning; the empty one is a key), in the order of the file."""
        key_prefix = hash_space_name(space) + _ROW_PREFIX
        start_key = _to_stored_key(key_prefix, after or b"")

        def read_page(txn: "lmdb.Transaction[bytes]") -> list[tuple[bytes, bytes]]:
            with txn.cursor() as cursor:
                has_more = cursor.set_range(start_key) and (after is None or cursor.key() != start_key or cursor.next())
                following = itertools.islice(cursor.iternext(), limit) if has_more else ()
                matching = itertools.takewhile(lambda item: item[0].startswith(key_prefix), following)
                return [(_to_full_key(txn, key_prefix, stored_key), entry) for stored_key, entry in matching]

        return self._open_file().read(read_page)

    def delete(self, space: str, keys: Sequence[bytes]) -> int:
        """Remove keys; gives how many were there."""
        key_prefix = hash_space_name(space)

        def delete_entries(txn: "lmdb.Transaction[bytes]") -> int:
            deleted_count = 0
            for key in keys:
                stored_key = _to_stored_key(key_prefix + _ROW_PREFIX, key)
                deleted_count += txn.delete(stored_key)
                if len(key) > _MAX_INLINE_KEY_BYTES:
                    txn.delete(key_prefix + _LONG_KEY_PREFIX + stored_key[-_DIGEST_BYTES:])
            return deleted_count

        return self._require_writable().write(delete_entries)

    def drop(self, space: str) -> None:
        """Remove a space, its mark first: what is left of a drop that was killed passes for nothing filled."""
        key_prefix = hash_space_name(space)

        def drop_batch(txn: "lmdb.Transaction[bytes]") -> bool:
            with txn.cursor() as cursor:
                has_more = cursor.set_range(key_prefix)
                for _ in range(_DROP_BATCH_KEYS):
                    if not has_more or not cursor.key().startswith(key_prefix):
                        return False
                    has_more = cursor.delete() and bool(cursor.key())
            return has_more

        while self._require_writable().write(drop_batch):
            pass

    def note(self, space: str, value: bytes | None = None) -> bytes | None:
        """Read, or write, the mark of a space."""
        mark_key = hash_space_name(space) + _MARK_PREFIX
        if value is not None:
            self._require_writable().write(lambda txn: txn.put(mark_key, value))
            return value
        return self._open_file().read(lambda txn: txn.get(mark_key))

    def admit_reader(self, password_digest: str) -> str:
        """The folder itself: the sandbox of a replica shows it read-only, and no other tenant's."""
        del password_digest
        return f"lmdb:{self._open_file().folder}"

    def dismiss_reader(self, password_digest: str) -> None:
        """Nothing to take back: the mount ends with the replica."""

    def close(self) -> None:
        """Leave the file; the last one closes it."""
        file, self._environment_file = self._environment_file, None
        if file is not None:
            file.release()

    def _require_writable(self) -> "_SharedEnvironment":
        if self._readonly:
            raise Invalid("the online store is open for reading only in this process", "write through the platform")
        return self._open_file()

    def _open_file(self) -> "_SharedEnvironment":
        if self._environment_file is None:
            raise Unavailable("the online store is closed", "open it again")
        return self._environment_file


class _SharedEnvironment:
    """The one environment of a folder in this process, and who is inside: LMDB cannot map anew under anybody's feet."""

    def __init__(self, folder: Path, readonly: bool, map_bytes: int) -> None:
        self.users = 0
        self.readonly, self.folder, self._map_bytes = readonly, folder, map_bytes
        self._environment: lmdb.Environment | None = None
        self._reset_locks()
        self._open_environment()

    def read(self, read_entries: "Callable[[lmdb.Transaction[bytes]], _ResultT]") -> _ResultT:
        """Do it on one snapshot."""
        for _ in range(_MAX_TRIES):
            environment, started_at = self._enter_reader(), time.monotonic()
            try:
                with environment.begin() as txn:
                    result = read_entries(txn)
                if not self.readonly or time.monotonic() - started_at < SNAPSHOT_GRACE_S:
                    return result
                continue
            except lmdb.Error as error:
                lmdb_error = error
            finally:
                self._active_readers.pop()
            with self._writer_lock, self._exclude_readers():
                self._recover_environment(environment, lmdb_error)
        raise Unavailable("the online store is too busy", "call again")

    def write(self, write_entries: "Callable[[lmdb.Transaction[bytes]], _ResultT]") -> _ResultT:
        """Do it in one transaction, again where the map had to grow for it."""
        with self._writer_lock:
            for _ in range(_MAX_TRIES):
                environment = self._environment or self._open_environment()
                try:
                    self._pins.pin(environment)
                    with self._begin_write(environment) as txn:
                        return write_entries(txn)
                except lmdb.Error as error:
                    with self._exclude_readers():
                        self._recover_environment(environment, error)
        raise Unavailable("the online store is too busy", "call again")

    @contextlib.contextmanager
    def _begin_write(self, environment: lmdb.Environment) -> "Iterator[lmdb.Transaction[bytes]]":
        txn = environment.begin(write=True)
        try:
            yield txn
            txn.commit()
        except BaseException:
            # Readers out first: going back takes a lock of the library that they would hardly leave to us.
            with self._exclude_readers():
                txn.abort()
            raise

    def _recover_environment(self, environment: lmdb.Environment, lmdb_error: lmdb.Error) -> None:
        if not isinstance(lmdb_error, lmdb.BadRslotError):
            _recover_environment(environment, lmdb_error)
        elif environment is self._environment:
            # A child left what it had of us, and with it the places that our readers keep: they take new ones.
            self._pins.release()
            environment.close()
            self._environment = None

    def release(self) -> None:
        """One user less; the last closes it."""
        with _ENVIRONMENTS_LOCK:
            self.users -= 1
            if self.users == 0:
                _ENVIRONMENTS.pop(self.folder, None)
                self._pins.release()
                with self._writer_lock, self._exclude_readers():
                    if self._environment is not None:
                        self._environment.close()

    def unpin(self) -> None:
        """Let go of pinned snapshots: a child that closes its copy would free their slots under us."""
        self._pins.release()

    def forked(self) -> None:
        """In a child: what the parent opened is not ours; who was inside is not here."""
        if self._environment is not None:
            self._environment.close()
            self._environment = None
        self._reset_locks()

    def _reset_locks(self) -> None:
        self._writer_lock, self._open_lock = threading.Lock(), threading.Lock()
        # A list, because adding to one and taking from it needs no lock: readers never wait for each other.
        self._active_readers: list[None] = []
        self._is_shut, self._readers_allowed = False, threading.Event()
        self._pins = _SnapshotPins()

    def _open_environment(self) -> lmdb.Environment:
        with self._open_lock:
            open_environment = _open_read_only if self.readonly else _create_environment
            self._environment = self._environment or open_environment(self.folder, self._map_bytes)
            return self._environment

    def _enter_reader(self) -> lmdb.Environment:
        while True:
            self._active_readers.append(None)
            if not self._is_shut:
                return self._environment or self._open_environment()
            self._active_readers.pop()
            self._readers_allowed.wait()

    @contextlib.contextmanager
    def _exclude_readers(self) -> Iterator[None]:
        """No reader inside. Only for who has the writer's turn."""
        self._readers_allowed.clear()
        self._is_shut = True
        try:
            while self._active_readers:
                time.sleep(0.0002)
            yield
        finally:
            self._is_shut = False
            self._readers_allowed.set()


class _SnapshotPins:
    """Read transactions that keep the pages of recent snapshots from being reused, until GRACE_S after the last write.

    The oldest pin is at least GRACE_S old, or older than every write of this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pins: deque[tuple[float, lmdb.Transaction[bytes]]] = deque()
        self._timer: threading.Timer | None = None

    def pin(self, environment: lmdb.Environment) -> None:
        """Pin the current snapshot before a write, unless a pin of the last GRACE_S / 4 seconds covers it."""
        with self._lock:
            moment = time.monotonic()
            while len(self._pins) > 1 and self._pins[1][0] <= moment - SNAPSHOT_GRACE_S:
                self._pins.popleft()[1].abort()
            if not self._pins or self._pins[-1][0] <= moment - SNAPSHOT_GRACE_S / 4:
                self._pins.append((moment, environment.begin()))
            if self._timer is None:
                self._start_timer()

    def release(self) -> None:
        """Let go of every snapshot: the environment closes."""
        with self._lock:
            self._drop_pins()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _start_timer(self) -> None:
        self._timer = threading.Timer(SNAPSHOT_GRACE_S * 1.5, self._expire_pins)
        self._timer.daemon = True
        self._timer.start()

    def _expire_pins(self) -> None:
        """Without writes for GRACE_S nothing needs a pin; another process that writes may reuse pages again."""
        with self._lock:
            self._timer = None
            if self._pins and time.monotonic() - self._pins[-1][0] < SNAPSHOT_GRACE_S * 1.25:
                self._start_timer()
            else:
                self._drop_pins()

    def _drop_pins(self) -> None:
        while self._pins:
            self._pins.popleft()[1].abort()


_ENVIRONMENTS_LOCK = threading.Lock()
_ENVIRONMENTS: dict[Path, _SharedEnvironment] = {}


def _open_shared_environment(folder: Path, readonly: bool, map_bytes: int) -> _SharedEnvironment:
    with _ENVIRONMENTS_LOCK:
        shared_environment = _ENVIRONMENTS.get(folder) or _SharedEnvironment(folder, readonly, map_bytes)
        if shared_environment.readonly and not readonly:
            raise Invalid("this process has the online store open for reading only", "close it before writing")
        shared_environment.users += 1
        _ENVIRONMENTS[folder] = shared_environment
        return shared_environment


def _before_fork() -> None:
    for shared_environment in list(_ENVIRONMENTS.values()):
        shared_environment.unpin()


def _after_fork_in_child() -> None:
    global _ENVIRONMENTS_LOCK
    _ENVIRONMENTS_LOCK = threading.Lock()
    for shared_environment in _ENVIRONMENTS.values():
        shared_environment.forked()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


def _create_environment(folder: Path, map_bytes: int) -> lmdb.Environment:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        # Rows are found by key: reading ahead only fills memory with strangers.
        environment = lmdb.open(
            str(folder), map_size=map_bytes, mode=0o600, max_readers=_MAX_READERS, readahead=False, max_spare_txns=16
        )
        environment.reader_check()
    except OSError as error:
        raise Invalid("the folder of the online store cannot be made", "check its path and permissions") from error
    except lmdb.Error as error:
        raise _translate_error(error) from error
    return environment


def _open_read_only(folder: Path, map_bytes: int) -> lmdb.Environment:
    try:
        return lmdb.open(
            str(folder), map_size=map_bytes, readonly=True, lock=False, create=False, readahead=False, max_spare_txns=16
        )
    except lmdb.Error as error:
        raise _translate_error(error) from error


def _recover_environment(environment: lmdb.Environment, lmdb_error: lmdb.Error) -> None:
    """Make the next try better, or raise in our words."""
    try:
        # Readers that were killed left their places taken, and what they saw kept.
        environment.reader_check()
        if isinstance(lmdb_error, lmdb.MapFullError):
            environment.set_mapsize(environment.info()["map_size"] * 2)
        elif isinstance(lmdb_error, lmdb.MapResizedError):
            environment.set_mapsize(0)
        elif not isinstance(lmdb_error, lmdb.ReadersFullError):
            raise _translate_error(lmdb_error) from lmdb_error
    except lmdb.Error as error:
        raise _translate_error(error) from error


def _translate_error(error: lmdb.Error) -> FalajError:
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)):
        return CorruptData("the file of online features is damaged", "move its folder away and fill it anew")
    if isinstance(error, lmdb.DiskError):
        return Unavailable("the disk of the online store is full; nothing was written", "free some space, call again")
    return Unavailable("the file of online features does not answer", "check its folder, permissions and disk")


def _to_stored_key(key_prefix: bytes, key: bytes) -> bytes:
    if len(key) <= _MAX_INLINE_KEY_BYTES:
        return key_prefix + key
    return (
        key_prefix
        + key[: _MAX_INLINE_KEY_BYTES + 1 - _DIGEST_BYTES]
        + hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
    )


def _to_full_key(txn: "lmdb.Transaction[bytes]", key_prefix: bytes, stored_key: bytes) -> bytes:
    if len(stored_key) <= len(key_prefix) + _MAX_INLINE_KEY_BYTES:
        return stored_key[len(key_prefix) :]
    key = txn.get(key_prefix[:-1] + _LONG_KEY_PREFIX + stored_key[-_DIGEST_BYTES:])
    if key is None:
        raise CorruptData("a long key of the online store is not written out", "fill the store anew")
    return key
