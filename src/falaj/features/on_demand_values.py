"""Values made from others when they are asked for: over a training set here, over a request in asof/service_reader.py.

The same expression, or the same function, sees the same columns in both.
"""

from collections.abc import Callable, Mapping
from typing import Any

from falaj.asof.records import NULL, PRESENT, Computed, ServicePlan
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.features.row_preparation import column_to_function_input

FunctionsByDigest = Mapping[str, Callable[[dict[str, Any]], Mapping[str, Any]]]
"""The functions of a service by digest, each in its sandbox (functions.py)."""


def append_computed(table: Any, plan: ServicePlan, functions: FunctionsByDigest) -> Any:
    """A training set with what is computed, and its status, behind what was found."""
    for computed in plan.computed:
        missing = [name for name in computed.inputs if name not in table.column_names]
        if missing:
            hint = "a training set needs a column for everything a request brings"
            raise Invalid(f"{computed.name} is made from {missing[0]}, which the labels do not have", hint)
        for name, column in _compute_columns(table, computed, functions).items():
            table = table.append_column(name, column).append_column(f"{name}__status", _compute_statuses(column))
    return table


def _compute_columns(table: Any, computed: Computed, functions: FunctionsByDigest) -> dict[str, Any]:
    from falaj.asof.column_values import to_arrow_array, to_column_values
    from falaj.asof.expressions import evaluate_expression

    if not computed.source:
        return {
            field.name: evaluate_expression(computed.express[field.name], table, to=field.type)
            for field in computed.outputs
        }
    inputs = {name: column_to_function_input(table.column(name)) for name in computed.inputs}
    columns = functions[computed.digest](inputs)
    missing = [field.name for field in computed.outputs if field.name not in columns]
    if missing:
        raise UserCodeFailed(f"{computed.name} gave no {missing[0]}", "it must give every feature it names")
    return {field.name: to_arrow_array(to_column_values(columns[field.name], field.type)) for field in computed.outputs}


def _compute_statuses(column: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    nulls = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(np.where(nulls, NULL, PRESENT).astype(np.uint8))
