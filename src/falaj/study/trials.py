"""Sweeps and trials as they lie in their records, and as decisions and people see them.

A trial is a record of its own beside its job: `trial:PROJECT/SWEEP-7` and `job:PROJECT/SWEEP-7`. Both are written in
one transaction, so that neither is ever there without the other, and none twice.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from falaj.core.context import Context
from falaj.core.event import new_id
from falaj.core.ref import Ref
from falaj.fleet.use import every
from falaj.jobs import records as jobs
from falaj.jobs.attempts import who_of
from falaj.jobs.records import JobSpec
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Reader
from falaj.store.records import Record
from falaj.study.decide import Reading, Trial, ranked
from falaj.study.importance import importance
from falaj.study.records import (
    BAD,
    BEHIND,
    CANCELLED,
    FINISHED,
    GOOD,
    LIVE,
    OVER,
    RUNNING,
    STOPPING,
    Body,
    SweepPlan,
    SweepView,
    TrialView,
)
from falaj.study.space import Params, flag, text, variable

ASIDE = ".trials"
"""What trials make is published under the name with this behind it; only the best gets the name itself."""


def new_sweep(ctx: Context, plan: SweepPlan, spec: JobSpec, refs: Mapping[str, Mapping[str, Ref]], most: int) -> Body:
    """The record of a new sweep. `refs`: its inputs and outputs by name, and its code."""
    texts = {kind: {name: str(ref) for name, ref in named.items()} for kind, named in refs.items()}
    return {
        "id": new_id(), "plan": to_plain(plan), "spec": to_plain(spec), **texts, "who": who_of(ctx), "most": most,
        "state": RUNNING, "note": "", "asked": 0, "cancel": False, "submitted": ctx.now(), "ended": 0.0,
        "best": 0, "value": None, "kept": {}, "importance": {}, "end": FINISHED,
    }  # fmt: skip


def sweep_terms(body: Body) -> dict[str, str]:
    """What lists and the loop can ask for."""
    live = {} if body["state"] in OVER else {"live": "1"}
    return {"state": body["state"], "by": body["who"]["id"], "id": body["id"], **live}


def stopping(body: Body, why: str, *, end: str) -> Body:
    """No new trials. Those that run are cancelled, unless it shall come to the end it would have come to."""
    cancel = body["cancel"] or end != FINISHED
    return {**body, "state": STOPPING, "note": why[:500], "cancel": cancel, "end": end}


def ended(body: Body, state: str, note: str, now: float) -> Body:
    """It is over."""
    return {**body, "state": state, "note": note[:500], "ended": now}


def plan_in(record: Record) -> SweepPlan:
    """How a sweep searches."""
    made: SweepPlan = from_plain(SweepPlan, record.body["plan"])
    return made


def spec_in(record: Record) -> JobSpec:
    """What its trials run."""
    made: JobSpec = from_plain(JobSpec, record.body["spec"])
    return made


def refs_in(record: Record, kind: str) -> dict[str, Ref]:
    """Its inputs or outputs by name."""
    return {name: Ref.parse(ref) for name, ref in record.body[kind].items()}


def code_in(record: Record) -> Ref | None:
    """The version of the program that its trials run."""
    return refs_in(record, "code").get("code")


def trial_name(sweep: Ref, number: int, kind: str = "trial") -> Ref:
    """What a trial, and its job, is called."""
    return Ref(kind, sweep.project, f"{sweep.name}-{number}")


def aside(outputs: Mapping[str, Ref]) -> dict[str, Ref]:
    """Where trials publish what the sweep will choose from."""
    return {name: Ref(ref.kind, ref.project, f"{ref.name}{ASIDE}") for name, ref in outputs.items()}


def told(sweep: Ref, spec: JobSpec, params: Params) -> JobSpec:
    """The job of a trial: the command with its parameters as flags and in its environment."""
    flags = [word for name, value in params.items() for word in flag(name, value)]
    known = {variable(name): text(value) for name, value in params.items()}
    known["FALAJ_PARAMS"] = json.dumps(params)
    return replace(
        spec, command=(*spec.command, *flags), env={**spec.env, **known}, experiment=spec.experiment or sweep.name
    )


def new_trial(record: Record, number: int, params: Params, job: jobs.JobView) -> Body:
    """The record of a new trial."""
    return {
        "sweep": record.body["id"], "number": number, "params": dict(params), "job": str(job.ref), "run": str(job.run),
        "state": LIVE, "value": None, "step": 0, "rungs": {}, "note": "", "outputs": {},
        "verdict": "", "early": False,
    }  # fmt: skip


def trial_terms(body: Body) -> dict[str, str]:
    """How the trials of a sweep are found, and those that are not over."""
    return {"sweep": body["sweep"], **({"live": body["sweep"]} if body["state"] == LIVE else {})}


def read(body: Body, reading: Reading) -> Body:
    """With what its curve says by now."""
    rungs = {str(rung): value for rung, value in reading.rungs.items()}
    return {**body, "value": reading.value, "step": reading.step, "rungs": rungs}


def concluded(body: Body, job: Body | None, metric: str) -> Body:
    """Its job is over: how the trial ended."""
    state, note = (job["state"], job["note"]) if job else (jobs.FAILED, "its job is gone")
    if state == jobs.SUCCEEDED and body["value"] is None:
        return {**body, "state": BAD, "note": f"it never reported a number as {metric}"}
    if state == jobs.CANCELLED and body["verdict"]:
        return {**body, "state": BEHIND if body["early"] else CANCELLED, "note": body["verdict"]}
    known = {jobs.SUCCEEDED: GOOD, jobs.CANCELLED: CANCELLED}.get(state, BAD)
    outputs = job["outputs"] if job and known == GOOD else {}
    return {**body, "state": known, "note": note, "outputs": outputs}


def as_trial(body: Body) -> Trial:
    """A trial as decisions see it."""
    rungs = {int(rung): value for rung, value in body["rungs"].items()}
    return Trial(body["number"], body["params"], body["state"], body["value"], body["step"], rungs, body["note"])


def trials_of(tx: Reader, record: Record, *, live: bool = False) -> list[Record]:
    """The trials of a sweep by number; all, or those that are not over."""
    terms = {"live" if live else "sweep": str(record.body["id"])}
    return sorted(every(tx, "trial", record.key.tenant, terms), key=lambda one: int(one.body["number"]))


def view(record: Record, bodies: Iterable[Body] = (), states: Mapping[str, str] | None = None) -> SweepView:
    """A sweep as its people see it; `states` are those of the jobs of trials that are not over."""
    body, plan = record.body, plan_in(record)
    known = {one["number"]: one for one in bodies}
    order = ranked(plan, (as_trial(one) for one in known.values()))
    first = next((trial for trial in order if trial.value is not None), None)
    over = sum(trial.state != LIVE for trial in order) if known else body["asked"]
    return SweepView(
        ref=record.ref.bare,
        state=body["state"],
        progress=f"{over}/{min(plan.trials, body['most'])}",
        metric=plan.metric,
        value=first.value if first and not body["best"] else body["value"],
        best=body["best"] or (first.number if first else 0),
        note=body["note"],
        submitted_at=body["submitted"],
        author=body["who"]["id"],
        plan=plan,
        spec=spec_in(record),
        inputs=refs_in(record, "inputs"),
        outputs={**refs_in(record, "outputs"), **refs_in(record, "kept")},
        code=code_in(record),
        importance=body["importance"] or importance(plan, order),
        ended_at=body["ended"],
        trials=tuple(_trial_view(known[trial.number], states or {}) for trial in order),
    )


def _trial_view(body: Body, states: Mapping[str, str]) -> TrialView:
    state = states.get(body["job"], body["state"])
    named: Mapping[str, Any] = body["outputs"]
    return TrialView(
        body["number"],
        "stopping" if body["verdict"] and body["state"] == LIVE else state,
        body["value"],
        body["step"],
        body["params"],
        body["verdict"] or body["note"],
        Ref.parse(body["job"]),
        Ref.parse(body["run"]),
        {name: Ref.parse(ref) for name, ref in named.items()},
    )
