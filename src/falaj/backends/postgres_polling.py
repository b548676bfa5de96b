"""What pollers share: threads that look for news again and again cause one question a second together.

Inside `polling()` a thread accepts answers that are up to POLL_S old. A commit in this process, or a notice of one
elsewhere, makes the next answer a fresh one; POLL_S is the bound where a notice was lost.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from falaj.backends.sql import statements as sql

SELECT_EPOCH = "(SELECT value FROM meta WHERE name = 'epoch')"
FINAL_XID = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
POLL_INTERVAL_S = 1.5
MIN_POLL_INTERVAL_S = 0.25
"""While commits make each look stale at once, looks are this far apart and pollers ask for themselves between them."""
CLOCK_CHECK_INTERVAL_S = 60.0
_MAX_SEQUENCE = 2**63 - 1
# The newest event that is committed, and how far the log is final; one statement is one snapshot.
_SELECT_LOG_ENDS = f"""SELECT {SELECT_EPOCH}, {FINAL_XID}, newest.epoch, newest.xid, newest.seq
    FROM (SELECT 1) AS always
    LEFT JOIN (SELECT epoch, xid, seq FROM events ORDER BY epoch DESC, xid DESC, seq DESC LIMIT 1) AS newest ON true"""  # noqa: S608 # nosec B608
_SELECT_LEASES = "SELECT name, owner, until FROM leases WHERE name >= 'loop:' AND name < 'loop;'"
_SELECT_CLOCK = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
QueryRows = Callable[[str, Sequence[Any]], list[Any]]


class LogEnds(NamedTuple):
    """How far the log was at one moment, as cursors."""

    newest: str
    """The newest event that is committed; empty in an empty log."""
    end: str
    """The cursor behind everything that is final."""


class PollState:
    """The shared looks of one process."""

    def __init__(self, query_rows: QueryRows) -> None:
        self._query_rows = query_rows
        self._local = threading.local()
        self._poll_lock = threading.Lock()
        self._generation = 0
        self._cached_ends: tuple[int, float, LogEnds] = (-1, -POLL_INTERVAL_S, LogEnds("", ""))
        self._cached_logs: tuple[str, list[tuple[str, str]]] = ("", [])
        self._cached_leases: tuple[float, dict[str, tuple[str, float]]] = (-POLL_INTERVAL_S, {})
        self._owner_by_lease: dict[str, str] = {}
        self._clock_offset: tuple[float, float] = (-CLOCK_CHECK_INTERVAL_S, 0.0)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """While entered, this thread accepts answers that are up to POLL_S old."""
        was_polling, self._local.polling = self.is_polling, True
        try:
            yield
        finally:
            self._local.polling = was_polling

    @property
    def is_polling(self) -> bool:
        """Whether this thread does."""
        return bool(getattr(self._local, "polling", False))

    def invalidate(self) -> None:
        """Something was committed: the next look at the log is a fresh one."""
        self._generation += 1

    def news(self) -> LogEnds | None:
        """The last look at the log, or a new one; None for threads that do not poll, and under load."""
        if not self.is_polling:
            return None
        with self._poll_lock:
            generation, polled_at, log_ends = self._cached_ends
            now = time.monotonic()
            if generation == self._generation and now - polled_at < POLL_INTERVAL_S:
                return log_ends
            if now - polled_at < MIN_POLL_INTERVAL_S:
                return None
            generation = self._generation  # before it is asked: a commit meanwhile makes it stale
            ((epoch, final_xid, *newest),) = self._query_rows(_SELECT_LOG_ENDS, ())
            log_ends = LogEnds(
                sql.format_cursor(*newest) if newest[0] is not None else "",
                sql.format_cursor(epoch, final_xid - 1, _MAX_SEQUENCE),
            )
            self._cached_ends = generation, now, log_ends
            return log_ends

    def is_silent_after(self, cursor: str) -> bool:
        """Whether a poller that has read up to `cursor` has nothing to read: no event is behind it.

        Where the newest event is final, whatever commits later stands behind the end.
        """
        log_ends = self.news()
        return log_ends is not None and log_ends.newest <= min(cursor, log_ends.end)

    def logs(self, read_logs: Callable[[], list[tuple[str, str]]]) -> list[tuple[str, str]]:
        """The logs; a poller asks again only after new events."""
        log_ends = self.news()
        if log_ends is None:
            return read_logs()
        newest, logs = self._cached_logs
        if not logs or newest != log_ends.newest or log_ends.newest > log_ends.end:
            logs = read_logs()
            self._cached_logs = log_ends.newest, logs
        return logs

    def is_held_by_another(self, lease: str, owner: str, now: float, latest_valid_end: float) -> bool:
        """Whether a poller need not try to take a lease; one that ends after `latest_valid_end` was written by a wrong
        clock."""
        if not self.is_polling or not lease.startswith("loop:") or self._owner_by_lease.get(lease) == owner:
            return False
        with self._poll_lock:
            polled_at, leases = self._cached_leases
            if time.monotonic() - polled_at >= POLL_INTERVAL_S:
                rows = self._query_rows(_SELECT_LEASES, ())
                leases = {name: (holder, expires_at) for name, holder, expires_at in rows}
                self._cached_leases = time.monotonic(), leases
        holder, expires_at = leases.get(lease, ("", 0.0))
        return bool(holder) and holder != owner and now < expires_at <= latest_valid_end

    def note_lease(self, lease: str, owner: str, token: int | None) -> None:
        """Remember whether a lease was granted: its holder renews it without reading the leases of others."""
        self._owner_by_lease[lease] = owner if token is not None else ""

    def server_time(self) -> float:
        """The server's clock, as of a look at most CLOCK_S ago."""
        checked_at, offset = self._clock_offset
        now = time.monotonic()
        if now - checked_at >= CLOCK_CHECK_INTERVAL_S:
            ((server_clock,),) = self._query_rows(_SELECT_CLOCK, ())
            offset = server_clock - time.monotonic()
            self._clock_offset = now, offset
        return now + offset
