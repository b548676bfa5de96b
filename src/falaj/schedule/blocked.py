"""What becomes of jobs that do not fit: others make room, they get a turn, or they are lent what is held for one."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np

from falaj.schedule.board import Board
from falaj.schedule.budget import BUDGET, MONEY, Charge, charge
from falaj.schedule.columns import Flags, Ints
from falaj.schedule.forecast import size
from falaj.schedule.ground import MANY_LEAVES, Refusal
from falaj.schedule.lines import Rank
from falaj.schedule.model import (
    BEST_EFFORT,
    NEVER,
    NORMAL,
    Evict,
    Job,
    Reason,
    Reservation,
    Resize,
    Snapshot,
    Spot,
    Start,
)  # fmt: skip
from falaj.schedule.place import place
from falaj.schedule.profile import amounts, slots_in
from falaj.schedule.reclaim import WHY, Victims
from falaj.schedule.rights import Claim
from falaj.schedule.words import BUDGETS, counted, spendable

Found = tuple[tuple[Spot, ...], list[int], Charge | None]
"""Places, what they count against quotas, what they cost; no costs: best effort."""
MADE = "others make room for it"
TICK_S = 30
"""So often those are looked at again for whom nobody had to make room."""
GRACE_S = 30
LONGEST_WAIT_S = 7 * 86_400
MOST_CLAIMS = 8
"""So many searches for victims a cycle; two where there are very many leaves."""
_LOOK = 64
"""So many are looked at behind one that asks for room, where a budget refuses some of them."""
MOST_ROUNDS = 4
"""So often a cycle looks at what it freed itself."""


@dataclass(slots=True)
class Draft:
    """A plan in the making."""

    starts: list[Start] = field(default_factory=list)
    resizes: list[Resize] = field(default_factory=list)
    evictions: list[Evict] = field(default_factory=list)
    redeemed: dict[str, Reservation] = field(default_factory=dict)
    """The turns of those that start."""
    lost: dict[str, Reservation] = field(default_factory=dict)
    """Turns that were, and what became of them: should another be given, it does not come later without a cause."""
    claims: int = 0


class Blocked(Board):
    """The part of the scheduler that looks after blocked jobs."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._plan = Draft()
        self._open: set[int] = set()
        self._unsettled: set[str] = set()
        self._late: set[str] = set()
        """Leaves that wanted room after a cycle's last search for victims."""
        self._tick = -1
        self._claimed: dict[tuple[str, int], set[str]] = {}
        """By line, who asked for room, until something of their leaf or the clock moves on."""
        self._cleared: dict[str, str] = {}
        """Those for whom others make room, and their leaves: what that leaves of a quota is theirs."""
        self._asked_at: dict[str, int] = {}
        self._closed_at: dict[int, int] = {}
        self._tried: dict[int, tuple[int, int, str]] = {}
        self._room: tuple[int, tuple[list[int], Ints, Ints]] | None = None

    def _evict(self, evict: Evict) -> None:
        self._plan.evictions.append(evict)
        self.stop(evict)

    def _start(self, job: Job, found: Found, why: str) -> None:
        spots, amount, costs = found
        band = self.band(job.queue, job.shape)
        if costs is None:
            band, why = BEST_EFFORT, f"{why}; as best effort, for its budget is used up"
        start = Start(job.id, spots, band, why, costs or ())
        self._plan.starts.append(start)
        if job.id in self.turns.of:
            self._plan.redeemed[job.id] = self.turns.of[job.id]
        for evict in [
            one for one in self._plan.evictions if one.wanted_by == job.id
        ]:  # it needs nobody's place, after all
            self._plan.evictions.remove(evict)
            self.spare(evict.job)
        self.start(job, start, amount)
        self.rank(job.queue)
        self._unsettled.add(job.queue)

    def _find(self, job: Job) -> tuple[Found | None, Refusal | None]:
        """Places for a job, at the width it prefers or its least, that its quotas allow; else what refuses them."""
        refusal = None
        for width in dict.fromkeys((max(job.shape.roles[0].count, job.shape.least), job.shape.least)):
            allowed: Flags | None = self._lasting(job)
            while (spots := place(self.world, job.shape, width, allowed)) is not None:
                amount = self.counts(job, spots, width)
                refusal = self._refusal(job, amount)
                if refusal is None:
                    costs, refusal = self._afford(job, spots)
                    if refusal is None:
                        return (spots, amount, costs), None
                    narrower = self._cheaper_than(spots, allowed) if refusal[1] == f"{BUDGET}{MONEY}" else None
                else:
                    narrower = self._without(refusal[1], allowed)
                if narrower is None:
                    break  # with fewer slots it costs less
                allowed = narrower
        return None, refusal

    def _afford(self, job: Job, spots: tuple[Spot, ...]) -> tuple[Charge | None, Refusal | None]:
        """What to charge its budgets; None where it runs uncharged, as best effort; or the budget that stops it."""
        if not self.budgeted or self.band(job.queue, job.shape) == BEST_EFFORT:
            return (), None
        nodes = {spot.node: self.world.nodes[self.world.index[spot.node]] for spot in spots}
        costs = charge(nodes, job.shape.roles, spots, self.pays_s(job))
        spent = self.budgets.exhausted(job.queue, costs)
        if spent is None:
            return costs, None
        return None, (spent.queue, f"{BUDGET}{spent.unit}", spent.missing) if spent.stops else None

    def _lasting(self, job: Job) -> Flags | None:
        """The nodes that do not go away under a job; None when none goes."""
        return self._staying(self.now + self.run_s(job)) if self.leaving else None

    def _staying(self, until: int = NEVER) -> Flags | None:
        if not self.leaving:
            return None
        return np.array([node.leaving >= until for node in self.world.nodes], np.bool_)

    def _without(self, quota: str, allowed: Flags | None) -> Flags | None:
        """The allowed nodes without those that count against a model's quota; None when that is no model's."""
        model = quota.partition(":")[2]
        if not model:
            return None
        rest = np.array([all(one.model != model for one in node.devices) for node in self.world.nodes], np.bool_)
        return rest if allowed is None else rest & allowed

    def _cheaper_than(self, spots: tuple[Spot, ...], allowed: Flags | None) -> Flags | None:
        """The allowed nodes that cost less than the dearest of these places; None when that costs nothing."""
        prices = self.world.prices(any(spot.devices for spot in spots))
        rest: Flags = prices < prices[[self.world.index[spot.node] for spot in spots]].max()
        return (rest if allowed is None else rest & allowed) if rest.any() else None

    def _hold_back(self, job: Job, number: int, refusal: Refusal) -> None:
        """A quota refuses it, and with it its line; or a budget, and with it those of its line that cost no less."""
        if refusal[1].startswith(BUDGET):
            self.refuse(job, number, refusal)
        else:
            self.park(job.queue, number, refusal)
        self._tried.pop(number, None)  # as soon as that lets it, it may start where it could not be lent anything
        self._unsettled.add(job.queue)  # another may be the first of it now for whom others make room
        if job.id in self.turns.of and not self.waited_for(job.id) and not self._waits(job.id):
            self._lose(self.turns.drop(job.id), "a quota or a budget had refused it")

    def _lose(self, turn: Reservation | None, cause: str) -> None:
        if turn is not None:
            self._plan.lost[turn.job] = replace(turn, cause=cause)

    def _refusal(self, job: Job, amount: list[int]) -> Refusal | None:
        """The quota that refuses a job so much: as things are, or as they will be when those go who make room."""
        refusal = self.tree.refusal(job.queue, amount)
        if refusal is not None or not self._cleared or not self.tree.bounded:
            return refusal
        with self._made_way(job.id):
            return self.tree.refusal(job.queue, amount)

    @contextmanager
    def _made_way(self, but: str) -> Iterator[None]:
        """The tree as it will be when those are gone who make room, and those run for whom they do."""
        comes = (self._cleared.keys() & self.lines.jobs.keys()) - {but}
        moves = [(self._cleared[one], self.amount(self.lines.numbers[one]), 1) for one in sorted(comes)]
        goes = [one for one in sorted(self.stopping) if self.running[one].stopped_for in comes]
        moves += [(self.running[one].queue, self._counted[one], -1) for one in goes]
        for queue, amount, sign in moves:
            self.tree.charge(queue, amount, sign)
        try:
            yield
        finally:
            for queue, amount, sign in reversed(moves):
                self.tree.charge(queue, amount, -sign)

    def _clear_for(self) -> None:
        """Know for whom others make room, or made it and they could not start yet; as facts tell, and nothing else."""
        waited, before = {self.running[one].stopped_for for one in self.stopping}, self._cleared
        found = [turn.job for turn in self.turns.all() if turn.cause == MADE or turn.job in waited]
        self._cleared = {one: self.lines.jobs[one].queue for one in found}
        for one in sorted(before.keys() - self._cleared.keys()):
            self._release_above(before[one])

    def _welcome(self) -> list[str]:
        """Those for whom room was made, soonest first, where all who had to go are gone: it is their turn, or not."""
        for one in [one for one in self._cleared if one not in self.turns.of or one not in self.lines.jobs]:
            self._forgo(one)
        free = self._cleared.keys() - {self.running[one].stopped_for for one in self.stopping}
        free = {job_id for job_id in free if not self._waits(job_id) and not self._awaits_others(job_id)}
        return sorted(free, key=lambda one: (self.turns.of[one].at, one))

    def _waits(self, job_id: str) -> bool:
        """Was room made for it, and a quota refuses it only while those are there who go for others?"""
        job = self.lines.jobs[job_id]
        amount = self.amount(self.lines.numbers[job_id])
        if job_id not in self._cleared or self.tree.refusal(job.queue, amount) is None:
            return False
        with self._made_way(job_id):
            return self.tree.refusal(job.queue, amount) is None

    def _awaits_others(self, job_id: str) -> bool:
        """Are its places those of jobs that are being stopped, be it for another?"""
        return not self.turns.whole(job_id) and bool(self._stopping_on(self.turns.of[job_id].spots))

    @contextmanager
    def _vacated(self, lent: Container[str]) -> Iterator[None]:
        """The world without the jobs that are being stopped, and with the places held of the jobs for which they are,
        but for those in `lent`."""
        going = [self.running[job_id] for job_id in sorted(self.stopping)]
        kept = [job_id for job_id in self._cleared if job_id in self.turns.of and job_id not in lent]
        for job in going:
            self.world.give(job.spots, job.shape.roles)
        self.turns.take_back(kept)
        try:
            yield
        finally:
            self.turns.lend(NEVER, kept)
            for job in going:
                self.world.hold(job.spots, job.shape.roles)
            self.turns.take_back(kept)

    def _forgo(self, job_id: str) -> None:
        """What was kept of a quota for a job is anybody's."""
        self._release_above(self._cleared.pop(job_id, ""))

    def _heads(self, queue: str) -> Sequence[tuple[Rank, int]]:
        """The first jobs of a leaf's lines that no budget is known to refuse, best first."""
        heads, dear = self.lines.heads(queue), self.dear.get(queue)
        if not dear:
            return heads
        found = {number: self.lines.cheaper(queue, number, most) for number, (most, _) in dear.items()}
        rest = [one for one in heads if one[1] not in dear]
        return sorted([*rest, *((rank, number) for number, rank in found.items() if rank is not None)])

    def _held(self, job: Job, number: int) -> bool:
        """Is a quota or a budget known to refuse it? Or do others make room for it, which must not be in vain?"""
        if job.id in self._cleared or number in self.parked.get(job.queue, ()):
            return True
        return self.too_dear(job, number) is not None

    def _redeem(self, job_id: str) -> None:
        """A turn has come, or all its places are free: start, or wait on with the cause written down."""
        job, turn = self.lines.jobs[job_id], self.turns.of[job_id]
        number = self.lines.numbers[job_id]
        refusal = self._refusal(job, self.amount(number))
        if refusal is not None:
            self._hold_back(job, number, refusal)
            return
        self.turns.lend(NEVER, (job_id,))
        found, refusal = self._find(job)
        if found is not None:
            self._start(job, found, f"its turn, reserved for {turn.at}")
            return
        self.turns.take_back([job_id])
        if refusal is not None and refusal[1].startswith(BUDGET):
            self._hold_back(job, number, refusal)
            return
        if job_id in self._cleared:  # what others left was not enough: it may ask more of them, in this cycle
            self._claimed.get((job.queue, number), set()).discard(job_id)
            self._unsettled.add(job.queue)
        if not turn.spots or turn.at <= self.now:
            self._reserve(job, turn.cause if not turn.spots else "what runs there takes longer than expected")

    def _hopeful(self) -> list[str]:
        """Of the turns that come first, those that what was freed may suit, wherever it is."""
        rows = [self.world.index[name] for name in self.freed if name in self.world.index]
        first = self.turns.first() if rows else []
        asks = {job_id: self.lines.jobs[job_id].shape.roles[0].ask for job_id in first}
        return [job_id for job_id in first if self.profile.suiting(asks[job_id])[rows].any()]

    def _settle_all(self) -> None:
        """Look after the blocked jobs of leaves that changed; who must wait for that is first in later cycles."""
        if self._turns_left():
            for queue in self._neediest(self._unsettled):
                if self._plan.claims >= self._most_claims() and not self._turns_left():
                    break
                self._settle(queue)
        waiting = sorted(self._unsettled, key=lambda queue: (self._asked_at.get(queue, -1), queue))
        for queue in waiting:
            if self._plan.claims >= self._most_claims():
                return
            while (claimant := self._claimant(queue)) is not None:
                if self._plan.claims >= self._most_claims():
                    return
                self._claim(*claimant)
            self._unsettled.discard(queue)

    def _turns_left(self) -> bool:
        """May one more blocked job have a turn?"""
        return any(map(self.turns.room, {self.shapes.pools[number] for number in self.closed}))

    def _most_claims(self) -> int:
        return MOST_CLAIMS if len(self.demand) <= MANY_LEAVES else 2

    def _claimant(self, queue: str) -> tuple[Job, int] | None:
        """The first blocked job of a leaf that has not claimed room yet; then those behind it that its guarantee covers
        beside all for which others make room already: a guarantee is met at once, not job by job."""
        parked, first, owes = self.parked.get(queue, ()), True, None
        if not self.closed and not parked:
            return None  # nobody is blocked
        for rank, number in self._heads(queue):
            if number in self._lacking or (number not in self.closed and number not in parked):
                continue
            asked = self._claimed.get((queue, number), set()) & self.lines.jobs.keys()
            if first and rank[-1] not in asked:
                return self.lines.jobs[rank[-1]], number
            first, owes = False, owes or self._owing(queue)
            if owes is None:
                return None
            # Of equal jobs none has room made for it where the one before it has none, not even what others leave.
            if not all(job in self._cleared or self.waited_for(job) for job in asked) or not owes(self.amount(number)):
                continue
            near = islice(self.lines.best(queue, number), _LOOK if self.dear.get(queue) else None)
            free = (one for one in near if self.too_dear(self.lines.jobs[one], number) is None)
            behind = next((one for one in free if one not in asked), None)
            if behind is not None:
                return self.lines.jobs[behind], number
        return None

    def _owing(self, queue: str) -> Callable[[list[int]], bool] | None:
        """Whether a leaf's guarantee covers so much more beside all that others make room for; None if it has none."""
        potential, leaf = self.potential(self._tick), self.table.leaf(queue)
        if not potential.guaranteed()[leaf].any():
            return None
        waited = {self.running[job_id].stopped_for for job_id in self.stopping} | self._cleared.keys()
        served = [self.lines.jobs[job_id] for job_id in waited & self.lines.jobs.keys()]
        mine = [self.amount(self.lines.numbers[job.id]) for job in served if job.queue == queue]
        used = [sum(parts) for parts in zip(self.table.used(leaf, 1, base=False).tolist(), *mine, strict=True)]
        return partial(potential.owes, leaf, used)

    def _is_owed(self, job_id: str) -> bool:
        """Does its queue's guarantee cover a waiting job beside what runs?"""
        job = self.lines.jobs[job_id]
        leaf = self.table.leaf(job.queue)
        used = self.table.used(leaf, 1, base=False).tolist()
        return self.potential(self._tick).owes(leaf, used, self.amount(self.lines.numbers[job_id]))

    def _settle(self, queue: str, before: Rank | None = None) -> None:
        """Make room for the first blocked job of a leaf, and give turns: to those that stand before one that starts."""
        claimant = self._claimant(queue)
        if claimant is not None and (before is None or self._heads(queue)[0][0] < before):
            self._claim(*claimant)
        if not self._turns_left():
            return
        for rank, number in list(self._heads(queue)):
            if before is not None and rank >= before:
                return
            if number in self.closed and number not in self.parked.get(queue, ()):
                job = self.lines.jobs[rank[-1]]
                room = self.turns.room(self.shapes.pools[number])
                if room and job.id not in self.turns.of and self._deserves(job, number):
                    refusal = self._refusal(job, self.amount(number))
                    if refusal is not None:
                        self._hold_back(job, number, refusal)
                        continue
                    self._reserve(job)

    def _deserves(self, job: Job, number: int) -> bool:
        """Is it time to reserve a turn for it?"""
        waited = self.now - job.submitted - job.ran_s
        if waited >= min(self.knobs.patience * self.run_s(job), LONGEST_WAIT_S) or self.lines.urgent(job.id):
            return True
        if self.band(job.queue, job.shape) > NORMAL:
            return True
        return self._is_owed(job.id)

    def _claim(self, job: Job, number: int) -> None:
        """Have others make room for it, where that is lawful."""
        if self._plan.claims >= self._most_claims():
            self._late.add(job.queue)
            return
        self._claimed.setdefault((job.queue, number), set()).add(job.id)
        self._asked_at[job.queue] = self.now
        if self.waited_for(job.id):
            return
        self._plan.claims += 1
        short = self._refusal(job, self.amount(number)) is not None
        if not short and self._some(number) and self._lend(self.run_s(job), job.submitted, job.id, number):
            return
        if self.too_dear(job, number) is not None:
            return
        owed = self._is_owed(job.id)
        yielding = self._yielding(job) if owed else []
        lent = self.turns.lend(NEVER, {job.id, *yielding})
        left = self.forecast.left(job, self.shapes.keys[number], self.now)
        asked = replace(job, shape=replace(job.shape, band=self.band(job.queue, job.shape)))
        claim = Claim(
            asked, job.shape.least, size(job.shape, job.shape.least), left[0] if left else None,
            self.lines.urgent(job.id), self.run_s(job),
        )  # fmt: skip
        stays = self._lasting(job)
        with self._made_way(job.id), self._vacated(lent) if owed and self.stopping else nullcontext():
            victims = self._unclaimed(claim, stays) if owed and self.stopping else None
            if victims is None:
                victims = self.reclaim.victims(claim, self.potential(self._tick), self.now, self.reclaimed, stays)
        costs, refusal = (None, None) if victims is None else self._afford(job, victims.spots)
        if victims is not None and costs is not None:  # else it would be best effort, which disturbs nobody
            self._make_room(job, victims)
            self._displace(yielding, victims.spots)
        self.turns.take_back(lent)  # after that: what is free of its places is its own, and not a later turn's
        if refusal is not None:
            self._hold_back(job, number, refusal)

    def _unclaimed(self, claim: Claim, allowed: Flags | None) -> Victims | None:
        """Places that will be free without another eviction, once the jobs are gone that are being stopped."""
        job, width = claim.job, claim.width
        spots = place(self.world, job.shape, width, allowed)
        if spots is None or self.tree.refusal(job.queue, self.counts(job, spots, width)) is not None:
            return None
        return Victims(spots)

    def _stopping_on(self, spots: Iterable[Spot]) -> list[Job]:
        """The jobs that are being stopped on the nodes of these places."""
        nodes = {spot.node for spot in spots}
        going = (self.running[job_id] for job_id in sorted(self.stopping))
        return [job for job in going if not nodes.isdisjoint(spot.node for spot in job.spots)]

    def _make_room(self, job: Job, victims: Victims) -> None:
        """Disturb those; who would only have started in this plan does not, or not as wide."""
        starts = {start.job: start for start in self._plan.starts}
        stops = [evict for evict in victims.evictions if evict.job not in starts]
        at = self.now + max((evict.grace_s for evict in stops), default=0)
        others = [going.stopped_for for going in self._stopping_on(victims.spots)]
        at = max([at, *(self.turns.of[job_id].at for job_id in others if job_id in self.turns.of)])
        self._cleared[job.id] = job.queue
        self._restore(Reservation(job.id, at, victims.spots, MADE))
        for resize in victims.resizes:
            if resize.job in starts:
                self._narrow(starts[resize.job], resize.spots)
            else:
                self._plan.resizes.append(resize)
                self.resize(resize)
        for evict in stops:
            self._evict(evict)
            self._release_above(self.running[evict.job].queue)  # they may leave more than it takes
        self.reclaimed += [(name, self.now, milli) for name, milli in victims.taken]
        for evict in [evict for evict in victims.evictions if evict.job in starts]:
            self._plan.starts.remove(starts[evict.job])
            self._withdraw(evict.job, 0)
            self._lose(self._plan.redeemed.pop(evict.job, None), evict.why)

    def _narrow(self, start: Start, spots: tuple[Spot, ...]) -> None:
        """Let what starts in this plan have fewer places, and pay for these."""
        job = self.running[start.job]
        costs = charge(self._nodes_of(job), job.shape.roles, spots, self.pays_s(job)) if start.charged else ()
        self._move(replace(job, spots=spots, charged=costs))
        self._plan.starts[self._plan.starts.index(start)] = replace(start, spots=spots, charged=costs)

    def _reserve(self, job: Job, cause: str = "") -> None:
        """Reserve the first time and places at which it fits; an earlier turn stays as it is, unless for a cause."""
        old = self.turns.of.get(job.id)
        turn = self.turns.plan(job.id, job.shape, job.shape.least, self.now)
        if turn is None:
            self.turns.drop(job.id)
        elif old is None or turn[0] < old.at or cause:
            lost = self._plan.lost.get(job.id)
            if old is None and lost is not None:
                old, cause = lost, lost.cause
            later = "" if old is None else cause if turn[0] > old.at else old.cause
            self._restore(Reservation(job.id, *turn, later))
            if self.turns.whole(job.id):
                self.freed |= {spot.node for spot in turn[1]}  # all of it is free by now: look in the same cycle

    def _backfill(self, most: int) -> None:
        """Lend what is held for turns, or leaves, to what is over before that, the shortest first."""
        lent = True
        while lent and len(self._plan.starts) < most:
            goes = [self.world.nodes[self.world.index[name]].leaving for name in self.leaving]
            last = max((*goes, *(turn.at for turn in self.turns.of.values())), default=self.now)
            lent, short = False, []
            for number in self.closed if self.turns.holds or goes else ():
                brief = self.lines.brief(number, self._held)
                if brief is None or self.now + brief[0] > last:
                    continue
                if self._tried.get(number) != (self.turns.version, brief[0], brief[1].id):
                    short.append((brief[0], brief[1].submitted, brief[1].id, number))
            for one in sorted(short):
                # Not before: whoever stands behind is tried after it.
                self._tried[one[3]] = self.turns.version, one[0], one[2]
                # Whoever a quota turned out to hold back makes way for the next of its shape.
                if self._some(one[3]) and (self._lend(*one) or self._held(self.lines.jobs[one[2]], one[3])):
                    lent = True
                    break

    def _lend(self, run_s: int, _submitted: int, job_id: str, number: int) -> bool:
        """Start a short job in places that are held for turns after its end, or leave then."""
        job = self.lines.jobs[job_id]
        refusal = self._refusal(job, self.amount(number))
        if refusal is not None:
            self._hold_back(job, number, refusal)
            return False
        suits = np.logical_or.reduce([self.profile.suiting(role.ask).any(axis=1) for role in job.shape.roles])
        band = self.band(job.queue, job.shape)
        yielding = self._yielding(job) if self._is_owed(job.id) else []
        turns = [turn.job for turn in self.turns.all() if turn.job not in yielding]
        lower = [job_id for job_id in turns if self._band(job_id) < band and job_id not in self._cleared]
        # Jobs were stopped for these: a run that was expected to be short, and was not, would stop more of them.
        end = self.now + job.limit_s if job.limit_s else NEVER
        keep = {job_id for job_id in turns if job_id in self._cleared and self.turns.of[job_id].at < end} - {job.id}
        lent = self.turns.lend(self.now + run_s, {job.id, *lower, *yielding}, suits, keep)
        found, refusal = self._find(job)
        if found is not None:
            self._start(job, found, "nobody before it needs the places so soon")
        self.turns.take_back(lent)
        if refusal is not None and refusal[1].startswith(BUDGET):
            self._hold_back(job, number, refusal)
        nodes = {spot.node for spot in found[0]} if found is not None else set()
        for one in lower if nodes else ():
            if any(spot.node in nodes for spot in self.turns.of[one].spots):
                self._reserve(self.lines.jobs[one], "a job of a higher band came")
        self._displace(yielding, found[0] if found is not None else ())
        return found is not None

    def _yielding(self, job: Job) -> list[str]:
        """Jobs of other queues whose turns yield to a guarantee: all but those for which others were stopped, and of
        these the ones that no guarantee covers, once those others are gone."""
        others = [self.lines.jobs[turn.job] for turn in self.turns.all()]
        return [
            other.id
            for other in others
            if other.queue != job.queue
            and (other.id not in self._cleared or not (self.waited_for(other.id) or self._is_owed(other.id)))
        ]

    def _displace(self, jobs: Iterable[str], spots: tuple[Spot, ...]) -> None:
        """Reserve later turns for these, where a guarantee takes their places."""
        nodes = {spot.node for spot in spots}
        for job_id in jobs:
            turn = self.turns.of.get(job_id)
            if turn is not None and not nodes.isdisjoint(spot.node for spot in turn.spots):
                self._reserve(self.lines.jobs[job_id], WHY["guarantee"])
                self._forgo(job_id)

    def _band(self, job_id: str) -> int:
        job = self.lines.jobs[job_id]
        return self.band(job.queue, job.shape)

    def _some(self, number: int) -> bool:
        """Might as many slots of a shape fit as it needs, where something is held or leaves, and elsewhere?"""
        if self._room is None or self._room[0] != self.turns.version:
            self._room = self.turns.version, self.turns.lendable()
        rows, free, dev = self._room[1]
        shape = self.shapes.all[number]
        ask = shape.roles[0].ask
        suits = self.profile.suiting(ask)[rows]
        slots = int(slots_in(suits, amounts(self.world, ask), ask, free, dev).sum()) if suits.any() else 0
        if slots >= shape.least or not (slots or self.leaving):
            return slots >= shape.least
        counts = self.world.counts(self.world.ask(ask))
        return slots + int(counts.sum()) - int(counts[rows].sum()) >= shape.least

    def _neediest(self, queues: set[str]) -> list[str]:
        """Leaves by how needy they are, from the top down."""
        tree = self.tree

        nothing = [0] * len(tree.quotas)
        levels: dict[int, tuple[int, int, int]] = {}

        def need(queue: str) -> list[tuple[int, int, int]]:
            path = tree.paths[tree.index[queue]][::-1]
            for row in path:
                if row not in levels:
                    levels[row] = (tree.level(row, nothing), tree.spent[row], row)
            return [levels[row] for row in path]

        return sorted(queues, key=need)


def refused(queue: str, refusal: Refusal) -> Reason:
    """In words, which quota or budget holds a job of this queue back."""
    name, quota, missing = refusal
    if quota.startswith(BUDGET):
        unit = quota.removeprefix(BUDGET)
        return Reason("budget", f"the budget of {name} lacks {spendable(unit, missing)} {BUDGETS[unit][0]} for it")
    own = queue == name or queue.startswith(name + "/")
    code, word = ("limit", "is at its limit") if own else ("guarantee-of-others", "keeps what it is promised")
    return Reason(code, f"{name} {word} of {quota}: {counted(quota, missing)} more would be needed")
