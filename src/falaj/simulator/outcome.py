"""What came out of a simulation, in the numbers that papers and platform teams compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from falaj.simulator.trace import Load, Trace


@dataclass(frozen=True, slots=True)
class Fate:
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
class Outcome:
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


def measure(policy: str, trace: Trace, fates: Sequence[Fate]) -> Outcome:
    """The numbers of a run."""
    jct = sorted(fate.ended - fate.submitted for fate in fates)
    waits = [fate.started - fate.submitted for fate in fates]
    start = min(fate.submitted for fate in fates)
    end = max(fate.ended for fate in fates)
    held = sum(fate.ran_s * fate.gpus for fate in fates)
    return Outcome(
        policy,
        len(fates),
        sum(jct) / len(jct),
        jct[len(jct) // 2],
        jct[int(0.99 * len(jct))],
        sum(waits) / len(waits),
        end - start,
        held / max(1.0, trace.gpus * (end - start)),
        sum(fate.evictions for fate in fates),
        _jain([slowdown for _, slowdown in _by_queue(trace, fates, slow=True)]),
        dict(_by_queue(trace, fates, slow=False)),
    )


def gpus_of(load: Load) -> int:
    """Devices a job holds at its declared width."""
    return sum(role.ask.gpus * role.count for role in load.job.shape.roles)


def _by_queue(trace: Trace, fates: Sequence[Fate], *, slow: bool) -> list[tuple[str, float]]:
    work = {load.job.id: load.work_s for load in trace.loads}
    found: dict[str, list[float]] = {}
    for fate in fates:
        took = fate.ended - fate.submitted
        found.setdefault(fate.queue, []).append(max(1.0, work[fate.job]) / max(1.0, took) if slow else took)
    return [(queue, sum(values) / len(values)) for queue, values in sorted(found.items())]


def _jain(values: Sequence[float]) -> float:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
