"""One transaction on PostgreSQL, and what the engine's errors mean for callers."""

import contextlib
import select
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from falaj.backends.sql import statements as sql
from falaj.backends.sql.rows import RowWrites
from falaj.core.errors import FalajError, Invalid, Stale, Unavailable
from falaj.core.ports import TABLES, EventRow, Found, Key, Query, Row

EPOCH = "(SELECT value FROM meta WHERE name = 'epoch')"
_NOW = "pg_current_xact_id()::text::bigint"
_COLUMNS = TABLES["events"][3:]
_KINDS = {"at": "float8", "leaf": "bytea", "data": "bytea", "part": "bigint"}
# All of them in one statement, numbered in their order.
_APPEND = f"""INSERT INTO events (epoch, xid, {", ".join(_COLUMNS)})
    SELECT {EPOCH}, {_NOW}, {", ".join(_COLUMNS)}
    FROM unnest({", ".join(f"%b::{_KINDS.get(column, 'text')}[]" for column in _COLUMNS)})
        WITH ORDINALITY AS given ({", ".join(_COLUMNS)}, place) ORDER BY place"""  # noqa: S608 # nosec B608
_RETRY = ("40001", "40P01", "55P03")


End = Callable[["psycopg.Connection[Any]", bool, bool], None]
"""Takes the connection of an ended transaction: whether it was committed, and whether the engine turned it away."""


class PostgresTxn(RowWrites):
    """One transaction on one connection of the pool."""

    def __init__(self, connection: psycopg.Connection[Any], write: bool, end: End) -> None:
        """On a connection that has begun; `end` takes it back."""
        self._connection = connection
        self._write = write
        self._end = end
        self._ended = False

    @property
    def status(self) -> TransactionStatus:
        """How it stands with the engine."""
        return self._connection.info.transaction_status

    def get(self, key: Key) -> Row | None:
        """The row of a key."""
        rows = self.run(sql.GET, sql.key_values(key))
        return sql.row_of(key, rows[0] if rows else None)

    def find(self, query: Query) -> Found:
        """A page of rows."""
        text, values = sql.find_query(query, ("r.cell = ANY(?)", sorted(query.cells or ())))
        return sql.found(query, self.run(text, values))

    def cells(self, tenant: str, kind: str) -> frozenset[str]:
        """The distinct cells of a kind."""
        return frozenset(cell for (cell,) in self.run(sql.CELLS, (tenant, kind, tenant, kind)))

    def append(self, events: Sequence[EventRow]) -> None:
        """Add to the log, in this order."""
        self._ready()
        if not events:
            return
        with clear_errors():
            columns = zip(*[sql.event_values(event) for event in events], strict=True)
            self._connection.execute(_APPEND, [list(column) for column in columns])

    def stream(self, name: str, text: str) -> Iterator[tuple[Any, ...]]:
        """The rows of one statement as they come."""
        with clear_errors(), self._connection.cursor(name=name) as cursor:
            cursor.itersize = 1000
            yield from cursor.execute(text)

    def run(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement."""
        with clear_errors():
            return self._connection.execute(marks(text), values).fetchall()

    def order(self, text: str) -> None:
        """Statements without values, which may be several."""
        with clear_errors():
            self._connection.execute(text, prepare=False)

    def commit(self) -> None:
        """Durable on return. When the connection breaks in the midst of it nobody knows: the error says so."""
        if self._ended:
            raise Invalid("the transaction has ended", "begin another")
        self._ended, done = True, False
        try:
            with clear_errors(unsure=self._write):
                if self._connection.execute("COMMIT").statusmessage != "COMMIT":
                    raise Stale("the transaction was undone by an earlier error", "call again")
            done = True
        finally:
            self._end(self._connection, done, not done)

    def rollback(self) -> None:
        """Nothing of it happened."""
        if self._ended:
            return
        self._ended = True
        status = self.status
        with contextlib.suppress(psycopg.Error):
            if status != TransactionStatus.UNKNOWN:
                self._connection.execute("ROLLBACK")
        self._end(self._connection, False, status == TransactionStatus.INERROR)

    def _ready(self) -> None:
        if not self._write or self._ended:
            raise Invalid("this transaction cannot write", "begin one that writes")

    def count(self, text: str, values: Sequence[Any]) -> int:
        """How many rows a statement changed."""
        with clear_errors():
            return self._connection.execute(marks(text), values).rowcount

    def many(self, text: str, rows: list[tuple[str, ...]]) -> None:
        """One statement for many rows."""
        with clear_errors():
            self._connection.cursor().executemany(marks(text), rows)


def marks(text: str) -> str:
    """A statement of both engines in the words of this driver."""
    return text.replace("?", "%s")


def check_alive(connection: "psycopg.Connection[Any]") -> None:
    """Whether a connection of the pool still stands, without a trip: on one that rests there is nothing to read, unless
    the server has ended it."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        ConnectionPool.check_connection(connection)


@contextlib.contextmanager
def clear_errors(unsure: bool = False) -> Iterator[None]:
    """Errors of the engine leave here as ours. `unsure`: a broken connection leaves open whether a commit happened."""
    try:
        yield
    except psycopg.Error as error:
        raise failure(error, unsure) from error


def failure(error: psycopg.Error, unsure: bool = False) -> FalajError:
    """What an engine's error means for the caller."""
    state = error.sqlstate or ""
    if state in _RETRY:
        return Stale("another writer changed the same things meanwhile", "call again")
    if state.startswith("53"):
        return Unavailable(
            "PostgreSQL is out of disk, memory or connections; nothing was written", "make room, then call again"
        )
    if state.startswith("22") or isinstance(error, psycopg.DataError):
        return Invalid("PostgreSQL cannot store one of the values", "valid text without NUL characters, please")
    if state.startswith("28") or state == "3D000":
        return Unavailable(
            "PostgreSQL refuses the connection", "check user, password and database in the store's address"
        )
    if unsure and (not state or state.startswith(("08", "57"))):
        return Unavailable(
            "PostgreSQL went away during the commit: it may have been recorded",
            "call again with the same request id: it finds the first outcome",
        )
    if isinstance(error, psycopg.OperationalError):
        return Unavailable("PostgreSQL does not answer; nothing was written", "check that it runs, then call again")
    return Unavailable(f"PostgreSQL refused a statement ({state})", "look at the server's log for the reason")
