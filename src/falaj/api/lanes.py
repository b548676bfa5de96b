"""Lanes: where sync verbs run for an async edge. Verbs that queue together commit together, and are answered then.

A lane is one thread or, for short calls of an embedded house, the event loop itself. It takes what waits, runs each
call inside one group of the ledger, and wakes the event loop once for all of them. Questions have lanes of their own:
they meet no other writer, and need not wait for those who do. Calls that act outside the ledger, and streams, run in a
pool so that no lane waits for a disk.
"""

import asyncio
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from falaj.core.context import Actor
from falaj.core.errors import Stale, Unavailable
from falaj.core.ports import Courier, Key

BATCH = 256
WAITING = 4096
OUTSIDE = 32
VERIFYING = 16
"""Threads that verify callers; apart from those of streams and long calls, so that slow ones delay no verification."""
STREAMS, STREAMS_PER_CALLER = 64, 16
"""Threads that wait for bytes of callers: in sum, and for one caller. A caller may send slowly for hours."""
TOGETHER = 3
"""How often calls are tried together when an engine turns their group away."""
LEAST_S = 5.0
"""So long what runs may go on when all ends, whatever else is said."""
_yield = getattr(os, "sched_yield", lambda: None)  # not every system has it
_log = logging.getLogger(__name__)


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


class Waiter(Protocol):
    """Who is given an outcome, on the event loop: a future, or whoever needs no task to wait for it."""

    def done(self) -> bool: ...
    def set_result(self, result: Outcome, /) -> None: ...


class Apart(AbstractContextManager[None], Protocol):
    """A group that is left first and durable later."""

    def send(self, done: Callable[[BaseException | None], None]) -> None: ...


class Carried(NamedTuple):
    """How calls on the event loop become durable."""

    courier: Courier
    group: Callable[[], Apart]


class _Job(NamedTuple):
    future: Waiter
    run: Callable[..., Any]
    args: tuple[Any, ...]
    needs: Sequence[Key] = ()
    """Records that it will look at; it may end with Stale for it, and whoever knows of them is to ask again."""


_Queue = queue.SimpleQueue[_Job | None]


class Lanes:
    """The threads behind one event loop."""

    def __init__(
        self,
        group: Callable[[], AbstractContextManager[None]],
        lanes: int = 1,
        *,
        inline: bool = False,
        ahead: Callable[[Sequence[Key]], None] | None = None,
        carried: Carried | None = None,
    ) -> None:
        """`inline`: short calls run on the event loop itself, for a house in which none of them leaves the process.
        `ahead` is told what the calls of a group will look at, where it costs less to read that at once.
        `carried`: who makes the calls of an event loop durable, and what groups them for it."""
        self._group = group
        self._ahead = ahead
        self._inline = inline
        self._together_soon: list[_Job] = []
        self._carried, self._opening = carried, False
        self._light: list[_Job] = []
        self._company = False
        """Whether the last group was of several calls, or others came while it was under way."""
        self._asked, self._told = _Queue(), _Queue()
        self._outside, self._verifying, self._streaming = Pool(OUTSIDE), Pool(VERIFYING), Pool(STREAMS)
        self._streams: dict[str, tuple[asyncio.Semaphore, list[int]]] = {}
        self._reading, self._to_read = threading.Lock(), list[Callable[[], None]]()
        self._ways = [self._asked] * lanes + ([] if inline else [self._told])
        self._threads = [
            threading.Thread(target=self._drive, args=(way,), name=f"lane-{n}", daemon=True)
            for n, way in enumerate(self._ways)
        ]
        self._loop: asyncio.AbstractEventLoop = _NO_LOOP
        self.batches = 0
        self.calls = 0

    def start(self) -> None:
        """Open the lanes to the running event loop."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()
        self._open()

    def stop(self, within_s: float = LEAST_S) -> None:
        """Finish what is queued, then end; what takes longer than that is left, and told in the log."""
        end = time.monotonic() + max(within_s, LEAST_S)
        for way in self._ways:
            way.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - time.monotonic()))
        if self._carried is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._carried.courier.close)
        left = sum(pool.stop(end) for pool in (self._outside, self._verifying, self._streaming))
        left += sum(thread.is_alive() for thread in self._threads)
        if left or self.waiting:
            _log.warning("calls were left unfinished", extra={"running": left, "waiting": self.waiting})

    @property
    def carries(self) -> bool:
        """Whether calls can become durable while the event loop goes on."""
        return self._carried is not None

    @property
    def waiting(self) -> int:
        """Calls that no lane has taken yet."""
        return self._asked.qsize() + self._told.qsize() + len(self._light)

    def short(
        self, run: Callable[..., Any], *args: Any, needs: Sequence[Key] = (), to: Waiter | None = None
    ) -> asyncio.Future[Outcome]:
        """Run a call that only writes a little, together with the others of this moment; durable when answered. `to`:
        who is given the outcome in the place of the future."""
        if not self._inline:
            return self._queued(self._told, run, args, needs, to)
        if not self._together_soon:
            self._loop.call_soon(self._run_soon)
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._together_soon.append(_Job(to or future, run, args, needs))
        return future

    def light(self, run: Callable[..., Any], *args: Any, needs: Sequence[Key] = (), to: Waiter) -> None:
        """Run a call that changes no record but those it is known to look at, in a house that `carries`. Once these are
        at hand it needs no thread: it runs on the event loop, which goes on while it becomes durable."""
        carried, job = self._carried, _Job(to, run, args, needs)
        if carried is None or not carried.courier.stands or not needs:
            self._open()
            self._put(self._told, job)
        elif len(self._light) >= WAITING:
            raise _too_many()
        elif carried.courier.at_hand(needs):
            self._carry_soon(carried, job)
        else:
            self._outside.run(partial(self._fetch, carried, job))

    def _fetch(self, carried: Carried, job: _Job) -> None:
        attempt(carried.courier.fetch, (job.needs,))  # where it cannot, the lane meets the reason
        with suppress(RuntimeError):  # the loop has ended, and with it whoever asked
            self._loop.call_soon_threadsafe(self._fetched, carried, job)

    def _fetched(self, carried: Carried, job: _Job) -> None:
        if carried.courier.stands and carried.courier.at_hand(job.needs):
            self._carry_soon(carried, job)
        else:
            self._told.put(job)

    def _carry_soon(self, carried: Carried, job: _Job) -> None:
        self._light.append(job)
        if len(self._light) == 1:
            self._loop.call_soon(self._give_way, carried)

    def _give_way(self, carried: Carried) -> None:
        """Let others have the processor first where calls come several at a time: those who are about to call are then
        in the same group. Where nobody waits for the processor this takes no time, and alone nobody is kept waiting."""
        if self._light and self._company and carried.courier.stands and carried.courier.free:
            _yield()
            self._loop.call_soon(self._carry, carried)  # what came meanwhile is read before that
        else:
            self._carry(carried)

    def inside(
        self, run: Callable[..., Any], *args: Any, needs: Sequence[Key] = (), to: Waiter | None = None
    ) -> asyncio.Future[Outcome]:
        """Run a short question in a lane; the outcome comes when it is durable that it was asked."""
        return self._queued(self._asked, run, args, needs, to)

    def outside(self, run: Callable[..., Any], *args: Any, needs: Sequence[Key] = ()) -> asyncio.Future[Outcome]:
        """Run a call that may take long, beside the lanes."""
        del needs  # it shares nothing with others
        return self._run_in(self._outside, run, args)

    def verifying(self, run: Callable[..., Any], *args: Any) -> asyncio.Future[Outcome]:
        """Verify who a caller is, on threads that no stream and no long call holds."""
        return self._run_in(self._verifying, run, args)

    async def streaming(self, caller: Actor, run: Callable[..., Any], *args: Any) -> Outcome:
        """Run a call that waits for bytes of its caller, once fewer than STREAMS_PER_CALLER of theirs run."""
        who = f"{caller.tenant}/{caller.behalf or caller.id}"
        turns, count = self._streams.setdefault(who, (asyncio.Semaphore(STREAMS_PER_CALLER), [0]))
        count[0] += 1
        try:
            async with turns:
                return await self._run_in(self._streaming, run, args)
        finally:
            count[0] -= 1
            if not count[0]:
                self._streams.pop(who, None)

    def _run_in(self, pool: "Pool", run: Callable[..., Any], args: tuple[Any, ...]) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = self._loop.create_future()
        pool.run(lambda: self._answer(_Job(future, run, args)))
        return future

    def beside(self, work: Callable[[], None]) -> None:
        """Have something read beside the calls. Nobody waits for it, nor hears of it when it fails: whoever needs what
        was not read reads it, and meets the error. What is wanted at one moment is read together, by one thread."""
        with self._reading:
            self._to_read.append(work)
            if len(self._to_read) > 1:
                return  # whoever came first takes this along
        try:
            self._outside.run(self._read)
        except Unavailable:
            self._to_read.clear()
            raise

    def _read(self) -> None:
        with self._reading:
            some, self._to_read = self._to_read, []
        attempt(self._read_all, (some,))

    def _read_all(self, some: Sequence[Callable[[], None]]) -> None:
        with self._group():
            for work in some:
                attempt(work, ())

    def _queued(
        self, way: _Queue, run: Callable[..., Any], args: tuple[Any, ...], needs: Sequence[Key], to: Waiter | None
    ) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._put(way, _Job(to or future, run, args, needs))
        return future

    def _put(self, way: _Queue, job: _Job) -> None:
        if way.qsize() >= WAITING:
            raise _too_many()
        way.put(job)

    def _answer(self, job: _Job) -> None:
        outcome = attempt(job.run, job.args)
        with suppress(RuntimeError):  # the loop has ended, and with it whoever asked
            self._loop.call_soon_threadsafe(_deliver, (job,), (outcome,))

    def _run_soon(self) -> None:
        batch, self._together_soon = self._together_soon[:BATCH], self._together_soon[BATCH:]
        if self._together_soon:
            self._loop.call_soon(self._run_soon)
        _deliver(batch, self._together(batch))

    def _open(self) -> None:
        """Have the courier open what it has not, beside the calls."""
        if self._carried is None or self._opening or self._carried.courier.stands:
            return
        self._opening = True
        with suppress(Unavailable):  # this replica is going
            self._outside.run(partial(self._opened, self._carried.courier))

    def _opened(self, courier: Courier) -> None:
        attempt(courier.open, ())  # where it cannot, the lane's calls meet the reason
        self._opening = False

    def _carry(self, carried: Carried) -> None:
        """Run what waits, and send it; one more word when it is durable."""
        courier = carried.courier
        if not self._light or (courier.stands and not courier.free):
            return
        waiting, self._light = self._light[:BATCH], self._light[BATCH:]
        batch = list[_Job]()
        for job in waiting:  # something may have been lost, or changed, since it came
            if courier.stands and courier.at_hand(job.needs):
                batch.append(job)
            else:
                self._told.put(job)
        outcomes: list[Outcome] = []
        aside = carried.group()
        ended = attempt(self._all, (batch, outcomes, aside))
        if ended.error is None:
            self.batches += 1
            self.calls += len(batch)
            ended = attempt(aside.send, (partial(self._carried_out, carried, batch, outcomes),))
        if ended.error is not None:
            self._carried_out(carried, batch, outcomes, ended.error)

    def _carried_out(
        self, carried: Carried, batch: Sequence[_Job], outcomes: Sequence[Outcome], error: BaseException | None
    ) -> None:
        if isinstance(error, Stale):  # nothing of them happened: now with somebody who may wait
            for job in batch:
                self._told.put(job)
        else:
            _deliver(batch, outcomes if error is None else [Outcome(None, error)] * len(batch))
        self._company = len(batch) + len(self._light) > 1
        if self._light:
            self._loop.call_soon(self._give_way, carried)

    def _drive(self, way: _Queue) -> None:
        while (job := way.get()) is not None:
            batch, last = [job], False
            while len(batch) < BATCH:
                try:
                    more = way.get_nowait()
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
            ended = attempt(self._all, (batch, outcomes, self._group()))
            if ended.error is None:
                return outcomes
            if not isinstance(ended.error, Stale):
                return [Outcome(None, ended.error)] * len(batch)
        # Nothing of them happened: other writers met them. Alone, each meets fewer, and tries again by itself.
        return [attempt(job.run, job.args) for job in batch]

    def _all(self, batch: Sequence[_Job], outcomes: list[Outcome], group: AbstractContextManager[None]) -> None:
        with group:
            if self._ahead is not None:
                self._ahead([key for job in batch for key in job.needs])
            outcomes += [attempt(job.run, job.args) for job in batch]


class Pool:
    """Up to `most` threads, begun when they are needed. Unlike the library's they do not keep a process alive."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._change = threading.Condition()
        self._threads = self._running = 0
        self._unfinished = 0
        """Work that waits or runs. Each has a thread while there are fewer than `most`: work may run for hours."""
        self._stopped = False

    def run(self, work: Callable[[], None]) -> None:
        """Have it done, by and by."""
        with self._change:
            if self._stopped:
                raise Unavailable("this replica is going", "another one answers")
            self._waiting.put(work)
            self._unfinished += 1
            if self._threads < min(self._unfinished, self._most):
                self._threads += 1
                threading.Thread(target=self._drive, name=f"outside-{self._threads}", daemon=True).start()

    def stop(self, end: float) -> int:
        """Take nothing new, and wait until then; how many still run."""
        with self._change:
            self._stopped = True
            for _ in range(self._threads):
                self._waiting.put(None)
            self._change.wait_for(lambda: not self._threads, max(0.0, end - time.monotonic()))
            return self._running

    def _drive(self) -> None:
        while True:
            work = self._waiting.get()
            with self._change:
                if work is None:
                    self._threads -= 1
                    self._change.notify_all()
                    return
                self._running += 1
            try:
                work()
            finally:
                with self._change:
                    self._running -= 1
                    self._unfinished -= 1


def attempt(run: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    """Run it and keep whatever it raises: the HTTP edge, where one broken call must not end its neighbours."""
    try:
        return Outcome(run(*args))
    except Exception as error:  # noqa: BLE001 - the one place of the edge; the renderer logs what is not ours
        return Outcome(None, error)


def _too_many() -> Unavailable:
    return Unavailable("too many calls are waiting", "try again shortly, or add a replica")


def _deliver(batch: Sequence[_Job], outcomes: Sequence[Outcome]) -> None:
    for job, outcome in zip(batch, outcomes, strict=True):
        if not job.future.done():
            job.future.set_result(outcome)
