"""Roll-outs under the judge's eyes: canary, shadow and A/B; their end by verdict or by hand; labels, logs, forgetting.

The loop calls `tend` for every endpoint with a roll-out. Figures are read outside any transaction; what follows from
them is written over the revision they were read for, so that whoever rolled back meanwhile is not overruled.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated

from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.govern.destruction_checks import DestructionChecks, ErasureOrder
from falaj.serve import endpoint_repository, rollout_state, serving_checks
from falaj.serve.edge_operations import EdgeOperations
from falaj.serve.journal_tensors import read_inputs, read_outputs, to_nested_lists
from falaj.serve.late_labels import LabelRow, LateLabels
from falaj.serve.records import (
    READY,
    RUNNING,
    DeployPlan,
    EndpointView,
    MetricJudgement,
    RequestLogLine,
    RequestLogPage,
    Rollout,
    VerdictView,
)
from falaj.serve.request_counts import ArmSum
from falaj.serve.request_journal import JournalRow
from falaj.serve.sealed_blocks import RowOwner
from falaj.serve.sequential_test import ArmVerdict, MetricReading, OutcomeTally, judge_arm
from falaj.serve.traffic_split import BASE_ARM
from falaj.store.ledger import LedgerWriter
from falaj.store.records import LedgerRecord

JUDGE_INTERVAL_S = 1.0
MAX_LABELS, MAX_LOG_LINES, MAX_FORGET_KEYS = 100_000, 10_000, 10_000


class RolloutOperations(EdgeOperations):
    """What the desk `serve` knows of trials. Its other half, Endpoints, gives it these."""

    _notify_watchers: Callable[[bool], None]
    destruction: DestructionChecks

    @operation(writes=("endpoint",))
    def promote(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> EndpointView:
        """Give all traffic to the revision that is being tried, whatever the judge has found so far.

        Example:
            falaj serve promote endpoint:fraud/score --reason "three days without a complaint"
        """
        with self._ledger.write(ctx) as writer:
            old_record = endpoint_repository.require_endpoint(writer, endpoint)
            _, revision = rollout_state.tried_arm(_require_rollout(old_record))
            revision_fields = endpoint_repository.find_revision(old_record.body, revision) or {}
            serving_checks.check_servable(
                writer, ctx, Ref.parse(revision_fields["model"]), revision_fields["stage"], revision_fields["root"]
            )
            reason_text = reason[:500] or f"promoted by {ctx.actor.behalf or ctx.actor.id}"
            replica_records = endpoint_repository.list_replicas(writer, old_record)
            is_ready = any(
                replica.body["state"] == READY and replica.body["revision"] == revision for replica in replica_records
            )
            record = self._apply_move(
                writer, old_record, rollout_state.RolloutMove("promote", reason_text), ctx.now(), is_ready=is_ready
            )
            return endpoint_repository.to_endpoint_view(
                record, replica_records, endpoint_repository.read_gateway_addresses(writer)
            )

    @operation(reads=("endpoint",))
    def verdict(self, ctx: CallContext, endpoint: Annotated[Ref, "which endpoint"]) -> VerdictView:
        """Say how the roll-out of an endpoint stands: every figure with its interval and always-valid p-values.

        Look as often as you like: that makes no false alarm more likely.

        Example:
            falaj serve verdict endpoint:fraud/score
        """
        with self._ledger.read(ctx) as reader:
            record = endpoint_repository.require_endpoint(reader, endpoint)
        trial = endpoint_repository.read_rollout(record.body)
        if trial is None:
            raise Conflict(f"{endpoint.bare} has no roll-out", "falaj serve deploy --canary 10% begins one", endpoint)
        arm_verdict = self._judge_rollout(record, trial) if trial.step_at and trial.state == RUNNING else None
        return _to_verdict_view(record, trial, arm_verdict)

    @operation(reads=("endpoint",), group="write")
    def label(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        values: Annotated[dict[str, float], "the truth by request (the header falaj-request of its answer), or by key"],
        by: Annotated[str, "request, or key: all requests of this key so far"] = "request",
    ) -> int:
        """Say what turned out to be true of requests, however late; the judge joins it with what was answered.

        Example:
            falaj serve label endpoint:fraud/score --values 018f3a=1 --values 018f3b=0
            falaj serve label endpoint:fraud/score --values @truth.json --by key
        """
        if by not in ("request", "key") or not 0 < len(values) <= MAX_LABELS or not all(values):
            raise Invalid(f"{len(values)} labels by {by[:20]!r}", f"1 to {MAX_LABELS}, by request or by key")
        now = ctx.now()
        rows = [
            LabelRow(now, *((name, "") if by == "request" else ("", name)), value) for name, value in values.items()
        ]
        with self._ledger.write(ctx) as writer:
            record = endpoint_repository.require_endpoint(writer, endpoint)
            writer.emit("serve.label", record.ref, count=len(rows), by=by)
            self.labels.append(_row_owner(record), rows)
        return len(rows)

    @operation(reads=("endpoint",), group="read")
    def logs(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        since_s: Annotated[float, "of the last so many seconds"] = 3600.0,
        key: Annotated[str, "only of this caller's key"] = "",
        revision: Annotated[int, "only of this revision"] = 0,
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> RequestLogPage:
        """Show requests that were kept, with their answers, newest first. What may see them is the endpoint's label.

        Example:
            falaj serve logs endpoint:fraud/score --since-s 600
        """
        if not 0 < limit <= MAX_LOG_LINES:
            raise Invalid(f"a page of {limit} lines", f"ask for 1 to {MAX_LOG_LINES} and follow `next`")
        with self._ledger.read(ctx) as reader:
            record = endpoint_repository.require_endpoint(reader, endpoint)
        ctx.permit("read", str(record.ref.bare), record.body["zone"])
        before_time, before_id = _parse_cursor(after)
        matching_rows = (
            row
            for row in self.journal.read(ctx.tenant, record.ref.bare, ctx.now() - since_s, newest_first=True)
            if (row.at, row.id) < (before_time, before_id) and key in ("", row.key) and revision in (0, row.revision)
        )
        page_rows = sorted(matching_rows, key=lambda row: (row.at, row.id), reverse=True)[: limit + 1]
        following = f"{page_rows[limit - 1].at!r}~{page_rows[limit - 1].id}" if len(page_rows) > limit else ""
        return RequestLogPage(tuple(map(_to_log_line, page_rows[:limit])), following)

    @operation(reads=("endpoint", "request"), group="erase", has_outside_effects=True)
    def forget(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        keys: Annotated[tuple[str, ...], "whose requests, by the key they were sent with; or requests by their ids"],
        reason: Annotated[str, "why, for the record; never the person's name"] = "",
        request: Annotated[Ref | None, "the started erasure request that this belongs to"] = None,
    ) -> int:
        """Remove what the journal, the labels and the rows drawn for the watch hold of callers. Says how many went.

        Refused while a legal hold or an open breach stands on the endpoint, and without a started erasure request
        (`falaj privacy erase`) or the approval of a second person: the refusal says how to ask.

        Example:
            falaj serve forget endpoint:fraud/score --keys 784-1990-1234567-1 --reason "request 2027-114"
        """
        if not 0 < len(keys) <= MAX_FORGET_KEYS or not all(keys):
            raise Invalid(f"{len(keys)} keys", f"1 to {MAX_FORGET_KEYS}, none of them empty")
        with self._ledger.read(ctx) as transaction:
            record = endpoint_repository.require_endpoint(transaction, endpoint)
        self.destruction.check_holds(ctx, record)
        self.destruction.check_erasure(ctx, ErasureOrder("serve.forget", endpoint.bare, keys, request))
        owner = _row_owner(record)

        def forget_related(ids: Sequence[str]) -> int:
            identifiers = [*ids, *keys]
            return self.labels.forget(owner, keys, identifiers) + self.sketches.forget(owner, identifiers)

        # The journal goes last: it knows the ids by which the others are found, should this be killed on the way.
        removed_count = self.journal.forget(owner, keys, forget_related)
        with self._ledger.write(ctx) as transaction:
            transaction.emit("serve.forget", record.ref, keys=len(keys), rows=removed_count, reason=reason[:500])
        return removed_count

    # For the loop, the gateway and the other half of the desk.

    @cached_property
    def labels(self) -> LateLabels:
        """What turned out to be true."""
        return LateLabels(self.series, self._ledger)

    def tend(self, ctx: CallContext, record: LedgerRecord, ready_by_revision: Mapping[int, int]) -> bool:
        """One look at an endpoint's roll-out; True when something changed. `ready_by_revision`: replicas by revision.

        Called by the loop, outside any transaction, as the house in the endpoint's tenant.
        """
        trial, now = endpoint_repository.read_running_rollout(record.body), ctx.now()
        if trial is None:
            return False
        move = rollout_state.decide_without_judging(record.body, trial, ready_by_revision, now)
        if move is None and trial.step_at:
            move = self._judge_if_due(record, trial, now)
        if move is None:
            return False
        if move.name == "step" and not trial.bound_us:
            move = move._replace(bound_us=self._slow_bound_us(record, trial.begun_at - rollout_state.LEARN_WINDOW_S))
        with self._ledger.write(ctx) as writer:
            old_record = writer.need(record.ref.bare)
            if old_record.rev != record.rev:
                return False  # somebody was quicker: the next turn looks again
            self._apply_move(writer, old_record, move, now)
        return True

    def tidy(self, ctx: CallContext, record: LedgerRecord, now: float) -> None:
        """Sum up old counts, and remove what was kept long enough; for the loop, about once a minute.

        While a legal hold or an open breach stands on the endpoint, no request and no label expires.
        """
        owner, trial = _row_owner(record), endpoint_repository.read_rollout(record.body)
        self.counts.tidy(owner, now, (trial.begun_at, trial.step_at) if trial else ())
        self.sketches.tidy(owner, now, now - rollout_state.DAY_S / 4)  # whoever watches does so sooner
        if self.destruction.is_held(ctx, record):
            return
        days = endpoint_repository.read_rules(record.body).keep_days
        self.journal.expire(owner.tenant, owner.ref, days, now)
        self.labels.expire(owner.tenant, owner.ref, now - days * rollout_state.DAY_S)

    def drop(self, tenant: str, endpoint: Ref) -> None:
        """Remove all that gateways and people said of an endpoint; for the loop, when the endpoint is removed."""
        for store in (self.counts, self.journal, self.labels, self.sketches):
            store.delete(tenant, endpoint)

    def _set_target_revision(
        self,
        ctx: CallContext,
        writer: LedgerWriter,
        endpoint: Ref,
        body: endpoint_repository.RecordFields,
        number: int,
        plan: DeployPlan,
    ) -> endpoint_repository.RecordFields:
        """Endpoints asks: does the new revision get all traffic, or a share of it to be watched?"""
        if plan.trial is None:
            new_body: endpoint_repository.RecordFields = super()._set_target_revision(  # type: ignore[misc]
                ctx, writer, endpoint, body, number, plan
            )
            return new_body
        return rollout_state.start_rollout(body, plan.trial, number, ctx.now())

    def _end_rollout(
        self, ctx: CallContext, writer: LedgerWriter, old_record: LedgerRecord, to: int, reason: str
    ) -> endpoint_repository.RecordFields | None:
        """Endpoints asks before it goes back: the body without the roll-out; None when there is none."""
        del writer
        trial = endpoint_repository.read_running_rollout(old_record.body)
        if trial is None:
            return None
        if to not in (0, trial.arms[BASE_ARM]):
            hint = f"roll back without naming one: revision {trial.arms[BASE_ARM]} has all traffic then"
            raise Conflict(f"a roll-out of {old_record.ref.bare} is under way", hint, old_record.ref)
        reason_text = reason[:500] or f"rolled back by {ctx.actor.behalf or ctx.actor.id}"
        return rollout_state.apply_move(old_record.body, rollout_state.RolloutMove("rollback", reason_text), ctx.now())

    def _apply_move(
        self,
        writer: LedgerWriter,
        old_record: LedgerRecord,
        move: rollout_state.RolloutMove,
        now: float,
        *,
        is_ready: bool = True,
    ) -> LedgerRecord:
        """Write a move, with what it is founded on."""
        trial = _require_rollout(old_record)
        arm, revision = rollout_state.tried_arm(trial)
        body = rollout_state.apply_move(old_record.body, move, now, is_ready=is_ready)
        record = writer.put(
            old_record.key,
            body,
            rev=old_record.rev,
            terms=endpoint_repository.build_endpoint_terms(old_record.ref.bare, body),
        )
        revision_fields = endpoint_repository.find_revision(body, revision)
        model_inputs = (Ref.parse(revision_fields["model"]),) if revision_fields else ()
        shares = json.dumps(body["rollout"]["shares"], sort_keys=True)
        writer.emit(
            f"serve.{move.name}", record.ref, model_inputs, trial=trial.kind, arm=arm, revision=revision,
            base=trial.arms[BASE_ARM], shares=shares, step=body["rollout"]["step"], reason=move.why[:2000],
        )  # fmt: skip
        writer.after(self._notify_watchers)
        return record

    def _judge_if_due(self, record: LedgerRecord, trial: Rollout, now: float) -> rollout_state.RolloutMove | None:
        """What the figures say is to be done, where the judge may act; asked at most once a second."""
        judged_at: dict[str, tuple[float, float]] = self.__dict__.setdefault("_judged_at", {})
        last_judged_at, judging_s = judged_at.get(record.body["id"], (0.0, 0.0))
        # What is long to read is read less often: judging takes a tenth of the loop's time at most.
        if not trial.judge or time.monotonic() - last_judged_at < max(JUDGE_INTERVAL_S, 10 * judging_s):
            return None
        started_at = time.monotonic()
        if not trial.bound_us:
            bound_us = self._slow_bound_us(record, trial.step_at)
            move = rollout_state.RolloutMove("learn", bound_us=bound_us) if bound_us else None
        else:
            move = rollout_state.decide_from_verdict(trial, self._judge_rollout(record, trial), now)
        judged_at[record.body["id"]] = (started_at, time.monotonic() - started_at)
        return move

    def _slow_bound_us(self, record: LedgerRecord, from_time: float) -> float:
        """What only a twentieth of the base's answers exceed; 0 while too few are known."""
        base_sum = self.counts.since(record.key.tenant, record.ref.bare, from_time).get(BASE_ARM)
        has_enough = base_sum is not None and sum(base_sum.latency_us.values()) >= rollout_state.MIN_LEARNED_ANSWERS
        return base_sum.quantile_us(rollout_state.SLOW_QUANTILE) if base_sum is not None and has_enough else 0.0

    def _judge_rollout(self, record: LedgerRecord, trial: Rollout) -> ArmVerdict:
        """The verdict over what came since the step began."""
        plan, (arm, _) = rollout_state.read_criteria(trial), rollout_state.tried_arm(trial)
        tenant, ref = record.key.tenant, record.ref.bare
        judged_from = trial.step_at + plan.settle_s
        sum_by_arm = self.counts.since(tenant, ref, judged_from)
        tallies_by_arm = {name: _to_tallies(sum_by_arm.get(name), trial) for name in (BASE_ARM, arm)}
        if plan.quality is not None:
            for name, tally in self.labels.quality(tenant, ref, plan.quality, judged_from).items():
                tallies_by_arm.setdefault(name, {})[rollout_state.METRIC_QUALITY] = tally
        return judge_arm(
            arm, plan.metrics, tallies_by_arm[BASE_ARM], tallies_by_arm[arm], alpha=plan.alpha, looks=len(plan.steps)
        )


def _to_tallies(arm_sum: ArmSum | None, trial: Rollout) -> dict[str, OutcomeTally]:
    """What was counted of an arm, as the judge takes it."""
    if arm_sum is None or arm_sum.revision not in trial.arms.values():
        return {}
    answers = sum(arm_sum.latency_us.values())
    slow = OutcomeTally(answers, arm_sum.above(trial.bound_us)) if trial.bound_us else OutcomeTally(0, 0)
    return {
        rollout_state.METRIC_ERRORS: OutcomeTally(arm_sum.requests, min(arm_sum.errors, arm_sum.requests)),
        rollout_state.METRIC_SLOW: slow,
    }


def _to_verdict_view(record: LedgerRecord, trial: Rollout, arm_verdict: ArmVerdict | None) -> VerdictView:
    plan = rollout_state.read_criteria(trial)
    figures = zip(arm_verdict.readings if arm_verdict else (), plan.metrics, strict=False)
    readings = tuple(_to_judgement(metric_reading, metric.margin) for metric_reading, metric in figures)
    return VerdictView(
        record.ref.bare, trial.kind, trial.state, trial.arms, trial.shares, trial.step, plan.steps, readings,
        round(trial.bound_us / 1000, 3), trial.why or ("" if trial.step_at else "waiting for the new revision"),
    )  # fmt: skip


def _to_judgement(metric_reading: MetricReading, margin: float) -> MetricJudgement:
    """A reading as people see it, with as many digits as they read."""
    rates = (
        round(value, 6)
        for value in (metric_reading.base.rate, metric_reading.tally.rate, metric_reading.low, metric_reading.high)
    )
    base_rate, rate, low, high = rates
    p_worse, p_fine = (float(f"{value:.3g}") for value in (metric_reading.p_worse, metric_reading.p_fine))
    figures = (metric_reading.base.n, base_rate, metric_reading.tally.n, rate, low, high, p_worse, p_fine)
    return MetricJudgement(metric_reading.metric, margin, *figures, metric_reading.verdict)


def _to_log_line(row: JournalRow) -> RequestLogLine:
    return RequestLogLine(
        row.at, row.id, row.key, row.arm, row.revision, row.status, row.latency_us, row.caller,
        to_nested_lists(read_inputs(row)), to_nested_lists(read_outputs(row)),
    )  # fmt: skip


def _parse_cursor(text: str) -> tuple[float, str]:
    if not text:
        return float("inf"), ""
    row_time, _, id_ = text.partition("~")
    try:
        return float(row_time), id_
    except ValueError:
        raise Invalid(f"{text[:80]!r} is no cursor of logs", "use the `next` of the page before") from None


def _row_owner(record: LedgerRecord) -> RowOwner:
    return RowOwner(record.key.tenant, record.ref.bare, record.body["zone"])


def _require_rollout(record: LedgerRecord) -> Rollout:
    rollout = endpoint_repository.read_running_rollout(record.body)
    if rollout is None:
        raise Conflict(f"no roll-out of {record.ref.bare} is under way", "falaj serve show says what is", record.ref)
    return rollout
