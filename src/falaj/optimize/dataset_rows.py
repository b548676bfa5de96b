"""Rows of a dataset as what a model takes, and what is right for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.core.model_manifest import TensorSpec
from falaj.oip.tensors import NUMPY_TYPES

FEATURE_ORDER_PARAMETER = "features.order"
HELD_OUT_EVERY = 5
"""One row of so many is judged by and not learnt from."""


@dataclass(frozen=True, slots=True)
class DatasetRows:
    """Inputs in the model's order, and the right answers where they are known: classes as 0, 1, …, or numbers."""

    inputs: tuple[NDArray[Any], ...]
    target: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.inputs[0]) if self.inputs else 0

    def take(self, selection: Any) -> "DatasetRows":
        """Some of them."""
        return DatasetRows(
            tuple(values[selection] for values in self.inputs), None if self.target is None else self.target[selection]
        )


def read_rows(
    folder: str, specs: Sequence[TensorSpec], target: str, max_rows: int, seed: int, order: str = ""
) -> DatasetRows:
    """The rows of a folder or file of tables or arrays; of more than `max_rows`, a seeded choice. `order`: the columns
    that a model's one input holds, where its sheet names them."""
    from falaj.feed.sources import open_source

    source = open_source(folder, cache=False)
    ids = np.arange(len(source))
    if len(ids) > max_rows:
        ids = np.sort(np.random.default_rng(seed).choice(ids, max_rows, replace=False))
    if not len(ids):
        raise Invalid("the data has no rows", "name data that has some")
    columns: dict[str, Any] = dict(source.take(ids))
    targets = None
    if target:
        if target not in columns:
            raise Invalid(f"the data has no column {target[:60]!r}", f"it has: {', '.join(columns)}"[:300])
        targets = to_targets(np.asarray(columns.pop(target)))
    if names := [column_name.strip() for column_name in order.split(",") if column_name.strip()]:
        if missing := [column_name for column_name in names if column_name not in columns]:
            raise Invalid(
                f"the data has no column {missing[0][:60]!r}",
                f"{FEATURE_ORDER_PARAMETER} of the model's sheet names it",
            )
        columns = {column_name: _fill_missing(np.asarray(columns[column_name])) for column_name in names}
    return DatasetRows(to_model_inputs(columns, specs), targets)


def split_rows(rows: DatasetRows, seed: int) -> tuple[DatasetRows, DatasetRows]:
    """Those to learn from, and those to judge by."""
    order = np.random.default_rng(seed).permutation(len(rows))
    held_out_count = max(1, len(rows) // HELD_OUT_EVERY)
    if len(rows) < 2:
        raise Invalid("one row cannot be both learnt from and judged by", "name more data")
    return rows.take(order[held_out_count:]), rows.take(order[:held_out_count])


def to_model_inputs(columns: Mapping[str, Any], specs: Sequence[TensorSpec]) -> tuple[NDArray[Any], ...]:
    """A column for each input by its name; else all columns of numbers, in their order, for a model of one input."""
    if all(item.name in columns for item in specs):
        return tuple(_shape_input(columns[item.name], item) for item in specs)
    if len(specs) != 1:
        missing = [item.name for item in specs if item.name not in columns]
        raise Invalid(f"the data has no column {missing[0]!r:.60}", "name a column for each input of the model")
    column_arrays = [np.asarray(item) for item in columns.values()]
    number_columns = [
        column_array.reshape(len(column_array), -1)
        for column_array in column_arrays
        if column_array.dtype.kind in "biuf"
    ]
    if not number_columns:
        raise Invalid("the data has no column of numbers", f"the model takes {specs[0].name!r}")
    return (_shape_input(np.concatenate(number_columns, axis=1), specs[0]),)


def to_targets(values: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers from 0 as they are, floats as they are, anything else by its place in their order."""
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise Invalid("some rows have no right answer", "leave out rows whose target is empty")
        return values.astype(np.float32)
    if values.dtype.kind in "iu" and values.min() >= 0 and values.max() < 1 << 20:
        return values.astype(np.int64)
    if values.dtype == object and any(value is None for value in values.ravel()):
        raise Invalid("some rows have no right answer", "leave out rows whose target is empty")
    return np.unique(values, return_inverse=True)[1].reshape(values.shape).astype(np.int64)


def _fill_missing(column: NDArray[Any]) -> NDArray[Any]:
    """Numbers, some of which may not be there, as floats: what is not there is NaN, as it was in training."""
    if column.dtype != object:
        return column
    try:
        return np.array([np.nan if value is None else value for value in column.tolist()], np.float64)
    except (TypeError, ValueError):
        return column


def _shape_input(values: Any, spec: TensorSpec) -> NDArray[Any]:
    try:
        shaped = np.ascontiguousarray(values, dtype=np.dtype(NUMPY_TYPES[spec.datatype]))
        if -1 not in spec.shape[1:]:
            shaped = shaped.reshape(len(shaped), *spec.shape[1:])
    except (ValueError, TypeError, KeyError) as error:
        shape_text = " x ".join(map(str, spec.shape[1:])) or "one"
        raise Invalid(
            f"the data does not fit the input {spec.name!r:.60}: {str(error)[:200]}",
            f"{shape_text} of {spec.datatype} a row, as a column of that name or as columns of numbers",
        ) from error
    if shaped.ndim != len(spec.shape):
        raise Invalid(f"rows of {spec.name!r:.60} have {shaped.ndim - 1} dimensions", f"it takes {len(spec.shape) - 1}")
    return shaped
