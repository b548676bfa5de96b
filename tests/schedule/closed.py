"""A small cluster that schedules itself with nothing from outside, for laws that must hold whatever it does."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from falaj.core.executor import Device
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.fair_share import ShareTree
from falaj.schedule.fair_share_order import FairShareOrder
from falaj.schedule.fairness_potential import FairnessPotential
from falaj.schedule.model import Job, JobShape, Node, Queue, Role, SchedulerOptions, SlotPlacement, SlotRequest
from falaj.schedule.placement import find_placement
from falaj.schedule.preemption import PreemptionPlanner, VictimSet
from falaj.schedule.preemption_rights import PreemptionClaim
from falaj.schedule.progressive_filling import Amounts
from falaj.schedule.running_jobs import RunningJobs, list_base_spots
from falaj.schedule.runtime_forecast import compute_shape_size

NOW = 100_000
BOLD = SchedulerOptions(min_run_s=0, reclaim_percent=100, lost_percent=1_000_000, resize_gap_s=0)


def gang(gpus: int, slots: int = 1, band: int = 2, low: int = 0) -> JobShape:
    """So many slots of so many devices; from `low` slots on when it is elastic."""
    ask = SlotRequest((("cpu", 1000 * gpus),), gpus=gpus)
    return JobShape((Role("worker", ask, slots),), low=low, high=slots if low else 0, band=band)


class Closed:
    """Nodes of eight devices, queues, jobs, and a clock that stands still unless it is moved."""

    def __init__(self, nodes: int, queues: Sequence[Queue], knobs: SchedulerOptions = BOLD) -> None:
        self.world = ClusterState(
            [Node(f"n{i}", "c", "z", {"cpu": 64_000}, tuple(Device(k, "A") for k in range(8))) for i in range(nodes)]
        )
        self.tree = ShareTree(queues, self.world.pools())
        self.running = RunningJobs(self.world, self.tree)
        self.reclaim = PreemptionPlanner(self.world, self.tree, self.running, find_placement, knobs)
        self.waiting: dict[str, Job] = {}
        self.left: dict[str, int | None] = {}
        self.now = NOW
        self.reclaimed: list[tuple[str, int, int]] = []
        self.seen: set[frozenset[tuple[str, tuple[SlotPlacement, ...]]]] = set()

    def submit(self, name: str, queue: str, shape: JobShape, left_s: int | None = None, **facts: int | bool) -> None:
        self.world.mix(shape, 1)
        self.waiting[name] = Job(name, queue, shape, 0, **facts)  # type: ignore[arg-type]
        self.left[name] = left_s

    def start(self, name: str, spots: tuple[SlotPlacement, ...] | None = None) -> bool:
        """Put it where there is room, or just there; False when there is none or its quotas refuse."""
        job = self.waiting[name]
        width = job.shape.least
        if spots is None:
            spots = find_placement(self.world, job.shape, width)
        if spots is None or self.tree.refusal(job.queue, self.world.quota(job.shape, spots, width).tolist()):
            return False
        del self.waiting[name]
        self._run(replace(job, spots=spots, started=job.started or self.now))
        return True

    def _run(self, job: Job) -> None:
        self.world.take(job.spots, job.shape.roles)
        self.tree.charge(job.queue, self.world.quota(job.shape, job.spots, 0).tolist())
        self.running.put(job, self.left[job.id], self.now)

    def stop(self, name: str) -> Job:
        job = self.running.jobs[name]
        self.running.drop(name)
        self.world.give(job.spots, job.shape.roles)
        self.tree.charge(job.queue, self.world.quota(job.shape, job.spots, 0).tolist(), -1)
        return replace(job, spots=(), started=0, saved=0)

    def widen(self, name: str, width: int) -> None:
        """Give an elastic job more slots, wherever they fit."""
        job = self.stop(name)
        spots = find_placement(self.world, job.shape, width)
        assert spots is not None
        self._run(replace(job, spots=spots, started=self.now))

    def demand(self) -> Amounts:
        out = np.zeros((self.tree.top, len(self.tree.quotas)), np.int64)
        for job in (*self.waiting.values(), *self.running.jobs.values()):
            if job.shape.band:
                spots = list_base_spots(job.shape, job.spots) or None
                out[self.tree.index[job.queue]] += self.world.quota(job.shape, spots, job.shape.least)
        return out

    def victims(self, name: str, urgent: bool = False) -> VictimSet | None:
        """Who would make room for it."""
        job = self.waiting[name]
        claim = PreemptionClaim(
            job, job.shape.least, compute_shape_size(job.shape, job.shape.least), self.left[name], urgent
        )
        return self.reclaim.victims(claim, FairnessPotential(self.tree, self.demand()), self.now, self.reclaimed)

    def make_room(self, name: str) -> VictimSet | None:
        """Disturb whom it takes, and start it in what they leave."""
        found = self.victims(name)
        if found is None:
            return None
        for one in found.resizes:
            self._run(replace(self.stop(one.job), spots=one.spots, started=self.now))
        for gone in found.evictions:
            job = self.stop(gone.job)
            self.waiting[gone.job] = replace(job, evictions=job.evictions + 1)
        assert self.start(name, found.spots), "the places it was promised are not there"
        self.reclaimed += [(pool, self.now, milli) for pool, milli in found.taken]
        return found

    def admit(self) -> None:
        """Start whatever fits, the neediest leaf first."""
        order = FairShareOrder(self.tree)
        lines: dict[str, list[Job]] = {}
        for job in sorted(self.waiting.values(), key=lambda job: (-job.shape.band, self.left[job.id] or 0, job.id)):
            lines.setdefault(job.queue, []).append(job)
        for queue in lines:
            self._next(order, queue, lines)
        while (queue := order.first()) is not None:
            self.start(lines[queue].pop(0).id)
            self._next(order, queue, lines)

    def _next(self, order: FairShareOrder, queue: str, lines: dict[str, list[Job]]) -> None:
        head = lines[queue][0] if lines[queue] else None
        order.want(queue, None if head is None else self.world.quota(head.shape, None, head.shape.least).tolist())

    def rest(self, most: int = 500) -> int:
        """Schedule until nothing moves; gives how many were disturbed. No state may come twice."""
        disturbed = 0
        self.admit()
        for _ in range(most):
            state = frozenset((job.id, job.spots) for job in self.running.jobs.values())
            assert state not in self.seen, "it goes in circles"
            self.seen.add(state)
            found = next((one for name in sorted(self.waiting) if (one := self.make_room(name))), None)
            if found is None:
                return disturbed
            disturbed += len(found.evictions) + len(found.resizes)
            self.admit()
        raise AssertionError("it does not come to rest")
