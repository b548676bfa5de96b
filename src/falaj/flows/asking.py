"""Asking for what a step is: its job with pinned inputs, its verb, or the gate it waits at.

Everything here happens in the transaction that writes the run, in the name of whoever owns it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from falaj.core.errand import Here
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.core.sketch import kind_of
from falaj.flows import cache, turns
from falaj.flows.plans import APPROVAL
from falaj.flows.records import FUNCTION, RUNNING, SUCCEEDED, Body, FlowPlan, StepPlan
from falaj.jobs.records import JobSpec, JobView
from falaj.store.codec import to_json, to_plain
from falaj.store.ledger import Ledger, Writer
from falaj.store.records import Record
from falaj.worker.steps import TOLD

MOST_ARGUMENTS = 100_000
"""Bytes: they travel as a variable, and a system takes no longer one."""
MOST_VALUE = 64 << 10
APPROVE = "flows.pass"


class Case(NamedTuple):
    """A run at work: its records, its plan, and its owner's hands."""

    tx: Writer
    here: Here
    turn: Record
    flow: Record
    plan: FlowPlan
    body: Body
    """As it will be written."""
    now: float


class Given(NamedTuple):
    """What one item of a step is given."""

    values: dict[str, Any]
    files: dict[str, Any]
    """Parameter to the role, or roles, of what it opens."""
    inputs: dict[str, Ref]


def given_to(case: Case, step: StepPlan, at: int) -> Given:
    """The arguments of one item: references to files become inputs, all else stays a value."""
    values: dict[str, Any] = {}
    files: dict[str, Any] = {}
    inputs: dict[str, Ref] = {}
    for name, source in step.takes.items():
        found = turns.resolved(source, case.body, case.plan)
        found = found[at] if name == step.over else found
        text = isinstance(source, Mapping) and bool(source.get("text"))
        if not text and kind_of(found):
            files[name], inputs[name] = name, Ref.parse(found)
        elif not text and isinstance(found, list) and found and all(map(kind_of, found)):
            files[name] = [f"{name}_{number}" for number in range(len(found))]
            inputs |= dict(zip(files[name], map(Ref.parse, found), strict=True))
        else:
            values[name] = found
    return Given(values, files, inputs)


def ask(ledger: Ledger, case: Case, step: StepPlan, at: int, item: Body) -> Body:
    """One item of a step as it stands after it was asked for."""
    if step.kind == "verb":
        return _call(case, step, item)
    if step.kind == "gate":
        return _wait(ledger, case, step, item)
    given = given_to(case, step, at)
    pinned = {role: _pin(case, ref) for role, ref in given.inputs.items()}
    item = {**item, "at": case.now}
    if step.cache and pinned:  # what reads nothing that has a digest may give something else tomorrow
        roots = {role: str(case.tx.need(ref).body["root"]) for role, ref in pinned.items()}
        named = {**given.values, "": given.files}
        item["key"] = cache.key_of(step, case.flow.body["root"], named, roots)
        known = None if case.turn.body["fresh"] or item["try"] > 1 else _known(case, item["key"], pinned)
        if known is not None:
            taken = {name: known[name] for name in ("outputs", "value")}
            return {**item, **taken, "state": SUCCEEDED, "cached": known["turn"], "end": case.now}
    code = case.flow.body["code"]
    job: JobView = case.here.jobs.add(
        turns.job_name(case.turn.ref.bare, step, at, item["try"]),
        _spec(case, step, given),
        inputs=pinned,
        outputs={name: Ref.parse(ref) for name, ref in step.outputs.items()},
        code=Ref.parse(code) if code else None,
    )
    return {**item, "state": RUNNING, "job": str(job.ref)}


def _pin(case: Case, ref: Ref) -> Ref:
    """The version a reference means now. What is pinned is judged when the job is asked for."""
    return ref if ref.pinned else Ref.parse(case.here.catalog.show(ref).ref)


def _known(case: Case, key: str, inputs: Mapping[str, Ref]) -> Body | None:
    memo = cache.memo_key(case.turn.key.tenant, case.turn.key.project, key)
    return cache.known(case.tx, case.here, memo, inputs.values())


def _spec(case: Case, step: StepPlan, given: Given) -> JobSpec:
    spec, flow = step.spec, Ref.parse(case.turn.body["flow"])
    if spec is None:
        raise Invalid(f"{step.name} says nothing of its job", "save the flow anew")
    if step.kind == FUNCTION:
        env = {TOLD: json.dumps({"entry": step.entry, "args": given.values, "files": given.files})}
    else:
        env = {f"FALAJ_PARAM_{name.upper()}": _text(value) for name, value in given.values.items()}
    size = sum(map(len, env.values()))
    if size > MOST_ARGUMENTS:
        raise Invalid(f"the arguments of {step.name} have {size} bytes", "hand large things on as outputs: files")
    secrets = {**case.plan.secrets, **spec.secrets}
    return replace(spec, env={**spec.env, **env}, secrets=secrets, experiment=spec.experiment or flow.name)


def _call(case: Case, step: StepPlan, item: Body) -> Body:
    """A verb, through the guard, in the same transaction as the run that asked for it: once, whatever dies."""
    desk, _, name = step.entry.partition(".")
    arguments = {name: turns.resolved(source, case.body, case.plan) for name, source in step.takes.items()}
    try:
        value = to_plain(getattr(getattr(case.here, desk), name)(**arguments))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # Records that are written as plain values may be anything; who wrote them shall hear it, and no other run.
        hint = f"falaj {desk} {name.replace('_', '-')} --help"
        raise Invalid(f"{step.entry} cannot take what it is given: {str(error)[:200]}", hint) from error
    if len(to_json(value)) > MOST_VALUE:
        value = None  # a long list; what a flow goes on with is short
    return {**item, "state": SUCCEEDED, "value": value, "at": case.now, "end": case.now}


def _wait(ledger: Ledger, case: Case, step: StepPlan, item: Body) -> Body:
    """A gate: what it waits for is asked, or marked, now."""
    takes = {name: turns.resolved(source, case.body, case.plan) for name, source in step.takes.items()}
    item = {**item, "state": RUNNING, "at": case.now}
    if step.entry == APPROVAL:
        told = json.dumps([case.turn.body["id"], step.name, item["try"], takes], sort_keys=True)
        digest = f"sha256:{hashlib.sha256(told.encode()).hexdigest()}"
        about = Ref.parse(takes["about"]) if takes.get("about") else None
        reason = f"{takes['reason']} ({case.turn.ref.bare})"
        asked = case.here.approvals.ask(
            APPROVE, digest, reason, about=about, needs=int(takes.get("needs", 1)), days=int(takes.get("days", 7))
        )
        return {**item, "mark": digest, "note": f"falaj approvals give {asked.ref}"}
    _seen(case.here, Ref.parse(takes["subject"]))
    return {**item, "mark": ledger.store.end(), "note": f"waits for {takes['verb']} of {takes['subject']}"}


def _seen(here: Here, subject: Ref) -> None:
    """Nobody waits for what they may not see: the desk that shows such a thing is asked for it."""
    from falaj.desks import DESKS

    desk = next((name for name, one in DESKS.items() if subject.kind in one.kinds), "")
    if not desk:
        raise Invalid(f"nothing shows a {subject.kind}", "wait for an event of a thing that has a page", subject)
    getattr(here, desk).show(subject)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
