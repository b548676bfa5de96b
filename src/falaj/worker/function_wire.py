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

MALFORMED = (ValueError, TypeError, OverflowError, ArithmeticError, LookupError, RecursionError, msgspec.MsgspecError)
"""What decoding bytes of another process can raise."""
_DTYPE = re.compile(r"[<>|=][biufcMmSU]\d{1,6}(\[[a-z0-9]{1,8}\])?", re.ASCII)
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_INT_BITS = 63


class Column(msgspec.Struct, array_like=True):
    """One column: the bytes of an array, or a list of cells (an array of objects when `dtype` is "O")."""

    dtype: str
    shape: tuple[int, ...]
    cells: Any


class Call(msgspec.Struct, array_like=True):
    """What a function is called with; `text` is sent with the first call."""

    columns: dict[str, Column]
    text: str = ""


class Reply(msgspec.Struct, array_like=True):
    """What it gave: columns, or the error in words."""

    columns: dict[str, Column]
    error: str = ""


def pack_columns(columns: Mapping[str, Any]) -> dict[str, Column]:
    """Columns ready to encode; TypeError, naming the column, for values that are no data."""
    return {str(name): _pack_column(str(name), values) for name, values in columns.items()}


def unpack_columns(columns: Mapping[str, Column]) -> dict[str, Any]:
    """Columns as they were packed: arrays (that may be written to) and lists."""
    return {name: _unpack_column(column) for name, column in columns.items()}


def encode(message: Call | Reply) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decode_call(data: bytes | bytearray) -> Call:
    """A call; one of MALFORMED where the bytes are none."""
    return msgspec.msgpack.decode(data, type=Call, ext_hook=_open_ext)


def decode_reply(data: bytes | bytearray) -> Reply:
    """A reply; one of MALFORMED where the bytes are none."""
    return msgspec.msgpack.decode(data, type=Reply, ext_hook=_open_ext)


def _pack_column(name: str, values: Any) -> Column:
    if isinstance(values, np.ndarray) and values.dtype != object:
        if not _DTYPE.fullmatch(values.dtype.str):
            raise TypeError(f"column {name!r}: expected numbers, texts or moments, got an array of {values.dtype}")
        return Column(values.dtype.str, values.shape, np.ascontiguousarray(values).tobytes())
    if isinstance(values, np.ndarray):
        return Column("O", values.shape, [_pack_cell(name, cell) for cell in values.ravel().tolist()])
    if not isinstance(values, (list, tuple)):
        return Column("", (), _pack_cell(name, values))
    cells = list(values)
    if not _PLAIN.issuperset(map(type, cells)) or any(type(cell) is int and _is_long(cell) for cell in cells):
        cells = [_pack_cell(name, cell) for cell in cells]
    return Column("[]", (len(cells),), cells)


def _unpack_column(column: Column) -> Any:
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
    if not _DTYPE.fullmatch(column.dtype) or not isinstance(column.cells, bytes):
        raise ValueError("an array of no known type")
    kind = np.dtype(column.dtype)
    if min(column.shape, default=0) < 0 or prod(column.shape) * kind.itemsize != len(column.cells):
        raise ValueError("an array of another size")
    return np.frombuffer(column.cells, kind).reshape(column.shape).copy()


def _is_long(number: int) -> bool:
    return number.bit_length() > _INT_BITS


def _pack_cell(name: str, cell: Any) -> Any:
    if isinstance(cell, (np.datetime64, np.timedelta64)):
        unit = "datetime64[us]" if isinstance(cell, np.datetime64) else "timedelta64[us]"
        cell = cell.astype(unit).item()
    elif isinstance(cell, np.generic):
        cell = cell.item()
    if type(cell) in _PLAIN:
        return Ext(_LONG, str(cell).encode()) if type(cell) is int and _is_long(cell) else cell
    if isinstance(cell, np.ndarray):
        cell = cell.tolist()
    if isinstance(cell, (list, tuple)):
        return [_pack_cell(name, item) for item in cell]
    if isinstance(cell, dict):
        return {str(key): _pack_cell(name, item) for key, item in cell.items()}
    for kind, code, pack in _EXTENSIONS:
        if isinstance(cell, kind):
            return Ext(code, pack(cell).encode())
    raise TypeError(f"column {name!r}: expected numbers, texts, bytes, moments or lists, got {type(cell).__name__}")


def _pack_moment(moment: dt.datetime) -> str:
    zone = getattr(moment.tzinfo, "key", "")
    return f"{moment.replace(tzinfo=None) if zone else moment}|{zone}|{moment.fold}"


def _open_moment(text: str) -> dt.datetime:
    iso, zone, fold = text.split("|")
    moment = dt.datetime.fromisoformat(iso).replace(fold=int(fold))
    return moment.replace(tzinfo=ZoneInfo(zone)) if zone else moment


def _pack_span(span: dt.timedelta) -> str:
    return f"{span.days} {span.seconds} {span.microseconds}"


def _open_span(text: str) -> dt.timedelta:
    days, seconds, micros = map(int, text.split())
    return dt.timedelta(days, seconds, micros)


_MOMENT, _DATE, _TIME, _SPAN, _DECIMAL, _LONG = 1, 2, 3, 4, 5, 6
_EXTENSIONS: tuple[tuple[type, int, Callable[[Any], str]], ...] = (
    (dt.datetime, _MOMENT, _pack_moment),
    (dt.date, _DATE, dt.date.isoformat),
    (dt.time, _TIME, dt.time.isoformat),
    (dt.timedelta, _SPAN, _pack_span),
    (Decimal, _DECIMAL, str),
)
_OPENERS: Mapping[int, Callable[[str], Any]] = {
    _MOMENT: _open_moment,
    _DATE: dt.date.fromisoformat,
    _TIME: dt.time.fromisoformat,
    _SPAN: _open_span,
    _DECIMAL: Decimal,
    _LONG: int,
}


def _open_ext(code: int, data: memoryview) -> Any:
    if len(data) > 5000:
        raise ValueError("a value of no known length")
    return _OPENERS[code](bytes(data).decode())
