"""Runs as they lie in their records (`turn:PROJECT/FLOW-N`), and as decisions, jobs and people see them.

The body has every step with its items: one, or as many as the list it goes through. An item is tried as a job whose
name is made of the run, the step, the item and the try, so that whoever asks for it again finds it asked for.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.core.context import Context
from falaj.core.errors import Invalid
from falaj.core.event import new_id
from falaj.core.ref import Ref
from falaj.flows.decide import Stand
from falaj.flows.records import (
    CANCELLED,
    FAILED,
    OVER,
    RUNNING,
    SUCCEEDED,
    WAITING,
    Body,
    FlowPlan,
    FlowView,
    RunView,
    StepPlan,
    StepView,
)
from falaj.jobs.attempts import who_of
from falaj.store.codec import from_plain
from falaj.store.records import Record

MOST_NOTE = 500
MOST_RESULTS = 1 << 20
"""Bytes of all that the items of one step return."""
_PLANS: dict[str, FlowPlan] = {}
_KEPT_PLANS = 256


def new_turn(ctx: Context, flow: Ref, plan: FlowPlan, params: Mapping[str, Any], said: Body) -> Body:
    """The record of a new run. `said`: cause, begun_by, fresh, number."""
    return {
        "id": new_id(), "flow": str(flow), "params": dict(params), "who": who_of(ctx), **said, "state": RUNNING,
        "order": [step.name for step in plan.steps], "note": "", "cancel": "", "started": ctx.now(), "ended": 0.0,
        "steps": {step.name: {"state": WAITING, "items": [], "note": ""} for step in plan.steps},
    }  # fmt: skip


def turn_terms(body: Body, flow: Ref) -> dict[str, str]:
    """What lists and the loop can ask for."""
    live = {} if body["state"] in OVER else {"live": "1"}
    cause = {"cause": cause_term(flow, body["cause"])} if body["cause"] else {}
    return {"state": body["state"], "flow": f"{flow.project}/{flow.name}", "by": body["who"]["id"], **live, **cause}


def cause_term(flow: Ref, cause: str) -> str:
    """How the run of a cause is found."""
    return hashlib.sha256(f"{flow.bare}\0{cause}".encode()).hexdigest()[:40]


def new_item(number: int = 1) -> Body:
    """One item of a step that has begun."""
    return {
        "state": WAITING, "try": number, "job": "", "outputs": {}, "value": None, "note": "", "at": 0.0, "end": 0.0,
        "cached": "", "key": "", "mark": "",
    }  # fmt: skip


def job_name(turn: Ref, step: StepPlan, at: int, number: int) -> Ref:
    """What the job of an item is called: a function of the run, the step, the item and the try."""
    item = f".{at}" if step.over else ""
    again = f".t{number}" if number > 1 else ""
    return Ref("job", turn.project, f"{turn.name}.{step.name}{item}{again}")


def plan_in(record: Record) -> FlowPlan:
    """The plan of a version of a flow, read once."""
    name = f"{record.key.tenant} {record.ref} {record.body['digest']}"
    found = _PLANS.get(name)
    if found is None:
        if len(_PLANS) >= _KEPT_PLANS:
            _PLANS.clear()
        found = _PLANS[name] = from_plain(FlowPlan, record.body["plan"])
    return found


def stands_in(body: Body) -> dict[str, Stand]:
    """A run as decisions see it."""
    return {
        name: Stand(one["state"], tuple(item["state"] for item in one["items"])) for name, one in body["steps"].items()
    }


def resolved(source: Any, body: Body, plan: FlowPlan) -> Any:
    """What a step is given, now that all it needs is over."""
    if not isinstance(source, Mapping):
        return source
    if "param" in source:
        return body["params"][source["param"]]
    if "step" in source:
        return _result(source, body, plan)
    if "list" in source:
        return [resolved(one, body, plan) for one in source["list"]]
    if "map" in source:
        return {name: resolved(one, body, plan) for name, one in source["map"].items()}
    return source["ref"] if "ref" in source else source.get("value")


def holds(step: StepPlan, body: Body, plan: FlowPlan) -> bool:
    """True when the condition of a step is met; what was not run is not true."""
    if not step.when:
        return True
    return all(bool(resolved(one, body, plan)) != bool(one.get("not")) for one in step.when.get("all", (step.when,)))


def values_of(step: StepPlan, body: Body, plan: FlowPlan, most: int) -> Sequence[Any]:
    """The list that a step goes through; one nothing for a step that goes through none."""
    if not step.over:
        return (None,)
    found = resolved(step.takes[step.over], body, plan)
    if not isinstance(found, list) or len(found) > most:
        what = f"{len(found)} values" if isinstance(found, list) else f"a {type(found).__name__}"
        raise Invalid(f"{step.name} goes through {what}", f"a list of at most {most}")
    return found


def over(body: Body) -> bool:
    """True when nothing will change any more."""
    return body["state"] in OVER


def again(body: Body) -> Body:
    """A run that failed or was cancelled, asked for once more: what succeeded stays."""
    steps = {}
    for name, one in body["steps"].items():
        items = [item if item["state"] == SUCCEEDED else new_item(item["try"] + 1) for item in one["items"]]
        failed = one["state"] in (FAILED, CANCELLED) and items
        state = SUCCEEDED if one["state"] == SUCCEEDED else RUNNING if failed else WAITING
        steps[name] = {"state": state, "items": items, "note": ""}
    return {**body, "steps": steps, "state": RUNNING, "note": "", "cancel": "", "ended": 0.0}


def view(record: Record, waiting: Mapping[str, str] | None = None) -> RunView:
    """A run as its people see it; `waiting` says of steps what they wait for."""
    body = record.body
    return RunView(
        ref=record.ref.bare,
        flow=Ref.parse(body["flow"]),
        state=body["state"],
        params=body["params"],
        steps=tuple(_step_view(name, body["steps"][name], (waiting or {}).get(name, "")) for name in body["order"]),
        begun_by=body["begun_by"],
        cause=body["cause"],
        started_at=body["started"],
        ended_at=body["ended"],
        note=body["note"],
    )


def flow_view(head: Record, version: Record, schedule: str = "") -> FlowView:
    """A flow as its people see it."""
    body, plan = version.body, plan_in(version)
    code = Ref.parse(body["code"]) if body["code"] else None
    made = (body["made_at"], body["made_by"])
    return FlowView(version.ref, plan, code, *made, head.body["runs"], schedule, body["message"] or plan.message)


def given_by(step: StepPlan, one: Body) -> dict[str, Any]:
    """What a step gave, by name; its value where it is no dict as `value`."""
    items = one["items"]
    if not items or one["state"] != SUCCEEDED:
        return {}
    return _given(items[0]) if not step.over else {"items": [_given(item) for item in items]}


def _given(item: Body) -> dict[str, Any]:
    value = item["value"]
    named = value if isinstance(value, dict) else {} if value is None else {"value": value}
    return {**named, **item["outputs"]}


def _step_view(name: str, one: Body, waits: str) -> StepView:
    items = one["items"]
    gave = [_given(item) for item in items if item["state"] == SUCCEEDED]
    bad = next((item["note"] for item in items if item["state"] == FAILED and item["note"]), "")
    return StepView(
        name=name,
        state=one["state"],
        jobs=tuple(Ref.parse(item["job"]) for item in items if item["job"]),
        outputs={} if not gave else gave[0] if len(items) == 1 else {"items": gave},
        tries=max((item["try"] for item in items), default=0),
        cached=next((item["cached"] for item in items if item["cached"]), ""),
        started_at=min((item["at"] for item in items if item["at"]), default=0.0),
        ended_at=max((item["end"] for item in items), default=0.0) if one["state"] in OVER else 0.0,
        note=one["note"] or bad or next((item["note"] for item in items if item["note"]), waits),
    )


def _result(source: Mapping[str, Any], body: Body, plan: FlowPlan) -> Any:
    name, out = str(source["step"]), str(source.get("out", ""))
    one = body["steps"][name]
    step = next(step for step in plan.steps if step.name == name)
    if one["state"] != SUCCEEDED:
        return None
    found = [_part(step, item, out, whole=bool(source.get("value"))) for item in one["items"]]
    return found if step.over else found[0]


def _part(step: StepPlan, item: Body, out: str, *, whole: bool) -> Any:
    if out in step.outputs and not whole:
        return item["outputs"].get(out)
    if not out or whole:
        return item["value"]
    value = item["value"]
    if not isinstance(value, dict) or out not in value:
        known = ", ".join([*step.outputs, *(value if isinstance(value, dict) else ())])
        raise Invalid(f"{step.name} gave no {out!r:.60}", f"it gave: {known or type(value).__name__}")
    return value[out]
