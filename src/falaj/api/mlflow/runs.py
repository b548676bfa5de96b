"""Runs as MLflow's clients know them: parameters, metrics, tags, inputs, outputs."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from falaj.api.mlflow.coding import (
    Int64,
    KeyValue,
    MlflowContext,
    MlflowEndpoint,
    MlflowRequest,
    from_key_values,
    from_milliseconds,
    to_json_number,
    to_key_values,
    to_milliseconds,
)
from falaj.api.mlflow.experiments import STATE_BY_VIEW_TYPE
from falaj.api.mlflow.resource_refs import require_experiment_ref, require_logged_model_ref, require_run_ref
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.outputs import ModelMeasurement
from falaj.track.records import Metric, Run, UsedData

NAME_TAG, MODEL_HISTORY_TAG = "mlflow.runName", "mlflow.log-model.history"
MAX_RUNS, MAX_POINTS, MAX_PARAM_CHARS, MAX_TAG_CHARS = 100, 25_000, 6_000, 8_000
_VERSION_REF_PATTERN = re.compile(
    r"\b(?:dataset|model):[a-z0-9][a-z0-9._-]{0,62}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}@v[1-9][0-9]{0,17}\b"
)


class LoggedPoint(msgspec.Struct):
    """One measurement, perhaps of a logged model on some data."""

    key: str
    value: float
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    step: Int64 = 0
    model_id: str = ""
    dataset_name: str = ""
    dataset_digest: str = ""


class RunRequest(MlflowRequest):
    """What names a run (older clients call its id a uuid), and may say something of it."""

    run_id: str = ""
    run_uuid: str = ""
    status: str = ""
    end_time: Int64 = 0
    run_name: str = ""
    key: str = ""
    value: str = ""
    model_json: str = "{}"


class LogMetricRequest(LoggedPoint, kw_only=True):
    """runs/log-metric."""

    run_id: str = ""
    run_uuid: str = ""


class CreateRunRequest(MlflowRequest):
    """runs/create."""

    experiment_id: str = "0"
    run_name: str = ""
    start_time: Int64 = 0
    tags: list[KeyValue] = msgspec.field(default_factory=list)


class LogBatchRequest(MlflowRequest):
    """runs/log-batch."""

    run_id: str
    run_uuid: str = ""
    metrics: list[LoggedPoint] = msgspec.field(default_factory=list)
    params: list[KeyValue] = msgspec.field(default_factory=list)
    tags: list[KeyValue] = msgspec.field(default_factory=list)


class DatasetDescription(msgspec.Struct):
    """A dataset as a client describes it."""

    name: str
    digest: str = ""
    source_type: str = ""
    source: str = ""
    schema: str = ""
    profile: str = ""


class DatasetInput(msgspec.Struct):
    """A dataset and what it was used for."""

    dataset: DatasetDescription
    tags: list[KeyValue] = msgspec.field(default_factory=list)


class LogInputsRequest(MlflowRequest):
    """runs/log-inputs."""

    run_id: str
    run_uuid: str = ""
    datasets: list[DatasetInput] = msgspec.field(default_factory=list)


class SearchRunsRequest(MlflowRequest):
    """runs/search."""

    experiment_ids: list[str] = msgspec.field(default_factory=list)
    filter: str = ""
    run_view_type: str = "ACTIVE_ONLY"
    max_results: Int64 = 1000
    order_by: list[str] = msgspec.field(default_factory=list)
    page_token: str = ""


class MetricHistoryRequest(MlflowRequest):
    """metrics/get-history, and the same of several runs, thinned."""

    metric_key: str
    run_id: str = ""
    run_uuid: str = ""
    run_ids: list[str] = msgspec.field(default_factory=list)
    start_step: Int64 = -(2**63)
    end_step: Int64 = 2**63 - 1
    max_results: Int64 = MAX_POINTS
    page_token: str = ""


def to_mlflow_run(run: Run) -> dict[str, Any]:
    """A run in MLflow's fields."""
    return {
        "info": {
            "run_id": run.ref.name,
            "run_uuid": run.ref.name,
            "run_name": run.title,
            "experiment_id": run.experiment_id,
            "user_id": run.author,
            "status": run.status.upper(),
            "start_time": to_milliseconds(run.started),
            **({"end_time": to_milliseconds(run.ended)} if run.ended else {}),
            "artifact_uri": f"mlflow-artifacts:/{run.experiment_id}/{run.ref.name}/artifacts",
            "lifecycle_stage": run.state,
        },
        "data": {
            "metrics": [_to_mlflow_metric(point) for point in run.metrics.values()],
            "params": to_key_values(run.params),
            "tags": to_key_values({NAME_TAG: run.title, **run.tags}),
        },
        "inputs": {"dataset_inputs": [_to_mlflow_dataset(run_input) for run_input in run.inputs]},
        "outputs": {
            "model_outputs": [{"model_id": run_output.id, "step": run_output.step} for run_output in run.outputs]
        },
    }


def _create_run(context: MlflowContext, request: CreateRunRequest) -> Any:
    tags = from_key_values(request.tags)
    name = request.run_name or tags.get(NAME_TAG, "")
    tags.pop(NAME_TAG, None)
    if tags.get("mlflow.parentRunId"):
        require_run_ref(context, tags["mlflow.parentRunId"])
    experiment, started_at = (
        require_experiment_ref(context, request.experiment_id),
        from_milliseconds(request.start_time),
    )
    return {
        "run": to_mlflow_run(
            context.call("track", "start", experiment=experiment, title=name, tags=tags, started=started_at)
        )
    }


def _update_run(context: MlflowContext, request: RunRequest) -> Any:
    status, ended = request.status.lower(), from_milliseconds(request.end_time)
    run = context.call(
        "track", "end", run=_require_run_ref(context, request), status=status, ended=ended, title=request.run_name
    )
    return {"run_info": to_mlflow_run(run)["info"]}


def _log_metric(context: MlflowContext, request: LogMetricRequest) -> Any:
    point = Metric(request.key, request.value, from_milliseconds(request.timestamp), request.step)
    context.call("track", "log", run=_require_run_ref(context, request), metrics=(point,))
    if request.model_id:
        _record_model_metrics(context, request, (request,))
    return {}


def _set_tag(context: MlflowContext, request: RunRequest) -> Any:
    if request.key == NAME_TAG:
        return context.do("track", "end", run=_require_run_ref(context, request), status="", title=request.value)
    return context.do(
        "track", "log", run=_require_run_ref(context, request), tags={request.key: request.value[:MAX_TAG_CHARS]}
    )


def _delete_tag(context: MlflowContext, request: RunRequest) -> Any:
    ref = _require_run_ref(context, request)
    if request.key not in context.call("track", "show", run=ref).tags:
        raise NotFound(f"the run has no tag {request.key[:80]!r}", "its tags are in runs/get", ref)
    return context.do("track", "log", run=ref, drop=(request.key,))


def _log_batch(context: MlflowContext, request: LogBatchRequest) -> Any:
    """Many at once: all or none."""
    if len({pair.key for pair in request.params}) != len(request.params):
        raise Invalid("a parameter is given twice in one batch", "give each once")
    points = tuple(
        [
            Metric(metric_point.key, metric_point.value, metric_point.timestamp / 1000, metric_point.step)
            for metric_point in request.metrics
        ]
    )
    tags, ref = from_key_values(request.tags), _require_run_ref(context, request)
    if NAME_TAG in tags:
        context.call("track", "end", run=ref, status="", title=tags.pop(NAME_TAG))
    context.call(
        "track", "log", run=ref, metrics=points, params=from_key_values(request.params, MAX_PARAM_CHARS), tags=tags
    )
    _record_model_metrics(context, request, [point for point in request.metrics if point.model_id])
    return {}


def _changes_only_run(request: LogBatchRequest) -> bool:
    """Whether nothing but the run is spoken of, and it keeps its title."""
    return not any(point.model_id for point in request.metrics) and all(tag.key != NAME_TAG for tag in request.tags)


def _log_model(context: MlflowContext, request: RunRequest) -> Any:
    """What clients before version 3 said of a model among the artefacts: kept as the tag it was."""
    ref = _require_run_ref(context, request)
    try:
        text = context.call("track", "show", run=ref).tags.get(MODEL_HISTORY_TAG, "[]")
        model_history = msgspec.json.decode(text, type=list[dict[str, Any]])
        model_history.append(msgspec.json.decode(request.model_json, type=dict[str, Any]))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Invalid("model_json is no JSON object", "send what MLmodel says") from None
    return context.do("track", "log", run=ref, tags={MODEL_HISTORY_TAG: msgspec.json.encode(model_history).decode()})


def _log_inputs(context: MlflowContext, request: LogInputsRequest) -> Any:
    """Data that it was given; what is ours by its source is lineage, and the run carries its label."""
    used_data, input_refs = list[UsedData](), list[Ref]()
    for dataset_input in request.datasets:
        data, ref_match = dataset_input.dataset, _VERSION_REF_PATTERN.search(dataset_input.dataset.source)
        ref = Ref.parse(ref_match[0]) if ref_match else None
        input_refs += [ref] if ref is not None else []
        description = (data.name, data.digest, data.source_type, data.source, data.schema, data.profile)
        used_data.append(UsedData(*description, ref, from_key_values(dataset_input.tags)))
    return context.do(
        "track", "use", run=_require_run_ref(context, request), data=tuple(used_data), inputs=tuple(input_refs)
    )


def _search_runs(context: MlflowContext, request: SearchRunsRequest) -> Any:
    if not request.experiment_ids:
        return {}
    page = context.call(
        "track",
        "list",
        experiments=tuple([require_experiment_ref(context, experiment_id) for experiment_id in request.experiment_ids]),
        where=request.filter,
        order=tuple(request.order_by),
        state=STATE_BY_VIEW_TYPE.get(request.run_view_type, "active"),
        after=request.page_token,
        limit=request.max_results,
    )
    tracking_service: Any = context.house.desks["track"]
    runs = [msgspec.Raw(tracking_service.encoded(run, _encode_run)) for run in page.runs]
    return {"runs": runs, **({"next_page_token": page.next} if page.next else {})}


def _get_history(context: MlflowContext, request: MetricHistoryRequest) -> Any:
    """Every point of one metric."""
    ref, max_points = _require_run_ref(context, request), min(request.max_results, MAX_POINTS)
    curve = context.call(
        "track", "history", run=ref, metric=request.metric_key, after=request.page_token, limit=max_points
    )
    points = [_to_mlflow_metric(point) for point in curve.points]
    return {"metrics": points, **({"next_page_token": curve.next} if curve.next else {})}


def _get_bulk_history(context: MlflowContext, request: MetricHistoryRequest) -> Any:
    """One metric of several runs, thinned to what a plot can show."""
    metrics, bin_count = list[Any](), max(1, min(request.max_results, 2500) // 3)
    for run_id in request.run_ids[:MAX_RUNS]:
        curve = context.call(
            "track", "history", run=require_run_ref(context, run_id), metric=request.metric_key, bins=bin_count
        )
        points = (point for point in curve.points if request.start_step <= point.step <= request.end_step)
        metrics += [{**_to_mlflow_metric(point), "run_id": run_id} for point in points]
    return {"metrics": metrics}


def _require_run_ref(context: MlflowContext, request: Any) -> Ref:
    return require_run_ref(context, request.run_id or request.run_uuid)


def _encode_run(run: Run) -> bytes:
    encoded: bytes = msgspec.json.encode(to_mlflow_run(run))
    return encoded


def _to_mlflow_metric(point: Metric) -> dict[str, Any]:
    return {
        "key": point.key,
        "value": to_json_number(point.number),
        "timestamp": to_milliseconds(point.at),
        "step": point.step,
    }


def _to_mlflow_dataset(used_data: UsedData) -> dict[str, Any]:
    description = {
        name: getattr(used_data, name) for name in DatasetDescription.__struct_fields__ if getattr(used_data, name)
    }
    return {"dataset": description, "tags": to_key_values(used_data.tags)}


def _record_model_metrics(context: MlflowContext, request: Any, points: Sequence[LoggedPoint]) -> None:
    """Measurements of a logged model are its own, too."""
    metrics_by_model: dict[str, list[ModelMeasurement]] = {}
    for point in points:
        metric = Metric(point.key, point.value, from_milliseconds(point.timestamp), point.step)
        metrics_by_model.setdefault(point.model_id, []).append(
            ModelMeasurement(metric, point.dataset_name, point.dataset_digest, request.run_id)
        )
    for name, measurements in metrics_by_model.items():
        context.call("outputs", "change", model=require_logged_model_ref(context, name), metrics=tuple(measurements))


ENDPOINTS = (
    MlflowEndpoint("POST 2.0 runs/create", "track.start", CreateRunRequest, _create_run),
    MlflowEndpoint(
        "GET 2.0 runs/get",
        "track.show",
        RunRequest,
        lambda context, request: {
            "run": to_mlflow_run(context.call("track", "show", run=_require_run_ref(context, request)))
        },
    ),
    MlflowEndpoint("POST 2.0 runs/update", "track.end", RunRequest, _update_run),
    MlflowEndpoint(
        "POST 2.0 runs/delete",
        "track.delete",
        RunRequest,
        lambda context, request: context.do("track", "delete", name=_require_run_ref(context, request)),
    ),
    MlflowEndpoint(
        "POST 2.0 runs/restore",
        "track.restore",
        RunRequest,
        lambda context, request: context.do("track", "restore", name=_require_run_ref(context, request)),
    ),
    MlflowEndpoint(
        "POST 2.0 runs/log-metric", "track.log", LogMetricRequest, _log_metric, lambda request: not request.model_id
    ),
    MlflowEndpoint(
        "POST 2.0 runs/log-parameter",
        "track.log",
        RunRequest,
        lambda context, request: context.do(
            "track",
            "log",
            run=_require_run_ref(context, request),
            params={request.key: request.value[:MAX_PARAM_CHARS]},
        ),
        lambda request: True,
    ),
    MlflowEndpoint("POST 2.0 runs/set-tag", "track.log", RunRequest, _set_tag, lambda request: request.key != NAME_TAG),
    MlflowEndpoint("POST 2.0 runs/delete-tag", "track.log", RunRequest, _delete_tag),
    MlflowEndpoint("POST 2.0 runs/log-batch", "track.log", LogBatchRequest, _log_batch, _changes_only_run),
    MlflowEndpoint("POST 2.0 runs/log-model", "track.log", RunRequest, _log_model),
    MlflowEndpoint("POST 2.0 runs/log-inputs", "track.use", LogInputsRequest, _log_inputs),
    MlflowEndpoint("POST 2.0 runs/search", "track.list", SearchRunsRequest, _search_runs),
    MlflowEndpoint("GET 2.0 metrics/get-history", "track.history", MetricHistoryRequest, _get_history),
    MlflowEndpoint(
        "GET 2.0 metrics/get-history-bulk-interval", "track.history", MetricHistoryRequest, _get_bulk_history
    ),
)
