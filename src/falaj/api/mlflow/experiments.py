"""Experiments as MLflow's clients know them: a number, a name of any text, tags."""

from typing import Any

import msgspec

from falaj.api.mlflow.coding import Pair, Question, Visit, endpoint, mapping, millis, pairs
from falaj.api.mlflow.filters import Page, Sight, chosen, page_of
from falaj.api.mlflow.ids import experiment_ref
from falaj.api.mlflow.names import full_name, ref_of, shown_name
from falaj.core.errors import Conflict, Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.records import Experiment
from falaj.track.where import EXPERIMENTS

STATES = {"ACTIVE_ONLY": "active", "DELETED_ONLY": "deleted", "ALL": "all"}
MOST = 1000


class Create(Question):
    """experiments/create."""

    name: str
    artifact_location: str = ""
    tags: list[Pair] = msgspec.field(default_factory=list)


class Named(Question):
    """experiments/get-by-name."""

    experiment_name: str


class One(Question):
    """What names an experiment and may say something about it."""

    experiment_id: str
    new_name: str = ""
    key: str = ""
    value: str = ""


class Search(Question):
    """experiments/search."""

    max_results: int = MOST
    page_token: str = ""
    filter: str = ""
    order_by: list[str] = msgspec.field(default_factory=list)
    view_type: str = "ACTIVE_ONLY"


@endpoint("track.create", "POST 2.0 experiments/create")
def create(visit: Visit, asked: Create) -> Any:
    """Make one. Its artefacts lie where the platform keeps everything."""
    if asked.artifact_location and not asked.artifact_location.startswith("mlflow-artifacts:"):
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


@endpoint("track.experiment", "GET 2.0 experiments/get-by-name")
def get_by_name(visit: Visit, asked: Named) -> Any:
    """The one of that name, deleted or not."""
    full = full_name(asked.experiment_name, visit.workspace)
    found = _find(visit, full)
    if found is None:
        raise NotFound(f"there is no experiment {full[:80]!r}", "mlflow.create_experiment() makes one")
    return {"experiment": shown(visit, found)}


@endpoint("track.experiment", "GET 2.0 experiments/get")
def get(visit: Visit, asked: One) -> Any:
    """The one of that number."""
    ref = experiment_ref(visit, asked.experiment_id)
    return {"experiment": shown(visit, visit.call("track", "experiment", name=ref))}


@endpoint("track.experiments", "POST 2.0 experiments/search", "GET 2.0 experiments/search")
def search(visit: Visit, asked: Search) -> Any:
    """Those of a filter, in an order, a page at a time."""
    state, found, after = STATES.get(asked.view_type, "active"), list[Experiment](), ""
    experiment_ref(visit, "0")
    while True:
        page = visit.call("track", "experiments", state=state, after=after, limit=1000)
        found += page.experiments
        if not (after := page.next):
            break
    sights = [Sight(one, shown(visit, one), one.tags) for one in found]
    order = asked.order_by or ["creation_time DESC", "experiment_id ASC"]
    picked: Page[Experiment] = page_of(chosen(sights, EXPERIMENTS, asked.filter, order), asked)
    return {"experiments": [shown(visit, one) for one in picked.items], "next_page_token": picked.next}


@endpoint("track.change", "POST 2.0 experiments/update")
def update(visit: Visit, asked: One) -> Any:
    """Rename it; its reference and its number stay."""
    title = full_name(asked.new_name, visit.workspace)
    visit.call("track", "change", name=experiment_ref(visit, asked.experiment_id), title=title)
    return {}


@endpoint("track.change", "POST 2.0 experiments/set-experiment-tag")
def set_tag(visit: Visit, asked: One) -> Any:
    """Set one tag."""
    ref = experiment_ref(visit, asked.experiment_id)
    visit.call("track", "change", name=ref, tags={asked.key: asked.value})
    return {}


@endpoint("track.change", "POST 2.0 experiments/delete-experiment-tag")
def delete_tag(visit: Visit, asked: One) -> Any:
    """Take one tag away."""
    visit.call("track", "change", name=experiment_ref(visit, asked.experiment_id), drop=(asked.key,))
    return {}


@endpoint("track.delete", "POST 2.0 experiments/delete")
def delete(visit: Visit, asked: One) -> Any:
    """Hide it and its runs."""
    visit.call("track", "delete", name=experiment_ref(visit, asked.experiment_id))
    return {}


@endpoint("track.restore", "POST 2.0 experiments/restore")
def restore(visit: Visit, asked: One) -> Any:
    """Bring it back."""
    visit.call("track", "restore", name=experiment_ref(visit, asked.experiment_id))
    return {}


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


def _find(visit: Visit, full: str) -> Experiment | None:
    """The experiment of that text: its title or, of one made by another client of ours, its reference."""
    if full == "Default":
        experiment_ref(visit, "0")
    desk: Any = visit.house.desks["track"]
    ref: Ref | None = desk.titled(visit.ctx.tenant, full)
    if ref is not None:
        return visit.call("track", "experiment", name=ref)  # type: ignore[no-any-return]
    found: Experiment | None = visit.look("track", "experiment", name=ref_of("experiment", full))
    return found if found is not None and found.title == found.ref.name else None
