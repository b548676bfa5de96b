"""The loop of flows: what is due next in every run.

A run is looked at when one of its jobs changed, somebody touched it, or a gate of it waits; not at every commit. All
that one look brings (results taken in, jobs asked for, verbs called) is written in one transaction over the revision
it was decided on. Killed anywhere, the next turn finds all or nothing of it. Jobs and verbs are asked for through the
guard, in the name of whoever began the run and with what they may do today.
"""

import logging
import time
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from falaj.core.client_command import Client
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, FalajError, NotFound, QuotaExceeded, StaleRevision, Unavailable
from falaj.core.ref import Ref
from falaj.dispatch.cluster_worker import EXECUTOR_ERRORS
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.flows import flow_runs
from falaj.flows.flow_plans import MAX_ITEMS
from falaj.flows.records import CANCELLED, FAILED, RUNNING, STEP_GATE, WAITING, FlowPlan, RecordBody, StepPlan
from falaj.flows.run_decisions import decide_moves
from falaj.flows.service import FlowService
from falaj.flows.step_requests import RunContext, request_item
from falaj.flows.step_results import CODE_TEXT_MARK, collect_results
from falaj.jobs import records as jobs
from falaj.jobs.attempts import make_owner_context
from falaj.jobs.submitter_standing import SubmitterStanding, read_job_standing
from falaj.serve.change_watch import ChangeWatch
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.reconcile_loop import LoopIteration
from falaj.store.records import LedgerRecord

log = logging.getLogger(__name__)
BATCH_WINDOW_S = 0.01
"""So long after a look what comes in is gathered."""
SEARCH_INTERVAL_S = 5.0
"""A run that another replica began is noticed within so long."""
MAX_STARTS_PER_WRITE = 16
"""So many items are asked for in one transaction."""
MAX_BACKOFF_S = 300.0

RunName = tuple[str, Ref]


class LoadedRun(NamedTuple):
    """A run as it was read, with its flow, and whether anything may be done for its owner."""

    turn: LedgerRecord
    flow: LedgerRecord
    plan: FlowPlan
    standing: SubmitterStanding


class FlowLoop:
    """Leads the runs of flows, for every tenant."""

    name = "flows"
    every_s = 1.0
    eager = True

    def __init__(self, ledger: Ledger, service: FlowService) -> None:
        self._ledger = ledger
        self._service = service
        self._fencing_token = 0
        self._job_watch = ChangeWatch(ledger, "job")
        self._searched_at = 0.0
        self._next_run_at = 0.0
        self._due_runs: set[RunName] = set()
        self._retry_at: dict[RunName, float] = {}
        """Runs that are looked at again though nothing tells us to: they wait at a gate, or to try again."""
        self._failures: dict[RunName, int] = {}
        self._run_by_job: dict[RunName, Ref] = {}
        """The run of each job that is not over."""
        self.minds = {"turn"}
        """Jobs, too, while we wait for one."""
        self._iteration: LoopIteration
        self._touched_runs: SimpleQueue[RunName] = SimpleQueue()
        service.watch(lambda tenant, run_ref: self._touched_runs.put((tenant, run_ref)))

    def step(self, iteration: LoopIteration) -> bool:
        """A look at every run that something happened to; one that is in trouble holds up no other."""
        time.sleep(max(0.0, self._next_run_at - time.monotonic()))
        self._iteration = iteration
        self._find_live_runs(iteration)
        self._collect_changes()
        now = iteration.ctx.now()
        due_runs = self._due_runs | {name for name, retry_time in self._retry_at.items() if retry_time <= now}
        for tenant, ref in sorted(due_runs):
            if not iteration.alive():
                return False
            self._due_runs.discard((tenant, ref))
            self._retry_at.pop((tenant, ref), None)
            try:
                self._advance_run(replace(iteration.ctx, tenant=tenant), ref)
            except Conflict:
                self._retry_at[tenant, ref] = now  # somebody wrote first: there is nothing wrong, look again
            except (FalajError, *EXECUTOR_ERRORS) as error:
                failure_count = self._failures[tenant, ref] = self._failures.get((tenant, ref), 0) + 1
                self._retry_at[tenant, ref] = now + min(MAX_BACKOFF_S, 2.0 ** min(failure_count, 10))
                log.warning("run in trouble", extra={"turn": str(ref), "reason": str(error)}, exc_info=True)
            else:
                self._failures.pop((tenant, ref), None)
        self._next_run_at = time.monotonic() + BATCH_WINDOW_S
        return self._watch_jobs() or bool(self._due_runs)

    def _watch_jobs(self) -> bool:
        """Be woken by jobs while we wait for any; True when we begin to, and something may have been said already."""
        if not self._run_by_job:
            self.minds.discard("job")
            return False
        is_starting = "job" not in self.minds
        self.minds.add("job")
        return is_starting

    def _find_live_runs(self, iteration: LoopIteration) -> None:
        """Find the runs that are not over: at first, and now and then, for those that others began."""
        now, is_first = iteration.ctx.now(), iteration.token != self._fencing_token
        if not is_first and abs(now - self._searched_at) < SEARCH_INTERVAL_S:
            return
        if is_first:
            self._fencing_token, self._job_watch = iteration.token, ChangeWatch(self._ledger, "job")
            self._due_runs, self._retry_at, self._run_by_job = set(), {}, {}
        self._searched_at = now
        with self._ledger.read(iteration.ctx) as tx:
            live_runs = [
                run_record
                for tenant in list_tenants(self._ledger)
                for run_record in iter_records(tx, "turn", tenant, {"live": "1"})
            ]
        known_runs = {*((tenant, ref) for (tenant, _), ref in self._run_by_job.items()), *self._retry_at}
        self._due_runs |= {(run_record.key.tenant, run_record.ref.bare) for run_record in live_runs} - known_runs

    def _collect_changes(self) -> None:
        """Which runs were touched, and which of our jobs something happened to."""
        while not self._touched_runs.empty():
            self._due_runs.add(self._touched_runs.get())
        if not self._run_by_job:
            # Nobody is waited for: what happens meanwhile need not be read.
            self._job_watch = ChangeWatch(self._ledger, "job")
            return
        self._due_runs |= {
            (job[0], self._run_by_job[job]) for job in self._job_watch.changed() & self._run_by_job.keys()
        }

    def _advance_run(self, ctx: CallContext, ref: Ref) -> None:
        """Everything that is due in one run, until nothing is."""
        for _ in range(MAX_ITEMS):
            loaded = self._load_run(ctx, ref)
            if loaded is None or not self._iteration.alive():
                return
            if loaded.standing.reason and not loaded.standing.removed:
                # Suspended: the run rests where it stands, as its jobs do, until that is lifted.
                self._retry_at[ctx.tenant, ref] = ctx.now() + self.every_s
                return
            if not self._advance_once(ctx, loaded):
                return

    def _load_run(self, ctx: CallContext, ref: Ref) -> LoadedRun | None:
        with self._ledger.read(ctx) as tx:
            run = tx.get(ref)
            if run is None or flow_runs.is_over(run.body):
                return None
            flow = tx.need(Ref.parse(run.body["flow"]))
            return LoadedRun(run, flow, flow_runs.read_plan(flow), read_job_standing(tx, run))

    def _advance_once(self, ctx: CallContext, loaded: LoadedRun) -> bool:
        """One look; True when there may be more to do at once."""
        try:
            return self._write_moves(ctx, loaded, MAX_STARTS_PER_WRITE)
        except (StaleRevision, Unavailable):
            raise
        except FalajError:
            # One of several spoilt the transaction: one at a time, so that only that one fails.
            return self._write_moves(ctx, loaded, 1)

    def _write_moves(self, ctx: CallContext, loaded: LoadedRun, max_starts: int, failure_text: str = "") -> bool:
        """One transaction. Where the only thing that was asked for cannot be, that is written down instead."""
        old_run = loaded.turn
        owner_context, client = self._act_for_owner(ctx, old_run)
        try:
            with self._ledger.write(owner_context) as tx:
                body = {
                    **old_run.body,
                    "steps": _copy_steps(old_run.body),
                    "cancel": old_run.body["cancel"] or loaded.standing.reason,
                }
                run_context = RunContext(tx, client, old_run, loaded.flow, loaded.plan, body, ctx.now())
                label = collect_results(self._ledger, run_context)
                has_more = self._apply_moves(ctx, run_context, max_starts, failure_text)
                if body != old_run.body:
                    terms = flow_runs.make_run_terms(body, Ref.parse(body["flow"]))
                    _emit_changes(
                        tx, tx.put(old_run.key, body, rev=old_run.rev, label=label, terms=terms), old_run.body
                    )
        except (StaleRevision, Unavailable):
            raise
        except FalajError as error:
            if (
                max_starts > 1 or failure_text or isinstance(error, QuotaExceeded)
            ):  # a cap on waiting jobs: the step is tried later
                raise
            return self._write_moves(ctx, loaded, 1, str(error))
        self._track_jobs(old_run, body, loaded.plan, ctx.now())
        return has_more and body != old_run.body

    def _apply_moves(self, ctx: CallContext, run_context: RunContext, max_starts: int, failure_text: str) -> bool:
        """Carry out what is decided, on the body; True when there is more than one transaction should hold."""
        body, plan = run_context.body, run_context.plan
        steps = {step.name: step for step in plan.steps}
        remaining_starts, is_cancelled, is_condition_met = (
            max_starts,
            bool(body["cancel"]),
            partial(_is_condition_met, run_context),
        )
        if is_cancelled:
            self._cancel_jobs(ctx, body)
        while True:
            moves = decide_moves(plan, flow_runs.list_step_states(body), is_condition_met, is_cancelled=is_cancelled)
            for name, state, reason in moves.over:
                body["steps"][name] |= {"state": state, "note": reason}
            for name in moves.begin:
                _begin_step(body, plan, steps[name])
            for name, item_number in moves.start[:remaining_starts]:
                self._request_item(run_context, steps[name], item_number, failure_text)
                remaining_starts -= 1
            if moves.end:
                body |= {
                    "state": moves.end,
                    "ended": run_context.now,
                    "note": body["cancel"] or _describe_failure(body),
                }
                return False
            if not moves.over and not moves.begin and (not moves.start or not remaining_starts):
                return bool(moves.start)

    def _request_item(self, run_context: RunContext, step: StepPlan, item_number: int, failure_text: str) -> None:
        items = run_context.body["steps"][step.name]["items"]
        try:
            if failure_text:
                raise NotFound(failure_text)
            items[item_number] = request_item(self._ledger, run_context, step, item_number, items[item_number])
        except (Denied, NotFound) as error:
            # What the guard wrote down of it stays.
            items[item_number] = _fail_item(items[item_number], str(error), run_context.now)

    def _cancel_jobs(self, ctx: CallContext, body: RecordBody) -> None:
        """Cancel what runs; what waits for its turn never begins."""
        for step_body in body["steps"].values():
            for item in step_body["items"]:
                if item["state"] == WAITING or (item["state"] == RUNNING and not item["job"]):
                    item |= {"state": CANCELLED, "end": ctx.now()}
                elif item["state"] == RUNNING and not item["mark"]:
                    item["mark"] = "cancelled"
                    self._cancel_job(ctx, Ref.parse(item["job"]), body["cancel"])

    def _cancel_job(self, ctx: CallContext, job: Ref, reason: str) -> None:
        with self._ledger.write(ctx) as tx:
            record = tx.get(job)
            if record is not None and record.body["state"] not in jobs.ENDED_STATES:
                self._service.jobs.cancel(ctx, job, reason)

    def _track_jobs(self, old_run: LedgerRecord, body: RecordBody, plan: FlowPlan, now: float) -> None:
        """Remember which jobs this run waits for, and when to look at it anyway."""
        tenant, ref = old_run.key.tenant, old_run.ref.bare
        items = [item for step_body in body["steps"].values() for item in step_body["items"]]
        for item in items:
            if item["job"] and item["state"] == RUNNING:
                self._run_by_job[tenant, Ref.parse(item["job"])] = ref
            elif item["job"]:
                self._run_by_job.pop((tenant, Ref.parse(item["job"])), None)
        gate_names = [step.name for step in plan.steps if step.kind == STEP_GATE]
        if any(body["steps"][name]["state"] == RUNNING for name in gate_names):
            self._retry_at[tenant, ref] = now + self.every_s

    def _act_for_owner(self, ctx: CallContext, run: LedgerRecord) -> tuple[CallContext, Client]:
        """Whoever began the run, with the rights of that day that they still have today."""
        owner_context = make_owner_context(self._ledger, ctx, run)
        return owner_context, self._service.act(owner_context.actor, owner_context.purpose)


def _copy_steps(body: RecordBody) -> RecordBody:
    return {
        name: {**step_body, "items": [dict(item) for item in step_body["items"]]}
        for name, step_body in body["steps"].items()
    }


def _is_condition_met(run_context: RunContext, step: StepPlan) -> bool:
    """Whether the condition of a step holds; one that cannot be read is told when the step begins."""
    try:
        return flow_runs.is_condition_met(step, run_context.body, run_context.plan)
    except FalajError:
        return True


def _begin_step(body: RecordBody, plan: FlowPlan, step: StepPlan) -> None:
    """All that the step needs is over: its items are known, and wait for room."""
    step_body = body["steps"][step.name]
    try:
        flow_runs.is_condition_met(step, body, plan)
        count = len(flow_runs.list_mapped_values(step, body, plan, MAX_ITEMS))
    except FalajError as error:
        step_body |= {"state": FAILED, "note": str(error)[: flow_runs.MAX_NOTE_CHARS]}
        return
    step_body |= {"state": RUNNING, "items": [flow_runs.make_item_body() for _ in range(count)]}


def _fail_item(item: RecordBody, reason: str, now: float) -> RecordBody:
    return {**item, "state": FAILED, "note": reason[: flow_runs.MAX_NOTE_CHARS], "at": item["at"] or now, "end": now}


def _describe_failure(body: RecordBody, *, is_public: bool = False) -> str:
    """Why a run failed: the first step that did."""
    for name in body["order"]:
        step_body = body["steps"][name]
        if step_body["state"] == FAILED:
            notes = [
                _get_public_note(item) if is_public else item["note"]
                for item in step_body["items"]
                if item["state"] == FAILED
            ]
            return f"{name}: {step_body['note'] or next(iter(notes), '')}"[: flow_runs.MAX_NOTE_CHARS]
    return ""


def _get_public_note(item: RecordBody) -> str:
    """Why an item failed, for the log: what its own code said may be about the data, and stays in the run."""
    return item["note"] if item["mark"] != CODE_TEXT_MARK else "its code failed; the run has what it said"


def _emit_changes(tx: LedgerWriter, saved: LedgerRecord, old_body: RecordBody) -> None:
    """One event for each step that changed, and one for the end."""
    body = saved.body
    for name in body["order"]:
        step_body, old_step = body["steps"][name], old_body["steps"][name]
        if step_body["state"] != old_step["state"]:
            cached_count = sum(item["cached"] != "" for item in step_body["items"])
            note = step_body["note"] or next(
                (_get_public_note(item) for item in step_body["items"] if item["state"] == FAILED), ""
            )
            tx.emit(
                "flows.step",
                saved.ref,
                step=name,
                state=step_body["state"],
                items=len(step_body["items"]),
                cached=cached_count,
                note=note,
            )
    if flow_runs.is_over(body):
        flow, note = Ref.parse(body["flow"]), body["cancel"] or _describe_failure(body, is_public=True)
        tx.emit("flows.end", saved.ref, (flow,), state=body["state"], cause=body["cause"], flow=str(flow), note=note)
    elif not tx.emitted:
        tx.emit("flows.go", saved.ref, state=body["state"])
