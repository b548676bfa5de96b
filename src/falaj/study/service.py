"""The desk of sweeps: ask for a search, look at it, stop it, and give a trial's output a name."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Annotated

from falaj.catalog.looking import Found
from falaj.catalog.records import Card, Facts
from falaj.catalog.service import Catalog
from falaj.catalog.shelf import tree_of
from falaj.core.context import Context
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.jobs.records import JobSpec
from falaj.jobs.service import Jobs
from falaj.jobs.spec import checked
from falaj.store.codec import from_plain
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record
from falaj.study import records as known
from falaj.study import trials as life
from falaj.study.curves import Curves
from falaj.study.records import LIVE, OVER, Body, SweepPage, SweepPlan, SweepView
from falaj.study.space import read_space, text
from falaj.study.suggest import check_sampler
from falaj.track.service import Track

MOST_TRIALS, MOST_AT_ONCE, MOST_PAGE, MOST_STEPS = 10_000, 1_000, 1_000, 1 << 40
_TAKEN = {"command", "workers", "gpus", "cpus", "memory", "framework", "band"}
"""What the run of a job says of itself as parameters (jobs/spec.py)."""


class Sweeps:
    """Search for good parameters: many trials of one program, the bad ones stopped early, the best one kept."""

    def __init__(self, ledger: Ledger, jobs: Jobs, track: Track, catalog: Catalog) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self.jobs = jobs
        self.track = track
        self._watchers: tuple[Callable[[], None], ...] = ()

    @verb(writes=("sweep", "outputs"), reads=("inputs", "code"))
    def add(
        self,
        ctx: Context,
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
        most = check_plan(plan)
        checked(spec)
        named = {"inputs": inputs or {}, "outputs": outputs or {}, "code": {"code": code} if code else {}}
        with self._ledger.write(ctx) as tx:
            if tx.get(sweep) is not None:
                raise Conflict(f"{sweep} exists already", "choose another name, or leave it out", sweep)
            # The longest words a trial can have: what is wrong with the job is said now, and not by the loop.
            params = {axis.name: axis.values[0] if axis.values else axis.high for axis in read_space(plan.space)}
            job = life.trial_name(sweep, plan.trials, "job")
            self.jobs.add(ctx, job, life.told(sweep, spec, params), inputs, life.aside(outputs or {}), code, dry=True)
            body = life.new_sweep(ctx, plan, spec, named, most)
            record = tx.put(sweep, body, terms=life.sweep_terms(body))
            pins = (*(inputs or {}).values(), *((code,) if code else ()))
            tx.emit("sweeps.add", record.ref, pins, metric=plan.metric, trials=plan.trials, sampler=plan.sampler)
            tx.after(self._stir)
        return life.view(record)

    @verb()
    def list(
        self,
        ctx: Context,
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
        if not 0 < limit <= MOST_PAGE:
            raise Invalid(f"a page of {limit} sweeps", f"ask for 1 to {MOST_PAGE} and follow `next`")
        wanted = {"state": state, "by": ctx.actor.id if mine else ""}
        terms = {name: value for name, value in wanted.items() if value}
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells("sweep")
            page = tx.find("sweep", project=project, terms=terms, cells=cells, newest=True, after=after, limit=limit)
        return SweepPage(tuple(life.view(record) for record in page.records), page.next)

    @verb(reads=("sweep",))
    def show(self, ctx: Context, sweep: Annotated[Ref, "which sweep"]) -> SweepView:
        """Show a sweep: its trials with parameters and values, best first, and which parameters matter.

        Example:
            falaj sweeps show sweep:fraud/s1
        """
        with self._ledger.read(ctx) as tx:
            record = _need(tx, sweep)
            trials = life.trials_of(tx, record)
            live = [Ref.parse(trial.body["job"]) for trial in trials if trial.body["state"] == LIVE]
            found = [tx.get(job) for job in live]
        states = {str(job.ref.bare): str(job.body["state"]) for job in found if job is not None}
        curves, plan = Curves(self.track), life.plan_in(record)
        seen = {one.key: curves.glance(one, plan) for one in trials if one.body["state"] == LIVE}
        now = {key: {"value": reading.value, "step": reading.step} for key, reading in seen.items()}
        return life.view(record, [{**one.body, **now.get(one.key, {})} for one in trials], states)

    @verb(writes=("sweep",))
    def stop(
        self,
        ctx: Context,
        sweep: Annotated[Ref, "which sweep"],
        let_finish: Annotated[bool, "let trials that run come to their end, and keep the best"] = False,
        reason: Annotated[str, "why, for the record"] = "",
    ) -> SweepView:
        """Stop a sweep: no new trials, and those that run are cancelled. Nothing is named; `keep` does that.

        Example:
            falaj sweeps stop sweep:fraud/s1 --let-finish
        """
        with self._ledger.write(ctx) as tx:
            old = _need(tx, sweep)
            if old.body["state"] in OVER:
                raise Conflict(f"{sweep.bare} is over: {old.body['state']}", "there is nothing to stop", sweep)
            why = reason or f"stopped by {ctx.actor.behalf or ctx.actor.id}"
            body = life.stopping(old.body, why, end=known.FINISHED if let_finish else known.STOPPED)
            record = tx.put(old.key, body, rev=old.rev, terms=life.sweep_terms(body))
            tx.emit("sweeps.stop", record.ref, reason=reason[:500], let_finish=int(let_finish))
            tx.after(self._stir)
        return life.view(record)

    @verb(reads=("sweep", "version"), writes=("name",))
    def keep(
        self,
        ctx: Context,
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
            record = _need(tx, sweep.bare)
            trial = next(
                (one for one in life.trials_of(tx, record) if str(version) in one.body["outputs"].values()), None
            )
            if trial is None:
                raise Invalid(
                    f"{version} is no output of {sweep.bare}", f"falaj sweeps show {sweep.bare} --json", sweep
                )
            source = tx.need(version)
            ctx.permit("read", str(version.bare), source.zone)
            facts = _facts(source, life.plan_in(record), trial.body)
            code = life.code_in(record)
            made_from = {
                **life.refs_in(record, "inputs"), **({"code": code} if code else {}), "sweep": record.ref,
                "trial": source.ref, "run": Ref.parse(trial.body["run"]),
            }  # fmt: skip
            made = self._catalog.add_version(ctx, name, (tree_of(source), source.zone), facts, made_from)
            if (seen := source.body.get("seen")) is not None:
                # The files are the trial's, and so is what the platform found in them.
                found = Found(seen["format"], seen["code_bearing"], tuple(seen["reasons"]), seen["ok"])
                self._catalog.note_look(tx, ctx, made, found)
            tx.emit("sweeps.keep", made, (record.ref, source.ref), trial=trial.body["number"])
        return made

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when there is something for the loop to do, in this process."""
        self._watchers += (callback,)

    def _stir(self, durable: bool) -> None:
        for callback in self._watchers if durable else ():
            callback()


def check_plan(plan: SweepPlan) -> int:
    """How many trials there can be; Invalid when the plan cannot be carried out."""
    for what, given, words in (
        ("goal", plan.goal, known.GOALS),
        ("sampler", plan.sampler, known.SAMPLERS),
        ("stopper", plan.stopper, known.STOPPERS),
        ("take", plan.take, known.TAKES),
    ):
        if given not in words:
            raise Invalid(f"{given[:40]!r} is no {what}", f"one of {', '.join(words)}")
    if not plan.metric or len(plan.metric) > 250:
        raise Invalid("a sweep needs the metric it searches by", "--metric valid_loss, as the program reports it")
    if not 0 < plan.trials <= MOST_TRIALS or not 0 < plan.at_once <= MOST_AT_ONCE or plan.give_up < 1:
        raise Invalid(
            f"{plan.trials} trials, {plan.at_once} at once", f"1 to {MOST_TRIALS}, at most {MOST_AT_ONCE} at once"
        )
    if not 0 < plan.min_steps <= MOST_STEPS or not 2 <= plan.eta <= 100:
        raise Invalid(f"looks from step {plan.min_steps} on, eta {plan.eta}", "from step 1; eta is 2 to 100")
    taken = sorted({axis.name for axis in read_space(plan.space)} & _TAKEN)
    if taken:
        raise Invalid(f"a parameter cannot be called {taken[0]}", "a run says under this name what its job has")
    return check_sampler(plan)


def _need(tx: Reader, sweep: Ref) -> Record:
    if sweep.kind != "sweep":
        raise Invalid(f"{sweep} names no sweep", "for example sweep:fraud/s1", sweep)
    return tx.need(sweep.bare)


def _facts(source: Record, plan: SweepPlan, trial: Body) -> Facts:
    """What the trial's publisher said, with what the sweep knows: the parameters, and what they brought."""
    said = {field.name: source.body[field.name] for field in fields(Facts) if source.body.get(field.name)}
    facts: Facts = from_plain(Facts, said)
    params = {name: text(value) for name, value in trial["params"].items()}
    metrics = {} if trial["value"] is None else {plan.metric: trial["value"]}
    old = facts.card or Card()
    card = replace(
        old, metrics={**old.metrics, **metrics}, params={**old.params, **params}, run=old.run or trial["run"]
    )
    found = f": {plan.metric} {trial['value']:.6g}" if metrics else ""
    return replace(
        facts, message=f"trial {trial['number']}{found}", card=card if source.key.kind == "model" else facts.card
    )
