"""Group commit on PostgreSQL: transactions of one thread that share one of the engine's, each behind a savepoint.

Most calls change no record: they read, and tell an event. So a group begins with a snapshot that nobody can meet, and
its events are written together at the end. The first member that changes a record makes it strong: one transaction of
the engine, SERIALIZABLE like every other, in which that member asks again what it had read, and everybody after it
reads. The engine may turn all of them away at once; that is StaleRevision for the whole group, nothing of it happened,
and whoever made the group runs it again. Strong groups of one process go one after the other: side by side they would
only meet.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg.pq import TransactionStatus

from falaj.backends.postgres_memory import Memory, Seen, overtaken
from falaj.backends.postgres_transaction import AppendEvents, ExtraRows, PostgresTransaction
from falaj.backends.sqlite_writer import copy_error
from falaj.core.errors import FalajError, Invalid, StaleRevision, Unavailable
from falaj.core.ports import EventRow, RecordKey, RecordQuery, RowPage, StoredRow

if TYPE_CHECKING:
    from falaj.core.ports import StoreTransaction

ResultT = TypeVar("ResultT")


class GroupCoordinator:
    """Who is in a group, and whose turn it is to write."""

    def __init__(
        self,
        url: str,
        begin_transaction: Callable[[bool], PostgresTransaction],
        append_events: AppendEvents,
        memory: Memory,
        wait_s: float,
        thread_state: "_ThreadGroup | None" = None,
    ) -> None:
        """`begin_transaction` opens a transaction of the engine, `append_events` makes events durable without one.
        `thread_state`: of others, where a thread is to be in one group at a time."""
        self.url = url
        self.begin = begin_transaction
        self.tell = append_events
        self.memory = memory
        self.wait_s = wait_s
        self.turn = threading.Lock()
        self.local = thread_state or _ThreadGroup()

    def take_turn(self) -> None:
        """Wait until no other group of this process writes."""
        if not self.turn.acquire(timeout=self.wait_s):
            raise Unavailable("the ledger is busy", "another group did not finish in time; call again")


class _ThreadGroup(threading.local):
    group: "PostgresCommitGroup | None" = None


class PostgresCommitGroup:
    """While entered, transactions of this thread join; leaving makes them durable together, or raises for all."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._snapshot: PostgresTransaction | None = None
        self._transaction: PostgresTransaction | None = None
        self._has_savepoint = False
        self.wanted: tuple[RecordKey, ...] = ()
        """What its members will look at; asked for together by the first who does."""
        self.events: list[EventRow] = []
        self.riders: ExtraRows = {}
        self.unproven: dict[RecordKey, Seen] = {}
        """What members were told from memory, and nobody has looked yet whether it is still so."""
        self.changes = 0
        """Members that changed records."""
        self.error: FalajError | None = None

    def __enter__(self) -> "PostgresCommitGroup":
        if self._coordinator.local.group is not None:
            raise Invalid("this thread is in a group already", "one group at a time")
        self._coordinator.local.group = self
        return self

    def __exit__(self, *exc: object) -> None:
        self._coordinator.local.group = None
        transaction, error = self._transaction, self.error
        try:
            if transaction is not None and error is None and self.changes:
                transaction.append(self.events)
                for statement, rows in self.riders.items():
                    transaction.ride(statement, rows)
                transaction.commit()
                self.events = []
        finally:
            self.discard()
        if error is not None:
            raise copy_error(error)
        try:
            if self.events:
                self._coordinator.tell(self.events, self.riders, self.unproven)
            elif self.unproven:
                self._verify_unproven()
        except StaleRevision:
            self._coordinator.memory.forget(self.unproven)
            raise

    def fail(self, error: FalajError) -> None:
        """Have leaving it raise this, and make nothing durable."""
        self.error = self.error or error

    def begin(self, write: bool) -> "StoreTransaction":
        """A member. Readers too: what the guard read need not be asked again."""
        if self.error is not None:
            if write:
                raise copy_error(self.error)
            return self._coordinator.begin(False)
        return GroupMember(self, write, self._coordinator.url)

    def look(self) -> PostgresTransaction:
        """A snapshot of what is committed now. One that has only read gives its own up for it: whoever holds one
        connection and waits for another may wait for ever."""
        if not self.strong:
            self.discard()
        return self._coordinator.begin(False)

    @property
    def strong(self) -> bool:
        """True once a member has changed a record, or is about to."""
        return self._transaction is not None

    @property
    def glancing(self) -> bool:
        """True while all that was read is one statement's, and no snapshot holds it still."""
        return self._snapshot is not None and not self._snapshot.begun

    def strengthen(self) -> None:
        """Leave the snapshot for a transaction that may write."""
        if self._transaction is None:
            self.discard()
            self._begin_locked_transaction()
            if self.unproven:
                with self.asking(has_savepoint=False) as transaction:
                    transaction.prove(self.unproven)
                self.unproven = {}

    def _verify_unproven(self) -> None:
        """Nothing is told, and yet somebody will be answered."""
        transaction = self._coordinator.begin(False)
        try:
            transaction.prove(self.unproven)
        finally:
            transaction.rollback()

    def _begin_locked_transaction(self) -> None:
        self._coordinator.take_turn()
        try:
            # The snapshot is taken after the turn: what the group before wrote is in it.
            self._transaction = self._coordinator.begin(True)
        except BaseException:
            self._coordinator.turn.release()
            raise

    def discard(self) -> None:
        """End the engine's transaction; a next member would begin another."""
        transaction, self._transaction, self._has_savepoint = self._transaction, None, False
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            self.unproven = {**snapshot.unproven, **self.unproven}  # of two, the later cannot vouch for the earlier
            snapshot.rollback()
        if transaction is not None:
            try:
                transaction.rollback()
            finally:
                self._coordinator.turn.release()

    @contextlib.contextmanager
    def asking(self, has_savepoint: bool) -> "Iterator[PostgresTransaction]":
        """The engine's transaction for one statement. An error that undid all of it is remembered for everyone."""
        transaction = self.current()
        try:
            yield transaction
        except FalajError as error:
            self.broke(transaction, error, has_savepoint)
            raise

    def current(self) -> PostgresTransaction:
        """The engine's transaction, begun where there is none."""
        if self.error is not None:
            raise copy_error(self.error)
        transaction = self._transaction or self._snapshot
        if transaction is None:
            transaction = self._snapshot = self._coordinator.begin(False)
            transaction.wanted = self.wanted
        return transaction

    def broke(self, transaction: PostgresTransaction, error: FalajError, has_savepoint: bool) -> None:
        """A statement of it ended so."""
        # With a cause it is the engine that asks for a retry; else one member looked at an old revision.
        was_rejected = isinstance(error, StaleRevision) and error.__cause__ is not None
        if was_rejected:
            self._coordinator.memory.forget((*self.unproven, *transaction.unproven))
        if was_rejected or transaction.status == TransactionStatus.UNKNOWN:
            self.error = error
        elif transaction.status == TransactionStatus.INERROR and not has_savepoint:
            self.error = StaleRevision("a call that was to be recorded together with this one broke", "call again")
        if self.error is not None:
            # All of it is lost. Its locks go now: whoever waits for them may hold the connections that we ask for.
            self.discard()

    def save(self) -> bool:
        """Before the first change of a member: a point to come back to, unless nobody else is in it yet."""
        if not self.changes:
            return False
        with self.asking(has_savepoint=False) as transaction:
            # One trip for both: the point of the member before is not needed any more.
            transaction.order("RELEASE SAVEPOINT one; SAVEPOINT one" if self._has_savepoint else "SAVEPOINT one")
        self._has_savepoint = True
        return True

    def undo(self, has_savepoint: bool) -> None:
        """A member that had changed something is undone."""
        if not self.changes:
            self.error = None
            self.discard()
        elif has_savepoint and self.error is None:
            with contextlib.suppress(FalajError), self.asking(has_savepoint=False) as transaction:
                transaction.order("ROLLBACK TO SAVEPOINT one")
                transaction.forget()


class GroupMember:
    """One transaction of a group."""

    __slots__ = (
        "_ended",
        "_events",
        "_extra_rows",
        "_group",
        "_has_changes",
        "_has_savepoint",
        "_is_write",
        "_repeatable_reads",
        "_snapshotless_keys",
        "url",
    )

    def __init__(self, group: PostgresCommitGroup, is_write: bool, url: str) -> None:
        self._group, self.url = group, url
        self._is_write = is_write
        self._ended = self._has_changes = self._has_savepoint = False
        self._events: list[EventRow] = []
        self._snapshotless_keys: set[RecordKey] = set()
        self._extra_rows: ExtraRows = {}
        self._repeatable_reads: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = []

    def get(self, key: RecordKey) -> StoredRow | None:
        """The row of a key."""
        row = self._read_and_note(PostgresTransaction.get, (key,))
        if self._group.glancing:
            self._snapshotless_keys.add(key)
        return row

    def find(self, query: RecordQuery) -> RowPage:
        """A page of rows."""
        return self._read_and_note(PostgresTransaction.find, (query,))

    def cells(self, tenant: str, kind: str) -> frozenset[str]:
        """The distinct cells of a kind."""
        return self._read_and_note(PostgresTransaction.cells, (tenant, kind))

    def put(self, row: StoredRow, rev: int) -> None:
        """Write over revision `rev`, or StaleRevision."""
        self._prepare_change()
        with self._group.asking(self._has_savepoint) as transaction:
            transaction.put(row, rev)

    def delete(self, key: RecordKey, rev: int) -> None:
        """Remove the row at revision `rev`, or StaleRevision."""
        self._prepare_change()
        with self._group.asking(self._has_savepoint) as transaction:
            transaction.delete(key, rev)

    def append(self, events: Sequence[EventRow]) -> None:
        """Add to the log; written with the whole group, in the order of commits."""
        self._require_writable()
        self._events.extend(events)

    def ride(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Have rows of another table of this database written with the events."""
        self._require_writable()
        self._extra_rows.setdefault(statement, []).extend(rows)

    def commit(self) -> None:
        """Durable when the group ends."""
        if self._ended:
            raise Invalid("the transaction has ended", "begin another")
        self._ended, group = True, self._group
        if not self._is_write:
            return
        if group.error is not None:
            raise copy_error(group.error)
        group.events += self._events
        for statement, rows in self._extra_rows.items():
            group.riders.setdefault(statement, []).extend(rows)
        group.changes += self._has_changes

    def rollback(self) -> None:
        """Nothing of it happened."""
        if self._ended:
            return
        self._ended = True
        if self._has_changes or self._group.error is not None:
            self._group.undo(self._has_savepoint)

    def _read_and_note(self, read: Callable[..., ResultT], arguments: tuple[Any, ...]) -> ResultT:
        result = self._read_in_group(read, arguments)
        if self._is_write and not self._group.strong:
            self._repeatable_reads.append((read, arguments, result))
        return result

    def _read_in_group(self, read: Callable[..., ResultT], arguments: tuple[Any, ...]) -> ResultT:
        # Every call passes here twice, so `asking` is written out.
        transaction = self._group.current()
        try:
            result = read(transaction, *arguments)
            if not self._snapshotless_keys.isdisjoint(transaction.overtaken):
                raise overtaken()
        except FalajError as error:
            self._group.broke(transaction, error, self._has_savepoint)
            raise
        return result

    def _prepare_change(self) -> None:
        self._require_writable()
        if not self._has_changes:
            self._group.strengthen()
            if any(
                self._read_in_group(read, arguments) != result for read, arguments, result in self._repeatable_reads
            ):
                raise overtaken()
            self._has_changes = True
            self._has_savepoint = self._group.save()

    def _require_writable(self) -> None:
        if not self._is_write or self._ended:
            raise Invalid("this transaction cannot write", "begin one that writes")
