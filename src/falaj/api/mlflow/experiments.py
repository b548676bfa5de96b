"""Experiments as MLflow's clients know them: a number, a name of any text, tags."""

import re
from contextlib import suppress
from typing import Any

import msgspec

from falaj.api.mlflow.coding import (
    Int64,
    KeyValue,
    MlflowContext,
    MlflowEndpoint,
    MlflowRequest,
    from_key_values,
    to_key_values,
    to_milliseconds,
)
from falaj.api.mlflow.filters import FilterRow, ItemPage, cut_page, filter_items
from falaj.api.mlflow.resource_refs import require_experiment_ref
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.name_mapping import to_full_name, to_reference, to_shown_name
from falaj.track.records import Experiment
from falaj.track.search_language import EXPERIMENT_VOCABULARY

_LOCATION_PATTERN = re.compile(r"mlflow-artifacts:(/[A-Za-z0-9._-]{1,128}){0,16}/?")
STATE_BY_VIEW_TYPE = {"ACTIVE_ONLY": "active", "DELETED_ONLY": "deleted", "ALL": "all"}


class ExperimentRequest(MlflowRequest):
    """What names an experiment, and may say something about it."""

    experiment_id: str = ""
    experiment_name: str = ""
    name: str = ""
    new_name: str = ""
    artifact_location: str = ""
    tags: list[KeyValue] = msgspec.field(default_factory=list)
    key: str = ""
    value: str = ""


class SearchExperimentsRequest(MlflowRequest):
    """experiments/search."""

    max_results: Int64 = 1000
    page_token: str = ""
    filter: str = ""
    order_by: list[str] = msgspec.field(default_factory=list)
    view_type: str = "ACTIVE_ONLY"


def to_mlflow_experiment(context: MlflowContext, experiment: Experiment) -> dict[str, Any]:
    """An experiment in MLflow's fields."""
    return {
        "experiment_id": experiment.id,
        "name": to_shown_name(experiment.title, context.workspace),
        "artifact_location": f"mlflow-artifacts:/{experiment.id}",
        "lifecycle_stage": experiment.state,
        "creation_time": to_milliseconds(experiment.made_at),
        "last_update_time": to_milliseconds(experiment.changed_at),
        "tags": to_key_values(experiment.tags),
    }


def _create_experiment(context: MlflowContext, request: ExperimentRequest) -> Any:
    location_parts = request.artifact_location.split("/")
    if request.artifact_location and (
        not _LOCATION_PATTERN.fullmatch(request.artifact_location) or ".." in location_parts
    ):
        raise Invalid("artefacts do not lie at an address of yours", "leave artifact_location out")
    qualified_name = to_full_name(request.name, context.workspace)
    if _find_experiment(context, qualified_name) is not None:
        raise Conflict(f"there is an experiment {qualified_name[:80]!r}", "use it, or choose another name")
    ref = to_reference("experiment", qualified_name)
    while context.look("track", "experiment", name=ref) is not None:
        # The reference is an experiment's that was renamed since; the record keeps which text is whose.
        ref = to_reference("experiment", f"{qualified_name}\n{ref}")
    experiment: Experiment = context.call(
        "track", "create", name=ref, title=qualified_name, tags=from_key_values(request.tags)
    )
    return {"experiment_id": experiment.id}


def _get_experiment_by_name(context: MlflowContext, request: ExperimentRequest) -> Any:
    qualified_name = to_full_name(request.experiment_name, context.workspace)
    experiment = _find_experiment(context, qualified_name)
    if experiment is None:
        raise NotFound(f"there is no experiment {qualified_name[:80]!r}", "mlflow.create_experiment() makes one")
    return {"experiment": to_mlflow_experiment(context, experiment)}


def _find_experiment(context: MlflowContext, qualified_name: str) -> Experiment | None:
    """The experiment of that text: its title or, of one made by another client of ours, its reference."""
    if qualified_name == "Default":
        require_experiment_ref(context, "0")
    tracking_service: Any = context.house.desks["track"]
    # Two projects may use the same title: an experiment that the caller may not see is as if it were not there.
    for ref in tracking_service.find_titled(context.ctx.tenant, qualified_name):
        experiment: Experiment | None = context.look("track", "experiment", name=ref)
        if experiment is not None:
            return experiment
    experiment_by_ref: Experiment | None = context.look(
        "track", "experiment", name=to_reference("experiment", qualified_name)
    )
    return (
        experiment_by_ref
        if experiment_by_ref is not None and experiment_by_ref.title == experiment_by_ref.ref.name
        else None
    )


def _search_experiments(context: MlflowContext, request: SearchExperimentsRequest) -> Any:
    with suppress(NotFound):  # who may not create experiment 0 sees the experiments that exist
        require_experiment_ref(context, "0")
    experiments = context.all(
        "track", "experiments", "experiments", state=STATE_BY_VIEW_TYPE.get(request.view_type, "active")
    )
    filter_rows = [
        FilterRow(experiment, to_mlflow_experiment(context, experiment), experiment.tags) for experiment in experiments
    ]
    order = request.order_by or ["creation_time DESC", "experiment_id ASC"]
    page: ItemPage[Experiment] = cut_page(
        filter_items(filter_rows, EXPERIMENT_VOCABULARY, request.filter, order), request
    )
    return {
        "experiments": [to_mlflow_experiment(context, experiment) for experiment in page.items],
        "next_page_token": page.next,
    }


def _get_experiment(context: MlflowContext, request: ExperimentRequest) -> Any:
    return {
        "experiment": to_mlflow_experiment(
            context, context.call("track", "experiment", name=_require_experiment_ref(context, request))
        )
    }


def _change_experiment(context: MlflowContext, request: ExperimentRequest, **changes: Any) -> Any:
    return context.do("track", "change", name=_require_experiment_ref(context, request), **changes)


def _require_experiment_ref(context: MlflowContext, request: ExperimentRequest) -> Ref:
    return require_experiment_ref(context, request.experiment_id)


ENDPOINTS = (
    MlflowEndpoint("POST 2.0 experiments/create", "track.create", ExperimentRequest, _create_experiment),
    MlflowEndpoint("GET 2.0 experiments/get", "track.experiment", ExperimentRequest, _get_experiment),
    MlflowEndpoint("GET 2.0 experiments/get-by-name", "track.experiment", ExperimentRequest, _get_experiment_by_name),
    MlflowEndpoint("POST 2.0 experiments/search", "track.experiments", SearchExperimentsRequest, _search_experiments),
    MlflowEndpoint("GET 2.0 experiments/search", "track.experiments", SearchExperimentsRequest, _search_experiments),
    MlflowEndpoint(
        "POST 2.0 experiments/update",
        "track.change",
        ExperimentRequest,
        lambda context, request: _change_experiment(
            context, request, title=to_full_name(request.new_name, context.workspace)
        ),
    ),
    MlflowEndpoint(
        "POST 2.0 experiments/set-experiment-tag",
        "track.change",
        ExperimentRequest,
        lambda context, request: _change_experiment(context, request, tags={request.key: request.value}),
    ),
    MlflowEndpoint(
        "POST 2.0 experiments/delete-experiment-tag",
        "track.change",
        ExperimentRequest,
        lambda context, request: _change_experiment(context, request, drop=(request.key,)),
    ),
    MlflowEndpoint(
        "POST 2.0 experiments/delete",
        "track.delete",
        ExperimentRequest,
        lambda context, request: context.do("track", "delete", name=_require_experiment_ref(context, request)),
    ),
    MlflowEndpoint(
        "POST 2.0 experiments/restore",
        "track.restore",
        ExperimentRequest,
        lambda context, request: context.do("track", "restore", name=_require_experiment_ref(context, request)),
    ),
)
