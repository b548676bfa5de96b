"""Bodies of the journal as tensors: whatever protocol they came in, names to lists. Pure.

What is in the journal was sent by callers: what cannot be read is left out, and nothing of it is believed.
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import msgspec
import numpy as np

from falaj.core.errors import FalajError, Invalid
from falaj.oip import messages, proto, rest, wire
from falaj.oip.tensors import NUMPY, Ask, Given, Made, given, values_of
from falaj.serve.journal import GONE, GRPC, Logged, lengths

Tensors = dict[str, tuple[tuple[int, ...], list[Any]]]
"""Name to shape and flat values."""
_KNOWN = {
    "bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents", "fp32_contents",
    "fp64_contents", "bytes_contents",
}  # fmt: skip


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class _Response(msgspec.Struct):
    outputs: list[_Output] = []


_UNREADABLE = (FalajError, msgspec.MsgspecError, ValueError, TypeError, LookupError, OverflowError, RecursionError)
_response = msgspec.json.Decoder(_Response).decode


def inputs_of(row: Logged) -> Tensors:
    """What a request gave to the model."""
    try:
        ask = _asked(row)
        return {one.name: (one.shape, _values(one)) for one in ask.inputs} if ask else {}
    except _UNREADABLE:
        return {}


def outputs_of(row: Logged) -> Tensors:
    """What the model answered."""
    if row.encoding == GONE or row.status >= 400 or not row.response:
        return {}
    try:
        found = _grpc(row.response) if row.encoding == GRPC else _rest(row.response, lengths(row.encoding)[1])
        flat = [(name, shape, _flat(values)) for name, shape, values in found]
        return {name: (shape, values) for name, shape, values in flat if _fits(shape, values)}
    except _UNREADABLE:
        return {}


def plain(tensors: Tensors) -> dict[str, Any]:
    """Tensors as nested lists."""
    return {name: _nested(shape, values) for name, (shape, values) in tensors.items()}


def rows_of(tensors: Tensors, name: str) -> "np.ndarray[Any, np.dtype[np.float64]] | None":
    """One tensor as numbers, a line for each row of the request; None when it is not there, or holds no numbers."""
    shape, values = tensors.get(name, ((), []))
    if not values or not all(isinstance(one, (int, float)) for one in values):
        return None
    try:
        return np.asarray(values, np.float64).reshape(shape[0] if shape else 1, -1)
    except OverflowError:
        return None


def _asked(row: Logged) -> Ask | None:
    if row.encoding == GONE or not row.request:
        return None
    if row.encoding == GRPC:
        return proto.read_ask(row.request)[0]
    size = lengths(row.encoding)[0]
    return rest.decode(row.request, size or rest.NO_HEADER, "", "")[0]


def _rest(body: bytes, json_bytes: int) -> Iterable[tuple[str, tuple[int, ...], list[Any]]]:
    at = json_bytes or len(body)
    for one in _response(body[:at]).outputs:
        size = (one.parameters or {}).get("binary_data_size")
        if size is None:
            yield one.name, one.shape, one.data or []
        elif type(size) is int and 0 <= size <= len(body) - at:
            yield one.name, one.shape, _values(given(one.name, one.datatype, one.shape, body[at : at + size]))
            at += size
        else:
            raise Invalid("an answer is shorter than it says", "it was cut")


def _grpc(message: bytes) -> Iterable[tuple[str, tuple[int, ...], list[Any]]]:
    found = wire.decode(messages.INFER_RESPONSE, message)
    raws = found.get("raw_output_contents") or []
    for number, one in enumerate(found.get("outputs") or []):
        name, datatype, shape = str(one["name"]), str(one["datatype"]), tuple(one.get("shape") or ())
        if raws:
            yield name, shape, _values(given(name, datatype, shape, raws[number]))
            continue
        contents: Mapping[str, Any] = one.get("contents") or {}
        yield name, shape, next((list(contents[kind]) for kind in _KNOWN & contents.keys() if contents[kind]), [])


def _values(one: Given) -> list[Any]:
    """Numbers, truths or texts."""
    if isinstance(one.data, list):
        return [item.decode(errors="replace") for item in one.data]
    array = np.frombuffer(one.data, NUMPY.get(one.datatype, "<u2"))
    return values_of(Made(one.name, one.datatype, one.shape, array))


def _flat(values: list[Any]) -> list[Any]:
    while values and isinstance(values[0], list):
        values = [item for part in values for item in part]
    return [item.decode(errors="replace") if isinstance(item, bytes) else item for item in values]


def _fits(shape: tuple[int, ...], values: list[Any]) -> bool:
    return all(size >= 0 for size in shape) and prod(shape) == len(values)


def _nested(shape: tuple[int, ...], values: list[Any]) -> list[Any]:
    if len(shape) < 2 or prod(shape) != len(values):
        return values
    step = len(values) // shape[0] if shape[0] else 0
    return [_nested(shape[1:], values[at : at + step]) for at in range(0, len(values), step)] if step else []
