"""What came out of a simulation, in the numbers that papers and platform teams compare."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from falaj.simulator.trace import Trace, TraceJob


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of one job."""

    job: str
    queue: str
    submitted: int
    started: float
    ended: float
    ran_s: float
    """How long it held its places, in all."""
    evictions: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """One policy on one trace. Times are in seconds."""

    policy: str
    jobs: int
    jct_mean: float
    jct_p50: float
    jct_p99: float
    wait_mean: float
    makespan: float
    used: float
    """Part of all device time, from the first arrival to the last end, in which devices were held."""
    evictions: int
    fairness: float
    """Jain's index over queues of work done against work asked while they waited; 1 is perfectly even."""
    queues: Mapping[str, float]
    """Mean completion time by queue."""
    never: Mapping[str, int] = field(default_factory=dict)
    """By queue, how many jobs never ended: times are of the others, and fairness counts these as nothing done."""
    spread: tuple[float, ...] = ()
    """Completion times from the shortest to the longest, in twentieths of all that ended."""


def measure_outcome(policy: str, trace: Trace, job_outcomes: Sequence[JobOutcome]) -> SimulationOutcome:
    """The numbers of a run."""
    ended_ids = {job_outcome.job for job_outcome in job_outcomes}
    never_ended = Counter(
        trace_job.whose or trace_job.job.queue for trace_job in trace.loads if trace_job.job.id not in ended_ids
    )
    completion_times = sorted(job_outcome.ended - job_outcome.submitted for job_outcome in job_outcomes) or [0.0]
    waits = [job_outcome.started - job_outcome.submitted for job_outcome in job_outcomes] or [0.0]
    start = min((job_outcome.submitted for job_outcome in job_outcomes), default=0)
    end = max((job_outcome.ended for job_outcome in job_outcomes), default=0.0)
    held_gpu_s = sum(job_outcome.ran_s * job_outcome.gpus for job_outcome in job_outcomes)
    return SimulationOutcome(
        policy,
        len(job_outcomes),
        sum(completion_times) / len(completion_times),
        completion_times[len(completion_times) // 2],
        completion_times[int(0.99 * len(completion_times))],
        sum(waits) / len(waits),
        end - start,
        held_gpu_s / max(1.0, trace.gpus * (end - start)),
        sum(job_outcome.evictions for job_outcome in job_outcomes),
        _compute_jain_index([slowdown for _, slowdown in _compute_means_by_queue(trace, job_outcomes, never_ended)]),
        dict(_compute_means_by_queue(trace, job_outcomes)),
        dict(sorted(never_ended.items())),
        tuple(completion_times[(len(completion_times) - 1) * part // 20] for part in range(21)),
    )


def count_gpus(trace_job: TraceJob) -> int:
    """Devices a job holds at its declared width."""
    return sum(role.ask.gpus * role.count for role in trace_job.job.shape.roles)


def _compute_means_by_queue(
    trace: Trace, job_outcomes: Sequence[JobOutcome], never_ended: Mapping[str, int] | None = None
) -> list[tuple[str, float]]:
    """By queue the mean time that jobs took; or, given how many never ended, the mean part of it that was work."""
    work = {trace_job.job.id: trace_job.work_s for trace_job in trace.loads}
    values_by_queue: dict[str, list[float]] = {queue: [0.0] * count for queue, count in (never_ended or {}).items()}
    for job_outcome in job_outcomes:
        completion_s = job_outcome.ended - job_outcome.submitted
        part = completion_s if never_ended is None else max(1.0, work[job_outcome.job]) / max(1.0, completion_s)
        values_by_queue.setdefault(job_outcome.queue, []).append(part)
    return [(queue, sum(values) / len(values)) for queue, values in sorted(values_by_queue.items())]


def _compute_jain_index(values: Sequence[float]) -> float:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
