"""Where the slots of a gang go: all of them, or none.

One role is always placed when it can be. Of several, each is placed in turn, the one that asks most first, and if that
leads nowhere the others get their turn to go first: a gang whose roles must interleave on one node may be missed.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from falaj.schedule.model import WHOLE, Ask, Shape, Spot
from falaj.schedule.score import NOWHERE
from falaj.schedule.traits import Flags, Ints, Small
from falaj.schedule.world import World


def place(world: World, shape: Shape, width: int, allowed: Flags | None = None) -> tuple[Spot, ...] | None:
    """Places for a job with so many slots of its first role, on the allowed nodes; None when there are none now.

    Nothing is taken: the caller takes what it decides to use. All slots of a job lie in one cluster.
    """
    asks = [world.ask(role.ask) for role in shape.roles]
    wants = [role.count if number else width for number, role in enumerate(shape.roles)]
    if len(asks) == 1 and wants[0] == 1:
        return _one(world, asks[0], allowed)
    mask = np.ones(len(world.nodes), np.bool_) if allowed is None else allowed
    order = sorted(range(len(asks)), key=lambda role: _weight(shape.roles[role].ask), reverse=True)
    for turn in range(len(order)):
        spots = _gang(world, shape, [*order[turn:], *order[:turn]], wants, mask)
        if spots is not None:
            return tuple(sorted(spots, key=lambda spot: spot.role))
    return None


def _one(world: World, number: int, allowed: Flags | None) -> tuple[Spot, ...] | None:
    scores = world.scores(number)
    if allowed is not None:
        scores = np.where(allowed, scores, NOWHERE)
    row = int(scores.argmax()) if len(scores) else -1
    if row < 0 or scores[row] == NOWHERE:
        return None
    return tuple(world.spots(row, number, 0, 1))


def _weight(ask: Ask) -> tuple[int, ...]:
    return (ask.gpus * WHOLE + ask.milli, *(amount for _, amount in ask.amounts))


def _gang(world: World, shape: Shape, order: Sequence[int], wants: Sequence[int], mask: Flags) -> list[Spot] | None:
    for inside in _domains(world, shape, wants, mask):
        mark = world.mark()
        spots: list[Spot] = []
        for role in order:
            mine = _role(world, shape, role, wants[role], inside)
            if mine is None:
                break
            if role != order[-1]:
                world.take(mine, shape.roles)
            spots += mine
        else:
            world.rewind(mark)
            return spots
        world.rewind(mark)
    return None


def _domains(world: World, shape: Shape, wants: Sequence[int], mask: Flags) -> Iterator[Flags]:
    """Sets of nodes to try, each within one cluster; the smallest that is large enough first."""
    level = shape.level if shape.required else "cluster"
    domain = world.domains(level)
    able = np.ones(int(domain.max(initial=-1)) + 1, np.bool_)
    size = np.zeros(len(able), np.int64)
    for role, want in zip(shape.roles, wants, strict=True):
        fits = _sums(domain, np.where(mask, world.counts(world.ask(role.ask)), 0), len(able))
        able &= fits >= want
        size += fits
    for number in sorted(np.flatnonzero(able).tolist(), key=lambda one: (size[one], one)):
        yield mask & (domain == number)


def _sums(domain: Small, counts: Small, size: int) -> Ints:
    inside = domain >= 0
    return np.bincount(domain[inside], counts[inside], minlength=size).astype(np.int64)


def _role(world: World, shape: Shape, role: int, want: int, inside: Flags) -> list[Spot] | None:
    number = world.ask(shape.roles[role].ask)
    counts, scores = world.counts(number), world.scores(number)
    rows = np.flatnonzero(inside & (counts > 0))
    rows = rows[np.argsort(-scores[rows], kind="stable")]
    ends = np.cumsum(counts[rows], dtype=np.int64)
    if not len(ends) or ends[-1] < want:
        return None
    spots: list[Spot] = []
    for row in rows[: int(np.searchsorted(ends, want)) + 1].tolist():
        spots += world.spots(row, number, role, min(int(counts[row]), want - len(spots)))
    return spots
