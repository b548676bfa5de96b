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
from falaj.schedule.availability_profile import AvailabilityProfile
from falaj.schedule.budget import (
    BUDGET_PREFIX,
    MONEY_UNIT,
    BudgetTracker,
    compute_charge,
    compute_charge_rates,
    iter_queue_path,
)
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.fair_share import ShareTree
from falaj.schedule.fair_share_order import FairShareOrder
from falaj.schedule.fairness_potential import FairnessPotential
from falaj.schedule.job_families import JobFamilies
from falaj.schedule.model import (
    NEVER,
    Job,
    JobEviction,
    JobResize,
    JobShape,
    JobStart,
    Node,
    Queue,
    Reservation,
    SchedulerSnapshot,
    SlotPlacement,
    SlotRequest,
)
from falaj.schedule.pending_queues import PendingQueues, ShapeRegistry
from falaj.schedule.placement import find_placement
from falaj.schedule.preemption import PreemptionPlanner
from falaj.schedule.reservations import Reservations
from falaj.schedule.running_jobs import RunningJobs
from falaj.schedule.runtime_forecast import RuntimeForecast, get_pool

MANY_LEAVES, _FEW_CHECKS = 100, 4
Refusal = tuple[str, str, int]
"""Whose quota or budget refuses something, which, and how much is missing."""


class SchedulerState:
    """Everything a decision rests on, and what changed since the last one."""

    def __init__(self, snapshot: SchedulerSnapshot) -> None:
        self.now, self.knobs = snapshot.now, snapshot.knobs
        self.world = ClusterState(snapshot.nodes)
        self.shapes, self.forecast = ShapeRegistry(), RuntimeForecast(snapshot.past)
        self.lines = PendingQueues(self.shapes, self.forecast, self.band)
        self.lines.now = snapshot.now
        self.profile = AvailabilityProfile(self.world)
        self.turns = Reservations(self.world, self.profile, snapshot.knobs.depth)
        self.running: dict[str, Job] = {}
        self.used: Counter[str] = Counter()
        """How many run, by leaf."""
        self.demand: dict[str, list[int]] = {}
        """What all jobs of a leaf want, at their smallest widths, by quota."""
        self.stopping: set[str] = set()
        self.kin = JobFamilies()
        self._charged_amounts: dict[str, list[int]] = {}
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
        self._lines_held_by: dict[str, set[tuple[str, int]]] = {}
        self._price_refused_lines: set[tuple[str, int]] = set()
        """Lines that a budget of money refused: on cheaper nodes they cost less."""
        self._amounts: dict[int, list[int]] = {}
        self._unavailable_shapes: set[int] = set()
        """Shapes that ask for something no node has: nobody can make room for them."""
        self._placed_amounts: dict[tuple[int, int, str], list[int]] = {}
        """What a shape counts with so many slots on devices of one model."""
        self._end_heap: list[tuple[int, str]] = []
        self._refusal_counts: dict[str, int] = {}
        self._shape_counts: Counter[int] = Counter()
        self._requested_shapes: dict[str, JobShape] = {}
        """The shapes of those that run in a lower band than they asked for."""
        self._potential: FairnessPotential | None = None
        self._is_demand_stale, self._potential_tick = True, -1
        self._needs_recount = False
        """There is something that there was not, or the other way round: demand is to be counted anew."""
        self._top_bands: dict[str, int] = {}
        for shape in dict.fromkeys(job.shape for job in snapshot.jobs):
            for role in shape.roles:
                self.world.ask(role.ask)
        self.tree = ShareTree((), self.world.pools())
        self.table = RunningJobs(self.world, self.tree)
        self._rebuild_tree(snapshot.queues)

    def band(self, queue: str, shape: JobShape) -> int:
        """The band a job of a queue stands in."""
        return min(shape.band, self._top_bands.get(queue, shape.band))

    def amount(self, number: int) -> list[int]:
        """What a shape counts at least, by quota. What no node has, or has any more, does not count: whoever waits for
        it could have no share of anything else."""
        if number not in self._amounts:
            shape, capacity = self.shapes.all[number], self.tree.capacity
            amount = self.world.quota(shape, None, shape.least).tolist()
            self._amounts[number] = [
                part if quota_capacity else 0 for part, quota_capacity in zip(amount, capacity, strict=False)
            ]
            if self._amounts[number] != amount[: len(capacity)]:
                self._unavailable_shapes.add(number)
        return self._amounts[number]

    def counts(self, job: Job, spots: tuple[SlotPlacement, ...], width: int) -> list[int]:
        """What a waiting job counts in these places, where it would have this width; by quota."""
        shape, number = job.shape, self.lines.numbers[job.id]
        if width == shape.least and all(
            len(role.ask.models) == 1 or not _has_devices(role.ask) for role in shape.roles
        ):
            return self.amount(number)
        model = self.world.model_of(spots)
        if model is None:
            amount: list[int] = self.world.quota(shape, spots, width).tolist()
            return amount
        cache_key = number, width, model
        cached = self._placed_amounts.get(cache_key)
        if cached is None or len(cached) != len(self.world.quotas):
            cached = self._placed_amounts[cache_key] = self.world.quota(shape, spots, width).tolist()
        return cached

    def start(self, job: Job, start: JobStart, amount: list[int]) -> None:
        """Let a waiting job run there from now on."""
        self.lines.drop(job.id)
        if start.band != job.shape.band:
            self._requested_shapes[job.id] = job.shape
            job = self._with_shape(job, replace(job.shape, band=start.band))
        job = job.changed(
            spots=start.spots, started=self.now, saved=0, resized=self.now, not_before=0, charged=start.charged
        )  # fmt: skip
        self.world.take(start.spots, job.shape.roles)
        self.turns.drop(job.id)
        self._count_running(job, amount)

    def waited_for(self, job_id: str) -> bool:
        """Is somebody being stopped for it?"""
        return any(
            self.running[stopping_id].stopped_for == job_id
            for stopping_id in self.stopping
            if stopping_id in self.running
        )

    def stop(self, evict: JobEviction) -> None:
        """A job is being stopped: its places are kept for whom they are wanted by."""
        job = self.running[evict.job]
        self.running[evict.job] = replace(job, stopping=self.now, stopped_for=evict.wanted_by)
        self.stopping.add(evict.job)
        self.table.drop(evict.job)

    def spare(self, job_id: str) -> None:
        """A job that was to be stopped runs on."""
        self.running[job_id] = replace(self.running[job_id], stopping=0, stopped_for="")
        self.stopping.discard(job_id)
        self._update_expected_end(self.running[job_id])

    def resize(self, resize: JobResize) -> None:
        """A job has other places from now on."""
        if resize.job in self.running:
            self._move_job(replace(self.running[resize.job], spots=resize.spots, resized=self.now))

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
        refusing_queue = refusal[0]
        # What others keep may be made good by whatever anybody gives back.
        top_queue = (
            refusing_queue
            if queue == refusing_queue or queue.startswith(refusing_queue + "/")
            else queue.partition("/")[0]
        )
        self._lines_held_by.setdefault(top_queue, set()).add((queue, number))

    def refuse(self, job: Job, number: int, refusal: Refusal) -> None:
        """A budget does not cover a job: nor those of its line that are charged for as long, until it is given back
        something. What it does cover is known where it counts devices or cores; not where it counts money."""
        refused_lines = self.dear.setdefault(job.queue, {})
        refused_from_s = min(self.pays_s(job), self.budgets.covers(job.queue, compute_charge_rates(job.shape)) + 1)
        if number not in refused_lines or refused_from_s < refused_lines[number][0]:
            refused_lines[number] = refused_from_s, refusal
        if refusal[1] == f"{BUDGET_PREFIX}{MONEY_UNIT}":
            self._price_refused_lines.add((job.queue, number))
        for queue_name in iter_queue_path(job.queue):  # what it does cover is what all of them cover
            self._lines_held_by.setdefault(queue_name, set()).add((job.queue, number))

    def too_dear(self, job: Job, number: int) -> Refusal | None:
        """The budget that is known not to cover a waiting job, and what it lacks for it."""
        refused = self.dear.get(job.queue, {}).get(number)
        if refused is None or self.pays_s(job) < refused[0]:
            return None
        min_charge = tuple((unit, rate * self.pays_s(job)) for unit, rate in compute_charge_rates(job.shape))
        exhausted = self.budgets.exhausted(job.queue, min_charge)
        return (
            (exhausted.queue, f"{BUDGET_PREFIX}{exhausted.unit}", exhausted.missing)
            if exhausted and exhausted.stops
            else refused[1]
        )

    def reopen(self) -> None:
        """Look at what was freed: which shapes may fit again?"""
        self.freed |= self.turns.released
        rows = [self.world.index[name] for name in self.freed if name in self.world.index]
        self.freed.clear()
        self.turns.released.clear()
        self.rows = sorted({*rows, *(self.rows if self.reopened else ())})
        if self._price_refused_lines and rows:
            self._reopen_cheaper(rows)
        for number in self.fitting(self.closed) if rows else ():
            self.closed.discard(number)
            self.reopened.add(number)
            self.fresh |= self.lines.behind.get(number, set()) & self.asleep

    def _reopen_cheaper(self, rows: list[int]) -> None:
        """What was freed may cost less than what was too dear: look again whom a budget of money refused."""
        prices = [self.world.prices(devices) for devices in (True, False)]
        if any((node_prices[rows] < node_prices.max(initial=0)).any() for node_prices in prices):
            for queue, number in self._price_refused_lines:
                self._release_line(queue, number)
            self._price_refused_lines.clear()

    def fitting(self, numbers: set[int]) -> list[int]:
        """Those of these shapes that fitted nowhere and may fit, thanks to what was freed since."""
        shapes, cluster_state, ranked = self.shapes.all, self.world, sorted(numbers)
        request_numbers = [cluster_state.ask(shapes[number].roles[0].ask) for number in ranked]
        if len(ranked) * len(self.rows) <= _FEW_CHECKS:  # then a look at each takes less than arrays do
            may_fit = [
                any(cluster_state.room(request_number, row) for row in self.rows) for request_number in request_numbers
            ]
        else:
            may_fit = cluster_state.fits(request_numbers, self.rows).tolist()
        fitting = [
            (number, request_number)
            for number, request_number, fits in zip(ranked, request_numbers, may_fit, strict=True)
            if fits
        ]
        gangs = [(number, request_number) for number, request_number in fitting if shapes[number].least > 1]
        if gangs:
            totals = cluster_state.totals([request_number for _, request_number in gangs])
            too_few = {
                gang_number
                for (gang_number, _), total in zip(gangs, totals, strict=True)
                if total < shapes[gang_number].least
            }
            return [number for number, _ in fitting if number not in too_few]
        return [number for number, _ in fitting]

    def overdue(self) -> None:
        """Expect more of what runs longer than was expected."""
        due_ids = set()
        while self._end_heap and self._end_heap[0][0] <= self.now:
            due_ids.add(heappop(self._end_heap)[1])
        for job_id in sorted(due_ids):
            if job_id in self.running:
                self._update_expected_end(self.running[job_id])

    def next_estimate(self) -> int:
        """When a running job is to be estimated again; NEVER where none runs."""
        return self._end_heap[0][0] if self._end_heap else NEVER

    def _move_job(self, job: Job) -> None:
        """It runs in other places: those it keeps are never free in between, or a turn would take them."""
        self._remove_job(job.id, job.spots)
        self._count_running(job, self.world.quota(job.shape, job.spots, job.width).tolist())

    def _enter_job(self, job: Job) -> None:
        if job.spots:
            self.world.hold(job.spots, job.shape.roles)
            self._count_running(job, self.world.quota(job.shape, job.spots, job.width).tolist())
        else:
            self.lines.put(job)
            self.fresh.add(job.queue)

    def _weigh_shape(self, shape: JobShape, change: int) -> None:
        """Tell the world what is asked for, by the dozen and by powers of two: when that changes it thinks anew about
        every place."""
        number = self.shapes.number(shape)
        before = round_count(self._shape_counts[number])
        self._shape_counts[number] += change
        after = round_count(self._shape_counts[number])
        if before != after:
            self.world.mix(shape, after - before)
            # It may ask for a resource that the tree never heard of: no node has it, or none had before.
            if len(self.world.quotas) != len(self.tree.quotas):
                self._rebuild_tree(self._list_current_queues())

    def _with_shape(self, job: Job, shape: JobShape) -> Job:
        """The job with another shape, which it is known by from now on."""
        self._weigh_shape(job.shape, -1)
        self._weigh_shape(shape, 1)
        return replace(job, shape=self.shapes.all[self.shapes.number(shape)])

    def _count_running(self, job: Job, amount: list[int]) -> None:
        self.tree.charge(job.queue, amount)
        self.budgets.hold(job.queue, job.charged)
        self._charged_amounts[job.id] = amount
        self.used[job.queue] += 1
        self.kin.add(job.template, self._get_shape_key(job), job.id)
        self.running[job.id] = job
        self._update_expected_end(job)

    def _update_expected_end(self, job: Job) -> None:
        """Know how long it will run; where nothing else of it changed, nothing else is touched."""
        key = self._get_shape_key(job)
        left_s = self.forecast.left(job, key, self.now)
        end = self.now + (self.forecast.unknown(job, self.now) if left_s is None else left_s[1])
        median_left_s = None if left_s is None else left_s[0]
        lasts = self.forecast.rank_lasts(job, key, self.now)
        if self.table.jobs.get(job.id) is job:
            previous_end = self.profile.end(job.id)
            self.profile.until(job.id, end)
            self.table.expect(job, median_left_s, self.now, falls=not lasts)
        else:
            previous_end = -1
            self._record_running(job, end, median_left_s, falls=not lasts)
        if end != previous_end:  # else it is among the ends already
            heappush(self._end_heap, (end, job.id))
        if median_left_s is not None and not job.stopping:
            heappush(self._end_heap, (self.now + (lasts or median_left_s), job.id))

    def _record_running(self, job: Job, end: int, left_s: int | None, *, falls: bool) -> None:
        self.profile.put(job.id, job.spots, job.shape.roles, end)
        if job.stopping:
            self.stopping.add(job.id)
            self.table.drop(job.id)  # nobody can ask it to go once more
            return
        # What it started with may know fewer kinds of devices than there are by now; new ones come last.
        counted = self._charged_amounts[job.id]
        amount = counted + [0] * (len(self.tree.quotas) - len(counted))
        self.table.put(job, left_s, self.now, amount, falls=falls)

    def _remove_job(self, job_id: str, kept_spots: tuple[SlotPlacement, ...] = ()) -> Job | None:
        job = self.running.pop(job_id, None)
        if job is None:
            job = self.lines.drop(job_id)
            if job is not None:
                self.fresh.add(job.queue)
            return job
        self._free_jobs([job], kept_spots)
        return job

    def _free_jobs(self, jobs: Sequence[Job], kept_spots: tuple[SlotPlacement, ...] = ()) -> None:
        """These run no longer: what they held is free, but for what is kept, and goes to the turns it belongs to."""
        by_shape: dict[int, tuple[Job, list[SlotPlacement]]] = {}
        for job in jobs:
            self.stopping.discard(job.id)
            self.profile.drop(job.id)
            by_shape.setdefault(id(job.shape), (job, []))[1].extend(job.spots)
        for sample_job, spots in by_shape.values():
            self.world.give(spots, sample_job.shape.roles)
            self.world.hold(kept_spots, sample_job.shape.roles)
        nodes = {spot.node for job in jobs for spot in job.spots}
        self.turns.hold(nodes)
        self.freed |= nodes
        for job in jobs:
            self._remove_running(job, is_over=not kept_spots)

    def _remove_running(self, job: Job, is_over: bool) -> None:
        self.tree.charge(job.queue, self._charged_amounts.pop(job.id), -1)
        self.table.drop(job.id)
        ran_s = max(self.now - job.started, 0) if is_over and job.charged else 0
        cost = compute_charge(self._find_nodes_of(job), job.shape.roles, job.spots, ran_s) if ran_s else ()
        self.budgets.settle(job.queue, job.charged, cost)
        self.used[job.queue] -= 1
        self.kin.drop(job.template, self._get_shape_key(job), job.id)
        if not self.used[job.queue]:
            del self.used[job.queue]
        self.fresh.add(job.queue)
        self._release_above(job.queue)

    def _find_nodes_of(self, job: Job) -> dict[str, Node]:
        cluster_state = self.world
        return {
            spot.node: cluster_state.nodes[cluster_state.index[spot.node]]
            for spot in job.spots
            if spot.node in cluster_state.index
        }

    def _release_above(self, queue: str) -> None:
        """Something of a queue's quota, or of those above it, is given back: look again whom they hold back."""
        for queue_name in iter_queue_path(queue):
            for held_queue, number in self._lines_held_by.pop(queue_name, ()):
                self._release_line(held_queue, number)

    def _release_line(self, queue: str, number: int) -> None:
        refusals = self.parked.get(queue, {}).pop(number, None), self.dear.get(queue, {}).pop(number, None)
        if any(refusals):
            self.fresh.add(queue)

    def _apply_node_changes(self, nodes: set[str]) -> None:
        """Nodes are others than they were: so is the capacity that shares are parts of."""
        self.profile.refit()
        self.turns.version += 1
        self.turns.hold(nodes)
        self.freed |= nodes
        self._rebuild_tree(self._list_current_queues())

    def _list_current_queues(self) -> tuple[Queue, ...]:
        """The queues with their budgets as they stand."""
        return tuple(
            replace(queue, budgets=self.budgets.of(queue.name)) if queue.budgets else queue for queue in self._queues
        )

    def _rebuild_tree(self, queues: Sequence[Queue]) -> None:
        """Grow the tree anew: other queues, or another capacity that shares are parts of."""
        tree = ShareTree(queues, self.world.pools())
        leaves = {name for name, leaf in self.lines.leaves.items() if leaf.order} | set(self.used)
        for name in sorted(leaves):
            if name not in tree.index or tree.children[tree.index[name]]:
                raise Invalid(f"jobs wait or run in {name}, which would be no leaf", "move or end them first")
        for name in self.used:
            tree.charge(name, self.tree.usage[self.tree.index[name]])
        is_same_tree = (tree.names, tree.quotas) == (self.tree.names, self.tree.quotas)
        self._needs_recount |= [*map(bool, tree.capacity)] != [*map(bool, self.tree.capacity)]
        self._queues, self.budgets = tuple(queues), BudgetTracker(_without_reserved_budgets(queue) for queue in queues)
        for job in self.running.values():
            self.budgets.hold(job.queue, job.charged)
        self.budgeted = any(queue.budgets for queue in queues)
        self.tree, self.order, self._potential = tree, FairShareOrder(tree), None
        self._amounts.clear()
        self._unavailable_shapes.clear()
        self._placed_amounts.clear()
        self.parked.clear()
        self.dear.clear()
        self._lines_held_by.clear()
        self._price_refused_lines.clear()
        top_bands = {
            name: min(tree.queues[row].top_band for row in tree.paths[tree.index[name]]) for name in tree.names
        }
        self.lines.rerank(sorted(name for name in leaves if top_bands[name] != self._top_bands.get(name)))
        self._top_bands = top_bands
        self.fresh |= leaves
        if not is_same_tree:
            self.table = RunningJobs(self.world, self.tree)
            for job in self.running.values():
                self._update_expected_end(job)
        self.reclaim = PreemptionPlanner(self.world, self.tree, self.table, find_placement, self.knobs)

    def potential(self, tick: int) -> FairnessPotential:
        """What leaves are promised and deserve, as things are wanted now; of very many leaves, as they were lately."""
        is_recent = self._potential_tick == tick and len(self.demand) > MANY_LEAVES
        if self._needs_recount:
            self._needs_recount, self.demand = False, {}
            for job in (*self.lines.jobs.values(), *self.running.values()):
                self._count_demand(job, 1)
        if self._potential is None or (self._is_demand_stale and not is_recent):
            self._is_demand_stale, self._potential_tick = False, tick
            demand = np.zeros((len(self.tree.names), len(self.tree.quotas)), np.int64)
            for queue in self.demand.keys() & self.tree.index.keys():
                demand[self.tree.index[queue], : len(self.demand[queue])] = self.demand[queue]
            self._potential = FairnessPotential(self.tree, demand)
        return self._potential

    def _count_demand(self, job: Job, sign: int) -> None:
        self._is_demand_stale = True
        amount = self.amount(self.shapes.number(job.shape))
        demanded = self.demand.get(job.queue, ())
        self.demand[job.queue] = [current + sign * part for current, part in zip_longest(demanded, amount, fillvalue=0)]

    def _restore_reservation(self, reservation: Reservation) -> None:
        job = self.lines.jobs.get(reservation.job)
        if job is not None:
            self.turns.put(reservation, get_pool(job.shape), job.shape.roles, self.run_s(job))

    def _get_shape_key(self, job: Job) -> str:
        return self.shapes.keys[self.shapes.number(job.shape)]

    def pays_s(self, job: Job) -> int:
        """For how long its budgets are charged when it starts: its limit, else as long as it is expected to run."""
        return job.limit_s or self.run_s(job)

    def run_s(self, job: Job) -> int:
        """How long it will run at P90."""
        return self.forecast.end(job, self._get_shape_key(job), self.now) - self.now


def _without_reserved_budgets(queue: Queue) -> Queue:
    """A queue whose budgets hold nothing: what they hold follows from what runs."""
    return (
        replace(queue, budgets=tuple(replace(budget, held=0) for budget in queue.budgets)) if queue.budgets else queue
    )


def _has_devices(request: SlotRequest) -> bool:
    return bool(request.gpus or request.milli)


def round_count(count: int) -> int:
    """How many there are, as far as the mix cares."""
    return 1 << (-(-count // 12)).bit_length() >> 1
