"""The lead: what the leading replica knows of jobs, nodes and queues, and the one way it writes.

One replica leads at a time. Its token stands in a fence record that every write of the loop reads in its own
transaction: who was replaced, and does not know it yet, writes nothing. An attempt is launched only after the write
that admits it is durable, under an id that an executor starts once.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from heapq import heappop, heappush
from operator import is_
from typing import Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Unavailable
from falaj.core.executor import EXIT_TRY_AGAIN
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.dispatch.standings import INPUT_KINDS, STANDING_KINDS, SubmitterStandings
from falaj.fleet import alerts, budgets, usage
from falaj.fleet.clusters import ClusterService
from falaj.fleet.fleet_use import iter_live_jobs, make_system_key
from falaj.fleet.queues import list_rules_to_root, read_rules, to_scheduler_queues
from falaj.fleet.records import Cluster, QueueRule
from falaj.jobs import state_machine
from falaj.jobs.records import ENDED_STATES, ON_HOLD, SUCCEEDED, JobBody
from falaj.jobs.scheduler_facts import (
    read_runtime_quantiles,
    read_shape,
    sum_reserved,
    to_scheduler_job,
    to_scheduler_node,
)
from falaj.schedule import budget
from falaj.schedule.model import BEST_EFFORT, Job, JobShape, Node, SchedulerOptions, SchedulerSnapshot, SlotPlacement
from falaj.schedule.runtime_forecast import compute_quantiles
from falaj.schedule.runtime_forecast import to_shape_key as shape_key
from falaj.schedule.scheduler import Scheduler
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.reconcile_loop import LoopIteration
from falaj.store.records import LedgerRecord
from falaj.track.service import TrackService

FENCE_KEY = make_system_key("fence", "jobs")
TREE_KINDS = ("cluster", "queue")
RARE_KINDS = (*TREE_KINDS, *STANDING_KINDS, *INPUT_KINDS)
WATCHED_KINDS = ("job", *RARE_KINDS)
_LOG_TIMEOUT_S, _BUDGET_CHECK_INTERVAL_S, _LEARN_INTERVAL_S = 10.0, 60.0, 5.0
_RARE_CHECK_INTERVAL_S, _JOB_CHECK_INTERVAL_S = 0.5, 0.2
"""So long a change of clusters or queues, or of a job, may go unnoticed that another process wrote, where its store
cannot tell."""
_MAX_ENDED_JOBS, _MAX_RUNTIMES, _PAGE_SIZE = 10_000, 50, 1000
_RUN_STATUS = {"succeeded": "finished", "failed": "failed", "cancelled": "killed"}


_MAX_CLOCK_SKEW_S = 60
"""So much may the clocks of replicas differ."""


class LeadershipLost(Conflict):
    """Another replica leads now."""


class LeaderState:
    """What the leader knows and may write. Everything here is made from the ledger, and thrown away with the lead."""

    def __init__(
        self, ledger: Ledger, clusters: ClusterService, track: TrackService, options: SchedulerOptions
    ) -> None:
        self.ledger, self._options = ledger, options
        self.track = track
        self._clusters = clusters
        self.token = 0
        self.ctx: CallContext
        self.jobs: dict[str, LedgerRecord] = {}
        self.ids: dict[RecordKey, str] = {}
        self.clusters: dict[str, Cluster] = {}
        self.nodes: dict[str, Node] = {}
        self.rules: dict[str, QueueRule] = {}
        self._has_budgets = False
        """Whether any of them has a budget."""
        self._scheduler: Scheduler
        self.planned: set[str] = set()
        """Jobs whose starts are being written as the scheduler said: it knows."""
        self._ended_job_ids: list[str] = []
        """Jobs that are over, of which the scheduler is told before anything else."""
        self.dirty = True
        self.busy: set[str] = set()
        """Jobs that have an attempt."""
        self.held: set[str] = set()
        """Jobs that wait for others; looked at when one of any is over."""
        self.look_at_held = True
        self.owing = 0.0
        """When budgets are looked at again."""
        self.standings = SubmitterStandings(ledger)
        self._cursors: dict[str, str] = {}
        self._log_end = ""
        """Where the log ended when clusters, queues and accounts were looked at last."""
        self._rare_changed, self._rare_check_at = True, 0.0
        """Whether clusters or queues may be others, and when we look at them anyway."""
        self._jobs_changed, self._job_check_at = True, 0.0
        """The same of jobs: whether anybody but us wrote of one."""
        self.at_work = 0
        """The thread that is at a step: what it commits it knows."""
        ledger.on_commit(self._mark_rare_changed, RARE_KINDS)
        ledger.on_commit(self._mark_jobs_changed, ("job",))
        self._pending_usage: list[tuple[LedgerRecord, str, usage.UsageEntry]] | None = None
        """Attempts whose usage is written with that of others, at the end of their transaction."""
        self._guarded_group: object = None
        """The group in which we wrote already, and so know that we lead as of all of it."""
        self._context_cache: tuple[CallContext, CallContext] | None = None
        self._backoff_alarms: list[float] = []
        self._shapes: dict[str, tuple[tuple[Any, ...], JobShape]] = {}
        """The shapes of live jobs, and what of their records they rest on, known by sight."""
        self._ended_versions: dict[RecordKey, str] = {}
        self._learned_at: dict[tuple[str, str], float] = {}
        self._runtimes: dict[tuple[str, str], list[int]] = {}

    @property
    def scheduler(self) -> Scheduler:
        """Who decides; knows of all that is over."""
        if self._ended_job_ids:
            ended_ids, self._ended_job_ids = self._ended_job_ids, []
            self._scheduler.end(*ended_ids)
        return self._scheduler

    def begin(self, iteration: LoopIteration) -> None:
        """Take the fence, then read everything anew."""
        self.token = 0
        self.ctx = iteration.ctx
        with self.ledger.write(iteration.ctx) as tx:
            previous = tx.key(FENCE_KEY)
            if previous is not None and previous.body["token"] > iteration.token:
                raise LeadershipLost("another replica leads", "it will go on")
            record = tx.put(FENCE_KEY, {"token": iteration.token}, rev=previous.rev if previous else None)
            fence_event = tx.emit("jobs.lead", record.ref, token=iteration.token)
        self._cursors, self._log_end = dict.fromkeys(WATCHED_KINDS, self._find_log_position(fence_event.id)), ""
        self._read_state(iteration.ctx.now())
        self.token = iteration.token

    def follow(self) -> bool:
        """Take in what others wrote since; True when there was something."""
        is_changed, is_due, must_review = False, self._is_rare_check_due(), self.standings.expired(self.ctx.now())
        log_end = self.ledger.store.end() if is_due else ""
        if is_due and log_end == self._log_end:
            is_due = False
        self._log_end = log_end or self._log_end
        for kind in WATCHED_KINDS:
            # A writer of a job may have changed its queue before; its inputs were checked when it was submitted.
            rare_due = is_due or (is_changed and kind not in INPUT_KINDS)
            if not rare_due if kind in RARE_KINDS else not self._is_job_check_due():
                continue
            has_more = True
            while has_more and (log_entries := self.ledger.subjects(self._cursors[kind], kind, _PAGE_SIZE)):
                self._cursors[kind], has_more = log_entries[-1][0], len(log_entries) == _PAGE_SIZE
                if kind in STANDING_KINDS:
                    must_review = True
                    continue
                if kind in INPUT_KINDS:
                    is_changed |= self._review_readers([RecordKey(*key) for _, key in log_entries])
                    continue
                if kind != "job":
                    self._read_state(self.ctx.now())
                    is_changed = True
                    continue
                # Of each only the last that was said: before it may stand what we said ourselves.
                is_changed |= self._reread_jobs({RecordKey(*key[:4]): key[4] for _, key in log_entries})
            # What is before the end we have seen, and need not pass over again.
            self._cursors[kind] = max(self._cursors[kind], log_end)
        if must_review:
            is_changed |= self._review_standings()
        self.dirty |= is_changed
        return is_changed

    def _review_standings(self) -> bool:
        """Ask again who may go on: what may not leaves the scheduler, what may again goes back to its place."""
        self.standings.forget_submitters()
        return self._update_standings(self.jobs.values())

    def _review_readers(self, versions: Iterable[RecordKey]) -> bool:
        """Ask again who may go on of the jobs that read one of these changed versions."""
        return self._update_standings(self.standings.list_affected(versions, self.jobs.values()))

    def _update_standings(self, records: Iterable[LedgerRecord]) -> bool:
        moved = [record for record in records if self.standings.update(self.ctx, record)]
        for record in moved:
            self._update_scheduler(record)
        return bool(moved)

    def _update_scheduler(self, record: LedgerRecord) -> None:
        """Tell the scheduler how a job stands; one that may not start now is none of its jobs."""
        if self.is_startable(record):
            self.dirty |= self.scheduler.change(self._to_scheduler_job(record))
        else:
            self._ended_job_ids.append(record.body["id"])

    def is_startable(self, record: LedgerRecord) -> bool:
        """False for a job without an attempt that is held, or whose submitter lost the standing."""
        body = record.body
        return bool(body["attempt"]) or (body["state"] != ON_HOLD and body["id"] not in self.standings.held_back)

    def _is_rare_check_due(self) -> bool:
        """Whether somebody wrote of clusters or queues, or we have not looked for a while."""
        now = time.monotonic()
        if not self._rare_changed and now < self._rare_check_at:
            return False
        self._rare_changed, self._rare_check_at = (
            False,
            now + _RARE_CHECK_INTERVAL_S,
        )  # before we look: what comes meanwhile is for the next time
        return True

    def _is_job_check_due(self) -> bool:
        """Whether somebody else wrote of a job, or we have not looked for a moment: what we write we need not read."""
        now = time.monotonic()
        if not self._jobs_changed and now < self._job_check_at:
            return False
        self._jobs_changed, self._job_check_at = False, now + _JOB_CHECK_INTERVAL_S
        return True

    def _mark_rare_changed(self) -> None:
        self._rare_changed = True

    def _mark_jobs_changed(self) -> None:
        if threading.get_ident() != self.at_work:
            self._jobs_changed = True

    def write(
        self,
        previous: LedgerRecord,
        body: JobBody,
        event_name: str,
        write_more: Callable[[CallContext], None] | None = None,
        after_commit: Callable[[], None] | None = None,
        start_handle: str = "",
        **fields: str,
    ) -> LedgerRecord:
        """One change of one job, guarded by its revision and by our lead. Its run follows where it is over.

        `after_commit` is done once it is durable, and never where it is undone: changes of many jobs are committed
        together. `start_handle` is the handle of an attempt that was over before it was written down that it began:
        both are said.
        """
        tenant_ctx = self.mine(previous)
        with self.ledger.write(tenant_ctx) as tx:
            self.guard(tx)
            record = tx.put(previous.key, body, rev=previous, terms=state_machine.build_index_terms(body))
            ref = record.ref
            if start_handle:
                tx.emit("jobs.start", ref, (), handle=start_handle)
            tx.emit(event_name, ref, (), **fields)
            if write_more is not None:
                write_more(tenant_ctx)
            if after_commit is not None:
                tx.after(lambda durable: after_commit() if durable else None)
            if body["state"] in ENDED_STATES:
                self.track.finish(tenant_ctx, Ref.parse(body["run"]), _RUN_STATUS[body["state"]])
        self._guarded_group = self.ledger.together
        self.take(record)
        return record

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is written inside becomes durable together; where the store can do that it is one transaction, with one
        seal for all that is said. One who wrote first is found before anything of a change is written, so that who
        steps back from it undoes nothing of the others."""
        with self.ledger.group():
            if self.ledger.together is None:
                yield
                return
            with self.ledger.write(self.ctx) as tx:
                self._pending_usage = []
                try:
                    yield
                    usage.write_entries(tx, self._pending_usage)
                finally:
                    self._pending_usage = None

    def mine(self, record: LedgerRecord) -> CallContext:
        """Ourselves, at work in a job's tenant."""
        tenant, cached = record.key.tenant, self._context_cache
        if cached is None or cached[0] is not self.ctx or cached[1].tenant != tenant:
            cached = self._context_cache = self.ctx, replace(self.ctx, tenant=tenant)
        return cached[1]

    def guard(self, tx: LedgerReader) -> None:
        """Fenced unless we lead, as of this transaction. Those of a group are one for everybody else: what the first
        that wrote found holds for the others."""
        group = self.ledger.together
        if group is not None and group is self._guarded_group:
            return
        fence = tx.key(FENCE_KEY)
        if fence is None or fence.body["token"] != self.token:
            self.token = 0
            raise LeadershipLost("another replica leads", "it will go on")

    def take(self, record: LedgerRecord) -> None:
        """This is how a job stands now; the scheduler is told, unless it said so itself."""
        job_id, body = record.body["id"], record.body
        current = self.jobs.get(job_id)
        if current is not None and current.rev >= record.rev:
            return
        if body["state"] in ENDED_STATES:
            self.dirty = True
            self._forget_job(record)
            return
        self.jobs[job_id], self.ids[record.key] = record, job_id
        self._index_job(record)
        if body["not_before"] > self.ctx.now():
            heappush(self._backoff_alarms, float(body["not_before"]))
        self.standings.update(self.ctx, record)
        if job_id not in self.planned:
            self._update_scheduler(record)

    def _to_scheduler_job(self, record: LedgerRecord) -> Job:
        """A job as the scheduler sees it. Nobody backs off for days: that was written by a clock that was ahead."""
        attempt = record.body["attempt"]
        band = attempt["band"] if attempt else record.body["band"]
        job = to_scheduler_job(record, self.clusters, self.shape(record, band))
        latest_start = self.ctx.now() + state_machine.LONGEST_BACKOFF_S + _MAX_CLOCK_SKEW_S
        return job if job.not_before <= latest_start else replace(job, not_before=0)

    def again(self, job_id: str) -> None:
        """Read a job once more, after somebody else wrote it."""
        record = self.jobs.get(job_id)
        if record is not None:
            self._reread_jobs({record.key: record.ref.version}, force=True)

    def rings(self, now: float) -> bool:
        """True when somebody's time to back off is over."""
        has_ended = False
        while self._backoff_alarms and self._backoff_alarms[0] <= now:
            heappop(self._backoff_alarms)
            has_ended = True
        return has_ended

    def charge(self) -> None:
        """Tell the scheduler what budgets stand at, after something was settled and when a window may have ended."""
        now = self.ctx.now()
        if now >= self.owing and self._has_budgets:
            self.owing = now + _BUDGET_CHECK_INTERVAL_S
            with self.ledger.read(self.ctx) as tx:
                spent = budgets.read_spent(tx)
            reserved = sum_reserved(self.rules, (record.body for record in self.jobs.values()))
            self.scheduler.queues(to_scheduler_queues(self.rules.values(), spent, reserved, now))

    def cost(self, record: LedgerRecord, spots: tuple[SlotPlacement, ...], band: int, seconds: int) -> dict[str, int]:
        """What these places cost a job for so long; best effort is free."""
        return {} if band == BEST_EFFORT else self._compute_charge(record, spots, band, seconds)

    def settle(self, record: LedgerRecord, after: JobBody, seconds: float) -> Callable[[CallContext], None]:
        """What writes down the cost of an attempt that ended, in the transaction of that end."""
        body, attempt = record.body, record.body["attempt"]
        cost = self._compute_charge(
            record, state_machine.parse_spots(attempt["spots"]), attempt["band"], round(seconds)
        )
        entry = usage.to_usage_entry(record, after, cost, seconds, self.ctx.now())
        queue_rules = list_rules_to_root(body["queue"], self.rules) if self._has_budgets else ()
        rules = {rule.name: rule.budgets for rule in queue_rules if rule.budgets}

        def settle_cost(ctx: CallContext) -> None:
            if self._pending_usage is None:
                with self.ledger.write(ctx) as tx:
                    usage.write_entries(tx, [(record, attempt["id"], entry)])
            else:
                self._pending_usage.append((record, attempt["id"], entry))
            if rules and cost and entry.charged:
                self.owing = 0.0
                with self.ledger.write(ctx) as tx:
                    budgets.settle_budgets(tx, rules, cost, ctx.now())
            if entry.outcome == "lost" or after["attempts"][-1]["code"] == EXIT_TRY_AGAIN:
                alerts.record_blame(self.ledger, ctx, entry.nodes, "lost" if entry.outcome == "lost" else "trouble")

        return settle_cost

    def _compute_charge(
        self, record: LedgerRecord, spots: tuple[SlotPlacement, ...], band: int, seconds: int
    ) -> dict[str, int]:
        return dict(budget.compute_charge(self.nodes, self.shape(record, band).roles, spots, seconds))

    def shape(self, record: LedgerRecord, band: int) -> JobShape:
        """A job's shape, where it may run as the clusters stand. Asked for again and again while that is the same."""
        body = record.body
        depends_on = band, body["avoid"], body["spec"], body["zones"], body.get("refused_by", ())
        cached = self._shapes.get(body["id"])
        if cached is not None and all(map(is_, cached[0], depends_on)):
            return cached[1]
        shape = read_shape(record, self.clusters, band)
        self._shapes[body["id"]] = depends_on, shape
        return shape

    def set_nodes(self, cluster: Cluster, nodes: Iterable[Node]) -> None:
        """What a cluster has now."""
        nodes_by_name = {node.name: node for node in nodes}
        for name in [
            name for name, node in self.nodes.items() if node.cluster == cluster.name and name not in nodes_by_name
        ]:
            del self.nodes[name]
            self.scheduler.lose(name)
            self.dirty = True
        for name, node in nodes_by_name.items():
            if self.nodes.get(name) != node:
                self.nodes[name] = node
                self.scheduler.node(node)
                self.dirty = True

    def _read_state(self, now: float) -> None:
        with self.ledger.read(self.ctx) as tx:
            self.clusters, self._shapes = self._clusters.known(tx), {}
            self.rules = {rule.name: rule for rule in read_rules(tx)}
            self._has_budgets = any(rule.budgets for rule in self.rules.values())
            nodes = [to_scheduler_node(cluster, facts) for cluster, facts, _ in self._clusters.node_records(tx)]
            self.jobs = {record.body["id"]: record for record in iter_live_jobs(self.ledger, tx)}
            quantiles, spent = read_runtime_quantiles(self.ledger, tx), budgets.read_spent(tx)
        self.ids = {record.key: job_id for job_id, record in self.jobs.items()}
        self.nodes = {node.name: node for node in nodes}
        self.busy, self.held = set(), set()
        for record in self.jobs.values():
            self._index_job(record)
        self.standings.clear()
        self.standings.held_back = {}
        self.standings.rules = self.rules if any(rule.stop for rule in self.rules.values()) else {}
        for record in self.jobs.values():
            self.standings.update(self.ctx, record)
        reserved = sum_reserved(self.rules, (record.body for record in self.jobs.values()))
        jobs = tuple(self._to_scheduler_job(record) for record in self.jobs.values() if self.is_startable(record))
        queues = to_scheduler_queues(self.rules.values(), spent, reserved, now)
        self._ended_job_ids, self.planned = [], set()
        self._scheduler = Scheduler(
            SchedulerSnapshot(int(now), tuple(nodes), queues, jobs, quantiles, knobs=self._options)
        )
        self.dirty = True

    def _index_job(self, record: LedgerRecord) -> None:
        job_id = record.body["id"]
        (self.busy.add if record.body["attempt"] else self.busy.discard)(job_id)
        (self.held.add if record.body["state"] == ON_HOLD else self.held.discard)(job_id)
        self.look_at_held |= record.body["state"] == ON_HOLD

    def _reread_jobs(self, versions: Mapping[RecordKey, str], *, force: bool = False) -> bool:
        is_changed, new_keys = False, [key for key, version in versions.items() if force or self._is_new(key, version)]
        if not new_keys:
            return False
        with self.ledger.read(self.ctx) as tx:
            for key in sorted(new_keys):
                current, record = self.jobs.get(self.ids.get(key, "")), tx.key(key)
                if record is not None and (current is None or current.rev < record.rev):
                    is_changed = is_changed or current is not None or record.body["state"] not in ENDED_STATES
                    self.take(record)
        return is_changed

    def _is_new(self, key: RecordKey, version: str) -> bool:
        """False where that is how we know a job, or how we wrote that it is over."""
        current = self.jobs.get(self.ids.get(key, ""))
        return self._ended_versions.get(key) != version and (current is None or version != f"r{current.rev}")

    def _forget_job(self, record: LedgerRecord) -> None:
        body = record.body
        if len(self._ended_versions) > _MAX_ENDED_JOBS:
            self._ended_versions.clear()
        self._ended_versions[record.key] = record.ref.version
        self.busy.discard(body["id"])
        self.held.discard(body["id"])
        self.standings.held_back.pop(body["id"], None)
        self.look_at_held = True
        if self.jobs.pop(body["id"], None) is not None:
            self.ids.pop(record.key, None)
            self._ended_job_ids.append(body["id"])
        if body["state"] == SUCCEEDED:
            template_key = (body["template"], shape_key(self.shape(record, body["band"])))
            runtimes = self._runtimes.setdefault(template_key, [])
            runtimes.append(body["ran_s"])
            del runtimes[:-_MAX_RUNTIMES]
            if self.ctx.now() >= self._learned_at.get(template_key, 0.0) + _LEARN_INTERVAL_S:
                self._learned_at[template_key] = self.ctx.now()
                self.scheduler.learn(compute_quantiles(*template_key, runtimes, body["step_us"]))
        self._shapes.pop(body["id"], None)

    def _find_log_position(self, event: str) -> str:
        """Where our own mark stands in the log. What stands before it is committed once it can be read, so that what
        we read of records afterwards misses nothing."""
        deadline = time.monotonic() + _LOG_TIMEOUT_S
        while time.monotonic() < deadline:
            positions = [fact.pos for fact in self.ledger.tail(kind="fence", id=event, limit=1)]
            if positions:
                return positions[0]
            time.sleep(0.005)
        raise Unavailable(
            "the log does not come to rest", "a transaction of somebody else is open; it will be tried again"
        )
