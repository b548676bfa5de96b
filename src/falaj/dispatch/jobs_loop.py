"""The loop of jobs: facts in from the ledger and the crews, decisions out as guarded writes, then as orders."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Set
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, FalajError, Unavailable
from falaj.core.executor import FINISHED_PHASES as ENDED
from falaj.core.executor import LOST, UNKNOWN, AttemptStatus, NodeInfo
from falaj.core.executor import SUCCEEDED as ENDED_WELL
from falaj.dispatch.cluster_worker import ClusterReport, ClusterWorker, WatchedAttempt, find_finished_launches
from falaj.dispatch.io_pool import IoPool
from falaj.dispatch.leader_state import WATCHED_KINDS, LeaderState
from falaj.dispatch.standings import exclude_cluster, stop_for_standing
from falaj.dispatch.unpublished import UnpublishedOutputs, publish_outputs
from falaj.fleet.clusters import ClusterService
from falaj.fleet.records import Cluster
from falaj.jobs import state_machine
from falaj.jobs.attempts import make_attempt_name
from falaj.jobs.records import ENDED_STATES, RUNNING, STOPPING, SUCCEEDED, WAITING, JobBody
from falaj.jobs.scheduler_facts import read_spec, sum_node_use, to_scheduler_node
from falaj.jobs.service import JobService
from falaj.jobs.staging import has_files_to_stage
from falaj.jobs.submitter_standing import SubmitterStanding
from falaj.schedule.model import JobEviction, JobResize, JobStart, SchedulePlan, SchedulerOptions
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LEASE_S, LoopIteration
from falaj.store.records import LedgerRecord
from falaj.track.service import TrackService

log = logging.getLogger(__name__)
STEP_INTERVAL_S = 0.5
REPORT_TOPIC = "jobs.report"
"""What we wake ourselves with: no thing is of this kind."""
BATCH_WINDOW_S = 0.02
"""So long after a cycle what comes in is gathered, and looked at together; but not where nobody waits and nothing was
decided: what comes next is looked at at once."""
MAX_GROUPED_DECISION_S = 0.01
"""A decision that takes no longer is made while nobody else can write."""
MAX_STARTS = 200
MAX_CYCLE_INTERVAL_S = 5.0
"""With jobs waiting, a cycle is due so often even when nothing changed: time itself is a fact."""
MAX_UNKNOWN_POLLS = 3
"""An attempt that its executor does not know so many times in a row is lost."""
NODE_GONE_TIMEOUT_S = 30.0
"""So long after its node is gone an executor may still tell how an attempt ended."""
SWEEP_INTERVAL_S, MAX_RETRY_PAUSE_S = 3600.0, 900.0
MIN_STOP_GRACE_S = 10  # the least time in seconds that a job has to end after it spent its grace on saving
LIMIT_OVERRUN_S = 30
"""A job that outlives its time limit and its grace by so much is ended from here."""
_ANY_DEVICE = -1  # what a slot without devices has of its node


class JobsLoop:
    """Leads jobs from asked to over."""

    name = "jobs"
    eager = True
    hears = (*WATCHED_KINDS, REPORT_TOPIC)
    every_s = STEP_INTERVAL_S

    def __init__(
        self,
        ledger: Ledger,
        clusters: ClusterService,
        track: TrackService,
        service: JobService,
        options: SchedulerOptions | None = None,
    ) -> None:
        self._ledger = ledger
        self._clusters = clusters
        self._service = service
        self._staging = service.staging
        self._leader = LeaderState(ledger, clusters, track, options or SchedulerOptions())
        self._inbox: queue.SimpleQueue[ClusterReport] = queue.SimpleQueue()
        self._cluster_workers: dict[str, ClusterWorker] = {}
        self._io_pool = IoPool()
        self._iteration: LoopIteration
        self._lease_until = 0.0
        self._next_cycle_at = self._next_sweep_at = self._batch_until = 0.0
        self._has_urgent_report = False
        """Whether there is a report that somebody wants to be looked at now; others may wait for more."""
        self._decision_s = 0.0
        """How long the last decision took."""
        self._unknown_polls: dict[str, int] = {}
        self._missing_nodes: dict[str, float] = {}
        """Nodes that attempts hold and their clusters do not, since when."""
        self._stuck_clusters: dict[str, tuple[float, int]] = {}
        """Clusters that hung: when to try again, and how often they did. Each try may cost us a thread."""
        self._sent_commands: dict[str, set[str]] = {}
        """What was ordered in this lead, by attempt."""
        self._unpublished = UnpublishedOutputs()
        self._unsaved_facts: dict[str, tuple[Mapping[str, Any], ...]] = {}
        """What attempts said of their progress since it was last written down."""
        self._written_nodes: dict[str, Mapping[str, NodeInfo]] = {}
        self._written_troubles: dict[str, str] = {}
        """What was last written down of clusters that do not answer; empty of those that do."""
        self._cleanups: list[Callable[[], None]] = []
        """What takes away what attempts left whose ends are durable."""

    def step(self, iteration: LoopIteration) -> bool:
        """Take facts in, decide, write, order. True when there is more to decide, or to take in again."""
        self._leader.at_work = threading.get_ident()
        try:
            return self._run_step(iteration)
        except BaseException:
            self._leader.token = 0  # whatever it was, what we know may be half true: read everything anew
            raise
        finally:
            self._leader.at_work = 0

    def _run_step(self, iteration: LoopIteration) -> bool:
        time.sleep(max(0.0, self._batch_until - time.monotonic()))
        self._iteration = iteration
        self._lease_until = time.monotonic() + LEASE_S / 2
        leader = self._leader
        leader.ctx = iteration.ctx
        if iteration.ctx.now() < self._next_cycle_at - 2 * MAX_CYCLE_INTERVAL_S:
            # The clock was set back: what we mean to do later would be done when that moment comes again.
            leader.token, self._next_cycle_at, self._next_sweep_at = 0, 0.0, 0.0
        if iteration.token != leader.token:
            self._retire_cluster_workers()
            leader.begin(iteration)
        leader.follow()
        self._has_urgent_report = False
        self._ensure_cluster_workers()
        # What is told and what is decided of it are written together, unless deciding takes so long that others would
        # wait for their turn to write.
        with (
            self._ledger.group()
            if self._decision_s < MAX_GROUPED_DECISION_S and not self._inbox.empty()
            else nullcontext()
        ):
            self._process_cluster_reports()
            for record in self._unpublished.take_due(leader.jobs):
                self._process_status(
                    record, AttemptStatus(record.body["attempt"]["handle"], ENDED_WELL), iteration.ctx.now()
                )
            self._stop_held_back()
            self._release_held_jobs()
            has_more = self._run_cycle(iteration.ctx.now())
        self._cleanups, cleanups = [], self._cleanups
        self._io_pool.do_all(cleanups)
        self._advance_attempts()
        return has_more or leader.dirty or self._has_urgent_report

    def _run_cycle(self, now: float) -> bool:
        """Decide what is due, and write it down; True when there is more to decide."""
        leader = self._leader
        if not (leader.rings(now) or leader.dirty or now >= self._next_cycle_at):
            return False
        leader.dirty, self._next_cycle_at = False, now + MAX_CYCLE_INTERVAL_S
        began_at = time.monotonic()
        leader.charge()
        self._sweep_attempts(now)
        plan = leader.scheduler.cycle(int(now), MAX_STARTS)
        self._decision_s = time.monotonic() - began_at
        self._apply_plan(plan, now)
        if len(leader.jobs) > len(leader.busy) or plan.starts or plan.evictions or plan.resizes:
            self._batch_until = began_at + BATCH_WINDOW_S
        return len(plan.starts) >= MAX_STARTS

    def close(self) -> None:
        """Let the crews go; attempts run on."""
        self._retire_cluster_workers()
        self._io_pool.close()

    # Decisions become writes.

    def _apply_plan(self, plan: SchedulePlan, now: float) -> None:
        """Write a plan down, as of the moment that it was made for: what the scheduler took as done is just that."""
        if not (plan.starts or plan.evictions or plan.resizes):
            return
        with self._leader.at_once():
            self._leader.planned = {start.job for start in plan.starts}
            for start in plan.starts:
                self._write_guarded(start.job, partial(self._write_admission, start=start, now=now))
            self._leader.planned = set()
            for evict in plan.evictions:
                self._write_guarded(evict.job, partial(self._write_eviction, evict=evict, now=now))
            for resize in plan.resizes:
                self._write_guarded(resize.job, partial(self._write_resize, resize=resize, now=now))

    def _write_guarded(self, job: str, write: Callable[[LedgerRecord], object]) -> None:
        """Write one decision; where somebody else wrote first, it never happened."""
        leader = self._leader
        record = leader.jobs.get(job)
        try:
            if record is not None:
                write(record)
                return
        except Conflict:
            if not leader.token:
                raise
            log.info("decision discarded", extra={"job": job})
        leader.planned.discard(job)
        leader.scheduler.undo(job)
        leader.again(job)

    def _write_admission(self, record: LedgerRecord, start: JobStart, now: float) -> None:
        leader = self._leader
        shape = leader.shape(record, start.band)
        nodes = sum_node_use(shape, start.spots, leader.nodes)
        size = sum(node_use.get("gpu", 0) for node_use in nodes.values()) or sum(
            node_use.get("cpu", 0) for node_use in nodes.values()
        )
        use = {"queue": record.body["queue"], "nodes": nodes, "charge": dict(start.charged), "size": size}
        name = make_attempt_name(record.key.name, record.body["id"])
        body = {**state_machine.admit_attempt(record.body, start.spots, name, start.band, now), "use": use}
        leader.write(record, body, "jobs.admit", attempt=body["attempt"]["id"], why=start.why)

    def _write_eviction(self, record: LedgerRecord, evict: JobEviction, now: float) -> None:
        grace = max(evict.grace_s, 1)
        body = state_machine.mark_stopping(
            record.body, state_machine.EVICT, now, grace_s=grace, wanted_by=evict.wanted_by
        )
        body = state_machine.explain_eviction(body, evict.why, evict.lost)
        self._leader.write(record, body, "jobs.evict", why=evict.why, lost=str(evict.lost))

    def _write_resize(self, record: LedgerRecord, resize: JobResize, now: float) -> None:
        grace, max_grace_s = read_spec(record).grace_s, self._leader.scheduler.knobs.grace_s
        grace = min(grace, max_grace_s) if resize.wanted_by else grace
        body = state_machine.mark_stopping(
            record.body, state_machine.RESIZE, now, grace_s=grace, wanted_by=resize.wanted_by, spots=resize.spots
        )
        self._leader.write(record, body, "jobs.resize", why=resize.why)

    # Writes become orders.

    def _advance_attempts(self) -> None:
        """Give every live job what its state asks for, once in this lead; whoever led before may have died at it."""
        leader, now = self._leader, self._iteration.ctx.now()
        new_records = list[LedgerRecord]()
        for job in sorted(leader.busy):
            record = leader.jobs[job]
            state, attempt = record.body["state"], record.body["attempt"]
            if attempt["cluster"] not in self._cluster_workers:
                continue
            if not attempt["handle"]:
                new_records.append(record)
                continue
            self._send_once(attempt["id"], "watch", partial(self._watch_attempt, record))
            if self._missing_nodes and self._end_if_node_gone(record, now):
                continue
            if state == STOPPING:
                self._stop_attempt(record, now)
            elif state == RUNNING:
                self._enforce_limit(record, now)
        if new_records:
            self._launch_new(new_records)

    def _launch_new(self, new_records: list[LedgerRecord]) -> None:
        """Launch them, but for those with a place that somebody who is resized has not left yet."""
        due_records, occupied = list[LedgerRecord](), dict[str, set[int]]()
        for attempt in (self._leader.jobs[job].body["attempt"] for job in self._leader.busy):
            if attempt["stop"] and attempt["stop"]["why"] == state_machine.RESIZE:
                for node, _, devices, _ in attempt["spots"]:
                    occupied.setdefault(node, set()).update(devices or (_ANY_DEVICE,))
        for record in new_records:
            if record.body["state"] == STOPPING or not (occupied and _is_in_use(record, occupied)):
                self._send_once(record.body["attempt"]["id"], "launch", partial(due_records.append, record))
        self._prepare_launches(due_records)

    def _stop_held_back(self) -> None:
        """Stop the attempts of jobs that may not go on, and cancel the jobs of accounts that are gone for good."""
        for job, standing in self._leader.standings.find_due_stops(self._leader.jobs):
            self._write_guarded(job, partial(self._stop_for_standing, standing=standing))

    def _stop_for_standing(self, record: LedgerRecord, standing: SubmitterStanding) -> None:
        body = stop_for_standing(record, standing, self._iteration.ctx.now())
        self._leader.write(record, body, "jobs.suspend", reason=standing.reason)

    def _release_held_jobs(self) -> None:
        """Look at those that wait for others, where one of any is over."""
        leader = self._leader
        if leader.look_at_held:
            leader.look_at_held = False
            for job in sorted(leader.held):
                self._release_job(leader.jobs[job])

    def _send_once(self, attempt: str, command_name: str, send_command: Callable[[], None]) -> None:
        if command_name not in (sent := self._sent_commands.setdefault(attempt, set())):
            sent.add(command_name)
            send_command()

    def _prepare_launches(self, records: list[LedgerRecord]) -> None:
        """Files first, on other threads: those that bring some each by itself, the others one after another."""
        ctx, without_files = self._iteration.ctx, list[Callable[[], None]]()
        for record in records:
            worker = self._cluster_workers[record.body["attempt"]["cluster"]]
            worker.coming.add(record.body["attempt"]["id"])
            prepare = partial(self._prepare_attempt, ctx, record, worker)
            if has_files_to_stage(record):
                self._io_pool.do(prepare)
            else:
                without_files.append(prepare)
        self._io_pool.do_all(without_files)

    def _prepare_attempt(self, ctx: CallContext, record: LedgerRecord, worker: ClusterWorker) -> None:
        attempt, job = record.body["attempt"]["id"], record.body["id"]
        try:
            prepared = self._staging.prepare(ctx, record, worker.cluster)
        except (FalajError, OSError) as error:
            is_final = isinstance(error, FalajError) and not isinstance(error, (Unavailable, Conflict))
            worker.coming.discard(attempt)
            self._enqueue_and_wake(
                ClusterReport("refused", worker.cluster.name, attempt, job, str(error), final=is_final)
            )
        else:
            worker.launch(job, prepared, self._is_leading)

    def _watch_attempt(self, record: LedgerRecord) -> None:
        attempt = record.body["attempt"]
        watched = WatchedAttempt(record.body["id"], attempt["id"], attempt["handle"], attempt["cursor"])
        self._cluster_workers[attempt["cluster"]].watch(watched)

    def _stop_attempt(self, record: LedgerRecord, now: float) -> None:
        """Save first, where it can; then end. A cancelled job saves nothing."""
        attempt, stop = record.body["attempt"], record.body["attempt"]["stop"]
        worker, spec = self._cluster_workers[attempt["cluster"]], read_spec(record)
        can_save = stop["why"] in state_machine.SAVING and (spec.resumes or record.body["saved"])
        if can_save:
            self._send_once(attempt["id"], "checkpoint", lambda: worker.checkpoint(attempt["handle"]))
            if record.body["saved"] < stop["since"] and now < stop["since"] + stop["grace_s"]:
                return
        grace_left_s = max(stop["since"] + stop["grace_s"] - now, min(stop["grace_s"], MIN_STOP_GRACE_S))
        self._send_once(attempt["id"], f"stop {stop['why']}", lambda: worker.stop(attempt["handle"], grace_left_s))

    def _enforce_limit(self, record: LedgerRecord, now: float) -> None:
        """The launcher keeps the time limit; when it does not, we do."""
        spec, attempt = read_spec(record), record.body["attempt"]
        if spec.limit_s and now > attempt["started"] + spec.limit_s + spec.grace_s + LIMIT_OVERRUN_S:
            body = state_machine.mark_stopping(record.body, state_machine.LIMIT, now, grace_s=1)
            self._write_guarded(record.body["id"], lambda current: self._leader.write(current, body, "jobs.limit"))

    def _release_job(self, record: LedgerRecord) -> None:
        """Let a job go on that waits for others, or end it when one of them did not succeed."""
        if not record.body["after"]:
            return  # a person holds it, and releases it
        states = self._service.states(self._iteration.ctx, record)
        now = self._iteration.ctx.now()
        failed_jobs = [name for name, state in states.items() if state not in (SUCCEEDED, "") and state in ENDED_STATES]
        if failed_jobs:
            body = state_machine.cancel_job(record.body, f"{failed_jobs[0]} did not succeed", now)
        elif all(state == SUCCEEDED for state in states.values()) and not record.body.get("hold"):
            body = {**record.body, "state": WAITING}
        else:
            return
        self._write_guarded(record.body["id"], lambda current: self._leader.write(current, body, "jobs.release"))

    # Reports become writes.

    def _process_cluster_reports(self) -> None:
        if self._inbox.empty():
            return  # the end of a group wakes every eager loop, and so us: an idle loop would never rest
        reports = [self._inbox.get() for _ in range(self._inbox.qsize())]
        finished_launches = find_finished_launches(reports)
        with self._leader.at_once():
            for report in reports:
                try:
                    self._process_report(report, finished_launches)
                except Conflict:
                    if not self._leader.token:
                        raise
                    # Somebody wrote first: read it again, and look at the report once more.
                    self._leader.again(report.job)
                    self._enqueue_and_wake(report)

    def _process_report(self, report: ClusterReport, finished_launches: Set[str] = frozenset()) -> None:
        """Write a report down; that one of the `finished_launches` was launched is written with its end."""
        if report.kind in ("nodes", "silent"):
            self._process_nodes(report)
            return
        record = self._leader.jobs.get(report.job)
        attempt = record.body["attempt"] if record is not None else None
        if record is None or attempt is None or attempt["id"] != report.attempt:
            self._stop_stray(report)
            return
        now = self._iteration.ctx.now()
        if report.kind == "launched":
            if report.attempt in finished_launches and not record.body["outputs"]:
                return
            self._leader.write(
                record, state_machine.mark_launched(record.body, report.text, now), "jobs.start", handle=report.text
            )
        elif report.kind == "refused":
            self._process_refusal(record, report, now)
        elif report.kind == "facts":
            self._process_facts(record, report)
        elif report.kind == "seen" and report.status is not None:
            self._process_status(record, report.status, now)
        elif report.kind == "unpublished":
            self._sent_commands.get(report.attempt, set()).discard("publish")
            self._unpublished.add(report)
        elif report.kind == "published":
            body = {**record.body, "outputs": {**record.body["outputs"], **report.outputs}}
            self._end_attempt(record, body, AttemptStatus(attempt["handle"], ENDED_WELL), now)

    def _process_nodes(self, report: ClusterReport) -> None:
        cluster = self._leader.clusters.get(report.cluster)
        if cluster is None:
            return
        if report.kind == "silent":
            cluster_nodes = [node for node in self._leader.nodes.values() if node.cluster == cluster.name]
            self._leader.set_nodes(cluster, [replace(node, open=False) for node in cluster_nodes])
            self._write_trouble(cluster.name, report.text)
            return
        self._stuck_clusters.pop(cluster.name, None)
        self._write_trouble(cluster.name, "")
        self._note_missing_nodes(report)
        self._leader.set_nodes(cluster, [to_scheduler_node(cluster, facts) for facts in report.nodes.values()])
        if self._written_nodes.get(cluster.name) != report.nodes:
            self._write_nodes(report)
            self._written_nodes[cluster.name] = report.nodes

    def _note_missing_nodes(self, report: ClusterReport) -> None:
        """Remember since when nodes that attempts hold are not there, or not well."""
        now, leader = self._iteration.ctx.now(), self._leader
        present_nodes = {f"{report.cluster}/{name}" for name, facts in report.nodes.items() if facts.ready}
        attempts = [leader.jobs[job].body["attempt"] for job in leader.busy]
        held_nodes = {
            row[0]
            for busy_attempt in attempts
            if busy_attempt["cluster"] == report.cluster
            for row in busy_attempt["spots"]
        }
        other_missing = {
            node: since for node, since in self._missing_nodes.items() if not node.startswith(f"{report.cluster}/")
        }
        self._missing_nodes = {
            **other_missing,
            **{node: self._missing_nodes.get(node, now) for node in held_nodes - present_nodes},
        }

    def _end_if_node_gone(self, record: LedgerRecord, now: float) -> bool:
        """True when an attempt's node is gone for so long that its executor will not tell us any more: it is lost."""
        attempt = record.body["attempt"]
        gone_nodes = [
            row[0] for row in attempt["spots"] if now - self._missing_nodes.get(row[0], now) > NODE_GONE_TIMEOUT_S
        ]
        if gone_nodes:
            self._cluster_workers[attempt["cluster"]].stop(attempt["handle"], 0)
            status = AttemptStatus(attempt["handle"], LOST, reason=f"its node {gone_nodes[0]} is gone")
            self._write_guarded(
                record.body["id"], lambda current: self._end_attempt(current, current.body, status, now)
            )
        return bool(gone_nodes)

    def _write_nodes(self, report: ClusterReport) -> None:
        """Write down what changed, for other replicas and for questions."""
        with self._ledger.project(self._iteration.ctx) as tx:
            self._leader.guard(tx)
            self._clusters.write_nodes(tx, report.cluster, report.nodes)

    def _write_trouble(self, cluster: str, reason: str) -> None:
        """Write down that a cluster does not answer, or does again, once for each change."""
        if self._written_troubles.get(cluster) != reason:
            with self._ledger.project(self._iteration.ctx) as tx:
                self._leader.guard(tx)
                self._clusters.write_trouble(tx, cluster, reason[:500])
            self._written_troubles[cluster] = reason

    def _process_refusal(self, record: LedgerRecord, report: ClusterReport, now: float) -> None:
        suspended = self._mark_if_suspended(record, record.body, now)
        if report.refuses_person and not suspended["attempt"]["stop"]:
            body = exclude_cluster(replace(record, body=suspended), self._leader.clusters, report.text, now)
        else:
            end_attempt = (
                state_machine.mark_refused
                if suspended["attempt"]["stop"] or not report.final
                else state_machine.fail_job
            )
            body = end_attempt(suspended, report.text, now)
        started = record.body["attempt"]["started"]
        # One that ran, and whose outputs could not be published, held its places all the same.
        settle = self._leader.settle(record, body, max(0.0, now - started)) if started else None
        self._leader.write(record, body, "jobs.refuse", settle, reason=report.text[:500])
        if body["state"] not in ENDED_STATES:
            log.info("placement refused", extra={"job": report.job, "reason": report.text})

    def _process_facts(self, record: LedgerRecord, report: ClusterReport) -> None:
        self._service.heard(record, report.facts)
        if not any(fact.get("kind") in ("metric", "progress", "checkpoint") for fact in report.facts):
            return
        tenant_ctx = self._leader.mine(record)
        with self._ledger.write(tenant_ctx) as tx:
            self._leader.guard(tx)
            updated = self._service.take(tenant_ctx, tx, record, report.facts)
        self._leader.take(updated)
        if updated is record:
            self._unsaved_facts[report.attempt] = state_machine.newest_facts(
                (*self._unsaved_facts.get(report.attempt, ()), *report.facts)
            )

    def _process_status(self, record: LedgerRecord, status: AttemptStatus, now: float) -> None:
        attempt = record.body["attempt"]
        if status.phase == UNKNOWN:
            unknown_polls = self._unknown_polls[attempt["id"]] = self._unknown_polls.get(attempt["id"], 0) + 1
            if unknown_polls < MAX_UNKNOWN_POLLS:
                return
            # It may run all the same: what is forgotten here is asked to end before it is tried elsewhere.
            self._cluster_workers[attempt["cluster"]].stop(attempt["handle"], 0)
            status = AttemptStatus(status.handle, LOST, reason="its cluster does not know it any more")
        if status.phase not in ENDED:
            return
        stop = attempt["stop"] or {}
        if (
            status.phase == ENDED_WELL
            and record.body["outputs"]
            and stop.get("why") not in (state_machine.CANCEL, state_machine.LIMIT)
        ):
            self._send_once(attempt["id"], "publish", lambda: self._publish_outputs(record))
            return
        self._end_attempt(record, record.body, status, now)

    def _publish_outputs(self, record: LedgerRecord) -> None:
        cluster, ctx = self._cluster_workers[record.body["attempt"]["cluster"]].cluster, self._iteration.ctx
        self._io_pool.do(lambda: self._enqueue_and_wake(publish_outputs(self._staging, ctx, record, cluster)))

    def _end_attempt(self, record: LedgerRecord, body: JobBody, status: AttemptStatus, now: float) -> None:
        """An attempt is over: settle, and end the job or queue it again; a resized one goes on in its new places."""
        start_handle = "" if record.body["attempt"]["handle"] else status.handle
        if start_handle:  # that was not written down yet
            body = state_machine.mark_launched(body, start_handle, now)
            record_fields = (
                record.label,
                record.zone,
                record.author,
                record.restricted,
                record.at,
                record.terms,
                record.kept,
            )
            record = LedgerRecord(record.key, record.rev, body, *record_fields)
        if status.phase != ENDED_WELL:
            body = self._mark_if_suspended(record, body, now)
        attempt = record.body["attempt"]
        seconds = max(0.0, (status.ended or now) - attempt["started"]) if attempt["started"] else 0.0
        after = state_machine.end_attempt(
            state_machine.absorb_facts(body, self._unsaved_facts.pop(attempt["id"], ())), status, now
        )
        settle, worker = self._leader.settle(record, after, seconds), self._cluster_workers.get(attempt["cluster"])

        def clear_files() -> None:
            # Not before it is durable: whoever leads next would find an attempt that ended well and left nothing.
            if worker is not None:
                self._cleanups.append(partial(self._staging.clear, record, worker.cluster, attempt["id"]))

        self._leader.write(
            record, after, "jobs.end", settle, clear_files, start_handle, attempt=attempt["id"], state=after["state"]
        )
        self._service.end(record.body, after, status.ended or now)
        if worker is not None:
            worker.unwatch(attempt["id"])
        self._unknown_polls.pop(attempt["id"], None)
        self._sent_commands.pop(attempt["id"], None)
        stop = attempt["stop"] or {}
        is_held_back = after["id"] in self._leader.standings.held_back
        if stop.get("why") == state_machine.RESIZE and after["state"] == WAITING and not is_held_back:
            charge = tuple(sorted(record.body["use"]["charge"].items()))
            start = JobStart(after["id"], state_machine.parse_spots(stop["spots"]), attempt["band"], "resized", charge)
            self._write_guarded(after["id"], lambda current: self._write_admission(current, start, now))

    def _mark_if_suspended(self, record: LedgerRecord, body: JobBody, now: float) -> JobBody:
        """The body of an attempt that did not end well, marked as stopped where its submitter lost the standing: then
        its programs were refused what they asked of the platform, and the job is held and not failed."""
        if body["attempt"]["stop"] or not self._leader.standings.reread(self._leader.ctx, record):
            return body
        return state_machine.mark_stopping(body, state_machine.SUSPEND, now, grace_s=0)

    def _stop_stray(self, report: ClusterReport) -> None:
        """Something runs that nobody waits for: it was cancelled, or tried elsewhere, while it was being launched."""
        worker = self._cluster_workers.get(report.cluster)
        if report.kind == "launched" and worker is not None:
            worker.stop(report.text, 0)
        elif worker is not None:
            worker.unwatch(report.attempt)

    # Crews.

    def _ensure_cluster_workers(self) -> None:
        """One crew a cluster; one that is stuck is left to itself, and its cluster takes nothing new meanwhile."""
        clusters = self._leader.clusters
        for name, worker in list(self._cluster_workers.items()):
            if name in clusters and worker.serves(clusters[name]) and not worker.stuck:
                worker.cluster = clusters[name]
            else:
                if worker.stuck:
                    self._enqueue_and_wake(ClusterReport("silent", name, text="it does not answer"))
                    stuck_count = self._stuck_clusters.get(name, (0.0, 0))[1]
                    self._stuck_clusters[name] = (
                        time.monotonic() + min(MAX_RETRY_PAUSE_S, 15 * stuck_count),
                        stuck_count + 1,
                    )
                worker.retire()
                del self._cluster_workers[name]
                attempts = [self._leader.jobs[job].body["attempt"] for job in self._leader.busy]
                for attempt in attempts:
                    if attempt["cluster"] == name:
                        self._sent_commands.pop(attempt["id"], None)
        for name, cluster in clusters.items():
            if name not in self._cluster_workers and time.monotonic() >= self._stuck_clusters.get(name, (0.0, 0))[0]:
                self._cluster_workers[name] = self._open_cluster_worker(cluster)

    def _sweep_attempts(self, now: float) -> None:
        """Now and then, let old attempts go."""
        if now < self._next_sweep_at:
            return
        self._next_sweep_at = now + SWEEP_INTERVAL_S
        live = frozenset(self._leader.jobs[job].body["attempt"]["id"] for job in self._leader.busy)
        unfinished = frozenset(self._leader.jobs)
        for worker in self._cluster_workers.values():
            self._io_pool.do(
                partial(self._staging.sweep, self._iteration.ctx, worker.cluster, live, unfinished, worker.forget)
            )

    def _open_cluster_worker(self, cluster: Cluster) -> ClusterWorker:
        ctx = self._iteration.ctx
        open_executor = partial(self._clusters.executor, ctx, cluster)
        return ClusterWorker(cluster, open_executor, self._enqueue_report, self._wake_loop)

    def _retire_cluster_workers(self) -> None:
        for worker in self._cluster_workers.values():
            worker.retire()
        self._cluster_workers, self._sent_commands, self._unknown_polls, self._written_nodes, self._written_troubles = (
            {},
            {},
            {},
            {},
            {},
        )
        self._missing_nodes, self._unsaved_facts, self._unpublished = {}, {}, UnpublishedOutputs()
        self._inbox = queue.SimpleQueue()

    def _enqueue_and_wake(self, report: ClusterReport) -> None:
        self._enqueue_report(report)
        self._wake_loop()

    def _enqueue_report(self, report: ClusterReport) -> None:
        self._inbox.put(report)

    def _wake_loop(self) -> None:
        self._has_urgent_report = True
        self._ledger.bells.nudge(REPORT_TOPIC)

    def _is_leading(self) -> bool:
        return time.monotonic() < self._lease_until + LEASE_S / 2


def _is_in_use(record: LedgerRecord, occupied: Mapping[str, Set[int]]) -> bool:
    """Whether a place it was given is one that somebody who is resized leaves, and is not out of yet."""
    rows = [(occupied.get(row[0], frozenset()), row[2]) for row in record.body["attempt"]["spots"]]
    return any(
        occupied_devices
        and (not devices or _ANY_DEVICE in occupied_devices or not occupied_devices.isdisjoint(devices))
        for occupied_devices, devices in rows
    )
