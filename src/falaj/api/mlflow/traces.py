"""Traces as MLflow's tracing clients know them. Their spans are a file, sent and fetched like any artefact."""

import json
import re
import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec

from falaj.api.mlflow.coding import Int64, MlflowContext, MlflowEndpoint, MlflowRequest, to_milliseconds
from falaj.api.mlflow.filters import TRACE_FIELDS, FilterRow, ItemPage, cut_page, filter_items
from falaj.api.mlflow.resource_refs import require_experiment_ref, require_run_ref, require_trace_ref
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.traces import Trace

MLFLOW_STATE = {"ok": "OK", "error": "ERROR", "running": "IN_PROGRESS"}
LOCATION_TAG = "mlflow.artifactLocation"
RUN_KEY = "mlflow.sourceRun"
MAX_PREVIEW_CHARS = 10_000
_TIME_PATTERN = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?Z")
_DURATION_PATTERN = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)s")


class ExperimentLocation(msgspec.Struct):
    """Which experiment."""

    experiment_id: str = "0"


class TraceLocation(msgspec.Struct):
    """Where a trace belongs."""

    mlflow_experiment: ExperimentLocation


class TraceInfo(msgspec.Struct):
    """What a client says of a trace."""

    trace_id: str
    trace_location: TraceLocation
    client_request_id: str = ""
    request_preview: str = ""
    response_preview: str = ""
    request_time: str = ""
    execution_duration: str = ""
    state: str = "OK"
    trace_metadata: dict[str, str] = msgspec.field(default_factory=dict)
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class TraceMessage(msgspec.Struct):
    """A trace without its spans."""

    trace_info: TraceInfo


class StartTraceRequest(MlflowRequest):
    """traces."""

    trace: TraceMessage


class SearchTracesRequest(MlflowRequest):
    """traces/search."""

    locations: list[TraceLocation] = msgspec.field(default_factory=list)
    filter: str = ""
    max_results: Int64 = 100
    order_by: list[str] = msgspec.field(default_factory=list)
    page_token: str = ""


class SelectTracesRequest(MlflowRequest):
    """Traces by id, or by age."""

    trace_ids: list[str] = msgspec.field(default_factory=list)
    request_ids: list[str] = msgspec.field(default_factory=list)
    experiment_id: str = "0"
    max_timestamp_millis: Int64 = 0
    max_traces: Int64 = 0
    run_id: str = ""


class TagRequest(MlflowRequest):
    """One tag."""

    key: str = ""
    value: str = ""


class AssessmentRequest(MlflowRequest):
    """What somebody thinks of a trace."""

    assessment: dict[str, Any]
    update_mask: str = ""


def _start_trace(context: MlflowContext, request: StartTraceRequest) -> Any:
    """Keep one; its client sends it when it is over."""
    info = request.trace.trace_info
    facts = {"request": info.request_preview[:MAX_PREVIEW_CHARS], "response": info.response_preview[:MAX_PREVIEW_CHARS]}
    facts["client"] = info.client_request_id
    recorded_trace = context.call(
        "traces",
        "record",
        experiment=require_experiment_ref(context, info.trace_location.mlflow_experiment.experiment_id),
        trace=info.trace_id,
        status=next(
            (own_state for own_state, mlflow_state in MLFLOW_STATE.items() if mlflow_state == info.state), "ok"
        ),
        started=_parse_time(info.request_time),
        lasted_s=_parse_duration(info.execution_duration),
        facts={**info.trace_metadata, **{key: value for key, value in facts.items() if value}},
        tags=info.tags,
    )
    return {"trace": {"trace_info": to_mlflow_trace(recorded_trace)}}


def _get_traces(context: MlflowContext, request: SelectTracesRequest) -> Any:
    traces = [
        context.look("traces", "show", trace=require_trace_ref(context, selected))
        for selected in request.trace_ids[:1000]
    ]
    return {"trace_infos": [to_mlflow_trace(selected) for selected in traces if selected is not None]}


def _search_traces(context: MlflowContext, request: SearchTracesRequest) -> Any:
    """Those of a filter, in an order, a page at a time; newest first."""
    experiments = [
        require_experiment_ref(context, experiment.mlflow_experiment.experiment_id) for experiment in request.locations
    ]
    traces = [
        trace for experiment in experiments for trace in context.all("traces", "list", "traces", experiment=experiment)
    ]
    order = request.order_by or ["timestamp_ms DESC"]
    page: ItemPage[Trace] = cut_page(
        filter_items(map(_to_filter_row, traces), TRACE_FIELDS, request.filter, order), request
    )
    return {"traces": [to_mlflow_trace(trace) for trace in page.items], "next_page_token": page.next}


def _delete_traces(context: MlflowContext, request: SelectTracesRequest) -> Any:
    """Those named, or the oldest up to a moment."""
    refs = [require_trace_ref(context, name) for name in request.request_ids or request.trace_ids]
    if not refs and not request.max_timestamp_millis:
        raise Invalid("nothing says which traces", "give request_ids or max_timestamp_millis")
    if not refs:
        all_traces = context.all(
            "traces", "list", "traces", experiment=require_experiment_ref(context, request.experiment_id)
        )
        old_traces = [trace for trace in all_traces if to_milliseconds(trace.started) <= request.max_timestamp_millis]
        refs = [
            trace.ref
            for trace in sorted(old_traces, key=lambda trace: trace.started)[: request.max_traces or len(old_traces)]
        ]
    for ref in refs:
        context.look("track", "detach", run=ref, path="traces.json")
        context.call("traces", "delete", trace=ref)
    return {"traces_deleted": len(refs)}


def _link_to_run(context: MlflowContext, request: SelectTracesRequest) -> Any:
    require_run_ref(context, request.run_id)
    for trace_id in request.trace_ids[:100]:
        context.call("traces", "change", trace=require_trace_ref(context, trace_id), tags={RUN_KEY: request.run_id})
    return {}


def _update_assessment(context: MlflowContext, request: AssessmentRequest) -> Any:
    field_names = [
        re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", field_path.strip())
        for field_path in request.update_mask.split(",")
    ]
    changed_fields = {name: request.assessment[name] for name in field_names if name in request.assessment}
    return _store_assessment(context, context.named["assessment"], {**_require_assessment(context), **changed_fields})


def to_mlflow_trace(trace: Trace) -> dict[str, Any]:
    """A trace in MLflow's fields. Its tag says where its spans are."""
    artifact_uri = f"mlflow-artifacts:/{trace.experiment_id}/traces/{trace.ref.name}/artifacts"
    info = {
        "trace_id": trace.ref.name,
        "trace_location": {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": trace.experiment_id}},
        "request_preview": trace.request,
        "response_preview": trace.response,
        "request_time": _format_time(trace.started),
        "execution_duration": f"{trace.lasted_s:.3f}s",
        "state": MLFLOW_STATE[trace.status],
        "trace_metadata": trace.facts,
        "tags": {**trace.tags, LOCATION_TAG: artifact_uri},
        "assessments": [assessment for note in trace.notes.values() if (assessment := _decode_note(note))],
    }
    return info | ({"client_request_id": trace.client} if trace.client else {})


def _require_trace_ref(context: MlflowContext) -> Ref:
    return require_trace_ref(context, context.named["trace"])


def _get_trace(context: MlflowContext) -> Trace:
    trace: Trace = context.call("traces", "show", trace=_require_trace_ref(context))
    return trace


def _decode_note(note: str) -> dict[str, Any]:
    """Return an assessment as MLflow's clients wrote it; empty for a note that is no JSON object."""
    try:
        return msgspec.json.decode(note, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}


def _require_assessment(context: MlflowContext) -> dict[str, Any]:
    assessment = _decode_note(_get_trace(context).notes.get(context.named["assessment"], ""))
    if not assessment:
        raise NotFound("there is no such assessment", "the trace lists its own")
    return assessment


def _store_assessment(context: MlflowContext, name: str, fields: dict[str, Any]) -> Any:
    now = _format_time(context.ctx.now())
    assessment = {"create_time": now, "valid": True, **fields, "last_update_time": now}
    assessment |= {"assessment_id": name, "trace_id": context.named["trace"]}
    context.call(
        "traces", "change", trace=_require_trace_ref(context), notes={name: msgspec.json.encode(assessment).decode()}
    )
    return {"assessment": assessment}


def _to_filter_row(trace: Trace) -> FilterRow:
    started_ms, duration_ms = to_milliseconds(trace.started), round(trace.lasted_s * 1000)
    attributes = {
        "name": trace.tags.get("mlflow.traceName", ""),
        "status": MLFLOW_STATE[trace.status],
        "timestamp_ms": started_ms,
        "timestamp": started_ms,
        "execution_time_ms": duration_ms,
        "end_time_ms": started_ms + duration_ms,
        "request_id": trace.ref.name,
        "run_id": trace.facts.get(RUN_KEY) or trace.tags.get(RUN_KEY),
        "client_request_id": trace.client or None,
    }
    assessment_rows = tuple(_to_assessment_row(_decode_note(note)) for note in trace.notes.values())
    return FilterRow(trace, attributes, trace.tags, params=trace.facts, datasets=assessment_rows)


def _to_assessment_row(note: dict[str, Any]) -> dict[str, str]:
    """What somebody found, as filters compare it: a text as it is, anything else as JSON writes it."""
    value_by_kind = {
        kind: note[kind].get("value") for kind in ("feedback", "expectation") if isinstance(note.get(kind), dict)
    }
    return {
        f"{kind}.{note.get('assessment_name', '')}": value if isinstance(value, str) else json.dumps(value)
        for kind, value in value_by_kind.items()
        if value is not None and note.get("valid", True)
    }


def _parse_time(text: str) -> float:
    time_match = _TIME_PATTERN.fullmatch(text)
    if not text or time_match is None:
        return 0.0
    return datetime.fromisoformat(time_match[1]).replace(tzinfo=UTC).timestamp() + float(time_match[2] or 0)


def _parse_duration(text: str) -> float:
    duration_match = _DURATION_PATTERN.fullmatch(text)
    return float(duration_match[1]) if duration_match else 0.0


def _format_time(unix_time: float) -> str:
    return datetime.fromtimestamp(round(unix_time, 3), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _change_trace(context: MlflowContext, **changes: Any) -> Any:
    return context.do("traces", "change", trace=_require_trace_ref(context), **changes)


def _set_tag(context: MlflowContext, request: TagRequest) -> Any:
    return _change_trace(context, tags={request.key: request.value})


def _delete_tag(context: MlflowContext, request: TagRequest) -> Any:
    return _change_trace(context, drop=(request.key,))


ENDPOINTS = (
    MlflowEndpoint("POST 3.0 traces", "traces.record", StartTraceRequest, _start_trace),
    MlflowEndpoint(
        "GET 3.0 traces/{trace}",
        "traces.show",
        MlflowRequest,
        lambda context, _: {"trace": {"trace_info": to_mlflow_trace(_get_trace(context))}},
    ),
    MlflowEndpoint("POST 3.0 traces/batchGetInfos", "traces.show", SelectTracesRequest, _get_traces),
    MlflowEndpoint("POST 3.0 traces/search", "traces.list", SearchTracesRequest, _search_traces),
    MlflowEndpoint("POST 2.0 traces/delete-traces", "traces.delete", SelectTracesRequest, _delete_traces),
    MlflowEndpoint("POST 3.0 traces/delete-traces", "traces.delete", SelectTracesRequest, _delete_traces),
    MlflowEndpoint("PATCH 2.0 traces/{trace}/tags", "traces.change", TagRequest, _set_tag),
    MlflowEndpoint("PATCH 3.0 traces/{trace}/tags", "traces.change", TagRequest, _set_tag),
    MlflowEndpoint("DELETE 2.0 traces/{trace}/tags", "traces.change", TagRequest, _delete_tag),
    MlflowEndpoint("DELETE 3.0 traces/{trace}/tags", "traces.change", TagRequest, _delete_tag),
    MlflowEndpoint("POST 2.0 traces/link-to-run", "traces.change", SelectTracesRequest, _link_to_run),
    MlflowEndpoint(
        "POST 3.0 traces/{trace}/assessments",
        "traces.change",
        AssessmentRequest,
        lambda context, request: _store_assessment(context, f"a-{uuid.uuid4().hex}", request.assessment),
    ),
    MlflowEndpoint(
        "GET 3.0 traces/{trace}/assessments/{assessment}",
        "traces.show",
        MlflowRequest,
        lambda context, _: {"assessment": _require_assessment(context)},
    ),
    MlflowEndpoint(
        "PATCH 3.0 traces/{trace}/assessments/{assessment}", "traces.change", AssessmentRequest, _update_assessment
    ),
    MlflowEndpoint(
        "DELETE 3.0 traces/{trace}/assessments/{assessment}",
        "traces.change",
        MlflowRequest,
        lambda context, _: _change_trace(context, notes={context.named["assessment"]: ""}),
    ),
)
