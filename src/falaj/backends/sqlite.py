"""The ledger's store on one SQLite file: any number of readers on snapshots, one writer at a time, group commit.

A commit is durable against loss of power: write-ahead log, synchronous FULL. Transactions that finish while others wait
for the writer stay in one open SQLite transaction, each behind a savepoint of its own, and the last of them commits for
all: one fsync. Nobody is told "done" before that fsync returned.
"""

import contextlib
import json
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from falaj.backends import sqlite_log
from falaj.backends.lane import FLUSH_AT, Batch, Lane, SqliteGroup, again, clear_errors, failure
from falaj.backends.sql import schema
from falaj.backends.sql import statements as sql
from falaj.backends.sql.rows import RowWrites, stale
from falaj.backends.sqlite_file import LEASES, RECORDS, SqliteFile, found_in, upgrade
from falaj.core.errors import Conflict, FalajError, Invalid, Unavailable
from falaj.core.ports import EventRow, Found, Key, Query, Row, Standing

_ROWS = "SELECT (SELECT coalesce(max(rowid), 0) FROM records) + (SELECT coalesce(max(n), 0) FROM events)"
_LOAD = {table: sql.load(table) for table in ("records", "leases")}
_INDEXES = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
_BATCH = 1000
_CACHE = "PRAGMA cache_size = -2000"
T = TypeVar("T")
_CELLS = "r.cell IN (SELECT value FROM json_each(?))"


class SqliteStore:
    """`sqlite:/path/to/file`. Options: `busy_s`, how long a writer waits for its turn (default 30); `settle`, whether
    opening it brings the schema up to date (default yes).
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._path = _path(url)
        self._busy_s = float((options or {}).get("busy_s", 30.0))
        self.readers: deque[sqlite3.Connection] = deque()
        self.closed = False
        _prepare_file(self._path)
        with clear_errors():
            writer = self._connect()
            if (options or {}).get("settle", True):
                upgrade(writer)
        self._lane = Lane(writer, self._busy_s)

    def begin(self, write: bool) -> "SqliteTxn":
        """A write transaction waits for its turn; a read transaction never waits."""
        if self.closed:
            raise Unavailable("the store is closed", "open it again")
        group = self._lane.local.group
        if not write:
            if group is not None and group.holding:
                return SqliteTxn(self, self._lane.connection, shared=True)
            return self.look()
        return self._begin_write()

    def events(
        self, after: str = "", *, tenant: str = "", zone: str = "", limit: int = 1000, **where: str
    ) -> list[EventRow]:
        """The committed log after a cursor. One writer means that commits become visible in order."""
        asked = {"tenant": tenant, "zone": zone, **where}
        with self._reader() as connection:
            late = sqlite_log.behind(connection, asked)
            if not late or not self._lane.local.free:
                return sqlite_log.read(connection, after, limit, asked)
        while late and self._lane.local.free:
            late = self._write(SqliteWrite.mark)
        with self._reader() as connection:
            return sqlite_log.read(connection, after, limit, asked)

    def bundles(self, after: str, *, tenant: str, zone: str, limit: int) -> Iterator[tuple[str, list[EventRow]]]:
        """One log after a cursor as it lies, each bundle with the cursor of its last."""
        with self._reader() as connection:
            yield from sqlite_log.read_bundles(connection, after, limit, {"tenant": tenant, "zone": zone})

    def end(self) -> str:
        """The cursor of the last event."""
        with self._reader() as connection:
            return sqlite_log.end(connection)

    def lease(self, name: str, owner: str, ttl_s: float, now: float) -> int | None:
        """Take or extend a lease, durably."""
        rows = self._write(lambda txn: txn.run(sql.LEASE, (name, owner, now + ttl_s, now, now)))
        return rows[0][0] if rows else None

    def release(self, name: str, owner: str) -> None:
        """Give a lease back; its token stays used."""
        self._write(lambda txn: txn.run(sql.RELEASE, (name, owner)))

    def standing(self, now: float) -> Standing:
        """How far the schema is, and who is there."""
        with self._reader() as connection:
            found, live = found_in(connection, now)
            rows = connection.execute(_ROWS).fetchone()[0] if found else 0
        return Standing(found.get("schema", 0), found.get("oldest", 0), schema.NEWEST, live, rows)

    def settle(self, now: float) -> None:
        """Take the steps that may be taken now."""
        with clear_errors(), contextlib.closing(self._connect()) as connection:
            upgrade(connection, now=now)

    def logs(self) -> list[tuple[str, str]]:
        """Every (tenant, zone) that has events."""
        found, last = [], ("", "")
        with self._reader() as connection:
            while row := connection.execute(sql.LOGS, last).fetchone():
                last = (row[0], row[1])
                found.append(last)
        return found

    def list_kinds(self, tenant: str) -> list[str]:
        """Every kind of which the tenant has records, by name."""
        with self._reader() as connection:
            return [kind for (kind,) in connection.execute(sql.KINDS, (tenant, tenant))]

    def group(self) -> "SqliteGroup":
        """Commits of this thread wait for the group's end."""
        return SqliteGroup(self._lane)

    def look(self) -> "SqliteTxn":
        """A snapshot of what is committed now."""
        if self.closed:
            raise Unavailable("the store is closed", "open it again")
        with clear_errors():
            connection = self._spare()
            connection.execute("BEGIN")
        return SqliteTxn(self, connection)

    def dump(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Every row of every table, from one snapshot; the writer goes on meanwhile."""
        with self._reader() as connection:
            for row in connection.execute(RECORDS):
                yield "records", row
            for row in sqlite_log.dump(connection):
                yield "events", row
            for row in connection.execute(LEASES):
                yield "leases", row

    def load(self, rows: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        """Take a dump into an empty store, all or nothing; what follows it in the log is a new epoch."""
        with self._unlogged():
            self._write(lambda txn: txn.load(rows))

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[SqliteFile]:
        """All that is committed as one file beside this one, gone afterwards; the writer goes on meanwhile.

        Made anew from what is there: of what was deleted nothing is left in it.
        """
        with self._beside("snapshot") as path, clear_errors():
            with contextlib.closing(self._connect()) as connection:
                connection.execute("VACUUM INTO ?", (path,))
            with contextlib.closing(SqliteFile(path)) as file:
                yield file

    def adopt(
        self, fill: Callable[[int], object], look: Callable[[SqliteFile], None], ready: Callable[[], None]
    ) -> None:
        """Take a file that `snapshot` made into an empty store, all or nothing. `fill` writes it, `look` checks it and
        may change it; the store is what it was until `ready` returned."""
        self._write(SqliteWrite.check_empty)
        with self._beside("adopted") as path, clear_errors():
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fill(file)
            finally:
                os.close(file)
            with contextlib.closing(SqliteFile(path)) as taken:
                look(taken)
                taken.begin_epoch()
                with self._unlogged():
                    taken.copy_to(self._lane.connection, ready)
                    upgrade(self._lane.connection)

    @contextlib.contextmanager
    def _beside(self, what: str) -> Iterator[str]:
        """An empty file for the owner alone."""
        path = f"{self._path}.{what}"
        try:
            Path(path).unlink(missing_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            yield path
        except OSError as error:
            raise Unavailable(
                f"a file beside the ledger's cannot be written: {error.strerror}", "check the folder and its free space"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                Path(path).unlink()

    def close(self) -> None:
        """Close every connection; the last one moves the write-ahead log into the file."""
        self.closed = True
        while self.readers:
            self.readers.pop().close()
        self._lane.connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        end = time.monotonic() + self._busy_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError:
                # Unlike everything else, the first change of mode does not wait for others who start at once.
                if time.monotonic() > end:
                    connection.close()
                    raise
                time.sleep(0.01)
        connection.execute("PRAGMA synchronous = FULL")
        # Measured: with more pages neither lookups nor commits are faster, and there is a connection for every reader.
        connection.execute(_CACHE)
        connection.execute("PRAGMA journal_size_limit = 67108864")
        return connection

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection on one snapshot of what is committed."""
        if self.closed:
            raise Unavailable("the store is closed", "open it again")
        with clear_errors():
            connection = self._spare()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                self.give_back(connection)

    @contextlib.contextmanager
    def _unlogged(self) -> Iterator[None]:
        """While entered, without the write-ahead log, where nobody else has the file open.

        The journal that takes its place holds what pages were before: nothing, for those of an empty store. So what is
        loaded is written once and not twice, and is as much all or nothing as ever.
        """
        while self.readers:
            self.readers.pop().close()
        connection = self._lane.connection
        connection.execute("PRAGMA busy_timeout = 0")
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA cache_size = -131072")
        try:
            yield
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * self._busy_s)}")
            connection.execute(_CACHE)
            with clear_errors():
                connection.execute("PRAGMA journal_mode = WAL")

    def give_back(self, connection: sqlite3.Connection) -> None:
        """End a reader's snapshot and keep its connection for the next."""
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        if self.closed:
            connection.close()
        else:
            self.readers.append(connection)

    def _spare(self) -> sqlite3.Connection:
        try:
            return self.readers.pop()
        except IndexError:
            return self._connect()

    def _begin_write(self) -> "SqliteWrite":
        group = self._lane.local.group
        batch = self._lane.enter() if group is None else self._lane.enter_group(group)
        return SqliteWrite(self, self._lane, batch)

    def _write(self, work: Callable[["SqliteWrite"], T]) -> T:
        txn = self._begin_write()
        try:
            result = work(txn)
        except BaseException:
            txn.rollback()
            raise
        txn.commit()
        return result


class SqliteTxn:
    """A snapshot to read from; `shared` when it looks through the writer of this thread's group."""

    __slots__ = ("_connection", "_ended", "_store")

    def __init__(self, store: SqliteStore, connection: sqlite3.Connection, shared: bool = False) -> None:
        self._store = store
        self._connection = connection
        self._ended = shared

    def get(self, key: Key) -> Row | None:
        """The row of a key."""
        rows = self.run(sql.GET, sql.key_values(key))
        return sql.row_of(key, rows[0] if rows else None)

    def find(self, query: Query) -> Found:
        """A page of rows."""
        text, values = sql.find_query(query, (_CELLS, json.dumps(sorted(query.cells or ()))))
        return sql.found(query, self.run(text, values))

    def cells(self, tenant: str, kind: str) -> frozenset[str]:
        """The distinct cells of a kind."""
        return frozenset(cell for (cell,) in self.run(sql.CELLS, (tenant, kind, tenant, kind)))

    def put(self, row: Row, rev: int) -> None:
        """Refused: this one only reads."""
        raise Invalid("a read transaction cannot write", "begin one that writes")

    def delete(self, key: Key, rev: int) -> None:
        """Refused: this one only reads."""
        raise Invalid("a read transaction cannot write", "begin one that writes")

    def append(self, events: Sequence[EventRow]) -> None:
        """Refused: this one only reads."""
        raise Invalid("a read transaction cannot write", "begin one that writes")

    def commit(self) -> None:
        """Done reading."""
        self.rollback()

    def rollback(self) -> None:
        """Done reading."""
        if self._ended:
            return
        self._ended = True
        self._store.give_back(self._connection)

    def run(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement."""
        try:
            return self._connection.execute(text, values).fetchall()
        except sqlite3.Error as error:
            raise failure(error) from error


class SqliteWrite(RowWrites, SqliteTxn):
    """One transaction of the writer's open batch, behind a savepoint where it is not alone."""

    __slots__ = ("_batch", "_events", "_grouped", "_lane", "_marked", "_saved", "_terms")

    def __init__(self, store: SqliteStore, lane: Lane, batch: Batch) -> None:
        self._store = store
        self._connection = lane.connection
        self._ended = False
        self._lane = lane
        self._batch = batch
        self._grouped = lane.local.group is not None
        lane.local.writing = True
        self._events: list[EventRow] = []
        self._terms: dict[tuple[str, ...], bool] = {}
        """Rows of the index that come or go, and do so all at once before anybody looks."""
        self._marked = self._saved = False

    def mark(self) -> bool:
        """Write marks of the log that are missing; True when there are more."""
        self._ready()
        with clear_errors():
            return sqlite_log.catch_up(self._connection, 4096)

    def check_empty(self) -> None:
        """Conflict when something is in the store already."""
        self._ready()
        if self.run(sql.OCCUPIED):
            raise Conflict("the store is not empty", "restore into a new store")

    def load(self, rows: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        """The rows of a dump, into an empty store."""
        self.check_empty()
        log, held = sqlite_log.Loader(self._connection), dict[str, list[Any]](records=[], leases=[])
        with clear_errors():
            # An index that is made of what lies there costs a fraction of one that grows with every row.
            indexes = self.run(_INDEXES)
            for name, _ in indexes:
                self._connection.execute(f'DROP INDEX "{name}"')
            for table, values in rows:
                if table == "events":
                    log.add(values)
                    continue
                held[table].append(values)
                if len(held[table]) >= _BATCH:
                    self._load(table, held[table])
            for table, left in held.items():
                self._load(table, left)
            log.end()
            for _, text in indexes:
                self._connection.execute(text)
            self._connection.execute(sql.NEW_EPOCH)

    def _load(self, table: str, rows: list[Any]) -> None:
        self._each(_LOAD[table], rows)
        if table == "records":
            terms = (sql.term_rows(Key(*row[:5]), sql.terms_of(row[-1])) for row in rows if row[-1])
            self._each(sql.ADD_TERM, sorted(term for some in terms for term in some))
        rows.clear()

    def put(self, row: Row, rev: int) -> None:
        """Write over revision `rev`, or Stale. Nobody else writes meanwhile, so what its writer knows is not read."""
        if not rev or row.before is None:
            super().put(row, rev)
            return
        self._ready()
        cell, terms = row.before
        text, first = (sql.STAY, (row.rev,)) if cell == row.cell else (sql.UPDATE, (row.rev, row.cell))
        if not self.count(text, (*first, row.body, row.at, sql.terms_text(row.terms), *row.key, rev)):
            raise stale(row.key, rev)
        sql.changed_terms(row.key, terms, row.terms, self.many)

    def find(self, query: Query) -> Found:
        """A page of rows, by the index as it stands."""
        self._index()
        return super().find(query)

    def append(self, events: Sequence[EventRow]) -> None:
        """Add to the log; written with the whole batch, in the order of commits."""
        self._events.extend(events)

    def commit(self) -> None:
        """Durable on return, or, inside a group, when the group ends."""
        if self._ended:
            raise Invalid("the transaction has ended", "begin another")
        try:
            self._index()
        except FalajError:
            self.rollback()
            raise
        self._ended, self._lane.local.writing = True, False
        batch = self._batch
        self._unmark(keep=True)
        if batch.error is None:
            batch.events += self._events
            batch.members += 1
            self._flush(batch)
        if not self._grouped:
            self._lane.leave(batch)
            batch.wait()
        elif batch.error is not None:
            raise again(batch.error)

    def rollback(self) -> None:
        """Nothing of it happened."""
        if self._ended:
            return
        self._ended, self._lane.local.writing = True, False
        self._unmark(keep=False)
        if not self._grouped:
            self._lane.leave(self._batch)
            # A refusal may rest on what the others of the batch wrote: nobody hears it before that is durable.
            self._batch.done.wait()

    def run(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement; an error that undid the whole batch is remembered for all its members."""
        try:
            return self._connection.execute(text, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _flush(self, batch: Batch) -> None:
        if len(batch.events) >= FLUSH_AT:
            try:
                self._lane.append(batch)
            except sqlite3.Error as error:
                batch.error = failure(error)

    def _failed(self, error: sqlite3.Error) -> FalajError:
        found = failure(error)
        if not self._connection.in_transaction and self._batch.error is None:
            self._batch.error = found
        return found

    def _ready(self) -> None:
        if self._ended:
            raise Invalid("the transaction has ended", "begin another")
        if not self._marked:
            # Alone in the batch, undoing it is undoing the SQLite transaction: no savepoint to pay for.
            self._saved = self._grouped or self._batch.members > 0
            if self._saved:
                self.run("SAVEPOINT one")
            self._marked = True

    def _unmark(self, *, keep: bool) -> None:
        if not self._saved or self._batch.error is not None:
            return
        try:
            if not keep:
                self._connection.execute("ROLLBACK TO one")
            self._connection.execute("RELEASE one")
        except sqlite3.Error as error:
            self._batch.error = failure(error)

    def count(self, text: str, values: Sequence[Any]) -> int:
        try:
            return self._connection.execute(text, values).rowcount
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def many(self, text: str, rows: list[tuple[str, ...]]) -> None:
        """Have terms come or go; one that does both does neither."""
        comes = text is sql.ADD_TERM
        for row in rows:
            if self._terms.pop(row, comes) is comes:
                self._terms[row] = comes

    def _index(self) -> None:
        """Bring the index of terms up to what was written."""
        if self._terms:
            changes, self._terms = self._terms, {}
            self._each(sql.DROP_TERM, [row for row, comes in changes.items() if not comes])
            self._each(sql.ADD_TERM, [row for row, comes in changes.items() if comes])

    def _each(self, text: str, rows: list[tuple[Any, ...]]) -> None:
        try:
            self._connection.executemany(text, rows)
        except sqlite3.Error as error:
            raise self._failed(error) from error


def _path(url: str) -> str:
    path = url.partition(":")[2].removeprefix("//")
    if not path or path.startswith(":"):
        raise Invalid("the address of a SQLite store names a file", "write sqlite:/path/to/ledger.db")
    return path


def _prepare_file(path: str) -> None:
    """For the owner alone: SQLite gives its side files the mode of the file."""
    try:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise Unavailable(
            f"the ledger's file cannot be opened: {error.strerror}", "check the folder, its owner and its free space"
        ) from error
