"""What a publish remembers beside the folder it publishes: one SQLite file, a cache that may be lost at any time.

It holds a stamp and the content of every file, so that an unchanged file is never opened again; one fingerprint over
all stamps, so that an unchanged folder is recognised by its stamps alone; and what an interrupted publish has sent.
Rows carry a checksum, and a file that is not ours or does not read well is thrown away.
"""

import contextlib
import sqlite3
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from zlib import crc32

from falaj.core.transfer import Receipt
from falaj.snapshot.format import VERSION
from falaj.snapshot.records import Batch
from falaj.snapshot.scan import CUTTER, STAMP_BYTES

RACY_NS = 100_000_000
"""Who writes a file twice within the clock's tick leaves one stamp: younger than this, a file is read again."""
SENT_S = 12 * 3600.0
"""How long what was sent and never committed is counted on; the house takes it back after a day."""

_APPLICATION = 0x46414C4A
_SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE files(path BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID;
CREATE TABLE fresh(path BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID;
CREATE TABLE packs(digest TEXT PRIMARY KEY, size INTEGER, mac TEXT, at REAL, chunks BLOB);
CREATE TABLE batches(digest TEXT PRIMARY KEY, size INTEGER, mac TEXT, at REAL, shard TEXT, data BLOB);
"""
_ROWS = 8192


class SentPack(NamedTuple):
    """A pack that an interrupted publish sent; its chunks as records of digest, start and length."""

    receipt: Receipt
    chunks: bytes


class SentBatch(NamedTuple):
    """A batch that was sent whole and may not be committed yet."""

    batch: Batch
    receipt: Receipt
    data: bytes


class State:
    """The open file. `match` and `save` are called in the order of paths."""

    def __init__(self, path: Path | None, drop: Callable[[bytes, bytes], bool] = lambda _path, _row: True) -> None:
        """`drop` is asked of every row that no path matches whether it may go."""
        self._path = path
        self._drop = drop
        self._db = _open(path)
        self._saved: list[tuple[bytes, bytes | None]] = []
        self._settle()
        self._rows = self._db.execute("SELECT path, row FROM files ORDER BY path")
        self._head: tuple[bytes, bytes] | None = self._rows.fetchone()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._flush()
        self._rows.close()  # an open cursor would keep the file locked
        self._db.close()

    def recall(self, key: str) -> bytes:
        """A remembered value; empty when there is none."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return bytes(row[0]) if row else b""

    def remember(self, **values: bytes) -> None:
        """Keep some values."""
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())

    def match(self, path: bytes, stamp: bytes) -> bytes | None:
        """What was saved for a path when it had this stamp. Rows of paths that were passed over are gone."""
        head = self._head
        while head is not None and head[0] < path:
            self._pass(head)
            head = self._rows.fetchone()
        self._head = head
        if head is None or head[0] != path:
            return None
        self._head, row = self._rows.fetchone(), head[1]
        return _unpacked(path, row, stamp)

    def save(self, path: bytes, stamp: bytes, body: bytes) -> None:
        """Remember a file."""
        self._save(path, _checked(path, stamp + body))

    def finish(self, **values: bytes) -> None:
        """The publish is complete: what it saw replaces what was known."""
        head, self._head = self._head, None
        while head is not None:
            self._pass(head)
            head = self._rows.fetchone()
        self._settle()
        self.remember(**values)

    def sent_pack(self, pack: SentPack) -> None:
        """A pack has arrived: if we are killed now, it need not be sent again."""
        self._flush()
        digest, size, mac = pack.receipt.digest, pack.receipt.size, pack.receipt.mac
        self._insert("packs", digest, size, mac, time.time(), _checked(digest.encode(), pack.chunks))

    def sent_batch(self, sent: SentBatch) -> None:
        """A batch is whole; its packs are known by it from now on."""
        with self._db:
            self._db.execute("DELETE FROM packs")
            values = (
                sent.receipt.digest,
                sent.receipt.size,
                sent.receipt.mac,
                time.time(),
                sent.batch.shard,
                sent.data,
            )
            self._db.execute("INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?, ?)", values)

    def packs(self) -> Iterator[SentPack]:
        """What an interrupted publish sent and did not tie together."""
        since = time.time() - SENT_S
        for digest, size, mac, chunks in self._db.execute(
            "SELECT digest, size, mac, chunks FROM packs WHERE at > ? ORDER BY rowid", (since,)
        ):
            if crc32(chunks[:-4], crc32(digest.encode())) == int.from_bytes(chunks[-4:], "little"):
                yield SentPack(Receipt(digest, size, mac), chunks[:-4])

    def batches(self) -> list[SentBatch]:
        """Batches that were sent whole; the caller drops what its base holds by now."""
        since = time.time() - SENT_S
        found = self._db.execute("SELECT digest, size, mac, shard, data FROM batches WHERE at > ?", (since,))
        return [SentBatch(Batch(d, shard), Receipt(d, size, mac), data) for d, size, mac, shard, data in found]

    def forget(self, bundles: Iterable[str] | None = None) -> None:
        """Count no longer on what was sent: of some batches, or of all."""
        if bundles is not None:
            self._db.executemany("DELETE FROM batches WHERE digest = ?", [(bundle,) for bundle in bundles])
        else:
            self._db.execute("DELETE FROM batches")
            self._db.execute("DELETE FROM packs")

    def _pass(self, head: tuple[bytes, bytes]) -> None:
        if self._drop(*head):
            self._save(head[0], None)

    def _insert(self, table: str, *values: object) -> None:
        if self._path is not None:
            marks = ", ".join("?" * len(values))
            self._db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)  # noqa: S608 - two constants

    def _save(self, path: bytes, row: bytes | None) -> None:
        if self._path is None:
            return
        self._saved.append((path, row))
        if len(self._saved) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        saved, self._saved = self._saved, []
        self._db.execute("SAVEPOINT flush")
        self._db.executemany("INSERT OR REPLACE INTO fresh VALUES (?, ?)", saved)
        self._db.execute("RELEASE flush")

    def _settle(self) -> None:
        """What was saved becomes what is known; also what a killed publish saved."""
        with self._db:
            self._db.execute("BEGIN")
            self._flush()
            self._db.execute("DELETE FROM files WHERE path IN (SELECT path FROM fresh WHERE row IS NULL)")
            self._db.execute("INSERT OR REPLACE INTO files SELECT path, row FROM fresh WHERE row IS NOT NULL")
            self._db.execute("DELETE FROM fresh")


def discard(path: Path | None) -> None:
    """Throw a state file away."""
    if path is not None:
        for each in (path, path.with_name(f"{path.name}-journal")):
            each.unlink(missing_ok=True)


def is_settled(stamp: bytes, now_ns: int) -> bool:
    """Whether a later change would show in the stamp: it is not so young that one could hide in the clock's tick."""
    _, modified, changed = struct.unpack_from("<Qqq", stamp)
    newest = max(modified, changed)
    # A clock without fractions of a second ticks once in two seconds at worst.
    return bool(newest + (RACY_NS if newest % 1_000_000_000 else 20 * RACY_NS + RACY_NS) < now_ns)


def _checked(key: bytes, row: bytes) -> bytes:
    return row + crc32(row, crc32(key)).to_bytes(4, "little")


def _unpacked(path: bytes, row: bytes, stamp: bytes) -> bytes | None:
    if row[:STAMP_BYTES] != stamp or crc32(row[:-4], crc32(path)) != int.from_bytes(row[-4:], "little"):
        return None
    return row[STAMP_BYTES:-4]


def _open(path: Path | None) -> sqlite3.Connection:
    """The file, new where it is not ours; where another publish holds it or it cannot be written, do without."""
    with contextlib.suppress(OSError, sqlite3.OperationalError):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return _connected(path)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                discard(path)
                return _connected(path)
    return _connected("")


def _connected(path: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        return _prepared(db, new=not path or not Path(path).stat().st_size)
    except sqlite3.Error:
        db.close()
        raise


def _prepared(db: sqlite3.Connection, *, new: bool) -> sqlite3.Connection:
    # Killed at any moment the file stays whole; only the machine's own failure may spoil it, and it is a cache.
    for pragma in ("locking_mode = EXCLUSIVE", "synchronous = OFF", "cache_size = -8000"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("BEGIN EXCLUSIVE")
    known = f"{VERSION} {CUTTER}".encode()
    if new:
        db.execute(f"PRAGMA application_id = {_APPLICATION}")
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('format', ?)", (known,))
    found = db.execute("PRAGMA application_id").fetchone()[0]
    kept = db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() if found == _APPLICATION else None
    db.execute("COMMIT")
    if kept is None or kept[0] != known:
        raise sqlite3.DatabaseError("not a state file of this format")
    return db
