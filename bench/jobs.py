"""Scheduling: how fast it decides, how well it decides, and what running a job costs beside starting a process.

Run by `make bench NAME=jobs`; `python bench/jobs.py decide` (or place, simulate, process) runs one part. The limit of
`process` is `subprocess.Popen` with the same number of durable ledger writes, in the same run. Published figures of
others are quoted with their bars. Python looks for garbage as seldom as in the platform; what is measured in a process
of its own is the median of ROUNDS. A table for people, then one last line of JSON with every bar. NODES, JOBS, ROUNDS
and SEEDS make it smaller.
"""

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from falaj.core.garbage_collection import throttle_garbage_collector
from falaj.schedule.model import Job, JobShape, Queue, Role, SchedulerSnapshot, SlotRequest
from falaj.schedule.scheduler import Scheduler
from falaj.simulator.baseline_policies import replan_trace
from falaj.simulator.replay_engine import ReplayEngine
from falaj.simulator.trace import TraceJob, build_trace, make_nodes, read_muri, split_into_slots, without_step_counts

NODES = int(os.environ.get("NODES", "10000"))
JOBS = int(os.environ.get("JOBS", "100000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SEEDS = int(os.environ.get("SEEDS", "3"))
TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
BARS: dict[str, dict[str, Any]] = {}
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def main() -> None:
    """The parts that were named, or all of them."""
    parts: dict[str, Callable[[], None]] = {
        "decide": decide,
        "place": place,
        "simulate": simulate,
        "process": process,
    }
    for name in sys.argv[1:] or parts:
        print(f"\n{name}", flush=True)
        with throttle_garbage_collector():
            parts[name]()
    print(json.dumps({"bench": "jobs", "bars": BARS}))


# how fast it decides


def decide() -> None:
    """Admissions, events, shares, rebuilding, memory; and how they grow."""
    sizes = [count for count in (100, 1000, 10_000) if count < NODES] + [NODES]
    found = {count: _measured(count) for count in sizes}
    keys = ("admissions_per_s", "event_p99_ms", "share_ms", "rebuild_s", "memory_mb")
    print(f"  {'nodes':>8}" + "".join(f"{key:>20}" for key in keys))
    for count, row in found.items():
        print(f"  {count:>8}" + "".join(f"{row[key]:>20,.2f}" for key in keys), flush=True)
    last = found[sizes[-1]]
    bar("admissions_per_s", last["admissions_per_s"], 2000, at_least=True, note="Kueue 43/s, Slurm 500/s published")
    bar("event_to_decision_p99_ms", last["event_p99_ms"], 100, at_least=False)
    bar("share_recompute_ms", last["share_ms"], 10, at_least=False)
    bar("cold_rebuild_s", last["rebuild_s"], 5, at_least=False)
    bar("memory_mb", last["memory_mb"], 2000, at_least=False)


def _measured(count: int) -> dict[str, float]:
    """The medians of some rounds."""
    rounds = [_measured_once(count) for _ in range(ROUNDS)]
    return {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}


def _measured_once(count: int) -> dict[str, float]:
    """In a process of its own: memory is the peak of this size and no other."""
    code = f"import sys; sys.path.insert(0, 'bench'); import jobs\nwith jobs.seldom(): jobs._decide_once({count})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _decide_once(count: int) -> None:
    rng = random.Random(7)
    snapshot = crowd(count, max(100, JOBS * count // 10_000), rng)
    began = time.perf_counter()
    scheduler = Scheduler(snapshot)
    rebuild = time.perf_counter() - began
    starts, began = 0, time.process_time()
    while plan := scheduler.cycle(snapshot.now, 1000).starts:
        starts += len(plan)
    admission = starts / (time.process_time() - began)
    waits = []
    running = list(scheduler.running)
    for number in range(min(300, len(running))):
        began = time.perf_counter()
        for job in rng.sample(running, k=1):
            scheduler.end(job)
            running.remove(job)
        scheduler.cycle(snapshot.now + number, 1000)
        waits.append(time.perf_counter() - began)
    demand = np.full((len(scheduler.tree.queues), len(scheduler.tree.quotas)), 50_000, np.int64)
    shares = []
    for _ in range(9):
        began = time.perf_counter()
        scheduler.tree.deserved(demand)
        shares.append(time.perf_counter() - began)
    row = {
        "admissions_per_s": admission,
        "event_p99_ms": 1000 * sorted(waits)[int(0.99 * len(waits))],
        "share_ms": 1000 * statistics.median(shares),
        "rebuild_s": rebuild,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(row))


def crowd(nodes: int, jobs: int, rng: random.Random) -> SchedulerSnapshot:
    """Nodes of 8 GPUs, a tree of 1,000 leaves below 20 teams, jobs of 200 shapes."""
    leaves = max(10, nodes // 10)
    queues = [
        Queue("root"),
        *(Queue(f"root/t{n}", weight=1 + n % 3, guarantee={"gpu": 1000 * nodes // 10}) for n in range(20)),
    ]
    queues += [Queue(f"root/t{n % 20}/p{n}", weight=1 + n % 5) for n in range(leaves)]
    shapes = [_shape(number) for number in range(200)]
    waiting = tuple(
        Job(
            f"job-{n:06}",
            queues[21 + rng.randrange(leaves)].name,
            rng.choice(shapes),
            rng.randrange(86_400),
            template=f"u{n % 300}/t{n % 7}",
            limit_s=rng.choice((0, 3600, 86_400)),
        )
        for n in range(jobs)
    )
    return SchedulerSnapshot(90_000, make_nodes(nodes, 8), tuple(queues), waiting)


def _shape(number: int) -> JobShape:
    gpus, cpus = (1, 1, 1, 2, 4, 8)[number % 6], 1000 * (1 + number % 11)
    ask = SlotRequest((("cpu", cpus), ("memory", 1024 * (1 + number % 5))), gpus=gpus)
    return JobShape((Role("worker", ask, (1, 1, 1, 2, 4)[number % 5]),), band=2 if number % 9 else 3)


# how well it decides


def place() -> None:
    """Allocation on the openb traces, against FGD's published figures."""
    from tests.schedule import openb

    for pods in openb.pod_lists():
        published = openb.PUBLISHED[pods]
        percents = [openb.replay(pods, seed, openb.ours) for seed in range(42, 42 + SEEDS)]
        note = f"FGD published {published}"
        bar(f"openb_{pods}_percent", statistics.mean(percents), published, at_least=True, note=note)


def simulate() -> None:
    """Completion times on the Muri traces, and 82,247 jobs on 10,000 nodes."""
    for name, policy, published in (
        ("trace1", "srtf", 1_370_603),
        ("trace1", "srsf", 980_141),
        ("trace3", "srtf", 193_082),
        ("trace3", "srsf", 185_022),
    ):
        jct = replan_trace(read_muri(TRACES / "muri" / f"{name}.csv"), policy).jct_mean
        bar(f"{name}_{policy}_off_percent", 100 * abs(jct / published - 1), 1.5, at_least=False, note=f"{jct:,.0f} s")
    for name, themis in (("trace1", 1_823_179), ("trace3", 397_059)):
        ours = ReplayEngine(read_muri(TRACES / "muri" / f"{name}.csv")).run()
        note = f"{ours.jct_mean:,.0f} s, {ours.evictions} evictions; Themis {themis:,} s"
        bar(f"{name}_of_themis", ours.jct_mean / themis, 1.0, at_least=False, note=note)
        if name == "trace3":
            bar("trace3_of_srsf", ours.jct_mean / 185_022, 1.25, at_least=False)
        trace = read_muri(TRACES / "muri" / f"{name}.csv")
        blind = ReplayEngine(without_step_counts(trace)).run()
        note = f"{blind.jct_mean:,.0f} s, {blind.evictions} evictions, no step counts declared"
        bar(f"{name}_undeclared_of_themis", blind.jct_mean / themis, 1.0, at_least=False, note=note)
        tail = replan_trace(trace, "srtf").jct_p99
        bar(f"{name}_undeclared_p99_of_srtf", blind.jct_p99 / tail, 1.1, at_least=False, note=f"{blind.jct_p99:,.0f} s")
    engine, began = ReplayEngine(months(82_247 * NODES // 10_000, NODES)), time.perf_counter()
    outcome = engine.run()
    took = time.perf_counter() - began
    bar("simulate_82k_s", took, 60, at_least=False, note=f"{engine.cycles:,} cycles, used {outcome.used:.0%}")


def months(jobs: int, nodes: int) -> Any:
    """A trace as large clusters have them: ten weeks, a daily wave, most jobs small and short, a heavy tail."""
    rng = random.Random(11)
    queues = (Queue("root"), *(Queue(f"root/vc{n}") for n in range(14)))
    loads = []
    for number in range(jobs):
        day, hour = rng.randrange(75), min(23.99, max(0.0, rng.gauss(14, 5)))
        gpus = rng.choices((1, 2, 4, 8, 16, 32, 64), (70, 8, 8, 9, 3, 1.5, 0.5))[0]
        seconds = min(30 * 86_400, rng.lognormvariate(7.5, 2.2)) + 10
        user = rng.randrange(319)
        job = Job(
            f"job-{number:06}",
            f"root/vc{user % 14}",
            JobShape(split_into_slots(gpus, 8)),
            int(day * 86_400 + hour * 3600),
            template=f"u{user}/t{rng.randrange(8)}",
            resumes=True,
            restart_s=30,
        )
        loads.append(TraceJob(job, seconds))
    return build_trace(make_nodes(nodes, 8), queues, loads)


# what a job costs


def process() -> None:
    """Submit to running on this machine, and the scheduler's own part of a core while short jobs drain."""
    import jobs_process  # the platform is needed for this part only

    jobs_process.measure(bar, ROUNDS)


def bar(name: str, value: float, limit: float, *, at_least: bool, note: str = "") -> None:
    """Note one bar: its value, its limit, and what else is worth knowing."""
    ok = value >= limit if at_least else value <= limit
    BARS[name] = {"value": round(value, 4), "bar": limit, "ok": bool(ok)}
    verdict = f"{value:,.2f} ({'≥' if at_least else '≤'} {limit:,.2f}) {'ok' if ok else 'MISSED'}"
    print(f"  {name:<28} {verdict:<44} {note}", flush=True)


if __name__ == "__main__":
    main()
