"""Weighted progressive filling of many groups at once, in closed form: who of a group gets how much of its room.

Everybody's dominant share rises at the pace of their weight until they have what they want or something they want is
used up; then they stop and the others go on. Between two stops all is linear: sort by the level at which each is
content, sum up, and read off the level at which a quota is full. One pass a quota, however many groups and members.
"""

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.promises import ONE

Amounts = NDArray[np.int64]

FINE, STEEP = 14, 14
"""More bits, for shares by weight and for slopes."""
_NEVER = np.int64(1 << 62)


def fill(want: Amounts, weight: Amounts, group: Amounts, room: Amounts, capacity: Amounts) -> Amounts:
    """How much each gets of its group's room. want [n, F], weight [n], group [n] rising, room [groups, F]."""
    start = np.searchsorted(group, np.arange(len(room)))
    if (np.add.reduceat(want, start) <= room).all():
        return want
    whole = np.maximum(capacity, 1)
    want = want // np.maximum((want // whole).max(axis=1, initial=1), 1)[:, None]  # more than all is as good as all
    shares = -(-want * ONE // whole)  # rounded up, so that what is given never outgrows the room
    top = shares.max(axis=1, initial=0)
    levels = (top << FINE) // weight
    given = np.zeros_like(want)
    going = top > 0
    left = np.where(capacity > 0, np.clip(room, 0, whole) * ONE // whole, 0)
    while going.any():
        rows = np.flatnonzero(going)
        rows = rows[np.lexsort((levels[rows], group[rows]))]
        level = _full_at(shares[rows], top[rows], weight[rows], levels[rows], group[rows], left)
        first = level.min(axis=1)
        mine = first[group[rows]]
        got = np.minimum(top[rows], np.minimum(mine, levels[rows]) * weight[rows] >> FINE)
        got[levels[rows] <= mine] = top[rows][levels[rows] <= mine]
        full = level <= first[:, None]
        stop = (levels[rows] <= mine) | ((shares[rows] > 0) & full[group[rows]]).any(axis=1)
        done = rows[stop]
        given[done] = (want[done] * got[stop][:, None] + (top[done] // 2)[:, None]) // top[done][:, None]
        used = np.zeros_like(shares)
        used[done] = -(-shares[done] * got[stop][:, None] // top[done][:, None])
        left = np.maximum(left - np.add.reduceat(used, start), 0)
        going[done] = False
    return given


def _full_at(shares: Amounts, top: Amounts, weight: Amounts, levels: Amounts, group: Amounts, left: Amounts) -> Amounts:
    """The level at which each quota of each group is full; rows are sorted by group, then level."""
    slope = -(-(shares << STEEP) * weight[:, None] // top[:, None])
    start = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    size = np.diff(np.r_[start, len(group)])
    ahead = np.cumsum(shares, axis=0) - shares
    ahead -= np.repeat(ahead[start], size, axis=0)
    total = np.add.reduceat(slope, start, axis=0)
    gone = np.cumsum(slope, axis=0) - slope
    behind = np.repeat(total, size, axis=0) - (gone - np.repeat(gone[start], size, axis=0))
    spare = np.maximum(left[group] - ahead, 0)
    full = np.where(behind > 0, (spare << (FINE + STEEP)) // np.maximum(behind, 1), _NEVER)
    # Of each quota the first row that it fails holds: the lines of later ones take for content who is not.
    number = np.arange(len(group))[:, None]
    fails = np.minimum.reduceat(np.where(full < levels[:, None], number, len(group)), start, axis=0)
    out = np.full(left.shape, _NEVER)
    at = np.take_along_axis(np.concatenate([full, np.full_like(full[:1], _NEVER)]), fails, axis=0)
    out[group[start]] = at
    return out
