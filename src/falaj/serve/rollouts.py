"""Roll-outs under the judge's eyes: canary, shadow and A/B; their end by verdict or by hand; labels, logs, forgetting.

The loop calls `tend` for every endpoint with a roll-out. Figures are read outside any transaction; what follows from
them is written over the revision they were read for, so that whoever rolled back meanwhile is not overruled.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Annotated

from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.govern.destruction import DestructionChecks, ErasureOrder
from falaj.serve import books, fitness, trials
from falaj.serve.arms import BASE
from falaj.serve.blocks import Whose
from falaj.serve.bodies import inputs_of, outputs_of, plain
from falaj.serve.counts import Sum
from falaj.serve.edges import Edges
from falaj.serve.journal import Logged
from falaj.serve.judge import Reading, Tally, Verdict, judge
from falaj.serve.labels import Labelled, Labels
from falaj.serve.records import (
    READY,
    RUNNING,
    DeployPlan,
    EndpointView,
    Judged,
    LogLine,
    LogPage,
    Rollout,
    VerdictView,
)
from falaj.store.ledger import Writer
from falaj.store.records import Record

EVERY_S = 1.0
MOST_LABELS, MOST_LINES, MOST_KEYS = 100_000, 10_000, 10_000


class Rollouts(Edges):
    """What the desk `serve` knows of trials. Its other half, Endpoints, gives it these."""

    _stir: Callable[[bool], None]
    destruction: DestructionChecks

    @verb(writes=("endpoint",))
    def promote(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        reason: Annotated[str, "why, for the record"] = "",
    ) -> EndpointView:
        """Give all traffic to the revision that is being tried, whatever the judge has found so far.

        Example:
            falaj serve promote endpoint:fraud/score --reason "three days without a complaint"
        """
        with self._ledger.write(ctx) as tx:
            old = books.need_endpoint(tx, endpoint)
            _, revision = trials.arm_in(_trial(old))
            kept = books.revision_at(old.body, revision) or {}
            fitness.check(tx, ctx, Ref.parse(kept["model"]), kept["stage"], kept["root"])
            why = reason[:500] or f"promoted by {ctx.actor.behalf or ctx.actor.id}"
            known = books.replicas_of(tx, old)
            ready = any(one.body["state"] == READY and one.body["revision"] == revision for one in known)
            record = self._move(tx, old, trials.Move("promote", why), ctx.now(), ready=ready)
            return books.view(record, known, books.doors_in(tx))

    @verb(reads=("endpoint",))
    def verdict(self, ctx: Context, endpoint: Annotated[Ref, "which endpoint"]) -> VerdictView:
        """Say how the roll-out of an endpoint stands: every figure with its interval and always-valid p-values.

        Look as often as you like: that makes no false alarm more likely.

        Example:
            falaj serve verdict endpoint:fraud/score
        """
        with self._ledger.read(ctx) as tx:
            record = books.need_endpoint(tx, endpoint)
        trial = books.rollout_in(record.body)
        if trial is None:
            raise Conflict(f"{endpoint.bare} has no roll-out", "falaj serve deploy --canary 10% begins one", endpoint)
        found = self._judged(record, trial) if trial.step_at and trial.state == RUNNING else None
        return _view(record, trial, found)

    @verb(reads=("endpoint",), group="write")
    def label(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        values: Annotated[dict[str, float], "the truth by request (the header falaj-request of its answer), or by key"],
        by: Annotated[str, "request, or key: all requests of this key so far"] = "request",
    ) -> int:
        """Say what turned out to be true of requests, however late; the judge joins it with what was answered.

        Example:
            falaj serve label endpoint:fraud/score --values 018f3a=1 --values 018f3b=0
            falaj serve label endpoint:fraud/score --values @truth.json --by key
        """
        if by not in ("request", "key") or not 0 < len(values) <= MOST_LABELS or not all(values):
            raise Invalid(f"{len(values)} labels by {by[:20]!r}", f"1 to {MOST_LABELS}, by request or by key")
        now = ctx.now()
        rows = [
            Labelled(now, *((name, "") if by == "request" else ("", name)), value) for name, value in values.items()
        ]
        with self._ledger.write(ctx) as tx:
            record = books.need_endpoint(tx, endpoint)
            tx.emit("serve.label", record.ref, count=len(rows), by=by)
            self.labels.append(_whose(record), rows)
        return len(rows)

    @verb(reads=("endpoint",), group="read")
    def logs(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        since_s: Annotated[float, "of the last so many seconds"] = 3600.0,
        key: Annotated[str, "only of this caller's key"] = "",
        revision: Annotated[int, "only of this revision"] = 0,
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> LogPage:
        """Show requests that were kept, with their answers, newest first. What may see them is the endpoint's label.

        Example:
            falaj serve logs endpoint:fraud/score --since-s 600
        """
        if not 0 < limit <= MOST_LINES:
            raise Invalid(f"a page of {limit} lines", f"ask for 1 to {MOST_LINES} and follow `next`")
        with self._ledger.read(ctx) as tx:
            record = books.need_endpoint(tx, endpoint)
        ctx.permit("read", str(record.ref.bare), record.body["zone"])
        until, done = _cursor(after)
        wanted = (
            row
            for row in self.journal.read(ctx.tenant, record.ref.bare, ctx.now() - since_s, newest=True)
            if (row.at, row.id) < (until, done) and key in ("", row.key) and revision in (0, row.revision)
        )
        found = sorted(wanted, key=lambda row: (row.at, row.id), reverse=True)[: limit + 1]
        following = f"{found[limit - 1].at!r}~{found[limit - 1].id}" if len(found) > limit else ""
        return LogPage(tuple(map(_line, found[:limit])), following)

    @verb(reads=("endpoint", "request"), group="erase", outside=True)
    def forget(
        self,
        ctx: Context,
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
        if not 0 < len(keys) <= MOST_KEYS or not all(keys):
            raise Invalid(f"{len(keys)} keys", f"1 to {MOST_KEYS}, none of them empty")
        with self._ledger.read(ctx) as tx:
            record = books.need_endpoint(tx, endpoint)
        self.destruction.check_holds(ctx, record)
        self.destruction.check_erasure(ctx, ErasureOrder("serve.forget", endpoint.bare, keys, request))
        whose = _whose(record)

        def others(ids: Sequence[str]) -> int:
            known = [*ids, *keys]
            return self.labels.forget(whose, keys, known) + self.sketches.forget(whose, known)

        # The journal goes last: it knows the ids by which the others are found, should this be killed on the way.
        gone = self.journal.forget(whose, keys, others)
        with self._ledger.write(ctx) as tx:
            tx.emit("serve.forget", record.ref, keys=len(keys), rows=gone, reason=reason[:500])
        return gone

    # For the loop, the gateway and the other half of the desk.

    @cached_property
    def labels(self) -> Labels:
        """What turned out to be true."""
        return Labels(self.series, self._ledger)

    def tend(self, ctx: Context, record: Record, ready: Mapping[int, int]) -> bool:
        """One look at an endpoint's roll-out; True when something changed. `ready`: replicas by revision.

        Called by the loop, outside any transaction, as the house in the endpoint's tenant.
        """
        trial, now = books.trial_in(record.body), ctx.now()
        if trial is None:
            return False
        move = trials.waiting(record.body, trial, ready, now)
        if move is None and trial.step_at:
            move = self._next(record, trial, now)
        if move is None:
            return False
        if move.name == "step" and not trial.bound_us:
            move = move._replace(bound_us=self._slow_us(record, trial.begun_at - trials.LOOK_BACK_S))
        with self._ledger.write(ctx) as tx:
            old = tx.need(record.ref.bare)
            if old.rev != record.rev:
                return False  # somebody was quicker: the next turn looks again
            self._move(tx, old, move, now)
        return True

    def tidy(self, ctx: Context, record: Record, now: float) -> None:
        """Sum up old counts, and remove what was kept long enough; for the loop, about once a minute.

        While a legal hold or an open breach stands on the endpoint, no request and no label expires.
        """
        whose, trial = _whose(record), books.rollout_in(record.body)
        self.counts.tidy(whose, now, (trial.begun_at, trial.step_at) if trial else ())
        self.sketches.tidy(whose, now, now - trials.DAY_S / 4)  # whoever watches does so sooner
        if self.destruction.is_held(ctx, record):
            return
        days = books.rules_in(record.body).keep_days
        self.journal.expire(whose.tenant, whose.ref, days, now)
        self.labels.expire(whose.tenant, whose.ref, now - days * trials.DAY_S)

    def drop(self, tenant: str, endpoint: Ref) -> None:
        """Remove all that gateways and people said of an endpoint; for the loop, when the endpoint is removed."""
        for one in (self.counts, self.journal, self.labels, self.sketches):
            one.delete(tenant, endpoint)

    def _headed(
        self, ctx: Context, tx: Writer, endpoint: Ref, body: books.Body, number: int, plan: DeployPlan
    ) -> books.Body:
        """Endpoints asks: does the new revision get all traffic, or a share of it to be watched?"""
        if plan.trial is None:
            whole: books.Body = super()._headed(ctx, tx, endpoint, body, number, plan)  # type: ignore[misc]
            return whole
        return trials.begun(body, plan.trial, number, ctx.now())

    def _trial_ended(self, ctx: Context, tx: Writer, old: Record, to: int, reason: str) -> books.Body | None:
        """Endpoints asks before it goes back: the body without the roll-out; None when there is none."""
        del tx
        trial = books.trial_in(old.body)
        if trial is None:
            return None
        if to not in (0, trial.arms[BASE]):
            hint = f"roll back without naming one: revision {trial.arms[BASE]} has all traffic then"
            raise Conflict(f"a roll-out of {old.ref.bare} is under way", hint, old.ref)
        why = reason[:500] or f"rolled back by {ctx.actor.behalf or ctx.actor.id}"
        return trials.moved(old.body, trials.Move("rollback", why), ctx.now())

    def _move(self, tx: Writer, old: Record, move: trials.Move, now: float, *, ready: bool = True) -> Record:
        """Write a move, with what it is founded on."""
        trial = _trial(old)
        arm, revision = trials.arm_in(trial)
        body = trials.moved(old.body, move, now, ready=ready)
        record = tx.put(old.key, body, rev=old.rev, terms=books.endpoint_terms(old.ref.bare, body))
        kept = books.revision_at(body, revision)
        made = (Ref.parse(kept["model"]),) if kept else ()
        shares = json.dumps(body["rollout"]["shares"], sort_keys=True)
        tx.emit(
            f"serve.{move.name}", record.ref, made, trial=trial.kind, arm=arm, revision=revision,
            base=trial.arms[BASE], shares=shares, step=body["rollout"]["step"], reason=move.why[:2000],
        )  # fmt: skip
        tx.after(self._stir)
        return record

    def _next(self, record: Record, trial: Rollout, now: float) -> trials.Move | None:
        """What the figures say is to be done, where the judge may act; asked at most once a second."""
        seen: dict[str, tuple[float, float]] = self.__dict__.setdefault("_judged_at", {})
        last, took = seen.get(record.body["id"], (0.0, 0.0))
        # What is long to read is read less often: judging takes a tenth of the loop's time at most.
        if not trial.judge or time.monotonic() - last < max(EVERY_S, 10 * took):
            return None
        begun = time.monotonic()
        if not trial.bound_us:
            bound_us = self._slow_us(record, trial.step_at)
            move = trials.Move("learn", bound_us=bound_us) if bound_us else None
        else:
            move = trials.decided(trial, self._judged(record, trial), now)
        seen[record.body["id"]] = (begun, time.monotonic() - begun)
        return move

    def _slow_us(self, record: Record, since: float) -> float:
        """What only a twentieth of the base's answers exceed; 0 while too few are known."""
        base = self.counts.since(record.key.tenant, record.ref.bare, since).get(BASE)
        known = base is not None and sum(base.latency_us.values()) >= trials.LEARN
        return base.quantile_us(trials.SLOW_SHARE) if base is not None and known else 0.0

    def _judged(self, record: Record, trial: Rollout) -> Verdict:
        """The verdict over what came since the step began."""
        plan, (arm, _) = trials.plan_in(trial), trials.arm_in(trial)
        tenant, ref = record.key.tenant, record.ref.bare
        since = trial.step_at + plan.settle_s
        sums = self.counts.since(tenant, ref, since)
        found = {name: _tallies(sums.get(name), trial) for name in (BASE, arm)}
        if plan.quality is not None:
            for name, tally in self.labels.quality(tenant, ref, plan.quality, since).items():
                found.setdefault(name, {})[trials.QUALITY] = tally
        return judge(arm, plan.metrics, found[BASE], found[arm], alpha=plan.alpha, looks=len(plan.steps))


def _tallies(found: Sum | None, trial: Rollout) -> dict[str, Tally]:
    """What was counted of an arm, as the judge takes it."""
    if found is None or found.revision not in trial.arms.values():
        return {}
    answers = sum(found.latency_us.values())
    slow = Tally(answers, found.above(trial.bound_us)) if trial.bound_us else Tally(0, 0)
    return {trials.ERRORS: Tally(found.requests, min(found.errors, found.requests)), trials.SLOW: slow}


def _view(record: Record, trial: Rollout, found: Verdict | None) -> VerdictView:
    plan = trials.plan_in(trial)
    figures = zip(found.readings if found else (), plan.metrics, strict=False)
    readings = tuple(_judged(one, metric.margin) for one, metric in figures)
    return VerdictView(
        record.ref.bare, trial.kind, trial.state, trial.arms, trial.shares, trial.step, plan.steps, readings,
        round(trial.bound_us / 1000, 3), trial.why or ("" if trial.step_at else "waiting for the new revision"),
    )  # fmt: skip


def _judged(one: Reading, margin: float) -> Judged:
    """A reading as people see it, with as many digits as they read."""
    rates = (round(value, 6) for value in (one.base.rate, one.tally.rate, one.low, one.high))
    base_rate, rate, low, high = rates
    p_worse, p_fine = (float(f"{value:.3g}") for value in (one.p_worse, one.p_fine))
    figures = (one.base.n, base_rate, one.tally.n, rate, low, high, p_worse, p_fine)
    return Judged(one.metric, margin, *figures, one.verdict)


def _line(row: Logged) -> LogLine:
    return LogLine(
        row.at, row.id, row.key, row.arm, row.revision, row.status, row.latency_us, row.caller,
        plain(inputs_of(row)), plain(outputs_of(row)),
    )  # fmt: skip


def _cursor(text: str) -> tuple[float, str]:
    if not text:
        return float("inf"), ""
    at, _, id_ = text.partition("~")
    try:
        return float(at), id_
    except ValueError:
        raise Invalid(f"{text[:80]!r} is no cursor of logs", "use the `next` of the page before") from None


def _whose(record: Record) -> Whose:
    return Whose(record.key.tenant, record.ref.bare, record.body["zone"])


def _trial(record: Record) -> Rollout:
    found = books.trial_in(record.body)
    if found is None:
        raise Conflict(f"no roll-out of {record.ref.bare} is under way", "falaj serve show says what is", record.ref)
    return found
