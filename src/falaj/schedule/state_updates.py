"""Facts of a cluster as they come, and all of them again as a snapshot. Nothing is decided here."""

from collections.abc import Sequence
from dataclasses import replace

from falaj.schedule.model import NEVER, Job, Node, Queue, RuntimeQuantiles, SchedulerSnapshot
from falaj.schedule.runtime_forecast import EvidenceKeys
from falaj.schedule.state import SchedulerState


class UpdatableState(SchedulerState):
    """What it is told, it takes into account."""

    def __init__(self, snapshot: SchedulerSnapshot) -> None:
        super().__init__(snapshot)
        with self.lines.loading():
            for job in snapshot.jobs:
                self.submit(job)
        for reservation in snapshot.reservations:
            self._restore_reservation(reservation)
        # What became free just before the snapshot is not known: every turn is looked at once.
        self.freed |= self.world.index.keys()

    def submit(self, job: Job) -> None:
        """A job comes: to wait, or running already."""
        self.tree.leaf(job.queue)
        job = self.shapes.shared(job)
        self._weigh_shape(job.shape, 1)
        self._count_demand(job, 1)
        self._enter_job(job)
        self._learn_step_time(job)

    def change(self, job: Job) -> bool:
        """Other facts of a job: progress, a checkpoint, other places, or none any more.

        False when a cycle need not look: it is as a plan said, but for the second in which it began.
        """
        previous = self.running.get(job.id) or self.lines.jobs.get(job.id)
        if previous is None:
            self.submit(job)
            return True
        job = self.shapes.shared(job)
        if previous.charged and previous.spots and job.spots and not job.charged:
            job = replace(job, charged=previous.charged)
        if job == previous:
            return False
        is_relevant = job != replace(previous, started=job.started)
        if job.shape is not previous.shape:
            self._weigh_shape(previous.shape, -1)
            self._weigh_shape(job.shape, 1)
        if not job.spots:
            self._requested_shapes.pop(job.id, None)  # what it asks for now is what it says
        if (
            previous.spots
            and previous.spots == job.spots
            and previous.queue == job.queue
            and previous.charged == job.charged
        ):
            self.running[job.id] = job
            self._update_expected_end(job)
            self._learn_step_time(job)
        else:
            self._count_demand(previous, -1)
            self._count_demand(job, 1)
            if previous.spots and job.spots:
                self._move_job(job)
            else:
                self._remove_job(job.id)
                self._enter_job(job)
        return is_relevant

    def end(self, *job_ids: str) -> None:
        """Jobs are over, or nobody wants them any more."""
        ended = [self.running.pop(job_id) for job_id in job_ids if job_id in self.running]
        if ended:
            self._free_jobs(ended)
        removed = [self._remove_job(job_id) for job_id in job_ids if job_id in self.lines.jobs]
        for job in (*ended, *filter(None, removed)):
            self.turns.drop(job.id)
            self._refusal_counts.pop(job.id, None)
            self._requested_shapes.pop(job.id, None)
            self._weigh_shape(job.shape, -1)
            self._count_demand(job, -1)

    def undo(self, job_id: str) -> None:
        """Its cluster refused the places it was given: they are free, and it tries again later and later."""
        if job_id in self.running:
            refusal_count = self._refusal_counts[job_id] = self._refusal_counts.get(job_id, 0) + 1
            self._withdraw_start(job_id, self.now + min(1 << refusal_count, 600))

    def _withdraw_start(self, job_id: str, not_before: int) -> None:
        """It did not start after all: it waits again, as it came; from then on."""
        job = self._remove_job(job_id)
        if job is not None:
            job = self._with_shape(job, self._requested_shapes.pop(job_id)) if job_id in self._requested_shapes else job
            self._enter_job(
                replace(job, spots=(), started=0, stopping=0, stopped_for="", charged=(), not_before=not_before)
            )

    def node(self, node: Node) -> None:
        """A node comes or changes."""
        if node.name in self.world.index:
            self.world.change(node)
        else:
            self.world.put(node)
        (self.leaving.add if node.leaving < NEVER else self.leaving.discard)(node.name)
        self._apply_node_changes({node.name})

    def lose(self, name: str) -> None:
        """A node is gone, with what was on it: the jobs that had places there are told of by themselves."""
        if name in self.world.index:
            self.turns.leave(name)
            self.world.drop(name)
            self.reopened.clear()  # rows are others now: what is open is tried by itself
            self.leaving.discard(name)
            self._apply_node_changes(set())

    def queues(self, queues: Sequence[Queue]) -> None:
        """Another tree, or another budget, usage, weight in it."""
        self._rebuild_tree(queues)

    def learn(self, quantiles: RuntimeQuantiles) -> None:
        """Newer quantiles of a template."""
        self._reconsider(self.forecast.learn(quantiles))

    def _learn_step_time(self, job: Job) -> None:
        """Estimate the family of a running job by the step time that it reports, before any of them has ended."""
        if changed := self.forecast.learn_step_time(job, self._get_shape_key(job)):
            self._reconsider(changed)

    def _reconsider(self, changed: EvidenceKeys) -> None:
        """Estimate again what rests on these cells: waiting jobs, running ones and turns."""
        self.fresh |= self.lines.relearn(changed)
        for job_id in self.kin.of(changed):
            self._update_expected_end(self.running[job_id])
        for turn in self.turns.all():
            self._restore_reservation(turn)

    def snapshot(self, now: int) -> SchedulerSnapshot:
        """All of it as facts; a scheduler made from them decides the same as one that looks at everything again."""
        jobs = sorted([*self.lines.jobs.values(), *self.running.values()], key=lambda job: job.id)
        return SchedulerSnapshot(
            now,
            tuple(self.world.nodes),
            self._list_current_queues(),
            tuple(jobs),
            self.forecast.past(),
            self.turns.all(),
            tuple(self.reclaimed),
            self.knobs,
        )
