"""The loop of sweeps: read what trials measured, stop those behind, ask for the next, keep the best.

Whatever changes is written in one transaction, over the revision that was decided on: a new trial with its job, a
verdict with the cancellation, the end with the model's new version. Killed anywhere, the next turn finds all or nothing
of it. Jobs and versions are asked for through the guard, in the name of whoever asked for the sweep and with what they
may do today; only cancelling needs nobody's rights.
"""

from contextlib import suppress
from dataclasses import replace

from falaj.core.client_command import Client
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Denied, FalajError, NotFound, QuotaExceeded, StaleRevision, Unavailable
from falaj.core.ref import Ref
from falaj.fleet.fleet_use import iter_records, list_tenants
from falaj.jobs import records as jobs
from falaj.jobs.attempts import make_owner_context
from falaj.jobs.submitter_standing import read_job_standing
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.reconcile_loop import LoopIteration
from falaj.store.records import LedgerRecord
from falaj.study import trial_records as life
from falaj.study.parameter_importance import compute_importance
from falaj.study.records import (
    ENDED_STATES,
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    TRIAL_FAILED,
    TRIAL_RUNNING,
    RecordFields,
)
from falaj.study.samplers import suggest_params
from falaj.study.search_space import format_value
from falaj.study.service import SweepService
from falaj.study.sweep_decisions import SweepTrial, choose_next_move, find_best, find_stops
from falaj.study.trial_curves import TrialCurves

SWEEP_INTERVAL_S = 0.5
SEARCH_INTERVAL_S = 5.0
"""A sweep that another replica took in is noticed within so long."""
MAX_STARTS = 16
"""So many trials are asked for in one transaction; a gang is asked for in one whatever its size."""


class SweepLoop:
    """Leads sweeps from asked to over, for every tenant."""

    name = "sweeps"
    every_s = SWEEP_INTERVAL_S

    def __init__(self, ledger: Ledger, service: SweepService) -> None:
        self._ledger = ledger
        self._service = service
        self._curves = TrialCurves(service.track)
        self._live_sweeps: set[tuple[str, Ref]] = set()
        self._idle_revisions: dict[tuple[str, Ref], int] = {}
        """The revision at which nothing was left to do in a sweep, until one of its trials changes."""
        self._has_news = True
        self._searched_at = 0.0
        self._iteration: LoopIteration
        service.watch(self._mark_news)

    def step(self, iteration: LoopIteration) -> bool:
        """One look at every sweep that is not over; one that is in trouble holds up no other."""
        self._iteration = iteration
        now = iteration.ctx.now()
        if self._has_news or abs(now - self._searched_at) >= SEARCH_INTERVAL_S:
            self._has_news, self._searched_at = False, now
            with self._ledger.read(iteration.ctx) as tx:
                sweeps = [
                    sweep
                    for tenant in list_tenants(self._ledger)
                    for sweep in iter_records(tx, "sweep", tenant, {"live": "1"})
                ]
            self._live_sweeps = {(sweep.key.tenant, sweep.ref.bare) for sweep in sweeps}
            self._idle_revisions = {
                key: revision for key, revision in self._idle_revisions.items() if key in self._live_sweeps
            }
        failure: FalajError | None = None
        for tenant, ref in sorted(self._live_sweeps):
            if not iteration.alive():
                return False
            try:
                self._advance_sweep(replace(iteration.ctx, tenant=tenant), ref)
            except FalajError as error:
                # Half of what was due may be done. Where somebody wrote first there is nothing wrong: look again.
                self._idle_revisions.pop((tenant, ref), None)
                failure = failure if isinstance(error, Conflict) else failure or error
        if failure is not None:
            raise failure
        return False

    def _mark_news(self) -> None:
        self._has_news = True

    def _advance_sweep(self, ctx: CallContext, ref: Ref) -> None:
        """Everything that is due in one sweep."""
        key = (ctx.tenant, ref)
        with self._ledger.read(ctx) as tx:
            sweep = tx.need(ref)
            live_trials = life.list_trials(tx, sweep, only_live=True)
            trial_jobs = [tx.get(Ref.parse(live_trial.body["job"])) for live_trial in live_trials]
            standing = read_job_standing(tx, sweep)
        if sweep.body["state"] in ENDED_STATES:
            self._live_sweeps.discard(key)
            return
        # What the house does by itself says for whom.
        ctx = replace(ctx, actor=replace(ctx.actor, behalf=sweep.body["who"]["id"]))
        changed = [
            self._read_trial(ctx, sweep, live_trial, job)
            for live_trial, job in zip(live_trials, trial_jobs, strict=True)
        ]
        if standing.removed and not sweep.body["cancel"]:
            self._stop_sweep(ctx, sweep, standing.reason, STOPPED)
        elif standing.reason and not standing.removed:  # it rests until that is lifted
            self._idle_revisions.pop(key, None)
        elif any(changed) or self._idle_revisions.get(key) != sweep.rev:
            with self._ledger.read(ctx) as tx:
                trials = life.list_trials(tx, sweep)
            has_acted = self._cancel_trials(ctx, sweep, trials) or self._start_or_finish(ctx, sweep, trials)
            if not has_acted and self._iteration.alive():
                self._idle_revisions[key] = sweep.rev

    def _read_trial(self, ctx: CallContext, sweep: LedgerRecord, trial: LedgerRecord, job: LedgerRecord | None) -> bool:
        """Read what a trial measured; True when it passed a rung or is over, and that was written down."""
        plan = life.read_plan(sweep)
        is_done = job is None or job.body["state"] in jobs.ENDED_STATES
        trial_fields = life.with_reading(
            trial.body, (self._curves.whole if is_done else self._curves.follow)(trial, plan)
        )
        if is_done:
            trial_fields = life.conclude_trial(trial_fields, job.body if job else None, plan.metric)
        elif trial_fields["rungs"] == trial.body["rungs"]:
            return False
        with self._ledger.write(ctx) as tx:
            saved = tx.put(trial.key, trial_fields, rev=trial.rev, terms=life.trial_terms(trial_fields))
            value = "" if trial_fields["value"] is None else format_value(float(trial_fields["value"]))
            tx.emit(
                "sweeps.read",
                saved.ref,
                state=trial_fields["state"],
                value=value,
                step=trial_fields["step"],
                note=trial_fields["note"],
            )
        return True

    def _cancel_trials(self, ctx: CallContext, sweep: LedgerRecord, trials: list[LedgerRecord]) -> bool:
        """End trials that are behind, or all when the sweep is stopped; True when there was one to end."""
        live_trials = {
            trial.body["number"]: trial
            for trial in trials
            if trial.body["state"] == TRIAL_RUNNING and not trial.body["verdict"]
        }
        cancels_all = sweep.body["cancel"]
        stops_by_number = find_stops(life.read_plan(sweep), [life.to_sweep_trial(trial.body) for trial in trials])
        reasons = dict.fromkeys(live_trials, sweep.body["note"]) if cancels_all else stops_by_number
        due_reasons = {number: reason for number, reason in reasons.items() if number in live_trials}
        for number, reason in due_reasons.items():
            if self._iteration.alive():
                self._cancel_trial(ctx, live_trials[number], reason, is_early=not cancels_all)
        return bool(due_reasons)

    def _cancel_trial(self, ctx: CallContext, trial: LedgerRecord, reason: str, *, is_early: bool) -> None:
        with self._ledger.write(ctx) as tx:
            job = tx.get(Ref.parse(trial.body["job"]))
            if job is None or job.body["state"] in jobs.ENDED_STATES:
                return  # it was quicker; the next turn sees how it ended
            trial_fields = {**trial.body, "verdict": reason, "early": is_early}
            saved = tx.put(trial.key, trial_fields, rev=trial.rev, terms=life.trial_terms(trial_fields))
            tx.emit("sweeps.cancel", saved.ref, reason=reason[:500], early=int(is_early))
            self._service.jobs.cancel(ctx, job.ref.bare, reason)

    def _start_or_finish(self, ctx: CallContext, sweep: LedgerRecord, trials: list[LedgerRecord]) -> bool:
        """Ask for the next trials, or come to the end; True when something was done."""
        plan, sweep_trials = life.read_plan(sweep), [life.to_sweep_trial(trial.body) for trial in trials]
        if sweep.body["state"] != RUNNING:
            is_waiting = any(trial.state == TRIAL_RUNNING for trial in sweep_trials)
            return not is_waiting and self._finish_sweep(ctx, sweep, trials)
        move = choose_next_move(plan, sweep_trials, sweep.body["most"])
        try:
            if move.give_up:
                return self._stop_sweep(ctx, sweep, move.give_up, FAILED)
            if move.finish:
                return self._finish_sweep(ctx, sweep, trials)
            count = move.start if plan.gang else min(move.start, MAX_STARTS)
            return bool(count) and self._start_trials(ctx, sweep, sweep_trials, count, gang=plan.gang)
        except (StaleRevision, Unavailable):
            raise
        except FalajError as error:
            # It will not be otherwise the next time: a name that is taken, an input that is gone, a package.
            return self._stop_sweep(ctx, sweep, str(error), FAILED)

    def _start_trials(
        self, ctx: CallContext, sweep: LedgerRecord, known: list[SweepTrial], count: int, *, gang: bool
    ) -> bool:
        """Start as many, or one where a cap on waiting jobs refuses more; the sweep is looked at again in any case."""
        for number in (count,) if gang or count == 1 else (count, 1):
            with suppress(QuotaExceeded):
                return self._start(ctx, sweep, known, number)
        return True

    def _start(self, ctx: CallContext, sweep: LedgerRecord, sweep_trials: list[SweepTrial], count: int) -> bool:
        plan, first_number = life.read_plan(sweep), sweep.body["asked"] + 1
        for number in range(first_number, first_number + count):
            sweep_trials = [*sweep_trials, SweepTrial(number, suggest_params(plan, number, sweep_trials))]
        if not self._iteration.alive():
            return False
        owner_ctx, client = self._open_as_owner(ctx, sweep)
        with self._ledger.write(owner_ctx) as tx:
            sweep_fields, refusal = sweep.body, ""
            for trial in sweep_trials[-count:]:
                try:
                    self._add_trial(tx, client, sweep, trial)
                except (Denied, NotFound) as error:
                    refusal = str(error)  # what the guard wrote down of it stays
                    sweep_fields = life.set_stopping(sweep_fields, refusal, end_state=STOPPED)
                    break
                sweep_fields = {**sweep_fields, "asked": trial.number}
            saved = tx.put(sweep.key, sweep_fields, rev=sweep.rev, terms=life.sweep_terms(sweep_fields))
            tx.emit(
                "sweeps.stop" if refusal else "sweeps.start",
                saved.ref,
                asked=sweep_fields["asked"],
                reason=refusal[:500],
            )
        return True

    def _add_trial(self, tx: LedgerWriter, client: Client, sweep: LedgerRecord, trial: SweepTrial) -> None:
        """One trial: its job, what its run says, and its record."""
        name, params = sweep.ref.bare, trial.params
        job: jobs.JobView = client.jobs.add(
            life.trial_name(name, trial.number, "job"),
            life.build_trial_spec(name, life.read_spec(sweep), params),
            inputs=life.read_refs(sweep, "inputs"),
            outputs=life.to_trial_outputs(life.read_refs(sweep, "outputs")),
            code=life.read_code_ref(sweep),
        )
        run_params = {axis: format_value(value) for axis, value in params.items()}
        client.track.log(job.run, params=run_params, tags={"sweep": str(name), "trial": str(trial.number)})
        trial_fields = life.new_trial(sweep, trial.number, params, job)
        saved = tx.put(
            life.trial_name(name, trial.number),
            trial_fields,
            label=sweep.label,
            zone=sweep.zone,
            terms=life.trial_terms(trial_fields),
        )
        tx.emit("sweeps.trial", saved.ref, (sweep.ref,), job=str(job.ref), run=str(job.run))

    def _finish_sweep(self, ctx: CallContext, sweep: LedgerRecord, trials: list[LedgerRecord]) -> bool:
        """The end: the best trial is written down and, where the sweep came to its own end, its outputs are named."""
        plan, sweep_trials, now = (
            life.read_plan(sweep),
            [life.to_sweep_trial(trial.body) for trial in trials],
            ctx.now(),
        )
        winner = find_best(plan, sweep_trials)
        sweep_fields: RecordFields = {**sweep.body, "importance": compute_importance(plan, sweep_trials)}
        if winner is not None:
            sweep_fields |= {"best": winner.number, "value": winner.value}
        if sweep_fields["end"] != FINISHED or winner is None:
            failure_note = next((trial.note for trial in reversed(sweep_trials) if trial.state == TRIAL_FAILED), "")
            note = (
                sweep_fields["note"]
                if sweep_fields["end"] != FINISHED
                else f"no trial succeeded; {failure_note}".rstrip("; ")
            )
            state = sweep_fields["end"] if sweep_fields["end"] != FINISHED else FAILED
            return self._save_sweep(ctx, sweep, life.set_ended(sweep_fields, state, note, now), "sweeps.end")
        outputs = trials[winner.number - 1].body["outputs"]
        owner_ctx, client = self._open_as_owner(ctx, sweep)
        try:
            with self._ledger.write(owner_ctx):
                kept_versions = {
                    name: str(client.sweeps.keep(sweep.ref.bare, Ref.parse(outputs[name]), ref))
                    for name, ref in life.read_refs(sweep, "outputs").items()
                }
                note = f"trial {winner.number} is best"
                return self._save_sweep(
                    owner_ctx,
                    sweep,
                    life.set_ended({**sweep_fields, "kept": kept_versions}, FINISHED, note, now),
                    "sweeps.end",
                )
        except (StaleRevision, Unavailable):
            raise
        except FalajError as error:
            note = f"trial {winner.number} is best, and could not be named: {error}"
            return self._save_sweep(ctx, sweep, life.set_ended(sweep_fields, FAILED, note, now), "sweeps.end")

    def _open_as_owner(self, ctx: CallContext, sweep: LedgerRecord) -> tuple[CallContext, Client]:
        """Whoever asked for the sweep, with the rights of that day that they still have today."""
        owner_ctx = make_owner_context(self._ledger, ctx, sweep)
        return owner_ctx, self._service.jobs.staging.act(owner_ctx.actor, owner_ctx.purpose)

    def _stop_sweep(self, ctx: CallContext, sweep: LedgerRecord, reason: str, end_state: str) -> bool:
        return self._save_sweep(ctx, sweep, life.set_stopping(sweep.body, reason, end_state=end_state), "sweeps.stop")

    def _save_sweep(self, ctx: CallContext, sweep: LedgerRecord, sweep_fields: RecordFields, event_name: str) -> bool:
        with self._ledger.write(ctx) as tx:
            saved = tx.put(sweep.key, sweep_fields, rev=sweep.rev, terms=life.sweep_terms(sweep_fields))
            made_versions = ",".join(sweep_fields["kept"].values())
            tx.emit(
                event_name,
                saved.ref,
                state=sweep_fields["state"],
                reason=sweep_fields["note"],
                best=sweep_fields["best"],
                made=made_versions,
            )
        return True
