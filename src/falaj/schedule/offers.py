"""Sets of running jobs that would make room for a blocked one, likely enough and cheap; the exact trial comes after.

On every node its jobs are lined up, gentlest and cheapest first, and each place in the line says how many slots are
free once all before it are gone. The steps of a domain's nodes, cheapest slot first, give the domain its price.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.filling import Amounts
from falaj.schedule.model import BEST_EFFORT, CPU, WHOLE, Ask, Spot
from falaj.schedule.rights import GUARANTEE, Claim, Rights
from falaj.schedule.running import Col, Lay, Running, loose, sums
from falaj.schedule.world import World

_ANYTHING = Ask(spot=True)
"""Fits on every node that is open."""
_CLASS = 1 << 44
"""No price is as high as one step in gentleness: width, best effort, lower bands, the same band."""


def offers(
    world: World, running: Running, claim: Claim, right: Rights, tries: int
) -> Iterator[dict[int, tuple[Spot, ...]]]:
    """Sets, best first: by row of what runs, the places it gives up."""
    shape = claim.job.shape
    wants = [role.count if number else claim.width for number, role in enumerate(shape.roles)]
    units = [_units(role.ask, devices=True) or _units(role.ask, devices=False) for role in shape.roles]
    role = max(range(len(units)), key=lambda number: (units[number] * wants[number], -number))
    ask, want = shape.roles[role].ask, wants[role]
    domain = world.domains(shape.level if shape.required else "cluster")
    for devices in _measures(world, ask):
        lines = _Lines(world, running, right, ask, devices, shape.band)
        for steps in lines.cheapest(domain, want, want, tries):
            yield lines.until(steps)
        for steps in lines.cheapest(domain, want, 2 * want + 1, 1):
            yield lines.all_on(steps)


class _Lines:
    """The jobs of each node in line."""

    def __init__(self, world: World, running: Running, right: Rights, ask: Ask, devices: bool, band: int) -> None:
        self._running = running
        number = world.ask(ask)
        room = world.possible(number) > 0
        room &= world.counts(world.ask(_ANYTHING)) > 0
        row, node, use, shrinks = _candidates(running, right, devices)
        fit = room[node]
        row, node, use, shrinks = row[fit], node[fit], use[fit], shrinks[fit]
        bands = running.table[row, Col.BAND]
        owed = ~shrinks & (right.evict[row] == GUARANTEE)
        gentle = np.where(owed, 3, np.where(bands == BEST_EFFORT, 1, np.where(bands < band, 2, 3)))
        kind = np.where(shrinks, 0, gentle)
        size = np.maximum(running.table[row, Col.SIZE], 1)
        # A job that goes for a guarantee goes whole, and is as dear as all of it, however little of it is needed here.
        share = np.where(owed, np.maximum(use, 1), size)
        price = kind * _CLASS + right.price[row] * use // share
        dear = right.price[row] * WHOLE // share
        order = np.lexsort((running.table[row, Col.NAME], np.where(owed, size, 0), dear, kind, node))
        self._row, self._node, self._shrinks = row[order], node[order], shrinks[order]
        free, counts = _free(world, ask, devices), world.counts(number).astype(np.int64)
        self._steps(free, use[order], price[order], max(_units(ask, devices), 1), counts)

    def _steps(self, free: Amounts, use: Amounts, price: Amounts, units: int, counts: Amounts) -> None:
        """Where in each line slots come free, how many, and what each costs."""
        node = self._node
        held, paid = sums(use, node), sums(price, node)
        has = free[node] // units
        now = (free[node] + held) // units - has
        gain = now - ((free[node] + held - use) // units - has)
        at = np.flatnonzero(gain > 0)
        again = np.r_[False, node[at][1:] == node[at][:-1]][: len(at)]
        cost = paid[at] - np.where(again, np.r_[0, paid[at][:-1]][: len(at)], 0)
        idle = np.flatnonzero(counts > 0)
        self._at = np.r_[np.full(len(idle), -1), at]
        self._where = np.r_[idle, node[at]]
        self._gain = np.r_[counts[idle], gain[at]]
        self._cost = np.r_[np.zeros(len(idle), np.int64), cost]

    def cheapest(self, domain: NDArray[np.int32], want: int, goal: int, tries: int) -> list[Amounts]:
        """Steps that give the slots wanted within one domain, and more up to a goal, for the cheapest domains."""
        inside = domain[self._where]
        order = np.lexsort((self._where, self._cost // np.minimum(self._gain, want), inside))
        order = order[inside[order] >= 0]
        inside = inside[order]
        slots, cost = sums(self._gain[order], inside), sums(self._cost[order], inside)
        all_of_it = slots[np.searchsorted(inside, inside, side="right") - 1]
        target = np.minimum(goal, all_of_it)
        ends = np.flatnonzero((all_of_it >= want) & (slots >= target) & (slots - self._gain[order] < target))
        best = ends[np.lexsort((ends, cost[ends]))][:tries]
        return [order[(inside == inside[end]) & (np.arange(len(order)) <= end)] for end in best]

    def until(self, steps: Amounts) -> dict[int, tuple[Spot, ...]]:
        """All in line up to these steps."""
        last: dict[int, int] = {}
        for at, node in zip(self._at[steps].tolist(), self._where[steps].tolist(), strict=True):
            last[node] = max(last.get(node, -1), at)
        starts = np.searchsorted(self._node, list(last))
        return self._items(
            [one for start, end in zip(starts.tolist(), last.values(), strict=True) for one in range(start, end + 1)]
        )

    def all_on(self, steps: Amounts) -> dict[int, tuple[Spot, ...]]:
        """All in line on the nodes of these steps."""
        return self._items(np.flatnonzero(np.isin(self._node, self._where[steps])).tolist())

    def _items(self, entries: list[int]) -> dict[int, tuple[Spot, ...]]:
        out: dict[int, tuple[Spot, ...]] = {}
        for entry in entries:
            row = int(self._row[entry])
            job = self._running.jobs[self._running.ids[row]]
            if not self._shrinks[entry]:
                out[row] = job.spots
            elif row not in out:
                out[row] = loose(job)
        return out


def _candidates(running: Running, right: Rights, devices: bool) -> tuple[Amounts, Amounts, Amounts, NDArray[np.bool_]]:
    """Entries of those that may be stopped, and of those that may shrink: row, node, use there, and which it is."""
    entries, node = running.entries, running.nodes()
    live = (entries[:, Lay.ROW] >= 0) & (node >= 0)
    entries, node = entries[live], node[live]
    row = entries[:, Lay.ROW]
    all_of_it, beyond = (
        entries[:, Lay.DEVICES if devices else Lay.CORES],
        entries[:, Lay.LOOSE_DEVICES if devices else Lay.LOOSE_CORES],
    )
    may = right.shrink[row] > 0
    stop, shrink = np.flatnonzero(right.evict[row] > 0), np.flatnonzero(may & (beyond > 0))
    use = np.r_[(all_of_it - np.where(may, beyond, 0))[stop], beyond[shrink]]
    both = np.r_[stop, shrink]
    some = use > 0
    return row[both][some], node[both][some], use[some], (np.arange(len(both)) >= len(stop))[some]


def _units(ask: Ask, devices: bool) -> int:
    return (ask.gpus * WHOLE or ask.milli) if devices else dict(ask.amounts).get(CPU, 0)


def _measures(world: World, ask: Ask) -> list[bool]:
    """In what to measure room: devices, where it has any; cores, where it has none or they are what is short."""
    units = _units(ask, devices=True)
    if not units:
        return [False]
    short = (_free(world, ask, devices=True) >= units) & (world.counts(world.ask(ask)) == 0)
    return [True, False] if _units(ask, devices=False) and short.any() else [True]


def _free(world: World, ask: Ask, devices: bool) -> Amounts:
    """What is free on each node of what the ask is counted in."""
    out = np.zeros(len(world.nodes), np.int64)
    if ask.gpus:
        out += (world.dev == WHOLE).sum(axis=1) * WHOLE
    elif devices:
        out += np.maximum(world.dev, 0).max(axis=1, initial=0)
    elif CPU in world.resources:
        out += np.maximum(world.free[:, list(world.resources).index(CPU)], 0)
    return out
