"""Plans of erasures: recorded whole, approved by a second person, executed only after every duty was asked again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.approvals import APPROVING_ROLES, compute_current_standing, find_approval, make_approval_ref
from falaj.govern.destruction_checks import HOLD_RULES
from falaj.govern.duties import describe_until, summarize_duties
from falaj.govern.duty_facts import RESTRICTION_FIELD
from falaj.govern.records import ApprovalQuestion, KeepingDuty
from falaj.govern.refusals import EVERY_PURPOSE
from falaj.jobs.records import ENDED_STATES
from falaj.privacy.job_file_removal import delete_job_files
from falaj.privacy.person_search import PersonSearchOperations
from falaj.privacy.plan_objects import (
    find_record,
    has_texts,
    is_kept_by,
    is_plain_record,
    job_of,
    list_alike,
    redact_texts,
    zones_of,
)
from falaj.privacy.plan_records import (
    ACTIONS,
    APPROVED,
    DECIDE,
    DONE,
    ERASE,
    EXECUTING,
    FORGET,
    PLANNED,
    RESTRICT,
    ErasurePlan,
    ErasurePlanItem,
)
from falaj.privacy.plan_records import RETAINED as PLAN_RETAINED
from falaj.privacy.records import ERASURE, OPEN, RETAINED, SubjectRequest
from falaj.privacy.search.person_pattern import PersonPattern
from falaj.privacy.service_base import (
    compute_digest,
    list_records,
    load_record,
    make_ref,
    require_kind,
    require_state,
    save_record,
)
from falaj.privacy.subject_requests import read_request, save_request, with_overdue
from falaj.store.codec import to_stable_json
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord

PLAN_KIND, ERASE_ACTION = "erasure-plan", "privacy.erase"
MIN_APPROVERS = 1
"""People who must approve a plan, besides whoever made it."""
APPROVAL_LIFETIME_S = 30 * 86_400.0
MAX_PLAN_ITEMS = 20_000
_REPEATED_STEPS = ("features", "tables", "journal", "caches")
"""Steps that run again when a retained part is due."""


class ErasurePlanning(PersonSearchOperations):
    """Erasures as plans."""

    @operation(reads=("request",), group="erase")
    def record_plan(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        items: Annotated[tuple[ErasurePlanItem, ...], "every object, and what is to happen to it"],
    ) -> ErasurePlan:
        """Record the plan of an erasure and ask a second person to approve it. `falaj privacy erase --plan` calls it.

        Example:
            falaj privacy record-plan subject-request:privacy/0199d2f0 --items @items.json
        """
        if len(items) > MAX_PLAN_ITEMS or any(item.action not in ACTIONS for item in items):
            raise Invalid(
                f"{len(items)} items of a plan", f"at most {MAX_PLAN_ITEMS}, each {', '.join(ACTIONS)}", request
            )
        with self._ledger.write(ctx) as tx:
            current_request, _ = read_request(tx, request)
            require_state(request, current_request.state, OPEN, RETAINED)
            if current_request.type != ERASURE:
                raise Invalid(f"{request} asks for {current_request.type}", "only an erasure has a plan", request)
            sorted_items = tuple(
                sorted(self.refresh_items(tx, ctx, items, ""), key=lambda item: (item.ref, item.action))
            )
            digest = compute_digest(
                to_stable_json([str(request.bare), [(item.ref, item.action) for item in sorted_items]])
            )
            record = tx.get(make_plan_ref(request))
            if record is not None and record.body["digest"] == digest:
                return self.build_shown_plan(tx, ctx, load_record(ErasurePlan, record))
            erasure_plan = ErasurePlan(
                request.bare,
                PLANNED,
                digest,
                make_approval_ref(ERASE_ACTION, digest),
                sorted_items,
                ctx.actor.id,
                ctx.now(),
            )
            saved_record = save_record(tx, make_plan_ref(request), erasure_plan, record)
            tx.emit("privacy.record_plan", saved_record.ref, digest=digest, items=len(items))
            self._approvals.propose(ctx, tx, _build_question(ctx, erasure_plan))
            return self.build_shown_plan(tx, ctx, erasure_plan)

    @operation(reads=("request",))
    def plan(self, ctx: CallContext, request: Annotated[Ref, "which erasure"]) -> ErasurePlan:
        """Show the plan of an erasure: every object, what happens to it, which duty keeps it until when, how far it is.

        Example:
            falaj privacy plan subject-request:privacy/0199d2f0
        """
        with self._ledger.read(ctx) as tx:
            return self.build_shown_plan(tx, ctx, require_plan(tx, request))

    @operation(reads=("request",), group="erase")
    def check_items(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        items: Annotated[tuple[ErasurePlanItem, ...], "objects that may come into its plan"],
    ) -> tuple[ErasurePlanItem, ...]:
        """Ask every duty about objects, and give them as the plan would have them. `falaj privacy erase` calls it.

        Example:
            falaj privacy check-items subject-request:privacy/0199d2f0 --items @items.json
        """
        if len(items) > MAX_PLAN_ITEMS:
            raise Invalid(f"{len(items)} items of a plan", f"at most {MAX_PLAN_ITEMS}", request)
        with self._ledger.read(ctx) as tx:
            require_plan(tx, request)
            return tuple(self.refresh_items(tx, ctx, items, ""))

    @operation()
    def retained(
        self,
        ctx: CallContext,
        due: Annotated[bool, "only those with a part that no duty keeps any more: run the erasure again"] = False,
    ) -> tuple[ErasurePlan, ...]:
        """List erasures of which a part is restricted and retained, with the date until which duties keep it.

        Example:
            falaj privacy retained --due
        """
        with self._ledger.read(ctx) as tx:
            requests = list_records(tx, "subject-request", state=RETAINED)
            plans = [self.build_shown_plan(tx, ctx, require_plan(tx, request.ref.bare)) for request in requests]
        return tuple(plan for plan in plans if not due or plan.due)

    @operation(reads=("request",), group="erase")
    def start_erasure(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
    ) -> SubjectRequest:
        """Begin or resume the execution of an approved plan, after every duty to keep was asked again.

        Refused while nobody approved exactly this plan, and while the person waits for a copy of their data. Objects
        that a duty keeps by now are restricted instead of erased. `falaj privacy erase` calls it.

        Example:
            falaj privacy start-erasure subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.write(ctx) as tx:
            current_request, record = read_request(tx, request)
            require_state(request, current_request.state, OPEN, RETAINED)
            self.require_eraser(ctx, current_request, subject)
            if "restrict" not in current_request.steps:
                raise Conflict("the person is not restricted yet", f"falaj privacy erase {request} …", request)
            plan = require_plan(tx, request)
            if plan.state == PLANNED:  # what was approved and begun goes on to its end, however late that is
                self._approvals.demand(
                    ctx, ERASE_ACTION, plan.digest, min_approvers=MIN_APPROVERS, authors=(plan.made_by,)
                )
            items = self.refresh_items(tx, ctx, plan.items, current_request.person)
            self.require_free_journals(tx, ctx, plan)
            retained_texts = tuple(describe_retained(item) for item in items if item.action == RESTRICT)
            repeated_steps = _REPEATED_STEPS if current_request.state == RETAINED else ()
            steps = {name: text for name, text in current_request.steps.items() if name not in repeated_steps}
            started_request = replace(current_request, state=OPEN, held=retained_texts, steps=steps, closed_at=0.0)
            save_record(
                tx,
                make_plan_ref(request),
                replace(plan, state=EXECUTING, asked_at=ctx.now()),
                tx.need(make_plan_ref(request)),
            )
            tx.emit(
                "privacy.start_erasure",
                save_request(tx, started_request, record).ref,
                items=len(items),
                retained=len(retained_texts),
            )
        return with_overdue(started_request, ctx.now())

    @operation(reads=("request",), group="erase", has_outside_effects=True)
    def retain(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
    ) -> SubjectRequest:
        """Answer an erasure of which a part is retained: restricted until DATE under LAW, and the rest is erased.

        The request is due again when the last duty has ended. `falaj privacy erase` calls it.

        Example:
            falaj privacy retain subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.write(ctx) as tx:
            current_request, record = read_request(tx, request)
            require_state(request, current_request.state, OPEN)
            self.require_eraser(ctx, current_request, subject)
            if missing_steps := [name for name in ("restrict", *_REPEATED_STEPS) if name not in current_request.steps]:
                raise Conflict(f"not done yet: {', '.join(missing_steps)}", f"falaj privacy erase {request} …", request)
            plan = require_plan(tx, request)
            current = self.refresh_items(tx, ctx, plan.items, "")
            items = [item for item in current if item.action == RESTRICT]
            if not items:
                raise Conflict("no duty keeps anything of the person", f"falaj privacy erase {request} …", request)
            if unrestricted := [item.ref for item in items if not item.sealed and not self._is_closed(tx, item.ref)]:
                raise Conflict(f"not restricted yet: {', '.join(unrestricted[:5])}", f"falaj privacy erase {request} …")
            retained_texts = tuple(describe_retained(item) for item in items)
            retained_request = replace(
                current_request,
                state=RETAINED,
                held=retained_texts,
                answer="; ".join(retained_texts)[:4000],
                closed_at=ctx.now(),
            )
            retained_plan = replace(plan, state=PLAN_RETAINED, items=tuple(current))
            save_record(tx, make_plan_ref(request), retained_plan, tx.need(make_plan_ref(request)))
            tx.emit("privacy.retain", save_request(tx, retained_request, record).ref, retained=len(retained_texts))
        if all(derived.decision for derived in retained_request.derived):
            # What is left of the person is restricted version by version, so nobody needs to look out for them.
            self.remove_refusal(ctx, subject, EVERY_PURPOSE, "what is left of them is restricted")
        return with_overdue(retained_request, ctx.now())

    @operation(reads=("request",), group="erase")
    def settle_record(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        name: Annotated[str, "the object, as the plan names it"],
    ) -> bool:
        """Restrict an object of a plan that is no version while a duty keeps it, and lift that once none does.

        Gives whether it is restricted. Versions are restricted by `falaj catalog restrict`. `falaj privacy erase` calls
        both.

        Example:
            falaj privacy settle-record subject-request:privacy/0199d2f0 blob:fraud/customers@v1
        """
        with self._ledger.write(ctx) as tx:
            found, _ = read_request(tx, request)
            plan = require_plan(tx, request)
            record = find_record(tx, name) if is_plain_record(name) else None
            if plan.state != EXECUTING or name not in {item.ref for item in plan.items}:
                hint = f"falaj privacy plan {request} shows what it is about, and how far it is"
                raise Conflict(f"{request} does not touch {name[:200]} now", hint)
            if record is None:
                return False
            duties = self._zones.find_duties(ctx, (record,))[record.ref]
            names = list_alike(record, name) & {item.ref for item in plan.items}
            is_kept = any(is_kept_by(each, duty) for each in names for duty in duties)
            before = record.body.get(RESTRICTION_FIELD)
            start = {"reason": f"request {request.name}", "by": ctx.actor.id, "at": ctx.now(), "keep": False}
            restriction = change_restriction(before or start, found.person, is_kept=is_kept)
            if restriction != before:
                body = {**record.body, RESTRICTION_FIELD: restriction}
                is_restricted = restriction is not None
                tx.put(record.key, body, rev=record.rev, restricted=is_restricted)
                tx.emit("privacy.settle_record", record.ref, restricted=int(is_restricted))
        return restriction is not None

    @operation(reads=("request",), group="erase")
    def redact_record(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
        name: Annotated[str, "the record, as the plan names it, or a version made from one that it names"],
    ) -> bool:
        """Replace a person's identifier in the texts of a record: tags, parameters, prompts, commands, messages.

        Gives whether something was replaced; nothing is while a duty keeps the record or its job runs. `falaj privacy
        erase` calls it.

        Example:
            falaj privacy redact-record subject-request:privacy/0199d2f0 784-1990-1234567-1 job:fraud/train-1
        """
        pattern = PersonPattern(subject)
        with self._ledger.write(ctx) as tx:
            found, _ = read_request(tx, request)
            self.require_eraser(ctx, found, subject)
            plan = require_plan(tx, request)
            if plan.state != EXECUTING or _bare(name) not in {_bare(item.ref) for item in plan.items}:
                hint = f"falaj privacy plan {request} shows what it is about, and how far it is"
                raise Conflict(f"{request} does not touch {name[:200]} now", hint)
            record = find_record(tx, name) if has_texts(name) else None
            if record is None or self._zones.find_duties(ctx, (record,))[record.ref] or _is_running(record):
                return False
            texts = {"body": dict(record.body), "terms": dict(record.terms)}
            redacted = redact_texts(texts, pattern)
            if redacted != texts:
                tx.put(record.key, redacted["body"], rev=record.rev, terms=redacted["terms"])
                tx.emit("privacy.redact_record", record.ref)
        return bool(redacted != texts)

    @operation(reads=("request",), group="erase", has_outside_effects=True)
    def delete_job_files(
        self,
        ctx: CallContext,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
        name: Annotated[str, "the log, files or checkpoints of a job, as the plan names them"],
    ) -> int:
        """Delete the folders of a job's ended attempts, or its checkpoints once it has ended; gives how many.

        Nothing is deleted while a legal hold or an open breach keeps the job, nor of an attempt that runs. `falaj
        privacy erase` calls it.

        Example:
            falaj privacy delete-job-files subject-request:privacy/0199d2f0 784-1990-1234567-1 "log of job:fraud/train"
        """
        with self._ledger.write(ctx) as tx:
            found, _ = read_request(tx, request)
            self.require_eraser(ctx, found, subject)
            plan = require_plan(tx, request)
            if plan.state != EXECUTING or name not in {item.ref for item in plan.items}:
                hint = f"falaj privacy plan {request} shows what it is about, and how far it is"
                raise Conflict(f"{request} does not touch {name[:200]} now", hint)
            record = find_record(tx, name) if job_of(name) is not None else None
            duties = self._zones.find_duties(ctx, (record,))[record.ref] if record is not None else ()
            if record is None or any(is_kept_by(name, duty) for duty in duties):
                return 0
            tx.emit("privacy.delete_job_files", record.ref, request=str(request))
        return delete_job_files(self._estate, ctx, record, name)

    def require_eraser(self, ctx: CallContext, subject_request: SubjectRequest, subject: str) -> None:
        """Raise unless this caller may erase exactly this person."""
        if subject_request.type != ERASURE:
            raise Invalid(
                f"{subject_request.ref} asks for {subject_request.type}", "only an erasure erases", subject_request.ref
            )
        if "*" not in ctx.actor.projects:
            # What they do not see they would not erase, and the certificate would say too much.
            raise Denied("you see only some projects", "have somebody erase who sees all of them", subject_request.ref)
        if subject_request.person != self.compute_pseudonym(ctx, subject):
            raise Denied(
                "this is not the person who asked", "check the identifier, letter by letter", subject_request.ref
            )

    def require_nothing_retained(self, tx: LedgerReader, ctx: CallContext, subject_request: SubjectRequest) -> None:
        """Raise Conflict unless the plan is being executed and no duty keeps anything of the person any more."""
        plan = require_plan(tx, subject_request.ref)
        if plan.state != EXECUTING:
            raise Conflict(
                f"the plan of {subject_request.ref} is {plan.state}",
                f"falaj privacy erase {subject_request.ref} …",
                subject_request.ref,
            )
        retained = [
            item for item in self.refresh_items(tx, ctx, plan.items, subject_request.person) if item.action == RESTRICT
        ]
        if retained:
            raise Conflict(describe_retained(retained[0]), "erase again when that has ended", subject_request.ref)

    def refresh_items(
        self, tx: LedgerReader, ctx: CallContext, items: Sequence[ErasurePlanItem], pseudonym: str
    ) -> list[ErasurePlanItem]:
        """The items as the duties of this moment want them; Conflict while the person waits for a copy of their own."""
        records = {item.ref: record for item in items if (record := find_record(tx, item.ref)) is not None}
        duties = self._zones.find_duties(ctx, list({each.ref: each for each in records.values()}.values()), pseudonym)
        duties_by_name = {
            name: tuple(duty for duty in duties[record.ref] if is_kept_by(name, duty))
            for name, record in records.items()
        }
        if waiting_duties := [
            duty for ref_duties in duties_by_name.values() for duty in ref_duties if duty.rule == "request"
        ]:
            raise Conflict(waiting_duties[0].reason, waiting_duties[0].hint)
        current = [refresh_item(item, duties_by_name.get(item.ref), item.ref in records) for item in items]
        return [replace(item, zones=zones_of(records.get(item.ref))) for item in current]

    def require_free_journals(self, tx: LedgerReader, ctx: CallContext, plan: ErasurePlan) -> None:
        """Raise Conflict while a hold or a breach keeps a journal of the plan: then nothing is destroyed at all."""
        refs = [
            Ref.parse(item.ref) for item in plan.items if item.action == FORGET and item.ref.startswith("endpoint:")
        ]
        for record in filter(None, map(tx.get, refs)):
            duties = [duty for duty in self._zones.find_duties(ctx, (record,))[record.ref] if duty.rule in HOLD_RULES]
            if duties:
                raise Conflict(f"the journal is kept: {duties[0].reason}", duties[0].hint, record.ref)

    def _is_closed(self, tx: LedgerReader, name: str) -> bool:
        record = find_record(tx, name)
        return record is None or record.restricted

    def build_shown_plan(self, tx: LedgerReader, ctx: CallContext, plan: ErasurePlan) -> ErasurePlan:
        """A plan with the duties and the approval of this moment."""
        items = plan.items if plan.state == DONE else tuple(self.refresh_items(tx, ctx, plan.items, ""))
        state = plan.state
        if state == PLANNED:
            approval = find_approval(tx, ERASE_ACTION, plan.digest, tenant=ctx.tenant)
            is_granted = approval is not None and compute_current_standing(approval, ctx.now()).granted
            state = APPROVED if is_granted else PLANNED
        retained_refs = {item.ref for item in items if item.action == RESTRICT}
        is_due = any(item.action == RESTRICT and item.ref not in retained_refs for item in plan.items)
        return replace(plan, items=items, state=state, due=is_due and state == PLAN_RETAINED)


def make_plan_ref(request: Ref) -> Ref:
    """The record of the plan of an erasure."""
    return make_ref(PLAN_KIND, require_kind(request, "subject-request").name)


def require_plan(tx: LedgerReader, request: Ref) -> ErasurePlan:
    """The plan of an erasure, or NotFound."""
    record = tx.get(make_plan_ref(request))
    if record is None:
        raise NotFound(f"{request} has no plan", f"falaj privacy erase {request} WHO --plan makes one", request)
    plan: ErasurePlan = load_record(ErasurePlan, record)
    return plan


def refresh_item(item: ErasurePlanItem, duties: tuple[KeepingDuty, ...] | None, is_live: bool) -> ErasurePlanItem:
    """An item of a plan as it stands: restricted while a duty keeps it, to be erased once none does."""
    if not is_live or not duties:
        return replace(item, action=ERASE, law="", until=0.0) if item.action == RESTRICT else item
    retention = summarize_duties(duties)
    law_text = ", ".join(dict.fromkeys(" ".join(filter(None, (duty.law, duty.article))) for duty in duties))
    until = 0.0 if retention.open_ended else retention.until
    action = DECIDE if item.ref.startswith("model:") and item.action == DECIDE else RESTRICT
    return replace(item, action=action, law=law_text, until=until, reason=item.reason or duties[0].reason)


def describe_retained(item: ErasurePlanItem) -> str:
    """The answer about one object: restricted and retained until DATE under LAW."""
    return f"{item.ref}: restricted and retained until {describe_until(item.until)} under {item.law}"


def change_restriction(before: Mapping[str, Any], person: str, *, is_kept: bool) -> dict[str, Any] | None:
    """A restriction with this person's erasure added, or taken off when no duty keeps the object; None when it ends."""
    others = [other for other in before.get("erasures", ()) if other != person]
    erasures = [*others, person] if is_kept else others
    return {**before, "erasures": erasures} if erasures or before.get("keep") else None


def _is_running(record: LedgerRecord) -> bool:
    return record.key.kind == "job" and record.body["state"] not in ENDED_STATES


def _bare(name: str) -> str:
    return name.partition("@")[0]


def _build_question(ctx: CallContext, plan: ErasurePlan) -> ApprovalQuestion:
    retained = sum(item.action == RESTRICT for item in plan.items)
    reason = f"erase a person: {len(plan.items)} objects, {retained} retained under a duty; "
    reason += f"falaj privacy plan {plan.request} lists them"
    return ApprovalQuestion(
        action=ERASE_ACTION,
        digest=plan.digest,
        needs=MIN_APPROVERS,
        dpo=0,
        roles=APPROVING_ROLES,
        asker=ctx.actor.person,
        barred=(ctx.actor.id,),
        reason=reason,
        asked=ctx.now(),
        expires=ctx.now() + APPROVAL_LIFETIME_S,
        about=str(plan.request),
    )
