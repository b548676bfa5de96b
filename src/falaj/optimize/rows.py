"""Rows of a dataset as what a model takes, and what is right for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.core.errors import Invalid
from falaj.core.sheet import TensorSpec
from falaj.oip.tensors import NUMPY

ORDER = "features.order"
HELD_OUT = 5
"""One row of so many is judged by and not learnt from."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Inputs in the model's order, and the right answers where they are known: classes as 0, 1, …, or numbers."""

    inputs: tuple[NDArray[Any], ...]
    target: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.inputs[0]) if self.inputs else 0

    def take(self, which: Any) -> "Rows":
        """Some of them."""
        return Rows(tuple(one[which] for one in self.inputs), None if self.target is None else self.target[which])


def read_rows(folder: str, specs: Sequence[TensorSpec], target: str, most: int, seed: int, order: str = "") -> Rows:
    """The rows of a folder or file of tables or arrays; of more than `most`, a seeded choice. `order`: the columns
    that a model's one input holds, where its sheet names them."""
    from falaj.feed.sources import open_source

    source = open_source(folder, cache=False)
    ids = np.arange(len(source))
    if len(ids) > most:
        ids = np.sort(np.random.default_rng(seed).choice(ids, most, replace=False))
    if not len(ids):
        raise Invalid("the data has no rows", "name data that has some")
    columns: dict[str, Any] = dict(source.take(ids))
    answers = None
    if target:
        if target not in columns:
            raise Invalid(f"the data has no column {target[:60]!r}", f"it has: {', '.join(columns)}"[:300])
        answers = classes(np.asarray(columns.pop(target)))
    if names := [one.strip() for one in order.split(",") if one.strip()]:
        if lost := [one for one in names if one not in columns]:
            raise Invalid(f"the data has no column {lost[0][:60]!r}", f"{ORDER} of the model's sheet names it")
        columns = {one: _known(np.asarray(columns[one])) for one in names}
    return Rows(inputs_of(columns, specs), answers)


def split(rows: Rows, seed: int) -> tuple[Rows, Rows]:
    """Those to learn from, and those to judge by."""
    order = np.random.default_rng(seed).permutation(len(rows))
    held = max(1, len(rows) // HELD_OUT)
    if len(rows) < 2:
        raise Invalid("one row cannot be both learnt from and judged by", "name more data")
    return rows.take(order[held:]), rows.take(order[:held])


def inputs_of(columns: Mapping[str, Any], specs: Sequence[TensorSpec]) -> tuple[NDArray[Any], ...]:
    """A column for each input by its name; else all columns of numbers, in their order, for a model of one input."""
    if all(one.name in columns for one in specs):
        return tuple(_shaped(columns[one.name], one) for one in specs)
    if len(specs) != 1:
        missing = [one.name for one in specs if one.name not in columns]
        raise Invalid(f"the data has no column {missing[0]!r:.60}", "name a column for each input of the model")
    parts = [np.asarray(one) for one in columns.values()]
    wide = [part.reshape(len(part), -1) for part in parts if part.dtype.kind in "biuf"]
    if not wide:
        raise Invalid("the data has no column of numbers", f"the model takes {specs[0].name!r}")
    return (_shaped(np.concatenate(wide, axis=1), specs[0]),)


def classes(values: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers from 0 as they are, floats as they are, anything else by its place in their order."""
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise Invalid("some rows have no right answer", "leave out rows whose target is empty")
        return values.astype(np.float32)
    if values.dtype.kind in "iu" and values.min() >= 0 and values.max() < 1 << 20:
        return values.astype(np.int64)
    if values.dtype == object and any(one is None for one in values.ravel()):
        raise Invalid("some rows have no right answer", "leave out rows whose target is empty")
    return np.unique(values, return_inverse=True)[1].reshape(values.shape).astype(np.int64)


def _known(column: NDArray[Any]) -> NDArray[Any]:
    """Numbers, some of which may not be there, as floats: what is not there is NaN, as it was in training."""
    if column.dtype != object:
        return column
    try:
        return np.array([np.nan if one is None else one for one in column.tolist()], np.float64)
    except (TypeError, ValueError):
        return column


def _shaped(values: Any, spec: TensorSpec) -> NDArray[Any]:
    try:
        found = np.ascontiguousarray(values, dtype=np.dtype(NUMPY[spec.datatype]))
        if -1 not in spec.shape[1:]:
            found = found.reshape(len(found), *spec.shape[1:])
    except (ValueError, TypeError, KeyError) as error:
        each = " x ".join(map(str, spec.shape[1:])) or "one"
        raise Invalid(
            f"the data does not fit the input {spec.name!r:.60}: {str(error)[:200]}",
            f"{each} of {spec.datatype} a row, as a column of that name or as columns of numbers",
        ) from error
    if found.ndim != len(spec.shape):
        raise Invalid(f"rows of {spec.name!r:.60} have {found.ndim - 1} dimensions", f"it takes {len(spec.shape) - 1}")
    return found
