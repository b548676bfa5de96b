"""What fits on a node and how well, for every ask: worked out once for every state that a node is in.

Most nodes of a fleet are alike, and so is what is left on them. A state is a type of node, what is free, and what is
left on its devices; each state has one column: how many slots of each ask fit, and how much each ask would like it.
When a node changes, it moves to another column; only a state that was never seen is worked out.
"""

import numpy as np

from falaj.schedule.mix import Mix
from falaj.schedule.score import NOWHERE, Bench, Pieces
from falaj.schedule.traits import Flags, Ints, Small, Types

__all__ = ["NOTHING", "Columns", "Flags", "Ints", "Small"]

NOTHING = 0
"""The state in which nothing fits: closed nodes are in it."""
_ROOM = 64
_CHUNK = 256


class Columns:
    """The states nodes are in, and their columns."""

    def __init__(self) -> None:
        self.types = Types()
        self.mix = Mix()
        self.clear()

    def clear(self) -> None:
        """Forget types and states, as when nodes have more resources, devices or labels than before."""
        self.types.clear()
        self._states: dict[bytes, int] = {b"": NOTHING}
        self._keys: list[bytes] = [b""]
        self._free: Ints = np.zeros((_ROOM, len(self.types.resources)), np.int64)
        self._dev: Small = np.full((_ROOM, self.types.width), -1, np.int32)
        self._type: Small = np.zeros(_ROOM, np.int32)
        self._counts: Small = np.zeros((max(len(self.types.asks), _ROOM), _ROOM), np.int32)
        self._scores: Ints = np.full(self._counts.shape, NOWHERE, np.int64)
        self._shelf: dict[bytes, Pieces] = {}
        """By type and devices: what is on them."""
        self._bench = Bench(self.mix, self.types, 0)
        self._asked, self._worked, self._typed, self._wished = 0, 1, -1, 0

    @property
    def size(self) -> int:
        """How many states are known."""
        return len(self._keys)

    def state(self, kind: int, free: Ints, dev: Small) -> int:
        """The number of the state that a node of this type is in."""
        groups = self.types.alike[kind]
        if len(groups) == 1:
            dev = -np.sort(-dev)
        elif groups:
            dev = dev.copy()
            for group in groups:
                dev[group] = -np.sort(-dev[group])
        key = kind.to_bytes(4, "little") + free.tobytes() + dev.tobytes()
        known = self._states.get(key)
        if known is not None:
            return known
        number = self._states[key] = len(self._keys)
        self._keys.append(key)
        if number == len(self._type):
            self._pick(np.arange(number), 2 * number)
        self._free[number], self._dev[number], self._type[number] = free, dev, kind
        return number

    def compact(self, live: Small) -> Small:
        """Forget all states but these; the answer says what number each old one has now."""
        self.refresh()
        live = np.union1d([NOTHING], live).astype(np.int32)
        numbers = np.zeros(self.size, np.int32)
        numbers[live] = np.arange(len(live), dtype=np.int32)
        self._pick(live, max(_ROOM, 2 * len(live)))
        self._keys = [self._keys[number] for number in live]
        self._states = {key: number for number, key in enumerate(self._keys)}
        self._worked = len(live)
        return numbers

    def _pick(self, states: Small | Ints, room: int) -> None:
        picked = np.zeros(room, np.int64)
        picked[: len(states)] = states
        self._free, self._dev, self._type = self._free[picked], self._dev[picked], self._type[picked]
        self._counts, self._scores = self._counts[:, picked], self._scores[:, picked]

    def counts(self, ask: int) -> Small:
        """How many slots of an ask fit, by state."""
        self.refresh()
        row: Small = self._counts[ask]
        return row

    def scores(self, ask: int) -> Ints:
        """How much an ask likes a state; NOWHERE when it does not fit."""
        self.refresh()
        row: Ints = self._scores[ask]
        return row

    def left(self, ask: int, state: int) -> int:
        """What is left on the device that a part of one is best cut from."""
        return int(self._pieces(state).left[self.types.wish[ask]])

    def _pieces(self, state: int) -> Pieces:
        kind, dev = int(self._type[state]), self._dev[state]
        key = kind.to_bytes(4, "little") + dev.tobytes()
        known = self._shelf.get(key)
        if known is None:
            known = self._shelf[key] = Pieces(self.mix, self.types, kind, dev)
        return known

    def refresh(self) -> None:
        """Work out what is not worked out yet."""
        size, asks, kinds = self.size, len(self.types.asks), len(self.types.nodes)
        if self._worked == size and self._asked == asks and self._typed == kinds and not self.mix.stale:
            return
        if asks > len(self._counts):
            more = ((0, asks), (0, 0))
            self._counts = np.pad(self._counts, more)
            self._scores = np.pad(self._scores, more, constant_values=NOWHERE)
        wishes = len(self.types.unit)
        if self.mix.weigh(self.types) or self._typed < kinds:
            self._asked, self._worked, self._typed = 0, 1, kinds
            self._wished = 0
        if self._wished < wishes or len(self._shelf) > size:
            self._shelf.clear()
            self._wished = wishes
        if self._asked < asks:
            self._fill(self._asked, 1, self._worked)
            self._bench = Bench(self.mix, self.types, 0)
        self._asked = asks
        self._fill(0, self._worked, size)
        self._worked = size

    def _fill(self, first: int, start: int, stop: int) -> None:
        """Work out the rows of asks from the first in these states."""
        bench = Bench(self.mix, self.types, first) if self._asked < len(self.types.asks) else self._bench
        rows = slice(first, len(self.types.asks))
        for low in range(start, stop, _CHUNK):
            states = slice(low, min(low + _CHUNK, stop))
            pieces = [self._pieces(state) for state in range(states.start, states.stop)]
            counts, scores = bench.score(pieces, self._type[states], self._free[states])
            self._counts[rows, states], self._scores[rows, states] = counts, scores
