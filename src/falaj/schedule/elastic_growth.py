"""How wide elastic jobs get: wider than they started where nobody waits for the room and it surely pays.

Making room again is not here: whoever is blocked takes width before anything else (reclaim.py).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.cluster_state import ClusterState
from falaj.schedule.fair_share import ShareTree
from falaj.schedule.model import MILLI_PER_UNIT, Job, JobResize, SchedulerOptions, SlotPlacement
from falaj.schedule.preemption import PlacementFinder
from falaj.schedule.preemption_rights import compute_lost_work_s
from falaj.schedule.running_jobs import JobColumn, RunningJobs

MIN_GAIN_RATIO = 2
"""A resize must gain so many times what it costs."""
SLOT_YIELD_TENTHS = 9
"""A slot more does so many tenths of the work of one that is there: nobody scales perfectly."""


class GrowthPlanner:
    """Lets running jobs grow into what is idle."""

    def __init__(
        self,
        cluster_state: ClusterState,
        tree: ShareTree,
        running: RunningJobs,
        find_placement: PlacementFinder,
        options: SchedulerOptions,
    ) -> None:
        self._cluster_state, self._tree, self._running, self._find_placement, self._options = (
            cluster_state,
            tree,
            running,
            find_placement,
            options,
        )

    def grow(self, now: int, allowed: NDArray[np.bool_] | None = None) -> tuple[JobResize, ...]:
        """Who gets wider, on the allowed nodes; to be asked when nobody waits who could have the room.

        Whoever gains most comes first, and of equals who has least. Nothing is changed here.
        """
        candidates = self._list_candidates(now) if self._options.grow else []
        if not candidates:
            return ()
        mark = self._cluster_state.mark()
        resizes, charged = [], []
        for job, gain_of in candidates:
            extra_spots = self._find_growth_spots(job, gain_of, allowed)
            if extra_spots:
                amount = self._cluster_state.quota(job.shape, extra_spots, 0).tolist()
                self._cluster_state.take(extra_spots, job.shape.roles)
                self._tree.charge(job.queue, amount)
                charged.append((job.queue, amount))
                resizes.append(
                    JobResize(job.id, (*job.spots, *extra_spots), "there is idle room, and it will end earlier with it")
                )
        for queue, amount in charged:
            self._tree.charge(queue, amount, -1)
        self._cluster_state.rewind(mark)
        return tuple(resizes)

    def _list_candidates(self, now: int) -> list[tuple[Job, Callable[[int], int]]]:
        """Jobs that could grow and would gain, best first, and what each gains by so many slots more."""
        if not self._running.elastic:
            return []
        table = self._running.table
        is_able = (table[:, JobColumn.ROOM] > 0) & (table[:, JobColumn.LEAF] >= 0)
        if not is_able.any():
            return []
        rested = (
            now - np.maximum(table[:, JobColumn.RESIZED], table[:, JobColumn.STARTED]) >= self._options.resize_gap_s
        )
        left = self._running.service(now) * MILLI_PER_UNIT // np.maximum(table[:, JobColumn.SIZE], 1)
        cost = MIN_GAIN_RATIO * (table[:, JobColumn.RESTART] + compute_lost_work_s(self._running, now))
        best = []
        for row in np.flatnonzero(is_able & rested).tolist():
            job = self._running.jobs[self._running.ids[row]]
            gain_of = partial(_compute_gained_s, int(left[row]), int(cost[row]), job.width)
            gain = gain_of(job.shape.most - job.width)
            if gain > 0:
                best.append((-gain * gain // int(table[row, JobColumn.SIZE]), job.id, job, gain_of))
        return [candidate[2:] for candidate in sorted(best, key=lambda candidate: candidate[:2])]

    def _find_growth_spots(
        self, job: Job, gain_of: Callable[[int], int], allowed: NDArray[np.bool_] | None
    ) -> tuple[SlotPlacement, ...] | None:
        """Places for more slots beside those it has, on devices of the same model: as many as can be, by halves."""
        first = job.spots[0]
        role = job.shape.roles[0]
        if first.devices:
            model = self._cluster_state.model(first.node, first.devices[0])
            role = replace(role, ask=replace(role.ask, models=(model,)))
        domain = self._cluster_state.domains(job.shape.level if job.shape.required else "cluster")
        same_domain = domain == domain[self._cluster_state.row(first.node)]
        extra_count = job.shape.most - job.width
        while extra_count and gain_of(extra_count) > 0:
            spots = self._find_placement(
                self._cluster_state,
                replace(job.shape, roles=(role,)),
                extra_count,
                same_domain if allowed is None else same_domain & allowed,
            )
            if spots and not self._tree.refusal(job.queue, self._cluster_state.quota(job.shape, spots, 0).tolist()):
                return spots
            extra_count //= 2
        return None


def _compute_gained_s(left_s: int, cost: int, width: int, extra_slots: int) -> int:
    """Seconds it would end earlier, less those that would make the resize not worth it."""
    return left_s - left_s * width * 10 // (width * 10 + extra_slots * SLOT_YIELD_TENTHS) - cost
