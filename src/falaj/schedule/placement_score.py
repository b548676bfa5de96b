"""How much an ask likes a state of a node: by what everybody else would lose.

A node's worth is what the mix of asks could use of its idle devices: of each ask, by its weight, the idle part of
devices large enough for it, or nothing when the node has no room for one slot of it; and, as much again, the devices
that its CPU and memory are enough for when every device is used as the mix does on average. The first keeps what is
idle in one piece, the second keeps it usable: who needs much CPU goes where much CPU is left for each device.

Scores are integers: dear devices weigh most, then poor guests, then the fall in worth, then price and risk.
"""

from collections.abc import Sequence

import numpy as np

from falaj.schedule.demand_weights import DemandWeights
from falaj.schedule.model import CPU, MILLI_PER_UNIT, Node
from falaj.schedule.node_types import Flags, Ints, NodeTypes, Small

NO_FIT_SCORE = -(1 << 62)
"""The score of a state that an ask does not fit in."""
UNLIMITED_SLOTS = 1 << 16
"""So many slots of an ask that asks for nothing fit on a node."""
_TIER_BIT, _MISFIT_BIT, _LOSS_BIT = 44, 43, 12
"""Bits at which the parts of a score begin."""


class DevicePieces:
    """What is left on the devices of nodes, and what of it once a slot of each wish was put there.

    Arrays are by wish, row and device; wish 0 is to leave all as it is, the others count from 1.
    """

    def __init__(self, demand: DemandWeights, types: NodeTypes, costs: Ints, type_numbers: Ints, dev: Ints) -> None:
        dev = np.maximum(dev, 0)
        unit, per_slot = types.unit[:, None, None], types.per[:, None]
        suits = types.suits.take(types.kinds[type_numbers], axis=1)
        can_use = (dev == MILLI_PER_UNIT) & suits & (unit == MILLI_PER_UNIT)
        left_after = np.where(can_use & (can_use.cumsum(axis=2) <= per_slot[..., None]), 0, dev)
        self.left = np.zeros(suits.shape[:2], np.int64)
        """By wish and row: what is left on the device that a part is best cut from."""
        start, rows = demand.start[type_numbers], np.arange(len(dev))
        parts = np.flatnonzero(types.unit < MILLI_PER_UNIT)
        if len(parts):
            best = _find_best_cuts(demand, start + demand.last, dev, unit[parts], suits[parts])
            self.left[parts] = dev[rows, best]
            left_after[parts[:, None], rows, best] -= types.unit[parts, None]
        self.amount: Ints = np.maximum(np.concatenate([dev[None], left_after]), 0)
        is_whole = self.amount == MILLI_PER_UNIT
        rank = np.where(is_whole, demand.full - 1 + is_whole.sum(axis=2, keepdims=True), demand.rank.take(self.amount))
        self.place: Ints = start + rank
        """Where in the table of worths each device is to be looked up."""
        self.idle: Ints = self.amount.sum(axis=2)
        price = costs[np.minimum(types.per, 1)].take(type_numbers, axis=1)
        self.base: Ints = price - (_is_misfit(types, type_numbers, dev).astype(np.int64) << _MISFIT_BIT)
        """By wish and row: the part of a score that does not depend on what would be lost."""

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self.base[0])

    def extend(self, added: "DevicePieces") -> None:
        """Rows of others after these."""
        for name, array in vars(self).items():
            setattr(self, name, np.concatenate([array, getattr(added, name)], axis=1))

    def worth(self, demand: DemandWeights, rows: Ints, wish: int, cpu: Ints, memory: Ints) -> Ints:
        """What nodes with these devices and so much CPU and memory are worth to the mix, with a wish granted."""
        usable = np.minimum(self.idle[wish].take(rows), demand.enough(cpu, memory)) * demand.total
        positions = self.place[wish].take(rows, axis=0)
        positions += demand.offset(cpu, memory)[:, None]
        worth: Ints = usable + np.einsum("ij,ij->i", self.amount[wish].take(rows, axis=0), demand.worth.take(positions))
        return worth


def count_device_slots(types: NodeTypes, kinds: Ints, dev: Ints) -> Ints:
    """By wish and row: how many slots the devices of nodes with so much left have room for."""
    per_slot, suits = types.per[:, None], types.suits.take(types.kinds[kinds], axis=1)
    fits = (np.maximum(dev, 0) // types.unit[:, None, None] * suits).sum(axis=2)
    room: Ints = np.where(per_slot, fits // np.maximum(per_slot, 1), UNLIMITED_SLOTS)
    return room


def _find_best_cuts(demand: DemandWeights, offsets: Ints, dev: Ints, unit: Small, suits: Flags) -> Ints:
    """From which device parts are best cut: where the mix loses least; of two as good, the fuller one."""
    is_whole, left_after = dev == MILLI_PER_UNIT, np.maximum(dev - unit, 0)
    rank = np.where(is_whole, demand.full - 1 + is_whole.sum(axis=1, keepdims=True), demand.rank.take(dev))
    current_worth = dev * demand.worth.take(offsets + rank)
    # A whole device that is cut leaves the others whole, but one fewer.
    worth_one_fewer = np.where(
        is_whole, MILLI_PER_UNIT * demand.worth.take(offsets + np.maximum(rank - 1, 0)), current_worth
    )
    cost = np.where(
        is_whole, worth_one_fewer + (current_worth - worth_one_fewer).sum(axis=1, keepdims=True), current_worth
    )
    gain = left_after * demand.worth.take(offsets + demand.rank.take(left_after)) - cost
    best: Ints = np.where(suits & (dev >= unit), (gain << 10) - dev, NO_FIT_SCORE).argmax(axis=2)
    return best


def _is_misfit(types: NodeTypes, kinds: Ints, dev: Ints) -> Flags:
    """By wish: it needs no devices and there are some, or they would lie on several islands though one has as many."""
    islands, largest = types.islands[kinds], types.largest[kinds]
    largest_free = np.zeros(len(dev), np.int64)
    for island in range(int(islands.max(initial=0)) + 1):
        np.maximum(largest_free, ((dev == MILLI_PER_UNIT) & (islands == island)).sum(axis=1), out=largest_free)
    per_slot = types.per[:, None]
    is_torn = (types.unit == MILLI_PER_UNIT)[:, None] & (per_slot > largest_free) & (per_slot <= largest)
    misfits: Flags = np.where(per_slot == 0, largest > 0, is_torn)
    return misfits


def join_score(base: Ints, loss: Ints) -> Ints:
    """One score of its parts; the higher the better."""
    return base - (loss << _LOSS_BIT)


def compute_price_scores(nodes: Sequence[Node]) -> Ints:
    """What types of nodes cost as a part of the score, for asks without devices and for those with some.

    Twice as dear a core, or device, is a tier, and weighs more than any fragment; smaller differences weigh least.
    """
    # A loss is taken to cost an hour.
    price = [node.price * (1000 + node.hazard) // 1000 for node in nodes]
    core_prices = [cost // max(node.amounts.get(CPU, 0) // 1000, 1) for cost, node in zip(price, nodes, strict=True)]
    device_prices = [cost // max(len(node.devices), 1) for cost, node in zip(price, nodes, strict=True)]
    tiers = np.array(
        [
            [unit_cost.bit_length() for unit_cost in core_prices],
            [unit_cost.bit_length() for unit_cost in device_prices],
        ],
        np.int64,
    )
    keys = [(cost, node.hazard, node.spot) for cost, node in zip(price, nodes, strict=True)]
    order = {key: number for number, key in enumerate(sorted(set(keys)))}
    rank = np.minimum(np.array([order[key] for key in keys], np.int64), (1 << _LOSS_BIT) - 1)
    prices: Ints = -(tiers << _TIER_BIT) - rank
    return prices
