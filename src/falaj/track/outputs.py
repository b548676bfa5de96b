"""Outputs: models that runs made and nobody registered yet. Each has an id, parameters, measurements and files."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar

from falaj.catalog.service_base import create_visibility_check
from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Invalid, NotFound
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, LedgerReader
from falaj.store.records import LedgerRecord
from falaj.track.record_views import list_used_refs, require_record
from falaj.track.records import Metric
from falaj.track.service import TrackService
from falaj.track.tracking_base import check_texts, check_title

OUTPUT_KIND = "output"
STATUS_PENDING, STATUS_READY, STATUS_FAILED = "pending", "ready", "failed"
MAX_METRICS, MAX_TEXTS = 1_000, 1_000


@dataclass(frozen=True, slots=True)
class ModelMeasurement:
    """Something measured of a model: the point, on which data, by which run."""

    point: Metric
    data: str = ""
    digest: str = ""
    run: str = ""

    @property
    def brief(self) -> str:
        """The measurement in a word, for lists."""
        return f"{self.point.key}={self.point.brief}{f' on {self.data}' if self.data else ''}"


@dataclass(frozen=True, slots=True)
class LoggedModel:
    """A model that a run made, before it is registered."""

    STRUCTURE: ClassVar = ("ref", "experiment", "experiment_id", "status", "run", "author", "made_at", "changed_at")
    MARKER: ClassVar = "title"
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "title", "status", "run", "author", "made_at")

    ref: Ref
    experiment: Ref
    experiment_id: str
    title: str
    type: str
    status: str
    """pending while its files are sent, then ready or failed."""
    run: str
    """The id of the run that made it; empty when none did."""
    author: str
    made_at: float
    changed_at: float
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[ModelMeasurement, ...] = ()


@dataclass(frozen=True, slots=True)
class LoggedModelPage:
    """Some of them and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("outputs", "next")

    outputs: tuple[LoggedModel, ...]
    next: str = ""


class OutputsService:
    """Models that runs made: what is said and was measured of them. Their files and versions are `track`'s business."""

    def __init__(self, ledger: Ledger, track: TrackService) -> None:
        self._ledger = ledger
        self._track = track

    @operation(writes=("experiment",), reads=("run",))
    def create(
        self,
        ctx: CallContext,
        experiment: Annotated[Ref, "of which experiment"],
        title: Annotated[str, "what people call it"] = "",
        type: Annotated[str, "what sort of model it is, for example agent"] = "",  # noqa: A002 - the user's word
        run: Annotated[Ref | None, "the run that makes it; it carries that run's label"] = None,
        params: Annotated[dict[str, str] | None, "parameters, by name; written once"] = None,
        tags: Annotated[dict[str, str] | None, "tags, by name"] = None,
    ) -> LoggedModel:
        """Announce a model that is about to be logged.

        `falaj track attach` sends its files, `change` says that it is ready, `falaj track register` makes a version.

        Example:
            falaj outputs create experiment:fraud/scoring --title scorer
        """
        name = f"m-{uuid.uuid4().hex}"
        with self._ledger.write(ctx) as writer:
            experiment_record = require_record(writer, experiment, "experiment")
            body: dict[str, Any] = {
                "id": name,
                "experiment": str(experiment.bare),
                "experiment_id": experiment_record.body["id"],
                "title": check_title(title) or name,
                "type": check_title(type),
                "status": STATUS_PENDING,
                "state": "active",
                "run": run.name if run else "",
                "made_at": ctx.now(),
                "metrics": [],
                "params": check_texts("param", params),
                "tags": check_texts("tag", tags),
            }
            record = writer.put(Ref(OUTPUT_KIND, experiment.project, name), body, terms=_output_terms(body))
            writer.emit("outputs.create", record.ref, _model_origin(writer.need(run.bare)) if run else ())
        return to_logged_model(record)

    @operation(reads=("model",))
    def show(self, ctx: CallContext, model: Annotated[Ref, "which one"]) -> LoggedModel:
        """Show a logged model: its parameters, tags and measurements.

        Example:
            falaj outputs show output:fraud/m-0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        with self._ledger.read(ctx) as reader:
            return to_logged_model(_require_live(reader, model))

    @operation(reads=("experiments",))
    def list(
        self,
        ctx: CallContext,
        experiments: Annotated[tuple[Ref, ...], "of these experiments; of all when left out"] = (),
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> LoggedModelPage:
        """List logged models that you may see.

        Example:
            falaj outputs list --experiments experiment:fraud/scoring
        """
        start_index, _, cursor = after.partition(" ")
        experiment_texts = [str(ref.bare) for ref in experiments] or [""]
        if not re.fullmatch(r"[0-9]{0,6}", start_index, re.ASCII):
            raise Invalid(f"{after[:40]!r} is no cursor", "use the one that was given")
        listed: list[LoggedModel] = []
        for experiment_text in experiment_texts[int(start_index or 0) :]:
            terms = {"state": "active", **({"experiment": experiment_text} if experiment_text else {})}
            with self._ledger.read(ctx) as reader:
                page = reader.find(
                    OUTPUT_KIND,
                    terms=terms,
                    scopes=ctx.cells(OUTPUT_KIND),
                    newest_first=True,
                    after=cursor,
                    limit=limit - len(listed),
                )
            cursor = ""
            listed += map(to_logged_model, page.records)
            if page.next or len(listed) == limit:
                index = experiment_texts.index(experiment_text)
                return LoggedModelPage(tuple(listed), _format_cursor(index, page.next, len(experiment_texts)))
        return LoggedModelPage(tuple(listed))

    @operation(writes=("model",))
    def change(
        self,
        ctx: CallContext,
        model: Annotated[Ref, "which one"],
        status: Annotated[str, "pending, ready or failed; kept when left out"] = "",
        params: Annotated[dict[str, str] | None, "parameters; one that is set keeps its value"] = None,
        tags: Annotated[dict[str, str] | None, "tags to set"] = None,
        drop: Annotated[tuple[str, ...], "tags to take off"] = (),
        metrics: Annotated[tuple[ModelMeasurement, ...], "what was measured of it; the newest of each is kept"] = (),
    ) -> LoggedModel:
        """Say that a logged model is ready, or more about it.

        Example:
            falaj outputs change output:fraud/m-0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --status ready
        """
        if status not in ("", STATUS_PENDING, STATUS_READY, STATUS_FAILED):
            raise Invalid(
                f"{status[:40]!r} is no status", f"{STATUS_PENDING}, {STATUS_READY} or {STATUS_FAILED}", model
            )
        with self._ledger.write(ctx) as writer:
            old_record = _require_live(writer, model)
            merged_tags = {**old_record.body["tags"], **check_texts("tag", tags)}
            body = {
                **old_record.body,
                "status": status or old_record.body["status"],
                "params": {**check_texts("param", params), **old_record.body["params"]},
                "tags": {key: value for key, value in merged_tags.items() if key not in drop},
                "metrics": _merge_measurements(old_record.body["metrics"], metrics),
            }
            if max(len(body["params"]), len(merged_tags)) > MAX_TEXTS or len(body["metrics"]) > MAX_METRICS:
                raise Invalid(f"{model.bare} has too much said of it", f"at most {MAX_TEXTS} of each", model)
            record = writer.put(old_record.key, body, rev=old_record.rev, terms=_output_terms(body))
            writer.emit("outputs.change", record.ref, status=body["status"])
        return to_logged_model(record)

    @operation(writes=("run", "models"))
    def link(
        self,
        ctx: CallContext,
        run: Annotated[Ref, "which run"],
        models: Annotated[tuple[Ref, ...], "the models that it made"],
        steps: Annotated[tuple[int, ...], "at which step each was; 0 when left out"] = (),
    ) -> int:
        """Say which logged models a run made; gives how many it made in all. They carry its label.

        Example:
            falaj outputs link run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 output:fraud/m-0f3c2b5a9d8e4f7180
        """
        step_by_model = dict(zip(models, steps, strict=False))
        with self._ledger.write(ctx) as writer:
            record = self._track.add_made(writer, run, {ref.name: step_by_model.get(ref, 0) for ref in models})
            writer.emit("outputs.link", record.ref, models=len(models))
            for ref in models:
                old_model = _require_live(writer, ref)
                body = {**old_model.body, "run": old_model.body["run"] or run.name}
                new_model = writer.put(old_model.key, body, rev=old_model.rev, terms=_output_terms(body))
                writer.emit("outputs.link", new_model.ref, _model_origin(record))
        return len(record.body["outputs"])

    @operation(writes=("model",))
    def delete(self, ctx: CallContext, model: Annotated[Ref, "which one"]) -> Ref:
        """Delete a logged model. Versions that were registered from it stay.

        Refused while a law of its label, a legal hold (also on what its run used), a contract or an open breach keeps
        it.

        Example:
            falaj outputs delete output:fraud/m-0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        with self._ledger.write(ctx) as writer:
            old_record = _require_live(writer, model)
            self._track.destruction.check_duties(
                ctx, old_record, create_visibility_check(self._ledger, ctx, old_record.ref)
            )
            body = {**old_record.body, "state": "deleted"}
            record = writer.put(old_record.key, body, rev=old_record.rev, terms=_output_terms(body))
            writer.emit("outputs.delete", record.ref)
        return model.bare


def to_logged_model(record: LedgerRecord) -> LoggedModel:
    """A record as its readers see it."""
    body = record.body
    return LoggedModel(
        record.ref.bare,
        Ref.parse(body["experiment"]),
        body["experiment_id"],
        body["title"],
        body["type"],
        body["status"],
        body["run"],
        record.author,
        body["made_at"],
        record.at,
        body["params"],
        body["tags"],
        tuple(from_plain(ModelMeasurement, measurement) for measurement in body["metrics"]),
    )


def _require_live(reader: LedgerReader, model: Ref) -> LedgerRecord:
    record = require_record(reader, model, OUTPUT_KIND)
    if record.body["state"] != "active":
        raise NotFound(f"{model.bare} was deleted", "falaj outputs list shows those that stand", model)
    return record


def _model_origin(run: LedgerRecord) -> tuple[Ref, ...]:
    """What a model comes from that a run made: the run, and what that used."""
    return run.ref, *list_used_refs(run)


def _merge_measurements(
    old_measurements: Sequence[Mapping[str, Any]], new_measurements: Sequence[ModelMeasurement]
) -> list[Mapping[str, Any]]:
    """One of each metric on each data: the one of the highest step, and of those the latest."""
    newest_by_key: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for measurement in [*old_measurements, *(to_plain(new_measurement) for new_measurement in new_measurements)]:
        key = (measurement["point"]["key"], measurement.get("data", ""), measurement.get("digest", ""))
        if key not in newest_by_key or _measurement_rank(measurement) >= _measurement_rank(newest_by_key[key]):
            newest_by_key[key] = measurement
    return list(newest_by_key.values())


def _measurement_rank(measurement: Mapping[str, Any]) -> tuple[int, float]:
    return measurement["point"].get("step", 0), measurement["point"].get("at", 0.0)


def _format_cursor(experiment_index: int, after: str, experiment_count: int) -> str:
    """Where the next page begins: in which experiment, and after what."""
    if after:
        return f"{experiment_index} {after}"
    return f"{experiment_index + 1} " if experiment_index + 1 < experiment_count else ""


def _output_terms(body: Mapping[str, Any]) -> dict[str, str]:
    return {"id": body["id"], "experiment": body["experiment"], "state": body["state"], "run": body["run"]}
