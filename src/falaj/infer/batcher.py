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
from falaj.infer.batch import Misfit, assemble, check_rows
from falaj.infer.curve import Curve
from falaj.infer.queue import GONE, TAKEN, WAITING, Busy, Queue, Waiting, late_error
from falaj.infer.records import Arrays, Runtime
from falaj.infer.returns import Returns

_log = logging.getLogger(__name__)
INLINE_S, BACK_INLINE_S, AT_ONCE_S = 200e-6, 100e-6, 20e-3
LARGE, LARGE_S = 256, 2e-3
"""Rows of a request that is looked at twice before it runs on the loop's thread, and what it may take there."""
BROKEN = (
    FalajError, ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError,
    MemoryError, NameError, OSError, RuntimeError, StopIteration, SyntaxError, TypeError, ValueError, Warning,
)  # fmt: skip
"""What a model's own code raises. A runtime says it in our words; this is for those that forget."""


class Ran(NamedTuple):
    """One run of a batch: its members with all outputs, or with what went wrong."""

    members: Sequence[Waiting]
    outputs: "Arrays | FalajError"
    began: float
    ended: float
    cost_s: float = 0.0
    """What the run took, without what other processes took meanwhile where that can be told."""


class Options(NamedTuple):
    """What a batcher is told of its model."""

    queue: int = 1024
    delay_s: float = 0.0
    threads: int = 1
    """Runs at the same time."""
    inline: bool = True
    """Whether it may run on the loop's thread at all."""
    clock: Callable[[], float] = monotonic
    """What the cost of a run in a thread is measured by; those on the loop's thread are too short for it."""


class Batcher:
    """The queue of one version of one model, and who runs it. All methods are called on the loop's thread."""

    def __init__(
        self, runtime: Runtime, curve: Curve, loop: AbstractEventLoop, deliver: Callable[[Ran], Any], options: Options
    ) -> None:
        self.runtime, self.curve = runtime, curve
        self.took_s = 0.0
        """How long a run takes, lately."""
        self.inline = options.inline
        self.options = options
        self._loop, self._deliver = loop, deliver
        self._queue = Queue(options.queue)
        self._fresh: list[Waiting] = []
        self._coming = 0
        """What came this turn, and how many requests that are."""
        self._due = self._looks = False
        """A turn is on its way; the last run on the loop's thread took long, so the next one is looked at."""
        self._turns = self._slow = 0
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0
        self._lock = allocate_lock()
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._returns = Returns()
        self._workers = self._idle = self._running = self._running_rows = self._ran = 0
        self._now: dict[int, tuple[float, Sequence[Waiting]]] = {}
        self._last = 0.0
        self._closed = False
        self._logged = 0.0
        self.note: Callable[[Arrays, Arrays, Sequence[Waiting]], Any] | None = None
        """Told what went into each run and what came out, and whose it was, in the thread that ran it."""
        self._emptied: Callable[[], Any] | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return self._queue.size + self._coming

    @property
    def busy(self) -> bool:
        """Whether anything waits, runs, or is on its way back from a thread."""
        return bool(self._fresh or self._queue.size or self._running or self._ran)

    def submit(self, one: Waiting, *, at_once: bool = False) -> Busy | None:
        """Put it in line; an error when the line is full. `at_once` where the turn of the loop was gathered already."""
        coming = self._coming + one.ask.num
        if coming + self._queue.size > self._queue.limit:
            return self._busy(one)
        self._fresh.append(one)
        self._coming = coming
        if one.rows > LARGE * one.ask.num and self.inline and self.curve.expected_s(one.rows, one.key.unit) > LARGE_S:
            self.inline = False  # for this one; small ones bring it back
        if at_once:
            self._turn()
        elif not self._due:
            self._due = True
            self._loop.call_soon(self._turn)
        return None

    def cancel(self, one: Waiting) -> None:
        """Nobody wants it any more; what runs already runs on."""
        with self._lock:
            if one.state == WAITING and one.number:
                self._queue.remove(one)
            else:
                one.state = GONE
        self._rest_soon()

    def when_empty(self, call: Callable[[], Any]) -> None:
        """Call once nothing waits or runs. What is in line is still run."""
        self._emptied = call
        self._rest_soon()

    def close(self) -> None:
        """Let the threads end; call when empty."""
        self._closed = True
        self._disarm()
        for _ in range(self._workers):
            self._wake.put(False)

    def stuck(self, before: float) -> list[Waiting]:
        """The members of runs that began before then and have not ended."""
        return [one for began, members in list(self._now.values()) if began < before for one in members]

    def fail(self, members: Sequence[Waiting], error: FalajError) -> None:
        """Answer these with an error, whatever becomes of their run."""
        now = monotonic()
        self._deliver(Ran(members, error, now, now))
        self._rest_soon()

    def fail_all(self, error: FalajError) -> None:
        """The same for all that waits."""
        self.fail(self._take_all(), error)

    def give_up(self) -> list[Waiting]:
        """Take out all that waits, for somebody else to run; what runs here is nobody's any more."""
        self._closed = True
        return self._take_all()

    def _take_all(self) -> list[Waiting]:
        with self._lock:
            fresh, self._fresh, self._coming = self._fresh, [], 0
            return self._queue.clear() + [one for one in fresh if one.state == WAITING]

    def _busy(self, one: Waiting) -> Busy:
        error = Busy(f"{self._queue.limit} requests wait already", "come again later, or ask for more replicas")
        error.retry_after_s = self.curve.expected_s(self._queue.rows, one.key.unit) or self.took_s or 1.0
        return error

    # ---- turns of the loop

    def _turn(self) -> None:
        self._due = False
        now = monotonic()
        fresh, self._fresh, self._coming = self._fresh, [], 0
        if self.inline and not self._queue.size and self._simple(fresh, now):
            for one in fresh:
                one.state = TAKEN
            self._run_here(fresh)
        elif fresh or self._queue.size:
            with self._lock:
                for one in fresh:
                    if one.state == WAITING:
                        self._queue.put(one)
                self._returns.came(sum([one.rows for one in fresh]), now)
            self._go(now)
            if self._queue.size:
                self._arm(min([one.deadline for one in fresh if one.deadline], default=0.0))
        if self._emptied is not None:
            self._rest()

    def _simple(self, fresh: list[Waiting], now: float) -> bool:
        """Whether all that came this turn is one batch: the way most of them go."""
        if not fresh or self.options.delay_s:
            return False
        key, rows = fresh[0].key, 0
        for one in fresh:
            if one.key is not key or one.state != WAITING or (one.deadline and one.deadline <= now):
                return False
            rows += one.rows
        return len(fresh) == 1 or (rows <= self.curve.limit() and not key.alone)

    def _go(self, now: float) -> None:
        if self.options.delay_s and self._holds(now):
            return
        if self.inline:
            self._inline_turn(now)
        else:
            self._wake_up()

    def _holds(self, now: float) -> bool:
        """Whether to wait for more although the runtime is free, because somebody wanted that."""
        with self._lock:
            due = self._queue.oldest() + self.options.delay_s
            if not self._queue.size or self._queue.rows >= self.curve.cap or due <= now:
                return False
        self._arm(due)
        return True

    def _inline_turn(self, now: float) -> None:
        until = now + INLINE_S
        while self.inline and self._queue.size:
            members, late = self._queue.take(monotonic(), self.curve.limit())
            self._tell_late(late)
            if members:
                self._run_here(members)
            if monotonic() > until:  # let the loop read: what it reads joins the next batch
                break
        if self._queue.size:
            self._again()

    def _run_here(self, members: list[Waiting]) -> None:
        looked = self._looks or self._turns & 3 == 0 or self._turns < 256  # not each time: it costs a tenth of a run
        before = _used() if looked else (0.0, 0)
        try:
            results = self._execute(members, monotonic)
        except BaseException:  # nothing that we know of; whoever waits is told
            self.fail(members, _ended_badly())
            raise
        self._turns += 1
        self._looks = results[0].ended - results[0].began > INLINE_S
        if looked:
            self._measure([_own(results[0], before)] if self._looks and len(results) == 1 else results)
        for ran in results:
            self._deliver(ran)

    def _again(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def _rest_soon(self) -> None:
        if self._emptied is not None:  # not at once: we may be in the middle of a turn that holds requests
            self._loop.call_soon(self._rest)

    def _rest(self) -> None:
        if self._emptied is not None and not self.busy:
            call, self._emptied = self._emptied, None
            call()

    # ---- deadlines and delays share one timer

    def _arm(self, at: float) -> None:
        if not at or self._closed or (self._timer is not None and self._timer_at <= at):
            return
        self._disarm()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0.0, at - monotonic()) + 0.0005, self._ring)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _ring(self) -> None:
        self._timer = None
        now = monotonic()
        with self._lock:
            late = self._queue.expire(now)
            soonest = self._queue.first_deadline()
        self._tell_late(late)
        if self.options.delay_s and self._queue.size:
            self._go(now)
        self._arm(soonest)

    def _tell_late(self, late: Sequence[Waiting]) -> None:
        now = monotonic()
        for one in late:
            self._deliver(Ran((one,), late_error(), now, now))
        self._rest_soon()

    # ---- threads

    def _wake_up(self) -> None:
        with self._lock:
            if not self._queue.size or not self._worth() or self._expects_s():
                return
            if self._idle:
                self._idle -= 1
                self._wake.put(True)
            elif self._workers < self.options.threads:
                self._workers += 1
                threading.Thread(target=self._work, name="falaj-run", daemon=True).start()

    def _worth(self) -> bool:
        """Whether to cut a batch now. While one runs, a second one must be worth it: those who wait become more."""
        return not self._running or self._queue.rows * 2 >= min(self.curve.cap, self._running_rows)

    def _expects_s(self) -> float:
        """How long a cut waits for those who were just answered. With two threads nobody stands still meanwhile."""
        if self.options.threads > 1 or self._running:
            return 0.0
        return self._returns.worth_s(self._queue.rows, self.curve.cap, monotonic())

    def _work(self) -> None:
        """A thread: the next batch the moment the last one is done, or those are back who were answered by it."""
        while True:
            with self._lock:
                if self._closed:
                    return
                wait_s = self._expects_s()
                take = self._queue.size and self._worth() and not wait_s
                members, late = self._queue.take(monotonic(), self.curve.limit()) if take else ([], [])
                if members:
                    self._running += 1
                    self._running_rows += sum([one.rows for one in members])
                    self._now[threading.get_ident()] = (monotonic(), members)
                else:
                    self._idle += 1
            if late:
                self._post(self._tell_late, late)
            if members:
                self._run_there(members)
            elif not self._woken(wait_s):
                return

    def _woken(self, wait_s: float) -> bool:
        """Wait for work, or so long at most; False when it is time to end."""
        try:
            return self._wake.get(timeout=wait_s or None)
        except Empty:
            with self._lock:
                if not self._wake.empty():
                    return self._wake.get()
                self._idle -= 1
            return True

    def _run_there(self, members: list[Waiting]) -> None:
        now = monotonic()
        results = [Ran(members, _ended_badly(), now, now)]
        try:
            results = self._execute(members, self.options.clock)
        except BaseException:  # the thread dies of something nobody thought of; the next one takes over
            with self._lock:
                self._workers -= 1
            raise
        finally:
            rows = sum([one.rows for one in members])
            with self._lock:
                self._running -= 1
                self._running_rows -= rows
                self._ran += 1
                self._returns.ran(rows, self._queue.rows, now, monotonic())
                del self._now[threading.get_ident()]
                results = self._alone(results)
            self._post(self._ended, results)

    def _alone(self, results: list[Ran]) -> list[Ran]:
        """Two runs share a device: each costs what passed since the other ended. By the clock both would seem twice as
        dear as one that is large enough to leave nothing for a second."""
        if self.options.threads < 2 or len(results) > 1:
            return results
        since, self._last = max(results[0].began, self._last), results[0].ended
        return [results[0]._replace(cost_s=min(results[0].cost_s, max(1e-9, results[0].ended - since)))]

    def _post(self, call: Callable[..., Any], *given: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *given)

    def _ended(self, results: Sequence[Ran]) -> None:
        self._measure(results)
        for ran in results:
            self._deliver(ran)
        with self._lock:
            self._ran -= 1
        if self.options.delay_s or self._queue.size:
            self._again()
        self._rest()

    # ---- runs

    def _execute(self, members: list[Waiting], clock: Callable[[], float]) -> list[Ran]:
        """Run them together; when that fails, one by one, so that nobody pays for a neighbour."""
        began = cost = monotonic()
        if clock is not monotonic:
            cost = clock()
        outcome = self._try(members)
        ended = monotonic()
        cost = (ended if clock is monotonic else clock()) - cost
        if not isinstance(outcome, FalajError):
            return [Ran(members, outcome, began, ended, cost)]
        if isinstance(outcome, Misfit):
            self.curve.only_alone()
        elif len(members) == 1:
            return [Ran(members, outcome, began, ended)]
        results = []
        for one in members:
            began = monotonic()
            if threading.get_ident() in self._now:
                self._now[threading.get_ident()] = (began, (one,))
            outcome = self._try([one])
            results.append(Ran((one,), outcome, began, monotonic()))
        return results

    def _try(self, members: list[Waiting]) -> "Arrays | FalajError":
        try:
            inputs = assemble(members)
            outputs = self.runtime.run(inputs, members[0].key.parameters)
            if len(members) > 1 or members[0].ask.num > 1:
                check_rows(members, outputs)
            if self.note is not None:
                self.note(inputs, outputs, members)
        except FalajError as error:
            return error
        except BROKEN as error:
            if monotonic() > self._logged + 1.0:  # each request of a broken model would fill the disk
                self._logged = monotonic()
                _log.warning("a model broke on a request", exc_info=error)
            return UserCodeFailed(
                f"the model broke on this request: {type(error).__name__}", "see the log of its replica"
            )
        return outputs

    def _measure(self, results: Sequence[Ran]) -> None:
        """Learn from a whole run; what had to be taken apart says nothing."""
        if len(results) != 1 or isinstance(results[0].outputs, FalajError):
            return
        ran = results[0]
        rows = sum([one.rows for one in ran.members])
        self.curve.note(rows, ran.members[0].key.unit, ran.cost_s)
        took, known = ran.ended - ran.began, self.took_s
        # One slow run says little: the machine did something else meanwhile. Several in a row say much.
        cost = min(ran.cost_s, 4 * known) if known else ran.cost_s
        self.took_s = known + (cost - known) * (0.5 if cost < known else 0.05)
        self._slow = self._slow + 1 if (ran.cost_s if self.inline else took) > AT_ONCE_S else 0
        if self.inline:
            if self.took_s > INLINE_S or self._slow > 2:
                self.inline = False
        elif self.options.inline and self.took_s < BACK_INLINE_S and took < BACK_INLINE_S:
            with self._lock:
                self.inline = not self._running and not self._queue.size and self._idle == self._workers


def _used() -> tuple[float, int]:
    """CPU seconds of this thread, and how often it went to sleep by itself."""
    return thread_time(), getrusage(RUSAGE_THREAD).ru_nvcsw


def _own(ran: Ran, before: tuple[float, int]) -> Ran:
    """A run that took long with what it cost by itself. One that never slept cost its CPU time: the rest went to other
    processes, and models are not moved to a thread for what their neighbours do."""
    used_s, sleeps = _used()
    return ran if sleeps != before[1] else ran._replace(cost_s=min(ran.cost_s, max(1e-9, used_s - before[0])))


def _ended_badly() -> Unavailable:
    return Unavailable("the model's runtime ended in a way it should not", "try again")
