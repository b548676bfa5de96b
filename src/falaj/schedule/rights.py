"""By what right a blocked job may disturb each one that runs, for all of them at once; and its price."""

from dataclasses import dataclass

import numpy as np

from falaj.schedule.coverage import covered_rows
from falaj.schedule.filling import Amounts
from falaj.schedule.model import BEST_EFFORT, WHOLE, Job, Knobs
from falaj.schedule.potential import Potential
from falaj.schedule.running import Col, Running, sums

CHURN_S = 300
"""What each earlier eviction of a job adds to the price of the next."""
MOST_LATE = 8
"""Evictions after which a job gives way to no deadline, and a covered job to no higher band of its queue."""
WIDTH, BAND_RIGHT, GUARANTEE, SHARE, LATE, PROGRESS = range(6)
CAUSES = ("width", "band", "guarantee", "share", "deadline", "progress")


@dataclass(frozen=True, slots=True)
class Claim:
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
        return max(self.job.served if self.left_s is None else self.left_s * self.size // WHOLE, 1)


@dataclass(frozen=True, slots=True)
class Rights:
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


def lost_s(running: Running, now: int) -> Amounts:
    """Seconds of work that are lost with each."""
    return np.maximum(now - running.table[:, Col.SINCE], 0)


def rights(claim: Claim, running: Running, potential: Potential, amount: list[int], knobs: Knobs, now: int) -> Rights:
    """Who may be disturbed for a claim that counts so much."""
    table, leaf, band = running.table, running.leaf(claim.job.queue), claim.job.shape.band
    price = (
        table[:, Col.SIZE] * (lost_s(running, now) + table[:, Col.RESTART] + CHURN_S * table[:, Col.EVICTIONS]) // WHOLE
        + 1
    )
    able = (table[:, Col.LEAF] >= 0) & (table[:, Col.FIXED] == 0)
    mine, same = table[:, Col.LEAF] == leaf, table[:, Col.BAND] == band
    old = now - table[:, Col.STARTED] >= knobs.min_run_s
    evict, wide, borrows = np.zeros((3, len(table)), np.int64)
    used = running.used(leaf, 1, base=False).tolist()
    owed = potential.owes(leaf, used, amount)
    # A guarantee does not yield to the band of a job that borrows, nor to how lately it started.
    others = able & ~mine & (table[:, Col.BAND] > BEST_EFFORT)
    others &= np.bool_(owed) | (old & (table[:, Col.BAND] <= band))
    # What is deserved is of no use where there is nobody to take it from, and takes longer to find out than the rest.
    cause = "guarantee" if owed else potential.cause(leaf, used, amount) if others.any() else ""
    others &= bool(cause)
    often = mine & (table[:, Col.EVICTIONS] >= MOST_LATE)
    covered = covered_rows(running, potential) if owed or often.any() else often
    if owed:  # where nothing is lost by any of them, the smallest goes
        price += np.maximum(table[:, Col.SIZE] // WHOLE, 1) - 1
    if others.any():
        few, some = _above(running, potential, cause, np.flatnonzero(others), price)
        evict[few] = CAUSES.index(cause)
        wide[some] = CAUSES.index(cause)
        if owed:
            borrows[others & ~covered] = GUARANTEE
            wide[others & ~covered] = GUARANTEE
    if knobs.progress_ratio:
        service = running.service(now)
        less = able & mine & same & old
        less &= claim.service * (knobs.progress_ratio + table[:, Col.EVICTIONS]) <= service
        evict[less] = PROGRESS
        # Who has most left to do waits best: the others would soon be the ones to go first again.
        price[less] = price[less] * claim.service // service[less] + 1
    if claim.urgent:
        later = (table[:, Col.DEADLINE] > claim.job.deadline) & (table[:, Col.EVICTIONS] < MOST_LATE)
        evict[able & mine & same & old & later] = LATE
    spent = covered & often
    evict[able & ((mine & (table[:, Col.BAND] < band) & ~spent) | (table[:, Col.BAND] == BEST_EFFORT))] = BAND_RIGHT
    # Whom it may stop may shrink instead, however lately it was resized.
    rested = (now - table[:, Col.RESIZED] >= knobs.resize_gap_s) | (evict > WIDTH) | (cause == "guarantee")
    shrink = (
        able & (table[:, Col.EXTRA] > 0) & rested & ((mine & (table[:, Col.BAND] <= band)) | (evict > WIDTH) | others)
    )
    return Rights(evict, np.where(evict, evict, wide), borrows, shrink.astype(np.int64), price)


def _above(
    running: Running, potential: Potential, cause: str, rows: Amounts, price: Amounts
) -> tuple[Amounts, Amounts]:
    """Of these, as many of each leaf as it has above what is its own, lowest band and cheapest first; and all of them.

    For a guarantee no more than that; for a share one more, and the potential will tell.
    """
    table = running.table
    quota, spare = potential.spare(cause, running.by_leaf())
    leaf = table[rows, Col.LEAF]
    part = running.amounts[rows, quota[leaf]]
    order = np.lexsort((table[rows, Col.NAME], price[rows] * WHOLE // np.maximum(part, 1), table[rows, Col.BAND], leaf))
    rows, leaf, part = rows[order], leaf[order], part[order]
    sure = cause == "guarantee"
    some = (part if sure else 1) <= spare[leaf]
    return rows[sums(part, leaf) - (0 if sure else part - 1) <= spare[leaf]], rows[some]
