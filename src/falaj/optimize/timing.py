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

from falaj.optimize.parity import ArrayFunction
from falaj.optimize.records import OptimizePlan
from falaj.optimize.untrusted_code import wrap_user_errors

BATCH_SIZES = (1, 8, 32, 128)
_MAX_BATCH_NS = 100_000_000
"""A batch that takes longer is not tried with more rows."""
_MAX_CALLS = 1000


class VariantTimes(NamedTuple):
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


def measure_variants(
    runners: Mapping[str, ArrayFunction], inputs: Sequence[NDArray[Any]], plan: OptimizePlan, *, accepts_any_batch: bool
) -> dict[str, VariantTimes]:
    """Time every variant in interleaved rounds. `accepts_any_batch`: they take batches of any size."""
    sizes = BATCH_SIZES if accepts_any_batch else (len(inputs[0]),)
    inputs_by_size = {size: [np.resize(values, (size, *values.shape[1:])) for values in inputs] for size in sizes}
    calls = {
        (name, size): count
        for name, run_arrays in runners.items()
        for size, count in _plan_calls(run_arrays, inputs_by_size, plan)
    }
    wall_times: dict[tuple[str, int], list[int]] = {key: [] for key in calls}
    cpu_times: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    for _ in range(plan.rounds):
        for (name, size), count in calls.items():
            started_at = time.process_time_ns()
            for _ in range(count):
                call_started_at = time.perf_counter_ns()
                runners[name](inputs_by_size[size])
                wall_times[name, size].append(time.perf_counter_ns() - call_started_at)
            cpu_times[name, size].append((time.process_time_ns() - started_at) / count)
    return {name: _summarize_times(name, wall_times, cpu_times, threads=plan.threads) for name in runners}


def measure_footprints(files: Mapping[str, tuple[Path, int]], plan: OptimizePlan) -> dict[str, int]:
    """Bytes that loading and running each model (with so many rows) takes at the most; 0 where it cannot be seen."""
    arguments = [argument for file, batch in files.values() for argument in (str(batch), str(file))]
    completed = subprocess.run(  # noqa: S603  # nosec B603 - our own module
        [sys.executable, "-P", "-m", "falaj.optimize.footprint", str(plan.threads), plan.aim, *arguments],
        env=dict(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    footprint_bytes = [int(line) for line in completed.stdout.split() if line.isdigit()]
    return (
        dict(zip(files, footprint_bytes, strict=True))
        if len(footprint_bytes) == len(files)
        else dict.fromkeys(files, 0)
    )


def _plan_calls(
    run_arrays: ArrayFunction, inputs_by_size: Mapping[int, Sequence[NDArray[Any]]], plan: OptimizePlan
) -> list[tuple[int, int]]:
    """How many calls of each size make a round; a size that takes too long is left out."""
    calls = []
    for size, arrays in inputs_by_size.items():
        with wrap_user_errors(f"running {size} rows"):
            run_arrays(arrays)
            started_at = time.perf_counter_ns()
            run_arrays(arrays)
            duration_ns = max(1, time.perf_counter_ns() - started_at)
        calls.append((size, max(1, min(_MAX_CALLS, int(plan.round_ms * 1e6 / duration_ns)))))
        if duration_ns > _MAX_BATCH_NS:
            break
    return calls


def _summarize_times(
    name: str,
    wall_times: Mapping[tuple[str, int], list[int]],
    cpu_times: Mapping[tuple[str, int], list[float]],
    *,
    threads: int,
) -> VariantTimes:
    """Of one thread CPU time counts, which neighbours cannot lengthen; of several, the time that passed."""
    sizes = [size for first, size in wall_times if first == name]
    wall = {size: float(np.median(wall_times[name, size])) / 1e3 for size in sizes}
    cost = {size: float(np.median(cpu_times[name, size])) / 1e3 for size in sizes} if threads == 1 else wall
    best_size = min(sizes, key=lambda size: cost[size] / size)
    first = sizes[0]
    return VariantTimes(
        round(wall[first], 1),
        round(float(np.percentile(wall_times[name, first], 95)) / 1e3, 1),
        round(cost[first], 1),
        round(cost[best_size] / best_size, 2),
        round(best_size / wall[best_size] * 1e6, 1),
        best_size,
    )
