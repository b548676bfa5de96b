"""Asking for what a step is: its job with pinned inputs, its verb, or the gate it waits at.

Everything here happens in the transaction that writes the run, in the name of whoever owns it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from falaj.core.client_command import Client
from falaj.core.errors import Invalid
from falaj.core.flow_draft import detect_resource_kind
from falaj.core.ref import Ref
from falaj.flows import flow_runs, step_cache
from falaj.flows.flow_plans import GATE_APPROVAL
from falaj.flows.records import RUNNING, STEP_FUNCTION, SUCCEEDED, FlowPlan, RecordBody, StepPlan
from falaj.jobs.records import JobSpec, JobView
from falaj.store.codec import to_json, to_plain
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.records import LedgerRecord
from falaj.worker.step_runner import STEP_VARIABLE

MAX_ARGUMENT_BYTES = 100_000
"""Bytes: they travel as a variable, and a system takes no longer one."""
MAX_VALUE_BYTES = 64 << 10
APPROVAL_ACTION = "flows.pass"


class RunContext(NamedTuple):
    """A run at work: its records, its plan, and its owner's hands."""

    tx: LedgerWriter
    here: Client
    turn: LedgerRecord
    flow: LedgerRecord
    plan: FlowPlan
    body: RecordBody
    """As it will be written."""
    now: float


class ItemArguments(NamedTuple):
    """What one item of a step is given."""

    values: dict[str, Any]
    files: dict[str, Any]
    """Parameter to the role, or roles, of what it opens."""
    inputs: dict[str, Ref]


def resolve_arguments(run_context: RunContext, step: StepPlan, item_number: int) -> ItemArguments:
    """The arguments of one item: references to files become inputs, all else stays a value."""
    values: dict[str, Any] = {}
    files: dict[str, Any] = {}
    inputs: dict[str, Ref] = {}
    for name, source in step.takes.items():
        argument = flow_runs.resolve_source(source, run_context.body, run_context.plan)
        argument = argument[item_number] if name == step.over else argument
        is_text = isinstance(source, Mapping) and bool(source.get("text"))
        if not is_text and detect_resource_kind(argument):
            files[name], inputs[name] = name, Ref.parse(argument)
        elif not is_text and isinstance(argument, list) and argument and all(map(detect_resource_kind, argument)):
            files[name] = [f"{name}_{number}" for number in range(len(argument))]
            inputs |= dict(zip(files[name], map(Ref.parse, argument), strict=True))
        else:
            values[name] = argument
    return ItemArguments(values, files, inputs)


def request_item(
    ledger: Ledger, run_context: RunContext, step: StepPlan, item_number: int, item: RecordBody
) -> RecordBody:
    """One item of a step as it stands after it was asked for."""
    if step.kind == "verb":
        return _call_operation(run_context, step, item)
    if step.kind == "gate":
        return _open_gate(ledger, run_context, step, item)
    arguments = resolve_arguments(run_context, step, item_number)
    pinned_inputs = {role: _pin_version(run_context, ref) for role, ref in arguments.inputs.items()}
    item = {**item, "at": run_context.now}
    if step.cache and pinned_inputs:  # what reads nothing that has a digest may give something else tomorrow
        roots = {role: str(run_context.tx.need(ref).body["root"]) for role, ref in pinned_inputs.items()}
        values_by_name = {**arguments.values, "": arguments.files}
        item["key"] = step_cache.compute_step_key(step, run_context.flow.body["root"], values_by_name, roots)
        cached_result = (
            None
            if run_context.turn.body["fresh"] or item["try"] > 1
            else _find_cached(run_context, item["key"], pinned_inputs)
        )
        if cached_result is not None:
            cached_fields = {name: cached_result[name] for name in ("outputs", "value")}
            return {
                **item,
                **cached_fields,
                "state": SUCCEEDED,
                "cached": cached_result["turn"],
                "end": run_context.now,
            }
    code = run_context.flow.body["code"]
    job: JobView = run_context.here.jobs.add(
        flow_runs.make_job_ref(run_context.turn.ref.bare, step, item_number, item["try"]),
        _build_spec(run_context, step, arguments),
        inputs=pinned_inputs,
        outputs={name: Ref.parse(ref) for name, ref in step.outputs.items()},
        code=Ref.parse(code) if code else None,
    )
    return {**item, "state": RUNNING, "job": str(job.ref)}


def _pin_version(run_context: RunContext, ref: Ref) -> Ref:
    """The version a reference means now. What is pinned is judged when the job is asked for."""
    return ref if ref.pinned else Ref.parse(run_context.here.catalog.show(ref).ref)


def _find_cached(run_context: RunContext, key: str, inputs: Mapping[str, Ref]) -> RecordBody | None:
    memo_ref = step_cache.make_memo_key(run_context.turn.key.tenant, run_context.turn.key.project, key)
    return step_cache.find_result(run_context.tx, run_context.here, memo_ref, inputs.values())


def _build_spec(run_context: RunContext, step: StepPlan, arguments: ItemArguments) -> JobSpec:
    spec, flow = step.spec, Ref.parse(run_context.turn.body["flow"])
    if spec is None:
        raise Invalid(f"{step.name} says nothing of its job", "save the flow anew")
    if step.kind == STEP_FUNCTION:
        env = {STEP_VARIABLE: json.dumps({"entry": step.entry, "args": arguments.values, "files": arguments.files})}
    else:
        env = {f"FALAJ_PARAM_{name.upper()}": _to_text(value) for name, value in arguments.values.items()}
    size = sum(map(len, env.values()))
    if size > MAX_ARGUMENT_BYTES:
        raise Invalid(f"the arguments of {step.name} have {size} bytes", "hand large things on as outputs: files")
    secrets = {**run_context.plan.secrets, **spec.secrets}
    return replace(spec, env={**spec.env, **env}, secrets=secrets, experiment=spec.experiment or flow.name)


def _call_operation(run_context: RunContext, step: StepPlan, item: RecordBody) -> RecordBody:
    """A verb, through the guard, in the same transaction as the run that asked for it: once, whatever dies."""
    service_name, _, name = step.entry.partition(".")
    arguments = {
        name: flow_runs.resolve_source(source, run_context.body, run_context.plan)
        for name, source in step.takes.items()
    }
    try:
        value = to_plain(getattr(getattr(run_context.here, service_name), name)(**arguments))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # Records that are written as plain values may be anything; who wrote them shall hear it, and no other run.
        hint = f"falaj {service_name} {name.replace('_', '-')} --help"
        raise Invalid(f"{step.entry} cannot take what it is given: {str(error)[:200]}", hint) from error
    if len(to_json(value)) > MAX_VALUE_BYTES:
        value = None  # a long list; what a flow goes on with is short
    return {**item, "state": SUCCEEDED, "value": value, "at": run_context.now, "end": run_context.now}


def _open_gate(ledger: Ledger, run_context: RunContext, step: StepPlan, item: RecordBody) -> RecordBody:
    """A gate: what it waits for is asked, or marked, now."""
    takes = {
        name: flow_runs.resolve_source(source, run_context.body, run_context.plan)
        for name, source in step.takes.items()
    }
    item = {**item, "state": RUNNING, "at": run_context.now}
    if step.entry == GATE_APPROVAL:
        question_text = json.dumps([run_context.turn.body["id"], step.name, item["try"], takes], sort_keys=True)
        digest = f"sha256:{hashlib.sha256(question_text.encode()).hexdigest()}"
        about_ref = Ref.parse(takes["about"]) if takes.get("about") else None
        reason = f"{takes['reason']} ({run_context.turn.ref.bare})"
        approval = run_context.here.approvals.ask(
            APPROVAL_ACTION,
            digest,
            reason,
            about=about_ref,
            needs=int(takes.get("needs", 1)),
            days=int(takes.get("days", 7)),
        )
        return {**item, "mark": digest, "note": f"falaj approvals give {approval.ref}"}
    _require_visible(run_context.here, Ref.parse(takes["subject"]))
    return {**item, "mark": ledger.store.end(), "note": f"waits for {takes['verb']} of {takes['subject']}"}


def _require_visible(client: Client, subject: Ref) -> None:
    """Nobody waits for what they may not see: the desk that shows such a thing is asked for it."""
    from falaj.services import SERVICES

    service_name = next((name for name, service in SERVICES.items() if subject.kind in service.kinds), "")
    if not service_name:
        raise Invalid(f"nothing shows a {subject.kind}", "wait for an event of a thing that has a page", subject)
    getattr(client, service_name).show(subject)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
