"""Logged models as clients of version 3 know them: what runs made, before anybody registers it."""

from typing import Any

import msgspec

from falaj.api.mlflow.coding import Pair, Question, Visit, endpoint, mapping, millis, number, pairs
from falaj.api.mlflow.filters import OUTPUTS, Page, Sight, chosen, page_of
from falaj.api.mlflow.ids import experiment_ref, output_ref, run_ref
from falaj.api.mlflow.runs import Inputs
from falaj.core.ref import Ref
from falaj.track.outputs import Measured, Output

STATUSES = {
    "pending": "LOGGED_MODEL_PENDING",
    "ready": "LOGGED_MODEL_READY",
    "failed": "LOGGED_MODEL_UPLOAD_FAILED",
}


class Create(Question):
    """logged-models."""

    experiment_id: str
    name: str = ""
    model_type: str = ""
    source_run_id: str = ""
    params: list[Pair] = msgspec.field(default_factory=list)
    tags: list[Pair] = msgspec.field(default_factory=list)


class Change(Question):
    """What is said of one later."""

    status: str = ""
    params: list[Pair] = msgspec.field(default_factory=list)
    tags: list[Pair] = msgspec.field(default_factory=list)


class Order(msgspec.Struct):
    """One part of an order."""

    field_name: str
    ascending: bool = True


class Search(Question):
    """logged-models/search."""

    experiment_ids: list[str] = msgspec.field(default_factory=list)
    filter: str = ""
    max_results: int = 100
    order_by: list[Order] = msgspec.field(default_factory=list)
    page_token: str = ""


def _named(visit: Visit) -> Ref:
    return output_ref(visit, visit.named["model"])


@endpoint("outputs.create", "POST 2.0 logged-models")
def create(visit: Visit, asked: Create) -> Any:
    """Announce one."""
    made = visit.call(
        "outputs", "create", experiment=experiment_ref(visit, asked.experiment_id), title=asked.name,
        type=asked.model_type, run=run_ref(visit, asked.source_run_id) if asked.source_run_id else None,
        params=mapping(asked.params), tags=mapping(asked.tags),
    )  # fmt: skip
    return {"model": shown(made)}


@endpoint("outputs.show", "GET 2.0 logged-models/{model}")
def get(visit: Visit, asked: Question) -> Any:
    """All that is known of it."""
    del asked
    return {"model": shown(visit.call("outputs", "show", model=_named(visit)))}


@endpoint("outputs.change", "PATCH 2.0 logged-models/{model}")
def finalize(visit: Visit, asked: Change) -> Any:
    """Its files are there, or will not come."""
    status = next((ours for ours, theirs in STATUSES.items() if theirs == asked.status), asked.status)
    return {"model": shown(visit.call("outputs", "change", model=_named(visit), status=status))}


@endpoint("outputs.delete", "DELETE 2.0 logged-models/{model}")
def delete(visit: Visit, asked: Question) -> Any:
    """Away with it; versions made of it stay."""
    del asked
    visit.call("outputs", "delete", model=_named(visit))
    return {}


@endpoint("outputs.change", "PATCH 2.0 logged-models/{model}/tags")
def set_tags(visit: Visit, asked: Change) -> Any:
    """Set tags."""
    return {"model": shown(visit.call("outputs", "change", model=_named(visit), tags=mapping(asked.tags)))}


@endpoint("outputs.change", "DELETE 2.0 logged-models/{model}/tags/{key}")
def delete_tag(visit: Visit, asked: Question) -> Any:
    """Take one tag away."""
    del asked
    visit.call("outputs", "change", model=_named(visit), drop=(visit.named["key"],))
    return {}


@endpoint("outputs.change", "POST 2.0 logged-models/{model}/params")
def log_params(visit: Visit, asked: Change) -> Any:
    """More parameters."""
    visit.call("outputs", "change", model=_named(visit), params=mapping(asked.params))
    return {}


@endpoint("outputs.list", "POST 2.0 logged-models/search")
def search(visit: Visit, asked: Search) -> Any:
    """Those of a filter, in an order, a page at a time; newest first."""
    places = tuple(experiment_ref(visit, one) for one in asked.experiment_ids)
    found, after = list[Output](), ""
    while True:
        page = visit.call("outputs", "list", experiments=places, after=after, limit=1000)
        found += page.outputs
        if not (after := page.next):
            break
    order = [f"{part.field_name} {'ASC' if part.ascending else 'DESC'}" for part in asked.order_by]
    sights = map(_sight, sorted(found, key=lambda one: one.made_at, reverse=True))
    picked: Page[Output] = page_of(chosen(sights, OUTPUTS, asked.filter, order), asked)
    return {"models": [shown(one) for one in picked.items], "next_page_token": picked.next}


@endpoint("outputs.link", "POST 2.0 runs/outputs")
def link(visit: Visit, asked: Inputs) -> Any:
    """Which of them a run made."""
    models = tuple(output_ref(visit, one.model_id) for one in asked.models)
    run = run_ref(visit, asked.run_id or asked.run_uuid)
    visit.call("outputs", "link", run=run, models=models, steps=tuple(one.step for one in asked.models))
    return {}


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
