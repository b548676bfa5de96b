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

EPOCH = "(SELECT value FROM meta WHERE name = 'epoch')"
FINAL = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
POLL_S = 1.5
LOADED_S = 0.25
"""While commits make each look stale at once, looks are this far apart and pollers ask for themselves between them."""
CLOCK_S = 60.0
_LAST = 2**63 - 1
# The newest event that is committed, and how far the log is final; one statement is one snapshot.
_NEWS = f"""SELECT {EPOCH}, {FINAL}, newest.epoch, newest.xid, newest.seq FROM (SELECT 1) AS always
    LEFT JOIN (SELECT epoch, xid, seq FROM events ORDER BY epoch DESC, xid DESC, seq DESC LIMIT 1) AS newest ON true"""  # noqa: S608 # nosec B608
_LEASES = "SELECT name, owner, until FROM leases WHERE name >= 'loop:' AND name < 'loop;'"
_CLOCK = "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
Ask = Callable[[str, Sequence[Any]], list[Any]]


class News(NamedTuple):
    """How far the log was at one moment, as cursors."""

    newest: str
    """The newest event that is committed; empty in an empty log."""
    end: str
    """The cursor behind everything that is final."""


class PollState:
    """The shared looks of one process."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._local = threading.local()
        self._looking = threading.Lock()
        self._generation = 0
        self._news: tuple[int, float, News] = (-1, -POLL_S, News("", ""))
        self._logs: tuple[str, list[tuple[str, str]]] = ("", [])
        self._leases: tuple[float, dict[str, tuple[str, float]]] = (-POLL_S, {})
        self._held: dict[str, str] = {}
        self._clock: tuple[float, float] = (-CLOCK_S, 0.0)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """While entered, this thread accepts answers that are up to POLL_S old."""
        before, self._local.polling = self.is_polling, True
        try:
            yield
        finally:
            self._local.polling = before

    @property
    def is_polling(self) -> bool:
        """Whether this thread does."""
        return bool(getattr(self._local, "polling", False))

    def invalidate(self) -> None:
        """Something was committed: the next look at the log is a fresh one."""
        self._generation += 1

    def news(self) -> News | None:
        """The last look at the log, or a new one; None for threads that do not poll, and under load."""
        if not self.is_polling:
            return None
        with self._looking:
            generation, at, news = self._news
            now = time.monotonic()
            if generation == self._generation and now - at < POLL_S:
                return news
            if now - at < LOADED_S:
                return None
            generation = self._generation  # before it is asked: a commit meanwhile makes it stale
            ((epoch, final, *newest),) = self._ask(_NEWS, ())
            news = News(sql.cursor(*newest) if newest[0] is not None else "", sql.cursor(epoch, final - 1, _LAST))
            self._news = generation, now, news
            return news

    def is_silent_after(self, cursor: str) -> bool:
        """Whether a poller that has read up to `cursor` has nothing to read: no event is behind it.

        Where the newest event is final, whatever commits later stands behind the end.
        """
        news = self.news()
        return news is not None and news.newest <= min(cursor, news.end)

    def logs(self, ask: Callable[[], list[tuple[str, str]]]) -> list[tuple[str, str]]:
        """The logs; a poller asks again only after new events."""
        news = self.news()
        if news is None:
            return ask()
        newest, logs = self._logs
        if not logs or newest != news.newest or news.newest > news.end:
            logs = ask()
            self._logs = news.newest, logs
        return logs

    def is_held_by_another(self, lease: str, owner: str, now: float, latest: float) -> bool:
        """Whether a poller need not try to take a lease; one that ends after `latest` was written by a wrong clock."""
        if not self.is_polling or not lease.startswith("loop:") or self._held.get(lease) == owner:
            return False
        with self._looking:
            at, leases = self._leases
            if time.monotonic() - at >= POLL_S:
                rows = self._ask(_LEASES, ())
                leases = {name: (holder, until) for name, holder, until in rows}
                self._leases = time.monotonic(), leases
        holder, until = leases.get(lease, ("", 0.0))
        return bool(holder) and holder != owner and now < until <= latest

    def note_lease(self, lease: str, owner: str, token: int | None) -> None:
        """Remember whether a lease was granted: its holder renews it without reading the leases of others."""
        self._held[lease] = owner if token is not None else ""

    def server_time(self) -> float:
        """The server's clock, as of a look at most CLOCK_S ago."""
        at, offset = self._clock
        now = time.monotonic()
        if now - at >= CLOCK_S:
            ((there,),) = self._ask(_CLOCK, ())
            offset = there - time.monotonic()
            self._clock = now, offset
        return now + offset
