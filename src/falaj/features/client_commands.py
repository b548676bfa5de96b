"""What users of features do beside the platform: apply definitions, ingest, push, fill, build training sets, read."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, cast

from falaj.core.client_command import Client, client_command, python_only
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.features.compaction import compact_view
from falaj.features.definition_files import load_definitions
from falaj.features.function_sandboxes import open_function, service_functions
from falaj.features.historical_features import (
    TrainingSet,
    build_history,
    count_statuses,
    publish_training_set,
    read_labels,
    remove_refused_people,
)
from falaj.features.ingestion import IngestResult, ingest_rows
from falaj.features.live_reader import LiveReader
from falaj.features.on_demand_values import append_computed
from falaj.features.online_fill import FillProgress
from falaj.features.record_tables import build_table
from falaj.features.records import ChangePlan, DefinitionSet, MigrationResult, ServiceAccess
from falaj.features.row_operations import MAX_PUSH_ROWS, PushResult
from falaj.features.row_stream import ViewDetails
from falaj.features.source_reading import read_tables
from falaj.store.codec import to_plain

_PUSH_ROWS = 5_000
"""Rows in one call: few enough for the size a call may have."""
_MAX_FILL_ATTEMPTS = 20


@client_command
def apply(
    client: Client,
    path: Annotated[str, "a Python file with definitions, or a folder of such files"],
    plan: Annotated[bool, "only show what would change"] = False,
    force: Annotated[bool, "also when something that is used breaks"] = False,
) -> ChangePlan:
    """Define entities, views and services as a file says; shows what changes, what breaks and who uses it.

    What changed in a way that numbers depend on becomes a new version; models and services that pin the old one keep
    it. The file is run here, beside you; the platform gets plain data.

    Example:
        falaj features apply features.py --plan
        falaj features apply features.py
    """
    definitions = load_definitions(path)
    return apply_definitions(client, definitions, plan, force)


@client_command
def migrate(
    client: Client,
    path: Annotated[str, "the folder of a Feast repository, or what was recorded of one as JSON"],
    project: Annotated[str, "the project that everything goes to; Feast's own when left out"] = "",
    python: Annotated[str, "a Python that has feast installed, to read the repository with"] = "",
    plan: Annotated[bool, "only show what would change"] = False,
) -> MigrationResult:
    """Take entities, views and services over from Feast. Sources name datasets: publish their files under these names.

    Example:
        falaj features migrate ./feature_repo --python ~/feast/bin/python --plan
    """
    from falaj.features.feast_import import import_feast_repository

    definitions, notes = import_feast_repository(path, project, python)
    return MigrationResult(apply_definitions(client, definitions, plan, is_forced=False), tuple(notes))


def apply_definitions(client: Client, definitions: DefinitionSet, is_plan_only: bool, is_forced: bool) -> ChangePlan:
    """Plan, then define one after the other, in an order in which each finds what it is made of."""
    change_plan: ChangePlan = client.features.plan(definitions)
    broken_changes = [f"{change.ref}: {reason}" for change in change_plan.changes for reason in change.breaks]
    if is_plan_only:
        return change_plan
    if broken_changes and not is_forced:
        more_text = f" and {len(broken_changes) - 1} more" if len(broken_changes) > 1 else ""
        raise Conflict(
            f"this breaks {broken_changes[0]}{more_text}", "falaj features apply … --plan shows all; --force does it"
        )
    changes_by_name = {
        change.ref.bare: change for change in change_plan.changes if change.act not in ("same", "unlisted")
    }
    for kind, items in (
        ("entity", definitions.entities), ("view", definitions.views), ("service", definitions.services)
    ):  # fmt: skip
        for definition in items:
            project, _, name = definition.name.partition("/")
            ref = Ref(kind, project, name)
            if ref in changes_by_name:
                define_object(client, ref, definition)
    return ChangePlan(change_plan.changes, applied=True, digest=change_plan.digest)


def define_object(client: Client, ref: Ref, definition: Any) -> Ref:
    """One definition, with the label that what it picks demands."""
    label = getattr(definition, "label", None)
    views = [Ref.parse(f"view:{pick.view}") for pick in getattr(definition, "picks", ())]
    defined: Ref = client.features.define(ref, to_plain(definition), views=tuple(views), label=label)
    return defined


@client_command
def ingest(
    client: Client,
    view: Annotated[Ref, "which view"],
    full: Annotated[bool, "read the whole source again, also when it only grew"] = False,
) -> IngestResult:
    """Bring in what a view's source has since the last time: transformed, checked, kept apart where it breaks a rule.

    Example:
        falaj features ingest view:fraud/spend
    """
    return ingest_rows(client, view, full, time.time())


@client_command
def compact(client: Client, view: Annotated[Ref, "which view"]) -> int:
    """Make one chapter of many; `ingest` does it by itself once there are many. Gives how many are left.

    Example:
        falaj features compact view:fraud/spend
    """
    return compact_view(client, view, max_segments=1)


@client_command
def push(
    client: Client,
    view: Annotated[Ref, "which view"],
    rows: Annotated[Any, "rows: a file (Parquet, CSV, JSON lines, Arrow), a table, or a list of records"],
) -> PushResult:
    """Push rows to a view: durable offline, then readable online, when it returns. A view's function runs here first.

    Example:
        falaj features push view:fraud/totals events.jsonl
    """
    details: ViewDetails = client.features.about(view)
    text = details.definition.function
    function = open_function(client, details.view, text) if text else None
    result: PushResult | None = None
    taken_count = quarantined_count = 0
    with client.progress.task(f"pushing to {view.bare}", unit="rows") as task:
        for columns in _iterate_columns(rows):
            output_columns = columns if function is None else _call_view_function(details, function, columns)
            result = client.features.append(view, output_columns, ready=function is not None)
            taken_count, quarantined_count = taken_count + result.taken, quarantined_count + result.quarantined
            task.advance(len(next(iter(columns.values()))))
    if result is None:
        raise Invalid("there are no rows to push", "give at least one", view)
    return PushResult(result.view, result.generation, taken_count, quarantined_count, result.findings, result.online)


@client_command
def materialize(
    client: Client,
    view: Annotated[Ref, "which view, or a service: all of its views"],
    full: Annotated[bool, "fill a new space and switch to it when it is whole"] = False,
    ingest_first: Annotated[bool, "bring in what the source has first"] = True,
) -> tuple[FillProgress, ...]:
    """Fill the online store with what arrived since the last time. Killed anywhere and run again it ends the same.

    Example:
        falaj features materialize view:fraud/spend
        falaj features materialize service:fraud/scorer
    """
    names = [view] if view.kind == "view" else list(client.features.show(view).uses)
    fill_results: list[FillProgress] = []
    for name in dict.fromkeys(ref for ref in names if ref.kind == "view"):
        details: ViewDetails = client.features.about(name)
        if ingest_first and details.definition.source.kind != "push":
            ingest_rows(client, name, False, time.time())
        fill_results.append(_fill_view(client, name, full))
    return tuple(fill_results)


def _fill_view(client: Client, view: Ref, is_full: bool) -> FillProgress:
    with client.progress.task(f"filling {view}", unit="rows") as task:
        progress = _fill_with_retry(client, view, is_full)
        task.resize(progress.total)
        task.advance(progress.rows)
        while not progress.complete:
            rows_before = progress.rows
            progress = _fill_with_retry(client, view, False)
            task.advance(max(0, progress.rows - rows_before))
    return progress


def _fill_with_retry(client: Client, view: Ref, is_anew: bool) -> FillProgress:
    """One call; somebody who fills it at the moment is waited for, and so is one who was killed at it."""
    for _ in range(_MAX_FILL_ATTEMPTS):
        with suppress(Conflict):
            return cast(FillProgress, client.features.fill(view, anew=is_anew))
        time.sleep(1.0)
    return cast(FillProgress, client.features.fill(view, anew=is_anew))


@client_command
def history(
    client: Client,
    entities: Annotated[Any, "the rows to build it for: a file, a dataset, or a table; keys, a moment, labels"],
    service: Annotated[Ref, "which service, or view"],
    name: Annotated[str, "publish it as the next version of this dataset, or write it to this Parquet file"] = "",
    moment: Annotated[str, "the column that says when each row was"] = "event_timestamp",
    known_at: Annotated[str, "`label`: only what was known at each row's moment; or one instant; all when empty"] = "",
    zone: Annotated[str, "the time zone of moments without one, for example Asia/Dubai"] = "",
) -> TrainingSet:
    """Build a training set that is right at each row's moment: nothing from its future, nothing too old.

    Rows come out as they came in, none lost, doubled or moved; every feature has a status beside it. Published, its
    lineage names the exact versions of service, views and rows, and its label is the join of theirs.

    Example:
        falaj features history service:fraud/scorer labels.parquet --name dataset:fraud/train --moment at
    """
    table, input_refs, opening = _build_training_set(client, entities, service, moment, known_at, zone)
    published_ref, file_path = None, ""
    if name.startswith("dataset:"):
        published_ref = publish_training_set(client, table, Ref.parse(name), opening, input_refs, moment, known_at).ref
    elif name:
        import pyarrow.parquet as pq

        file_path = name
        pq.write_table(table, file_path)
    pinned = Ref.parse(opening.plan.ref)
    return TrainingSet(
        table.num_rows, tuple(table.column_names), count_statuses(table, opening.plan), pinned, published_ref, file_path
    )


@python_only
def table(
    client: Client,
    entities: Annotated[Any, "the rows to build it for: a file, a dataset, or a table"],
    service: Annotated[Ref, "which service, or view"],
    moment: Annotated[str, "the column that says when each row was"] = "event_timestamp",
    known_at: Annotated[str, "`label`: only what was known at each row's moment; or one instant; all when empty"] = "",
    zone: Annotated[str, "the time zone of moments without one"] = "",
) -> Any:
    """The same as `history`, given as an Arrow table to whoever writes Python.

    Example:
        here.features.table("labels.parquet", "service:fraud/scorer", moment="at")
    """
    return _build_training_set(client, entities, service, moment, known_at, zone)[0]


@python_only
def reader(
    client: Client,
    service: Annotated[Ref, "which service, or view"],
    model: Annotated[Ref | None, "the model that reads: it must have been trained on this very version"] = None,
) -> LiveReader:
    """Open a service to read it many times, in microseconds where the online store can be reached from here.

    Example:
        here.features.reader("service:fraud/scorer").read({"customer_id": ["c1"]})
    """
    return LiveReader(client, service, model)


def _build_training_set(
    client: Client, entities: Any, service: Ref, moment: str, known_at: str, zone: str
) -> tuple[Any, dict[str, Ref], ServiceAccess]:
    opening: ServiceAccess = client.features.open(service)
    with read_labels(client, entities) as (labels, source):
        if moment not in labels.column_names:
            hint = f"--moment, one of {', '.join(labels.column_names[:20])}"
            raise Invalid(f"the rows have no column {moment!r:.60}", hint, service)
        rows = remove_refused_people(client, labels, opening.plan)
        with client.progress.task(f"building the set of {opening.plan.ref}", rows.num_rows, "rows") as task:
            joined_table, input_refs = build_history(client, rows, moment, opening, known_at, zone, task.advance)
    input_refs = {"service": Ref.parse(opening.plan.ref), **source, **input_refs}
    return append_computed(joined_table, opening.plan, service_functions(client, opening.plan)), input_refs, opening


def _iterate_columns(rows: Any) -> Iterable[Mapping[str, list[Any]]]:
    """Rows in any form, as columns of a few thousand."""
    import pyarrow as pa

    if isinstance(rows, Mapping):
        rows = pa.table({name: pa.array(values) for name, values in rows.items()})
    if isinstance(rows, (list, tuple)):
        rows = build_table(rows)
    if hasattr(rows, "to_arrow"):
        rows = rows.to_arrow()
    if isinstance(rows, str):
        path = Path(rows).expanduser()
        if not path.is_file():
            raise Invalid(f"there is no file {rows!r:.300}", "a Parquet, CSV, JSON-lines or Arrow file")
        tables = read_tables([path])
    else:
        tables = iter([rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows)])
    step = min(_PUSH_ROWS, MAX_PUSH_ROWS)
    for table in tables:
        for start in range(0, table.num_rows, step):
            yield _to_json_columns(table.slice(start, step))


def _to_json_columns(table: Any) -> dict[str, list[Any]]:
    """Moments as microseconds, since JSON has none."""
    import pyarrow as pa

    from falaj.asof.moments import to_moments
    from falaj.asof.records import MISSING_MOMENT

    columns = {}
    for name in table.column_names:
        column = table.column(name)
        has_time_zone = pa.types.is_timestamp(column.type) and column.type.tz is not None
        values = to_moments(column).tolist() if has_time_zone else column.to_pylist()
        columns[name] = [None if moment == MISSING_MOMENT else moment for moment in values] if has_time_zone else values
    return columns


def _call_view_function(details: ViewDetails, function: Any, columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """What a view's function makes of pushed rows, with what is not its business: keys and times."""
    import numpy as np

    source = details.definition.source
    kept_names = [field.name for field in details.entity.keys] + [
        field for field in (source.event, source.created) if field
    ]
    inputs = {name: np.asarray(values) if _are_numbers(values) else values for name, values in columns.items()}
    outputs = function(inputs)
    output_lists = {
        name: values.tolist() if hasattr(values, "tolist") else list(values) for name, values in outputs.items()
    }
    return {**{name: list(columns[name]) for name in kept_names if name in columns}, **output_lists}


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
