"""Plans of erasures: recorded whole, approved by a second person, executed only after every duty was asked again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from falaj.core.context import Context
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.approvals import ROLES, approval_ref, current_standing, find_approval
from falaj.govern.destruction import HOLDS
from falaj.govern.duties import describe_until, summarize_duties
from falaj.govern.duty_facts import RESTRICTION
from falaj.govern.records import Approval, KeepingDuty
from falaj.govern.refusals import EVERY
from falaj.jobs.records import OVER
from falaj.privacy.asking import keep, read, shown
from falaj.privacy.job_file_removal import delete_job_files
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
    PlanItem,
)
from falaj.privacy.plan_records import RETAINED as PLAN_RETAINED
from falaj.privacy.records import ERASURE, OPEN, RETAINED, Request
from falaj.privacy.search.person_pattern import PersonPattern
from falaj.privacy.searching import Searching
from falaj.privacy.shelf import check_state, digest_of, every, load, named, same, save
from falaj.store.codec import to_stable_json
from falaj.store.ledger import Reader
from falaj.store.records import Record

KIND, ACTION = "erasure-plan", "privacy.erase"
VOICES = 1
"""People who must approve a plan, besides whoever made it."""
LIFE_S = 30 * 86_400.0
MOST_ITEMS = 20_000
_REPEATED = ("features", "tables", "journal", "caches")
"""Steps that run again when a retained part is due."""


class Planning(Searching):
    """Erasures as plans."""

    @verb(reads=("request",), group="erase")
    def record_plan(
        self,
        ctx: Context,
        request: Annotated[Ref, "which erasure"],
        items: Annotated[tuple[PlanItem, ...], "every object, and what is to happen to it"],
    ) -> ErasurePlan:
        """Record the plan of an erasure and ask a second person to approve it. `falaj privacy erase --plan` calls it.

        Example:
            falaj privacy record-plan subject-request:privacy/0199d2f0 --items @items.json
        """
        if len(items) > MOST_ITEMS or any(item.action not in ACTIONS for item in items):
            raise Invalid(f"{len(items)} items of a plan", f"at most {MOST_ITEMS}, each {', '.join(ACTIONS)}", request)
        with self._ledger.write(ctx) as tx:
            old, _ = read(tx, request)
            check_state(request, old.state, OPEN, RETAINED)
            if old.type != ERASURE:
                raise Invalid(f"{request} asks for {old.type}", "only an erasure has a plan", request)
            ordered = tuple(sorted(self._ask_duties(tx, ctx, items, ""), key=lambda item: (item.ref, item.action)))
            digest = digest_of(to_stable_json([str(request.bare), [(item.ref, item.action) for item in ordered]]))
            record = tx.get(plan_ref(request))
            if record is not None and record.body["digest"] == digest:
                return self._shown_plan(tx, ctx, load(ErasurePlan, record))
            made = ErasurePlan(
                request.bare, PLANNED, digest, approval_ref(ACTION, digest), ordered, ctx.actor.id, ctx.now()
            )
            saved = save(tx, plan_ref(request), made, record)
            tx.emit("privacy.record_plan", saved.ref, digest=digest, items=len(items))
            self._approvals.propose(ctx, tx, _question(ctx, made))
            return self._shown_plan(tx, ctx, made)

    @verb(reads=("request",))
    def plan(self, ctx: Context, request: Annotated[Ref, "which erasure"]) -> ErasurePlan:
        """Show the plan of an erasure: every object, what happens to it, which duty keeps it until when, how far it is.

        Example:
            falaj privacy plan subject-request:privacy/0199d2f0
        """
        with self._ledger.read(ctx) as tx:
            return self._shown_plan(tx, ctx, need_plan(tx, request))

    @verb(reads=("request",), group="erase")
    def check_items(
        self,
        ctx: Context,
        request: Annotated[Ref, "which erasure"],
        items: Annotated[tuple[PlanItem, ...], "objects that may come into its plan"],
    ) -> tuple[PlanItem, ...]:
        """Ask every duty about objects, and give them as the plan would have them. `falaj privacy erase` calls it.

        Example:
            falaj privacy check-items subject-request:privacy/0199d2f0 --items @items.json
        """
        if len(items) > MOST_ITEMS:
            raise Invalid(f"{len(items)} items of a plan", f"at most {MOST_ITEMS}", request)
        with self._ledger.read(ctx) as tx:
            need_plan(tx, request)
            return tuple(self._ask_duties(tx, ctx, items, ""))

    @verb()
    def retained(
        self,
        ctx: Context,
        due: Annotated[bool, "only those with a part that no duty keeps any more: run the erasure again"] = False,
    ) -> tuple[ErasurePlan, ...]:
        """List erasures of which a part is restricted and retained, with the date until which duties keep it.

        Example:
            falaj privacy retained --due
        """
        with self._ledger.read(ctx) as tx:
            requests = every(tx, "subject-request", state=RETAINED)
            plans = [self._shown_plan(tx, ctx, need_plan(tx, request.ref.bare)) for request in requests]
        return tuple(plan for plan in plans if not due or plan.due)

    @verb(reads=("request",), group="erase")
    def start_erasure(
        self,
        ctx: Context,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
    ) -> Request:
        """Begin or resume the execution of an approved plan, after every duty to keep was asked again.

        Refused while nobody approved exactly this plan, and while the person waits for a copy of their data. Objects
        that a duty keeps by now are restricted instead of erased. `falaj privacy erase` calls it.

        Example:
            falaj privacy start-erasure subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.write(ctx) as tx:
            found, record = read(tx, request)
            check_state(request, found.state, OPEN, RETAINED)
            self._check_eraser(ctx, found, subject)
            if "restrict" not in found.steps:
                raise Conflict("the person is not restricted yet", f"falaj privacy erase {request} …", request)
            plan = need_plan(tx, request)
            if plan.state == PLANNED:  # what was approved and begun goes on to its end, however late that is
                self._approvals.demand(ctx, ACTION, plan.digest, needs=VOICES, authors=(plan.made_by,))
            items = self._ask_duties(tx, ctx, plan.items, found.person)
            self._check_journals(tx, ctx, plan)
            held = tuple(describe_retained(item) for item in items if item.action == RESTRICT)
            again = _REPEATED if found.state == RETAINED else ()
            steps = {name: text for name, text in found.steps.items() if name not in again}
            made = replace(found, state=OPEN, held=held, steps=steps, closed_at=0.0)
            save(tx, plan_ref(request), replace(plan, state=EXECUTING, asked_at=ctx.now()), tx.need(plan_ref(request)))
            tx.emit("privacy.start_erasure", keep(tx, made, record).ref, items=len(items), retained=len(held))
        return shown(made, ctx.now())

    @verb(reads=("request",), group="erase", outside=True)
    def retain(
        self,
        ctx: Context,
        request: Annotated[Ref, "which erasure"],
        subject: Annotated[str, "who, by the identifier that the data carries"],
    ) -> Request:
        """Answer an erasure of which a part is retained: restricted until DATE under LAW, and the rest is erased.

        The request is due again when the last duty has ended. `falaj privacy erase` calls it.

        Example:
            falaj privacy retain subject-request:privacy/0199d2f0 784-1990-1234567-1
        """
        with self._ledger.write(ctx) as tx:
            found, record = read(tx, request)
            check_state(request, found.state, OPEN)
            self._check_eraser(ctx, found, subject)
            if left := [name for name in ("restrict", *_REPEATED) if name not in found.steps]:
                raise Conflict(f"not done yet: {', '.join(left)}", f"falaj privacy erase {request} …", request)
            plan = need_plan(tx, request)
            current = self._ask_duties(tx, ctx, plan.items, "")
            items = [item for item in current if item.action == RESTRICT]
            if not items:
                raise Conflict("no duty keeps anything of the person", f"falaj privacy erase {request} …", request)
            if readable := [item.ref for item in items if not item.sealed and not self._is_closed(tx, item.ref)]:
                raise Conflict(f"not restricted yet: {', '.join(readable[:5])}", f"falaj privacy erase {request} …")
            held = tuple(describe_retained(item) for item in items)
            made = replace(found, state=RETAINED, held=held, answer="; ".join(held)[:4000], closed_at=ctx.now())
            stands = replace(plan, state=PLAN_RETAINED, items=tuple(current))
            save(tx, plan_ref(request), stands, tx.need(plan_ref(request)))
            tx.emit("privacy.retain", keep(tx, made, record).ref, retained=len(held))
        if all(derived.decision for derived in made.derived):
            # What is left of the person is restricted version by version, so nobody needs to look out for them.
            self._permit(ctx, subject, EVERY, "what is left of them is restricted")
        return shown(made, ctx.now())

    @verb(reads=("request",), group="erase")
    def settle_record(
        self,
        ctx: Context,
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
            found, _ = read(tx, request)
            plan = need_plan(tx, request)
            record = find_record(tx, name) if is_plain_record(name) else None
            if plan.state != EXECUTING or name not in {item.ref for item in plan.items}:
                hint = f"falaj privacy plan {request} shows what it is about, and how far it is"
                raise Conflict(f"{request} does not touch {name[:200]} now", hint)
            if record is None:
                return False
            duties = self._zones.find_duties(ctx, (record,))[record.ref]
            names = list_alike(record, name) & {item.ref for item in plan.items}
            is_kept = any(is_kept_by(each, duty) for each in names for duty in duties)
            before = record.body.get(RESTRICTION)
            start = {"reason": f"request {request.name}", "by": ctx.actor.id, "at": ctx.now(), "keep": False}
            restriction = change_restriction(before or start, found.person, is_kept=is_kept)
            if restriction != before:
                body = {**record.body, RESTRICTION: restriction}
                is_restricted = restriction is not None
                tx.put(record.key, body, rev=record.rev, restricted=is_restricted)
                tx.emit("privacy.settle_record", record.ref, restricted=int(is_restricted))
        return restriction is not None

    @verb(reads=("request",), group="erase")
    def redact_record(
        self,
        ctx: Context,
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
            found, _ = read(tx, request)
            self._check_eraser(ctx, found, subject)
            plan = need_plan(tx, request)
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

    @verb(reads=("request",), group="erase", outside=True)
    def delete_job_files(
        self,
        ctx: Context,
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
            found, _ = read(tx, request)
            self._check_eraser(ctx, found, subject)
            plan = need_plan(tx, request)
            if plan.state != EXECUTING or name not in {item.ref for item in plan.items}:
                hint = f"falaj privacy plan {request} shows what it is about, and how far it is"
                raise Conflict(f"{request} does not touch {name[:200]} now", hint)
            record = find_record(tx, name) if job_of(name) is not None else None
            duties = self._zones.find_duties(ctx, (record,))[record.ref] if record is not None else ()
            if record is None or any(is_kept_by(name, duty) for duty in duties):
                return 0
            tx.emit("privacy.delete_job_files", record.ref, request=str(request))
        return delete_job_files(self._estate, ctx, record, name)

    def _check_eraser(self, ctx: Context, found: Request, subject: str) -> None:
        """Raise unless this caller may erase exactly this person."""
        if found.type != ERASURE:
            raise Invalid(f"{found.ref} asks for {found.type}", "only an erasure erases", found.ref)
        if "*" not in ctx.actor.projects:
            # What they do not see they would not erase, and the certificate would say too much.
            raise Denied("you see only some projects", "have somebody erase who sees all of them", found.ref)
        if found.person != self._person(ctx, subject):
            raise Denied("this is not the person who asked", "check the identifier, letter by letter", found.ref)

    def _check_unretained(self, tx: Reader, ctx: Context, found: Request) -> None:
        """Raise Conflict unless the plan is being executed and no duty keeps anything of the person any more."""
        plan = need_plan(tx, found.ref)
        if plan.state != EXECUTING:
            raise Conflict(f"the plan of {found.ref} is {plan.state}", f"falaj privacy erase {found.ref} …", found.ref)
        retained = [item for item in self._ask_duties(tx, ctx, plan.items, found.person) if item.action == RESTRICT]
        if retained:
            raise Conflict(describe_retained(retained[0]), "erase again when that has ended", found.ref)

    def _ask_duties(self, tx: Reader, ctx: Context, items: Sequence[PlanItem], person: str) -> list[PlanItem]:
        """The items as the duties of this moment want them; Conflict while the person waits for a copy of their own."""
        records = {item.ref: record for item in items if (record := find_record(tx, item.ref)) is not None}
        duties = self._zones.find_duties(ctx, list({each.ref: each for each in records.values()}.values()), person)
        by_name = {
            name: tuple(duty for duty in duties[record.ref] if is_kept_by(name, duty))
            for name, record in records.items()
        }
        if waiting := [duty for found in by_name.values() for duty in found if duty.rule == "request"]:
            raise Conflict(waiting[0].reason, waiting[0].hint)
        current = [current_item(item, by_name.get(item.ref), item.ref in records) for item in items]
        return [replace(item, zones=zones_of(records.get(item.ref))) for item in current]

    def _check_journals(self, tx: Reader, ctx: Context, plan: ErasurePlan) -> None:
        """Raise Conflict while a hold or a breach keeps a journal of the plan: then nothing is destroyed at all."""
        refs = [
            Ref.parse(item.ref) for item in plan.items if item.action == FORGET and item.ref.startswith("endpoint:")
        ]
        for record in filter(None, map(tx.get, refs)):
            duties = [duty for duty in self._zones.find_duties(ctx, (record,))[record.ref] if duty.rule in HOLDS]
            if duties:
                raise Conflict(f"the journal is kept: {duties[0].reason}", duties[0].hint, record.ref)

    def _is_closed(self, tx: Reader, name: str) -> bool:
        record = find_record(tx, name)
        return record is None or record.restricted

    def _shown_plan(self, tx: Reader, ctx: Context, plan: ErasurePlan) -> ErasurePlan:
        """A plan with the duties and the approval of this moment."""
        items = plan.items if plan.state == DONE else tuple(self._ask_duties(tx, ctx, plan.items, ""))
        state = plan.state
        if state == PLANNED:
            approval = find_approval(tx, ACTION, plan.digest, tenant=ctx.tenant)
            granted = approval is not None and current_standing(approval, ctx.now()).granted
            state = APPROVED if granted else PLANNED
        kept = {item.ref for item in items if item.action == RESTRICT}
        due = any(item.action == RESTRICT and item.ref not in kept for item in plan.items)
        return replace(plan, items=items, state=state, due=due and state == PLAN_RETAINED)


def plan_ref(request: Ref) -> Ref:
    """The record of the plan of an erasure."""
    return named(KIND, same(request, "subject-request").name)


def need_plan(tx: Reader, request: Ref) -> ErasurePlan:
    """The plan of an erasure, or NotFound."""
    record = tx.get(plan_ref(request))
    if record is None:
        raise NotFound(f"{request} has no plan", f"falaj privacy erase {request} WHO --plan makes one", request)
    plan: ErasurePlan = load(ErasurePlan, record)
    return plan


def current_item(item: PlanItem, duties: tuple[KeepingDuty, ...] | None, live: bool) -> PlanItem:
    """An item of a plan as it stands: restricted while a duty keeps it, to be erased once none does."""
    if not live or not duties:
        return replace(item, action=ERASE, law="", until=0.0) if item.action == RESTRICT else item
    retention = summarize_duties(duties)
    law = ", ".join(dict.fromkeys(" ".join(filter(None, (duty.law, duty.article))) for duty in duties))
    until = 0.0 if retention.open_ended else retention.until
    action = DECIDE if item.ref.startswith("model:") and item.action == DECIDE else RESTRICT
    return replace(item, action=action, law=law, until=until, reason=item.reason or duties[0].reason)


def describe_retained(item: PlanItem) -> str:
    """The answer about one object: restricted and retained until DATE under LAW."""
    return f"{item.ref}: restricted and retained until {describe_until(item.until)} under {item.law}"


def change_restriction(before: Mapping[str, Any], person: str, *, is_kept: bool) -> dict[str, Any] | None:
    """A restriction with this person's erasure added, or taken off when no duty keeps the object; None when it ends."""
    others = [other for other in before.get("erasures", ()) if other != person]
    erasures = [*others, person] if is_kept else others
    return {**before, "erasures": erasures} if erasures or before.get("keep") else None


def _is_running(record: Record) -> bool:
    return record.key.kind == "job" and record.body["state"] not in OVER


def _bare(name: str) -> str:
    return name.partition("@")[0]


def _question(ctx: Context, plan: ErasurePlan) -> Approval:
    retained = sum(item.action == RESTRICT for item in plan.items)
    reason = f"erase a person: {len(plan.items)} objects, {retained} retained under a duty; "
    reason += f"falaj privacy plan {plan.request} lists them"
    return Approval(
        action=ACTION, digest=plan.digest, needs=VOICES, dpo=0, roles=ROLES, asker=ctx.actor.person,
        barred=(ctx.actor.id,), reason=reason,
        asked=ctx.now(), expires=ctx.now() + LIFE_S, about=str(plan.request),
    )  # fmt: skip
