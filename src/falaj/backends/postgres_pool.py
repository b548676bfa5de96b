"""The pool of connections to PostgreSQL. It lends the one that came back last: its statements are prepared, and the
engine's process at its other end has at hand what they need. In turn, each of many would be asked now and then, cold.
"""

from collections import deque
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from falaj.backends.postgres_txn import check_alive

HOW: dict[str, Any] = {"autocommit": True, "connect_timeout": 5, "application_name": "falaj"}
"""How every connection of ours is opened."""


class _LastFirst(deque[Any]):
    """What is put in last comes out first."""

    def append(self, item: Any, /) -> None:
        self.appendleft(item)


def make_pool(url: str, most: int, wait_s: float) -> "ConnectionPool[psycopg.Connection[Any]]":
    """A pool of up to so many connections, not open yet; a call waits so long for one."""
    pool = ConnectionPool(
        url, min_size=1, max_size=most, timeout=wait_s, max_idle=60.0, kwargs=HOW, check=check_alive, open=False
    )
    pool._pool = _LastFirst()  # noqa: SLF001 - it has no setting for the order
    return pool
