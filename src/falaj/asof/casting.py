"""Casting columns to the types of a view, value by value: what cannot be cast is pointed at, never an error.

A cast changes no value, except that float32 has its own precision: 1.5 is no int64, 2 no bool, 1e300 no float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from falaj.asof.cells import arrow_type
from falaj.asof.moments import moments
from falaj.asof.records import MISSING
from falaj.core.errors import Invalid

Mask = NDArray[np.bool_]
Cast = Callable[[Any], Any]
_WHOLE = r"\A\s*[-+]?(?:[0-9]+|0[xX][0-9a-fA-F]+)\s*\z"
_REAL = r"(?i)\A\s*[-+]?(?:[0-9.]+(?:e[-+]?[0-9]+)?|inf(?:inity)?|nan)\s*\z"


def cast(column: Any, type_: str, zone: str = "") -> tuple[Any, Mask]:
    """A pyarrow column in the Arrow type of `type_`, null where a value has none there; and where that is."""
    import pyarrow as pa

    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    if whole.type == arrow_type(type_):
        return whole, np.zeros(len(whole), np.bool_)
    if type_ == "time":
        # Times without a zone are no fault of single values: that is an error, and the definition has to say it.
        moments(whole.slice(0, 0), zone)
    to = _times(zone) if type_ == "time" else _plain(arrow_type(type_))
    failed = (pa.ArrowInvalid, Invalid)
    try:
        return to(whole), np.zeros(len(whole), np.bool_)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(whole), arrow_type(type_)), _mask(whole.is_valid())
    except failed:
        return _one_by_one(whole, to, failed, arrow_type(type_))


def _one_by_one(column: Any, to: Cast, failed: tuple[type[Exception], ...], type_: Any) -> tuple[Any, Mask]:
    """Cast what can be: halves, and halves of what fails, over the distinct values where there can be such."""
    import pyarrow as pa

    codes, values = pa.array(np.arange(len(column)), mask=~_mask(column.is_valid())), column
    if not pa.types.is_nested(column.type):
        coded = column.dictionary_encode()
        codes, values = coded.indices, coded.dictionary
    values = _numeric_only(values, type_)
    made: list[tuple[int, Any]] = []
    left = [np.arange(len(values))]
    while left:
        rows = left.pop()
        try:
            # Not a slice: a cast of a part of lists would look at what is inside all of them.
            made.append((rows[0], to(values.take(pa.array(rows)))))
        except failed:
            if len(rows) > 1:
                left += np.array_split(rows, 2)
            else:
                made.append((rows[0], pa.nulls(1, type_)))
    whole = pa.concat_arrays([part for _, part in sorted(made, key=lambda one: one[0])]).take(codes)
    return whole, _mask(column.is_valid()) & _mask(whole.is_null())


def _numeric_only(values: Any, type_: Any) -> Any:
    """Texts without those that are no number in any writing: so that a column of nothing else is soon done."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if not texts or not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        return values
    pattern = _WHOLE if pa.types.is_integer(type_) else _REAL
    return pc.if_else(pc.match_substring_regex(values, pattern=pattern), values, pa.scalar(None, values.type))


def _times(zone: str) -> Cast:
    def to(column: Any) -> Any:
        import pyarrow as pa

        found = moments(column, zone)
        return pa.array(found, pa.int64(), mask=found == MISSING).cast(arrow_type("time"))

    return to


def _plain(type_: Any) -> Cast:
    def to(column: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        made = column.cast(type_)
        if pa.types.is_boolean(type_) and pa.types.is_integer(column.type):
            changed = pc.not_equal(made.cast(column.type), column)
        elif pa.types.is_float32(type_) and pa.types.is_floating(column.type):
            changed = pc.and_(pc.is_inf(made), pc.is_finite(column))
        else:
            return made
        if pc.any(changed).as_py():
            raise Invalid("a value has no room in this type", "it would be changed")
        return made

    return to


def _mask(found: Any) -> Mask:
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
