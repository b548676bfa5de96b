"""Columns as bytes between a caller and the isolated process of a feature function: msgpack and raw numbers, no pickle.

Either side may be hostile to the other, so a message has one length, known types, and raises ValueError for all else.
"""

import datetime as dt
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from math import prod
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
from msgspec.msgpack import Ext

DECODING_ERRORS = (
    ValueError,
    TypeError,
    OverflowError,
    ArithmeticError,
    LookupError,
    RecursionError,
    msgspec.MsgspecError,
)
"""What decoding bytes of another process can raise."""
_DTYPE_PATTERN = re.compile(r"[<>|=][biufcMmSU]\d{1,6}(\[[a-z0-9]{1,8}\])?", re.ASCII)
_PLAIN_TYPES = frozenset({type(None), bool, int, float, str, bytes})
_MAX_INT_BITS = 63


class PackedColumn(msgspec.Struct, array_like=True):
    """One column: the bytes of an array, or a list of cells (an array of objects when `dtype` is "O")."""

    dtype: str
    shape: tuple[int, ...]
    cells: Any


class FunctionCall(msgspec.Struct, array_like=True):
    """What a function is called with; `text` is sent with the first call."""

    columns: dict[str, PackedColumn]
    text: str = ""


class FunctionReply(msgspec.Struct, array_like=True):
    """What it gave: columns, or the error in words."""

    columns: dict[str, PackedColumn]
    error: str = ""


def pack_columns(columns: Mapping[str, Any]) -> dict[str, PackedColumn]:
    """Columns ready to encode; TypeError, naming the column, for values that are no data."""
    return {str(name): _pack_column(str(name), values) for name, values in columns.items()}


def unpack_columns(columns: Mapping[str, PackedColumn]) -> dict[str, Any]:
    """Columns as they were packed: arrays (that may be written to) and lists."""
    return {name: _unpack_column(column) for name, column in columns.items()}


def encode_message(message: FunctionCall | FunctionReply) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decode_call(data: bytes | bytearray) -> FunctionCall:
    """A call; one of MALFORMED where the bytes are none."""
    return msgspec.msgpack.decode(data, type=FunctionCall, ext_hook=_unpack_extension)


def decode_reply(data: bytes | bytearray) -> FunctionReply:
    """A reply; one of MALFORMED where the bytes are none."""
    return msgspec.msgpack.decode(data, type=FunctionReply, ext_hook=_unpack_extension)


def _pack_column(name: str, values: Any) -> PackedColumn:
    if isinstance(values, np.ndarray) and values.dtype != object:
        if not _DTYPE_PATTERN.fullmatch(values.dtype.str):
            raise TypeError(f"column {name!r}: expected numbers, texts or moments, got an array of {values.dtype}")
        return PackedColumn(values.dtype.str, values.shape, np.ascontiguousarray(values).tobytes())
    if isinstance(values, np.ndarray):
        return PackedColumn("O", values.shape, [_pack_cell(name, cell) for cell in values.ravel().tolist()])
    if not isinstance(values, (list, tuple)):
        return PackedColumn("", (), _pack_cell(name, values))
    cells = list(values)
    if not _PLAIN_TYPES.issuperset(map(type, cells)) or any(type(cell) is int and _is_long(cell) for cell in cells):
        cells = [_pack_cell(name, cell) for cell in cells]
    return PackedColumn("[]", (len(cells),), cells)


def _unpack_column(column: PackedColumn) -> Any:
    if column.dtype == "":
        return column.cells
    if column.dtype == "[]":
        if not isinstance(column.cells, list):
            raise ValueError("a list without cells")
        return column.cells
    if column.dtype == "O":
        array = np.empty(len(column.cells), object)
        array[:] = column.cells
        return array.reshape(column.shape)
    if not _DTYPE_PATTERN.fullmatch(column.dtype) or not isinstance(column.cells, bytes):
        raise ValueError("an array of no known type")
    dtype = np.dtype(column.dtype)
    if min(column.shape, default=0) < 0 or prod(column.shape) * dtype.itemsize != len(column.cells):
        raise ValueError("an array of another size")
    return np.frombuffer(column.cells, dtype).reshape(column.shape).copy()


def _is_long(number: int) -> bool:
    return number.bit_length() > _MAX_INT_BITS


def _pack_cell(name: str, cell: Any) -> Any:
    if isinstance(cell, (np.datetime64, np.timedelta64)):
        target_dtype = "datetime64[us]" if isinstance(cell, np.datetime64) else "timedelta64[us]"
        cell = cell.astype(target_dtype).item()
    elif isinstance(cell, np.generic):
        cell = cell.item()
    if type(cell) in _PLAIN_TYPES:
        return Ext(_LONG_INT_CODE, str(cell).encode()) if type(cell) is int and _is_long(cell) else cell
    if isinstance(cell, np.ndarray):
        cell = cell.tolist()
    if isinstance(cell, (list, tuple)):
        return [_pack_cell(name, item) for item in cell]
    if isinstance(cell, dict):
        return {str(key): _pack_cell(name, item) for key, item in cell.items()}
    for value_type, extension_code, pack_value in _EXTENSIONS:
        if isinstance(cell, value_type):
            return Ext(extension_code, pack_value(cell).encode())
    raise TypeError(f"column {name!r}: expected numbers, texts, bytes, moments or lists, got {type(cell).__name__}")


def _pack_moment(moment: dt.datetime) -> str:
    zone = getattr(moment.tzinfo, "key", "")
    return f"{moment.replace(tzinfo=None) if zone else moment}|{zone}|{moment.fold}"


def _unpack_moment(text: str) -> dt.datetime:
    iso, zone, fold = text.split("|")
    moment = dt.datetime.fromisoformat(iso).replace(fold=int(fold))
    return moment.replace(tzinfo=ZoneInfo(zone)) if zone else moment


def _pack_duration(duration: dt.timedelta) -> str:
    return f"{duration.days} {duration.seconds} {duration.microseconds}"


def _unpack_duration(text: str) -> dt.timedelta:
    days, seconds, micros = map(int, text.split())
    return dt.timedelta(days, seconds, micros)


_MOMENT_CODE, _DATE_CODE, _TIME_CODE, _DURATION_CODE, _DECIMAL_CODE, _LONG_INT_CODE = 1, 2, 3, 4, 5, 6
_EXTENSIONS: tuple[tuple[type, int, Callable[[Any], str]], ...] = (
    (dt.datetime, _MOMENT_CODE, _pack_moment),
    (dt.date, _DATE_CODE, dt.date.isoformat),
    (dt.time, _TIME_CODE, dt.time.isoformat),
    (dt.timedelta, _DURATION_CODE, _pack_duration),
    (Decimal, _DECIMAL_CODE, str),
)
_UNPACK_BY_CODE: Mapping[int, Callable[[str], Any]] = {
    _MOMENT_CODE: _unpack_moment,
    _DATE_CODE: dt.date.fromisoformat,
    _TIME_CODE: dt.time.fromisoformat,
    _DURATION_CODE: _unpack_duration,
    _DECIMAL_CODE: Decimal,
    _LONG_INT_CODE: int,
}


def _unpack_extension(code: int, data: memoryview) -> Any:
    if len(data) > 5000:
        raise ValueError("a value of no known length")
    return _UNPACK_BY_CODE[code](bytes(data).decode())
