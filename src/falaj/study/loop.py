"""The loop of sweeps: read what trials measured, stop those behind, ask for the next, keep the best.

Whatever changes is written in one transaction, over the revision that was decided on: a new trial with its job, a
verdict with the cancellation, the end with the model's new version. Killed anywhere, the next turn finds all or nothing
of it. Jobs and versions are asked for through the guard, in the name of whoever asked for the sweep and with what they
may do today; only cancelling needs nobody's rights.
"""

from contextlib import suppress
from dataclasses import replace

from falaj.core.context import Context
from falaj.core.errand import Here
from falaj.core.errors import Conflict, Denied, FalajError, NotFound, QuotaExceeded, Stale, Unavailable
from falaj.core.ref import Ref
from falaj.fleet.use import every, tenants
from falaj.jobs import records as jobs
from falaj.jobs.attempts import in_name_of
from falaj.jobs.standing import job_standing
from falaj.store.ledger import Ledger, Writer
from falaj.store.loop import Turn
from falaj.store.records import Record
from falaj.study import trials as life
from falaj.study.curves import Curves
from falaj.study.decide import Trial, best, next_move, stops
from falaj.study.importance import importance
from falaj.study.records import BAD, FAILED, FINISHED, LIVE, OVER, RUNNING, STOPPED, Body
from falaj.study.service import Sweeps
from falaj.study.space import text
from falaj.study.suggest import suggest

EVERY_S = 0.5
SEARCH_S = 5.0
"""A sweep that another replica took in is noticed within so long."""
MOST_STARTS = 16
"""So many trials are asked for in one transaction; a gang is asked for in one whatever its size."""


class SweepLoop:
    """Leads sweeps from asked to over, for every tenant."""

    name = "sweeps"
    every_s = EVERY_S

    def __init__(self, ledger: Ledger, desk: Sweeps) -> None:
        self._ledger = ledger
        self._desk = desk
        self._curves = Curves(desk.track)
        self._live: set[tuple[str, Ref]] = set()
        self._rested: dict[tuple[str, Ref], int] = {}
        """The revision at which nothing was left to do in a sweep, until one of its trials changes."""
        self._heard = True
        self._searched = 0.0
        self._turn: Turn
        desk.watch(self._listen)

    def step(self, turn: Turn) -> bool:
        """One look at every sweep that is not over; one that is in trouble holds up no other."""
        self._turn = turn
        now = turn.ctx.now()
        if self._heard or abs(now - self._searched) >= SEARCH_S:
            self._heard, self._searched = False, now
            with self._ledger.read(turn.ctx) as tx:
                found = [one for tenant in tenants(self._ledger) for one in every(tx, "sweep", tenant, {"live": "1"})]
            self._live = {(one.key.tenant, one.ref.bare) for one in found}
            self._rested = {key: rev for key, rev in self._rested.items() if key in self._live}
        failure: FalajError | None = None
        for tenant, ref in sorted(self._live):
            if not turn.alive():
                return False
            try:
                self._tend(replace(turn.ctx, tenant=tenant), ref)
            except FalajError as error:
                # Half of what was due may be done. Where somebody wrote first there is nothing wrong: look again.
                self._rested.pop((tenant, ref), None)
                failure = failure if isinstance(error, Conflict) else failure or error
        if failure is not None:
            raise failure
        return False

    def _listen(self) -> None:
        self._heard = True

    def _tend(self, ctx: Context, ref: Ref) -> None:
        """Everything that is due in one sweep."""
        key = (ctx.tenant, ref)
        with self._ledger.read(ctx) as tx:
            sweep = tx.need(ref)
            live = life.trials_of(tx, sweep, live=True)
            ran = [tx.get(Ref.parse(one.body["job"])) for one in live]
            standing = job_standing(tx, sweep)
        if sweep.body["state"] in OVER:
            self._live.discard(key)
            return
        # What the house does by itself says for whom.
        ctx = replace(ctx, actor=replace(ctx.actor, behalf=sweep.body["who"]["id"]))
        changed = [self._look(ctx, sweep, one, job) for one, job in zip(live, ran, strict=True)]
        if standing.removed and not sweep.body["cancel"]:
            self._stop(ctx, sweep, standing.reason, STOPPED)
        elif standing.reason and not standing.removed:  # it rests until that is lifted
            self._rested.pop(key, None)
        elif any(changed) or self._rested.get(key) != sweep.rev:
            with self._ledger.read(ctx) as tx:
                trials = life.trials_of(tx, sweep)
            acted = self._cancel(ctx, sweep, trials) or self._advance(ctx, sweep, trials)
            if not acted and self._turn.alive():
                self._rested[key] = sweep.rev

    def _look(self, ctx: Context, sweep: Record, trial: Record, job: Record | None) -> bool:
        """Read what a trial measured; True when it passed a rung or is over, and that was written down."""
        plan = life.plan_in(sweep)
        done = job is None or job.body["state"] in jobs.OVER
        body = life.read(trial.body, (self._curves.whole if done else self._curves.follow)(trial, plan))
        if done:
            body = life.concluded(body, job.body if job else None, plan.metric)
        elif body["rungs"] == trial.body["rungs"]:
            return False
        with self._ledger.write(ctx) as tx:
            kept = tx.put(trial.key, body, rev=trial.rev, terms=life.trial_terms(body))
            value = "" if body["value"] is None else text(float(body["value"]))
            tx.emit("sweeps.read", kept.ref, state=body["state"], value=value, step=body["step"], note=body["note"])
        return True

    def _cancel(self, ctx: Context, sweep: Record, trials: list[Record]) -> bool:
        """End trials that are behind, or all when the sweep is stopped; True when there was one to end."""
        live = {one.body["number"]: one for one in trials if one.body["state"] == LIVE and not one.body["verdict"]}
        whole = sweep.body["cancel"]
        found = stops(life.plan_in(sweep), [life.as_trial(one.body) for one in trials])
        why = dict.fromkeys(live, sweep.body["note"]) if whole else found
        due = {number: reason for number, reason in why.items() if number in live}
        for number, reason in due.items():
            if self._turn.alive():
                self._end(ctx, live[number], reason, early=not whole)
        return bool(due)

    def _end(self, ctx: Context, trial: Record, reason: str, *, early: bool) -> None:
        with self._ledger.write(ctx) as tx:
            job = tx.get(Ref.parse(trial.body["job"]))
            if job is None or job.body["state"] in jobs.OVER:
                return  # it was quicker; the next turn sees how it ended
            body = {**trial.body, "verdict": reason, "early": early}
            kept = tx.put(trial.key, body, rev=trial.rev, terms=life.trial_terms(body))
            tx.emit("sweeps.cancel", kept.ref, reason=reason[:500], early=int(early))
            self._desk.jobs.cancel(ctx, job.ref.bare, reason)

    def _advance(self, ctx: Context, sweep: Record, trials: list[Record]) -> bool:
        """Ask for the next trials, or come to the end; True when something was done."""
        plan, known = life.plan_in(sweep), [life.as_trial(one.body) for one in trials]
        if sweep.body["state"] != RUNNING:
            waits = any(one.state == LIVE for one in known)
            return not waits and self._finish(ctx, sweep, trials)
        move = next_move(plan, known, sweep.body["most"])
        try:
            if move.give_up:
                return self._stop(ctx, sweep, move.give_up, FAILED)
            if move.finish:
                return self._finish(ctx, sweep, trials)
            count = move.start if plan.gang else min(move.start, MOST_STARTS)
            return bool(count) and self._start_trials(ctx, sweep, known, count, gang=plan.gang)
        except (Stale, Unavailable):
            raise
        except FalajError as error:
            # It will not be otherwise the next time: a name that is taken, an input that is gone, a package.
            return self._stop(ctx, sweep, str(error), FAILED)

    def _start_trials(self, ctx: Context, sweep: Record, known: list[Trial], count: int, *, gang: bool) -> bool:
        """Start as many, or one where a cap on waiting jobs refuses more; the sweep is looked at again in any case."""
        for number in (count,) if gang or count == 1 else (count, 1):
            with suppress(QuotaExceeded):
                return self._start(ctx, sweep, known, number)
        return True

    def _start(self, ctx: Context, sweep: Record, known: list[Trial], count: int) -> bool:
        plan, first = life.plan_in(sweep), sweep.body["asked"] + 1
        for number in range(first, first + count):
            known = [*known, Trial(number, suggest(plan, number, known))]
        if not self._turn.alive():
            return False
        asked, here = self._behalf(ctx, sweep)
        with self._ledger.write(asked) as tx:
            body, said = sweep.body, ""
            for trial in known[-count:]:
                try:
                    self._ask(tx, here, sweep, trial)
                except (Denied, NotFound) as error:
                    said = str(error)  # what the guard wrote down of it stays
                    body = life.stopping(body, said, end=STOPPED)
                    break
                body = {**body, "asked": trial.number}
            kept = tx.put(sweep.key, body, rev=sweep.rev, terms=life.sweep_terms(body))
            tx.emit("sweeps.stop" if said else "sweeps.start", kept.ref, asked=body["asked"], reason=said[:500])
        return True

    def _ask(self, tx: Writer, here: Here, sweep: Record, trial: Trial) -> None:
        """One trial: its job, what its run says, and its record."""
        name, params = sweep.ref.bare, trial.params
        job: jobs.JobView = here.jobs.add(
            life.trial_name(name, trial.number, "job"),
            life.told(name, life.spec_in(sweep), params),
            inputs=life.refs_in(sweep, "inputs"),
            outputs=life.aside(life.refs_in(sweep, "outputs")),
            code=life.code_in(sweep),
        )
        said = {axis: text(value) for axis, value in params.items()}
        here.track.log(job.run, params=said, tags={"sweep": str(name), "trial": str(trial.number)})
        body = life.new_trial(sweep, trial.number, params, job)
        kept = tx.put(
            life.trial_name(name, trial.number), body, label=sweep.label, zone=sweep.zone, terms=life.trial_terms(body)
        )
        tx.emit("sweeps.trial", kept.ref, (sweep.ref,), job=str(job.ref), run=str(job.run))

    def _finish(self, ctx: Context, sweep: Record, trials: list[Record]) -> bool:
        """The end: the best trial is written down and, where the sweep came to its own end, its outputs are named."""
        plan, known, now = life.plan_in(sweep), [life.as_trial(one.body) for one in trials], ctx.now()
        winner = best(plan, known)
        body: Body = {**sweep.body, "importance": importance(plan, known)}
        if winner is not None:
            body |= {"best": winner.number, "value": winner.value}
        if body["end"] != FINISHED or winner is None:
            bad = next((one.note for one in reversed(known) if one.state == BAD), "")
            note = body["note"] if body["end"] != FINISHED else f"no trial succeeded; {bad}".rstrip("; ")
            state = body["end"] if body["end"] != FINISHED else FAILED
            return self._save(ctx, sweep, life.ended(body, state, note, now), "sweeps.end")
        outputs = trials[winner.number - 1].body["outputs"]
        asked, here = self._behalf(ctx, sweep)
        try:
            with self._ledger.write(asked):
                kept = {
                    name: str(here.sweeps.keep(sweep.ref.bare, Ref.parse(outputs[name]), ref))
                    for name, ref in life.refs_in(sweep, "outputs").items()
                }
                note = f"trial {winner.number} is best"
                return self._save(asked, sweep, life.ended({**body, "kept": kept}, FINISHED, note, now), "sweeps.end")
        except (Stale, Unavailable):
            raise
        except FalajError as error:
            note = f"trial {winner.number} is best, and could not be named: {error}"
            return self._save(ctx, sweep, life.ended(body, FAILED, note, now), "sweeps.end")

    def _behalf(self, ctx: Context, sweep: Record) -> tuple[Context, Here]:
        """Whoever asked for the sweep, with the rights of that day that they still have today."""
        asked = in_name_of(self._ledger, ctx, sweep)
        return asked, self._desk.jobs.staging.act(asked.actor, asked.purpose)

    def _stop(self, ctx: Context, sweep: Record, why: str, end: str) -> bool:
        return self._save(ctx, sweep, life.stopping(sweep.body, why, end=end), "sweeps.stop")

    def _save(self, ctx: Context, sweep: Record, body: Body, said: str) -> bool:
        with self._ledger.write(ctx) as tx:
            kept = tx.put(sweep.key, body, rev=sweep.rev, terms=life.sweep_terms(body))
            made = ",".join(body["kept"].values())
            tx.emit(said, kept.ref, state=body["state"], reason=body["note"], best=body["best"], made=made)
        return True
