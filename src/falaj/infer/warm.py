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
from falaj.core.sheet import Sheet, TensorSpec
from falaj.infer.curve import SURE, Curve
from falaj.infer.records import Runtime
from falaj.oip.tensors import NUMPY, SIZES

BUDGET_S = 0.05
"""Of measuring; a slow model's curve is found as it goes."""
MOST_BYTES = 64 << 20
"""Of one made-up batch."""
ANY_SIZE = 16
TIMES = 3
TEXT_BYTES = 16
"""What an element of BYTES counts for."""


def warm_up(runtime: Runtime, sheet: Sheet, curve: Curve | None, clock: Callable[[], float]) -> float:
    """How long a run of one row takes; 0 when the model does not take what we make up. Fills the curve, where given,
    with what the clock says."""
    try:
        took_s, cost_s = _fastest(runtime, sheet, 1, clock)
    except (FalajError, ValueError):
        return 0.0
    if curve is None:
        return took_s
    until, rows, best, worse, unit = monotonic() + BUDGET_S, 1, 0.0, 0, _unit(runtime, sheet)
    while rows <= curve.most and rows * unit <= MOST_BYTES and worse < 2:
        try:
            seconds, cost_s = (took_s, cost_s) if rows == 1 else _fastest(runtime, sheet, rows, clock)
        except FalajError:  # memory says no
            curve.most = max(1, rows // 2)
            break
        curve.note(rows, unit, cost_s, SURE if seconds < BUDGET_S / 10 else 1)
        better = not best or cost_s / rows < best * 0.95
        best, worse = (cost_s / rows, 0) if better else (best, worse + 1)
        if monotonic() + 2 * seconds > until:
            break
        rows *= 2
    curve.decide()
    return took_s


def made_up(spec: TensorSpec, sheet: Sheet, rows: int) -> Any:
    """Something like what the model takes."""
    said = [int(one) for one in sheet.parameters.get(f"warm.{spec.name}", "").split(",") if one.strip().isdigit()]
    trailing = tuple(said) or tuple(ANY_SIZE if one < 0 else one for one in spec.shape[1:])
    first = rows if not spec.shape or spec.shape[0] < 0 else spec.shape[0]
    shape = (first, *trailing) if spec.shape else ()
    if spec.datatype == "BYTES":
        return np.full(shape, b"", object)
    if spec.datatype.startswith("FP"):
        return np.sin(np.arange(prod(shape))).reshape(shape).astype(NUMPY[spec.datatype])
    return (np.arange(prod(shape)) % 2).reshape(shape).astype(NUMPY.get(spec.datatype, "<u2"))


def _fastest(runtime: Runtime, sheet: Sheet, rows: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Of a few runs, by both clocks. A slow one is run once, but for the first size: first runs are slower."""
    inputs = [made_up(spec, sheet, rows) for spec in runtime.inputs]
    best, cheapest = inf, inf
    for done in range(TIMES):
        began, cost = monotonic(), clock()
        runtime.run(inputs, {})
        cost, took = clock() - cost, monotonic() - began
        best, cheapest = min(best, took), min(cheapest, cost)
        if took > BUDGET_S / 10 and (rows > 1 or done):
            break
    return best, max(cheapest, 1e-9)


def _unit(runtime: Runtime, sheet: Sheet) -> int:
    return max(1, sum(SIZES.get(one.datatype, TEXT_BYTES) * int(made_up(one, sheet, 1).size) for one in runtime.inputs))
