"""The as-of kernel: for each label, the newest row of its key that was there, and known, at its moment.

Rows are clustered: those of one key (a run) are adjacent and stand in the order of their rank (event, created, seq).
Everything here is arithmetic on whole columns; no loop is over rows.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.asof.records import EXPIRED, FUTURE, MISSING_MOMENT, NOT_FOUND, PRESENT

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
_MAX_LINEAR_STEPS = 6
"""How often to step back one row at a time before a tree of least moments is worth its making."""


class LookupResult(NamedTuple):
    """For each label the row it sees, -1 where none, and whether its key has any row at all that was known."""

    row: Ints
    later: Mask
    """No row is seen, but one of a later event is known."""


def compute_rank_order(code: Ints, event: Ints, created: Ints, seq: Ints) -> Ints:
    """The order that clusters rows: by key, event, created, seq."""
    order = _sort_by_key_and_event(code, event)
    if order is None:
        return np.lexsort((seq, created, event, code))
    code, event = code[order], event[order]
    equals_previous = np.zeros(len(order) + 1, np.bool_)
    np.logical_and(code[1:] == code[:-1], event[1:] == event[:-1], out=equals_previous[1:-1])
    (tied_positions,) = np.nonzero(equals_previous[1:] | equals_previous[:-1])
    if len(tied_positions):
        rows = order[tied_positions]
        order[tied_positions] = rows[
            np.lexsort((seq[rows], created[rows], event[tied_positions], code[tied_positions]))
        ]
    return order


def find_run_starts(code: Ints) -> Ints:
    """Where runs begin in clustered rows, and the end."""
    if len(code) == 0:
        return np.zeros(1, np.int64)
    (change_positions,) = np.nonzero(code[1:] != code[:-1])
    return np.concatenate(([0], change_positions + 1, [len(code)])).astype(np.int64)


def find_visible_rows(
    run_starts: Ints, event: Ints, created: Ints, run: Ints, label_at: Ints, known_at: Ints | None
) -> LookupResult:
    """The row that each label sees; `run` is -1 where its key has no rows, `label_at` MISSING where it has no
    moment."""
    has_rows = (run >= 0) & (label_at != MISSING_MOMENT)
    runs = np.where(run >= 0, run, 0)
    if len(run_starts) == 1:
        return LookupResult(np.full(len(run), -1, np.int64), np.zeros(len(run), np.bool_))
    start = run_starts[runs]
    last = _find_end_until(event, start, np.where(has_rows, run_starts[runs + 1], start), label_at) - 1
    row = np.where(last >= start, last, -1)
    if known_at is None:
        return LookupResult(row, has_rows & (row < 0))
    row = _step_to_newest_known(created, start, row, known_at)
    first_known_at = np.minimum.reduceat(created, run_starts[:-1]) if len(created) else created
    return LookupResult(row, has_rows & (row < 0) & (first_known_at[runs] <= known_at))


def compute_status(rows: Ints, event: Ints, has_later_row: Mask, label_at: Ints, ttl_us: int) -> NDArray[np.uint8]:
    """What is known of each label's row; `event` is that of the row, whatever where there is none."""
    status = np.where(rows >= 0, np.uint8(PRESENT), np.where(has_later_row, np.uint8(FUTURE), np.uint8(NOT_FOUND)))
    if ttl_us:
        # As unsigned numbers the age is right even across the whole range of moments.
        age = label_at.view(np.uint64) - event.view(np.uint64)
        status[(rows >= 0) & (age >= np.uint64(ttl_us))] = EXPIRED
    return status


def _sort_by_key_and_event(code: Ints, event: Ints) -> Ints | None:
    """An order by the two, ties anyhow, from one sort of one number, where their ranges fit in it together."""
    if len(code) == 0:
        return None
    min_code, min_event = int(code.min()), int(event.min())
    key_bits = (int(code.max()) - min_code).bit_length()
    bits = len(code).bit_length()
    # Differences wrap to the right unsigned number, however far apart the two are.
    keys = (code - np.int64(min_code)).view(np.uint64)
    if key_bits + bits <= 64 and bool(np.all(event[1:] >= event[:-1])):
        # In the order of events already, as logs are: the row's number does for its event, and sorts with it.
        packed_keys = (keys << np.uint64(bits)) | np.arange(len(code), dtype=np.uint64)
        packed_keys.sort()
        packed_keys &= np.uint64((1 << bits) - 1)
        return packed_keys.view(np.int64)
    bits = (int(event.max()) - min_event).bit_length()
    if key_bits + bits > 64 or bits == 64:
        return None
    packed_keys = (keys << np.uint64(bits)) | (event - np.int64(min_event)).view(np.uint64)
    return np.argsort(packed_keys).astype(np.int64, copy=False)


def _find_end_until(event: Ints, start: Ints, end: Ints, label_at: Ints) -> Ints:
    """By bisection in all runs at once: the end of the rows of [start, end) whose event is not after `label_at`."""
    low, high = start.copy(), end.copy()
    while True:
        is_open = low < high
        open_count = int(np.count_nonzero(is_open))
        if open_count == 0:
            return low
        if 2 * open_count < len(is_open):
            # Few long runs are left: go on with them alone.
            lanes = np.flatnonzero(is_open)
            low[lanes] = _find_end_until(event, low[lanes], high[lanes], label_at[lanes])
            return low
        middle = (low + high) >> 1
        middle[~is_open] = 0
        is_before = is_open & (event[middle] <= label_at)
        low = np.where(is_before, middle + 1, low)
        high = np.where(is_open & ~is_before, middle, high)


def _step_to_newest_known(created: Ints, start: Ints, row: Ints, known_at: Ints) -> Ints:
    """Step back from `row` to the newest that was known, within the run; -1 where there is none."""
    row = row.copy()
    (lanes,) = np.nonzero(row >= 0)
    for _ in range(_MAX_LINEAR_STEPS):
        lanes = lanes[created[row[lanes]] > known_at[lanes]]
        if len(lanes) == 0:
            return row
        row[lanes] -= 1
        is_outside = row[lanes] < start[lanes]
        row[lanes[is_outside]] = -1
        lanes = lanes[~is_outside]
    if len(lanes):
        positions = _find_last_at_most(created, row[lanes] + 1, known_at[lanes])
        row[lanes] = np.where(positions >= start[lanes], positions, -1)
    return row


def _find_last_at_most(values: Ints, end: Ints, limits: Ints) -> Ints:
    """The last place before `end` whose value is at most `limits`, -1 where none: up and down a tree of minima."""
    tree = [values]
    while len(tree[-1]) > 1:
        below = tree[-1]
        pairs = below[: len(below) // 2 * 2].reshape(-1, 2).min(axis=1)
        tree.append(np.append(pairs, below[-1]) if len(below) % 2 else pairs)
    end, block = end.copy(), np.full(len(end), -1, np.int64)
    height = np.full(len(end), -1, np.int64)
    for level, minima in enumerate(tree):
        (odd_positions,) = np.nonzero((height < 0) & (end & 1 == 1))
        is_within = minima[end[odd_positions] - 1] <= limits[odd_positions]
        block[odd_positions[is_within]], height[odd_positions[is_within]] = end[odd_positions[is_within]] - 1, level
        end >>= 1
    for level in range(len(tree) - 1, 0, -1):
        (lanes,) = np.nonzero(height >= level)
        below, right = tree[level - 1], 2 * block[lanes] + 1
        goes_right = right < len(below)
        goes_right[goes_right] = below[right[goes_right]] <= limits[lanes[goes_right]]
        block[lanes] = np.where(goes_right, right, right - 1)
    return block
