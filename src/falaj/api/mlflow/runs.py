"""Runs as MLflow's clients know them: parameters, metrics, tags, inputs, outputs."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from falaj.api.mlflow.coding import Pair, Question, Visit, endpoint, mapping, millis, number, pairs, seconds
from falaj.api.mlflow.experiments import STATES
from falaj.api.mlflow.ids import experiment_ref, output_ref, run_ref
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.outputs import Measured
from falaj.track.records import Metric, Run, UsedData

NAME_TAG = "mlflow.runName"
_OURS = re.compile(
    r"\b(?:dataset|model):[a-z0-9][a-z0-9._-]{0,62}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}@v[1-9][0-9]{0,17}\b"
)
MOST_POINTS = 25_000


class Point(msgspec.Struct):
    """One measurement."""

    key: str
    value: float
    timestamp: int
    step: int = 0
    model_id: str = ""
    dataset_name: str = ""
    dataset_digest: str = ""


class One(Question):
    """What names a run; older clients call its id a uuid."""

    run_id: str = ""
    run_uuid: str = ""


class Create(Question):
    """runs/create."""

    experiment_id: str = "0"
    user_id: str = ""
    run_name: str = ""
    start_time: int = 0
    tags: list[Pair] = msgspec.field(default_factory=list)


class Update(One):
    """runs/update."""

    status: str = ""
    end_time: int = 0
    run_name: str = ""


class OnePoint(One, kw_only=True):
    """runs/log-metric."""

    key: str
    value: float
    timestamp: int
    step: int = 0
    model_id: str = ""
    dataset_name: str = ""
    dataset_digest: str = ""


class OnePair(One, kw_only=True):
    """runs/set-tag and runs/log-parameter."""

    key: str
    value: str = ""


class Batch(One):
    """runs/log-batch."""

    metrics: list[Point] = msgspec.field(default_factory=list)
    params: list[Pair] = msgspec.field(default_factory=list)
    tags: list[Pair] = msgspec.field(default_factory=list)


class Logged(One):
    """runs/log-model."""

    model_json: str = "{}"


class Used(msgspec.Struct):
    """A dataset as a client describes it."""

    name: str
    digest: str = ""
    source_type: str = ""
    source: str = ""
    schema: str = ""
    profile: str = ""


class UsedAs(msgspec.Struct):
    """A dataset and what it was used for."""

    dataset: Used
    tags: list[Pair] = msgspec.field(default_factory=list)


class Linked(msgspec.Struct):
    """A model that a run used or made."""

    model_id: str
    step: int = 0


class Inputs(One):
    """runs/log-inputs and runs/outputs."""

    datasets: list[UsedAs] = msgspec.field(default_factory=list)
    models: list[Linked] = msgspec.field(default_factory=list)


class Search(Question):
    """runs/search."""

    experiment_ids: list[str] = msgspec.field(default_factory=list)
    filter: str = ""
    run_view_type: str = "ACTIVE_ONLY"
    max_results: int = 1000
    order_by: list[str] = msgspec.field(default_factory=list)
    page_token: str = ""


class History(One, kw_only=True):
    """metrics/get-history."""

    metric_key: str
    max_results: int = MOST_POINTS
    page_token: str = ""


class BulkHistory(Question):
    """metrics/get-history-bulk-interval."""

    run_ids: list[str]
    metric_key: str
    start_step: int = -(2**31)
    end_step: int = 2**31
    max_results: int = 2500


def _run(visit: Visit, asked: One) -> Ref:
    return run_ref(visit, asked.run_id or asked.run_uuid)


@endpoint("track.start", "POST 2.0 runs/create")
def create(visit: Visit, asked: Create) -> Any:
    """Begin one."""
    tags = mapping(asked.tags)
    name = asked.run_name or tags.pop(NAME_TAG, "")
    parent = tags.get("mlflow.parentRunId")
    if parent:
        run_ref(visit, parent)
    experiment = experiment_ref(visit, asked.experiment_id)
    made = visit.call("track", "start", experiment=experiment, title=name, tags=tags, started=seconds(asked.start_time))
    return {"run": shown(made)}


@endpoint("track.show", "GET 2.0 runs/get")
def get(visit: Visit, asked: One) -> Any:
    """All of it."""
    return {"run": shown(visit.call("track", "show", run=_run(visit, asked)))}


@endpoint("track.end", "POST 2.0 runs/update")
def update(visit: Visit, asked: Update) -> Any:
    """How it stands, when it ended, what it is called."""
    ref = _run(visit, asked)
    run = visit.call(
        "track", "end", run=ref, status=asked.status.lower(), ended=seconds(asked.end_time), title=asked.run_name
    )
    return {"run_info": shown(run)["info"]}


@endpoint("track.delete", "POST 2.0 runs/delete")
def delete(visit: Visit, asked: One) -> Any:
    """Hide it."""
    visit.call("track", "delete", name=_run(visit, asked))
    return {}


@endpoint("track.restore", "POST 2.0 runs/restore")
def restore(visit: Visit, asked: One) -> Any:
    """Bring it back."""
    visit.call("track", "restore", name=_run(visit, asked))
    return {}


@endpoint("track.log", "POST 2.0 runs/log-metric")
def log_metric(visit: Visit, asked: OnePoint) -> Any:
    """One measurement."""
    point = Metric(asked.key, asked.value, seconds(asked.timestamp), asked.step)
    visit.call("track", "log", run=_run(visit, asked), metrics=(point,))
    if asked.model_id:
        _measure(visit, asked, [asked])
    return {}


@endpoint("track.log", "POST 2.0 runs/log-parameter")
def log_parameter(visit: Visit, asked: OnePair) -> Any:
    """One parameter, written once."""
    visit.call("track", "log", run=_run(visit, asked), params={asked.key: asked.value})
    return {}


@endpoint("track.log", "POST 2.0 runs/set-tag")
def set_tag(visit: Visit, asked: OnePair) -> Any:
    """One tag; that of the name renames the run."""
    ref = _run(visit, asked)
    if asked.key == NAME_TAG:
        visit.call("track", "end", run=ref, status="", title=asked.value)
    else:
        visit.call("track", "log", run=ref, tags={asked.key: asked.value})
    return {}


@endpoint("track.log", "POST 2.0 runs/delete-tag")
def delete_tag(visit: Visit, asked: OnePair) -> Any:
    """Take one tag away."""
    ref = _run(visit, asked)
    if asked.key not in visit.call("track", "show", run=ref).tags:
        raise NotFound(f"the run has no tag {asked.key[:80]!r}", "its tags are in runs/get", ref)
    visit.call("track", "log", run=ref, drop=(asked.key,))
    return {}


@endpoint("track.log", "POST 2.0 runs/log-batch")
def log_batch(visit: Visit, asked: Batch) -> Any:
    """Many at once: all or none."""
    if len({pair.key for pair in asked.params}) != len(asked.params):
        raise Invalid("a parameter is given twice in one batch", "give each once")
    points = tuple([Metric(p.key, p.value, p.timestamp / 1000, p.step) for p in asked.metrics])
    tags = mapping(asked.tags)
    ref = _run(visit, asked)
    if NAME_TAG in tags:
        visit.call("track", "end", run=ref, status="", title=tags.pop(NAME_TAG))
    visit.call("track", "log", run=ref, metrics=points, params=mapping(asked.params), tags=tags)
    _measure(visit, asked, [point for point in asked.metrics if point.model_id])
    return {}


@endpoint("track.log", "POST 2.0 runs/log-model")
def log_model(visit: Visit, asked: Logged) -> Any:
    """What clients before version 3 said of a model among the artefacts: kept as the tag it was."""
    tags = visit.call("track", "show", run=(ref := _run(visit, asked))).tags
    try:
        known = msgspec.json.decode(tags.get("mlflow.log-model.history", "[]"), type=list[dict[str, Any]])
        known.append(msgspec.json.decode(asked.model_json, type=dict[str, Any]))
    except msgspec.MsgspecError:
        raise Invalid("model_json is no JSON object", "send what MLmodel says") from None
    history = msgspec.json.encode(known).decode()
    visit.call("track", "log", run=ref, tags={"mlflow.log-model.history": history})
    return {}


@endpoint("track.use", "POST 2.0 runs/log-inputs")
def log_inputs(visit: Visit, asked: Inputs) -> Any:
    """Datasets and models that it was given."""
    used, ours = list[UsedData](), list[Ref]()
    for each in asked.datasets:
        data = each.dataset
        ref = _ref_in(data.source)
        ours += [ref] if ref is not None else []
        used.append(
            UsedData(
                data.name, data.digest, data.source_type, data.source, data.schema, data.profile, ref, mapping(each.tags)
            )
        )  # fmt: skip
    visit.call("track", "use", run=_run(visit, asked), data=tuple(used), inputs=tuple(ours))
    return {}


@endpoint("track.list", "POST 2.0 runs/search")
def search(visit: Visit, asked: Search) -> Any:
    """Those of a filter, in an order, a page at a time."""
    if not asked.experiment_ids:
        return {}
    page = visit.call(
        "track",
        "list",
        experiments=tuple(experiment_ref(visit, one) for one in asked.experiment_ids),
        where=asked.filter,
        order=tuple(asked.order_by),
        state=STATES.get(asked.run_view_type, "active"),
        after=asked.page_token,
        limit=asked.max_results,
    )
    desk: Any = visit.house.desks["track"]
    found = {"runs": [msgspec.Raw(desk.encoded(run, _encoded)) for run in page.runs]}
    return {**found, "next_page_token": page.next} if page.next else found


@endpoint("track.history", "GET 2.0 metrics/get-history")
def history(visit: Visit, asked: History) -> Any:
    """Every point of one metric."""
    curve = visit.call(
        "track",
        "history",
        run=_run(visit, asked),
        metric=asked.metric_key,
        after=asked.page_token,
        limit=asked.max_results,
    )
    found = {"metrics": [metric(point) for point in curve.points]}
    return {**found, "next_page_token": curve.next} if curve.next else found


@endpoint("track.history", "GET 2.0 metrics/get-history-bulk-interval")
def bulk_history(visit: Visit, asked: BulkHistory) -> Any:
    """One metric of several runs, thinned to what a plot can show."""
    found = []
    for one in asked.run_ids[:100]:
        curve = visit.call(
            "track", "history", run=run_ref(visit, one), metric=asked.metric_key, bins=max(1, asked.max_results // 3)
        )
        points = (point for point in curve.points if asked.start_step <= point.step <= asked.end_step)
        found += [{**metric(point), "run_id": one} for point in points]
    return {"metrics": found}


def shown(run: Run) -> dict[str, Any]:
    """A run in MLflow's fields."""
    tags = {NAME_TAG: run.title, **run.tags}
    return {
        "info": {
            "run_id": run.ref.name,
            "run_uuid": run.ref.name,
            "run_name": run.title,
            "experiment_id": run.experiment_id,
            "user_id": run.author,
            "status": run.status.upper(),
            "start_time": millis(run.started),
            **({"end_time": millis(run.ended)} if run.ended else {}),
            "artifact_uri": f"mlflow-artifacts:/{run.experiment_id}/{run.ref.name}/artifacts",
            "lifecycle_stage": run.state,
        },
        "data": {
            "metrics": [metric(point) for point in run.metrics.values()],
            "params": pairs(run.params),
            "tags": pairs(tags),
        },
        "inputs": {"dataset_inputs": [_dataset(one) for one in run.inputs]},
        "outputs": {"model_outputs": [{"model_id": made.id, "step": made.step} for made in run.outputs]},
    }


def _encoded(run: Run) -> bytes:
    answer: bytes = msgspec.json.encode(shown(run))
    return answer


def metric(point: Metric) -> dict[str, Any]:
    """A point in MLflow's fields."""
    return {"key": point.key, "value": number(point.number), "timestamp": millis(point.at), "step": point.step}


def _dataset(one: UsedData) -> dict[str, Any]:
    fields = {
        "name": one.name, "digest": one.digest, "source_type": one.source_type, "source": one.source,
        "schema": one.schema, "profile": one.profile,
    }  # fmt: skip
    return {"dataset": {key: value for key, value in fields.items() if value}, "tags": pairs(one.tags)}


def _ref_in(source: str) -> Ref | None:
    """One of our own datasets or models, where the source that a client wrote down names it."""
    found = _OURS.search(source)
    return Ref.parse(found[0]) if found else None


def _measure(visit: Visit, asked: One, points: Sequence[Point | OnePoint]) -> None:
    """Measurements of a logged model are its own, too."""
    found: dict[str, list[Measured]] = {}
    for p in points:
        metric = Metric(p.key, p.value, seconds(p.timestamp), p.step)
        found.setdefault(p.model_id, []).append(Measured(metric, p.dataset_name, p.dataset_digest, asked.run_id))
    for name, measured in found.items():
        visit.call("outputs", "change", model=output_ref(visit, name), metrics=tuple(measured))
