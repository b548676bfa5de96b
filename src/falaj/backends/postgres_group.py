"""Group commit on PostgreSQL: transactions of one thread that share one of the engine's, each behind a savepoint.

Most calls change no record: they read, and tell an event. So a group begins with a snapshot that nobody can meet, and
its events are written together at the end. The first member that changes a record makes it strong: one transaction of
the engine, SERIALIZABLE like every other, in which that member asks again what it had read, and everybody after it
reads. The engine may turn all of them away at once; that is Stale for the whole group, nothing of it happened, and
whoever made the group runs it again. Strong groups of one process go one after the other: side by side they would only
meet.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from psycopg.pq import TransactionStatus

from falaj.backends.lane import again
from falaj.backends.postgres_memory import Memory, Seen, overtaken
from falaj.backends.postgres_txn import PostgresTxn, Riders, Tell
from falaj.core.errors import FalajError, Invalid, Stale, Unavailable
from falaj.core.ports import EventRow, Found, Key, Query, Row

if TYPE_CHECKING:
    from falaj.core.ports import Txn

T = TypeVar("T")


class Groups:
    """Who is in a group, and whose turn it is to write."""

    def __init__(
        self,
        url: str,
        begin: Callable[[bool], PostgresTxn],
        tell: Tell,
        memory: Memory,
        wait_s: float,
        local: "_Local | None" = None,
    ) -> None:
        """`begin` opens a transaction of the engine, `tell` makes events durable without one. `local`: of others, where
        a thread is to be in one group at a time."""
        self.url = url
        self.begin = begin
        self.tell = tell
        self.memory = memory
        self.wait_s = wait_s
        self.turn = threading.Lock()
        self.local = local or _Local()

    def take_turn(self) -> None:
        """Wait until no other group of this process writes."""
        if not self.turn.acquire(timeout=self.wait_s):
            raise Unavailable("the ledger is busy", "another group did not finish in time; call again")


class _Local(threading.local):
    group: "PostgresGroup | None" = None


class PostgresGroup:
    """While entered, transactions of this thread join; leaving makes them durable together, or raises for all."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._snapshot: PostgresTxn | None = None
        self._whole: PostgresTxn | None = None
        self._saved = False
        self.wanted: tuple[Key, ...] = ()
        """What its members will look at; asked for together by the first who does."""
        self.events: list[EventRow] = []
        self.riders: Riders = {}
        self.unproven: dict[Key, Seen] = {}
        """What members were told from memory, and nobody has looked yet whether it is still so."""
        self.changes = 0
        """Members that changed records."""
        self.error: FalajError | None = None

    def __enter__(self) -> "PostgresGroup":
        if self._groups.local.group is not None:
            raise Invalid("this thread is in a group already", "one group at a time")
        self._groups.local.group = self
        return self

    def __exit__(self, *exc: object) -> None:
        self._groups.local.group = None
        whole, error = self._whole, self.error
        try:
            if whole is not None and error is None and self.changes:
                whole.append(self.events)
                for text, rows in self.riders.items():
                    whole.ride(text, rows)
                whole.commit()
                self.events = []
        finally:
            self.discard()
        if error is not None:
            raise again(error)
        try:
            if self.events:
                self._groups.tell(self.events, self.riders, self.unproven)
            elif self.unproven:
                self._look_again()
        except Stale:
            self._groups.memory.forget(self.unproven)
            raise

    def fail(self, error: FalajError) -> None:
        """Have leaving it raise this, and make nothing durable."""
        self.error = self.error or error

    def begin(self, write: bool) -> "Txn":
        """A member. Readers too: what the guard read need not be asked again."""
        if self.error is not None:
            if write:
                raise again(self.error)
            return self._groups.begin(False)
        return Member(self, write, self._groups.url)

    def look(self) -> PostgresTxn:
        """A snapshot of what is committed now. One that has only read gives its own up for it: whoever holds one
        connection and waits for another may wait for ever."""
        if not self.strong:
            self.discard()
        return self._groups.begin(False)

    @property
    def strong(self) -> bool:
        """True once a member has changed a record, or is about to."""
        return self._whole is not None

    @property
    def glancing(self) -> bool:
        """True while all that was read is one statement's, and no snapshot holds it still."""
        return self._snapshot is not None and not self._snapshot.begun

    def strengthen(self) -> None:
        """Leave the snapshot for a transaction that may write."""
        if self._whole is None:
            self.discard()
            self._open()
            if self.unproven:
                with self.asking(saved=False) as whole:
                    whole.prove(self.unproven)
                self.unproven = {}

    def _look_again(self) -> None:
        """Nothing is told, and yet somebody will be answered."""
        txn = self._groups.begin(False)
        try:
            txn.prove(self.unproven)
        finally:
            txn.rollback()

    def _open(self) -> None:
        self._groups.take_turn()
        try:
            # The snapshot is taken after the turn: what the group before wrote is in it.
            self._whole = self._groups.begin(True)
        except BaseException:
            self._groups.turn.release()
            raise

    def discard(self) -> None:
        """End the engine's transaction; a next member would begin another."""
        whole, self._whole, self._saved = self._whole, None, False
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            self.unproven = {**snapshot.unproven, **self.unproven}  # of two, the later cannot vouch for the earlier
            snapshot.rollback()
        if whole is not None:
            try:
                whole.rollback()
            finally:
                self._groups.turn.release()

    @contextlib.contextmanager
    def asking(self, saved: bool) -> "Iterator[PostgresTxn]":
        """The engine's transaction for one statement. An error that undid all of it is remembered for everyone."""
        whole = self.current()
        try:
            yield whole
        except FalajError as error:
            self.broke(whole, error, saved)
            raise

    def current(self) -> PostgresTxn:
        """The engine's transaction, begun where there is none."""
        if self.error is not None:
            raise again(self.error)
        whole = self._whole or self._snapshot
        if whole is None:
            whole = self._snapshot = self._groups.begin(False)
            whole.wanted = self.wanted
        return whole

    def broke(self, whole: PostgresTxn, error: FalajError, saved: bool) -> None:
        """A statement of it ended so."""
        # With a cause it is the engine that asks for a retry; else one member looked at an old revision.
        turned_away = isinstance(error, Stale) and error.__cause__ is not None
        if turned_away:
            self._groups.memory.forget((*self.unproven, *whole.unproven))
        if turned_away or whole.status == TransactionStatus.UNKNOWN:
            self.error = error
        elif whole.status == TransactionStatus.INERROR and not saved:
            self.error = Stale("a call that was to be recorded together with this one broke", "call again")
        if self.error is not None:
            # All of it is lost. Its locks go now: whoever waits for them may hold the connections that we ask for.
            self.discard()

    def save(self) -> bool:
        """Before the first change of a member: a point to come back to, unless nobody else is in it yet."""
        if not self.changes:
            return False
        with self.asking(saved=False) as whole:
            # One trip for both: the point of the member before is not needed any more.
            whole.order("RELEASE SAVEPOINT one; SAVEPOINT one" if self._saved else "SAVEPOINT one")
        self._saved = True
        return True

    def undo(self, saved: bool) -> None:
        """A member that had changed something is undone."""
        if not self.changes:
            self.error = None
            self.discard()
        elif saved and self.error is None:
            with contextlib.suppress(FalajError), self.asking(saved=False) as whole:
                whole.order("ROLLBACK TO SAVEPOINT one")
                whole.forget()


class Member:
    """One transaction of a group."""

    __slots__ = ("_ended", "_events", "_glanced", "_group", "_marked", "_riders", "_saved", "_seen", "_write", "url")

    def __init__(self, group: PostgresGroup, write: bool, url: str) -> None:
        self._group, self.url = group, url
        self._write = write
        self._ended = self._marked = self._saved = False
        self._events: list[EventRow] = []
        self._glanced: set[Key] = set()
        self._riders: Riders = {}
        self._seen: list[tuple[Callable[..., Any], tuple[Any, ...], Any]] = []

    def get(self, key: Key) -> Row | None:
        """The row of a key."""
        found = self._noted(PostgresTxn.get, (key,))
        if self._group.glancing:
            self._glanced.add(key)
        return found

    def find(self, query: Query) -> Found:
        """A page of rows."""
        return self._noted(PostgresTxn.find, (query,))

    def cells(self, tenant: str, kind: str) -> frozenset[str]:
        """The distinct cells of a kind."""
        return self._noted(PostgresTxn.cells, (tenant, kind))

    def put(self, row: Row, rev: int) -> None:
        """Write over revision `rev`, or Stale."""
        self._ready()
        with self._group.asking(self._saved) as whole:
            whole.put(row, rev)

    def delete(self, key: Key, rev: int) -> None:
        """Remove the row at revision `rev`, or Stale."""
        self._ready()
        with self._group.asking(self._saved) as whole:
            whole.delete(key, rev)

    def append(self, events: Sequence[EventRow]) -> None:
        """Add to the log; written with the whole group, in the order of commits."""
        self._ready_to_write()
        self._events.extend(events)

    def ride(self, text: str, rows: Sequence[Sequence[Any]]) -> None:
        """Have rows of another table of this database written with the events."""
        self._ready_to_write()
        self._riders.setdefault(text, []).extend(rows)

    def commit(self) -> None:
        """Durable when the group ends."""
        if self._ended:
            raise Invalid("the transaction has ended", "begin another")
        self._ended, group = True, self._group
        if not self._write:
            return
        if group.error is not None:
            raise again(group.error)
        group.events += self._events
        for text, rows in self._riders.items():
            group.riders.setdefault(text, []).extend(rows)
        group.changes += self._marked

    def rollback(self) -> None:
        """Nothing of it happened."""
        if self._ended:
            return
        self._ended = True
        if self._marked or self._group.error is not None:
            self._group.undo(self._saved)

    def _noted(self, ask: Callable[..., T], given: tuple[Any, ...]) -> T:
        found = self._ask(ask, given)
        if self._write and not self._group.strong:
            self._seen.append((ask, given, found))
        return found

    def _ask(self, ask: Callable[..., T], given: tuple[Any, ...]) -> T:
        # Every call passes here twice, so `asking` is written out.
        whole = self._group.current()
        try:
            found = ask(whole, *given)
            if not self._glanced.isdisjoint(whole.overtaken):
                raise overtaken()
        except FalajError as error:
            self._group.broke(whole, error, self._saved)
            raise
        return found

    def _ready(self) -> None:
        self._ready_to_write()
        if not self._marked:
            self._group.strengthen()
            if any(self._ask(ask, given) != found for ask, given, found in self._seen):
                raise overtaken()
            self._marked = True
            self._saved = self._group.save()

    def _ready_to_write(self) -> None:
        if not self._write or self._ended:
            raise Invalid("this transaction cannot write", "begin one that writes")
