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

from falaj.core.errors import Corrupt, FalajError, Invalid, Unavailable
from falaj.core.online import after as after_moment
from falaj.core.online import checked, fold, space_bytes

MAP_BYTES = 1 << 30
"""The first size of the map: address space, not disk."""
GRACE_S = 0.5
"""Seconds for which pages that a write replaced stay as they were, for readers that hold no lock: a read takes some ten
microseconds. The file holds what is written within that time in addition to its rows."""
_READERS = 2048
_DROP = 20_000
_TRIES = 64
_NOTE, _ROW, _LONG = b"\x00", b"\x01", b"\x02"
_WHOLE = 440
"""Longer keys lie under their beginning and a hash: LMDB takes 511 bytes."""
_DIGEST = 32
_T = TypeVar("_T")


class LmdbOnline:
    """Options: `map_bytes`, the first size of the map; `readonly`, for a process that must not write."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        folder = url.partition(":")[2]
        if not folder:
            raise Invalid(f"{url[:200]!r} names no folder", "for example lmdb:/var/lib/falaj/online")
        chosen = options or {}
        self._readonly, map_bytes = bool(chosen.get("readonly")), int(chosen.get("map_bytes", MAP_BYTES))
        self._file: _File | None = _open(Path(folder).resolve(), self._readonly, map_bytes)

    def put(self, space: str, rows: Sequence[tuple[bytes, bytes]], now_us: int) -> int:
        """Take rows in, newest wins; on disk when it returns."""
        head, soon = space_bytes(space) + _ROW, after_moment(now_us)
        asked = [(_stored(head, key), key, checked(row)) for key, row in rows]
        # In the order of the file, neighbours share pages.
        asked.sort(key=lambda one: one[0])

        def work(txn: "lmdb.Transaction[bytes]") -> int:
            cells: dict[bytes, bytes] = {}
            changed = 0
            for place, key, row in asked:
                cell = cells.get(place) or txn.get(place)
                merged = fold(cell, row, soon)
                if merged is not cell:
                    changed += 1
                    cells[place] = merged
                    if len(place) > len(head) + _WHOLE:
                        txn.put(head[:-1] + _LONG + place[-_DIGEST:], key)
            with txn.cursor() as cursor:
                cursor.putmulti(cells.items())
            return changed

        return self._writable().write(work)

    def get(self, asks: Sequence[tuple[str, Sequence[bytes]]]) -> list[list[bytes | None]]:
        """What lies under keys of several spaces, from one snapshot."""
        places = [(space_bytes(space) + _ROW, keys) for space, keys in asks]

        def work(txn: "lmdb.Transaction[bytes]") -> list[list[bytes | None]]:
            find = txn.get
            return [
                [find(head + key if len(key) <= _WHOLE else _stored(head, key)) for key in keys]
                for head, keys in places
            ]

        return self._open_file().read(work)

    def scan(self, space: str, after: bytes | None = None, limit: int = 10_000) -> list[tuple[bytes, bytes]]:
        """(key, cell) behind a key (none: from the beginning; the empty one is a key), in the order of the file."""
        head = space_bytes(space) + _ROW
        start = _stored(head, after or b"")

        def work(txn: "lmdb.Transaction[bytes]") -> list[tuple[bytes, bytes]]:
            with txn.cursor() as cursor:
                going = cursor.set_range(start) and (after is None or cursor.key() != start or cursor.next())
                behind = itertools.islice(cursor.iternext(), limit) if going else ()
                found = itertools.takewhile(lambda one: one[0].startswith(head), behind)
                return [(_whole(txn, head, place), cell) for place, cell in found]

        return self._open_file().read(work)

    def delete(self, space: str, keys: Sequence[bytes]) -> int:
        """Remove keys; gives how many were there."""
        head = space_bytes(space)

        def work(txn: "lmdb.Transaction[bytes]") -> int:
            gone = 0
            for key in keys:
                place = _stored(head + _ROW, key)
                gone += txn.delete(place)
                if len(key) > _WHOLE:
                    txn.delete(head + _LONG + place[-_DIGEST:])
            return gone

        return self._writable().write(work)

    def drop(self, space: str) -> None:
        """Remove a space, its mark first: what is left of a drop that was killed passes for nothing filled."""
        head = space_bytes(space)

        def work(txn: "lmdb.Transaction[bytes]") -> bool:
            with txn.cursor() as cursor:
                going = cursor.set_range(head)
                for _ in range(_DROP):
                    if not going or not cursor.key().startswith(head):
                        return False
                    going = cursor.delete() and bool(cursor.key())
            return going

        while self._writable().write(work):
            pass

    def note(self, space: str, value: bytes | None = None) -> bytes | None:
        """Read, or write, the mark of a space."""
        place = space_bytes(space) + _NOTE
        if value is not None:
            self._writable().write(lambda txn: txn.put(place, value))
            return value
        return self._open_file().read(lambda txn: txn.get(place))

    def admit_reader(self, password_digest: str) -> str:
        """The folder itself: the sandbox of a replica shows it read-only, and no other tenant's."""
        del password_digest
        return f"lmdb:{self._open_file().folder}"

    def dismiss_reader(self, password_digest: str) -> None:
        """Nothing to take back: the mount ends with the replica."""

    def close(self) -> None:
        """Leave the file; the last one closes it."""
        file, self._file = self._file, None
        if file is not None:
            file.release()

    def _writable(self) -> "_File":
        if self._readonly:
            raise Invalid("the online store is open for reading only in this process", "write through the platform")
        return self._open_file()

    def _open_file(self) -> "_File":
        if self._file is None:
            raise Unavailable("the online store is closed", "open it again")
        return self._file


class _File:
    """The one environment of a folder in this process, and who is inside: LMDB cannot map anew under anybody's feet."""

    def __init__(self, folder: Path, readonly: bool, map_bytes: int) -> None:
        self.users = 0
        self.readonly, self.folder, self._map_bytes = readonly, folder, map_bytes
        self._env: lmdb.Environment | None = None
        self._settle()
        self._again()

    def read(self, work: "Callable[[lmdb.Transaction[bytes]], _T]") -> _T:
        """Do it on one snapshot."""
        for _ in range(_TRIES):
            env, began = self._enter(), time.monotonic()
            try:
                with env.begin() as txn:
                    result = work(txn)
                if not self.readonly or time.monotonic() - began < GRACE_S:
                    return result
                continue
            except lmdb.Error as error:
                trouble = error
            finally:
                self._inside.pop()
            with self._writer, self._alone():
                self._mend(env, trouble)
        raise Unavailable("the online store is too busy", "call again")

    def write(self, work: "Callable[[lmdb.Transaction[bytes]], _T]") -> _T:
        """Do it in one transaction, again where the map had to grow for it."""
        with self._writer:
            for _ in range(_TRIES):
                env = self._env or self._again()
                try:
                    self._pins.pin(env)
                    with self._writing(env) as txn:
                        return work(txn)
                except lmdb.Error as error:
                    with self._alone():
                        self._mend(env, error)
        raise Unavailable("the online store is too busy", "call again")

    @contextlib.contextmanager
    def _writing(self, env: lmdb.Environment) -> "Iterator[lmdb.Transaction[bytes]]":
        txn = env.begin(write=True)
        try:
            yield txn
            txn.commit()
        except BaseException:
            # Readers out first: going back takes a lock of the library that they would hardly leave to us.
            with self._alone():
                txn.abort()
            raise

    def _mend(self, env: lmdb.Environment, trouble: lmdb.Error) -> None:
        if not isinstance(trouble, lmdb.BadRslotError):
            _mend(env, trouble)
        elif env is self._env:
            # A child left what it had of us, and with it the places that our readers keep: they take new ones.
            self._pins.release()
            env.close()
            self._env = None

    def release(self) -> None:
        """One user less; the last closes it."""
        with _LOCK:
            self.users -= 1
            if self.users == 0:
                _FILES.pop(self.folder, None)
                self._pins.release()
                with self._writer, self._alone():
                    if self._env is not None:
                        self._env.close()

    def unpin(self) -> None:
        """Let go of pinned snapshots: a child that closes its copy would free their slots under us."""
        self._pins.release()

    def forked(self) -> None:
        """In a child: what the parent opened is not ours; who was inside is not here."""
        if self._env is not None:
            self._env.close()
            self._env = None
        self._settle()

    def _settle(self) -> None:
        self._writer, self._opening = threading.Lock(), threading.Lock()
        # A list, because adding to one and taking from it needs no lock: readers never wait for each other.
        self._inside: list[None] = []
        self._shut, self._ready = False, threading.Event()
        self._pins = _SnapshotPins()

    def _again(self) -> lmdb.Environment:
        with self._opening:
            make = _open_for_reading if self.readonly else _environment
            self._env = self._env or make(self.folder, self._map_bytes)
            return self._env

    def _enter(self) -> lmdb.Environment:
        while True:
            self._inside.append(None)
            if not self._shut:
                return self._env or self._again()
            self._inside.pop()
            self._ready.wait()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No reader inside. Only for who has the writer's turn."""
        self._ready.clear()
        self._shut = True
        try:
            while self._inside:
                time.sleep(0.0002)
            yield
        finally:
            self._shut = False
            self._ready.set()


class _SnapshotPins:
    """Read transactions that keep the pages of recent snapshots from being reused, until GRACE_S after the last write.

    The oldest pin is at least GRACE_S old, or older than every write of this process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pins: deque[tuple[float, lmdb.Transaction[bytes]]] = deque()
        self._timer: threading.Timer | None = None

    def pin(self, env: lmdb.Environment) -> None:
        """Pin the current snapshot before a write, unless a pin of the last GRACE_S / 4 seconds covers it."""
        with self._lock:
            moment = time.monotonic()
            while len(self._pins) > 1 and self._pins[1][0] <= moment - GRACE_S:
                self._pins.popleft()[1].abort()
            if not self._pins or self._pins[-1][0] <= moment - GRACE_S / 4:
                self._pins.append((moment, env.begin()))
            if self._timer is None:
                self._start_timer()

    def release(self) -> None:
        """Let go of every snapshot: the environment closes."""
        with self._lock:
            self._drop()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _start_timer(self) -> None:
        self._timer = threading.Timer(GRACE_S * 1.5, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        """Without writes for GRACE_S nothing needs a pin; another process that writes may reuse pages again."""
        with self._lock:
            self._timer = None
            if self._pins and time.monotonic() - self._pins[-1][0] < GRACE_S * 1.25:
                self._start_timer()
            else:
                self._drop()

    def _drop(self) -> None:
        while self._pins:
            self._pins.popleft()[1].abort()


_LOCK = threading.Lock()
_FILES: dict[Path, _File] = {}


def _open(folder: Path, readonly: bool, map_bytes: int) -> _File:
    with _LOCK:
        file = _FILES.get(folder) or _File(folder, readonly, map_bytes)
        if file.readonly and not readonly:
            raise Invalid("this process has the online store open for reading only", "close it before writing")
        file.users += 1
        _FILES[folder] = file
        return file


def _before_fork() -> None:
    for file in list(_FILES.values()):
        file.unpin()


def _forked() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    for file in _FILES.values():
        file.forked()


os.register_at_fork(before=_before_fork, after_in_child=_forked)


def _environment(folder: Path, map_bytes: int) -> lmdb.Environment:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        # Rows are found by key: reading ahead only fills memory with strangers.
        env = lmdb.open(
            str(folder), map_size=map_bytes, mode=0o600, max_readers=_READERS, readahead=False, max_spare_txns=16
        )
        env.reader_check()
    except OSError as error:
        raise Invalid("the folder of the online store cannot be made", "check its path and permissions") from error
    except lmdb.Error as error:
        raise _failure(error) from error
    return env


def _open_for_reading(folder: Path, map_bytes: int) -> lmdb.Environment:
    try:
        return lmdb.open(
            str(folder), map_size=map_bytes, readonly=True, lock=False, create=False, readahead=False, max_spare_txns=16
        )
    except lmdb.Error as error:
        raise _failure(error) from error


def _mend(env: lmdb.Environment, trouble: lmdb.Error) -> None:
    """Make the next try better, or raise in our words."""
    try:
        # Readers that were killed left their places taken, and what they saw kept.
        env.reader_check()
        if isinstance(trouble, lmdb.MapFullError):
            env.set_mapsize(env.info()["map_size"] * 2)
        elif isinstance(trouble, lmdb.MapResizedError):
            env.set_mapsize(0)
        elif not isinstance(trouble, lmdb.ReadersFullError):
            raise _failure(trouble) from trouble
    except lmdb.Error as error:
        raise _failure(error) from error


def _failure(error: lmdb.Error) -> FalajError:
    if isinstance(error, (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.InvalidError, lmdb.VersionMismatchError)):
        return Corrupt("the file of online features is damaged", "move its folder away and fill it anew")
    if isinstance(error, lmdb.DiskError):
        return Unavailable("the disk of the online store is full; nothing was written", "free some space, call again")
    return Unavailable("the file of online features does not answer", "check its folder, permissions and disk")


def _stored(head: bytes, key: bytes) -> bytes:
    if len(key) <= _WHOLE:
        return head + key
    return head + key[: _WHOLE + 1 - _DIGEST] + hashlib.blake2b(key, digest_size=_DIGEST).digest()


def _whole(txn: "lmdb.Transaction[bytes]", head: bytes, place: bytes) -> bytes:
    if len(place) <= len(head) + _WHOLE:
        return place[len(head) :]
    key = txn.get(head[:-1] + _LONG + place[-_DIGEST:])
    if key is None:
        raise Corrupt("a long key of the online store is not written out", "fill the store anew")
    return key
