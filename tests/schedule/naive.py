"""The scheduler as one would write it first: every job of every queue is looked at again for every start.

No lines, no parking, no heaps, nothing remembered. It knows no turns, victims, budgets or deadlines.
"""

from falaj.schedule.ground import roughly
from falaj.schedule.model import Job, Snapshot, Spot
from falaj.schedule.place import place
from falaj.schedule.share import Tree
from falaj.schedule.world import World


class Naive:
    """One decision over a snapshot."""

    def __init__(self, facts: Snapshot) -> None:
        self.world = World(facts.nodes)
        for job in facts.jobs:
            self.world.mix(job.shape, 0)
        self.tree = Tree(facts.queues, self.world.pools())
        self.waiting: dict[str, list[Job]] = {}
        counts: dict[object, int] = {}
        for job in facts.jobs:
            counts[job.shape] = counts.get(job.shape, 0) + 1
            if job.spots:
                self.world.hold(job.spots, job.shape.roles)
                self.tree.charge(job.queue, self.world.quota(job.shape, job.spots, job.width).tolist())
            else:
                self.waiting.setdefault(job.queue, []).append(job)
        for shape, count in counts.items():
            self.world.mix(shape, roughly(count))  # type: ignore[arg-type]
        for jobs in self.waiting.values():
            jobs.sort(key=self._rank)
        self.done: set[str] = set()

    def _rank(self, job: Job) -> tuple[int, int, int, str]:
        tops = [self.tree.queues[row].top_band for row in self.tree.paths[self.tree.index[job.queue]]]
        return -min(job.shape.band, *tops), job.served, job.submitted, job.id

    def decide(self) -> list[tuple[str, tuple[Spot, ...]]]:
        starts = []
        while (queue := self._neediest(self.tree.top)) is not None:
            for job in self.waiting[queue]:
                spots = self._places(job)
                if spots is not None:
                    starts.append((job.id, spots))
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
                need = (self.tree.level(child, want), self.tree.spent[child], child, leaf)
                best = need if best is None else min(best, need)
        return best[3] if best else None

    def _places(self, job: Job) -> tuple[Spot, ...] | None:
        if self.tree.refusal(job.queue, self.world.quota(job.shape, None, job.shape.least).tolist()):
            return None
        for width in (max(job.shape.roles[0].count, job.shape.least), job.shape.least):
            spots = place(self.world, job.shape, width)
            if spots and not self.tree.refusal(job.queue, self.world.quota(job.shape, spots, width).tolist()):
                return spots
        return None
