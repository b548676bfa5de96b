"""Flows and their runs. One part of the desk (service.py).

A flow has versions, as what it makes has: `flow:PROJECT/NAME@v3`. Its head counts them, and its runs.
"""

import hashlib
from collections.abc import Callable
from typing import Annotated, Any

from falaj.core.client_command import Client
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.flow_draft import detect_resource_kind
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.core.settings import Settings
from falaj.flows import flow_runs
from falaj.flows.flow_plans import check_flow_name, check_params, check_plan
from falaj.flows.records import (
    CANCELLED,
    FAILED,
    RUNNING,
    STEP_FUNCTION,
    STEP_JOB,
    WAITING,
    FlowPlan,
    FlowView,
    RecordBody,
    RunPage,
    RunView,
)
from falaj.flows.result_collector import ResultCollector
from falaj.flows.run_decisions import iterate_leaves
from falaj.govern.keyring import Keyring
from falaj.jobs.service import JobService
from falaj.store.codec import to_plain, to_stable_json
from falaj.store.ledger import Ledger, LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

MAX_PAGE = 1_000
MAX_CAUSE_CHARS = 500
HEAD_TERMS = {"head": "yes"}


class FlowRunOperations:
    """Flows and their runs."""

    def __init__(
        self,
        ledger: Ledger,
        jobs: JobService,
        open_client: Callable[[Actor, str], Client],
        keyring: Keyring,
        settings: Settings,
    ) -> None:
        self._ledger, self.jobs, self.act, self._keyring, self._settings = ledger, jobs, open_client, keyring, settings
        self._read_secret: Callable[[CallContext, str], bytes] | None = None
        self._watchers: tuple[Callable[[str, Ref], None], ...] = ()
        jobs.hear.append(ResultCollector(ledger, settings.zone))

    @operation(writes=("flow",), reads=("code",))
    def add(
        self,
        ctx: CallContext,
        flow: Annotated[Ref, "what to call it, for example flow:fraud/retrain"],
        plan: Annotated[FlowPlan, "its steps, and what they give each other"],
        code: Annotated[Ref | None, "the version of the program its functions are in"] = None,
        message: Annotated[str, "what this version brings"] = "",
    ) -> FlowView:
        """Keep a flow as the next version of its name. `falaj flows save` reads the file and calls this.

        The same plan and program again is no new version.

        Example:
            falaj flows add flow:fraud/retrain --plan @plan.json --code code:fraud/retrain@v1
        """
        check_flow_name(flow)
        check_plan(plan)
        if code is None and any(step.kind == STEP_FUNCTION for step in plan.steps):
            raise Invalid("its functions are nowhere", "--code names the version of their program", flow)
        with self._ledger.write(ctx) as tx:
            head = tx.get(flow)
            root = str(tx.need(code).body["root"]) if code else ""
            digest = hashlib.sha256(to_stable_json([to_plain(plan), root])).hexdigest()
            newest = tx.get(flow.at(head.body["newest"])) if head and head.body["newest"] else None
            if head is not None and newest is not None and newest.body["digest"] == digest:
                return flow_runs.make_flow_view(head, newest)
            body: RecordBody = {
                "plan": to_plain(plan), "code": str(code or ""), "root": root, "digest": digest,
                "made_at": ctx.now(), "made_by": ctx.actor.behalf or ctx.actor.id, "message": message[:500],
            }  # fmt: skip
            count = head.body["count"] + 1 if head else 1
            version = tx.put(flow.at(f"v{count}"), body)
            head_body = {**(head.body if head else {"runs": 0}), "newest": f"v{count}", "count": count}
            head = tx.put(flow, head_body, rev=head.rev if head else None, terms=HEAD_TERMS)
            tx.emit("flows.add", version.ref, (code,) if code else (), steps=len(plan.steps), digest=digest)
        return flow_runs.make_flow_view(head, version)

    @operation()
    def list(self, ctx: CallContext, project: Annotated[str, "of one project only"] = "") -> tuple[FlowView, ...]:
        """List the flows you may see.

        Example:
            falaj flows list --project fraud
        """
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells("flow")
            heads = tx.find("flow", project=project, terms=HEAD_TERMS, scopes=cells, limit=MAX_PAGE).records
            heads_and_versions = [
                (head, tx.get(head.ref.bare.at(head.body["newest"]))) for head in heads if head.body["newest"]
            ]
            schedule_by_flow = _list_schedule_texts(ctx, tx, project)
        return tuple(
            flow_runs.make_flow_view(head, version, schedule_by_flow.get(head.ref.bare, ""))
            for head, version in heads_and_versions
            if version is not None
        )

    @operation(reads=("flow",))
    def show(
        self, ctx: CallContext, flow: Annotated[Ref, "which flow; its newest version when none is named"]
    ) -> FlowView:
        """Show a flow: its steps, what they give each other, its parameters and its code.

        Example:
            falaj flows show flow:fraud/retrain
        """
        with self._ledger.read(ctx) as tx:
            version = _require_version(tx, flow)
            return flow_runs.make_flow_view(
                tx.need(flow.bare), version, _list_schedule_texts(ctx, tx, flow.project).get(flow.bare, "")
            )

    @operation(reads=("flow",), group="write")
    def start(
        self,
        ctx: CallContext,
        flow: Annotated[Ref, "which flow; its newest version when none is named"],
        params: Annotated[dict[str, Any] | None, "its parameters, over those it says itself"] = None,
        cause: Annotated[str, "why: the same cause finds the same run, and begins no second one"] = "",
        begun_by: Annotated[str, "what began it: a schedule, a trigger, a verdict"] = "",
        fresh: Annotated[bool, "do every step again, though its result is known"] = False,
    ) -> RunView:
        """Begin a run of a flow. `falaj flows run` does this and waits.

        Parameters that name versions are pinned now: all steps see the same data. Every step is a job of yours, with
        the rights you have on the day it runs.

        Example:
            falaj flows start flow:fraud/retrain --params '{"threshold": 0.7}' --cause ticket-4711
        """
        if len(cause) > MAX_CAUSE_CHARS or "\0" in cause + begun_by:
            raise Invalid(f"a cause of {len(cause)} characters", f"at most {MAX_CAUSE_CHARS}")
        with self._ledger.write(ctx) as tx:
            version = _require_version(tx, flow)
            name = flow.bare
            existing_runs = (
                tx.find("turn", terms={"cause": flow_runs.make_cause_term(name, cause)}, limit=1) if cause else None
            )
            if existing_runs is not None and existing_runs.records:
                return flow_runs.make_run_view(existing_runs.records[0])
            plan = flow_runs.read_plan(version)
            parameters = self._pin_parameters(ctx, plan, check_params(plan, params or {}))
            head = tx.need(name)
            number = head.body["runs"] + 1
            actor_id = ctx.actor.behalf or ctx.actor.id
            # A person says who they are, and not that they are a schedule.
            starter = actor_id if ctx.actor.kind == "person" else (begun_by or actor_id)[:200]
            start_facts = {"cause": cause, "begun_by": starter, "fresh": fresh, "number": number}
            body = flow_runs.make_run_body(ctx, version.ref, plan, parameters, start_facts)
            tx.put(name, {**head.body, "runs": number}, rev=head.rev)
            run_ref = Ref("turn", name.project, f"{name.name}-{number}")
            saved = tx.put(
                run_ref, body, label=version.label, zone=version.zone, terms=flow_runs.make_run_terms(body, name)
            )
            pinned_refs = (
                version.ref,
                *(
                    Ref.parse(pinned_text)
                    for pinned_text in parameters.values()
                    if detect_resource_kind(pinned_text) and Ref.parse(pinned_text).pinned
                ),
            )
            tx.emit(
                "flows.start",
                saved.ref,
                pinned_refs,
                state=body["state"],
                cause=cause,
                flow=str(version.ref),
                by=starter,
            )
            self._notify_watchers(tx, ctx.tenant, run_ref)
        return flow_runs.make_run_view(saved)

    @operation(reads=("flow",), unpinned_params=("flow",))
    def runs(
        self,
        ctx: CallContext,
        flow: Annotated[Ref | None, "of one flow only"] = None,
        project: Annotated[str, "of one project only"] = "",
        state: Annotated[str, "running, succeeded, failed or cancelled"] = "",
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> RunPage:
        """List the runs of flows that you may see, newest first.

        Example:
            falaj flows runs --flow flow:fraud/retrain --state failed
        """
        if not 0 < limit <= MAX_PAGE:
            raise Invalid(f"a page of {limit} runs", f"ask for 1 to {MAX_PAGE} and follow `next`")
        filters = {"state": state, "flow": f"{flow.project}/{flow.name}" if flow else ""}
        terms = {name: value for name, value in filters.items() if value}
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells("turn")
            page = tx.find(
                "turn", project=project, terms=terms, scopes=cells, newest_first=True, after=after, limit=limit
            )
        return RunPage(tuple(flow_runs.make_run_view(record) for record in page.records), page.next)

    @operation(reads=("turn",))
    def look(self, ctx: CallContext, turn: Annotated[Ref, "which run"]) -> RunView:
        """Show a run: its steps, their jobs, what they gave, and why one failed.

        Example:
            falaj flows look turn:fraud/retrain-7
        """
        with self._ledger.read(ctx) as tx:
            record = _require_run(tx, turn)
            return flow_runs.make_run_view(record, _describe_waiting(tx, record))

    @operation(writes=("turn",))
    def retry(self, ctx: CallContext, turn: Annotated[Ref, "a run that failed or was cancelled"]) -> RunView:
        """Go on with a run from where it failed: steps that succeeded stay as they are.

        Example:
            falaj flows retry turn:fraud/retrain-7
        """
        with self._ledger.write(ctx) as tx:
            old = _require_run(tx, turn)
            if old.body["state"] not in (FAILED, CANCELLED):
                raise Conflict(f"{turn.bare} is {old.body['state']}", "only what failed or was cancelled goes on", turn)
            return self._save_run(ctx, tx, old, flow_runs.reset_failed_steps(old.body), "flows.retry")

    @operation(writes=("turn",), group="control")
    def cancel(
        self, ctx: CallContext, turn: Annotated[Ref, "which run"], reason: Annotated[str, "why, for the record"] = ""
    ) -> RunView:
        """Cancel a run: no step begins any more, and those that run are cancelled.

        Example:
            falaj flows cancel turn:fraud/retrain-7
        """
        with self._ledger.write(ctx) as tx:
            old = _require_run(tx, turn)
            if flow_runs.is_over(old.body):
                raise Conflict(f"{turn.bare} is over: {old.body['state']}", "there is nothing to cancel", turn)
            reason_text = (reason or f"cancelled by {ctx.actor.behalf or ctx.actor.id}")[:500]
            return self._save_run(ctx, tx, old, {**old.body, "cancel": reason_text}, "flows.cancel", reason=reason_text)

    @operation(writes=("flow",), group="erase")
    def remove(self, ctx: CallContext, flow: Annotated[Ref, "which flow, without a version"]) -> Ref:
        """Take a flow away: it can be started no more. Its runs, and what they made, stay.

        Example:
            falaj flows remove flow:fraud/retrain
        """
        with self._ledger.write(ctx) as tx:
            head = tx.need(flow.bare)
            name = f"{flow.project}/{flow.name}"
            if tx.find("turn", terms={"flow": name, "live": "1"}, limit=1).records:
                raise Conflict(f"{flow.bare} has runs that are not over", f"falaj flows runs --flow {flow.bare}", flow)
            saved = tx.put(flow.bare, {**head.body, "newest": ""}, rev=head.rev)
            tx.emit("flows.remove", saved.ref)
        return flow.bare

    def reveals(self, read_secret: Callable[[CallContext, str], bytes]) -> Any:
        """How secrets are had by reference; said once, by whoever assembles the house."""
        self._read_secret = read_secret
        return self

    def watch(self, callback: Callable[[str, Ref], None]) -> None:
        """Call back with the tenant and the run when there is something for the loop to do, in this process."""
        self._watchers += (callback,)

    def _notify_watchers(self, tx: LedgerWriter, tenant: str, run: Ref) -> None:
        def notify_watchers(durable: bool) -> None:
            for callback in self._watchers if durable else ():
                callback(tenant, run)

        tx.after(notify_watchers)

    def _save_run(
        self, ctx: CallContext, tx: LedgerWriter, old: LedgerRecord, body: RecordBody, event_name: str, reason: str = ""
    ) -> RunView:
        terms = flow_runs.make_run_terms(body, Ref.parse(body["flow"]))
        saved = tx.put(old.key, body, rev=old.rev, terms=terms)
        tx.emit(event_name, saved.ref, state=body["state"], flow=body["flow"], reason=reason)
        self._notify_watchers(tx, ctx.tenant, old.ref.bare)
        return flow_runs.make_run_view(saved)

    def _pin_parameters(self, ctx: CallContext, plan: FlowPlan, params: RecordBody) -> RecordBody:
        """The parameters with what jobs will read pinned, by the caller's own right to see it."""
        steps = [step for step in plan.steps if step.kind in (STEP_FUNCTION, STEP_JOB)]
        read_parameters = {
            leaf["param"]
            for step in steps
            for source in step.takes.values()
            for leaf in iterate_leaves(source)
            if "param" in leaf and not leaf.get("text")
        }
        client = self.act(ctx.actor, ctx.purpose)
        unpinned_names = [
            name
            for name in read_parameters
            if detect_resource_kind(params[name]) and not Ref.parse(params[name]).pinned
        ]
        return {**params, **{name: str(client.catalog.show(Ref.parse(params[name])).ref) for name in unpinned_names}}


def _list_schedule_texts(ctx: CallContext, tx: LedgerReader, project: str) -> dict[Ref, str]:
    """Flows that begin by the clock, and when: of the schedules that the caller may see."""
    scopes = ctx.cells("schedule")
    schedules = tx.find("schedule", project=project, terms={"live": "1"}, scopes=scopes, limit=MAX_PAGE).records
    return {
        Ref.parse(schedule_record.body["flow"]).bare: f"{schedule_record.body['cron']} {schedule_record.body['zone']}"
        for schedule_record in schedules
    }


def _require_version(tx: LedgerReader, flow: Ref) -> LedgerRecord:
    """A version of a flow that can be started; the guard has pinned it."""
    if flow.kind != "flow":
        raise Invalid(f"{flow} names no flow", "for example flow:fraud/retrain", flow)
    head = tx.get(flow.bare)
    if head is None or not head.body["newest"]:
        raise NotFound(f"there is no {flow.bare}", "falaj flows list shows them", flow)
    return tx.need(flow if flow.version else flow.at(head.body["newest"]))


def _describe_waiting(tx: LedgerReader, run: LedgerRecord) -> dict[str, str]:
    """Steps whose first job under way waits, and how to hear why."""
    notes_by_step = {}
    for name, step_body in run.body["steps"].items():
        job = next((item["job"] for item in step_body["items"] if item["state"] == RUNNING and item["job"]), "")
        record = tx.get(Ref.parse(job)) if job else None
        if record is not None and record.body["state"] == WAITING:
            notes_by_step[name] = f"it waits for a place: falaj jobs why {job}"
    return notes_by_step


def _require_run(tx: LedgerReader, run: Ref) -> LedgerRecord:
    if run.kind != "turn":
        raise Invalid(f"{run} names no run of a flow", "for example turn:fraud/retrain-7", run)
    return tx.need(run.bare)
