"""Records to tables: rows of JSON, or of Python, that need not be alike."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.core.errors import Invalid


def build_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pyarrow Table with every column that any of the rows has; null where a row has none."""
    import pyarrow as pa

    if not all(isinstance(row, Mapping) for row in rows):
        raise Invalid("a row is no record", "give each row as names with values")
    names = dict.fromkeys(name for row in rows for name in row)
    if not names:  # a table without columns has no rows either, and these must be told of
        return pa.table({"": pa.nulls(len(rows))})
    return pa.table({name: _build_column([row.get(name) for row in rows]) for name in names})


def _build_column(values: list[Any]) -> Any:
    """Values of several kinds become texts, so that each is cast, or kept apart, for itself."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([value if value is None or isinstance(value, str) else _to_text(value) for value in values])


def _to_text(value: Any) -> str:
    try:
        return json.dumps(value)
    except TypeError:
        return str(value)
