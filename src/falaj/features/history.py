"""History: a training set that is right at each row's moment, built beside the caller from rows it may read.

A view that was ingested is read from its segments, chapter by chapter and only the columns that are asked for. One that
was not is read from its source: as it lies there when the view takes columns as they are, else transformed first.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from falaj.asof.engine import Joined, training_set
from falaj.asof.foreign import ForeignRows
from falaj.asof.moments import micros
from falaj.asof.records import STATUSES, ServicePlan, ViewPlan
from falaj.asof.rows import OwnRows, Part, parts_in, write_rows
from falaj.catalog.publishing import Order, Published, carry_out
from falaj.catalog.reading import open_version
from falaj.catalog.records import Facts
from falaj.catalog.sources import Source
from falaj.core.errand import Here
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.chapters import open_chapter
from falaj.features.ingesting import Intake
from falaj.features.records import Opening
from falaj.features.rows import Edition
from falaj.features.sources import open_rows, read_files
from falaj.features.stream import Arrival, schema_of

_ASKED = 5_000
"""So many people are asked about at once."""


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """What came of it: rows, how much was found, and the version it was published as."""

    rows: int
    columns: tuple[str, ...]
    found: Mapping[str, Mapping[str, int]]
    """For each feature how often it was PRESENT, NULL, NOT_FOUND, EXPIRED, FUTURE."""
    service: Ref
    published: Ref | None = None
    file: str = ""


@dataclass(slots=True)
class Gathered:
    """Views with their rows, and what they were read from, for the record."""

    joined: list[Joined] = field(default_factory=list)
    inputs: dict[str, Ref] = field(default_factory=dict)


def build(
    here: Here, labels: Any, moment: str, opening: Opening, known_at: str, zone: str, advance: Callable[[int], None]
) -> tuple[Any, dict[str, Ref]]:
    """The labels with every feature of the service, and its status, at each row's moment; and what it was made from."""
    with ExitStack() as stack:
        gathered = Gathered()
        for plan in opening.plan.views:
            _gather(here, plan, gathered, stack)
        known: str | int | None = known_at if known_at in ("", "label") else micros(known_at, zone)
        table = training_set(
            labels, moment, gathered.joined, known_at=known or None, zone=zone, status=True, advance=advance
        )
    return table, gathered.inputs


def tally(table: Any, plan: ServicePlan) -> dict[str, dict[str, int]]:
    """How often each feature had which status."""
    import numpy as np

    found = {}
    for name in (one for view in plan.views for one in view.names):
        counts = np.bincount(table.column(f"{name}__status").to_numpy(), minlength=len(STATUSES))
        found[name] = {status: int(count) for status, count in zip(STATUSES, counts, strict=True) if count}
    return found


def publish_set(
    here: Here, table: Any, name: Ref, opening: Opening, inputs: Mapping[str, Ref], moment: str, known_at: str
) -> Published:
    """Publish a training set with where each value came from; its label is the join of all of theirs."""
    import pyarrow.parquet as pq

    keys = ",".join(dict.fromkeys(one.name for view in opening.plan.views for one in view.keys))
    tags = {"made": "features.history", "moment": moment, "known_at": known_at, "keys": keys}
    with tempfile.TemporaryDirectory(prefix="falaj-set-") as scratch:
        pq.write_table(table, Path(scratch) / "set.parquet", use_content_defined_chunking=True)
        facts = Facts(f"training set of {opening.plan.ref}", tags=tags)
        # What the catalogue tells of a table, it tells everybody who may see that it is there: not of these.
        told = dict.fromkeys(keys.split(","), "personal")
        told |= {one: "sensitive" for view in opening.plan.views if view.face for one in view.names}
        columns = {name: kind for name, kind in told.items() if name in table.column_names}
        order = Order(name, Source(Path(scratch), passing=True), facts, inputs=inputs, columns=columns)
        return carry_out(here, order)


@contextmanager
def read_labels(here: Here, entities: Any) -> Iterator[tuple[Any, dict[str, Ref]]]:
    """The rows to build a training set for: a table, a file of this machine, or a dataset in the catalogue."""
    import pyarrow as pa

    if isinstance(entities, pa.Table):
        yield entities, {}
        return
    if hasattr(entities, "to_arrow") or hasattr(entities, "columns"):
        table = entities.to_arrow() if hasattr(entities, "to_arrow") else pa.Table.from_pandas(entities)
        yield table, {}
        return
    text = str(entities)
    with tempfile.TemporaryDirectory(prefix="falaj-labels-") as scratch:
        if text.startswith("dataset:"):
            ref, paths = _fetch(here, Ref.parse(text), Path(scratch), "")
            yield pa.concat_tables(list(read_files(paths))), {"labels": ref}
            return
        path = Path(text).expanduser()
        if not path.is_file():
            raise Invalid(f"there is no file {text!r:.300}", "a Parquet, CSV, JSON-lines or Arrow file, or dataset:…")
        yield pa.concat_tables(list(read_files([path]))), {}


def usable(here: Here, labels: Any, plan: ServicePlan) -> Any:
    """The rows less those of people who took back their consent to the caller's purpose, or are restricted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in sorted({key.name for _, key in plan.barred} & set(labels.column_names)):
        people = pc.unique(labels[name].cast(pa.string()).drop_null())
        gone = []
        for start in range(0, len(people), _ASKED):
            some = [one for one in people[start : start + _ASKED].to_pylist() if one.strip()]
            told = here.privacy.refused(tuple(some)) if some else ()
            gone += [one for one, barred in zip(some, told, strict=True) if barred]
        if gone:
            theirs = pc.is_in(labels[name].cast(pa.string()), value_set=pa.array(gone, pa.string()))
            labels = labels.filter(pc.invert(theirs))
    return labels


def _gather(here: Here, plan: ViewPlan, gathered: Gathered, stack: ExitStack) -> None:
    """The rows of one face of a view."""
    ref = Ref.parse(plan.ref)
    edition: Edition = here.features.rows(ref)
    stream = edition.stream
    arrival: Arrival = here.features.about(ref)
    gathered.inputs[f"view.{ref.project}.{ref.name}"] = ref
    read = arrival.definition.source.kind in ("dataset", "sql")
    if read and stream.chapters and all(one.how == "push" for one in stream.chapters):
        hint = f"falaj features ingest {ref.bare}"
        raise Invalid(f"rows were pushed to {ref}, and its source was never ingested", hint, ref)
    if stream.chapters or stream.generation:
        parts: list[Part] = []
        for chapter in stream.chapters:
            faces = ("", plan.face) if plan.face else ("",)
            used = {f"rows.{one.name}.{one.version}": one for one in (chapter.faces[face] for face in faces)}
            gathered.inputs |= used
            parts += stack.enter_context(open_chapter(here, chapter, faces, arrival))
        gathered.joined.append(Joined(plan, OwnRows(parts)))
        return
    gathered.joined.append(Joined(plan, stack.enter_context(_from_source(here, arrival, gathered))))


@contextmanager
def _from_source(here: Here, arrival: Arrival, gathered: Gathered) -> Iterator[OwnRows | ForeignRows]:
    """Rows of a view that nobody ingested, straight from its source."""
    definition, source = arrival.definition, arrival.definition.source
    if source.kind == "push":
        yield OwnRows([])
        return
    with tempfile.TemporaryDirectory(prefix="falaj-foreign-") as scratch:
        folder = Path(scratch)
        plain = not (definition.function or source.query or definition.rules or definition.windows)
        if source.kind == "dataset" and plain and all(one.express is None for one in definition.features):
            ref, paths = _fetch(here, Ref.parse(source.address), folder, ".parquet")
            if paths:
                gathered.inputs[f"source.{ref.name}"] = ref
                keys = tuple(one.name for one in arrival.entity.keys)
                columns = {one.name: one.name for one in definition.features}
                yield ForeignRows(tuple(paths), source.event, source.created, keys, columns, source.zone)
                return
        with open_rows(here, source) as found:
            if found.ref is not None:
                gathered.inputs[f"source.{found.ref.name}"] = found.ref
            schema = schema_of(definition, arrival.entity)
            write_rows(Intake(here, arrival, time.time()).rows(found.tables), schema, folder, seq=0)
        yield OwnRows(parts_in(folder, tuple(schema.faces)))


def _fetch(here: Here, name: Ref, folder: Path, suffix: str) -> tuple[Ref, list[Path]]:
    """The table files of a dataset version, brought here; none when they are not all of the kind asked for."""
    opened, snapshot = open_version(here, name)
    files = [one for one in snapshot.entries() if one.kind == "file" and not one.path.startswith((b".", b"_"))]
    if suffix and not all(one.path.endswith(suffix.encode()) for one in files):
        return opened.ref, []
    paths = []
    with here.progress.task(f"reading {opened.ref}", sum(one.size for one in files)) as task:
        for number, entry in enumerate(files):
            path = folder / f"{number:06d}{Path(entry.path.decode()).suffix}"
            with path.open("wb") as out:
                for chunk in snapshot.read(entry):
                    out.write(chunk)
                    task.advance(len(chunk))
            paths.append(path)
    return opened.ref, paths
