"""Runs as they lie in their records (`turn:PROJECT/FLOW-N`), and as decisions, jobs and people see them.

The body has every step with its items: one, or as many as the list it goes through. An item is tried as a job whose
name is made of the run, the step, the item and the try, so that whoever asks for it again finds it asked for.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.core.context import CallContext
from falaj.core.errors import Invalid
from falaj.core.event import generate_id
from falaj.core.ref import Ref
from falaj.flows.records import (
    CANCELLED,
    ENDED_STATES,
    FAILED,
    RUNNING,
    SUCCEEDED,
    WAITING,
    FlowPlan,
    FlowView,
    RecordBody,
    RunView,
    StepPlan,
    StepView,
)
from falaj.flows.run_decisions import StepState
from falaj.jobs.attempts import to_submitter
from falaj.store.codec import from_plain
from falaj.store.records import LedgerRecord

MAX_NOTE_CHARS = 500
MAX_RESULT_BYTES = 1 << 20
"""Bytes of all that the items of one step return."""
_PLAN_CACHE: dict[str, FlowPlan] = {}
_MAX_CACHED_PLANS = 256


def make_run_body(
    ctx: CallContext, flow: Ref, plan: FlowPlan, params: Mapping[str, Any], start_facts: RecordBody
) -> RecordBody:
    """The record of a new run. `start_facts`: cause, begun_by, fresh, number."""
    return {
        "id": generate_id(),
        "flow": str(flow),
        "params": dict(params),
        "who": to_submitter(ctx),
        **start_facts,
        "state": RUNNING,
        "order": [step.name for step in plan.steps],
        "note": "",
        "cancel": "",
        "started": ctx.now(),
        "ended": 0.0,
        "steps": {step.name: {"state": WAITING, "items": [], "note": ""} for step in plan.steps},
    }


def make_run_terms(body: RecordBody, flow: Ref) -> dict[str, str]:
    """What lists and the loop can ask for."""
    live_terms = {} if body["state"] in ENDED_STATES else {"live": "1"}
    cause_terms = {"cause": make_cause_term(flow, body["cause"])} if body["cause"] else {}
    return {
        "state": body["state"],
        "flow": f"{flow.project}/{flow.name}",
        "by": body["who"]["id"],
        **live_terms,
        **cause_terms,
    }


def make_cause_term(flow: Ref, cause: str) -> str:
    """How the run of a cause is found."""
    return hashlib.sha256(f"{flow.bare}\0{cause}".encode()).hexdigest()[:40]


def make_item_body(number: int = 1) -> RecordBody:
    """One item of a step that has begun."""
    return {
        "state": WAITING,
        "try": number,
        "job": "",
        "outputs": {},
        "value": None,
        "note": "",
        "at": 0.0,
        "end": 0.0,
        "cached": "",
        "key": "",
        "mark": "",
    }


def make_job_ref(run: Ref, step: StepPlan, item_number: int, number: int) -> Ref:
    """What the job of an item is called: a function of the run, the step, the item and the try."""
    item_suffix = f".{item_number}" if step.over else ""
    retry_suffix = f".t{number}" if number > 1 else ""
    return Ref("job", run.project, f"{run.name}.{step.name}{item_suffix}{retry_suffix}")


def read_plan(record: LedgerRecord) -> FlowPlan:
    """The plan of a version of a flow, read once."""
    name = f"{record.key.tenant} {record.ref} {record.body['digest']}"
    plan_record = _PLAN_CACHE.get(name)
    if plan_record is None:
        if len(_PLAN_CACHE) >= _MAX_CACHED_PLANS:
            _PLAN_CACHE.clear()
        plan_record = _PLAN_CACHE[name] = from_plain(FlowPlan, record.body["plan"])
    return plan_record


def list_step_states(body: RecordBody) -> dict[str, StepState]:
    """A run as decisions see it."""
    return {
        name: StepState(step_body["state"], tuple(item["state"] for item in step_body["items"]))
        for name, step_body in body["steps"].items()
    }


def resolve_source(source: Any, body: RecordBody, plan: FlowPlan) -> Any:
    """What a step is given, now that all it needs is over."""
    if not isinstance(source, Mapping):
        return source
    if "param" in source:
        return body["params"][source["param"]]
    if "step" in source:
        return _get_step_result(source, body, plan)
    if "list" in source:
        return [resolve_source(element, body, plan) for element in source["list"]]
    if "map" in source:
        return {name: resolve_source(element, body, plan) for name, element in source["map"].items()}
    return source["ref"] if "ref" in source else source.get("value")


def is_condition_met(step: StepPlan, body: RecordBody, plan: FlowPlan) -> bool:
    """True when the condition of a step is met; what was not run is not true."""
    if not step.when:
        return True
    return all(
        bool(resolve_source(condition, body, plan)) != bool(condition.get("not"))
        for condition in step.when.get("all", (step.when,))
    )


def list_mapped_values(step: StepPlan, body: RecordBody, plan: FlowPlan, max_values: int) -> Sequence[Any]:
    """The list that a step goes through; one nothing for a step that goes through none."""
    if not step.over:
        return (None,)
    mapped = resolve_source(step.takes[step.over], body, plan)
    if not isinstance(mapped, list) or len(mapped) > max_values:
        problem = f"{len(mapped)} values" if isinstance(mapped, list) else f"a {type(mapped).__name__}"
        raise Invalid(f"{step.name} goes through {problem}", f"a list of at most {max_values}")
    return mapped


def is_over(body: RecordBody) -> bool:
    """True when nothing will change any more."""
    return body["state"] in ENDED_STATES


def reset_failed_steps(body: RecordBody) -> RecordBody:
    """A run that failed or was cancelled, asked for once more: what succeeded stays."""
    steps = {}
    for name, step_body in body["steps"].items():
        items = [item if item["state"] == SUCCEEDED else make_item_body(item["try"] + 1) for item in step_body["items"]]
        has_failed = step_body["state"] in (FAILED, CANCELLED) and items
        state = SUCCEEDED if step_body["state"] == SUCCEEDED else RUNNING if has_failed else WAITING
        steps[name] = {"state": state, "items": items, "note": ""}
    return {**body, "steps": steps, "state": RUNNING, "note": "", "cancel": "", "ended": 0.0}


def make_run_view(record: LedgerRecord, waiting: Mapping[str, str] | None = None) -> RunView:
    """A run as its people see it; `waiting` says of steps what they wait for."""
    body = record.body
    return RunView(
        ref=record.ref.bare,
        flow=Ref.parse(body["flow"]),
        state=body["state"],
        params=body["params"],
        steps=tuple(
            _make_step_view(name, body["steps"][name], (waiting or {}).get(name, "")) for name in body["order"]
        ),
        begun_by=body["begun_by"],
        cause=body["cause"],
        started_at=body["started"],
        ended_at=body["ended"],
        note=body["note"],
    )


def make_flow_view(head: LedgerRecord, version: LedgerRecord, schedule: str = "") -> FlowView:
    """A flow as its people see it."""
    body, plan = version.body, read_plan(version)
    code = Ref.parse(body["code"]) if body["code"] else None
    made_at_and_by = (body["made_at"], body["made_by"])
    return FlowView(
        version.ref, plan, code, *made_at_and_by, head.body["runs"], schedule, body["message"] or plan.message
    )


def list_step_outputs(step: StepPlan, step_body: RecordBody) -> dict[str, Any]:
    """What a step gave, by name; its value where it is no dict as `value`."""
    items = step_body["items"]
    if not items or step_body["state"] != SUCCEEDED:
        return {}
    return _list_item_outputs(items[0]) if not step.over else {"items": [_list_item_outputs(item) for item in items]}


def _list_item_outputs(item: RecordBody) -> dict[str, Any]:
    value = item["value"]
    values_by_name = value if isinstance(value, dict) else {} if value is None else {"value": value}
    return {**values_by_name, **item["outputs"]}


def _make_step_view(name: str, step_body: RecordBody, waiting_note: str) -> StepView:
    items = step_body["items"]
    item_outputs = [_list_item_outputs(item) for item in items if item["state"] == SUCCEEDED]
    failure_note = next((item["note"] for item in items if item["state"] == FAILED and item["note"]), "")
    return StepView(
        name=name,
        state=step_body["state"],
        jobs=tuple(Ref.parse(item["job"]) for item in items if item["job"]),
        outputs={} if not item_outputs else item_outputs[0] if len(items) == 1 else {"items": item_outputs},
        tries=max((item["try"] for item in items), default=0),
        cached=next((item["cached"] for item in items if item["cached"]), ""),
        started_at=min((item["at"] for item in items if item["at"]), default=0.0),
        ended_at=max((item["end"] for item in items), default=0.0) if step_body["state"] in ENDED_STATES else 0.0,
        note=step_body["note"] or failure_note or next((item["note"] for item in items if item["note"]), waiting_note),
    )


def _get_step_result(source: Mapping[str, Any], body: RecordBody, plan: FlowPlan) -> Any:
    name, output_name = str(source["step"]), str(source.get("out", ""))
    step_body = body["steps"][name]
    step = next(step for step in plan.steps if step.name == name)
    if step_body["state"] != SUCCEEDED:
        return None
    item_results = [
        _get_item_result(step, item, output_name, is_whole_value=bool(source.get("value")))
        for item in step_body["items"]
    ]
    return item_results if step.over else item_results[0]


def _get_item_result(step: StepPlan, item: RecordBody, output_name: str, *, is_whole_value: bool) -> Any:
    if output_name in step.outputs and not is_whole_value:
        return item["outputs"].get(output_name)
    if not output_name or is_whole_value:
        return item["value"]
    value = item["value"]
    if not isinstance(value, dict) or output_name not in value:
        output_names = ", ".join([*step.outputs, *(value if isinstance(value, dict) else ())])
        raise Invalid(f"{step.name} gave no {output_name!r:.60}", f"it gave: {output_names or type(value).__name__}")
    return value[output_name]
