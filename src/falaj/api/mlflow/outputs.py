"""Logged models as clients of version 3 know them: what runs made, before anybody registers it."""

from typing import Any

import msgspec

from falaj.api.mlflow.coding import Endpoint, Int, Pair, Question, Visit, mapping, millis, number, pairs
from falaj.api.mlflow.filters import OUTPUTS, Page, Sight, chosen, page_of
from falaj.api.mlflow.ids import experiment_ref, output_ref, run_ref
from falaj.core.ref import Ref
from falaj.track.outputs import Measured, Output

STATUSES = {
    "pending": "LOGGED_MODEL_PENDING",
    "ready": "LOGGED_MODEL_READY",
    "failed": "LOGGED_MODEL_UPLOAD_FAILED",
}


class Said(Question):
    """What is said of a logged model, at first or later."""

    experiment_id: str = "0"
    name: str = ""
    model_type: str = ""
    source_run_id: str = ""
    status: str = ""
    params: list[Pair] = msgspec.field(default_factory=list)
    tags: list[Pair] = msgspec.field(default_factory=list)


class Linked(msgspec.Struct):
    """A model that a run made."""

    model_id: str
    step: Int = 0


class Made(Question):
    """runs/outputs."""

    run_id: str
    models: list[Linked] = msgspec.field(default_factory=list)


class Order(msgspec.Struct):
    """One part of an order."""

    field_name: str
    ascending: bool = True


class Search(Question):
    """logged-models/search."""

    experiment_ids: list[str] = msgspec.field(default_factory=list)
    filter: str = ""
    max_results: Int = 100
    order_by: list[Order] = msgspec.field(default_factory=list)
    page_token: str = ""


def shown(one: Output) -> dict[str, Any]:
    """A logged model in MLflow's fields."""
    return {
        "info": {
            "model_id": one.ref.name,
            "experiment_id": one.experiment_id,
            "name": one.title,
            "creation_timestamp_ms": millis(one.made_at),
            "last_updated_timestamp_ms": millis(one.changed_at),
            "artifact_uri": f"mlflow-artifacts:/{one.experiment_id}/models/{one.ref.name}/artifacts",
            "status": STATUSES[one.status],
            "model_type": one.type,
            "source_run_id": one.run,
            "tags": pairs(one.tags),
        },
        "data": {"params": pairs(one.params), "metrics": [_measured(one, each) for each in one.metrics]},
    }


def _create(visit: Visit, asked: Said) -> Any:
    made = visit.call(
        "outputs", "create", experiment=experiment_ref(visit, asked.experiment_id), title=asked.name,
        type=asked.model_type, run=run_ref(visit, asked.source_run_id) if asked.source_run_id else None,
        params=mapping(asked.params), tags=mapping(asked.tags),
    )  # fmt: skip
    return {"model": shown(made)}


def _search(visit: Visit, asked: Search) -> Any:
    """Those of a filter, in an order, a page at a time; newest first."""
    places = tuple(experiment_ref(visit, one) for one in asked.experiment_ids)
    found = sorted(visit.all("outputs", "list", "outputs", experiments=places), key=lambda one: -one.made_at)
    order = [f"{part.field_name} {'ASC' if part.ascending else 'DESC'}" for part in asked.order_by]
    picked: Page[Output] = page_of(chosen(map(_sight, found), OUTPUTS, asked.filter, order), asked)
    return {"models": [shown(one) for one in picked.items], "next_page_token": picked.next}


def _link(visit: Visit, asked: Made) -> Any:
    models, steps = tuple(output_ref(visit, one.model_id) for one in asked.models), tuple(m.step for m in asked.models)
    return visit.do("outputs", "link", run=run_ref(visit, asked.run_id), models=models, steps=steps)


def _change(visit: Visit, **changes: Any) -> Any:
    return {"model": shown(visit.call("outputs", "change", model=_named(visit), **changes))}


def _status(asked: Said) -> str:
    return next((ours for ours, theirs in STATUSES.items() if theirs == asked.status), asked.status)


def _named(visit: Visit) -> Ref:
    return output_ref(visit, visit.named["model"])


def _measured(one: Output, each: Measured) -> dict[str, Any]:
    point = each.point
    return {
        "key": point.key, "value": number(point.number), "timestamp": millis(point.at), "step": point.step,
        "model_id": one.ref.name, "run_id": each.run, "dataset_name": each.data, "dataset_digest": each.digest,
    }  # fmt: skip


def _sight(one: Output) -> Sight:
    info = shown(one)["info"]
    times = {"creation_time": info["creation_timestamp_ms"], "last_updated_time": info["last_updated_timestamp_ms"]}
    metrics = {each.point.key: each.point.number for each in one.metrics}
    return Sight(one, {**info, "status": one.status.upper(), **times}, one.tags, metrics, one.params)


ENDPOINTS = (
    Endpoint("POST 2.0 logged-models", "outputs.create", Said, _create),
    Endpoint("POST 2.0 logged-models/search", "outputs.list", Search, _search),
    Endpoint(
        "GET 2.0 logged-models/{model}", "outputs.show", Question,
        lambda visit, _: {"model": shown(visit.call("outputs", "show", model=_named(visit)))},
    ),
    Endpoint(
        "PATCH 2.0 logged-models/{model}", "outputs.change", Said,
        lambda visit, asked: _change(visit, status=_status(asked)),
    ),
    Endpoint(
        "DELETE 2.0 logged-models/{model}", "outputs.delete", Question,
        lambda visit, _: visit.do("outputs", "delete", model=_named(visit)),
    ),
    Endpoint(
        "PATCH 2.0 logged-models/{model}/tags", "outputs.change", Said,
        lambda visit, asked: _change(visit, tags=mapping(asked.tags)),
    ),
    Endpoint(
        "DELETE 2.0 logged-models/{model}/tags/{key}", "outputs.change", Question,
        lambda visit, _: _change(visit, drop=(visit.named["key"],)),
    ),
    Endpoint(
        "POST 2.0 logged-models/{model}/params", "outputs.change", Said,
        lambda visit, asked: _change(visit, params=mapping(asked.params)),
    ),
    Endpoint("POST 2.0 runs/outputs", "outputs.link", Made, _link),
)  # fmt: skip
