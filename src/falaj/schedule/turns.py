"""Turns: reservations of blocked gangs, and what is held for them now.

Of a turn's places, whatever is free is laid aside in the world, however little: who came later would take a core here
and half a device there for ever. The rest follows as it becomes free. What is held is lent to what is over before the
turn comes. A turn moves to an earlier time, or later with the cause written down.
"""

from collections import Counter
from collections.abc import Container, Iterable

import numpy as np

from falaj.schedule.columns import Flags, Ints
from falaj.schedule.model import Reservation, Role, Shape, Spot
from falaj.schedule.profile import Profile
from falaj.schedule.world import Part, World

_FIRST = 1
"""So many turns of a pool are tried again whenever something of it is freed."""


class Turns:
    """Reservations by job."""

    def __init__(self, world: World, profile: Profile, depth: int) -> None:
        self.of: dict[str, Reservation] = {}
        self._world, self._profile, self._depth = world, profile, depth
        self._facts: dict[str, tuple[str, tuple[Role, ...], int]] = {}
        self._held: dict[str, list[Part]] = {}
        self._full: set[str] = set()
        """Those for which everything is held."""
        self._owed: dict[str, list[list[int]]] = {}
        """What each of their places still lacks, as the profile knows it."""
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
        parts = self.held()
        rows = sorted({world.index[part.node] for part in parts})
        at = {row: number for number, row in enumerate(rows)}
        free, dev = world.free[rows].astype(np.int64), world.dev[rows].astype(np.int64)
        for part in parts:
            number = at[world.index[part.node]]
            free[number, : len(part.amounts)] += part.amounts
            for place, milli in world.on(part):
                dev[number, place] += milli
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
        """Something became free on these nodes: keep it for the turns it belongs to, soonest first.

        Cores are like each other: what a later turn had kept of them goes to a sooner one, too.
        """
        jobs = {job for node in nodes for job in self._near.get(node, ())}
        self.version += bool(jobs)
        for job in jobs:
            self._let_go(job)
        self.take_back(jobs)

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
        return job in self._full

    def due(self, now: int) -> list[str]:
        """Jobs whose turn has come, or is void."""
        return [turn.job for turn in self.all() if turn.at <= now or not turn.spots]

    def lend(
        self, end: int, but: Container[str] = (), suits: Flags | None = None, keep: Container[str] = ()
    ) -> list[str]:
        """Free what is held for turns that come at that time or later, and for these jobs; say whose it was.

        `suits` are the nodes that matter: turns that hold nothing there are left alone, and so are those to `keep`.
        """
        index = self._world.index
        lent = [
            job
            for job, held in self._held.items()
            if (self.of[job].at >= end or job in but)
            and job not in keep
            and any(suits is None or suits[index[part.node]] for part in held)
        ]
        for job in lent:
            self._let_go(job)
        return lent

    def take_back(self, jobs: Iterable[str]) -> None:
        """Hold again what is still free of what was lent."""
        for job in sorted(jobs, key=lambda one: (self.of[one].at, one) if one in self.of else (0, one)):
            if job in self.of:
                self._enter(job)

    def held(self) -> list[Part]:
        """What is laid aside in the world for turns."""
        return [part for parts in self._held.values() for part in parts]

    def _enter(self, job: str) -> None:
        """Lay aside what is free of a turn's places, and what is held of them already."""
        self._let_go(job)
        turn, (_, roles, run_s), world = self.of[job], self._facts[job], self._world
        needs, free, taken = world.needs(roles), dict[int, Ints](), Counter[tuple[int, int]]()
        held, owed, full = list[Part](), list[list[int]](), bool(turn.spots)
        for spot in turn.spots:
            row = world.index.get(spot.node, -1)
            if row < 0:
                full = False
                continue
            got, devices = np.zeros_like(needs[spot.role]), dict[int, int]()
            if world.nodes[row].open:
                left = free.setdefault(row, np.maximum(world.free[row], 0))
                got = np.minimum(needs[spot.role], left)
                left -= got
                for place in world.places(spot):
                    milli = min(spot.milli, max(int(world.dev[row, place]) - taken[row, place], 0))
                    taken[row, place] += milli
                    devices[world.nodes[row].devices[place].index] = milli
                held.append(Part(spot.node, got, devices))
            owed.append((needs[spot.role] - got).tolist())
            full &= not any(owed[-1]) and sum(devices.values()) == len(spot.devices) * spot.milli
        world.lay_aside(held)
        self._held[job] = held
        if full:
            self._full.add(job)
        if self._owed.get(job) != owed:
            self._owed[job] = owed
            self._profile.put(_row(job), turn.spots, roles, turn.at + run_s, owed)

    def _forget(self, job: str) -> None:
        self._owed.pop(job, None)
        self._profile.drop(_row(job))

    def _let_go(self, job: str) -> None:
        self._full.discard(job)
        self._world.lay_aside(self._held.pop(job, ()), -1)


def _row(job: str) -> str:
    return f"turn of {job}"
