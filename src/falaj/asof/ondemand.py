"""Values made from others at the moment they are asked for: an expression, or a function that the caller may run."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from falaj.asof.cells import cells_of, to_list
from falaj.asof.express import evaluate
from falaj.asof.records import Computed
from falaj.core.errors import Invalid, UserCodeFailed

Function = Callable[[dict[str, Any]], Mapping[str, Any]]
_NUMBERS = ("bool", "int32", "int64", "float32", "float64")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def compute(
    one: Computed, columns: Mapping[str, list[Any]], types: Mapping[str, str], functions: Mapping[str, Function]
) -> dict[str, list[Any]]:
    """Its outputs, None where there is no value."""
    given = {name: columns[name] for name in one.inputs}
    if not one.source:
        # A constant needs to know how many rows there are.
        rows = given or dict(columns)
        return {field.name: evaluate(one.express[field.name], rows, types, to=field.type) for field in one.outputs}
    function = functions.get(one.digest)
    if function is None:
        raise Invalid(
            f"{one.name} is a Python function, which the platform does not run",
            "read it beside your own code: here.features.reader(service)",
        )
    made = function({name: as_seen(values, types[name]) for name, values in given.items()})
    lost = [field.name for field in one.outputs if field.name not in made]
    if lost:
        raise UserCodeFailed(f"{one.name} gave no {lost[0]}", "it must give every feature it names")
    size = len(next(iter(columns.values()), ()))
    found = {field.name: to_list(cells_of(made[field.name], field.type)) for field in one.outputs}
    if any(len(values) != size for values in found.values()):
        raise UserCodeFailed(f"{one.name} gave another number of rows than it got", "it must give one value a row")
    return found


def as_seen(values: Sequence[Any], kind: str) -> Any:
    """A column as a function sees it, the same as over a training set: an array where it is of numbers, else a list.

    A missing number is NaN (of whole numbers, all become floats); a moment is a datetime in UTC.
    """
    if kind == "time":
        return [None if one is None else _EPOCH + timedelta(microseconds=one) for one in values]
    if kind not in _NUMBERS:
        return list(values)
    if None not in values:
        return np.array(values, kind)
    if kind == "bool":
        return np.array(values, object)
    return np.array([np.nan if one is None else one for one in values], "float32" if kind == "float32" else "float64")
