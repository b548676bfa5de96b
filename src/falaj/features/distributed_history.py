"""Spreading: a training set by many workers of a cluster, for what one machine has no memory or no time for.

The job's workers each take some partitions of every view (asof/distributed_sets.py). The caller lays their pieces
beside the labels, block by block, computes what is made on demand, and publishes. So the caller needs the disk for
labels, pieces and the set, and memory for a block; a node needs the disk for labels and rows, and memory for a
partition.
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

from falaj.asof.distributed_sets import TrainingSetTask, assemble_set
from falaj.asof.moments import to_micros
from falaj.asof.records import ServicePlan, ViewPlan
from falaj.asof.row_files import parse_part_name
from falaj.catalog.publish_sources import PublishSource
from falaj.catalog.publishing import PublishOrder, run_publish
from falaj.catalog.records import PublishFacts
from falaj.catalog.version_reader import open_version
from falaj.core.client_command import Client, client_command
from falaj.core.errors import FalajError, Invalid, Unavailable, UserCodeFailed
from falaj.core.ref import Ref
from falaj.features.function_sandboxes import service_functions
from falaj.features.historical_features import TrainingSet, count_statuses
from falaj.features.on_demand_values import append_computed
from falaj.features.records import ServiceAccess
from falaj.features.row_operations import ViewRows
from falaj.features.row_stream import ViewDetails
from falaj.features.segment_access import SEGMENT
from falaj.jobs.attempts import NODE_CHECKPOINT_FOLDER
from falaj.jobs.records import JobView
from falaj.jobs.spec import is_spec_file, read_spec_file

PROGRAM = """# Written by `falaj features spread`: one worker's share of a training set.
import sys
from pathlib import Path

from falaj import worker
from falaj.asof.distributed_sets import TrainingSetTask, WorkerIdentity, build_worker_share
from falaj.core.errors import FalajError

here = worker.attempt()
try:
    who, output = WorkerIdentity(here.rank, here.world, here.id), Path(here.outputs["pieces"])
    task = TrainingSetTask.read(Path("task.json"))
    build_worker_share(task, who, here.inputs, here.checkpoints / "pieces", output, here.progress)
except FalajError as error:
    print(f"falaj: {error.message} ({error.hint})", file=sys.stderr)
    sys.exit(2)
"""
JOB_OPTIONS = (
    "workers",
    "memory",
    "cpus",
    "queue",
    "cluster",
    "image",
    "env",
    "limit",
    "band",
    "zone",
    "spot",
    "topology",
)
"""What a file may say of the job."""
_RETRIES, _RETRY_ON = 2, (1, 134, 135, 137, 139, 143)
"""Crashes and kills are tried again; what is wrong with labels or rows (2) would be wrong again."""
_POLL_INTERVAL_S = 0.5
_MAX_READ_SLOTS = 8
_BLOCKS_PER_FILE = 64
"""So many blocks (8 million rows) a file of the set has."""
_MIB = 1 << 20


@dataclass(slots=True)
class _SetInputs:
    """What a set is made from: for workers by role, for the record by what it is."""

    folder: Path
    labels: tuple[str, ...] = ()
    """Files in that folder, in their order."""
    roles: dict[str, Ref] = field(default_factory=dict)
    made: dict[str, Ref] = field(default_factory=dict)
    chapters: list[tuple[Mapping[str, str], ...]] = field(default_factory=list)
    largest_bytes: int = 0
    """Of all partitions of all views."""


@client_command
def spread(
    client: Client,
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
    job_options = _read_job_options(workers)
    if name.kind != "dataset" or name.version:
        raise Invalid(f"{name} cannot be published", "dataset:PROJECT/NAME, without a version", name)
    opening: ServiceAccess = client.features.open(service)
    known_moment: str | int = known_at if known_at in ("", "label") else to_micros(known_at)
    with tempfile.TemporaryDirectory(prefix="falaj-spread-") as scratch:
        set_inputs = _SetInputs(Path(scratch, "labels"), made={"service": Ref.parse(opening.plan.ref)})
        _fetch_labels(client, entities, set_inputs)
        for plan in opening.plan.views:
            _collect_view_rows(client, plan, set_inputs)
        _check_inputs(set_inputs, moment, opening.plan)
        job_options = {"memory": f"{_estimate_memory_mib(set_inputs, int(job_options['workers']))}MiB", **job_options}
        task = TrainingSetTask(
            moment,
            known_moment or None,
            set_inputs.labels,
            opening.plan.views,
            tuple(set_inputs.chapters),
            NODE_CHECKPOINT_FOLDER,
        )
        job = _run_job(client, task, set_inputs.roles, name, job_options)
        facts = PublishFacts(f"training set of {opening.plan.ref}", tags=_make_set_tags(opening.plan, moment, known_at))
        order = PublishOrder(name, PublishSource(Path(scratch, "set"), passing=True), facts, inputs=set_inputs.made)
        try:
            client.catalog.checkout(job.outputs["pieces"], str(Path(scratch, "pieces")))
            return _publish_blocks(
                client, assemble_set(task, set_inputs.folder, Path(scratch, "pieces")), opening.plan, order
            )
        finally:
            # Who may not erase leaves them there, under the label of all they were made from.
            with suppress(FalajError):
                client.catalog.delete(job.outputs["pieces"], reason=f"they were pieces of {name}")


def _read_job_options(workers: Any) -> dict[str, Any]:
    """What is said of the job."""
    job_options = read_spec_file(str(workers)) if is_spec_file(str(workers)) else {"workers": workers}
    if unknown_options := sorted(set(job_options) - set(JOB_OPTIONS)):
        raise Invalid(
            f"a job that spreads a set has no {unknown_options[0]!r:.60}", f"it has: {', '.join(JOB_OPTIONS)}"
        )
    count = str(job_options.get("workers", 2))
    if not count.isdecimal() or not 0 < int(count) <= 10_000:
        raise Invalid(f"{count!r:.60} workers", "1 to 10000, or a file .yaml, .toml or .json that says it")
    return {**job_options, "workers": int(count)}


def _fetch_labels(client: Client, entities: Ref, set_inputs: _SetInputs) -> None:
    version_info, snapshot = open_version(client, entities)
    files = [
        entry.path for entry in snapshot.entries() if entry.kind == "file" and not entry.path.startswith((b".", b"_"))
    ]
    if not files or not all(path.endswith((b".parquet", b".parq", b".pq")) for path in files):
        raise Invalid(
            f"{version_info.ref} is not of Parquet files alone", "publish the labels as Parquet", version_info.ref
        )
    client.catalog.checkout(version_info.ref, str(set_inputs.folder))
    set_inputs.labels = tuple(map(os.fsdecode, files))
    set_inputs.roles["labels"] = set_inputs.made["labels"] = version_info.ref


def _collect_view_rows(client: Client, plan: ViewPlan, set_inputs: _SetInputs) -> None:
    """The rows of one face of a view, as history takes them."""
    ref = Ref.parse(plan.ref)
    if plan.sealed:
        raise Invalid(f"{ref} is sealed, and its keys go to no cluster", "falaj features history, on one machine", ref)
    edition: ViewRows = client.features.rows(ref)
    details: ViewDetails = client.features.about(ref)
    if not edition.stream.generation and details.definition.source.kind != "push":
        raise Invalid(
            f"{ref} was not ingested, and workers do not read its source", f"falaj features ingest {ref.bare}", ref
        )
    set_inputs.made[f"view.{ref.project}.{ref.name}"] = ref
    roles_by_version = {version: role for role, version in set_inputs.roles.items()}
    sizes: list[tuple[int, int, int]] = []
    segment_roles = []
    for segment in edition.stream.chapters:
        role_by_group = {}
        for group in dict.fromkeys(("", plan.face)):
            version = segment.faces[group]
            role_by_group[group] = role = roles_by_version.setdefault(version, f"rows{len(roles_by_version)}")
            set_inputs.roles[role] = set_inputs.made[f"rows.{version.name}.{version.version}"] = version
            sizes += _list_segment_sizes(client, version)
        segment_roles.append(role_by_group)
    set_inputs.chapters.append(tuple(segment_roles))
    count = min((partition_count for _, partition_count, _ in sizes), default=1)
    bytes_by_partition: Counter[int] = Counter()
    for partition, _, size in sizes:
        bytes_by_partition[partition % count] += size
    set_inputs.largest_bytes = max([set_inputs.largest_bytes, *bytes_by_partition.values()])


def _list_segment_sizes(client: Client, version: Ref) -> list[tuple[int, int, int]]:
    """Partition, of how many, and bytes of each segment."""
    names = (
        (entry.path.decode("utf-8", "replace"), entry.size) for entry in open_version(client, version)[1].entries()
    )
    return [(*parse_part_name(name)[:2], size) for name, size in names if name.endswith(SEGMENT)]


def _check_inputs(set_inputs: _SetInputs, moment: str, plan: ServicePlan) -> None:
    """Say now what workers, or we at the end, would stumble over."""
    import pyarrow.parquet as pq

    from falaj.asof.training_sets import JoinedView, SegmentRows, build_training_set

    schema, *other_schemas = (pq.read_schema(set_inputs.folder / name) for name in set_inputs.labels)
    if any(not item.equals(schema) for item in other_schemas):
        raise Invalid("the files of the labels have different columns", "publish them with the same ones")
    views = [JoinedView(view, SegmentRows([])) for view in plan.views]
    available_names = set(build_training_set(schema.empty_table(), moment, views, status=True).column_names)
    for item in plan.computed:
        if missing := [name for name in item.inputs if name not in available_names]:
            hint = "a training set needs a column for everything a request brings"
            raise Invalid(f"{item.name} is made from {missing[0]}, which the labels do not have", hint)
        available_names |= {output.name for output in item.outputs}


def _estimate_memory_mib(set_inputs: _SetInputs, workers: int) -> int:
    """What a worker needs, generously: its share of the labels' keys, and a partition with what is made of it."""
    import pyarrow.parquet as pq

    rows: int = sum(pq.read_metadata(set_inputs.folder / name).num_rows for name in set_inputs.labels)
    return 512 + (4 * set_inputs.largest_bytes + 100 * rows // workers) // _MIB


def _make_set_tags(plan: ServicePlan, moment: str, known_at: str) -> dict[str, str]:
    """As those of a set that history publishes."""
    keys = ",".join(dict.fromkeys(key.name for view in plan.views for key in view.keys))
    return {"made": "features.history", "moment": moment, "known_at": known_at, "keys": keys}


def _run_job(
    client: Client, task: TrainingSetTask, roles: Mapping[str, Ref], name: Ref, job_options: Mapping[str, Any]
) -> JobView:
    """The job, when it is over."""
    pieces = Ref("dataset", name.project, f"{name.name}.pieces")
    with tempfile.TemporaryDirectory(prefix="falaj-share-") as folder:
        Path(folder, "spread.py").write_text(PROGRAM, encoding="utf-8")
        Path(folder, "task.json").write_text(task.text(), encoding="utf-8")
        job: JobView = client.jobs.submit(
            str(Path(folder, "spread.py")),
            project=name.project,
            inputs=roles,
            outputs={"pieces": pieces},
            retries=_RETRIES,
            retry_on=_RETRY_ON,
            **job_options,
        )
    with client.working(), client.progress.task(str(job.ref), None, "partitions") as progress:
        seen_steps = 0
        while not job.over:
            time.sleep(_POLL_INTERVAL_S)
            job = client.jobs.show(job.ref)
            progress.resize(job.steps or None)
            progress.advance(max(0, job.step - seen_steps))
            seen_steps = max(seen_steps, job.step)
    if job.state == "succeeded":
        return job
    hint = f"falaj jobs logs {job.ref} --slot N shows what each worker said"
    if job.state == "failed":
        raise UserCodeFailed(f"{job.ref} failed: {_read_worker_error(client, job) or job.note}", hint, job.ref)
    raise Unavailable(f"{job.ref} was {job.state}: {job.note}", hint, job.ref)


def _read_worker_error(client: Client, job: JobView) -> str:
    """What a worker gave as the reason."""
    for slot in range(min(job.width, _MAX_READ_SLOTS)):
        with suppress(FalajError):
            lines: Sequence[str] = client.jobs.logs(job.ref, slot=slot).lines
            for line in lines[::-1]:
                if line.startswith("falaj: "):
                    return line.removeprefix("falaj: ")
    return ""


def _publish_blocks(client: Client, blocks: Iterable[Any], plan: ServicePlan, order: PublishOrder) -> TrainingSet:
    """Write blocks, with what is computed, to some files; and these as the next version."""
    import pyarrow.parquet as pq

    order.source.path.mkdir()
    counts_by_feature: dict[str, Counter[str]] = {}
    num_rows, columns, writer = 0, (), None
    functions = service_functions(client, plan)
    with ExitStack() as stack, client.progress.task(f"laying {order.name} together", unit="rows") as task:
        for number, block in enumerate(blocks):
            table = append_computed(block, plan, functions)
            if writer is None or number % _BLOCKS_PER_FILE == 0:
                stack.close()
                path = order.source.path / f"set-{number // _BLOCKS_PER_FILE:05d}.parquet"
                writer = stack.enter_context(pq.ParquetWriter(path, table.schema, use_content_defined_chunking=True))
            writer.write_table(table)
            for feature, counts in count_statuses(table, plan).items():
                counts_by_feature.setdefault(feature, Counter()).update(counts)
            num_rows, columns = num_rows + table.num_rows, tuple(table.column_names)
            task.advance(table.num_rows)
    published = run_publish(client, order).ref
    status_counts = {feature: dict(counts) for feature, counts in counts_by_feature.items()}
    return TrainingSet(num_rows, columns, status_counts, Ref.parse(plan.ref), published)
