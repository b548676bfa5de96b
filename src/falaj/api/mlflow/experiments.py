"""Experiments as MLflow's clients know them: a number, a name of any text, tags."""

import re
from contextlib import suppress
from typing import Any

import msgspec

from falaj.api.mlflow.coding import Endpoint, Int, Pair, Question, Visit, mapping, millis, pairs
from falaj.api.mlflow.filters import Page, Sight, chosen, page_of
from falaj.api.mlflow.ids import experiment_ref
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.names import full_name, ref_of, shown_name
from falaj.track.records import Experiment
from falaj.track.where import EXPERIMENTS

_LOCATION = re.compile(r"mlflow-artifacts:(/[A-Za-z0-9._-]{1,128}){0,16}/?")
STATES = {"ACTIVE_ONLY": "active", "DELETED_ONLY": "deleted", "ALL": "all"}


class One(Question):
    """What names an experiment, and may say something about it."""

    experiment_id: str = ""
    experiment_name: str = ""
    name: str = ""
    new_name: str = ""
    artifact_location: str = ""
    tags: list[Pair] = msgspec.field(default_factory=list)
    key: str = ""
    value: str = ""


class Search(Question):
    """experiments/search."""

    max_results: Int = 1000
    page_token: str = ""
    filter: str = ""
    order_by: list[str] = msgspec.field(default_factory=list)
    view_type: str = "ACTIVE_ONLY"


def shown(visit: Visit, one: Experiment) -> dict[str, Any]:
    """An experiment in MLflow's fields."""
    return {
        "experiment_id": one.id,
        "name": shown_name(one.title, visit.workspace),
        "artifact_location": f"mlflow-artifacts:/{one.id}",
        "lifecycle_stage": one.state,
        "creation_time": millis(one.made_at),
        "last_update_time": millis(one.changed_at),
        "tags": pairs(one.tags),
    }


def _create(visit: Visit, asked: One) -> Any:
    parts = asked.artifact_location.split("/")
    if asked.artifact_location and (not _LOCATION.fullmatch(asked.artifact_location) or ".." in parts):
        raise Invalid("artefacts do not lie at an address of yours", "leave artifact_location out")
    full = full_name(asked.name, visit.workspace)
    if _find(visit, full) is not None:
        raise Conflict(f"there is an experiment {full[:80]!r}", "use it, or choose another name")
    ref = ref_of("experiment", full)
    while visit.look("track", "experiment", name=ref) is not None:
        # The reference is an experiment's that was renamed since; the record keeps which text is whose.
        ref = ref_of("experiment", f"{full}\n{ref}")
    made: Experiment = visit.call("track", "create", name=ref, title=full, tags=mapping(asked.tags))
    return {"experiment_id": made.id}


def _by_name(visit: Visit, asked: One) -> Any:
    full = full_name(asked.experiment_name, visit.workspace)
    found = _find(visit, full)
    if found is None:
        raise NotFound(f"there is no experiment {full[:80]!r}", "mlflow.create_experiment() makes one")
    return {"experiment": shown(visit, found)}


def _find(visit: Visit, full: str) -> Experiment | None:
    """The experiment of that text: its title or, of one made by another client of ours, its reference."""
    if full == "Default":
        experiment_ref(visit, "0")
    desk: Any = visit.house.desks["track"]
    # Two projects may use the same title: an experiment that the caller may not see is as if it were not there.
    for ref in desk.find_titled(visit.ctx.tenant, full):
        titled: Experiment | None = visit.look("track", "experiment", name=ref)
        if titled is not None:
            return titled
    named: Experiment | None = visit.look("track", "experiment", name=ref_of("experiment", full))
    return named if named is not None and named.title == named.ref.name else None


def _search(visit: Visit, asked: Search) -> Any:
    with suppress(NotFound):  # who may not create experiment 0 sees the experiments that exist
        experiment_ref(visit, "0")
    found = visit.all("track", "experiments", "experiments", state=STATES.get(asked.view_type, "active"))
    sights = [Sight(one, shown(visit, one), one.tags) for one in found]
    order = asked.order_by or ["creation_time DESC", "experiment_id ASC"]
    picked: Page[Experiment] = page_of(chosen(sights, EXPERIMENTS, asked.filter, order), asked)
    return {"experiments": [shown(visit, one) for one in picked.items], "next_page_token": picked.next}


def _get(visit: Visit, asked: One) -> Any:
    return {"experiment": shown(visit, visit.call("track", "experiment", name=_ref(visit, asked)))}


def _change(visit: Visit, asked: One, **changes: Any) -> Any:
    return visit.do("track", "change", name=_ref(visit, asked), **changes)


def _ref(visit: Visit, asked: One) -> Ref:
    return experiment_ref(visit, asked.experiment_id)


ENDPOINTS = (
    Endpoint("POST 2.0 experiments/create", "track.create", One, _create),
    Endpoint("GET 2.0 experiments/get", "track.experiment", One, _get),
    Endpoint("GET 2.0 experiments/get-by-name", "track.experiment", One, _by_name),
    Endpoint("POST 2.0 experiments/search", "track.experiments", Search, _search),
    Endpoint("GET 2.0 experiments/search", "track.experiments", Search, _search),
    Endpoint(
        "POST 2.0 experiments/update", "track.change", One,
        lambda visit, asked: _change(visit, asked, title=full_name(asked.new_name, visit.workspace)),
    ),
    Endpoint(
        "POST 2.0 experiments/set-experiment-tag", "track.change", One,
        lambda visit, asked: _change(visit, asked, tags={asked.key: asked.value}),
    ),
    Endpoint(
        "POST 2.0 experiments/delete-experiment-tag", "track.change", One,
        lambda visit, asked: _change(visit, asked, drop=(asked.key,)),
    ),
    Endpoint(
        "POST 2.0 experiments/delete", "track.delete", One,
        lambda visit, asked: visit.do("track", "delete", name=_ref(visit, asked)),
    ),
    Endpoint(
        "POST 2.0 experiments/restore", "track.restore", One,
        lambda visit, asked: visit.do("track", "restore", name=_ref(visit, asked)),
    ),
)  # fmt: skip
