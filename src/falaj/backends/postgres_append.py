"""Telling on PostgreSQL: events without a transaction around them. Whoever comes while another tells waits, and one
tells for all.

A house that is used tells all day long. So it has a connection that does nothing else: its statements stay prepared,
and the engine's process at its other end has at hand what they need. The pool's are lent to whoever comes next.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format
from psycopg_pool import ConnectionPool

from falaj.backends.postgres_arrays import ColumnStatement, to_column_arrays
from falaj.backends.postgres_memory import Seen, overtaken
from falaj.backends.postgres_transaction import (
    NO_SEEN_ROWS,
    Connection,
    ExtraRows,
    build_append,
    is_quiet,
    translate_errors,
)
from falaj.core.coalescer import WriteCoalescer
from falaj.core.errors import FalajError, Invalid, StaleRevision, Unavailable
from falaj.core.ports import EventRow, RecordKey

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

DEDICATED_CONNECTION_AFTER = 16
"""Who tells so often gets a connection for it; a command that tells a few times does not wait for one."""


class EventAppender:
    """Tells for all threads of a process."""

    def __init__(self, pool: ConnectionPool, connect: Callable[[], Connection], on_durable: Callable[[], None]) -> None:
        """`on_durable` is called when something is durable."""
        self._pool, self._on_durable = pool, on_durable
        self._coalescer = WriteCoalescer(self._append_batch)
        self._append_count = 0
        self._dedicated_connection = DedicatedConnection(connect)

    def tell(
        self, events: Sequence[EventRow], extra_rows: ExtraRows, seen_rows: Mapping[RecordKey, Seen] = NO_SEEN_ROWS
    ) -> None:
        """Durable on return; StaleRevision, and nothing is told, where a row is not as it was seen."""
        self._coalescer.do(_PendingAppend(events, extra_rows, seen_rows))

    def close(self) -> None:
        """Let go of the connection; whoever tells after this opens another."""
        with self._coalescer.turn:
            self._dedicated_connection.close()

    def _append_batch(self, batch: "Sequence[_PendingAppend]") -> Sequence[FalajError | None]:
        extra_rows: ExtraRows = {}
        seen_rows: dict[RecordKey, Seen] = {}
        for pending_append in batch:
            seen_rows |= pending_append.seen
            for statement, rows in pending_append.riders.items():
                extra_rows.setdefault(statement, []).extend(rows)
        error = self._insert_events(
            [event for pending_append in batch for event in pending_append.events], extra_rows, seen_rows
        )
        # The others must not suffer for what one of them says, or has seen.
        must_retry_alone = isinstance(error, (Invalid, StaleRevision)) and len(batch) > 1
        return [self._insert_events(*pending_append) if must_retry_alone else error for pending_append in batch]

    def _insert_events(
        self, events: Sequence[EventRow], extra_rows: ExtraRows, seen_rows: Mapping[RecordKey, Seen]
    ) -> FalajError | None:
        try:
            event_count = self._run_statement(*build_append(events, extra_rows, seen_rows))
        except FalajError as error:
            return error
        if not event_count:
            return overtaken()
        self._on_durable()
        return None

    def _run_statement(self, statement: ColumnStatement, values: Sequence[bytes]) -> int:
        """How many events were added."""
        self._append_count += 1
        if self._append_count > DEDICATED_CONNECTION_AFTER and self._dedicated_connection.ready():
            with translate_errors(may_have_committed=True):
                return self._dedicated_connection.run(statement, values)
        with translate_errors(may_have_committed=True), self._pool.connection() as connection:
            return connection.execute(statement.asked, to_column_arrays(values)).rowcount


class DedicatedConnection:
    """A connection of one's own, opened when it is first needed and replaced when it broke."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._name_by_statement: dict[bytes, bytes] = {}
        """The statements that it knows."""

    def ready(self) -> bool:
        """Whether it stands; False where none can be had now, and the pool's are as good."""
        connection = self._connection
        if connection is not None and (connection.pgconn.status != ConnStatus.OK or not is_quiet(connection)):
            self.close()
        if self._connection is None:
            with contextlib.suppress(psycopg.Error):
                self._connection = self._connect()
        return self._connection is not None

    def run(self, statement: ColumnStatement, values: Sequence[bytes]) -> int:
        """How many rows it added; waits for that without the driver's turns through Python."""
        if self._connection is None:
            raise Unavailable("the connection that tells is not open", "call again")
        pgconn, statement_name = self._connection.pgconn, self._name_by_statement.get(statement.text)
        if statement_name is None:
            statement_name = b"tell%d" % len(self._name_by_statement)
            _require_command_ok(pgconn.prepare(statement_name, statement.text))
            self._name_by_statement[statement.text] = statement_name
        return (
            _require_command_ok(
                pgconn.exec_prepared(statement_name, values, [Format.BINARY] * len(values))
            ).command_tuples
            or 0
        )

    def close(self) -> None:
        """Close it."""
        connection, self._connection, self._name_by_statement = self._connection, None, {}
        if connection is not None:
            connection.close()


class _PendingAppend(NamedTuple):
    """What one caller tells."""

    events: Sequence[EventRow]
    riders: ExtraRows
    seen: Mapping[RecordKey, Seen]


def _require_command_ok(result: "PGresult") -> "PGresult":
    if result.status != ExecStatus.COMMAND_OK:
        raise error_from_result(result)
    return result
