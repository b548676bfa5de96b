"""Who must make room for a blocked job: the cheapest set that lawfully does, or nobody.

Width beyond the smallest goes first, then best effort and lower bands, then whole gangs. A set is found node by node
from the cheapest slots, cut down until nothing in it can be spared, and judged only then: nobody is disturbed unless
the job has its places in what is freed, and the final set is lawful.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from falaj.schedule.coverage import keeps_cover
from falaj.schedule.filling import Amounts
from falaj.schedule.forecast import pool
from falaj.schedule.model import BEST_EFFORT, CPU, GPU, WHOLE, Evict, Job, Knobs, Resize, Shape, Spot
from falaj.schedule.offers import offers
from falaj.schedule.potential import Change, Potential
from falaj.schedule.rights import BAND_RIGHT, CAUSES, GUARANTEE, PROGRESS, SHARE, Claim, Rights, lost_s, rights
from falaj.schedule.running import Col, Running, firm, loose
from falaj.schedule.share import Tree
from falaj.schedule.world import World

MARGIN_S = 30
"""Grace beyond the time that saving takes."""
_TRIES = 2
_FIRST_BATCH = 64
"""For a guarantee without a lawful offer, this many borrowing jobs are tried together first, then four times more."""
_LOOK = 256
"""So many are looked at, gentlest and cheapest first, for what a quota lacks."""
_LOOK_OWED = 4096
"""The same for a guarantee."""
WHY = {
    "width": "a job that waits needs the room it grew into",
    "band": "a job of a higher band waits",
    "guarantee": "a queue has less than its guarantee",
    "share": "a queue has less than it deserves",
    "deadline": "a job of its queue would miss its deadline",
    "progress": "a job of its queue has much less left to do",
}

Place = Callable[[World, Shape, int, NDArray[np.bool_] | None], tuple[Spot, ...] | None]
Items = dict[int, tuple[Spot, ...]]
"""By row of what runs: the places it gives up, all of them or those beyond its smallest width."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Who makes room, and what for."""

    spots: tuple[Spot, ...]
    """Where the job will run."""
    evictions: tuple[Evict, ...] = ()
    resizes: tuple[Resize, ...] = ()
    taken: tuple[tuple[str, int], ...] = ()
    """(pool, milli) that count as taken back in this window."""


@dataclass(frozen=True, slots=True)
class _Case:
    claim: Claim
    potential: Potential
    now: int
    reclaimed: Sequence[tuple[str, int, int]]
    right: Rights
    allowed: NDArray[np.bool_] | None
    short: bool
    """True when a quota refuses the job, so that some must go who count against it, wherever they are."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """What one running job gives up, by quota."""

    row: int
    leaf: int
    band: int
    ran: int
    stops: bool
    now: Amounts
    base: Amounts


class Reclaim:
    """Finds victims among what runs."""

    def __init__(self, world: World, tree: Tree, running: Running, place: Place, knobs: Knobs) -> None:
        self._world, self._tree, self._running, self._place, self._knobs = world, tree, running, place, knobs

    def victims(
        self,
        claim: Claim,
        potential: Potential,
        now: int,
        reclaimed: Sequence[tuple[str, int, int]] = (),
        allowed: NDArray[np.bool_] | None = None,
    ) -> Victims | None:
        """The cheapest lawful set that gives the job its places; None when there is none.

        `reclaimed` is what was taken back in the last window, as the snapshot has it; `allowed` the nodes that stay.
        """
        shape = claim.job.shape
        if shape.band == BEST_EFFORT or not self._running.jobs:
            return None
        amount = self._world.quota(shape, None, claim.width).tolist()
        short = self._tree.refusal(claim.job.queue, amount) is not None
        full = rights(claim, self._running, potential, amount, self._knobs, now)
        gentle = np.where(full.evict == BAND_RIGHT, BAND_RIGHT, 0)
        # Those of its own queue are cheap to overtake, and yet it may not pay: then others owe it what they owe.
        owed = np.where(full.wide == PROGRESS, 0, full.wide)
        borrowers = np.where(gentle, gentle, full.borrows)
        stages = (
            [gentle, owed, borrowers, full.evict, full.wide]
            if (owed == GUARANTEE).any()
            else [gentle, full.evict, full.wide, owed]
        )
        stages = [stage for stage in stages if stage.any() or full.shrink.any()]
        case = _Case(claim, potential, now, reclaimed, full, allowed, short)
        for at, evict in enumerate(stages):
            if any((evict == stage).all() for stage in stages[:at]):
                continue
            case = replace(case, right=replace(full, evict=evict))
            for items in self._enough(case, amount) if short else self._offers(case):
                found = self._tried(case, items) if items else None
                if found and self._lawful(case, *found):
                    return self._victims(case, *found)
        if not full.borrows.any():
            return None
        case = replace(case, right=replace(full, evict=borrowers))
        chosen = self._thorough(case, amount)
        return self._victims(case, *chosen) if chosen else None

    # a set that is enough, and no more

    def _offers(self, case: _Case) -> Iterator[Items]:
        return offers(self._world, self._running, case.claim, case.right, _TRIES)

    def _thorough(self, case: _Case, amount: list[int]) -> tuple[tuple[Spot, ...], Items] | None:
        """For a guarantee: more and more of those that borrow, cheapest first, until the job has its places.

        Offers are found by devices and cores only, and few of them are tried; what a guarantee is owed must not depend
        on that.
        """
        table, right = self._running.table, case.right
        rows = np.flatnonzero(right.evict > 0)
        rows = rows[np.lexsort((table[rows, Col.NAME], right.price[rows]))].tolist()
        count = _FIRST_BATCH
        while True:
            items = {row: self._job(row).spots for row in rows[:count]}
            if case.short:
                items = self._gone(case, amount, items)
            chosen = self._tried(case, items) if items else None
            if chosen and self._lawful(case, *chosen):
                return chosen
            if count >= len(rows):
                return None
            count *= 4

    def _enough(self, case: _Case, amount: list[int]) -> Iterator[Items]:
        """Those whom its quotas need gone, gentlest and cheapest first: alone, then with those who give it room."""
        alone = self._gone(case, amount, {})
        if alone:
            yield alone
            # What elastic jobs lose by shrinking may be too much, where stopping others would not be.
            whole = replace(case.right, shrink=np.zeros_like(case.right.shrink))
            yield self._gone(replace(case, right=whole), amount, {})
            for items in self._offers(case):
                yield self._gone(case, amount, items)

    def _gone(self, case: _Case, amount: list[int], items: Items) -> Items:
        """These, and as many more as let it in; nobody when all are too few. The tree stays as it is."""
        queue, out = case.claim.job.queue, dict(items)
        charged = [self._loss(row, freed, case.now) for row, freed in items.items()]
        for loss in charged:
            self._tree.charge(self._tree.names[loss.leaf], loss.now, -1)
        refusal = self._tree.refusal(queue, amount)
        for row, freed in self._counting(case, refusal) if refusal else ():
            if row in out and len(out[row]) >= len(freed):
                continue
            loss = self._loss(row, freed, case.now)
            before = self._loss(row, out[row], case.now).now if row in out else 0
            loss = replace(loss, now=loss.now - before)
            self._tree.charge(self._tree.names[loss.leaf], loss.now, -1)
            charged.append(loss)
            then = self._tree.refusal(queue, amount)
            if then == refusal:  # it counts elsewhere: what it gives up is of no use
                self._tree.charge(self._tree.names[loss.leaf], charged.pop().now)
                continue
            out[row], refusal = freed, then
            if refusal is None:
                break
        for loss in charged:
            self._tree.charge(self._tree.names[loss.leaf], loss.now)
        return out if refusal is None else {}

    def _counting(self, case: _Case, refusal: tuple[str, str, int]) -> list[tuple[int, tuple[Spot, ...]]]:
        """Those that may give something up of what a quota lacks, and what: width, best effort, lower bands, others."""
        tree, table, right = self._tree, self._running.table, case.right
        on_path = tree.index[refusal[0]] in tree.paths[tree.leaf(case.claim.job.queue)]
        rows = np.flatnonzero((table[:, Col.LEAF] >= 0) & ((right.evict > 0) | (right.shrink > 0)))
        if on_path:  # its limit counts what lies below it
            at = tree.index[refusal[0]]
            rows = rows[[at in tree.paths[leaf] for leaf in table[rows, Col.LEAF].tolist()]]
        order = rows[np.lexsort((table[rows, Col.NAME], right.price[rows], self._gentleness(case)[rows]))]
        order = order[: _LOOK_OWED if right.borrows.any() else _LOOK].tolist()
        narrow = [(row, loose(self._job(row))) for row in order if right.shrink[row]]
        return [*narrow, *((row, self._job(row).spots) for row in order if right.evict[row])]

    def _gentleness(self, case: _Case) -> Amounts:
        """By row the band that makes it dear to stop it: for a guarantee all that borrow are alike."""
        right, band = case.right, case.claim.job.shape.band
        return np.where(right.evict == GUARANTEE, band, self._running.table[:, Col.BAND])

    def _tried(self, case: _Case, items: Items) -> tuple[tuple[Spot, ...], Items] | None:
        """The job's places once these are given up, and which of them it takes; the world stays as it is."""
        mark = self._world.mark()
        try:
            for row, freed in items.items():
                self._world.give(freed, self._job(row).shape.roles)
            spots = self._place(self._world, case.claim.job.shape, case.claim.width, case.allowed)
            return None if spots is None else self._spared(case, spots, dict(items))
        finally:
            self._world.rewind(mark)

    def _spared(self, case: _Case, spots: tuple[Spot, ...], items: Items) -> tuple[tuple[Spot, ...], Items]:
        """Leave out whatever can be, the dearest first, as long as the job still has its places."""
        table, price, rank = self._running.table, case.right.price, self._gentleness(case)
        dear = sorted(items, key=lambda row: (rank[row], price[row], table[row, Col.NAME]), reverse=True)
        for row in dear:
            roles = self._job(row).shape.roles
            for part in self._parts(case, row, items[row]):
                inside = {spot.node for spot in spots}
                self._world.hold(part, roles)
                other: tuple[Spot, ...] | None = spots
                if not inside.isdisjoint(spot.node for spot in part):
                    near = case.allowed if case.short else self._only(inside)  # else there is room elsewhere
                    other = self._place(self._world, case.claim.job.shape, case.claim.width, near)
                kept = _without(items[row], part)
                if other is not None and case.short and not self._lets_in(case, other, items | {row: kept}):
                    other = None
                if other is None:
                    self._world.give(part, roles)
                    continue
                spots, items[row] = other, kept
                if not items[row]:
                    break
        return spots, {row: freed for row, freed in items.items() if freed}

    def _parts(self, case: _Case, row: int, freed: tuple[Spot, ...]) -> Sequence[tuple[Spot, ...]]:
        """What it might keep after all, most first."""
        job = self._job(row)
        if not self._stops(row, freed):
            return [(spot,) for spot in freed]
        return [freed, firm(job.shape, job.spots)] if case.right.shrink[row] else [freed]

    def _only(self, names: set[str]) -> NDArray[np.bool_]:
        mask = np.zeros(len(self._world.nodes), np.bool_)
        mask[[self._world.row(name) for name in names]] = True
        return mask

    # the law, asked of the final set

    def _lawful(self, case: _Case, spots: tuple[Spot, ...], items: Items) -> bool:
        losses = [self._loss(row, places, case.now) for row, places in items.items()]
        return (
            self._admitted(case, spots, losses)
            and self._fair(case, spots, losses)
            and self._pays(case, items)
            and self._bounded(case, items)
            and self._in_time(case, items)
        )

    def _lets_in(self, case: _Case, spots: tuple[Spot, ...], items: Items) -> bool:
        return self._admitted(case, spots, [self._loss(row, freed, case.now) for row, freed in items.items()])

    def _admitted(self, case: _Case, spots: tuple[Spot, ...], losses: Sequence[_Loss]) -> bool:
        """Its quotas let it in, once the others are out."""
        amount = self._world.quota(case.claim.job.shape, spots, case.claim.width)
        for loss in losses:
            self._tree.charge(self._tree.names[loss.leaf], loss.now, -1)
        refused = self._tree.refusal(case.claim.job.queue, amount.tolist())
        for loss in losses:
            self._tree.charge(self._tree.names[loss.leaf], loss.now)
        return refused is None

    def _fair(self, case: _Case, spots: tuple[Spot, ...], losses: Sequence[_Loss]) -> bool:
        """Whoever takes from other queues is owed it, leaves them their guarantees, and raises the potential."""
        shape, potential = case.claim.job.shape, case.potential
        leaf = self._tree.leaf(case.claim.job.queue)
        others = [loss for loss in losses if loss.leaf != leaf and loss.band > BEST_EFFORT]
        if not others:
            return True
        amount = self._world.quota(shape, spots, case.claim.width)
        changes = self._changes(leaf, amount, [(loss, loss.now) for loss in losses if loss.band], 1, base=False)
        own = [have - part for have, part in zip(changes[0][2], amount.tolist(), strict=True)]
        # By what it asks for: one that takes any model is not held to what its queue deserves of the one it got.
        cause = potential.cause(leaf, own, self._world.quota(shape, None, case.claim.width).tolist())
        if not cause or (cause == "share" and any(loss.ran < self._knobs.min_run_s for loss in others)):
            return False
        if not self._keeps_covered(case, others):
            return False
        if cause == "guarantee":
            # A job that borrows may go, so it may shrink as well, whatever its queue has of its guarantee.
            bound = {loss.leaf for loss in others if not loss.stops and not case.right.borrows[loss.row]}
            return all(row not in bound or potential.keeps(row, after) for row, _, after in changes[1:])
        if not all(potential.keeps(row, after) for row, _, after in changes[1:]) or not potential.improves(changes):
            return False
        if not any(loss.stops and loss.band == shape.band for loss in others):
            return True
        least = self._world.quota(shape, firm(shape, spots), shape.least)
        whole = [(loss, loss.base) for loss in losses if loss.stops and loss.band >= shape.band]
        return potential.improves(self._changes(leaf, least, whole, shape.band, base=True))

    def _keeps_covered(self, case: _Case, losses: Sequence[_Loss]) -> bool:
        """No queue loses anything that its guarantee covers."""
        stopped: dict[int, set[int]] = {}
        for loss in losses:
            if loss.stops:
                stopped.setdefault(loss.leaf, set()).add(loss.row)
        return all(keeps_cover(self._running, case.potential, leaf, rows) for leaf, rows in stopped.items())

    def _changes(
        self, leaf: int, more: Amounts, losses: Sequence[tuple[_Loss, Amounts]], band: int, base: bool
    ) -> list[Change]:
        """What leaves use before and after, the job's own first: of a band and above, now or at their least widths."""
        less = {leaf: -more}
        for loss, part in losses:
            less[loss.leaf] = less.get(loss.leaf, 0) + part
        used = {row: self._running.used(row, band, base) for row in less}
        return [(row, used[row].tolist(), (used[row] - part).tolist()) for row, part in less.items()]

    def _pays(self, case: _Case, items: Items) -> bool:
        """Those it overtakes for having less to do lose less time, all together, than it would wait for them."""
        rows = [row for row, freed in items.items() if case.right.evict[row] == PROGRESS and self._stops(row, freed)]
        if not rows:
            return True
        table = self._running.table[rows]
        wait = (self._running.service(case.now)[rows] * WHOLE // table[:, Col.SIZE]).min()
        return bool((case.claim.run_s + table[:, Col.RESTART] + lost_s(self._running, case.now)[rows]).sum() < wait)

    def _bounded(self, case: _Case, items: Items) -> bool:
        """Work that is lost is a part of the work that is gained; guarantees, higher bands and best effort aside."""
        free = (GUARANTEE, BAND_RIGHT)
        rows = [row for row in items if case.right.evict[row] not in free]
        lost = (self._running.table[rows, Col.SIZE] * lost_s(self._running, case.now)[rows]).sum()
        return bool(lost * 100 <= self._knobs.lost_percent * case.claim.size * case.claim.run_s)

    def _in_time(self, case: _Case, items: Items) -> bool:
        """Of every pool only so much is taken back in a window. The first one in it may be larger than that."""
        for name, milli in self._taken(case, items):
            since = case.now - self._knobs.reclaim_window_s
            recent = sum(part for where, at, part in case.reclaimed if where == name and at > since)
            quota = next((one for one in (f"{GPU}:{name}", name, GPU) if one in self._tree.quotas), CPU)
            whole = self._tree.capacity[self._tree.quotas.index(quota)]
            if recent and (recent + milli) * 100 > whole * self._knobs.reclaim_percent:
                return False
        return True

    def _taken(self, case: _Case, items: Items) -> tuple[tuple[str, int], ...]:
        out: Counter[str] = Counter()
        for row, freed in items.items():
            if case.right.evict[row] == SHARE:
                out[pool(self._job(row).shape)] += sum(max(len(spot.devices), 1) * spot.milli for spot in freed)
        return tuple(sorted(out.items()))

    # the answer

    def _victims(self, case: _Case, spots: tuple[Spot, ...], items: Items) -> Victims:
        evictions, resizes = [], []
        lost = lost_s(self._running, case.now)
        for row in sorted(items, key=lambda row: self._running.ids[row]):
            job, wanted = self._job(row), case.claim.job.id
            if self._stops(row, items[row]):
                save_s, lost_now = job.save_s, int(lost[row])
                if save_s > self._knobs.grace_s:
                    save_s, lost_now = self._knobs.grace_s, max(case.now - (job.saved or job.started), 0)
                work = int(self._running.table[row, Col.SIZE]) * lost_now // WHOLE
                why = WHY[CAUSES[case.right.evict[row]]]
                evictions.append(Evict(job.id, wanted, save_s + MARGIN_S, work, why))
            else:
                resizes.append(Resize(job.id, _without(job.spots, items[row]), WHY["width"], wanted))
        return Victims(spots, tuple(evictions), tuple(resizes), self._taken(case, items))

    def _job(self, row: int) -> Job:
        return self._running.jobs[self._running.ids[row]]

    def _stops(self, row: int, freed: Sequence[Spot]) -> bool:
        return len(freed) == len(self._job(row).spots)

    def _loss(self, row: int, freed: tuple[Spot, ...], now: int) -> _Loss:
        job = self._job(row)
        kept = _without(job.spots, freed)
        amount = self._running.amounts[row] - (self._world.quota(job.shape, kept, len(kept)) if kept else 0)
        leaf, band, started = (int(self._running.table[row, column]) for column in (Col.LEAF, Col.BAND, Col.STARTED))
        return _Loss(row, leaf, band, now - started, not kept, amount, self._running.base[row])


def _without(spots: tuple[Spot, ...], gone: tuple[Spot, ...]) -> tuple[Spot, ...]:
    """The spots without those; of equal ones as many go as are named, the last first."""
    left = Counter(gone)
    kept = []
    for spot in reversed(spots):
        if left[spot]:
            left[spot] -= 1
        else:
            kept.append(spot)
    return tuple(reversed(kept))
