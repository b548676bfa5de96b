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

from falaj.core.context import HOUSE, Actor, Context
from falaj.core.errors import Conflict, FalajError, Unavailable
from falaj.core.event import new_id
from falaj.store.ledger import Ledger

log = logging.getLogger(__name__)

LEASE_S, RENEW_S = 15.0, 5.0
"""How long a lease lasts, and how long before its end it is renewed."""
_LONGEST_PAUSE_S = 60.0
REST_S = 0.05
"""So long a loop that every commit wakes rests at least after a step. One that says what it hears gathers by itself."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One leadership of one loop."""

    ctx: Context
    token: int
    """The fencing token: whoever leads next has a greater one. Hand it to anything outside that can compare."""
    alive: Callable[[], bool]
    """False once the lease may belong to another; look before every effect outside the ledger."""


class Turned(NamedTuple):
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


class Loop(Protocol):
    """Background work of a room. `step` does a bounded piece and says whether there is more to do now."""

    name: str
    every_s: float
    """How long it rests. One that has `eager = True` is also woken by every commit, or, where it has `minds`, a set
    that it may change, by those about things of these kinds; one that has `hears` at once by commits of others about
    things of those kinds, and by no more; one that has `close` is closed."""

    def step(self, turn: Turn) -> bool: ...


class Loops:
    """Runs loops, each in a thread of its own, each led by one replica at a time."""

    def __init__(
        self, ledger: Ledger, owner: str, loops: Iterable[Loop], ctx: Callable[[str], Context] | None = None
    ) -> None:
        made = ctx or house_context
        self._turners = [Turner(ledger, owner, loop, made(loop.name)) for loop in loops]
        self._eager = [turner for turner in self._turners if getattr(turner.loop, "eager", False)]
        self._ledger = ledger
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start a thread for each loop."""
        for turner in self._eager:
            self._ledger.on_commit(turner.wake, turner.hears or getattr(turner.loop, "minds", ()))
        for turner in self._turners:
            thread = threading.Thread(target=turner.run, name=f"falaj-loop-{turner.loop.name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End every thread after the step it is in, and give the leases back."""
        for turner in self._turners:
            turner.stop()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._threads = []

    def run_once(self, most: int = 1000) -> int:
        """Run every loop here and now until none has more to do; the number of steps. For tests and single commands."""
        steps = 0
        while steps < most:
            more = [turner.turn() for turner in self._turners]
            steps += len(more)
            if not any(more):
                break
        return steps

    def turned(self) -> tuple[Turned, ...]:
        """How each of them does."""
        return tuple(turner.turned for turner in self._turners)


def house_context(loop: str, zone: str = "home") -> Context:
    """The context of a loop that speaks for the house."""
    return Context(Actor(f"loop-{loop}", HOUSE, kind="service"), zone)


class Turner:
    """One loop on one replica: claims, works, backs off."""

    def __init__(self, ledger: Ledger, owner: str, loop: Loop, ctx: Context) -> None:
        self.loop = loop
        self.hears: tuple[str, ...] = getattr(loop, "hears", ())
        self._ledger = ledger
        self._owner = owner
        self._ctx = ctx
        self._lease = f"loop:{loop.name}"
        self._until = 0.0
        self._token = 0
        self._failures = self._failed_ever = self._steps = 0
        self._seconds, self._at = 0.0, time.time()
        self._thread = 0
        self._awake = threading.Event()
        self._stopping = threading.Event()

    def run(self) -> None:
        """Until stopped: a turn whenever something was committed, and every `every_s` anyway."""
        self._thread = threading.get_ident()
        while not self._stopping.is_set():
            self._awake.clear()
            if self.turn():
                continue
            # After a failure, or while another leads, other people's commits must not hurry us.
            began, calm = time.monotonic(), self._failures or not self._token
            if (self._stopping if calm else self._awake).wait(self._pause()) and not self.hears:
                self._stopping.wait(began + REST_S - time.monotonic())
        getattr(self.loop, "close", lambda: None)()
        self._give_back()

    def turn(self) -> bool:
        """Lead if we may, and do one step; True when there is more to do now."""
        began = time.perf_counter()
        try:
            with self._ledger.polling():
                if not self._claim():
                    self._at = time.time()
                    return False
                ctx = replace(self._ctx, request=new_id())
                more = self.loop.step(Turn(ctx, self._token, self._alive))
            self._at = time.time()
        except Conflict as error:
            # Somebody wrote first: the result is discarded and the next step looks again.
            log.info("loop result discarded", extra={"loop": self.loop.name, "reason": str(error)})
            return False
        except Exception as error:  # noqa: BLE001 - the frame that must survive any room's bug
            self._failed(error)
            return False
        finally:
            if self._token:
                self._steps, self._seconds = self._steps + 1, self._seconds + time.perf_counter() - began
        self._failures = 0
        return more and not self._stopping.is_set()

    @property
    def turned(self) -> Turned:
        """How it does."""
        name, every_s = self.loop.name, self.loop.every_s
        return Turned(name, every_s, bool(self._token), self._steps, self._failed_ever, self._seconds, self._at)

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()
        self._awake.set()

    def wake(self) -> None:
        """There is something new to look at. A loop that hears knows what it wrote itself."""
        if not self.hears or threading.get_ident() != self._thread:
            self._awake.set()

    def _claim(self) -> bool:
        now = self._ctx.now()
        # A clock that was set back must not make us believe in a lease for longer than it lasts.
        if self._until - LEASE_S <= now < self._until - RENEW_S:
            return True
        token = self._ledger.lease(self._lease, self._owner, LEASE_S, now)
        self._token, self._until = (token, now + LEASE_S) if token else (0, 0.0)
        return token is not None

    def _alive(self) -> bool:
        """Renews when it is due; a lease that ran out meanwhile is lost even when nobody else took it yet."""
        if self._stopping.is_set() or not self._ctx.now() < self._until:
            return False
        token = self._token
        try:
            return self._claim() and self._token == token
        except Unavailable:
            return False

    def _failed(self, error: Exception) -> None:
        self._failures, self._failed_ever = self._failures + 1, self._failed_ever + 1
        level = logging.WARNING if isinstance(error, FalajError) else logging.ERROR
        fields = {"loop": self.loop.name, "failures": self._failures, "reason": str(error)}
        log.log(level, "loop step failed", extra=fields, exc_info=not isinstance(error, FalajError))

    def _pause(self) -> float:
        if not self._failures:
            return self.loop.every_s
        return min(_LONGEST_PAUSE_S, max(0.1, self.loop.every_s) * 2.0 ** min(self._failures - 1, 10))

    def _give_back(self) -> None:
        try:
            self._ledger.release(self._lease, self._owner)
        except FalajError as error:
            log.info("lease runs out by itself", extra={"loop": self.loop.name, "reason": str(error)})
