"""What a publish remembers beside the folder it publishes: one SQLite file, a cache that may be lost at any time.

It holds a stamp and the content of every file, so that an unchanged file is never opened again; one fingerprint over
all stamps, so that an unchanged folder is recognised by its stamps alone, and one a page (whole.py), so that a change
costs its pages and not the folder; and what an interrupted publish has sent.
Rows carry a checksum, and a file that is not ours or does not read well is thrown away.
"""

import contextlib
import json
import sqlite3
import struct
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from zlib import crc32

from falaj.core.transfer import Receipt
from falaj.snapshot.format import VERSION
from falaj.snapshot.records import Batch
from falaj.snapshot.scan import CUTTER, STAMP_BYTES
from falaj.snapshot.whole import KeptPage

RACY_NS = 100_000_000
"""Who writes a file twice within the clock's tick leaves one stamp: younger than this, a file is read again."""
SENT_S = 12 * 3600.0
"""How long what was sent and never committed is counted on; the house takes it back after a day."""

_APPLICATION = 0x46414C4A
_SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE files(path BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID;
CREATE TABLE fresh(path BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID;
CREATE TABLE packs(at REAL, receipts BLOB, chunks BLOB);
CREATE TABLE batches(at REAL, receipts BLOB, data BLOB, bundle TEXT, shard TEXT);
"""
_ROWS = 8192
_READ_FROM = "SELECT path, row FROM files WHERE typeof(path) = 'blob' AND typeof(row) = 'blob'"
_AWAY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


class SentPack(NamedTuple):
    """A pack that an interrupted publish sent; its chunks as records of digest, start and length."""

    receipt: Receipt
    chunks: bytes


class SentBatch(NamedTuple):
    """A batch that was sent whole and may not be committed yet."""

    batch: Batch
    receipts: tuple[Receipt, ...]
    """Of its pieces: tied together again, they say whether the house still has them."""
    data: bytes | bytearray
    """The shard, whose digest the batch names."""


class State:
    """The open file. `match` and `save` are called in the order of paths."""

    def __init__(self, path: Path | None, drop: Callable[[bytes, bytes], bool] = lambda _path, _row: True) -> None:
        """`drop` is asked of every row that no path matches whether it may go."""
        self._path = path
        self._drop = drop
        self._db = _open(path)
        self._saved: list[tuple[bytes, bytes | None]] = []
        self._settle()
        self._after = b""
        self._rows = self._db.execute(f"{_READ_FROM} ORDER BY path")
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
        if self._after:
            self._seek()
        head = self._head
        if head is not None and head[0] < path:
            self._pass_before(path)
            head = self._head
        if head is None or head[0] != path:
            return None
        self._head, row = self._rows.fetchone(), head[1]
        found = _valid(path, row) if row.startswith(stamp) else None
        return found[STAMP_BYTES:] if found is not None else None

    def save(self, path: bytes, stamp: bytes, body: bytes) -> None:
        """Remember a file."""
        self._save(path, _checked(path, stamp + body))

    def skip(self, first: bytes, last: bytes) -> None:
        """Leave the rows of these paths as they are: nobody asks for them, and they stay."""
        if not self._after:
            self._pass_before(first)
        self._after = last

    def pages(self) -> list[KeptPage]:
        """The pages of the tree that the last complete publish made."""
        rows = self._db.execute("SELECT last, row FROM pages WHERE typeof(last) = 'blob' ORDER BY last")
        return [KeptPage.decode(last, row) for last, kept in rows if (row := _valid(last, kept)) is not None]

    def lists(self) -> Generator[tuple[bytes, bytes], None, None]:
        """What large folders held when they were last listed (lists.py), by path."""
        for path, kept in self._db.execute("SELECT path, row FROM folders WHERE typeof(path) = 'blob' ORDER BY path"):
            if (row := _valid(path, kept)) is not None:
                yield path, row

    def keep_lists(self, changed: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Remember what folders hold; None forgets one."""
        rows = [(path, row and _checked(path, row)) for path, row in changed if self._path is not None]
        self._db.execute("SAVEPOINT lists")
        self._db.executemany("INSERT OR REPLACE INTO folders VALUES (?, ?)", rows)
        self._db.execute("DELETE FROM folders WHERE row IS NULL")
        self._db.execute("RELEASE lists")

    def finish(self, pages: Sequence[KeptPage] = (), **values: bytes) -> None:
        """The publish is complete: what it saw replaces what was known."""
        self._seek()
        head, self._head = self._head, None
        while head is not None:
            self._pass(head)
            head = self._rows.fetchone()
        self._settle()
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM pages")
            rows = ((page.last, _checked(page.last, page.encode())) for page in pages)
            self._db.executemany("INSERT INTO pages VALUES (?, ?)", rows)
            self.remember(**values)

    def sent_pack(self, pack: SentPack) -> None:
        """A pack has arrived: if we are killed now, it need not be sent again."""
        self._flush()
        receipts = _listed((pack.receipt,))
        self._insert("packs", time.time(), receipts, _checked(receipts, pack.chunks))

    def sent_batch(self, sent: SentBatch) -> None:
        """A batch is whole; its packs are known by it from now on."""
        bundle, shard = sent.batch.bundle, sent.batch.shard
        receipts = _checked(f"{bundle}{shard}".encode(), _listed(sent.receipts))
        self._insert("batches", time.time(), receipts, sent.data, bundle, shard)
        self._db.execute("DELETE FROM packs")

    def packs(self) -> Iterator[SentPack]:
        """What an interrupted publish sent and did not tie together."""
        since = time.time() - SENT_S
        for receipts, row in self._db.execute("SELECT receipts, chunks FROM packs WHERE at > ?", (since,)):
            chunks = _valid(receipts, row)
            if chunks is not None:
                yield SentPack(Receipt(*json.loads(receipts)[0]), chunks)

    def batches(self) -> Iterator[SentBatch]:
        """Batches that were sent whole; the caller drops what its base holds by now."""
        since = time.time() - SENT_S
        for row, data, bundle, shard in self._db.execute(
            "SELECT receipts, data, bundle, shard FROM batches WHERE at > ?", (since,)
        ):
            receipts = _valid(f"{bundle}{shard}".encode(), row)
            if receipts is not None and isinstance(data, bytes):
                yield SentBatch(Batch(bundle, shard), tuple(Receipt(*each) for each in json.loads(receipts)), data)

    def forget(self, bundles: Iterable[str] | None = None) -> None:
        """Count no longer on what was sent: of some batches, or of all."""
        if bundles is not None:
            self._db.executemany("DELETE FROM batches WHERE bundle = ?", [(bundle,) for bundle in bundles])
        else:
            self._db.execute("DELETE FROM batches")
            self._db.execute("DELETE FROM packs")

    def _seek(self) -> None:
        """Go on after what was skipped."""
        if self._after:
            self._rows.close()
            self._rows = self._db.execute(f"{_READ_FROM} AND path > ? ORDER BY path", (self._after,))
            self._head, self._after = self._rows.fetchone(), b""

    def _pass_before(self, path: bytes) -> None:
        head = self._head
        while head is not None and head[0] < path:
            self._pass(head)
            head = self._rows.fetchone()
        self._head = head

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
    # Every write sets the time of change, which nobody can choose. Without fractions of a second it is coarse.
    (changed,) = struct.unpack_from("<q", stamp, 16)
    return bool(changed + (RACY_NS if changed % 1_000_000_000 else 21 * RACY_NS) < now_ns)


def _checked(key: bytes, row: bytes) -> bytes:
    return row + crc32(row, crc32(key)).to_bytes(4, "little")


def _valid(key: object, row: object) -> bytes | None:
    """What `_checked` was given; None for a row that is not as it was."""
    if not isinstance(key, bytes) or not isinstance(row, bytes):
        return None
    return row[:-4] if crc32(row[:-4], crc32(key)) == int.from_bytes(row[-4:], "little") else None


def _listed(receipts: Iterable[Receipt]) -> bytes:
    return json.dumps([(receipt.digest, receipt.size, receipt.mac) for receipt in receipts]).encode()


def _open(path: Path | None) -> sqlite3.Connection:
    """The file, new where it is not ours; where another publish holds it or it cannot be written, do without."""
    for _ in range(2 if path else 0):
        db = None
        try:
            Path(path or "").parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(path or "", isolation_level=None, timeout=0)
            return _prepared(db, new=not Path(path or "").stat().st_size)
        except (OSError, sqlite3.Error, UnicodeError) as error:  # SQLite may quote a spoiled file in its message
            if db is not None:
                db.close()
            if not isinstance(error, sqlite3.Error | UnicodeError) or getattr(error, "sqlite_errorcode", 0) in _AWAY:
                break
            discard(path)
    return _prepared(sqlite3.connect("", isolation_level=None), new=True)


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
    if kept is not None and kept[0] == known:
        db.execute("CREATE TABLE IF NOT EXISTS pages(last BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID")
        db.execute("CREATE TABLE IF NOT EXISTS folders(path BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID")
    db.execute("COMMIT")
    if kept is None or kept[0] != known:
        raise sqlite3.DatabaseError("not a state file of this format")
    return db
