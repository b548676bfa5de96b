"""Casting columns to the types of a view, value by value: what cannot be cast is pointed at, never an error.

A cast changes no value, except that float32 has its own precision: 1.5 is no int64, 2 no bool, 1e300 no float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.asof.column_values import to_arrow_type
from falaj.asof.moments import to_moments
from falaj.asof.records import MISSING_MOMENT
from falaj.core.errors import Invalid

Mask = NDArray[np.bool_]
CastFunction = Callable[[Any], Any]
_INTEGER_PATTERN = r"\A\s*[-+]?(?:[0-9]+|0[xX][0-9a-fA-F]+)\s*\z"
_REAL_PATTERN = r"(?i)\A\s*[-+]?(?:[0-9.]+(?:e[-+]?[0-9]+)?|inf(?:inity)?|nan)\s*\z"


def cast_column(column: Any, type_: str, zone: str = "") -> tuple[Any, Mask]:
    """A pyarrow column in the Arrow type of `type_`, null where a value has none there; and where that is."""
    import pyarrow as pa

    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.type == to_arrow_type(type_):
        return values, np.zeros(len(values), np.bool_)
    if type_ == "time":
        # Times without a zone are no fault of single values: that is an error, and the definition has to say it.
        to_moments(values.slice(0, 0), zone)
    cast_values = _make_time_cast(zone) if type_ == "time" else _make_plain_cast(to_arrow_type(type_))
    cast_errors = (pa.ArrowInvalid, Invalid)
    try:
        return cast_values(values), np.zeros(len(values), np.bool_)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(values), to_arrow_type(type_)), _to_mask(values.is_valid())
    except cast_errors:
        return _cast_valid_values(values, cast_values, cast_errors, to_arrow_type(type_))


def _cast_valid_values(
    column: Any, cast_values: CastFunction, cast_errors: tuple[type[Exception], ...], type_: Any
) -> tuple[Any, Mask]:
    """Cast what can be: halves, and halves of what fails, over the distinct values where there can be such."""
    import pyarrow as pa

    codes, values = pa.array(np.arange(len(column)), mask=~_to_mask(column.is_valid())), column
    if not pa.types.is_nested(column.type):
        coded = column.dictionary_encode()
        codes, values = coded.indices, coded.dictionary
    values = _keep_numeric_texts(values, type_)
    cast_parts: list[tuple[int, Any]] = []
    pending = [np.arange(len(values))]
    while pending:
        rows = pending.pop()
        try:
            # Not a slice: a cast of a part of lists would look at what is inside all of them.
            cast_parts.append((rows[0], cast_values(values.take(pa.array(rows)))))
        except cast_errors:
            if len(rows) > 1:
                pending += np.array_split(rows, 2)
            else:
                cast_parts.append((rows[0], pa.nulls(1, type_)))
    combined = pa.concat_arrays([part for _, part in sorted(cast_parts, key=lambda cast_part: cast_part[0])]).take(
        codes
    )
    return combined, _to_mask(column.is_valid()) & _to_mask(combined.is_null())


def _keep_numeric_texts(values: Any, type_: Any) -> Any:
    """Texts without those that are no number in any writing: so that a column of nothing else is soon done."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if not texts or not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        return values
    pattern = _INTEGER_PATTERN if pa.types.is_integer(type_) else _REAL_PATTERN
    return pc.if_else(pc.match_substring_regex(values, pattern=pattern), values, pa.scalar(None, values.type))


def _make_time_cast(zone: str) -> CastFunction:
    def cast_times(column: Any) -> Any:
        import pyarrow as pa

        moment_values = to_moments(column, zone)
        return pa.array(moment_values, pa.int64(), mask=moment_values == MISSING_MOMENT).cast(to_arrow_type("time"))

    return cast_times


def _make_plain_cast(type_: Any) -> CastFunction:
    def cast_plain(column: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        cast_values = column.cast(type_)
        if pa.types.is_boolean(type_) and pa.types.is_integer(column.type):
            changed = pc.not_equal(cast_values.cast(column.type), column)
        elif pa.types.is_float32(type_) and pa.types.is_floating(column.type):
            changed = pc.and_(pc.is_inf(cast_values), pc.is_finite(column))
        else:
            return cast_values
        if pc.any(changed).as_py():
            raise Invalid("a value has no room in this type", "it would be changed")
        return cast_values

    return cast_plain


def _to_mask(bool_array: Any) -> Mask:
    return np.asarray(bool_array.to_numpy(zero_copy_only=False), np.bool_)
