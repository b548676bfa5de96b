"""Requests that wait for a first replica: few enough to answer for, and not for ever."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from falaj.gateway.route_table import EndpointName

MAX_HELD_REQUESTS, MAX_HELD_BYTES = 4096, 256 << 20
SWEEP_INTERVAL_S = 0.1
WAKE_INTERVAL_S = 2.0
"""So long is waited before an endpoint is woken again."""


class HeldRequest(Protocol):
    """A request that waits."""

    asleep: bool
    """Its endpoint may have to be woken."""
    over: bool

    @property
    def name(self) -> EndpointName: ...
    @property
    def size(self) -> int: ...
    @property
    def until(self) -> float: ...
    def go(self) -> None: ...
    def tired(self) -> None: ...


class ColdStartQueue:
    """All that wait. `wake` is called for an endpoint, off the loop's thread if it takes long."""

    def __init__(self, wake_endpoint: Callable[[EndpointName], Any]) -> None:
        self._wake_endpoint = wake_endpoint
        self._held_requests: deque[HeldRequest] = deque()
        self._held_bytes = 0
        self._woken_at: dict[EndpointName, float] = {}
        self.loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_release_scheduled = self._is_closed = False

    def __len__(self) -> int:
        return len(self._held_requests)

    def hold(self, held_request: HeldRequest) -> bool:
        """Let it wait; False when too many do already."""
        if (
            self._is_closed
            or len(self._held_requests) >= MAX_HELD_REQUESTS
            or self._held_bytes + held_request.size > MAX_HELD_BYTES
        ):
            return False
        self._held_requests.append(held_request)
        self._held_bytes += held_request.size
        if held_request.asleep:
            self._wake_if_due(held_request.name)
        if self._timer is None:
            self._timer = self.loop.call_later(SWEEP_INTERVAL_S, self._sweep_expired)
        return True

    def release(self) -> None:
        """Something changed: everybody looks again, once in this turn of the loop."""
        if self._held_requests and not self._is_release_scheduled:
            self._is_release_scheduled = True
            self.loop.call_soon(self._release_all)

    def close(self) -> None:
        """We end: nobody waits here for a replica any more; another gateway may have one."""
        self._is_closed = True
        held_requests, self._held_requests, self._held_bytes = self._held_requests, deque(), 0
        for held_request in held_requests:
            if not held_request.over:
                held_request.tired()

    def _release_all(self) -> None:
        self._is_release_scheduled = False
        held_requests, self._held_requests, self._held_bytes = self._held_requests, deque(), 0
        for held_request in held_requests:
            if not held_request.over:
                held_request.go()  # whoever finds nobody is held again

    def _sweep_expired(self) -> None:
        self._timer = None
        now = time.monotonic()
        held_requests, self._held_requests, self._held_bytes = self._held_requests, deque(), 0
        for held_request in held_requests:
            if held_request.over:
                continue
            if held_request.until <= now:
                held_request.tired()
                continue
            self._held_requests.append(held_request)
            self._held_bytes += held_request.size
        for name in {held_request.name for held_request in self._held_requests if held_request.asleep}:
            self._wake_if_due(name)
        if self._held_requests:
            self._timer = self.loop.call_later(SWEEP_INTERVAL_S, self._sweep_expired)

    def _wake_if_due(self, name: EndpointName) -> None:
        now = time.monotonic()
        if now - self._woken_at.get(name, -WAKE_INTERVAL_S) >= WAKE_INTERVAL_S:
            self._woken_at[name] = now
            self._wake_endpoint(name)
