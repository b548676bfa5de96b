"""Streams: those that callers hold open in this process, how many each of them may, and what wakes them."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from falaj.api.argument_decoding import RECONNECT_COMMENT
from falaj.api.authentication import rate_limit_error
from falaj.core.context import Actor
from falaj.store.ledger import Ledger

HEARTBEAT_INTERVAL_S = 15.0
LAST_EVENT_CHUNK = f"retry: 250\n{RECONNECT_COMMENT}\n\n".encode()
"""The last word of a stream that ends because we go: listen on elsewhere, from the last event seen."""


class OpenStreams:
    """Streams of one sort. Every commit is a turn: whoever remembers the last one misses none."""

    def __init__(self, ledger: Ledger, max_per_caller: int, stream_kind: str) -> None:
        self._ledger, self._max_per_caller, self._stream_kind = ledger, max_per_caller, stream_kind
        self._open: Counter[tuple[str, str]] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._commit_event = asyncio.Event()
        self._is_wake_scheduled = False
        self.turn = 0

    @contextmanager
    def one(self, actor: Actor) -> Iterator[None]:
        """One more of this caller, as long as it lasts."""
        key = (actor.tenant, actor.id)
        if self._open[key] >= self._max_per_caller:
            raise rate_limit_error(HEARTBEAT_INTERVAL_S, f"you have {self._max_per_caller} {self._stream_kind} open")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._ledger.on_commit(self._on_commit)
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            self._open += Counter()  # forgets those at zero

    async def moved(self, commit_number: int, *end_futures: "asyncio.Future[Any]") -> bool:
        """True when that turn is over or one of the ends has come, False when nothing happened for a heartbeat."""
        if commit_number != self.turn:
            return True
        commit_waiter = asyncio.ensure_future(self._commit_event.wait())
        done, _ = await asyncio.wait(
            {commit_waiter, *end_futures}, timeout=HEARTBEAT_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED
        )
        commit_waiter.cancel()
        return bool(done)

    def wake(self) -> None:
        """Begin the next turn."""
        self._is_wake_scheduled, self.turn = False, self.turn + 1
        former_event, self._commit_event = self._commit_event, asyncio.Event()
        former_event.set()

    def _on_commit(self) -> None:
        """From whatever thread committed; one wake-up is enough however many commits came."""
        if self._open and self._loop is not None and not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            self._loop.call_soon_threadsafe(self.wake)
