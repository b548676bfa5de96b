"""The scheduler as one would write it first: every job of every queue is looked at again for every start.

No lines, no parking, no heaps, nothing remembered. It knows no turns, victims or deadlines, and only budgets that stop.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from falaj.schedule.budget import BudgetTracker, Charge, compute_charge
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.fair_share import ShareTree
from falaj.schedule.model import Job, JobShape, SchedulerSnapshot, SlotPlacement
from falaj.schedule.placement import find_placement
from falaj.schedule.state import round_count


class Naive:
    """One decision over a snapshot."""

    def __init__(self, facts: SchedulerSnapshot, asleep: Iterable[str] = ()) -> None:
        """`asleep`: leaves that are known to have nothing to start: nobody asks what they would start next."""
        self.world = ClusterState(facts.nodes)
        for job in facts.jobs:
            self.world.mix(job.shape, 0)
        self.tree = ShareTree(facts.queues, self.world.pools())
        self.budgets = BudgetTracker(facts.queues)
        self.waiting: dict[str, list[Job]] = {}
        self.counts = Counter(job.shape for job in facts.jobs)
        for job in facts.jobs:
            if job.spots:
                self.world.hold(job.spots, job.shape.roles)
                self.tree.charge(job.queue, self.world.quota(job.shape, job.spots, job.width).tolist())
            else:
                self.waiting.setdefault(job.queue, []).append(job)
        for shape, count in self.counts.items():
            self.world.mix(shape, round_count(count))
        for jobs in self.waiting.values():
            jobs.sort(key=self._rank)
        self.done = set(asleep)
        for job in [job for name in self.done for job in self.waiting.get(name, ())]:
            assert self._places(job) is None, f"{job.id} could start, and nobody looks at it"

    def _band(self, job: Job) -> int:
        tops = [self.tree.queues[row].top_band for row in self.tree.paths[self.tree.index[job.queue]]]
        return min(job.shape.band, *tops)

    def _rank(self, job: Job) -> tuple[int, int, int, str]:
        return -self._band(job), job.served, job.submitted, job.id

    def _weigh(self, shape: JobShape, more: int) -> None:
        before = round_count(self.counts[shape])
        self.counts[shape] += more
        self.world.mix(shape, round_count(self.counts[shape]) - before)

    def decide(self) -> list[tuple[str, tuple[SlotPlacement, ...]]]:
        starts = []
        while (queue := self._neediest(self.tree.top)) is not None:
            for job in self.waiting[queue]:
                found = self._places(job)
                if found is not None:
                    spots, costs = found
                    starts.append((job.id, spots))
                    self._weigh(job.shape, -1)
                    self._weigh(replace(job.shape, band=self._band(job)), 1)
                    self.budgets.hold(queue, costs)
                    self.world.take(spots, job.shape.roles)
                    self.tree.charge(queue, self.world.quota(job.shape, spots, 0).tolist())
                    self.waiting[queue].remove(job)
                    break
            else:
                self.done.add(queue)
        return starts

    def _neediest(self, row: int) -> str | None:
        if row != self.tree.top and not self.tree.children[row]:
            name = self.tree.names[row]
            return name if self.waiting.get(name) and name not in self.done else None
        best = None
        for child in self.tree.children[row]:
            leaf = self._neediest(child)
            if leaf is not None:
                first = self.waiting[leaf][0].shape
                want = self.world.quota(first, None, first.least).tolist()
                want = [part if most else 0 for part, most in zip(want, self.tree.capacity, strict=True)]
                need = (self.tree.level(child, want), self.tree.spent[child], child, leaf)
                best = need if best is None else min(best, need)
        return best[3] if best else None

    def _places(self, job: Job) -> tuple[tuple[SlotPlacement, ...], Charge] | None:
        if self.tree.refusal(job.queue, self.world.quota(job.shape, None, job.shape.least).tolist()):
            return None
        for width in (max(job.shape.roles[0].count, job.shape.least), job.shape.least):
            spots = find_placement(self.world, job.shape, width)
            if spots and not self.tree.refusal(job.queue, self.world.quota(job.shape, spots, width).tolist()):
                nodes = {spot.node: self.world.nodes[self.world.index[spot.node]] for spot in spots}
                costs = compute_charge(nodes, job.shape.roles, spots, job.limit_s)
                if self.budgets.exhausted(job.queue, costs) is None:
                    return spots, costs
        return None
