"""Group commit on PostgreSQL: transactions of one thread that share one of the engine's, each behind a savepoint.

The engine sees one transaction, SERIALIZABLE like every other: one snapshot, one commit, and none of its members can
meet another of them. A member's events wait in memory and are written together before the commit. The engine may turn
all of them away at once; that is Stale for the whole group, nothing of it happened, and whoever made the group runs it
again. Groups of one process go one after the other: side by side they would only meet.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from psycopg.pq import TransactionStatus

from falaj.backends.lane import again
from falaj.backends.postgres_txn import PostgresTxn
from falaj.backends.sql import statements as sql
from falaj.backends.sql.rows import RowWrites
from falaj.core.errors import FalajError, Invalid, Stale, Unavailable
from falaj.core.ports import EventRow, Found, Key, Query, Row

if TYPE_CHECKING:
    from falaj.core.ports import Txn

_KEPT = 1000
"""So many rows that were read are kept, since guard and verb ask for the same ones."""


class Groups:
    """Who is in a group, and whose turn it is to write."""

    def __init__(self, begin: Callable[[bool], PostgresTxn], wait_s: float) -> None:
        """`begin` opens a transaction of the engine."""
        self.begin = begin
        self.wait_s = wait_s
        self.turn = threading.Lock()
        self.local = _Local()

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
        self._whole: PostgresTxn | None = None
        self._saved = False
        self._rows: dict[Key, Row | None] = {}
        self._cells: dict[tuple[str, str], frozenset[str]] = {}
        self.events: list[EventRow] = []
        self.members = 0
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
            if whole is not None and error is None and self.members:
                whole.append(self.events)
                whole.commit()
        finally:
            self.discard()
        if error is not None:
            raise again(error)

    def begin(self, write: bool) -> "Txn":
        """A member. Readers too: what the guard read is then what the verb reads, and is asked for once."""
        if self.error is not None:
            if write:
                raise again(self.error)
            return self._groups.begin(False)
        if self._whole is None:
            self._open()
        return Member(self, write)

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
        self._forget()
        if whole is not None:
            try:
                whole.rollback()
            finally:
                self._groups.turn.release()

    @contextlib.contextmanager
    def asking(self, saved: bool) -> "Iterator[PostgresTxn]":
        """The engine's transaction for one statement. An error that undid all of it is remembered for everyone."""
        if self.error is not None or self._whole is None:
            raise again(self.error or Stale("the group was undone", "call again"))
        whole = self._whole
        try:
            yield whole
        except FalajError as error:
            if isinstance(error, Stale) or whole.status == TransactionStatus.UNKNOWN:
                self.error = error
            elif whole.status == TransactionStatus.INERROR and not saved:
                self.error = Stale("a call that was to be recorded together with this one broke", "call again")
            if self.error is not None:
                # All of it is lost. Its locks go now: whoever waits for them may hold the connections that we ask for.
                self.discard()
            raise

    def row(self, key: Key) -> Row | None:
        """The row of a key. One snapshot, so what was read once need not be asked again."""
        if key not in self._rows:
            with self.asking(saved=False) as whole:
                found = whole.get(key)
            if len(self._rows) >= _KEPT:
                self._rows.clear()
            self._rows[key] = found
        return self._rows[key]

    def cells(self, tenant: str, kind: str) -> frozenset[str]:
        """The distinct cells of a kind, asked once until somebody here writes one."""
        found = self._cells.get((tenant, kind))
        if found is None:
            with self.asking(saved=False) as whole:
                found = self._cells[tenant, kind] = whole.cells(tenant, kind)
        return found

    def known(self, key: Key, row: Row | None) -> None:
        """A member wrote this."""
        self._rows[key] = row
        self._cells.pop((key.tenant, key.kind), None)

    def _forget(self) -> None:
        self._rows.clear()
        self._cells.clear()

    def save(self) -> bool:
        """Before the first change of a member: a point to come back to, unless nobody else is in it yet."""
        if not self.members:
            return False
        with self.asking(saved=False) as whole:
            # One trip for both: the point of the member before is not needed any more.
            whole.order("RELEASE SAVEPOINT one; SAVEPOINT one" if self._saved else "SAVEPOINT one")
        self._saved = True
        return True

    def undo(self, saved: bool) -> None:
        """A member that had changed something is undone."""
        self._forget()
        if not self.members:
            self.error = None
            self.discard()
        elif saved and self.error is None:
            with contextlib.suppress(FalajError), self.asking(saved=False) as whole:
                whole.order("ROLLBACK TO SAVEPOINT one")


class Member(RowWrites):
    """One transaction of a group."""

    __slots__ = ("_ended", "_events", "_group", "_marked", "_saved", "_write")

    def __init__(self, group: PostgresGroup, write: bool) -> None:
        self._group = group
        self._write = write
        self._ended = self._marked = self._saved = False
        self._events: list[EventRow] = []

    def get(self, key: Key) -> Row | None:
        """The row of a key."""
        return self._group.row(key)

    def find(self, query: Query) -> Found:
        """A page of rows."""
        with self._group.asking(self._saved) as whole:
            return whole.find(query)

    def cells(self, tenant: str, kind: str) -> frozenset[str]:
        """The distinct cells of a kind."""
        return self._group.cells(tenant, kind)

    def put(self, row: Row, rev: int) -> None:
        """Write over revision `rev`, or Stale."""
        super().put(row, rev)
        self._group.known(row.key, row)

    def delete(self, key: Key, rev: int) -> None:
        """Remove the row at revision `rev`, or Stale."""
        super().delete(key, rev)
        self._group.known(key, None)

    def append(self, events: Sequence[EventRow]) -> None:
        """Add to the log; written with the whole group, in the order of commits."""
        self._ready_to_write()
        self._events.extend(events)

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
        group.members += 1

    def rollback(self) -> None:
        """Nothing of it happened."""
        if self._ended:
            return
        self._ended = True
        if self._marked or self._group.error is not None:
            self._group.undo(self._saved)

    def run(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement."""
        with self._group.asking(self._saved) as whole:
            return whole.run(text, values)

    def _old_terms(self, key: Key, rev: int) -> str:
        known = self._group.row(key)
        if known is None or known.rev != rev:
            raise Stale(f"{key.kind} {key.project}/{key.name} is not at revision {rev}", "read it again and retry")
        return sql.terms_text(known.terms)

    def _ready(self) -> None:
        self._ready_to_write()
        if not self._marked:
            self._marked = True
            self._saved = self._group.save()

    def _ready_to_write(self) -> None:
        if not self._write or self._ended:
            raise Invalid("this transaction cannot write", "begin one that writes")

    def count(self, text: str, values: Sequence[Any]) -> int:
        """How many rows a statement changed."""
        with self._group.asking(self._saved) as whole:
            return whole.count(text, values)

    def many(self, text: str, rows: list[tuple[str, ...]]) -> None:
        """One statement for many rows."""
        with self._group.asking(self._saved) as whole:
            whole.many(text, rows)
