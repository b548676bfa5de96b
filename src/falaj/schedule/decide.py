"""Who starts now, where, and who waits for what: one cycle over what changed.

The neediest leaf is asked for its best job that may fit; it starts, or its shape is known to fit nowhere until
something is freed. A cycle costs by what changed and by how many kinds of jobs there are, not by how many wait.
"""

from falaj.schedule.blocked import GRACE_S, MOST_ROUNDS, TICK_S, Blocked, Draft
from falaj.schedule.elastic import Growth
from falaj.schedule.forecast import size
from falaj.schedule.lines import Rank
from falaj.schedule.model import WHOLE, Evict, Plan, Snapshot
from falaj.schedule.place import place


class Scheduler(Blocked):
    """Facts in, plans out. What a plan says is taken as done."""

    def cycle(self, now: int, most: int = 1000) -> Plan:
        """Decide what can be decided now; at most so many starts."""
        self.now, self._plan = now, Draft()
        self.fresh |= self.lines.advance(now)
        self.reclaimed = [one for one in self.reclaimed if now - one[1] < self.knobs.reclaim_window_s]
        self.overdue()
        self._clear_for()
        self._clear()
        for _ in range(MOST_ROUNDS):
            self._round(most)
            if not self.freed and not self.turns.released and not self.fresh:
                break
        self._grow()
        plan = self._plan
        return Plan(tuple(plan.starts), tuple(plan.resizes), tuple(plan.evictions), self.turns.all())

    def _grow(self) -> None:
        """Let elastic jobs have what nobody waits for: of nodes that hold nothing which anybody blocked could use."""
        if self._cleared or not self.table.elastic:
            return
        allowed = self._staying()
        blocked = [self.shapes.all[number] for number in self.closed if self.lines.behind.get(number)]
        for ask in {self.world.ask(role.ask) for shape in blocked for role in shape.roles}:
            idle = self.world.possible(ask) == 0
            allowed = idle if allowed is None else allowed & idle
            if not allowed.any():
                return
        growth = Growth(self.world, self.tree, self.table, place, self.knobs)
        for resize in growth.grow(self.now, allowed):
            self._plan.resizes.append(resize)
            self.resize(resize)

    def _round(self, most: int) -> None:
        """Look at what changed; turns first, then everybody's best, then who is blocked, then who is brief."""
        cleared = self._welcome()
        turns = [*self.turns.ready(self.freed), *self._hopeful()]
        self.reopen()
        for queue in sorted(self.fresh):
            self.rank(queue)
        self._remember(self.now // TICK_S)
        self._open = {one for one, leaves in self.lines.behind.items() if leaves and one not in self.closed}
        for job_id in cleared:
            self._redeem(job_id)
            self._forgo(job_id)
        for job_id in dict.fromkeys((*turns, *self.turns.due(self.now))):
            if job_id in self.turns.of:
                self._redeem(job_id)
        self._admit(most)
        self._settle_all()
        self._backfill(most)

    def _remember(self, tick: int) -> None:
        """What to look at again: leaves that changed, and all of them when the clock moved on."""
        stale = self.fresh if tick == self._tick else {queue for queue, _ in self._claimed} | self.fresh
        for name in [name for name in self._claimed if name[0] in stale]:
            del self._claimed[name]
        self._unsettled |= (stale | self._late) & self.lines.leaves.keys()
        self._tick, self.fresh, self._late = tick, set(), set()

    def _clear(self) -> None:
        """Stop what would outlast its node."""
        running = sorted(self.running.values(), key=lambda job: job.id) if self.leaving else ()
        for job in [job for job in running if not job.stopping]:
            nodes = [self.world.nodes[self.world.index[spot.node]] for spot in job.spots if spot.node in self.leaving]
            if nodes and self.now + self.run_s(job) > min(node.leaving for node in nodes):
                lost = max(self.now - job.risks, 0) * size(job.shape, job.width) // WHOLE
                self._evict(Evict(job.id, "", job.save_s + GRACE_S, lost, "its node leaves"))

    def _admit(self, most: int) -> None:
        """Let leaves start their best jobs, the neediest first."""
        while len(self._plan.starts) < most and self._open:
            queue = self.order.first()
            if queue is None:
                return
            best = self._first(queue)
            if best is None:
                self.rest(queue)
                continue
            if queue in self._unsettled and best != self._heads(queue)[0]:
                self._unsettled.discard(queue)
                self._settle(queue, best[0])
                continue
            self._try(*best)

    def _first(self, queue: str) -> tuple[Rank, int] | None:
        """The best job of a leaf that may start, for all that is known."""
        parked = self.parked.get(queue, ())
        if not self.dear.get(queue):
            return self.lines.first(queue, self._open, parked)
        return next((one for one in self._heads(queue) if one[1] in self._open and one[1] not in parked), None)

    def _try(self, rank: Rank, number: int) -> None:
        """Start a job, or know why not: its quota or budget refuses it, or its shape fits nowhere."""
        job = self.lines.jobs[rank[-1]]
        refusal = self._refusal(job, self.amount(number))
        if refusal is not None:
            self._hold_back(job, number, refusal)
            return
        found, refusal = self._find(job)
        if found is not None:
            self._start(job, found, "its queue is the one to serve, and it is the queue's next")
            self._sift()
        elif refusal is not None:
            self._hold_back(job, number, refusal)
        else:
            self._close(number)

    def _sift(self) -> None:
        """Close what fitted only in what was just taken, without asking every leaf for it."""
        again = self.reopened & self._open
        for number in sorted(again.difference(self.fitting(again))):
            self._close(number)

    def _close(self, number: int) -> None:
        self.closed.add(number)
        self.reopened.discard(number)
        self._open.discard(number)
        self._tried.pop(number, None)
        if self._closed_at.get(number) != self._tick:
            self._closed_at[number] = self._tick
            self._unsettled |= self.lines.behind[number]


def decide(snapshot: Snapshot) -> Plan:
    """What to do now, given these facts."""
    return Scheduler(snapshot).cycle(snapshot.now)
