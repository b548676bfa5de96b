"""A crew: the thread that speaks to one cluster. A cluster that hangs holds its own crew and nobody else's.

Everything goes by orders in and reports out; a crew decides nothing. An executor's error is a report, too.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from falaj.core.errors import Denied, FalajError, Invalid, NotFound, Unauthenticated, Unavailable
from falaj.core.execute import (
    LOST,
    OVER,
    UNKNOWN,
    Attempt,
    CanCarry,
    CanLaunchMany,
    Executor,
    NodeFacts,
    PersonRefused,
    Status,
)
from falaj.fleet.records import Cluster

log = logging.getLogger(__name__)
BROKEN = (ArithmeticError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What a faulty executor may raise beside our own errors."""
NODES_S, CARRY_S = 5.0, 1.0
YOUNG_S, FEW = 60.0, 32
"""A few young attempts are heard at every poll: somebody may wait for what a server says first."""
GATHER_S, SEVERAL = 0.1, 4
"""While others are made ready to be launched, or run, so long at most what is launched waits to be written down with
what comes of it and of them."""
UNHEARD = ("begun", "ended")
"""What launchers say of themselves and their files tell anyway: nobody is told."""
TOGETHER = 16
"""So many are launched at once at most: meanwhile nobody looks what became of others."""
DEADLINE_S = 60.0
"""One call of an executor may take so long; then the crew is left to itself and another takes over."""
REOPEN_S = 60.0
"""Who is refused tries the secret of now so often: that it is read is recorded each time."""
_POLL_S = {"process": 0.1}
_SLOW_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """What came of an order, or what was seen."""

    kind: str
    """nodes, silent, launched, refused, seen, facts, published, unpublished"""
    cluster: str
    attempt: str = ""
    job: str = ""
    text: str = ""
    """A handle, a reason or a cursor."""
    final: bool = False
    """Refused for a reason that will not change."""
    refuses_person: bool = False
    """Refused because of whose attempt it is: other clusters may run it."""
    nodes: Mapping[str, NodeFacts] = field(default_factory=dict)
    status: Status | None = None
    facts: tuple[Mapping[str, Any], ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Watched:
    """An attempt whose end is waited for."""

    job: str
    attempt: str
    handle: str
    cursor: str = ""


Order = Callable[[Executor], None]


class Crew:
    """One cluster's thread."""

    def __init__(
        self,
        cluster: Cluster,
        opened: Callable[[], Executor],
        tell: Callable[[Report], None],
        wake: Callable[[], None],
    ) -> None:
        """Whoever is told of something looks at it soon, and at once when they are woken."""
        self.cluster = cluster
        self._opened = opened
        self._tell, self._wake = tell, wake
        self.coming: set[str] = set()
        """Attempts that are made ready, and will be launched soon."""
        self._told = False
        """Whether there is something to look at."""
        self._looked = False
        """Whether we just looked at all attempts: then who waits for what comes of them need wait no longer."""
        self._begun: dict[str, tuple[float, Report]] = {}
        """What was launched, when, and nobody was told of yet; the first is the oldest."""
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._ready: deque[tuple[str, Attempt, Callable[[], bool]]] = deque()
        """What is to be launched."""
        self._watched: dict[str, Watched] = {}
        self._executor: Executor | None = None
        self._opened_at = 0.0
        self._carrier: CanCarry | None = None
        """The same, where it carries what attempts say."""
        self._starter: CanLaunchMany | None = None
        """The same, where it starts several at once."""
        self._busy_since = 0.0
        self._problem = ""
        """Why the last call failed, as the log has it; empty once a look succeeded."""
        self._retired = False
        self._due: dict[str, float] = {}
        self._said: dict[str, str] = {}
        self._since: dict[str, float] = {}
        self._poll_s = _POLL_S.get(cluster.address.partition(":")[0], _SLOW_POLL_S)
        self._seldom = self._poll_s > GATHER_S
        """Whether a look is too far away to wait for it."""
        self._thread = threading.Thread(target=self._run, name=f"falaj-crew-{cluster.name}", daemon=True)
        self._thread.start()

    def serves(self, cluster: Cluster) -> bool:
        """True when what we opened is still what this cluster says."""
        mine = self.cluster
        return (mine.address, mine.options, mine.folder) == (cluster.address, cluster.options, cluster.folder)

    @property
    def stuck(self) -> bool:
        """True when a call takes too long, or the thread is gone."""
        since = self._busy_since
        return not self._thread.is_alive() or bool(since and time.monotonic() - since > DEADLINE_S)

    def launch(self, job: str, attempt: Attempt, alive: Callable[[], bool]) -> None:
        """Start an attempt, if we still lead when its turn comes."""
        self._ready.append((job, attempt, alive))
        self._orders.put(self._launch_ready)

    def _launch_ready(self, executor: Executor) -> None:
        """Start what is ready: some at once where the executor can, else the next."""
        most = TOGETHER if self._starter is not None else 1
        some = [self._ready.popleft() for _ in range(min(len(self._ready), most))]
        for _, attempt, _ in some:
            self.coming.discard(attempt.id)
        due = [(job, attempt) for job, attempt, alive in some if alive()]
        for (job, attempt), came in zip(due, self._launched(executor, [attempt for _, attempt in due]), strict=True):
            if isinstance(came, FalajError):
                final, refuses_person = isinstance(came, Invalid), isinstance(came, PersonRefused)
                self._report("refused", attempt.id, job, str(came), final=final, refuses_person=refuses_person)
            else:
                told = Report("launched", self.cluster.name, attempt.id, job, came)
                self._begun[attempt.id] = time.monotonic(), told
                self._add(Watched(job, attempt.id, came))  # it may be over before that is written down

    def _launched(self, executor: Executor, attempts: Sequence[Attempt]) -> Sequence[str | FalajError]:
        """The handles of these, or why there is none."""
        if len(attempts) > 1 and self._starter is not None:
            return self._starter.launch_all(attempts)
        try:
            return [executor.launch(attempt) for attempt in attempts]
        except FalajError as error:
            return [error]

    def stop(self, handle: str, grace_s: float) -> None:
        """Ask an attempt to end."""
        self._orders.put(lambda executor: executor.stop(handle, grace_s))

    def checkpoint(self, handle: str) -> None:
        """Ask an attempt to save."""
        self._orders.put(lambda executor: executor.checkpoint(handle))

    def forget(self, handle: str) -> None:
        """Let the executor forget an attempt."""
        self._orders.put(lambda executor: executor.forget(handle))

    def watch(self, watched: Watched) -> None:
        """Look after an attempt until it is over, from where it was heard last; what we launched we do already."""
        known = self._watched.get(watched.attempt)
        if known is None or known.handle != watched.handle:
            self._add(watched)
        if self._orders.empty():
            self._orders.put(lambda executor: None)  # it may be asleep until the next look at its nodes

    def _add(self, watched: Watched) -> None:
        self._said.pop(watched.attempt, None)
        self._since.setdefault(watched.attempt, time.monotonic())
        self._watched = {**self._watched, watched.attempt: watched}

    def unwatch(self, attempt: str) -> None:
        """It is settled."""
        self._watched = {name: one for name, one in self._watched.items() if name != attempt}
        self._said.pop(attempt, None)
        self._since.pop(attempt, None)

    def retire(self) -> None:
        """End the thread after what it is doing."""
        self._retired = True
        self._orders.put(None)

    def _run(self) -> None:
        while not self._retired:
            if (pause := self._pause()) <= 0:
                self._guarded(self._look, "look")
                self._wake_up()
                pause = self._pause()
            order = self._next(max(0.005, pause))
            if order is not None:
                self._guarded(order, "order")
                self._wake_up()
        if self._executor is not None:
            self._guarded(lambda executor: executor.close(), "close")

    def _wake_up(self) -> None:
        """Once for all that one call brought; what was launched waits a moment for what comes of it and of others."""
        if self._begun:
            now = self._retired or (not self.coming and len(self._watched) < SEVERAL)
            old = time.monotonic() - GATHER_S
            some = self._begun.items() if now or self._looked or self._seldom else ()
            for attempt in [name for name, (at, _) in some if now or at <= old]:
                self._tell_begun(attempt)
        self._looked = False
        if self._told:
            self._told = False
            self._wake()

    def _tell_begun(self, attempt: str) -> None:
        if attempt in self._begun:
            self._told = True
            self._tell(self._begun.pop(attempt)[1])

    def _next(self, pause: float) -> Order | None:
        with suppress(queue.Empty):
            return self._orders.get(timeout=pause)
        return None

    def _guarded(self, work: Order, what: str) -> None:
        """Do it, timed; what goes wrong is a report. Who is refused opens it anew, with the secret of then."""
        self._busy_since = time.monotonic()
        try:
            if self._executor is None:
                self._executor = opened = self._opened()
                self._opened_at = time.monotonic()
                self._carrier = opened if isinstance(opened, CanCarry) else None
                self._starter = opened if isinstance(opened, CanLaunchMany) else None
            with suppress(NotFound):  # it is gone: what we wanted of it needs no more doing
                work(self._executor)
            if self._problem and what == "look":
                log.info("cluster answers again", extra={"cluster": self.cluster.name})
                self._problem = ""
        except (FalajError, *BROKEN) as error:
            reason = str(error) if isinstance(error, FalajError) else f"its executor is faulty: {error!r:.200}"
            # Once for each change: an unreachable cluster is asked again every few seconds.
            level = logging.DEBUG if reason == self._problem else logging.WARNING
            self._problem = reason
            log.log(level, "cluster trouble", extra={"cluster": self.cluster.name, "during": what, "reason": reason})
            blind = self._executor is None or what == "look"  # whatever it is, we cannot see what is there
            if blind or isinstance(error, Unavailable) or not isinstance(error, FalajError):
                self._report("silent", text=reason)
            self._due = {"nodes": time.monotonic() + NODES_S, "poll": time.monotonic() + NODES_S}
            for attempt in list(self._begun):
                self._tell_begun(attempt)  # what comes of it will not be known so soon
            refused = isinstance(error, (Denied, Unauthenticated)) and time.monotonic() > self._opened_at + REOPEN_S
            if refused and self._executor is not None:
                self._executor.close()
                self._executor = None
        finally:
            self._busy_since = 0.0

    def _look(self, executor: Executor) -> None:
        if self._is_due("nodes", NODES_S):
            self._report("nodes", nodes={one.name: one for one in executor.capacity()})
        if not self._watched or not self._is_due("poll", self._poll_s):
            return
        self._looked = True
        self._poll(executor, self._watched)
        if self._carrier is not None:
            self._hear(self._carrier, self._watched, whole=self._is_due("carry", CARRY_S))

    def _hear(self, executor: CanCarry, watched: Mapping[str, Watched], *, whole: bool) -> None:
        # Of those that are over everything was heard before that was told.
        due = [one for one in watched.values() if self._said.get(one.attempt) not in OVER]
        if not whole:
            old = time.monotonic() - YOUNG_S
            due = [one for one in due if self._since.get(one.attempt, 0.0) > old]
        for one in due if whole or len(due) <= FEW else ():
            self._carry(executor, one)

    def _poll(self, executor: Executor, watched: Mapping[str, Watched]) -> None:
        # What is over stays so, and is told already.
        by_handle = {one.handle: one for one in watched.values() if self._said.get(one.attempt) not in OVER}
        for status in executor.poll(list(by_handle)) if by_handle else ():
            one = by_handle.get(status.handle)
            # What an executor says of handles we never asked about is nobody's.
            if one is None or (status.phase not in OVER and status.phase != UNKNOWN):
                continue
            if status.phase == LOST:
                # Which nodes are left is known before anybody looks for other places.
                self._report("nodes", nodes={one.name: one for one in executor.capacity()})
            if status.phase in OVER and self._carrier is not None:
                self._carry(self._carrier, self._watched.get(one.attempt, one))
            self._said[one.attempt] = status.phase
            self._report("seen", one.attempt, one.job, status=status)

    def _carry(self, executor: CanCarry, one: Watched) -> None:
        facts, cursor = executor.outbox(one.handle, one.cursor)
        if cursor != one.cursor and one.attempt in self._watched:
            self._watched[one.attempt] = Watched(one.job, one.attempt, one.handle, cursor)
            if heard := tuple(fact for fact in facts if fact.get("kind") not in UNHEARD):
                self._report("facts", one.attempt, one.job, cursor, facts=heard)

    def _is_due(self, what: str, every_s: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_s
        return True

    def _pause(self) -> float:
        """How long nothing is due."""
        due = self._due.get("nodes", 0.0)
        if self._watched:
            due = min(due, self._due.get("poll", 0.0))
        if self._begun and self._seldom:
            due = min(due, next(iter(self._begun.values()))[0] + GATHER_S)
        return due - time.monotonic()

    def _report(self, kind: str, attempt: str = "", job: str = "", text: str = "", **more: Any) -> None:
        if not self._retired:
            self._tell_begun(attempt)  # before what comes of it
            self._tell(Report(kind, self.cluster.name, attempt, job, text, **more))
            self._told = True


def brief_attempts(reports: Iterable[Report]) -> Set[str]:
    """The attempts that were launched and are over, all in these reports, and said nothing worth keeping between."""
    launched, over, told = set[str](), set[str](), set[str]()
    for report in reports:
        if report.kind == "launched":
            launched.add(report.attempt)
        elif report.kind == "facts":
            told.add(report.attempt)
        elif report.status is not None and report.status.phase in OVER:
            over.add(report.attempt)
    return launched & over - told
