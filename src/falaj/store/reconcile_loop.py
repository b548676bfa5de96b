"""The reconcile loop: claim a lease, work outside any transaction, apply guarded by revision.

A loop that loses its lease while it works finds that out from `Turn.alive` or from the revision it meant to write over,
and throws its result away: another replica has done, or will do, the same work.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.errors import Conflict, FalajError, Unavailable
from falaj.core.event import generate_id
from falaj.store.ledger import Ledger

log = logging.getLogger(__name__)

LEASE_S, RENEW_BEFORE_S = 15.0, 5.0
"""How long a lease lasts, and how long before its end it is renewed."""
_MAX_PAUSE_S = 60.0
MIN_REST_S = 0.05
"""So long a loop that every commit wakes rests at least after a step. One that says what it hears gathers by itself."""


@dataclass(frozen=True, slots=True)
class LoopIteration:
    """One leadership of one loop."""

    ctx: CallContext
    token: int
    """The fencing token: whoever leads next has a greater one. Hand it to anything outside that can compare."""
    alive: Callable[[], bool]
    """False once the lease may belong to another; look before every effect outside the ledger."""


class LoopStatus(NamedTuple):
    """How a loop does in this process, since the start."""

    loop: str
    every_s: float
    leads: bool
    steps: int
    failures: int
    seconds: float
    """In all of its steps."""
    at: float
    """When it last looked, be it that another leads."""


class ReconcileLoop(Protocol):
    """Background work of a room. `step` does a bounded piece and says whether there is more to do now."""

    name: str
    every_s: float
    """How long it rests. One that has `eager = True` is also woken by every commit, or, where it has `minds`, a set
    that it may change, by those about things of these kinds; one that has `hears` at once by commits of others about
    things of those kinds, and by no more; one that has `close` is closed."""

    def step(self, iteration: LoopIteration) -> bool: ...


class LoopRunner:
    """Runs loops, each in a thread of its own, each led by one replica at a time."""

    def __init__(
        self,
        ledger: Ledger,
        owner: str,
        loops: Iterable[ReconcileLoop],
        make_context_override: Callable[[str], CallContext] | None = None,
    ) -> None:
        make_context = make_context_override or system_context
        self._workers = [LoopWorker(ledger, owner, loop, make_context(loop.name)) for loop in loops]
        self._eager_workers = [worker for worker in self._workers if getattr(worker.loop, "eager", False)]
        self._ledger = ledger
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start a thread for each loop."""
        for worker in self._eager_workers:
            self._ledger.on_commit(worker.wake, worker.hears or getattr(worker.loop, "minds", ()))
        for worker in self._workers:
            thread = threading.Thread(target=worker.run, name=f"falaj-loop-{worker.loop.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End every thread after the step it is in, and give the leases back."""
        for worker in self._workers:
            worker.stop()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = []

    def run_once(self, max_steps: int = 1000) -> int:
        """Run every loop here and now until none has more to do; the number of steps. For tests and single commands."""
        steps = 0
        while steps < max_steps:
            has_more = [worker.turn() for worker in self._workers]
            steps += len(has_more)
            if not any(has_more):
                break
        return steps

    def turned(self) -> tuple[LoopStatus, ...]:
        """How each of them does."""
        return tuple(worker.turned for worker in self._workers)


def system_context(loop_name: str, zone: str = "home") -> CallContext:
    """The context of a loop that speaks for the house."""
    return CallContext(Actor(f"loop-{loop_name}", SYSTEM_TENANT, kind="service"), zone)


class LoopWorker:
    """One loop on one replica: claims, works, backs off."""

    def __init__(self, ledger: Ledger, owner: str, loop: ReconcileLoop, ctx: CallContext) -> None:
        self.loop = loop
        self.hears: tuple[str, ...] = getattr(loop, "hears", ())
        self._ledger = ledger
        self._owner = owner
        self._ctx = ctx
        self._lease_name = f"loop:{loop.name}"
        self._lease_expires_at = 0.0
        self._token = 0
        self._consecutive_failures = self._total_failures = self._step_count = 0
        self._busy_s, self._last_run_at = 0.0, time.time()
        self._thread_id = 0
        self._wake_event = threading.Event()
        self._stop_event = threading.Event()

    def run(self) -> None:
        """Until stopped: a turn whenever something was committed, and every `every_s` anyway."""
        self._thread_id = threading.get_ident()
        while not self._stop_event.is_set():
            self._wake_event.clear()
            if self.turn():
                continue
            # After a failure, or while another leads, other people's commits must not hurry us.
            started, must_pause = time.monotonic(), self._consecutive_failures or not self._token
            if (self._stop_event if must_pause else self._wake_event).wait(self._pause_length_s()) and not self.hears:
                self._stop_event.wait(started + MIN_REST_S - time.monotonic())
        getattr(self.loop, "close", lambda: None)()
        self._release_lease()

    def turn(self) -> bool:
        """Lead if we may, and do one step; True when there is more to do now."""
        started = time.perf_counter()
        try:
            with self._ledger.polling():
                if not self._acquire_lease():
                    self._last_run_at = time.time()
                    return False
                ctx = replace(self._ctx, request=generate_id())
                has_more = self.loop.step(LoopIteration(ctx, self._token, self._holds_lease))
            self._last_run_at = time.time()
        except Conflict as error:
            # Somebody wrote first: the result is discarded and the next step looks again.
            log.info("loop result discarded", extra={"loop": self.loop.name, "reason": str(error)})
            return False
        except Exception as error:  # noqa: BLE001 - the frame that must survive any room's bug
            self._record_failure(error)
            return False
        finally:
            if self._token:
                self._step_count, self._busy_s = self._step_count + 1, self._busy_s + time.perf_counter() - started
        self._consecutive_failures = 0
        return has_more and not self._stop_event.is_set()

    @property
    def turned(self) -> LoopStatus:
        """How it does."""
        name, interval_s = self.loop.name, self.loop.every_s
        return LoopStatus(
            name, interval_s, bool(self._token), self._step_count, self._total_failures, self._busy_s, self._last_run_at
        )

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stop_event.set()
        self._wake_event.set()

    def wake(self) -> None:
        """There is something new to look at. A loop that hears knows what it wrote itself."""
        if not self.hears or threading.get_ident() != self._thread_id:
            self._wake_event.set()

    def _acquire_lease(self) -> bool:
        now = self._ctx.now()
        # A clock that was set back must not make us believe in a lease for longer than it lasts.
        if self._lease_expires_at - LEASE_S <= now < self._lease_expires_at - RENEW_BEFORE_S:
            return True
        token = self._ledger.lease(self._lease_name, self._owner, LEASE_S, now)
        self._token, self._lease_expires_at = (token, now + LEASE_S) if token else (0, 0.0)
        return token is not None

    def _holds_lease(self) -> bool:
        """Renews when it is due; a lease that ran out meanwhile is lost even when nobody else took it yet."""
        if self._stop_event.is_set() or not self._ctx.now() < self._lease_expires_at:
            return False
        token = self._token
        try:
            return self._acquire_lease() and self._token == token
        except Unavailable:
            return False

    def _record_failure(self, error: Exception) -> None:
        self._consecutive_failures, self._total_failures = self._consecutive_failures + 1, self._total_failures + 1
        level = logging.WARNING if isinstance(error, FalajError) else logging.ERROR
        fields = {"loop": self.loop.name, "failures": self._consecutive_failures, "reason": str(error)}
        log.log(level, "loop step failed", extra=fields, exc_info=not isinstance(error, FalajError))

    def _pause_length_s(self) -> float:
        if not self._consecutive_failures:
            return self.loop.every_s
        return min(_MAX_PAUSE_S, max(0.1, self.loop.every_s) * 2.0 ** min(self._consecutive_failures - 1, 10))

    def _release_lease(self) -> None:
        try:
            self._ledger.release(self._lease_name, self._owner)
        except FalajError as error:
            log.info("lease runs out by itself", extra={"loop": self.loop.name, "reason": str(error)})
