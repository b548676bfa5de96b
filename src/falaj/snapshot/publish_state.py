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

from falaj.core.byte_channel import UploadReceipt
from falaj.snapshot.folder_scan import CUTTER_NAME, STAMP_BYTES
from falaj.snapshot.page_reuse import KeptPage
from falaj.snapshot.records import TreeBatch
from falaj.snapshot.tree_format import FORMAT_VERSION

RACY_WINDOW_NS = 100_000_000
"""Who writes a file twice within the clock's tick leaves one stamp: younger than this, a file is read again."""
SENT_DATA_LIFETIME_S = 12 * 3600.0
"""How long what was sent and never committed is counted on; the house takes it back after a day."""

_APPLICATION_ID = 0x46414C4A
_SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE files(path BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID;
CREATE TABLE fresh(path BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID;
CREATE TABLE packs(at REAL, receipts BLOB, chunks BLOB);
CREATE TABLE batches(at REAL, receipts BLOB, data BLOB, bundle TEXT, shard TEXT);
"""
_FLUSH_ROWS = 8192
_READ_FROM = "SELECT path, row FROM files WHERE typeof(path) = 'blob' AND typeof(row) = 'blob'"
_UNAVAILABLE_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


class SentPack(NamedTuple):
    """A pack that an interrupted publish sent; its chunks as records of digest, start and length."""

    receipt: UploadReceipt
    chunks: bytes


class SentBatch(NamedTuple):
    """A batch that was sent whole and may not be committed yet."""

    batch: TreeBatch
    receipts: tuple[UploadReceipt, ...]
    """Of its pieces: tied together again, they say whether the house still has them."""
    data: bytes | bytearray
    """The shard, whose digest the batch names."""


class PublishState:
    """The open file. `match` and `save` are called in the order of paths."""

    def __init__(self, path: Path | None, may_drop: Callable[[bytes, bytes], bool] = lambda _path, _row: True) -> None:
        """`may_drop` is asked of every row that no path matches whether it may go."""
        self._path = path
        self._may_drop = may_drop
        self._db = _open_database(path)
        self._pending_rows: list[tuple[bytes, bytes | None]] = []
        self._apply_fresh_rows()
        self._skipped_until = b""
        self._rows = self._db.execute(f"{_READ_FROM} ORDER BY path")
        self._next_row: tuple[bytes, bytes] | None = self._rows.fetchone()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._flush_rows()
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
        if self._skipped_until:
            self._seek_after_skipped()
        next_row = self._next_row
        if next_row is not None and next_row[0] < path:
            self._drop_rows_before(path)
            next_row = self._next_row
        if next_row is None or next_row[0] != path:
            return None
        self._next_row, row = self._rows.fetchone(), next_row[1]
        valid_row = _strip_checksum(path, row) if row.startswith(stamp) else None
        return valid_row[STAMP_BYTES:] if valid_row is not None else None

    def save(self, path: bytes, stamp: bytes, encoded: bytes) -> None:
        """Remember a file."""
        self._queue_row(path, _with_checksum(path, stamp + encoded))

    def skip(self, first_path: bytes, last_path: bytes) -> None:
        """Leave the rows of these paths as they are: nobody asks for them, and they stay."""
        if not self._skipped_until:
            self._drop_rows_before(first_path)
        self._skipped_until = last_path

    def pages(self) -> list[KeptPage]:
        """The pages of the tree that the last complete publish made."""
        rows = self._db.execute("SELECT last, row FROM pages WHERE typeof(last) = 'blob' ORDER BY last")
        return [
            KeptPage.decode(last_path, row)
            for last_path, stored_row in rows
            if (row := _strip_checksum(last_path, stored_row)) is not None
        ]

    def lists(self) -> Generator[tuple[bytes, bytes], None, None]:
        """What large folders held when they were last listed (lists.py), by path."""
        for path, stored_row in self._db.execute(
            "SELECT path, row FROM folders WHERE typeof(path) = 'blob' ORDER BY path"
        ):
            if (row := _strip_checksum(path, stored_row)) is not None:
                yield path, row

    def keep_lists(self, changed: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Remember what folders hold; None forgets one."""
        rows = [(path, row and _with_checksum(path, row)) for path, row in changed if self._path is not None]
        self._db.execute("SAVEPOINT lists")
        self._db.executemany("INSERT OR REPLACE INTO folders VALUES (?, ?)", rows)
        self._db.execute("DELETE FROM folders WHERE row IS NULL")
        self._db.execute("RELEASE lists")

    def finish(self, pages: Sequence[KeptPage] = (), **values: bytes) -> None:
        """The publish is complete: what it saw replaces what was known."""
        self._seek_after_skipped()
        next_row, self._next_row = self._next_row, None
        while next_row is not None:
            self._drop_row(next_row)
            next_row = self._rows.fetchone()
        self._apply_fresh_rows()
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute("DELETE FROM pages")
            rows = ((page.last, _with_checksum(page.last, page.encode())) for page in pages)
            self._db.executemany("INSERT INTO pages VALUES (?, ?)", rows)
            self.remember(**values)

    def sent_pack(self, pack: SentPack) -> None:
        """A pack has arrived: if we are killed now, it need not be sent again."""
        self._flush_rows()
        receipts = _encode_receipts((pack.receipt,))
        self._insert_row("packs", time.time(), receipts, _with_checksum(receipts, pack.chunks))

    def sent_batch(self, sent_batch_info: SentBatch) -> None:
        """A batch is whole; its packs are known by it from now on."""
        bundle, shard = sent_batch_info.batch.bundle, sent_batch_info.batch.shard
        receipts = _with_checksum(f"{bundle}{shard}".encode(), _encode_receipts(sent_batch_info.receipts))
        self._insert_row("batches", time.time(), receipts, sent_batch_info.data, bundle, shard)
        self._db.execute("DELETE FROM packs")

    def packs(self) -> Iterator[SentPack]:
        """What an interrupted publish sent and did not tie together."""
        sent_after = time.time() - SENT_DATA_LIFETIME_S
        for receipts, row in self._db.execute("SELECT receipts, chunks FROM packs WHERE at > ?", (sent_after,)):
            chunks = _strip_checksum(receipts, row)
            if chunks is not None:
                yield SentPack(UploadReceipt(*json.loads(receipts)[0]), chunks)

    def batches(self) -> Iterator[SentBatch]:
        """Batches that were sent whole; the caller drops what its base holds by now."""
        sent_after = time.time() - SENT_DATA_LIFETIME_S
        for row, data, bundle, shard in self._db.execute(
            "SELECT receipts, data, bundle, shard FROM batches WHERE at > ?", (sent_after,)
        ):
            receipts = _strip_checksum(f"{bundle}{shard}".encode(), row)
            if receipts is not None and isinstance(data, bytes):
                yield SentBatch(
                    TreeBatch(bundle, shard),
                    tuple(UploadReceipt(*receipt_fields) for receipt_fields in json.loads(receipts)),
                    data,
                )

    def forget(self, bundles: Iterable[str] | None = None) -> None:
        """Count no longer on what was sent: of some batches, or of all."""
        if bundles is not None:
            self._db.executemany("DELETE FROM batches WHERE bundle = ?", [(bundle,) for bundle in bundles])
        else:
            self._db.execute("DELETE FROM batches")
            self._db.execute("DELETE FROM packs")

    def _seek_after_skipped(self) -> None:
        """Go on after what was skipped."""
        if self._skipped_until:
            self._rows.close()
            self._rows = self._db.execute(f"{_READ_FROM} AND path > ? ORDER BY path", (self._skipped_until,))
            self._next_row, self._skipped_until = self._rows.fetchone(), b""

    def _drop_rows_before(self, path: bytes) -> None:
        next_row = self._next_row
        while next_row is not None and next_row[0] < path:
            self._drop_row(next_row)
            next_row = self._rows.fetchone()
        self._next_row = next_row

    def _drop_row(self, passed_row: tuple[bytes, bytes]) -> None:
        if self._may_drop(*passed_row):
            self._queue_row(passed_row[0], None)

    def _insert_row(self, table: str, *values: object) -> None:
        if self._path is not None:
            marks = ", ".join("?" * len(values))
            self._db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)  # noqa: S608 - two constants

    def _queue_row(self, path: bytes, row: bytes | None) -> None:
        if self._path is None:
            return
        self._pending_rows.append((path, row))
        if len(self._pending_rows) >= _FLUSH_ROWS:
            self._flush_rows()

    def _flush_rows(self) -> None:
        pending_rows, self._pending_rows = self._pending_rows, []
        self._db.execute("SAVEPOINT flush")
        self._db.executemany("INSERT OR REPLACE INTO fresh VALUES (?, ?)", pending_rows)
        self._db.execute("RELEASE flush")

    def _apply_fresh_rows(self) -> None:
        """What was saved becomes what is known; also what a killed publish saved."""
        with self._db:
            self._db.execute("BEGIN")
            self._flush_rows()
            self._db.execute("DELETE FROM files WHERE path IN (SELECT path FROM fresh WHERE row IS NULL)")
            self._db.execute("INSERT OR REPLACE INTO files SELECT path, row FROM fresh WHERE row IS NOT NULL")
            self._db.execute("DELETE FROM fresh")


def discard_state(path: Path | None) -> None:
    """Throw a state file away."""
    if path is not None:
        for state_file in (path, path.with_name(f"{path.name}-journal")):
            state_file.unlink(missing_ok=True)


def is_settled(stamp: bytes, now_ns: int) -> bool:
    """Whether a later change would show in the stamp: it is not so young that one could hide in the clock's tick."""
    # Every write sets the time of change, which nobody can choose. Without fractions of a second it is coarse.
    (changed,) = struct.unpack_from("<q", stamp, 16)
    return bool(changed + (RACY_WINDOW_NS if changed % 1_000_000_000 else 21 * RACY_WINDOW_NS) < now_ns)


def _with_checksum(key: bytes, row: bytes) -> bytes:
    return row + crc32(row, crc32(key)).to_bytes(4, "little")


def _strip_checksum(key: object, row: object) -> bytes | None:
    """What `_checked` was given; None for a row that is not as it was."""
    if not isinstance(key, bytes) or not isinstance(row, bytes):
        return None
    return row[:-4] if crc32(row[:-4], crc32(key)) == int.from_bytes(row[-4:], "little") else None


def _encode_receipts(receipts: Iterable[UploadReceipt]) -> bytes:
    return json.dumps([(receipt.digest, receipt.size, receipt.mac) for receipt in receipts]).encode()


def _open_database(path: Path | None) -> sqlite3.Connection:
    """The file, new where it is not ours; where another publish holds it or it cannot be written, do without."""
    for _ in range(2 if path else 0):
        db = None
        try:
            Path(path or "").parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(path or "", isolation_level=None, timeout=0)
            return _prepare_database(db, is_new=not Path(path or "").stat().st_size)
        except (OSError, sqlite3.Error, UnicodeError) as error:  # SQLite may quote a spoiled file in its message
            if db is not None:
                db.close()
            if (
                not isinstance(error, sqlite3.Error | UnicodeError)
                or getattr(error, "sqlite_errorcode", 0) in _UNAVAILABLE_CODES
            ):
                break
            discard_state(path)
    return _prepare_database(sqlite3.connect("", isolation_level=None), is_new=True)


def _prepare_database(db: sqlite3.Connection, *, is_new: bool) -> sqlite3.Connection:
    # Killed at any moment the file stays whole; only the machine's own failure may spoil it, and it is a cache.
    for pragma in ("locking_mode = EXCLUSIVE", "synchronous = OFF", "cache_size = -8000"):
        db.execute(f"PRAGMA {pragma}")
    db.execute("BEGIN EXCLUSIVE")
    format_text = f"{FORMAT_VERSION} {CUTTER_NAME}".encode()
    if is_new:
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('format', ?)", (format_text,))
    application_id = db.execute("PRAGMA application_id").fetchone()[0]
    format_row = (
        db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        if application_id == _APPLICATION_ID
        else None
    )
    if format_row is not None and format_row[0] == format_text:
        db.execute("CREATE TABLE IF NOT EXISTS pages(last BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID")
        db.execute("CREATE TABLE IF NOT EXISTS folders(path BLOB PRIMARY KEY, row BLOB) WITHOUT ROWID")
    db.execute("COMMIT")
    if format_row is None or format_row[0] != format_text:
        raise sqlite3.DatabaseError("not a state file of this format")
    return db
