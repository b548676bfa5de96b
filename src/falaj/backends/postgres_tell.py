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

from falaj.backends.postgres_columns import Plan, as_given
from falaj.backends.postgres_memory import Seen, overtaken
from falaj.backends.postgres_txn import NOTHING, Connection, Riders, addition, clear_errors, quiet
from falaj.core.crowd import OneForAll
from falaj.core.errors import FalajError, Invalid, Stale, Unavailable
from falaj.core.ports import EventRow, Key

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

OFTEN = 16
"""Who tells so often gets a connection for it; a command that tells a few times does not wait for one."""


class Teller:
    """Tells for all threads of a process."""

    def __init__(self, pool: ConnectionPool, connect: Callable[[], Connection], told: Callable[[], None]) -> None:
        """`told` is called when something is durable."""
        self._pool, self._heard = pool, told
        self._telling = OneForAll(self._write)
        self._times = 0
        self._own = Own(connect)

    def tell(self, events: Sequence[EventRow], riders: Riders, seen: Mapping[Key, Seen] = NOTHING) -> None:
        """Durable on return; Stale, and nothing is told, where a row is not as it was seen."""
        self._telling.do(_Told(events, riders, seen))

    def close(self) -> None:
        """Let go of the connection; whoever tells after this opens another."""
        with self._telling.turn:
            self._own.close()

    def _write(self, some: "Sequence[_Told]") -> Sequence[FalajError | None]:
        riders: Riders = {}
        seen: dict[Key, Seen] = {}
        for one in some:
            seen |= one.seen
            for text, rows in one.riders.items():
                riders.setdefault(text, []).extend(rows)
        error = self._insert([event for one in some for event in one.events], riders, seen)
        # The others must not suffer for what one of them says, or has seen.
        alone = isinstance(error, (Invalid, Stale)) and len(some) > 1
        return [self._insert(*one) if alone else error for one in some]

    def _insert(self, events: Sequence[EventRow], riders: Riders, seen: Mapping[Key, Seen]) -> FalajError | None:
        try:
            told = self._run(*addition(events, riders, seen))
        except FalajError as error:
            return error
        if not told:
            return overtaken()
        self._heard()
        return None

    def _run(self, plan: Plan, values: Sequence[bytes]) -> int:
        """How many events were added."""
        self._times += 1
        if self._times > OFTEN and self._own.ready():
            with clear_errors(unsure=True):
                return self._own.run(plan, values)
        with clear_errors(unsure=True), self._pool.connection() as connection:
            return connection.execute(plan.asked, as_given(values)).rowcount


class Own:
    """A connection of one's own, opened when it is first needed and replaced when it broke."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._held: Connection | None = None
        self._names: dict[bytes, bytes] = {}
        """The statements that it knows."""

    def ready(self) -> bool:
        """Whether it stands; False where none can be had now, and the pool's are as good."""
        held = self._held
        if held is not None and (held.pgconn.status != ConnStatus.OK or not quiet(held)):
            self.close()
        if self._held is None:
            with contextlib.suppress(psycopg.Error):
                self._held = self._connect()
        return self._held is not None

    def run(self, plan: Plan, values: Sequence[bytes]) -> int:
        """How many rows it added; waits for that without the driver's turns through Python."""
        if self._held is None:
            raise Unavailable("the connection that tells is not open", "call again")
        pgconn, name = self._held.pgconn, self._names.get(plan.text)
        if name is None:
            name = b"tell%d" % len(self._names)
            _demand_done(pgconn.prepare(name, plan.text))
            self._names[plan.text] = name
        return _demand_done(pgconn.exec_prepared(name, values, [Format.BINARY] * len(values))).command_tuples or 0

    def close(self) -> None:
        """Close it."""
        held, self._held, self._names = self._held, None, {}
        if held is not None:
            held.close()


class _Told(NamedTuple):
    """What one caller tells."""

    events: Sequence[EventRow]
    riders: Riders
    seen: Mapping[Key, Seen]


def _demand_done(result: "PGresult") -> "PGresult":
    if result.status != ExecStatus.COMMAND_OK:
        raise error_from_result(result)
    return result
