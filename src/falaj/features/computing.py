"""Values made from others when they are asked for: over a training set here, over a request in asof/reading.py.

The same expression, or the same function, sees the same columns in both.
"""

from collections.abc import Callable, Mapping
from typing import Any

from falaj.asof.records import NULL, PRESENT, Computed, ServicePlan
from falaj.core.errors import Invalid, UserCodeFailed
from falaj.features.preparing import as_given

Functions = Mapping[str, Callable[[dict[str, Any]], Mapping[str, Any]]]
"""The functions of a service by digest, each in its sandbox (functions.py)."""


def compute(table: Any, plan: ServicePlan, functions: Functions) -> Any:
    """A training set with what is computed, and its status, behind what was found."""
    for one in plan.computed:
        missing = [name for name in one.inputs if name not in table.column_names]
        if missing:
            hint = "a training set needs a column for everything a request brings"
            raise Invalid(f"{one.name} is made from {missing[0]}, which the labels do not have", hint)
        for name, column in _values(table, one, functions).items():
            table = table.append_column(name, column).append_column(f"{name}__status", _statuses(column))
    return table


def _values(table: Any, one: Computed, functions: Functions) -> dict[str, Any]:
    from falaj.asof.cells import cells_of, to_arrow
    from falaj.asof.express import evaluate

    if not one.source:
        return {field.name: evaluate(one.express[field.name], table, to=field.type) for field in one.outputs}
    given = {name: as_given(table.column(name)) for name in one.inputs}
    columns = functions[one.digest](given)
    lost = [field.name for field in one.outputs if field.name not in columns]
    if lost:
        raise UserCodeFailed(f"{one.name} gave no {lost[0]}", "it must give every feature it names")
    return {field.name: to_arrow(cells_of(columns[field.name], field.type)) for field in one.outputs}


def _statuses(column: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    nulls = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(np.where(nulls, NULL, PRESENT).astype(np.uint8))
