"""What a job costs on this machine: a part of bench/jobs.py, in a file of its own because it needs the platform."""

import os
import statistics
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scratch import folder

import falaj
from falaj.core.ref import Ref

SHORT = int(os.environ.get("SHORT", "1000"))
WRITES = 3
"""A job that starts is written down when it is asked for, when it is given its place, and when it runs."""
PARTS = {
    "falaj-loop-jobs": "scheduling: deciding, and writing it down",
    "falaj-crew": "executor: launching, watching, what attempts say",
    "falaj-hands": "files of attempts",
    "falaj-loop": "loops of other rooms",
    "MainThread": "the bench's own questions",
}
"""What threads do, by how their names begin; the first that fits."""
TINY = {"roles": [{"name": "worker", "cpus": 0.1, "memory": "16MiB"}]}


def measure(bar: Callable[..., None], rounds: int) -> None:
    """The bars. Of a drain: what the scheduler takes of a core, and the whole platform with its executor."""
    with folder() as home, falaj.connect(str(home / "house")) as here:
        with here.working():
            _wait_for_nodes(here)
            ours, bare = [], []
            for number in range(10 * rounds):
                ours.append(_submit_to_running(here, home, number))
                bare.append(_written_and_started(here, home, number))
        ratio = statistics.median(ours) / statistics.median(bare)
        note = f"{1000 * statistics.median(ours):.1f} ms; bare {1000 * statistics.median(bare):.1f} ms"
        bar("submit_to_running_of_bare", ratio, 3, at_least=False, note=note)
    with folder() as home, falaj.connect(str(home / "house")) as here:
        part, seconds, parts = _drain(here)
        for name, spent in parts.most_common():
            print(f"    {1000 * spent / SHORT:6.2f} ms of CPU a job, {100 * spent / seconds:4.1f} % of a core: {name}")
        note = f"{SHORT} jobs in {seconds:.0f} s, {1000 * part * seconds / SHORT:.1f} ms of CPU a job"
        scheduler = parts[PARTS["falaj-loop-jobs"]] / seconds
        bar(
            "drain_scheduler_core_percent", 100 * scheduler, 20, at_least=False, note="the loop that decides and writes"
        )
        bar("drain_core_percent", 100 * part, 20, at_least=False, note=note)


def _wait_for_nodes(here: Any) -> None:
    end = time.monotonic() + 60
    while not here.clusters.nodes() and time.monotonic() < end:
        time.sleep(0.05)


def _command(mark: Path) -> list[str]:
    return ["/bin/sh", "-c", f"date +%s.%N > {mark}.new && mv {mark}.new {mark}"]


def _when(mark: Path) -> float:
    end = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < end:
        time.sleep(0.001)
    return float(mark.read_text())


def _submit_to_running(here: Any, home: Path, number: int) -> float:
    mark = home / f"ours-{number}"
    began = time.time()
    job = here.jobs.add(f"job:bench/j{number}", spec={"command": _command(mark), **TINY})
    took = _when(mark) - began
    here.jobs.wait((job.ref,))
    return took


def _written_and_started(here: Any, home: Path, number: int) -> float:
    mark = home / f"bare-{number}"
    house, ctx = here.house, here.house.system()
    began = time.time()
    for write in range(WRITES):
        with house.ledger.write(ctx) as tx:
            record = tx.put(Ref("note", "bench", f"n{number}-{write}"), {"text": "as much as a job has to say " * 20})
            tx.emit("bench.note", record.ref)
    with subprocess.Popen(_command(mark)):
        return _when(mark) - began


def _drain(here: Any) -> tuple[float, float, Counter[str]]:
    """The platform's own part of a core while short jobs run, how long they took, and which threads used how much."""
    for number in range(SHORT):
        here.jobs.add(f"job:bench/s{number}", spec={"command": ["/bin/true"], **TINY})
    with here.working():
        began, cpu, before = time.perf_counter(), time.process_time(), _by_part()
        while any(page.jobs for page in (here.jobs.list(state=s, limit=1) for s in ("waiting", "starting", "running"))):
            time.sleep(1.0)
        used, seconds = time.process_time() - cpu, time.perf_counter() - began
        parts = _by_part()
        parts.subtract(before)
        parts["threads that have ended, and the rest"] = used - parts.total()
        return used / seconds, seconds, parts


def _by_part() -> Counter[str]:
    """Seconds of CPU that the threads there are now have used."""
    found: Counter[str] = Counter()
    for thread in threading.enumerate():
        names = [what for start, what in PARTS.items() if thread.name.startswith(start)]
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        found[names[0] if names else "other threads"] += time.clock_gettime(clock)
    return found
