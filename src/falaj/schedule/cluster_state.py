"""The world as arrays: nodes, what is free on them, what is left on their devices. Exact, in integers.

Every change touches only the rows of its nodes. Between `mark` and `rewind` anything may be tried: what is undone is
undone exactly. Rows are in the order in which nodes were declared; a row's number is good until a node goes.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from operator import ge
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from falaj.core.errors import Conflict, CorruptData, NotFound
from falaj.schedule.budget import compute_unit_price
from falaj.schedule.device_selection import assign_devices
from falaj.schedule.model import GPU, MILLI_PER_UNIT, TOPOLOGY_LEVELS, JobShape, Node, Role, SlotPlacement, SlotRequest
from falaj.schedule.node_states import CLOSED_STATE, NodeStateTable
from falaj.schedule.node_types import Flags, Ints, Small
from falaj.schedule.score_cache import NodeScoreCache

Number = TypeVar("Number", np.int32, np.int64)
_ROW_ARRAYS = ("free", "dev", "_all", "_full_devices", "_floor", "_type_of", "_state", "_empty")
_MAX_STATES_PER_NODE = 4
"""States are swept when there are so many times more of them than nodes, and some."""
_STATE_SLACK = 1024
_MAX_CUTS, _MAX_REQUESTS, _FEW_ROWS = 10_000, 10_000, 4
CutKey = tuple[int, int, int, int, int, bytes]
"""Type, ask, how many slots, what is left on the device that is best to cut, island, and what is left on all."""


class HeldPart(NamedTuple):
    """Of one node, what is laid aside: amounts by resource, and by device how many thousandths."""

    node: str
    amounts: Ints
    devices: Mapping[int, int]


class ClusterState:
    """All nodes, and all that is taken on them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: list[Node] = list(nodes)
        self.index = {node.name: row for row, node in enumerate(self.nodes)}
        if len(self.index) < len(self.nodes):
            raise Conflict("two nodes have one name", "name every node once")
        self._states = NodeStateTable()
        self._types = self._states.types
        self._score_cache = NodeScoreCache(self._states)
        self._by_identity: dict[int, tuple[SlotRequest, int]] = {}
        """Asks by sight: comparing them takes longer."""
        self._types.widen(self.nodes)
        self._journal: list[Callable[[], None]] = []
        self._mark_count = 0
        self._domains: dict[str, Small] = {}
        self._single_cluster_cache: bool | None = None
        self._cut_cache: dict[CutKey, list[tuple[int, ...]]] = {}
        """Which devices were given to so many slots of an ask, by what was left: nodes of one type are alike."""
        self.free: Ints = np.zeros((len(self.nodes), 0), np.int64)
        self.dev: Small = np.zeros((len(self.nodes), 0), np.int32)
        self._rebuild_rows()
        self.free, self.dev = self._all.copy(), self._full_devices.copy()
        self._update_states(range(len(self.nodes)))

    @property
    def resources(self) -> Sequence[str]:
        """What the columns of `free` are called."""
        return self._types.resources

    @property
    def quotas(self) -> Sequence[str]:
        """Names of what queues count, in the order of every array by quota; new ones come last."""
        return self._types.quotas

    # asks

    def ask(self, request: SlotRequest) -> int:
        """The number of an ask; equal asks have one."""
        cached = self._by_identity.get(id(request))
        if cached is not None and cached[0] is request:
            return cached[1]
        number, is_distinguishing = self._types.ask(request)
        if is_distinguishing:
            self._rebuild_rows()
        if len(self._by_identity) >= _MAX_REQUESTS:
            self._by_identity.clear()
        self._by_identity[id(request)] = request, number
        return number

    def needs(self, roles: Sequence[Role]) -> list[Ints]:
        """What one slot of each of these takes of each resource."""
        request_numbers = [self.ask(role.ask) for role in roles]  # all of them first: a new one may widen the rows
        return [self._types.need[request_number] for request_number in request_numbers]

    def counts(self, request_number: int) -> Small:
        """How many slots of this ask fit on each node now."""
        return self._states.counts(request_number, self._state)

    def totals(self, request_numbers: Sequence[int]) -> list[int]:
        """By ask: how many slots of it fit now, on all nodes together."""
        totals: list[int] = self._states.totals(np.array(request_numbers, np.int64), self._state).tolist()
        return totals

    def room(self, request_number: int, row: int) -> int:
        """How many of them fit on one node."""
        return self._states.count(request_number, self._state[row])

    def fits(self, request_numbers: Sequence[int], rows: Sequence[int]) -> Flags:
        """By ask: does a slot of it fit on one of these nodes now?"""
        states = np.array([*{*self._state[rows].tolist()}], np.int64)  # few rows: numpy's own takes longer
        return self._states.fits(np.array(request_numbers, np.int64), states)

    def possible(self, request_number: int) -> Small:
        """How many would fit on each node if nothing ran and all were open."""
        return self._states.counts(request_number, self._empty)

    def scores(self, request_number: int) -> Ints:
        """How much this ask would like each node now; NOWHERE when not one slot fits. Not to be written to."""
        return self._score_cache.scores(request_number, self._state)

    def mix(self, shape: JobShape, weight: int) -> None:
        """So many jobs more (or fewer) of this shape are known: placement keeps room for what is asked for."""
        for number, role in enumerate(shape.roles):
            self.ask(role.ask)  # what it names is counted from now on, and not from the middle of a decision on
            self._states.mix.add(role.ask, weight * (role.count if number else shape.least))

    def spots(
        self, rows: Sequence[int], counts: Sequence[int], request_number: int, role: int, island: int = -1
    ) -> list[SlotPlacement]:
        """Places of so many slots on each of these nodes, on one island where that is asked for; nothing is taken.

        The nodes have room for them.
        """
        types, request = self._types, self._types.asks[request_number]
        suits, milli = types.suits[types.wish[request_number]], request.milli or MILLI_PER_UNIT
        spots: list[SlotPlacement] = []
        for row, count in zip(rows, counts, strict=True):
            kind, dev = int(self._type_of[row]), self.dev[row]
            best = self._states.left(request_number, int(self._state[row])) if request.milli else 0
            key = (kind, request_number, count, best, island, dev.tobytes())
            device_sets = self._cut_cache.get(key)
            if device_sets is None:
                if len(self._cut_cache) >= _MAX_CUTS:
                    self._cut_cache.clear()
                is_fitting = suits.take(types.kinds[kind])
                if island >= 0:
                    is_fitting &= types.islands[kind] == island
                device_sets = assign_devices(
                    request, self.nodes[row].devices, np.where(is_fitting, dev, 0).tolist(), count, best
                )
                self._cut_cache[key] = device_sets
            name = self.nodes[row].name
            spots += [SlotPlacement(name, role, devices, milli) for devices in device_sets]
        return spots

    def rooms(self, request_number: int) -> Small:
        """How many slots of this ask fit on each node on each of its islands."""
        types, kinds = self._types, self._type_of
        wish, islands = types.wish[request_number], types.islands[kinds]
        count = int(islands.max(initial=0)) + 1
        if not types.per[wish]:
            return np.repeat(self.counts(request_number)[:, None], count, axis=1)
        fits = self.dev // types.unit[wish] * types.suits[wish].take(types.kinds[kinds])
        rooms = np.stack([(fits * (islands == island)).sum(axis=1) for island in range(count)], axis=1)
        slots: Small = np.minimum(rooms // types.per[wish], self.counts(request_number)[:, None])
        return slots

    @property
    def is_one(self) -> bool:
        """Are all nodes of one cluster?"""
        if self._single_cluster_cache is None:
            self._single_cluster_cache = len({node.cluster for node in self.nodes}) == 1 and bool(self.nodes[0].cluster)
        return self._single_cluster_cache

    def places(self, spot: SlotPlacement) -> list[int]:
        """Where the devices of a place stand in the row of its node."""
        row = self.index.get(spot.node)
        positions = self._position_by_device[row] if row is not None else {}
        return sorted([positions[device] for device in spot.devices if device in positions])

    def domains(self, level: str) -> Small:
        """The domain of each node at a level (node, cluster, zone or a label), by number; -1: in none."""
        numbers_by_node = self._domains.get(level)
        if numbers_by_node is None:
            numbers: dict[tuple[str, str], int] = {}
            domain_keys = [(node.cluster, _find_domain(node, level)) for node in self.nodes]
            numbers_by_node = np.array(
                [numbers.setdefault(domain_key, len(numbers)) if domain_key[1] else -1 for domain_key in domain_keys],
                np.int32,
            )
            self._domains[level] = numbers_by_node
        return numbers_by_node

    # amounts

    def take(self, spots: Sequence[SlotPlacement], roles: Sequence[Role]) -> None:
        """These places are taken from now on."""
        are_known = all(self._position_by_device[self.row(spot.node)].keys() >= {*spot.devices} for spot in spots)
        rows = self._move_spots(spots, roles, -1)
        if not are_known or not _is_within(rows, self.free) or not _is_within(rows, self.dev, self._floor):
            self._move_spots(spots, roles, 1)
            raise CorruptData(f"{spots[0].node} has less than would be taken there", "report this: it is a defect")

    def hold(self, spots: Sequence[SlotPlacement], roles: Sequence[Role]) -> None:
        """These places are taken, whatever there is: a job runs there since its node had more than it has now."""
        self._move_spots([spot for spot in spots if spot.node in self.index], roles, -1)

    def give(self, spots: Sequence[SlotPlacement], roles: Sequence[Role]) -> None:
        """These places are free again. Those on nodes that are gone went with them."""
        spots = [spot for spot in spots if spot.node in self.index]
        rows = self._move_spots(spots, roles, 1)
        if not _is_within(rows, self._all, self.free) or not _is_within(rows, self._full_devices, self.dev):
            self._move_spots(spots, roles, -1)
            raise CorruptData(f"more would be given back on {spots[0].node} than it has", "report this: it is a defect")

    def lay_aside(self, parts: Sequence[HeldPart], sign: int = 1) -> None:
        """Nobody gets these parts from now on; with -1, everybody may. What is gone with its node is gone."""
        parts = [part for part in parts if part.node in self.index]
        touched_rows = sorted({self.index[part.node] for part in parts})
        if self._mark_count:
            self._journal.append(
                partial(self._restore_rows, touched_rows, self.free[touched_rows], self.dev[touched_rows])
            )
        for part in parts:
            row = self.index[part.node]
            self.free[row, : len(part.amounts)] -= sign * part.amounts
            for position, milli in self.on(part):
                self.dev[row, position] -= sign * milli
        self._update_states(touched_rows)

    def on(self, part: HeldPart) -> list[tuple[int, int]]:
        """Where its devices stand in the row of its node, and how much of each."""
        positions = self._position_by_device[self.index[part.node]]
        return [(positions[device], milli) for device, milli in part.devices.items() if device in positions]

    def _move_spots(self, spots: Sequence[SlotPlacement], roles: Sequence[Role], sign: int) -> list[int]:
        needs = self.needs(roles)
        rows = [self.index[spot.node] for spot in spots]
        touched_rows = sorted(set(rows))
        if self._mark_count:
            self._journal.append(
                partial(self._restore_rows, touched_rows, self.free[touched_rows], self.dev[touched_rows])
            )
        for row, spot in zip(rows, spots, strict=True):
            free, dev, positions, milli = (
                self.free[row],
                self.dev[row],
                self._position_by_device[row],
                sign * spot.milli,
            )
            if sign > 0:  # views: what is added to them is added there
                free += needs[spot.role]
            else:
                free -= needs[spot.role]
            for device in spot.devices:
                position = positions.get(device)
                if position is not None:
                    dev[position] += milli
        self._update_states(touched_rows)
        return touched_rows

    def row(self, name: str) -> int:
        """The row of a node."""
        row = self.index.get(name)
        if row is None:
            raise NotFound(f"there is no node {name}", "it was dropped, or never declared", name)
        return row

    # nodes

    def put(self, node: Node) -> None:
        """A node comes, empty."""
        if node.name in self.index:
            raise Conflict(f"there is a node {node.name} already", "change it instead", node.name)
        self._insert_node(len(self.nodes), node, None, None)
        self._log_undo(partial(self._remove_node, len(self.nodes) - 1))

    def drop(self, name: str) -> None:
        """A node goes, with all that is taken on it."""
        row = self.row(name)
        node, free, dev = self.nodes[row], self.free[row].copy(), self.dev[row].copy()
        self._remove_node(row)
        self._log_undo(partial(self._insert_node, row, node, free, dev))

    def change(self, node: Node) -> None:
        """A node is another than it was; what is taken on it stays taken, on its devices by their numbers."""
        row = self.row(node.name)
        previous, free, dev = self.nodes[row], self.free[row].copy(), self.dev[row].copy()
        taken = {
            device.index: MILLI_PER_UNIT - int(left_milli)
            for device, left_milli in zip(previous.devices, dev, strict=False)
            if left_milli < MILLI_PER_UNIT
        }
        kept_indexes = {device.index for device in node.devices}
        gone_devices = [
            replace(device, model="")
            for device in previous.devices
            if device.index in taken and device.index not in kept_indexes
        ]
        node = replace(node, devices=(*node.devices, *gone_devices))
        used = {name: previous.amounts.get(name, 0) - int(free[column]) for column, name in enumerate(self.resources)}
        self._set_node(row, node)
        self.free[row] = [node.amounts.get(name, 0) - used.get(name, 0) for name in self.resources]
        self.dev[row, : len(node.devices)] = [MILLI_PER_UNIT - taken.get(device.index, 0) for device in node.devices]
        self.dev[row, len(node.devices) :] = -1
        self._update_states([row])
        self._log_undo(partial(self._reset_node, row, previous, free, dev))

    def _reset_node(self, row: int, node: Node, free: Ints, dev: Small) -> None:
        self._set_node(row, node)
        self._restore_rows([row], free, dev)

    def _set_node(self, row: int, node: Node) -> None:
        self.nodes[row] = node
        if self._types.widen([node]) or len(self._types.nodes) > _MAX_STATES_PER_NODE * len(self.nodes) + _STATE_SLACK:
            self._rebuild_rows()
        else:
            self._fill_row(row)

    def _insert_node(self, row: int, node: Node, free: Ints | None, dev: Small | None) -> None:
        self.nodes.insert(row, node)
        for name in _ROW_ARRAYS:
            setattr(self, name, np.insert(getattr(self, name), row, 0, axis=0))
        self._score_cache.clear(len(self.nodes))
        self._position_by_device.insert(row, {})
        self.index = {each_node.name: position for position, each_node in enumerate(self.nodes)}
        self._set_node(row, node)
        self.dev[row] = -1
        self._restore_rows(
            [row], self._all[row] if free is None else free, self._full_devices[row] if dev is None else dev
        )

    def _remove_node(self, row: int) -> None:
        for name in _ROW_ARRAYS:
            setattr(self, name, np.delete(getattr(self, name), row, axis=0))
        for rows in (self.nodes, self._position_by_device):
            del rows[row]
        self._score_cache.clear(len(self.nodes))
        self.index = {node.name: position for position, node in enumerate(self.nodes)}
        self._domains.clear()
        self._single_cluster_cache = None

    def _rebuild_rows(self) -> None:
        """Lay all rows out anew: some node or ask has a resource, a device or a label that none had before."""
        types, size = self._types, len(self.nodes)
        self._states.clear()
        self._score_cache.clear(size)
        self._cut_cache.clear()
        self.free, self.dev = _pad_columns(self.free, len(types.resources), 0), _pad_columns(self.dev, types.width, -1)
        self._all: Ints = np.zeros((size, len(types.resources)), np.int64)
        self._full_devices: Small = np.full((size, types.width), -1, np.int32)
        self._floor = self._full_devices.copy()
        self._empty: Ints = np.zeros(size, np.int64)
        self._state: Ints = np.zeros(size, np.int64)
        self._position_by_device: list[dict[int, int]] = [{}] * size
        self._type_of: Small = np.zeros(size, np.int32)
        for row in range(size):
            self._fill_row(row)
        self._update_states(range(size))

    def _fill_row(self, row: int) -> None:
        """Make the row of a node say what the node says."""
        node, types = self.nodes[row], self._types
        self._all[row] = [node.amounts.get(name, 0) for name in types.resources]
        self._full_devices[row] = -1
        self._full_devices[row, : len(node.devices)] = MILLI_PER_UNIT
        self._floor[row] = np.minimum(self._full_devices[row], 0)
        self._position_by_device[row] = {device.index: position for position, device in enumerate(node.devices)}
        kind = self._type_of[row] = types.type(node)
        self._empty[row] = self._states.state(kind, self._all[row], self._full_devices[row])
        self._domains.clear()
        self._single_cluster_cache = None

    def _restore_rows(self, rows: Sequence[int], free: Ints, dev: Small) -> None:
        self.free[rows, : free.shape[-1]] = free
        self.dev[rows, : dev.shape[-1]] = dev
        self._update_states(rows)

    def _update_states(self, rows: Sequence[int]) -> None:
        columns, score_cache = self._states, self._score_cache
        for row in rows:
            score_cache.move(row)
            if self.nodes[row].open:
                self._state[row] = columns.state(int(self._type_of[row]), self.free[row], self.dev[row])
            else:
                self._state[row] = CLOSED_STATE
        if columns.size > _MAX_STATES_PER_NODE * len(self.nodes) + _STATE_SLACK:
            numbers = columns.compact(np.union1d(self._state, self._empty))
            self._state, self._empty = numbers[self._state], numbers[self._empty]

    # trials

    def mark(self) -> int:
        """From here on everything can be undone."""
        self._mark_count += 1
        return len(self._journal)

    def rewind(self, mark: int) -> None:
        """Undo all that was done since the mark, which is spent by this."""
        undone = self._journal[mark:]
        del self._journal[mark:]
        self._mark_count -= 1
        for undo in reversed(undone):
            undo()

    def keep(self, mark: int) -> None:
        """Stay with what was done since the mark, which is spent by this; an earlier mark can still undo it."""
        self._mark_count -= 1
        if not self._mark_count:
            del self._journal[mark:]

    def _log_undo(self, undo: Callable[[], None]) -> None:
        if self._mark_count:
            self._journal.append(undo)

    # quotas and prices

    def prices(self, devices: bool) -> Ints:
        """What an hour on each node costs a job that has devices, or has none: by device, or by core."""
        return np.array([compute_unit_price(node, devices) for node in self._types.nodes], np.int64).take(self._type_of)

    def pools(self) -> Mapping[str, int]:
        """All there is of what queues count, closed nodes included."""
        total = dict.fromkeys(self.quotas, 0)
        type_counts = np.bincount(self._type_of, minlength=len(self._types.nodes)).tolist()
        for node, count in zip(self._types.nodes, type_counts, strict=True):  # nodes of one type have the same
            for name, amount in node.amounts.items():
                total[name] += count * amount
            for device in node.devices:
                if device.model:
                    total[GPU] += count * MILLI_PER_UNIT
                    total[f"{GPU}:{device.model}"] += count * MILLI_PER_UNIT
        return total

    def quota(self, shape: JobShape, spots: Sequence[SlotPlacement] | None, width: int) -> Ints:
        """What a job counts against quotas, by `quotas`: in its places, or at least, wherever it will be put."""
        total: Counter[str] = Counter()
        for number, role in enumerate(shape.roles):
            count = role.count if number else width
            if spots is not None:
                count = sum(1 for spot in spots if spot.role == number)
            for name, amount in role.ask.amounts:
                total[name] += amount * count
            milli = count * (role.ask.milli or role.ask.gpus * MILLI_PER_UNIT)
            total[GPU] += milli
            if len(role.ask.models) == 1 and spots is None:
                total[f"{GPU}:{role.ask.models[0]}"] += milli
        for spot in spots or ():
            for device in spot.devices:
                total[f"{GPU}:{self.model(spot.node, device)}"] += spot.milli
        return np.array([total[name] for name in self.quotas], np.int64)

    def model_of(self, spots: Sequence[SlotPlacement]) -> str | None:
        """The model of all devices of the nodes of these places; None where there are several."""
        kinds, index, models = self._type_of, self.index, self._types.models
        distinct_models = {models[kinds[index[spot.node]]] for spot in spots}
        return distinct_models.pop() if len(distinct_models) == 1 else None

    def model(self, name: str, device: int) -> str:
        """The model of a device of a node; empty when one of them is gone."""
        row = self.index.get(name)
        position = None if row is None else self._position_by_device[row].get(device)
        return "" if row is None or position is None else self.nodes[row].devices[position].model


def _is_within(rows: list[int], high: Ints | Small, low: Ints | Small | None = None) -> bool:
    """In these rows, is nothing of the one less than what is in the other, or than nothing?"""
    if len(rows) > _FEW_ROWS:
        return bool((high[rows] >= (0 if low is None else low[rows])).all())
    for row in rows:  # a few short ones are compared sooner than numpy is asked
        lower = repeat(0) if low is None else low[row].tolist()
        if not all(map(ge, high[row].tolist(), lower)):
            return False
    return True


def _find_domain(node: Node, level: str) -> str:
    return (level in TOPOLOGY_LEVELS and getattr(node, TOPOLOGY_LEVELS[level])) or node.labels.get(level, "")


def _pad_columns(array: npt.NDArray[Number], width: int, value: int) -> npt.NDArray[Number]:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=value)
