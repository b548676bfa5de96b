"""Sets of running jobs that would make room for a blocked one, likely enough and cheap; the exact trial comes after.

On every node its jobs are lined up, gentlest and cheapest first, and each place in the line says how many slots are
free once all before it are gone. The steps of a domain's nodes, cheapest slot first, give the domain its price.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.model import BEST_EFFORT, CPU, MILLI_PER_UNIT, SlotPlacement, SlotRequest
from falaj.schedule.preemption_rights import GUARANTEE, PreemptionClaim, PreemptionRights
from falaj.schedule.progressive_filling import Amounts
from falaj.schedule.running_jobs import EntryColumn, JobColumn, RunningJobs, list_elastic_spots, sum_by_group

_ANY_REQUEST = SlotRequest(spot=True)
"""Fits on every node that is open."""
_GENTLENESS_STEP = 1 << 44
"""No price is as high as one step in gentleness: width, best effort, lower bands, the same band."""


def iter_victim_offers(
    cluster_state: ClusterState, running: RunningJobs, claim: PreemptionClaim, rights: PreemptionRights, max_tries: int
) -> Iterator[dict[int, tuple[SlotPlacement, ...]]]:
    """Sets, best first: by row of what runs, the places it gives up."""
    shape = claim.job.shape
    slots_by_role = [role.count if number else claim.width for number, role in enumerate(shape.roles)]
    units = [_request_units(role.ask, devices=True) or _request_units(role.ask, devices=False) for role in shape.roles]
    role = max(range(len(units)), key=lambda number: (units[number] * slots_by_role[number], -number))
    request, slots_needed = shape.roles[role].ask, slots_by_role[role]
    domain = cluster_state.domains(shape.level if shape.required else "cluster")
    for devices in _choose_room_measures(cluster_state, request):
        victim_lines = _VictimLines(cluster_state, running, rights, request, devices, shape.band)
        for steps in victim_lines.cheapest(domain, slots_needed, slots_needed, max_tries):
            yield victim_lines.until(steps)
        for steps in victim_lines.cheapest(domain, slots_needed, 2 * slots_needed + 1, 1):
            yield victim_lines.all_on(steps)


class _VictimLines:
    """The jobs of each node in line."""

    def __init__(
        self,
        cluster_state: ClusterState,
        running: RunningJobs,
        rights: PreemptionRights,
        request: SlotRequest,
        devices: bool,
        band: int,
    ) -> None:
        self._running = running
        number = cluster_state.ask(request)
        room = cluster_state.possible(number) > 0
        room &= cluster_state.counts(cluster_state.ask(_ANY_REQUEST)) > 0
        row, node, use, shrinks = _list_candidates(running, rights, devices)
        fit = room[node]
        row, node, use, shrinks = row[fit], node[fit], use[fit], shrinks[fit]
        bands = running.table[row, JobColumn.BAND]
        is_owed = ~shrinks & (rights.evict[row] == GUARANTEE)
        gentleness = np.where(is_owed, 3, np.where(bands == BEST_EFFORT, 1, np.where(bands < band, 2, 3)))
        kind = np.where(shrinks, 0, gentleness)
        size = np.maximum(running.table[row, JobColumn.SIZE], 1)
        # A job that goes for a guarantee goes whole, and is as dear as all of it, however little of it is needed here.
        share = np.where(is_owed, np.maximum(use, 1), size)
        price = kind * _GENTLENESS_STEP + rights.price[row] * use // share
        unit_price = rights.price[row] * MILLI_PER_UNIT // share
        order = np.lexsort((running.table[row, JobColumn.NAME], np.where(is_owed, size, 0), unit_price, kind, node))
        self._rows, self._nodes, self._shrinks = row[order], node[order], shrinks[order]
        free, counts = _free_units(cluster_state, request, devices), cluster_state.counts(number).astype(np.int64)
        self._compute_steps(free, use[order], price[order], max(_request_units(request, devices), 1), counts)

    def _compute_steps(self, free: Amounts, use: Amounts, price: Amounts, units: int, counts: Amounts) -> None:
        """Where in each line slots come free, how many, and what each costs."""
        node = self._nodes
        held_sums, price_sums = sum_by_group(use, node), sum_by_group(price, node)
        free_slots = free[node] // units
        gained_through = (free[node] + held_sums) // units - free_slots
        gain = gained_through - ((free[node] + held_sums - use) // units - free_slots)
        positions = np.flatnonzero(gain > 0)
        is_same_node = np.r_[False, node[positions][1:] == node[positions][:-1]][: len(positions)]
        cost = price_sums[positions] - np.where(is_same_node, np.r_[0, price_sums[positions][:-1]][: len(positions)], 0)
        idle = np.flatnonzero(counts > 0)
        self._line_positions = np.r_[np.full(len(idle), -1), positions]
        self._step_nodes = np.r_[idle, node[positions]]
        self._step_gains = np.r_[counts[idle], gain[positions]]
        self._step_costs = np.r_[np.zeros(len(idle), np.int64), cost]

    def cheapest(self, domain: NDArray[np.int32], slots_needed: int, goal_slots: int, max_tries: int) -> list[Amounts]:
        """Steps that give the slots wanted within one domain, and more up to a goal, for the cheapest domains."""
        step_domains = domain[self._step_nodes]
        order = np.lexsort(
            (self._step_nodes, self._step_costs // np.minimum(self._step_gains, slots_needed), step_domains)
        )
        order = order[step_domains[order] >= 0]
        step_domains = step_domains[order]
        slots, cost = (
            sum_by_group(self._step_gains[order], step_domains),
            sum_by_group(self._step_costs[order], step_domains),
        )
        domain_slots = slots[np.searchsorted(step_domains, step_domains, side="right") - 1]
        target = np.minimum(goal_slots, domain_slots)
        ends = np.flatnonzero(
            (domain_slots >= slots_needed) & (slots >= target) & (slots - self._step_gains[order] < target)
        )
        best = ends[np.lexsort((ends, cost[ends]))][:max_tries]
        return [order[(step_domains == step_domains[end]) & (np.arange(len(order)) <= end)] for end in best]

    def until(self, steps: Amounts) -> dict[int, tuple[SlotPlacement, ...]]:
        """All in line up to these steps."""
        last_by_node: dict[int, int] = {}
        for position, node in zip(self._line_positions[steps].tolist(), self._step_nodes[steps].tolist(), strict=True):
            last_by_node[node] = max(last_by_node.get(node, -1), position)
        starts = np.searchsorted(self._nodes, list(last_by_node))
        return self._collect_victims(
            [
                entry
                for start, end in zip(starts.tolist(), last_by_node.values(), strict=True)
                for entry in range(start, end + 1)
            ]
        )

    def all_on(self, steps: Amounts) -> dict[int, tuple[SlotPlacement, ...]]:
        """All in line on the nodes of these steps."""
        return self._collect_victims(np.flatnonzero(np.isin(self._nodes, self._step_nodes[steps])).tolist())

    def _collect_victims(self, entries: list[int]) -> dict[int, tuple[SlotPlacement, ...]]:
        freed: dict[int, tuple[SlotPlacement, ...]] = {}
        for entry in entries:
            row = int(self._rows[entry])
            job = self._running.jobs[self._running.ids[row]]
            if not self._shrinks[entry]:
                freed[row] = job.spots
            elif row not in freed:
                freed[row] = list_elastic_spots(job)
        return freed


def _list_candidates(
    running: RunningJobs, rights: PreemptionRights, devices: bool
) -> tuple[Amounts, Amounts, Amounts, NDArray[np.bool_]]:
    """Entries of those that may be stopped, and of those that may shrink: row, node, use there, and which it is."""
    entries, node = running.entries, running.nodes()
    is_live = (entries[:, EntryColumn.ROW] >= 0) & (node >= 0)
    entries, node = entries[is_live], node[is_live]
    row = entries[:, EntryColumn.ROW]
    full_use, loose_use = (
        entries[:, EntryColumn.DEVICES if devices else EntryColumn.CORES],
        entries[:, EntryColumn.LOOSE_DEVICES if devices else EntryColumn.LOOSE_CORES],
    )
    may_shrink = rights.shrink[row] > 0
    stop, shrink = np.flatnonzero(rights.evict[row] > 0), np.flatnonzero(may_shrink & (loose_use > 0))
    use = np.r_[(full_use - np.where(may_shrink, loose_use, 0))[stop], loose_use[shrink]]
    selected = np.r_[stop, shrink]
    is_used = use > 0
    return (
        row[selected][is_used],
        node[selected][is_used],
        use[is_used],
        (np.arange(len(selected)) >= len(stop))[is_used],
    )


def _request_units(request: SlotRequest, devices: bool) -> int:
    return (request.gpus * MILLI_PER_UNIT or request.milli) if devices else dict(request.amounts).get(CPU, 0)


def _choose_room_measures(cluster_state: ClusterState, request: SlotRequest) -> list[bool]:
    """In what to measure room: devices, where it has any; cores, where it has none or they are what is short."""
    units = _request_units(request, devices=True)
    if not units:
        return [False]
    is_short = (_free_units(cluster_state, request, devices=True) >= units) & (
        cluster_state.counts(cluster_state.ask(request)) == 0
    )
    return [True, False] if _request_units(request, devices=False) and is_short.any() else [True]


def _free_units(cluster_state: ClusterState, request: SlotRequest, devices: bool) -> Amounts:
    """What is free on each node of what the ask is counted in."""
    free = np.zeros(len(cluster_state.nodes), np.int64)
    if request.gpus:
        free += (cluster_state.dev == MILLI_PER_UNIT).sum(axis=1) * MILLI_PER_UNIT
    elif devices:
        free += np.maximum(cluster_state.dev, 0).max(axis=1, initial=0)
    elif CPU in cluster_state.resources:
        free += np.maximum(cluster_state.free[:, list(cluster_state.resources).index(CPU)], 0)
    return free
