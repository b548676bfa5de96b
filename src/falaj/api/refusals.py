"""Records refusals of the edge in the audit log: each one, or, above a rate by caller and peer, their number.

No refusal is lost: what is above the rate is counted by caller and peer and written as one event within seconds, and
when the server stops. One peer's flood therefore neither fills the log nor hides the refusals of another.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from falaj.api.identities import peer_network
from falaj.api.lanes import Lanes
from falaj.api.limits import Buckets
from falaj.api.routes import Ask
from falaj.core.context import Actor

if TYPE_CHECKING:
    from falaj.platform import House

TOTAL = 10.0
"""All callers and peers together may leave this many times the events a second that one of them may."""
FLUSH_S = 2.0
FLUSHED = 100
"""Summaries that are written at once, every `FLUSH_S` seconds."""
COUNTED = 4096
"""Callers and peers that are counted apart; refusals of any more are counted together."""
SUMMARY = "refused"
"""The action of an event that stands for many refusals."""


class _Who(NamedTuple):
    actor: Actor | None
    peer: str


class _Count(NamedTuple):
    number: int
    first: float
    last: float
    sample: str


OTHERS = _Who(None, "others")


class RefusalLog:
    """Writes refusals to the log of the caller's tenant, or to the system tenant's where the caller has no identity."""

    def __init__(self, house: "House", lanes: Lanes, clock: Callable[[], float]) -> None:
        rate = house.settings.limits.denials_per_s
        self._house, self._lanes, self._clock = house, lanes, clock
        self._rates, self._total = Buckets(rate, rate), Buckets(TOTAL * rate, TOTAL * rate)
        self._counts: dict[_Who, _Count] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    async def record(self, ask: Ask, reason: str) -> None:
        """Write one event before the caller is answered, or count it."""
        who, now = _Who(ask.actor, peer_network(ask.peer)), self._clock()
        action = f"{ask.method} {ask.path[:200].decode('ascii', 'replace')}"
        key = (who.actor and (who.actor.tenant, who.actor.id), who.peer)
        if self._rates.take(key, now) <= 0.0 and self._total.take("all", now) <= 0.0:
            _, error = await self._lanes.inside(self._deny, who, action, reason)
            if error is None:
                return
        self._count(who, _Count(1, time.time(), time.time(), f"{action}: {reason[:200]}"))

    async def flush(self) -> None:
        """Write everything that was counted; called when the server stops."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await self._writing
        while self._counts and await self._write_some():
            pass

    def _count(self, who: _Who, more: _Count) -> None:
        if who not in self._counts and len(self._counts) >= COUNTED:
            who = OTHERS
        old = self._counts.get(who)
        if old is not None:
            newer = more.sample if more.last >= old.last else old.sample
            times = min(old.first, more.first), max(old.last, more.last)
            more = _Count(old.number + more.number, *times, newer)
        self._counts[who] = more
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._start)

    def _start(self) -> None:
        self._timer = None
        self._writing = asyncio.get_running_loop().create_task(self._write_later())

    async def _write_later(self) -> None:
        await self._write_some()
        if self._counts and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._start)

    async def _write_some(self) -> bool:
        """Write the oldest counts by one commit; where that fails they stay, and are written later."""
        batch = {who: self._counts.pop(who) for who in list(self._counts)[:FLUSHED]}
        _, error = await self._lanes.inside(self._deny_counted, batch)
        if error is not None:
            for who, count in batch.items():
                self._count(who, count)
        return error is None

    def _deny_counted(self, batch: dict[_Who, _Count]) -> None:
        for who, count in batch.items():
            times = " and ".join(datetime.fromtimestamp(at, UTC).isoformat("T", "seconds") for at in count[1:3])
            reason = f"{count.number} more from peer {who.peer} between {times}; the last: {count.sample}"
            self._deny(who, SUMMARY, reason)

    def _deny(self, who: _Who, action: str, reason: str) -> None:
        ctx = self._house.context(who.actor) if who.actor is not None else None
        self._house.deny(ctx, action, reason)
