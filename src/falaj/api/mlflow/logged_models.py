"""Logged models as clients of version 3 know them: what runs made, before anybody registers it."""

from typing import Any

import msgspec

from falaj.api.mlflow.coding import (
    Int64,
    KeyValue,
    MlflowContext,
    MlflowEndpoint,
    MlflowRequest,
    from_key_values,
    to_json_number,
    to_key_values,
    to_milliseconds,
)
from falaj.api.mlflow.filters import LOGGED_MODEL_FIELDS, FilterRow, ItemPage, cut_page, filter_items
from falaj.api.mlflow.resource_refs import require_experiment_ref, require_logged_model_ref, require_run_ref
from falaj.core.ref import Ref
from falaj.track.outputs import LoggedModel, ModelMeasurement

MLFLOW_STATUS = {
    "pending": "LOGGED_MODEL_PENDING",
    "ready": "LOGGED_MODEL_READY",
    "failed": "LOGGED_MODEL_UPLOAD_FAILED",
}


class LoggedModelRequest(MlflowRequest):
    """What is said of a logged model, at first or later."""

    experiment_id: str = "0"
    name: str = ""
    model_type: str = ""
    source_run_id: str = ""
    status: str = ""
    params: list[KeyValue] = msgspec.field(default_factory=list)
    tags: list[KeyValue] = msgspec.field(default_factory=list)


class RunModel(msgspec.Struct):
    """A model that a run made."""

    model_id: str
    step: Int64 = 0


class LinkModelsRequest(MlflowRequest):
    """runs/outputs."""

    run_id: str
    models: list[RunModel] = msgspec.field(default_factory=list)


class OrderByField(msgspec.Struct):
    """One part of an order."""

    field_name: str
    ascending: bool = True


class SearchLoggedModelsRequest(MlflowRequest):
    """logged-models/search."""

    experiment_ids: list[str] = msgspec.field(default_factory=list)
    filter: str = ""
    max_results: Int64 = 100
    order_by: list[OrderByField] = msgspec.field(default_factory=list)
    page_token: str = ""


def to_mlflow_model(logged_model: LoggedModel) -> dict[str, Any]:
    """A logged model in MLflow's fields."""
    return {
        "info": {
            "model_id": logged_model.ref.name,
            "experiment_id": logged_model.experiment_id,
            "name": logged_model.title,
            "creation_timestamp_ms": to_milliseconds(logged_model.made_at),
            "last_updated_timestamp_ms": to_milliseconds(logged_model.changed_at),
            "artifact_uri": f"mlflow-artifacts:/{logged_model.experiment_id}/models/{logged_model.ref.name}/artifacts",
            "status": MLFLOW_STATUS[logged_model.status],
            "model_type": logged_model.type,
            "source_run_id": logged_model.run,
            "tags": to_key_values(logged_model.tags),
        },
        "data": {
            "params": to_key_values(logged_model.params),
            "metrics": [_to_mlflow_metric(logged_model, measurement) for measurement in logged_model.metrics],
        },
    }


def _create_logged_model(context: MlflowContext, request: LoggedModelRequest) -> Any:
    logged_model = context.call(
        "outputs",
        "create",
        experiment=require_experiment_ref(context, request.experiment_id),
        title=request.name,
        type=request.model_type,
        run=require_run_ref(context, request.source_run_id) if request.source_run_id else None,
        params=from_key_values(request.params),
        tags=from_key_values(request.tags),
    )
    return {"model": to_mlflow_model(logged_model)}


def _search_logged_models(context: MlflowContext, request: SearchLoggedModelsRequest) -> Any:
    """Those of a filter, in an order, a page at a time; newest first."""
    experiments = tuple(require_experiment_ref(context, logged_model) for logged_model in request.experiment_ids)
    logged_models = sorted(
        context.all("outputs", "list", "outputs", experiments=experiments),
        key=lambda logged_model: -logged_model.made_at,
    )
    order = [
        f"{order_field.field_name} {'ASC' if order_field.ascending else 'DESC'}" for order_field in request.order_by
    ]
    page: ItemPage[LoggedModel] = cut_page(
        filter_items(map(_to_filter_row, logged_models), LOGGED_MODEL_FIELDS, request.filter, order), request
    )
    return {"models": [to_mlflow_model(logged_model) for logged_model in page.items], "next_page_token": page.next}


def _link_models(context: MlflowContext, request: LinkModelsRequest) -> Any:
    models, steps = (
        tuple(require_logged_model_ref(context, run_model.model_id) for run_model in request.models),
        tuple(m.step for m in request.models),
    )
    return context.do("outputs", "link", run=require_run_ref(context, request.run_id), models=models, steps=steps)


def _change_logged_model(context: MlflowContext, **changes: Any) -> Any:
    return {"model": to_mlflow_model(context.call("outputs", "change", model=_require_model_ref(context), **changes))}


def _to_own_status(request: LoggedModelRequest) -> str:
    return next(
        (own_status for own_status, mlflow_status in MLFLOW_STATUS.items() if mlflow_status == request.status),
        request.status,
    )


def _require_model_ref(context: MlflowContext) -> Ref:
    return require_logged_model_ref(context, context.named["model"])


def _to_mlflow_metric(logged_model: LoggedModel, measurement: ModelMeasurement) -> dict[str, Any]:
    point = measurement.point
    return {
        "key": point.key,
        "value": to_json_number(point.number),
        "timestamp": to_milliseconds(point.at),
        "step": point.step,
        "model_id": logged_model.ref.name,
        "run_id": measurement.run,
        "dataset_name": measurement.data,
        "dataset_digest": measurement.digest,
    }


def _to_filter_row(logged_model: LoggedModel) -> FilterRow:
    info = to_mlflow_model(logged_model)["info"]
    times = {"creation_time": info["creation_timestamp_ms"], "last_updated_time": info["last_updated_timestamp_ms"]}
    metrics = {measurement.point.key: measurement.point.number for measurement in logged_model.metrics}
    return FilterRow(
        logged_model,
        {**info, "status": logged_model.status.upper(), **times},
        logged_model.tags,
        metrics,
        logged_model.params,
    )


ENDPOINTS = (
    MlflowEndpoint("POST 2.0 logged-models", "outputs.create", LoggedModelRequest, _create_logged_model),
    MlflowEndpoint("POST 2.0 logged-models/search", "outputs.list", SearchLoggedModelsRequest, _search_logged_models),
    MlflowEndpoint(
        "GET 2.0 logged-models/{model}",
        "outputs.show",
        MlflowRequest,
        lambda context, _: {
            "model": to_mlflow_model(context.call("outputs", "show", model=_require_model_ref(context)))
        },
    ),
    MlflowEndpoint(
        "PATCH 2.0 logged-models/{model}",
        "outputs.change",
        LoggedModelRequest,
        lambda context, request: _change_logged_model(context, status=_to_own_status(request)),
    ),
    MlflowEndpoint(
        "DELETE 2.0 logged-models/{model}",
        "outputs.delete",
        MlflowRequest,
        lambda context, _: context.do("outputs", "delete", model=_require_model_ref(context)),
    ),
    MlflowEndpoint(
        "PATCH 2.0 logged-models/{model}/tags",
        "outputs.change",
        LoggedModelRequest,
        lambda context, request: _change_logged_model(context, tags=from_key_values(request.tags)),
    ),
    MlflowEndpoint(
        "DELETE 2.0 logged-models/{model}/tags/{key}",
        "outputs.change",
        MlflowRequest,
        lambda context, _: _change_logged_model(context, drop=(context.named["key"],)),
    ),
    MlflowEndpoint(
        "POST 2.0 logged-models/{model}/params",
        "outputs.change",
        LoggedModelRequest,
        lambda context, request: _change_logged_model(context, params=from_key_values(request.params)),
    ),
    MlflowEndpoint("POST 2.0 runs/outputs", "outputs.link", LinkModelsRequest, _link_models),
)
