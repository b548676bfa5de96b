"""How much an ask likes a state of a node: by what everybody else would lose.

A node's worth is what the mix of asks could use of its idle devices: of each ask, by its weight, the idle part of
devices large enough for it, or nothing when the node has no room for one slot of it; and, as much again, the devices
that its CPU and memory are enough for when every device is used as the mix does on average. The first keeps what is
idle in one piece, the second keeps it usable: who needs much CPU goes where much CPU is left for each device.

Scores are integers: dear devices weigh most, then poor guests, then the fall in worth, then price and risk.
"""

from collections.abc import Sequence

import numpy as np

from falaj.schedule.mix import Mix
from falaj.schedule.model import CPU, WHOLE, Node
from falaj.schedule.traits import Flags, Ints, Small, Types

NOWHERE = -(1 << 62)
"""The score of a state that an ask does not fit in."""
MOST = 1 << 16
"""So many slots of an ask that asks for nothing fit on a node."""
_TIER, _MISFIT, _LOSS = 44, 43, 12
"""Bits at which the parts of a score begin."""


class Pieces:
    """What is left on the devices of a node, and what of it when a slot of each wish is put there.

    Wish 0 is to leave all as it is; the others count from 1.
    """

    def __init__(self, mix: Mix, types: Types, kind: int, dev: Small) -> None:
        dev = np.maximum(dev, 0)
        whole, unit, per = dev == WHOLE, types.unit[:, None], types.per[:, None]
        suits = types.suits.take(types.kinds[kind], axis=1)
        fits = (dev // unit * suits).sum(axis=1)
        self.slots: Ints = np.where(types.per, fits // np.maximum(types.per, 1), MOST)
        """By wish: how many slots there are devices for."""
        can = whole & suits & (unit == WHOLE)
        rest = np.where(can & (can.cumsum(axis=1) <= per), 0, dev)
        self.left = np.zeros(len(unit), np.int64)
        """By wish: what is left on the device that a part is best cut from."""
        start = mix.start[kind]
        parts = np.flatnonzero(types.unit < WHOLE)
        if len(parts):
            best = _cuts(mix, start + mix.last, dev, types.unit[parts, None], suits[parts])
            self.left[parts] = dev[best]
            rest[parts, best] -= types.unit[parts]
        rest = np.maximum(np.concatenate([dev[None], rest]), 0)
        whole = rest == WHOLE
        count = whole.sum(axis=1, keepdims=True)
        place = start + np.where(whole, mix.full - 1 + count, mix.rank.take(rest))
        self.idle: Ints = rest.sum(axis=1)
        if len(types.alike[kind]) == 1:
            # Whole devices of one kind are worth the same: they count as one piece.
            first = start[0] + mix.full - 1 + np.maximum(count, 1)
            rest, place = np.where(whole, 0, rest), np.concatenate([first, place], axis=1)
            rest = np.concatenate([count * WHOLE, rest], axis=1)
        used = rest.any(axis=0)
        self.amount, self.place = rest[:, used], place[:, used]
        self.misfit = _misfits(types, kind, dev).astype(np.int64) << _MISFIT


def _cuts(mix: Mix, at: Ints, dev: Small, unit: Small, suits: Flags) -> Ints:
    """From which device parts are best cut: where the mix loses least; of two as good, the fuller one."""
    whole, rest = dev == WHOLE, np.maximum(dev - unit, 0)
    rank = np.where(whole, mix.full - 1 + whole.sum(), mix.rank.take(dev))
    now = dev * mix.worth.take(at + rank)
    # A whole device that is cut leaves the others whole, but one fewer.
    fewer = np.where(whole, WHOLE * mix.worth.take(at + np.maximum(rank - 1, 0)), now)
    cost = np.where(whole, fewer + (now - fewer).sum(), now)
    gain = rest * mix.worth.take(at + mix.rank.take(rest)) - cost
    best: Ints = np.where(suits & (dev >= unit), (gain << 10) - dev, NOWHERE).argmax(axis=1)
    return best


def _misfits(types: Types, kind: int, dev: Small) -> Flags:
    """By wish: it needs no devices and there are some, or they would lie on several islands though one has as many."""
    islands, largest = types.islands[kind], types.largest[kind]
    most = np.bincount(islands[dev == WHOLE]).max(initial=0)
    torn = (types.unit == WHOLE) & (types.per > most) & (types.per <= largest)
    misfits: Flags = np.where(types.per == 0, largest > 0, torn)
    return misfits


class Bench:
    """All asks, ready to be scored in many states."""

    def __init__(self, mix: Mix, types: Types, first: int) -> None:
        self._mix = mix
        nothing = np.zeros((1, len(types.resources)), np.int64)
        self._need = np.concatenate([nothing, types.need[first:]])
        self._wish = types.wish[first:]
        self._wishes = np.append(0, self._wish + 1)
        need = self._need[1:].T[:, :, None]
        self._divisor, self._bonus = np.maximum(need, 1), np.where(need, 0, MOST)
        dear = types.per.astype(np.bool_)[self._wish].astype(np.int64)
        self._base = np.where(types.allows[first:], _prices(types.nodes)[dear], NOWHERE)

    def score(self, pieces: Sequence[Pieces], kinds: Small, free: Ints) -> tuple[Ints, Ints]:
        """How many slots of each ask fit in these states, and how much it likes them: by ask and state."""
        mix, wish = self._mix, self._wish
        room = (free.T[:, None, :] // self._divisor + self._bonus).min(axis=0)
        np.minimum(room, _stacked([one.slots.take(wish) for one in pieces]), out=room)
        cpu, memory = free[:, 0] - self._need[:, 0, None], free[:, 1] - self._need[:, 1, None]
        offset, idle = mix.offset(cpu, memory), _stacked([one.idle.take(self._wishes) for one in pieces])
        worth = np.minimum(idle, mix.enough(cpu, memory)) * mix.total
        for at, one in enumerate(pieces):
            place = one.place.take(self._wishes, axis=0) + offset[:, at, None]
            worth[:, at] += (one.amount.take(self._wishes, axis=0) * mix.worth.take(place)).sum(axis=1)
        loss = np.clip((worth[0] - worth[1:]) // mix.total, 0, (1 << _MISFIT - _LOSS) - 1)
        base = self._base.take(kinds, axis=1)
        score = base - (loss << _LOSS) - _stacked([one.misfit.take(wish) for one in pieces])
        fits = (room > 0) & (base > NOWHERE)
        return np.where(fits, room, 0), np.where(fits, score, NOWHERE)


def _stacked(columns: Sequence[Ints]) -> Ints:
    return columns[0][:, None] if len(columns) == 1 else np.stack(columns, axis=1)


def _prices(nodes: Sequence[Node]) -> Ints:
    """What types of nodes cost as a part of the score, for asks without devices and for those with some.

    Twice as dear a core, or device, is a tier, and weighs more than any fragment; smaller differences weigh least.
    """
    # A loss is taken to cost an hour.
    price = [node.price * (1000 + node.hazard) // 1000 for node in nodes]
    core = [cost // max(node.amounts.get(CPU, 0) // 1000, 1) for cost, node in zip(price, nodes, strict=True)]
    device = [cost // max(len(node.devices), 1) for cost, node in zip(price, nodes, strict=True)]
    tiers = np.array([[one.bit_length() for one in core], [one.bit_length() for one in device]], np.int64)
    keys = [(cost, node.hazard, node.spot) for cost, node in zip(price, nodes, strict=True)]
    order = {key: number for number, key in enumerate(sorted(set(keys)))}
    rank = np.minimum(np.array([order[key] for key in keys], np.int64), (1 << _LOSS) - 1)
    prices: Ints = -(tiers << _TIER) - rank
    return prices
