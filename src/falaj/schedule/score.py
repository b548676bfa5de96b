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
    """What is left on the devices of nodes, and what of it once a slot of each wish was put there.

    Arrays are by wish, row and device; wish 0 is to leave all as it is, the others count from 1.
    """

    def __init__(self, mix: Mix, types: Types, costs: Ints, kinds: Ints, dev: Ints) -> None:
        dev = np.maximum(dev, 0)
        unit, per = types.unit[:, None, None], types.per[:, None]
        suits = types.suits.take(types.kinds[kinds], axis=1)
        can = (dev == WHOLE) & suits & (unit == WHOLE)
        rest = np.where(can & (can.cumsum(axis=2) <= per[..., None]), 0, dev)
        self.left = np.zeros(suits.shape[:2], np.int64)
        """By wish and row: what is left on the device that a part is best cut from."""
        start, rows = mix.start[kinds], np.arange(len(dev))
        parts = np.flatnonzero(types.unit < WHOLE)
        if len(parts):
            best = _cuts(mix, start + mix.last, dev, unit[parts], suits[parts])
            self.left[parts] = dev[rows, best]
            rest[parts[:, None], rows, best] -= types.unit[parts, None]
        self.amount: Ints = np.maximum(np.concatenate([dev[None], rest]), 0)
        whole = self.amount == WHOLE
        rank = np.where(whole, mix.full - 1 + whole.sum(axis=2, keepdims=True), mix.rank.take(self.amount))
        self.place: Ints = start + rank
        """Where in the table of worths each device is to be looked up."""
        self.idle: Ints = self.amount.sum(axis=2)
        price = costs[np.minimum(types.per, 1)].take(kinds, axis=1)
        self.base: Ints = price - (_misfits(types, kinds, dev).astype(np.int64) << _MISFIT)
        """By wish and row: the part of a score that does not depend on what would be lost."""

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.base[0])

    def extend(self, more: "Pieces") -> None:
        """Rows of others after these."""
        for name, mine in vars(self).items():
            setattr(self, name, np.concatenate([mine, getattr(more, name)], axis=1))

    def worth(self, mix: Mix, rows: Ints, wish: int, cpu: Ints, memory: Ints) -> Ints:
        """What nodes with these devices and so much CPU and memory are worth to the mix, with a wish granted."""
        usable = np.minimum(self.idle[wish].take(rows), mix.enough(cpu, memory)) * mix.total
        place = self.place[wish].take(rows, axis=0)
        place += mix.offset(cpu, memory)[:, None]
        worth: Ints = usable + np.einsum("ij,ij->i", self.amount[wish].take(rows, axis=0), mix.worth.take(place))
        return worth


def slots(types: Types, kinds: Ints, dev: Ints) -> Ints:
    """By wish and row: how many slots the devices of nodes with so much left have room for."""
    per, suits = types.per[:, None], types.suits.take(types.kinds[kinds], axis=1)
    fits = (np.maximum(dev, 0) // types.unit[:, None, None] * suits).sum(axis=2)
    room: Ints = np.where(per, fits // np.maximum(per, 1), MOST)
    return room


def _cuts(mix: Mix, at: Ints, dev: Ints, unit: Small, suits: Flags) -> Ints:
    """From which device parts are best cut: where the mix loses least; of two as good, the fuller one."""
    whole, rest = dev == WHOLE, np.maximum(dev - unit, 0)
    rank = np.where(whole, mix.full - 1 + whole.sum(axis=1, keepdims=True), mix.rank.take(dev))
    now = dev * mix.worth.take(at + rank)
    # A whole device that is cut leaves the others whole, but one fewer.
    fewer = np.where(whole, WHOLE * mix.worth.take(at + np.maximum(rank - 1, 0)), now)
    cost = np.where(whole, fewer + (now - fewer).sum(axis=1, keepdims=True), now)
    gain = rest * mix.worth.take(at + mix.rank.take(rest)) - cost
    best: Ints = np.where(suits & (dev >= unit), (gain << 10) - dev, NOWHERE).argmax(axis=2)
    return best


def _misfits(types: Types, kinds: Ints, dev: Ints) -> Flags:
    """By wish: it needs no devices and there are some, or they would lie on several islands though one has as many."""
    islands, largest = types.islands[kinds], types.largest[kinds]
    most = np.zeros(len(dev), np.int64)
    for island in range(int(islands.max(initial=0)) + 1):
        np.maximum(most, ((dev == WHOLE) & (islands == island)).sum(axis=1), out=most)
    per = types.per[:, None]
    torn = (types.unit == WHOLE)[:, None] & (per > most) & (per <= largest)
    misfits: Flags = np.where(per == 0, largest > 0, torn)
    return misfits


def joined(base: Ints, loss: Ints) -> Ints:
    """One score of its parts; the higher the better."""
    return base - (loss << _LOSS)


def prices(nodes: Sequence[Node]) -> Ints:
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
