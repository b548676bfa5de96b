"""By what right a blocked job may disturb each one that runs, for all of them at once; and its price."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.filling import Amounts
from falaj.schedule.model import BEST_EFFORT, WHOLE, Job, Knobs
from falaj.schedule.potential import Potential
from falaj.schedule.running import (
    BAND,
    DEADLINE,
    EVICTIONS,
    EXTRA,
    FIXED,
    LEAF,
    RESIZED,
    RESTART,
    SINCE,
    SIZE,
    STARTED,
    Running,
)  # fmt: skip

CHURN_S = 300
"""What each earlier eviction of a job adds to the price of the next."""
MOST_LATE = 8
"""Nobody gives way to deadlines more often than this."""
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
    """The right to stop it; 0: none."""
    shrink: Amounts
    """1 where it may be made as narrow as it can be."""
    price: Amounts
    """Device-seconds that stopping it costs."""


def lost_s(running: Running, now: int) -> Amounts:
    """Seconds of work that are lost with each."""
    return np.maximum(now - running.table[:, SINCE], 0)


def rights(claim: Claim, running: Running, potential: Potential, amount: list[int], knobs: Knobs, now: int) -> Rights:
    """Who may be disturbed for a claim that counts so much."""
    table, leaf, band = running.table, running.leaf(claim.job.queue), claim.job.shape.band
    price = table[:, SIZE] * (lost_s(running, now) + table[:, RESTART] + CHURN_S * table[:, EVICTIONS]) // WHOLE + 1
    able = (table[:, LEAF] >= 0) & (table[:, FIXED] == 0)
    mine, same = table[:, LEAF] == leaf, table[:, BAND] == band
    old = now - table[:, STARTED] >= knobs.min_run_s
    evict, others = np.zeros(len(table), np.int64), np.zeros(len(table), np.bool_)
    cause = potential.cause(leaf, running.used(leaf, 1, base=False).tolist(), amount)
    if cause:
        others = able & ~mine & (table[:, BAND] <= band) & (table[:, BAND] > BEST_EFFORT)
        others &= old | (cause == "guarantee")
        evict[_above(running, potential, cause, np.flatnonzero(others), price)] = CAUSES.index(cause)
    if knobs.progress_ratio:
        less = claim.service * (knobs.progress_ratio + table[:, EVICTIONS]) <= running.service(now)
        evict[able & mine & same & old & less] = PROGRESS
    if claim.urgent:
        later = (table[:, DEADLINE] > claim.job.deadline) & (table[:, EVICTIONS] < MOST_LATE)
        evict[able & mine & same & old & later] = LATE
    evict[able & ((mine & (table[:, BAND] < band)) | (table[:, BAND] == BEST_EFFORT))] = BAND_RIGHT
    rested = (now - table[:, RESIZED] >= knobs.resize_gap_s) | (evict == BAND_RIGHT) | (cause == "guarantee")
    shrink = able & (table[:, EXTRA] > 0) & rested & ((mine & (table[:, BAND] <= band)) | (evict > WIDTH) | others)
    return Rights(evict, shrink.astype(np.int64), price)


def _above(running: Running, potential: Potential, cause: str, rows: Amounts, price: Amounts) -> Amounts:
    """Of these, as many of each leaf as it has above what is its own, lowest band and cheapest first.

    For a guarantee no more than that; for a share one more, and the potential will tell.
    """
    if not len(rows):
        return rows
    table = running.table
    quota, spare = potential.spare(cause, running.by_leaf())
    leaf = table[rows, LEAF]
    part = running.amounts[rows, quota[leaf]]
    order = np.lexsort((rows, price[rows] * WHOLE // np.maximum(part, 1), table[rows, BAND], leaf))
    rows, leaf, part = rows[order], leaf[order], part[order]
    ends = np.cumsum(part)
    start = np.flatnonzero(np.r_[True, leaf[1:] != leaf[:-1]])
    ends -= np.repeat((ends - part)[start], np.diff(np.r_[start, len(leaf)]))
    inside: NDArray[np.bool_] = (ends if cause == "guarantee" else ends - part + 1) <= spare[leaf]
    return rows[inside]
