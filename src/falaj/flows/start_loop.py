"""The loop that listens: clocks and events that begin flows.

Reading the log is at least once: the cursor is written down after what it led to. Beginning is once: a run is found
again by its cause, which is the moment of a clock, the id of an event or the id of a verdict.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, FalajError, Invalid
from falaj.core.event import Event
from falaj.core.ports import RecordKey
from falaj.core.ref import Ref
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.flows.event_cursor import EventCursor
from falaj.flows.owner_visibility import OwnerVisibility, get_worker
from falaj.flows.run_chains import find_cause
from falaj.flows.schedules import list_due_moments, make_moment_fields
from falaj.flows.service import FlowService
from falaj.flows.triggers import (
    MAX_CHAIN_DEPTH,
    fill_parameters,
    get_chain_depth,
    make_event_fields,
    matches_event,
    read_filter,
)
from falaj.flows.webhook_delivery import WebhookLoop
from falaj.jobs.submitter_standing import find_bar_reason
from falaj.serve.change_watch import ChangeWatch
from falaj.store.ledger import Ledger
from falaj.store.reconcile_loop import LoopIteration
from falaj.store.records import LedgerRecord, LoggedEvent

__all__ = ["StartLoop", "WebhookLoop"]

VERDICT_EVENT, RETRAIN_ACTION = "monitor.verdict", "retrain"
START_TIMEOUT_S, RETRY_INTERVAL_S = 3600.0, 5.0
"""What cannot begin for now (a quota, a store that does not answer) is tried again for so long, so often."""
NEVER_AT = 253_402_214_400.0
"""The last day that calendars know."""
VERDICT_PARAMETERS = ("endpoint", "model", "cause", "since")
"""What a flow that a verdict begins is given, where it has such parameters."""


@dataclass(slots=True)
class StartRequest:
    """One run that is to begin."""

    owner: LedgerRecord
    flow: Ref
    params: dict[str, Any]
    cause: str
    begun_by: str
    event: Event | None = None
    again_at: float = 0.0
    until: float = 0.0


class StartLoop:
    """Begins what schedules, triggers and verdicts ask for."""

    name = "starts"
    every_s = 0.5

    def __init__(self, ledger: Ledger, service: FlowService) -> None:
        self._ledger, self._service = ledger, service
        self._event_cursor = EventCursor(ledger, "starts")
        self._visibility = OwnerVisibility(ledger, service.act)
        self._change_watch = ChangeWatch(ledger, "trigger", "schedule")
        self._triggers: dict[RecordKey, LedgerRecord] = {}
        self._schedules: dict[RecordKey, LedgerRecord] = {}
        self._pending_starts: dict[tuple[str, str], StartRequest] = {}
        """By tenant and cause: what could not begin yet. The cursor is not written down before they are done with."""
        self._fencing_token = 0
        self._iteration: LoopIteration

    def step(self, iteration: LoopIteration) -> bool:
        """Everything that is due now; what is in trouble holds up nothing else."""
        self._iteration = iteration
        if iteration.token != self._fencing_token:
            self._triggers, self._schedules, self._pending_starts = {}, {}, {}
            self._event_cursor.open(iteration.ctx)
            self._load_records(iteration.ctx)
            self._fencing_token = iteration.token
        end = self._ledger.store.end()  # before the triggers are read: whoever comes later hears what is later
        self._refresh(iteration.ctx)
        for schedule in list(self._schedules.values()):
            if schedule.body["next_at"] <= iteration.ctx.now() and iteration.alive():
                self._run_schedule(replace(iteration.ctx, tenant=schedule.key.tenant), schedule)
        for request in [
            pending for pending in self._pending_starts.values() if pending.again_at <= iteration.ctx.now()
        ]:
            self._begin_run(iteration.ctx, request)
        verbs = {VERDICT_EVENT}.union(*(record.body["events"] for record in self._triggers.values()))
        logged_events, has_more = self._event_cursor.hear(verbs, end)
        has_acted = [
            self._process_event(iteration.ctx, logged_event) for logged_event in logged_events if iteration.alive()
        ]
        if not iteration.alive():
            return False
        self._event_cursor.done()
        if not self._pending_starts:
            self._event_cursor.keep(iteration.ctx, has_acted=any(has_acted))
        return has_more

    def _load_records(self, ctx: CallContext) -> None:
        with self._ledger.read(ctx) as tx:
            for tenant in list_tenants(self._ledger):
                self._triggers |= {record.key: record for record in iter_records(tx, "trigger", tenant)}
                self._schedules |= {record.key: record for record in iter_records(tx, "schedule", tenant)}

    def _refresh(self, ctx: CallContext) -> None:
        for tenant, ref in self._change_watch.changed():
            self._reload_record(ctx, RecordKey(tenant, ref.kind, ref.project, ref.name))

    def _reload_record(self, ctx: CallContext, key: RecordKey) -> None:
        records_by_key = self._triggers if key.kind == "trigger" else self._schedules
        with self._ledger.read(ctx) as tx:
            current_record = tx.key(key)
        records_by_key.pop(key, None)
        if current_record is not None:
            records_by_key[key] = current_record

    def _run_schedule(self, ctx: CallContext, schedule: LedgerRecord) -> None:
        """One schedule whose time has come: its runs, then when it comes next."""
        body, now = schedule.body, ctx.now()
        try:
            moments, next_moment = list_due_moments(body, now)
        except Invalid as error:  # a zone that this machine does not know (any more)
            self._save_note(ctx, schedule, {"next_at": NEVER_AT, "note": str(error)[:500]}, "flows.refuse")
            return
        refusal_text, started_count, key = "", 0, f"{schedule.key.project}/{schedule.key.name}"
        for moment in moments:
            moment_fields = make_moment_fields(moment, body["zone"])
            cause = f"schedule:{key}@{moment_fields['moment']}"
            try:
                request = StartRequest(
                    schedule, Ref.parse(body["flow"]), fill_parameters(body["params"], moment_fields), cause, cause
                )
                started_count += self._start_run(ctx, request)
            except FalajError as error:
                if error.retry and now - moment < START_TIMEOUT_S:
                    return  # the next turn finds it due, still
                refusal_text = str(error)
        changes = {
            "next_at": next_moment or NEVER_AT,
            "last_at": now,
            "started": body["started"] + started_count,
            "note": refusal_text[:500],
        }
        self._save_note(ctx, schedule, changes, "flows.refuse" if refusal_text else "flows.tick")

    def _process_event(self, ctx: CallContext, logged_event: LoggedEvent) -> bool:
        """What one event leads to; True when it led to something."""
        event, ctx = logged_event.event, replace(ctx, tenant=logged_event.event.tenant)
        requests = list(self._match_triggers(ctx, logged_event))
        if event.verb == VERDICT_EVENT and event.body.get("action") == RETRAIN_ACTION and event.body.get("flow"):
            requests += self._make_retrain_requests(ctx, logged_event)
        for request in requests:
            self._begin_run(ctx, request)
        return bool(requests)

    def _match_triggers(self, ctx: CallContext, logged_event: LoggedEvent) -> Iterable[StartRequest]:
        event, chain_cause = logged_event.event, ""
        for key, trigger in list(self._triggers.items()):
            body = trigger.body
            is_cooling = body["cool_s"] > 0.0 and event.at < body["last_at"] + body["cool_s"]
            is_early = logged_event.pos <= body["heard"]
            if key.tenant != event.tenant or is_early or is_cooling or not matches_event(read_filter(body), event):
                continue
            if not self._visibility.sees(ctx, trigger, event.subject):
                continue
            chain_cause = chain_cause or find_cause(self._ledger, ctx, event)
            chain_depth = get_chain_depth(chain_cause) + 1 if chain_cause else 0
            cause = f"trigger:{key.project}/{key.name}@{event.id}" + (f"~{chain_depth}" if chain_depth else "")
            if chain_depth > MAX_CHAIN_DEPTH:
                self._record_refusal(
                    ctx, trigger, event, f"{chain_cause} and {chain_depth} runs before it began each other"
                )
                continue
            try:
                params = fill_parameters(body["params"], make_event_fields(event))
            except Invalid as error:
                self._record_refusal(ctx, trigger, event, str(error))
                continue
            yield StartRequest(trigger, Ref.parse(body["flow"]), params, cause, f"{cause} {event.verb}", event)

    def _make_retrain_requests(self, ctx: CallContext, logged_event: LoggedEvent) -> list[StartRequest]:
        """The standing trigger: a verdict begins the flow that its watch names, as the owner of the watch."""
        event, body = logged_event.event, logged_event.event.body
        try:
            endpoint, flow = Ref.parse(str(body.get("endpoint", ""))), Ref.parse(str(body["flow"]))
        except Invalid:
            return []
        with self._ledger.read(ctx) as tx:
            watch = tx.get(Ref("watch", endpoint.project, endpoint.name))
        if watch is None:
            return []
        id_ = str(body.get("id") or event.id)
        params = {name: body[name] for name in VERDICT_PARAMETERS if name in body} | {"endpoint": str(endpoint)}
        return [StartRequest(watch, flow, params, id_, f"verdict:{id_}", event)]

    def _begin_run(self, ctx: CallContext, request: StartRequest) -> None:
        """Begin one run; what cannot be for now is held, and what can never be is said."""
        key, now = (request.owner.key.tenant, request.cause), ctx.now()
        ctx = replace(ctx, tenant=request.owner.key.tenant)
        self._pending_starts.pop(key, None)
        try:
            self._start_run(ctx, request)
        except FalajError as error:
            request.until = request.until or now + START_TIMEOUT_S
            if (error.retry or isinstance(error, Conflict)) and now < request.until:
                request.again_at = now + RETRY_INTERVAL_S
                self._pending_starts[key] = request
            elif request.event is not None:
                self._record_refusal(ctx, request.owner, request.event, str(error), request)
            return
        if request.owner.key.kind == "trigger" and request.event is not None:
            with self._ledger.read(ctx) as tx:
                trigger = tx.key(request.owner.key)
            if trigger is not None:
                started_count = trigger.body["started"] + 1
                changes = {"started": started_count, "last_at": request.event.at, "note": ""}
                self._save_note(ctx, trigger, changes, "flows.fire", event=request.event.id, cause=request.cause)

    def _start_run(self, ctx: CallContext, request: StartRequest) -> int:
        """Ask for the run as the owner; what is not allowed today is Denied."""
        with self._ledger.read(ctx) as tx:
            current_record = tx.key(request.owner.key)
            barred_reason = find_bar_reason(tx, request.owner)
            actor = get_worker(tx, request.owner)
        if barred_reason:
            raise Invalid(barred_reason, "somebody else may take it over: make it again in their name")
        if current_record is None or current_record.body.get("removed") or current_record.body.get("paused"):
            raise Invalid(f"{request.owner.ref.bare} was paused or taken away", "nothing was begun")
        client = self._service.act(actor, request.owner.body["who"]["purpose"])
        params = request.params
        if request.owner.key.kind == "watch":
            flow_parameters = client.flows.show(request.flow).plan.params
            plan_parameters = request.owner.body["plan"].get("acting", {}).get("params", {})
            params = {name: value for name, value in params.items() if name in flow_parameters} | dict(plan_parameters)
        client.flows.start(request.flow, params, cause=request.cause, begun_by=request.begun_by)
        return 1

    def _record_refusal(
        self, ctx: CallContext, owner: LedgerRecord, event: Event, reason: str, request: StartRequest | None = None
    ) -> None:
        """Say that nothing was begun, and why, where its people look. A verdict hears it as the end of its run."""
        if owner.key.kind == "watch" and request is not None:
            with self._ledger.write(ctx) as tx:
                tx.emit(
                    "flows.end",
                    owner.ref,
                    state="failed",
                    cause=request.cause,
                    flow=str(request.flow),
                    note=reason[:500],
                )
            return
        with self._ledger.read(ctx) as tx:
            current_record = tx.key(owner.key)
        if current_record is not None:
            self._save_note(ctx, current_record, {"note": reason[:500]}, "flows.refuse", event=event.id)

    def _save_note(
        self, ctx: CallContext, record: LedgerRecord, changes: dict[str, Any], event_name: str, **event_fields: str
    ) -> None:
        with self._ledger.write(ctx) as tx:
            saved = tx.put(record.key, {**record.body, **changes}, rev=record.rev)
            tx.emit(event_name, saved.ref, (), flow=record.body["flow"], note=saved.body["note"], **event_fields)
        (self._triggers if record.key.kind == "trigger" else self._schedules)[record.key] = saved
