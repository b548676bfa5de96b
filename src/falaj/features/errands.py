"""What users of features do beside the platform: apply definitions, ingest, push, fill, build training sets, read."""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, cast

from falaj.core.errand import Here, errand, for_python
from falaj.core.errors import Conflict, Invalid
from falaj.core.ref import Ref
from falaj.features.compacting import compact_view
from falaj.features.computing import compute
from falaj.features.filling import Filled
from falaj.features.functions import open_function, service_functions
from falaj.features.history import TrainingSet, build, publish_set, read_labels, tally, usable
from falaj.features.ingesting import Ingested, ingest_rows
from falaj.features.live import LiveReader
from falaj.features.loading import load
from falaj.features.records import Definitions, Migrated, Opening, Plan
from falaj.features.rows import MOST_ROWS, Appended
from falaj.features.sources import read_files
from falaj.features.stream import Arrival
from falaj.features.tabling import tabled
from falaj.store.codec import to_plain

_PUSH_ROWS = 5_000
"""Rows in one call: few enough for the size a call may have."""
_PATIENCE = 20


@errand
def apply(
    here: Here,
    path: Annotated[str, "a Python file with definitions, or a folder of such files"],
    plan: Annotated[bool, "only show what would change"] = False,
    force: Annotated[bool, "also when something that is used breaks"] = False,
) -> Plan:
    """Define entities, views and services as a file says; shows what changes, what breaks and who uses it.

    What changed in a way that numbers depend on becomes a new version; models and services that pin the old one keep
    it. The file is run here, beside you; the platform gets plain data.

    Example:
        falaj features apply features.py --plan
        falaj features apply features.py
    """
    definitions = load(path)
    return apply_definitions(here, definitions, plan, force)


@errand
def migrate(
    here: Here,
    path: Annotated[str, "the folder of a Feast repository, or what was recorded of one as JSON"],
    project: Annotated[str, "the project that everything goes to; Feast's own when left out"] = "",
    python: Annotated[str, "a Python that has feast installed, to read the repository with"] = "",
    plan: Annotated[bool, "only show what would change"] = False,
) -> Migrated:
    """Take entities, views and services over from Feast. Sources name datasets: publish their files under these names.

    Example:
        falaj features migrate ./feature_repo --python ~/feast/bin/python --plan
    """
    from falaj.features.feast import import_feast

    definitions, notes = import_feast(path, project, python)
    return Migrated(apply_definitions(here, definitions, plan, force=False), tuple(notes))


def apply_definitions(here: Here, definitions: Definitions, only_plan: bool, force: bool) -> Plan:
    """Plan, then define one after the other, in an order in which each finds what it is made of."""
    found: Plan = here.features.plan(definitions)
    broken = [f"{change.ref}: {reason}" for change in found.changes for reason in change.breaks]
    if only_plan:
        return found
    if broken and not force:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        raise Conflict(f"this breaks {broken[0]}{more}", "falaj features apply … --plan shows all; --force does it")
    wanted = {change.ref.bare: change for change in found.changes if change.act not in ("same", "unlisted")}
    for kind, items in (
        ("entity", definitions.entities), ("view", definitions.views), ("service", definitions.services)
    ):  # fmt: skip
        for one in items:
            project, _, name = one.name.partition("/")
            ref = Ref(kind, project, name)
            if ref in wanted:
                define_one(here, ref, one)
    return Plan(found.changes, applied=True, digest=found.digest)


def define_one(here: Here, ref: Ref, definition: Any) -> Ref:
    """One definition, with the label that what it picks demands."""
    label = getattr(definition, "label", None)
    views = [Ref.parse(f"view:{pick.view}") for pick in getattr(definition, "picks", ())]
    made: Ref = here.features.define(ref, to_plain(definition), views=tuple(views), label=label)
    return made


@errand
def ingest(
    here: Here,
    view: Annotated[Ref, "which view"],
    full: Annotated[bool, "read the whole source again, also when it only grew"] = False,
) -> Ingested:
    """Bring in what a view's source has since the last time: transformed, checked, kept apart where it breaks a rule.

    Example:
        falaj features ingest view:fraud/spend
    """
    return ingest_rows(here, view, full, time.time())


@errand
def compact(here: Here, view: Annotated[Ref, "which view"]) -> int:
    """Make one chapter of many; `ingest` does it by itself once there are many. Gives how many are left.

    Example:
        falaj features compact view:fraud/spend
    """
    return compact_view(here, view, most=1)


@errand
def push(
    here: Here,
    view: Annotated[Ref, "which view"],
    rows: Annotated[Any, "rows: a file (Parquet, CSV, JSON lines, Arrow), a table, or a list of records"],
) -> Appended:
    """Push rows to a view: durable offline, then readable online, when it returns. A view's function runs here first.

    Example:
        falaj features push view:fraud/totals events.jsonl
    """
    about: Arrival = here.features.about(view)
    text = about.definition.function
    function = open_function(here, about.view, text) if text else None
    done: Appended | None = None
    taken = quarantined = 0
    with here.progress.task(f"pushing to {view.bare}", unit="rows") as task:
        for columns in _columns(rows):
            made = columns if function is None else _called(about, function, columns)
            done = here.features.append(view, made, ready=function is not None)
            taken, quarantined = taken + done.taken, quarantined + done.quarantined
            task.advance(len(next(iter(columns.values()))))
    if done is None:
        raise Invalid("there are no rows to push", "give at least one", view)
    return Appended(done.view, done.generation, taken, quarantined, done.findings, done.online)


@errand
def materialize(
    here: Here,
    view: Annotated[Ref, "which view, or a service: all of its views"],
    full: Annotated[bool, "fill a new space and switch to it when it is whole"] = False,
    ingest_first: Annotated[bool, "bring in what the source has first"] = True,
) -> tuple[Filled, ...]:
    """Fill the online store with what arrived since the last time. Killed anywhere and run again it ends the same.

    Example:
        falaj features materialize view:fraud/spend
        falaj features materialize service:fraud/scorer
    """
    names = [view] if view.kind == "view" else list(here.features.show(view).uses)
    found: list[Filled] = []
    for name in dict.fromkeys(ref for ref in names if ref.kind == "view"):
        about: Arrival = here.features.about(name)
        if ingest_first and about.definition.source.kind != "push":
            ingest_rows(here, name, False, time.time())
        found.append(_fill(here, name, full))
    return tuple(found)


def _fill(here: Here, view: Ref, full: bool) -> Filled:
    with here.progress.task(f"filling {view}", unit="rows") as task:
        done = _filled(here, view, full)
        task.resize(done.total)
        task.advance(done.rows)
        while not done.complete:
            before = done.rows
            done = _filled(here, view, False)
            task.advance(max(0, done.rows - before))
    return done


def _filled(here: Here, view: Ref, anew: bool) -> Filled:
    """One call; somebody who fills it at the moment is waited for, and so is one who was killed at it."""
    for _ in range(_PATIENCE):
        with suppress(Conflict):
            return cast(Filled, here.features.fill(view, anew=anew))
        time.sleep(1.0)
    return cast(Filled, here.features.fill(view, anew=anew))


@errand
def history(
    here: Here,
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
    table, made, opening = _set(here, entities, service, moment, known_at, zone)
    published, file = None, ""
    if name.startswith("dataset:"):
        published = publish_set(here, table, Ref.parse(name), opening, made, moment, known_at).ref
    elif name:
        import pyarrow.parquet as pq

        file = name
        pq.write_table(table, file)
    pinned = Ref.parse(opening.plan.ref)
    return TrainingSet(table.num_rows, tuple(table.column_names), tally(table, opening.plan), pinned, published, file)


@for_python
def table(
    here: Here,
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
    return _set(here, entities, service, moment, known_at, zone)[0]


@for_python
def reader(
    here: Here,
    service: Annotated[Ref, "which service, or view"],
    model: Annotated[Ref | None, "the model that reads: it must have been trained on this very version"] = None,
) -> LiveReader:
    """Open a service to read it many times, in microseconds where the online store can be reached from here.

    Example:
        here.features.reader("service:fraud/scorer").read({"customer_id": ["c1"]})
    """
    return LiveReader(here, service, model)


def _set(
    here: Here, entities: Any, service: Ref, moment: str, known_at: str, zone: str
) -> tuple[Any, dict[str, Ref], Opening]:
    opening: Opening = here.features.open(service)
    with read_labels(here, entities) as (labels, source):
        if moment not in labels.column_names:
            hint = f"--moment, one of {', '.join(labels.column_names[:20])}"
            raise Invalid(f"the rows have no column {moment!r:.60}", hint, service)
        rows = usable(here, labels, opening.plan)
        with here.progress.task(f"building the set of {opening.plan.ref}", rows.num_rows, "rows") as task:
            found, made = build(here, rows, moment, opening, known_at, zone, task.advance)
    made = {"service": Ref.parse(opening.plan.ref), **source, **made}
    return compute(found, opening.plan, service_functions(here, opening.plan)), made, opening


def _columns(rows: Any) -> Iterable[Mapping[str, list[Any]]]:
    """Rows in any form, as columns of a few thousand."""
    import pyarrow as pa

    if isinstance(rows, Mapping):
        rows = pa.table({name: pa.array(values) for name, values in rows.items()})
    if isinstance(rows, (list, tuple)):
        rows = tabled(rows)
    if hasattr(rows, "to_arrow"):
        rows = rows.to_arrow()
    if isinstance(rows, str):
        path = Path(rows).expanduser()
        if not path.is_file():
            raise Invalid(f"there is no file {rows!r:.300}", "a Parquet, CSV, JSON-lines or Arrow file")
        tables = read_files([path])
    else:
        tables = iter([rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows)])
    step = min(_PUSH_ROWS, MOST_ROWS)
    for one in tables:
        for start in range(0, one.num_rows, step):
            yield _jsonable(one.slice(start, step))


def _jsonable(part: Any) -> dict[str, list[Any]]:
    """Moments as microseconds, since JSON has none."""
    import pyarrow as pa

    from falaj.asof.moments import moments
    from falaj.asof.records import MISSING

    made = {}
    for name in part.column_names:
        column = part.column(name)
        aware = pa.types.is_timestamp(column.type) and column.type.tz is not None
        values = moments(column).tolist() if aware else column.to_pylist()
        made[name] = [None if one == MISSING else one for one in values] if aware else values
    return made


def _called(about: Arrival, function: Any, columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """What a view's function makes of pushed rows, with what is not its business: keys and times."""
    import numpy as np

    source = about.definition.source
    kept = [one.name for one in about.entity.keys] + [one for one in (source.event, source.created) if one]
    given = {name: np.asarray(values) if _numbers(values) else values for name, values in columns.items()}
    made = function(given)
    plain = {name: values.tolist() if hasattr(values, "tolist") else list(values) for name, values in made.items()}
    return {**{name: list(columns[name]) for name in kept if name in columns}, **plain}


def _numbers(values: list[Any]) -> bool:
    return all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)
