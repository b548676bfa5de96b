"""Runs what waits, together where that pays. The runtime is never kept waiting, but for a twentieth of a run's time at
most, and only for those who were just answered and are known to come back at once (see returns).

Three regimes, chosen by how long runs were found to take. *inline*: what one turn of the event loop gathered is run at
its end, on the loop's own thread; under 200 us that is cheaper than waking anybody. *thread*: a thread of its own cuts
the next batch when it is free. *device*: the same with two threads, so that a GPU never waits for Python.
"""

import logging
import threading
from _thread import allocate_lock
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from resource import RUSAGE_THREAD, getrusage
from time import monotonic, thread_time
from typing import Any, NamedTuple

from falaj.core.errors import FalajError, Unavailable, UserCodeFailed
from falaj.infer.batch_assembly import RowCountMismatch, assemble_inputs, check_output_rows
from falaj.infer.cost_curve import CostCurve
from falaj.infer.records import Arrays, ModelRuntime
from falaj.infer.request_queue import (
    STATE_GONE,
    STATE_TAKEN,
    STATE_WAITING,
    QueuedRequest,
    QueueFull,
    RequestQueue,
    deadline_error,
)
from falaj.infer.returns import Returns

_log = logging.getLogger(__name__)
MAX_INLINE_RUN_S, RETURN_INLINE_RUN_S, MAX_LOOP_RUN_S = 200e-6, 100e-6, 20e-3
LARGE_ROWS, MAX_LARGE_INLINE_S = 256, 2e-3
"""Rows of a request that is looked at twice before it runs on the loop's thread, and what it may take there."""
MODEL_ERRORS = (
    FalajError, ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError,
    MemoryError, NameError, OSError, RuntimeError, StopIteration, SyntaxError, TypeError, ValueError, Warning,
)  # fmt: skip
"""What a model's own code raises. A runtime says it in our words; this is for those that forget."""


class BatchRun(NamedTuple):
    """One run of a batch: its members with all outputs, or with what went wrong."""

    members: Sequence[QueuedRequest]
    outputs: "Arrays | FalajError"
    began: float
    ended: float
    cost_s: float = 0.0
    """What the run took, without what other processes took meanwhile where that can be told."""


class BatcherOptions(NamedTuple):
    """What a batcher is told of its model."""

    queue: int = 1024
    delay_s: float = 0.0
    threads: int = 1
    """Runs at the same time."""
    inline: bool = True
    """Whether it may run on the loop's thread at all."""
    clock: Callable[[], float] = monotonic
    """What the cost of a run in a thread is measured by; those on the loop's thread are too short for it."""


class RequestBatcher:
    """The queue of one version of one model, and who runs it. All methods are called on the loop's thread."""

    def __init__(
        self,
        runtime: ModelRuntime,
        curve: CostCurve,
        loop: AbstractEventLoop,
        deliver: Callable[[BatchRun], Any],
        options: BatcherOptions,
    ) -> None:
        self.runtime, self.curve = runtime, curve
        self.took_s = 0.0
        """How long a run takes, lately."""
        self.inline = options.inline
        self.options = options
        self._loop, self._deliver = loop, deliver
        self._queue = RequestQueue(options.queue)
        self._arrived: list[QueuedRequest] = []
        self._arrived_count = 0
        """What came this turn, and how many requests that are."""
        self._is_tick_scheduled = self._measures_next_run = False
        """A turn is on its way; the last run on the loop's thread took long, so the next one is looked at."""
        self._inline_run_count = self._slow_run_count = 0
        self._timer: TimerHandle | None = None
        self._timer_due_at = 0.0
        self._lock = allocate_lock()
        self._wake_queue: SimpleQueue[bool] = SimpleQueue()
        self._returns = Returns()
        self._worker_count = self._idle_count = self._running_count = self._running_rows = self._undelivered_count = 0
        self._current_runs: dict[int, tuple[float, Sequence[QueuedRequest]]] = {}
        self._last_ended_at = 0.0
        self._is_closed = False
        self._last_logged_at = 0.0
        self.note: Callable[[Arrays, Arrays, Sequence[QueuedRequest]], Any] | None = None
        """Told what went into each run and what came out, and whose it was, in the thread that ran it."""
        self._on_empty: Callable[[], Any] | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._queue.size + self._arrived_count

    @property
    def busy(self) -> bool:
        """Whether anything waits, runs, or is on its way back from a thread."""
        return bool(self._arrived or self._queue.size or self._running_count or self._undelivered_count)

    def submit(self, queued: QueuedRequest, *, runs_now: bool = False) -> QueueFull | None:
        """Put it in line; an error when the line is full. `runs_now` where the turn of the loop was gathered
        already."""
        arrived_count = self._arrived_count + queued.ask.num
        if arrived_count + self._queue.size > self._queue.limit:
            return self._queue_full_error(queued)
        self._arrived.append(queued)
        self._arrived_count = arrived_count
        if (
            queued.rows > LARGE_ROWS * queued.ask.num
            and self.inline
            and self.curve.expected_s(queued.rows, queued.key.unit) > MAX_LARGE_INLINE_S
        ):
            self.inline = False  # for this one; small ones bring it back
        if runs_now:
            self._run_tick()
        elif not self._is_tick_scheduled:
            self._is_tick_scheduled = True
            self._loop.call_soon(self._run_tick)
        return None

    def cancel(self, queued: QueuedRequest) -> None:
        """Nobody wants it any more; what runs already runs on."""
        with self._lock:
            if queued.state == STATE_WAITING and queued.number:
                self._queue.remove(queued)
            else:
                queued.state = STATE_GONE
        self._check_empty_soon()

    def when_empty(self, on_empty: Callable[[], Any]) -> None:
        """Call once nothing waits or runs. What is in line is still run."""
        self._on_empty = on_empty
        self._check_empty_soon()

    def close(self) -> None:
        """Let the threads end; call when empty."""
        self._is_closed = True
        self._disarm_timer()
        for _ in range(self._worker_count):
            self._wake_queue.put(False)

    def stuck(self, started_before: float) -> list[QueuedRequest]:
        """The members of runs that began before then and have not ended."""
        return [
            queued
            for started_at, members in list(self._current_runs.values())
            if started_at < started_before
            for queued in members
        ]

    def fail(self, members: Sequence[QueuedRequest], error: FalajError) -> None:
        """Answer these with an error, whatever becomes of their run."""
        now = monotonic()
        self._deliver(BatchRun(members, error, now, now))
        self._check_empty_soon()

    def fail_all(self, error: FalajError) -> None:
        """The same for all that waits."""
        self.fail(self._take_all_queued(), error)

    def give_up(self) -> list[QueuedRequest]:
        """Take out all that waits, for somebody else to run; what runs here is nobody's any more."""
        self._is_closed = True
        return self._take_all_queued()

    def _take_all_queued(self) -> list[QueuedRequest]:
        with self._lock:
            arrived, self._arrived, self._arrived_count = self._arrived, [], 0
            return self._queue.clear() + [queued for queued in arrived if queued.state == STATE_WAITING]

    def _queue_full_error(self, queued: QueuedRequest) -> QueueFull:
        error = QueueFull(f"{self._queue.limit} requests wait already", "come again later, or ask for more replicas")
        error.retry_after_s = self.curve.expected_s(self._queue.rows, queued.key.unit) or self.took_s or 1.0
        return error

    # ---- turns of the loop

    def _run_tick(self) -> None:
        self._is_tick_scheduled = False
        now = monotonic()
        arrived, self._arrived, self._arrived_count = self._arrived, [], 0
        if self.inline and not self._queue.size and self._is_single_batch(arrived, now):
            for queued in arrived:
                queued.state = STATE_TAKEN
            self._run_on_loop(arrived)
        elif arrived or self._queue.size:
            with self._lock:
                for queued in arrived:
                    if queued.state == STATE_WAITING:
                        self._queue.put(queued)
                self._returns.came(sum([queued.rows for queued in arrived]), now)
            self._start_runs(now)
            if self._queue.size:
                self._arm_timer(min([queued.deadline for queued in arrived if queued.deadline], default=0.0))
        if self._on_empty is not None:
            self._check_empty()

    def _is_single_batch(self, arrived: list[QueuedRequest], now: float) -> bool:
        """Whether all that came this turn is one batch: the way most of them go."""
        if not arrived or self.options.delay_s:
            return False
        key, rows = arrived[0].key, 0
        for queued in arrived:
            if queued.key is not key or queued.state != STATE_WAITING or (queued.deadline and queued.deadline <= now):
                return False
            rows += queued.rows
        return len(arrived) == 1 or (rows <= self.curve.limit() and not key.alone)

    def _start_runs(self, now: float) -> None:
        if self.options.delay_s and self._delays_for_more(now):
            return
        if self.inline:
            self._run_inline(now)
        else:
            self._wake_worker()

    def _delays_for_more(self, now: float) -> bool:
        """Whether to wait for more although the runtime is free, because somebody wanted that."""
        with self._lock:
            run_at = self._queue.oldest() + self.options.delay_s
            if not self._queue.size or self._queue.rows >= self.curve.cap or run_at <= now:
                return False
        self._arm_timer(run_at)
        return True

    def _run_inline(self, now: float) -> None:
        tick_ends_at = now + MAX_INLINE_RUN_S
        while self.inline and self._queue.size:
            members, late_requests = self._queue.take(monotonic(), self.curve.limit())
            self._deliver_late(late_requests)
            if members:
                self._run_on_loop(members)
            if monotonic() > tick_ends_at:  # let the loop read: what it reads joins the next batch
                break
        if self._queue.size:
            self._schedule_tick()

    def _run_on_loop(self, members: list[QueuedRequest]) -> None:
        is_measured = (
            self._measures_next_run or self._inline_run_count & 3 == 0 or self._inline_run_count < 256
        )  # not each time: it costs a tenth of a run
        usage_before = _read_thread_usage() if is_measured else (0.0, 0)
        try:
            results = self._execute_batch(members, monotonic)
        except BaseException:  # nothing that we know of; whoever waits is told
            self.fail(members, _runtime_ended_error())
            raise
        self._inline_run_count += 1
        self._measures_next_run = results[0].ended - results[0].began > MAX_INLINE_RUN_S
        if is_measured:
            self._record_costs(
                [_with_own_cost(results[0], usage_before)] if self._measures_next_run and len(results) == 1 else results
            )
        for batch_run in results:
            self._deliver(batch_run)

    def _schedule_tick(self) -> None:
        if not self._is_tick_scheduled:
            self._is_tick_scheduled = True
            self._loop.call_soon(self._run_tick)

    def _check_empty_soon(self) -> None:
        if self._on_empty is not None:  # not at once: we may be in the middle of a turn that holds requests
            self._loop.call_soon(self._check_empty)

    def _check_empty(self) -> None:
        if self._on_empty is not None and not self.busy:
            on_empty, self._on_empty = self._on_empty, None
            on_empty()

    # ---- deadlines and delays share one timer

    def _arm_timer(self, due_at: float) -> None:
        if not due_at or self._is_closed or (self._timer is not None and self._timer_due_at <= due_at):
            return
        self._disarm_timer()
        self._timer_due_at = due_at
        self._timer = self._loop.call_later(max(0.0, due_at - monotonic()) + 0.0005, self._on_timer)

    def _disarm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        now = monotonic()
        with self._lock:
            late_requests = self._queue.expire(now)
            next_deadline = self._queue.first_deadline()
        self._deliver_late(late_requests)
        if self.options.delay_s and self._queue.size:
            self._start_runs(now)
        self._arm_timer(next_deadline)

    def _deliver_late(self, late_requests: Sequence[QueuedRequest]) -> None:
        now = monotonic()
        for queued in late_requests:
            self._deliver(BatchRun((queued,), deadline_error(), now, now))
        self._check_empty_soon()

    # ---- threads

    def _wake_worker(self) -> None:
        with self._lock:
            if not self._queue.size or not self._is_cut_worthwhile() or self._expected_return_s():
                return
            if self._idle_count:
                self._idle_count -= 1
                self._wake_queue.put(True)
            elif self._worker_count < self.options.threads:
                self._worker_count += 1
                threading.Thread(target=self._run_worker, name="falaj-run", daemon=True).start()

    def _is_cut_worthwhile(self) -> bool:
        """Whether to cut a batch now. While one runs, a second one must be worth it: those who wait become more."""
        return not self._running_count or self._queue.rows * 2 >= min(self.curve.cap, self._running_rows)

    def _expected_return_s(self) -> float:
        """How long a cut waits for those who were just answered. With two threads nobody stands still meanwhile."""
        if self.options.threads > 1 or self._running_count:
            return 0.0
        return self._returns.worth_s(self._queue.rows, self.curve.cap, monotonic())

    def _run_worker(self) -> None:
        """A thread: the next batch the moment the last one is done, or those are back who were answered by it."""
        while True:
            with self._lock:
                if self._is_closed:
                    return
                wait_s = self._expected_return_s()
                takes_batch = self._queue.size and self._is_cut_worthwhile() and not wait_s
                members, late_requests = self._queue.take(monotonic(), self.curve.limit()) if takes_batch else ([], [])
                if members:
                    self._running_count += 1
                    self._running_rows += sum([queued.rows for queued in members])
                    self._current_runs[threading.get_ident()] = (monotonic(), members)
                else:
                    self._idle_count += 1
            if late_requests:
                self._post_to_loop(self._deliver_late, late_requests)
            if members:
                self._run_in_worker(members)
            elif not self._wait_for_work(wait_s):
                return

    def _wait_for_work(self, wait_s: float) -> bool:
        """Wait for work, or so long at most; False when it is time to end."""
        try:
            return self._wake_queue.get(timeout=wait_s or None)
        except Empty:
            with self._lock:
                if not self._wake_queue.empty():
                    return self._wake_queue.get()
                self._idle_count -= 1
            return True

    def _run_in_worker(self, members: list[QueuedRequest]) -> None:
        now = monotonic()
        results = [BatchRun(members, _runtime_ended_error(), now, now)]
        try:
            results = self._execute_batch(members, self.options.clock)
        except BaseException:  # the thread dies of something nobody thought of; the next one takes over
            with self._lock:
                self._worker_count -= 1
            raise
        finally:
            rows = sum([queued.rows for queued in members])
            with self._lock:
                self._running_count -= 1
                self._running_rows -= rows
                self._undelivered_count += 1
                self._returns.ran(rows, self._queue.rows, now, monotonic())
                del self._current_runs[threading.get_ident()]
                results = self._subtract_overlap(results)
            self._post_to_loop(self._on_worker_results, results)

    def _subtract_overlap(self, results: list[BatchRun]) -> list[BatchRun]:
        """Two runs share a device: each costs what passed since the other ended. By the clock both would seem twice as
        dear as one that is large enough to leave nothing for a second."""
        if self.options.threads < 2 or len(results) > 1:
            return results
        previous_end, self._last_ended_at = max(results[0].began, self._last_ended_at), results[0].ended
        return [results[0]._replace(cost_s=min(results[0].cost_s, max(1e-9, results[0].ended - previous_end)))]

    def _post_to_loop(self, callback: Callable[..., Any], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _on_worker_results(self, results: Sequence[BatchRun]) -> None:
        self._record_costs(results)
        for batch_run in results:
            self._deliver(batch_run)
        with self._lock:
            self._undelivered_count -= 1
        if self.options.delay_s or self._queue.size:
            self._schedule_tick()
        self._check_empty()

    # ---- runs

    def _execute_batch(self, members: list[QueuedRequest], clock: Callable[[], float]) -> list[BatchRun]:
        """Run them together; when that fails, one by one, so that nobody pays for a neighbour."""
        started_at = cost = monotonic()
        if clock is not monotonic:
            cost = clock()
        outcome = self._try_run(members)
        ended_at = monotonic()
        cost = (ended_at if clock is monotonic else clock()) - cost
        if not isinstance(outcome, FalajError):
            return [BatchRun(members, outcome, started_at, ended_at, cost)]
        if isinstance(outcome, RowCountMismatch):
            self.curve.only_alone()
        elif len(members) == 1:
            return [BatchRun(members, outcome, started_at, ended_at)]
        results = []
        for queued in members:
            started_at = monotonic()
            if threading.get_ident() in self._current_runs:
                self._current_runs[threading.get_ident()] = (started_at, (queued,))
            outcome = self._try_run([queued])
            results.append(BatchRun((queued,), outcome, started_at, monotonic()))
        return results

    def _try_run(self, members: list[QueuedRequest]) -> "Arrays | FalajError":
        try:
            inputs = assemble_inputs(members)
            outputs = self.runtime.run(inputs, members[0].key.parameters)
            if len(members) > 1 or members[0].ask.num > 1:
                check_output_rows(members, outputs)
            if self.note is not None:
                self.note(inputs, outputs, members)
        except FalajError as error:
            return error
        except MODEL_ERRORS as error:
            if monotonic() > self._last_logged_at + 1.0:  # each request of a broken model would fill the disk
                self._last_logged_at = monotonic()
                _log.warning("a model broke on a request", exc_info=error)
            return UserCodeFailed(
                f"the model broke on this request: {type(error).__name__}", "see the log of its replica"
            )
        return outputs

    def _record_costs(self, results: Sequence[BatchRun]) -> None:
        """Learn from a whole run; what had to be taken apart says nothing."""
        if len(results) != 1 or isinstance(results[0].outputs, FalajError):
            return
        batch_run = results[0]
        rows = sum([queued.rows for queued in batch_run.members])
        self.curve.note(rows, batch_run.members[0].key.unit, batch_run.cost_s)
        run_s, typical_s = batch_run.ended - batch_run.began, self.took_s
        # One slow run says little: the machine did something else meanwhile. Several in a row say much.
        cost = min(batch_run.cost_s, 4 * typical_s) if typical_s else batch_run.cost_s
        self.took_s = typical_s + (cost - typical_s) * (0.5 if cost < typical_s else 0.05)
        self._slow_run_count = (
            self._slow_run_count + 1 if (batch_run.cost_s if self.inline else run_s) > MAX_LOOP_RUN_S else 0
        )
        if self.inline:
            if self.took_s > MAX_INLINE_RUN_S or self._slow_run_count > 2:
                self.inline = False
        elif self.options.inline and self.took_s < RETURN_INLINE_RUN_S and run_s < RETURN_INLINE_RUN_S:
            with self._lock:
                self.inline = (
                    not self._running_count and not self._queue.size and self._idle_count == self._worker_count
                )


def _read_thread_usage() -> tuple[float, int]:
    """CPU seconds of this thread, and how often it went to sleep by itself."""
    return thread_time(), getrusage(RUSAGE_THREAD).ru_nvcsw


def _with_own_cost(batch_run: BatchRun, usage_before: tuple[float, int]) -> BatchRun:
    """A run that took long with what it cost by itself. One that never slept cost its CPU time: the rest went to other
    processes, and models are not moved to a thread for what their neighbours do."""
    used_s, sleeps = _read_thread_usage()
    return (
        batch_run
        if sleeps != usage_before[1]
        else batch_run._replace(cost_s=min(batch_run.cost_s, max(1e-9, used_s - usage_before[0])))
    )


def _runtime_ended_error() -> Unavailable:
    return Unavailable("the model's runtime ended in a way it should not", "try again")
