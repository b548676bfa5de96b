"""Tensors of a model as columns with names: what a profile is made of, and what is counted when the model serves."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from falaj.core.errors import Invalid
from falaj.core.sheet import TensorSpec
from falaj.drift.records import MOST_COLUMNS

CHOSEN = "prediction"
"""The column of the class with the highest score."""
MOST_CLASSES = 32
Tensors = Mapping[str, tuple[str, ...]]


def named(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], order: Sequence[str] = ()) -> dict[str, Any]:
    """Names for the columns of every tensor, as `Profile.tensors` has them. `order`: of the only input, a matrix.

    A tensor of one value a row has its own name; one of more, NAME[0] and so on. Of a large one only two figures are
    watched: NAME.mean and NAME.std. Texts are watched where there is one a row.
    """
    found: dict[str, tuple[str, ...]] = {}
    for specs, most in ((inputs, MOST_COLUMNS), (outputs, MOST_CLASSES)):
        for spec in specs:
            width = _width(spec)
            if specs is inputs and len(inputs) == 1 and width == len(order):
                found[spec.name] = tuple(order)
            elif width == 1:
                found[spec.name] = (spec.name,)
            elif spec.datatype != "BYTES":
                plain = 0 < width <= most
                found[spec.name] = tuple(f"{spec.name}[{at}]" for at in range(width)) if plain else figures(spec.name)
    return found


def figures(name: str) -> tuple[str, str]:
    """What is watched of a tensor that is too large to be watched value by value."""
    return f"{name}.mean", f"{name}.std"


def columns_of(tensors: Tensors, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of rows, by name; Invalid where a tensor has others than it should."""
    columns: dict[str, Any] = {}
    for name, names in tensors.items():
        if name in arrays:
            flat = plain(arrays[name]).reshape(len(arrays[name]), -1)
            if names == figures(name):
                flat = derived(flat)
            if flat.shape[1] != len(names):
                raise Invalid(f"{name[:80]!r} has {flat.shape[1]} values a row, not {len(names)}", "name all of them")
            columns |= {column: flat[:, at] for at, column in enumerate(names)}
    return columns


def scores_of(tensors: Tensors, outputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """The columns of which the highest one is the model's choice; none where it gives one value a row."""
    for spec in outputs:
        names = tensors.get(spec.name, ())
        if len(names) > 1 and names != figures(spec.name):
            return names
    return ()


def chosen(scores: Any) -> Any:
    """Which score is the highest; missing where one is."""
    found = np.argmax(scores, axis=1).astype(np.float64)
    found[np.isnan(scores).any(axis=1)] = np.nan
    return found


def plain(array: Any, datatype: str = "") -> Any:
    """An array that numpy can compute with: BF16 comes as the upper half of a float32."""
    if datatype == "BF16" and array.dtype == np.uint16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array


def derived(flat: Any) -> Any:
    """Mean and standard deviation of each row."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = flat.astype(np.float64, copy=False)
        return np.stack([values.mean(axis=1), values.std(axis=1)], axis=1)


def _width(spec: TensorSpec) -> int:
    """Values a row; 0 where that is open."""
    trailing = spec.shape[1:]
    return 0 if any(size < 0 for size in trailing) else prod(trailing)
