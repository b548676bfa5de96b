"""One transaction on PostgreSQL, events that need none, and what the engine's errors mean for callers.

A transaction begins with the engine when it first asks something. One that only tells events never does: nobody can
meet it, so its events are one statement, shared with whoever tells something at the same moment.
"""

import contextlib
import logging
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from falaj.backends.postgres_arrays import ColumnStatement, encode_columns, prepare_column_statement, to_column_arrays
from falaj.backends.postgres_memory import (
    CHANGED,
    IF_CHANGED,
    IF_STILL,
    STILL,
    Memory,
    Seen,
    change,
    overtaken,
    proof,
    read_many,
)
from falaj.backends.postgres_polling import SELECT_EPOCH
from falaj.backends.sql import statements as sql
from falaj.backends.sql.rows import RowWriteMixin
from falaj.core.errors import FalajError, Invalid, StaleRevision, Unavailable
from falaj.core.ports import LEDGER_TABLES, EventRow, RecordKey, RecordQuery, RowPage, StoredRow

_CURRENT_XID = "pg_current_xact_id()::text::bigint"
_EVENT_COLUMNS = LEDGER_TABLES["events"][3:]
_COLUMN_TYPES = {"at": "float8", "leaf": "bytea", "data": "bytea", "part": "bigint"}
# All of them in one statement, numbered in their order.
_INSERT_EVENTS = f"""INSERT INTO events (epoch, xid, {", ".join(_EVENT_COLUMNS)})
    SELECT {SELECT_EPOCH}, {_CURRENT_XID}, {", ".join(_EVENT_COLUMNS)}
    FROM unnest({", ".join(f"%b::{_COLUMN_TYPES.get(column, 'text')}[]" for column in _EVENT_COLUMNS)})
        WITH ORDINALITY AS given ({", ".join(_EVENT_COLUMNS)}, place) WHERE true ORDER BY place"""  # noqa: S608 # nosec B608
# A record and the index of its terms in one trip; as many rows as it has terms, or none where it exists already.
_INSERT_RECORD = """WITH made AS (INSERT INTO records (tenant, kind, project, name, version, rev, cell, body, at, terms)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
        RETURNING tenant, kind, project, name, version)
    INSERT INTO terms (tenant, kind, field, value, project, name, version)
    SELECT tenant, kind, field, value, project, name, version
    FROM made, unnest(%s::text[], %s::text[]) AS given (field, value)"""
_MAX_CACHED_ROWS = 1000
"""So many rows that were read are kept: guard, verb and writing ask for the same ones."""
NO_SEEN_ROWS: Mapping[RecordKey, Seen] = MappingProxyType({})
_RETRYABLE_STATES = ("40001", "40P01", "55P03")
# It warns of errors that it raises as well.
logging.getLogger("psycopg").setLevel(logging.ERROR)
logging.getLogger("psycopg.pool").setLevel(logging.WARNING)

Connection = psycopg.Connection[Any]
ExtraRows = dict[str, list[Sequence[Any]]]
"""Rows that go into a table beside the ledger's, by the statement that takes them as columns."""
AppendEvents = Callable[[Sequence[EventRow], ExtraRows, Mapping[RecordKey, Seen]], None]
"""Makes events durable, if rows are still as they were seen."""


class SnapshotlessReader(NamedTuple):
    """How to ask one question outside any transaction, and what was answered a moment ago."""

    ask: Callable[[str, Sequence[Any]], list[Any]]
    memory: Memory


OnEnd = Callable[["psycopg.Connection[Any]", bool, bool], None]
"""Takes the connection of an ended transaction: whether it was committed, and whether the engine turned it away."""


class PostgresRowWrites(RowWriteMixin):
    """How this engine writes records."""

    __slots__ = ()

    def put(self, row: StoredRow, rev: int) -> None:
        """Write over revision `rev`, or StaleRevision."""
        if rev or not row.terms:
            super().put(row, rev)
            return
        self._prepare_change()
        fields, values = zip(*row.terms, strict=True)
        column_values = (row.rev, row.cell, row.body, row.at, sql.encode_terms(row.terms), list(fields), list(values))
        if not self.count(_INSERT_RECORD, (*sql.get_key_values(row.key), *column_values)):
            raise StaleRevision(f"{row.key.kind} {row.key.project}/{row.key.name} exists already", "read it and retry")

    def many(self, statement: str, rows: list[tuple[str, ...]]) -> None:
        """One statement for each of a few rows."""
        for row in rows:
            self.count(statement, row)


class PostgresTransaction(PostgresRowWrites):
    """One transaction on one connection of the pool."""

    def __init__(
        self,
        url: str,
        begin_connection: "Callable[[], Connection]",
        on_end: OnEnd,
        *,
        append_events: AppendEvents | None = None,
        snapshotless_reader: SnapshotlessReader | None = None,
    ) -> None:
        """`begin_connection` gives a connection that has begun, `on_end` takes it back; one that writes can
        `append_events` without either, and one that is known to want something can `snapshotless_reader` at it."""
        self.url = url
        self._snapshotless_reader = snapshotless_reader
        self._snapshotless_rows: dict[RecordKey, StoredRow | None] = {}
        self.overtaken: set[RecordKey] = set()
        """What was glanced at and is another thing in the transaction that began after all."""
        self.unproven: dict[RecordKey, Seen] = {}
        """What was only remembered: nobody has looked yet whether it is still so."""
        self._begin_connection = begin_connection
        self._on_end = on_end
        self._append_events = append_events
        self._open_connection: Connection | None = None
        self._pending_events: list[EventRow] = []
        self._extra_rows: ExtraRows = {}
        self._has_ended = False
        self.wanted: tuple[RecordKey, ...] = ()
        """What will be asked for: the first question for one of them reads all, and where that is the first question
        at all it needs no transaction. One statement is one snapshot."""
        self._cached_rows: dict[RecordKey, StoredRow | None] = {}
        self._scopes_by_kind: dict[tuple[str, str], frozenset[str]] = {}

    @property
    def _begun_connection(self) -> "Connection":
        if self._open_connection is None:
            if self._has_ended:
                raise Invalid("the transaction has ended", "begin another")
            self._open_connection = self._begin_connection()
            if self._snapshotless_rows:
                fresh_rows = self.prove(self.unproven, tuple(self._snapshotless_rows))
                self.overtaken = {key for key, row in fresh_rows.items() if row != self._snapshotless_rows[key]}
                self.unproven = {}
        return self._open_connection

    @property
    def begun(self) -> bool:
        """Whether the engine knows of it."""
        return self._open_connection is not None

    @property
    def status(self) -> TransactionStatus:
        """How it stands with the engine."""
        return (
            TransactionStatus.IDLE if self._open_connection is None else self._open_connection.info.transaction_status
        )

    def get(self, key: RecordKey) -> StoredRow | None:
        """The row of a key. One snapshot, so what was read once need not be asked again."""
        if key in self.wanted and key not in self._cached_rows:
            wanted_keys, self.wanted = self.wanted, ()
            self._cached_rows |= self._read_many(wanted_keys)
        if key not in self._cached_rows:
            rows = self.run(sql.SELECT_RECORD, sql.get_key_values(key))
            if len(self._cached_rows) >= _MAX_CACHED_ROWS:
                self._cached_rows.clear()
            self._cached_rows[key] = sql.to_stored_row(key, rows[0] if rows else None)
        return self._cached_rows[key]

    def _read_many(self, keys: tuple[RecordKey, ...]) -> dict[RecordKey, StoredRow | None]:
        """The rows of keys that are wanted, in one trip or, where they are remembered, in none."""
        snapshotless_reader = self._snapshotless_reader if self._open_connection is None else None
        if snapshotless_reader is None:
            return _to_rows(read_many(self.run, keys))
        remembered_rows = snapshotless_reader.memory.recall(keys)
        if remembered_rows is not None:
            self.unproven, self._snapshotless_rows = remembered_rows, _to_rows(remembered_rows)
        else:
            fresh_rows = read_many(snapshotless_reader.ask, keys)
            snapshotless_reader.memory.keep(fresh_rows)
            self._snapshotless_rows = _to_rows(fresh_rows)
        return self._snapshotless_rows

    def prove(
        self, seen_rows: Mapping[RecordKey, Seen], extra_keys: tuple[RecordKey, ...] = ()
    ) -> dict[RecordKey, StoredRow | None]:
        """Read rows in this transaction, and StaleRevision unless those that were seen are the same."""
        fresh_rows = read_many(self.run, tuple(dict.fromkeys((*seen_rows, *extra_keys))))
        if any(fresh_rows[key] != seen_row for key, seen_row in seen_rows.items()):
            raise overtaken()
        rows = _to_rows(fresh_rows)
        self._cached_rows |= rows
        return rows

    def find(self, query: RecordQuery) -> RowPage:
        """A page of rows."""
        statement, values = sql.build_find_query(query, ("r.cell = ANY(?)", sorted(query.cells or ())))
        return sql.to_row_page(query, self.run(statement, values))

    def cells(self, tenant: str, kind: str) -> frozenset[str]:
        """The distinct cells of a kind, asked once until one is written."""
        scopes = self._scopes_by_kind.get((tenant, kind))
        if scopes is None:
            rows = self.run(sql.SELECT_SCOPES, (tenant, kind, tenant, kind))
            scopes = self._scopes_by_kind[tenant, kind] = frozenset(scope for (scope,) in rows)
        return scopes

    def put(self, row: StoredRow, rev: int) -> None:
        """Write over revision `rev`, or StaleRevision."""
        super().put(row, rev)
        self.known(row.key, row)

    def delete(self, key: RecordKey, rev: int) -> None:
        """Remove the row at revision `rev`, or StaleRevision."""
        super().delete(key, rev)
        self.known(key, None)

    def known(self, key: RecordKey, row: StoredRow | None) -> None:
        """This was written."""
        if self._snapshotless_reader is not None:
            self._snapshotless_reader.memory.forget((key,))
        self._cached_rows[key] = row
        self._scopes_by_kind.pop((key.tenant, key.kind), None)

    def forget(self) -> None:
        """Some of what was written is undone: ask again."""
        self._cached_rows.clear()
        self._scopes_by_kind.clear()

    def append(self, events: Sequence[EventRow]) -> None:
        """Add to the log, in this order."""
        self._prepare_change()
        self._pending_events += events

    def ride(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Have rows of another table of this database written with the events."""
        self._prepare_change()
        self._extra_rows.setdefault(statement, []).extend(rows)

    def stream(self, cursor_name: str, statement: str) -> Iterator[tuple[Any, ...]]:
        """The rows of one statement as they come."""
        with translate_errors(), self._begun_connection.cursor(name=cursor_name) as cursor:
            cursor.itersize = 1000
            yield from cursor.execute(statement)

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement."""
        with translate_errors():
            return self._begun_connection.execute(to_driver_marks(statement), values).fetchall()

    def order(self, statements: str) -> None:
        """Statements without values, which may be several."""
        with translate_errors():
            self._begun_connection.execute(statements, prepare=False)

    def commit(self) -> None:
        """Durable on return. When the connection breaks in the midst of it nobody knows: the error says so."""
        if self._has_ended:
            raise Invalid("the transaction has ended", "begin another")
        connection, self._has_ended, is_committed = self._open_connection, True, False
        if connection is None:
            if self._pending_events and self._append_events is not None:
                self._append_events(self._pending_events, self._extra_rows, {})
            return
        try:
            if self._pending_events:
                statement, values = build_append(self._pending_events, self._extra_rows)
                with translate_errors():
                    connection.execute(statement.asked, to_column_arrays(values))
            with translate_errors(may_have_committed=self._append_events is not None):
                if connection.execute("COMMIT").statusmessage != "COMMIT":
                    raise StaleRevision("the transaction was undone by an earlier error", "call again")
            is_committed = True
        finally:
            if not is_committed:
                _roll_back(connection)
            self._on_end(connection, is_committed, not is_committed)

    def rollback(self) -> None:
        """Nothing of it happened."""
        if self._has_ended:
            return
        connection, self._has_ended, status = self._open_connection, True, self.status
        if connection is None:
            return
        _roll_back(connection, "ROLLBACK" if self._append_events is not None else "COMMIT")
        self._on_end(connection, False, status == TransactionStatus.INERROR)

    def _read_old_terms(self, key: RecordKey, rev: int) -> str:
        row = self.get(key)
        if row is None or row.rev != rev:
            raise StaleRevision(
                f"{key.kind} {key.project}/{key.name} is not at revision {rev}", "read it again and retry"
            )
        return sql.encode_terms(row.terms)

    def _prepare_change(self) -> None:
        if self._append_events is None or self._has_ended:
            raise Invalid("this transaction cannot write", "begin one that writes")

    def count(self, statement: str, values: Sequence[Any]) -> int:
        """How many rows a statement changed."""
        with translate_errors():
            return self._begun_connection.execute(to_driver_marks(statement), values).rowcount


def build_append(
    events: Sequence[EventRow],
    extra_rows: ExtraRows,
    seen_rows: Mapping[RecordKey, Seen] = NO_SEEN_ROWS,
    rows: Mapping[RecordKey, StoredRow] = MappingProxyType({}),
) -> tuple[ColumnStatement, list[bytes]]:
    """The statement that adds events to the log, in this order, and what rides with them, and the values it takes.
    With rows that were seen it adds all of it, or nothing where one of them has changed. With `rows` it writes over
    some of those, and gives the transaction that did."""
    statement = _build_append_statement(tuple(extra_rows), bool(seen_rows), bool(rows))
    values = proof({key: seen_row for key, seen_row in seen_rows.items() if key not in rows}) if seen_rows else []
    if rows:
        values += change(rows, seen_rows)
    for statement_text, rows_of_statement in extra_rows.items():
        values += encode_columns(prepare_column_statement(statement_text).kinds, rows_of_statement)
    values += encode_columns(
        prepare_column_statement(_INSERT_EVENTS).kinds, [sql.get_event_values(event) for event in events]
    )
    return statement, values


@lru_cache(maxsize=64)
def _build_append_statement(
    extra_statements: tuple[str, ...], has_seen_rows: bool, has_changed_rows: bool
) -> ColumnStatement:
    extra_clauses = [f"rider{n} AS ({statement_text})" for n, statement_text in enumerate(extra_statements)]
    leading_clauses = [STILL] * has_seen_rows + [CHANGED] * has_changed_rows
    statement_text = (
        f"WITH {', '.join(leading_clauses + extra_clauses)} {_INSERT_EVENTS}"
        if extra_clauses or has_seen_rows
        else _INSERT_EVENTS
    )
    statement_text = (
        statement_text.replace("WHERE true", f"WHERE {IF_CHANGED if has_changed_rows else IF_STILL}")
        if has_seen_rows
        else statement_text
    )
    return prepare_column_statement(f"{statement_text} RETURNING xid" if has_changed_rows else statement_text)


def _to_rows(
    seen_rows: "Mapping[RecordKey, Seen] | Mapping[RecordKey, Seen | None]",
) -> dict[RecordKey, StoredRow | None]:
    return {key: seen_row and seen_row.row for key, seen_row in seen_rows.items()}


def _roll_back(connection: "Connection", command: str = "ROLLBACK") -> None:
    """Before it goes back to the others; the pool would do it, and warn users of what is no fault. Where nothing was
    written a COMMIT says the same, and the driver does not forget all that it has prepared, as it does after the other.
    """
    with contextlib.suppress(psycopg.Error):
        if connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
            connection.execute(command)


def to_driver_marks(statement: str) -> str:
    """A statement of both engines in the words of this driver."""
    return statement.replace("?", "%s")


def require_alive(connection: "psycopg.Connection[Any]") -> None:
    """Whether a connection of the pool still stands, without a trip: on one that rests there is nothing to read, unless
    the server has ended it."""
    if not is_quiet(connection):
        ConnectionPool.check_connection(connection)


def is_quiet(connection: "psycopg.Connection[Any]") -> bool:
    """Whether there is nothing to read on a connection that rests."""
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return not poller.poll(0)


@contextlib.contextmanager
def translate_errors(may_have_committed: bool = False) -> Iterator[None]:
    """Errors of the engine leave here as ours. `may_have_committed`: a broken connection leaves open whether a commit
    happened."""
    try:
        yield
    except psycopg.Error as error:
        raise translate_error(error, may_have_committed) from error


def translate_error(error: psycopg.Error, may_have_committed: bool = False) -> FalajError:
    """What an engine's error means for the caller."""
    sql_state = error.sqlstate or ""
    if sql_state in _RETRYABLE_STATES:
        return StaleRevision("another writer changed the same things meanwhile", "call again")
    if sql_state.startswith("53"):
        return Unavailable(
            "PostgreSQL is out of disk, memory or connections; nothing was written", "make room, then call again"
        )
    if sql_state.startswith("22") or isinstance(error, psycopg.DataError):
        return Invalid("PostgreSQL cannot store one of the values", "valid text without NUL characters, please")
    if sql_state.startswith("28") or sql_state == "3D000":
        return Unavailable(
            "PostgreSQL refuses the connection", "check user, password and database in the store's address"
        )
    if sql_state == "57014" and not may_have_committed:
        return Unavailable(
            "PostgreSQL did not finish a statement in time; nothing was written",
            "look for locks and slow statements in pg_stat_activity, then call again",
        )
    if may_have_committed and (not sql_state or sql_state.startswith(("08", "57"))):
        return Unavailable(
            "PostgreSQL went away during the commit: it may have been recorded",
            "call again with the same request id: it finds the first outcome",
        )
    if isinstance(error, psycopg.OperationalError):
        return Unavailable("PostgreSQL does not answer; nothing was written", "check that it runs, then call again")
    return Unavailable(f"PostgreSQL refused a statement ({sql_state})", "look at the server's log for the reason")
