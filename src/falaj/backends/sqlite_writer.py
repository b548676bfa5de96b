"""The one writer of a SQLite store: turns, batches that share an fsync, groups, and what the engine's errors mean."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator

from falaj.backends import sqlite_log
from falaj.backends.fair_lock import FairLock
from falaj.core.errors import CorruptData, FalajError, Invalid, Unavailable
from falaj.core.ports import EventRow

FLUSH_EVENT_COUNT = 1024
"""So many events waiting for their commit are written ahead of it, to hold memory."""
_MAX_BATCH_MEMBERS = 256
_MAX_BATCH_OPEN_S = 0.02


class SqliteWriter:
    """Whoever holds the turn writes on the one connection; a batch is the SQLite transaction that is open on it."""

    def __init__(self, connection: sqlite3.Connection, busy_s: float) -> None:
        self.connection = connection
        self.local = _ThreadState()
        self._busy_s = busy_s
        self._fair_lock = FairLock(self._take_over_batch)
        self.batch: WriteBatch | None = None

    def enter(self) -> "WriteBatch":
        """Wait for the turn and join the open batch, or open one."""
        if not self._fair_lock.take(self._busy_s):
            raise Unavailable("the ledger is busy", "another writer did not finish in time; call again")
        if self.batch is None:
            try:
                with translate_errors():
                    self.connection.execute("BEGIN IMMEDIATE")
            except BaseException:
                self._fair_lock.give()
                raise
            self.batch = WriteBatch()
        return self.batch

    def enter_group(self, group: "SqliteCommitGroup") -> "WriteBatch":
        """The same for a thread in a group, which keeps its turn until the group ends."""
        if not group.holding:
            group.before = self.enter().members
            group.holding = True
        batch = self.held()
        if batch.error is not None:
            raise copy_error(batch.error)
        return batch

    def held(self) -> "WriteBatch":
        """The open batch, for whoever holds the turn."""
        if self.batch is None:
            raise Invalid("this thread does not hold the writer", "begin a transaction first")
        return self.batch

    def leave(self, batch: "WriteBatch") -> None:
        """Leave the writer: to the next in line if there is one, else make durable what everyone in the batch did."""
        if batch.error is not None or not batch.members:
            self._end_batch(batch)
            return
        is_young = batch.members < _MAX_BATCH_MEMBERS and time.monotonic() - batch.since < _MAX_BATCH_OPEN_S
        if is_young and self._fair_lock.hand_on():
            return
        try:
            with translate_errors():
                if batch.events:
                    self.append(batch)
                self.connection.execute("COMMIT")
        except BaseException as error:
            batch.error = error
            if not isinstance(error, FalajError):
                raise
        finally:
            self._end_batch(batch)

    def _take_over_batch(self) -> None:
        """The turn came to a thread that was interrupted while it waited: nobody else would finish the open batch."""
        if self.batch is None:
            self._fair_lock.give()
        else:
            self.leave(self.batch)

    def _end_batch(self, batch: "WriteBatch") -> None:
        self.batch = None
        if self.connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")
        batch.done.set()
        self._fair_lock.give()

    def append(self, batch: "WriteBatch") -> None:
        """Write the batch's events, in the order of commits."""
        events, batch.events = batch.events, []
        sqlite_log.append_events(self.connection, events)


class WriteBatch:
    """Transactions that become durable with one fsync."""

    __slots__ = ("done", "error", "events", "members", "since")

    def __init__(self) -> None:
        self.members = 0
        self.events: list[EventRow] = []
        self.since = time.monotonic()
        self.done = threading.Event()
        self.error: BaseException | None = None

    def wait(self) -> None:
        """Until it is durable, or raise why it is not."""
        self.done.wait()
        if self.error is not None:
            raise copy_error(self.error)


class _ThreadState(threading.local):
    group: "SqliteCommitGroup | None" = None
    writing: bool = False

    @property
    def free(self) -> bool:
        """True when this thread may wait for the writer's turn: it does not hold it already."""
        return self.group is None and not self.writing


class SqliteCommitGroup:
    """While entered, commits on this thread wait; leaving makes them durable together."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._writer = writer
        self.holding = False
        self.before = 0

    def __enter__(self) -> "SqliteCommitGroup":
        if self._writer.local.group is not None:
            raise Invalid("this thread is in a group already", "one group at a time")
        self._writer.local.group = self
        return self

    def __exit__(self, *exc: object) -> None:
        writer = self._writer
        writer.local.group = None
        if not self.holding:
            return
        self.holding = False
        batch = writer.held()
        has_own_members = batch.members > self.before
        writer.leave(batch)
        if has_own_members or batch.error is not None:
            batch.wait()

    def fail(self, error: FalajError) -> None:
        """Have leaving it raise this, and make nothing durable."""
        if self.holding and self._writer.held().error is None:
            self._writer.held().error = error


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Errors of the engine leave here as ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate_error(error) from error


def copy_error(error: BaseException) -> FalajError:
    """A fresh instance for each thread that must hear of it: an exception object is not for several threads."""
    if isinstance(error, FalajError):
        return type(error)(error.message, error.hint)
    return Unavailable("the ledger was interrupted while it wrote", "call again")


def translate_error(error: sqlite3.Error) -> FalajError:
    """What an engine's error means for the caller."""
    error_code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if error_code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptData("the ledger's file is damaged", "stop, keep a copy of it, and restore the newest backup")
    if error_code == sqlite3.SQLITE_FULL:
        return Unavailable(
            "the disk of the ledger is full; nothing of this call was written", "free some space, then call again"
        )
    if error_code == sqlite3.SQLITE_IOERR:
        return Unavailable(
            "the disk of the ledger fails; nothing of this call was written", "check the disk and its free space"
        )
    if error_code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable("the ledger is busy", "another process writes to it; call again")
    if error_code == sqlite3.SQLITE_TOOBIG:
        return Invalid("the record is too large", "keep large bytes in a blob and its digest in the record")
    return Unavailable(f"the ledger's store does not answer ({error})", "check its file and folder, then call again")
