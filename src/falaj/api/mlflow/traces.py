"""Traces as MLflow's tracing clients know them. Their spans are a file, sent and fetched like any artefact."""

import json
import re
import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec

from falaj.api.mlflow.coding import Endpoint, Int, Question, Visit, millis
from falaj.api.mlflow.filters import TRACES, Page, Sight, chosen, page_of
from falaj.api.mlflow.ids import experiment_ref, run_ref, trace_ref
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.traces import Trace

STATES = {"ok": "OK", "error": "ERROR", "running": "IN_PROGRESS"}
LOCATION = "mlflow.artifactLocation"
RUN = "mlflow.sourceRun"
LONGEST = 10_000
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?Z")
_SPAN = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)s")


class Experiment(msgspec.Struct):
    """Which experiment."""

    experiment_id: str = "0"


class Location(msgspec.Struct):
    """Where a trace belongs."""

    mlflow_experiment: Experiment


class Info(msgspec.Struct):
    """What a client says of a trace."""

    trace_id: str
    trace_location: Location
    client_request_id: str = ""
    request_preview: str = ""
    response_preview: str = ""
    request_time: str = ""
    execution_duration: str = ""
    state: str = "OK"
    trace_metadata: dict[str, str] = msgspec.field(default_factory=dict)
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class Whole(msgspec.Struct):
    """A trace without its spans."""

    trace_info: Info


class Start(Question):
    """traces."""

    trace: Whole


class Search(Question):
    """traces/search."""

    locations: list[Location] = msgspec.field(default_factory=list)
    filter: str = ""
    max_results: Int = 100
    order_by: list[str] = msgspec.field(default_factory=list)
    page_token: str = ""


class Some(Question):
    """Traces by id, or by age."""

    trace_ids: list[str] = msgspec.field(default_factory=list)
    request_ids: list[str] = msgspec.field(default_factory=list)
    experiment_id: str = "0"
    max_timestamp_millis: Int = 0
    max_traces: Int = 0
    run_id: str = ""


class Tag(Question):
    """One tag."""

    key: str = ""
    value: str = ""


class Assess(Question):
    """What somebody thinks of a trace."""

    assessment: dict[str, Any]
    update_mask: str = ""


def _start(visit: Visit, asked: Start) -> Any:
    """Keep one; its client sends it when it is over."""
    info = asked.trace.trace_info
    facts = {"request": info.request_preview[:LONGEST], "response": info.response_preview[:LONGEST]}
    facts["client"] = info.client_request_id
    made = visit.call(
        "traces", "record", experiment=experiment_ref(visit, info.trace_location.mlflow_experiment.experiment_id),
        trace=info.trace_id, status=next((ours for ours, theirs in STATES.items() if theirs == info.state), "ok"),
        started=_moment(info.request_time), lasted_s=_span(info.execution_duration),
        facts={**info.trace_metadata, **{key: value for key, value in facts.items() if value}}, tags=info.tags,
    )  # fmt: skip
    return {"trace": {"trace_info": shown(made)}}


def _get_some(visit: Visit, asked: Some) -> Any:
    found = [visit.look("traces", "show", trace=trace_ref(visit, one)) for one in asked.trace_ids[:1000]]
    return {"trace_infos": [shown(one) for one in found if one is not None]}


def _search(visit: Visit, asked: Search) -> Any:
    """Those of a filter, in an order, a page at a time; newest first."""
    places = [experiment_ref(visit, place.mlflow_experiment.experiment_id) for place in asked.locations]
    found = [one for place in places for one in visit.all("traces", "list", "traces", experiment=place)]
    order = asked.order_by or ["timestamp_ms DESC"]
    picked: Page[Trace] = page_of(chosen(map(_sight, found), TRACES, asked.filter, order), asked)
    return {"traces": [shown(one) for one in picked.items], "next_page_token": picked.next}


def _delete(visit: Visit, asked: Some) -> Any:
    """Those named, or the oldest up to a moment."""
    refs = [trace_ref(visit, name) for name in asked.request_ids or asked.trace_ids]
    if not refs and not asked.max_timestamp_millis:
        raise Invalid("nothing says which traces", "give request_ids or max_timestamp_millis")
    if not refs:
        every = visit.all("traces", "list", "traces", experiment=experiment_ref(visit, asked.experiment_id))
        old = [one for one in every if millis(one.started) <= asked.max_timestamp_millis]
        refs = [one.ref for one in sorted(old, key=lambda one: one.started)[: asked.max_traces or len(old)]]
    for ref in refs:
        visit.look("track", "detach", run=ref, path="traces.json")
        visit.call("traces", "delete", trace=ref)
    return {"traces_deleted": len(refs)}


def _link(visit: Visit, asked: Some) -> Any:
    run_ref(visit, asked.run_id)
    for one in asked.trace_ids[:100]:
        visit.call("traces", "change", trace=trace_ref(visit, one), tags={RUN: asked.run_id})
    return {}


def _think_again(visit: Visit, asked: Assess) -> Any:
    wanted = [re.sub("[A-Z]", lambda m: f"_{m[0].lower()}", part.strip()) for part in asked.update_mask.split(",")]
    fresh = {name: asked.assessment[name] for name in wanted if name in asked.assessment}
    return _note(visit, visit.named["assessment"], {**_thought(visit), **fresh})


def shown(one: Trace) -> dict[str, Any]:
    """A trace in MLflow's fields. Its tag says where its spans are."""
    place = f"mlflow-artifacts:/{one.experiment_id}/traces/{one.ref.name}/artifacts"
    info = {
        "trace_id": one.ref.name,
        "trace_location": {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": one.experiment_id}},
        "request_preview": one.request,
        "response_preview": one.response,
        "request_time": _stamp(one.started),
        "execution_duration": f"{one.lasted_s:.3f}s",
        "state": STATES[one.status],
        "trace_metadata": one.facts,
        "tags": {**one.tags, LOCATION: place},
        "assessments": [assessment for note in one.notes.values() if (assessment := _decode_note(note))],
    }
    return info | ({"client_request_id": one.client} if one.client else {})


def _ref(visit: Visit) -> Ref:
    return trace_ref(visit, visit.named["trace"])


def _one(visit: Visit) -> Trace:
    found: Trace = visit.call("traces", "show", trace=_ref(visit))
    return found


def _decode_note(note: str) -> dict[str, Any]:
    """Return an assessment as MLflow's clients wrote it; empty for a note that is no JSON object."""
    try:
        return msgspec.json.decode(note, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}


def _thought(visit: Visit) -> dict[str, Any]:
    assessment = _decode_note(_one(visit).notes.get(visit.named["assessment"], ""))
    if not assessment:
        raise NotFound("there is no such assessment", "the trace lists its own")
    return assessment


def _note(visit: Visit, name: str, said: dict[str, Any]) -> Any:
    now = _stamp(visit.ctx.now())
    kept = {"create_time": now, "valid": True, **said, "last_update_time": now}
    kept |= {"assessment_id": name, "trace_id": visit.named["trace"]}
    visit.call("traces", "change", trace=_ref(visit), notes={name: msgspec.json.encode(kept).decode()})
    return {"assessment": kept}


def _sight(one: Trace) -> Sight:
    when, lasted = millis(one.started), round(one.lasted_s * 1000)
    attributes = {
        "name": one.tags.get("mlflow.traceName", ""), "status": STATES[one.status], "timestamp_ms": when,
        "timestamp": when, "execution_time_ms": lasted, "end_time_ms": when + lasted, "request_id": one.ref.name,
        "run_id": one.facts.get(RUN) or one.tags.get(RUN), "client_request_id": one.client or None,
    }  # fmt: skip
    thoughts = tuple(_thoughts(_decode_note(note)) for note in one.notes.values())
    return Sight(one, attributes, one.tags, params=one.facts, datasets=thoughts)


def _thoughts(note: dict[str, Any]) -> dict[str, str]:
    """What somebody found, as filters compare it: a text as it is, anything else as JSON writes it."""
    said = {kind: note[kind].get("value") for kind in ("feedback", "expectation") if isinstance(note.get(kind), dict)}
    return {
        f"{kind}.{note.get('assessment_name', '')}": value if isinstance(value, str) else json.dumps(value)
        for kind, value in said.items()
        if value is not None and note.get("valid", True)
    }


def _moment(text: str) -> float:
    found = _TIME.fullmatch(text)
    if not text or found is None:
        return 0.0
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp() + float(found[2] or 0)


def _span(text: str) -> float:
    found = _SPAN.fullmatch(text)
    return float(found[1]) if found else 0.0


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(round(at, 3), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _change(visit: Visit, **changes: Any) -> Any:
    return visit.do("traces", "change", trace=_ref(visit), **changes)


def _set_tag(visit: Visit, asked: Tag) -> Any:
    return _change(visit, tags={asked.key: asked.value})


def _delete_tag(visit: Visit, asked: Tag) -> Any:
    return _change(visit, drop=(asked.key,))


ENDPOINTS = (
    Endpoint("POST 3.0 traces", "traces.record", Start, _start),
    Endpoint(
        "GET 3.0 traces/{trace}", "traces.show", Question,
        lambda visit, _: {"trace": {"trace_info": shown(_one(visit))}},
    ),
    Endpoint("POST 3.0 traces/batchGetInfos", "traces.show", Some, _get_some),
    Endpoint("POST 3.0 traces/search", "traces.list", Search, _search),
    Endpoint("POST 2.0 traces/delete-traces", "traces.delete", Some, _delete),
    Endpoint("POST 3.0 traces/delete-traces", "traces.delete", Some, _delete),
    Endpoint("PATCH 2.0 traces/{trace}/tags", "traces.change", Tag, _set_tag),
    Endpoint("PATCH 3.0 traces/{trace}/tags", "traces.change", Tag, _set_tag),
    Endpoint("DELETE 2.0 traces/{trace}/tags", "traces.change", Tag, _delete_tag),
    Endpoint("DELETE 3.0 traces/{trace}/tags", "traces.change", Tag, _delete_tag),
    Endpoint("POST 2.0 traces/link-to-run", "traces.change", Some, _link),
    Endpoint(
        "POST 3.0 traces/{trace}/assessments", "traces.change", Assess,
        lambda visit, asked: _note(visit, f"a-{uuid.uuid4().hex}", asked.assessment),
    ),
    Endpoint(
        "GET 3.0 traces/{trace}/assessments/{assessment}", "traces.show", Question,
        lambda visit, _: {"assessment": _thought(visit)},
    ),
    Endpoint("PATCH 3.0 traces/{trace}/assessments/{assessment}", "traces.change", Assess, _think_again),
    Endpoint(
        "DELETE 3.0 traces/{trace}/assessments/{assessment}", "traces.change", Question,
        lambda visit, _: _change(visit, notes={visit.named["assessment"]: ""}),
    ),
)  # fmt: skip
