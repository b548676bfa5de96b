"""The pool of connections to PostgreSQL. It lends the one that came back last: its statements are prepared, and the
engine's process at its other end has at hand what they need. In turn, each of many would be asked now and then, cold.
"""

from collections import deque
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from falaj.backends.postgres_transaction import require_alive

CONNECTION_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 5,
    "application_name": "falaj",
    # A server that vanishes without closing its connections is noticed after about 15 to 25 seconds.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""How every connection of ours is opened."""
STATEMENT_TIMEOUT_S = 120
"""The longest that one statement of a call may run, waiting for locks included."""
SET_NO_TIMEOUT = "SET statement_timeout = 0"
"""Before statements that may take hours: steps of the schema, and a restore."""
SET_STATEMENT_TIMEOUT = f"SET statement_timeout = {1000 * STATEMENT_TIMEOUT_S}"


class _LastInFirstOut(deque[Any]):
    """What is put in last comes out first."""

    def append(self, item: Any, /) -> None:
        self.appendleft(item)


def create_pool(url: str, max_connections: int, wait_s: float) -> "ConnectionPool[psycopg.Connection[Any]]":
    """A pool of up to so many connections, not open yet; a call waits so long for one."""
    pool = ConnectionPool(
        url,
        min_size=1,
        max_size=max_connections,
        timeout=wait_s,
        max_idle=60.0,
        kwargs=CONNECTION_OPTIONS,
        configure=_set_statement_timeout,
        check=require_alive,
        open=False,
    )
    pool._pool = _LastInFirstOut()  # noqa: SLF001 - it has no setting for the order
    return pool


def _set_statement_timeout(connection: "psycopg.Connection[Any]") -> None:
    connection.execute(SET_STATEMENT_TIMEOUT)
