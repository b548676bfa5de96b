"""Who starts now, where, and who waits for what: one cycle over what changed.

The neediest leaf is asked for its best job that may fit; it starts, or its shape is known to fit nowhere until
something is freed. A cycle costs by what changed and by how many kinds of jobs there are, not by how many wait.
"""

import numpy as np

from falaj.schedule.board import Board
from falaj.schedule.columns import Flags
from falaj.schedule.forecast import pool
from falaj.schedule.lines import Rank
from falaj.schedule.model import NEVER, Job, Plan, Reservation, Snapshot, Spot, Start
from falaj.schedule.place import place

Refusal = tuple[str, str, int]
Found = tuple[tuple[Spot, ...], list[int]]


class Scheduler(Board):
    """Facts in, plans out. What a plan says is taken as done."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._starts: list[Start] = []
        self._open: set[int] = set()
        self._unsettled: set[str] = set()

    def cycle(self, now: int, most: int = 1000) -> Plan:
        """Decide what can be decided now; at most so many starts."""
        self.now = now
        self._starts = []
        self.fresh |= self.lines.advance(now)
        self.overdue()
        turns = self.turns.ready(self.freed)
        self.reopen()
        for queue in sorted(self.fresh):
            self.rank(queue)
        self._unsettled, self.fresh = self._unsettled | self.fresh, set()
        self._open = {one for one, leaves in self.lines.behind.items() if leaves and one not in self.closed}
        for job_id in [*turns, *(job for job in self.turns.due(now) if job not in turns)]:
            self._redeem(job_id)
        self._admit(most)
        for queue in self._neediest(self._unsettled):
            self._settle(queue)
        self._unsettled.clear()
        if len(self._starts) < most:
            self._backfill(most)
        return Plan(tuple(self._starts), reservations=self.turns.all())

    # starts

    def _admit(self, most: int) -> None:
        """Let leaves start their best jobs, the neediest first."""
        while len(self._starts) < most and self._open:
            queue = self.order.first()
            if queue is None:
                return
            best = self.lines.first(queue, self._open, self.parked.get(queue, ()))
            if best is None:
                self.rest(queue)
                continue
            if queue in self._unsettled and best != self.lines.heads(queue)[0]:
                self._unsettled.discard(queue)
                self._settle(queue, best[0])
                continue
            self._try(*best)

    def _try(self, rank: Rank, number: int) -> None:
        """Start the first job of a line, or know why not: its quota, or that its shape fits nowhere."""
        job = self.lines.jobs[rank[-1]]
        refusal = self.tree.refusal(job.queue, self.amount(number))
        if refusal is not None:
            self._hold_back(job, number, refusal)
            return
        found, refusal = self._find(job)
        if found is not None:
            self._start(job, found, "its queue is the one to serve, and it is the queue's next")
        elif refusal is not None:
            self._hold_back(job, number, refusal)
        else:
            self._close(number)

    def _start(self, job: Job, found: Found, why: str) -> None:
        self._starts.append(Start(job.id, found[0], self.band(job.queue, job.shape), why))
        self.start(job, *found)
        self.rank(job.queue)

    def _find(self, job: Job) -> tuple[Found | None, Refusal | None]:
        """Places for a job, at the width it prefers or its least, that its quotas allow; else what refuses them."""
        refusal = None
        for width in dict.fromkeys((max(job.shape.roles[0].count, job.shape.least), job.shape.least)):
            allowed: Flags | None = self._lasting(job)
            while (spots := place(self.world, job.shape, width, allowed)) is not None:
                amount = self.world.quota(job.shape, spots, width).tolist()
                refusal = self.tree.refusal(job.queue, amount)
                if refusal is None:
                    return (spots, amount), None
                narrower = self._without(refusal[1], allowed)
                if narrower is None:
                    break
                allowed = narrower
        return None, refusal

    def _lasting(self, job: Job) -> Flags | None:
        """The nodes that do not go away under a job; None when none goes."""
        if not self.leaving:
            return None
        end = self.now + self.run_s(job)
        return np.array([node.leaving >= end for node in self.world.nodes], np.bool_)

    def _without(self, quota: str, allowed: Flags | None) -> Flags | None:
        """The allowed nodes without those that count against a model's quota; None when that is no model's."""
        model = quota.partition(":")[2]
        if not model:
            return None
        rest = np.array([all(one.model != model for one in node.devices) for node in self.world.nodes], np.bool_)
        return rest if allowed is None else rest & allowed

    def _close(self, number: int) -> None:
        self.closed.add(number)
        self._open.discard(number)
        self._unsettled |= self.lines.behind[number]

    def _hold_back(self, job: Job, number: int, refusal: Refusal) -> None:
        self.park(job.queue, number, refusal)
        self.turns.drop(job.id)

    # turns

    def _redeem(self, job_id: str) -> None:
        """A turn has come, or all its places are free: start, or wait on with the cause written down."""
        job, turn = self.lines.jobs[job_id], self.turns.of[job_id]
        number = self.lines.numbers[job_id]
        refusal = self.tree.refusal(job.queue, self.amount(number))
        if refusal is not None:
            self._hold_back(job, number, refusal)
            return
        self.turns.lend(NEVER, job_id)
        found, _ = self._find(job)
        if found is not None:
            self._start(job, found, f"its turn, reserved for {turn.at}")
            return
        self.turns.take_back([job_id])
        if turn.at <= self.now:
            self._reserve(job, "what runs there takes longer than expected")

    def _settle(self, queue: str, before: Rank | None = None) -> None:
        """Give the blocked jobs of a leaf their turns, as far as they go: those that stand before one that starts."""
        for rank, number in list(self.lines.heads(queue)):
            if before is not None and rank >= before:
                return
            if number in self.closed and number not in self.parked.get(queue, ()):
                job = self.lines.jobs[rank[-1]]
                if job.id not in self.turns.of and self.turns.room(pool(job.shape)):
                    self._reserve(job)

    def _reserve(self, job: Job, cause: str = "") -> None:
        """Reserve the first time and places at which it fits; an earlier turn stays as it is, unless for a cause."""
        old = self.turns.of.get(job.id)
        turn = self.turns.plan(job.id, job.shape, job.shape.least, self.now)
        if turn is None:
            self.turns.drop(job.id)
        elif old is None or turn[0] < old.at or cause:
            later = cause if old is not None and turn[0] > old.at else ""
            self.turns.put(
                Reservation(job.id, *turn, later), pool(job.shape), job.shape.roles, self.run_s(job)
            )  # fmt: skip

    def _backfill(self, most: int) -> None:
        """Lend what is held for turns to what is over before they come, the neediest leaf first."""
        fits = self._lendable()
        last = max((turn.at for turn in self.turns.of.values()), default=0)
        for queue in self._neediest(set().union(*(self.lines.behind[number] for number in fits))):
            for number in [number for _, number in self.lines.heads(queue) if number in fits]:
                while len(self._starts) < most and self._lend(queue, number, last):
                    pass

    def _lend(self, queue: str, number: int, last: int) -> bool:
        """Start the shortest job of a line in places that are held for turns after its end."""
        brief = self.lines.brief(queue, number)
        if brief is None or self.now + brief[0] > last or number in self.parked.get(queue, ()):
            return False
        job = self.lines.jobs[brief[1][-1]]
        lent = self.turns.lend(self.now + brief[0], job.id)
        found = self._find(job)[0] if self.tree.refusal(queue, self.amount(number)) is None else None
        if found is not None:
            self._start(job, found, "it is over before the turn of those its places are held for")
        self.turns.take_back(lent)
        return found is not None

    def _lendable(self) -> set[int]:
        """The shapes that would fit if nothing were held."""
        lent = self.turns.lend(self.now)
        fits = {number for number in self.closed if lent and self.lines.behind.get(number) and self._some(number)}
        self.turns.take_back(lent)
        return fits

    def _some(self, number: int) -> bool:
        shape = self.shapes.all[number]
        return int(self.world.counts(self.world.ask(shape.roles[0].ask)).sum()) >= shape.least

    def _neediest(self, queues: set[str]) -> list[str]:
        """Leaves by how needy they are, from the top down."""
        tree = self.tree

        def need(queue: str) -> tuple[tuple[int, int, int], ...]:
            heads = self.lines.heads(queue)
            want = self.amount(heads[0][1]) if heads else [0] * len(tree.quotas)
            path = reversed(tree.paths[tree.index[queue]])
            return tuple((tree.level(row, want), tree.spent[row], row) for row in path)

        return sorted(queues, key=need)


def decide(snapshot: Snapshot) -> Plan:
    """What to do now, given these facts."""
    return Scheduler(snapshot).cycle(snapshot.now)
