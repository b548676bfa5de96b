"""By what right a blocked job may disturb each one that runs, for all of them at once; and its price."""

from dataclasses import dataclass

import numpy as np

from falaj.schedule.fairness_potential import FairnessPotential
from falaj.schedule.guarantee_coverage import find_covered_rows
from falaj.schedule.model import BEST_EFFORT, MILLI_PER_UNIT, Job, SchedulerOptions
from falaj.schedule.progressive_filling import Amounts
from falaj.schedule.running_jobs import JobColumn, RunningJobs, sum_by_group

EVICTION_PENALTY_S = 300
"""What each earlier eviction of a job adds to the price of the next."""
MAX_EVICTIONS = 8
"""Evictions after which a job gives way to no deadline, and a covered job to no higher band of its queue."""
WIDTH, BAND_RIGHT, GUARANTEE, SHARE, LATE, PROGRESS = range(6)
CAUSES = ("width", "band", "guarantee", "share", "deadline", "progress")


@dataclass(frozen=True, slots=True)
class PreemptionClaim:
    """A blocked job, and what is known of it."""

    job: Job
    width: int
    size: int
    """Milli-devices it takes with that width; milli-cores where it has no devices."""
    left_s: int | None = None
    """How long it will run; None when nobody knows."""
    urgent: bool = False
    """True when its deadline is in danger."""
    expected_s: int = 3600
    """What it is taken to run where nobody knows."""

    @property
    def run_s(self) -> int:
        """How long it is taken to run."""
        return max(self.expected_s if self.left_s is None else self.left_s, 1)

    @property
    def service(self) -> int:
        """Device-seconds it needs; where nobody knows, as many as it had."""
        return max(self.job.served if self.left_s is None else self.left_s * self.size // MILLI_PER_UNIT, 1)


@dataclass(frozen=True, slots=True)
class PreemptionRights:
    """For each row of what runs."""

    evict: Amounts
    """The right to stop it; 0: none. Of other queues, only as many as they have above what is theirs."""
    wide: Amounts
    """The same with all of those queues, of which no more than so many may go."""
    borrows: Amounts
    """For a guarantee, those of other queues that no guarantee covers: any of them may go."""
    shrink: Amounts
    """1 where it may be made as narrow as it can be."""
    price: Amounts
    """Device-seconds that stopping it costs."""


def compute_lost_work_s(running: RunningJobs, now: int) -> Amounts:
    """Seconds of work that are lost with each."""
    return np.maximum(now - running.table[:, JobColumn.SINCE], 0)


def compute_rights(
    claim: PreemptionClaim,
    running: RunningJobs,
    potential: FairnessPotential,
    amount: list[int],
    options: SchedulerOptions,
    now: int,
) -> PreemptionRights:
    """Who may be disturbed for a claim that counts so much."""
    table, leaf, band = running.table, running.leaf(claim.job.queue), claim.job.shape.band
    restart_s = table[:, JobColumn.RESTART] + EVICTION_PENALTY_S * table[:, JobColumn.EVICTIONS]
    price = table[:, JobColumn.SIZE] * (compute_lost_work_s(running, now) + restart_s) // MILLI_PER_UNIT + 1
    is_able = (table[:, JobColumn.LEAF] >= 0) & (table[:, JobColumn.FIXED] == 0)
    is_own_queue, is_same_band = table[:, JobColumn.LEAF] == leaf, table[:, JobColumn.BAND] == band
    ran_enough = now - table[:, JobColumn.STARTED] >= options.min_run_s
    evict, wide, borrows = np.zeros((3, len(table)), np.int64)
    used = running.used(leaf, 1, use_base=False).tolist()
    is_owed = potential.owes(leaf, used, amount)
    # A guarantee does not yield to the band of a job that borrows, nor to how lately it started.
    others = is_able & ~is_own_queue & (table[:, JobColumn.BAND] > BEST_EFFORT)
    others &= np.bool_(is_owed) | (ran_enough & (table[:, JobColumn.BAND] <= band))
    # What is deserved is of no use where there is nobody to take it from, and takes longer to find out than the rest.
    cause = "guarantee" if is_owed else potential.cause(leaf, used, amount) if others.any() else ""
    others &= bool(cause)
    is_often_evicted = is_own_queue & (table[:, JobColumn.EVICTIONS] >= MAX_EVICTIONS)
    covered = find_covered_rows(running, potential) if is_owed or is_often_evicted.any() else is_often_evicted
    if is_owed:  # where nothing is lost by any of them, the smallest goes
        price += np.maximum(table[:, JobColumn.SIZE] // MILLI_PER_UNIT, 1) - 1
    if others.any():
        spare_rows, all_rows = _list_above_share(running, potential, cause, np.flatnonzero(others), price)
        evict[spare_rows] = CAUSES.index(cause)
        wide[all_rows] = CAUSES.index(cause)
        if is_owed:
            borrows[others & ~covered] = GUARANTEE
            wide[others & ~covered] = GUARANTEE
    if options.progress_ratio:
        service = running.service(now)
        has_less = is_able & is_own_queue & is_same_band & ran_enough
        has_less &= claim.service * (options.progress_ratio + table[:, JobColumn.EVICTIONS]) <= service
        evict[has_less] = PROGRESS
        # Who has most left to do waits best: the others would soon be the ones to go first again.
        price[has_less] = price[has_less] * claim.service // service[has_less] + 1
    if claim.urgent:
        is_later = (table[:, JobColumn.DEADLINE] > claim.job.deadline) & (table[:, JobColumn.EVICTIONS] < MAX_EVICTIONS)
        evict[is_able & is_own_queue & is_same_band & ran_enough & is_later] = LATE
    is_exempt = covered & is_often_evicted
    evict[
        is_able
        & ((is_own_queue & (table[:, JobColumn.BAND] < band) & ~is_exempt) | (table[:, JobColumn.BAND] == BEST_EFFORT))
    ] = BAND_RIGHT
    # Whom it may stop may shrink instead, however lately it was resized.
    rested = (now - table[:, JobColumn.RESIZED] >= options.resize_gap_s) | (evict > WIDTH) | (cause == "guarantee")
    shrink = (
        is_able
        & (table[:, JobColumn.EXTRA] > 0)
        & rested
        & ((is_own_queue & (table[:, JobColumn.BAND] <= band)) | (evict > WIDTH) | others)
    )
    return PreemptionRights(evict, np.where(evict, evict, wide), borrows, shrink.astype(np.int64), price)


def _list_above_share(
    running: RunningJobs, potential: FairnessPotential, cause: str, rows: Amounts, price: Amounts
) -> tuple[Amounts, Amounts]:
    """Of these, as many of each leaf as it has above what is its own, lowest band and cheapest first; and all of them.

    For a guarantee no more than that; for a share one more, and the potential will tell.
    """
    table = running.table
    quota, spare = potential.spare(cause, running.by_leaf())
    leaf = table[rows, JobColumn.LEAF]
    amounts = running.amounts[rows, quota[leaf]]
    order = np.lexsort(
        (
            table[rows, JobColumn.NAME],
            price[rows] * MILLI_PER_UNIT // np.maximum(amounts, 1),
            table[rows, JobColumn.BAND],
            leaf,
        )
    )
    rows, leaf, amounts = rows[order], leaf[order], amounts[order]
    is_guarantee = cause == "guarantee"
    is_above = (amounts if is_guarantee else 1) <= spare[leaf]
    return rows[sum_by_group(amounts, leaf) - (0 if is_guarantee else amounts - 1) <= spare[leaf]], rows[is_above]
