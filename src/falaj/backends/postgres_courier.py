"""The courier of an event loop on PostgreSQL: carries what groups tell there, and calls back when it is durable.

A thread that waits for the engine has to be woken for every group, and has to wake the event loop after it, which takes
as long as what the group does. So calls that ask only for what is remembered, and only tell, run on the event loop
itself. Whatever needs more than that is none of the courier's: its group ends with Stale, nothing of it happened, and
all of it is run again where somebody may wait.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus, Format

from falaj.backends.postgres_columns import Plan
from falaj.backends.postgres_group import Groups, PostgresGroup
from falaj.backends.postgres_memory import Memory, Seen, overtaken
from falaj.backends.postgres_txn import Connection, Glance, PostgresTxn, Riders, addition, failure, quiet
from falaj.core.errors import FalajError, Stale
from falaj.core.ports import EventRow, Key

WAYS = 2
"""So many groups may be under way: the calls of one are run while the engine writes the other."""
Done = Callable[[FalajError | None], None]


class Courier:
    """A few connections, each with one group at a time. `open` may be called from any thread, all else from that of the
    event loop only."""

    def __init__(
        self, groups: Groups, connect: Callable[[], Connection], memory: Memory, told: Callable[[], None]
    ) -> None:
        """`groups`: those of the threads that wait; `told` is called when something is durable."""
        self._connect, self._memory, self._told = connect, memory, told
        self._groups = Groups(groups.url, self._begin, self._hold, memory, groups.wait_s, groups.local)
        self._held: _Said | None = None
        """What the group that was left last has to tell."""
        self._refused = False
        self._opened: list[Connection] = []
        self._ways: list[_Way] = []

    def open(self) -> None:
        """Make the connections that are missing."""
        while len(self._ways) + len(self._opened) < WAYS:
            self._opened.append(self._connect())

    def close(self) -> None:
        """Let go of them; whoever waits is told that nobody knows."""
        for way in tuple(self._ways):
            way.end(psycopg.OperationalError("the connection was closed"))
        for connection in self._opened:
            connection.close()

    @property
    def stands(self) -> bool:
        """Whether it has its connections."""
        while self._opened:
            self._ways.append(_Way(self._opened.pop(), self._lost))
        return len(self._ways) >= WAYS

    @property
    def free(self) -> bool:
        """Whether a group can be sent now."""
        return any(way.free for way in self._ways)

    def at_hand(self, keys: Sequence[Key]) -> bool:
        """Whether these are remembered."""
        return bool(keys) and self._memory.recall(keys) is not None

    def group(self) -> PostgresGroup:
        """A group that only remembers and tells. Leaving it makes nothing durable: `send` does."""
        self._held, self._refused = None, False
        return PostgresGroup(self._groups)

    def send(self, done: Done) -> None:
        """Make durable what the group that was left last has to tell, and call back: with the reason where it is not.
        Stale means that nothing of it happened."""
        held, self._held = self._held, None
        way = next((way for way in tuple(self._ways) if way.free and way.stands()), None)
        if self._refused or (held is not None and way is None):
            done(Stale("this cannot be carried", "call again"))
            return
        if held is None or way is None:  # nobody has said anything
            done(None)
            return
        try:
            plan, values = addition(*held)
        except FalajError as error:
            done(error)
            return
        way.send(_Parcel(plan, values, lambda added, error: self._ended(held.seen, done, added, error)))

    def _ended(self, seen: Mapping[Key, Seen], done: Done, added: int, error: FalajError | None) -> None:
        if error is None and not added:
            self._memory.forget(seen)
            error = overtaken()
        if error is None:
            self._told()
        done(error)

    def _lost(self, way: "_Way") -> None:
        self._ways.remove(way)

    def _hold(self, events: Sequence[EventRow], riders: Riders, seen: Mapping[Key, Seen]) -> None:
        self._held = _Said(events, riders, seen)

    def _begin(self, write: bool) -> PostgresTxn:
        if write:
            self._refuse()
        return PostgresTxn(self._groups.url, self._refuse, self._refuse, glance=Glance(self._refuse, self._memory))

    def _refuse(self, *asked: Any) -> NoReturn:
        """The engine would have to be asked, and nobody here may wait for it."""
        del asked
        self._refused = True  # also where whoever asked can do without an answer
        raise Stale("this call asks for more than is remembered", "call again")


class _Said(NamedTuple):
    """What a group has to tell."""

    events: Sequence[EventRow]
    riders: Riders
    seen: Mapping[Key, Seen]


class _Parcel(NamedTuple):
    """What is under way, and who is to hear how many rows it added, or why none."""

    plan: Plan
    values: Sequence[bytes]
    done: Callable[[int, FalajError | None], None]


class _Way:
    """One connection, which the event loop watches. It knows its statements by name."""

    def __init__(self, connection: Connection, lost: Callable[["_Way"], None]) -> None:
        self._connection, self._lost = connection, lost
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
        if quiet(self._connection):
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
        self._deliver(0, failure(why, unsure=True))

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
        if result.status != ExecStatus.COMMAND_OK:
            self._preparing = b""
            self._deliver(0, failure(error_from_result(result), unsure=True))
        elif self._preparing:
            self._names[self._parcel.plan.text], self._preparing = self._preparing, b""
            self._go(self._parcel)
        else:
            self._deliver(result.command_tuples or 0, None)

    def _deliver(self, added: int, error: FalajError | None) -> None:
        parcel, self._parcel = self._parcel, None
        if parcel is not None:
            parcel.done(added, error)
