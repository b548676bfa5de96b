"""Traces: nodes, queues, and jobs with what no scheduler knows beforehand, how long they really take."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from falaj.core.executor import Device
from falaj.schedule.model import Job, JobShape, Node, Queue, Role, SlotRequest

MURI_OVERHEAD = 1.015
"""What the authors of the Muri traces add to every iteration."""
MURI_RESTART_S = 10
"""What starting a training job again costs where a trace does not say: the middle of 4 to 46 seconds."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace: what is asked, and the truth about it."""

    job: Job
    work_s: float
    """How long it runs at its declared width when nobody disturbs it."""
    loses: bool = False
    """True when an eviction throws its work since the last checkpoint away; else it saves before it goes."""
    whose: str = ""
    """Whom it is counted for, where that is not its queue."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Something to run."""

    nodes: tuple[Node, ...]
    queues: tuple[Queue, ...]
    loads: tuple[TraceJob, ...]

    @property
    def gpus(self) -> int:
        """All devices."""
        return sum(len(node.devices) for node in self.nodes)


def read_muri(file: Path, nodes: int = 8, gpus: int = 8) -> Trace:
    """A trace of the Muri artefact: submit time in milliseconds, iterations and milliseconds of one."""
    with file.open(newline="", encoding="utf-8") as lines:
        trace_jobs = tuple(_parse_muri_row(row, gpus) for row in csv.DictReader(lines))
    return Trace(make_nodes(nodes, gpus), (Queue("root"), Queue("root/all")), trace_jobs)


def without_step_counts(trace: Trace) -> Trace:
    """The trace as the scheduler sees it where no job declares how many steps it has: only history tells its length."""
    loads = tuple(replace(load, job=replace(load.job, steps=0)) for load in trace.loads)
    return replace(trace, loads=loads)


def make_nodes(
    count: int, gpus: int, model: str = "V100", nodes_per_rack: int = 32, **amounts: int
) -> tuple[Node, ...]:
    """Equal nodes, so many in a rack."""
    node_amounts = {"cpu": 96_000, "memory": 512 * 1024} | amounts
    devices = tuple(Device(index, model, 32 * 1024, island=index // 4) for index in range(gpus))
    return tuple(
        Node(f"sim/n{number:05}", "sim", "home", node_amounts, devices, {"rack": f"r{number // nodes_per_rack}"})
        for number in range(count)
    )


def split_into_slots(gpus: int, per_node: int) -> tuple[Role, ...]:
    """So many devices in as few nodes as hold them: one slot, or whole nodes."""
    count, gpus_per_slot = (1, gpus) if gpus <= per_node else (-(-gpus // per_node), per_node)
    return (Role("worker", SlotRequest(gpus=gpus_per_slot), count),)


def build_trace(nodes: Sequence[Node], queues: Sequence[Queue], trace_jobs: Sequence[TraceJob]) -> Trace:
    """A trace in the order of submission."""
    return Trace(
        tuple(nodes),
        tuple(queues),
        tuple(sorted(trace_jobs, key=lambda trace_job: (trace_job.job.submitted, trace_job.job.id))),
    )


def _parse_muri_row(row: dict[str, str], per_node: int) -> TraceJob:
    steps, step_us = int(row["iterations"]), round(float(row["iteration_time"]) * 1000 * MURI_OVERHEAD)
    job = Job(
        id=f"job-{int(row['job_id']):05}",
        queue="root/all",
        shape=JobShape(split_into_slots(int(row["num_gpu"]), per_node)),
        submitted=int(row["submit_time"]) // 1000,
        template=row["model_name"],
        steps=steps,
        resumes=True,
        restart_s=MURI_RESTART_S,
        save_s=1,
    )
    return TraceJob(job, steps * step_us / 1e6)
