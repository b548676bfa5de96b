"""The first runs of a model, before anybody asks: they cost more than the later ones, and they tell what runs cost.

Inputs are made up: small numbers, 0 and 1 for whole ones, empty texts. A model that cannot take those is
measured by what it is asked later. A size of an input that varies is 16 unless the sheet says another: parameters
`warm.<input>` = "32" or "3,224,224" (the sizes behind the rows).
"""

from collections.abc import Callable
from math import inf, prod
from time import monotonic
from typing import Any

import numpy as np

from falaj.core.errors import FalajError
from falaj.core.model_manifest import ModelManifest, TensorSpec
from falaj.infer.cost_curve import MIN_RUNS, CostCurve
from falaj.infer.records import ModelRuntime
from falaj.oip.tensors import DATATYPE_BYTES, NUMPY_TYPES

MEASURE_BUDGET_S = 0.05
"""Of measuring; a slow model's curve is found as it goes."""
MAX_SAMPLE_BYTES = 64 << 20
"""Of one made-up batch."""
DEFAULT_DIMENSION = 16
RUNS_PER_SIZE = 3
TEXT_ELEMENT_BYTES = 16
"""What an element of BYTES counts for."""


def warm_up_runtime(
    runtime: ModelRuntime, manifest: ModelManifest, curve: CostCurve | None, clock: Callable[[], float]
) -> float:
    """How long a run of one row takes; 0 when the model does not take what we make up. Fills the curve, where given,
    with what the clock says."""
    try:
        took_s, cost_s = _measure_fastest(runtime, manifest, 1, clock)
    except (FalajError, ValueError):
        return 0.0
    if curve is None:
        return took_s
    measure_until, rows, best_cost, worse_count, row_size = (
        monotonic() + MEASURE_BUDGET_S,
        1,
        0.0,
        0,
        _row_size(runtime, manifest),
    )
    while rows <= curve.most and rows * row_size <= MAX_SAMPLE_BYTES and worse_count < 2:
        try:
            seconds, cost_s = (took_s, cost_s) if rows == 1 else _measure_fastest(runtime, manifest, rows, clock)
        except FalajError:  # memory says no
            curve.most = max(1, rows // 2)
            break
        curve.note(rows, row_size, cost_s, MIN_RUNS if seconds < MEASURE_BUDGET_S / 10 else 1)
        is_better = not best_cost or cost_s / rows < best_cost * 0.95
        best_cost, worse_count = (cost_s / rows, 0) if is_better else (best_cost, worse_count + 1)
        if monotonic() + 2 * seconds > measure_until:
            break
        rows *= 2
    curve.decide()
    return took_s


def make_sample_input(spec: TensorSpec, manifest: ModelManifest, rows: int) -> Any:
    """Something like what the model takes."""
    declared_sizes = [
        int(item) for item in manifest.parameters.get(f"warm.{spec.name}", "").split(",") if item.strip().isdigit()
    ]
    trailing = tuple(declared_sizes) or tuple(DEFAULT_DIMENSION if item < 0 else item for item in spec.shape[1:])
    first_dimension = rows if not spec.shape or spec.shape[0] < 0 else spec.shape[0]
    shape = (first_dimension, *trailing) if spec.shape else ()
    if spec.datatype == "BYTES":
        return np.full(shape, b"", object)
    if spec.datatype.startswith("FP"):
        return np.sin(np.arange(prod(shape))).reshape(shape).astype(NUMPY_TYPES[spec.datatype])
    return (np.arange(prod(shape)) % 2).reshape(shape).astype(NUMPY_TYPES.get(spec.datatype, "<u2"))


def _measure_fastest(
    runtime: ModelRuntime, manifest: ModelManifest, rows: int, clock: Callable[[], float]
) -> tuple[float, float]:
    """Of a few runs, by both clocks. A slow one is run once, but for the first size: first runs are slower."""
    inputs = [make_sample_input(spec, manifest, rows) for spec in runtime.inputs]
    best_s, cheapest_s = inf, inf
    for run_number in range(RUNS_PER_SIZE):
        started_at, cost = monotonic(), clock()
        runtime.run(inputs, {})
        cost, run_s = clock() - cost, monotonic() - started_at
        best_s, cheapest_s = min(best_s, run_s), min(cheapest_s, cost)
        if run_s > MEASURE_BUDGET_S / 10 and (rows > 1 or run_number):
            break
    return best_s, max(cheapest_s, 1e-9)


def _row_size(runtime: ModelRuntime, manifest: ModelManifest) -> int:
    return max(
        1,
        sum(
            DATATYPE_BYTES.get(spec.datatype, TEXT_ELEMENT_BYTES) * int(make_sample_input(spec, manifest, 1).size)
            for spec in runtime.inputs
        ),
    )
