"""Who must make room for a blocked job: the cheapest set that lawfully does, or nobody.

Width beyond the smallest goes first, then best effort and lower bands, then whole gangs. A set is found node by node
from the cheapest slots, cut down until nothing in it can be spared, and judged only then: nobody is disturbed unless
the job has its places in what is freed, and the final set is lawful.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.fair_share import ShareTree
from falaj.schedule.fairness_potential import FairnessPotential, UsageChange
from falaj.schedule.guarantee_coverage import is_coverage_kept
from falaj.schedule.model import (
    BEST_EFFORT,
    CPU,
    GPU,
    MILLI_PER_UNIT,
    Job,
    JobEviction,
    JobResize,
    JobShape,
    SchedulerOptions,
    SlotPlacement,
)
from falaj.schedule.preemption_rights import (
    BAND_RIGHT,
    CAUSES,
    GUARANTEE,
    PROGRESS,
    SHARE,
    PreemptionClaim,
    PreemptionRights,
    compute_lost_work_s,
    compute_rights,
)
from falaj.schedule.progressive_filling import Amounts
from falaj.schedule.running_jobs import JobColumn, RunningJobs, list_base_spots, list_elastic_spots
from falaj.schedule.runtime_forecast import get_pool
from falaj.schedule.victim_offers import iter_victim_offers

SAVE_MARGIN_S = 30
"""Grace beyond the time that saving takes."""
_MAX_OFFERS = 2
_FIRST_BATCH = 64
"""For a guarantee without a lawful offer, this many borrowing jobs are tried together first, then four times more."""
_MAX_CANDIDATES = 256
"""So many are looked at, gentlest and cheapest first, for what a quota lacks."""
_MAX_CANDIDATES_OWED = 4096
"""The same for a guarantee."""
CAUSE_TEXTS = {
    "width": "a job that waits needs the room it grew into",
    "band": "a job of a higher band waits",
    "guarantee": "a queue has less than its guarantee",
    "share": "a queue has less than it deserves",
    "deadline": "a job of its queue would miss its deadline",
    "progress": "a job of its queue has much less left to do",
}

PlacementFinder = Callable[[ClusterState, JobShape, int, NDArray[np.bool_] | None], tuple[SlotPlacement, ...] | None]
FreedSpots = dict[int, tuple[SlotPlacement, ...]]
"""By row of what runs: the places it gives up, all of them or those beyond its smallest width."""


@dataclass(frozen=True, slots=True)
class VictimSet:
    """Who makes room, and what for."""

    spots: tuple[SlotPlacement, ...]
    """Where the job will run."""
    evictions: tuple[JobEviction, ...] = ()
    resizes: tuple[JobResize, ...] = ()
    taken: tuple[tuple[str, int], ...] = ()
    """(pool, milli) that count as taken back in this window."""


@dataclass(frozen=True, slots=True)
class _ClaimCase:
    claim: PreemptionClaim
    potential: FairnessPotential
    now: int
    reclaimed: Sequence[tuple[str, int, int]]
    right: PreemptionRights
    allowed: NDArray[np.bool_] | None
    short: bool
    """True when a quota refuses the job, so that some must go who count against it, wherever they are."""


@dataclass(frozen=True, slots=True)
class _JobLoss:
    """What one running job gives up, by quota."""

    row: int
    leaf: int
    band: int
    ran: int
    stops: bool
    now: Amounts
    base: Amounts


class PreemptionPlanner:
    """Finds victims among what runs."""

    def __init__(
        self,
        cluster_state: ClusterState,
        tree: ShareTree,
        running: RunningJobs,
        find_placement: PlacementFinder,
        options: SchedulerOptions,
    ) -> None:
        self._cluster_state, self._tree, self._running, self._find_placement, self._options = (
            cluster_state,
            tree,
            running,
            find_placement,
            options,
        )

    def victims(
        self,
        claim: PreemptionClaim,
        potential: FairnessPotential,
        now: int,
        reclaimed: Sequence[tuple[str, int, int]] = (),
        allowed: NDArray[np.bool_] | None = None,
    ) -> VictimSet | None:
        """The cheapest lawful set that gives the job its places; None when there is none.

        `reclaimed` is what was taken back in the last window, as the snapshot has it; `allowed` the nodes that stay.
        """
        shape = claim.job.shape
        if shape.band == BEST_EFFORT or not self._running.jobs:
            return None
        amount = self._cluster_state.quota(shape, None, claim.width).tolist()
        is_short = self._tree.refusal(claim.job.queue, amount) is not None
        all_rights = compute_rights(claim, self._running, potential, amount, self._options, now)
        band_rights = np.where(all_rights.evict == BAND_RIGHT, BAND_RIGHT, 0)
        # Those of its own queue are cheap to overtake, and yet it may not pay: then others owe it what they owe.
        owed = np.where(all_rights.wide == PROGRESS, 0, all_rights.wide)
        borrowers = np.where(band_rights, band_rights, all_rights.borrows)
        stages = (
            [band_rights, owed, borrowers, all_rights.evict, all_rights.wide]
            if (owed == GUARANTEE).any()
            else [band_rights, all_rights.evict, all_rights.wide, owed]
        )
        stages = [stage for stage in stages if stage.any() or all_rights.shrink.any()]
        case = _ClaimCase(claim, potential, now, reclaimed, all_rights, allowed, is_short)
        for stage_number, evict in enumerate(stages):
            if any((evict == stage).all() for stage in stages[:stage_number]):
                continue
            case = replace(case, right=replace(all_rights, evict=evict))
            for items in self._iter_quota_victims(case, amount) if is_short else self._iter_offers(case):
                accepted = self._try_offer(case, items) if items else None
                if accepted and self._is_lawful(case, *accepted):
                    return self._build_victim_set(case, *accepted)
        if not all_rights.borrows.any():
            return None
        case = replace(case, right=replace(all_rights, evict=borrowers))
        chosen = self._search_borrowers(case, amount)
        return self._build_victim_set(case, *chosen) if chosen else None

    # a set that is enough, and no more

    def _iter_offers(self, case: _ClaimCase) -> Iterator[FreedSpots]:
        return iter_victim_offers(self._cluster_state, self._running, case.claim, case.right, _MAX_OFFERS)

    def _search_borrowers(
        self, case: _ClaimCase, amount: list[int]
    ) -> tuple[tuple[SlotPlacement, ...], FreedSpots] | None:
        """For a guarantee: more and more of those that borrow, cheapest first, until the job has its places.

        Offers are found by devices and cores only, and few of them are tried; what a guarantee is owed must not depend
        on that.
        """
        table, right = self._running.table, case.right
        rows = np.flatnonzero(right.evict > 0)
        rows = rows[np.lexsort((table[rows, JobColumn.NAME], right.price[rows]))].tolist()
        count = _FIRST_BATCH
        while True:
            items = {row: self._get_job(row).spots for row in rows[:count]}
            if case.short:
                items = self._extend_until_admitted(case, amount, items)
            chosen = self._try_offer(case, items) if items else None
            if chosen and self._is_lawful(case, *chosen):
                return chosen
            if count >= len(rows):
                return None
            count *= 4

    def _iter_quota_victims(self, case: _ClaimCase, amount: list[int]) -> Iterator[FreedSpots]:
        """Those whom its quotas need gone, gentlest and cheapest first: alone, then with those who give it room."""
        alone = self._extend_until_admitted(case, amount, {})
        if alone:
            yield alone
            # What elastic jobs lose by shrinking may be too much, where stopping others would not be.
            stop_rights = replace(case.right, shrink=np.zeros_like(case.right.shrink))
            yield self._extend_until_admitted(replace(case, right=stop_rights), amount, {})
            for items in self._iter_offers(case):
                yield self._extend_until_admitted(case, amount, items)

    def _extend_until_admitted(self, case: _ClaimCase, amount: list[int], items: FreedSpots) -> FreedSpots:
        """These, and as many more as let it in; nobody when all are too few. The tree stays as it is."""
        queue, extended = case.claim.job.queue, dict(items)
        charged = [self._compute_loss(row, freed, case.now) for row, freed in items.items()]
        for loss in charged:
            self._tree.charge(self._tree.names[loss.leaf], loss.now, -1)
        refusal = self._tree.refusal(queue, amount)
        for row, freed in self._list_quota_victims(case, refusal) if refusal else ():
            if row in extended and len(extended[row]) >= len(freed):
                continue
            loss = self._compute_loss(row, freed, case.now)
            freed_before = self._compute_loss(row, extended[row], case.now).now if row in extended else 0
            loss = replace(loss, now=loss.now - freed_before)
            self._tree.charge(self._tree.names[loss.leaf], loss.now, -1)
            charged.append(loss)
            next_refusal = self._tree.refusal(queue, amount)
            if next_refusal == refusal:  # it counts elsewhere: what it gives up is of no use
                self._tree.charge(self._tree.names[loss.leaf], charged.pop().now)
                continue
            extended[row], refusal = freed, next_refusal
            if refusal is None:
                break
        for loss in charged:
            self._tree.charge(self._tree.names[loss.leaf], loss.now)
        return extended if refusal is None else {}

    def _list_quota_victims(
        self, case: _ClaimCase, refusal: tuple[str, str, int]
    ) -> list[tuple[int, tuple[SlotPlacement, ...]]]:
        """Those that may give something up of what a quota lacks, and what: width, best effort, lower bands, others."""
        tree, table, right = self._tree, self._running.table, case.right
        on_path = tree.index[refusal[0]] in tree.paths[tree.leaf(case.claim.job.queue)]
        rows = np.flatnonzero((table[:, JobColumn.LEAF] >= 0) & ((right.evict > 0) | (right.shrink > 0)))
        if on_path:  # its limit counts what lies below it
            at = tree.index[refusal[0]]
            rows = rows[[at in tree.paths[leaf] for leaf in table[rows, JobColumn.LEAF].tolist()]]
        order = rows[np.lexsort((table[rows, JobColumn.NAME], right.price[rows], self._rank_gentleness(case)[rows]))]
        order = order[: _MAX_CANDIDATES_OWED if right.borrows.any() else _MAX_CANDIDATES].tolist()
        narrow = [(row, list_elastic_spots(self._get_job(row))) for row in order if right.shrink[row]]
        return [*narrow, *((row, self._get_job(row).spots) for row in order if right.evict[row])]

    def _rank_gentleness(self, case: _ClaimCase) -> Amounts:
        """By row the band that makes it dear to stop it: for a guarantee all that borrow are alike."""
        right, band = case.right, case.claim.job.shape.band
        return np.where(right.evict == GUARANTEE, band, self._running.table[:, JobColumn.BAND])

    def _try_offer(self, case: _ClaimCase, items: FreedSpots) -> tuple[tuple[SlotPlacement, ...], FreedSpots] | None:
        """The job's places once these are given up, and which of them it takes; the world stays as it is."""
        mark = self._cluster_state.mark()
        try:
            for row, freed in items.items():
                self._cluster_state.give(freed, self._get_job(row).shape.roles)
            spots = self._find_placement(self._cluster_state, case.claim.job.shape, case.claim.width, case.allowed)
            return None if spots is None else self._drop_unneeded(case, spots, dict(items))
        finally:
            self._cluster_state.rewind(mark)

    def _drop_unneeded(
        self, case: _ClaimCase, spots: tuple[SlotPlacement, ...], items: FreedSpots
    ) -> tuple[tuple[SlotPlacement, ...], FreedSpots]:
        """Leave out whatever can be, the dearest first, as long as the job still has its places."""
        table, price, rank = self._running.table, case.right.price, self._rank_gentleness(case)
        dearest_rows = sorted(items, key=lambda row: (rank[row], price[row], table[row, JobColumn.NAME]), reverse=True)
        for row in dearest_rows:
            roles = self._get_job(row).shape.roles
            for part in self._list_keepable_parts(case, row, items[row]):
                used_nodes = {spot.node for spot in spots}
                self._cluster_state.hold(part, roles)
                other_spots: tuple[SlotPlacement, ...] | None = spots
                if not used_nodes.isdisjoint(spot.node for spot in part):
                    allowed_nodes = (
                        case.allowed if case.short else self._mask_nodes(used_nodes)
                    )  # else there is room elsewhere
                    other_spots = self._find_placement(
                        self._cluster_state, case.claim.job.shape, case.claim.width, allowed_nodes
                    )
                kept_spots = _subtract_spots(items[row], part)
                if (
                    other_spots is not None
                    and case.short
                    and not self._is_admitted_with(case, other_spots, items | {row: kept_spots})
                ):
                    other_spots = None
                if other_spots is None:
                    self._cluster_state.give(part, roles)
                    continue
                spots, items[row] = other_spots, kept_spots
                if not items[row]:
                    break
        return spots, {row: freed for row, freed in items.items() if freed}

    def _list_keepable_parts(
        self, case: _ClaimCase, row: int, freed: tuple[SlotPlacement, ...]
    ) -> Sequence[tuple[SlotPlacement, ...]]:
        """What it might keep after all, most first."""
        job = self._get_job(row)
        if not self._is_stopped(row, freed):
            return [(spot,) for spot in freed]
        return [freed, list_base_spots(job.shape, job.spots)] if case.right.shrink[row] else [freed]

    def _mask_nodes(self, names: set[str]) -> NDArray[np.bool_]:
        mask = np.zeros(len(self._cluster_state.nodes), np.bool_)
        mask[[self._cluster_state.row(name) for name in names]] = True
        return mask

    # the law, asked of the final set

    def _is_lawful(self, case: _ClaimCase, spots: tuple[SlotPlacement, ...], items: FreedSpots) -> bool:
        losses = [self._compute_loss(row, places, case.now) for row, places in items.items()]
        return (
            self._is_admitted(case, spots, losses)
            and self._is_fair(case, spots, losses)
            and self._is_worthwhile(case, items)
            and self._is_loss_bounded(case, items)
            and self._is_within_window(case, items)
        )

    def _is_admitted_with(self, case: _ClaimCase, spots: tuple[SlotPlacement, ...], items: FreedSpots) -> bool:
        return self._is_admitted(
            case, spots, [self._compute_loss(row, freed, case.now) for row, freed in items.items()]
        )

    def _is_admitted(self, case: _ClaimCase, spots: tuple[SlotPlacement, ...], losses: Sequence[_JobLoss]) -> bool:
        """Its quotas let it in, once the others are out."""
        amount = self._cluster_state.quota(case.claim.job.shape, spots, case.claim.width)
        for loss in losses:
            self._tree.charge(self._tree.names[loss.leaf], loss.now, -1)
        refused = self._tree.refusal(case.claim.job.queue, amount.tolist())
        for loss in losses:
            self._tree.charge(self._tree.names[loss.leaf], loss.now)
        return refused is None

    def _is_fair(self, case: _ClaimCase, spots: tuple[SlotPlacement, ...], losses: Sequence[_JobLoss]) -> bool:
        """Whoever takes from other queues is owed it, leaves them their guarantees, and raises the potential."""
        shape, potential = case.claim.job.shape, case.potential
        leaf = self._tree.leaf(case.claim.job.queue)
        others = [loss for loss in losses if loss.leaf != leaf and loss.band > BEST_EFFORT]
        if not others:
            return True
        amount = self._cluster_state.quota(shape, spots, case.claim.width)
        changes = self._list_usage_changes(
            leaf, amount, [(loss, loss.now) for loss in losses if loss.band], 1, use_base=False
        )
        used_before = [have - part for have, part in zip(changes[0][2], amount.tolist(), strict=True)]
        # By what it asks for: one that takes any model is not held to what its queue deserves of the one it got.
        cause = potential.cause(leaf, used_before, self._cluster_state.quota(shape, None, case.claim.width).tolist())
        if not cause or (cause == "share" and any(loss.ran < self._options.min_run_s for loss in others)):
            return False
        if not self._is_coverage_kept(case, others):
            return False
        if cause == "guarantee":
            # A job that borrows may go, so it may shrink as well, whatever its queue has of its guarantee.
            bound = {loss.leaf for loss in others if not loss.stops and not case.right.borrows[loss.row]}
            return all(row not in bound or potential.keeps(row, after) for row, _, after in changes[1:])
        if not all(potential.keeps(row, after) for row, _, after in changes[1:]) or not potential.improves(changes):
            return False
        if not any(loss.stops and loss.band == shape.band for loss in others):
            return True
        min_amount = self._cluster_state.quota(shape, list_base_spots(shape, spots), shape.least)
        base_losses = [(loss, loss.base) for loss in losses if loss.stops and loss.band >= shape.band]
        return potential.improves(self._list_usage_changes(leaf, min_amount, base_losses, shape.band, use_base=True))

    def _is_coverage_kept(self, case: _ClaimCase, losses: Sequence[_JobLoss]) -> bool:
        """No queue loses anything that its guarantee covers."""
        stopped: dict[int, set[int]] = {}
        for loss in losses:
            if loss.stops:
                stopped.setdefault(loss.leaf, set()).add(loss.row)
        return all(is_coverage_kept(self._running, case.potential, leaf, rows) for leaf, rows in stopped.items())

    def _list_usage_changes(
        self, leaf: int, increase: Amounts, losses: Sequence[tuple[_JobLoss, Amounts]], band: int, use_base: bool
    ) -> list[UsageChange]:
        """What leaves use before and after, the job's own first: of a band and above, now or at their least widths."""
        decrease = {leaf: -increase}
        for loss, part in losses:
            decrease[loss.leaf] = decrease.get(loss.leaf, 0) + part
        used = {row: self._running.used(row, band, use_base) for row in decrease}
        return [(row, used[row].tolist(), (used[row] - part).tolist()) for row, part in decrease.items()]

    def _is_worthwhile(self, case: _ClaimCase, items: FreedSpots) -> bool:
        """Those it overtakes for having less to do lose less time, all together, than it would wait for them."""
        rows = [
            row for row, freed in items.items() if case.right.evict[row] == PROGRESS and self._is_stopped(row, freed)
        ]
        if not rows:
            return True
        table = self._running.table[rows]
        wait = (self._running.service(case.now)[rows] * MILLI_PER_UNIT // table[:, JobColumn.SIZE]).min()
        return bool(
            (case.claim.run_s + table[:, JobColumn.RESTART] + compute_lost_work_s(self._running, case.now)[rows]).sum()
            < wait
        )

    def _is_loss_bounded(self, case: _ClaimCase, items: FreedSpots) -> bool:
        """Work that is lost is a part of the work that is gained; guarantees, higher bands and best effort aside."""
        exempt = (GUARANTEE, BAND_RIGHT)
        rows = [row for row in items if case.right.evict[row] not in exempt]
        lost = (self._running.table[rows, JobColumn.SIZE] * compute_lost_work_s(self._running, case.now)[rows]).sum()
        return bool(lost * 100 <= self._options.lost_percent * case.claim.size * case.claim.run_s)

    def _is_within_window(self, case: _ClaimCase, items: FreedSpots) -> bool:
        """Of every pool only so much is taken back in a window. The first one in it may be larger than that."""
        for pool_name, milli in self._sum_taken_milli(case, items):
            since = case.now - self._options.reclaim_window_s
            recent = sum(
                part for taken_pool, taken_at, part in case.reclaimed if taken_pool == pool_name and taken_at > since
            )
            quota = next(
                (
                    quota_name
                    for quota_name in (f"{GPU}:{pool_name}", pool_name, GPU)
                    if quota_name in self._tree.quotas
                ),
                CPU,
            )
            capacity = self._tree.capacity[self._tree.quotas.index(quota)]
            if recent and (recent + milli) * 100 > capacity * self._options.reclaim_percent:
                return False
        return True

    def _sum_taken_milli(self, case: _ClaimCase, items: FreedSpots) -> tuple[tuple[str, int], ...]:
        milli_by_pool: Counter[str] = Counter()
        for row, freed in items.items():
            if case.right.evict[row] == SHARE:
                milli_by_pool[get_pool(self._get_job(row).shape)] += sum(
                    max(len(spot.devices), 1) * spot.milli for spot in freed
                )
        return tuple(sorted(milli_by_pool.items()))

    # the answer

    def _build_victim_set(self, case: _ClaimCase, spots: tuple[SlotPlacement, ...], items: FreedSpots) -> VictimSet:
        evictions, resizes = [], []
        lost = compute_lost_work_s(self._running, case.now)
        for row in sorted(items, key=lambda row: self._running.ids[row]):
            job, claimant_id = self._get_job(row), case.claim.job.id
            if self._is_stopped(row, items[row]):
                save_s, lost_now = job.save_s, int(lost[row])
                if save_s > self._options.grace_s:
                    save_s, lost_now = self._options.grace_s, max(case.now - (job.saved or job.started), 0)
                work = int(self._running.table[row, JobColumn.SIZE]) * lost_now // MILLI_PER_UNIT
                cause_text = CAUSE_TEXTS[CAUSES[case.right.evict[row]]]
                evictions.append(JobEviction(job.id, claimant_id, save_s + SAVE_MARGIN_S, work, cause_text))
            else:
                resizes.append(
                    JobResize(job.id, _subtract_spots(job.spots, items[row]), CAUSE_TEXTS["width"], claimant_id)
                )
        return VictimSet(spots, tuple(evictions), tuple(resizes), self._sum_taken_milli(case, items))

    def _get_job(self, row: int) -> Job:
        return self._running.jobs[self._running.ids[row]]

    def _is_stopped(self, row: int, freed: Sequence[SlotPlacement]) -> bool:
        return len(freed) == len(self._get_job(row).spots)

    def _compute_loss(self, row: int, freed: tuple[SlotPlacement, ...], now: int) -> _JobLoss:
        job = self._get_job(row)
        kept_spots = _subtract_spots(job.spots, freed)
        amount = self._running.amounts[row] - (
            self._cluster_state.quota(job.shape, kept_spots, len(kept_spots)) if kept_spots else 0
        )
        leaf, band, started = (
            int(self._running.table[row, column]) for column in (JobColumn.LEAF, JobColumn.BAND, JobColumn.STARTED)
        )
        return _JobLoss(row, leaf, band, now - started, not kept_spots, amount, self._running.base[row])


def _subtract_spots(spots: tuple[SlotPlacement, ...], removed: tuple[SlotPlacement, ...]) -> tuple[SlotPlacement, ...]:
    """The spots without those; of equal ones as many go as are named, the last first."""
    removed_counts = Counter(removed)
    remaining = []
    for spot in reversed(spots):
        if removed_counts[spot]:
            removed_counts[spot] -= 1
        else:
            remaining.append(spot)
    return tuple(reversed(remaining))
