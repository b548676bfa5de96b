"""Policies: verdicts, and what is done about them. One part of the desk (service.py).

What was decided is written in one transaction over the revision of the watch that it was decided on: the machine, the
verdicts, incidents and events. What is done comes after, and again where somebody died in between: going back looks at
the endpoint first, a question for approval is found when it is there, and the event of a verdict is what a flow hears.
"""

from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import FalajError, Invalid, StaleRevision, Unavailable
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.monitor import actions, watch_decisions
from falaj.monitor.challenger_test import ChallengeOperations
from falaj.monitor.incidents import (
    IncidentOperations,
    close_incident,
    list_ended_episodes,
    list_open,
    open_incident,
    to_public_text,
)
from falaj.monitor.plans import read_plan
from falaj.monitor.records import ACTION_ALERT, ACTION_ROLLBACK, MonitorWindow, WatchVerdict, WatchView
from falaj.monitor.watch_machine import (
    ACTION_BEGUN,
    ACTION_FAILED,
    ACTION_PROPOSED,
    ACTION_WAITING,
    EndpointFacts,
    ServiceSign,
    WatchMachine,
    encode_machine,
    read_machine,
)
from falaj.monitor.watch_operations import get_watched_endpoint, require_watch, save_watch
from falaj.serve import endpoint_repository
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

VERDICT_KIND = "verdict"
MAX_PAGE, MAX_SHOWN_VERDICTS = 1_000, 10
Body = dict[str, Any]


class PolicyOperations(IncidentOperations, ChallengeOperations):
    """What follows from what was found."""

    @operation(writes=("endpoint",))
    def pause(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> WatchView:
        """Stop everything that would be done by itself: no retraining, no going back. People are still told.

        Example:
            falaj monitor pause endpoint:fraud/score --reason "the feed is being changed today"
        """
        with self._ledger.write(ctx) as tx:
            old = require_watch(tx, endpoint)
            paused_text = f"{reason[:500] or 'paused'} ({ctx.actor.behalf or ctx.actor.id})"
            machine = replace(read_record_machine(old), paused=paused_text)
            return self._save_machine(ctx, tx, old, machine, "monitor.pause", reason)

    @operation(writes=("endpoint",))
    def resume(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> WatchView:
        """Let a watch act again: one that was paused, that cools down, or that is frozen after going back.

        Example:
            falaj monitor resume endpoint:fraud/score
        """
        with self._ledger.write(ctx) as tx:
            old = require_watch(tx, endpoint)
            return self._save_machine(
                ctx,
                tx,
                old,
                watch_decisions.release_machine(read_record_machine(old), ctx.now()),
                "monitor.resume",
                reason,
            )

    @operation(reads=("endpoint",))
    def verdicts(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        limit: Annotated[int, "how many at most"] = 100,
    ) -> tuple[WatchVerdict, ...]:
        """Show what was decided about an endpoint, newest first: on what evidence, and what came of it.

        Example:
            falaj monitor verdicts endpoint:fraud/score
        """
        if not 0 < limit <= MAX_PAGE:
            raise Invalid(f"a list of {limit} verdicts", f"ask for 1 to {MAX_PAGE}")
        with self._ledger.read(ctx) as tx:
            return list_verdicts(tx, require_watch(tx, endpoint), limit)

    # For the loop.

    def judged(
        self, ctx: CallContext, record: LedgerRecord, window: MonitorWindow, body: Body | None = None
    ) -> LedgerRecord:
        """What follows from a new window, written with `body` (the watch as it is to be kept) in one transaction."""
        machine, now = read_record_machine(record), ctx.now()
        new_machine, verdicts = watch_decisions.apply_window(machine, window, read_plan(record.body), now)
        if body is None and new_machine == machine and not verdicts:
            return record
        return self._write_decision(ctx, replace(record, body=body or record.body), machine, new_machine, verdicts)

    def tend(self, ctx: CallContext, record: LedgerRecord, now: float) -> bool:
        """One look at what is under way, and whether a new revision is broken; True when something changed."""
        with self._ledger.read(ctx) as tx:
            endpoint_record = tx.get(get_watched_endpoint(record.ref))
        if endpoint_record is None:
            return False
        plan, machine = read_plan(record.body), read_record_machine(record)
        facts = self._read_facts(ctx, record, endpoint_record, machine, now)
        new_machine, verdicts = watch_decisions.apply_facts(machine, plan, now, facts)
        has_changed = new_machine != machine
        if has_changed:
            record = self._write_decision(ctx, record, machine, new_machine, verdicts)
        if new_machine.doing is not None and not new_machine.paused:
            has_changed |= self._do_action(ctx, record, endpoint_record, new_machine, facts)
        return has_changed

    def told(self, tx: LedgerReader, record: LedgerRecord) -> tuple[tuple[WatchVerdict, ...], tuple[Ref, ...]]:
        """Verdicts and open incidents of a watch, as `show` tells them."""
        return list_verdicts(tx, record, MAX_SHOWN_VERDICTS), list_open(tx, record)

    @cached_property
    def _flow_follower(self) -> actions.FlowFollower:
        return actions.FlowFollower(self._ledger)

    def _read_facts(
        self, ctx: CallContext, record: LedgerRecord, endpoint_record: LedgerRecord, machine: WatchMachine, now: float
    ) -> EndpointFacts:
        facts, action = actions.read_endpoint_facts(endpoint_record.body, now), machine.doing
        tenant = record.key.tenant
        is_rolling_back = action is not None and action.action == ACTION_ROLLBACK
        if facts.fresh and not machine.frozen and not is_rolling_back:
            facts = replace(facts, signs=self._read_signs(ctx, record, facts, now))
        if action is not None and actions.is_flow_running(action):
            progress = self._flow_follower.of(tenant, action)
            return replace(facts, run=progress.run, ended=progress.ended, note=progress.note)
        if action is None or action.state != ACTION_WAITING:
            return facts
        with self._ledger.read(ctx) as tx:
            answer, note = actions.read_approval(tx, record, action, now)
        return replace(facts, approval=answer, note=note)

    def _read_signs(
        self, ctx: CallContext, record: LedgerRecord, facts: EndpointFacts, now: float
    ) -> tuple[ServiceSign, ...]:
        """How a new revision treats its callers in this minute."""
        glance_by_revision = {
            revision_glance.revision: revision_glance for revision_glance in self.glance(ctx, record, now)
        }
        plan, tenant, ref = read_plan(record.body), record.key.tenant, get_watched_endpoint(record.ref)
        since, new_glance = actions.compute_glance_start(facts, now), glance_by_revision.get(facts.fresh)
        sums = actions.sum_counts(self.serve, tenant, ref, since) if plan.latency_ms and new_glance is not None else {}
        signs = actions.list_signs(glance_by_revision, facts, plan, sums)
        if new_glance is not None and actions.has_alike_answers(new_glance):
            profile = self.baselines.profile(tenant, ref, facts.fresh)
            signs += actions.find_alike_sign(profile, self.gathering.between(tenant, ref, facts.fresh, since, now))
        return signs

    def _do_action(
        self,
        ctx: CallContext,
        record: LedgerRecord,
        endpoint_record: LedgerRecord,
        machine: WatchMachine,
        facts: EndpointFacts,
    ) -> bool:
        """Do what is due of the action under way."""
        action, plan = machine.doing, read_plan(record.body)
        if (
            action is None
            or action.state not in (ACTION_PROPOSED, ACTION_WAITING)
            or (action.state == ACTION_WAITING and facts.approval)
        ):
            return False
        try:
            _, client = self.behalf(ctx, record)
            with self._ledger.read(ctx) as tx:
                reason_text = to_public_text(read_verdict(tx.need(_make_verdict_ref(record, action.id))))
            if action.action != ACTION_ROLLBACK:
                actions.request_approval(client, record.ref.bare, machine, reason_text)
                return True
            return actions.roll_back(client, endpoint_record, facts, action, reason_text)
        except (StaleRevision, Unavailable):
            raise
        except FalajError as error:
            # It will not be otherwise the next time: people must look.
            new_machine, verdicts = watch_decisions.end_action(
                machine, plan, ctx.now(), ACTION_FAILED, str(error)[:500]
            )
            self._write_decision(ctx, record, machine, new_machine, verdicts)
            return True

    def _write_decision(
        self,
        ctx: CallContext,
        record: LedgerRecord,
        old: WatchMachine,
        new: WatchMachine,
        verdicts: tuple[WatchVerdict, ...],
    ) -> LedgerRecord:
        """Write what was decided, all of it or nothing."""
        ctx = replace(ctx, actor=replace(ctx.actor, behalf=record.body["who"]["id"]))
        if new.doing is not None and actions.is_flow_running(new.doing) and not actions.is_flow_running(old.doing):
            # What the flow says of itself stands behind this place, and behind the event that it hears.
            new = replace(new, doing=replace(new.doing, cursor=self._ledger.store.end()))
        if old.doing is not None and old.doing.id != (new.doing.id if new.doing else ""):
            self._flow_follower.forget(record.key.tenant, old.doing.id)
        with self._ledger.write(ctx) as tx:
            body = {**record.body, "machine": encode_machine(new), "state": new.state}
            saved = save_watch(tx, record, body)
            for verdict in verdicts:
                self._write_verdict(tx, saved, verdict, ctx.now())
            for episode in list_ended_episodes(old, new):
                incident = close_incident(tx, saved, episode, ctx.now())
                if incident is not None:
                    tx.emit(
                        "monitor.resolve",
                        incident.ref,
                        endpoint=str(get_watched_endpoint(saved.ref)),
                        reason=episode.why,
                    )
            if not tx.emitted:
                tx.emit("monitor.judge", saved.ref, state=new.state)
        return saved

    def _write_verdict(self, tx: LedgerWriter, watch: LedgerRecord, verdict: WatchVerdict, now: float) -> None:
        """One verdict: its record, its incident, and the event that others hear."""
        endpoint, old_record = get_watched_endpoint(watch.ref), tx.get(_make_verdict_ref(watch, verdict.id))
        if old_record is not None and verdict.action != ACTION_ALERT:
            previous = read_verdict(old_record)
            verdict = replace(
                previous, state=verdict.state, outcome=verdict.outcome, run=verdict.run or previous.run,
                flow=verdict.flow or previous.flow,
            )  # fmt: skip
        record = _put_verdict(tx, watch, old_record, verdict)
        if verdict.action == ACTION_ALERT:
            incident = open_incident(tx, watch, verdict, now)
            tx.emit(
                "monitor.alert", incident.ref, endpoint=str(endpoint), what=str(incident.body["what"]),
                said=to_public_text(verdict), since=float(incident.body["since"]), incident=str(incident.ref.bare),
            )  # fmt: skip
        elif verdict.state in (ACTION_PROPOSED, ACTION_BEGUN):
            inputs, model = _find_model(tx, endpoint, verdict.revision)
            tx.emit(
                "monitor.verdict", watch.ref, inputs, action=verdict.action, cause=verdict.cause, flow=verdict.flow,
                endpoint=str(endpoint), model=model, id=verdict.id, since=verdict.since, said=to_public_text(verdict),
            )  # fmt: skip
        else:
            event_name = "monitor.ask" if verdict.state == ACTION_WAITING else "monitor.act"
            tx.emit(event_name, record.ref, action=verdict.action, id=verdict.id, state=verdict.state,
                    endpoint=str(endpoint), outcome=verdict.outcome[:500])  # fmt: skip

    def _save_machine(
        self, ctx: CallContext, tx: LedgerWriter, old: LedgerRecord, machine: WatchMachine, event_name: str, reason: str
    ) -> WatchView:
        """A person changed how the watch stands."""
        machine = replace(machine, state=machine.stated(ctx.now()))
        body = {**old.body, "machine": encode_machine(machine), "state": machine.state, "paused": machine.paused}
        record = save_watch(tx, old, body)
        tx.emit(event_name, record.ref, reason=reason[:500], state=machine.state)
        tx.after(self._notify_watchers)
        return self._make_view(tx, record)


def read_record_machine(record: LedgerRecord) -> WatchMachine:
    """The machine of a watch."""
    return read_machine(record.body, str(get_watched_endpoint(record.ref)))


def list_verdicts(tx: LedgerReader, watch: LedgerRecord, limit: int) -> tuple[WatchVerdict, ...]:
    """What was decided, newest first."""
    page = tx.find(
        VERDICT_KIND, project=watch.key.project, terms={"watch": watch.body["id"]}, newest_first=True, limit=limit
    )
    return tuple(sorted(map(read_verdict, page.records), key=lambda verdict: -verdict.at))


def read_verdict(record: LedgerRecord) -> WatchVerdict:
    """A verdict as it is kept."""
    parsed: WatchVerdict = from_plain(WatchVerdict, record.body)
    return parsed


def _put_verdict(
    tx: LedgerWriter, watch: LedgerRecord, old: LedgerRecord | None, verdict: WatchVerdict
) -> LedgerRecord:
    if old is not None:
        return tx.put(old.key, to_plain(verdict), rev=old.rev)
    terms = {"watch": str(watch.body["id"]), "cause": verdict.cause, "action": verdict.action}
    ref = _make_verdict_ref(watch, verdict.id)
    return tx.put(ref, to_plain(verdict), label=watch.label, zone=watch.zone, terms=terms)


def _make_verdict_ref(watch: LedgerRecord, id_: str) -> Ref:
    return Ref(VERDICT_KIND, watch.key.project, id_)


def _find_model(tx: LedgerReader, endpoint: Ref, revision: int) -> tuple[tuple[Ref, ...], str]:
    """The endpoint and the model that a verdict is about, pinned."""
    endpoint_record = tx.get(endpoint)
    revision_body = (
        endpoint_repository.find_revision(endpoint_record.body, revision) if endpoint_record is not None else None
    )
    if endpoint_record is None or revision_body is None:
        return (), ""
    return (endpoint_record.ref, Ref.parse(revision_body["model"])), str(revision_body["model"])
