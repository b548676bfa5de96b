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
from falaj.backends.sql import schema
from falaj.backends.sql import statements as sql
from falaj.backends.sqlite_writer import translate_errors
from falaj.core.errors import CorruptData, Invalid

_COLUMN_TYPES = {"text": "TEXT", "int": "INTEGER", "real": "REAL", "blob": "BLOB", "clustered": "WITHOUT ROWID"}
SELECT_RECORDS = sql.make_dump_query("records", "tenant, kind, project, name, version")
SELECT_LEASES = sql.make_dump_query("leases", "name")
# SQLite's own things begin with sqlite_, and nobody else's may.
_SELECT_SCHEMA = """SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'
    ORDER BY type, name"""
_COUNT_HIDDEN = "SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index')"
_UPDATE_RECORD = """UPDATE records SET rev = ?, cell = ?, body = ?, at = ?
    WHERE tenant = ? AND kind = ? AND project = ? AND name = ? AND version = ?"""
_CAREFUL_PRAGMAS = (
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
    # Whoever is killed begins anew, with another file.
    "PRAGMA journal_mode = MEMORY",
    "PRAGMA synchronous = OFF",
)
_BACKUP_PAGES = 16384


class SqliteLedgerFile:
    """One file, checked when it is opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        with translate_errors():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for pragma in _CAREFUL_PRAGMAS:
                self._connection.execute(pragma)
            self._require_ledger_schema()

    def rows(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Every row but those of the log, as a dump gives them."""
        with translate_errors():
            for table, statement in (("records", SELECT_RECORDS), ("leases", SELECT_LEASES)):
                for row in self._connection.execute(statement):
                    yield table, row

    def leaves(self) -> Iterator[tuple[str, str, list[bytes]]]:
        """Tenant and zone, and the leaves of events that follow each other in their log; all logs as they lie."""
        with translate_errors():
            yield from sqlite_log.iterate_leaves(self._connection)

    def replace(self, values: tuple[Any, ...]) -> None:
        """Another body for a record that is there."""
        with translate_errors():
            self._connection.execute(_UPDATE_RECORD, (*values[5:9], *values[:5]))

    def begin_epoch(self) -> None:
        """What is written after this is of a new epoch of the log."""
        self._connection.execute(sql.BEGIN_EPOCH)

    def copy_to(self, target: sqlite3.Connection, wait_until_ready: Callable[[], None]) -> None:
        """All of it over an empty database, which becomes it after `wait_until_ready` returned, or stays what it
        was."""

        def on_progress(_: int, remaining_pages: int, __: int) -> None:
            if 0 < remaining_pages <= _BACKUP_PAGES:
                wait_until_ready()

        pages = self._connection.execute("PRAGMA page_count").fetchone()[0]
        if pages <= _BACKUP_PAGES:
            wait_until_ready()
        self._connection.backup(target, pages=_BACKUP_PAGES, progress=on_progress)

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()

    def _require_ledger_schema(self) -> None:
        schema_version = read_schema_numbers(self._connection, 0.0)[0].get("schema", 0)
        if not 0 < schema_version <= schema.NEWEST_VERSION:
            raise Invalid("the backup was made by a newer version of the program", "restore it with that version")
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as reference:
            upgrade_schema(reference, schema_version)
            is_same_schema = (
                reference.execute(_SELECT_SCHEMA).fetchall() == self._connection.execute(_SELECT_SCHEMA).fetchall()
            )
        if not is_same_schema or self._connection.execute(_COUNT_HIDDEN).fetchone()[0]:
            raise CorruptData("the backup is damaged: its tables are not those of a ledger", "take another copy")


def upgrade_schema(
    connection: sqlite3.Connection, target_version: int = schema.NEWEST_VERSION, now: float | None = None
) -> None:
    """Bring the schema up to date in one transaction; of two processes that start at once the second finds it done."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(schema.CREATE_META.format_map(_COLUMN_TYPES))
        schema_numbers, live_replicas = read_schema_numbers(connection, time.time() if now is None else now)
        for step in schema.list_pending_steps(
            schema_numbers, _COLUMN_TYPES, sqlite_log.LOG_SCHEMA_STEPS, live_replicas, target_version
        ):
            for statement in step.statements:
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def read_schema_numbers(connection: sqlite3.Connection, now: float) -> tuple[dict[str, int], tuple[str, ...]]:
    """The numbers of the schema, and the replicas that are there; nothing of an empty file."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        return {}, ()
    schema_numbers = dict(connection.execute(schema.SELECT_NUMBERS).fetchall())
    live_rows = connection.execute(schema.SELECT_LIVE_REPLICAS, (now,)).fetchall() if schema_numbers else []
    return schema_numbers, tuple(owner for (owner,) in live_rows)
