"""Measurements on PostgreSQL, shared by any number of replicas.

Transaction numbers become visible out of order. The cursor of changes is therefore the oldest transaction that was open
when somebody looked: everything before it has been told, and what was told after it is told again.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg

from falaj.backends.postgres_group import GroupMember
from falaj.backends.postgres_pool import create_pool
from falaj.backends.postgres_transaction import PostgresTransaction, translate_errors
from falaj.core.errors import Invalid
from falaj.core.ports import SeriesBlock, StoreTransaction

_TEXT_TYPE = 'TEXT COLLATE "C" NOT NULL'
_SCHEMA_STATEMENTS = (
    f"""CREATE TABLE IF NOT EXISTS blocks (
        tenant {_TEXT_TYPE}, series {_TEXT_TYPE}, shelf {_TEXT_TYPE}, id {_TEXT_TYPE}, zone {_TEXT_TYPE},
        low {_TEXT_TYPE}, high {_TEXT_TYPE},
        length BIGINT NOT NULL, at DOUBLE PRECISION NOT NULL, data BYTEA NOT NULL, told BOOLEAN NOT NULL,
        xid BIGINT NOT NULL DEFAULT pg_current_xact_id()::text::bigint, PRIMARY KEY (tenant, series, id))""",
    "CREATE INDEX IF NOT EXISTS blocks_shelf ON blocks (tenant, series, shelf, low, high, id)",
    "CREATE INDEX IF NOT EXISTS blocks_told ON blocks (tenant, xid) WHERE told",
    # Sealed bytes do not compress; trying costs more than it saves.
    "ALTER TABLE blocks ALTER COLUMN data SET STORAGE EXTERNAL",
    # After a restore the numbers may be another cluster's, ahead of ours: those blocks would be told for ever.
    "UPDATE blocks SET xid = 0 WHERE told AND xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint",
)
_BLOCK_COLUMNS = "tenant, series, shelf, id, zone, low, high, length, at, data, told"
_COLUMN_TYPES = (*["text"] * 7, "bigint", "float8", "bytea", "bool")
# All of them in one statement, which commits by itself; where it rides, the ledger says on which condition.
_INSERT_BLOCKS = f"""INSERT INTO blocks ({_BLOCK_COLUMNS})
    SELECT * FROM unnest({", ".join(f"%b::{kind}[]" for kind in _COLUMN_TYPES)}) WHERE true ON CONFLICT DO NOTHING"""  # noqa: S608 # nosec B608
_SELECT_BLOCKS = f"""SELECT {_BLOCK_COLUMNS} FROM blocks
    WHERE tenant = %s AND series = ANY(%s) AND shelf = %s AND high >= %s ORDER BY series, low, high, id LIMIT %s"""  # noqa: S608 # nosec B608
_SELECT_ALL, _ROWS_PER_FETCH = f"SELECT {_BLOCK_COLUMNS} FROM blocks", 500  # noqa: S608 # nosec B608
_SELECT_NOW = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text"
# One statement, one snapshot: what it does not see commits behind its cursor.
_SELECT_CHANGES = f"""SELECT now.xmin, {_BLOCK_COLUMNS} FROM ({_SELECT_NOW}) AS now (xmin)
    LEFT JOIN blocks ON tenant = %s AND xid >= %s AND told ORDER BY xid, id"""  # noqa: S608 # nosec B608
_DELETE_BLOCKS = "DELETE FROM blocks WHERE tenant = %s AND series = %s AND id = ANY(%s)"
_DELETE_SERIES = "DELETE FROM blocks WHERE tenant = %s AND series = %s"
_DELETE_EXPIRED = "DELETE FROM blocks WHERE tenant = %s AND left(series, %s) = %s AND at < %s"
_SCHEMA_LOCK_ID = 0x66616C616B


class PostgresSeriesStore:
    """`postgresql://user@host/database?...`, the ledger's own database or another.

    Options: `connections`, the most this process opens (default 8); `wait_s`, how long a call waits for the server.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        settings = options or {}
        self._url = url
        wait_s = float(settings.get("wait_s", 10.0))
        self._pool = create_pool(url, int(settings.get("connections", 8)), wait_s)
        try:
            with translate_errors():
                self._pool.open(wait=True, timeout=wait_s)
            with translate_errors(), self._pool.connection() as connection, connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK_ID,))
                for statement in _SCHEMA_STATEMENTS:
                    connection.execute(statement)
        except BaseException:
            self._pool.close()
            raise

    def append(self, blocks: Sequence[SeriesBlock]) -> None:
        """Add blocks; durable on return."""
        with translate_errors(may_have_committed=True), self._pool.connection() as connection:
            connection.execute(_INSERT_BLOCKS, _to_columns(blocks))

    def ride(self, blocks: Sequence[SeriesBlock], transaction: StoreTransaction) -> bool:
        """Add blocks in a transaction of the ledger, where it lies in the same database."""
        if not isinstance(transaction, (PostgresTransaction, GroupMember)) or transaction.url != self._url:
            return False
        transaction.ride(_INSERT_BLOCKS, blocks)
        return True

    def read(
        self, tenant: str, series: Sequence[str], tier: str, from_position: str = "", limit: int = 1_000_000
    ) -> list[SeriesBlock]:
        """Blocks of a shelf, in order."""
        with translate_errors(), self._pool.connection() as connection:
            return _to_blocks(
                connection.execute(_SELECT_BLOCKS, (tenant, list(series), tier, from_position, limit), binary=True)
            )

    def changes(self, tenant: str, after: str = "") -> tuple[list[SeriesBlock], str]:
        """What was added since a cursor, and the cursor of now."""
        if after and not after.isdigit():
            raise Invalid(f"{after[:80]!r} is no cursor of changes", "use the one that was given")
        with translate_errors(), self._pool.connection() as connection:
            if not after:
                ((now,),) = connection.execute(_SELECT_NOW)
                return [], now
            rows = connection.execute(_SELECT_CHANGES, (tenant, int(after)), binary=True).fetchall()
            return [SeriesBlock._make(row[1:]) for row in rows if row[1] is not None], rows[0][0]

    def swap(self, tenant: str, series: str, removed_ids: Sequence[str], new_blocks: Sequence[SeriesBlock]) -> bool:
        """Put blocks in the place of others, or do nothing."""
        with (
            translate_errors(may_have_committed=True),
            self._pool.connection() as connection,
            connection.transaction() as transaction,
        ):
            is_swapped = connection.execute(_DELETE_BLOCKS, (tenant, series, list(removed_ids))).rowcount == len(
                set(removed_ids)
            )
            if not is_swapped:
                raise psycopg.Rollback(transaction)
            connection.execute(_INSERT_BLOCKS, _to_columns(new_blocks))
        return is_swapped

    def delete(self, tenant: str, series: str) -> None:
        """Remove a series whole."""
        with translate_errors(may_have_committed=True), self._pool.connection() as connection:
            connection.execute(_DELETE_SERIES, (tenant, series))

    def expire(self, tenant: str, prefix: str, written_before: float) -> int:
        """Remove what is older."""
        with translate_errors(may_have_committed=True), self._pool.connection() as connection:
            return connection.execute(_DELETE_EXPIRED, (tenant, len(prefix), prefix, written_before)).rowcount

    def dump(self) -> Iterator[SeriesBlock]:
        """Every block, as they lie."""
        with (
            translate_errors(),
            self._pool.connection() as connection,
            connection.transaction(),
            connection.cursor("falaj_series", binary=True) as rows,
        ):
            rows.itersize = _ROWS_PER_FETCH
            for row in rows.execute(_SELECT_ALL):
                yield SeriesBlock._make(row)

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()


def _to_columns(blocks: Sequence[SeriesBlock]) -> list[list[Any]]:
    return [list(column) for column in zip(*blocks, strict=True)] or [[] for _ in _COLUMN_TYPES]


def _to_blocks(rows: psycopg.Cursor[Any]) -> list[SeriesBlock]:
    return [SeriesBlock._make(row) for row in rows]
