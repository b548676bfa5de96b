"""Columns as expressions see them: values and what is missing, from lists, numpy or Arrow, and back again.

One form for a million rows of a file and for one row of a request: the same code then gives the same bits.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from falaj.asof.records import MISSING_MOMENT, SCALAR_TYPES
from falaj.core.errors import Invalid

Array = np.ndarray[Any, np.dtype[Any]]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DTYPES: dict[str, Any] = {
    **dict.fromkeys(("int64", "time"), np.int64),
    "bool": np.bool_,
    "int32": np.int32,
    "float32": np.float32,
    "float64": np.float64,
}
_FILLER: dict[str, object] = {"string": "", "bytes": b""}


class ColumnValues(NamedTuple):
    """One column. A value that is missing is there as a filler, and not valid."""

    values: Array
    valid: Array | None
    """None: all are."""
    type: str
    """One of asof/records.py, or "null" where there is nothing but missing values."""


def is_known_type(name: str) -> bool:
    """Whether values can be of this type."""
    return name in SCALAR_TYPES or (name.startswith("list[") and name[5:-1] in SCALAR_TYPES and name.endswith("]"))


def make_missing(type_name: str, size: int) -> ColumnValues:
    """Nothing but missing values."""
    dtype = _DTYPES.get(type_name, object)
    return ColumnValues(np.full(size, _FILLER.get(type_name, 0), dtype), np.zeros(size, np.bool_), type_name)


def to_column_values(column: object, type_name: str = "", zone: str = "") -> ColumnValues:
    """A column from a list, a numpy array or an Arrow column; of the type it is said to be, else of the one it shows.

    `zone` is that of moments that have none (asof/moments.py).
    """
    if isinstance(column, (list, tuple)):
        return _from_list(column, type_name or _detect_list_type(column))
    if isinstance(column, np.ndarray):
        return _from_numpy_array(column, type_name)
    return _from_arrow_array(column, type_name, zone)


def to_python_list(column: ColumnValues) -> list[Any]:
    """Plain Python values, None where missing; moments as microseconds."""
    values: list[Any] = column.values.tolist()
    if column.valid is None or column.valid.all():
        return values
    return [value if is_valid else None for value, is_valid in zip(values, column.valid.tolist(), strict=True)]


def to_arrow_array(column: ColumnValues) -> Any:
    """The Arrow array; a moment becomes a timestamp in microseconds, UTC."""
    import pyarrow as pa

    kind = to_arrow_type(column.type)
    if column.values.dtype == object:
        return pa.array(to_python_list(column), kind)
    mask = None if column.valid is None else ~column.valid
    array = pa.array(column.values, mask=mask)
    return array.cast(pa.int64()).cast(kind) if column.type == "time" else array.cast(kind)


def to_arrow_type(name: str) -> Any:
    """The Arrow type of one of ours, or of nothing but nulls."""
    import pyarrow as pa

    from falaj.asof.arrow_columns import to_arrow_type as of_rows

    return pa.null() if name == "null" else of_rows(name)


def from_arrow_type(kind: Any) -> str:
    """Ours for an Arrow type, "" for one that has none."""
    import pyarrow.types as at

    if at.is_dictionary(kind):
        return from_arrow_type(kind.value_type)
    if at.is_list(kind) or at.is_large_list(kind):
        item_type = from_arrow_type(kind.value_type)
        return f"list[{item_type}]" if item_type in SCALAR_TYPES else ""
    plain = {"int32": "int32", "float": "float32", "double": "float64", "bool": "bool", "null": "null"}
    plain |= dict.fromkeys(("int8", "int16", "uint8", "uint16"), "int32")
    plain |= dict.fromkeys(("int64", "uint32", "uint64"), "int64")
    plain |= dict.fromkeys(("string", "large_string", "string_view"), "string")
    plain |= dict.fromkeys(("binary", "large_binary", "binary_view"), "bytes")
    if at.is_timestamp(kind) or at.is_date(kind):
        return "time"
    return "float64" if at.is_decimal(kind) or str(kind) == "halffloat" else plain.get(str(kind), "")


def _from_list(values: Sequence[Any], type_name: str) -> ColumnValues:
    if type_name == "null":
        return make_missing("null", len(values))
    kinds = set(map(type, values))
    unexpected_kinds = [kind for kind in kinds if not _is_allowed_type(type_name, kind)]
    if unexpected_kinds:
        raise Invalid(
            f"a column of {type_name} was given {unexpected_kinds[0].__name__}",
            f"give values of {type_name}, None where missing",
        )
    valid = None
    if type(None) in kinds:
        valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
        filler = _FILLER.get(type_name, [] if type_name.startswith("list[") else 0)
        values = [filler if value is None else value for value in values]
    if type_name == "time" and any(issubclass(kind, datetime) for kind in kinds):
        values = [_datetime_to_micros(value) for value in values]
    try:
        return ColumnValues(np.fromiter(values, _DTYPES.get(type_name, object), len(values)), valid, type_name)
    except OverflowError as error:
        raise Invalid(f"a number does not fit {type_name}", "give a smaller one, or make the column float64") from error


@lru_cache(maxsize=256)
def _is_allowed_type(type_name: str, kind: Any) -> bool:
    if kind is type(None):
        return True
    if type_name.startswith("list["):
        return issubclass(kind, (list, tuple, np.ndarray))
    if issubclass(kind, (bool, np.bool_)):
        return type_name == "bool"
    allowed: dict[str, tuple[type, ...]] = {"string": (str,), "bytes": (bytes,), "bool": ()}
    allowed |= dict.fromkeys(("float32", "float64"), (int, float, np.integer, np.floating))
    allowed |= dict.fromkeys(("int32", "int64"), (int, np.integer))
    return issubclass(kind, allowed.get(type_name, (int, np.integer, datetime)))


def _detect_list_type(values: Sequence[Any]) -> str:
    kinds: set[Any] = {type(value) for value in values} - {type(None)}
    for type_name in ("bool", "int64", "float64", "string", "bytes", "time"):
        if kinds and all(_is_allowed_type(type_name, kind) for kind in kinds):
            return type_name
    first_item = next(
        (part for value in values if isinstance(value, (list, tuple, np.ndarray)) for part in value), None
    )
    return f"list[{_detect_list_type([first_item])}]" if first_item is not None else "null"


def _datetime_to_micros(value: Any) -> int:
    if not isinstance(value, datetime):
        return int(value)
    if value.tzinfo is None:
        raise Invalid("a moment has no time zone", "give datetimes with one, for example tzinfo=UTC")
    return (value - _EPOCH) // timedelta(microseconds=1)


def _from_numpy_array(values: Array, type_name: str) -> ColumnValues:
    if values.ndim != 1:
        raise Invalid(f"a column has {values.ndim} dimensions", "give one value a row")
    if values.dtype.kind == "M":
        moments_us = values.astype("datetime64[us]").astype(np.int64)
        return ColumnValues(moments_us, moments_us != MISSING_MOMENT, "time")
    own_type = {"b": "bool", "i": "int64", "f": "float64"}.get(values.dtype.kind, "")
    own_type = {np.dtype(np.int32): "int32", np.dtype(np.float32): "float32"}.get(values.dtype, own_type)
    target_type = type_name or own_type
    # The safe ways only: whatever else there is goes through Python values, which are looked at one by one.
    if own_type and (
        target_type == own_type
        or (target_type == "float64" and own_type != "bool")
        or (target_type, own_type) == ("time", "int64")
    ):
        return ColumnValues(values.astype(_DTYPES[target_type], copy=False), None, target_type)
    return to_column_values(values.tolist(), type_name)


def _from_arrow_array(column: Any, type_name: str, zone: str) -> ColumnValues:
    import pyarrow as pa

    own_type = from_arrow_type(column.type)
    if not own_type:
        raise Invalid(f"a column of {column.type} has no place in an expression", "cast it in the source's query first")
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if own_type == "time":
        from falaj.asof.moments import to_moments

        moments_us = to_moments(column, zone)
        return ColumnValues(moments_us, moments_us != MISSING_MOMENT if column.null_count else None, "time")
    if own_type == "null":
        return make_missing(type_name or "null", len(column))
    target_type = own_type if _DTYPES.get(own_type) is None else type_name or own_type
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    try:
        if _DTYPES.get(target_type) is None:
            if own_type == "list[time]" and column.type.value_type.tz:  # there are moments outside of Python's years
                column = column.cast(pa.large_list(to_arrow_type("time"))).cast(pa.large_list(pa.int64()))
            return _from_list(column.to_pylist(), target_type)
        filled = column.cast(to_arrow_type("int64" if target_type == "time" else target_type))
    except pa.ArrowInvalid as error:
        raise Invalid(
            f"a column of {column.type} holds what {target_type} cannot", "cast it in the source's query"
        ) from error
    return ColumnValues(
        filled.fill_null(False if target_type == "bool" else 0).to_numpy(zero_copy_only=False), valid, target_type
    )


def to_column_mapping(columns: object) -> Mapping[str, object]:
    """A table, a batch or a mapping as a mapping from name to column."""
    if isinstance(columns, Mapping):
        return columns
    table: Any = columns
    return dict(zip(table.schema.names, table.columns, strict=True))
