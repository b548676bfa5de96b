"""Stages: a version's way from experiment over staging into production and out of it, with people's consent.

Whatever happens between a wish and the consent to it, the evidence is looked at again when the version moves; where it
is not what people consented to, they are asked again.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

from falaj.catalog.gate_requirements import GateOperations
from falaj.catalog.gate_rules import GATED_STAGES, count_required_approvers, judge_rules
from falaj.catalog.lifecycle_records import AliasBinding, PromotionResult
from falaj.catalog.name_operations import find_hasty_accounts
from falaj.catalog.promotion_requests import (
    PROMOTE_ACTION,
    PROMOTION_KIND,
    STATE_DONE,
    STATE_EMERGENCY,
    STATE_LAPSED,
    STATE_OVER,
    STATE_REFUSED,
    STATE_WAITING,
    PromotionRequest,
    evaluate_request,
    find_given_approval,
    find_request,
    hash_request,
    needs_action,
    read_request,
    resume_request,
)
from falaj.catalog.publish_limits import MAX_MESSAGE, require_short_text
from falaj.catalog.records import VERSION_STAGES
from falaj.catalog.service_base import (
    AliasMove,
    deleted_version_error,
    make_companion_label,
    missing_version_error,
    require_catalog_kind,
)
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.approvals import make_approval_ref
from falaj.govern.records import DataMovement
from falaj.store.codec import to_plain
from falaj.store.ledger import LedgerReader, LedgerWriter
from falaj.store.records import LedgerRecord

ALIASED_STAGES = ("staging", "production")
"""The stages that one version holds at a time, by an alias of the same name."""
STAGE_AFTER_LEAVING = {"production": "retired", "staging": "experiment"}
"""Where the version goes that held a stage before."""
_VERSION_PATTERN = r"v[1-9][0-9]{0,17}"


class StageOperations(GateOperations):
    """Promote, roll back, and what a loop does once people have spoken."""

    @operation(reads=("name",), group="write")
    def promote(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "which version"],
        stage: Annotated[str, "where it shall go: staging, production or retired"],
        reason: Annotated[str, "why, for those who decide and for the history"] = "",
        emergency: Annotated[bool, "one approver suffices for 24 hours; unratified, it is undone"] = False,
        before: Annotated[str, "what becomes of the version that is there now: retired, staging or experiment"] = "",
    ) -> PromotionResult:
        """Bring a version into a stage: checks what the project demands, asks for approvals, and moves it.

        Refused with the rule that failed; or waiting, with the command an approver runs; or done. A waiting one is
        done by itself as soon as enough people approved, if the evidence is still what they approved. `falaj catalog
        rules` shows what a project demands. The author and whoever asks never approve.

        Example:
            falaj catalog promote model:fraud/scorer@v7 production --reason "passed the March tests"
        """
        require_short_text("the reason", reason, MAX_MESSAGE)
        if stage not in GATED_STAGES:
            hint = (
                "falaj catalog delete destroys a version"
                if stage == "destroyed"
                else f"one of: {', '.join(GATED_STAGES)}"
            )
            raise Invalid(f"nothing is promoted to {stage[:40]!r}", hint, name)
        next_stage = before or STAGE_AFTER_LEAVING.get(stage, "")
        if next_stage not in ("", "retired", "staging", "experiment") or next_stage == stage:
            raise Invalid(f"the one before cannot go to {next_stage[:40]!r}", "retired, staging or experiment")
        with self._ledger.write(ctx) as tx:
            record = self.require_live(tx, name)
            actor_and_person = (ctx.actor.id, ctx.actor.person)
            promotion_request = PromotionRequest(
                record.ref, stage, STATE_WAITING, *actor_and_person, next_stage, reason, emergency, ctx.purpose
            )
            return self.advance_promotion(tx, ctx, record, resume_request(tx, ctx, promotion_request))

    @operation(reads=("name",), unpinned_params=("name",), group="write")
    def rollback(
        self,
        ctx: CallContext,
        name: Annotated[Ref, "the name; with an alias, that one goes back"],
        alias: Annotated[str, "the stage or alias that goes back"] = "production",
        to: Annotated[str, "the version it goes back to; the one before when left out"] = "",
        reason: Annotated[str, "why, for the history"] = "",
    ) -> AliasBinding:
        """Go back to the version that was there before, at once. Both moves stay in the history.

        It needs no new approval: the version was approved for this stage, and still is what it was. A version that was
        deleted, restricted, put under a hold or never fully approved is refused.

        Example:
            falaj catalog rollback model:fraud/scorer --reason "false alarms since noon"
        """
        require_catalog_kind(name)
        require_short_text("the reason", reason, MAX_MESSAGE)
        alias = alias if name.pinned else name.version or alias
        with self._ledger.write(ctx) as tx:
            current_version = self.read_aliases(tx, name).get(alias, "")
            target = name.at(self.find_rollback_version(tx, name, alias, current_version, to.rpartition("@")[2]))
            record = tx.get(target)
            if record is None:
                raise missing_version_error(target)
            self.require_fit_for_rollback(tx, record, alias)
            emergency_request = find_request(tx, name.at(current_version), alias) if current_version else None
            if emergency_request is not None and emergency_request.state == STATE_EMERGENCY:
                self.close_request(tx, emergency_request, STATE_LAPSED, "it was rolled back")
            alias_move = AliasMove("rollback", reason, *find_given_approval(tx, find_request(tx, target, alias)))
            self.enter_stage(tx, record, alias, STAGE_AFTER_LEAVING.get(alias, ""), alias_move)
            tx.emit("catalog.rollback", target, alias=alias, before=current_version, reason=reason)
        return AliasBinding(
            alias, target, ctx.now(), 0.0, ctx.actor.id, "rollback", reason, alias_move.approval, alias_move.people
        )

    def due(self, ctx: CallContext) -> Iterator[Ref]:
        """The wishes of the context's tenant that have something to be done about them now; for the loop."""
        due_refs = list[Ref]()
        with self._ledger.read(ctx) as tx:
            for state in (STATE_WAITING, STATE_EMERGENCY):
                after, has_more = "", True
                while has_more:
                    page = tx.find(PROMOTION_KIND, terms={"state": state}, after=after, limit=100)
                    due_refs += [record.ref for record in page.records if needs_action(tx, ctx, read_request(record))]
                    after, has_more = page.next, bool(page.next)
        return iter(due_refs)

    def settle(self, ctx: CallContext, promotion: Ref) -> PromotionResult | None:
        """Do what people's voices ask for by now: move the version, undo an emergency, or let the wish go."""
        with self._ledger.write(ctx) as tx:
            request_record = tx.get(promotion.bare)
            promotion_request = (
                read_request(request_record)
                if request_record is not None and request_record.key.kind == PROMOTION_KIND
                else None
            )
            if promotion_request is None or not needs_action(tx, ctx, promotion_request):
                return None
            approval_standing, record = evaluate_request(tx, ctx, promotion_request), tx.need(promotion_request.ref)
            if promotion_request.state == STATE_EMERGENCY:
                return (
                    self.ratify_emergency(tx, promotion_request)
                    if approval_standing.granted
                    else self.lapse_emergency(tx, promotion_request, approval_standing.why)
                )
            if record.body["state"] != "live":
                return self.close_request(tx, promotion_request, STATE_OVER, f"{promotion_request.ref} was deleted")
            if approval_standing.state in ("refused", "expired", "lapsed"):
                return self.close_request(
                    tx,
                    promotion_request,
                    STATE_REFUSED if approval_standing.state == "refused" else STATE_OVER,
                    approval_standing.why,
                )
            return self.advance_promotion(tx, ctx, record, promotion_request)

    def movement(self, ctx: CallContext, promotion: Ref, operation: str, zone: str) -> DataMovement:
        """The question to place() that whoever wished this promotion would ask; for the loop, which has no guard."""
        with self._ledger.read(ctx) as tx:
            promotion_request = read_request(tx.need(promotion.bare))
            record = tx.need(promotion_request.ref)
        return DataMovement(
            operation,
            record.label,
            str(promotion_request.ref),
            ctx.tenant,
            record.zone,
            zone,
            promotion_request.purpose,
            restricted=record.restricted,
            size=record.body["size"],
            since=record.body["made_at"],
        )

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when what people said has changed, in this process."""
        self._approvals.watch(callback)

    def advance_promotion(
        self, tx: LedgerWriter, ctx: CallContext, record: LedgerRecord, promotion_request: PromotionRequest
    ) -> PromotionResult:
        """Look at the evidence, ask people where the gate asks for them, and move the version when all is there."""
        stage_holder = self.read_aliases(tx, record.ref).get(promotion_request.stage, "")
        if record.body["stage"] == promotion_request.stage and (
            stage_holder == record.key.version or promotion_request.stage not in ALIASED_STAGES
        ):
            return self.report_already_there(tx, promotion_request)
        rules = self.read_gate_rules(tx, record.key.project, promotion_request.stage)
        rule_results = judge_rules(rules, self.collect_case(tx, ctx, record, rules, promotion_request.stage))
        holder_ref = record.ref.at(stage_holder) if stage_holder else None
        result = PromotionResult(
            record.ref, promotion_request.stage, STATE_WAITING, evidence=rule_results, before=holder_ref
        )
        failures = [f"{row.rule}: {row.found}" for row in rule_results if not row.passed]
        failures += ["it is restricted: it may be kept and nothing else"] if record.restricted else []
        required_approvers = count_required_approvers(rules)
        hasty_accounts = self.list_hasty_persons(ctx, record.ref, promotion_request) if required_approvers[0] else ()
        if {promotion_request.actor, promotion_request.person} & set(hasty_accounts):
            failures.append("nobody ratified your last emergency there; without --emergency people decide first")
        promotion_request = replace(promotion_request, digest="", evidence=rule_results, needs=required_approvers)
        if failures or not required_approvers[0]:
            return (
                self.refuse_promotion(tx, promotion_request, result, failures)
                if failures
                else self.move_version(tx, ctx, record, promotion_request, result)
            )
        barred = (promotion_request.actor, *self._approvals.persons(ctx, record.author), *hasty_accounts)
        promotion_request = replace(
            promotion_request, digest=hash_request(promotion_request, record, rules, stage_holder), barred=barred
        )
        return self.consult_approvers(tx, ctx, record, promotion_request, result)

    def list_hasty_persons(self, ctx: CallContext, name: Ref, promotion_request: PromotionRequest) -> tuple[str, ...]:
        """Who has no part in this emergency: those whose last one for the stage nobody ratified."""
        accounts = (
            sorted(find_hasty_accounts(self._ledger, ctx.tenant, name, promotion_request.stage))
            if promotion_request.emergency
            else ()
        )
        return tuple(person for account in accounts for person in self._approvals.persons(ctx, account))

    def report_already_there(self, tx: LedgerWriter, promotion_request: PromotionRequest) -> PromotionResult:
        """It is where it shall be; a wish that still waits for that is over."""
        stored_request = find_request(tx, promotion_request.ref, promotion_request.stage)
        if stored_request is not None and stored_request.state == STATE_WAITING:
            self.close_request(tx, stored_request, STATE_OVER, f"it is in {promotion_request.stage} already")
        return PromotionResult(
            promotion_request.ref,
            promotion_request.stage,
            STATE_DONE,
            f"it is in {promotion_request.stage} already",
            before=promotion_request.ref,
        )

    def consult_approvers(
        self,
        tx: LedgerWriter,
        ctx: CallContext,
        record: LedgerRecord,
        promotion_request: PromotionRequest,
        result: PromotionResult,
    ) -> PromotionResult:
        """Ask the people, or hear what they have said to exactly this."""
        result = replace(
            result,
            approval=make_approval_ref(PROMOTE_ACTION, promotion_request.digest),
            digest=promotion_request.digest,
        )
        approval_standing = evaluate_request(tx, ctx, promotion_request)
        if approval_standing.state == "refused":
            return self.refuse_promotion(tx, promotion_request, result, [approval_standing.why])
        self._approvals.propose(ctx, tx, promotion_request.question(ctx.now()))
        approver_count, officer_count = promotion_request.needs
        try:
            self._approvals.demand(
                ctx,
                PROMOTE_ACTION,
                promotion_request.digest,
                min_approvers=approver_count,
                min_officers=officer_count,
                authors=promotion_request.barred,
                allow_emergency=promotion_request.emergency,
            )
        except Denied as error:
            return self.report_waiting(tx, promotion_request, result, error.message)
        return self.move_version(tx, ctx, record, promotion_request, result)

    def report_waiting(
        self, tx: LedgerWriter, promotion_request: PromotionRequest, result: PromotionResult, reason: str
    ) -> PromotionResult:
        if self.save_request(tx, promotion_request):
            self.emit_promotion(tx, promotion_request, STATE_WAITING, promotion_request.reason)
        return replace(
            result, why=reason, next=f"falaj approvals give {result.approval} --digest {promotion_request.digest}"
        )

    def refuse_promotion(
        self, tx: LedgerWriter, promotion_request: PromotionRequest, result: PromotionResult, reasons: list[str]
    ) -> PromotionResult:
        closed_result = self.close_request(tx, promotion_request, STATE_REFUSED, "; ".join(reasons))
        return replace(closed_result, evidence=result.evidence, approval=result.approval, before=result.before)

    def move_version(
        self,
        tx: LedgerWriter,
        ctx: CallContext,
        record: LedgerRecord,
        promotion_request: PromotionRequest,
        result: PromotionResult,
    ) -> PromotionResult:
        """The evidence is good and the people have spoken."""
        approval, approvers = find_given_approval(tx, promotion_request)
        approval_standing = evaluate_request(tx, ctx, promotion_request) if promotion_request.digest else None
        if approval_standing is None or approval_standing.granted:
            promotion_request, result = (
                replace(promotion_request, state=STATE_DONE, cleared=True),
                replace(result, why=f"it is in {promotion_request.stage}"),
            )
        else:
            promotion_request = replace(promotion_request, state=STATE_EMERGENCY, until=approval_standing.until)
            next_command = f"falaj approvals give {result.approval} --digest {promotion_request.digest}"
            result = replace(result, why=approval_standing.why, next=next_command, until=approval_standing.until)
        self.save_request(tx, promotion_request)
        move_kind = "emergency" if promotion_request.state == STATE_EMERGENCY else "promote"
        self.enter_stage(
            tx,
            record,
            promotion_request.stage,
            promotion_request.left,
            AliasMove(move_kind, promotion_request.reason, approval, approvers, promotion_request.actor),
        )
        self.emit_promotion(tx, promotion_request, STATE_DONE, promotion_request.reason, approval, approvers)
        return replace(result, state=STATE_DONE)

    def enter_stage(
        self, tx: LedgerWriter, record: LedgerRecord, stage: str, next_stage: str, alias_move: AliasMove
    ) -> None:
        """Bring a version into a stage (or let a plain alias mean it), and the one before out of it."""
        name, version = record.ref.bare, record.key.version
        for alias in ALIASED_STAGES:
            if alias != stage and stage in VERSION_STAGES and self.read_aliases(tx, name).get(alias) == version:
                self.move_alias(tx, name, alias, "", alias_move)
        if stage not in VERSION_STAGES or stage in ALIASED_STAGES:
            previous_version = self.move_alias(tx, name, stage, version, alias_move)
            if previous_version and stage in ALIASED_STAGES:
                self.leave_stage(tx, name.at(previous_version), stage, next_stage, alias_move)
        if stage in VERSION_STAGES:
            self._set_stage(tx, record.ref, stage)

    def leave_stage(
        self, tx: LedgerWriter, leaving_ref: Ref, stage: str, next_stage: str, alias_move: AliasMove
    ) -> None:
        record = tx.get(leaving_ref)
        if record is None or record.body["state"] != "live" or record.body["stage"] != stage:
            return
        self._set_stage(tx, leaving_ref, next_stage)
        if next_stage in ALIASED_STAGES:
            displaced_version = self.move_alias(tx, leaving_ref, next_stage, leaving_ref.version, alias_move)
            if displaced_version and displaced_version != leaving_ref.version:
                self.leave_stage(
                    tx, leaving_ref.at(displaced_version), next_stage, STAGE_AFTER_LEAVING[next_stage], alias_move
                )

    def _set_stage(self, tx: LedgerWriter, version: Ref, stage: str) -> None:
        record = tx.need(version)
        if record.body["stage"] != stage:
            self.update_version(tx, record, stage=stage)

    def find_rollback_version(
        self, tx: LedgerReader, name: Ref, alias: str, current_version: str, target_version: str
    ) -> str:
        """The version to go back to: the one before, or the one that is named."""
        trail = [version for version in self.read_trail(tx, name, alias) if version != current_version]
        alias_text = f"{alias} of {name.bare}"
        if name.pinned or (target_version and not re.fullmatch(_VERSION_PATTERN, target_version)):
            raise Invalid(
                f"{target_version[:40] or str(name)!r} is no way back",
                f"falaj catalog rollback {name.bare} --to v3",
                name,
            )
        if target_version and target_version == current_version:
            raise Conflict(f"{alias_text} is {target_version} already", "name another one with --to", name)
        if target_version and target_version not in trail and alias not in ALIASED_STAGES:
            raise Conflict(f"{alias_text} was never {target_version}", "falaj catalog history shows what it was", name)
        if not target_version and not trail:
            raise Conflict(f"{alias_text} has nothing before it", "falaj catalog history shows what it was", name)
        return target_version or trail[-1]

    def require_fit_for_rollback(self, tx: LedgerReader, record: LedgerRecord, alias: str) -> None:
        """Denied or NotFound unless it may come back as it is, without asking anybody."""
        if record.body["state"] != "live":
            raise deleted_version_error(record)
        if record.restricted:
            raise Denied(f"{record.ref} is restricted", "the data protection officer lifts a restriction", record.ref)
        if alias not in ALIASED_STAGES:
            return
        hint = f"people decide: falaj catalog promote {record.ref} {alias}"
        if record.label.holds:
            holds_text = ", ".join(sorted(record.label.holds))
            raise Denied(f"{record.ref} is under a hold: {holds_text}", hint, record.ref)
        stored_request = find_request(tx, record.ref, alias)
        if stored_request is None or not stored_request.cleared:
            raise Denied(f"{record.ref} was not fully approved for {alias} before", hint, record.ref)

    def ratify_emergency(self, tx: LedgerWriter, promotion_request: PromotionRequest) -> PromotionResult:
        self.save_request(tx, replace(promotion_request, state=STATE_DONE, cleared=True))
        approval, approvers = find_given_approval(tx, promotion_request)
        if self.read_aliases(tx, promotion_request.ref).get(promotion_request.stage) == promotion_request.ref.version:
            alias_move = AliasMove("ratify", promotion_request.reason, approval, approvers, promotion_request.actor)
            self.move_alias(
                tx, promotion_request.ref, promotion_request.stage, promotion_request.ref.version, alias_move
            )
        self.emit_promotion(tx, promotion_request, "ratified", promotion_request.reason, approval, approvers)
        return PromotionResult(promotion_request.ref, promotion_request.stage, STATE_DONE, "others ratified it")

    def lapse_emergency(self, tx: LedgerWriter, promotion_request: PromotionRequest, reason: str) -> PromotionResult:
        """Undo an emergency: back to the nearest version that was approved, or to none."""
        result = self.close_request(tx, promotion_request, STATE_LAPSED, reason)
        name = promotion_request.ref.bare
        if self.read_aliases(tx, name).get(promotion_request.stage) != promotion_request.ref.version:
            return result
        trail = reversed(self.read_trail(tx, name, promotion_request.stage))
        fallback_record = next(
            filter(None, (self.find_fitting(tx, name.at(version), promotion_request.stage) for version in trail)), None
        )
        if fallback_record is not None:
            alias_move = AliasMove(
                "lapse",
                result.why,
                *find_given_approval(tx, find_request(tx, fallback_record.ref, promotion_request.stage)),
            )
            self.enter_stage(
                tx, fallback_record, promotion_request.stage, STAGE_AFTER_LEAVING[promotion_request.stage], alias_move
            )
            return replace(result, before=fallback_record.ref)
        self.move_alias(tx, name, promotion_request.stage, "", AliasMove("lapse", result.why))
        self._set_stage(tx, promotion_request.ref, STAGE_AFTER_LEAVING[promotion_request.stage])
        return result

    def find_fitting(self, tx: LedgerReader, version: Ref, stage: str) -> LedgerRecord | None:
        record = tx.need(version)
        with suppress(Denied, NotFound):
            self.require_fit_for_rollback(tx, record, stage)
            return record
        return None

    def close_request(
        self, tx: LedgerWriter, promotion_request: PromotionRequest, state: str, reason: str
    ) -> PromotionResult:
        # What people refused or did not ratify does not come back by the consent of an earlier day.
        is_cleared = promotion_request.cleared and not (
            promotion_request.digest and state in (STATE_REFUSED, STATE_LAPSED)
        )
        self.save_request(tx, replace(promotion_request, state=state, cleared=is_cleared))
        self.emit_promotion(tx, promotion_request, state, reason[:MAX_MESSAGE])
        rules_command = f"falaj catalog rules {promotion_request.ref.project}"
        return PromotionResult(
            promotion_request.ref,
            promotion_request.stage,
            STATE_REFUSED,
            reason,
            rules_command,
            digest=promotion_request.digest,
            ok=False,
        )

    def save_request(self, tx: LedgerWriter, promotion_request: PromotionRequest) -> bool:
        """Write the wish down; False when exactly this is written already."""
        earlier_record, body = tx.get(promotion_request.record), to_plain(promotion_request)
        if earlier_record is not None and read_request(earlier_record) == promotion_request:
            return False
        version = tx.need(promotion_request.ref)
        terms = {"state": promotion_request.state, "of": str(promotion_request.ref)}
        tx.put(
            promotion_request.record,
            body,
            rev=earlier_record.rev if earlier_record else None,
            label=make_companion_label(version.label),
            zone=version.zone,
            terms=terms,
        )
        return True

    def emit_promotion(
        self,
        tx: LedgerWriter,
        promotion_request: PromotionRequest,
        state: str,
        reason: str,
        approval: str = "",
        approvers: tuple[str, ...] = (),
    ) -> None:
        evidence_text = "; ".join(f"{row.rule}: {row.found}" for row in promotion_request.evidence)
        tx.emit(
            PROMOTE_ACTION,
            promotion_request.ref,
            (Ref.parse(approval),) if approval else (),
            stage=promotion_request.stage,
            state=state,
            digest=promotion_request.digest,
            evidence=evidence_text[:MAX_MESSAGE],
            people=",".join(approvers),
            reason=reason,
            emergency=int(promotion_request.emergency),
            asker=promotion_request.actor,
        )
