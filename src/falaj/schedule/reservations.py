"""Turns: reservations of blocked gangs, and what is held for them now.

Of a turn's places, whatever is free is laid aside in the world, however little: who came later would take a core here
and half a device there for ever. The rest follows as it becomes free. What is held is lent to what is over before the
turn comes. A turn moves to an earlier time, or later with the cause written down.
"""

from collections import Counter
from collections.abc import Container, Iterable

import numpy as np

from falaj.schedule.availability_profile import AvailabilityProfile
from falaj.schedule.cluster_state import ClusterState, HeldPart
from falaj.schedule.model import JobShape, Reservation, Role, SlotPlacement
from falaj.schedule.node_states import Flags, Ints

_FIRST_PER_POOL = 1
"""So many turns of a pool are tried again whenever something of it is freed."""


class Reservations:
    """Reservations by job."""

    def __init__(self, cluster_state: ClusterState, profile: AvailabilityProfile, depth: int) -> None:
        self.of: dict[str, Reservation] = {}
        self._cluster_state, self._profile, self._depth = cluster_state, profile, depth
        self._job_facts: dict[str, tuple[str, tuple[Role, ...], int]] = {}
        self._held_parts: dict[str, list[HeldPart]] = {}
        self._fully_held: set[str] = set()
        """Those for which everything is held."""
        self._owed_amounts: dict[str, list[list[int]]] = {}
        """What each of their places still lacks, as the profile knows it."""
        self._jobs_by_node: dict[str, set[str]] = {}
        self._pools: dict[str, int] = {}
        self.released: set[str] = set()
        """Nodes on which something is held no longer."""
        self.version = 0
        """Grows when something else is held than before; what is lent for a moment does not count."""

    def all(self) -> tuple[Reservation, ...]:
        """Every turn, soonest first."""
        return tuple(sorted(self.of.values(), key=lambda reservation: (reservation.at, reservation.job)))

    @property
    def holds(self) -> bool:
        """Is anything held now?"""
        return any(self._held_parts.values())

    def lendable(self) -> tuple[list[int], Ints, Ints]:
        """Nodes on which something is held: their rows, and what would be free there, of amounts and devices."""
        cluster_state = self._cluster_state
        parts = self.held()
        rows = sorted({cluster_state.index[part.node] for part in parts})
        position_of_row = {row: number for number, row in enumerate(rows)}
        free, dev = cluster_state.free[rows].astype(np.int64), cluster_state.dev[rows].astype(np.int64)
        for part in parts:
            number = position_of_row[cluster_state.index[part.node]]
            free[number, : len(part.amounts)] += part.amounts
            for position, milli in cluster_state.on(part):
                dev[number, position] += milli
        return rows, free, dev

    def room(self, pool: str) -> bool:
        """May one more gang of this pool have a turn?"""
        return self._pools.get(pool, 0) < self._depth

    def plan(self, job: str, shape: JobShape, width: int, now: int) -> tuple[int, tuple[SlotPlacement, ...]] | None:
        """When and where a job could start if its own turn did not count."""
        previous = self.of.get(job)
        if previous is None:
            return self._profile.earliest(shape, width, now)
        self._release_held(job)
        self._forget_usage(job)
        planned = self._profile.earliest(shape, width, now)
        self._hold_free_spots(job)
        return planned

    def put(self, reservation: Reservation, pool: str, roles: tuple[Role, ...], run_s: int) -> None:
        """Give a job its turn, or another one: what it held, and what is free, goes only to turns that come sooner."""
        previous = self._remove_reservation(reservation.job)
        self.version += 1
        self.of[reservation.job] = reservation
        self._job_facts[reservation.job] = (pool, roles, run_s)
        self._pools[pool] = self._pools.get(pool, 0) + 1
        for spot in reservation.spots:
            self._jobs_by_node.setdefault(spot.node, set()).add(reservation.job)
        self.hold(spot.node for spot in (*reservation.spots, *(previous.spots if previous else ())))

    def drop(self, job: str) -> Reservation | None:
        """Take a job's turn away; what was held for it is free."""
        reservation = self._remove_reservation(job)
        self.hold(spot.node for spot in (reservation.spots if reservation else ()))
        return reservation

    def _remove_reservation(self, job: str) -> Reservation | None:
        reservation = self.of.get(job)
        if reservation is None:
            return None
        self._release_held(job)
        self._forget_usage(job)
        del self.of[job]
        self._pools[self._job_facts.pop(job)[0]] -= 1
        for spot in reservation.spots:
            self._jobs_by_node[spot.node].discard(job)
            self.released.add(spot.node)
        return reservation

    def leave(self, node: str) -> None:
        """A node goes: the turns that had places there are void until they are planned anew, and know why."""
        for job in sorted(self._jobs_by_node.get(node, ())):
            pool, roles, run_s = self._job_facts[job]
            self.put(Reservation(job, self.of[job].at, (), f"{node} is gone"), pool, roles, run_s)

    def hold(self, nodes: Iterable[str]) -> None:
        """Something became free on these nodes: keep it for the turns it belongs to, soonest first.

        Cores are like each other: what a later turn had kept of them goes to a sooner one, too.
        """
        jobs = {job for node in nodes for job in self._jobs_by_node.get(node, ())}
        self.version += bool(jobs)
        for job in jobs:
            self._release_held(job)
        self.take_back(jobs)

    def ready(self, nodes: Iterable[str]) -> list[str]:
        """The jobs with a turn on these nodes whose places are all held now, soonest first."""
        jobs = {job for node in nodes for job in self._jobs_by_node.get(node, ())}
        return sorted((j for j in jobs if self.whole(j)), key=lambda job_id: (self.of[job_id].at, job_id))

    def first(self) -> list[str]:
        """Of each pool the jobs whose turns come first."""
        jobs_by_pool: dict[str, list[str]] = {}
        for reservation in self.all():
            jobs_by_pool.setdefault(self._job_facts[reservation.job][0], []).append(reservation.job)
        return [job for jobs in jobs_by_pool.values() for job in jobs[:_FIRST_PER_POOL]]

    def whole(self, job: str) -> bool:
        """Is everything of its turn held?"""
        return job in self._fully_held

    def due(self, now: int) -> list[str]:
        """Jobs whose turn has come, or is void."""
        return [reservation.job for reservation in self.all() if reservation.at <= now or not reservation.spots]

    def lend(
        self,
        end: int,
        also_jobs: Container[str] = (),
        suitable_nodes: Flags | None = None,
        kept_jobs: Container[str] = (),
    ) -> list[str]:
        """Free what is held for turns that come at that time or later, and for these jobs; say whose it was.

        `suitable_nodes` are the nodes that matter: turns that hold nothing there are left alone, and so are those to
        `kept_jobs`.
        """
        index = self._cluster_state.index
        lent_jobs = [
            job
            for job, parts in self._held_parts.items()
            if (self.of[job].at >= end or job in also_jobs)
            and job not in kept_jobs
            and any(suitable_nodes is None or suitable_nodes[index[part.node]] for part in parts)
        ]
        for job in lent_jobs:
            self._release_held(job)
        return lent_jobs

    def take_back(self, jobs: Iterable[str]) -> None:
        """Hold again what is still free of what was lent."""
        for job in sorted(jobs, key=lambda job_id: (self.of[job_id].at, job_id) if job_id in self.of else (0, job_id)):
            if job in self.of:
                self._hold_free_spots(job)

    def held(self) -> list[HeldPart]:
        """What is laid aside in the world for turns."""
        return [part for parts in self._held_parts.values() for part in parts]

    def _hold_free_spots(self, job: str) -> None:
        """Lay aside what is free of a turn's places, and what is held of them already."""
        self._release_held(job)
        reservation, (_, roles, run_s), cluster_state = self.of[job], self._job_facts[job], self._cluster_state
        needs, free, taken = cluster_state.needs(roles), dict[int, Ints](), Counter[tuple[int, int]]()
        parts, owed_amounts, is_full = list[HeldPart](), list[list[int]](), bool(reservation.spots)
        for spot in reservation.spots:
            row = cluster_state.index.get(spot.node, -1)
            if row < 0:
                is_full = False
                continue
            taken_amounts, devices = np.zeros_like(needs[spot.role]), dict[int, int]()
            if cluster_state.nodes[row].open:
                left_amounts = free.setdefault(row, np.maximum(cluster_state.free[row], 0))
                taken_amounts = np.minimum(needs[spot.role], left_amounts)
                left_amounts -= taken_amounts
                for position in cluster_state.places(spot):
                    milli = min(spot.milli, max(int(cluster_state.dev[row, position]) - taken[row, position], 0))
                    taken[row, position] += milli
                    devices[cluster_state.nodes[row].devices[position].index] = milli
                parts.append(HeldPart(spot.node, taken_amounts, devices))
            owed_amounts.append((needs[spot.role] - taken_amounts).tolist())
            is_full &= not any(owed_amounts[-1]) and sum(devices.values()) == len(spot.devices) * spot.milli
        cluster_state.lay_aside(parts)
        self._held_parts[job] = parts
        if is_full:
            self._fully_held.add(job)
        if self._owed_amounts.get(job) != owed_amounts:
            self._owed_amounts[job] = owed_amounts
            self._profile.put(_make_profile_name(job), reservation.spots, roles, reservation.at + run_s, owed_amounts)

    def _forget_usage(self, job: str) -> None:
        self._owed_amounts.pop(job, None)
        self._profile.drop(_make_profile_name(job))

    def _release_held(self, job: str) -> None:
        self._fully_held.discard(job)
        self._cluster_state.lay_aside(self._held_parts.pop(job, ()), -1)


def _make_profile_name(job: str) -> str:
    return f"turn of {job}"
