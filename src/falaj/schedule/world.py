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

from falaj.core.errors import Conflict, Corrupt, NotFound
from falaj.schedule.budget import price
from falaj.schedule.columns import NOTHING, Columns
from falaj.schedule.devices import slots
from falaj.schedule.kept import Kept
from falaj.schedule.model import GPU, LEVELS, WHOLE, Ask, Node, Role, Shape, Spot
from falaj.schedule.traits import Flags, Ints, Small

Number = TypeVar("Number", np.int32, np.int64)
_ROWS = ("free", "dev", "_all", "_whole", "_floor", "_type_of", "_state", "_empty")
_SPARE = 4
"""States are swept when there are so many times more of them than nodes, and some."""
_SLACK = 1024
_CUTS, _ASKS, _FEW = 10_000, 10_000, 4
Cut = tuple[int, int, int, int, int, bytes]
"""Type, ask, how many slots, what is left on the device that is best to cut, island, and what is left on all."""


class Part(NamedTuple):
    """Of one node, what is laid aside: amounts by resource, and by device how many thousandths."""

    node: str
    amounts: Ints
    devices: Mapping[int, int]


class World:
    """All nodes, and all that is taken on them."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes: list[Node] = list(nodes)
        self.index = {node.name: row for row, node in enumerate(self.nodes)}
        if len(self.index) < len(self.nodes):
            raise Conflict("two nodes have one name", "name every node once")
        self._columns = Columns()
        self._types = self._columns.types
        self._kept = Kept(self._columns)
        self._seen: dict[int, tuple[Ask, int]] = {}
        """Asks by sight: comparing them takes longer."""
        self._types.widen(self.nodes)
        self._journal: list[Callable[[], None]] = []
        self._marks = 0
        self._domains: dict[str, Small] = {}
        self._one: bool | None = None
        self._cuts: dict[Cut, list[tuple[int, ...]]] = {}
        """Which devices were given to so many slots of an ask, by what was left: nodes of one type are alike."""
        self.free: Ints = np.zeros((len(self.nodes), 0), np.int64)
        self.dev: Small = np.zeros((len(self.nodes), 0), np.int32)
        self._again()
        self.free, self.dev = self._all.copy(), self._whole.copy()
        self._restate(range(len(self.nodes)))

    @property
    def resources(self) -> Sequence[str]:
        """What the columns of `free` are called."""
        return self._types.resources

    @property
    def quotas(self) -> Sequence[str]:
        """Names of what queues count, in the order of every array by quota; new ones come last."""
        return self._types.quotas

    # asks

    def ask(self, ask: Ask) -> int:
        """The number of an ask; equal asks have one."""
        seen = self._seen.get(id(ask))
        if seen is not None and seen[0] is ask:
            return seen[1]
        number, fresh = self._types.ask(ask)
        if fresh:
            self._again()
        if len(self._seen) >= _ASKS:
            self._seen.clear()
        self._seen[id(ask)] = ask, number
        return number

    def needs(self, roles: Sequence[Role]) -> list[Ints]:
        """What one slot of each of these takes of each resource."""
        asks = [self.ask(role.ask) for role in roles]  # all of them first: a new one may widen the rows
        return [self._types.need[ask] for ask in asks]

    def counts(self, ask: int) -> Small:
        """How many slots of this ask fit on each node now."""
        return self._columns.counts(ask, self._state)

    def totals(self, asks: Sequence[int]) -> list[int]:
        """By ask: how many slots of it fit now, on all nodes together."""
        totals: list[int] = self._columns.totals(np.array(asks, np.int64), self._state).tolist()
        return totals

    def room(self, ask: int, row: int) -> int:
        """How many of them fit on one node."""
        return self._columns.count(ask, self._state[row])

    def fits(self, asks: Sequence[int], rows: Sequence[int]) -> Flags:
        """By ask: does a slot of it fit on one of these nodes now?"""
        states = np.array([*{*self._state[rows].tolist()}], np.int64)  # few rows: numpy's own takes longer
        return self._columns.fits(np.array(asks, np.int64), states)

    def possible(self, ask: int) -> Small:
        """How many would fit on each node if nothing ran and all were open."""
        return self._columns.counts(ask, self._empty)

    def scores(self, ask: int) -> Ints:
        """How much this ask would like each node now; NOWHERE when not one slot fits. Not to be written to."""
        return self._kept.scores(ask, self._state)

    def mix(self, shape: Shape, weight: int) -> None:
        """So many jobs more (or fewer) of this shape are known: placement keeps room for what is asked for."""
        for number, role in enumerate(shape.roles):
            self.ask(role.ask)  # what it names is counted from now on, and not from the middle of a decision on
            self._columns.mix.add(role.ask, weight * (role.count if number else shape.least))

    def spots(self, rows: Sequence[int], counts: Sequence[int], ask: int, role: int, island: int = -1) -> list[Spot]:
        """Places of so many slots on each of these nodes, on one island where that is asked for; nothing is taken.

        The nodes have room for them.
        """
        types, request = self._types, self._types.asks[ask]
        suits, milli = types.suits[types.wish[ask]], request.milli or WHOLE
        spots: list[Spot] = []
        for row, count in zip(rows, counts, strict=True):
            kind, dev = int(self._type_of[row]), self.dev[row]
            best = self._columns.left(ask, int(self._state[row])) if request.milli else 0
            key = (kind, ask, count, best, island, dev.tobytes())
            cut = self._cuts.get(key)
            if cut is None:
                if len(self._cuts) >= _CUTS:
                    self._cuts.clear()
                fit = suits.take(types.kinds[kind])
                if island >= 0:
                    fit &= types.islands[kind] == island
                cut = slots(request, self.nodes[row].devices, np.where(fit, dev, 0).tolist(), count, best)
                self._cuts[key] = cut
            name = self.nodes[row].name
            spots += [Spot(name, role, devices, milli) for devices in cut]
        return spots

    def rooms(self, ask: int) -> Small:
        """How many slots of this ask fit on each node on each of its islands."""
        types, kinds = self._types, self._type_of
        wish, islands = types.wish[ask], types.islands[kinds]
        count = int(islands.max(initial=0)) + 1
        if not types.per[wish]:
            return np.repeat(self.counts(ask)[:, None], count, axis=1)
        fits = self.dev // types.unit[wish] * types.suits[wish].take(types.kinds[kinds])
        rooms = np.stack([(fits * (islands == one)).sum(axis=1) for one in range(count)], axis=1)
        least: Small = np.minimum(rooms // types.per[wish], self.counts(ask)[:, None])
        return least

    @property
    def is_one(self) -> bool:
        """Are all nodes of one cluster?"""
        if self._one is None:
            self._one = len({node.cluster for node in self.nodes}) == 1 and bool(self.nodes[0].cluster)
        return self._one

    def places(self, spot: Spot) -> list[int]:
        """Where the devices of a place stand in the row of its node."""
        row = self.index.get(spot.node)
        known = self._places[row] if row is not None else {}
        return sorted([known[device] for device in spot.devices if device in known])

    def domains(self, level: str) -> Small:
        """The domain of each node at a level (node, cluster, zone or a label), by number; -1: in none."""
        known = self._domains.get(level)
        if known is None:
            numbers: dict[tuple[str, str], int] = {}
            where = [(node.cluster, _domain(node, level)) for node in self.nodes]
            known = np.array([numbers.setdefault(one, len(numbers)) if one[1] else -1 for one in where], np.int32)
            self._domains[level] = known
        return known

    # amounts

    def take(self, spots: Sequence[Spot], roles: Sequence[Role]) -> None:
        """These places are taken from now on."""
        known = all(self._places[self.row(spot.node)].keys() >= {*spot.devices} for spot in spots)
        rows = self._move(spots, roles, -1)
        if not known or not _within(rows, self.free) or not _within(rows, self.dev, self._floor):
            self._move(spots, roles, 1)
            raise Corrupt(f"{spots[0].node} has less than would be taken there", "report this: it is a defect")

    def hold(self, spots: Sequence[Spot], roles: Sequence[Role]) -> None:
        """These places are taken, whatever there is: a job runs there since its node had more than it has now."""
        self._move([spot for spot in spots if spot.node in self.index], roles, -1)

    def give(self, spots: Sequence[Spot], roles: Sequence[Role]) -> None:
        """These places are free again. Those on nodes that are gone went with them."""
        spots = [spot for spot in spots if spot.node in self.index]
        rows = self._move(spots, roles, 1)
        if not _within(rows, self._all, self.free) or not _within(rows, self._whole, self.dev):
            self._move(spots, roles, -1)
            raise Corrupt(f"more would be given back on {spots[0].node} than it has", "report this: it is a defect")

    def lay_aside(self, parts: Sequence[Part], sign: int = 1) -> None:
        """Nobody gets these parts from now on; with -1, everybody may. What is gone with its node is gone."""
        parts = [part for part in parts if part.node in self.index]
        touched = sorted({self.index[part.node] for part in parts})
        if self._marks:
            self._journal.append(partial(self._restore, touched, self.free[touched], self.dev[touched]))
        for part in parts:
            row = self.index[part.node]
            self.free[row, : len(part.amounts)] -= sign * part.amounts
            for place, milli in self.on(part):
                self.dev[row, place] -= sign * milli
        self._restate(touched)

    def on(self, part: Part) -> list[tuple[int, int]]:
        """Where its devices stand in the row of its node, and how much of each."""
        places = self._places[self.index[part.node]]
        return [(places[device], milli) for device, milli in part.devices.items() if device in places]

    def _move(self, spots: Sequence[Spot], roles: Sequence[Role], sign: int) -> list[int]:
        needs = self.needs(roles)
        rows = [self.index[spot.node] for spot in spots]
        touched = sorted(set(rows))
        if self._marks:
            self._journal.append(partial(self._restore, touched, self.free[touched], self.dev[touched]))
        for row, spot in zip(rows, spots, strict=True):
            free, dev, places, milli = self.free[row], self.dev[row], self._places[row], sign * spot.milli
            if sign > 0:  # views: what is added to them is added there
                free += needs[spot.role]
            else:
                free -= needs[spot.role]
            for device in spot.devices:
                place = places.get(device)
                if place is not None:
                    dev[place] += milli
        self._restate(touched)
        return touched

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
        self._insert(len(self.nodes), node, None, None)
        self._note(partial(self._remove, len(self.nodes) - 1))

    def drop(self, name: str) -> None:
        """A node goes, with all that is taken on it."""
        row = self.row(name)
        node, free, dev = self.nodes[row], self.free[row].copy(), self.dev[row].copy()
        self._remove(row)
        self._note(partial(self._insert, row, node, free, dev))

    def change(self, node: Node) -> None:
        """A node is another than it was; what is taken on it stays taken, on its devices by their numbers."""
        row = self.row(node.name)
        old, free, dev = self.nodes[row], self.free[row].copy(), self.dev[row].copy()
        taken = {one.index: WHOLE - int(left) for one, left in zip(old.devices, dev, strict=False) if left < WHOLE}
        kept = {one.index for one in node.devices}
        gone = [replace(one, model="") for one in old.devices if one.index in taken and one.index not in kept]
        node = replace(node, devices=(*node.devices, *gone))
        used = {name: old.amounts.get(name, 0) - int(free[at]) for at, name in enumerate(self.resources)}
        self._set(row, node)
        self.free[row] = [node.amounts.get(name, 0) - used.get(name, 0) for name in self.resources]
        self.dev[row, : len(node.devices)] = [WHOLE - taken.get(one.index, 0) for one in node.devices]
        self.dev[row, len(node.devices) :] = -1
        self._restate([row])
        self._note(partial(self._reset, row, old, free, dev))

    def _reset(self, row: int, node: Node, free: Ints, dev: Small) -> None:
        self._set(row, node)
        self._restore([row], free, dev)

    def _set(self, row: int, node: Node) -> None:
        self.nodes[row] = node
        if self._types.widen([node]) or len(self._types.nodes) > _SPARE * len(self.nodes) + _SLACK:
            self._again()
        else:
            self._lay(row)

    def _insert(self, row: int, node: Node, free: Ints | None, dev: Small | None) -> None:
        self.nodes.insert(row, node)
        for name in _ROWS:
            setattr(self, name, np.insert(getattr(self, name), row, 0, axis=0))
        self._kept.clear(len(self.nodes))
        self._places.insert(row, {})
        self.index = {one.name: at for at, one in enumerate(self.nodes)}
        self._set(row, node)
        self.dev[row] = -1
        self._restore([row], self._all[row] if free is None else free, self._whole[row] if dev is None else dev)

    def _remove(self, row: int) -> None:
        for name in _ROWS:
            setattr(self, name, np.delete(getattr(self, name), row, axis=0))
        for rows in (self.nodes, self._places):
            del rows[row]
        self._kept.clear(len(self.nodes))
        self.index = {one.name: at for at, one in enumerate(self.nodes)}
        self._domains.clear()
        self._one = None

    def _again(self) -> None:
        """Lay all rows out anew: some node or ask has a resource, a device or a label that none had before."""
        types, size = self._types, len(self.nodes)
        self._columns.clear()
        self._kept.clear(size)
        self._cuts.clear()
        self.free, self.dev = _padded(self.free, len(types.resources), 0), _padded(self.dev, types.width, -1)
        self._all: Ints = np.zeros((size, len(types.resources)), np.int64)
        self._whole: Small = np.full((size, types.width), -1, np.int32)
        self._floor = self._whole.copy()
        self._empty: Ints = np.zeros(size, np.int64)
        self._state: Ints = np.zeros(size, np.int64)
        self._places: list[dict[int, int]] = [{}] * size
        self._type_of: Small = np.zeros(size, np.int32)
        for row in range(size):
            self._lay(row)
        self._restate(range(size))

    def _lay(self, row: int) -> None:
        """Make the row of a node say what the node says."""
        node, types = self.nodes[row], self._types
        self._all[row] = [node.amounts.get(name, 0) for name in types.resources]
        self._whole[row] = -1
        self._whole[row, : len(node.devices)] = WHOLE
        self._floor[row] = np.minimum(self._whole[row], 0)
        self._places[row] = {device.index: place for place, device in enumerate(node.devices)}
        kind = self._type_of[row] = types.type(node)
        self._empty[row] = self._columns.state(kind, self._all[row], self._whole[row])
        self._domains.clear()
        self._one = None

    def _restore(self, rows: Sequence[int], free: Ints, dev: Small) -> None:
        self.free[rows, : free.shape[-1]] = free
        self.dev[rows, : dev.shape[-1]] = dev
        self._restate(rows)

    def _restate(self, rows: Sequence[int]) -> None:
        columns, kept = self._columns, self._kept
        for row in rows:
            kept.move(row)
            if self.nodes[row].open:
                self._state[row] = columns.state(int(self._type_of[row]), self.free[row], self.dev[row])
            else:
                self._state[row] = NOTHING
        if columns.size > _SPARE * len(self.nodes) + _SLACK:
            numbers = columns.compact(np.union1d(self._state, self._empty))
            self._state, self._empty = numbers[self._state], numbers[self._empty]

    # trials

    def mark(self) -> int:
        """From here on everything can be undone."""
        self._marks += 1
        return len(self._journal)

    def rewind(self, mark: int) -> None:
        """Undo all that was done since the mark, which is spent by this."""
        undone = self._journal[mark:]
        del self._journal[mark:]
        self._marks -= 1
        for undo in reversed(undone):
            undo()

    def keep(self, mark: int) -> None:
        """Stay with what was done since the mark, which is spent by this; an earlier mark can still undo it."""
        self._marks -= 1
        if not self._marks:
            del self._journal[mark:]

    def _note(self, undo: Callable[[], None]) -> None:
        if self._marks:
            self._journal.append(undo)

    # quotas and prices

    def prices(self, devices: bool) -> Ints:
        """What an hour on each node costs a job that has devices, or has none: by device, or by core."""
        return np.array([price(node, devices) for node in self._types.nodes], np.int64).take(self._type_of)

    def pools(self) -> Mapping[str, int]:
        """All there is of what queues count, closed nodes included."""
        total = dict.fromkeys(self.quotas, 0)
        many = np.bincount(self._type_of, minlength=len(self._types.nodes)).tolist()
        for node, count in zip(self._types.nodes, many, strict=True):  # nodes of one type have the same
            for name, amount in node.amounts.items():
                total[name] += count * amount
            for device in node.devices:
                if device.model:
                    total[GPU] += count * WHOLE
                    total[f"{GPU}:{device.model}"] += count * WHOLE
        return total

    def quota(self, shape: Shape, spots: Sequence[Spot] | None, width: int) -> Ints:
        """What a job counts against quotas, by `quotas`: in its places, or at least, wherever it will be put."""
        total: Counter[str] = Counter()
        for number, role in enumerate(shape.roles):
            count = role.count if number else width
            if spots is not None:
                count = sum(1 for spot in spots if spot.role == number)
            for name, amount in role.ask.amounts:
                total[name] += amount * count
            milli = count * (role.ask.milli or role.ask.gpus * WHOLE)
            total[GPU] += milli
            if len(role.ask.models) == 1 and spots is None:
                total[f"{GPU}:{role.ask.models[0]}"] += milli
        for spot in spots or ():
            for device in spot.devices:
                total[f"{GPU}:{self.model(spot.node, device)}"] += spot.milli
        return np.array([total[name] for name in self.quotas], np.int64)

    def model_of(self, spots: Sequence[Spot]) -> str | None:
        """The model of all devices of the nodes of these places; None where there are several."""
        kinds, index, models = self._type_of, self.index, self._types.models
        found = {models[kinds[index[spot.node]]] for spot in spots}
        return found.pop() if len(found) == 1 else None

    def model(self, name: str, device: int) -> str:
        """The model of a device of a node; empty when one of them is gone."""
        row = self.index.get(name)
        place = None if row is None else self._places[row].get(device)
        return "" if row is None or place is None else self.nodes[row].devices[place].model


def _within(rows: list[int], high: Ints | Small, low: Ints | Small | None = None) -> bool:
    """In these rows, is nothing of the one less than what is in the other, or than nothing?"""
    if len(rows) > _FEW:
        return bool((high[rows] >= (0 if low is None else low[rows])).all())
    for row in rows:  # a few short ones are compared sooner than numpy is asked
        least = repeat(0) if low is None else low[row].tolist()
        if not all(map(ge, high[row].tolist(), least)):
            return False
    return True


def _domain(node: Node, level: str) -> str:
    return (level in LEVELS and getattr(node, LEVELS[level])) or node.labels.get(level, "")


def _padded(array: npt.NDArray[Number], width: int, value: int) -> npt.NDArray[Number]:
    return np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=value)
