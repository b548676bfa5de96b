"""Requests that wait for a first replica: few enough to answer for, and not for ever."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from falaj.gateway.table import Name

MOST_HELD, MOST_BYTES = 4096, 256 << 20
SWEEP_S = 0.1
WAKE_S = 2.0
"""So long is waited before an endpoint is woken again."""


class Held(Protocol):
    """A request that waits."""

    asleep: bool
    """Its endpoint may have to be woken."""
    over: bool

    @property
    def name(self) -> Name: ...
    @property
    def size(self) -> int: ...
    @property
    def until(self) -> float: ...
    def go(self) -> None: ...
    def tired(self) -> None: ...


class Holding:
    """All that wait. `wake` is called for an endpoint, off the loop's thread if it takes long."""

    def __init__(self, wake: Callable[[Name], Any]) -> None:
        self._wake = wake
        self._held: deque[Held] = deque()
        self._bytes = 0
        self._woken: dict[Name, float] = {}
        self.loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._soon = self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, one: Held) -> bool:
        """Let it wait; False when too many do already."""
        if self._closed or len(self._held) >= MOST_HELD or self._bytes + one.size > MOST_BYTES:
            return False
        self._held.append(one)
        self._bytes += one.size
        if one.asleep:
            self._rouse(one.name)
        if self._timer is None:
            self._timer = self.loop.call_later(SWEEP_S, self._sweep)
        return True

    def release(self) -> None:
        """Something changed: everybody looks again, once in this turn of the loop."""
        if self._held and not self._soon:
            self._soon = True
            self.loop.call_soon(self._again)

    def close(self) -> None:
        """We end: nobody waits here for a replica any more; another gateway may have one."""
        self._closed = True
        held, self._held, self._bytes = self._held, deque(), 0
        for one in held:
            if not one.over:
                one.tired()

    def _again(self) -> None:
        self._soon = False
        held, self._held, self._bytes = self._held, deque(), 0
        for one in held:
            if not one.over:
                one.go()  # whoever finds nobody is held again

    def _sweep(self) -> None:
        self._timer = None
        now = time.monotonic()
        held, self._held, self._bytes = self._held, deque(), 0
        for one in held:
            if one.over:
                continue
            if one.until <= now:
                one.tired()
                continue
            self._held.append(one)
            self._bytes += one.size
        for name in {one.name for one in self._held if one.asleep}:
            self._rouse(name)
        if self._held:
            self._timer = self.loop.call_later(SWEEP_S, self._sweep)

    def _rouse(self, name: Name) -> None:
        now = time.monotonic()
        if now - self._woken.get(name, -WAKE_S) >= WAKE_S:
            self._woken[name] = now
            self._wake(name)
