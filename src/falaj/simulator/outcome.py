"""What came out of a simulation, in the numbers that papers and platform teams compare."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    never: Mapping[str, int] = field(default_factory=dict)
    """By queue, how many jobs never ended: times are of the others, and fairness counts these as nothing done."""
    spread: tuple[float, ...] = ()
    """Completion times from the shortest to the longest, in twentieths of all that ended."""


def measure(policy: str, trace: Trace, fates: Sequence[Fate]) -> Outcome:
    """The numbers of a run."""
    over = {fate.job for fate in fates}
    never = Counter(load.whose or load.job.queue for load in trace.loads if load.job.id not in over)
    jct = sorted(fate.ended - fate.submitted for fate in fates) or [0.0]
    waits = [fate.started - fate.submitted for fate in fates] or [0.0]
    start = min((fate.submitted for fate in fates), default=0)
    end = max((fate.ended for fate in fates), default=0.0)
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
        _jain([slowdown for _, slowdown in _by_queue(trace, fates, never)]),
        dict(_by_queue(trace, fates)),
        dict(sorted(never.items())),
        tuple(jct[(len(jct) - 1) * part // 20] for part in range(21)),
    )


def gpus_of(load: Load) -> int:
    """Devices a job holds at its declared width."""
    return sum(role.ask.gpus * role.count for role in load.job.shape.roles)


def _by_queue(trace: Trace, fates: Sequence[Fate], never: Mapping[str, int] | None = None) -> list[tuple[str, float]]:
    """By queue the mean time that jobs took; or, given how many never ended, the mean part of it that was work."""
    work = {load.job.id: load.work_s for load in trace.loads}
    found: dict[str, list[float]] = {queue: [0.0] * count for queue, count in (never or {}).items()}
    for fate in fates:
        took = fate.ended - fate.submitted
        part = took if never is None else max(1.0, work[fate.job]) / max(1.0, took)
        found.setdefault(fate.queue, []).append(part)
    return [(queue, sum(values) / len(values)) for queue, values in sorted(found.items())]


def _jain(values: Sequence[float]) -> float:
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
