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

from falaj.backends.postgres_columns import Plan, as_given, columns, plan
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
from falaj.backends.postgres_poll import EPOCH
from falaj.backends.sql import statements as sql
from falaj.backends.sql.rows import RowWrites
from falaj.core.errors import FalajError, Invalid, Stale, Unavailable
from falaj.core.ports import TABLES, EventRow, Found, Key, Query, Row

_NOW = "pg_current_xact_id()::text::bigint"
_COLUMNS = TABLES["events"][3:]
_KINDS = {"at": "float8", "leaf": "bytea", "data": "bytea", "part": "bigint"}
# All of them in one statement, numbered in their order.
_APPEND = f"""INSERT INTO events (epoch, xid, {", ".join(_COLUMNS)})
    SELECT {EPOCH}, {_NOW}, {", ".join(_COLUMNS)}
    FROM unnest({", ".join(f"%b::{_KINDS.get(column, 'text')}[]" for column in _COLUMNS)})
        WITH ORDINALITY AS given ({", ".join(_COLUMNS)}, place) WHERE true ORDER BY place"""  # noqa: S608 # nosec B608
# A record and the index of its terms in one trip; as many rows as it has terms, or none where it exists already.
_MAKE = """WITH made AS (INSERT INTO records (tenant, kind, project, name, version, rev, cell, body, at, terms)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
        RETURNING tenant, kind, project, name, version)
    INSERT INTO terms (tenant, kind, field, value, project, name, version)
    SELECT tenant, kind, field, value, project, name, version
    FROM made, unnest(%s::text[], %s::text[]) AS given (field, value)"""
_KEPT = 1000
"""So many rows that were read are kept: guard, verb and writing ask for the same ones."""
NOTHING: Mapping[Key, Seen] = MappingProxyType({})
_RETRY = ("40001", "40P01", "55P03")
# It warns of errors that it raises as well.
logging.getLogger("psycopg").setLevel(logging.ERROR)
logging.getLogger("psycopg.pool").setLevel(logging.WARNING)

Connection = psycopg.Connection[Any]
Riders = dict[str, list[Sequence[Any]]]
"""Rows that go into a table beside the ledger's, by the statement that takes them as columns."""
Tell = Callable[[Sequence[EventRow], Riders, Mapping[Key, Seen]], None]
"""Makes events durable, if rows are still as they were seen."""


class Glance(NamedTuple):
    """How to ask one question outside any transaction, and what was answered a moment ago."""

    ask: Callable[[str, Sequence[Any]], list[Any]]
    memory: Memory


End = Callable[["psycopg.Connection[Any]", bool, bool], None]
"""Takes the connection of an ended transaction: whether it was committed, and whether the engine turned it away."""


class PostgresWrites(RowWrites):
    """How this engine writes records."""

    __slots__ = ()

    def put(self, row: Row, rev: int) -> None:
        """Write over revision `rev`, or Stale."""
        if rev or not row.terms:
            super().put(row, rev)
            return
        self._ready()
        fields, values = zip(*row.terms, strict=True)
        about = (row.rev, row.cell, row.body, row.at, sql.terms_text(row.terms), list(fields), list(values))
        if not self.count(_MAKE, (*sql.key_values(row.key), *about)):
            raise Stale(f"{row.key.kind} {row.key.project}/{row.key.name} exists already", "read it and retry")

    def many(self, text: str, rows: list[tuple[str, ...]]) -> None:
        """One statement for each of a few rows."""
        for row in rows:
            self.count(text, row)


class PostgresTxn(PostgresWrites):
    """One transaction on one connection of the pool."""

    def __init__(
        self,
        url: str,
        begin: "Callable[[], Connection]",
        end: End,
        *,
        tell: Tell | None = None,
        glance: Glance | None = None,
    ) -> None:
        """`begin` gives a connection that has begun, `end` takes it back; one that writes can `tell` without either,
        and one that is known to want something can `glance` at it."""
        self.url = url
        self._glance = glance
        self._glanced: dict[Key, Row | None] = {}
        self.overtaken: set[Key] = set()
        """What was glanced at and is another thing in the transaction that began after all."""
        self.unproven: dict[Key, Seen] = {}
        """What was only remembered: nobody has looked yet whether it is still so."""
        self._begin = begin
        self._end = end
        self._tell = tell
        self._held: Connection | None = None
        self._told: list[EventRow] = []
        self._riders: Riders = {}
        self._ended = False
        self.wanted: tuple[Key, ...] = ()
        """What will be asked for: the first question for one of them reads all, and where that is the first question
        at all it needs no transaction. One statement is one snapshot."""
        self._rows: dict[Key, Row | None] = {}
        self._cells: dict[tuple[str, str], frozenset[str]] = {}

    @property
    def _connection(self) -> "Connection":
        if self._held is None:
            if self._ended:
                raise Invalid("the transaction has ended", "begin another")
            self._held = self._begin()
            if self._glanced:
                fresh = self.prove(self.unproven, tuple(self._glanced))
                self.overtaken = {key for key, row in fresh.items() if row != self._glanced[key]}
                self.unproven = {}
        return self._held

    @property
    def begun(self) -> bool:
        """Whether the engine knows of it."""
        return self._held is not None

    @property
    def status(self) -> TransactionStatus:
        """How it stands with the engine."""
        return TransactionStatus.IDLE if self._held is None else self._held.info.transaction_status

    def get(self, key: Key) -> Row | None:
        """The row of a key. One snapshot, so what was read once need not be asked again."""
        if key in self.wanted and key not in self._rows:
            wanted, self.wanted = self.wanted, ()
            self._rows |= self._many(wanted)
        if key not in self._rows:
            rows = self.run(sql.GET, sql.key_values(key))
            if len(self._rows) >= _KEPT:
                self._rows.clear()
            self._rows[key] = sql.row_of(key, rows[0] if rows else None)
        return self._rows[key]

    def _many(self, keys: tuple[Key, ...]) -> dict[Key, Row | None]:
        """The rows of keys that are wanted, in one trip or, where they are remembered, in none."""
        glance = self._glance if self._held is None else None
        if glance is None:
            return _rows(read_many(self.run, keys))
        known = glance.memory.recall(keys)
        if known is not None:
            self.unproven, self._glanced = known, _rows(known)
        else:
            found = read_many(glance.ask, keys)
            glance.memory.keep(found)
            self._glanced = _rows(found)
        return self._glanced

    def prove(self, seen: Mapping[Key, Seen], more: tuple[Key, ...] = ()) -> dict[Key, Row | None]:
        """Read rows in this transaction, and Stale unless those that were seen are the same."""
        fresh = read_many(self.run, tuple(dict.fromkeys((*seen, *more))))
        if any(fresh[key] != one for key, one in seen.items()):
            raise overtaken()
        found = _rows(fresh)
        self._rows |= found
        return found

    def find(self, query: Query) -> Found:
        """A page of rows."""
        text, values = sql.find_query(query, ("r.cell = ANY(?)", sorted(query.cells or ())))
        return sql.found(query, self.run(text, values))

    def cells(self, tenant: str, kind: str) -> frozenset[str]:
        """The distinct cells of a kind, asked once until one is written."""
        found = self._cells.get((tenant, kind))
        if found is None:
            rows = self.run(sql.CELLS, (tenant, kind, tenant, kind))
            found = self._cells[tenant, kind] = frozenset(cell for (cell,) in rows)
        return found

    def put(self, row: Row, rev: int) -> None:
        """Write over revision `rev`, or Stale."""
        super().put(row, rev)
        self.known(row.key, row)

    def delete(self, key: Key, rev: int) -> None:
        """Remove the row at revision `rev`, or Stale."""
        super().delete(key, rev)
        self.known(key, None)

    def known(self, key: Key, row: Row | None) -> None:
        """This was written."""
        if self._glance is not None:
            self._glance.memory.forget((key,))
        self._rows[key] = row
        self._cells.pop((key.tenant, key.kind), None)

    def forget(self) -> None:
        """Some of what was written is undone: ask again."""
        self._rows.clear()
        self._cells.clear()

    def append(self, events: Sequence[EventRow]) -> None:
        """Add to the log, in this order."""
        self._ready()
        self._told += events

    def ride(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        """Have rows of another table of this database written with the events."""
        self._ready()
        self._riders.setdefault(text, []).extend(rows)

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
        held, self._ended, committed = self._held, True, False
        if held is None:
            if self._told and self._tell is not None:
                self._tell(self._told, self._riders, {})
            return
        try:
            if self._told:
                whole, values = addition(self._told, self._riders)
                with clear_errors():
                    held.execute(whole.asked, as_given(values))
            with clear_errors(unsure=self._tell is not None):
                if held.execute("COMMIT").statusmessage != "COMMIT":
                    raise Stale("the transaction was undone by an earlier error", "call again")
            committed = True
        finally:
            if not committed:
                _roll_back(held)
            self._end(held, committed, not committed)

    def rollback(self) -> None:
        """Nothing of it happened."""
        if self._ended:
            return
        held, self._ended, status = self._held, True, self.status
        if held is None:
            return
        _roll_back(held, "ROLLBACK" if self._tell is not None else "COMMIT")
        self._end(held, False, status == TransactionStatus.INERROR)

    def _old_terms(self, key: Key, rev: int) -> str:
        known = self.get(key)
        if known is None or known.rev != rev:
            raise Stale(f"{key.kind} {key.project}/{key.name} is not at revision {rev}", "read it again and retry")
        return sql.terms_text(known.terms)

    def _ready(self) -> None:
        if self._tell is None or self._ended:
            raise Invalid("this transaction cannot write", "begin one that writes")

    def count(self, text: str, values: Sequence[Any]) -> int:
        """How many rows a statement changed."""
        with clear_errors():
            return self._connection.execute(marks(text), values).rowcount


def addition(
    events: Sequence[EventRow],
    riders: Riders,
    seen: Mapping[Key, Seen] = NOTHING,
    rows: Mapping[Key, Row] = MappingProxyType({}),
) -> tuple[Plan, list[bytes]]:
    """The statement that adds events to the log, in this order, and what rides with them, and the values it takes.
    With rows that were seen it adds all of it, or nothing where one of them has changed. With `rows` it writes over
    some of those, and gives the transaction that did."""
    whole = _statement(tuple(riders), bool(seen), bool(rows))
    values = proof({key: one for key, one in seen.items() if key not in rows}) if seen else []
    if rows:
        values += change(rows, seen)
    for text, beside in riders.items():
        values += columns(plan(text).kinds, beside)
    values += columns(plan(_APPEND).kinds, [sql.event_values(event) for event in events])
    return whole, values


@lru_cache(maxsize=64)
def _statement(riders: tuple[str, ...], proven: bool, changing: bool) -> Plan:
    beside = [f"rider{n} AS ({text})" for n, text in enumerate(riders)]
    first = [STILL] * proven + [CHANGED] * changing
    text = f"WITH {', '.join(first + beside)} {_APPEND}" if beside or proven else _APPEND
    text = text.replace("WHERE true", f"WHERE {IF_CHANGED if changing else IF_STILL}") if proven else text
    return plan(f"{text} RETURNING xid" if changing else text)


def _rows(found: "Mapping[Key, Seen] | Mapping[Key, Seen | None]") -> dict[Key, Row | None]:
    return {key: seen and seen.row for key, seen in found.items()}


def _roll_back(connection: "Connection", words: str = "ROLLBACK") -> None:
    """Before it goes back to the others; the pool would do it, and warn users of what is no fault. Where nothing was
    written a COMMIT says the same, and the driver does not forget all that it has prepared, as it does after the other.
    """
    with contextlib.suppress(psycopg.Error):
        if connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
            connection.execute(words)


def marks(text: str) -> str:
    """A statement of both engines in the words of this driver."""
    return text.replace("?", "%s")


def check_alive(connection: "psycopg.Connection[Any]") -> None:
    """Whether a connection of the pool still stands, without a trip: on one that rests there is nothing to read, unless
    the server has ended it."""
    if not quiet(connection):
        ConnectionPool.check_connection(connection)


def quiet(connection: "psycopg.Connection[Any]") -> bool:
    """Whether there is nothing to read on a connection that rests."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


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
    if state == "57014" and not unsure:
        return Unavailable(
            "PostgreSQL did not finish a statement in time; nothing was written",
            "look for locks and slow statements in pg_stat_activity, then call again",
        )
    if unsure and (not state or state.startswith(("08", "57"))):
        return Unavailable(
            "PostgreSQL went away during the commit: it may have been recorded",
            "call again with the same request id: it finds the first outcome",
        )
    if isinstance(error, psycopg.OperationalError):
        return Unavailable("PostgreSQL does not answer; nothing was written", "check that it runs, then call again")
    return Unavailable(f"PostgreSQL refused a statement ({state})", "look at the server's log for the reason")
