"""Policies that papers publish: at every arrival and end all jobs are planned anew, in one order, first fit.

They know what no platform knows (the oracles `srtf` and `srsf`), or nothing (`fifo`, `las`); they stand here to be
compared with. A job of at most a node's devices (cores, where there are none) sits in one node; a larger one takes
whole free nodes; what else a job asks for, queues and clusters they do not know. Moving costs the restart.
"""

from collections.abc import Callable
from dataclasses import dataclass

from falaj.schedule.model import CPU, MILLI_PER_UNIT
from falaj.simulator.outcome import JobOutcome, SimulationOutcome, count_gpus, measure_outcome
from falaj.simulator.trace import Trace, TraceJob


@dataclass(slots=True)
class ReplannedJob:
    """A job on its way."""

    load: TraceJob
    size: int
    """Thousandths of devices, or of cores."""
    left: float
    debt: float = 0.0
    """What is left to pay of a restart."""
    ran: float = 0.0
    started: float = -1.0
    moved: int = 0


PriorityKey = Callable[[ReplannedJob], tuple[float, ...]]
POLICIES: dict[str, PriorityKey] = {
    "fifo": lambda simulated: (simulated.load.job.submitted,),
    "srtf": lambda simulated: (simulated.left,),
    "srsf": lambda simulated: (simulated.left * simulated.size,),
    "las": lambda simulated: (simulated.ran * simulated.size,),
}


def replan_trace(trace: Trace, policy: str) -> SimulationOutcome:
    """Run a trace under one of POLICIES."""
    priority_key, has_devices = POLICIES[policy], trace.gpus > 0
    node_sizes = [
        len(node.devices) * MILLI_PER_UNIT if has_devices else node.amounts.get(CPU, 0) for node in trace.nodes
    ]
    arrivals = [
        ReplannedJob(trace_job, _compute_job_size(trace_job, has_devices), trace_job.work_s)
        for trace_job in trace.loads
    ][::-1]
    active: list[ReplannedJob] = []
    running: list[ReplannedJob] = []
    job_outcomes: list[JobOutcome] = []
    now = 0.0
    while arrivals or active:
        end = min((now + simulated.debt + simulated.left for simulated in running), default=float("inf"))
        arrival = arrivals[-1].load.job.submitted if arrivals else float("inf")
        now = _advance_jobs(running, now, min(end, arrival))
        while arrivals and arrivals[-1].load.job.submitted <= now:
            active.append(arrivals.pop())
        job_outcomes += [_to_outcome(simulated, now) for simulated in running if simulated.left <= 1e-6]
        active = sorted((simulated for simulated in active if simulated.left > 1e-6), key=priority_key)
        chosen = _fit_jobs(active, node_sizes)
        _start_jobs(chosen, running, now)
        running = chosen
        if not running and not arrivals:
            break  # what is left fits nowhere
    return measure_outcome(policy, trace, job_outcomes)


def _advance_jobs(running: list[ReplannedJob], now: float, until: float) -> float:
    for simulated in running:
        passed_s = until - now
        paid_s = min(simulated.debt, passed_s)
        simulated.debt -= paid_s
        simulated.left -= passed_s - paid_s
        simulated.ran += passed_s
    return until


def _compute_job_size(trace_job: TraceJob, has_devices: bool) -> int:
    requests = [(role.count, role.ask) for role in trace_job.job.shape.roles]
    if has_devices:
        return sum(count * (request.gpus * MILLI_PER_UNIT + request.milli) for count, request in requests)
    return sum(count * dict(request.amounts).get(CPU, 0) for count, request in requests)


def _fit_jobs(active: list[ReplannedJob], node_sizes: list[int]) -> list[ReplannedJob]:
    free, idle, chosen, largest = list(node_sizes), sum(node_sizes), list[ReplannedJob](), max(node_sizes, default=0)
    for simulated in active:
        if simulated.size > idle:
            continue
        node_numbers = list[int]()
        if simulated.size <= largest:
            node_numbers = [next((node for node, free_amount in enumerate(free) if free_amount >= simulated.size), -1)]
        else:
            missing = simulated.size
            for node, free_amount in enumerate(free):
                if missing > 0 and free_amount == node_sizes[node]:
                    node_numbers.append(node)
                    missing -= free_amount
            node_numbers = node_numbers if missing <= 0 else []
        if node_numbers and node_numbers[0] >= 0:
            for node_number in node_numbers:
                taken_amount = min(simulated.size, free[node_number])
                free[node_number] -= taken_amount
                idle -= taken_amount
            chosen.append(simulated)
    return chosen


def _start_jobs(chosen: list[ReplannedJob], running_before: list[ReplannedJob], now: float) -> None:
    running_ids = {id(simulated) for simulated in running_before}
    for simulated in chosen:
        if id(simulated) not in running_ids:
            simulated.debt = simulated.load.job.restart_s
            simulated.moved += simulated.started >= 0
            simulated.started = now if simulated.started < 0 else simulated.started


def _to_outcome(simulated: ReplannedJob, now: float) -> JobOutcome:
    job = simulated.load.job
    counted_for = simulated.load.whose or job.queue
    return JobOutcome(
        job.id,
        counted_for,
        job.submitted,
        simulated.started,
        now,
        simulated.ran,
        simulated.moved,
        count_gpus(simulated.load),
    )
