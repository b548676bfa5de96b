"""The courier of an event loop on PostgreSQL: carries what groups tell there, and calls back when it is durable.

A thread that waits for the engine has to be woken for every group, and has to wake the event loop after it, which takes
as long as what the group does. So calls that ask only for what is remembered, and only tell or write over what they
asked for, run on the event loop itself. Whatever needs more than that is none of the courier's: its group ends with
StaleRevision, nothing of it happened, and all of it is run again where somebody may wait.

Groups that change rows are SERIALIZABLE like every other that does, and go one after the other: side by side they would
only meet.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format

from falaj.backends.postgres_arrays import ColumnStatement
from falaj.backends.postgres_group import GroupCoordinator, GroupMember, PostgresCommitGroup
from falaj.backends.postgres_memory import UNDONE, Seen, overtaken, read_many
from falaj.backends.postgres_transaction import (
    Connection,
    ExtraRows,
    PostgresTransaction,
    SnapshotlessReader,
    build_append,
    is_quiet,
    translate_error,
)
from falaj.backends.sql.rows import stale_revision_error
from falaj.core.errors import FalajError, StaleRevision
from falaj.core.ports import EventRow, RecordKey, StoredRow, StoreTransaction

WAYS = 2
"""So many groups that only tell may be under way: the calls of one are run while the engine writes the other."""
_STRICT = "SET default_transaction_isolation = serializable; SET enable_hashjoin = off; SET enable_mergejoin = off"
"""What those that change rows need: a look into the index for each."""
Done = Callable[[FalajError | None], None]


class Courier:
    """A few connections, each with one group at a time. `open` may be called from any thread, all else from that of the
    event loop only."""

    def __init__(
        self,
        groups: GroupCoordinator,
        connect: Callable[[], Connection],
        glance: SnapshotlessReader,
        told: Callable[[], None],
    ) -> None:
        """`groups`: those of the threads that wait; `told` is called when something is durable."""
        self._connect, self._glance, self._memory, self._told = connect, glance, glance.memory, told
        self._groups = GroupCoordinator(groups.url, self._begin, self._hold, glance.memory, groups.wait_s, groups.local)
        self._group = _Group(self._groups, self._refuse)
        self._held: _Said | None = None
        """What the group that was left last has to tell."""
        self._refused = False
        self._changing: Mapping[RecordKey, StoredRow] = {}
        """What is being written over."""
        self._missing = [True, *[False] * WAYS]
        """Connections to open: whether it is the one for changes."""
        self._opened: list[tuple[Connection, bool]] = []
        self._ways: list[_Way] = []

    def open(self) -> None:
        """Make the connections that are missing."""
        while self._missing:
            strict = self._missing.pop()
            try:
                connection = self._connect()
                if strict:
                    connection.execute(_STRICT)
            except BaseException:
                self._missing.append(strict)
                raise
            self._opened.append((connection, strict))

    def close(self) -> None:
        """Let go of them; whoever waits is told that nobody knows."""
        for way in tuple(self._ways):
            way.end(psycopg.OperationalError("the connection was closed"))
        for connection, _ in self._opened:
            connection.close()

    @property
    def stands(self) -> bool:
        """Whether it has its connections."""
        while self._opened:
            self._ways.append(_Way(*self._opened.pop(), self._lost))
        return len(self._ways) > WAYS

    @property
    def free(self) -> bool:
        """Whether a group can be sent now, whatever is in it."""
        return {way.strict for way in self._ways if way.free} == {True, False}

    def at_hand(self, keys: Sequence[RecordKey]) -> bool:
        """Whether these are remembered, and nobody is about to change them."""
        return self._changing.keys().isdisjoint(keys) and self._memory.recall(keys) is not None

    def fetch(self, keys: Sequence[RecordKey]) -> None:
        """Have these at hand."""
        self._memory.keep(read_many(self._glance.ask, keys))

    def group(self) -> PostgresCommitGroup:
        """A group that only remembers, tells, and writes over what it remembers. Leaving it makes nothing durable:
        `send` does."""
        self._held, self._refused, self._group = None, False, _Group(self._groups, self._refuse)
        return self._group

    def send(self, on_done: Done) -> None:
        """Make durable what the group that was left last has to tell, and call back: with the reason where it is not.
        StaleRevision means that nothing of it happened."""
        held, self._held = self._held, None
        strict = held is not None and bool(held.rows)
        way = next((way for way in tuple(self._ways) if way.strict == strict and way.free and way.stands()), None)
        if self._refused or (held is not None and way is None):
            on_done(StaleRevision("this cannot be carried", "call again"))
            return
        if held is None or way is None:  # nobody has said anything
            on_done(None)
            return
        try:
            plan, values = build_append(*held)
        except FalajError as error:
            on_done(error)
            return
        if held.rows:
            self._changing = held.rows
            self._memory.forget(held.rows)
        way.send(_Parcel(plan, values, lambda added, error: self._ended(held, on_done, added, error)))

    def _ended(self, held: "_Said", done: Done, added: "_Added", error: FalajError | None) -> None:
        if held.rows:
            self._changing = {}
        if error is None and not added.events:
            error = overtaken()
        if isinstance(error, StaleRevision):
            self._memory.forget(held.seen)
        if error is None:
            self._memory.keep({key: Seen(row, added.mark) for key, row in held.rows.items()})
            self._told()
        done(error)

    def _lost(self, way: "_Way") -> None:
        self._ways.remove(way)
        self._missing.append(way.strict)

    def _hold(self, events: Sequence[EventRow], riders: ExtraRows, seen: Mapping[RecordKey, Seen]) -> None:
        self._held = _Said(events, riders, seen, self._group.rows)

    def _begin(self, write: bool) -> PostgresTransaction:
        if write:
            self._refuse()
        return PostgresTransaction(
            self._groups.url,
            self._refuse,
            self._refuse,
            snapshotless_reader=SnapshotlessReader(self._refuse, self._memory),
        )

    def _refuse(self, *asked: Any) -> NoReturn:
        """The engine would have to be asked, and nobody here may wait for it."""
        del asked
        self._refused = True  # also where whoever asked can do without an answer
        raise StaleRevision("this call asks for more than is remembered", "call again")


class _Group(PostgresCommitGroup):
    """A group whose changes are written with what it tells."""

    def __init__(self, groups: GroupCoordinator, refuse: Callable[[], NoReturn]) -> None:
        super().__init__(groups)
        self.refuse = refuse
        self.rows: dict[RecordKey, StoredRow] = {}
        """What its members wrote over."""

    def begin(self, write: bool) -> StoreTransaction:
        return _Member(self, write, self._coordinator.url) if self.error is None else super().begin(write)


class _Member(GroupMember):
    """One transaction of it."""

    __slots__ = ("_all", "_rows")

    def __init__(self, group: _Group, write: bool, url: str) -> None:
        super().__init__(group, write, url)
        self._all = group
        self._rows: dict[RecordKey, StoredRow] = {}

    def get(self, key: RecordKey) -> StoredRow | None:
        return self._rows.get(key) or self._all.rows.get(key) or super().get(key)

    def put(self, row: StoredRow, rev: int) -> None:
        """Write over what is remembered, where no index of ours has to follow."""
        self._require_writable()
        old = self.get(row.key) if rev else None
        if old is None or old.terms != row.terms or old.cell != row.cell:
            self._all.refuse()
        if old.rev != rev:
            raise stale_revision_error(row.key, rev)
        self._rows[row.key] = row

    def commit(self) -> None:
        if self._rows and not self._events:
            self._all.refuse()  # changes go with what is told
        super().commit()
        self._all.rows |= self._rows


class _Said(NamedTuple):
    """What a group has to tell."""

    events: Sequence[EventRow]
    riders: ExtraRows
    seen: Mapping[RecordKey, Seen]
    rows: Mapping[RecordKey, StoredRow]


class _Added(NamedTuple):
    """How many events were added, and the engine's mark of what was changed with them."""

    events: int
    mark: str = ""


class _Parcel(NamedTuple):
    """What is under way, and who is to hear what it added, or why nothing."""

    plan: ColumnStatement
    values: Sequence[bytes]
    done: Callable[[_Added, FalajError | None], None]


class _Way:
    """One connection, which the event loop watches. It knows its statements by name."""

    def __init__(self, connection: Connection, strict: bool, lost: Callable[["_Way"], None]) -> None:
        self._connection, self.strict, self._lost = connection, strict, lost
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self._loop, self._file = asyncio.get_running_loop(), connection.fileno()
        self._names: dict[bytes, bytes] = {}
        self._preparing = b""
        self._parcel: _Parcel | None = None
        self._loop.add_reader(self._file, self._heard)

    @property
    def free(self) -> bool:
        return self._parcel is None

    def stands(self) -> bool:
        """Whether nothing came while it rested: then the engine has not left it."""
        if is_quiet(self._connection):
            return True
        self.end(psycopg.OperationalError("the connection was left"))
        return False

    def send(self, parcel: _Parcel) -> None:
        self._parcel = parcel
        self._go(parcel)

    def end(self, why: psycopg.Error) -> None:
        """Close it."""
        self._lost(self)
        self._loop.remove_reader(self._file)
        self._loop.remove_writer(self._file)
        with contextlib.suppress(psycopg.Error):
            self._connection.close()
        self._deliver(_Added(0), translate_error(why, may_have_committed=True))

    def _go(self, parcel: _Parcel) -> None:
        name = self._names.get(parcel.plan.text)
        try:
            if name is None:
                self._preparing = b"tell%d" % len(self._names)
                self._pgconn.send_prepare(self._preparing, parcel.plan.text)
            else:
                self._pgconn.send_query_prepared(name, parcel.values, [Format.BINARY] * len(parcel.values))
            if self._pgconn.flush():
                self._loop.add_writer(self._file, self._write_on)
        except psycopg.Error as error:
            self.end(error)

    def _write_on(self) -> None:
        try:
            if not self._pgconn.flush():
                self._loop.remove_writer(self._file)
        except psycopg.Error as error:
            self.end(error)

    def _heard(self) -> None:
        try:
            self._pgconn.consume_input()
            if self._pgconn.is_busy() and self._parcel is not None:
                return
            result = self._pgconn.get_result()
            while self._pgconn.get_result() is not None:
                pass
        except psycopg.Error as error:
            self.end(error)
            return
        if result is None or self._parcel is None:  # nobody asked: it says that it goes
            return
        if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
            self._preparing = b""
            self._deliver(_Added(0), self._why(error_from_result(result)))
        elif self._preparing:
            self._names[self._parcel.plan.text], self._preparing = self._preparing, b""
            self._go(self._parcel)
        else:
            xid = result.get_value(0, 0) if result.ntuples else None
            # Rows bear the lower half of the number.
            self._deliver(_Added(result.command_tuples or 0, str(int(xid) & 0xFFFFFFFF) if xid else ""), None)

    def _why(self, error: psycopg.Error) -> FalajError:
        if self.strict and error.sqlstate == UNDONE:  # what it was to change is not as it was seen
            return overtaken()
        return translate_error(error, may_have_committed=True)

    def _deliver(self, added: _Added, error: FalajError | None) -> None:
        parcel, self._parcel = self._parcel, None
        if parcel is not None:
            parcel.done(added, error)
