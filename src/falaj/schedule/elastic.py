"""How wide elastic jobs get: wider than they started where nobody waits for the room and it surely pays.

Making room again is not here: whoever is blocked takes width before anything else (reclaim.py).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.model import WHOLE, Job, Knobs, Resize, Spot
from falaj.schedule.reclaim import Place
from falaj.schedule.rights import lost_s
from falaj.schedule.running import Col, Running
from falaj.schedule.share import Tree
from falaj.schedule.world import World

WORTH = 2
"""A resize must gain so many times what it costs."""
YIELD = 9
"""A slot more does so many tenths of the work of one that is there: nobody scales perfectly."""


class Growth:
    """Lets running jobs grow into what is idle."""

    def __init__(self, world: World, tree: Tree, running: Running, place: Place, knobs: Knobs) -> None:
        self._world, self._tree, self._running, self._place, self._knobs = world, tree, running, place, knobs

    def grow(self, now: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Resize, ...]:
        """Who gets wider, on the allowed nodes; to be asked when nobody waits who could have the room.

        Whoever gains most comes first, and of equals who has least. Nothing is changed here.
        """
        candidates = self._candidates(now) if self._knobs.grow else []
        if not candidates:
            return ()
        mark = self._world.mark()
        out, charged = [], []
        for job, gain_of in candidates:
            more = self._more(job, gain_of, allowed)
            if more:
                amount = self._world.quota(job.shape, more, 0).tolist()
                self._world.take(more, job.shape.roles)
                self._tree.charge(job.queue, amount)
                charged.append((job.queue, amount))
                out.append(Resize(job.id, (*job.spots, *more), "there is idle room, and it will end earlier with it"))
        for queue, amount in charged:
            self._tree.charge(queue, amount, -1)
        self._world.rewind(mark)
        return tuple(out)

    def _candidates(self, now: int) -> list[tuple[Job, Callable[[int], int]]]:
        """Jobs that could grow and would gain, best first, and what each gains by so many slots more."""
        if not self._running.elastic:
            return []
        table = self._running.table
        able = (table[:, Col.ROOM] > 0) & (table[:, Col.LEAF] >= 0)
        if not able.any():
            return []
        rested = now - np.maximum(table[:, Col.RESIZED], table[:, Col.STARTED]) >= self._knobs.resize_gap_s
        left = self._running.service(now) * WHOLE // np.maximum(table[:, Col.SIZE], 1)
        cost = WORTH * (table[:, Col.RESTART] + lost_s(self._running, now))
        best = []
        for row in np.flatnonzero(able & rested).tolist():
            job = self._running.jobs[self._running.ids[row]]
            gain_of = partial(_gain, int(left[row]), int(cost[row]), job.width)
            gain = gain_of(job.shape.most - job.width)
            if gain > 0:
                best.append((-gain * gain // int(table[row, Col.SIZE]), job.id, job, gain_of))
        return [one[2:] for one in sorted(best, key=lambda one: one[:2])]

    def _more(
        self, job: Job, gain_of: Callable[[int], int], allowed: NDArray[np.bool_] | None
    ) -> tuple[Spot, ...] | None:
        """Places for more slots beside those it has, on devices of the same model: as many as can be, by halves."""
        first = job.spots[0]
        role = job.shape.roles[0]
        if first.devices:
            model = self._world.model(first.node, first.devices[0])
            role = replace(role, ask=replace(role.ask, models=(model,)))
        domain = self._world.domains(job.shape.level if job.shape.required else "cluster")
        near = domain == domain[self._world.row(first.node)]
        more = job.shape.most - job.width
        while more and gain_of(more) > 0:
            spots = self._place(
                self._world, replace(job.shape, roles=(role,)), more, near if allowed is None else near & allowed
            )
            if spots and not self._tree.refusal(job.queue, self._world.quota(job.shape, spots, 0).tolist()):
                return spots
            more //= 2
        return None


def _gain(left: int, cost: int, width: int, more: int) -> int:
    """Seconds it would end earlier, less those that would make the resize not worth it."""
    return left - left * width * 10 // (width * 10 + more * YIELD) - cost
