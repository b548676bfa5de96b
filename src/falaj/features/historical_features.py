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

from falaj.asof.external_rows import ExternalRows
from falaj.asof.moments import to_micros
from falaj.asof.records import STATUS_NAMES, ServicePlan, ViewPlan
from falaj.asof.row_files import PartitionSegment, SegmentRows, list_partition_segments, write_rows
from falaj.asof.training_sets import JoinedView, build_training_set
from falaj.catalog.publish_sources import PublishSource
from falaj.catalog.publishing import PublishOrder, PublishResult, run_publish
from falaj.catalog.records import PublishFacts
from falaj.catalog.version_reader import open_version
from falaj.core.client_command import Client
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.features.ingestion import RowIntake
from falaj.features.records import ServiceAccess
from falaj.features.row_operations import ViewRows
from falaj.features.row_stream import ViewDetails, make_row_schema
from falaj.features.segment_access import open_segment
from falaj.features.source_reading import open_source_rows, read_tables

_PEOPLE_PER_CALL = 5_000
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
class GatheredViews:
    """Views with their rows, and what they were read from, for the record."""

    joined: list[JoinedView] = field(default_factory=list)
    inputs: dict[str, Ref] = field(default_factory=dict)


def build_history(
    client: Client,
    labels: Any,
    moment: str,
    opening: ServiceAccess,
    known_at: str,
    zone: str,
    report_progress: Callable[[int], None],
) -> tuple[Any, dict[str, Ref]]:
    """The labels with every feature of the service, and its status, at each row's moment; and what it was made from."""
    with ExitStack() as stack:
        gathered = GatheredViews()
        for plan in opening.plan.views:
            _gather_view(client, plan, gathered, stack)
        known_moment: str | int | None = known_at if known_at in ("", "label") else to_micros(known_at, zone)
        table = build_training_set(
            labels,
            moment,
            gathered.joined,
            known_at=known_moment or None,
            zone=zone,
            status=True,
            report_progress=report_progress,
        )
    return table, gathered.inputs


def count_statuses(table: Any, plan: ServicePlan) -> dict[str, dict[str, int]]:
    """How often each feature had which status."""
    import numpy as np

    counts_by_feature = {}
    for name in (feature_name for view in plan.views for feature_name in view.names):
        counts = np.bincount(table.column(f"{name}__status").to_numpy(), minlength=len(STATUS_NAMES))
        counts_by_feature[name] = {
            status: int(count) for status, count in zip(STATUS_NAMES, counts, strict=True) if count
        }
    return counts_by_feature


def publish_training_set(
    client: Client, table: Any, name: Ref, opening: ServiceAccess, inputs: Mapping[str, Ref], moment: str, known_at: str
) -> PublishResult:
    """Publish a training set with where each value came from; its label is the join of all of theirs."""
    import pyarrow.parquet as pq

    keys = ",".join(dict.fromkeys(field.name for view in opening.plan.views for field in view.keys))
    tags = {"made": "features.history", "moment": moment, "known_at": known_at, "keys": keys}
    with tempfile.TemporaryDirectory(prefix="falaj-set-") as scratch:
        pq.write_table(table, Path(scratch) / "set.parquet", use_content_defined_chunking=True)
        facts = PublishFacts(f"training set of {opening.plan.ref}", tags=tags)
        # What the catalogue tells of a table, it tells everybody who may see that it is there: not of these.
        category_by_column = dict.fromkeys(keys.split(","), "personal")
        category_by_column |= {field: "sensitive" for view in opening.plan.views if view.face for field in view.names}
        columns = {name: kind for name, kind in category_by_column.items() if name in table.column_names}
        order = PublishOrder(name, PublishSource(Path(scratch), passing=True), facts, inputs=inputs, columns=columns)
        return run_publish(client, order)


@contextmanager
def read_labels(client: Client, entities: Any) -> Iterator[tuple[Any, dict[str, Ref]]]:
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
            ref, paths = _fetch_table_files(client, Ref.parse(text), Path(scratch), "")
            yield pa.concat_tables(list(read_tables(paths))), {"labels": ref}
            return
        path = Path(text).expanduser()
        if not path.is_file():
            raise Invalid(f"there is no file {text!r:.300}", "a Parquet, CSV, JSON-lines or Arrow file, or dataset:…")
        yield pa.concat_tables(list(read_tables([path]))), {}


def remove_refused_people(client: Client, labels: Any, plan: ServicePlan) -> Any:
    """The rows less those of people who took back their consent to the caller's purpose, or are restricted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in sorted({key.name for _, key in plan.barred} & set(labels.column_names)):
        people = pc.unique(labels[name].cast(pa.string()).drop_null())
        refused_people = []
        for start in range(0, len(people), _PEOPLE_PER_CALL):
            people_batch = [person for person in people[start : start + _PEOPLE_PER_CALL].to_pylist() if person.strip()]
            refusals = client.privacy.refused(tuple(people_batch)) if people_batch else ()
            refused_people += [person for person, is_refused in zip(people_batch, refusals, strict=True) if is_refused]
        if refused_people:
            refused_mask = pc.is_in(labels[name].cast(pa.string()), value_set=pa.array(refused_people, pa.string()))
            labels = labels.filter(pc.invert(refused_mask))
    return labels


def _gather_view(client: Client, plan: ViewPlan, gathered: GatheredViews, stack: ExitStack) -> None:
    """The rows of one face of a view."""
    ref = Ref.parse(plan.ref)
    edition: ViewRows = client.features.rows(ref)
    stream = edition.stream
    arrival: ViewDetails = client.features.about(ref)
    gathered.inputs[f"view.{ref.project}.{ref.name}"] = ref
    is_readable_source = arrival.definition.source.kind in ("dataset", "sql")
    if is_readable_source and stream.chapters and all(item.how == "push" for item in stream.chapters):
        hint = f"falaj features ingest {ref.bare}"
        raise Invalid(f"rows were pushed to {ref}, and its source was never ingested", hint, ref)
    if stream.chapters or stream.generation:
        parts: list[PartitionSegment] = []
        for segment in stream.chapters:
            groups = ("", plan.face) if plan.face else ("",)
            used_versions = {
                f"rows.{item.name}.{item.version}": item for item in (segment.faces[group] for group in groups)
            }
            gathered.inputs |= used_versions
            parts += stack.enter_context(open_segment(client, segment, groups, arrival))
        gathered.joined.append(JoinedView(plan, SegmentRows(parts)))
        return
    gathered.joined.append(JoinedView(plan, stack.enter_context(_open_source_rows(client, arrival, gathered))))


@contextmanager
def _open_source_rows(
    client: Client, arrival: ViewDetails, gathered: GatheredViews
) -> Iterator[SegmentRows | ExternalRows]:
    """Rows of a view that nobody ingested, straight from its source."""
    definition, source = arrival.definition, arrival.definition.source
    if source.kind == "push":
        yield SegmentRows([])
        return
    with tempfile.TemporaryDirectory(prefix="falaj-foreign-") as scratch:
        folder = Path(scratch)
        is_plain = not (definition.function or source.query or definition.rules or definition.windows)
        if source.kind == "dataset" and is_plain and all(field.express is None for field in definition.features):
            ref, paths = _fetch_table_files(client, Ref.parse(source.address), folder, ".parquet")
            if paths:
                gathered.inputs[f"source.{ref.name}"] = ref
                keys = tuple(field.name for field in arrival.entity.keys)
                columns = {field.name: field.name for field in definition.features}
                yield ExternalRows(tuple(paths), source.event, source.created, keys, columns, source.zone)
                return
        with open_source_rows(client, source) as opened_source:
            if opened_source.ref is not None:
                gathered.inputs[f"source.{opened_source.ref.name}"] = opened_source.ref
            schema = make_row_schema(definition, arrival.entity)
            write_rows(RowIntake(client, arrival, time.time()).rows(opened_source.tables), schema, folder, seq=0)
        yield SegmentRows(list_partition_segments(folder, tuple(schema.faces)))


def _fetch_table_files(client: Client, name: Ref, folder: Path, suffix: str) -> tuple[Ref, list[Path]]:
    """The table files of a dataset version, brought here; none when they are not all of the kind asked for."""
    version_info, snapshot = open_version(client, name)
    files = [
        file_entry
        for file_entry in snapshot.entries()
        if file_entry.kind == "file" and not file_entry.path.startswith((b".", b"_"))
    ]
    if suffix and not all(file_entry.path.endswith(suffix.encode()) for file_entry in files):
        return version_info.ref, []
    paths = []
    with client.progress.task(f"reading {version_info.ref}", sum(file_entry.size for file_entry in files)) as task:
        for number, entry in enumerate(files):
            path = folder / f"{number:06d}{Path(entry.path.decode()).suffix}"
            with path.open("wb") as file:
                for chunk in snapshot.read(entry):
                    file.write(chunk)
                    task.advance(len(chunk))
            paths.append(path)
    return version_info.ref, paths
