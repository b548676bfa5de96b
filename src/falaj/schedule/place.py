"""Where the slots of a gang go: all of them, or none, and always in one cluster.

A gang of one role is placed whenever it can be. Of several roles the one that asks most is placed first, and when that
leads nowhere each of the others gets its turn to go first, in up to so many domains: a gang whose roles would have to
interleave on the same nodes can be missed.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from falaj.schedule.model import WHOLE, Ask, Shape, Spot
from falaj.schedule.score import NOWHERE
from falaj.schedule.traits import Flags, Ints, Small
from falaj.schedule.world import World

_TRIES = 64
"""Domains that are tried for one gang."""
_FEW = 16
"""Up to so many slots, looking for the next best node again and again is faster than sorting all."""


def place(world: World, shape: Shape, width: int, allowed: Flags | None = None) -> tuple[Spot, ...] | None:
    """Places for a job with so many slots of its first role, on the allowed nodes; None when there are none now.

    Nothing is taken: the caller takes what it decides to use.
    """
    wants = [role.count if number else width for number, role in enumerate(shape.roles)]
    if wants == [1] and shape.level != "island":
        return _one(world, shape.roles[0].ask, allowed)
    if len(wants) == 1 and 0 < wants[0] <= _FEW and not shape.level and allowed is None and world.is_one:
        return _few(world, shape.roles[0].ask, wants[0])
    mask = np.ones(len(world.nodes), np.bool_) if allowed is None else allowed
    order = sorted(range(len(wants)), key=lambda role: _size(shape.roles[role].ask), reverse=True)
    for turn in range(len(order)):
        gang = Gang(world, shape, wants, [*order[turn:], *order[:turn]])
        spots = gang.place(mask)
        if spots is not None:
            return tuple(sorted(spots, key=lambda spot: spot.role))
    return None


def _one(world: World, ask: Ask, allowed: Flags | None) -> tuple[Spot, ...] | None:
    number = world.ask(ask)
    scores = world.scores(number)
    if allowed is not None:
        scores = np.where(allowed, scores, NOWHERE)
    row = int(scores.argmax()) if len(scores) else -1
    if row < 0 or scores[row] == NOWHERE:
        return None
    return tuple(world.spots([row], [1], number, 0))


def _few(world: World, ask: Ask, want: int) -> tuple[Spot, ...] | None:
    """A few slots anywhere in the one cluster there is: one best node after another, as a gang would be placed."""
    number = world.ask(ask)
    scores = world.scores(number).copy()
    rows, fill = list[int](), list[int]()
    while want > 0:
        row = int(scores.argmax()) if len(scores) else -1
        if row < 0 or scores[row] == NOWHERE:
            return None
        rows.append(row)
        fill.append(min(world.room(number, row), want))
        want -= fill[-1]
        scores[row] = NOWHERE
    return tuple(world.spots(rows, fill, number, 0))


def _size(ask: Ask) -> tuple[int, ...]:
    return (ask.gpus * WHOLE + ask.milli, *(amount for _, amount in ask.amounts))


class Gang:
    """One try to place a gang, its roles in a given order."""

    def __init__(self, world: World, shape: Shape, wants: Sequence[int], order: Sequence[int]) -> None:
        self._world, self._level, self._required = world, shape.level, shape.required
        self._roles, self._wants, self._order = shape.roles, wants, order
        self._asks = [world.ask(role.ask) for role in shape.roles]

    def place(self, mask: Flags) -> list[Spot] | None:
        """Places on these nodes."""
        if self._level:
            found = self._within(self._level, mask, loose=False)
            if found is not None or self._required:
                return found
        return self._within("cluster", mask, loose=True)

    def _within(self, level: str, mask: Flags, *, loose: bool) -> list[Spot] | None:
        """Places in one domain of a level."""
        for inside, island in self._domains(level, mask, loose):
            mark = self._world.mark()
            spots: list[Spot] = []
            for role in self._order:
                mine = self._place(role, inside, island, loose)
                if mine is None:
                    break
                if role != self._order[-1]:
                    self._world.take(mine, self._roles)
                spots += mine
            else:
                self._world.rewind(mark)
                return spots
            self._world.rewind(mark)
        return None

    def _domains(self, level: str, mask: Flags, loose: bool) -> Iterator[tuple[Flags, int]]:
        """Domains that may be large enough, and islands in them: the smallest first, or the best liked."""
        world, domain = self._world, self._world.domains(level)
        count = int(domain.max(initial=-1)) + 1
        if loose and count == 1:
            yield mask & (domain == 0), -1
            return
        able, size = np.ones(count, np.bool_), np.zeros(count, np.int64)
        for ask, want in zip(self._asks, self._wants, strict=True):
            room = world.counts(ask) if level != "island" else world.rooms(ask).max(axis=1)
            fits = _sums(domain, np.where(mask, room, 0), count)
            able &= fits >= want
            size += fits
        if loose and count > 1:
            size.fill(-NOWHERE)
            np.minimum.at(size, domain, np.where(mask, -world.scores(self._asks[self._order[0]]), -NOWHERE))
        found = np.flatnonzero(able)
        for number in found[np.argsort(size[found], kind="stable")][:_TRIES].tolist():
            inside = mask & (domain == number)
            if level != "island":
                yield inside, -1
                continue
            rooms = world.rooms(self._asks[self._order[0]])[int(np.argmax(inside))]
            for island in np.argsort(rooms, kind="stable").tolist():
                yield inside, island

    def _place(self, role: int, inside: Flags, island: int, loose: bool) -> list[Spot] | None:
        """Places of one role."""
        world, ask, want = self._world, self._asks[role], self._wants[role]
        counts = np.where(inside, world.counts(ask) if island < 0 else world.rooms(ask)[:, island], 0)
        rows = np.flatnonzero(counts)
        if counts.sum() < want or not want:
            return None if want else []
        turn = -world.scores(ask)[rows]
        if loose and self._level:
            level = "node" if self._level == "island" else self._level
            rows = rows[np.lexsort((turn, _nearest(world.domains(level)[rows], counts[rows], want)))]
        else:
            rows = rows[_foremost(turn, counts[rows], want)]
        ends = np.cumsum(counts[rows])
        rows = rows[: int(np.searchsorted(ends, want)) + 1]
        fill = counts[rows]
        fill[-1:] -= ends[len(rows) - 1] - want
        return world.spots(rows.tolist(), fill.tolist(), ask, role, island)


def _foremost(turn: Ints, counts: Small, want: int) -> Ints:
    """The nodes whose turn comes first, as many as are needed or more; of equal turns the lowest."""
    if want > _FEW:
        return np.argsort(turn, kind="stable")
    turn, found = turn.copy(), []
    while want > 0:
        found.append(int(turn.argmin()))
        want -= int(counts[found[-1]])
        turn[found[-1]] = -NOWHERE
    return np.array(found)


def _nearest(domain: Ints | Small, counts: Small, want: int) -> Ints:
    """When each node's turn comes, for as few domains as can be: the largest, and last the smallest that is enough.

    A node in no domain is one of its own.
    """
    domain = np.where(domain < 0, domain.max(initial=0) + 1 + np.arange(len(domain)), domain)
    sizes = _sums(domain, counts, int(domain.max()) + 1)
    order = np.argsort(-sizes, kind="stable")
    full = int(np.searchsorted(np.cumsum(sizes[order]), want))
    rest = want - int(sizes[order[:full]].sum())
    enough = order[full:][sizes[order[full:]] >= rest]
    turn = np.full(len(sizes), len(sizes))
    turn[order[:full]] = np.arange(full)
    turn[enough[int(np.argmin(sizes[enough]))]] = full
    return turn[domain]


def _sums(domain: Ints | Small, counts: Small, size: int) -> Ints:
    inside = domain >= 0
    return np.bincount(domain[inside], counts[inside], minlength=size).astype(np.int64)
