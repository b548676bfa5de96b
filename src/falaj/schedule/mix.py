"""What is asked for, and what idle devices are worth to it: tables that make a node's worth a matter of looking up.

Asks are weighed by the slots wanted of them, rounded down to a power of two: weights change seldom, and depend on
nothing but what is wanted now. Weights by devices would count an ask of 8 GPUs eight times more than one of 1 GPU, and
leave more parts of devices idle (tests/schedule/test_openb.py has the figures). No ask is left out for being rare, so
that whole nodes are kept for those who need them.
"""

from collections.abc import Sequence

import numpy as np

from falaj.schedule.model import CPU, MEMORY, WHOLE, Ask, Node
from falaj.schedule.traits import Ints, Types

_LEVELS = 40
"""Amounts of CPU, of memory and of a device that are told apart."""
_BITS = 30


class Mix:
    """What is wanted of each ask, and the tables that follow from it."""

    def __init__(self) -> None:
        self.stale = True
        """Something was added since tables were made, or there are new types of nodes."""
        self._wanted: dict[Ask, int] = {}
        self._weights: dict[Ask, int] = {}
        self._known: list[Node] = []
        self._size = -1

    def add(self, ask: Ask, slots: int) -> None:
        """So many slots more (or fewer) of this ask are wanted."""
        self._wanted[ask] = self._wanted.get(ask, 0) + slots
        if not self._wanted[ask]:
            del self._wanted[ask]
        self.stale = True

    def weigh(self, types: Types) -> bool:
        """Bring the tables up to date with what is wanted and with the types of nodes; True when weights changed."""
        known = self._known is types.nodes and self._size == len(types.nodes)
        if known and not self.stale:
            return False
        weights = _weights(self._wanted)
        same = weights == self._weights
        self.stale = False
        if known and same:
            return False
        self._weights, self._known, self._size = weights, types.nodes, len(types.nodes)
        self.total = max(sum(weight for ask, weight in weights.items() if _demand(ask)), 1)
        self._cpu_of_one, self._memory_of_one = (self._of_one(name) for name in (CPU, MEMORY))
        asks = [ask for ask in weights if _demand(ask)]
        self._cpu = _levels([_amount(ask, CPU) for ask in asks])
        self._memory = _levels([_amount(ask, MEMORY) for ask in asks])
        parts = _levels([ask.milli for ask in asks if ask.milli])
        self.rank: Ints = np.searchsorted(parts, np.arange(WHOLE + 1), "right")
        """By what is left on a device: how many sizes of parts it is large enough for."""
        self.full = len(parts) + 1
        """Rank of a whole device on a node that has no other; those of nodes with more whole ones follow it."""
        self._tabulate(asks, types, parts)
        return not same

    def _of_one(self, name: str) -> int:
        """How much of a resource is asked for beside each whole device, on average."""
        wanted = sum(
            weight * _amount(ask, name) * WHOLE // (_demand(ask) or WHOLE) for ask, weight in self._weights.items()
        )
        return max(wanted // self.total, 1)

    def _tabulate(self, asks: Sequence[Ask], types: Types, parts: Ints) -> None:
        """Weights of all asks that could use a device: by which can at all, free CPU, free memory and its rank."""
        kinds = types.kinds
        useful = np.array([types.useful(ask) for ask in asks], np.bool_).reshape(len(asks), kinds.size)
        sets, which = np.unique(useful, axis=1, return_inverse=True)
        ranks = self.full + kinds.shape[1] + 1
        worth = np.zeros((sets.shape[1], len(self._cpu) + 1, len(self._memory) + 1, ranks), np.int64)
        for number, ask in enumerate(asks):
            cpu = np.searchsorted(self._cpu, _amount(ask, CPU)) + 1
            memory = np.searchsorted(self._memory, _amount(ask, MEMORY)) + 1
            rank = np.searchsorted(parts, ask.milli) + 1 if ask.milli else self.full - 1 + ask.gpus
            if rank < ranks:
                worth[sets[number], cpu, memory, rank] += self._weights[ask]
        for axis in (1, 2, 3):
            np.cumsum(worth, axis=axis, out=worth)
        self.worth = worth.reshape(-1)
        self.start: Ints = which.reshape(kinds.shape).astype(np.int64) * (worth[0].size if len(worth) else 0)
        """By type and device: where its part of `worth` begins."""
        self._rows, self._ranks = worth.shape[2], ranks
        self.last = (worth.shape[1] * worth.shape[2] - 1) * ranks
        """The offset of a node with CPU and memory enough for every ask."""

    def offset(self, cpu: Ints, memory: Ints) -> Ints:
        """Where in a part of `worth` the ranks for so much free CPU and memory begin."""
        row = self._cpu.searchsorted(cpu, "right") * self._rows + self._memory.searchsorted(memory, "right")
        offset: Ints = row * self._ranks
        return offset

    def enough(self, cpu: Ints, memory: Ints) -> Ints:
        """For how many devices so much is enough, in thousandths, on average."""
        return np.minimum(cpu * WHOLE // self._cpu_of_one, memory * WHOLE // self._memory_of_one)


def _demand(ask: Ask) -> int:
    return ask.milli or ask.gpus * WHOLE


def _amount(ask: Ask, name: str) -> int:
    return next((amount for mine, amount in ask.amounts if mine == name), 0)


def _weights(wanted: dict[Ask, int]) -> dict[Ask, int]:
    """Powers of two, the rarest at least 1."""
    slots_by_ask = {ask: slots for ask, slots in wanted.items() if slots > 0}
    spare = max(sum(slots_by_ask.values()).bit_length() - _BITS, 0)
    return {ask: 1 << max(slots.bit_length() - 1 - spare, 0) for ask, slots in slots_by_ask.items()}


def _levels(values: Sequence[int]) -> Ints:
    """At most so many of the distinct values; what lies between two counts as the larger."""
    distinct = np.array(sorted(set(values)), np.int64)  # numpy's own would load all of its masked arrays
    if len(distinct) > _LEVELS:
        distinct = distinct[np.arange(1, _LEVELS + 1) * len(distinct) // _LEVELS - 1]
    return distinct
