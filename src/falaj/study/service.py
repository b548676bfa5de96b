"""The desk of sweeps: ask for a search, look at it, stop it, and give a trial's output a name."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Annotated

from falaj.catalog.model_inspection import InspectionResult
from falaj.catalog.records import ModelCard, PublishFacts
from falaj.catalog.service import CatalogService
from falaj.catalog.service_base import read_tree
from falaj.core.context import CallContext
from falaj.core.errors import Conflict, Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.jobs.records import JobSpec
from falaj.jobs.service import JobService
from falaj.jobs.spec import validate_spec
from falaj.store.codec import from_plain
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord
from falaj.study import records as known
from falaj.study import trial_records as life
from falaj.study.records import ENDED_STATES, TRIAL_RUNNING, RecordFields, SweepPage, SweepPlan, SweepView
from falaj.study.samplers import check_sampler
from falaj.study.search_space import format_value, read_space
from falaj.study.trial_curves import TrialCurves
from falaj.track.service import TrackService

MAX_TRIALS, MAX_AT_ONCE, MAX_PAGE, MAX_STEPS = 10_000, 1_000, 1_000, 1 << 40
_RESERVED_NAMES = {"command", "workers", "gpus", "cpus", "memory", "framework", "band"}
"""What the run of a job says of itself as parameters (jobs/spec.py)."""


class SweepService:
    """Search for good parameters: many trials of one program, the bad ones stopped early, the best one kept."""

    def __init__(self, ledger: Ledger, jobs: JobService, track: TrackService, catalog: CatalogService) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self.jobs = jobs
        self.track = track
        self._watchers: tuple[Callable[[], None], ...] = ()

    @operation(writes=("sweep", "outputs"), reads=("inputs", "code"))
    def add(
        self,
        ctx: CallContext,
        sweep: Annotated[Ref, "what to call it, for example sweep:fraud/s1"],
        plan: Annotated[SweepPlan, "what is searched, and how"],
        spec: Annotated[JobSpec, "what each trial runs, and what it needs"],
        inputs: Annotated[dict[str, Ref] | None, "what every trial reads, by role; pinned now"] = None,
        outputs: Annotated[dict[str, Ref] | None, "what the best trial's outputs become, by name"] = None,
        code: Annotated[Ref | None, "the version of its program"] = None,
    ) -> SweepView:
        """Ask for a sweep. `falaj sweeps start` packs the program and calls this.

        Every trial is a job of yours, in your queue, under your quotas and with your rights of the day. It gets its
        parameters as flags (--lr 0.01), as FALAJ_PARAM_LR and all together in FALAJ_PARAMS.

        Example:
            falaj sweeps add sweep:fraud/s1 --plan @plan.json --spec '{"command": ["python", "train.py"]}'
        """
        if sweep.kind != "sweep" or sweep.version:
            raise Invalid(f"{sweep} names no sweep", "for example sweep:fraud/s1", sweep)
        max_points = check_plan(plan)
        validate_spec(spec)
        refs_by_kind = {"inputs": inputs or {}, "outputs": outputs or {}, "code": {"code": code} if code else {}}
        with self._ledger.write(ctx) as tx:
            if tx.get(sweep) is not None:
                raise Conflict(f"{sweep} exists already", "choose another name, or leave it out", sweep)
            # The longest words a trial can have: what is wrong with the job is said now, and not by the loop.
            params = {axis.name: axis.values[0] if axis.values else axis.high for axis in read_space(plan.space)}
            job = life.trial_name(sweep, plan.trials, "job")
            self.jobs.add(
                ctx,
                job,
                life.build_trial_spec(sweep, spec, params),
                inputs,
                life.to_trial_outputs(outputs or {}),
                code,
                dry=True,
            )
            body = life.new_sweep(ctx, plan, spec, refs_by_kind, max_points)
            record = tx.put(sweep, body, terms=life.sweep_terms(body))
            input_refs = (*(inputs or {}).values(), *((code,) if code else ()))
            tx.emit("sweeps.add", record.ref, input_refs, metric=plan.metric, trials=plan.trials, sampler=plan.sampler)
            tx.after(self._notify_watchers)
        return life.build_sweep_view(record)

    @operation()
    def list(
        self,
        ctx: CallContext,
        project: Annotated[str, "of one project only"] = "",
        state: Annotated[str, "running, stopping, finished, failed or stopped"] = "",
        mine: Annotated[bool, "only those I asked for"] = False,
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> SweepPage:
        """List the sweeps you may see, newest first.

        Example:
            falaj sweeps list --project fraud --state running
        """
        if not 0 < limit <= MAX_PAGE:
            raise Invalid(f"a page of {limit} sweeps", f"ask for 1 to {MAX_PAGE} and follow `next`")
        filters = {"state": state, "by": ctx.actor.id if mine else ""}
        terms = {name: value for name, value in filters.items() if value}
        with self._ledger.read(ctx) as tx:
            scopes = ctx.cells("sweep")
            page = tx.find(
                "sweep", project=project, terms=terms, scopes=scopes, newest_first=True, after=after, limit=limit
            )
        return SweepPage(tuple(life.build_sweep_view(record) for record in page.records), page.next)

    @operation(reads=("sweep",))
    def show(self, ctx: CallContext, sweep: Annotated[Ref, "which sweep"]) -> SweepView:
        """Show a sweep: its trials with parameters and values, best first, and which parameters matter.

        Example:
            falaj sweeps show sweep:fraud/s1
        """
        with self._ledger.read(ctx) as tx:
            record = _read_sweep(tx, sweep)
            trials = life.list_trials(tx, record)
            live = [Ref.parse(trial.body["job"]) for trial in trials if trial.body["state"] == TRIAL_RUNNING]
            live_jobs = [tx.get(job) for job in live]
        states = {str(job.ref.bare): str(job.body["state"]) for job in live_jobs if job is not None}
        curves, plan = TrialCurves(self.track), life.read_plan(record)
        readings = {
            trial_record.key: curves.glance(trial_record, plan)
            for trial_record in trials
            if trial_record.body["state"] == TRIAL_RUNNING
        }
        newest_values = {key: {"value": reading.value, "step": reading.step} for key, reading in readings.items()}
        return life.build_sweep_view(
            record,
            [{**trial_record.body, **newest_values.get(trial_record.key, {})} for trial_record in trials],
            states,
        )

    @operation(writes=("sweep",))
    def stop(
        self,
        ctx: CallContext,
        sweep: Annotated[Ref, "which sweep"],
        let_finish: Annotated[bool, "let trials that run come to their end, and keep the best"] = False,
        reason: Annotated[str, "why, for the record"] = "",
    ) -> SweepView:
        """Stop a sweep: no new trials, and those that run are cancelled. Nothing is named; `keep` does that.

        Example:
            falaj sweeps stop sweep:fraud/s1 --let-finish
        """
        with self._ledger.write(ctx) as tx:
            old = _read_sweep(tx, sweep)
            if old.body["state"] in ENDED_STATES:
                raise Conflict(f"{sweep.bare} is over: {old.body['state']}", "there is nothing to stop", sweep)
            stop_reason = reason or f"stopped by {ctx.actor.behalf or ctx.actor.id}"
            body = life.set_stopping(old.body, stop_reason, end_state=known.FINISHED if let_finish else known.STOPPED)
            record = tx.put(old.key, body, rev=old.rev, terms=life.sweep_terms(body))
            tx.emit("sweeps.stop", record.ref, reason=reason[:500], let_finish=int(let_finish))
            tx.after(self._notify_watchers)
        return life.build_sweep_view(record)

    @operation(reads=("sweep", "version"), writes=("name",))
    def keep(
        self,
        ctx: CallContext,
        sweep: Annotated[Ref, "which sweep"],
        version: Annotated[Ref, "an output of one of its trials, as `show --json` names it"],
        name: Annotated[Ref, "what it becomes the next version of"],
    ) -> Ref:
        """Make the output of a trial the next version of a name. The sweep does it for its best; no byte is copied.

        Example:
            falaj sweeps keep sweep:fraud/s1 model:fraud/scorer.trials@v7 model:fraud/scorer
        """
        if name.version or name.kind != version.kind:
            raise Invalid(f"{version} cannot become {name}", f"a {version.kind}, without a version", name)
        with self._ledger.write(ctx) as tx:
            record = _read_sweep(tx, sweep.bare)
            trial = next(
                (
                    candidate
                    for candidate in life.list_trials(tx, record)
                    if str(version) in candidate.body["outputs"].values()
                ),
                None,
            )
            if trial is None:
                raise Invalid(
                    f"{version} is no output of {sweep.bare}", f"falaj sweeps show {sweep.bare} --json", sweep
                )
            source = tx.need(version)
            ctx.permit("read", str(version.bare), source.zone)
            facts = _build_facts(source, life.read_plan(record), trial.body)
            code = life.read_code_ref(record)
            made_from = {
                **life.read_refs(record, "inputs"), **({"code": code} if code else {}), "sweep": record.ref,
                "trial": source.ref, "run": Ref.parse(trial.body["run"]),
            }  # fmt: skip
            new_version = self._catalog.add_version(ctx, name, (read_tree(source), source.zone), facts, made_from)
            if (inspected := source.body.get("seen")) is not None:
                # The files are the trial's, and so is what the platform found in them.
                inspection = InspectionResult(
                    inspected["format"], inspected["code_bearing"], tuple(inspected["reasons"]), inspected["ok"]
                )
                self._catalog.note_look(tx, ctx, new_version, inspection)
            tx.emit("sweeps.keep", new_version, (record.ref, source.ref), trial=trial.body["number"])
        return new_version

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when there is something for the loop to do, in this process."""
        self._watchers += (callback,)

    def _notify_watchers(self, durable: bool) -> None:
        for callback in self._watchers if durable else ():
            callback()


def check_plan(plan: SweepPlan) -> int:
    """How many trials there can be; Invalid when the plan cannot be carried out."""
    for field_label, value, allowed in (
        ("goal", plan.goal, known.GOAL_NAMES),
        ("sampler", plan.sampler, known.SAMPLER_NAMES),
        ("stopper", plan.stopper, known.STOPPER_NAMES),
        ("take", plan.take, known.TAKE_NAMES),
    ):
        if value not in allowed:
            raise Invalid(f"{value[:40]!r} is no {field_label}", f"one of {', '.join(allowed)}")
    if not plan.metric or len(plan.metric) > 250:
        raise Invalid("a sweep needs the metric it searches by", "--metric valid_loss, as the program reports it")
    if not 0 < plan.trials <= MAX_TRIALS or not 0 < plan.at_once <= MAX_AT_ONCE or plan.give_up < 1:
        raise Invalid(
            f"{plan.trials} trials, {plan.at_once} at once", f"1 to {MAX_TRIALS}, at most {MAX_AT_ONCE} at once"
        )
    if not 0 < plan.min_steps <= MAX_STEPS or not 2 <= plan.eta <= 100:
        raise Invalid(f"looks from step {plan.min_steps} on, eta {plan.eta}", "from step 1; eta is 2 to 100")
    reserved = sorted({axis.name for axis in read_space(plan.space)} & _RESERVED_NAMES)
    if reserved:
        raise Invalid(f"a parameter cannot be called {reserved[0]}", "a run says under this name what its job has")
    return check_sampler(plan)


def _read_sweep(tx: LedgerReader, sweep: Ref) -> LedgerRecord:
    if sweep.kind != "sweep":
        raise Invalid(f"{sweep} names no sweep", "for example sweep:fraud/s1", sweep)
    return tx.need(sweep.bare)


def _build_facts(source: LedgerRecord, plan: SweepPlan, trial: RecordFields) -> PublishFacts:
    """What the trial's publisher said, with what the sweep knows: the parameters, and what they brought."""
    publisher_facts = {
        field.name: source.body[field.name] for field in fields(PublishFacts) if source.body.get(field.name)
    }
    facts: PublishFacts = from_plain(PublishFacts, publisher_facts)
    params = {name: format_value(value) for name, value in trial["params"].items()}
    metrics = {} if trial["value"] is None else {plan.metric: trial["value"]}
    old_card = facts.card or ModelCard()
    card = replace(
        old_card,
        metrics={**old_card.metrics, **metrics},
        params={**old_card.params, **params},
        run=old_card.run or trial["run"],
    )
    metric_text = f": {plan.metric} {trial['value']:.6g}" if metrics else ""
    return replace(
        facts, message=f"trial {trial['number']}{metric_text}", card=card if source.key.kind == "model" else facts.card
    )
