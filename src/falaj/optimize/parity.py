"""Whether two models answer the same, and where they differ most."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Corrupt, Invalid

Ask = Callable[[Sequence[NDArray[Any]]], Sequence[NDArray[Any]]]
TOLERANCE = 1e-3
"""Of the spread of an output: what summing in another order may change, and a wrong export does not stay under."""
STEP = 256


class Worst(NamedTuple):
    """Where two models differ most: by how much of the output's spread, in which output, row and place."""

    error: float
    output: int
    row: int
    was: float
    now: float


def asked(ask: Ask, inputs: Sequence[NDArray[Any]], step: int = STEP) -> list[NDArray[Any]]:
    """The answers for all rows, some at a time."""
    parts = [ask([one[at : at + step] for one in inputs]) for at in range(0, len(inputs[0]), step)]
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def worst(was: Sequence[NDArray[Any]], now: Sequence[NDArray[Any]]) -> Worst:
    """Compare answers; Invalid when they are not even of one shape."""
    if [one.shape for one in was] != [one.shape for one in now]:
        shapes = f"{[one.shape for one in was]} and {[one.shape for one in now]}"
        raise Invalid(f"the two models give other shapes: {shapes[:200]}", "check what the model's code gives back")
    found = Worst(0.0, 0, 0, 0.0, 0.0)
    for nth, (before, after) in enumerate(zip(was, now, strict=True)):
        if before.dtype.kind not in "fbiu" or not before.size:
            continue
        x, y = before.astype(np.float64), after.astype(np.float64)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        spread = float(np.nanstd(x)) or float(np.nanmax(np.abs(x), initial=0.0)) or 1.0
        apart = np.where(same, 0.0, np.nan_to_num(np.abs(x - y) / spread, nan=np.inf))
        at = np.unravel_index(int(apart.argmax()), apart.shape)
        if apart[at] > found.error:
            found = Worst(float(apart[at]), nth, int(at[0]) if at else 0, float(x[at]), float(y[at]))
    return found


def check(
    was: Ask, now: Ask, sets: Sequence[tuple[str, Sequence[NDArray[Any]]]], tolerance: float = TOLERANCE
) -> Worst:
    """Corrupt, naming the worst input, when the second model does not answer as the first."""
    last = Worst(0.0, 0, 0, 0.0, 0.0)
    for name, inputs in sets:
        found = worst(asked(was, inputs), asked(now, inputs))
        if found.error > tolerance:
            raise Corrupt(
                f"the export answers {found.now:.6g} where the model answers {found.was:.6g} "
                f"(output {found.output}, row {found.row} of the {name})",
                f"{tolerance:g} of an output's spread is let pass; is the model random, or in training mode?",
            )
        last = max(last, found)
    return last
