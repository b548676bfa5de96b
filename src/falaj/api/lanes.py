"""Lanes: where sync verbs run for an async edge. Verbs that queue together commit together, and are answered then.

A lane is one thread or, for short calls of an embedded house, the event loop itself. It takes what waits, runs each
call inside one group of the ledger, and wakes the event loop once for all of them. Calls that act outside the ledger,
and streams, run in a pool so that no lane waits for a disk.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from falaj.core.errors import Stale, Unavailable

BATCH = 256
WAITING = 4096
OUTSIDE = 32
TOGETHER = 3
"""How often calls are tried together when an engine turns their group away."""


class Outcome(NamedTuple):
    """What a call gave, or the error that ended it."""

    value: Any
    error: BaseException | None = None

    def unwrap(self) -> Any:
        """The value, or the error raised."""
        if self.error is not None:
            raise self.error
        return self.value


# Set by `start`; using lanes before that is a bug and fails on this name.
_NO_LOOP: asyncio.AbstractEventLoop = None  # type: ignore[assignment]


class _Job(NamedTuple):
    future: asyncio.Future[Outcome]
    run: Callable[..., Any]
    args: tuple[Any, ...]


class Lanes:
    """The threads behind one event loop."""

    def __init__(
        self, group: Callable[[], AbstractContextManager[None]], lanes: int = 1, *, inline: bool = False
    ) -> None:
        """`inline`: short calls run on the event loop itself, for a house in which none of them leaves the process."""
        self._group = group
        self._inline = inline
        self._together_soon: list[_Job] = []
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(OUTSIDE, thread_name_prefix="outside")
        self._threads = [threading.Thread(target=self._drive, name=f"lane-{n}", daemon=True) for n in range(lanes)]
        self._loop: asyncio.AbstractEventLoop = _NO_LOOP
        self.batches = 0
        self.calls = 0

    def start(self) -> None:
        """Open the lanes to the running event loop."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish what is queued, then end."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=30)
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def waiting(self) -> int:
        """Calls that no lane has taken yet."""
        return self._queue.qsize()

    def short(self, run: Callable[..., Any], *args: Any) -> asyncio.Future[Outcome]:
        """Run a call that only writes a little, together with the others of this moment; durable when answered."""
        if not self._inline:
            return self.inside(run, *args)
        if not self._together_soon:
            self._loop.call_soon(self._run_soon)
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._together_soon.append(_Job(future, run, args))
        return future

    def inside(self, run: Callable[..., Any], *args: Any) -> asyncio.Future[Outcome]:
        """Run a short call in a lane; the outcome comes when it is durable."""
        if self._queue.qsize() >= WAITING:
            raise Unavailable("too many calls are waiting", "try again shortly, or add a replica")
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._queue.put(_Job(future, run, args))
        return future

    def outside(self, run: Callable[..., Any], *args: Any) -> asyncio.Future[Outcome]:
        """Run a call that may take long, beside the lanes."""
        return self._loop.run_in_executor(self._pool, attempt, run, args)

    def _run_soon(self) -> None:
        batch, self._together_soon = self._together_soon[:BATCH], self._together_soon[BATCH:]
        if self._together_soon:
            self._loop.call_soon(self._run_soon)
        _deliver(batch, self._together(batch))

    def _drive(self) -> None:
        while (job := self._queue.get()) is not None:
            batch, last = [job], False
            while len(batch) < BATCH:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    last = True
                    break
                batch.append(more)
            outcomes = self._together(batch)
            self._loop.call_soon_threadsafe(_deliver, batch, outcomes)
            if last:
                return

    def _together(self, batch: Sequence[_Job]) -> list[Outcome]:
        self.batches += 1
        self.calls += len(batch)
        for _ in range(TOGETHER):
            outcomes: list[Outcome] = []
            ended = attempt(self._all, (batch, outcomes))
            if ended.error is None:
                return outcomes
            if not isinstance(ended.error, Stale):
                return [Outcome(None, ended.error)] * len(batch)
        # Nothing of them happened: other writers met them. Alone, each meets fewer, and tries again by itself.
        return [attempt(job.run, job.args) for job in batch]

    def _all(self, batch: Sequence[_Job], outcomes: list[Outcome]) -> None:
        with self._group():
            outcomes += [attempt(job.run, job.args) for job in batch]


def attempt(run: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    """Run it and keep whatever it raises: the HTTP edge, where one broken call must not end its neighbours."""
    try:
        return Outcome(run(*args))
    except Exception as error:  # noqa: BLE001 - the one place of the edge; the renderer logs what is not ours
        return Outcome(None, error)


def _deliver(batch: Sequence[_Job], outcomes: Sequence[Outcome]) -> None:
    for job, outcome in zip(batch, outcomes, strict=True):
        if not job.future.done():
            job.future.set_result(outcome)
