"""Weighted progressive filling of many groups at once, in closed form: who of a group gets how much of its room.

Everybody's dominant share rises at the pace of their weight until they have what they want or something they want is
used up; then they stop and the others go on. Between two stops all is linear: sort by the level at which each is
content, sum up, and read off the level at which a quota is full. One pass a quota, however many groups and members.
"""

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.guarantees import FULL_SHARE

Amounts = NDArray[np.int64]

SHARE_BITS, SLOPE_BITS = 14, 14
"""More bits, for shares by weight and for slopes."""
_NEVER_FULL = np.int64(1 << 62)


def fill_progressively(demand: Amounts, weight: Amounts, group: Amounts, room: Amounts, capacity: Amounts) -> Amounts:
    """How much each gets of its group's room. want [n, F], weight [n], group [n] rising, room [groups, F]."""
    start = np.searchsorted(group, np.arange(len(room)))
    if (np.add.reduceat(demand, start) <= room).all():
        return demand
    total = np.maximum(capacity, 1)
    demand = (
        demand // np.maximum((demand // total).max(axis=1, initial=1), 1)[:, None]
    )  # more than all is as good as all
    shares = -(-demand * FULL_SHARE // total)  # rounded up, so that what is given never outgrows the room
    top = shares.max(axis=1, initial=0)
    levels = (top << SHARE_BITS) // weight
    allotted = np.zeros_like(demand)
    is_active = top > 0
    left_shares = np.where(capacity > 0, np.clip(room, 0, total) * FULL_SHARE // total, 0)
    while is_active.any():
        rows = np.flatnonzero(is_active)
        rows = rows[np.lexsort((levels[rows], group[rows]))]
        level = _find_full_levels(shares[rows], top[rows], weight[rows], levels[rows], group[rows], left_shares)
        group_level = level.min(axis=1)
        row_level = group_level[group[rows]]
        granted = np.minimum(top[rows], np.minimum(row_level, levels[rows]) * weight[rows] >> SHARE_BITS)
        granted[levels[rows] <= row_level] = top[rows][levels[rows] <= row_level]
        is_full = level <= group_level[:, None]
        is_stopping = (levels[rows] <= row_level) | ((shares[rows] > 0) & is_full[group[rows]]).any(axis=1)
        done = rows[is_stopping]
        allotted[done] = (demand[done] * granted[is_stopping][:, None] + (top[done] // 2)[:, None]) // top[done][
            :, None
        ]
        used = np.zeros_like(shares)
        used[done] = -(-shares[done] * granted[is_stopping][:, None] // top[done][:, None])
        left_shares = np.maximum(left_shares - np.add.reduceat(used, start), 0)
        is_active[done] = False
    return allotted


def _find_full_levels(
    shares: Amounts, top: Amounts, weight: Amounts, levels: Amounts, group: Amounts, left: Amounts
) -> Amounts:
    """The level at which each quota of each group is full; rows are sorted by group, then level."""
    slope = -(-(shares << SLOPE_BITS) * weight[:, None] // top[:, None])
    start = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    size = np.diff(np.r_[start, len(group)])
    shares_before = np.cumsum(shares, axis=0) - shares
    shares_before -= np.repeat(shares_before[start], size, axis=0)
    total = np.add.reduceat(slope, start, axis=0)
    slope_before = np.cumsum(slope, axis=0) - slope
    slope_after = np.repeat(total, size, axis=0) - (slope_before - np.repeat(slope_before[start], size, axis=0))
    spare = np.maximum(left[group] - shares_before, 0)
    full = np.where(slope_after > 0, (spare << (SHARE_BITS + SLOPE_BITS)) // np.maximum(slope_after, 1), _NEVER_FULL)
    # Of each quota the first row that it fails holds: the lines of later ones take for content who is not.
    number = np.arange(len(group))[:, None]
    fails = np.minimum.reduceat(np.where(full < levels[:, None], number, len(group)), start, axis=0)
    group_levels = np.full(left.shape, _NEVER_FULL)
    full_level = np.take_along_axis(np.concatenate([full, np.full_like(full[:1], _NEVER_FULL)]), fails, axis=0)
    group_levels[group[start]] = full_level
    return group_levels
