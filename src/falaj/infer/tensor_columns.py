"""Tensors of a model as columns with names: what a profile is made of, and what is counted when the model serves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from falaj.core.model_manifest import TensorSpec

PREDICTION_COLUMN = "prediction"
"""The column of the class with the highest score."""
ColumnsByTensor = Mapping[str, tuple[str, ...]]


def summary_columns(name: str) -> tuple[str, str]:
    """What is watched of a tensor that is too large to be watched value by value."""
    return f"{name}.mean", f"{name}.std"


def score_columns(tensors: ColumnsByTensor, outputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """The columns of which the highest one is the model's choice; none where it gives one value a row."""
    for spec in outputs:
        names = tensors.get(spec.name, ())
        if len(names) > 1 and names != summary_columns(spec.name):
            return names
    return ()


def choose_highest(scores: Any) -> Any:
    """Which score is the highest; missing where one is."""
    indices = np.argmax(scores, axis=1).astype(np.float64)
    indices[np.isnan(scores).any(axis=1)] = np.nan
    return indices


def to_computable_array(array: Any, datatype: str = "") -> Any:
    """An array that numpy can compute with: BF16 comes as the upper half of a float32."""
    if datatype == "BF16" and array.dtype == np.uint16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array


def summarize_rows(flat: Any) -> Any:
    """Mean and standard deviation of each row."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = flat.astype(np.float64, copy=False)
        return np.stack([values.mean(axis=1), values.std(axis=1)], axis=1)
