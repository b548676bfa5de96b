"""What becomes of jobs that do not fit: others make room, they get a turn, or they are lent what is held for one."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np

from falaj.schedule.amount_text import BUDGET_UNITS, describe_amount, format_budget_amount
from falaj.schedule.availability_profile import count_slots_in, request_amounts
from falaj.schedule.budget import BUDGET_PREFIX, MONEY_UNIT, Charge, compute_charge
from falaj.schedule.model import (
    BEST_EFFORT,
    NEVER,
    NORMAL,
    Job,
    JobEviction,
    JobResize,
    JobStart,
    Reservation,
    SchedulerSnapshot,
    SlotPlacement,
    WaitReason,
)  # fmt: skip
from falaj.schedule.node_states import Flags, Ints
from falaj.schedule.pending_queues import Rank
from falaj.schedule.placement import find_placement
from falaj.schedule.preemption import CAUSE_TEXTS, VictimSet
from falaj.schedule.preemption_rights import PreemptionClaim
from falaj.schedule.runtime_forecast import compute_shape_size
from falaj.schedule.state import MANY_LEAVES, Refusal
from falaj.schedule.state_updates import UpdatableState

PlacementChoice = tuple[tuple[SlotPlacement, ...], list[int], Charge | None]
"""Places, what they count against quotas, what they cost; no costs: best effort."""
ROOM_MADE_CAUSE = "others make room for it"
RECHECK_INTERVAL_S = 30
"""So often those are looked at again for whom nobody had to make room."""
LEAVING_GRACE_S = 30
MAX_WAIT_S = 7 * 86_400
MAX_CLAIMS = 8
"""So many searches for victims a cycle; two where there are very many leaves."""
_MAX_JOBS_CHECKED = 64
"""So many are looked at behind one that asks for room, where a budget refuses some of them."""
MAX_ROUNDS = 4
"""So often a cycle looks at what it freed itself."""


@dataclass(slots=True)
class DraftPlan:
    """A plan in the making."""

    starts: list[JobStart] = field(default_factory=list)
    resizes: list[JobResize] = field(default_factory=list)
    evictions: list[JobEviction] = field(default_factory=list)
    redeemed: dict[str, Reservation] = field(default_factory=dict)
    """The turns of those that start."""
    lost: dict[str, Reservation] = field(default_factory=dict)
    """Turns that were, and what became of them: should another be given, it does not come later without a cause."""
    claims: int = 0


class BlockedJobScheduler(UpdatableState):
    """The part of the scheduler that looks after blocked jobs."""

    def __init__(self, snapshot: SchedulerSnapshot) -> None:
        super().__init__(snapshot)
        self._draft = DraftPlan()
        self._open_shapes: set[int] = set()
        self._unsettled_queues: set[str] = set()
        self._late_queues: set[str] = set()
        """Leaves that wanted room after a cycle's last search for victims."""
        self._tick = -1
        self._claimed_jobs: dict[tuple[str, int], set[str]] = {}
        """By line, who asked for room, until something of their leaf or the clock moves on."""
        self._cleared_jobs: dict[str, str] = {}
        """Those for whom others make room, and their leaves: what that leaves of a quota is theirs."""
        self._claimed_at: dict[str, int] = {}
        self._closed_at: dict[int, int] = {}
        self._tried_backfills: dict[int, tuple[int, int, str]] = {}
        self._lendable_cache: tuple[int, tuple[list[int], Ints, Ints]] | None = None

    def _evict_job(self, evict: JobEviction) -> None:
        self._draft.evictions.append(evict)
        self.stop(evict)

    def _start_job(self, job: Job, choice: PlacementChoice, why: str) -> None:
        spots, amount, charged = choice
        band = self.band(job.queue, job.shape)
        if charged is None:
            band, why = BEST_EFFORT, f"{why}; as best effort, for its budget is used up"
        start = JobStart(job.id, spots, band, why, charged or ())
        self._draft.starts.append(start)
        if job.id in self.turns.of:
            self._draft.redeemed[job.id] = self.turns.of[job.id]
        for evict in [
            eviction for eviction in self._draft.evictions if eviction.wanted_by == job.id
        ]:  # it needs nobody's place, after all
            self._draft.evictions.remove(evict)
            self.spare(evict.job)
        self.start(job, start, amount)
        self.rank(job.queue)
        self._unsettled_queues.add(job.queue)

    def _find_placement(self, job: Job) -> tuple[PlacementChoice | None, Refusal | None]:
        """Places for a job, at the width it prefers or its least, that its quotas allow; else what refuses them."""
        refusal = None
        for width in dict.fromkeys((max(job.shape.roles[0].count, job.shape.least), job.shape.least)):
            allowed: Flags | None = self._list_nodes_outlasting(job)
            while (spots := find_placement(self.world, job.shape, width, allowed)) is not None:
                amount = self.counts(job, spots, width)
                refusal = self._find_refusal(job, amount)
                if refusal is None:
                    costs, refusal = self._check_budgets(job, spots)
                    if refusal is None:
                        return (spots, amount, costs), None
                    narrower = (
                        self._exclude_dearer_nodes(spots, allowed)
                        if refusal[1] == f"{BUDGET_PREFIX}{MONEY_UNIT}"
                        else None
                    )
                else:
                    narrower = self._exclude_model(refusal[1], allowed)
                if narrower is None:
                    break  # with fewer slots it costs less
                allowed = narrower
        return None, refusal

    def _check_budgets(self, job: Job, spots: tuple[SlotPlacement, ...]) -> tuple[Charge | None, Refusal | None]:
        """What to charge its budgets; None where it runs uncharged, as best effort; or the budget that stops it."""
        if not self.budgeted or self.band(job.queue, job.shape) == BEST_EFFORT:
            return (), None
        nodes = {spot.node: self.world.nodes[self.world.index[spot.node]] for spot in spots}
        costs = compute_charge(nodes, job.shape.roles, spots, self.pays_s(job))
        exhausted = self.budgets.exhausted(job.queue, costs)
        if exhausted is None:
            return costs, None
        return None, (
            exhausted.queue,
            f"{BUDGET_PREFIX}{exhausted.unit}",
            exhausted.missing,
        ) if exhausted.stops else None

    def _list_nodes_outlasting(self, job: Job) -> Flags | None:
        """The nodes that do not go away under a job; None when none goes."""
        return self._list_nodes_staying(self.now + self.run_s(job)) if self.leaving else None

    def _list_nodes_staying(self, until: int = NEVER) -> Flags | None:
        if not self.leaving:
            return None
        return np.array([node.leaving >= until for node in self.world.nodes], np.bool_)

    def _exclude_model(self, quota: str, allowed: Flags | None) -> Flags | None:
        """The allowed nodes without those that count against a model's quota; None when that is no model's."""
        model = quota.partition(":")[2]
        if not model:
            return None
        remaining = np.array(
            [all(device.model != model for device in node.devices) for node in self.world.nodes], np.bool_
        )
        return remaining if allowed is None else remaining & allowed

    def _exclude_dearer_nodes(self, spots: tuple[SlotPlacement, ...], allowed: Flags | None) -> Flags | None:
        """The allowed nodes that cost less than the dearest of these places; None when that costs nothing."""
        prices = self.world.prices(any(spot.devices for spot in spots))
        cheaper_nodes: Flags = prices < prices[[self.world.index[spot.node] for spot in spots]].max()
        return (cheaper_nodes if allowed is None else cheaper_nodes & allowed) if cheaper_nodes.any() else None

    def _hold_back_line(self, job: Job, number: int, refusal: Refusal) -> None:
        """A quota refuses it, and with it its line; or a budget, and with it those of its line that cost no less."""
        if refusal[1].startswith(BUDGET_PREFIX):
            self.refuse(job, number, refusal)
        else:
            self.park(job.queue, number, refusal)
        self._tried_backfills.pop(
            number, None
        )  # as soon as that lets it, it may start where it could not be lent anything
        self._unsettled_queues.add(job.queue)  # another may be the first of it now for whom others make room
        if job.id in self.turns.of and not self.waited_for(job.id) and not self._is_waiting_for_departures(job.id):
            self._record_lost_reservation(self.turns.drop(job.id), "a quota or a budget had refused it")

    def _record_lost_reservation(self, reservation: Reservation | None, cause: str) -> None:
        if reservation is not None:
            self._draft.lost[reservation.job] = replace(reservation, cause=cause)

    def _find_refusal(self, job: Job, amount: list[int]) -> Refusal | None:
        """The quota that refuses a job so much: as things are, or as they will be when those go who make room."""
        refusal = self.tree.refusal(job.queue, amount)
        if refusal is not None or not self._cleared_jobs or not self.tree.bounded:
            return refusal
        with self._assume_room_made(job.id):
            return self.tree.refusal(job.queue, amount)

    @contextmanager
    def _assume_room_made(self, except_job_id: str) -> Iterator[None]:
        """The tree as it will be when those are gone who make room, and those run for whom they do."""
        coming_ids = (self._cleared_jobs.keys() & self.lines.jobs.keys()) - {except_job_id}
        moves = [
            (self._cleared_jobs[job_id], self.amount(self.lines.numbers[job_id]), 1) for job_id in sorted(coming_ids)
        ]
        leaving_ids = [job_id for job_id in sorted(self.stopping) if self.running[job_id].stopped_for in coming_ids]
        moves += [(self.running[job_id].queue, self._charged_amounts[job_id], -1) for job_id in leaving_ids]
        for queue, amount, sign in moves:
            self.tree.charge(queue, amount, sign)
        try:
            yield
        finally:
            for queue, amount, sign in reversed(moves):
                self.tree.charge(queue, amount, -sign)

    def _refresh_cleared_jobs(self) -> None:
        """Know for whom others make room, or made it and they could not start yet; as facts tell, and nothing else."""
        waited_for_ids, previous = {self.running[job_id].stopped_for for job_id in self.stopping}, self._cleared_jobs
        job_ids = [
            reservation.job
            for reservation in self.turns.all()
            if reservation.cause == ROOM_MADE_CAUSE or reservation.job in waited_for_ids
        ]
        self._cleared_jobs = {job_id: self.lines.jobs[job_id].queue for job_id in job_ids}
        for job_id in sorted(previous.keys() - self._cleared_jobs.keys()):
            self._release_above(previous[job_id])

    def _list_ready_cleared_jobs(self) -> list[str]:
        """Those for whom room was made, soonest first, where all who had to go are gone: it is their turn, or not."""
        for job_id in [
            job_id for job_id in self._cleared_jobs if job_id not in self.turns.of or job_id not in self.lines.jobs
        ]:
            self._release_cleared_job(job_id)
        ready_ids = self._cleared_jobs.keys() - {self.running[job_id].stopped_for for job_id in self.stopping}
        ready_ids = {
            job_id
            for job_id in ready_ids
            if not self._is_waiting_for_departures(job_id) and not self._awaits_others(job_id)
        }
        return sorted(ready_ids, key=lambda job_id: (self.turns.of[job_id].at, job_id))

    def _is_waiting_for_departures(self, job_id: str) -> bool:
        """Was room made for it, and a quota refuses it only while those are there who go for others?"""
        job = self.lines.jobs[job_id]
        amount = self.amount(self.lines.numbers[job_id])
        if job_id not in self._cleared_jobs or self.tree.refusal(job.queue, amount) is None:
            return False
        with self._assume_room_made(job_id):
            return self.tree.refusal(job.queue, amount) is None

    def _awaits_others(self, job_id: str) -> bool:
        """Are its places those of jobs that are being stopped, be it for another?"""
        return not self.turns.whole(job_id) and bool(self._stopping_on(self.turns.of[job_id].spots))

    @contextmanager
    def _vacated(self, lent: Container[str]) -> Iterator[None]:
        """The world without the jobs that are being stopped, and with the places held of the jobs for which they are,
        but for those in `lent`."""
        going = [self.running[job_id] for job_id in sorted(self.stopping)]
        kept = [job_id for job_id in self._cleared_jobs if job_id in self.turns.of and job_id not in lent]
        for job in going:
            self.world.give(job.spots, job.shape.roles)
        self.turns.take_back(kept)
        try:
            yield
        finally:
            self.turns.lend(NEVER, kept)
            for job in going:
                self.world.hold(job.spots, job.shape.roles)
            self.turns.take_back(kept)

    def _release_cleared_job(self, job_id: str) -> None:
        """What was kept of a quota for a job is anybody's."""
        self._release_above(self._cleared_jobs.pop(job_id, ""))

    def _list_affordable_heads(self, queue: str) -> Sequence[tuple[Rank, int]]:
        """The first jobs of a leaf's lines that no budget is known to refuse, best first."""
        heads, unaffordable = self.lines.heads(queue), self.dear.get(queue)
        if not unaffordable:
            return heads
        affordable = {
            number: self.lines.cheaper(queue, number, refused_from_s)
            for number, (refused_from_s, _) in unaffordable.items()
        }
        other_heads = [head for head in heads if head[1] not in unaffordable]
        return sorted([*other_heads, *((rank, number) for number, rank in affordable.items() if rank is not None)])

    def _is_held_back(self, job: Job, number: int) -> bool:
        """Is a quota or a budget known to refuse it? Or do others make room for it, which must not be in vain?"""
        if job.id in self._cleared_jobs or number in self.parked.get(job.queue, ()):
            return True
        return self.too_dear(job, number) is not None

    def _redeem_reservation(self, job_id: str) -> None:
        """A turn has come, or all its places are free: start, or wait on with the cause written down."""
        job, reservation = self.lines.jobs[job_id], self.turns.of[job_id]
        number = self.lines.numbers[job_id]
        refusal = self._find_refusal(job, self.amount(number))
        if refusal is not None:
            self._hold_back_line(job, number, refusal)
            return
        self.turns.lend(NEVER, (job_id,))
        choice, refusal = self._find_placement(job)
        if choice is not None:
            self._start_job(job, choice, f"its turn, reserved for {reservation.at}")
            return
        self.turns.take_back([job_id])
        if refusal is not None and refusal[1].startswith(BUDGET_PREFIX):
            self._hold_back_line(job, number, refusal)
            return
        if job_id in self._cleared_jobs:  # what others left was not enough: it may ask more of them, in this cycle
            self._claimed_jobs.get((job.queue, number), set()).discard(job_id)
            self._unsettled_queues.add(job.queue)
        if not reservation.spots or reservation.at <= self.now:
            self._reserve_placement(
                job, reservation.cause if not reservation.spots else "what runs there takes longer than expected"
            )

    def _list_hopeful_jobs(self) -> list[str]:
        """Of the turns that come first, those that what was freed may suit, wherever it is."""
        rows = [self.world.index[name] for name in self.freed if name in self.world.index]
        first_ids = self.turns.first() if rows else []
        requests = {job_id: self.lines.jobs[job_id].shape.roles[0].ask for job_id in first_ids}
        return [job_id for job_id in first_ids if self.profile.suiting(requests[job_id])[rows].any()]

    def _settle_all_queues(self) -> None:
        """Look after the blocked jobs of leaves that changed; who must wait for that is first in later cycles."""
        if self._can_reserve_more():
            for queue in self._sort_by_need(self._unsettled_queues):
                if self._draft.claims >= self._get_max_claims() and not self._can_reserve_more():
                    break
                self._settle_queue(queue)
        queues = sorted(self._unsettled_queues, key=lambda queue: (self._claimed_at.get(queue, -1), queue))
        for queue in queues:
            if self._draft.claims >= self._get_max_claims():
                return
            while (claimant := self._find_claimant(queue)) is not None:
                if self._draft.claims >= self._get_max_claims():
                    return
                self._claim_room(*claimant)
            self._unsettled_queues.discard(queue)

    def _can_reserve_more(self) -> bool:
        """May one more blocked job have a turn?"""
        return any(map(self.turns.room, {self.shapes.pools[number] for number in self.closed}))

    def _get_max_claims(self) -> int:
        return MAX_CLAIMS if len(self.demand) <= MANY_LEAVES else 2

    def _find_claimant(self, queue: str) -> tuple[Job, int] | None:
        """The first blocked job of a leaf that has not claimed room yet; then those behind it that its guarantee covers
        beside all for which others make room already: a guarantee is met at once, not job by job."""
        parked_lines, is_first, is_covered = self.parked.get(queue, ()), True, None
        if not self.closed and not parked_lines:
            return None  # nobody is blocked
        for rank, number in self._list_affordable_heads(queue):
            if number in self._unavailable_shapes or (number not in self.closed and number not in parked_lines):
                continue
            claimed_ids = self._claimed_jobs.get((queue, number), set()) & self.lines.jobs.keys()
            if is_first and rank[-1] not in claimed_ids:
                return self.lines.jobs[rank[-1]], number
            is_first, is_covered = False, is_covered or self._build_guarantee_check(queue)
            if is_covered is None:
                return None
            # Of equal jobs none has room made for it where the one before it has none, not even what others leave.
            if not all(job in self._cleared_jobs or self.waited_for(job) for job in claimed_ids) or not is_covered(
                self.amount(number)
            ):
                continue
            near_ids = islice(self.lines.best(queue, number), _MAX_JOBS_CHECKED if self.dear.get(queue) else None)
            free_ids = (job_id for job_id in near_ids if self.too_dear(self.lines.jobs[job_id], number) is None)
            next_id = next((job_id for job_id in free_ids if job_id not in claimed_ids), None)
            if next_id is not None:
                return self.lines.jobs[next_id], number
        return None

    def _build_guarantee_check(self, queue: str) -> Callable[[list[int]], bool] | None:
        """Whether a leaf's guarantee covers so much more beside all that others make room for; None if it has none."""
        potential, leaf = self.potential(self._tick), self.table.leaf(queue)
        if not potential.guaranteed()[leaf].any():
            return None
        waited_for_ids = {self.running[job_id].stopped_for for job_id in self.stopping} | self._cleared_jobs.keys()
        served = [self.lines.jobs[job_id] for job_id in waited_for_ids & self.lines.jobs.keys()]
        own_amounts = [self.amount(self.lines.numbers[job.id]) for job in served if job.queue == queue]
        used = [
            sum(parts) for parts in zip(self.table.used(leaf, 1, use_base=False).tolist(), *own_amounts, strict=True)
        ]
        return partial(potential.owes, leaf, used)

    def _is_guaranteed(self, job_id: str) -> bool:
        """Does its queue's guarantee cover a waiting job beside what runs?"""
        job = self.lines.jobs[job_id]
        leaf = self.table.leaf(job.queue)
        used = self.table.used(leaf, 1, use_base=False).tolist()
        return self.potential(self._tick).owes(leaf, used, self.amount(self.lines.numbers[job_id]))

    def _settle_queue(self, queue: str, before: Rank | None = None) -> None:
        """Make room for the first blocked job of a leaf, and give turns: to those that stand before one that starts."""
        claimant = self._find_claimant(queue)
        if claimant is not None and (before is None or self._list_affordable_heads(queue)[0][0] < before):
            self._claim_room(*claimant)
        if not self._can_reserve_more():
            return
        for rank, number in list(self._list_affordable_heads(queue)):
            if before is not None and rank >= before:
                return
            if number in self.closed and number not in self.parked.get(queue, ()):
                job = self.lines.jobs[rank[-1]]
                room = self.turns.room(self.shapes.pools[number])
                if room and job.id not in self.turns.of and self._is_reservation_due(job, number):
                    refusal = self._find_refusal(job, self.amount(number))
                    if refusal is not None:
                        self._hold_back_line(job, number, refusal)
                        continue
                    self._reserve_placement(job)

    def _is_reservation_due(self, job: Job, number: int) -> bool:
        """Is it time to reserve a turn for it?"""
        waited_s = self.now - job.submitted - job.ran_s
        if waited_s >= min(self.knobs.patience * self.run_s(job), MAX_WAIT_S) or self.lines.urgent(job.id):
            return True
        if self.band(job.queue, job.shape) > NORMAL:
            return True
        return self._is_guaranteed(job.id)

    def _claim_room(self, job: Job, number: int) -> None:
        """Have others make room for it, where that is lawful."""
        if self._draft.claims >= self._get_max_claims():
            self._late_queues.add(job.queue)
            return
        self._claimed_jobs.setdefault((job.queue, number), set()).add(job.id)
        self._claimed_at[job.queue] = self.now
        if self.waited_for(job.id):
            return
        self._draft.claims += 1
        is_short = self._find_refusal(job, self.amount(number)) is not None
        if (
            not is_short
            and self._can_fit(number)
            and self._start_backfill(self.run_s(job), job.submitted, job.id, number)
        ):
            return
        if self.too_dear(job, number) is not None:
            return
        owed = self._is_guaranteed(job.id)
        yielding_ids = self._list_yielding_jobs(job) if owed else []
        lent_ids = self.turns.lend(NEVER, {job.id, *yielding_ids})
        left_s = self.forecast.left(job, self.shapes.keys[number], self.now)
        banded_job = replace(job, shape=replace(job.shape, band=self.band(job.queue, job.shape)))
        claim = PreemptionClaim(
            banded_job, job.shape.least, compute_shape_size(job.shape, job.shape.least), left_s[0] if left_s else None,
            self.lines.urgent(job.id), self.run_s(job),
        )  # fmt: skip
        staying_nodes = self._list_nodes_outlasting(job)
        with self._assume_room_made(job.id), self._vacated(lent_ids) if owed and self.stopping else nullcontext():
            victims = self._unclaimed(claim, staying_nodes) if owed and self.stopping else None
            if victims is None:
                victims = self.reclaim.victims(
                    claim, self.potential(self._tick), self.now, self.reclaimed, staying_nodes
                )
        costs, refusal = (None, None) if victims is None else self._check_budgets(job, victims.spots)
        if victims is not None and costs is not None:  # else it would be best effort, which disturbs nobody
            self._make_room(job, victims)
            self._move_reservations(yielding_ids, victims.spots)
        self.turns.take_back(lent_ids)  # after that: what is free of its places is its own, and not a later turn's
        if refusal is not None:
            self._hold_back_line(job, number, refusal)

    def _unclaimed(self, claim: PreemptionClaim, allowed: Flags | None) -> VictimSet | None:
        """Places that will be free without another eviction, once the jobs are gone that are being stopped."""
        job, width = claim.job, claim.width
        spots = find_placement(self.world, job.shape, width, allowed)
        if spots is None or self.tree.refusal(job.queue, self.counts(job, spots, width)) is not None:
            return None
        return VictimSet(spots)

    def _stopping_on(self, spots: Iterable[SlotPlacement]) -> list[Job]:
        """The jobs that are being stopped on the nodes of these places."""
        nodes = {spot.node for spot in spots}
        going = (self.running[job_id] for job_id in sorted(self.stopping))
        return [job for job in going if not nodes.isdisjoint(spot.node for spot in job.spots)]

    def _make_room(self, job: Job, victims: VictimSet) -> None:
        """Disturb those; who would only have started in this plan does not, or not as wide."""
        starts = {start.job: start for start in self._draft.starts}
        stopping = [evict for evict in victims.evictions if evict.job not in starts]
        starts_at = self.now + max((evict.grace_s for evict in stopping), default=0)
        others = [going.stopped_for for going in self._stopping_on(victims.spots)]
        starts_at = max([starts_at, *(self.turns.of[job_id].at for job_id in others if job_id in self.turns.of)])
        self._cleared_jobs[job.id] = job.queue
        self._restore_reservation(Reservation(job.id, starts_at, victims.spots, ROOM_MADE_CAUSE))
        for resize in victims.resizes:
            if resize.job in starts:
                self._narrow_start(starts[resize.job], resize.spots)
            else:
                self._draft.resizes.append(resize)
                self.resize(resize)
        for evict in stopping:
            self._evict_job(evict)
            self._release_above(self.running[evict.job].queue)  # they may leave more than it takes
        self.reclaimed += [(name, self.now, milli) for name, milli in victims.taken]
        for evict in [evict for evict in victims.evictions if evict.job in starts]:
            self._draft.starts.remove(starts[evict.job])
            self._withdraw_start(evict.job, 0)
            self._record_lost_reservation(self._draft.redeemed.pop(evict.job, None), evict.why)

    def _narrow_start(self, start: JobStart, spots: tuple[SlotPlacement, ...]) -> None:
        """Let what starts in this plan have fewer places, and pay for these."""
        job = self.running[start.job]
        costs = (
            compute_charge(self._find_nodes_of(job), job.shape.roles, spots, self.pays_s(job)) if start.charged else ()
        )
        self._move_job(replace(job, spots=spots, charged=costs))
        self._draft.starts[self._draft.starts.index(start)] = replace(start, spots=spots, charged=costs)

    def _reserve_placement(self, job: Job, cause: str = "") -> None:
        """Reserve the first time and places at which it fits; an earlier turn stays as it is, unless for a cause."""
        previous = self.turns.of.get(job.id)
        planned = self.turns.plan(job.id, job.shape, job.shape.least, self.now)
        if planned is None:
            self.turns.drop(job.id)
        elif previous is None or planned[0] < previous.at or cause:
            lost_reservation = self._draft.lost.get(job.id)
            if previous is None and lost_reservation is not None:
                previous, cause = lost_reservation, lost_reservation.cause
            moved_cause = "" if previous is None else cause if planned[0] > previous.at else previous.cause
            self._restore_reservation(Reservation(job.id, *planned, moved_cause))
            if self.turns.whole(job.id):
                self.freed |= {spot.node for spot in planned[1]}  # all of it is free by now: look in the same cycle

    def _backfill_jobs(self, max_starts: int) -> None:
        """Lend what is held for turns, or leaves, to what is over before that, the shortest first."""
        has_started = True
        while has_started and len(self._draft.starts) < max_starts:
            leave_times = [self.world.nodes[self.world.index[name]].leaving for name in self.leaving]
            last_end = max(
                (*leave_times, *(reservation.at for reservation in self.turns.of.values())), default=self.now
            )
            has_started, candidates = False, []
            for number in self.closed if self.turns.holds or leave_times else ():
                shortest = self.lines.brief(number, self._is_held_back)
                if shortest is None or self.now + shortest[0] > last_end:
                    continue
                if self._tried_backfills.get(number) != (self.turns.version, shortest[0], shortest[1].id):
                    candidates.append((shortest[0], shortest[1].submitted, shortest[1].id, number))
            for candidate in sorted(candidates):
                # Not before: whoever stands behind is tried after it.
                self._tried_backfills[candidate[3]] = self.turns.version, candidate[0], candidate[2]
                # Whoever a quota turned out to hold back makes way for the next of its shape.
                if self._can_fit(candidate[3]) and (
                    self._start_backfill(*candidate) or self._is_held_back(self.lines.jobs[candidate[2]], candidate[3])
                ):
                    has_started = True
                    break

    def _start_backfill(self, run_s: int, _submitted: int, job_id: str, number: int) -> bool:
        """Start a short job in places that are held for turns after its end, or leave then."""
        job = self.lines.jobs[job_id]
        refusal = self._find_refusal(job, self.amount(number))
        if refusal is not None:
            self._hold_back_line(job, number, refusal)
            return False
        suits = np.logical_or.reduce([self.profile.suiting(role.ask).any(axis=1) for role in job.shape.roles])
        band = self.band(job.queue, job.shape)
        yielding_ids = self._list_yielding_jobs(job) if self._is_guaranteed(job.id) else []
        reserved_ids = [reservation.job for reservation in self.turns.all() if reservation.job not in yielding_ids]
        lower_ids = [
            job_id for job_id in reserved_ids if self._get_job_band(job_id) < band and job_id not in self._cleared_jobs
        ]
        # Jobs were stopped for these: a run that was expected to be short, and was not, would stop more of them.
        end = self.now + job.limit_s if job.limit_s else NEVER
        kept_ids = {
            job_id for job_id in reserved_ids if job_id in self._cleared_jobs and self.turns.of[job_id].at < end
        } - {job.id}
        lent_ids = self.turns.lend(self.now + run_s, {job.id, *lower_ids, *yielding_ids}, suits, kept_ids)
        choice, refusal = self._find_placement(job)
        if choice is not None:
            self._start_job(job, choice, "nobody before it needs the places so soon")
        self.turns.take_back(lent_ids)
        if refusal is not None and refusal[1].startswith(BUDGET_PREFIX):
            self._hold_back_line(job, number, refusal)
        nodes = {spot.node for spot in choice[0]} if choice is not None else set()
        for lower_id in lower_ids if nodes else ():
            if any(spot.node in nodes for spot in self.turns.of[lower_id].spots):
                self._reserve_placement(self.lines.jobs[lower_id], "a job of a higher band came")
        self._move_reservations(yielding_ids, choice[0] if choice is not None else ())
        return choice is not None

    def _list_yielding_jobs(self, job: Job) -> list[str]:
        """Jobs of other queues whose turns yield to a guarantee: all but those for which others were stopped, and of
        these the ones that no guarantee covers, once those others are gone."""
        others = [self.lines.jobs[reservation.job] for reservation in self.turns.all()]
        return [
            other.id
            for other in others
            if other.queue != job.queue
            and (other.id not in self._cleared_jobs or not (self.waited_for(other.id) or self._is_guaranteed(other.id)))
        ]

    def _move_reservations(self, jobs: Iterable[str], spots: tuple[SlotPlacement, ...]) -> None:
        """Reserve later turns for these, where a guarantee takes their places."""
        nodes = {spot.node for spot in spots}
        for job_id in jobs:
            reservation = self.turns.of.get(job_id)
            if reservation is not None and not nodes.isdisjoint(spot.node for spot in reservation.spots):
                self._reserve_placement(self.lines.jobs[job_id], CAUSE_TEXTS["guarantee"])
                self._release_cleared_job(job_id)

    def _get_job_band(self, job_id: str) -> int:
        job = self.lines.jobs[job_id]
        return self.band(job.queue, job.shape)

    def _can_fit(self, number: int) -> bool:
        """Might as many slots of a shape fit as it needs, where something is held or leaves, and elsewhere?"""
        if self._lendable_cache is None or self._lendable_cache[0] != self.turns.version:
            self._lendable_cache = self.turns.version, self.turns.lendable()
        rows, free, dev = self._lendable_cache[1]
        shape = self.shapes.all[number]
        request = shape.roles[0].ask
        suits = self.profile.suiting(request)[rows]
        slots = (
            int(count_slots_in(suits, request_amounts(self.world, request), request, free, dev).sum())
            if suits.any()
            else 0
        )
        if slots >= shape.least or not (slots or self.leaving):
            return slots >= shape.least
        counts = self.world.counts(self.world.ask(request))
        return slots + int(counts.sum()) - int(counts[rows].sum()) >= shape.least

    def _sort_by_need(self, queues: set[str]) -> list[str]:
        """Leaves by how needy they are, from the top down."""
        tree = self.tree

        no_amount = [0] * len(tree.quotas)
        levels: dict[int, tuple[int, int, int]] = {}

        def measure_need(queue: str) -> list[tuple[int, int, int]]:
            path = tree.paths[tree.index[queue]][::-1]
            for row in path:
                if row not in levels:
                    levels[row] = (tree.level(row, no_amount), tree.spent[row], row)
            return [levels[row] for row in path]

        return sorted(queues, key=measure_need)


def explain_refusal(queue: str, refusal: Refusal) -> WaitReason:
    """In words, which quota or budget holds a job of this queue back."""
    name, quota, missing = refusal
    if quota.startswith(BUDGET_PREFIX):
        unit = quota.removeprefix(BUDGET_PREFIX)
        return WaitReason(
            "budget", f"the budget of {name} lacks {format_budget_amount(unit, missing)} {BUDGET_UNITS[unit][0]} for it"
        )
    is_own_queue = queue == name or queue.startswith(name + "/")
    code, phrase = (
        ("limit", "is at its limit") if is_own_queue else ("guarantee-of-others", "keeps what it is promised")
    )
    return WaitReason(code, f"{name} {phrase} of {quota}: {describe_amount(quota, missing)} more would be needed")
