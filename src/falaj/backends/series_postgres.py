"""Measurements on PostgreSQL, shared by any number of replicas.

Transaction numbers become visible out of order. The cursor of changes is therefore the oldest transaction that was open
when somebody looked: everything before it has been told, and what was told after it is told again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg

from falaj.backends.postgres_group import Member
from falaj.backends.postgres_pool import make_pool
from falaj.backends.postgres_txn import PostgresTxn, clear_errors
from falaj.core.errors import Invalid
from falaj.core.ports import Block, Txn

_TEXT = 'TEXT COLLATE "C" NOT NULL'
_SCHEMA = (
    f"""CREATE TABLE IF NOT EXISTS blocks (
        tenant {_TEXT}, series {_TEXT}, shelf {_TEXT}, id {_TEXT}, zone {_TEXT}, low {_TEXT}, high {_TEXT},
        length BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL, data BYTEA NOT NULL, told BOOLEAN NOT NULL,
        xid BIGINT NOT NULL DEFAULT pg_current_xact_id()::text::bigint, PRIMARY KEY (tenant, series, id))""",
    "CREATE INDEX IF NOT EXISTS blocks_shelf ON blocks (tenant, series, shelf, low, high, id)",
    "CREATE INDEX IF NOT EXISTS blocks_told ON blocks (tenant, xid) WHERE told",
    # Sealed bytes do not compress; trying costs more than it saves.
    "ALTER TABLE blocks ALTER COLUMN data SET STORAGE EXTERNAL",
    # After a restore the numbers may be another cluster's, ahead of ours: those blocks would be told for ever.
    "UPDATE blocks SET xid = 0 WHERE told AND xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
)
_COLUMNS = "tenant, series, shelf, id, zone, low, high, length, at, data, told"
_KINDS = (*["text"] * 7, "bigint", "float8", "bytea", "bool")
# All of them in one statement, which commits by itself; where it rides, the ledger says on which condition.
_ADD = f"""INSERT INTO blocks ({_COLUMNS})
    SELECT * FROM unnest({", ".join(f"%b::{kind}[]" for kind in _KINDS)}) WHERE true ON CONFLICT DO NOTHING"""  # noqa: S608 # nosec B608
_READ = f"""SELECT {_COLUMNS} FROM blocks WHERE tenant = %s AND series = ANY(%s) AND shelf = %s AND high >= %s
    ORDER BY series, low, high, id LIMIT %s"""  # noqa: S608 # nosec B608
_ALL, _EACH = f"SELECT {_COLUMNS} FROM blocks", 500  # noqa: S608 # nosec B608
_NOW = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text"
# One statement, one snapshot: what it does not see commits behind its cursor.
_CHANGES = f"""SELECT now.xmin, {_COLUMNS} FROM ({_NOW}) AS now (xmin)
    LEFT JOIN blocks ON tenant = %s AND xid >= %s AND told ORDER BY xid, id"""  # noqa: S608 # nosec B608
_GONE = "DELETE FROM blocks WHERE tenant = %s AND series = %s AND id = ANY(%s)"
_DELETE = "DELETE FROM blocks WHERE tenant = %s AND series = %s"
_EXPIRE = "DELETE FROM blocks WHERE tenant = %s AND left(series, %s) = %s AND at < %s"
_LOCK = 0x66616C616B


class PostgresSeries:
    """`postgresql://user@host/database?...`, the ledger's own database or another.

    Options: `connections`, the most this process opens (default 8); `wait_s`, how long a call waits for the server.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        chosen = options or {}
        self._url = url
        wait_s = float(chosen.get("wait_s", 10.0))
        self._pool = make_pool(url, int(chosen.get("connections", 8)), wait_s)
        try:
            with clear_errors():
                self._pool.open(wait=True, timeout=wait_s)
            with clear_errors(), self._pool.connection() as connection, connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                for statement in _SCHEMA:
                    connection.execute(statement)
        except BaseException:
            self._pool.close()
            raise

    def append(self, blocks: Sequence[Block]) -> None:
        """Add blocks; durable on return."""
        with clear_errors(unsure=True), self._pool.connection() as connection:
            connection.execute(_ADD, _by_column(blocks))

    def ride(self, blocks: Sequence[Block], txn: Txn) -> bool:
        """Add blocks in a transaction of the ledger, where it lies in the same database."""
        if not isinstance(txn, (PostgresTxn, Member)) or txn.url != self._url:
            return False
        txn.ride(_ADD, blocks)
        return True

    def read(
        self, tenant: str, series: Sequence[str], shelf: str, low: str = "", limit: int = 1_000_000
    ) -> list[Block]:
        """Blocks of a shelf, in order."""
        with clear_errors(), self._pool.connection() as connection:
            return _blocks(connection.execute(_READ, (tenant, list(series), shelf, low, limit), binary=True))

    def changes(self, tenant: str, after: str = "") -> tuple[list[Block], str]:
        """What was added since a cursor, and the cursor of now."""
        if after and not after.isdigit():
            raise Invalid(f"{after[:80]!r} is no cursor of changes", "use the one that was given")
        with clear_errors(), self._pool.connection() as connection:
            if not after:
                ((now,),) = connection.execute(_NOW)
                return [], now
            rows = connection.execute(_CHANGES, (tenant, int(after)), binary=True).fetchall()
            return [Block._make(row[1:]) for row in rows if row[1] is not None], rows[0][0]

    def swap(self, tenant: str, series: str, gone: Sequence[str], blocks: Sequence[Block]) -> bool:
        """Put blocks in the place of others, or do nothing."""
        with clear_errors(unsure=True), self._pool.connection() as connection, connection.transaction() as whole:
            swapped = connection.execute(_GONE, (tenant, series, list(gone))).rowcount == len(set(gone))
            if not swapped:
                raise psycopg.Rollback(whole)
            connection.execute(_ADD, _by_column(blocks))
        return swapped

    def delete(self, tenant: str, series: str) -> None:
        """Remove a series whole."""
        with clear_errors(unsure=True), self._pool.connection() as connection:
            connection.execute(_DELETE, (tenant, series))

    def expire(self, tenant: str, prefix: str, before: float) -> int:
        """Remove what is older."""
        with clear_errors(unsure=True), self._pool.connection() as connection:
            return connection.execute(_EXPIRE, (tenant, len(prefix), prefix, before)).rowcount

    def dump(self) -> Iterator[Block]:
        """Every block, as they lie."""
        with (
            clear_errors(),
            self._pool.connection() as connection,
            connection.transaction(),
            connection.cursor("falaj_series", binary=True) as rows,
        ):
            rows.itersize = _EACH
            for row in rows.execute(_ALL):
                yield Block._make(row)

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()


def _by_column(blocks: Sequence[Block]) -> list[list[Any]]:
    return [list(column) for column in zip(*blocks, strict=True)] or [[] for _ in _KINDS]


def _blocks(rows: psycopg.Cursor[Any]) -> list[Block]:
    return [Block._make(row) for row in rows]
