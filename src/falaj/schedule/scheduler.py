"""Who starts now, where, and who waits for what: one cycle over what changed.

The neediest leaf is asked for its best job that may fit; it starts, or its shape is known to fit nowhere until
something is freed. A cycle costs by what changed and by how many kinds of jobs there are, not by how many wait.
"""

from falaj.schedule.blocked_jobs import LEAVING_GRACE_S, MAX_ROUNDS, RECHECK_INTERVAL_S, BlockedJobScheduler, DraftPlan
from falaj.schedule.elastic_growth import GrowthPlanner
from falaj.schedule.model import MILLI_PER_UNIT, JobEviction, SchedulePlan, SchedulerSnapshot
from falaj.schedule.pending_queues import Rank
from falaj.schedule.placement import find_placement
from falaj.schedule.runtime_forecast import compute_shape_size


class Scheduler(BlockedJobScheduler):
    """Facts in, plans out. What a plan says is taken as done."""

    def cycle(self, now: int, max_starts: int = 1000) -> SchedulePlan:
        """Decide what can be decided now; at most so many starts."""
        self.now, self._draft = now, DraftPlan()
        self.fresh |= self.lines.advance(now)
        self.reclaimed = [entry for entry in self.reclaimed if now - entry[1] < self.knobs.reclaim_window_s]
        self.overdue()
        self._refresh_cleared_jobs()
        self._evict_from_leaving_nodes()
        for _ in range(MAX_ROUNDS):
            self._run_round(max_starts)
            if not self.freed and not self.turns.released and not self.fresh:
                break
        self._grow_elastic_jobs()
        plan = self._draft
        return SchedulePlan(tuple(plan.starts), tuple(plan.resizes), tuple(plan.evictions), self.turns.all())

    def _grow_elastic_jobs(self) -> None:
        """Let elastic jobs have what nobody waits for: of nodes that hold nothing which anybody blocked could use."""
        if self._cleared_jobs or not self.table.elastic:
            return
        allowed = self._list_nodes_staying()
        blocked_shapes = [self.shapes.all[number] for number in self.closed if self.lines.behind.get(number)]
        for request_number in {self.world.ask(role.ask) for shape in blocked_shapes for role in shape.roles}:
            is_idle = self.world.possible(request_number) == 0
            allowed = is_idle if allowed is None else allowed & is_idle
            if not allowed.any():
                return
        growth = GrowthPlanner(self.world, self.tree, self.table, find_placement, self.knobs)
        for resize in growth.grow(self.now, allowed):
            self._draft.resizes.append(resize)
            self.resize(resize)

    def _run_round(self, max_starts: int) -> None:
        """Look at what changed; turns first, then everybody's best, then who is blocked, then who is brief."""
        cleared_ids = self._list_ready_cleared_jobs()
        due_ids = [*self.turns.ready(self.freed), *self._list_hopeful_jobs()]
        self.reopen()
        for queue in sorted(self.fresh):
            self.rank(queue)
        self._mark_stale_claims(self.now // RECHECK_INTERVAL_S)
        self._open_shapes = {
            shape_number
            for shape_number, leaves in self.lines.behind.items()
            if leaves and shape_number not in self.closed
        }
        for job_id in cleared_ids:
            self._redeem_reservation(job_id)
            self._release_cleared_job(job_id)
        for job_id in dict.fromkeys((*due_ids, *self.turns.due(self.now))):
            if job_id in self.turns.of:
                self._redeem_reservation(job_id)
        self._admit_jobs(max_starts)
        self._settle_all_queues()
        self._backfill_jobs(max_starts)

    def _mark_stale_claims(self, tick: int) -> None:
        """What to look at again: leaves that changed, and all of them when the clock moved on."""
        stale_queues = self.fresh if tick == self._tick else {queue for queue, _ in self._claimed_jobs} | self.fresh
        for claim_key in [claim_key for claim_key in self._claimed_jobs if claim_key[0] in stale_queues]:
            del self._claimed_jobs[claim_key]
        self._unsettled_queues |= (stale_queues | self._late_queues) & self.lines.leaves.keys()
        self._tick, self.fresh, self._late_queues = tick, set(), set()

    def _evict_from_leaving_nodes(self) -> None:
        """Stop what would outlast its node."""
        running = sorted(self.running.values(), key=lambda job: job.id) if self.leaving else ()
        for job in [job for job in running if not job.stopping]:
            nodes = [self.world.nodes[self.world.index[spot.node]] for spot in job.spots if spot.node in self.leaving]
            if nodes and self.now + self.run_s(job) > min(node.leaving for node in nodes):
                lost_work = max(self.now - job.risks, 0) * compute_shape_size(job.shape, job.width) // MILLI_PER_UNIT
                self._evict_job(JobEviction(job.id, "", job.save_s + LEAVING_GRACE_S, lost_work, "its node leaves"))

    def _admit_jobs(self, max_starts: int) -> None:
        """Let leaves start their best jobs, the neediest first."""
        while len(self._draft.starts) < max_starts and self._open_shapes:
            queue = self.order.first()
            if queue is None:
                return
            best = self._find_first_startable(queue)
            if best is None:
                self.rest(queue)
                continue
            if queue in self._unsettled_queues and best != self._list_affordable_heads(queue)[0]:
                self._unsettled_queues.discard(queue)
                self._settle_queue(queue, best[0])
                continue
            self._try_start(*best)

    def _find_first_startable(self, queue: str) -> tuple[Rank, int] | None:
        """The best job of a leaf that may start, for all that is known."""
        parked = self.parked.get(queue, ())
        if not self.dear.get(queue):
            return self.lines.first(queue, self._open_shapes, parked)
        return next(
            (
                head
                for head in self._list_affordable_heads(queue)
                if head[1] in self._open_shapes and head[1] not in parked
            ),
            None,
        )

    def _try_start(self, rank: Rank, number: int) -> None:
        """Start a job, or know why not: its quota or budget refuses it, or its shape fits nowhere."""
        job = self.lines.jobs[rank[-1]]
        refusal = self._find_refusal(job, self.amount(number))
        if refusal is not None:
            self._hold_back_line(job, number, refusal)
            return
        choice, refusal = self._find_placement(job)
        if choice is not None:
            self._start_job(job, choice, "its queue is the one to serve, and it is the queue's next")
            self._close_unfitting()
        elif refusal is not None:
            self._hold_back_line(job, number, refusal)
        else:
            self._close_shape(number)

    def _close_unfitting(self) -> None:
        """Close what fitted only in what was just taken, without asking every leaf for it."""
        reopened = self.reopened & self._open_shapes
        for number in sorted(reopened.difference(self.fitting(reopened))):
            self._close_shape(number)

    def _close_shape(self, number: int) -> None:
        self.closed.add(number)
        self.reopened.discard(number)
        self._open_shapes.discard(number)
        self._tried_backfills.pop(number, None)
        if self._closed_at.get(number) != self._tick:
            self._closed_at[number] = self._tick
            self._unsettled_queues |= self.lines.behind[number]


def decide_plan(snapshot: SchedulerSnapshot) -> SchedulePlan:
    """What to do now, given these facts."""
    return Scheduler(snapshot).cycle(snapshot.now)
