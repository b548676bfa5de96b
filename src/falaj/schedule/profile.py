"""What will be free when: the ends that are expected, and the earliest time and places of a gang that waits.

Every slot that runs, or has its turn reserved, is a row: a node, when it is over, what it gives back. Times are per
device, never per node. What is reserved counts as used until its own end: later turns are planned around it.
"""

from collections.abc import Sequence

import numpy as np

from falaj.core.execute import Device
from falaj.schedule.columns import Flags, Ints, Small
from falaj.schedule.model import NEVER, WHOLE, Ask, Role, Shape, Spot
from falaj.schedule.world import World

Gains = tuple[Ints, Ints, Ints]
Turn = tuple[int, tuple[Spot, ...]]
_MANY = 1 << 20
_LATEST = 1 << 62
"""No moment is so late, not even one that does not come."""


class Profile:
    """Rows of what is used until when. Nodes have numbers of our own here: rows of the world move when nodes go."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stale = True
        self._lasts = np.zeros(0, np.bool_)
        self._suits: dict[int, Flags] = {}
        self._ids: dict[str, int] = {}
        self._node = np.zeros(64, np.int64)
        self._end = np.full(64, -1, np.int64)
        self._amount = np.zeros((64, len(world.resources)), np.int64)
        self._spare = list(range(63, -1, -1))
        self._rows: dict[str, list[int]] = {}
        self._owed: dict[str, list[tuple[int, Ints]]] = {}
        self._users: dict[tuple[int, int], dict[str, int]] = {}
        self._spots: dict[str, list[tuple[int, int]]] = {}
        self._free_at = np.zeros((64, 1), np.int64)
        self._sorted: tuple[Ints, Ints] | None = None

    def put(
        self, name: str, spots: Sequence[Spot], roles: Sequence[Role], end: int, owed: Sequence[Sequence[int]] = ()
    ) -> None:
        """Let a job, or a turn, use its places until then; so much of each of them the world does not know of."""
        self.drop(name)
        needs = self._world.needs(roles)
        self._fit()
        rows, users = self._rows.setdefault(name, []), self._spots.setdefault(name, [])
        for spot in spots:
            if spot.node not in self._world.index:
                continue
            row, node = self._row(), self._ids[spot.node]
            rows.append(row)
            self._node[row], self._end[row], self._amount[row] = node, end, needs[spot.role]
            users += [(node, column) for column in self._world.places(spot)]
        lacks = [(row, np.array(part)) for row, part in zip(rows, owed, strict=False) if any(part)]
        if lacks:
            self._owed[name] = lacks
        self._grow()
        for user in users:
            self._users.setdefault(user, {})[name] = end
            self._free_at[user] = max(int(self._free_at[user]), end)
        self._sorted = None

    def drop(self, name: str) -> None:
        """Forget a job or a turn."""
        for row in self._rows.pop(name, ()):
            self._end[row] = -1
            self._spare.append(row)
        for user in self._spots.pop(name, ()):
            users = self._users[user]
            users.pop(name, None)
            self._free_at[user] = max(users.values(), default=0)
        self._owed.pop(name, None)
        self._sorted = None

    def until(self, name: str, end: int) -> None:
        """Let a job use the places that it has until then."""
        if self.end(name) in (end, -1):
            return
        self._end[self._rows[name]] = end
        for user in self._spots[name]:
            users = self._users[user]
            users[name] = end
            self._free_at[user] = max(users.values())
        self._sorted = None

    def end(self, name: str) -> int:
        """Until when a job's places are used; -1: it has none."""
        rows = self._rows.get(name)
        return int(self._end[rows[0]]) if rows else -1

    def refit(self) -> None:
        """Nodes came, changed or went."""
        self._stale = True

    def earliest(self, shape: Shape, width: int, now: int) -> Turn | None:
        """The first moment at which all its slots fit, and where; None when they never do."""
        self._fit()
        world = self._world
        search = _Search(world, now, self._now_free(), self._ready())
        at, found = now, []
        for number, role in enumerate(shape.roles):
            level = shape.level if shape.level and shape.required else "cluster"
            suits = self.suiting(role.ask)
            gains = search.gains(role.ask, suits & self._lasts[:, None], self._order(), (self._end, self._amount))
            want = role.count if number else width
            turn = search.choose(role.ask, suits, want, world.domains(level), gains)
            if turn is None:
                return None
            at = max(at, turn[0])
            found += [Spot(spot.node, number, spot.devices, spot.milli) for spot in turn[1]]
        return at, tuple(found)

    def suiting(self, ask: Ask) -> Flags:
        """Which devices suit an ask; where it asks for none, all of a node that suits it."""
        self._fit()
        number = self._world.ask(ask)
        if number not in self._suits:
            fits = self._world.possible(number) > 0
            suits = np.repeat(fits[:, None], self._world.dev.shape[1], axis=1)
            for row in np.flatnonzero(fits).tolist() if ask.models or ask.device_mib else ():
                devices = self._world.nodes[row].devices
                suits[row, : len(devices)] = [_suits(ask, device) for device in devices]
            self._suits[number] = suits
        return self._suits[number]

    def _now_free(self) -> Ints:
        """What is free on each node now, less what turns are owed that the world does not know of."""
        free = self._world.free.astype(np.int64)
        for owed in self._owed.values():
            for row, part in owed:
                at = self._at[self._node[row]]
                if at >= 0:
                    free[at, : len(part)] -= part
        return free

    def _ready(self) -> Ints:
        """When each device of each node is wholly free; 0: now; NEVER where there is none."""
        times = self._free_at[self._mine]
        busy = self._world.dev[:, : times.shape[1]] < WHOLE
        times = np.where(busy | (times > 0), np.maximum(times, 1), 0)
        return np.where(self._world.dev < 0, NEVER, times)

    def _order(self) -> tuple[Ints, Ints]:
        """Every node as it is now, then its rows by their ends: nodes, and rows numbered after the nodes."""
        if self._sorted is None:
            live = np.flatnonzero(self._end >= 0)
            live = live[self._at[self._node[live]] >= 0]
            size = len(self._world.nodes)
            nodes = np.concatenate([np.arange(size), self._at[self._node[live]]])
            order = np.lexsort((np.concatenate([np.full(size, -1), self._end[live]]), nodes))
            rows = np.concatenate([np.arange(size), live + size])
            self._sorted = nodes[order], rows[order]
        return self._sorted

    def _row(self) -> int:
        if not self._spare:
            size = len(self._node)
            self._node, self._end = np.pad(self._node, (0, size)), np.pad(self._end, (0, size), constant_values=-1)
            self._amount = np.pad(self._amount, ((0, size), (0, 0)))
            self._spare = list(range(2 * size - 1, size - 1, -1))
        return self._spare.pop()

    def _grow(self) -> None:
        rows, width = self._free_at.shape
        more = (max(len(self._ids) - rows, 0), max(self._world.dev.shape[1] - width, 0))
        if any(more):
            self._free_at = np.pad(self._free_at, ((0, more[0] and more[0] + rows), (0, more[1])))

    def _fit(self) -> None:
        """Know the nodes of the world as it is."""
        wider = len(self._world.resources) - self._amount.shape[1]
        if not self._stale and not wider:
            return
        self._stale, self._sorted = False, None
        self._suits.clear()
        self._lasts = np.array([node.open and node.leaving >= NEVER for node in self._world.nodes], np.bool_)
        self._mine = np.array([self._ids.setdefault(n.name, len(self._ids)) for n in self._world.nodes], np.int64)
        self._at = np.full(len(self._ids), -1, np.int64)
        self._at[self._mine] = np.arange(len(self._mine))
        self._amount = np.pad(self._amount, ((0, 0), (0, wider)))
        self._grow()


class _Search:
    """One search for a turn: what is free now, and when devices are."""

    def __init__(self, world: World, now: int, free: Ints, ready: Ints) -> None:
        self._world, self._now, self._free, self._ready = world, now, free, ready

    def gains(self, ask: Ask, suits: Flags, order: tuple[Ints, Ints], facts: tuple[Ints, Ints]) -> Gains:
        """When and where more slots of an ask come to fit: nodes, times, how many."""
        (nodes, rows), (end, amount), size = order, facts, len(self._free)
        fresh, late = rows < size, np.maximum(rows - size, 0)
        times = np.where(fresh, self._now, np.maximum(end.take(late), self._now))
        first = np.flatnonzero(fresh).take(nodes)  # every node has one row as it is now, before all others
        count = np.where(suits.any(axis=1), _MANY, 0).take(nodes)
        for column, need in enumerate(amounts(self._world, ask).tolist()):
            if need:
                total = np.where(fresh, self._free[:, column].take(nodes), amount[:, column].take(late)).cumsum()
                total -= np.where(first > 0, total.take(first - 1), 0)
                np.minimum(count, total // need, out=count)
        if ask.gpus or ask.milli:
            np.minimum(count, self._room(ask, suits, nodes, times), out=count)
        count = np.maximum(count, 0)
        gains = np.where(first == np.arange(len(nodes)), count, np.diff(count, prepend=0))
        some = gains > 0
        return nodes[some], times[some], gains[some]

    def _room(self, ask: Ask, suits: Flags, nodes: Ints, times: Ints) -> Ints:
        """How many slots the devices of each row's node have room for at its time."""
        room = np.zeros(len(nodes), np.int64)
        for ready in np.ascontiguousarray(np.where(suits, self._ready, _LATEST).T):
            room += ready.take(nodes) <= times
        return room * (WHOLE // ask.milli) if ask.milli else room // ask.gpus

    def choose(self, ask: Ask, suits: Flags, want: int, domains: Small, gains: Gains) -> Turn | None:
        """The first time at which one domain has enough slots, and the places in it."""
        nodes, times, more = gains
        order = np.lexsort((times, domains[nodes]))
        group, when, total = domains[nodes][order], times[order], np.cumsum(more[order])
        first = np.searchsorted(group, group)
        total -= np.where(first > 0, total[first - 1], 0)
        enough = (total >= want) & (group >= 0)
        if not enough.any():
            return None
        at = int(when[enough].min())
        home = int(group[enough & (when == at)].min())
        here = (times <= at) & (domains[nodes] == home)
        return at, tuple(self._pick(ask, suits, want, at, (nodes[here], times[here], more[here])))

    def _pick(self, ask: Ask, suits: Flags, want: int, at: int, gains: Gains) -> list[Spot]:
        """Of all places free by then, those that become so last: the least stands idle until then."""
        found: list[Spot] = []
        (nodes, times, more), needs = gains, amounts(self._world, ask)
        for one in np.lexsort((nodes, -times)).tolist():
            if len(found) == want:
                break
            row, slots = int(nodes[one]), min(int(more[one]), want - len(found))
            ready = self._ready[row]
            free = np.flatnonzero(suits[row] & (ready <= at))
            free = free[np.argsort(-ready[free], kind="stable")].tolist()
            parts = [device for device in free for _ in range(WHOLE // ask.milli if ask.milli else 1)]
            step = ask.gpus or bool(ask.milli)
            for slot in range(slots):
                mine = parts[slot * step : (slot + 1) * step]
                ready[mine] = NEVER
                self._free[row] -= needs
                names = tuple(self._world.nodes[row].devices[device].index for device in mine)
                found.append(Spot(self._world.nodes[row].name, 0, names, ask.milli or WHOLE))
        return found


def amounts(world: World, ask: Ask) -> Ints:
    """What one slot takes of each resource of the world."""
    named = dict(ask.amounts)
    return np.array([named.get(name, 0) for name in world.resources], np.int64)


def slots_in(suits: Flags, needs: Ints, ask: Ask, free: Ints, dev: Ints) -> Ints:
    """How many slots of an ask fit on nodes with so much free."""
    room = np.where(suits.any(axis=1), _MANY, 0)
    for column in np.flatnonzero(needs).tolist():
        np.minimum(room, free[:, column] // needs[column], out=room)
    if ask.gpus or ask.milli:
        parts = np.where(suits, np.maximum(dev, 0), 0) // (ask.milli or WHOLE)  # below 0: there is no such device
        np.minimum(room, parts.sum(axis=1) // (ask.gpus or 1), out=room)
    return np.maximum(room, 0)


def _suits(ask: Ask, device: Device) -> bool:
    ours = device.memory_mib * ask.milli // WHOLE if ask.milli else device.memory_mib
    return bool(device.model) and (not ask.models or device.model in ask.models) and ours >= ask.device_mib
