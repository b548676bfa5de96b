"""The clock around the real scheduler: jobs arrive, run, are measured, give way, end; nodes come and go.

The scheduler is told what a platform would know and nothing else: steps that were declared, the time of one step once a
job has run for a minute, and how long others of its kind took.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil

from falaj.schedule.blocked_jobs import RECHECK_INTERVAL_S
from falaj.schedule.model import (
    MILLI_PER_UNIT,
    NEVER,
    Job,
    JobEviction,
    JobResize,
    JobStart,
    Node,
    SchedulePlan,
    SchedulerOptions,
    SchedulerSnapshot,
)
from falaj.schedule.runtime_forecast import STEP_TIME_SURE_S, compute_quantiles, compute_shape_size, to_shape_key
from falaj.schedule.scheduler import Scheduler
from falaj.simulator.outcome import JobOutcome, SimulationOutcome, count_gpus, measure_outcome
from falaj.simulator.trace import Trace, TraceJob

ARRIVE, MEASURED, STOPPED, ENDED, NODE, LOOK = range(6)
MAX_REMEMBERED_RUNS = 100
"""So many of the newest runs of a kind make its quantiles."""

SimulationEvent = tuple[int, int, int, str, int]
"""When, in which order, what, to whom, and in which of its lives: what came too late is of a life that is over."""


@dataclass(slots=True)
class SimulatedJob:
    """A job on its way, with the truth about it."""

    load: TraceJob
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
        passed_s = now - self.since
        paid_s = min(self.debt, passed_s)
        self.debt -= paid_s
        self.left -= (passed_s - paid_s) * self.speed
        self.ran += passed_s
        self.since = now


class ReplayEngine:
    """One trace under the scheduler. `nodes` come, change or (closed) go at their times."""

    def __init__(
        self, trace: Trace, options: SchedulerOptions | None = None, nodes: Iterable[tuple[int, Node]] = ()
    ) -> None:
        self.trace = trace
        self.scheduler = Scheduler(
            SchedulerSnapshot(0, trace.nodes, trace.queues, (), knobs=options or SchedulerOptions())
        )
        self.lives = {
            trace_job.job.id: SimulatedJob(trace_job, trace_job.job, trace_job.work_s) for trace_job in trace.loads
        }
        self.cycles = 0
        self._nodes = [node for _, node in nodes]
        self._event_heap: list[SimulationEvent] = []
        self._event_count = 0
        self._next_look = -1
        self._job_outcomes: list[JobOutcome] = []
        self._runs: defaultdict[tuple[str, str], deque[int]] = defaultdict(lambda: deque(maxlen=MAX_REMEMBERED_RUNS))
        for trace_job in trace.loads:
            self._schedule_event(trace_job.job.submitted, ARRIVE, trace_job.job.id)
        for number, (changes_at, _) in enumerate(nodes):
            self._schedule_event(changes_at, NODE, str(number))

    def run(self, policy: str = "falaj") -> SimulationOutcome:
        """Let all of it happen."""
        while self._event_heap:
            now = self._event_heap[0][0]
            while self._event_heap and self._event_heap[0][0] <= now:
                _, _, event_kind, subject_id, generation = heappop(self._event_heap)
                self._handle_event(now, event_kind, subject_id, generation)
            while self._apply_plan(now, self.scheduler.cycle(now)):
                pass
            self._look_again(now)
        return measure_outcome(policy, self.trace, self._job_outcomes)

    def _look_again(self, now: int) -> None:
        """While jobs wait, cycle when a running job is estimated anew, at most as often as a platform looks."""
        if self.scheduler.lines.jobs and (next_estimate := self.scheduler.next_estimate()) < NEVER:
            at = max(next_estimate, now + RECHECK_INTERVAL_S)
            if not now < self._next_look <= at:
                self._next_look = at
                self._schedule_event(at, LOOK, "")

    def _schedule_event(self, due_at: float, event_kind: int, subject_id: str, generation: int = 0) -> None:
        self._event_count += 1
        heappush(self._event_heap, (ceil(due_at), self._event_count, event_kind, subject_id, generation))

    def _handle_event(self, now: int, event_kind: int, subject_id: str, generation: int) -> None:
        if event_kind == LOOK:
            return
        if event_kind == NODE:
            self.scheduler.node(self._nodes[int(subject_id)])
            return
        simulated = self.lives[subject_id]
        if simulated.number != generation:
            return
        if event_kind == ARRIVE:
            self.scheduler.submit(simulated.job)
        elif event_kind == MEASURED:
            self._report_progress(simulated, now)
        elif event_kind == STOPPED:
            self._requeue_job(simulated, now)
        else:
            self._finish_job(simulated, now)

    def _apply_plan(self, now: int, plan: SchedulePlan) -> bool:
        """Do what was decided; True when there may be more to decide at once."""
        self.cycles += 1
        for start in plan.starts:
            self._apply_start(now, start)
        for resize in plan.resizes:
            self._apply_resize(now, resize)
        for eviction in plan.evictions:
            self._apply_eviction(now, eviction)
        return bool(plan.evictions) and any(not self.lives[evicted.job].job.save_s for evicted in plan.evictions)

    def _apply_start(self, now: int, start: JobStart) -> None:
        simulated = self.lives[start.job]
        simulated.job = self.scheduler.running[start.job]
        simulated.debt = simulated.job.restart_s if simulated.first >= 0 else 0.0
        simulated.first = now if simulated.first < 0 else simulated.first
        simulated.since = now
        simulated.number += 1
        self._schedule_end(simulated, now)
        if simulated.job.steps:
            self._schedule_event(now + STEP_TIME_SURE_S, MEASURED, start.job, simulated.number)

    def _apply_resize(self, now: int, resize: JobResize) -> None:
        simulated = self.lives[resize.job]
        simulated.advance(now)
        simulated.job = replace(self.scheduler.running[resize.job], spots=resize.spots, resized=now)
        simulated.debt = simulated.job.restart_s
        simulated.number += 1
        self._schedule_end(simulated, now)

    def _apply_eviction(self, now: int, eviction: JobEviction) -> None:
        simulated = self.lives[eviction.job]
        simulated.number += 1
        if simulated.job.save_s:
            stop = now + min(simulated.job.save_s, eviction.grace_s)
            end = simulated.since + simulated.debt + max(simulated.left, 0.0) / simulated.speed
            # Whoever is done before it has saved is done.
            self._schedule_event(min(stop, end), ENDED if end <= stop else STOPPED, eviction.job, simulated.number)
        else:
            self._requeue_job(simulated, now)

    def _schedule_end(self, simulated: SimulatedJob, now: int) -> None:
        self._schedule_event(
            now + simulated.debt + max(simulated.left, 0.0) / simulated.speed, ENDED, simulated.job.id, simulated.number
        )

    def _report_progress(self, simulated: SimulatedJob, now: int) -> None:
        simulated.advance(now)
        simulated.job = replace(self._with_progress(simulated), seen=now)
        self.scheduler.change(simulated.job)

    def _with_progress(self, simulated: SimulatedJob) -> Job:
        """Its facts with the progress it reports."""
        trace_job = simulated.load
        if not simulated.job.steps or trace_job.work_s <= 0:
            return simulated.job
        step_us = max(1, round(trace_job.work_s * 1e6 / simulated.job.steps / simulated.speed))
        done = min(simulated.job.steps, int(simulated.job.steps * (1 - max(simulated.left, 0.0) / trace_job.work_s)))
        return replace(simulated.job, done=done, step_us=step_us)

    def _requeue_job(self, simulated: SimulatedJob, now: int) -> None:
        """It has saved and is gone: it waits again, with what it had done."""
        simulated.advance(now)
        if simulated.load.loses:
            simulated.left = min(
                simulated.load.work_s,
                simulated.left + (now - max(simulated.job.started, simulated.job.saved)) * simulated.speed,
            )
        previous = self._with_progress(simulated)
        ran_s = now - previous.started
        simulated.job = replace(
            previous,
            spots=(),
            started=0,
            seen=0,
            stopping=0,
            stopped_for="",
            evictions=previous.evictions + 1,
            ran_s=previous.ran_s + ran_s,
            served=previous.served + ran_s * compute_shape_size(previous.shape, previous.width) // MILLI_PER_UNIT,
        )
        self.scheduler.change(simulated.job)

    def _finish_job(self, simulated: SimulatedJob, now: int) -> None:
        simulated.advance(now)
        job, counted_for = simulated.job, simulated.load.whose or simulated.job.queue
        simulated.number += 1
        self.scheduler.end(job.id)
        self._learn_runtime(job, now)
        self._job_outcomes.append(
            JobOutcome(
                job.id,
                counted_for,
                job.submitted,
                simulated.first,
                now,
                simulated.ran,
                job.evictions,
                count_gpus(simulated.load),
            )
        )

    def _learn_runtime(self, job: Job, now: int) -> None:
        template_key = (job.template, to_shape_key(job.shape))
        self._runs[template_key].append(job.ran_s + now - job.started)
        self.scheduler.learn(compute_quantiles(*template_key, self._runs[template_key], job.step_us))
