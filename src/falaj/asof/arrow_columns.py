"""Columns of rows between Arrow and segments: the types, and the buffers as they are."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from falaj.asof.moments import to_moments
from falaj.asof.records import MISSING_MOMENT
from falaj.asof.segment import SegmentColumn
from falaj.core.errors import Invalid

_TYPES = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "time": pa.timestamp("us", "UTC"),
}
_LARGE = {"string": pa.large_string(), "bytes": pa.large_binary()}
_FIXED = {"int32": "<i4", "int64": "<i8", "float32": "<f4", "float64": "<f8", "time": "<i8"}


def to_arrow_type(kind: str, large: bool = False) -> pa.DataType:
    """The Arrow type of a type of asof/records.py; `large` with offsets of 64 bits, as rows are kept."""
    if kind.startswith("list[") and kind.endswith("]"):
        items = to_arrow_type(kind[5:-1], large)
        return pa.large_list(items) if large else pa.list_(items)
    if kind not in _TYPES:
        raise Invalid(f"{kind} is not a type", f"types are {', '.join(_TYPES)} and list[...] of one of them")
    return _LARGE.get(kind, _TYPES[kind]) if large else _TYPES[kind]


def cast_to_kind(column: pa.Array, kind: str, zone: str = "") -> pa.Array:
    """A column in the form in which rows are kept, or Invalid where a value does not fit."""
    if kind == "time" and not pa.types.is_null(column.type):
        moment_values = to_moments(column, zone)
        return pa.array(moment_values, pa.int64(), mask=moment_values == MISSING_MOMENT).cast(_TYPES["time"])
    try:
        return column.cast(to_arrow_type(kind, large=True))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Invalid(f"a column of {column.type} does not fit {kind}", "cast it in the view") from None


def combine_chunks(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array, whatever chunks it came in."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def to_segment_column(array: pa.Array, kind: str) -> SegmentColumn:
    """The buffers to write. Nothing undefined is in them, so that the same rows make the same file."""
    num = len(array)
    if array.offset:
        array = pa.concat_arrays([array, array[:0]])
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    bits = None if valid is None else np.packbits(valid, bitorder="little")
    if kind == "bool":
        values = array.fill_null(False).to_numpy(zero_copy_only=False)
        return SegmentColumn(kind, num, bits, None, np.packbits(values, bitorder="little"))
    if kind in _FIXED:
        data = _view_buffer(array.buffers()[1], _FIXED[kind])[:num]
        return SegmentColumn(
            kind, num, bits, None, data if valid is None else np.where(valid, data, data.dtype.type(0))
        )
    offsets = _view_buffer(array.buffers()[1], "<i8")[: num + 1] if num else np.zeros(1, np.int64)
    if valid is not None and bool(np.any((offsets[1:] != offsets[:-1])[~valid])):
        return to_segment_column(array.take(pa.array(np.arange(num))), kind)
    first, last = int(offsets[0]), int(offsets[-1])
    offsets = offsets - first if first else offsets
    if kind.startswith("list["):
        items = array.values[first:last]
        return SegmentColumn(kind, num, bits, offsets, None, to_segment_column(items, kind[5:-1]))
    return SegmentColumn(kind, num, bits, offsets, _view_buffer(array.buffers()[2], "|u1")[first:last])


def from_segment_column(column: SegmentColumn) -> pa.Array:
    """An Arrow array over the same memory."""
    kind = to_arrow_type(column.type, large=True)
    bits = None if column.validity is None else pa.py_buffer(column.validity)
    if column.items is not None:
        return pa.Array.from_buffers(
            kind, column.num, [bits, pa.py_buffer(column.offsets)], children=[from_segment_column(column.items)]
        )
    offset_buffers = [] if column.offsets is None else [pa.py_buffer(column.offsets)]
    return pa.Array.from_buffers(kind, column.num, [bits, *offset_buffers, pa.py_buffer(column.data)])


def view_numbers(array: pa.Array, kind: str) -> NDArray[Any] | None:
    """The values of a column of one width over the same memory, whatever lies under nulls; None of other types."""
    if kind not in _FIXED:
        return None
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), _FIXED[kind])
    return _view_buffer(buffer, _FIXED[kind])[array.offset : array.offset + len(array)]


def array_from_numbers(values: NDArray[Any], kind: str, present: NDArray[np.bool_]) -> pa.Array:
    """The other way, null where there is none."""
    absent = len(present) - int(np.count_nonzero(present))
    bits = pa.py_buffer(np.packbits(present, bitorder="little")) if absent else None
    return pa.Array.from_buffers(to_arrow_type(kind), len(values), [bits, pa.py_buffer(values)], absent)


def _view_buffer(buffer: Any, dtype: str) -> NDArray[Any]:
    return np.empty(0, dtype) if buffer is None else np.frombuffer(buffer, dtype)
