"""A ledger as one SQLite file that nobody else uses: what a backup takes along, and what a restore brings back whole.

Such a file may come from strangers. So its schema must be, word for word, one that this program makes: nothing in it
runs by itself, and nothing is hidden beside what we look at.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

from falaj.backends import sqlite_log
from falaj.backends.lane import clear_errors
from falaj.backends.sql import schema
from falaj.backends.sql import statements as sql
from falaj.core.errors import Corrupt, Invalid

_DIALECT = {"text": "TEXT", "int": "INTEGER", "real": "REAL", "blob": "BLOB", "clustered": "WITHOUT ROWID"}
RECORDS = sql.dump("records", "tenant, kind, project, name, version")
LEASES = sql.dump("leases", "name")
# SQLite's own things begin with sqlite_, and nobody else's may.
_SCHEMA = """SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'
    ORDER BY type, name"""
_HIDDEN = "SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index')"
_REPLACE = """UPDATE records SET rev = ?, cell = ?, body = ?, at = ?
    WHERE tenant = ? AND kind = ? AND project = ? AND name = ? AND version = ?"""
_CAREFUL = (
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    # Whoever is killed begins anew, with another file.
    "PRAGMA journal_mode = MEMORY",
    "PRAGMA synchronous = OFF",
)
_PAGES = 16384


class SqliteFile:
    """One file, checked when it is opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        with clear_errors():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for text in _CAREFUL:
                self._connection.execute(text)
            self._check()

    def rows(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Every row but those of the log, as a dump gives them."""
        with clear_errors():
            for table, text in (("records", RECORDS), ("leases", LEASES)):
                for row in self._connection.execute(text):
                    yield table, row

    def leaves(self) -> Iterator[tuple[str, str, list[bytes]]]:
        """Tenant and zone, and the leaves of events that follow each other in their log; all logs as they lie."""
        with clear_errors():
            yield from sqlite_log.leaves(self._connection)

    def replace(self, values: tuple[Any, ...]) -> None:
        """Another body for a record that is there."""
        with clear_errors():
            self._connection.execute(_REPLACE, (*values[5:9], *values[:5]))

    def begin_epoch(self) -> None:
        """What is written after this is of a new epoch of the log."""
        self._connection.execute(sql.NEW_EPOCH)

    def copy_to(self, target: sqlite3.Connection, ready: Callable[[], None]) -> None:
        """All of it over an empty database, which becomes it after `ready` returned, or stays what it was."""

        def told(_: int, left: int, __: int) -> None:
            if 0 < left <= _PAGES:
                ready()

        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        if pages <= _PAGES:
            ready()
        self._connection.backup(target, pages=_PAGES, progress=told)

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()

    def _check(self) -> None:
        number = found_in(self._connection, 0.0)[0].get("schema", 0)
        if not 0 < number <= schema.NEWEST:
            raise Invalid("the backup was made by a newer version of the program", "restore it with that version")
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as ours:
            upgrade(ours, number)
            same = ours.execute(_SCHEMA).fetchall() == self._connection.execute(_SCHEMA).fetchall()
        if not same or self._connection.execute(_HIDDEN).fetchone()[0]:
            raise Corrupt("the backup is damaged: its tables are not those of a ledger", "take another copy")


def upgrade(connection: sqlite3.Connection, upto: int = schema.NEWEST, now: float | None = None) -> None:
    """Bring the schema up to date in one transaction; of two processes that start at once the second finds it done."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(schema.META.format_map(_DIALECT))
        found, live = found_in(connection, time.time() if now is None else now)
        for step in schema.pending(found, _DIALECT, sqlite_log.STEPS, live, upto):
            for statement in step.statements:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def found_in(connection: sqlite3.Connection, now: float) -> tuple[dict[str, int], tuple[str, ...]]:
    """The numbers of the schema, and the replicas that are there; nothing of an empty file."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        return {}, ()
    found = dict(connection.execute(schema.NUMBERS).fetchall())
    live = connection.execute(schema.LIVE, (now,)).fetchall() if found else []
    return found, tuple(owner for (owner,) in live)
