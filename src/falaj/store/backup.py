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

from falaj.core.errors import CorruptData, Invalid, Unavailable
from falaj.core.merkle_frontier import MerkleFrontier
from falaj.core.ports import LEDGER_TABLES, SupportsDump
from falaj.store.ledger import Ledger

ReportProgress = Callable[[int], None]
RowIterator = Iterator[tuple[str, tuple[Any, ...]]]
MAGIC = b"falaj-backup-2\n"
_FRAME_HEAD = struct.Struct(">BI")
_TABLE_NAMES = tuple(LEDGER_TABLES)
_EVENTS_TABLE, _END_FRAME = 1, 255
_PROGRESS_ROWS = 1000
_FRAME_BYTES = 1 << 20
_MAX_FRAME_BYTES = 1 << 28
_READ_BYTES = 1 << 20
_EVENT_COLUMNS = {name: index for index, name in enumerate(LEDGER_TABLES["events"])}
_TENANT, _ZONE, _LEAF, _DATA, _PART = (_EVENT_COLUMNS[name] for name in ("tenant", "zone", "leaf", "data", "part"))
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
class LogDigest:
    """One log as the backup holds it."""

    tenant: str
    zone: str
    size: int
    root: str


@dataclass(frozen=True, slots=True)
class BackupReport:
    """What a backup holds, and what a restore proved to have brought back."""

    rows: dict[str, int]
    logs: tuple[LogDigest, ...]
    size_bytes: int


def backup(ledger: Ledger, target_path: str, progress: ReportProgress | None = None) -> BackupReport:
    """Write a consistent copy of everything while writers go on. The file appears whole or not at all."""
    draft_path = Path(f"{target_path}.part")
    row_tally = RowTally(progress)
    try:
        fd = os.open(draft_path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            for chunk in encode_rows(require_dump_support(ledger).dump(), row_tally):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        draft_path.replace(target_path)
        _sync_folder(draft_path.parent)
    except OSError as error:
        raise Unavailable(
            f"the backup cannot be written: {error.strerror}", "check the folder and its free space"
        ) from error
    finally:
        draft_path.unlink(missing_ok=True)
    return row_tally.report(Path(target_path).stat().st_size)


def restore(ledger: Ledger, path: str, progress: ReportProgress | None = None) -> BackupReport:
    """Bring a backup into an empty store of any engine, all or nothing; every digest and root is checked."""
    row_tally = RowTally(progress)
    require_dump_support(ledger).load(read_backup_file(path, row_tally))
    return row_tally.report(Path(path).stat().st_size)


def check(path: str, progress: ReportProgress | None = None) -> BackupReport:
    """Read a backup through and prove it, without a store."""
    row_tally = RowTally(progress)
    for _ in read_backup_file(path, row_tally):
        pass
    return row_tally.report(Path(path).stat().st_size)


def require_dump_support(ledger: Ledger) -> SupportsDump:
    """The ledger's store, if it can be copied."""
    if not isinstance(ledger.store, SupportsDump):
        raise Invalid("this store cannot be copied", "use the engine's own backup")
    return ledger.store


class RowTally:
    """Counts rows and grows the root of every log while rows go by."""

    def __init__(self, progress: ReportProgress | None = None) -> None:
        self.rows = dict.fromkeys(LEDGER_TABLES, 0)
        self._trees: dict[tuple[str, str], MerkleFrontier] = {}
        self._pending_leaves: dict[tuple[str, str], list[bytes]] = {}
        self._progress = progress
        self._row_count = 0

    def row(self, table: str, values: tuple[Any, ...]) -> None:
        """One more row."""
        self.rows[table] += 1
        if table == "events":
            self._pending_leaves.setdefault((values[_TENANT], values[_ZONE]), []).append(bytes(values[_LEAF]))
        self._count_rows(1)

    def leaves(self, tenant: str, zone: str, leaves: list[bytes]) -> None:
        """So many more events of a log, by their leaves alone."""
        self.rows["events"] += len(leaves)
        self._pending_leaves.setdefault((tenant, zone), []).extend(leaves)
        self._count_rows(len(leaves))

    def _count_rows(self, added: int) -> None:
        previous_step = self._row_count // _PROGRESS_ROWS
        self._row_count += added
        if self._row_count // _PROGRESS_ROWS != previous_step:
            self._grow_trees()
            if self._progress is not None:
                self._progress(self._row_count)

    def _grow_trees(self) -> None:
        """Into the trees what was held back: many at a time cost a fraction of one by one."""
        for name, leaves in self._pending_leaves.items():
            self._trees.setdefault(name, MerkleFrontier()).extend(leaves)
        self._pending_leaves.clear()

    def logs(self) -> tuple[LogDigest, ...]:
        """Size and root of every log, by name."""
        self._grow_trees()
        return tuple(LogDigest(*name, tree.size, tree.root().hex()) for name, tree in sorted(self._trees.items()))

    def report(self, size_bytes: int) -> BackupReport:
        """All of it."""
        if self._progress is not None:
            self._progress(self._row_count)
        return BackupReport(dict(self.rows), self.logs(), size_bytes)


def encode_rows(rows: RowIterator, row_tally: RowTally) -> Iterator[bytes]:
    """The stream of a backup, chunk by chunk."""
    digest = blake3(MAGIC)
    yield MAGIC
    for table, frame in _split_into_frames(rows, row_tally):
        payload = _pack(frame)
        frame_head = _FRAME_HEAD.pack(_TABLE_NAMES.index(table), len(payload))
        digest.update(frame_head)
        digest.update(payload)
        yield frame_head
        yield payload
    end_summary = {
        "digest": digest.hexdigest(),
        "rows": row_tally.rows,
        "logs": [asdict(log) for log in row_tally.logs()],
    }
    end_frame = json.dumps(end_summary, sort_keys=True).encode()
    yield _FRAME_HEAD.pack(_END_FRAME, len(end_frame)) + end_frame


def decode_rows(chunks: Iterable[bytes], row_tally: RowTally) -> RowIterator:
    """Every row; Corrupt after the last one when anything was not as it was written, so that a load is undone."""
    reader = ChunkReader(chunks, _damaged_error)
    magic = reader.take(len(MAGIC))
    if magic != MAGIC:
        if not magic.startswith(b"falaj-backup-"):
            raise _damaged_error("it is not a backup")
        raise Invalid(
            "the backup is of a format this program does not know", "restore it with the program that wrote it"
        )
    digest, shared_data = blake3(MAGIC), b""
    try:
        while True:
            frame_head = reader.take(_FRAME_HEAD.size)
            table_number, length = _FRAME_HEAD.unpack(frame_head)
            payload = reader.take(length)
            if table_number == _END_FRAME:
                _verify_end(json.loads(payload), digest.hexdigest(), row_tally)
                reader.end()
                return
            digest.update(frame_head)
            digest.update(payload)
            table = _TABLE_NAMES[table_number]
            for row in _unpack[table_number](payload):
                values = row
                if table_number == _EVENTS_TABLE:
                    shared_data = shared_data if row[_DATA] is None else row[_DATA]
                    values = row if row[_DATA] is not None else (*row[:_DATA], shared_data, *row[_DATA + 1 :])
                row_tally.row(table, values)
                yield table, values
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged_error("a part of it cannot be read") from error


def read_backup_file(path: str, row_tally: RowTally) -> RowIterator:
    """Every row of a file."""
    try:
        with Path(path).open("rb") as file:
            yield from decode_rows(iter(lambda: file.read(_READ_BYTES), b""), row_tally)
    except FileNotFoundError as error:
        raise Invalid("there is no such backup", "give the path of a file that a backup wrote") from error
    except OSError as error:
        raise Unavailable(f"the backup cannot be read: {error.strerror}", "check the file and its owner") from error


def _split_into_frames(rows: RowIterator, row_tally: RowTally) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Rows in frames of one table and about one size; what an event shares with the one before is left out."""
    frame, current_table, size = list[tuple[Any, ...]](), "", 0
    last_data, last_log = b"", ("", "")
    for table, values in rows:
        row_tally.row(table, values)
        if frame and (table != current_table or size >= _FRAME_BYTES):
            yield current_table, frame
            frame, size = [], 0
        row = values
        if table == "events":
            data, current_log = values[_DATA], (values[_TENANT], values[_ZONE])
            if values[_PART] and current_log == last_log and data == last_data:
                row = (*values[:_DATA], None, *values[_DATA + 1 :])
            else:
                last_data, last_log, size = data, current_log, size + len(data)
        elif table == "records":
            size += len(values[7]) + len(values[9])
        frame.append(row)
        current_table, size = table, size + 256
    if frame:
        yield current_table, frame


def _verify_end(end_summary: Any, digest: str, row_tally: RowTally) -> None:
    if end_summary["digest"] != digest:
        raise _damaged_error("its rows are not what was written")
    if end_summary["rows"] != row_tally.rows or end_summary["logs"] != [asdict(log) for log in row_tally.logs()]:
        raise _damaged_error("its logs do not give the roots they gave")


class ChunkReader:
    """Bytes that come in chunks, taken in the pieces one needs; `wrong` makes an error of what is wrong with them."""

    def __init__(self, chunks: Iterable[bytes], make_error: Callable[[str], CorruptData]) -> None:
        self._chunks = (chunk for chunk in chunks if chunk)
        self._make_error = make_error
        self._buffer = b""
        self._offset = 0

    def take(self, count: int) -> bytes:
        """Exactly so many bytes; Corrupt when there are not, or when nobody writes so many at once."""
        if count > _MAX_FRAME_BYTES:
            raise self._make_error("a part of it is too large")
        available = len(self._buffer) - self._offset
        if available < count:
            parts = [self._buffer[self._offset :]]
            while available < count:
                chunk = next(self._chunks, b"")
                if not chunk:
                    raise self._make_error("it ends too soon")
                parts.append(chunk)
                available += len(chunk)
            self._buffer, self._offset = b"".join(parts), 0
        self._offset += count
        return self._buffer[self._offset - count : self._offset]

    def more(self) -> bool:
        """Whether anything is left."""
        if self._offset == len(self._buffer):
            self._buffer, self._offset = next(self._chunks, b""), 0
        return bool(self._buffer)

    def end(self) -> None:
        """Corrupt unless that was all."""
        if self.more():
            raise self._make_error("something follows its end")


def _damaged_error(problem: str) -> CorruptData:
    return CorruptData(f"the backup is damaged: {problem}", "nothing was restored; take another copy")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
