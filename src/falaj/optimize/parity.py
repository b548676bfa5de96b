"""Whether two models answer the same, and where they differ most."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import CorruptData, Invalid

ArrayFunction = Callable[[Sequence[NDArray[Any]]], Sequence[NDArray[Any]]]
TOLERANCE = 1e-3
"""Of the spread of an output: what summing in another order may change, and a wrong export does not stay under."""
PARITY_BATCH_ROWS = 256


class WorstDifference(NamedTuple):
    """Where two models differ most: by how much of the output's spread, in which output, row and place."""

    error: float
    output: int
    row: int
    was: float
    now: float


def run_in_batches(
    run_arrays: ArrayFunction, inputs: Sequence[NDArray[Any]], step: int = PARITY_BATCH_ROWS
) -> list[NDArray[Any]]:
    """The answers for all rows, some at a time."""
    output_parts = [
        run_arrays([values[start : start + step] for values in inputs]) for start in range(0, len(inputs[0]), step)
    ]
    return [np.concatenate(outputs) for outputs in zip(*output_parts, strict=True)]


def find_worst_difference(
    before_outputs: Sequence[NDArray[Any]], after_outputs: Sequence[NDArray[Any]]
) -> WorstDifference:
    """Compare answers; Invalid when they are not even of one shape."""
    if [values.shape for values in before_outputs] != [values.shape for values in after_outputs]:
        shapes = f"{[values.shape for values in before_outputs]} and {[values.shape for values in after_outputs]}"
        raise Invalid(f"the two models give other shapes: {shapes[:200]}", "check what the model's code gives back")
    worst_difference = WorstDifference(0.0, 0, 0, 0.0, 0.0)
    for output_index, (before, after) in enumerate(zip(before_outputs, after_outputs, strict=True)):
        if before.dtype.kind not in "fbiu" or not before.size:
            continue
        x, y = before.astype(np.float64), after.astype(np.float64)
        is_same = (x == y) | (np.isnan(x) & np.isnan(y))
        spread = float(np.nanstd(x)) or float(np.nanmax(np.abs(x), initial=0.0)) or 1.0
        differences = np.where(is_same, 0.0, np.nan_to_num(np.abs(x - y) / spread, nan=np.inf))
        position = np.unravel_index(int(differences.argmax()), differences.shape)
        if differences[position] > worst_difference.error:
            worst_difference = WorstDifference(
                float(differences[position]),
                output_index,
                int(position[0]) if position else 0,
                float(x[position]),
                float(y[position]),
            )
    return worst_difference


def check_parity(
    original: ArrayFunction,
    exported: ArrayFunction,
    sets: Sequence[tuple[str, Sequence[NDArray[Any]]]],
    tolerance: float = TOLERANCE,
) -> WorstDifference:
    """Corrupt, naming the worst input, when the second model does not answer as the first."""
    worst_difference = WorstDifference(0.0, 0, 0, 0.0, 0.0)
    for name, inputs in sets:
        difference = find_worst_difference(run_in_batches(original, inputs), run_in_batches(exported, inputs))
        if difference.error > tolerance:
            raise CorruptData(
                f"the export answers {difference.now:.6g} where the model answers {difference.was:.6g} "
                f"(output {difference.output}, row {difference.row} of the {name})",
                f"{tolerance:g} of an output's spread is let pass; is the model random, or in training mode?",
            )
        worst_difference = max(worst_difference, difference)
    return worst_difference
