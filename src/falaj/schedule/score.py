"""How much an ask likes a state of a node: by what everybody else would lose.

A node's worth is what the mix of asks could use of its idle devices: of each ask, by its weight, the idle part of
devices large enough for it, or nothing when the node has no room for one slot of it; and, as much again, the devices
that its CPU and memory are enough for when every device is used as the mix does on average. The first keeps what is idle
in one piece, the second keeps it usable: who needs much CPU goes where much CPU is left for each device.

Scores are integers: dear devices weigh most, then slots torn over islands, then the fall in worth, then price and risk.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from falaj.schedule.mix import Flags, Ints, Mix
from falaj.schedule.model import WHOLE, Node

Small = npt.NDArray[np.int32]

NOWHERE = -(1 << 62)
"""The score of a state that an ask does not fit in."""
_TIER, _MISFIT, _LOSS = 44, 43, 12
"""Bits at which the parts of a score begin."""


@dataclass(frozen=True, slots=True)
class Block:
    """Asks and states to be scored: arrays by ask, by state, by state and device, and by all three."""

    need: Ints
    """By ask: CPU and memory."""
    unit: Small
    """By ask: the part of one device it wants, or a whole one."""
    per: Small
    """By ask: how many whole devices."""
    types: Small
    free: Ints
    dev: Ints
    """By state and device: what is left, 0 where there is no device."""
    suits: Flags


def losses(mix: Mix, block: Block) -> tuple[Ints, Ints]:
    """The fall in worth for each ask in each state, in thousandths of a device, and what is left on the device that a
    part is best cut from; senseless where the ask does not fit."""
    dev, whole = block.dev, block.dev == WHOLE
    full = whole.sum(axis=1)
    start = mix.start[block.types]
    rank = np.where(whole, mix.full - 1 + full[:, None], mix.rank.take(dev))
    cpu, memory = block.free[:, 0], block.free[:, 1]
    before = (dev * mix.worth.take(start + mix.offset(cpu, memory)[:, None] + rank)).sum(axis=1)
    cpu, memory = cpu - block.need[:, 0, None], memory - block.need[:, 1, None]
    at = start + mix.offset(cpu, memory)[..., None]
    after, left = np.zeros(at.shape[:2], np.int64), np.zeros(at.shape[:2], np.int64)
    rows = np.flatnonzero(block.unit == WHOLE)
    if len(rows):
        after[rows] = _whole(mix, block, rows, at[rows], rank)
    rows = np.flatnonzero(block.unit < WHOLE)
    if len(rows):
        after[rows], left[rows] = _part(mix, block, rows, at[rows], rank)
    idle = dev.sum(axis=1)
    used = np.where(block.unit < WHOLE, block.unit, block.per * WHOLE)
    usable = _balance(mix, idle, block.free[:, 0], block.free[:, 1]) - _balance(mix, idle - used[:, None], cpu, memory)
    return (before - after) // mix.total + usable, left


def _balance(mix: Mix, idle: Ints, cpu: Ints, memory: Ints) -> Ints:
    enough = np.minimum(cpu * WHOLE // mix.cpu_of_one, memory * WHOLE // mix.memory_of_one)
    return np.minimum(idle, enough)


def _whole(mix: Mix, block: Block, rows: Ints, at: Ints, rank: Ints) -> Ints:
    """Worth after whole devices were taken, or none."""
    per = block.per[rows, None, None]
    whole = block.dev == WHOLE
    can = whole & block.suits[rows]
    taken = can & (can.cumsum(axis=2) <= per)
    worth = mix.worth.take(at + np.maximum(rank - np.where(whole, per, 0), 0))
    total: Ints = (np.where(taken, 0, block.dev) * worth).sum(axis=2)
    return total


def _part(mix: Mix, block: Block, rows: Ints, at: Ints, rank: Ints) -> tuple[Ints, Ints]:
    """Worth after a part was cut from the best device, and what was left on that one. Of two as good, the fuller."""
    dev, cut = block.dev, block.unit[rows, None, None]
    whole = dev == WHOLE
    rest = np.maximum(dev - cut, 0)
    now = dev * mix.worth.take(at + rank)
    rather = rest * mix.worth.take(at + mix.rank.take(rest))
    # A whole device that is cut leaves the others whole, but one fewer.
    fewer = np.where(whole, dev * mix.worth.take(at + np.maximum(rank - 1, 0)), now)
    change = rather - np.where(whole, fewer - (fewer - now).sum(axis=2, keepdims=True), now)
    able = block.suits[rows] & (dev >= cut)
    order = np.where(able, (change << 10) - dev, NOWHERE)
    best = order.argmax(axis=2)[..., None]
    worth = now.sum(axis=2) + np.take_along_axis(change, best, axis=2)[..., 0]
    return worth, np.take_along_axis(np.broadcast_to(dev, order.shape), best, axis=2)[..., 0]


def joined(loss: Ints, tier: Ints, misfit: Flags, rank: Ints) -> Ints:
    """One score of its parts; the higher the better."""
    capped = np.clip(loss, 0, (1 << _MISFIT - _LOSS) - 1)
    score: Ints = -((tier << _TIER) + (misfit.astype(np.int64) << _MISFIT) + (capped << _LOSS) + rank)
    return score


def tiers(node: Node) -> tuple[int, int]:
    """How dear a core and a device of this node are: twice as dear is a tier. A loss is taken to cost an hour."""
    price = node.price * (1000 + node.hazard) // 1000
    cores = max(node.amounts.get("cpu", 0) // 1000, 1)
    return (price // cores).bit_length(), (price // max(len(node.devices), 1)).bit_length()


def ranks(nodes: list[Node]) -> Ints:
    """Types of nodes in the order of what they cost, then of their risk; as large a number as fits below the loss."""
    keys = [(node.price * (1000 + node.hazard), node.hazard, node.spot) for node in nodes]
    order = {key: number for number, key in enumerate(sorted(set(keys)))}
    return np.minimum(np.array([order[key] for key in keys], np.int64), (1 << _LOSS) - 1)
