"""Spreading: a training set by many workers of a cluster, for what one machine has no memory or no time for.

The job's workers each take some partitions of every view (asof/share.py). The caller lays their pieces beside the
labels, block by block, computes what is made on demand, and publishes. So the caller needs the disk for labels, pieces
and the set, and memory for a block; a node needs the disk for labels and rows, and memory for a partition.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from falaj.asof.moments import micros
from falaj.asof.records import ServicePlan, ViewPlan
from falaj.asof.rows import read_name
from falaj.asof.share import Task, assemble
from falaj.catalog.publishing import Order, carry_out
from falaj.catalog.reading import open_version
from falaj.catalog.records import Facts
from falaj.catalog.sources import Source
from falaj.core.errand import Here, errand
from falaj.core.errors import FalajError, Invalid, Unavailable, UserCodeFailed
from falaj.core.ref import Ref
from falaj.features.chapters import SEGMENT
from falaj.features.computing import compute
from falaj.features.functions import service_functions
from falaj.features.history import TrainingSet, tally
from falaj.features.records import Opening
from falaj.features.rows import Edition
from falaj.features.stream import Arrival
from falaj.jobs.attempts import AWAY
from falaj.jobs.records import JobView
from falaj.jobs.spec import is_spec, read_file

PROGRAM = """# Written by `falaj features spread`: one worker's share of a training set.
import sys
from pathlib import Path

from falaj import worker
from falaj.asof.share import Task, Who, work
from falaj.core.errors import FalajError

here = worker.attempt()
try:
    who, output = Who(here.rank, here.world, here.id), Path(here.outputs["pieces"])
    work(Task.read(Path("task.json")), who, here.inputs, here.checkpoints / "pieces", output, here.progress)
except FalajError as error:
    print(f"falaj: {error.message} ({error.hint})", file=sys.stderr)
    sys.exit(2)
"""
WORDS = ("workers", "memory", "cpus", "queue", "cluster", "image", "env", "limit", "band", "zone", "spot", "topology")
"""What a file may say of the job."""
_RETRIES, _RETRY_ON = 2, (1, 134, 135, 137, 139, 143)
"""Crashes and kills are tried again; what is wrong with labels or rows (2) would be wrong again."""
_LOOK_S = 0.5
_SLOTS_HEARD = 8
_FILE_BLOCKS = 64
"""So many blocks (8 million rows) a file of the set has."""
_MIB = 1 << 20


@dataclass(slots=True)
class _Ground:
    """What a set is made from: for workers by role, for the record by what it is."""

    folder: Path
    labels: tuple[str, ...] = ()
    """Files in that folder, in their order."""
    roles: dict[str, Ref] = field(default_factory=dict)
    made: dict[str, Ref] = field(default_factory=dict)
    chapters: list[tuple[Mapping[str, str], ...]] = field(default_factory=list)
    largest_bytes: int = 0
    """Of all partitions of all views."""


@errand
def spread(
    here: Here,
    entities: Annotated[Ref, "the rows to build it for: a dataset of Parquet files; keys, a moment, labels"],
    service: Annotated[Ref, "which service, or view"],
    name: Annotated[Ref, "publish it as the next version of this dataset"],
    workers: Annotated[Any, "how many; or a file (YAML, TOML, JSON) that says it, and memory, cluster, image, …"] = 2,
    moment: Annotated[str, "the column that says when each row was"] = "event_timestamp",
    known_at: Annotated[str, "`label`: only what was known at each row's moment; or one instant; all when empty"] = "",
) -> TrainingSet:
    """Build a training set on a cluster: the same bits as `history` makes, by as many workers as you like.

    Views must be ingested and not sealed. Workers meet in a folder that all nodes reach: the cluster's own, or the one
    for checkpoints. Nodes need numpy and pyarrow. What is computed on demand is computed here, a block at a time.

    Example:
        falaj features spread dataset:fraud/labels service:fraud/scorer dataset:fraud/train --workers 8 --moment at
    """
    words = _words(workers)
    if name.kind != "dataset" or name.version:
        raise Invalid(f"{name} cannot be published", "dataset:PROJECT/NAME, without a version", name)
    opening: Opening = here.features.open(service)
    known: str | int = known_at if known_at in ("", "label") else micros(known_at)
    with tempfile.TemporaryDirectory(prefix="falaj-spread-") as scratch:
        ground = _Ground(Path(scratch, "labels"), made={"service": Ref.parse(opening.plan.ref)})
        _take_labels(here, entities, ground)
        for plan in opening.plan.views:
            _take_rows(here, plan, ground)
        _check(ground, moment, opening.plan)
        words = {"memory": f"{_memory_mib(ground, int(words['workers']))}MiB", **words}
        task = Task(moment, known or None, ground.labels, opening.plan.views, tuple(ground.chapters), AWAY)
        job = _run(here, task, ground.roles, name, words)
        facts = Facts(f"training set of {opening.plan.ref}", tags=_tags(opening.plan, moment, known_at))
        order = Order(name, Source(Path(scratch, "set"), passing=True), facts, inputs=ground.made)
        try:
            here.catalog.checkout(job.outputs["pieces"], str(Path(scratch, "pieces")))
            return _publish(here, assemble(task, ground.folder, Path(scratch, "pieces")), opening.plan, order)
        finally:
            # Who may not erase leaves them there, under the label of all they were made from.
            with suppress(FalajError):
                here.catalog.delete(job.outputs["pieces"], reason=f"they were pieces of {name}")


def _words(workers: Any) -> dict[str, Any]:
    """What is said of the job."""
    words = read_file(str(workers)) if is_spec(str(workers)) else {"workers": workers}
    if unknown := sorted(set(words) - set(WORDS)):
        raise Invalid(f"a job that spreads a set has no {unknown[0]!r:.60}", f"it has: {', '.join(WORDS)}")
    count = str(words.get("workers", 2))
    if not count.isdecimal() or not 0 < int(count) <= 10_000:
        raise Invalid(f"{count!r:.60} workers", "1 to 10000, or a file .yaml, .toml or .json that says it")
    return {**words, "workers": int(count)}


def _take_labels(here: Here, entities: Ref, ground: _Ground) -> None:
    opened, snapshot = open_version(here, entities)
    files = [one.path for one in snapshot.entries() if one.kind == "file" and not one.path.startswith((b".", b"_"))]
    if not files or not all(path.endswith((b".parquet", b".parq", b".pq")) for path in files):
        raise Invalid(f"{opened.ref} is not of Parquet files alone", "publish the labels as Parquet", opened.ref)
    here.catalog.checkout(opened.ref, str(ground.folder))
    ground.labels = tuple(map(os.fsdecode, files))
    ground.roles["labels"] = ground.made["labels"] = opened.ref


def _take_rows(here: Here, plan: ViewPlan, ground: _Ground) -> None:
    """The rows of one face of a view, as history takes them."""
    ref = Ref.parse(plan.ref)
    if plan.sealed:
        raise Invalid(f"{ref} is sealed, and its keys go to no cluster", "falaj features history, on one machine", ref)
    edition: Edition = here.features.rows(ref)
    about: Arrival = here.features.about(ref)
    if not edition.stream.generation and about.definition.source.kind != "push":
        raise Invalid(
            f"{ref} was not ingested, and workers do not read its source", f"falaj features ingest {ref.bare}", ref
        )
    ground.made[f"view.{ref.project}.{ref.name}"] = ref
    known = {version: role for role, version in ground.roles.items()}
    sizes: list[tuple[int, int, int]] = []
    chapters = []
    for chapter in edition.stream.chapters:
        faces = {}
        for face in dict.fromkeys(("", plan.face)):
            version = chapter.faces[face]
            faces[face] = role = known.setdefault(version, f"rows{len(known)}")
            ground.roles[role] = ground.made[f"rows.{version.name}.{version.version}"] = version
            sizes += _sizes(here, version)
        chapters.append(faces)
    ground.chapters.append(tuple(chapters))
    count = min((of for _, of, _ in sizes), default=1)
    heavy: Counter[int] = Counter()
    for partition, _, size in sizes:
        heavy[partition % count] += size
    ground.largest_bytes = max([ground.largest_bytes, *heavy.values()])


def _sizes(here: Here, version: Ref) -> list[tuple[int, int, int]]:
    """Partition, of how many, and bytes of each segment."""
    names = ((one.path.decode("utf-8", "replace"), one.size) for one in open_version(here, version)[1].entries())
    return [(*read_name(name)[:2], size) for name, size in names if name.endswith(SEGMENT)]


def _check(ground: _Ground, moment: str, plan: ServicePlan) -> None:
    """Say now what workers, or we at the end, would stumble over."""
    import pyarrow.parquet as pq

    from falaj.asof.engine import Joined, OwnRows, training_set

    schema, *others = (pq.read_schema(ground.folder / name) for name in ground.labels)
    if any(not one.equals(schema) for one in others):
        raise Invalid("the files of the labels have different columns", "publish them with the same ones")
    views = [Joined(view, OwnRows([])) for view in plan.views]
    have = set(training_set(schema.empty_table(), moment, views, status=True).column_names)
    for one in plan.computed:
        if missing := [name for name in one.inputs if name not in have]:
            hint = "a training set needs a column for everything a request brings"
            raise Invalid(f"{one.name} is made from {missing[0]}, which the labels do not have", hint)
        have |= {output.name for output in one.outputs}


def _memory_mib(ground: _Ground, workers: int) -> int:
    """What a worker needs, generously: its share of the labels' keys, and a partition with what is made of it."""
    import pyarrow.parquet as pq

    rows: int = sum(pq.read_metadata(ground.folder / name).num_rows for name in ground.labels)
    return 512 + (4 * ground.largest_bytes + 100 * rows // workers) // _MIB


def _tags(plan: ServicePlan, moment: str, known_at: str) -> dict[str, str]:
    """As those of a set that history publishes."""
    keys = ",".join(dict.fromkeys(one.name for view in plan.views for one in view.keys))
    return {"made": "features.history", "moment": moment, "known_at": known_at, "keys": keys}


def _run(here: Here, task: Task, roles: Mapping[str, Ref], name: Ref, words: Mapping[str, Any]) -> JobView:
    """The job, when it is over."""
    pieces = Ref("dataset", name.project, f"{name.name}.pieces")
    with tempfile.TemporaryDirectory(prefix="falaj-share-") as folder:
        Path(folder, "spread.py").write_text(PROGRAM, encoding="utf-8")
        Path(folder, "task.json").write_text(task.text(), encoding="utf-8")
        job: JobView = here.jobs.submit(
            str(Path(folder, "spread.py")), project=name.project, inputs=roles, outputs={"pieces": pieces},
            retries=_RETRIES, retry_on=_RETRY_ON, **words,
        )  # fmt: skip
    with here.working(), here.progress.task(str(job.ref), None, "partitions") as progress:
        seen = 0
        while not job.over:
            time.sleep(_LOOK_S)
            job = here.jobs.show(job.ref)
            progress.resize(job.steps or None)
            progress.advance(max(0, job.step - seen))
            seen = max(seen, job.step)
    if job.state == "succeeded":
        return job
    hint = f"falaj jobs logs {job.ref} --slot N shows what each worker said"
    if job.state == "failed":
        raise UserCodeFailed(f"{job.ref} failed: {_said(here, job) or job.note}", hint, job.ref)
    raise Unavailable(f"{job.ref} was {job.state}: {job.note}", hint, job.ref)


def _said(here: Here, job: JobView) -> str:
    """What a worker gave as the reason."""
    for slot in range(min(job.width, _SLOTS_HEARD)):
        with suppress(FalajError):
            lines: Sequence[str] = here.jobs.logs(job.ref, slot=slot).lines
            for line in lines[::-1]:
                if line.startswith("falaj: "):
                    return line.removeprefix("falaj: ")
    return ""


def _publish(here: Here, blocks: Iterable[Any], plan: ServicePlan, order: Order) -> TrainingSet:
    """Write blocks, with what is computed, to some files; and these as the next version."""
    import pyarrow.parquet as pq

    order.source.path.mkdir()
    found: dict[str, Counter[str]] = {}
    num_rows, columns, writer = 0, (), None
    functions = service_functions(here, plan)
    with ExitStack() as stack, here.progress.task(f"laying {order.name} together", unit="rows") as task:
        for number, block in enumerate(blocks):
            table = compute(block, plan, functions)
            if writer is None or number % _FILE_BLOCKS == 0:
                stack.close()
                path = order.source.path / f"set-{number // _FILE_BLOCKS:05d}.parquet"
                writer = stack.enter_context(pq.ParquetWriter(path, table.schema, use_content_defined_chunking=True))
            writer.write_table(table)
            for feature, counts in tally(table, plan).items():
                found.setdefault(feature, Counter()).update(counts)
            num_rows, columns = num_rows + table.num_rows, tuple(table.column_names)
            task.advance(table.num_rows)
    published = carry_out(here, order).ref
    shown = {feature: dict(counts) for feature, counts in found.items()}
    return TrainingSet(num_rows, columns, shown, Ref.parse(plan.ref), published)
