"""Records refusals of the edge in the audit log: each one, or, above a rate by caller and peer, their number.

No refusal is lost: what is above the rate is counted by caller and peer and written as one event within seconds, and
when the server stops. One peer's flood therefore neither fills the log nor hides the refusals of another.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from falaj.api.call_executor import CallExecutor
from falaj.api.identity_cache import get_peer_network
from falaj.api.rate_limits import TokenBuckets
from falaj.api.routes import RequestContext
from falaj.core.context import Actor

if TYPE_CHECKING:
    from falaj.server import Server

TOTAL_RATE_FACTOR = 10.0
"""All callers and peers together may leave this many times the events a second that one of them may."""
FLUSH_INTERVAL_S = 2.0
MAX_FLUSHED_SUMMARIES = 100
"""Summaries that are written at once, every `FLUSH_S` seconds."""
MAX_COUNTED_CALLERS = 4096
"""Callers and peers that are counted apart; refusals of any more are counted together."""
SUMMARY_ACTION = "refused"
"""The action of an event that stands for many refusals."""


class _CallerAndPeer(NamedTuple):
    actor: Actor | None
    peer: str


class _DenialCount(NamedTuple):
    number: int
    first: float
    last: float
    sample: str


OTHER_CALLERS = _CallerAndPeer(None, "others")


class DenialLog:
    """Writes refusals to the log of the caller's tenant, or to the system tenant's where the caller has no identity."""

    def __init__(self, server: "Server", call_executor: CallExecutor, clock: Callable[[], float]) -> None:
        rate = server.settings.limits.denials_per_s
        self._server, self._call_executor, self._clock = server, call_executor, clock
        self._rates, self._total_rate = (
            TokenBuckets(rate, rate),
            TokenBuckets(TOTAL_RATE_FACTOR * rate, TOTAL_RATE_FACTOR * rate),
        )
        self._counts: dict[_CallerAndPeer, _DenialCount] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._write_task: asyncio.Task[None] | None = None

    async def record(self, request: RequestContext, reason: str) -> None:
        """Write one event before the caller is answered, or count it."""
        caller, now = _CallerAndPeer(request.actor, get_peer_network(request.peer)), self._clock()
        action = f"{request.method} {request.path[:200].decode('ascii', 'replace')}"
        key = (caller.actor and (caller.actor.tenant, caller.actor.id), caller.peer)
        if self._rates.take(key, now) <= 0.0 and self._total_rate.take("all", now) <= 0.0:
            _, error = await self._call_executor.inside(self._record_denial_event, caller, action, reason)
            if error is None:
                return
        self._add_count(caller, _DenialCount(1, time.time(), time.time(), f"{action}: {reason[:200]}"))

    async def flush(self) -> None:
        """Write everything that was counted; called when the server stops."""
        if self._timer is not None:
            self._timer.cancel()
        if self._write_task is not None:
            await self._write_task
        while self._counts and await self._write_oldest():
            pass

    def _add_count(self, caller: _CallerAndPeer, added_count: _DenialCount) -> None:
        if caller not in self._counts and len(self._counts) >= MAX_COUNTED_CALLERS:
            caller = OTHER_CALLERS
        old_count = self._counts.get(caller)
        if old_count is not None:
            newest_sample = added_count.sample if added_count.last >= old_count.last else old_count.sample
            first_and_last = min(old_count.first, added_count.first), max(old_count.last, added_count.last)
            added_count = _DenialCount(old_count.number + added_count.number, *first_and_last, newest_sample)
        self._counts[caller] = added_count
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._start_writing)

    def _start_writing(self) -> None:
        self._timer = None
        self._write_task = asyncio.get_running_loop().create_task(self._write_later())

    async def _write_later(self) -> None:
        await self._write_oldest()
        if self._counts and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._start_writing)

    async def _write_oldest(self) -> bool:
        """Write the oldest counts by one commit; where that fails they stay, and are written later."""
        batch = {caller: self._counts.pop(caller) for caller in list(self._counts)[:MAX_FLUSHED_SUMMARIES]}
        _, error = await self._call_executor.inside(self._record_counted_denials, batch)
        if error is not None:
            for caller, count in batch.items():
                self._add_count(caller, count)
        return error is None

    def _record_counted_denials(self, batch: dict[_CallerAndPeer, _DenialCount]) -> None:
        for caller, count in batch.items():
            times = " and ".join(datetime.fromtimestamp(at, UTC).isoformat("T", "seconds") for at in count[1:3])
            reason = f"{count.number} more from peer {caller.peer} between {times}; the last: {count.sample}"
            self._record_denial_event(caller, SUMMARY_ACTION, reason)

    def _record_denial_event(self, caller: _CallerAndPeer, action: str, reason: str) -> None:
        ctx = self._server.context(caller.actor) if caller.actor is not None else None
        self._server.deny(ctx, action, reason)
