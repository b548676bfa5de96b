"""Runs as MLflow's clients know them: parameters, metrics, tags, inputs, outputs."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from falaj.api.mlflow.coding import Endpoint, Int, Pair, Question, Visit, mapping, millis, number, pairs, seconds
from falaj.api.mlflow.experiments import STATES
from falaj.api.mlflow.ids import experiment_ref, output_ref, run_ref
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.track.outputs import Measured
from falaj.track.records import Metric, Run, UsedData

NAME_TAG, MODELS_TAG = "mlflow.runName", "mlflow.log-model.history"
MOST_RUNS, MOST_POINTS, PARAM, TAG = 100, 25_000, 6_000, 8_000
_OURS = re.compile(
    r"\b(?:dataset|model):[a-z0-9][a-z0-9._-]{0,62}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}@v[1-9][0-9]{0,17}\b"
)


class Point(msgspec.Struct):
    """One measurement, perhaps of a logged model on some data."""

    key: str
    value: float
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    step: Int = 0
    model_id: str = ""
    dataset_name: str = ""
    dataset_digest: str = ""


class One(Question):
    """What names a run (older clients call its id a uuid), and may say something of it."""

    run_id: str = ""
    run_uuid: str = ""
    status: str = ""
    end_time: Int = 0
    run_name: str = ""
    key: str = ""
    value: str = ""
    model_json: str = "{}"


class OnePoint(Point, kw_only=True):
    """runs/log-metric."""

    run_id: str = ""
    run_uuid: str = ""


class Create(Question):
    """runs/create."""

    experiment_id: str = "0"
    run_name: str = ""
    start_time: Int = 0
    tags: list[Pair] = msgspec.field(default_factory=list)


class Batch(Question):
    """runs/log-batch."""

    run_id: str
    run_uuid: str = ""
    metrics: list[Point] = msgspec.field(default_factory=list)
    params: list[Pair] = msgspec.field(default_factory=list)
    tags: list[Pair] = msgspec.field(default_factory=list)


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


class Inputs(Question):
    """runs/log-inputs."""

    run_id: str
    run_uuid: str = ""
    datasets: list[UsedAs] = msgspec.field(default_factory=list)


class Search(Question):
    """runs/search."""

    experiment_ids: list[str] = msgspec.field(default_factory=list)
    filter: str = ""
    run_view_type: str = "ACTIVE_ONLY"
    max_results: Int = 1000
    order_by: list[str] = msgspec.field(default_factory=list)
    page_token: str = ""


class History(Question):
    """metrics/get-history, and the same of several runs, thinned."""

    metric_key: str
    run_id: str = ""
    run_uuid: str = ""
    run_ids: list[str] = msgspec.field(default_factory=list)
    start_step: Int = -(2**63)
    end_step: Int = 2**63 - 1
    max_results: Int = MOST_POINTS
    page_token: str = ""


def shown(run: Run) -> dict[str, Any]:
    """A run in MLflow's fields."""
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
            "metrics": [_metric(point) for point in run.metrics.values()],
            "params": pairs(run.params),
            "tags": pairs({NAME_TAG: run.title, **run.tags}),
        },
        "inputs": {"dataset_inputs": [_dataset(one) for one in run.inputs]},
        "outputs": {"model_outputs": [{"model_id": made.id, "step": made.step} for made in run.outputs]},
    }


def _create(visit: Visit, asked: Create) -> Any:
    tags = mapping(asked.tags)
    name = asked.run_name or tags.get(NAME_TAG, "")
    tags.pop(NAME_TAG, None)
    if tags.get("mlflow.parentRunId"):
        run_ref(visit, tags["mlflow.parentRunId"])
    place, began = experiment_ref(visit, asked.experiment_id), seconds(asked.start_time)
    return {"run": shown(visit.call("track", "start", experiment=place, title=name, tags=tags, started=began))}


def _update(visit: Visit, asked: One) -> Any:
    status, ended = asked.status.lower(), seconds(asked.end_time)
    run = visit.call("track", "end", run=_ref(visit, asked), status=status, ended=ended, title=asked.run_name)
    return {"run_info": shown(run)["info"]}


def _log_metric(visit: Visit, asked: OnePoint) -> Any:
    point = Metric(asked.key, asked.value, seconds(asked.timestamp), asked.step)
    visit.call("track", "log", run=_ref(visit, asked), metrics=(point,))
    if asked.model_id:
        _measure(visit, asked, (asked,))
    return {}


def _set_tag(visit: Visit, asked: One) -> Any:
    if asked.key == NAME_TAG:
        return visit.do("track", "end", run=_ref(visit, asked), status="", title=asked.value)
    return visit.do("track", "log", run=_ref(visit, asked), tags={asked.key: asked.value[:TAG]})


def _delete_tag(visit: Visit, asked: One) -> Any:
    ref = _ref(visit, asked)
    if asked.key not in visit.call("track", "show", run=ref).tags:
        raise NotFound(f"the run has no tag {asked.key[:80]!r}", "its tags are in runs/get", ref)
    return visit.do("track", "log", run=ref, drop=(asked.key,))


def _log_batch(visit: Visit, asked: Batch) -> Any:
    """Many at once: all or none."""
    if len({pair.key for pair in asked.params}) != len(asked.params):
        raise Invalid("a parameter is given twice in one batch", "give each once")
    points = tuple([Metric(p.key, p.value, p.timestamp / 1000, p.step) for p in asked.metrics])
    tags, ref = mapping(asked.tags), _ref(visit, asked)
    if NAME_TAG in tags:
        visit.call("track", "end", run=ref, status="", title=tags.pop(NAME_TAG))
    visit.call("track", "log", run=ref, metrics=points, params=mapping(asked.params, PARAM), tags=tags)
    _measure(visit, asked, [point for point in asked.metrics if point.model_id])
    return {}


def _only_log(asked: Batch) -> bool:
    """Whether nothing but the run is spoken of, and it keeps its title."""
    return not any(point.model_id for point in asked.metrics) and all(tag.key != NAME_TAG for tag in asked.tags)


def _log_model(visit: Visit, asked: One) -> Any:
    """What clients before version 3 said of a model among the artefacts: kept as the tag it was."""
    ref = _ref(visit, asked)
    try:
        text = visit.call("track", "show", run=ref).tags.get(MODELS_TAG, "[]")
        known = msgspec.json.decode(text, type=list[dict[str, Any]])
        known.append(msgspec.json.decode(asked.model_json, type=dict[str, Any]))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Invalid("model_json is no JSON object", "send what MLmodel says") from None
    return visit.do("track", "log", run=ref, tags={MODELS_TAG: msgspec.json.encode(known).decode()})


def _log_inputs(visit: Visit, asked: Inputs) -> Any:
    """Data that it was given; what is ours by its source is lineage, and the run carries its label."""
    used, ours = list[UsedData](), list[Ref]()
    for each in asked.datasets:
        data, named = each.dataset, _OURS.search(each.dataset.source)
        ref = Ref.parse(named[0]) if named else None
        ours += [ref] if ref is not None else []
        said = (data.name, data.digest, data.source_type, data.source, data.schema, data.profile)
        used.append(UsedData(*said, ref, mapping(each.tags)))
    return visit.do("track", "use", run=_ref(visit, asked), data=tuple(used), inputs=tuple(ours))


def _search(visit: Visit, asked: Search) -> Any:
    if not asked.experiment_ids:
        return {}
    page = visit.call(
        "track", "list", experiments=tuple([experiment_ref(visit, one) for one in asked.experiment_ids]),
        where=asked.filter, order=tuple(asked.order_by), state=STATES.get(asked.run_view_type, "active"),
        after=asked.page_token, limit=asked.max_results,
    )  # fmt: skip
    desk: Any = visit.house.desks["track"]
    runs = [msgspec.Raw(desk.encoded(run, _encoded)) for run in page.runs]
    return {"runs": runs, **({"next_page_token": page.next} if page.next else {})}


def _history(visit: Visit, asked: History) -> Any:
    """Every point of one metric."""
    ref, most = _ref(visit, asked), min(asked.max_results, MOST_POINTS)
    curve = visit.call("track", "history", run=ref, metric=asked.metric_key, after=asked.page_token, limit=most)
    points = [_metric(point) for point in curve.points]
    return {"metrics": points, **({"next_page_token": curve.next} if curve.next else {})}


def _histories(visit: Visit, asked: History) -> Any:
    """One metric of several runs, thinned to what a plot can show."""
    found, bins = list[Any](), max(1, min(asked.max_results, 2500) // 3)
    for one in asked.run_ids[:MOST_RUNS]:
        curve = visit.call("track", "history", run=run_ref(visit, one), metric=asked.metric_key, bins=bins)
        points = (point for point in curve.points if asked.start_step <= point.step <= asked.end_step)
        found += [{**_metric(point), "run_id": one} for point in points]
    return {"metrics": found}


def _ref(visit: Visit, asked: Any) -> Ref:
    return run_ref(visit, asked.run_id or asked.run_uuid)


def _encoded(run: Run) -> bytes:
    answer: bytes = msgspec.json.encode(shown(run))
    return answer


def _metric(point: Metric) -> dict[str, Any]:
    return {"key": point.key, "value": number(point.number), "timestamp": millis(point.at), "step": point.step}


def _dataset(one: UsedData) -> dict[str, Any]:
    said = {name: getattr(one, name) for name in Used.__struct_fields__ if getattr(one, name)}
    return {"dataset": said, "tags": pairs(one.tags)}


def _measure(visit: Visit, asked: Any, points: Sequence[Point]) -> None:
    """Measurements of a logged model are its own, too."""
    found: dict[str, list[Measured]] = {}
    for p in points:
        metric = Metric(p.key, p.value, seconds(p.timestamp), p.step)
        found.setdefault(p.model_id, []).append(Measured(metric, p.dataset_name, p.dataset_digest, asked.run_id))
    for name, measured in found.items():
        visit.call("outputs", "change", model=output_ref(visit, name), metrics=tuple(measured))


ENDPOINTS = (
    Endpoint("POST 2.0 runs/create", "track.start", Create, _create),
    Endpoint(
        "GET 2.0 runs/get", "track.show", One,
        lambda visit, asked: {"run": shown(visit.call("track", "show", run=_ref(visit, asked)))},
    ),
    Endpoint("POST 2.0 runs/update", "track.end", One, _update),
    Endpoint(
        "POST 2.0 runs/delete", "track.delete", One,
        lambda visit, asked: visit.do("track", "delete", name=_ref(visit, asked)),
    ),
    Endpoint(
        "POST 2.0 runs/restore", "track.restore", One,
        lambda visit, asked: visit.do("track", "restore", name=_ref(visit, asked)),
    ),
    Endpoint("POST 2.0 runs/log-metric", "track.log", OnePoint, _log_metric, lambda asked: not asked.model_id),
    Endpoint(
        "POST 2.0 runs/log-parameter", "track.log", One,
        lambda visit, asked: visit.do("track", "log", run=_ref(visit, asked), params={asked.key: asked.value[:PARAM]}),
        lambda asked: True,
    ),
    Endpoint("POST 2.0 runs/set-tag", "track.log", One, _set_tag, lambda asked: asked.key != NAME_TAG),
    Endpoint("POST 2.0 runs/delete-tag", "track.log", One, _delete_tag),
    Endpoint("POST 2.0 runs/log-batch", "track.log", Batch, _log_batch, _only_log),
    Endpoint("POST 2.0 runs/log-model", "track.log", One, _log_model),
    Endpoint("POST 2.0 runs/log-inputs", "track.use", Inputs, _log_inputs),
    Endpoint("POST 2.0 runs/search", "track.list", Search, _search),
    Endpoint("GET 2.0 metrics/get-history", "track.history", History, _history),
    Endpoint("GET 2.0 metrics/get-history-bulk-interval", "track.history", History, _histories),
)  # fmt: skip
