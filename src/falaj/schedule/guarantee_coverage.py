"""Which running jobs the guarantee of their queue covers.

A guarantee covers the jobs of its queue in the order in which they started, at their smallest widths, up to the first
that does not fit in what is left of it. All others borrow, whatever their size, band or limit. No other queue's
guarantee may take a covered job; every job that starts by a guarantee is covered. docs/queues.md has the proof.
"""

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.fairness_potential import FairnessPotential
from falaj.schedule.model import BEST_EFFORT
from falaj.schedule.progressive_filling import Amounts
from falaj.schedule.running_jobs import JobColumn, RunningJobs


def find_covered_rows(running: RunningJobs, potential: FairnessPotential) -> NDArray[np.bool_]:
    """For each row of what runs, True where its queue's guarantee covers it."""
    table = running.table
    covered = np.zeros(len(table), np.bool_)
    guaranteed = potential.guaranteed()
    leaf = table[:, JobColumn.LEAF]
    rows = np.flatnonzero((leaf >= 0) & (table[:, JobColumn.BAND] > BEST_EFFORT))
    rows = rows[(guaranteed[leaf[rows]] > 0).any(axis=1)]
    if not len(rows):
        return covered
    rows = rows[np.lexsort((table[rows, JobColumn.NAME], table[rows, JobColumn.STARTED], leaf[rows]))]
    covered[rows[_mark_covered(running.requests[rows], leaf[rows], guaranteed)]] = True
    return covered


def is_coverage_kept(running: RunningJobs, potential: FairnessPotential, leaf: int, stopped: set[int]) -> bool:
    """True when the jobs that a leaf's guarantee covers use no less of any quota once these rows are stopped."""
    table, guaranteed = running.table, potential.guaranteed()
    if not guaranteed[leaf].any():
        return True
    rows = np.flatnonzero((table[:, JobColumn.LEAF] == leaf) & (table[:, JobColumn.BAND] > BEST_EFFORT))
    rows = rows[np.lexsort((table[rows, JobColumn.NAME], table[rows, JobColumn.STARTED]))]
    remaining = rows[~np.isin(rows, list(stopped))]
    before, after = (_sum_covered(running, leaf, selected, guaranteed) for selected in (rows, remaining))
    return bool((after >= before).all())


def _sum_covered(running: RunningJobs, leaf: int, rows: Amounts, guaranteed: Amounts) -> Amounts:
    requests = running.requests[rows]
    total: Amounts = requests[_mark_covered(requests, np.full(len(rows), leaf), guaranteed)].sum(axis=0)
    return total


def _mark_covered(requests: Amounts, leaf: Amounts, guaranteed: Amounts) -> NDArray[np.bool_]:
    """True up to the first row of each leaf with which the leaf uses more than `guaranteed`; rows are sorted by
    leaf."""
    if not len(requests):
        return np.zeros(0, np.bool_)
    start = np.concatenate([[0], np.flatnonzero(leaf[1:] != leaf[:-1]) + 1])
    size = np.diff(np.append(start, len(leaf)))
    is_over = (_sum_within_leaves(requests, start, size) > guaranteed[leaf]) & (requests > 0)
    is_over = np.logical_or.reduce(is_over, axis=1)
    misfits = _sum_within_leaves(is_over.astype(np.int64).reshape(-1, 1), start, size)
    fits: NDArray[np.bool_] = misfits.reshape(-1) == 0
    return fits


def _sum_within_leaves(parts: Amounts, start: NDArray[np.int64], size: NDArray[np.int64]) -> Amounts:
    total = np.cumsum(parts, axis=0)
    total -= np.repeat((total - parts)[start], size, axis=0)
    return total
