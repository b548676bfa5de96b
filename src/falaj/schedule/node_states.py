"""What fits on a node and how well, for every ask: worked out once for every state that a node is in.

Most nodes of a fleet are alike, and so is what is left on them. A state is a type of node, what is free, and what is
left on its devices. When a node changes, it moves to another state. Each ask has a row: how many of its slots fit in
each state, and how much it likes it. When a row is asked for, only the states that are new to it are worked out. What
fits does not depend on what others ask for; what is liked does, and is worked out only where places are looked for.
"""

import numpy as np

from falaj.schedule.demand_weights import DemandWeights
from falaj.schedule.model import Node
from falaj.schedule.node_types import Flags, Ints, NodeTypes, Small
from falaj.schedule.placement_score import (
    NO_FIT_SCORE,
    DevicePieces,
    compute_price_scores,
    count_device_slots,
    join_score,
)

__all__ = ["CLOSED_STATE", "Flags", "Ints", "NodeStateTable", "Small"]

CLOSED_STATE = 0
"""The state in which nothing fits: closed nodes are in it."""
NodeState = tuple[int, bytes, tuple[int, ...]]
"""A type, what is free, what is left on devices."""
_INITIAL_CAPACITY = 64


class NodeStateTable:
    """The states nodes are in, and their columns."""

    def __init__(self) -> None:
        self.types = NodeTypes()
        self.mix = DemandWeights()
        self._version = 0
        self.clear()

    def clear(self) -> None:
        """Forget types and states, as when nodes have more resources, devices or labels than before."""
        self.types.clear()
        self._states: dict[NodeState, int] = {}
        self._keys: list[NodeState] = []
        self._free: Ints = np.zeros((_INITIAL_CAPACITY, len(self.types.resources)), np.int64)
        self._dev: Ints = np.zeros((_INITIAL_CAPACITY, self.types.width), np.int64)
        self._type, self._piece, self._worth = (np.zeros(_INITIAL_CAPACITY, np.int64) for _ in range(3))
        self._counts: Small = np.zeros((0, _INITIAL_CAPACITY), np.int32)
        self._scores: Ints = np.zeros((0, _INITIAL_CAPACITY), np.int64)
        self._scored_states: Ints = np.zeros(0, np.int64)
        """By ask: of how many states it is known how it likes them."""
        self._type_count = self._wish_count = -1
        self._reset_results()
        # Closed nodes are in this state, of a type without anything.
        self.state(self.types.type(Node("", "", "", {})), self._free[0], self._dev[0] - 1)

    @property
    def size(self) -> int:
        """How many states are known."""
        return len(self._keys)

    def state(self, type_number: int, free: Ints, dev: Small) -> int:
        """The number of the state that a node of this type is in."""
        left: list[int] = dev.tolist()
        for group in self.types.alike[type_number]:
            # Which of several devices alike has how much left makes no difference.
            for position, left_milli in zip(group, sorted([left[position] for position in group]), strict=True):
                left[position] = left_milli
        key = (type_number, free.tobytes(), tuple(left))
        existing = self._states.get(key)
        if existing is not None:
            return existing
        number = self._states[key] = len(self._keys)
        self._keys.append(key)
        if number == len(self._type):
            self._keep_states(np.arange(number), 2 * number)
        self._free[number], self._dev[number], self._type[number] = free, left, type_number
        return number

    def compact(self, live: Ints) -> Ints:
        """Forget all states but these; the answer says what number each old one has now."""
        live = np.union1d([CLOSED_STATE], live)
        numbers = np.zeros(self.size, np.int64)
        numbers[live] = np.arange(len(live))
        self._keep_states(live, max(_INITIAL_CAPACITY, 2 * len(live)))
        self._keys = [self._keys[number] for number in live.tolist()]
        self._states = {key: number for number, key in enumerate(self._keys)}
        self._reset_results()
        return numbers

    def _reset_results(self) -> None:
        """Know nothing of any state but what it is."""
        self._device_states: dict[tuple[int, tuple[int, ...]], int] = {}
        """What is left on the devices of a type of nodes, by number: many states have the same."""
        self._slots: Ints = np.zeros((len(self.types.unit), 0), np.int64)
        self._pieces: DevicePieces | None = None
        self._indexed_count = self._counted_states = self._valued_states = 0
        self._invalidate_scores()

    def _invalidate_scores(self) -> None:
        self._scored_states.fill(0)
        self._version += 1

    def _keep_states(self, states: Ints, capacity: int) -> None:
        picked = np.zeros(capacity, np.int64)
        picked[: len(states)] = states
        for name in ("_free", "_dev", "_type", "_piece", "_worth"):
            setattr(self, name, getattr(self, name)[picked])
        self._counts, self._scores = self._counts[:, picked], self._scores[:, picked]

    def counts(self, request_number: int, states: Ints) -> Small:
        """How many slots of an ask fit in these states."""
        self._update_slot_counts()
        counts: Small = self._counts[request_number].take(states)
        return counts

    def count(self, request_number: int, state: int) -> int:
        """The same in one state."""
        self._update_slot_counts()
        return int(self._counts[request_number, state])

    def fits(self, request_numbers: Ints, states: Ints) -> Flags:
        """By ask: does a slot of it fit in one of these states?"""
        self._update_slot_counts()
        fits: Flags = (self._counts[request_numbers[:, None], states] > 0).max(axis=1, initial=False)
        return fits

    def totals(self, request_numbers: Ints, states: Ints) -> Ints:
        """By ask: how many slots of it fit in all these states together."""
        self._update_slot_counts()
        state_sizes = np.bincount(states)
        live = np.flatnonzero(state_sizes)
        totals: Ints = (self._counts[request_numbers[:, None], live] * state_sizes[live]).sum(axis=1)
        return totals

    def scores(self, request_number: int, states: Ints) -> Ints:
        """How much an ask likes these states, as `score` worked it out; NOWHERE where it does not fit."""
        scores: Ints = self._scores[request_number].take(states)
        return scores

    def left(self, request_number: int, state: int) -> int:
        """What is left on the device that a part of one is best cut from."""
        return int(self._evaluate_pieces().left[self.types.wish[request_number], self._piece[state]])

    def _index_device_states(self) -> None:
        """Get to know the devices of new states, once for all alike."""
        types = self.types
        if (self._type_count, self._wish_count) != (len(types.nodes), len(types.unit)):
            self._type_count, self._wish_count = len(types.nodes), len(types.unit)
            self._prices = compute_price_scores(types.nodes)
            self._reset_results()
        if self._indexed_count == self.size:
            return
        known_count = len(self._device_states)
        for state in range(self._indexed_count, self.size):
            kind, _, left = self._keys[state]
            self._piece[state] = self._device_states.setdefault((kind, left), len(self._device_states))
        self._indexed_count = self.size
        if known_count < len(self._device_states):
            self._slots = np.concatenate(
                [self._slots, count_device_slots(types, *self._list_device_states(known_count))], axis=1
            )

    def _list_device_states(self, start: int) -> tuple[Ints, Ints]:
        """From the start on: the types of nodes on the shelf, and what is left on their devices."""
        entries = list(self._device_states)[start:]
        return np.array([kind for kind, _ in entries], np.int64), np.array([left for _, left in entries], np.int64)

    def _evaluate_pieces(self) -> DevicePieces:
        """What places are worth, with what is asked for as it is now."""
        self._index_device_states()
        if self.mix.weigh(self.types) or self._pieces is None:
            self._pieces, self._valued_states = (
                DevicePieces(self.mix, self.types, self._prices, *self._list_device_states(0)),
                0,
            )
            self._invalidate_scores()
        if self._valued_states < self.size:
            if self._pieces.size < len(self._device_states):
                self._pieces.extend(
                    DevicePieces(self.mix, self.types, self._prices, *self._list_device_states(self._pieces.size))
                )
            new = slice(self._valued_states, self.size)
            cpu, memory = self._free[new, 0], self._free[new, 1]
            self._worth[new] = self._pieces.worth(self.mix, self._piece[new], 0, cpu, memory)
            self._valued_states = self.size
        return self._pieces

    def _update_slot_counts(self) -> None:
        """Work out how many slots of every ask fit in the states that are new, and of asks that are new in all."""
        self._index_device_states()
        scored_count, requests = len(self._scored_states), len(self.types.asks)
        if scored_count < requests:
            room = ((0, requests - scored_count), (0, 0))
            self._counts, self._scores = np.pad(self._counts, room), np.pad(self._scores, room)
            self._scored_states = np.pad(self._scored_states, room[0])
            self._fill_counts(slice(scored_count, requests), slice(0, self._counted_states))
        if self._counted_states < self.size:
            self._fill_counts(slice(0, requests), slice(self._counted_states, self.size))
            self._counted_states = self.size

    def _fill_counts(self, requests: slice, states: slice) -> None:
        types = self.types
        room = self._slots.take(types.wish[requests], axis=0).take(self._piece[states], axis=1)
        room *= types.allows[requests].take(self._type[states], axis=1)
        for free, need in zip(self._free[states].T, types.need[requests].T, strict=True):
            np.minimum(room, np.where(need[:, None], free // np.maximum(need, 1)[:, None], room), out=room)
        self._counts[requests, states] = np.maximum(room, 0)
        self._counts[requests, CLOSED_STATE] = 0

    def score(self, request_number: int) -> int:
        """Work out how an ask likes the states that are new to it; another answer: it was worked out anew for all."""
        self._update_slot_counts()
        pieces = self._evaluate_pieces()
        start, stop = int(self._scored_states[request_number]), self.size
        if start == stop:
            return self._version
        states, wish = slice(start, stop), int(self.types.wish[request_number])
        free, rows, need = self._free[states], self._piece[states], self.types.need[request_number].tolist()
        worth = pieces.worth(self.mix, rows, wish + 1, free[:, 0] - need[0], free[:, 1] - need[1])
        loss = (self._worth[states] - worth) // self.mix.total
        score = join_score(pieces.base[wish].take(rows), loss)
        self._scores[request_number, states] = np.where(self._counts[request_number, states] > 0, score, NO_FIT_SCORE)
        self._scored_states[request_number] = stop
        return self._version
