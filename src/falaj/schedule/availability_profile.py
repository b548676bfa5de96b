"""What will be free when: the ends that are expected, and the earliest time and places of a gang that waits.

Every slot that runs, or has its turn reserved, is a row: a node, when it is over, what it gives back. Times are per
device, never per node. What is reserved counts as used until its own end: later turns are planned around it.
"""

from collections.abc import Sequence

import numpy as np

from falaj.core.executor import Device
from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.model import MILLI_PER_UNIT, NEVER, JobShape, Role, SlotPlacement, SlotRequest
from falaj.schedule.node_states import Flags, Ints, Small

SlotGains = tuple[Ints, Ints, Ints]
TimedPlacement = tuple[int, tuple[SlotPlacement, ...]]
_UNLIMITED_SLOTS = 1 << 20
_LATEST = 1 << 62
"""No moment is so late, not even one that does not come."""


class AvailabilityProfile:
    """Rows of what is used until when. Nodes have numbers of our own here: rows of the world move when nodes go."""

    def __init__(self, cluster_state: ClusterState) -> None:
        self._cluster_state = cluster_state
        self._is_stale = True
        self._is_lasting = np.zeros(0, np.bool_)
        self._suitable_by_request: dict[int, Flags] = {}
        self._ids: dict[str, int] = {}
        self._node = np.zeros(64, np.int64)
        self._end = np.full(64, -1, np.int64)
        self._amount = np.zeros((64, len(cluster_state.resources)), np.int64)
        self._spare_rows = list(range(63, -1, -1))
        self._rows: dict[str, list[int]] = {}
        self._owed_amounts: dict[str, list[tuple[int, Ints]]] = {}
        self._users_by_device: dict[tuple[int, int], dict[str, int]] = {}
        self._devices_by_user: dict[str, list[tuple[int, int]]] = {}
        self._free_at = np.zeros((64, 1), np.int64)
        self._sorted_cache: tuple[Ints, Ints] | None = None

    def put(
        self,
        name: str,
        spots: Sequence[SlotPlacement],
        roles: Sequence[Role],
        end: int,
        owed_amounts: Sequence[Sequence[int]] = (),
    ) -> None:
        """Let a job, or a turn, use its places until then; so much of each of them the world does not know of."""
        self.drop(name)
        needs = self._cluster_state.needs(roles)
        self._sync_nodes()
        rows, users = self._rows.setdefault(name, []), self._devices_by_user.setdefault(name, [])
        for spot in spots:
            if spot.node not in self._cluster_state.index:
                continue
            row, node = self._take_row(), self._ids[spot.node]
            rows.append(row)
            self._node[row], self._end[row], self._amount[row] = node, end, needs[spot.role]
            users += [(node, column) for column in self._cluster_state.places(spot)]
        owed_rows = [(row, np.array(part)) for row, part in zip(rows, owed_amounts, strict=False) if any(part)]
        if owed_rows:
            self._owed_amounts[name] = owed_rows
        self._grow_arrays()
        for user in users:
            self._users_by_device.setdefault(user, {})[name] = end
            self._free_at[user] = max(int(self._free_at[user]), end)
        self._sorted_cache = None

    def drop(self, name: str) -> None:
        """Forget a job or a turn."""
        for row in self._rows.pop(name, ()):
            self._end[row] = -1
            self._spare_rows.append(row)
        for user in self._devices_by_user.pop(name, ()):
            users = self._users_by_device[user]
            users.pop(name, None)
            self._free_at[user] = max(users.values(), default=0)
        self._owed_amounts.pop(name, None)
        self._sorted_cache = None

    def until(self, name: str, end: int) -> None:
        """Let a job use the places that it has until then."""
        if self.end(name) in (end, -1):
            return
        self._end[self._rows[name]] = end
        for user in self._devices_by_user[name]:
            users = self._users_by_device[user]
            users[name] = end
            self._free_at[user] = max(users.values())
        self._sorted_cache = None

    def end(self, name: str) -> int:
        """Until when a job's places are used; -1: it has none."""
        rows = self._rows.get(name)
        return int(self._end[rows[0]]) if rows else -1

    def refit(self) -> None:
        """Nodes came, changed or went."""
        self._is_stale = True

    def earliest(self, shape: JobShape, width: int, now: int) -> TimedPlacement | None:
        """The first moment at which all its slots fit, and where; None when they never do."""
        self._sync_nodes()
        cluster_state = self._cluster_state
        search = _TimeSearch(cluster_state, now, self._free_amounts(), self._find_device_ready_times())
        starts_at, spots = now, []
        for number, role in enumerate(shape.roles):
            level = shape.level if shape.level and shape.required else "cluster"
            suitable = self.suiting(role.ask)
            gains = search.gains(
                role.ask, suitable & self._is_lasting[:, None], self._sort_rows(), (self._end, self._amount)
            )
            slots_needed = role.count if number else width
            role_placement = search.choose(role.ask, suitable, slots_needed, cluster_state.domains(level), gains)
            if role_placement is None:
                return None
            starts_at = max(starts_at, role_placement[0])
            spots += [SlotPlacement(spot.node, number, spot.devices, spot.milli) for spot in role_placement[1]]
        return starts_at, tuple(spots)

    def suiting(self, request: SlotRequest) -> Flags:
        """Which devices suit an ask; where it asks for none, all of a node that suits it."""
        self._sync_nodes()
        number = self._cluster_state.ask(request)
        if number not in self._suitable_by_request:
            is_possible = self._cluster_state.possible(number) > 0
            suitable = np.repeat(is_possible[:, None], self._cluster_state.dev.shape[1], axis=1)
            for row in np.flatnonzero(is_possible).tolist() if request.models or request.device_mib else ():
                devices = self._cluster_state.nodes[row].devices
                suitable[row, : len(devices)] = [_is_suitable(request, device) for device in devices]
            self._suitable_by_request[number] = suitable
        return self._suitable_by_request[number]

    def _free_amounts(self) -> Ints:
        """What is free on each node now, less what turns are owed that the world does not know of."""
        free = self._cluster_state.free.astype(np.int64)
        for owed_rows in self._owed_amounts.values():
            for row, part in owed_rows:
                cluster_row = self._cluster_rows[self._node[row]]
                if cluster_row >= 0:
                    free[cluster_row, : len(part)] -= part
        return free

    def _find_device_ready_times(self) -> Ints:
        """When each device of each node is wholly free; 0: now; NEVER where there is none."""
        times = self._free_at[self._node_numbers]
        is_busy = self._cluster_state.dev[:, : times.shape[1]] < MILLI_PER_UNIT
        times = np.where(is_busy | (times > 0), np.maximum(times, 1), 0)
        return np.where(self._cluster_state.dev < 0, NEVER, times)

    def _sort_rows(self) -> tuple[Ints, Ints]:
        """Every node as it is now, then its rows by their ends: nodes, and rows numbered after the nodes."""
        if self._sorted_cache is None:
            live = np.flatnonzero(self._end >= 0)
            live = live[self._cluster_rows[self._node[live]] >= 0]
            size = len(self._cluster_state.nodes)
            nodes = np.concatenate([np.arange(size), self._cluster_rows[self._node[live]]])
            order = np.lexsort((np.concatenate([np.full(size, -1), self._end[live]]), nodes))
            rows = np.concatenate([np.arange(size), live + size])
            self._sorted_cache = nodes[order], rows[order]
        return self._sorted_cache

    def _take_row(self) -> int:
        if not self._spare_rows:
            size = len(self._node)
            self._node, self._end = np.pad(self._node, (0, size)), np.pad(self._end, (0, size), constant_values=-1)
            self._amount = np.pad(self._amount, ((0, size), (0, 0)))
            self._spare_rows = list(range(2 * size - 1, size - 1, -1))
        return self._spare_rows.pop()

    def _grow_arrays(self) -> None:
        rows, width = self._free_at.shape
        missing = (max(len(self._ids) - rows, 0), max(self._cluster_state.dev.shape[1] - width, 0))
        if any(missing):
            self._free_at = np.pad(self._free_at, ((0, missing[0] and missing[0] + rows), (0, missing[1])))

    def _sync_nodes(self) -> None:
        """Know the nodes of the world as it is."""
        added_resources = len(self._cluster_state.resources) - self._amount.shape[1]
        if not self._is_stale and not added_resources:
            return
        self._is_stale, self._sorted_cache = False, None
        self._suitable_by_request.clear()
        self._is_lasting = np.array(
            [node.open and node.leaving >= NEVER for node in self._cluster_state.nodes], np.bool_
        )
        self._node_numbers = np.array(
            [self._ids.setdefault(n.name, len(self._ids)) for n in self._cluster_state.nodes], np.int64
        )
        self._cluster_rows = np.full(len(self._ids), -1, np.int64)
        self._cluster_rows[self._node_numbers] = np.arange(len(self._node_numbers))
        self._amount = np.pad(self._amount, ((0, 0), (0, added_resources)))
        self._grow_arrays()


class _TimeSearch:
    """One search for a turn: what is free now, and when devices are."""

    def __init__(self, cluster_state: ClusterState, now: int, free: Ints, ready_times: Ints) -> None:
        self._cluster_state, self._now, self._free, self._ready_times = cluster_state, now, free, ready_times

    def gains(
        self, request: SlotRequest, suitable: Flags, order: tuple[Ints, Ints], facts: tuple[Ints, Ints]
    ) -> SlotGains:
        """When and where more slots of an ask come to fit: nodes, times, how many."""
        (nodes, rows), (end, amount), size = order, facts, len(self._free)
        is_node_row, usage_rows = rows < size, np.maximum(rows - size, 0)
        times = np.where(is_node_row, self._now, np.maximum(end.take(usage_rows), self._now))
        first_rows = np.flatnonzero(is_node_row).take(nodes)  # every node has one row as it is now, before all others
        count = np.where(suitable.any(axis=1), _UNLIMITED_SLOTS, 0).take(nodes)
        for column, need in enumerate(request_amounts(self._cluster_state, request).tolist()):
            if need:
                total = np.where(
                    is_node_row, self._free[:, column].take(nodes), amount[:, column].take(usage_rows)
                ).cumsum()
                total -= np.where(first_rows > 0, total.take(first_rows - 1), 0)
                np.minimum(count, total // need, out=count)
        if request.gpus or request.milli:
            np.minimum(count, self._count_device_room(request, suitable, nodes, times), out=count)
        count = np.maximum(count, 0)
        gains = np.where(first_rows == np.arange(len(nodes)), count, np.diff(count, prepend=0))
        is_gain = gains > 0
        return nodes[is_gain], times[is_gain], gains[is_gain]

    def _count_device_room(self, request: SlotRequest, suitable: Flags, nodes: Ints, times: Ints) -> Ints:
        """How many slots the devices of each row's node have room for at its time."""
        room = np.zeros(len(nodes), np.int64)
        for ready in np.ascontiguousarray(np.where(suitable, self._ready_times, _LATEST).T):
            room += ready.take(nodes) <= times
        return room * (MILLI_PER_UNIT // request.milli) if request.milli else room // request.gpus

    def choose(
        self, request: SlotRequest, suitable: Flags, slots_needed: int, domains: Small, gains: SlotGains
    ) -> TimedPlacement | None:
        """The first time at which one domain has enough slots, and the places in it."""
        nodes, times, gained = gains
        order = np.lexsort((times, domains[nodes]))
        group, when, total = domains[nodes][order], times[order], np.cumsum(gained[order])
        first = np.searchsorted(group, group)
        total -= np.where(first > 0, total[first - 1], 0)
        is_enough = (total >= slots_needed) & (group >= 0)
        if not is_enough.any():
            return None
        starts_at = int(when[is_enough].min())
        domain_number = int(group[is_enough & (when == starts_at)].min())
        in_domain = (times <= starts_at) & (domains[nodes] == domain_number)
        return starts_at, tuple(
            self._pick_spots(
                request, suitable, slots_needed, starts_at, (nodes[in_domain], times[in_domain], gained[in_domain])
            )
        )

    def _pick_spots(
        self, request: SlotRequest, suitable: Flags, slots_needed: int, starts_at: int, gains: SlotGains
    ) -> list[SlotPlacement]:
        """Of all places free by then, those that become so last: the least stands idle until then."""
        spots: list[SlotPlacement] = []
        (nodes, times, gained), needs = gains, request_amounts(self._cluster_state, request)
        for index in np.lexsort((nodes, -times)).tolist():
            if len(spots) == slots_needed:
                break
            row, slots = int(nodes[index]), min(int(gained[index]), slots_needed - len(spots))
            ready = self._ready_times[row]
            free = np.flatnonzero(suitable[row] & (ready <= starts_at))
            free = free[np.argsort(-ready[free], kind="stable")].tolist()
            parts = [device for device in free for _ in range(MILLI_PER_UNIT // request.milli if request.milli else 1)]
            step = request.gpus or bool(request.milli)
            for slot in range(slots):
                slot_devices = parts[slot * step : (slot + 1) * step]
                ready[slot_devices] = NEVER
                self._free[row] -= needs
                names = tuple(self._cluster_state.nodes[row].devices[device].index for device in slot_devices)
                spots.append(
                    SlotPlacement(self._cluster_state.nodes[row].name, 0, names, request.milli or MILLI_PER_UNIT)
                )
        return spots


def request_amounts(cluster_state: ClusterState, request: SlotRequest) -> Ints:
    """What one slot takes of each resource of the world."""
    named = dict(request.amounts)
    return np.array([named.get(name, 0) for name in cluster_state.resources], np.int64)


def count_slots_in(suitable: Flags, needs: Ints, request: SlotRequest, free: Ints, dev: Ints) -> Ints:
    """How many slots of an ask fit on nodes with so much free."""
    room = np.where(suitable.any(axis=1), _UNLIMITED_SLOTS, 0)
    for column in np.flatnonzero(needs).tolist():
        np.minimum(room, free[:, column] // needs[column], out=room)
    if request.gpus or request.milli:
        parts = np.where(suitable, np.maximum(dev, 0), 0) // (
            request.milli or MILLI_PER_UNIT
        )  # below 0: there is no such device
        np.minimum(room, parts.sum(axis=1) // (request.gpus or 1), out=room)
    return np.maximum(room, 0)


def _is_suitable(request: SlotRequest, device: Device) -> bool:
    usable_mib = device.memory_mib * request.milli // MILLI_PER_UNIT if request.milli else device.memory_mib
    return (
        bool(device.model)
        and (not request.models or device.model in request.models)
        and usable_mib >= request.device_mib
    )
