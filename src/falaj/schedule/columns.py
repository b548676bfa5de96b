"""What fits on a node and how well, for every ask: worked out once for every state that a node is in.

Most nodes of a fleet are alike, and so is what is left on them. A state is a type of node, what is free, and what is
left on its devices. When a node changes, it moves to another state. Each ask has a row: how many of its slots fit in
each state, and how much it likes it. When a row is asked for, only the states that are new to it are worked out. What
fits does not depend on what others ask for; what is liked does, and is worked out only where places are looked for.
"""

import numpy as np

from falaj.schedule.mix import Mix
from falaj.schedule.model import Node
from falaj.schedule.score import NOWHERE, Pieces, joined, prices, slots
from falaj.schedule.traits import Flags, Ints, Small, Types

__all__ = ["NOTHING", "Columns", "Flags", "Ints", "Small"]

NOTHING = 0
"""The state in which nothing fits: closed nodes are in it."""
State = tuple[int, bytes, tuple[int, ...]]
"""A type, what is free, what is left on devices."""
_ROOM = 64


class Columns:
    """The states nodes are in, and their columns."""

    def __init__(self) -> None:
        self.types = Types()
        self.mix = Mix()
        self._version = 0
        self.clear()

    def clear(self) -> None:
        """Forget types and states, as when nodes have more resources, devices or labels than before."""
        self.types.clear()
        self._states: dict[State, int] = {}
        self._keys: list[State] = []
        self._free: Ints = np.zeros((_ROOM, len(self.types.resources)), np.int64)
        self._dev: Ints = np.zeros((_ROOM, self.types.width), np.int64)
        self._type, self._piece, self._worth = (np.zeros(_ROOM, np.int64) for _ in range(3))
        self._counts: Small = np.zeros((0, _ROOM), np.int32)
        self._scores: Ints = np.zeros((0, _ROOM), np.int64)
        self._scored: Ints = np.zeros(0, np.int64)
        """By ask: of how many states it is known how it likes them."""
        self._typed = self._wished = -1
        self._forget()
        # Closed nodes are in this state, of a type without anything.
        self.state(self.types.type(Node("", "", "", {})), self._free[0], self._dev[0] - 1)

    @property
    def size(self) -> int:
        """How many states are known."""
        return len(self._keys)

    def state(self, kind: int, free: Ints, dev: Small) -> int:
        """The number of the state that a node of this type is in."""
        left: list[int] = dev.tolist()
        for group in self.types.alike[kind]:
            # Which of several devices alike has how much left makes no difference.
            for place, some in zip(group, sorted([left[place] for place in group]), strict=True):
                left[place] = some
        key = (kind, free.tobytes(), tuple(left))
        known = self._states.get(key)
        if known is not None:
            return known
        number = self._states[key] = len(self._keys)
        self._keys.append(key)
        if number == len(self._type):
            self._keep(np.arange(number), 2 * number)
        self._free[number], self._dev[number], self._type[number] = free, left, kind
        return number

    def compact(self, live: Ints) -> Ints:
        """Forget all states but these; the answer says what number each old one has now."""
        live = np.union1d([NOTHING], live)
        numbers = np.zeros(self.size, np.int64)
        numbers[live] = np.arange(len(live))
        self._keep(live, max(_ROOM, 2 * len(live)))
        self._keys = [self._keys[number] for number in live.tolist()]
        self._states = {key: number for number, key in enumerate(self._keys)}
        self._forget()
        return numbers

    def _forget(self) -> None:
        """Know nothing of any state but what it is."""
        self._shelf: dict[tuple[int, tuple[int, ...]], int] = {}
        """What is left on the devices of a type of nodes, by number: many states have the same."""
        self._slots: Ints = np.zeros((len(self.types.unit), 0), np.int64)
        self._pieces: Pieces | None = None
        self._shelved = self._counted = self._valued = 0
        self._think_anew()

    def _think_anew(self) -> None:
        self._scored.fill(0)
        self._version += 1

    def _keep(self, states: Ints, room: int) -> None:
        picked = np.zeros(room, np.int64)
        picked[: len(states)] = states
        for name in ("_free", "_dev", "_type", "_piece", "_worth"):
            setattr(self, name, getattr(self, name)[picked])
        self._counts, self._scores = self._counts[:, picked], self._scores[:, picked]

    def counts(self, ask: int, states: Ints) -> Small:
        """How many slots of an ask fit in these states."""
        self._count()
        counts: Small = self._counts[ask].take(states)
        return counts

    def count(self, ask: int, state: int) -> int:
        """The same in one state."""
        self._count()
        return int(self._counts[ask, state])

    def fits(self, asks: Ints, states: Ints) -> Flags:
        """By ask: does a slot of it fit in one of these states?"""
        self._count()
        fits: Flags = (self._counts[asks[:, None], states] > 0).max(axis=1, initial=False)
        return fits

    def totals(self, asks: Ints, states: Ints) -> Ints:
        """By ask: how many slots of it fit in all these states together."""
        self._count()
        many = np.bincount(states)
        live = np.flatnonzero(many)
        totals: Ints = (self._counts[asks[:, None], live] * many[live]).sum(axis=1)
        return totals

    def scores(self, ask: int, states: Ints) -> Ints:
        """How much an ask likes these states, as `score` worked it out; NOWHERE where it does not fit."""
        scores: Ints = self._scores[ask].take(states)
        return scores

    def left(self, ask: int, state: int) -> int:
        """What is left on the device that a part of one is best cut from."""
        return int(self._worthy().left[self.types.wish[ask], self._piece[state]])

    def _shelve(self) -> None:
        """Get to know the devices of new states, once for all alike."""
        types = self.types
        if (self._typed, self._wished) != (len(types.nodes), len(types.unit)):
            self._typed, self._wished = len(types.nodes), len(types.unit)
            self._prices = prices(types.nodes)
            self._forget()
        if self._shelved == self.size:
            return
        known = len(self._shelf)
        for state in range(self._shelved, self.size):
            kind, _, left = self._keys[state]
            self._piece[state] = self._shelf.setdefault((kind, left), len(self._shelf))
        self._shelved = self.size
        if known < len(self._shelf):
            self._slots = np.concatenate([self._slots, slots(types, *self._alike(known))], axis=1)

    def _alike(self, start: int) -> tuple[Ints, Ints]:
        """From the start on: the types of nodes on the shelf, and what is left on their devices."""
        some = list(self._shelf)[start:]
        return np.array([kind for kind, _ in some], np.int64), np.array([left for _, left in some], np.int64)

    def _worthy(self) -> Pieces:
        """What places are worth, with what is asked for as it is now."""
        self._shelve()
        if self.mix.weigh(self.types) or self._pieces is None:
            self._pieces, self._valued = Pieces(self.mix, self.types, self._prices, *self._alike(0)), 0
            self._think_anew()
        if self._valued < self.size:
            if self._pieces.size < len(self._shelf):
                self._pieces.extend(Pieces(self.mix, self.types, self._prices, *self._alike(self._pieces.size)))
            new = slice(self._valued, self.size)
            cpu, memory = self._free[new, 0], self._free[new, 1]
            self._worth[new] = self._pieces.worth(self.mix, self._piece[new], 0, cpu, memory)
            self._valued = self.size
        return self._pieces

    def _count(self) -> None:
        """Work out how many slots of every ask fit in the states that are new, and of asks that are new in all."""
        self._shelve()
        known, asks = len(self._scored), len(self.types.asks)
        if known < asks:
            room = ((0, asks - known), (0, 0))
            self._counts, self._scores = np.pad(self._counts, room), np.pad(self._scores, room)
            self._scored = np.pad(self._scored, room[0])
            self._fill(slice(known, asks), slice(0, self._counted))
        if self._counted < self.size:
            self._fill(slice(0, asks), slice(self._counted, self.size))
            self._counted = self.size

    def _fill(self, asks: slice, states: slice) -> None:
        types = self.types
        room = self._slots.take(types.wish[asks], axis=0).take(self._piece[states], axis=1)
        room *= types.allows[asks].take(self._type[states], axis=1)
        for free, need in zip(self._free[states].T, types.need[asks].T, strict=True):
            np.minimum(room, np.where(need[:, None], free // np.maximum(need, 1)[:, None], room), out=room)
        self._counts[asks, states] = np.maximum(room, 0)
        self._counts[asks, NOTHING] = 0

    def score(self, ask: int) -> int:
        """Work out how an ask likes the states that are new to it; another answer: it was worked out anew for all."""
        self._count()
        pieces = self._worthy()
        start, stop = int(self._scored[ask]), self.size
        if start == stop:
            return self._version
        states, wish = slice(start, stop), int(self.types.wish[ask])
        free, rows, need = self._free[states], self._piece[states], self.types.need[ask].tolist()
        worth = pieces.worth(self.mix, rows, wish + 1, free[:, 0] - need[0], free[:, 1] - need[1])
        loss = (self._worth[states] - worth) // self.mix.total
        score = joined(pieces.base[wish].take(rows), loss)
        self._scores[ask, states] = np.where(self._counts[ask, states] > 0, score, NOWHERE)
        self._scored[ask] = stop
        return self._version
