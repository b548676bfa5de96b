"""Measurements on one SQLite file: one writer at a time, any number of readers on snapshots.

An append is durable against loss of power when it returns (write-ahead log, synchronous FULL); whoever calls puts many
blocks into one append. `n` grows with every commit, so it is the cursor of changes.
"""

import contextlib
import json
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from falaj.core.errors import CorruptData, FalajError, Invalid, Unavailable
from falaj.core.ports import SeriesBlock

_SCHEMA_SCRIPT = """
CREATE TABLE IF NOT EXISTS blocks (
    n INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, series TEXT NOT NULL, shelf TEXT NOT NULL,
    id TEXT NOT NULL, zone TEXT NOT NULL, low TEXT NOT NULL, high TEXT NOT NULL, length INTEGER NOT NULL,
    at REAL NOT NULL, told INTEGER NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS blocks_id ON blocks (tenant, series, id);
CREATE INDEX IF NOT EXISTS blocks_shelf ON blocks (tenant, series, shelf, low, high, id);
CREATE INDEX IF NOT EXISTS blocks_told ON blocks (tenant, n) WHERE told;
"""
_SCHEMA_VERSION = 1
_BLOCK_COLUMNS = "tenant, series, shelf, id, zone, low, high, length, at, data, told"
_INSERT_BLOCK = f"INSERT INTO blocks ({_BLOCK_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608 # nosec B608
_SELECT_BLOCKS = f"""SELECT {_BLOCK_COLUMNS} FROM blocks WHERE tenant = ? AND series IN (SELECT value FROM json_each(?))
    AND shelf = ? AND high >= ? ORDER BY series, low, high, id LIMIT ?"""  # noqa: S608 # nosec B608
_SELECT_CHANGES = f"SELECT {_BLOCK_COLUMNS} FROM blocks WHERE tenant = ? AND n > ? AND told ORDER BY n"  # noqa: S608 # nosec B608
_SELECT_ALL = f"SELECT {_BLOCK_COLUMNS} FROM blocks ORDER BY n"  # noqa: S608 # nosec B608
_SELECT_NOW = "SELECT seq FROM sqlite_sequence WHERE name = 'blocks'"
_DELETE_BLOCKS = "DELETE FROM blocks WHERE tenant = ? AND series = ? AND id IN (SELECT value FROM json_each(?))"
_DELETE_SERIES = "DELETE FROM blocks WHERE tenant = ? AND series = ?"
_DELETE_EXPIRED = "DELETE FROM blocks WHERE tenant = ? AND substr(series, 1, ?) = ? AND at < ?"


class SqliteSeriesStore:
    """`sqlite:/path/to/file`. Options: `busy_s`, how long a writer waits for another process (default 30)."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._path = url.partition(":")[2]
        self._busy_s = float((options or {}).get("busy_s", 30.0))
        self._write_lock = threading.Lock()
        self._readers: deque[sqlite3.Connection] = deque()
        self._is_closed = False
        if not self._path or not Path(self._path).parent.is_dir():
            raise Invalid(
                f"{url[:200]!r} names no file in a folder that is there", "for example sqlite:/path/series.db"
            )
        with _translate_errors():
            Path(self._path).touch(mode=0o600)
            self._writer = self._open_connection()
            ((version,),) = self._writer.execute("PRAGMA user_version")
            if version > _SCHEMA_VERSION:
                raise Unavailable(
                    f"the series have schema {version} and this program knows up to {_SCHEMA_VERSION}", "upgrade it"
                )
            self._writer.executescript(_SCHEMA_SCRIPT)
            self._writer.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")

    def append(self, blocks: Sequence[SeriesBlock]) -> None:
        """Add blocks; durable on return."""
        with self._begin_write() as connection:
            connection.executemany(_INSERT_BLOCK, blocks)

    def read(
        self, tenant: str, series: Sequence[str], tier: str, from_position: str = "", limit: int = 1_000_000
    ) -> list[SeriesBlock]:
        """Blocks of a shelf, in order."""
        with self._begin_read() as connection:
            return _to_blocks(
                connection.execute(_SELECT_BLOCKS, (tenant, json.dumps(list(series)), tier, from_position, limit))
            )

    def changes(self, tenant: str, after: str = "") -> tuple[list[SeriesBlock], str]:
        """What was added since a cursor, and the cursor of now."""
        if after and not after.isdigit():
            raise Invalid(f"{after[:80]!r} is no cursor of changes", "use the one that was given")
        with self._begin_read() as connection:
            now = connection.execute(_SELECT_NOW).fetchone()
            blocks = _to_blocks(connection.execute(_SELECT_CHANGES, (tenant, int(after)))) if after else []
            return blocks, str(now[0] if now else 0)

    def swap(self, tenant: str, series: str, removed_ids: Sequence[str], new_blocks: Sequence[SeriesBlock]) -> bool:
        """Put blocks in the place of others, or do nothing."""
        with contextlib.suppress(_BlockMissing), self._begin_write() as connection:
            if connection.execute(_DELETE_BLOCKS, (tenant, series, json.dumps(list(removed_ids)))).rowcount != len(
                set(removed_ids)
            ):
                raise _BlockMissing
            connection.executemany(_INSERT_BLOCK, new_blocks)
            return True
        return False

    def delete(self, tenant: str, series: str) -> None:
        """Remove a series whole."""
        with self._begin_write() as connection:
            connection.execute(_DELETE_SERIES, (tenant, series))

    def expire(self, tenant: str, prefix: str, written_before: float) -> int:
        """Remove what is older."""
        with self._begin_write() as connection:
            return connection.execute(_DELETE_EXPIRED, (tenant, len(prefix), prefix, written_before)).rowcount

    def dump(self) -> Iterator[SeriesBlock]:
        """Every block, in the order of their commits."""
        with self._begin_read() as connection:
            for row in connection.execute(_SELECT_ALL):
                yield SeriesBlock._make((*row[:10], bool(row[10])))

    def close(self) -> None:
        """Close every connection."""
        self._is_closed = True
        while self._readers:
            self._readers.pop().close()
        with self._write_lock:
            self._writer.close()

    def _open_connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        return connection

    @contextlib.contextmanager
    def _begin_write(self) -> Iterator[sqlite3.Connection]:
        """The writer inside a transaction, which commits on a clean exit."""
        with self._write_lock, _translate_errors():
            self._require_open()
            connection = self._writer
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _begin_read(self) -> Iterator[sqlite3.Connection]:
        """A connection on one snapshot."""
        self._require_open()
        with _translate_errors():
            try:
                connection = self._readers.pop()
            except IndexError:
                connection = self._open_connection()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")
                if self._is_closed:
                    connection.close()
                else:
                    self._readers.append(connection)

    def _require_open(self) -> None:
        if self._is_closed:
            raise Unavailable("the series are closed", "open them again")


class _BlockMissing(Exception):
    """A block that was to go is not there."""


def _to_blocks(rows: sqlite3.Cursor) -> list[SeriesBlock]:
    return [SeriesBlock._make((*row[:10], bool(row[10]))) for row in rows]


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Errors of the engine leave here as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate_error(error) from error


def _translate_error(error: sqlite3.Error) -> FalajError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptData(
            "the file of measurements is damaged", "stop, keep a copy of it, and restore the newest backup"
        )
    if code == sqlite3.SQLITE_FULL:
        return Unavailable("the disk of the measurements is full; nothing was written", "free some space, call again")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable("the measurements are busy", "another process writes to them; call again")
    return Unavailable(
        f"the file of measurements does not answer ({error})", "check it and its folder, then call again"
    )
