"""Sweeps and trials as they lie in their records, and as decisions and people see them.

A trial is a record of its own beside its job: `trial:PROJECT/SWEEP-7` and `job:PROJECT/SWEEP-7`. Both are written in
one transaction, so that neither is ever there without the other, and none twice.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from falaj.core.context import CallContext
from falaj.core.event import generate_id
from falaj.core.ref import Ref
from falaj.fleet.fleet_use import iter_records
from falaj.jobs import records as jobs
from falaj.jobs.attempts import to_submitter
from falaj.jobs.records import JobSpec
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import LedgerReader
from falaj.store.records import LedgerRecord
from falaj.study.parameter_importance import compute_importance
from falaj.study.records import (
    ENDED_STATES,
    FINISHED,
    RUNNING,
    STOPPING,
    TRIAL_CANCELLED,
    TRIAL_FAILED,
    TRIAL_RUNNING,
    TRIAL_STOPPED,
    TRIAL_SUCCEEDED,
    RecordFields,
    SweepPlan,
    SweepView,
    TrialView,
)
from falaj.study.search_space import TrialParams, format_value, to_flag, to_variable_name
from falaj.study.sweep_decisions import CurveReading, SweepTrial, rank_trials

TRIAL_SUFFIX = ".trials"
"""What trials make is published under the name with this behind it; only the best gets the name itself."""


def new_sweep(
    ctx: CallContext, plan: SweepPlan, spec: JobSpec, refs: Mapping[str, Mapping[str, Ref]], max_points: int
) -> RecordFields:
    """The record of a new sweep. `refs`: its inputs and outputs by name, and its code."""
    texts = {kind: {name: str(ref) for name, ref in refs_of_kind.items()} for kind, refs_of_kind in refs.items()}
    return {
        "id": generate_id(),
        "plan": to_plain(plan),
        "spec": to_plain(spec),
        **texts,
        "who": to_submitter(ctx),
        "most": max_points,
        "state": RUNNING,
        "note": "",
        "asked": 0,
        "cancel": False,
        "submitted": ctx.now(),
        "ended": 0.0,
        "best": 0,
        "value": None,
        "kept": {},
        "importance": {},
        "end": FINISHED,
    }


def sweep_terms(sweep_fields: RecordFields) -> dict[str, str]:
    """What lists and the loop can ask for."""
    live_term = {} if sweep_fields["state"] in ENDED_STATES else {"live": "1"}
    return {"state": sweep_fields["state"], "by": sweep_fields["who"]["id"], "id": sweep_fields["id"], **live_term}


def set_stopping(sweep_fields: RecordFields, reason: str, *, end_state: str) -> RecordFields:
    """No new trials. Those that run are cancelled, unless it shall come to the end it would have come to."""
    cancel = sweep_fields["cancel"] or end_state != FINISHED
    return {**sweep_fields, "state": STOPPING, "note": reason[:500], "cancel": cancel, "end": end_state}


def set_ended(sweep_fields: RecordFields, state: str, note: str, now: float) -> RecordFields:
    """It is over."""
    return {**sweep_fields, "state": state, "note": note[:500], "ended": now}


def read_plan(record: LedgerRecord) -> SweepPlan:
    """How a sweep searches."""
    sweep_plan: SweepPlan = from_plain(SweepPlan, record.body["plan"])
    return sweep_plan


def read_spec(record: LedgerRecord) -> JobSpec:
    """What its trials run."""
    job_spec: JobSpec = from_plain(JobSpec, record.body["spec"])
    return job_spec


def read_refs(record: LedgerRecord, kind: str) -> dict[str, Ref]:
    """Its inputs or outputs by name."""
    return {name: Ref.parse(ref) for name, ref in record.body[kind].items()}


def read_code_ref(record: LedgerRecord) -> Ref | None:
    """The version of the program that its trials run."""
    return read_refs(record, "code").get("code")


def trial_name(sweep: Ref, number: int, kind: str = "trial") -> Ref:
    """What a trial, and its job, is called."""
    return Ref(kind, sweep.project, f"{sweep.name}-{number}")


def to_trial_outputs(outputs: Mapping[str, Ref]) -> dict[str, Ref]:
    """Where trials publish what the sweep will choose from."""
    return {name: Ref(ref.kind, ref.project, f"{ref.name}{TRIAL_SUFFIX}") for name, ref in outputs.items()}


def build_trial_spec(sweep: Ref, spec: JobSpec, params: TrialParams) -> JobSpec:
    """The job of a trial: the command with its parameters as flags and in its environment."""
    flags = [argument for name, value in params.items() for argument in to_flag(name, value)]
    environment = {to_variable_name(name): format_value(value) for name, value in params.items()}
    environment["FALAJ_PARAMS"] = json.dumps(params)
    return replace(
        spec, command=(*spec.command, *flags), env={**spec.env, **environment}, experiment=spec.experiment or sweep.name
    )


def new_trial(record: LedgerRecord, number: int, params: TrialParams, job: jobs.JobView) -> RecordFields:
    """The record of a new trial."""
    return {
        "sweep": record.body["id"],
        "number": number,
        "params": dict(params),
        "job": str(job.ref),
        "run": str(job.run),
        "state": TRIAL_RUNNING,
        "value": None,
        "step": 0,
        "rungs": {},
        "note": "",
        "outputs": {},
        "verdict": "",
        "early": False,
    }


def trial_terms(trial_fields: RecordFields) -> dict[str, str]:
    """How the trials of a sweep are found, and those that are not over."""
    return {
        "sweep": trial_fields["sweep"],
        **({"live": trial_fields["sweep"]} if trial_fields["state"] == TRIAL_RUNNING else {}),
    }


def with_reading(trial_fields: RecordFields, reading: CurveReading) -> RecordFields:
    """With what its curve says by now."""
    rungs = {str(rung): value for rung, value in reading.rungs.items()}
    return {**trial_fields, "value": reading.value, "step": reading.step, "rungs": rungs}


def conclude_trial(trial_fields: RecordFields, job: RecordFields | None, metric: str) -> RecordFields:
    """Its job is over: how the trial ended."""
    state, note = (job["state"], job["note"]) if job else (jobs.FAILED, "its job is gone")
    if state == jobs.SUCCEEDED and trial_fields["value"] is None:
        return {**trial_fields, "state": TRIAL_FAILED, "note": f"it never reported a number as {metric}"}
    if state == jobs.CANCELLED and trial_fields["verdict"]:
        return {
            **trial_fields,
            "state": TRIAL_STOPPED if trial_fields["early"] else TRIAL_CANCELLED,
            "note": trial_fields["verdict"],
        }
    trial_state = {jobs.SUCCEEDED: TRIAL_SUCCEEDED, jobs.CANCELLED: TRIAL_CANCELLED}.get(state, TRIAL_FAILED)
    outputs = job["outputs"] if job and trial_state == TRIAL_SUCCEEDED else {}
    return {**trial_fields, "state": trial_state, "note": note, "outputs": outputs}


def to_sweep_trial(trial_fields: RecordFields) -> SweepTrial:
    """A trial as decisions see it."""
    rungs = {int(rung): value for rung, value in trial_fields["rungs"].items()}
    return SweepTrial(
        trial_fields["number"],
        trial_fields["params"],
        trial_fields["state"],
        trial_fields["value"],
        trial_fields["step"],
        rungs,
        trial_fields["note"],
    )


def list_trials(tx: LedgerReader, record: LedgerRecord, *, only_live: bool = False) -> list[LedgerRecord]:
    """The trials of a sweep by number; all, or those that are not over."""
    terms = {"live" if only_live else "sweep": str(record.body["id"])}
    return sorted(iter_records(tx, "trial", record.key.tenant, terms), key=lambda trial: int(trial.body["number"]))


def build_sweep_view(
    record: LedgerRecord, trial_fields_list: Iterable[RecordFields] = (), states: Mapping[str, str] | None = None
) -> SweepView:
    """A sweep as its people see it; `states` are those of the jobs of trials that are not over."""
    sweep_fields, plan = record.body, read_plan(record)
    bodies_by_number = {trial_body["number"]: trial_body for trial_body in trial_fields_list}
    ranked_trials = rank_trials(plan, (to_sweep_trial(trial_body) for trial_body in bodies_by_number.values()))
    best_trial = next((trial for trial in ranked_trials if trial.value is not None), None)
    ended_count = (
        sum(trial.state != TRIAL_RUNNING for trial in ranked_trials) if bodies_by_number else sweep_fields["asked"]
    )
    return SweepView(
        ref=record.ref.bare,
        state=sweep_fields["state"],
        progress=f"{ended_count}/{min(plan.trials, sweep_fields['most'])}",
        metric=plan.metric,
        value=best_trial.value if best_trial and not sweep_fields["best"] else sweep_fields["value"],
        best=sweep_fields["best"] or (best_trial.number if best_trial else 0),
        note=sweep_fields["note"],
        submitted_at=sweep_fields["submitted"],
        author=sweep_fields["who"]["id"],
        plan=plan,
        spec=read_spec(record),
        inputs=read_refs(record, "inputs"),
        outputs={**read_refs(record, "outputs"), **read_refs(record, "kept")},
        code=read_code_ref(record),
        importance=sweep_fields["importance"] or compute_importance(plan, ranked_trials),
        ended_at=sweep_fields["ended"],
        trials=tuple(_build_trial_view(bodies_by_number[trial.number], states or {}) for trial in ranked_trials),
    )


def _build_trial_view(trial_fields: RecordFields, states: Mapping[str, str]) -> TrialView:
    state = states.get(trial_fields["job"], trial_fields["state"])
    outputs: Mapping[str, Any] = trial_fields["outputs"]
    return TrialView(
        trial_fields["number"],
        "stopping" if trial_fields["verdict"] and trial_fields["state"] == TRIAL_RUNNING else state,
        trial_fields["value"],
        trial_fields["step"],
        trial_fields["params"],
        trial_fields["verdict"] or trial_fields["note"],
        Ref.parse(trial_fields["job"]),
        Ref.parse(trial_fields["run"]),
        {name: Ref.parse(ref) for name, ref in outputs.items()},
    )
