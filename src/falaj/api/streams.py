"""Streams: those that callers hold open in this process, how many each of them may, and what wakes them."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from falaj.api.gate import too_fast
from falaj.api.wire import ELSEWHERE
from falaj.core.context import Actor
from falaj.store.ledger import Ledger

HEARTBEAT_S = 15.0
LAST = f"retry: 250\n{ELSEWHERE}\n\n".encode()
"""The last word of a stream that ends because we go: listen on elsewhere, from the last event seen."""


class Streams:
    """Streams of one sort. Every commit is a turn: whoever remembers the last one misses none."""

    def __init__(self, ledger: Ledger, most: int, sort: str) -> None:
        self._ledger, self._most, self._sort = ledger, most, sort
        self._open: Counter[tuple[str, str]] = Counter()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved = asyncio.Event()
        self._told = False
        self.turn = 0

    @contextmanager
    def one(self, actor: Actor) -> Iterator[None]:
        """One more of this caller, as long as it lasts."""
        key = (actor.tenant, actor.id)
        if self._open[key] >= self._most:
            raise too_fast(HEARTBEAT_S, f"you have {self._most} {self._sort} open")
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._ledger.on_commit(self._committed)
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            self._open += Counter()  # forgets those at zero

    async def moved(self, turn: int, *ends: "asyncio.Future[Any]") -> bool:
        """True when that turn is over or one of the ends has come, False when nothing happened for a heartbeat."""
        if turn != self.turn:
            return True
        news = asyncio.ensure_future(self._moved.wait())
        done, _ = await asyncio.wait({news, *ends}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        return bool(done)

    def wake(self) -> None:
        """Begin the next turn."""
        self._told, self.turn = False, self.turn + 1
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def _committed(self) -> None:
        """From whatever thread committed; one wake-up is enough however many commits came."""
        if self._open and self._loop is not None and not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self.wake)
