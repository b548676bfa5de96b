"""Facts of a cluster as they come, and all of them again as a snapshot. Nothing is decided here."""

from collections.abc import Sequence
from dataclasses import replace

from falaj.schedule.forecast import Cells
from falaj.schedule.ground import Ground
from falaj.schedule.model import NEVER, Job, Node, Past, Queue, Snapshot


class Board(Ground):
    """What it is told, it takes into account."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        with self.lines.loading():
            for job in snapshot.jobs:
                self.submit(job)
        for turn in snapshot.reservations:
            self._restore(turn)
        # What became free just before the snapshot is not known: every turn is looked at once.
        self.freed |= self.world.index.keys()

    def submit(self, job: Job) -> None:
        """A job comes: to wait, or running already."""
        self.tree.leaf(job.queue)
        job = self.shapes.shared(job)
        self._weigh(job.shape, 1)
        self._want(job, 1)
        self._enter(job)
        self._learn_step_time(job)

    def change(self, job: Job) -> bool:
        """Other facts of a job: progress, a checkpoint, other places, or none any more.

        False when a cycle need not look: it is as a plan said, but for the second in which it began.
        """
        old = self.running.get(job.id) or self.lines.jobs.get(job.id)
        if old is None:
            self.submit(job)
            return True
        job = self.shapes.shared(job)
        if old.charged and old.spots and job.spots and not job.charged:
            job = replace(job, charged=old.charged)
        if job == old:
            return False
        news = job != replace(old, started=job.started)
        if job.shape is not old.shape:
            self._weigh(old.shape, -1)
            self._weigh(job.shape, 1)
        if not job.spots:
            self._asked.pop(job.id, None)  # what it asks for now is what it says
        if old.spots and old.spots == job.spots and old.queue == job.queue and old.charged == job.charged:
            self.running[job.id] = job
            self._expect(job)
            self._learn_step_time(job)
        else:
            self._want(old, -1)
            self._want(job, 1)
            if old.spots and job.spots:
                self._move(job)
            else:
                self._leave(job.id)
                self._enter(job)
        return news

    def end(self, *job_ids: str) -> None:
        """Jobs are over, or nobody wants them any more."""
        ran = [self.running.pop(job_id) for job_id in job_ids if job_id in self.running]
        if ran:
            self._vacate(ran)
        waited = [self._leave(job_id) for job_id in job_ids if job_id in self.lines.jobs]
        for job in (*ran, *filter(None, waited)):
            self.turns.drop(job.id)
            self._refused.pop(job.id, None)
            self._asked.pop(job.id, None)
            self._weigh(job.shape, -1)
            self._want(job, -1)

    def undo(self, job_id: str) -> None:
        """Its cluster refused the places it was given: they are free, and it tries again later and later."""
        if job_id in self.running:
            times = self._refused[job_id] = self._refused.get(job_id, 0) + 1
            self._withdraw(job_id, self.now + min(1 << times, 600))

    def _withdraw(self, job_id: str, rest: int) -> None:
        """It did not start after all: it waits again, as it came; from then on."""
        job = self._leave(job_id)
        if job is not None:
            job = self._reshaped(job, self._asked.pop(job_id)) if job_id in self._asked else job
            self._enter(
                replace(job, spots=(), started=0, stopping=0, stopped_for="", charged=(), not_before=rest)
            )  # fmt: skip

    def node(self, node: Node) -> None:
        """A node comes or changes."""
        if node.name in self.world.index:
            self.world.change(node)
        else:
            self.world.put(node)
        (self.leaving.add if node.leaving < NEVER else self.leaving.discard)(node.name)
        self._moved({node.name})

    def lose(self, name: str) -> None:
        """A node is gone, with what was on it: the jobs that had places there are told of by themselves."""
        if name in self.world.index:
            self.turns.leave(name)
            self.world.drop(name)
            self.reopened.clear()  # rows are others now: what is open is tried by itself
            self.leaving.discard(name)
            self._moved(set())

    def queues(self, queues: Sequence[Queue]) -> None:
        """Another tree, or another budget, usage, weight in it."""
        self._plant(queues)

    def learn(self, past: Past) -> None:
        """Newer quantiles of a template."""
        self._reconsider(self.forecast.learn(past))

    def _learn_step_time(self, job: Job) -> None:
        """Estimate the family of a running job by the step time that it reports, before any of them has ended."""
        if changed := self.forecast.learn_step_time(job, self._key(job)):
            self._reconsider(changed)

    def _reconsider(self, changed: Cells) -> None:
        """Estimate again what rests on these cells: waiting jobs, running ones and turns."""
        self.fresh |= self.lines.relearn(changed)
        for job_id in self.kin.of(changed):
            self._expect(self.running[job_id])
        for turn in self.turns.all():
            self._restore(turn)

    def snapshot(self, now: int) -> Snapshot:
        """All of it as facts; a scheduler made from them decides the same as one that looks at everything again."""
        jobs = sorted([*self.lines.jobs.values(), *self.running.values()], key=lambda job: job.id)
        return Snapshot(
            now, tuple(self.world.nodes), self._current(), tuple(jobs), self.forecast.past(), self.turns.all(),
            tuple(self.reclaimed), self.knobs,
        )  # fmt: skip
