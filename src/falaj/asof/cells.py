"""Columns as expressions see them: values and what is missing, from lists, numpy or Arrow, and back again.

One form for a million rows of a file and for one row of a request: the same code then gives the same bits.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from falaj.asof.records import MISSING, SCALARS
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


class Cells(NamedTuple):
    """One column. A value that is missing is there as a filler, and not valid."""

    values: Array
    valid: Array | None
    """None: all are."""
    type: str
    """One of asof/records.py, or "null" where there is nothing but missing values."""


def known_type(name: str) -> bool:
    """Whether values can be of this type."""
    return name in SCALARS or (name.startswith("list[") and name[5:-1] in SCALARS and name.endswith("]"))


def blank(type_name: str, size: int) -> Cells:
    """Nothing but missing values."""
    dtype = _DTYPES.get(type_name, object)
    return Cells(np.full(size, _FILLER.get(type_name, 0), dtype), np.zeros(size, np.bool_), type_name)


def cells_of(column: object, type_name: str = "", zone: str = "") -> Cells:
    """A column from a list, a numpy array or an Arrow column; of the type it is said to be, else of the one it shows.

    `zone` is that of moments that have none (asof/moments.py).
    """
    if isinstance(column, (list, tuple)):
        return _from_list(column, type_name or _type_of_list(column))
    if isinstance(column, np.ndarray):
        return _from_numpy(column, type_name)
    return _from_arrow(column, type_name, zone)


def to_list(cells: Cells) -> list[Any]:
    """Plain Python values, None where missing; moments as microseconds."""
    values: list[Any] = cells.values.tolist()
    if cells.valid is None or cells.valid.all():
        return values
    return [value if there else None for value, there in zip(values, cells.valid.tolist(), strict=True)]


def to_arrow(cells: Cells) -> Any:
    """The Arrow array; a moment becomes a timestamp in microseconds, UTC."""
    import pyarrow as pa

    kind = arrow_type(cells.type)
    if cells.values.dtype == object:
        return pa.array(to_list(cells), kind)
    mask = None if cells.valid is None else ~cells.valid
    made = pa.array(cells.values, mask=mask)
    return made.cast(pa.int64()).cast(kind) if cells.type == "time" else made.cast(kind)


def arrow_type(name: str) -> Any:
    """The Arrow type of one of ours, or of nothing but nulls."""
    import pyarrow as pa

    from falaj.asof.arrow import arrow_type as of_rows

    return pa.null() if name == "null" else of_rows(name)


def type_of_arrow(kind: Any) -> str:
    """Ours for an Arrow type, "" for one that has none."""
    import pyarrow.types as at

    if at.is_dictionary(kind):
        return type_of_arrow(kind.value_type)
    if at.is_list(kind) or at.is_large_list(kind):
        inner = type_of_arrow(kind.value_type)
        return f"list[{inner}]" if inner in SCALARS else ""
    plain = {"int32": "int32", "float": "float32", "double": "float64", "bool": "bool", "null": "null"}
    plain |= dict.fromkeys(("int8", "int16", "uint8", "uint16"), "int32")
    plain |= dict.fromkeys(("int64", "uint32", "uint64"), "int64")
    plain |= dict.fromkeys(("string", "large_string", "string_view"), "string")
    plain |= dict.fromkeys(("binary", "large_binary", "binary_view"), "bytes")
    if at.is_timestamp(kind) or at.is_date(kind):
        return "time"
    return "float64" if at.is_decimal(kind) or str(kind) == "halffloat" else plain.get(str(kind), "")


def _from_list(values: Sequence[Any], type_name: str) -> Cells:
    if type_name == "null":
        return blank("null", len(values))
    kinds = set(map(type, values))
    strange = [kind for kind in kinds if not _holds(type_name, kind)]
    if strange:
        raise Invalid(
            f"a column of {type_name} was given {strange[0].__name__}",
            f"give values of {type_name}, None where missing",
        )
    valid = None
    if type(None) in kinds:
        valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
        filler = _FILLER.get(type_name, [] if type_name.startswith("list[") else 0)
        values = [filler if value is None else value for value in values]
    if type_name == "time" and any(issubclass(kind, datetime) for kind in kinds):
        values = [_micros(value) for value in values]
    try:
        return Cells(np.fromiter(values, _DTYPES.get(type_name, object), len(values)), valid, type_name)
    except OverflowError as error:
        raise Invalid(f"a number does not fit {type_name}", "give a smaller one, or make the column float64") from error


@lru_cache(maxsize=256)
def _holds(type_name: str, kind: Any) -> bool:
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


def _type_of_list(values: Sequence[Any]) -> str:
    kinds: set[Any] = {type(value) for value in values} - {type(None)}
    for type_name in ("bool", "int64", "float64", "string", "bytes", "time"):
        if kinds and all(_holds(type_name, kind) for kind in kinds):
            return type_name
    first = next((part for value in values if isinstance(value, (list, tuple, np.ndarray)) for part in value), None)
    return f"list[{_type_of_list([first])}]" if first is not None else "null"


def _micros(value: Any) -> int:
    if not isinstance(value, datetime):
        return int(value)
    if value.tzinfo is None:
        raise Invalid("a moment has no time zone", "give datetimes with one, for example tzinfo=UTC")
    return (value - _EPOCH) // timedelta(microseconds=1)


def _from_numpy(values: Array, type_name: str) -> Cells:
    if values.ndim != 1:
        raise Invalid(f"a column has {values.ndim} dimensions", "give one value a row")
    if values.dtype.kind == "M":
        at = values.astype("datetime64[us]").astype(np.int64)
        return Cells(at, at != MISSING, "time")
    shown = {"b": "bool", "i": "int64", "f": "float64"}.get(values.dtype.kind, "")
    shown = {np.dtype(np.int32): "int32", np.dtype(np.float32): "float32"}.get(values.dtype, shown)
    wanted = type_name or shown
    # The safe ways only: whatever else there is goes through Python values, which are looked at one by one.
    if shown and (wanted == shown or (wanted == "float64" and shown != "bool") or (wanted, shown) == ("time", "int64")):
        return Cells(values.astype(_DTYPES[wanted], copy=False), None, wanted)
    return cells_of(values.tolist(), type_name)


def _from_arrow(column: Any, type_name: str, zone: str) -> Cells:
    import pyarrow as pa

    shown = type_of_arrow(column.type)
    if not shown:
        raise Invalid(f"a column of {column.type} has no place in an expression", "cast it in the source's query first")
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if shown == "time":
        from falaj.asof.moments import moments

        at = moments(column, zone)
        return Cells(at, at != MISSING if column.null_count else None, "time")
    if shown == "null":
        return blank(type_name or "null", len(column))
    wanted = shown if _DTYPES.get(shown) is None else type_name or shown
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    try:
        if _DTYPES.get(wanted) is None:
            if shown == "list[time]" and column.type.value_type.tz:  # there are moments outside of Python's years
                column = column.cast(pa.large_list(arrow_type("time"))).cast(pa.large_list(pa.int64()))
            return _from_list(column.to_pylist(), wanted)
        filled = column.cast(arrow_type("int64" if wanted == "time" else wanted))
    except pa.ArrowInvalid as error:
        raise Invalid(
            f"a column of {column.type} holds what {wanted} cannot", "cast it in the source's query"
        ) from error
    return Cells(filled.fill_null(False if wanted == "bool" else 0).to_numpy(zero_copy_only=False), valid, wanted)


def columns_of(columns: object) -> Mapping[str, object]:
    """A table, a batch or a mapping as a mapping from name to column."""
    if isinstance(columns, Mapping):
        return columns
    table: Any = columns
    return dict(zip(table.schema.names, table.columns, strict=True))
