"""What a step of a flow costs beside the same job submitted by hand: CPU and wall time, on a real house.

Run by `make bench NAME=flow_cost`. By hand: a job is asked for, waited for, and then the next one, as a script does it
that goes through steps one after the other. The flow: the same program as so many steps that each take what the one
before gave. Both wait on commits and not on a clock. CPU is that of the platform's process and, measured apart, that of
the process of a step. Medians over rounds that measure both sides in turn. A table, then one line of JSON. STEPS and
ROUNDS make it smaller.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from scratch import folder

import falaj
from falaj.core.ref import Ref

STEPS = int(os.environ.get("STEPS", "20"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
TINY = {"roles": [{"name": "worker", "cpus": 0.1, "memory": "16MiB"}]}
FLOW = """
from falaj import flow, step

@step(cpus=0.1, memory="16MiB", cache=False)
def nothing(before=0):
    return before + 1

@flow("bench/line")
def line():
    before = 0
    for _ in range({steps}):
        before = nothing(before)
"""
HAND = "import json, os\nprint(json.loads(os.environ['FALAJ_PARAM_N']) + 1)\n"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Cost(NamedTuple):
    """Of one step, in milliseconds."""

    cpu: float
    wall: float


class Bench:
    """A house at work, and whoever waits in it for what it does."""

    def __init__(self, home: Path, here: Any) -> None:
        self.home, self.here = home, here
        self._news = threading.Event()
        here.house.ledger.on_commit(self._news.set)
        for name, text in (("hand/hand.py", HAND), ("flow/line.py", FLOW.format(steps=STEPS))):
            (home / name).parent.mkdir()
            (home / name).write_text(text)
        self._code = here.catalog.publish("code:bench/hand", str(home / "hand")).ref

    def until_over(self, ref: Ref) -> Any:
        """The record of a job or a run, once it is over."""
        house = self.here.house
        while True:
            self._news.clear()
            with house.ledger.read(house.system()) as tx:
                body = tx.need(ref).body
            if body["state"] in ("succeeded", "failed", "cancelled"):
                assert body["state"] == "succeeded", body["note"]
                return body
            self._news.wait(1.0)

    def by_hand(self, number: int) -> None:
        """One job after the other."""
        for step in range(STEPS):
            spec = {"command": ["python", "hand.py"], "env": {"FALAJ_PARAM_N": str(step)}, **TINY}
            job = self.here.jobs.add(f"job:bench/hand-{number}-{step}", spec=spec, code=self._code)
            self.until_over(job.ref)

    def as_flow(self, number: int) -> None:
        """The same as steps."""
        run = self.here.flows.start("flow:bench/line", cause=str(number))
        body = self.until_over(run.ref)
        assert body["steps"][body["order"][-1]]["items"][0]["value"] == STEPS

    def measured(self, work: Callable[[int], None], number: int) -> Cost:
        """What one step of this costs the platform."""
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        work(number)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Cost(1000 * cpu / STEPS, 1000 * wall / STEPS)


def process_ms(command: list[str], home: Path, **env: str) -> float:
    """CPU of the process of one step, alone."""
    found = []
    for _ in range(ROUNDS + 2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, cwd=home, env={**os.environ, **env}, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return statistics.median(found)


def main() -> None:
    """Both sides, round by round."""
    # What git ignores would not be kept as code: programs lie outside the repository.
    with folder() as place, tempfile.TemporaryDirectory() as other, falaj.connect(str(place / "house")) as here:
        home = Path(other)
        bench = Bench(home, here)
        here.flows.save(str(home / "flow" / "line.py"))
        hand, flow = [], []
        with here.working():
            bench.measured(bench.by_hand, -1)
            bench.measured(bench.as_flow, -1)
            for number in range(ROUNDS):
                hand.append(bench.measured(bench.by_hand, number))
                flow.append(bench.measured(bench.as_flow, number))
        told = json.dumps({"entry": "line.py:nothing", "args": {"before": 0}})
        outbox = {"FALAJ_OUTBOX": str(home / "outbox"), "FALAJ_PARAM_STEP": told}
        step_ms = process_ms(["-m", "falaj.worker.step_runner"], home / "flow", **outbox)
        bare_ms = process_ms(["hand.py"], home / "hand", FALAJ_PARAM_N="1")
    ours, theirs = (Cost(*map(statistics.median, zip(*side, strict=True))) for side in (flow, hand))
    rows = {
        "flow_platform_cpu_of_hand": (ours.cpu, theirs.cpu),
        "flow_whole_cpu_of_hand": (ours.cpu + step_ms, theirs.cpu + bare_ms),
        "flow_wall_of_hand": (ours.wall, theirs.wall),
    }
    bars = {
        name: {"value": round(one / other, 3), "bar": 2, "ok": one <= 2 * other} for name, (one, other) in rows.items()
    }
    for name, (one, other) in rows.items():
        word = "ok" if bars[name]["ok"] else "MISSED"
        print(f"  {name:<28} {one / other:5.2f} (≤ 2) {word:<8} {one:7.1f} ms a step; by hand {other:7.1f} ms")
    print(f"  the process of a step {step_ms:.0f} ms of CPU, of a script {bare_ms:.0f} ms")
    print(json.dumps({"bench": "flow_cost", "bars": bars}))


if __name__ == "__main__":
    main()
