"""What is asked for, and what idle devices are worth to it: tables that make a node's worth a matter of looking up.

Asks are weighed by the slots wanted of them, rounded down to a power of two: weights change seldom, and depend on
nothing but what is wanted now. Weights by devices would count an ask of 8 GPUs eight times more than one of 1 GPU, and
leave more parts of devices idle (tests/schedule/test_openb.py has the figures). No ask is left out for being rare, so
that whole nodes are kept for those who need them.
"""

from collections.abc import Sequence

import numpy as np

from falaj.schedule.model import CPU, MEMORY, MILLI_PER_UNIT, Node, SlotRequest
from falaj.schedule.node_types import Ints, NodeTypes

_MAX_LEVELS = 40
"""Amounts of CPU, of memory and of a device that are told apart."""
_WEIGHT_BITS = 30


class DemandWeights:
    """What is wanted of each ask, and the tables that follow from it."""

    def __init__(self) -> None:
        self.stale = True
        """Something was added since tables were made, or there are new types of nodes."""
        self._slots_by_request: dict[SlotRequest, int] = {}
        self._weights: dict[SlotRequest, int] = {}
        self._weighed_nodes: list[Node] = []
        self._weighed_count = -1

    def add(self, request: SlotRequest, slots: int) -> None:
        """So many slots more (or fewer) of this ask are wanted."""
        self._slots_by_request[request] = self._slots_by_request.get(request, 0) + slots
        if not self._slots_by_request[request]:
            del self._slots_by_request[request]
        self.stale = True

    def weigh(self, types: NodeTypes) -> bool:
        """Bring the tables up to date with what is wanted and with the types of nodes; True when weights changed."""
        is_current = self._weighed_nodes is types.nodes and self._weighed_count == len(types.nodes)
        if is_current and not self.stale:
            return False
        weights = _compute_weights(self._slots_by_request)
        is_unchanged = weights == self._weights
        self.stale = False
        if is_current and is_unchanged:
            return False
        self._weights, self._weighed_nodes, self._weighed_count = weights, types.nodes, len(types.nodes)
        self.total = max(sum(weight for request, weight in weights.items() if _get_demanded_milli(request)), 1)
        self._cpu_per_device, self._memory_per_device = (self._average_per_device(name) for name in (CPU, MEMORY))
        requests = [request for request in weights if _get_demanded_milli(request)]
        self._cpu_levels = _list_distinct_levels([_get_amount(request, CPU) for request in requests])
        self._memory_levels = _list_distinct_levels([_get_amount(request, MEMORY) for request in requests])
        part_sizes = _list_distinct_levels([request.milli for request in requests if request.milli])
        self.rank: Ints = np.searchsorted(part_sizes, np.arange(MILLI_PER_UNIT + 1), "right")
        """By what is left on a device: how many sizes of parts it is large enough for."""
        self.full = len(part_sizes) + 1
        """Rank of a whole device on a node that has no other; those of nodes with more whole ones follow it."""
        self._build_tables(requests, types, part_sizes)
        return not is_unchanged

    def _average_per_device(self, name: str) -> int:
        """How much of a resource is asked for beside each whole device, on average."""
        total_amount = sum(
            weight * _get_amount(request, name) * MILLI_PER_UNIT // (_get_demanded_milli(request) or MILLI_PER_UNIT)
            for request, weight in self._weights.items()
        )
        return max(total_amount // self.total, 1)

    def _build_tables(self, requests: Sequence[SlotRequest], types: NodeTypes, part_sizes: Ints) -> None:
        """Weights of all asks that could use a device: by which can at all, free CPU, free memory and its rank."""
        kinds = types.kinds
        useful = np.array([types.useful(request) for request in requests], np.bool_).reshape(len(requests), kinds.size)
        sets, set_of_device = np.unique(useful, axis=1, return_inverse=True)
        ranks = self.full + kinds.shape[1] + 1
        worth = np.zeros((sets.shape[1], len(self._cpu_levels) + 1, len(self._memory_levels) + 1, ranks), np.int64)
        for number, request in enumerate(requests):
            cpu = np.searchsorted(self._cpu_levels, _get_amount(request, CPU)) + 1
            memory = np.searchsorted(self._memory_levels, _get_amount(request, MEMORY)) + 1
            rank = np.searchsorted(part_sizes, request.milli) + 1 if request.milli else self.full - 1 + request.gpus
            if rank < ranks:
                worth[sets[number], cpu, memory, rank] += self._weights[request]
        for axis in (1, 2, 3):
            np.cumsum(worth, axis=axis, out=worth)
        self.worth = worth.reshape(-1)
        self.start: Ints = set_of_device.reshape(kinds.shape).astype(np.int64) * (worth[0].size if len(worth) else 0)
        """By type and device: where its part of `worth` begins."""
        self._memory_level_count, self._rank_count = worth.shape[2], ranks
        self.last = (worth.shape[1] * worth.shape[2] - 1) * ranks
        """The offset of a node with CPU and memory enough for every ask."""

    def offset(self, cpu: Ints, memory: Ints) -> Ints:
        """Where in a part of `worth` the ranks for so much free CPU and memory begin."""
        row = self._cpu_levels.searchsorted(cpu, "right") * self._memory_level_count + self._memory_levels.searchsorted(
            memory, "right"
        )
        offset: Ints = row * self._rank_count
        return offset

    def enough(self, cpu: Ints, memory: Ints) -> Ints:
        """For how many devices so much is enough, in thousandths, on average."""
        return np.minimum(
            cpu * MILLI_PER_UNIT // self._cpu_per_device, memory * MILLI_PER_UNIT // self._memory_per_device
        )


def _get_demanded_milli(request: SlotRequest) -> int:
    return request.milli or request.gpus * MILLI_PER_UNIT


def _get_amount(request: SlotRequest, name: str) -> int:
    return next((amount for resource, amount in request.amounts if resource == name), 0)


def _compute_weights(slots_by_request: dict[SlotRequest, int]) -> dict[SlotRequest, int]:
    """Powers of two, the rarest at least 1."""
    slots_by_ask = {request: slots for request, slots in slots_by_request.items() if slots > 0}
    spare_bits = max(sum(slots_by_ask.values()).bit_length() - _WEIGHT_BITS, 0)
    return {request: 1 << max(slots.bit_length() - 1 - spare_bits, 0) for request, slots in slots_by_ask.items()}


def _list_distinct_levels(values: Sequence[int]) -> Ints:
    """At most so many of the distinct values; what lies between two counts as the larger."""
    distinct = np.array(sorted(set(values)), np.int64)  # numpy's own would load all of its masked arrays
    if len(distinct) > _MAX_LEVELS:
        distinct = distinct[np.arange(1, _MAX_LEVELS + 1) * len(distinct) // _MAX_LEVELS - 1]
    return distinct
