"""What stands: the world, the tree, who waits and who runs, kept true to the facts as they come.

Nothing is decided here. Every change notes what it may have made possible: freed nodes, leaves to look at again, lines
that a quota held back. A decision looks only there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

from falaj.core.errors import Invalid
from falaj.schedule.forecast import Forecast, pool
from falaj.schedule.lines import Lines, Shapes
from falaj.schedule.model import NEVER, Job, Node, Past, Queue, Reservation, Shape, Snapshot, Spot
from falaj.schedule.order import Order
from falaj.schedule.profile import Profile
from falaj.schedule.share import Tree
from falaj.schedule.turns import Turns
from falaj.schedule.world import World


class Board:
    """Everything a decision rests on, and what changed since the last one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now, self.knobs = snapshot.now, snapshot.knobs
        self.world = World(snapshot.nodes)
        self.shapes, self.forecast = Shapes(), Forecast(snapshot.past)
        self.lines = Lines(self.shapes, self.forecast, self.band)
        self.lines.now = snapshot.now
        self.profile = Profile(self.world)
        self.turns = Turns(self.world, self.profile, snapshot.knobs.depth)
        self.running: dict[str, Job] = {}
        self.used: Counter[str] = Counter()
        """How many run, by leaf."""
        self.charged: dict[str, list[int]] = {}
        self.reclaimed = list(snapshot.reclaimed)
        self.closed: set[int] = set()
        """Shapes that nowhere fit, until something is freed that may suit them."""
        self.parked: dict[str, dict[int, tuple[str, str, int]]] = {}
        """By leaf: the lines that a quota holds back, and which."""
        self.leaving = {node.name for node in snapshot.nodes if node.leaving < NEVER}
        self.freed: set[str] = set()
        self.fresh: set[str] = set()
        """Leaves whose lines or share changed since they were last looked at."""
        self.asleep: set[str] = set()
        """Leaves that have nothing the order should know of."""
        self._held_back: dict[str, set[tuple[str, int]]] = {}
        self._amounts: dict[int, list[int]] = {}
        self._ends: list[tuple[int, str]] = []
        self._refused: dict[str, int] = {}
        self._tops: dict[str, int] = {}
        for node_shape in dict.fromkeys(job.shape for job in snapshot.jobs):
            for role in node_shape.roles:
                self.world.ask(role.ask)
        self._plant(snapshot.queues)
        for job in snapshot.jobs:
            self.submit(job)
        for turn in snapshot.reservations:
            self._restore(turn)

    # facts

    def submit(self, job: Job) -> None:
        """A job comes: to wait, or running already."""
        self.tree.leaf(job.queue)
        self.world.mix(job.shape, 1)
        self._enter(job)

    def change(self, job: Job) -> None:
        """Other facts of a job: progress, a checkpoint, other places, or none any more."""
        old = self.running.get(job.id)
        if old is not None and old.spots == job.spots and old.queue == job.queue and old.shape == job.shape:
            self.running[job.id] = job
            self._expect(job)
            self.fresh.add(job.queue)
        elif old is None and job.id not in self.lines.jobs:
            self.submit(job)
        else:
            self._leave(job.id)
            self._enter(job)

    def end(self, job_id: str) -> None:
        """A job is over, or nobody wants it any more."""
        job = self._leave(job_id)
        if job is not None:
            self.turns.drop(job_id)
            self._refused.pop(job_id, None)
            self.world.mix(job.shape, -1)

    def undo(self, job_id: str) -> None:
        """Its cluster refused the places it was given: they are free, and it tries again later and later."""
        job = self._leave(job_id)
        if job is not None:
            times = self._refused[job_id] = self._refused.get(job_id, 0) + 1
            rest = self.now + min(1 << times, 600)
            self._enter(replace(job, spots=(), started=0, stopping=0, stopped_for="", not_before=rest))

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
            turns = self.turns.leave(name)
            self.world.drop(name)
            self.leaving.discard(name)
            self._moved(set())
            for turn in turns:
                self.fresh.add(self.lines.jobs[turn.job].queue)

    def queues(self, queues: Sequence[Queue]) -> None:
        """Another tree, or another budget, usage, weight in it."""
        self._plant(queues)

    def learn(self, past: Past) -> None:
        """Newer quantiles of a template."""
        wide = self.forecast.learn(past)
        self.fresh |= self.lines.relearn(past.template, past.key, wide)

    def snapshot(self, now: int) -> Snapshot:
        """All of it as facts; a scheduler made from them decides the same."""
        jobs = sorted([*self.lines.jobs.values(), *self.running.values()], key=lambda job: job.id)
        return Snapshot(
            now, tuple(self.world.nodes), self._queues, tuple(jobs), self.forecast.past(), self.turns.all(),
            tuple(self.reclaimed), self.knobs,
        )  # fmt: skip

    # what follows from them

    def band(self, queue: str, shape: Shape) -> int:
        """The band a job of a queue stands in."""
        return min(shape.band, self._tops.get(queue, shape.band))

    def amount(self, number: int) -> list[int]:
        """What a shape counts at least, by quota."""
        if number not in self._amounts:
            shape = self.shapes.all[number]
            self._amounts[number] = self.world.quota(shape, None, shape.least).tolist()
        return self._amounts[number]

    def start(self, job: Job, spots: tuple[Spot, ...], amount: list[int]) -> Job:
        """Let a waiting job run there from now on."""
        self.lines.drop(job.id)
        job = replace(job, spots=spots, started=self.now, saved=0, resized=self.now, not_before=0)
        self.world.take(spots, job.shape.roles)
        self.turns.drop(job.id)
        self._count(job, amount)
        return job

    def rank(self, queue: str) -> None:
        """Tell the order what this leaf would start next, and what it uses."""
        heads = self.lines.heads(queue)
        if not heads:
            return self.rest(queue)
        self.asleep.discard(queue)
        self.order.want(queue, self.amount(heads[0][1]))
        return None

    def rest(self, queue: str) -> None:
        """Nothing of this leaf can start until something changes."""
        self.asleep.add(queue)
        self.order.want(queue, None)

    def park(self, queue: str, number: int, refusal: tuple[str, str, int]) -> None:
        """A quota holds a line back: until one of its queues gives something back."""
        self.parked.setdefault(queue, {})[number] = refusal
        name = refusal[0]
        top = name if queue == name or queue.startswith(name + "/") else name.rpartition("/")[0]
        self._held_back.setdefault(top, set()).add((queue, number))

    def reopen(self) -> None:
        """Look at what was freed: which shapes may fit again?"""
        rows = [self.world.index[name] for name in self.freed if name in self.world.index]
        self.freed.clear()
        for number in sorted(self.closed) if rows else ():
            ask = self.world.ask(self.shapes.all[number].roles[0].ask)
            if self.world.counts(ask)[rows].any():
                self.closed.discard(number)
                self.fresh |= self.lines.behind.get(number, set()) & self.asleep

    def overdue(self) -> None:
        """Expect more of what runs longer than was expected."""
        while self._ends and self._ends[0][0] <= self.now:
            at, job_id = heappop(self._ends)
            job = self.running.get(job_id)
            if job is not None and self.profile.end(job_id) == at:
                self._expect(job)

    def _enter(self, job: Job) -> None:
        if job.spots:
            self.world.hold(job.spots, job.shape.roles)
            self._count(job, self.world.quota(job.shape, job.spots, job.width).tolist())
        else:
            self.lines.put(job)
            self.fresh.add(job.queue)

    def _count(self, job: Job, amount: list[int]) -> None:
        self._fit()
        self.tree.charge(job.queue, amount)
        self.charged[job.id] = amount
        self.used[job.queue] += 1
        self.running[job.id] = job
        self._expect(job)

    def _expect(self, job: Job) -> None:
        end = self.forecast.end(job, self.shapes.keys[self.shapes.number(job.shape)], self.now)
        self.profile.put(job.id, job.spots, job.shape.roles, end)
        heappush(self._ends, (end, job.id))

    def _leave(self, job_id: str) -> Job | None:
        job = self.running.pop(job_id, None)
        if job is None:
            job = self.lines.drop(job_id)
            if job is not None:
                self.fresh.add(job.queue)
            return job
        self.profile.drop(job_id)
        self.world.give(job.spots, job.shape.roles)
        nodes = {spot.node for spot in job.spots}
        self.turns.hold(nodes)
        self.freed |= nodes
        self._uncount(job)
        return job

    def _uncount(self, job: Job) -> None:
        self.tree.charge(job.queue, self.charged.pop(job.id), -1)
        self.used[job.queue] -= 1
        if not self.used[job.queue]:
            del self.used[job.queue]
        self.fresh.add(job.queue)
        name = job.queue
        while name:
            self._release(name)
            name = name.rpartition("/")[0]
        self._release("")

    def _release(self, name: str) -> None:
        for queue, number in self._held_back.pop(name, ()):
            if self.parked.get(queue, {}).pop(number, None) is not None:
                self.fresh.add(queue)

    def _moved(self, nodes: set[str]) -> None:
        """Nodes are others than they were: so is the capacity that shares are parts of."""
        self.profile.refit()
        self.turns.hold(nodes)
        self.freed |= nodes
        self._plant(self._queues)

    def _fit(self) -> None:
        if len(self.world.quotas) != len(self.tree.quotas):
            self._plant(self._queues)

    def _plant(self, queues: Sequence[Queue]) -> None:
        tree = Tree(queues, self.world.pools())
        leaves = {name for name, leaf in self.lines.leaves.items() if leaf.order} | set(self.used)
        for name in sorted(leaves):
            if name not in tree.index or tree.children[tree.index[name]]:
                raise Invalid(f"jobs wait or run in {name}, which would be no leaf", "move or end them first")
        for name in self.used:
            tree.charge(name, self.tree.usage[self.tree.index[name]])
        self._queues, self.tree, self.order = tuple(queues), tree, Order(tree)
        self._amounts.clear()
        self.parked.clear()
        self._held_back.clear()
        tops = {name: min(tree.queues[row].top_band for row in tree.paths[tree.index[name]]) for name in tree.names}
        self.lines.rerank(sorted(name for name in leaves if tops[name] != self._tops.get(name)))
        self._tops = tops
        self.fresh |= leaves

    def _restore(self, turn: Reservation) -> None:
        job = self.lines.jobs.get(turn.job)
        if job is not None:
            self.turns.put(turn, pool(job.shape), job.shape.roles, self.run_s(job))

    def run_s(self, job: Job) -> int:
        """How long it will run at P90."""
        return self.forecast.end(job, self.shapes.keys[self.shapes.number(job.shape)], self.now) - self.now
