"""The clock around the real scheduler: jobs arrive, run, are measured, give way, end; nodes come and go.

The scheduler is told what a platform would know and nothing else: steps that were declared, the time of one step once a
job has run for a minute, and how long others of its kind took.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil

from falaj.schedule.blocked import TICK_S
from falaj.schedule.decide import Scheduler
from falaj.schedule.forecast import SURE_S, key, quantiles, size
from falaj.schedule.model import NEVER, WHOLE, Evict, Job, Knobs, Node, Plan, Resize, Snapshot, Start
from falaj.simulator.outcome import Fate, Outcome, gpus_of, measure
from falaj.simulator.trace import Load, Trace

ARRIVE, MEASURED, STOPPED, ENDED, NODE, LOOK = range(6)
REMEMBERED = 100
"""So many of the newest runs of a kind make its quantiles."""

Happening = tuple[int, int, int, str, int]
"""When, in which order, what, to whom, and in which of its lives: what came too late is of a life that is over."""


@dataclass(slots=True)
class Life:
    """A job on its way, with the truth about it."""

    load: Load
    job: Job
    left: float
    """Seconds of work at its declared width."""
    number: int = 0
    since: float = 0.0
    """When its work was last counted."""
    debt: float = 0.0
    first: float = -1.0
    ran: float = 0.0

    @property
    def speed(self) -> float:
        """Work done in a second, at the width it has."""
        return self.job.width / self.job.shape.roles[0].count

    def advance(self, now: float) -> None:
        """Count the work that was done until now."""
        passed = now - self.since
        paid = min(self.debt, passed)
        self.debt -= paid
        self.left -= (passed - paid) * self.speed
        self.ran += passed
        self.since = now


class Engine:
    """One trace under the scheduler. `nodes` come, change or (closed) go at their times."""

    def __init__(self, trace: Trace, knobs: Knobs | None = None, nodes: Iterable[tuple[int, Node]] = ()) -> None:
        self.trace = trace
        self.scheduler = Scheduler(Snapshot(0, trace.nodes, trace.queues, (), knobs=knobs or Knobs()))
        self.lives = {load.job.id: Life(load, load.job, load.work_s) for load in trace.loads}
        self.cycles = 0
        self._nodes = [node for _, node in nodes]
        self._heap: list[Happening] = []
        self._count = 0
        self._next_look = -1
        self._fates: list[Fate] = []
        self._runs: defaultdict[tuple[str, str], deque[int]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        for load in trace.loads:
            self._will(load.job.submitted, ARRIVE, load.job.id)
        for number, (at, _) in enumerate(nodes):
            self._will(at, NODE, str(number))

    def run(self, policy: str = "falaj") -> Outcome:
        """Let all of it happen."""
        while self._heap:
            now = self._heap[0][0]
            while self._heap and self._heap[0][0] <= now:
                _, _, what, whom, number = heappop(self._heap)
                self._happen(now, what, whom, number)
            while self._apply(now, self.scheduler.cycle(now)):
                pass
            self._look_again(now)
        return measure(policy, self.trace, self._fates)

    def _look_again(self, now: int) -> None:
        """While jobs wait, cycle when a running job is estimated anew, at most as often as a platform looks."""
        if self.scheduler.lines.jobs and (next_estimate := self.scheduler.next_estimate()) < NEVER:
            at = max(next_estimate, now + TICK_S)
            if not now < self._next_look <= at:
                self._next_look = at
                self._will(at, LOOK, "")

    def _will(self, at: float, what: int, whom: str, number: int = 0) -> None:
        self._count += 1
        heappush(self._heap, (ceil(at), self._count, what, whom, number))

    def _happen(self, now: int, what: int, whom: str, number: int) -> None:
        if what == LOOK:
            return
        if what == NODE:
            self.scheduler.node(self._nodes[int(whom)])
            return
        life = self.lives[whom]
        if life.number != number:
            return
        if what == ARRIVE:
            self.scheduler.submit(life.job)
        elif what == MEASURED:
            self._measured(life, now)
        elif what == STOPPED:
            self._stopped(life, now)
        else:
            self._ended(life, now)

    def _apply(self, now: int, plan: Plan) -> bool:
        """Do what was decided; True when there may be more to decide at once."""
        self.cycles += 1
        for start in plan.starts:
            self._started(now, start)
        for resize in plan.resizes:
            self._resized(now, resize)
        for eviction in plan.evictions:
            self._evicted(now, eviction)
        return bool(plan.evictions) and any(not self.lives[one.job].job.save_s for one in plan.evictions)

    def _started(self, now: int, start: Start) -> None:
        life = self.lives[start.job]
        life.job = self.scheduler.running[start.job]
        life.debt = life.job.restart_s if life.first >= 0 else 0.0
        life.first = now if life.first < 0 else life.first
        life.since = now
        life.number += 1
        self._until_end(life, now)
        if life.job.steps:
            self._will(now + SURE_S, MEASURED, start.job, life.number)

    def _resized(self, now: int, resize: Resize) -> None:
        life = self.lives[resize.job]
        life.advance(now)
        life.job = replace(self.scheduler.running[resize.job], spots=resize.spots, resized=now)
        life.debt = life.job.restart_s
        life.number += 1
        self._until_end(life, now)

    def _evicted(self, now: int, eviction: Evict) -> None:
        life = self.lives[eviction.job]
        life.number += 1
        if life.job.save_s:
            stop = now + min(life.job.save_s, eviction.grace_s)
            end = life.since + life.debt + max(life.left, 0.0) / life.speed
            # Whoever is done before it has saved is done.
            self._will(min(stop, end), ENDED if end <= stop else STOPPED, eviction.job, life.number)
        else:
            self._stopped(life, now)

    def _until_end(self, life: Life, now: int) -> None:
        self._will(now + life.debt + max(life.left, 0.0) / life.speed, ENDED, life.job.id, life.number)

    def _measured(self, life: Life, now: int) -> None:
        life.advance(now)
        life.job = replace(self._known(life), seen=now)
        self.scheduler.change(life.job)

    def _known(self, life: Life) -> Job:
        """Its facts with the progress it reports."""
        load = life.load
        if not life.job.steps or load.work_s <= 0:
            return life.job
        step_us = max(1, round(load.work_s * 1e6 / life.job.steps / life.speed))
        done = min(life.job.steps, int(life.job.steps * (1 - max(life.left, 0.0) / load.work_s)))
        return replace(life.job, done=done, step_us=step_us)

    def _stopped(self, life: Life, now: int) -> None:
        """It has saved and is gone: it waits again, with what it had done."""
        life.advance(now)
        if life.load.loses:
            life.left = min(life.load.work_s, life.left + (now - max(life.job.started, life.job.saved)) * life.speed)
        old = self._known(life)
        took = now - old.started
        life.job = replace(
            old, spots=(), started=0, seen=0, stopping=0, stopped_for="", evictions=old.evictions + 1,
            ran_s=old.ran_s + took, served=old.served + took * size(old.shape, old.width) // WHOLE,
        )  # fmt: skip
        self.scheduler.change(life.job)

    def _ended(self, life: Life, now: int) -> None:
        life.advance(now)
        job, whose = life.job, life.load.whose or life.job.queue
        life.number += 1
        self.scheduler.end(job.id)
        self._learn(job, now)
        self._fates.append(
            Fate(job.id, whose, job.submitted, life.first, now, life.ran, job.evictions, gpus_of(life.load))
        )

    def _learn(self, job: Job, now: int) -> None:
        name = (job.template, key(job.shape))
        self._runs[name].append(job.ran_s + now - job.started)
        self.scheduler.learn(quantiles(*name, self._runs[name], job.step_us))
