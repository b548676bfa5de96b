"""The as-of kernel: for each label, the newest row of its key that was there, and known, at its moment.

Rows are clustered: those of one key (a run) are adjacent and stand in the order of their rank (event, created, seq).
Everything here is arithmetic on whole columns; no loop is over rows.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.asof.records import EXPIRED, FUTURE, MISSING, NOT_FOUND, PRESENT

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_STEPS = 6
"""How often to step back one row at a time before a tree of least moments is worth its making."""


class Found(NamedTuple):
    """For each label the row it sees, -1 where none, and whether its key has any row at all that was known."""

    row: Ints
    later: Mask
    """No row is seen, but one of a later event is known."""


def rank_order(code: Ints, event: Ints, created: Ints, seq: Ints) -> Ints:
    """The order that clusters rows: by key, event, created, seq."""
    order = _by_key_and_event(code, event)
    if order is None:
        return np.lexsort((seq, created, event, code))
    code, event = code[order], event[order]
    same = np.zeros(len(order) + 1, np.bool_)
    np.logical_and(code[1:] == code[:-1], event[1:] == event[:-1], out=same[1:-1])
    (tied,) = np.nonzero(same[1:] | same[:-1])
    if len(tied):
        rows = order[tied]
        order[tied] = rows[np.lexsort((seq[rows], created[rows], event[tied], code[tied]))]
    return order


def run_starts_of(code: Ints) -> Ints:
    """Where runs begin in clustered rows, and the end."""
    if len(code) == 0:
        return np.zeros(1, np.int64)
    (changes,) = np.nonzero(code[1:] != code[:-1])
    return np.concatenate(([0], changes + 1, [len(code)])).astype(np.int64)


def find(run_starts: Ints, event: Ints, created: Ints, run: Ints, at: Ints, known: Ints | None) -> Found:
    """The row that each label sees; `run` is -1 where its key has no rows, `at` MISSING where it has no moment."""
    some = (run >= 0) & (at != MISSING)
    runs = np.where(run >= 0, run, 0)
    if len(run_starts) == 1:
        return Found(np.full(len(run), -1, np.int64), np.zeros(len(run), np.bool_))
    start = run_starts[runs]
    last = _count_until(event, start, np.where(some, run_starts[runs + 1], start), at) - 1
    row = np.where(last >= start, last, -1)
    if known is None:
        return Found(row, some & (row < 0))
    row = _newest_known(created, start, row, known)
    first_known = np.minimum.reduceat(created, run_starts[:-1]) if len(created) else created
    return Found(row, some & (row < 0) & (first_known[runs] <= known))


def status_of(row: Ints, event: Ints, later: Mask, at: Ints, ttl_us: int) -> NDArray[np.uint8]:
    """What is known of each label's row; `event` is that of the row, whatever where there is none."""
    status = np.where(row >= 0, np.uint8(PRESENT), np.where(later, np.uint8(FUTURE), np.uint8(NOT_FOUND)))
    if ttl_us:
        # As unsigned numbers the age is right even across the whole range of moments.
        age = at.view(np.uint64) - event.view(np.uint64)
        status[(row >= 0) & (age >= np.uint64(ttl_us))] = EXPIRED
    return status


def _by_key_and_event(code: Ints, event: Ints) -> Ints | None:
    """An order by the two, ties anyhow, from one sort of one number, where their ranges fit in it together."""
    if len(code) == 0:
        return None
    low, first = int(code.min()), int(event.min())
    key_bits = (int(code.max()) - low).bit_length()
    bits = len(code).bit_length()
    # Differences wrap to the right unsigned number, however far apart the two are.
    keys = (code - np.int64(low)).view(np.uint64)
    if key_bits + bits <= 64 and bool(np.all(event[1:] >= event[:-1])):
        # In the order of events already, as logs are: the row's number does for its event, and sorts with it.
        packed = (keys << np.uint64(bits)) | np.arange(len(code), dtype=np.uint64)
        packed.sort()
        packed &= np.uint64((1 << bits) - 1)
        return packed.view(np.int64)
    bits = (int(event.max()) - first).bit_length()
    if key_bits + bits > 64 or bits == 64:
        return None
    packed = (keys << np.uint64(bits)) | (event - np.int64(first)).view(np.uint64)
    return np.argsort(packed).astype(np.int64, copy=False)


def _count_until(event: Ints, start: Ints, end: Ints, at: Ints) -> Ints:
    """By bisection in all runs at once: the end of the rows of [start, end) whose event is not after `at`."""
    low, high = start.copy(), end.copy()
    while True:
        live = low < high
        left = int(np.count_nonzero(live))
        if left == 0:
            return low
        if 2 * left < len(live):
            # Few long runs are left: go on with them alone.
            lanes = np.flatnonzero(live)
            low[lanes] = _count_until(event, low[lanes], high[lanes], at[lanes])
            return low
        middle = (low + high) >> 1
        middle[~live] = 0
        goes = live & (event[middle] <= at)
        low = np.where(goes, middle + 1, low)
        high = np.where(live & ~goes, middle, high)


def _newest_known(created: Ints, start: Ints, row: Ints, known: Ints) -> Ints:
    """Step back from `row` to the newest that was known, within the run; -1 where there is none."""
    row = row.copy()
    (lanes,) = np.nonzero(row >= 0)
    for _ in range(_STEPS):
        lanes = lanes[created[row[lanes]] > known[lanes]]
        if len(lanes) == 0:
            return row
        row[lanes] -= 1
        gone = row[lanes] < start[lanes]
        row[lanes[gone]] = -1
        lanes = lanes[~gone]
    if len(lanes):
        found = _last_at_most(created, row[lanes] + 1, known[lanes])
        row[lanes] = np.where(found >= start[lanes], found, -1)
    return row


def _last_at_most(values: Ints, end: Ints, most: Ints) -> Ints:
    """The last place before `end` whose value is at most `most`, -1 where none: up and down a tree of minima."""
    tree = [values]
    while len(tree[-1]) > 1:
        below = tree[-1]
        pairs = below[: len(below) // 2 * 2].reshape(-1, 2).min(axis=1)
        tree.append(np.append(pairs, below[-1]) if len(below) % 2 else pairs)
    end, block = end.copy(), np.full(len(end), -1, np.int64)
    height = np.full(len(end), -1, np.int64)
    for level, least in enumerate(tree):
        (odd,) = np.nonzero((height < 0) & (end & 1 == 1))
        hit = least[end[odd] - 1] <= most[odd]
        block[odd[hit]], height[odd[hit]] = end[odd[hit]] - 1, level
        end >>= 1
    for level in range(len(tree) - 1, 0, -1):
        (lanes,) = np.nonzero(height >= level)
        below, right = tree[level - 1], 2 * block[lanes] + 1
        there = right < len(below)
        there[there] = below[right[there]] <= most[lanes[there]]
        block[lanes] = np.where(there, right, right - 1)
    return block
