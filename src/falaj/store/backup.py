"""Backup and restore: the whole ledger in one stream, as ciphertext, proven by the root of every log.

    a line with the name of the format
    frames     table (1 byte), length (4 bytes), and so many bytes of msgpack: a list of rows
    the end    one frame more, JSON: the BLAKE3 of all before it, and of each log its size and its RFC 6962 root

What events share (they are sealed together) is written once. Root keys are not in it: without their holder a backup
opens nothing.
"""

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from falaj.core.errors import Corrupt, Invalid, Unavailable
from falaj.core.frontier import Frontier
from falaj.core.ports import TABLES, CanCopy
from falaj.store.ledger import Ledger

Progress = Callable[[int], None]
Rows = Iterator[tuple[str, tuple[Any, ...]]]
MAGIC = b"falaj-backup-2\n"
_HEAD = struct.Struct(">BI")
_NAMES = tuple(TABLES)
_EVENTS, _END = 1, 255
_EVERY = 1000
_FRAME = 1 << 20
_MOST = 1 << 28
_READ = 1 << 20
_EVENT = {name: index for index, name in enumerate(TABLES["events"])}
_TENANT, _ZONE, _LEAF, _DATA, _PART = (_EVENT[name] for name in ("tenant", "zone", "leaf", "data", "part"))
_pack = msgspec.msgpack.Encoder().encode
_Record = tuple[str, str, str, str, str, int, str, bytes, float, str]
_Event = tuple[
    int, int, int, str, str, str, str, str, str, str, str, str, float, str, bytes, bytes | None, str, int
]  # fmt: skip
_Lease = tuple[str, str, int, float]
_unpack: dict[int, Callable[[bytes], list[Any]]] = {
    0: msgspec.msgpack.Decoder(list[_Record]).decode,
    1: msgspec.msgpack.Decoder(list[_Event]).decode,
    2: msgspec.msgpack.Decoder(list[_Lease]).decode,
}


@dataclass(frozen=True, slots=True)
class LogState:
    """One log as the backup holds it."""

    tenant: str
    zone: str
    size: int
    root: str


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds, and what a restore proved to have brought back."""

    rows: dict[str, int]
    logs: tuple[LogState, ...]
    size_bytes: int


def backup(ledger: Ledger, out_path: str, progress: Progress | None = None) -> BackupReport:
    """Write a consistent copy of everything while writers go on. The file appears whole or not at all."""
    part = Path(f"{out_path}.part")
    tally = Tally(progress)
    try:
        descriptor = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            for chunk in written(copier(ledger).dump(), tally):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        part.replace(out_path)
        _sync_folder(part.parent)
    except OSError as error:
        raise Unavailable(
            f"the backup cannot be written: {error.strerror}", "check the folder and its free space"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return tally.report(Path(out_path).stat().st_size)


def restore(ledger: Ledger, path: str, progress: Progress | None = None) -> BackupReport:
    """Bring a backup into an empty store of any engine, all or nothing; every digest and root is checked."""
    tally = Tally(progress)
    copier(ledger).load(rows_of(path, tally))
    return tally.report(Path(path).stat().st_size)


def check(path: str, progress: Progress | None = None) -> BackupReport:
    """Read a backup through and prove it, without a store."""
    tally = Tally(progress)
    for _ in rows_of(path, tally):
        pass
    return tally.report(Path(path).stat().st_size)


def copier(ledger: Ledger) -> CanCopy:
    """The ledger's store, if it can be copied."""
    if not isinstance(ledger.store, CanCopy):
        raise Invalid("this store cannot be copied", "use the engine's own backup")
    return ledger.store


class Tally:
    """Counts rows and grows the root of every log while rows go by."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.rows = dict.fromkeys(TABLES, 0)
        self._logs: dict[tuple[str, str], Frontier] = {}
        self._leaves: dict[tuple[str, str], list[bytes]] = {}
        self._progress = progress
        self._seen = 0

    def row(self, table: str, values: tuple[Any, ...]) -> None:
        """One more row."""
        self.rows[table] += 1
        if table == "events":
            self._leaves.setdefault((values[_TENANT], values[_ZONE]), []).append(bytes(values[_LEAF]))
        self._count(1)

    def leaves(self, tenant: str, zone: str, some: list[bytes]) -> None:
        """So many more events of a log, by their leaves alone."""
        self.rows["events"] += len(some)
        self._leaves.setdefault((tenant, zone), []).extend(some)
        self._count(len(some))

    def _count(self, more: int) -> None:
        before = self._seen // _EVERY
        self._seen += more
        if self._seen // _EVERY != before:
            self._grow()
            if self._progress is not None:
                self._progress(self._seen)

    def _grow(self) -> None:
        """Into the trees what was held back: many at a time cost a fraction of one by one."""
        for name, leaves in self._leaves.items():
            self._logs.setdefault(name, Frontier()).extend(leaves)
        self._leaves.clear()

    def logs(self) -> tuple[LogState, ...]:
        """Size and root of every log, by name."""
        self._grow()
        return tuple(LogState(*name, log.size, log.root().hex()) for name, log in sorted(self._logs.items()))

    def report(self, size_bytes: int) -> BackupReport:
        """All of it."""
        if self._progress is not None:
            self._progress(self._seen)
        return BackupReport(dict(self.rows), self.logs(), size_bytes)


def written(rows: Rows, tally: Tally) -> Iterator[bytes]:
    """The stream of a backup, chunk by chunk."""
    digest = blake3(MAGIC)
    yield MAGIC
    for table, frame in _framed(rows, tally):
        payload = _pack(frame)
        head = _HEAD.pack(_NAMES.index(table), len(payload))
        digest.update(head)
        digest.update(payload)
        yield head
        yield payload
    end = {"digest": digest.hexdigest(), "rows": tally.rows, "logs": [asdict(log) for log in tally.logs()]}
    told = json.dumps(end, sort_keys=True).encode()
    yield _HEAD.pack(_END, len(told)) + told


def read(chunks: Iterable[bytes], tally: Tally) -> Rows:
    """Every row; Corrupt after the last one when anything was not as it was written, so that a load is undone."""
    source = Source(chunks, _damaged)
    named = source.take(len(MAGIC))
    if named != MAGIC:
        if not named.startswith(b"falaj-backup-"):
            raise _damaged("it is not a backup")
        raise Invalid(
            "the backup is of a format this program does not know", "restore it with the program that wrote it"
        )
    digest, data = blake3(MAGIC), b""
    try:
        while True:
            head = source.take(_HEAD.size)
            kind, length = _HEAD.unpack(head)
            payload = source.take(length)
            if kind == _END:
                _check_end(json.loads(payload), digest.hexdigest(), tally)
                source.end()
                return
            digest.update(head)
            digest.update(payload)
            table = _NAMES[kind]
            for row in _unpack[kind](payload):
                values = row
                if kind == _EVENTS:
                    data = data if row[_DATA] is None else row[_DATA]
                    values = row if row[_DATA] is not None else (*row[:_DATA], data, *row[_DATA + 1 :])
                tally.row(table, values)
                yield table, values
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged("a part of it cannot be read") from error


def rows_of(path: str, tally: Tally) -> Rows:
    """Every row of a file."""
    try:
        with Path(path).open("rb") as file:
            yield from read(iter(lambda: file.read(_READ), b""), tally)
    except FileNotFoundError as error:
        raise Invalid("there is no such backup", "give the path of a file that a backup wrote") from error
    except OSError as error:
        raise Unavailable(f"the backup cannot be read: {error.strerror}", "check the file and its owner") from error


def _framed(rows: Rows, tally: Tally) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Rows in frames of one table and about one size; what an event shares with the one before is left out."""
    frame, current, size = list[tuple[Any, ...]](), "", 0
    last, log = b"", ("", "")
    for table, values in rows:
        tally.row(table, values)
        if frame and (table != current or size >= _FRAME):
            yield current, frame
            frame, size = [], 0
        row = values
        if table == "events":
            data, here = values[_DATA], (values[_TENANT], values[_ZONE])
            if values[_PART] and here == log and data == last:
                row = (*values[:_DATA], None, *values[_DATA + 1 :])
            else:
                last, log, size = data, here, size + len(data)
        elif table == "records":
            size += len(values[7]) + len(values[9])
        frame.append(row)
        current, size = table, size + 256
    if frame:
        yield current, frame


def _check_end(end: Any, digest: str, tally: Tally) -> None:
    if end["digest"] != digest:
        raise _damaged("its rows are not what was written")
    if end["rows"] != tally.rows or end["logs"] != [asdict(log) for log in tally.logs()]:
        raise _damaged("its logs do not give the roots they gave")


class Source:
    """Bytes that come in chunks, taken in the pieces one needs; `wrong` makes an error of what is wrong with them."""

    def __init__(self, chunks: Iterable[bytes], wrong: Callable[[str], Corrupt]) -> None:
        self._chunks = (chunk for chunk in chunks if chunk)
        self._wrong = wrong
        self._held = b""
        self._at = 0

    def take(self, count: int) -> bytes:
        """Exactly so many bytes; Corrupt when there are not, or when nobody writes so many at once."""
        if count > _MOST:
            raise self._wrong("a part of it is too large")
        have = len(self._held) - self._at
        if have < count:
            parts = [self._held[self._at :]]
            while have < count:
                chunk = next(self._chunks, b"")
                if not chunk:
                    raise self._wrong("it ends too soon")
                parts.append(chunk)
                have += len(chunk)
            self._held, self._at = b"".join(parts), 0
        self._at += count
        return self._held[self._at - count : self._at]

    def more(self) -> bool:
        """Whether anything is left."""
        if self._at == len(self._held):
            self._held, self._at = next(self._chunks, b""), 0
        return bool(self._held)

    def end(self) -> None:
        """Corrupt unless that was all."""
        if self.more():
            raise self._wrong("something follows its end")


def _damaged(what: str) -> Corrupt:
    return Corrupt(f"the backup is damaged: {what}", "nothing was restored; take another copy")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
