"""Which running jobs the guarantee of their queue covers.

A guarantee covers the jobs of its queue in the order in which they started, at their smallest widths, up to the first
that does not fit in what is left of it. All others borrow, whatever their size, band or limit. No other queue's
guarantee may take a covered job; every job that starts by a guarantee is covered. docs/queues.md has the proof.
"""

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.filling import Amounts
from falaj.schedule.model import BEST_EFFORT
from falaj.schedule.potential import Potential
from falaj.schedule.running import Col, Running


def covered_rows(running: Running, potential: Potential) -> NDArray[np.bool_]:
    """For each row of what runs, True where its queue's guarantee covers it."""
    table = running.table
    covered = np.zeros(len(table), np.bool_)
    most = potential.guaranteed()
    leaf = table[:, Col.LEAF]
    rows = np.flatnonzero((leaf >= 0) & (table[:, Col.BAND] > BEST_EFFORT))
    rows = rows[(most[leaf[rows]] > 0).any(axis=1)]
    if not len(rows):
        return covered
    rows = rows[np.lexsort((table[rows, Col.NAME], table[rows, Col.STARTED], leaf[rows]))]
    covered[rows[_fits(running.requests[rows], leaf[rows], most)]] = True
    return covered


def keeps_cover(running: Running, potential: Potential, leaf: int, stopped: set[int]) -> bool:
    """True when the jobs that a leaf's guarantee covers use no less of any quota once these rows are stopped."""
    table, most = running.table, potential.guaranteed()
    if not most[leaf].any():
        return True
    rows = np.flatnonzero((table[:, Col.LEAF] == leaf) & (table[:, Col.BAND] > BEST_EFFORT))
    rows = rows[np.lexsort((table[rows, Col.NAME], table[rows, Col.STARTED]))]
    stays = rows[~np.isin(rows, list(stopped))]
    before, after = (_covered_sum(running, leaf, some, most) for some in (rows, stays))
    return bool((after >= before).all())


def _covered_sum(running: Running, leaf: int, rows: Amounts, most: Amounts) -> Amounts:
    requests = running.requests[rows]
    total: Amounts = requests[_fits(requests, np.full(len(rows), leaf), most)].sum(axis=0)
    return total


def _fits(requests: Amounts, leaf: Amounts, most: Amounts) -> NDArray[np.bool_]:
    """True up to the first row of each leaf with which the leaf uses more than `most`; rows are sorted by leaf."""
    if not len(requests):
        return np.zeros(0, np.bool_)
    start = np.concatenate([[0], np.flatnonzero(leaf[1:] != leaf[:-1]) + 1])
    size = np.diff(np.append(start, len(leaf)))
    over = (_running_sums(requests, start, size) > most[leaf]) & (requests > 0)
    over = np.logical_or.reduce(over, axis=1)
    misfits = _running_sums(over.astype(np.int64).reshape(-1, 1), start, size)
    fits: NDArray[np.bool_] = misfits.reshape(-1) == 0
    return fits


def _running_sums(parts: Amounts, start: NDArray[np.int64], size: NDArray[np.int64]) -> Amounts:
    total = np.cumsum(parts, axis=0)
    total -= np.repeat((total - parts)[start], size, axis=0)
    return total
