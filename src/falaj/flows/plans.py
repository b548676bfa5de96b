"""Plans: a flow as its file said it, checked before it is kept. One clear error for each thing that cannot be."""

import re
from collections.abc import Mapping
from typing import Any

from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.core.sketch import KINDS, kind_of
from falaj.core.verb import verb_of
from falaj.desks import actions, desk_class
from falaj.fleet.amounts import seconds
from falaj.flows.decide import in_order, leaves
from falaj.flows.records import FUNCTION, GATE, JOB, VERB, FlowPlan, StepPlan
from falaj.govern.secrets import contains_secret
from falaj.jobs.spec import checked, spec_of
from falaj.store.codec import from_plain, to_json, to_plain

MOST_STEPS, MOST_ITEMS, MOST_AT_ONCE, MOST_BYTES, MOST_RETRIES = 500, 1_000, 1_000, 1 << 20, 100
COMMAND = ("python", "-m", "falaj.worker.steps")
APPROVAL, EVENT = "approval", "event"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")
_FLOW = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
_ENTRY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.py:[A-Za-z_][A-Za-z0-9_]{0,99}")


def plan_of(said: Mapping[str, Any]) -> FlowPlan:
    """What a flow's file said (core/flow.py) as a plan: the words of its steps become specs of jobs."""
    steps = []
    for one in said["steps"]:
        words, timeout_s = dict(one["words"]), seconds(one["timeout"] or 0)
        made = {**{name: one[name] for name in one if name not in ("words", "timeout")}, "timeout_s": timeout_s}
        if one["kind"] in (FUNCTION, JOB):
            words.setdefault("queue", said["queue"])
            words.setdefault("command", list(COMMAND))
            made["spec"] = to_plain(spec_of({**words, "retries": one["retries"], "limit_s": timeout_s}))
        steps.append(made)
    plan: FlowPlan = from_plain(FlowPlan, {**said, "steps": steps})
    return plan


def check_name(flow: Ref) -> None:
    """Invalid unless a flow can be called so."""
    if flow.kind != "flow" or flow.version or not _FLOW.fullmatch(flow.name):
        raise Invalid(f"{flow} names no flow", "for example flow:fraud/retrain: letters, digits, - and _", flow)


def check_plan(plan: FlowPlan) -> None:
    """Invalid when the plan cannot be carried out."""
    if not 0 < len(plan.steps) <= MOST_STEPS or not 0 < plan.at_once <= MOST_AT_ONCE:
        raise Invalid(f"{len(plan.steps)} steps, {plan.at_once} at once", f"1 to {MOST_STEPS}, at most {MOST_AT_ONCE}")
    names = [step.name for step in plan.steps]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise Invalid(f"two steps are called {twice[:60]}", 'name one of them: step.options(name="…")')
    for name, text in plan.secrets.items():
        if not text.startswith("secret://") and (":" not in text or Ref.parse(text).kind != "secret"):
            raise Invalid(f"{name} names no secret", f"secrets by reference only: {name}=secret:project/name")
    known = {step.name: step for step in plan.steps}
    for step in plan.steps:
        _check_step(step, plan, known)
    in_order(plan)
    text = to_json(plan).decode()
    if len(text) > MOST_BYTES:
        raise Invalid(f"the plan has {len(text)} bytes", "give large lists as a dataset")
    given = [plan.params, plan.message, *((step.takes, step.entry, step.name) for step in plan.steps)]
    if contains_secret(to_json(given).decode()):
        raise Invalid("the plan holds a secret, and would be kept in the clear", "flow(…, secrets={NAME: 'secret:…'})")


def _check_step(step: StepPlan, plan: FlowPlan, known: Mapping[str, StepPlan]) -> None:
    if not _NAME.fullmatch(step.name):
        raise Invalid(f"{step.name[:60]!r} is no name of a step", "letters, digits and _")
    _check_sources(step, plan, known)
    if not 0 <= step.retries <= MOST_RETRIES or step.timeout_s < 0:
        raise Invalid(f"{step.name}: {step.retries} retries, {step.timeout_s} s", f"at most {MOST_RETRIES}, from 0 s")
    many = step.takes.get(step.over)
    if step.over and (step.over not in step.takes or step.kind not in (FUNCTION, JOB)):
        raise Invalid(f"{step.name} goes through {step.over}, which it is not given", "step.map(list, …)")
    if isinstance(many, list) and len(many) > MOST_ITEMS:
        raise Invalid(f"{step.name} goes through {len(many)} values", f"at most {MOST_ITEMS}")
    check = {FUNCTION: _check_function, JOB: _check_job, VERB: _check_verb, GATE: _check_gate}.get(step.kind)
    if check is None:
        raise Invalid(f"{step.name} is a {step.kind[:40]!r}", f"a {FUNCTION}, {JOB}, {VERB} or {GATE}")
    check(step)


def _check_sources(step: StepPlan, plan: FlowPlan, known: Mapping[str, StepPlan]) -> None:
    for one in (leaf for source in (*step.takes.values(), step.when) for leaf in leaves(source)):
        if "param" in one and one["param"] not in plan.params:
            raise Invalid(f"{step.name} takes the parameter {one['param']}, which the flow has not", "params={…}")
        if "step" in one and one["step"] not in known:
            raise Invalid(f"{step.name} takes what {one['step']} gives, and there is no such step", "check the name")
        if "ref" in one:
            Ref.parse(str(one["ref"]))
    missing = next((name for name in step.after if name not in known), "")
    if missing:
        raise Invalid(f"{step.name} waits for {missing}, and there is no such step", "check the name")


def _check_function(step: StepPlan) -> None:
    if not _ENTRY.fullmatch(step.entry) or step.spec is None or tuple(step.spec.command) != COMMAND:
        raise Invalid(f"{step.name} names no function", "file.py:function, of the file the flow is in")
    _check_job(step)


def _check_job(step: StepPlan) -> None:
    if step.spec is None:
        raise Invalid(f"{step.name} says nothing of its job", "a command, and what it needs")
    checked(step.spec)
    for name in (*step.takes, *step.outputs):
        if not name.isidentifier() or len(name) > 50:
            raise Invalid(f"{step.name}: {name[:60]!r} cannot name an input or output", "letters, digits and _")
    if len({name.upper() for name in step.takes}) < len(step.takes):
        raise Invalid(f"{step.name} has parameters that differ in capitals only", "they become variables: rename one")
    for name, text in step.outputs.items():
        ref = Ref.parse(text)
        if ref.kind not in KINDS or ref.version:
            raise Invalid(f"{step.name}: {text[:100]} cannot be the output {name}", f"a {', '.join(KINDS)}, no version")


def _check_verb(step: StepPlan) -> None:
    if step.entry not in actions():
        raise Invalid(f"there is no verb {step.entry[:60]!r}", "desk.verb, for example serve.add")
    desk, _, name = step.entry.partition(".")
    verb = verb_of(desk_class(desk), name)
    if verb.outside or verb.once:
        raise Invalid(f"{step.entry} moves bytes or shows a secret", "call it in a step: that runs beside the data")
    unknown = sorted(set(step.takes) - {param.name for param in verb.params})
    needed = sorted({param.name for param in verb.params if param.required} - set(step.takes))
    if unknown or needed:
        said = f"has no {unknown[0]}" if unknown else f"needs {needed[0]}"
        raise Invalid(f"{step.entry} {said}", f"falaj {desk} {name.replace('_', '-')} --help")


def _check_gate(step: StepPlan) -> None:
    wanted = {APPROVAL: {"reason"}, EVENT: {"verb", "subject"}}.get(step.entry)
    if wanted is None or not wanted <= set(step.takes):
        raise Invalid(
            f"{step.name} waits for a {step.entry[:40]!r}", "flow.approval(reason) or flow.event(verb, subject)"
        )


def check_params(plan: FlowPlan, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a run: what is given over what the flow says; Invalid where one is missing, or no such."""
    unknown = sorted(set(given) - set(plan.params))
    if unknown:
        raise Invalid(f"the flow has no parameter {unknown[0][:60]}", f"it has: {', '.join(plan.params) or 'none'}")
    params = {**plan.params, **given}
    missing = sorted(name for name, value in params.items() if value is None)
    if missing:
        raise Invalid(f"the parameter {missing[0]} must be given", f"--params {missing[0]}=…")
    for name, value in given.items():
        wanted, kind = kind_of(plan.params[name]), kind_of(value)
        if wanted and kind != wanted:
            raise Invalid(
                f"the parameter {name} is a {wanted}, and {str(value)[:80]} is none", f"{wanted}:project/name"
            )
    text = to_json(params).decode()
    if len(text) > MOST_BYTES // 16 or contains_secret(text):
        raise Invalid("the parameters hold a secret, or are too long", "secrets by reference, large things as datasets")
    return params
