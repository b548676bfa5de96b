"""Which nodes to buy for work that waits: places are looked for on nodes only imagined, then the scheduler is asked.

What it starts there is what it would start on real ones, by the same rights, quotas and places; so nothing is ever
bought for a job that a limit, a budget or the law holds back.
"""

from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.model import Job, JobShape, Node, Reservation, SchedulerSnapshot, SlotPlacement
from falaj.schedule.placement import find_placement
from falaj.schedule.runtime_forecast import compute_shape_size, get_pool
from falaj.schedule.scheduler import Scheduler
from falaj.simulator.node_kinds import HOUR_S, NodeKind, ScalingOptions

MAX_STARTS = 1000
NEW_NODE_MARK = "+"
"""The mark of nodes not yet asked for; those that come have another."""
MAX_TRIES = 32
"""So often the kinds are compared at one visit; the next one goes on."""


@dataclass(frozen=True, slots=True)
class PurchasePlan:
    """What to buy, and what becomes of whom by it."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """How many more of each kind."""
    starts: Mapping[str, str] = field(default_factory=dict)
    """Jobs that start on what is bought, each with a kind it starts on."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Jobs that wait, and why nothing is bought for them."""


def settle_scheduler(facts: SchedulerSnapshot, coming: Iterable[Node] = ()) -> Scheduler:
    """The scheduler after it started what it can, on the nodes there are and those that come."""
    calm_options = replace(facts.knobs, grow=False, patience=0)
    scheduler = Scheduler(replace(facts, nodes=(*facts.nodes, *coming), knobs=calm_options))
    _run_cycles(scheduler)
    return scheduler


@dataclass(frozen=True, slots=True)
class PurchaseOffer:
    """So many nodes of a kind, and whom they start where."""

    kind: NodeKind
    count: int
    placed: tuple[tuple[Job, tuple[SlotPlacement, ...]], ...]


class PurchasePlanner:
    """One visit. Places are looked for in a world of what there is and all that could be bought; what is taken home is
    what the scheduler then uses of it. What a kind that was bought only just is cheapest for waits a moment, and gets
    nothing dearer instead."""

    def __init__(
        self,
        facts: SchedulerSnapshot,
        kinds: Iterable[NodeKind],
        free_counts: Mapping[str, int],
        money_left: int | None,
        cooling_kinds: Iterable[str] = (),
    ) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._free_counts, self._money_left, self._cooling_kinds = dict(free_counts), money_left, set(cooling_kinds)
        notices = [kind.notice_s for kind in self._kinds.values() if kind.node.spot]
        jobs = tuple(_exclude_spot_nodes(job, min(notices)) if notices and not job.spots else job for job in facts.jobs)
        self._facts = replace(facts, jobs=jobs)
        nodes_by_kind = {name: kind.imagine(kind.most, NEW_NODE_MARK) for name, kind in self._kinds.items()}
        self._cluster_state = ClusterState(
            [*facts.nodes, *(node for kind_nodes in nodes_by_kind.values() for node in kind_nodes)]
        )
        for job in jobs:
            self._cluster_state.hold(job.spots, job.shape.roles)
        self._rows_by_kind = {
            name: [self._cluster_state.index[node.name] for node in kind_nodes]
            for name, kind_nodes in nodes_by_kind.items()
        }
        """By kind, the rows of nodes that can still be bought."""
        self._allowed = np.arange(len(self._cluster_state.nodes)) < len(facts.nodes)
        self._bought_counts: dict[str, int] = {}
        self._jobs_left: dict[str, Job] = {}

    def buy(self, late_ids: Iterable[str]) -> PurchasePlan:
        """The cheapest nodes that start these jobs, the first of them first."""
        job_by_id = {job.id: job for job in self._facts.jobs}
        self._jobs_left = {job_id: job_by_id[job_id] for job_id in late_ids}
        meant_kinds: dict[str, str] = {}
        hopeless: dict[JobShape, str] = {}
        refused: dict[str, str] = {}
        tries = 0
        for job_id, job in list(self._jobs_left.items()):
            if job_id not in self._jobs_left or (job.shape not in hopeless and tries >= MAX_TRIES):
                continue
            if job.shape not in hopeless:
                tries += 1
                best_offer = self._find_best_offer(job)
                if best_offer is not None:
                    self._accept_offer(best_offer)
                    meant_kinds.update({placed_job.id: best_offer.kind.name for placed_job, _ in best_offer.placed})
                    continue
                hopeless[job.shape] = self._explain_no_offer(job)
            refused[job_id] = hopeless[job.shape]
        return self._confirm_purchases(meant_kinds, refused)

    def _find_best_offer(self, job: Job) -> PurchaseOffer | None:
        """What starts a job, with most of its like for the money."""
        best_rank: tuple[Fraction, int, str] | None = None
        best_offer = None
        for name, kind in sorted(self._kinds.items()):
            max_count = self._free_counts.get(name, 0)
            if self._money_left is not None and kind.node.price:
                max_count = min(max_count, self._money_left // kind.node.price)
            for offer in self._iter_offers(kind, max_count):
                jobs = [placed_job for placed_job, _ in offer.placed]
                if not any(placed_job is job for placed_job in jobs):
                    continue
                like_size = sum(
                    _compute_job_size(placed_job)
                    for placed_job in jobs
                    if get_pool(placed_job.shape) == get_pool(job.shape)
                )
                price = compute_expected_price(kind, jobs)
                rank = (Fraction(offer.count * price, max(like_size, 1)), -like_size, name)
                if price and (best_rank is None or rank < best_rank):
                    best_rank, best_offer = rank, offer
        return best_offer

    def _iter_offers(self, kind: NodeKind, max_count: int) -> Generator[PurchaseOffer]:
        """For more and more nodes of a kind: who could start."""
        cluster_state, allowed_rows = self._cluster_state, self._allowed.copy()
        placed: list[tuple[Job, tuple[SlotPlacement, ...]]] = []
        jobs_by_shape: dict[JobShape, list[Job]] = {}
        for job in reversed(self._jobs_left.values()):
            jobs_by_shape.setdefault(job.shape, []).append(job)
        try:
            for count, row in enumerate(self._rows_by_kind[kind.name][:max_count], 1):
                allowed_rows[row] = True
                for shape, shape_jobs in jobs_by_shape.items():
                    if not any(cluster_state.possible(cluster_state.ask(role.ask))[row] for role in shape.roles):
                        continue
                    while (
                        shape_jobs
                        and (spots := find_placement(cluster_state, shape, shape.least, allowed_rows)) is not None
                    ):
                        cluster_state.take(spots, shape.roles)
                        placed.append((shape_jobs.pop(), spots))
                yield PurchaseOffer(kind, count, tuple(placed))
                if not any(jobs_by_shape.values()):
                    return
        finally:
            for job, spots in placed:
                cluster_state.give(spots, job.shape.roles)

    def _accept_offer(self, offer: PurchaseOffer) -> None:
        name, rows = offer.kind.name, self._rows_by_kind[offer.kind.name]
        self._allowed[rows[: offer.count]] = True
        self._rows_by_kind[name] = rows[offer.count :]
        self._bought_counts[name] = self._bought_counts.get(name, 0) + offer.count
        self._free_counts[name] -= offer.count
        if self._money_left is not None:
            self._money_left -= offer.count * offer.kind.node.price
        for job, spots in offer.placed:
            self._cluster_state.take(spots, job.shape.roles)
            del self._jobs_left[job.id]

    def _confirm_purchases(self, meant_kinds: Mapping[str, str], refused: Mapping[str, str]) -> PurchasePlan:
        """What was bought, less what the scheduler would not use."""
        nodes = {name: self._kinds[name].imagine(count, NEW_NODE_MARK) for name, count in self._bought_counts.items()}
        scheduler = (
            settle_scheduler(self._facts, [node for kind_nodes in nodes.values() for node in kind_nodes])
            if nodes
            else None
        )
        running = scheduler.running if scheduler else {}
        used_nodes = {spot.node for job in running.values() for spot in job.spots}
        used_nodes |= {
            spot.node
            for reservation in (scheduler.turns.of.values() if scheduler else ())
            for spot in reservation.spots
        }
        counts = {name: sum(node.name in used_nodes for node in kind_nodes) for name, kind_nodes in nodes.items()}
        starts = {
            job.id: node.rpartition(NEW_NODE_MARK)[0]
            for job in running.values()
            if NEW_NODE_MARK
            in (node := max((spot.node for spot in job.spots), key=lambda name: NEW_NODE_MARK in name, default=""))
        }
        refusals = {name: "others come before it on what is bought" for name in meant_kinds if name not in running}
        refusals |= {
            name: f"{kind} is bought for it in a moment" for name, kind in starts.items() if kind in self._cooling_kinds
        }
        return PurchasePlan(
            {name: count for name, count in counts.items() if count and name not in self._cooling_kinds},
            {name: kind for name, kind in starts.items() if kind not in self._cooling_kinds},
            {**{name: why for name, why in refused.items() if name not in starts}, **refusals},
        )

    def _explain_no_offer(self, job: Job) -> str:
        """Which kind would have done, were it not for money or number."""
        possible_purchases = []
        for name, kind in sorted(self._kinds.items()):
            with closing(self._iter_offers(kind, kind.most)) as offers:
                count = next(
                    (offer.count for offer in offers if any(job is placed_job for placed_job, _ in offer.placed)), 0
                )
            if count and compute_expected_price(kind, [job]):
                possible_purchases.append((count * kind.node.price, count, name))
        if not possible_purchases:
            return "no kind of node would start it"
        _, count, name = min(possible_purchases)
        is_too_expensive = self._money_left is not None and self._free_counts.get(name, 0) >= count
        obstacle = "the money for an hour does not reach" if is_too_expensive else "no more of them may be had now"
        return f"{count} of {name} would start it, and {obstacle}"


def list_late_jobs(scheduler: Scheduler, kinds: Iterable[NodeKind], options: ScalingOptions) -> list[str]:
    """Who waits too long for lack of nodes, first who waits longest; not who waits for a quota, a budget, or rests.
    Gives everybody a turn, as far as the board has turns to give."""
    min_boot_s = min((kind.boot_s for kind in kinds), default=0)
    late_ids: list[str] = []
    for job in sorted(scheduler.lines.jobs.values(), key=lambda job: (job.submitted, job.id)):
        number = scheduler.lines.numbers[job.id]
        is_parked = number in scheduler.parked.get(job.queue, ()) or scheduler.too_dear(job, number) is not None
        if is_parked or job.not_before > scheduler.now:
            continue
        if job.id not in scheduler.turns.of and scheduler.turns.room(get_pool(job.shape)):
            reservation = scheduler.turns.plan(job.id, job.shape, job.shape.least, scheduler.now)
            if reservation is not None:
                scheduler.turns.put(
                    Reservation(job.id, *reservation), get_pool(job.shape), job.shape.roles, scheduler.run_s(job)
                )
        late_after = max(job.submitted + options.wait_s, scheduler.now + min_boot_s)
        if job.id not in scheduler.turns.of or scheduler.turns.of[job.id].at > late_after:
            late_ids.append(job.id)
    return late_ids


def compute_expected_price(kind: NodeKind, jobs: Iterable[Job]) -> int:
    """An hour of useful work on it: what is lost when it is taken away, and coming back, is paid for nothing. None of
    that can be had (0) when more is lost than done."""
    price = max(kind.node.price, 1)
    if not kind.node.spot:
        return price
    lost_s = max((job.save_s + job.restart_s for job in jobs), default=0) + kind.boot_s
    useful_s = 1000 * HOUR_S - kind.node.hazard * lost_s
    return price * 1000 * HOUR_S // useful_s if useful_s > 0 else 0


def _compute_job_size(job: Job) -> int:
    return max(1, compute_shape_size(job.shape, job.shape.least))


def _exclude_spot_nodes(job: Job, notice_s: int) -> Job:
    """A job that could not save before a spot node is gone is not to be counted on for one."""
    if (job.resumes and 0 < job.save_s < notice_s) or not any(role.ask.spot for role in job.shape.roles):
        return job
    roles = tuple(replace(role, ask=replace(role.ask, spot=False)) for role in job.shape.roles)
    return replace(job, shape=replace(job.shape, roles=roles))


def _run_cycles(scheduler: Scheduler) -> None:
    while len(scheduler.cycle(scheduler.now, MAX_STARTS).starts) >= MAX_STARTS:
        pass
