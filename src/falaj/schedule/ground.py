"""What stands, and how it is counted: the world, the tree, budgets, who waits and who runs.

Every change notes what it may have made possible: freed nodes, leaves to look at again, lines that a quota held back. A
decision looks only there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import zip_longest

import numpy as np

from falaj.core.errors import Invalid
from falaj.schedule.budget import BUDGET, MONEY, Budgets, charge, rates, way
from falaj.schedule.forecast import Forecast, pool
from falaj.schedule.kin import Kin
from falaj.schedule.lines import Lines, Shapes
from falaj.schedule.model import (
    NEVER,
    Ask,
    Evict,
    Job,
    Node,
    Queue,
    Reservation,
    Resize,
    Shape,
    Snapshot,
    Spot,
    Start,
)
from falaj.schedule.order import Order
from falaj.schedule.place import place
from falaj.schedule.potential import Potential
from falaj.schedule.profile import Profile
from falaj.schedule.reclaim import Reclaim
from falaj.schedule.running import Running
from falaj.schedule.share import Tree
from falaj.schedule.turns import Turns
from falaj.schedule.world import World

MANY_LEAVES, _FEW = 100, 4
Refusal = tuple[str, str, int]
"""Whose quota or budget refuses something, which, and how much is missing."""


class Ground:
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
        self.demand: dict[str, list[int]] = {}
        """What all jobs of a leaf want, at their smallest widths, by quota."""
        self.stopping: set[str] = set()
        self.kin = Kin()
        self._counted: dict[str, list[int]] = {}
        self.reclaimed = list(snapshot.reclaimed)
        self.closed: set[int] = set()
        """Shapes that nowhere fit, until something is freed that may suit them."""
        self.reopened: set[int] = set()
        """Shapes that fit again, if at all, in what was freed on `rows`."""
        self.rows: list[int] = []
        self.parked: dict[str, dict[int, Refusal]] = {}
        """By leaf: the lines that a quota holds back, and which."""
        self.dear: dict[str, dict[int, tuple[int, Refusal]]] = {}
        """By leaf: the lines that a budget refused, from how many seconds on it does, and which."""
        self.leaving = {node.name for node in snapshot.nodes if node.leaving < NEVER}
        self.freed: set[str] = set()
        self.fresh: set[str] = set()
        """Leaves whose lines or share changed since they were last looked at."""
        self.asleep: set[str] = set()
        """Leaves that have nothing the order should know of."""
        self._held_back: dict[str, set[tuple[str, int]]] = {}
        self._costly: set[tuple[str, int]] = set()
        """Lines that a budget of money refused: on cheaper nodes they cost less."""
        self._amounts: dict[int, list[int]] = {}
        self._lacking: set[int] = set()
        """Shapes that ask for something no node has: nobody can make room for them."""
        self._placed: dict[tuple[int, int, str], list[int]] = {}
        """What a shape counts with so many slots on devices of one model."""
        self._ends: list[tuple[int, str]] = []
        self._refused: dict[str, int] = {}
        self._many: Counter[int] = Counter()
        self._asked: dict[str, Shape] = {}
        """The shapes of those that run in a lower band than they asked for."""
        self._potential: Potential | None = None
        self._stale, self._worked = True, -1
        self._recount = False
        """There is something that there was not, or the other way round: demand is to be counted anew."""
        self._tops: dict[str, int] = {}
        for node_shape in dict.fromkeys(job.shape for job in snapshot.jobs):
            for role in node_shape.roles:
                self.world.ask(role.ask)
        self.tree = Tree((), self.world.pools())
        self.table = Running(self.world, self.tree)
        self._plant(snapshot.queues)

    def band(self, queue: str, shape: Shape) -> int:
        """The band a job of a queue stands in."""
        return min(shape.band, self._tops.get(queue, shape.band))

    def amount(self, number: int) -> list[int]:
        """What a shape counts at least, by quota. What no node has, or has any more, does not count: whoever waits for
        it could have no share of anything else."""
        if number not in self._amounts:
            shape, whole = self.shapes.all[number], self.tree.capacity
            amount = self.world.quota(shape, None, shape.least).tolist()
            self._amounts[number] = [part if most else 0 for part, most in zip(amount, whole, strict=False)]
            if self._amounts[number] != amount[: len(whole)]:
                self._lacking.add(number)
        return self._amounts[number]

    def counts(self, job: Job, spots: tuple[Spot, ...], width: int) -> list[int]:
        """What a waiting job counts in these places, where it would have this width; by quota."""
        shape, number = job.shape, self.lines.numbers[job.id]
        if width == shape.least and all(len(role.ask.models) == 1 or not _devices(role.ask) for role in shape.roles):
            return self.amount(number)
        model = self.world.model_of(spots)
        if model is None:
            amount: list[int] = self.world.quota(shape, spots, width).tolist()
            return amount
        name = number, width, model
        known = self._placed.get(name)
        if known is None or len(known) != len(self.world.quotas):
            known = self._placed[name] = self.world.quota(shape, spots, width).tolist()
        return known

    def start(self, job: Job, start: Start, amount: list[int]) -> None:
        """Let a waiting job run there from now on."""
        self.lines.drop(job.id)
        if start.band != job.shape.band:
            self._asked[job.id] = job.shape
            job = self._reshaped(job, replace(job.shape, band=start.band))
        job = job.changed(
            spots=start.spots, started=self.now, saved=0, resized=self.now, not_before=0, charged=start.charged
        )  # fmt: skip
        self.world.take(start.spots, job.shape.roles)
        self.turns.drop(job.id)
        self._count(job, amount)

    def waited_for(self, job_id: str) -> bool:
        """Is somebody being stopped for it?"""
        return any(self.running[one].stopped_for == job_id for one in self.stopping if one in self.running)

    def stop(self, evict: Evict) -> None:
        """A job is being stopped: its places are kept for whom they are wanted by."""
        job = self.running[evict.job]
        self.running[evict.job] = replace(job, stopping=self.now, stopped_for=evict.wanted_by)
        self.stopping.add(evict.job)
        self.table.drop(evict.job)

    def spare(self, job_id: str) -> None:
        """A job that was to be stopped runs on."""
        self.running[job_id] = replace(self.running[job_id], stopping=0, stopped_for="")
        self.stopping.discard(job_id)
        self._expect(self.running[job_id])

    def resize(self, resize: Resize) -> None:
        """A job has other places from now on."""
        if resize.job in self.running:
            self._move(replace(self.running[resize.job], spots=resize.spots, resized=self.now))

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

    def park(self, queue: str, number: int, refusal: Refusal) -> None:
        """A quota holds a line back: until one of its queues gives something back."""
        self.parked.setdefault(queue, {})[number] = refusal
        name = refusal[0]
        # What others keep may be made good by whatever anybody gives back.
        top = name if queue == name or queue.startswith(name + "/") else queue.partition("/")[0]
        self._held_back.setdefault(top, set()).add((queue, number))

    def refuse(self, job: Job, number: int, refusal: Refusal) -> None:
        """A budget does not cover a job: nor those of its line that are charged for as long, until it is given back
        something. What it does cover is known where it counts devices or cores; not where it counts money."""
        lines = self.dear.setdefault(job.queue, {})
        most = min(self.pays_s(job), self.budgets.covers(job.queue, rates(job.shape)) + 1)
        if number not in lines or most < lines[number][0]:
            lines[number] = most, refusal
        if refusal[1] == f"{BUDGET}{MONEY}":
            self._costly.add((job.queue, number))
        for name in way(job.queue):  # what it does cover is what all of them cover
            self._held_back.setdefault(name, set()).add((job.queue, number))

    def too_dear(self, job: Job, number: int) -> Refusal | None:
        """The budget that is known not to cover a waiting job, and what it lacks for it."""
        known = self.dear.get(job.queue, {}).get(number)
        if known is None or self.pays_s(job) < known[0]:
            return None
        least = tuple((unit, rate * self.pays_s(job)) for unit, rate in rates(job.shape))
        spent = self.budgets.exhausted(job.queue, least)
        return (spent.queue, f"{BUDGET}{spent.unit}", spent.missing) if spent and spent.stops else known[1]

    def reopen(self) -> None:
        """Look at what was freed: which shapes may fit again?"""
        self.freed |= self.turns.released
        rows = [self.world.index[name] for name in self.freed if name in self.world.index]
        self.freed.clear()
        self.turns.released.clear()
        self.rows = sorted({*rows, *(self.rows if self.reopened else ())})
        if self._costly and rows:
            self._cheaper(rows)
        for number in self.fitting(self.closed) if rows else ():
            self.closed.discard(number)
            self.reopened.add(number)
            self.fresh |= self.lines.behind.get(number, set()) & self.asleep

    def _cheaper(self, rows: list[int]) -> None:
        """What was freed may cost less than what was too dear: look again whom a budget of money refused."""
        prices = [self.world.prices(devices) for devices in (True, False)]
        if any((one[rows] < one.max(initial=0)).any() for one in prices):
            for queue, number in self._costly:
                self._allow(queue, number)
            self._costly.clear()

    def fitting(self, numbers: set[int]) -> list[int]:
        """Those of these shapes that fitted nowhere and may fit, thanks to what was freed since."""
        shapes, world, ranked = self.shapes.all, self.world, sorted(numbers)
        asks = [world.ask(shapes[number].roles[0].ask) for number in ranked]
        if len(ranked) * len(self.rows) <= _FEW:  # then a look at each takes less than arrays do
            some = [any(world.room(ask, row) for row in self.rows) for ask in asks]
        else:
            some = world.fits(asks, self.rows).tolist()
        found = [(number, ask) for number, ask, fits in zip(ranked, asks, some, strict=True) if fits]
        gangs = [(number, ask) for number, ask in found if shapes[number].least > 1]
        if gangs:
            totals = world.totals([ask for _, ask in gangs])
            short = {one for (one, _), most in zip(gangs, totals, strict=True) if most < shapes[one].least}
            return [number for number, _ in found if number not in short]
        return [number for number, _ in found]

    def overdue(self) -> None:
        """Expect more of what runs longer than was expected."""
        due = set()
        while self._ends and self._ends[0][0] <= self.now:
            due.add(heappop(self._ends)[1])
        for job_id in sorted(due):
            if job_id in self.running:
                self._expect(self.running[job_id])

    def next_estimate(self) -> int:
        """When a running job is to be estimated again; NEVER where none runs."""
        return self._ends[0][0] if self._ends else NEVER

    def _move(self, job: Job) -> None:
        """It runs in other places: those it keeps are never free in between, or a turn would take them."""
        self._leave(job.id, job.spots)
        self._count(job, self.world.quota(job.shape, job.spots, job.width).tolist())

    def _enter(self, job: Job) -> None:
        if job.spots:
            self.world.hold(job.spots, job.shape.roles)
            self._count(job, self.world.quota(job.shape, job.spots, job.width).tolist())
        else:
            self.lines.put(job)
            self.fresh.add(job.queue)

    def _weigh(self, shape: Shape, more: int) -> None:
        """Tell the world what is asked for, by the dozen and by powers of two: when that changes it thinks anew about
        every place."""
        number = self.shapes.number(shape)
        before = roughly(self._many[number])
        self._many[number] += more
        after = roughly(self._many[number])
        if before != after:
            self.world.mix(shape, after - before)
            # It may ask for a resource that the tree never heard of: no node has it, or none had before.
            if len(self.world.quotas) != len(self.tree.quotas):
                self._plant(self._current())

    def _reshaped(self, job: Job, shape: Shape) -> Job:
        """The job with another shape, which it is known by from now on."""
        self._weigh(job.shape, -1)
        self._weigh(shape, 1)
        return replace(job, shape=self.shapes.all[self.shapes.number(shape)])

    def _count(self, job: Job, amount: list[int]) -> None:
        self.tree.charge(job.queue, amount)
        self.budgets.hold(job.queue, job.charged)
        self._counted[job.id] = amount
        self.used[job.queue] += 1
        self.kin.add(job.template, self._key(job), job.id)
        self.running[job.id] = job
        self._expect(job)

    def _expect(self, job: Job) -> None:
        """Know how long it will run; where nothing else of it changed, nothing else is touched."""
        key = self._key(job)
        left = self.forecast.left(job, key, self.now)
        end = self.now + (self.forecast.unknown(job, self.now) if left is None else left[1])
        middle = None if left is None else left[0]
        lasts = self.forecast.rank_lasts(job, key, self.now)
        if self.table.jobs.get(job.id) is job:
            before = self.profile.end(job.id)
            self.profile.until(job.id, end)
            self.table.expect(job, middle, self.now, falls=not lasts)
        else:
            before = -1
            self._lay(job, end, middle, falls=not lasts)
        if end != before:  # else it is among the ends already
            heappush(self._ends, (end, job.id))
        if middle is not None and not job.stopping:
            heappush(self._ends, (self.now + (lasts or middle), job.id))

    def _lay(self, job: Job, end: int, left: int | None, *, falls: bool) -> None:
        self.profile.put(job.id, job.spots, job.shape.roles, end)
        if job.stopping:
            self.stopping.add(job.id)
            self.table.drop(job.id)  # nobody can ask it to go once more
            return
        # What it started with may know fewer kinds of devices than there are by now; new ones come last.
        counted = self._counted[job.id]
        amount = counted + [0] * (len(self.tree.quotas) - len(counted))
        self.table.put(job, left, self.now, amount, falls=falls)

    def _leave(self, job_id: str, keeps: tuple[Spot, ...] = ()) -> Job | None:
        job = self.running.pop(job_id, None)
        if job is None:
            job = self.lines.drop(job_id)
            if job is not None:
                self.fresh.add(job.queue)
            return job
        self._vacate([job], keeps)
        return job

    def _vacate(self, jobs: Sequence[Job], keeps: tuple[Spot, ...] = ()) -> None:
        """These run no longer: what they held is free, but for what is kept, and goes to the turns it belongs to."""
        alike: dict[int, tuple[Job, list[Spot]]] = {}
        for job in jobs:
            self.stopping.discard(job.id)
            self.profile.drop(job.id)
            alike.setdefault(id(job.shape), (job, []))[1].extend(job.spots)
        for one, spots in alike.values():
            self.world.give(spots, one.shape.roles)
            self.world.hold(keeps, one.shape.roles)
        nodes = {spot.node for job in jobs for spot in job.spots}
        self.turns.hold(nodes)
        self.freed |= nodes
        for job in jobs:
            self._uncount(job, over=not keeps)

    def _uncount(self, job: Job, over: bool) -> None:
        self.tree.charge(job.queue, self._counted.pop(job.id), -1)
        self.table.drop(job.id)
        ran = max(self.now - job.started, 0) if over and job.charged else 0
        cost = charge(self._nodes_of(job), job.shape.roles, job.spots, ran) if ran else ()
        self.budgets.settle(job.queue, job.charged, cost)
        self.used[job.queue] -= 1
        self.kin.drop(job.template, self._key(job), job.id)
        if not self.used[job.queue]:
            del self.used[job.queue]
        self.fresh.add(job.queue)
        self._release_above(job.queue)

    def _nodes_of(self, job: Job) -> dict[str, Node]:
        world = self.world
        return {spot.node: world.nodes[world.index[spot.node]] for spot in job.spots if spot.node in world.index}

    def _release_above(self, queue: str) -> None:
        """Something of a queue's quota, or of those above it, is given back: look again whom they hold back."""
        for name in way(queue):
            for held, number in self._held_back.pop(name, ()):
                self._allow(held, number)

    def _allow(self, queue: str, number: int) -> None:
        known = self.parked.get(queue, {}).pop(number, None), self.dear.get(queue, {}).pop(number, None)
        if any(known):
            self.fresh.add(queue)

    def _moved(self, nodes: set[str]) -> None:
        """Nodes are others than they were: so is the capacity that shares are parts of."""
        self.profile.refit()
        self.turns.version += 1
        self.turns.hold(nodes)
        self.freed |= nodes
        self._plant(self._current())

    def _current(self) -> tuple[Queue, ...]:
        """The queues with their budgets as they stand."""
        return tuple(replace(one, budgets=self.budgets.of(one.name)) if one.budgets else one for one in self._queues)

    def _plant(self, queues: Sequence[Queue]) -> None:
        """Grow the tree anew: other queues, or another capacity that shares are parts of."""
        tree = Tree(queues, self.world.pools())
        leaves = {name for name, leaf in self.lines.leaves.items() if leaf.order} | set(self.used)
        for name in sorted(leaves):
            if name not in tree.index or tree.children[tree.index[name]]:
                raise Invalid(f"jobs wait or run in {name}, which would be no leaf", "move or end them first")
        for name in self.used:
            tree.charge(name, self.tree.usage[self.tree.index[name]])
        same = (tree.names, tree.quotas) == (self.tree.names, self.tree.quotas)
        self._recount |= [*map(bool, tree.capacity)] != [*map(bool, self.tree.capacity)]
        self._queues, self.budgets = tuple(queues), Budgets(_unheld(queue) for queue in queues)
        for job in self.running.values():
            self.budgets.hold(job.queue, job.charged)
        self.budgeted = any(queue.budgets for queue in queues)
        self.tree, self.order, self._potential = tree, Order(tree), None
        self._amounts.clear()
        self._lacking.clear()
        self._placed.clear()
        self.parked.clear()
        self.dear.clear()
        self._held_back.clear()
        self._costly.clear()
        tops = {name: min(tree.queues[row].top_band for row in tree.paths[tree.index[name]]) for name in tree.names}
        self.lines.rerank(sorted(name for name in leaves if tops[name] != self._tops.get(name)))
        self._tops = tops
        self.fresh |= leaves
        if not same:
            self.table = Running(self.world, self.tree)
            for job in self.running.values():
                self._expect(job)
        self.reclaim = Reclaim(self.world, self.tree, self.table, place, self.knobs)

    def potential(self, tick: int) -> Potential:
        """What leaves are promised and deserve, as things are wanted now; of very many leaves, as they were lately."""
        lately = self._worked == tick and len(self.demand) > MANY_LEAVES
        if self._recount:
            self._recount, self.demand = False, {}
            for job in (*self.lines.jobs.values(), *self.running.values()):
                self._want(job, 1)
        if self._potential is None or (self._stale and not lately):
            self._stale, self._worked = False, tick
            demand = np.zeros((len(self.tree.names), len(self.tree.quotas)), np.int64)
            for queue in self.demand.keys() & self.tree.index.keys():
                demand[self.tree.index[queue], : len(self.demand[queue])] = self.demand[queue]
            self._potential = Potential(self.tree, demand)
        return self._potential

    def _want(self, job: Job, sign: int) -> None:
        self._stale = True
        amount = self.amount(self.shapes.number(job.shape))
        wants = self.demand.get(job.queue, ())
        self.demand[job.queue] = [have + sign * part for have, part in zip_longest(wants, amount, fillvalue=0)]

    def _restore(self, turn: Reservation) -> None:
        job = self.lines.jobs.get(turn.job)
        if job is not None:
            self.turns.put(turn, pool(job.shape), job.shape.roles, self.run_s(job))

    def _key(self, job: Job) -> str:
        return self.shapes.keys[self.shapes.number(job.shape)]

    def pays_s(self, job: Job) -> int:
        """For how long its budgets are charged when it starts: its limit, else as long as it is expected to run."""
        return job.limit_s or self.run_s(job)

    def run_s(self, job: Job) -> int:
        """How long it will run at P90."""
        return self.forecast.end(job, self._key(job), self.now) - self.now


def _unheld(queue: Queue) -> Queue:
    """A queue whose budgets hold nothing: what they hold follows from what runs."""
    return replace(queue, budgets=tuple(replace(one, held=0) for one in queue.budgets)) if queue.budgets else queue


def _devices(ask: Ask) -> bool:
    return bool(ask.gpus or ask.milli)


def roughly(count: int) -> int:
    """How many there are, as far as the mix cares."""
    return 1 << (-(-count // 12)).bit_length() >> 1
