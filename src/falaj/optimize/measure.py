"""How fast variants are, side by side: all take turns in every round, so a busy machine is busy for all of them."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.optimize.parity import Ask
from falaj.optimize.records import Plan
from falaj.optimize.strangers import guarded

BATCHES = (1, 8, 32, 128)
_LONG_NS = 100_000_000
"""A batch that takes longer is not tried with more rows."""
_MOST_CALLS = 1000


class Times(NamedTuple):
    """What was measured of one variant, in microseconds."""

    p50_us: float
    p95_us: float
    cpu_us: float
    row_cpu_us: float
    rows_s: float
    batch: int

    @property
    def cost(self) -> float:
        """CPU time of a row, alone and in the best batch, as their geometric mean."""
        return math.sqrt(self.cpu_us * self.row_cpu_us)


def measure(asks: Mapping[str, Ask], inputs: Sequence[NDArray[Any]], plan: Plan, *, grows: bool) -> dict[str, Times]:
    """Time every variant in interleaved rounds. `grows`: they take batches of any size."""
    sizes = BATCHES if grows else (len(inputs[0]),)
    given = {size: [np.resize(one, (size, *one.shape[1:])) for one in inputs] for size in sizes}
    calls = {(name, size): count for name, ask in asks.items() for size, count in _warm(ask, given, plan)}
    walls: dict[tuple[str, int], list[int]] = {key: [] for key in calls}
    works: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    for _ in range(plan.rounds):
        for (name, size), count in calls.items():
            began = time.process_time_ns()
            for _ in range(count):
                at = time.perf_counter_ns()
                asks[name](given[size])
                walls[name, size].append(time.perf_counter_ns() - at)
            works[name, size].append((time.process_time_ns() - began) / count)
    return {name: _summed(name, walls, works, threads=plan.threads) for name in asks}


def footprints(files: Mapping[str, tuple[Path, int]], plan: Plan) -> dict[str, int]:
    """Bytes that loading and running each model (with so many rows) takes at the most; 0 where it cannot be seen."""
    words = [word for file, batch in files.values() for word in (str(batch), str(file))]
    done = subprocess.run(  # noqa: S603  # nosec B603 - our own module
        [sys.executable, "-P", "-m", "falaj.optimize.footprint", str(plan.threads), plan.aim, *words],
        env=dict(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [int(line) for line in done.stdout.split() if line.isdigit()]
    return dict(zip(files, found, strict=True)) if len(found) == len(files) else dict.fromkeys(files, 0)


def _warm(ask: Ask, given: Mapping[int, Sequence[NDArray[Any]]], plan: Plan) -> list[tuple[int, int]]:
    """How many calls of each size make a round; a size that takes too long is left out."""
    found = []
    for size, arrays in given.items():
        with guarded(f"running {size} rows"):
            ask(arrays)
            began = time.perf_counter_ns()
            ask(arrays)
            took = max(1, time.perf_counter_ns() - began)
        found.append((size, max(1, min(_MOST_CALLS, int(plan.round_ms * 1e6 / took)))))
        if took > _LONG_NS:
            break
    return found


def _summed(
    name: str, walls: Mapping[tuple[str, int], list[int]], works: Mapping[tuple[str, int], list[float]], *, threads: int
) -> Times:
    """Of one thread CPU time counts, which neighbours cannot lengthen; of several, the time that passed."""
    sizes = [size for one, size in walls if one == name]
    wall = {size: float(np.median(walls[name, size])) / 1e3 for size in sizes}
    cost = {size: float(np.median(works[name, size])) / 1e3 for size in sizes} if threads == 1 else wall
    best = min(sizes, key=lambda size: cost[size] / size)
    one = sizes[0]
    return Times(
        round(wall[one], 1),
        round(float(np.percentile(walls[name, one], 95)) / 1e3, 1),
        round(cost[one], 1),
        round(cost[best] / best, 2),
        round(best / wall[best] * 1e6, 1),
        best,
    )
