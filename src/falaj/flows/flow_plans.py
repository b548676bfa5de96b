"""Plans: a flow as its file said it, checked before it is kept. One clear error for each thing that cannot be."""

import re
from collections.abc import Mapping
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.flow_draft import RESOURCE_KINDS, detect_resource_kind
from falaj.core.operation import get_operation
from falaj.core.ref import Ref
from falaj.fleet.amounts import parse_seconds
from falaj.flows.records import STEP_FUNCTION, STEP_GATE, STEP_JOB, STEP_OPERATION, FlowPlan, StepPlan
from falaj.flows.run_decisions import iterate_leaves, sort_steps
from falaj.govern.secret_service import looks_like_secret
from falaj.jobs.spec import parse_spec, validate_spec
from falaj.services import list_actions, load_service_class
from falaj.store.codec import from_plain, to_json, to_plain

MAX_STEPS, MAX_ITEMS, MAX_PARALLEL, MAX_PLAN_BYTES, MAX_RETRIES = 500, 1_000, 1_000, 1 << 20, 100
STEP_COMMAND = ("python", "-m", "falaj.worker.step_runner")
GATE_APPROVAL, GATE_EVENT = "approval", "event"
_STEP_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")
_FLOW_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
_ENTRY_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.py:[A-Za-z_][A-Za-z0-9_]{0,99}")


def build_plan(definition: Mapping[str, Any]) -> FlowPlan:
    """What a flow's file said (core/flow_definition.py) as a plan: the words of its steps become specs of jobs."""
    steps = []
    for step_definition in definition["steps"]:
        spec_fields, timeout_s = dict(step_definition["words"]), parse_seconds(step_definition["timeout"] or 0)
        step_fields = {
            **{name: step_definition[name] for name in step_definition if name not in ("words", "timeout")},
            "timeout_s": timeout_s,
        }
        if step_definition["kind"] in (STEP_FUNCTION, STEP_JOB):
            spec_fields.setdefault("queue", definition["queue"])
            spec_fields.setdefault("command", list(STEP_COMMAND))
            step_fields["spec"] = to_plain(
                parse_spec({**spec_fields, "retries": step_definition["retries"], "limit_s": timeout_s})
            )
        steps.append(step_fields)
    plan: FlowPlan = from_plain(FlowPlan, {**definition, "steps": steps})
    return plan


def check_flow_name(flow: Ref) -> None:
    """Invalid unless a flow can be called so."""
    if flow.kind != "flow" or flow.version or not _FLOW_NAME_PATTERN.fullmatch(flow.name):
        raise Invalid(f"{flow} names no flow", "for example flow:fraud/retrain: letters, digits, - and _", flow)


def check_plan(plan: FlowPlan) -> None:
    """Invalid when the plan cannot be carried out."""
    if not 0 < len(plan.steps) <= MAX_STEPS or not 0 < plan.at_once <= MAX_PARALLEL:
        raise Invalid(f"{len(plan.steps)} steps, {plan.at_once} at once", f"1 to {MAX_STEPS}, at most {MAX_PARALLEL}")
    names = [step.name for step in plan.steps]
    duplicate = next((name for name in names if names.count(name) > 1), "")
    if duplicate:
        raise Invalid(f"two steps are called {duplicate[:60]}", 'name one of them: step.options(name="…")')
    for name, text in plan.secrets.items():
        if not text.startswith("secret://") and (":" not in text or Ref.parse(text).kind != "secret"):
            raise Invalid(f"{name} names no secret", f"secrets by reference only: {name}=secret:project/name")
    steps_by_name = {step.name: step for step in plan.steps}
    for step in plan.steps:
        _check_step(step, plan, steps_by_name)
    sort_steps(plan)
    text = to_json(plan).decode()
    if len(text) > MAX_PLAN_BYTES:
        raise Invalid(f"the plan has {len(text)} bytes", "give large lists as a dataset")
    plain_parts = [plan.params, plan.message, *((step.takes, step.entry, step.name) for step in plan.steps)]
    if looks_like_secret(to_json(plain_parts).decode()):
        raise Invalid("the plan holds a secret, and would be kept in the clear", "flow(…, secrets={NAME: 'secret:…'})")


def _check_step(step: StepPlan, plan: FlowPlan, steps_by_name: Mapping[str, StepPlan]) -> None:
    if not _STEP_NAME_PATTERN.fullmatch(step.name):
        raise Invalid(f"{step.name[:60]!r} is no name of a step", "letters, digits and _")
    _check_sources(step, plan, steps_by_name)
    if not 0 <= step.retries <= MAX_RETRIES or step.timeout_s < 0:
        raise Invalid(f"{step.name}: {step.retries} retries, {step.timeout_s} s", f"at most {MAX_RETRIES}, from 0 s")
    mapped_values = step.takes.get(step.over)
    if step.over and (step.over not in step.takes or step.kind not in (STEP_FUNCTION, STEP_JOB)):
        raise Invalid(f"{step.name} goes through {step.over}, which it is not given", "step.map(list, …)")
    if isinstance(mapped_values, list) and len(mapped_values) > MAX_ITEMS:
        raise Invalid(f"{step.name} goes through {len(mapped_values)} values", f"at most {MAX_ITEMS}")
    check_kind = {
        STEP_FUNCTION: _check_function,
        STEP_JOB: _check_job,
        STEP_OPERATION: _check_operation,
        STEP_GATE: _check_gate,
    }.get(step.kind)
    if check_kind is None:
        raise Invalid(
            f"{step.name} is a {step.kind[:40]!r}", f"a {STEP_FUNCTION}, {STEP_JOB}, {STEP_OPERATION} or {STEP_GATE}"
        )
    check_kind(step)


def _check_sources(step: StepPlan, plan: FlowPlan, steps_by_name: Mapping[str, StepPlan]) -> None:
    for source_leaf in (leaf for source in (*step.takes.values(), step.when) for leaf in iterate_leaves(source)):
        if "param" in source_leaf and source_leaf["param"] not in plan.params:
            raise Invalid(
                f"{step.name} takes the parameter {source_leaf['param']}, which the flow has not", "params={…}"
            )
        if "step" in source_leaf and source_leaf["step"] not in steps_by_name:
            raise Invalid(
                f"{step.name} takes what {source_leaf['step']} gives, and there is no such step", "check the name"
            )
        if "ref" in source_leaf:
            Ref.parse(str(source_leaf["ref"]))
    missing = next((name for name in step.after if name not in steps_by_name), "")
    if missing:
        raise Invalid(f"{step.name} waits for {missing}, and there is no such step", "check the name")


def _check_function(step: StepPlan) -> None:
    if not _ENTRY_PATTERN.fullmatch(step.entry) or step.spec is None or tuple(step.spec.command) != STEP_COMMAND:
        raise Invalid(f"{step.name} names no function", "file.py:function, of the file the flow is in")
    _check_job(step)


def _check_job(step: StepPlan) -> None:
    if step.spec is None:
        raise Invalid(f"{step.name} says nothing of its job", "a command, and what it needs")
    validate_spec(step.spec)
    for name in (*step.takes, *step.outputs):
        if not name.isidentifier() or len(name) > 50:
            raise Invalid(f"{step.name}: {name[:60]!r} cannot name an input or output", "letters, digits and _")
    if len({name.upper() for name in step.takes}) < len(step.takes):
        raise Invalid(f"{step.name} has parameters that differ in capitals only", "they become variables: rename one")
    for name, text in step.outputs.items():
        ref = Ref.parse(text)
        if ref.kind not in RESOURCE_KINDS or ref.version:
            raise Invalid(
                f"{step.name}: {text[:100]} cannot be the output {name}", f"a {', '.join(RESOURCE_KINDS)}, no version"
            )


def _check_operation(step: StepPlan) -> None:
    if step.entry not in list_actions():
        raise Invalid(f"there is no verb {step.entry[:60]!r}", "desk.verb, for example serve.add")
    service_name, _, name = step.entry.partition(".")
    operation = get_operation(load_service_class(service_name), name)
    if operation.outside or operation.once:
        raise Invalid(f"{step.entry} moves bytes or shows a secret", "call it in a step: that runs beside the data")
    unknown_arguments = sorted(set(step.takes) - {param.name for param in operation.params})
    missing_arguments = sorted({param.name for param in operation.params if param.required} - set(step.takes))
    if unknown_arguments or missing_arguments:
        problem = f"has no {unknown_arguments[0]}" if unknown_arguments else f"needs {missing_arguments[0]}"
        raise Invalid(f"{step.entry} {problem}", f"falaj {service_name} {name.replace('_', '-')} --help")


def _check_gate(step: StepPlan) -> None:
    required_names = {GATE_APPROVAL: {"reason"}, GATE_EVENT: {"verb", "subject"}}.get(step.entry)
    if required_names is None or not required_names <= set(step.takes):
        raise Invalid(
            f"{step.name} waits for a {step.entry[:40]!r}", "flow.approval(reason) or flow.event(verb, subject)"
        )


def check_params(plan: FlowPlan, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a run: what is given over what the flow says; Invalid where one is missing, or no such."""
    unknown_names = sorted(set(arguments) - set(plan.params))
    if unknown_names:
        raise Invalid(
            f"the flow has no parameter {unknown_names[0][:60]}", f"it has: {', '.join(plan.params) or 'none'}"
        )
    params = {**plan.params, **arguments}
    missing = sorted(name for name, value in params.items() if value is None)
    if missing:
        raise Invalid(f"the parameter {missing[0]} must be given", f"--params {missing[0]}=…")
    for name, value in arguments.items():
        expected_kind, kind = detect_resource_kind(plan.params[name]), detect_resource_kind(value)
        if expected_kind and kind != expected_kind:
            raise Invalid(
                f"the parameter {name} is a {expected_kind}, and {str(value)[:80]} is none",
                f"{expected_kind}:project/name",
            )
    text = to_json(params).decode()
    if len(text) > MAX_PLAN_BYTES // 16 or looks_like_secret(text):
        raise Invalid("the parameters hold a secret, or are too long", "secrets by reference, large things as datasets")
    return params
