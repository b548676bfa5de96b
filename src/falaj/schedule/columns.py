"""What fits on a node and how well, for every ask: worked out once for every state that a node is in.

Most nodes of a fleet are alike, and so is what is left on them. A state is a type of node, what is free, and what is
left on its devices; each state has one column: how many slots of each ask fit, and how much each ask would like it.
When a node changes, it moves to another column; only a state that was never seen is worked out.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from falaj.schedule.mix import Mix
from falaj.schedule.model import CPU, GPU, MEMORY, WHOLE, Ask, Node
from falaj.schedule.score import NOWHERE, Block, joined, losses, ranks, tiers

Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

MOST = 1 << 16
"""So many slots of an ask that asks for nothing fit on a node."""
NOTHING = 0
"""The state in which nothing fits: closed nodes are in it."""
_CHUNK = 256


class Columns:
    """Asks, types of nodes, the states they are in, and the columns of these."""

    def __init__(self) -> None:
        self.resources = [CPU, MEMORY]
        self.quotas = [CPU, MEMORY, GPU]
        self.width = 1
        self.asks: list[Ask] = []
        self.marks: set[tuple[str, str]] = set()
        """Labels that some ask looks at; others make no difference between nodes."""
        self.mix = Mix()
        self._ids: dict[Ask, int] = {}
        self._kinds: dict[tuple[str, int], int] = {}
        self._need: Ints = np.zeros((0, len(self.resources)), np.int64)
        self._unit: Small = np.zeros(0, np.int32)
        self._per: Small = np.zeros(0, np.int32)
        self._suits: Flags = np.zeros((0, 1), np.bool_)
        self.clear()

    def clear(self) -> None:
        """Forget types and states, as when nodes have more resources, devices or labels than before."""
        self._types: dict[tuple[object, ...], int] = {}
        self._likeness: list[Node] = []
        self._type_kinds = np.zeros((0, self.width), np.int16)
        self._groups: list[list[list[int]]] = []
        self._islands: Small = np.zeros((0, self.width), np.int32)
        self._largest: Small = np.zeros(0, np.int32)
        self._allows: Flags = np.zeros((len(self.asks), 0), np.bool_)
        self._states: dict[bytes, int] = {b"": NOTHING}
        self._keys: list[bytes] = [b""]
        self._free: Ints = np.zeros((64, len(self.resources)), np.int64)
        self._dev: Small = np.full((64, self.width), -1, np.int32)
        self._type: Small = np.zeros(64, np.int32)
        self._counts: Small = np.zeros((max(len(self.asks), 16), 64), np.int32)
        self._scores: Ints = np.full(self._counts.shape, NOWHERE, np.int64)
        self._left: npt.NDArray[np.int16] = np.zeros(self._counts.shape, np.int16)
        self._asked, self._worked = 0, 1
        self.mix.stale = True

    @property
    def size(self) -> int:
        """How many states are known."""
        return len(self._keys)

    # asks

    def ask(self, ask: Ask) -> int:
        """The number of an ask; -1 - number when nodes must be told apart anew first."""
        known = self._ids.get(ask)
        if known is not None:
            return known
        number = self._ids[ask] = len(self.asks)
        self.asks.append(ask)
        fresh = set(ask.labels) - self.marks or {name for name, _ in ask.amounts} - set(self.resources)
        self.marks.update(ask.labels)
        self.resources += sorted({name for name, _ in ask.amounts} - set(self.resources))
        amounts = dict(ask.amounts)
        need = [[amounts.get(name, 0) for name in self.resources]]
        wider = len(self.resources) - self._need.shape[1]
        self._need = np.concatenate([np.pad(self._need, ((0, 0), (0, wider))), np.array(need, np.int64)])
        self._unit = np.append(self._unit, np.int32(ask.milli or WHOLE))
        self._per = np.append(self._per, np.int32(ask.gpus or (1 if ask.milli else 0)))
        self._suits = np.concatenate([self._suits, [[_suits(ask, kind) for kind in self._kinds] + [False]]])
        allows = [[_allows(ask, node) for node in self._likeness]]
        self._allows = np.concatenate([self._allows, np.array(allows, np.bool_).reshape(1, -1)])
        return -1 - number if fresh else number

    def need(self, asks: Sequence[int]) -> Ints:
        """What slots of these asks take of each resource."""
        return self._need[asks]

    # nodes and states

    def widen(self, nodes: Sequence[Node]) -> bool:
        """Get ready for what these nodes have; True when rows get wider by it."""
        names = {name for node in nodes for name in node.amounts} - set(self.resources)
        models = {f"{GPU}:{device.model}" for node in nodes for device in node.devices if device.model}
        self.resources += sorted(names)
        self.quotas += sorted((names | models) - set(self.quotas))
        width = max((len(node.devices) for node in nodes), default=0)
        wider = bool(names) or width > self.width
        self.width = max(width, self.width)
        self._need = np.pad(self._need, ((0, 0), (0, len(self.resources) - self._need.shape[1])))
        return wider

    def type(self, node: Node) -> int:
        """The number of the type of a node."""
        marks = tuple(sorted(pair for pair in self.marks if node.labels.get(pair[0]) == pair[1]))
        devices = tuple((device.model, device.memory_mib, device.island) for device in node.devices)
        amounts = tuple(sorted(node.amounts.items()))
        sign = (node.cluster, node.zone, node.spot, node.price, node.hazard, amounts, devices, marks)
        known = self._types.get(sign)
        return self._new_type(sign, node) if known is None else known

    def _new_type(self, sign: tuple[object, ...], node: Node) -> int:
        number = self._types[sign] = len(self._likeness)
        self._likeness.append(node)
        kinds = np.full((1, self.width), -1, np.int16)
        kinds[0, : len(node.devices)] = [self._kind(device.model, device.memory_mib) for device in node.devices]
        self._type_kinds = np.concatenate([self._type_kinds, kinds])
        self._group(node)
        allows = np.array([_allows(ask, node) for ask in self.asks], np.bool_).reshape(-1, 1)
        self._allows = np.concatenate([self._allows, allows], axis=1)
        self.mix.stale = True
        return number

    def _group(self, node: Node) -> None:
        """Devices that are as good as one another, and how many of an island there are."""
        alike: dict[tuple[str, int, int], list[int]] = {}
        islands = {number: order for order, number in enumerate(sorted({one.island for one in node.devices}))}
        row = np.full((1, self.width), -1, np.int32)
        for place, one in enumerate(node.devices):
            alike.setdefault((one.model, one.memory_mib, one.island), []).append(place)
            row[0, place] = islands[one.island]
        self._groups.append(list(alike.values()))
        self._islands = np.concatenate([self._islands, row])
        largest = np.bincount(row[0, : len(node.devices)]).max(initial=0)
        self._largest = np.append(self._largest, np.int32(largest))

    def _kind(self, model: str, mib: int) -> int:
        known = self._kinds.get((model, mib))
        if known is not None:
            return known
        self._kinds[model, mib] = len(self._kinds)
        column = np.array([_suits(ask, (model, mib)) for ask in self.asks], np.bool_).reshape(-1, 1)
        self._suits = np.concatenate([self._suits[:, :-1], column, self._suits[:, -1:]], axis=1)
        return len(self._kinds) - 1

    def state(self, kind: int, free: Ints, dev: Small) -> int:
        """The number of the state that a node of this type is in."""
        groups = self._groups[kind]
        if len(groups) == 1:
            dev = -np.sort(-dev)
        else:
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
            self._grow()
        self._free[number], self._dev[number], self._type[number] = free, dev, kind
        return number

    def _grow(self) -> None:
        more = len(self._type)
        self._free = np.pad(self._free, ((0, more), (0, 0)))
        self._dev = np.pad(self._dev, ((0, more), (0, 0)))
        self._type = np.pad(self._type, (0, more))
        wider = ((0, 0), (0, more))
        self._counts, self._scores = np.pad(self._counts, wider), np.pad(self._scores, wider)
        self._left = np.pad(self._left, wider)

    def compact(self, live: Small) -> Small:
        """Forget all states but these; the answer says what number each old one has now."""
        self.refresh()
        live = np.union1d([NOTHING], live).astype(np.int32)
        numbers = np.zeros(self.size, np.int32)
        numbers[live] = np.arange(len(live), dtype=np.int32)
        room = max(64, 2 * len(live))
        picked = np.zeros(room, np.int32)
        picked[: len(live)] = live
        self._free, self._dev, self._type = self._free[picked], self._dev[picked], self._type[picked]
        self._counts, self._scores, self._left = self._counts[:, picked], self._scores[:, picked], self._left[:, picked]
        self._keys = [self._keys[number] for number in live]
        self._states = {key: number for number, key in enumerate(self._keys)}
        self._worked = len(live)
        return numbers

    # columns

    def suits(self, ask: int, kind: int) -> Flags:
        """Which devices of a type suit an ask."""
        suits: Flags = self._suits[ask].take(self._type_kinds[kind])
        return suits

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
        return int(self._left[ask, state])

    def refresh(self) -> None:
        """Work out what is not worked out yet."""
        size, asks = self.size, len(self.asks)
        if self._worked == size and self._asked == asks and not self.mix.stale:
            return
        if asks > len(self._counts):
            more = ((0, asks), (0, 0))
            self._counts, self._left = np.pad(self._counts, more), np.pad(self._left, more)
            self._scores = np.pad(self._scores, more, constant_values=NOWHERE)
        if self.mix.stale and self.mix.weigh(self._type_kinds, self._useful):
            self._tiers = np.array([tiers(node) for node in self._likeness], np.int64).reshape(-1, 2).T
            self._ranks = ranks(self._likeness)
            self._asked, self._worked = asks, 1
        if self._asked < asks:
            self._fill(self._asked, 1, self._worked)
        self._fill(0, self._worked, size)
        self._asked, self._worked = asks, size

    def _useful(self, ask: Ask) -> Flags:
        """Which devices of which types could be of use to an ask."""
        kinds = np.array([_suits(ask, kind) for kind in self._kinds] + [False], np.bool_)
        allows = np.array([_allows(ask, node) for node in self._likeness], np.bool_)
        return kinds.take(self._type_kinds) & allows[:, None]

    def _fill(self, first: int, start: int, stop: int) -> None:
        for low in range(start, stop, _CHUNK):
            self._block(slice(first, len(self.asks)), slice(low, min(low + _CHUNK, stop)))

    def _block(self, rows: slice, states: slice) -> None:
        types, free, dev = self._type[states], self._free[states], self._dev[states]
        need, per = self._need[rows], self._per[rows, None]
        room = np.where(self._allows[rows].take(types, axis=1), MOST, 0)
        for name in range(need.shape[1]):
            amount = need[:, name, None]
            np.minimum(room, np.where(amount, free[:, name] // np.maximum(amount, 1), MOST), out=room)
        kinds = self._type_kinds[types]
        suits = self._suits[rows].take(kinds, axis=1)
        slots = (dev // self._unit[rows, None, None] * suits).sum(axis=2)
        np.minimum(room, np.where(per, slots // np.maximum(per, 1), MOST), out=room)
        np.maximum(room, 0, out=room)
        self._counts[rows, states] = room
        block = Block(need, self._unit[rows], self._per[rows], types, free, np.maximum(dev, 0).astype(np.int64), suits)
        loss, self._left[rows, states] = losses(self.mix, block)
        tier = self._tiers[np.minimum(self._per[rows], 1)][:, types]
        score = joined(loss, tier, self._misfit(rows, states), self._ranks[types])
        self._scores[rows, states] = np.where(room > 0, score, NOWHERE)

    def _misfit(self, rows: slice, states: slice) -> Flags:
        """Where an ask is a poor guest: it needs no devices and the node has some, or they lie on different islands."""
        per, types = self._per[rows, None], self._type[states]
        islands, largest = self._islands[types], self._largest[types]
        full = self._dev[states] == WHOLE
        most = np.zeros(len(types), np.int64)
        for island in range(int(islands.max(initial=0)) + 1):
            np.maximum(most, (full & (islands == island)).sum(axis=1), out=most)
        return np.where(per == 0, largest > 0, (per > most) & (per <= largest) & (self._unit[rows, None] == WHOLE))


def _allows(ask: Ask, node: Node) -> bool:
    """Does everything about a node that never changes suit an ask, its devices aside?"""
    return (
        (ask.zones is None or node.zone in ask.zones)
        and (not ask.clusters or node.cluster in ask.clusters)
        and (ask.spot or not node.spot)
        and all(node.labels.get(name) == value for name, value in ask.labels)
    )


def _suits(ask: Ask, kind: tuple[str, int]) -> bool:
    """Does a kind of device suit an ask? A device without a model is one that went away while it was in use."""
    model, mib = kind
    ours = mib * ask.milli // WHOLE if ask.milli else mib
    return bool(model) and (not ask.models or model in ask.models) and ours >= ask.device_mib
