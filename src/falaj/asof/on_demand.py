"""Values made from others at the moment they are asked for: an expression, or a function that the caller may run."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from falaj.asof.column_values import to_column_values, to_python_list
from falaj.asof.expressions import evaluate_expression
from falaj.asof.records import Computed
from falaj.core.errors import Invalid, UserCodeFailed

FeatureFunction = Callable[[dict[str, Any]], Mapping[str, Any]]
_NUMBERS = ("bool", "int32", "int64", "float32", "float64")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def compute_values(
    computed: Computed,
    columns: Mapping[str, list[Any]],
    types: Mapping[str, str],
    functions: Mapping[str, FeatureFunction],
) -> dict[str, list[Any]]:
    """Its outputs, None where there is no value."""
    inputs = {name: columns[name] for name in computed.inputs}
    if not computed.source:
        # A constant needs to know how many rows there are.
        rows = inputs or dict(columns)
        return {
            field.name: evaluate_expression(computed.express[field.name], rows, types, to=field.type)
            for field in computed.outputs
        }
    function = functions.get(computed.digest)
    if function is None:
        raise Invalid(
            f"{computed.name} is a Python function, which the platform does not run",
            "read it beside your own code: here.features.reader(service)",
        )
    outputs = function({name: values_to_function_input(values, types[name]) for name, values in inputs.items()})
    missing_outputs = [field.name for field in computed.outputs if field.name not in outputs]
    if missing_outputs:
        raise UserCodeFailed(f"{computed.name} gave no {missing_outputs[0]}", "it must give every feature it names")
    size = len(next(iter(columns.values()), ()))
    values_by_name = {
        field.name: to_python_list(to_column_values(outputs[field.name], field.type)) for field in computed.outputs
    }
    if any(len(values) != size for values in values_by_name.values()):
        raise UserCodeFailed(f"{computed.name} gave another number of rows than it got", "it must give one value a row")
    return values_by_name


def values_to_function_input(values: Sequence[Any], kind: str) -> Any:
    """A column as a function sees it, the same as over a training set: an array where it is of numbers, else a list.

    A missing number is NaN (of whole numbers, all become floats); a moment is a datetime in UTC.
    """
    if kind == "time":
        return [None if value is None else _EPOCH + timedelta(microseconds=value) for value in values]
    if kind not in _NUMBERS:
        return list(values)
    if None not in values:
        return np.array(values, kind)
    if kind == "bool":
        return np.array(values, object)
    return np.array(
        [np.nan if value is None else value for value in values], "float32" if kind == "float32" else "float64"
    )
