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
from falaj.core.errors import StaleRevision, Unavailable
from falaj.core.ports import AsyncCommitter, RecordKey

MAX_BATCH_CALLS = 256
MAX_WAITING_CALLS = 4096
MAX_OUTSIDE_THREADS = 32
MAX_VERIFYING_THREADS = 16
"""Threads that verify callers; apart from those of streams and long calls, so that slow ones delay no verification."""
MAX_STREAM_THREADS, MAX_STREAMS_PER_CALLER = 64, 16
"""Threads that wait for bytes of callers: in sum, and for one caller. A caller may send slowly for hours."""
MAX_GROUP_TRIES = 3
"""How often calls are tried together when an engine turns their group away."""
MIN_STOP_TIMEOUT_S = 5.0
"""So long what runs may go on when all ends, whatever else is said."""
_yield_processor = getattr(os, "sched_yield", lambda: None)  # not every system has it
_log = logging.getLogger(__name__)


class CallOutcome(NamedTuple):
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


class OutcomeReceiver(Protocol):
    """Who is given an outcome, on the event loop: a future, or whoever needs no task to wait for it."""

    def done(self) -> bool: ...
    def set_result(self, result: CallOutcome, /) -> None: ...


class AsyncGroup(AbstractContextManager[None], Protocol):
    """A group that is left first and durable later."""

    def send(self, on_done: Callable[[BaseException | None], None]) -> None: ...


class AsyncCommit(NamedTuple):
    """How calls on the event loop become durable."""

    courier: AsyncCommitter
    group: Callable[[], AsyncGroup]


class _QueuedCall(NamedTuple):
    future: OutcomeReceiver
    run: Callable[..., Any]
    args: tuple[Any, ...]
    needs: Sequence[RecordKey] = ()
    """Records that it will look at; it may end with StaleRevision for it, and whoever knows of them is to ask again."""


_CallQueue = queue.SimpleQueue[_QueuedCall | None]


class CallExecutor:
    """The threads behind one event loop."""

    def __init__(
        self,
        begin_group: Callable[[], AbstractContextManager[None]],
        read_threads: int = 1,
        *,
        runs_inline: bool = False,
        plan_reads: Callable[[Sequence[RecordKey]], None] | None = None,
        async_commit: AsyncCommit | None = None,
    ) -> None:
        """`runs_inline`: short calls run on the event loop itself, for a house in which none of them leaves the
        process. `plan_reads` is told what the calls of a group will look at, where it costs less to read that at once.
        `async_commit`: who makes the calls of an event loop durable, and what groups them for it."""
        self._begin_group = begin_group
        self._plan_reads = plan_reads
        self._runs_inline = runs_inline
        self._inline_calls: list[_QueuedCall] = []
        self._async_commit, self._is_opening_committer = async_commit, False
        self._async_calls: list[_QueuedCall] = []
        self._has_concurrent_calls = False
        """Whether the last group was of several calls, or others came while it was under way."""
        self._read_queue, self._write_queue = _CallQueue(), _CallQueue()
        self._outside_pool, self._verifying_pool, self._streaming_pool = (
            ThreadPool(MAX_OUTSIDE_THREADS),
            ThreadPool(MAX_VERIFYING_THREADS),
            ThreadPool(MAX_STREAM_THREADS),
        )
        self._streams_by_caller: dict[str, tuple[asyncio.Semaphore, list[int]]] = {}
        self._prefetch_lock, self._pending_prefetches = threading.Lock(), list[Callable[[], None]]()
        self._thread_queues = [self._read_queue] * read_threads + ([] if runs_inline else [self._write_queue])
        self._threads = [
            threading.Thread(target=self._drain_queue, args=(call_queue,), name=f"lane-{n}", daemon=True)
            for n, call_queue in enumerate(self._thread_queues)
        ]
        self._loop: asyncio.AbstractEventLoop = _NO_LOOP
        self.batches = 0
        self.calls = 0

    def start(self) -> None:
        """Open the lanes to the running event loop."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()
        self._open_committer()

    def stop(self, timeout_s: float = MIN_STOP_TIMEOUT_S) -> None:
        """Finish what is queued, then end; what takes longer than that is left, and told in the log."""
        deadline = time.monotonic() + max(timeout_s, MIN_STOP_TIMEOUT_S)
        for call_queue in self._thread_queues:
            call_queue.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._async_commit is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._async_commit.courier.close)
        unfinished_count = sum(
            pool.stop(deadline) for pool in (self._outside_pool, self._verifying_pool, self._streaming_pool)
        )
        unfinished_count += sum(thread.is_alive() for thread in self._threads)
        if unfinished_count or self.waiting:
            _log.warning("calls were left unfinished", extra={"running": unfinished_count, "waiting": self.waiting})

    @property
    def carries(self) -> bool:
        """Whether calls can become durable while the event loop goes on."""
        return self._async_commit is not None

    @property
    def waiting(self) -> int:
        """Calls that no lane has taken yet."""
        return self._read_queue.qsize() + self._write_queue.qsize() + len(self._async_calls)

    def short(
        self,
        function: Callable[..., Any],
        *args: Any,
        needed_keys: Sequence[RecordKey] = (),
        receiver: OutcomeReceiver | None = None,
    ) -> asyncio.Future[CallOutcome]:
        """Run a call that only writes a little, together with the others of this moment; durable when answered.
        `receiver`: who is given the outcome in the place of the future."""
        if not self._runs_inline:
            return self._enqueue_call(self._write_queue, function, args, needed_keys, receiver)
        if not self._inline_calls:
            self._loop.call_soon(self._run_inline_calls)
        future: asyncio.Future[CallOutcome] = self._loop.create_future()
        self._inline_calls.append(_QueuedCall(receiver or future, function, args, needed_keys))
        return future

    def light(
        self, function: Callable[..., Any], *args: Any, needed_keys: Sequence[RecordKey] = (), receiver: OutcomeReceiver
    ) -> None:
        """Run a call that changes no record but those it is known to look at, in a house that `carries`. Once these are
        at hand it needs no thread: it runs on the event loop, which goes on while it becomes durable."""
        async_commit, call = self._async_commit, _QueuedCall(receiver, function, args, needed_keys)
        if async_commit is None or not async_commit.courier.stands or not needed_keys:
            self._open_committer()
            self._put_call(self._write_queue, call)
        elif len(self._async_calls) >= MAX_WAITING_CALLS:
            raise _queue_full_error()
        elif async_commit.courier.at_hand(needed_keys):
            self._schedule_async_group(async_commit, call)
        else:
            self._outside_pool.run(partial(self._prefetch_for_call, async_commit, call))

    def _prefetch_for_call(self, async_commit: AsyncCommit, call: _QueuedCall) -> None:
        capture_outcome(async_commit.courier.fetch, (call.needs,))  # where it cannot, the lane meets the reason
        with suppress(RuntimeError):  # the loop has ended, and with it whoever asked
            self._loop.call_soon_threadsafe(self._finish_prefetch, async_commit, call)

    def _finish_prefetch(self, async_commit: AsyncCommit, call: _QueuedCall) -> None:
        if async_commit.courier.stands and async_commit.courier.at_hand(call.needs):
            self._schedule_async_group(async_commit, call)
        else:
            self._write_queue.put(call)

    def _schedule_async_group(self, async_commit: AsyncCommit, call: _QueuedCall) -> None:
        self._async_calls.append(call)
        if len(self._async_calls) == 1:
            self._loop.call_soon(self._yield_before_group, async_commit)

    def _yield_before_group(self, async_commit: AsyncCommit) -> None:
        """Let others have the processor first where calls come several at a time: those who are about to call are then
        in the same group. Where nobody waits for the processor this takes no time, and alone nobody is kept waiting."""
        if (
            self._async_calls
            and self._has_concurrent_calls
            and async_commit.courier.stands
            and async_commit.courier.free
        ):
            _yield_processor()
            self._loop.call_soon(self._run_async_group, async_commit)  # what came meanwhile is read before that
        else:
            self._run_async_group(async_commit)

    def inside(
        self,
        function: Callable[..., Any],
        *args: Any,
        needed_keys: Sequence[RecordKey] = (),
        receiver: OutcomeReceiver | None = None,
    ) -> asyncio.Future[CallOutcome]:
        """Run a short question in a lane; the outcome comes when it is durable that it was asked."""
        return self._enqueue_call(self._read_queue, function, args, needed_keys, receiver)

    def outside(
        self, function: Callable[..., Any], *args: Any, needed_keys: Sequence[RecordKey] = ()
    ) -> asyncio.Future[CallOutcome]:
        """Run a call that may take long, beside the lanes."""
        del needed_keys  # it shares nothing with others
        return self._run_in_pool(self._outside_pool, function, args)

    def verifying(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[CallOutcome]:
        """Verify who a caller is, on threads that no stream and no long call holds."""
        return self._run_in_pool(self._verifying_pool, function, args)

    async def streaming(self, caller: Actor, function: Callable[..., Any], *args: Any) -> CallOutcome:
        """Run a call that waits for bytes of its caller, once fewer than STREAMS_PER_CALLER of theirs run."""
        caller_key = f"{caller.tenant}/{caller.behalf or caller.id}"
        caller_slots, stream_count = self._streams_by_caller.setdefault(
            caller_key, (asyncio.Semaphore(MAX_STREAMS_PER_CALLER), [0])
        )
        stream_count[0] += 1
        try:
            async with caller_slots:
                return await self._run_in_pool(self._streaming_pool, function, args)
        finally:
            stream_count[0] -= 1
            if not stream_count[0]:
                self._streams_by_caller.pop(caller_key, None)

    def _run_in_pool(
        self, pool: "ThreadPool", function: Callable[..., Any], args: tuple[Any, ...]
    ) -> asyncio.Future[CallOutcome]:
        future: asyncio.Future[CallOutcome] = self._loop.create_future()
        pool.run(lambda: self._run_and_deliver(_QueuedCall(future, function, args)))
        return future

    def beside(self, prefetch: Callable[[], None]) -> None:
        """Have something read beside the calls. Nobody waits for it, nor hears of it when it fails: whoever needs what
        was not read reads it, and meets the error. What is wanted at one moment is read together, by one thread."""
        with self._prefetch_lock:
            self._pending_prefetches.append(prefetch)
            if len(self._pending_prefetches) > 1:
                return  # whoever came first takes this along
        try:
            self._outside_pool.run(self._run_prefetches)
        except Unavailable:
            self._pending_prefetches.clear()
            raise

    def _run_prefetches(self) -> None:
        with self._prefetch_lock:
            prefetches, self._pending_prefetches = self._pending_prefetches, []
        capture_outcome(self._run_prefetch_group, (prefetches,))

    def _run_prefetch_group(self, prefetches: Sequence[Callable[[], None]]) -> None:
        with self._begin_group():
            for prefetch in prefetches:
                capture_outcome(prefetch, ())

    def _enqueue_call(
        self,
        call_queue: _CallQueue,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        needed_keys: Sequence[RecordKey],
        receiver: OutcomeReceiver | None,
    ) -> asyncio.Future[CallOutcome]:
        future: asyncio.Future[CallOutcome] = self._loop.create_future()
        self._put_call(call_queue, _QueuedCall(receiver or future, function, args, needed_keys))
        return future

    def _put_call(self, call_queue: _CallQueue, call: _QueuedCall) -> None:
        if call_queue.qsize() >= MAX_WAITING_CALLS:
            raise _queue_full_error()
        call_queue.put(call)

    def _run_and_deliver(self, call: _QueuedCall) -> None:
        outcome = capture_outcome(call.run, call.args)
        with suppress(RuntimeError):  # the loop has ended, and with it whoever asked
            self._loop.call_soon_threadsafe(_deliver_outcomes, (call,), (outcome,))

    def _run_inline_calls(self) -> None:
        batch, self._inline_calls = self._inline_calls[:MAX_BATCH_CALLS], self._inline_calls[MAX_BATCH_CALLS:]
        if self._inline_calls:
            self._loop.call_soon(self._run_inline_calls)
        _deliver_outcomes(batch, self._run_group(batch))

    def _open_committer(self) -> None:
        """Have the courier open what it has not, beside the calls."""
        if self._async_commit is None or self._is_opening_committer or self._async_commit.courier.stands:
            return
        self._is_opening_committer = True
        with suppress(Unavailable):  # this replica is going
            self._outside_pool.run(partial(self._finish_opening, self._async_commit.courier))

    def _finish_opening(self, committer: AsyncCommitter) -> None:
        capture_outcome(committer.open, ())  # where it cannot, the lane's calls meet the reason
        self._is_opening_committer = False

    def _run_async_group(self, async_commit: AsyncCommit) -> None:
        """Run what waits, and send it; one more word when it is durable."""
        committer = async_commit.courier
        if not self._async_calls or (committer.stands and not committer.free):
            return
        waiting_calls, self._async_calls = self._async_calls[:MAX_BATCH_CALLS], self._async_calls[MAX_BATCH_CALLS:]
        batch = list[_QueuedCall]()
        for call in waiting_calls:  # something may have been lost, or changed, since it came
            if committer.stands and committer.at_hand(call.needs):
                batch.append(call)
            else:
                self._write_queue.put(call)
        outcomes: list[CallOutcome] = []
        async_group = async_commit.group()
        group_outcome = capture_outcome(self._run_calls_in_group, (batch, outcomes, async_group))
        if group_outcome.error is None:
            self.batches += 1
            self.calls += len(batch)
            group_outcome = capture_outcome(
                async_group.send, (partial(self._finish_async_group, async_commit, batch, outcomes),)
            )
        if group_outcome.error is not None:
            self._finish_async_group(async_commit, batch, outcomes, group_outcome.error)

    def _finish_async_group(
        self,
        async_commit: AsyncCommit,
        batch: Sequence[_QueuedCall],
        outcomes: Sequence[CallOutcome],
        error: BaseException | None,
    ) -> None:
        if isinstance(error, StaleRevision):  # nothing of them happened: now with somebody who may wait
            for call in batch:
                self._write_queue.put(call)
        else:
            _deliver_outcomes(batch, outcomes if error is None else [CallOutcome(None, error)] * len(batch))
        self._has_concurrent_calls = len(batch) + len(self._async_calls) > 1
        if self._async_calls:
            self._loop.call_soon(self._yield_before_group, async_commit)

    def _drain_queue(self, call_queue: _CallQueue) -> None:
        while (call := call_queue.get()) is not None:
            batch, is_last = [call], False
            while len(batch) < MAX_BATCH_CALLS:
                try:
                    next_call = call_queue.get_nowait()
                except queue.Empty:
                    break
                if next_call is None:
                    is_last = True
                    break
                batch.append(next_call)
            outcomes = self._run_group(batch)
            self._loop.call_soon_threadsafe(_deliver_outcomes, batch, outcomes)
            if is_last:
                return

    def _run_group(self, batch: Sequence[_QueuedCall]) -> list[CallOutcome]:
        self.batches += 1
        self.calls += len(batch)
        for _ in range(MAX_GROUP_TRIES):
            outcomes: list[CallOutcome] = []
            group_outcome = capture_outcome(self._run_calls_in_group, (batch, outcomes, self._begin_group()))
            if group_outcome.error is None:
                return outcomes
            if not isinstance(group_outcome.error, StaleRevision):
                return [CallOutcome(None, group_outcome.error)] * len(batch)
        # Nothing of them happened: other writers met them. Alone, each meets fewer, and tries again by itself.
        return [capture_outcome(call.run, call.args) for call in batch]

    def _run_calls_in_group(
        self, batch: Sequence[_QueuedCall], outcomes: list[CallOutcome], group: AbstractContextManager[None]
    ) -> None:
        with group:
            if self._plan_reads is not None:
                self._plan_reads([key for call in batch for key in call.needs])
            outcomes += [capture_outcome(call.run, call.args) for call in batch]


class ThreadPool:
    """Up to `most` threads, begun when they are needed. Unlike the library's they do not keep a process alive."""

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._work_queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._thread_count = self._running_count = 0
        self._unfinished_count = 0
        """Work that waits or runs. Each has a thread while there are fewer than `max_threads`: work may run for
        hours."""
        self._is_stopped = False

    def run(self, work: Callable[[], None]) -> None:
        """Have it done, by and by."""
        with self._changed:
            if self._is_stopped:
                raise Unavailable("this replica is going", "another one answers")
            self._work_queue.put(work)
            self._unfinished_count += 1
            if self._thread_count < min(self._unfinished_count, self._max_threads):
                self._thread_count += 1
                threading.Thread(target=self._drain_work, name=f"outside-{self._thread_count}", daemon=True).start()

    def stop(self, deadline: float) -> int:
        """Take nothing new, and wait until then; how many still run."""
        with self._changed:
            self._is_stopped = True
            for _ in range(self._thread_count):
                self._work_queue.put(None)
            self._changed.wait_for(lambda: not self._thread_count, max(0.0, deadline - time.monotonic()))
            return self._running_count

    def _drain_work(self) -> None:
        while True:
            work = self._work_queue.get()
            with self._changed:
                if work is None:
                    self._thread_count -= 1
                    self._changed.notify_all()
                    return
                self._running_count += 1
            try:
                work()
            finally:
                with self._changed:
                    self._running_count -= 1
                    self._unfinished_count -= 1


def capture_outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> CallOutcome:
    """Run it and keep whatever it raises: the HTTP edge, where one broken call must not end its neighbours."""
    try:
        return CallOutcome(function(*args))
    except Exception as error:  # noqa: BLE001 - the one place of the edge; the renderer logs what is not ours
        return CallOutcome(None, error)


def _queue_full_error() -> Unavailable:
    return Unavailable("too many calls are waiting", "try again shortly, or add a replica")


def _deliver_outcomes(batch: Sequence[_QueuedCall], outcomes: Sequence[CallOutcome]) -> None:
    for call, outcome in zip(batch, outcomes, strict=True):
        if not call.future.done():
            call.future.set_result(outcome)
