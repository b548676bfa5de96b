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
from falaj.backends.sql import schema
from falaj.backends.sql import statements as sql
from falaj.backends.sql.rows import RowWriteMixin, stale_revision_error
from falaj.backends.sqlite_file import (
    SELECT_LEASES,
    SELECT_RECORDS,
    SqliteLedgerFile,
    read_schema_numbers,
    upgrade_schema,
)
from falaj.backends.sqlite_writer import (
    FLUSH_EVENT_COUNT,
    SqliteCommitGroup,
    SqliteWriter,
    WriteBatch,
    copy_error,
    translate_error,
    translate_errors,
)
from falaj.core.errors import Conflict, FalajError, Invalid, Unavailable
from falaj.core.ports import EventRow, RecordKey, RecordQuery, RowPage, SchemaStatus, StoredRow

_SELECT_ROW_COUNT = "SELECT (SELECT coalesce(max(rowid), 0) FROM records) + (SELECT coalesce(max(n), 0) FROM events)"
_INSERT_BY_TABLE = {table: sql.make_load_statement(table) for table in ("records", "leases")}
_SELECT_INDEXES = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
_LOAD_BATCH_ROWS = 1000
_SET_CACHE_SIZE = "PRAGMA cache_size = -2000"
ResultT = TypeVar("ResultT")
_SCOPE_CONDITION = "r.cell IN (SELECT value FROM json_each(?))"


class SqliteLedgerStore:
    """`sqlite:/path/to/file`. Options: `busy_s`, how long a writer waits for its turn (default 30); `settle`, whether
    opening it brings the schema up to date (default yes).
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._path = _parse_path(url)
        self._busy_s = float((options or {}).get("busy_s", 30.0))
        self.readers: deque[sqlite3.Connection] = deque()
        self.closed = False
        _prepare_file(self._path)
        with translate_errors():
            writer = self._open_connection()
            if (options or {}).get("settle", True):
                upgrade_schema(writer)
        self._writer = SqliteWriter(writer, self._busy_s)

    def begin(self, write: bool) -> "SqliteTransaction":
        """A write transaction waits for its turn; a read transaction never waits."""
        if self.closed:
            raise Unavailable("the store is closed", "open it again")
        group = self._writer.local.group
        if not write:
            if group is not None and group.holding:
                return SqliteTransaction(self, self._writer.connection, is_shared=True)
            return self.look()
        return self._begin_write()

    def events(
        self, after: str = "", *, tenant: str = "", zone: str = "", limit: int = 1000, **filters: str
    ) -> list[EventRow]:
        """The committed log after a cursor. One writer means that commits become visible in order."""
        all_filters = {"tenant": tenant, "zone": zone, **filters}
        with self._begin_read() as connection:
            has_missing_marks = sqlite_log.has_missing_marks(connection, all_filters)
            if not has_missing_marks or not self._writer.local.free:
                return sqlite_log.read_events(connection, after, limit, all_filters)
        while has_missing_marks and self._writer.local.free:
            has_missing_marks = self._run_write(SqliteWriteTransaction.mark)
        with self._begin_read() as connection:
            return sqlite_log.read_events(connection, after, limit, all_filters)

    def bundles(self, after: str, *, tenant: str, zone: str, limit: int) -> Iterator[tuple[str, list[EventRow]]]:
        """One log after a cursor as it lies, each bundle with the cursor of its last."""
        with self._begin_read() as connection:
            yield from sqlite_log.read_bundles(connection, after, limit, {"tenant": tenant, "zone": zone})

    def end(self) -> str:
        """The cursor of the last event."""
        with self._begin_read() as connection:
            return sqlite_log.get_end_cursor(connection)

    def lease(self, name: str, owner: str, ttl_s: float, now: float) -> int | None:
        """Take or extend a lease, durably."""
        rows = self._run_write(lambda txn: txn.run(sql.ACQUIRE_LEASE, (name, owner, now + ttl_s, now, now)))
        return rows[0][0] if rows else None

    def release(self, name: str, owner: str) -> None:
        """Give a lease back; its token stays used."""
        self._run_write(lambda txn: txn.run(sql.RELEASE_LEASE, (name, owner)))

    def standing(self, now: float) -> SchemaStatus:
        """How far the schema is, and who is there."""
        with self._begin_read() as connection:
            schema_numbers, live_replicas = read_schema_numbers(connection, now)
            rows = connection.execute(_SELECT_ROW_COUNT).fetchone()[0] if schema_numbers else 0
        return SchemaStatus(
            schema_numbers.get("schema", 0), schema_numbers.get("oldest", 0), schema.NEWEST_VERSION, live_replicas, rows
        )

    def settle(self, now: float) -> None:
        """Take the steps that may be taken now."""
        with translate_errors(), contextlib.closing(self._open_connection()) as connection:
            upgrade_schema(connection, now=now)

    def logs(self) -> list[tuple[str, str]]:
        """Every (tenant, zone) that has events."""
        logs, last_log = [], ("", "")
        with self._begin_read() as connection:
            while row := connection.execute(sql.SELECT_NEXT_LOG, last_log).fetchone():
                last_log = (row[0], row[1])
                logs.append(last_log)
        return logs

    def list_kinds(self, tenant: str) -> list[str]:
        """Every kind of which the tenant has records, by name."""
        with self._begin_read() as connection:
            return [kind for (kind,) in connection.execute(sql.SELECT_KINDS, (tenant, tenant))]

    def group(self) -> "SqliteCommitGroup":
        """Commits of this thread wait for the group's end."""
        return SqliteCommitGroup(self._writer)

    def look(self) -> "SqliteTransaction":
        """A snapshot of what is committed now."""
        if self.closed:
            raise Unavailable("the store is closed", "open it again")
        with translate_errors():
            connection = self._get_reader()
            connection.execute("BEGIN")
        return SqliteTransaction(self, connection)

    def dump(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Every row of every table, from one snapshot; the writer goes on meanwhile."""
        with self._begin_read() as connection:
            for row in connection.execute(SELECT_RECORDS):
                yield "records", row
            for row in sqlite_log.dump_events(connection):
                yield "events", row
            for row in connection.execute(SELECT_LEASES):
                yield "leases", row

    def load(self, rows: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        """Take a dump into an empty store, all or nothing; what follows it in the log is a new epoch."""
        with self._disable_wal():
            self._run_write(lambda txn: txn.load(rows))

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[SqliteLedgerFile]:
        """All that is committed as one file beside this one, gone afterwards; the writer goes on meanwhile.

        Made anew from what is there: of what was deleted nothing is left in it.
        """
        with self._create_file_beside("snapshot") as path, translate_errors():
            with contextlib.closing(self._open_connection()) as connection:
                connection.execute("VACUUM INTO ?", (path,))
            with contextlib.closing(SqliteLedgerFile(path)) as snapshot_file:
                yield snapshot_file

    def adopt(
        self,
        write_file: Callable[[int], object],
        check_file: Callable[[SqliteLedgerFile], None],
        wait_until_ready: Callable[[], None],
    ) -> None:
        """Take a file that `snapshot` made into an empty store, all or nothing. `write_file` writes it, `check_file`
        checks it and may change it; the store is what it was until `wait_until_ready` returned."""
        self._run_write(SqliteWriteTransaction.check_empty)
        with self._create_file_beside("adopted") as path, translate_errors():
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                write_file(fd)
            finally:
                os.close(fd)
            with contextlib.closing(SqliteLedgerFile(path)) as restored_file:
                check_file(restored_file)
                restored_file.begin_epoch()
                with self._disable_wal():
                    restored_file.copy_to(self._writer.connection, wait_until_ready)
                    upgrade_schema(self._writer.connection)

    @contextlib.contextmanager
    def _create_file_beside(self, suffix: str) -> Iterator[str]:
        """An empty file for the owner alone."""
        path = f"{self._path}.{suffix}"
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
        self._writer.connection.close()

    def _open_connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_s, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError:
                # Unlike everything else, the first change of mode does not wait for others who start at once.
                if time.monotonic() > deadline:
                    connection.close()
                    raise
                time.sleep(0.01)
        connection.execute("PRAGMA synchronous = FULL")
        # Measured: with more pages neither lookups nor commits are faster, and there is a connection for every reader.
        connection.execute(_SET_CACHE_SIZE)
        connection.execute("PRAGMA journal_size_limit = 67108864")
        return connection

    @contextlib.contextmanager
    def _begin_read(self) -> Iterator[sqlite3.Connection]:
        """A connection on one snapshot of what is committed."""
        if self.closed:
            raise Unavailable("the store is closed", "open it again")
        with translate_errors():
            connection = self._get_reader()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                self.give_back(connection)

    @contextlib.contextmanager
    def _disable_wal(self) -> Iterator[None]:
        """While entered, without the write-ahead log, where nobody else has the file open.

        The journal that takes its place holds what pages were before: nothing, for those of an empty store. So what is
        loaded is written once and not twice, and is as much all or nothing as ever.
        """
        while self.readers:
            self.readers.pop().close()
        connection = self._writer.connection
        connection.execute("PRAGMA busy_timeout = 0")
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA cache_size = -131072")
        try:
            yield
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * self._busy_s)}")
            connection.execute(_SET_CACHE_SIZE)
            with translate_errors():
                connection.execute("PRAGMA journal_mode = WAL")

    def give_back(self, connection: sqlite3.Connection) -> None:
        """End a reader's snapshot and keep its connection for the next."""
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        if self.closed:
            connection.close()
        else:
            self.readers.append(connection)

    def _get_reader(self) -> sqlite3.Connection:
        try:
            return self.readers.pop()
        except IndexError:
            return self._open_connection()

    def _begin_write(self) -> "SqliteWriteTransaction":
        group = self._writer.local.group
        batch = self._writer.enter() if group is None else self._writer.enter_group(group)
        return SqliteWriteTransaction(self, self._writer, batch)

    def _run_write(self, write_rows: Callable[["SqliteWriteTransaction"], ResultT]) -> ResultT:
        transaction = self._begin_write()
        try:
            result = write_rows(transaction)
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()
        return result


class SqliteTransaction:
    """A snapshot to read from; `shared` when it looks through the writer of this thread's group."""

    __slots__ = ("_connection", "_has_ended", "_store")

    def __init__(self, store: SqliteLedgerStore, connection: sqlite3.Connection, is_shared: bool = False) -> None:
        self._store = store
        self._connection = connection
        self._has_ended = is_shared

    def get(self, key: RecordKey) -> StoredRow | None:
        """The row of a key."""
        rows = self.run(sql.SELECT_RECORD, sql.get_key_values(key))
        return sql.to_stored_row(key, rows[0] if rows else None)

    def find(self, query: RecordQuery) -> RowPage:
        """A page of rows."""
        statement, values = sql.build_find_query(query, (_SCOPE_CONDITION, json.dumps(sorted(query.cells or ()))))
        return sql.to_row_page(query, self.run(statement, values))

    def cells(self, tenant: str, kind: str) -> frozenset[str]:
        """The distinct cells of a kind."""
        return frozenset(scope for (scope,) in self.run(sql.SELECT_SCOPES, (tenant, kind, tenant, kind)))

    def put(self, row: StoredRow, rev: int) -> None:
        """Refused: this one only reads."""
        raise Invalid("a read transaction cannot write", "begin one that writes")

    def delete(self, key: RecordKey, rev: int) -> None:
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
        if self._has_ended:
            return
        self._has_ended = True
        self._store.give_back(self._connection)

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise translate_error(error) from error


class SqliteWriteTransaction(RowWriteMixin, SqliteTransaction):
    """One transaction of the writer's open batch, behind a savepoint where it is not alone."""

    __slots__ = ("_batch", "_events", "_has_changes", "_has_savepoint", "_is_in_group", "_pending_terms", "_writer")

    def __init__(self, store: SqliteLedgerStore, writer: SqliteWriter, batch: WriteBatch) -> None:
        self._store = store
        self._connection = writer.connection
        self._has_ended = False
        self._writer = writer
        self._batch = batch
        self._is_in_group = writer.local.group is not None
        writer.local.writing = True
        self._events: list[EventRow] = []
        self._pending_terms: dict[tuple[str, ...], bool] = {}
        """Rows of the index that come or go, and do so all at once before anybody looks."""
        self._has_changes = self._has_savepoint = False

    def mark(self) -> bool:
        """Write marks of the log that are missing; True when there are more."""
        self._prepare_change()
        with translate_errors():
            return sqlite_log.write_missing_marks_and_edges(self._connection, 4096)

    def check_empty(self) -> None:
        """Conflict when something is in the store already."""
        self._prepare_change()
        if self.run(sql.SELECT_ANY_ROW):
            raise Conflict("the store is not empty", "restore into a new store")

    def load(self, rows: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        """The rows of a dump, into an empty store."""
        self.check_empty()
        log_loader, rows_by_table = sqlite_log.LogLoader(self._connection), dict[str, list[Any]](records=[], leases=[])
        with translate_errors():
            # An index that is made of what lies there costs a fraction of one that grows with every row.
            indexes = self.run(_SELECT_INDEXES)
            for name, _ in indexes:
                self._connection.execute(f'DROP INDEX "{name}"')
            for table, values in rows:
                if table == "events":
                    log_loader.add(values)
                    continue
                rows_by_table[table].append(values)
                if len(rows_by_table[table]) >= _LOAD_BATCH_ROWS:
                    self._load_rows(table, rows_by_table[table])
            for table, remaining_rows in rows_by_table.items():
                self._load_rows(table, remaining_rows)
            log_loader.end()
            for _, index_statement in indexes:
                self._connection.execute(index_statement)
            self._connection.execute(sql.BEGIN_EPOCH)

    def _load_rows(self, table: str, rows: list[Any]) -> None:
        self._run_for_each(_INSERT_BY_TABLE[table], rows)
        if table == "records":
            terms = (sql.make_term_rows(RecordKey(*row[:5]), sql.decode_terms(row[-1])) for row in rows if row[-1])
            self._run_for_each(sql.INSERT_TERM, sorted(term for record_terms in terms for term in record_terms))
        rows.clear()

    def put(self, row: StoredRow, rev: int) -> None:
        """Write over revision `rev`, or StaleRevision. Nobody else writes meanwhile, so what its writer knows is not
        read."""
        if not rev or row.before is None:
            super().put(row, rev)
            return
        self._prepare_change()
        old_scope, old_terms = row.before
        statement, leading_values = (
            (sql.UPDATE_RECORD_SAME_SCOPE, (row.rev,))
            if old_scope == row.cell
            else (sql.UPDATE_RECORD, (row.rev, row.cell))
        )
        if not self.count(statement, (*leading_values, row.body, row.at, sql.encode_terms(row.terms), *row.key, rev)):
            raise stale_revision_error(row.key, rev)
        sql.update_terms(row.key, old_terms, row.terms, self.many)

    def find(self, query: RecordQuery) -> RowPage:
        """A page of rows, by the index as it stands."""
        self._apply_term_changes()
        return super().find(query)

    def append(self, events: Sequence[EventRow]) -> None:
        """Add to the log; written with the whole batch, in the order of commits."""
        self._events.extend(events)

    def commit(self) -> None:
        """Durable on return, or, inside a group, when the group ends."""
        if self._has_ended:
            raise Invalid("the transaction has ended", "begin another")
        try:
            self._apply_term_changes()
        except FalajError:
            self.rollback()
            raise
        self._has_ended, self._writer.local.writing = True, False
        batch = self._batch
        self._release_savepoint(keep_changes=True)
        if batch.error is None:
            batch.events += self._events
            batch.members += 1
            self._flush_events(batch)
        if not self._is_in_group:
            self._writer.leave(batch)
            batch.wait()
        elif batch.error is not None:
            raise copy_error(batch.error)

    def rollback(self) -> None:
        """Nothing of it happened."""
        if self._has_ended:
            return
        self._has_ended, self._writer.local.writing = True, False
        self._release_savepoint(keep_changes=False)
        if not self._is_in_group:
            self._writer.leave(self._batch)
            # A refusal may rest on what the others of the batch wrote: nobody hears it before that is durable.
            self._batch.done.wait()

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows of one statement; an error that undid the whole batch is remembered for all its members."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._record_error(error) from error

    def _flush_events(self, batch: WriteBatch) -> None:
        if len(batch.events) >= FLUSH_EVENT_COUNT:
            try:
                self._writer.append(batch)
            except sqlite3.Error as error:
                batch.error = translate_error(error)

    def _record_error(self, error: sqlite3.Error) -> FalajError:
        translated = translate_error(error)
        if not self._connection.in_transaction and self._batch.error is None:
            self._batch.error = translated
        return translated

    def _prepare_change(self) -> None:
        if self._has_ended:
            raise Invalid("the transaction has ended", "begin another")
        if not self._has_changes:
            # Alone in the batch, undoing it is undoing the SQLite transaction: no savepoint to pay for.
            self._has_savepoint = self._is_in_group or self._batch.members > 0
            if self._has_savepoint:
                self.run("SAVEPOINT one")
            self._has_changes = True

    def _release_savepoint(self, *, keep_changes: bool) -> None:
        if not self._has_savepoint or self._batch.error is not None:
            return
        try:
            if not keep_changes:
                self._connection.execute("ROLLBACK TO one")
            self._connection.execute("RELEASE one")
        except sqlite3.Error as error:
            self._batch.error = translate_error(error)

    def count(self, statement: str, values: Sequence[Any]) -> int:
        try:
            return self._connection.execute(statement, values).rowcount
        except sqlite3.Error as error:
            raise self._record_error(error) from error

    def many(self, statement: str, rows: list[tuple[str, ...]]) -> None:
        """Have terms come or go; one that does both does neither."""
        is_added = statement is sql.INSERT_TERM
        for row in rows:
            if self._pending_terms.pop(row, is_added) is is_added:
                self._pending_terms[row] = is_added

    def _apply_term_changes(self) -> None:
        """Bring the index of terms up to what was written."""
        if self._pending_terms:
            changes, self._pending_terms = self._pending_terms, {}
            self._run_for_each(sql.DELETE_TERM, [row for row, is_added in changes.items() if not is_added])
            self._run_for_each(sql.INSERT_TERM, [row for row, is_added in changes.items() if is_added])

    def _run_for_each(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        try:
            self._connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise self._record_error(error) from error


def _parse_path(url: str) -> str:
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
