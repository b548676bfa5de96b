"""Turns: reservations of blocked gangs, and what is held for them now.

Of a turn's places, those that are free are taken in the world, so that nothing else lands there by accident; the rest
follow as they become free. Held places are lent to what is over before the turn comes. A turn moves to an earlier time,
or later with the cause written down.
"""

from collections import Counter
from collections.abc import Container, Iterable, Sequence

import numpy as np

from falaj.schedule.columns import Flags, Ints
from falaj.schedule.model import Ask, Reservation, Role, Shape, Spot
from falaj.schedule.profile import Profile, amounts
from falaj.schedule.world import World

Held = dict[tuple[int, int], Spot]
"""By number of a place and column of a device; -1: what else the place needs."""
_BARE = (Role("", Ask()),)
_FIRST = 1
"""So many turns of a pool are tried again whenever something of it is freed."""


class Turns:
    """Reservations by job."""

    def __init__(self, world: World, profile: Profile, depth: int) -> None:
        self.of: dict[str, Reservation] = {}
        self._world, self._profile, self._depth = world, profile, depth
        self._facts: dict[str, tuple[str, tuple[Role, ...], int]] = {}
        self._held: dict[str, Held] = {}
        self._known: dict[str, list[int]] = {}
        self._near: dict[str, set[str]] = {}
        self._pools: dict[str, int] = {}
        self.released: set[str] = set()
        """Nodes on which something is held no longer."""
        self.version = 0
        """Grows when something else is held than before; what is lent for a moment does not count."""

    def all(self) -> tuple[Reservation, ...]:
        """Every turn, soonest first."""
        return tuple(sorted(self.of.values(), key=lambda one: (one.at, one.job)))

    @property
    def holds(self) -> bool:
        """Is anything held now?"""
        return any(self._held.values())

    def lendable(self) -> tuple[list[int], Ints, Ints]:
        """Nodes on which something is held: their rows, and what would be free there, of amounts and devices."""
        world = self._world
        parts = [(job, column, spot) for job, held in self._held.items() for (_, column), spot in held.items()]
        rows = sorted({world.index[spot.node] for _, _, spot in parts})
        at = {row: number for number, row in enumerate(rows)}
        free, dev = world.free[rows].astype(np.int64), world.dev[rows].astype(np.int64)
        for job, column, spot in parts:
            number = at[world.index[spot.node]]
            if column < 0:
                free[number] += amounts(world, self._facts[job][1][spot.role].ask)
            else:
                dev[number, column] += spot.milli
        return rows, free, dev

    def room(self, pool: str) -> bool:
        """May one more gang of this pool have a turn?"""
        return self._pools.get(pool, 0) < self._depth

    def plan(self, job: str, shape: Shape, width: int, now: int) -> tuple[int, tuple[Spot, ...]] | None:
        """When and where a job could start if its own turn did not count."""
        old = self.of.get(job)
        if old is None:
            return self._profile.earliest(shape, width, now)
        self._let_go(job)
        self._forget(job)
        turn = self._profile.earliest(shape, width, now)
        self._enter(job)
        return turn

    def put(self, turn: Reservation, pool: str, roles: tuple[Role, ...], run_s: int) -> None:
        """Give a job its turn, or another one: what it held, and what is free, goes only to turns that come sooner."""
        old = self._take_out(turn.job)
        self.version += 1
        self.of[turn.job] = turn
        self._facts[turn.job] = (pool, roles, run_s)
        self._pools[pool] = self._pools.get(pool, 0) + 1
        for spot in turn.spots:
            self._near.setdefault(spot.node, set()).add(turn.job)
        self.hold(spot.node for spot in (*turn.spots, *(old.spots if old else ())))
        self._enter(turn.job)

    def drop(self, job: str) -> Reservation | None:
        """Take a job's turn away; what was held for it is free."""
        turn = self._take_out(job)
        self.hold(spot.node for spot in (turn.spots if turn else ()))
        return turn

    def _take_out(self, job: str) -> Reservation | None:
        turn = self.of.get(job)
        if turn is None:
            return None
        self._let_go(job)
        self._forget(job)
        del self.of[job]
        self._pools[self._facts.pop(job)[0]] -= 1
        for spot in turn.spots:
            self._near[spot.node].discard(job)
            self.released.add(spot.node)
        return turn

    def leave(self, node: str) -> None:
        """A node goes: the turns that had places there are void until they are planned anew, and know why."""
        for job in sorted(self._near.get(node, ())):
            pool, roles, run_s = self._facts[job]
            self.put(Reservation(job, self.of[job].at, (), f"{node} is gone"), pool, roles, run_s)

    def hold(self, nodes: Iterable[str]) -> None:
        """Something became free on these nodes: keep it for the turns it belongs to, soonest first."""
        jobs = {job for node in nodes for job in self._near.get(node, ())}
        self.version += bool(jobs)
        for job in sorted(jobs, key=lambda one: (self.of[one].at, one)):
            self._enter(job)

    def ready(self, nodes: Iterable[str]) -> list[str]:
        """The jobs with a turn on these nodes whose places are all held now, soonest first."""
        jobs = {job for node in nodes for job in self._near.get(node, ())}
        return sorted((j for j in jobs if self.whole(j)), key=lambda one: (self.of[one].at, one))

    def first(self) -> list[str]:
        """Of each pool the jobs whose turns come first."""
        found: dict[str, list[str]] = {}
        for turn in self.all():
            found.setdefault(self._facts[turn.job][0], []).append(turn.job)
        return [job for jobs in found.values() for job in jobs[:_FIRST]]

    def whole(self, job: str) -> bool:
        """Is everything of its turn held?"""
        return len(self._held.get(job, ())) == sum(1 + len(spot.devices) for spot in self.of[job].spots)

    def due(self, now: int) -> list[str]:
        """Jobs whose turn has come, or is void."""
        return [turn.job for turn in self.all() if turn.at <= now or not turn.spots]

    def lend(self, end: int, but: Container[str] = (), suits: Flags | None = None) -> list[str]:
        """Free what is held for turns that come at that time or later, and for these jobs; say whose it was.

        `suits` are the nodes that matter: turns that hold nothing there are left alone.
        """
        index = self._world.index
        lent = [
            job
            for job, held in self._held.items()
            if (self.of[job].at >= end or job in but)
            and any(suits is None or suits[index[spot.node]] for spot in held.values())
        ]
        for job in lent:
            self._let_go(job)
        return lent

    def take_back(self, jobs: Sequence[str]) -> None:
        """Hold again what is still free of what was lent."""
        for job in sorted(jobs, key=lambda one: (self.of[one].at, one) if one in self.of else (0, one)):
            if job in self.of:
                self._enter(job)

    def held(self) -> list[tuple[Spot, tuple[Role, ...]]]:
        """What is taken in the world for turns."""
        found = [(job, column, spot) for job, held in self._held.items() for (_, column), spot in held.items()]
        return [(spot, self._facts[job][1] if column < 0 else _BARE) for job, column, spot in found]

    def _enter(self, job: str) -> None:
        """Take what is free of a turn's places: device by device, and what else a place needs."""
        turn, (_, roles, run_s) = self.of[job], self._facts[job]
        held = self._held.setdefault(job, {})
        places, devices = self._free_of(turn, roles, held)
        self._world.take(list(places.values()), roles)
        self._world.take(list(devices.values()), _BARE)
        held |= places | devices
        known = [number for number in range(len(turn.spots)) if (number, -1) in held]
        if self._known.get(job) != known:
            self._known[job] = known
            rest = [number for number in range(len(turn.spots)) if (number, -1) not in held]
            spots = [turn.spots[number] for number in (*known, *rest)]
            self._profile.put(_row(job), spots, roles, turn.at + run_s, len(known))

    def _free_of(self, turn: Reservation, roles: tuple[Role, ...], held: Held) -> tuple[Held, Held]:
        world, places, devices = self._world, Held(), Held()
        needs = [amounts(world, role.ask) for role in roles]
        left: dict[int, Ints] = {}
        parts: Counter[tuple[int, int]] = Counter()
        for number, spot in enumerate(turn.spots):
            row = world.index.get(spot.node, -1)
            if row < 0 or not world.nodes[row].open:
                continue
            free = left.setdefault(row, world.free[row].copy())
            if (number, -1) not in held and bool((free >= needs[spot.role]).all()):
                places[number, -1] = Spot(spot.node, spot.role)
                free -= needs[spot.role]
            for column in world.places(spot):
                if (number, column) not in held and world.dev[row, column] - parts[row, column] >= spot.milli:
                    parts[row, column] += spot.milli
                    device = world.nodes[row].devices[column].index
                    devices[number, column] = Spot(spot.node, 0, (device,), spot.milli)
        return places, devices

    def _forget(self, job: str) -> None:
        self._known.pop(job, None)
        self._profile.drop(_row(job))

    def _let_go(self, job: str) -> None:
        held = self._held.pop(job, {})
        self._world.give([spot for (_, column), spot in held.items() if column < 0], self._facts[job][1])
        self._world.give([spot for (_, column), spot in held.items() if column >= 0], _BARE)


def _row(job: str) -> str:
    return f"turn of {job}"
