"""The guard: the one place every call passes. Facts, then place(), then Cedar, then the verb, then the event.

Nothing else in the house grants anything. A call that is refused leaves an event too, and an error on the way to a
decision is a refusal.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from threading import Lock, local
from typing import Any, NamedTuple

from falaj.core.argument_binding import union_members
from falaj.core.byte_stream import ByteStream
from falaj.core.context import Actor, CallContext, PolicyDecision
from falaj.core.errors import Conflict, Denied, FalajError
from falaj.core.label import Label
from falaj.core.operation import Operation
from falaj.core.ref import Ref
from falaj.core.transfer_permits import PermitAuthority, TransferPermit
from falaj.core.withholding import AnswerWithheld
from falaj.govern.accounts import AccountStatus
from falaj.govern.authorizer import NO_PERMIT, Authorizer, PolicyFacts
from falaj.govern.call_resources import (
    CallResource,
    join_written_label,
    make_service_ref,
    make_service_resource,
    not_found_error,
    resolve_call_resources,
)
from falaj.govern.grants import parse_outside_target
from falaj.govern.records import ResidencyVerdict
from falaj.govern.residency_check import OUTWARD_OPERATIONS
from falaj.govern.roles import find_family
from falaj.govern.value_access import ResidencyChecker, ValueAccess
from falaj.store.codec import from_json, to_json, to_stable_json
from falaj.store.ledger import Ledger, LedgerWriter

TALLY_INTERVAL_S = 60.0
MAX_TALLIES = 10_000
ADMISSION_CACHE_S = 0.125
"""So long a judgement on what is called often is good for the same call again, unless something is changed here."""


class _ReadGroup(local):
    looks: list[tuple[CallContext, str, Ref]] | None = None


class _CachedAdmission(NamedTuple):
    """That a call may be made, as both judges said: when, and after which change."""

    at: float
    since: int
    pins: Mapping[str, Any]
    things: Sequence[CallResource]
    decision: PolicyDecision | None


_Admission = tuple[Mapping[str, Any], Sequence[CallResource], CallContext]


class CallGuard:
    """Asks the two judges and calls the verb. One instance a house."""

    def __init__(
        self,
        ledger: Ledger,
        authorizer: Authorizer,
        residency: ResidencyChecker,
        permit_authority: PermitAuthority,
        get_account_status: Callable[[Actor], AccountStatus],
        step_up: bool = False,
    ) -> None:
        """`get_account_status` reads whether an actor's tenant and account may act; `step_up` demands a second
        factor."""
        self._ledger = ledger
        self._authorizer = authorizer
        self.residency = residency
        self.permit_authority = permit_authority
        self.get_account_status = get_account_status
        self._step_up = step_up
        self._tallies: dict[tuple[str, Ref, str, str, str], tuple[CallContext, float, int]] = {}
        self.cached_admissions: dict[tuple[object, ...], _CachedAdmission] = {}
        self.last_change = 0
        self.lock = Lock()
        self.read_group = _ReadGroup()
        self.value_access = ValueAccess(
            ledger,
            authorizer,
            residency,
            lambda ctx, resource, is_placed: self.collect_facts(ctx, resource, is_placed=is_placed),
        )

    def call(
        self, service_name: str, service: object, operation: Operation, ctx: CallContext, arguments: Mapping[str, Any]
    ) -> Any:
        """Run one verb for one caller, or raise what forbids it."""
        action = f"{service_name}.{operation.name}"
        try:
            admit_call = self.admit_cached if operation.often and not ctx.keyed else self.admit_uncached
            arguments, resources, ctx = admit_call(action, operation, ctx, arguments)
        except _CallRefused as refused:
            self.record_denial(replace(ctx, decision=refused.decision), action, refused.why)
            raise refused.told from None
        except Denied as denied:
            decision = PolicyDecision(False, ("label",), reason=denied.message, hint=denied.hint)
            self.record_denial(replace(ctx, decision=decision), action, denied)
            raise
        try:
            return self.run_operation(service_name, service, operation, ctx, resources, arguments)
        except _MovementBarred as barred:
            # A verb under way was refused a movement and let that stand: as much a fact as a refusal at the door.
            self.record_denial(replace(ctx, decision=barred.decision), action, barred)
            raise
        except AnswerWithheld as withheld:
            self.record_denial(ctx, action, withheld)
            raise

    def check(self, service_name: str, operation: Operation, ctx: CallContext, arguments: Mapping[str, Any]) -> None:
        """Raise what forbids a call at this moment, without making it; a refusal is recorded."""
        action = f"{service_name}.{operation.name}"
        try:
            self.admit_uncached(action, operation, ctx, arguments)
        except _CallRefused as refused:
            self.record_denial(replace(ctx, decision=refused.decision), action, refused.why)
            raise refused.told from None

    def run_operation(
        self,
        service_name: str,
        service: object,
        operation: Operation,
        ctx: CallContext,
        resources: Sequence[CallResource],
        arguments: Mapping[str, Any],
    ) -> Any:
        action, method = f"{service_name}.{operation.name}", getattr(service, operation.name)
        subject = next(
            (resource_item.ref for resource_item in resources if resource_item.record is not None), None
        ) or make_service_ref(service_name)
        if operation.often and not ctx.keyed:
            self.count_call(action, ctx, subject)
            return method(ctx, **arguments)

        def run_and_withhold() -> Any:
            return self.value_access.show(action, operation, ctx, resources, method(ctx, **arguments))

        if operation.reading and not (ctx.keyed and operation.once):
            # Also where the caller named the request: a repeat is judged and answered anew, and changes nothing.
            return self.run_read(action, ctx, subject, run_and_withhold)
        if operation.outside:
            return self.run_outside_ledger(action, ctx, subject, run_and_withhold)
        return self.run_in_transaction(action, operation, ctx, subject, run_and_withhold, arguments)

    def close(self) -> None:
        """Record what was counted and not told yet."""
        with self.lock:
            open_tallies, self._tallies = self._tallies, {}
        for (action, subject), (ctx, _, count) in ((key[:2], tally_item) for key, tally_item in open_tallies.items()):
            if count:
                with self._ledger.write(ctx) as tx:
                    tx.emit(action, subject, times=count)

    def count_call(self, action: str, ctx: CallContext, subject: Ref) -> None:
        """Record the first of many calls before it is answered; those of the next minute are told together."""
        key, now = (action, subject, ctx.tenant, ctx.actor.id, ctx.purpose), ctx.now()
        with self.lock:
            tally = self._tallies.get(key)
            if tally is not None and 0 <= now - tally[1] < TALLY_INTERVAL_S:
                self._tallies[key] = (ctx, tally[1], tally[2] + 1)
                return
        with self._ledger.write(ctx) as tx:
            tx.emit(action, subject, times=1 + (tally[2] if tally is not None else 0))
        with self.lock:
            if len(self._tallies) >= MAX_TALLIES:
                self._tallies = {
                    tally_key: tally_value for tally_key, tally_value in self._tallies.items() if tally_value[2]
                }
            self._tallies[key] = (ctx, now, 0)

    def record_denial(self, ctx: CallContext, action: str, error: Denied) -> None:
        """A refusal is a fact too."""
        with self._ledger.write(ctx) as tx:
            tx.emit("guard.deny", _GUARD_REF, action=action, about=error.ref, reason=error.message[:500])

    def admit_cached(
        self, action: str, operation: Operation, ctx: CallContext, arguments: Mapping[str, Any]
    ) -> _Admission:
        """What was judged a moment ago need not be judged again; a refusal is not kept, and is recorded each time."""
        read_arguments = tuple([arguments.get(name) for name in operation.reads])
        if operation.writes or operation.into or operation.purpose or self._ledger.transacting:
            return self.admit_uncached(action, operation, ctx, arguments)
        key, now, change_count = (
            (action, ctx.actor, ctx.tenant, ctx.zone, ctx.purpose, read_arguments),
            ctx.now(),
            self._ledger.since,
        )
        cached = self.cached_admissions.get(key)
        if cached is not None and cached.since >= self.last_change and 0 <= now - cached.at < ADMISSION_CACHE_S:
            return (
                {**arguments, **cached.pins},
                cached.things,
                self.with_decision(action, ctx, cached.things, cached.decision),
            )
        arguments, resources, decided_context = self.admit_uncached(action, operation, ctx, arguments)
        if len(self.cached_admissions) >= MAX_TALLIES:
            self.cached_admissions.clear()
        pinned_arguments = {name: arguments[name] for name in operation.reads if name in arguments}
        self.cached_admissions[key] = _CachedAdmission(
            now, change_count, pinned_arguments, resources, decided_context.decision
        )
        return arguments, resources, decided_context

    def invalidate_after(self, tx: LedgerWriter) -> None:
        """Judge anew what is called often when this transaction has ended: it may have changed what decides."""

        def note_change(durable: bool) -> None:
            del durable
            with self.lock:
                self.last_change = self._ledger.note()

        tx.after(note_change)

    def admit_uncached(
        self, action: str, operation: Operation, ctx: CallContext, arguments: Mapping[str, Any]
    ) -> _Admission:
        arguments, resources = resolve_call_resources(self._ledger, operation, ctx, arguments)
        return arguments, resources, self.admit_call(action, operation, ctx, arguments, resources)

    def admit_call(
        self,
        action: str,
        operation: Operation,
        ctx: CallContext,
        arguments: Mapping[str, Any],
        resources: Sequence[CallResource],
    ) -> CallContext:
        """Both judges, for everything the call names; gives the context the verb runs under."""
        target_zone = (arguments.get(operation.into) if operation.into else "") or ctx.zone
        purpose = (arguments.get(operation.purpose) if operation.purpose else "") or ctx.purpose
        label = join_written_label(arguments.get("label"), operation, resources)
        workload_label = self.value_access.workload_label(operation, ctx, resources)
        if workload_label is not None and label is not None:
            label = label.join(workload_label)
        if label is not None or purpose != ctx.purpose:
            ctx = ctx.meaning(purpose, label)
        decision: PolicyDecision | None = None
        for resource in resources or (make_service_resource(action.partition(".")[0], ctx.zone),):
            is_input = operation.group == "write" and bool(operation.writes) and not resource.written
            decision = self.ask_policy(
                action, ctx, resource, self.judge_movement(operation, ctx, resource, target_zone), is_input=is_input
            )
            if is_input:
                self.value_access.check_use(action, ctx, resource)
        if workload_label is not None:
            self.value_access.check_workload(action, operation, ctx, resources, workload_label)
        return self.with_decision(action, ctx, resources, decision)

    def with_decision(
        self, action: str, ctx: CallContext, resources: Sequence[CallResource], decision: PolicyDecision | None
    ) -> CallContext:
        return ctx.ruled(
            decision,
            lambda movement_operation, name, zone, label: self.issue_permit(
                action, _with_joined_label(ctx, label), resources, (movement_operation, name, zone)
            ),
            lambda kind: self.list_visible_scopes(action, ctx, kind),
            self.value_access.judge(action, ctx, resources),
        )

    def judge_movement(
        self, operation: Operation, ctx: CallContext, resource: CallResource, target_zone: str
    ) -> ResidencyVerdict | None:
        """place() about the movement this verb means for this thing: bytes copied, written, or shown."""
        if operation.group == "move" and operation.into:
            movement = resource.move(ctx, "copy", target_zone)
        elif resource.written and operation.group not in ("erase", "control"):
            movement = resource.move(ctx, "write", target_zone)
        elif operation.group in ("read", "move"):
            movement = resource.move(ctx, "view", "", ctx.actor.jurisdiction)
        else:
            return None
        return self.residency.verdict(movement, ctx.now())

    def ask_policy(
        self,
        action: str,
        ctx: CallContext,
        resource: CallResource,
        verdict: ResidencyVerdict | None,
        *,
        is_input: bool = False,
    ) -> PolicyDecision:
        """Cedar's answer, with what place() said as one of its facts. Who may not see a thing hears there is none.

        Who may read a piece of work, and is forbidden nothing about it, may make something of it where they may write.
        """
        facts = self.collect_facts(ctx, resource, is_placed=verdict is None or verdict.allowed)
        scope = resource.cell(ctx.label)
        decision = self._authorizer.decide(ctx.actor, action, scope, facts)
        if is_input and facts.placed and decision.rules == NO_PERMIT and find_family(scope.kind) == "work":
            reading = self.value_access.decide_reading(action, ctx, resource)
            decision = reading if reading.allowed else decision
        if decision.allowed:
            return replace(decision, obligations=verdict.obligations) if verdict and verdict.obligations else decision
        placed_facts = replace(facts, placed=True)
        placed_decision = self._authorizer.decide(ctx.actor, action, scope, placed_facts)
        if verdict is not None and placed_decision.allowed:
            denial = Denied("; ".join(verdict.reasons), verdict.hint, resource.asked)
        else:
            # Who could not do it anywhere hears that, and not what the law says of the place.
            denial = Denied(placed_decision.reason or "no rule permits it", placed_decision.hint, resource.asked)
        seeing_action = self._authorizer.seeing(action)
        is_hidden = (
            resource.record is not None
            and not self._authorizer.decide(ctx.actor, seeing_action, scope, placed_facts).allowed
        )
        raise _CallRefused(decision, denial, not_found_error(resource.asked) if is_hidden else denial)

    def collect_facts(self, ctx: CallContext, resource: CallResource | None, *, is_placed: bool) -> PolicyFacts:
        status = self.get_account_status(ctx.actor)
        is_author = resource is not None and resource.record is not None and resource.record.author == ctx.actor.id
        return _cached_facts(ctx.tenant, is_placed, *status, is_author, self._step_up, ctx.purpose)

    def issue_permit(
        self, action: str, ctx: CallContext, resources: Sequence[CallResource], request: tuple[str, str, str]
    ) -> TransferPermit:
        """A permit about a thing the call declared, and no other; place() is asked about exactly this movement."""
        movement_operation, name, target = request
        resource = next((resource_item for resource_item in resources if str(resource_item.asked.bare) == name), None)
        if resource is None:
            raise Denied(f"this call never named {name}", "declare it in the verb's reads or writes", name)
        movement = (
            resource.move(ctx, movement_operation, "", parse_outside_target(target))
            if movement_operation in OUTWARD_OPERATIONS
            else resource.move(ctx, movement_operation, target)
        )
        if movement_operation == "delete" and resource.record is not None:
            movement = replace(movement, facts=self.residency.read_duty_facts(ctx, resource.record))
        verdict = self.residency.verdict(movement, ctx.now())
        if not verdict.allowed:
            facts = self.collect_facts(ctx, resource, is_placed=False)
            decision = self._authorizer.decide(ctx.actor, action, resource.cell(ctx.label), facts)
            raise _MovementBarred(decision, Denied("; ".join(verdict.reasons), verdict.hint, name))
        policy_digest = self._authorizer.rules(ctx.tenant).hash
        return self.permit_authority.issue(
            movement_operation,
            name,
            ctx.tenant,
            resource.zone,
            target,
            label=movement.label.digest,
            policy=policy_digest,
            now=ctx.now(),
        )

    def list_visible_scopes(self, action: str, ctx: CallContext, kind: str) -> frozenset[str]:
        with self._ledger.read(ctx) as tx:
            scopes = tx.cells(kind)
        return self._authorizer.cells(ctx.actor, action, scopes, self.collect_facts(ctx, None, is_placed=True))

    def run_in_transaction(
        self,
        action: str,
        operation: Operation,
        ctx: CallContext,
        subject: Ref,
        run_and_withhold: Callable[[], Any],
        arguments: Mapping[str, Any],
    ) -> Any:
        """One verb, one transaction; a repeat of a named request gives the first outcome."""
        fingerprint = ""
        if ctx.keyed and ByteStream in union_members(operation.result):
            ctx = replace(ctx, keyed=False)  # bytes are not kept for a repeat, and reading them twice harms nobody
        if ctx.keyed:
            arguments_digest = hashlib.sha256(action.encode() + b"\0" + to_stable_json(dict(arguments))).hexdigest()
            fingerprint = f"{action} {arguments_digest}"
            stored_outcome = self._ledger.outcome(ctx, fingerprint)
            if stored_outcome is not None and operation.once:
                raise Conflict("this was done, and what it showed is not shown again", "ask for a new one")
            if stored_outcome is not None:
                return from_json(operation.result, stored_outcome)

        def run_once(tx: LedgerWriter) -> Any:
            self.invalidate_after(tx)
            result = run_and_withhold()
            if not tx.emitted:
                tx.emit(action, subject)
            if ctx.keyed:
                tx.remember("null" if operation.once else to_json(result).decode(), fingerprint)
            return result

        # Nothing of it left the ledger, so it may be run again when another writer got in between.
        return self._ledger.retry(ctx, run_once)

    def run_read(self, action: str, ctx: CallContext, subject: Ref, run_and_withhold: Callable[[], Any]) -> Any:
        """A question: looked up first, recorded after, so that a long look holds no writer; unrecorded, no answer."""
        result = run_and_withhold()
        if self.read_group.looks is not None:
            self.read_group.looks.append((ctx, action, subject))
            return result
        with self._ledger.write(ctx) as tx:
            tx.emit(action, subject)
        return result

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Questions of this thread inside it are recorded together, on exit, by one commit.

        What they gave may not leave before that: it is for a page, which is one answer made of many.
        """
        if self.read_group.looks is not None:
            yield
            return
        reads = self.read_group.looks = list[tuple[CallContext, str, Ref]]()
        try:
            yield
        finally:
            self.read_group.looks = None
            if reads:
                self.record_reads(reads)

    def record_reads(self, reads: Sequence[tuple[CallContext, str, Ref]]) -> None:
        with self._ledger.group():
            for ctx, action, subject in reads:
                with self._ledger.write(ctx) as tx:
                    tx.emit(action, subject)

    def run_outside_ledger(
        self, action: str, ctx: CallContext, subject: Ref, run_and_withhold: Callable[[], Any]
    ) -> Any:
        """An act outside the ledger: its intent is durable before, its outcome after."""
        with self._ledger.write(ctx) as tx:
            tx.emit(action, subject, phase="intent")
        try:
            result = run_and_withhold()
        except FalajError as error:
            with self._ledger.write(ctx) as tx:
                self.invalidate_after(tx)
                tx.emit(action, subject, phase="outcome", failed=error.code)
            raise
        with self._ledger.write(ctx) as tx:
            self.invalidate_after(tx)
            tx.emit(action, subject, phase="outcome", result=str(result) if isinstance(result, Ref) else "done")
        return result


def _with_joined_label(ctx: CallContext, label: Label | None) -> CallContext:
    """The same call, writing what must carry more by now than when it was let in; never less."""
    if label is None or label is ctx.label:
        return ctx
    return ctx.meaning(ctx.purpose, label if ctx.label is None else ctx.label.join(label))


_GUARD_REF = make_service_ref("guard")
_cached_facts = lru_cache(maxsize=4096)(PolicyFacts)


class _MovementBarred(Denied):
    """A movement that place() refuses to a verb under way. Verbs that only ask whether it may be take it for Denied."""

    def __init__(self, decision: PolicyDecision, _denial: Denied) -> None:
        super().__init__(_denial.message, _denial.hint, _denial.ref)
        self.decision = decision


class _CallRefused(Exception):
    """A decision against the call: why, for the log, and what the caller is told."""

    def __init__(self, decision: PolicyDecision, _denial: Denied, _shown_error: FalajError) -> None:
        super().__init__(_denial.message)
        self.decision = decision
        self.why = _denial
        self.told = _shown_error
