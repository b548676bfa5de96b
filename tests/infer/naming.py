"""Tensors as columns with names, for profiles of models that are not trained here."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from falaj.core.model_manifest import TensorSpec
from falaj.drift.records import MAX_COLUMNS
from falaj.infer.tensor_columns import ColumnsByTensor, summarize_rows, summary_columns, to_computable_array

MOST_CLASSES = 32


def named(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Names for the columns of every tensor, as `Profile.tensors` has them.

    A tensor of one value a row has its own name; one of more, NAME[0] and so on. Of a large one only two figures are
    watched: NAME.mean and NAME.std. Texts are watched where there is one a row.
    """
    found: dict[str, tuple[str, ...]] = {}
    for specs, most in ((inputs, MAX_COLUMNS), (outputs, MOST_CLASSES)):
        for spec in specs:
            width = _width(spec)
            if width == 1:
                found[spec.name] = (spec.name,)
            elif spec.datatype != "BYTES":
                few = 0 < width <= most
                found[spec.name] = (
                    tuple(f"{spec.name}[{at}]" for at in range(width)) if few else summary_columns(spec.name)
                )
    return found


def columns_of(tensors: ColumnsByTensor, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of rows, by name."""
    columns: dict[str, Any] = {}
    for name, names in tensors.items():
        if name in arrays:
            flat = to_computable_array(arrays[name]).reshape(len(arrays[name]), -1)
            if names == summary_columns(name):
                flat = summarize_rows(flat)
            columns |= {column: flat[:, at] for at, column in enumerate(names)}
    return columns


def _width(spec: TensorSpec) -> int:
    """Values a row; 0 where that is open."""
    trailing = spec.shape[1:]
    return 0 if any(size < 0 for size in trailing) else prod(trailing)
