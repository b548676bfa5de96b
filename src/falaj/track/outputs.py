"""Outputs: models that runs made and nobody registered yet. Each has an id, parameters, measurements and files."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar

from falaj.catalog.shelf import sight
from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Invalid, NotFound
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.store.codec import from_plain, to_plain
from falaj.store.ledger import Ledger, Reader
from falaj.store.records import Record
from falaj.track.notebook import check_texts, check_title
from falaj.track.reading import made_from, need
from falaj.track.records import Metric
from falaj.track.service import Track

KIND = "output"
PENDING, READY, FAILED = "pending", "ready", "failed"
MOST_METRICS, MOST_TEXTS = 1_000, 1_000


@dataclass(frozen=True, slots=True)
class Measured:
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
class Output:
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
    metrics: tuple[Measured, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputPage:
    """Some of them and the cursor of the next page, empty at the end."""

    STRUCTURE: ClassVar = ("outputs", "next")

    outputs: tuple[Output, ...]
    next: str = ""


class Outputs:
    """Models that runs made: what is said and was measured of them. Their files and versions are `track`'s business."""

    def __init__(self, ledger: Ledger, track: Track) -> None:
        self._ledger = ledger
        self._track = track

    @verb(writes=("experiment",), reads=("run",))
    def create(
        self,
        ctx: Context,
        experiment: Annotated[Ref, "of which experiment"],
        title: Annotated[str, "what people call it"] = "",
        type: Annotated[str, "what sort of model it is, for example agent"] = "",  # noqa: A002 - the user's word
        run: Annotated[Ref | None, "the run that makes it; it carries that run's label"] = None,
        params: Annotated[dict[str, str] | None, "parameters, by name; written once"] = None,
        tags: Annotated[dict[str, str] | None, "tags, by name"] = None,
    ) -> Output:
        """Announce a model that is about to be logged.

        `falaj track attach` sends its files, `change` says that it is ready, `falaj track register` makes a version.

        Example:
            falaj outputs create experiment:fraud/scoring --title scorer
        """
        name = f"m-{uuid.uuid4().hex}"
        with self._ledger.write(ctx) as tx:
            place = need(tx, experiment, "experiment")
            body: dict[str, Any] = {
                "id": name, "experiment": str(experiment.bare), "experiment_id": place.body["id"],
                "title": check_title(title) or name, "type": check_title(type), "status": PENDING, "state": "active",
                "run": run.name if run else "", "made_at": ctx.now(), "metrics": [],
                "params": check_texts("param", params), "tags": check_texts("tag", tags),
            }  # fmt: skip
            record = tx.put(Ref(KIND, experiment.project, name), body, terms=_terms(body))
            tx.emit("outputs.create", record.ref, _origin(tx.need(run.bare)) if run else ())
        return as_output(record)

    @verb(reads=("model",))
    def show(self, ctx: Context, model: Annotated[Ref, "which one"]) -> Output:
        """Show a logged model: its parameters, tags and measurements.

        Example:
            falaj outputs show output:fraud/m-0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        with self._ledger.read(ctx) as tx:
            return as_output(_live(tx, model))

    @verb(reads=("experiments",))
    def list(
        self,
        ctx: Context,
        experiments: Annotated[tuple[Ref, ...], "of these experiments; of all when left out"] = (),
        after: Annotated[str, "where the page before ended"] = "",
        limit: Annotated[int, "how many at most"] = 100,
    ) -> OutputPage:
        """List logged models that you may see.

        Example:
            falaj outputs list --experiments experiment:fraud/scoring
        """
        begun, _, cursor = after.partition(" ")
        places = [str(ref.bare) for ref in experiments] or [""]
        if not re.fullmatch(r"[0-9]{0,6}", begun, re.ASCII):
            raise Invalid(f"{after[:40]!r} is no cursor", "use the one that was given")
        found: list[Output] = []
        for place in places[int(begun or 0) :]:
            terms = {"state": "active", **({"experiment": place} if place else {})}
            with self._ledger.read(ctx) as tx:
                page = tx.find(
                    KIND, terms=terms, cells=ctx.cells(KIND), newest=True, after=cursor, limit=limit - len(found)
                )
            cursor = ""
            found += map(as_output, page.records)
            if page.next or len(found) == limit:
                index = places.index(place)
                return OutputPage(tuple(found), _cursor(index, page.next, len(places)))
        return OutputPage(tuple(found))

    @verb(writes=("model",))
    def change(
        self,
        ctx: Context,
        model: Annotated[Ref, "which one"],
        status: Annotated[str, "pending, ready or failed; kept when left out"] = "",
        params: Annotated[dict[str, str] | None, "parameters; one that is set keeps its value"] = None,
        tags: Annotated[dict[str, str] | None, "tags to set"] = None,
        drop: Annotated[tuple[str, ...], "tags to take off"] = (),
        metrics: Annotated[tuple[Measured, ...], "what was measured of it; the newest of each is kept"] = (),
    ) -> Output:
        """Say that a logged model is ready, or more about it.

        Example:
            falaj outputs change output:fraud/m-0f3c2b5a9d8e4f7180a1b2c3d4e5f607 --status ready
        """
        if status not in ("", PENDING, READY, FAILED):
            raise Invalid(f"{status[:40]!r} is no status", f"{PENDING}, {READY} or {FAILED}", model)
        with self._ledger.write(ctx) as tx:
            old = _live(tx, model)
            kept = {**old.body["tags"], **check_texts("tag", tags)}
            body = {
                **old.body, "status": status or old.body["status"],
                "params": {**check_texts("param", params), **old.body["params"]},
                "tags": {key: value for key, value in kept.items() if key not in drop},
                "metrics": _newest(old.body["metrics"], metrics),
            }  # fmt: skip
            if max(len(body["params"]), len(kept)) > MOST_TEXTS or len(body["metrics"]) > MOST_METRICS:
                raise Invalid(f"{model.bare} has too much said of it", f"at most {MOST_TEXTS} of each", model)
            record = tx.put(old.key, body, rev=old.rev, terms=_terms(body))
            tx.emit("outputs.change", record.ref, status=body["status"])
        return as_output(record)

    @verb(writes=("run", "models"))
    def link(
        self,
        ctx: Context,
        run: Annotated[Ref, "which run"],
        models: Annotated[tuple[Ref, ...], "the models that it made"],
        steps: Annotated[tuple[int, ...], "at which step each was; 0 when left out"] = (),
    ) -> int:
        """Say which logged models a run made; gives how many it made in all. They carry its label.

        Example:
            falaj outputs link run:fraud/0f3c2b5a9d8e4f7180a1b2c3d4e5f607 output:fraud/m-0f3c2b5a9d8e4f7180
        """
        at = dict(zip(models, steps, strict=False))
        with self._ledger.write(ctx) as tx:
            record = self._track.add_made(tx, run, {ref.name: at.get(ref, 0) for ref in models})
            tx.emit("outputs.link", record.ref, models=len(models))
            for ref in models:
                old = _live(tx, ref)
                body = {**old.body, "run": old.body["run"] or run.name}
                made = tx.put(old.key, body, rev=old.rev, terms=_terms(body))
                tx.emit("outputs.link", made.ref, _origin(record))
        return len(record.body["outputs"])

    @verb(writes=("model",))
    def delete(self, ctx: Context, model: Annotated[Ref, "which one"]) -> Ref:
        """Delete a logged model. Versions that were registered from it stay.

        Refused while a law of its label, a legal hold (also on what its run used), a contract or an open breach keeps
        it.

        Example:
            falaj outputs delete output:fraud/m-0f3c2b5a9d8e4f7180a1b2c3d4e5f607
        """
        with self._ledger.write(ctx) as tx:
            old = _live(tx, model)
            self._track.destruction.check_duties(ctx, old, sight(self._ledger, ctx, old.ref))
            body = {**old.body, "state": "deleted"}
            record = tx.put(old.key, body, rev=old.rev, terms=_terms(body))
            tx.emit("outputs.delete", record.ref)
        return model.bare


def as_output(record: Record) -> Output:
    """A record as its readers see it."""
    body = record.body
    return Output(
        record.ref.bare, Ref.parse(body["experiment"]), body["experiment_id"], body["title"], body["type"],
        body["status"], body["run"], record.author, body["made_at"], record.at, body["params"], body["tags"],
        tuple(from_plain(Measured, one) for one in body["metrics"]),
    )  # fmt: skip


def _live(tx: Reader, model: Ref) -> Record:
    record = need(tx, model, KIND)
    if record.body["state"] != "active":
        raise NotFound(f"{model.bare} was deleted", "falaj outputs list shows those that stand", model)
    return record


def _origin(run: Record) -> tuple[Ref, ...]:
    """What a model comes from that a run made: the run, and what that used."""
    return run.ref, *made_from(run)


def _newest(old: Sequence[Mapping[str, Any]], fresh: Sequence[Measured]) -> list[Mapping[str, Any]]:
    """One of each metric on each data: the one of the highest step, and of those the latest."""
    kept: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for one in [*old, *(to_plain(each) for each in fresh)]:
        key = (one["point"]["key"], one.get("data", ""), one.get("digest", ""))
        if key not in kept or _rank(one) >= _rank(kept[key]):
            kept[key] = one
    return list(kept.values())


def _rank(one: Mapping[str, Any]) -> tuple[int, float]:
    return one["point"].get("step", 0), one["point"].get("at", 0.0)


def _cursor(place: int, after: str, places: int) -> str:
    """Where the next page begins: in which experiment, and after what."""
    if after:
        return f"{place} {after}"
    return f"{place + 1} " if place + 1 < places else ""


def _terms(body: Mapping[str, Any]) -> dict[str, str]:
    return {"id": body["id"], "experiment": body["experiment"], "state": body["state"], "run": body["run"]}
