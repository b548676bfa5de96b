"""What fits on a node and how well, for every ask: worked out once for every state that a node is in.

Most nodes of a fleet are alike, and so is what is left on them. A state is a type of node, what is free, and what is
left on its devices. When a node changes, it moves to another state. Each ask has a row: how many of its slots fit in
each state, and how much it likes it. When a row is asked for, only the states that are new to it are worked out.
"""

import numpy as np

from falaj.schedule.mix import Mix
from falaj.schedule.model import Node
from falaj.schedule.score import NOWHERE, Pieces, joined, prices
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
        self._worked: Ints = np.zeros(0, np.int64)
        """By ask: of how many states its row is worked out."""
        self._shelf: dict[tuple[int, tuple[int, ...]], int] = {}
        self._typed = self._wished = -1
        self._pieced = 0
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
        self._worked.fill(0)
        self._shelf.clear()
        self._pieced = 0
        return numbers

    def _keep(self, states: Ints, room: int) -> None:
        picked = np.zeros(room, np.int64)
        picked[: len(states)] = states
        for name in ("_free", "_dev", "_type", "_piece", "_worth"):
            setattr(self, name, getattr(self, name)[picked])
        self._counts, self._scores = self._counts[:, picked], self._scores[:, picked]

    def counts(self, ask: int, states: Ints) -> Small:
        """How many slots of an ask fit in these states."""
        self._work(ask)
        counts: Small = self._counts[ask].take(states)
        return counts

    def scores(self, ask: int, states: Ints) -> Ints:
        """How much an ask likes these states; NOWHERE where it does not fit."""
        self._work(ask)
        scores: Ints = self._scores[ask].take(states)
        return scores

    def left(self, ask: int, state: int) -> int:
        """What is left on the device that a part of one is best cut from."""
        self._ready()
        return int(self._pieces.left[self.types.wish[ask], self._piece[state]])

    def _ready(self) -> None:
        """Bring up to date what scores rest on, and get to know the devices of new states."""
        types = self.types
        if self.mix.weigh(types) or (self._typed, self._wished) != (len(types.nodes), len(types.unit)):
            self._typed, self._wished = len(types.nodes), len(types.unit)
            self._prices = prices(types.nodes)
            self._shelf.clear()
            self._pieced = 0
            self._worked.fill(0)
        if self._pieced < self.size:
            self._shelve(np.arange(self._pieced, self.size))
            self._pieced = self.size

    def _shelve(self, states: Ints) -> None:
        """Work out what these states are worth as they are, and once for all alike what their devices would become."""
        fresh = []
        for state in states.tolist():
            kind, _, left = self._keys[state]
            if (kind, left) not in self._shelf:
                self._shelf[kind, left] = len(self._shelf)
                fresh.append(state)
            self._piece[state] = self._shelf[kind, left]
        if fresh:
            pieces = Pieces(self.mix, self.types, self._type[fresh], self._dev[fresh])
            if len(self._shelf) == len(fresh):
                self._pieces = pieces
            else:
                self._pieces.extend(pieces)
        cpu, memory = self._free[states, 0], self._free[states, 1]
        self._worth[states] = self._pieces.worth(self.mix, self._piece[states], 0, cpu, memory)

    def _work(self, ask: int) -> None:
        """Work out the row of an ask in the states that are new to it."""
        if ask >= len(self._worked):
            more = len(self.types.asks)
            self._counts = np.pad(self._counts, ((0, more), (0, 0)))
            self._scores = np.pad(self._scores, ((0, more), (0, 0)))
            self._worked = np.pad(self._worked, (0, more))
        self._ready()
        start, stop = int(self._worked[ask]), self.size
        if start == stop:
            return
        states, types, wish = slice(start, stop), self.types, int(self.types.wish[ask])
        kinds, free, rows, need = self._type[states], self._free[states], self._piece[states], types.need[ask].tolist()
        room = self._pieces.slots[wish].take(rows) * types.allows[ask].take(kinds)
        for name, amount in enumerate(need):
            if amount:
                np.minimum(room, free[:, name] // amount, out=room)
        worth = self._pieces.worth(self.mix, rows, wish + 1, free[:, 0] - need[0], free[:, 1] - need[1])
        loss = (self._worth[states] - worth) // self.mix.total
        base = self._prices[min(types.per[wish], 1)].take(kinds)
        score = joined(base, loss, self._pieces.misfit[wish].take(rows))
        self._counts[ask, states] = np.maximum(room, 0)
        self._scores[ask, states] = np.where(room > 0, score, NOWHERE)
        self._counts[ask, NOTHING], self._scores[ask, NOTHING] = 0, NOWHERE
        self._worked[ask] = stop
