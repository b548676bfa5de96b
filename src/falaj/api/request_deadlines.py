"""Deadlines: requests that take too long are ended, by one timer for all instead of one for each."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, Protocol

MIN_CHECK_INTERVAL_S = 0.05


class CancellableTask(Protocol):
    """What has a deadline: a task, or whatever else can be ended."""

    def get_loop(self) -> asyncio.AbstractEventLoop: ...
    def cancel(self) -> Any: ...


class RequestDeadlines:
    """Tasks and when they must be done. Looking a few times in each span is exact enough and costs a request little."""

    def __init__(self, span_s: float, must_cancel_all: Callable[[], bool] = lambda: False) -> None:
        """While `must_cancel_all` holds, every open task is ended: what it waits for will not answer in time."""
        self._span_s, self._must_cancel_all = span_s, must_cancel_all
        self._deadline_by_task: dict[CancellableTask, float] = {}
        self._cancelled_tasks: set[CancellableTask] = set()
        self._extended_tasks: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        """Begin to look."""
        loop = asyncio.get_running_loop()
        now = math.inf if self._must_cancel_all() else loop.time()
        for task in [task for task, deadline in self._deadline_by_task.items() if deadline < now]:
            del self._deadline_by_task[task]
            if isinstance(task, asyncio.Future):
                self._cancelled_tasks.add(task)  # it is told by an error, and has to know that it was we
            task.cancel()
        loop.call_later(max(MIN_CHECK_INTERVAL_S, min(1.0, self._span_s / 4)), self.start)

    def open(self, task: CancellableTask, span_count: float = 1.0) -> None:
        """The task has so many spans from now."""
        self._deadline_by_task[task] = task.get_loop().time() + self._span_s * span_count

    def close(self, task: CancellableTask) -> None:
        """The task may take what it takes from here on."""
        self._deadline_by_task.pop(task, None)

    def spare(self, task: "asyncio.Task[object]", span_count: float) -> None:
        """The task may take longer than others: so many spans, or with 0 what it takes."""
        self._extended_tasks.add(task)
        if span_count:
            self.open(task, span_count)
        else:
            self.close(task)

    def hurried(self, task: "asyncio.Task[object]") -> bool:
        """Whether the task, which is over, was to be done within one span, like most."""
        if task in self._extended_tasks:
            self._extended_tasks.discard(task)
            return False
        return True

    def ended(self, task: "asyncio.Task[object]") -> bool:
        """True when it was we who cancelled the task; it goes on from there."""
        if task not in self._cancelled_tasks:
            return False
        self._cancelled_tasks.discard(task)
        task.uncancel()
        return True
