"""Deadlines: requests that take too long are ended, by one timer for all instead of one for each."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, Protocol

FINEST_S = 0.05


class Timed(Protocol):
    """What has a deadline: a task, or whatever else can be ended."""

    def get_loop(self) -> asyncio.AbstractEventLoop: ...
    def cancel(self) -> Any: ...


class Deadlines:
    """Tasks and when they must be done. Looking a few times in each span is exact enough and costs a request little."""

    def __init__(self, span_s: float, ends_all: Callable[[], bool] = lambda: False) -> None:
        """While `ends_all` holds, every open task is ended: what it waits for will not answer in time."""
        self._span_s, self._ends_all = span_s, ends_all
        self._open: dict[Timed, float] = {}
        self._late: set[Timed] = set()
        self._unhurried: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        """Begin to look."""
        loop = asyncio.get_running_loop()
        now = math.inf if self._ends_all() else loop.time()
        for task in [task for task, until in self._open.items() if until < now]:
            del self._open[task]
            if isinstance(task, asyncio.Future):
                self._late.add(task)  # it is told by an error, and has to know that it was we
            task.cancel()
        loop.call_later(max(FINEST_S, min(1.0, self._span_s / 4)), self.start)

    def open(self, task: Timed, times: float = 1.0) -> None:
        """The task has so many spans from now."""
        self._open[task] = task.get_loop().time() + self._span_s * times

    def close(self, task: Timed) -> None:
        """The task may take what it takes from here on."""
        self._open.pop(task, None)

    def spare(self, task: "asyncio.Task[object]", times: float) -> None:
        """The task may take longer than others: so many spans, or with 0 what it takes."""
        self._unhurried.add(task)
        if times:
            self.open(task, times)
        else:
            self.close(task)

    def hurried(self, task: "asyncio.Task[object]") -> bool:
        """Whether the task, which is over, was to be done within one span, like most."""
        if task in self._unhurried:
            self._unhurried.discard(task)
            return False
        return True

    def ended(self, task: "asyncio.Task[object]") -> bool:
        """True when it was we who cancelled the task; it goes on from there."""
        if task not in self._late:
            return False
        self._late.discard(task)
        task.uncancel()
        return True
