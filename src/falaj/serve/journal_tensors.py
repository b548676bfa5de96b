"""Bodies of the journal as tensors: whatever protocol they came in, names to lists. Pure.

What is in the journal was sent by callers: what cannot be read is left out, and nothing of it is believed.
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import msgspec
import numpy as np

from falaj.core.errors import FalajError, Invalid
from falaj.oip import grpc_messages, infer_messages, protobuf, rest_codec
from falaj.oip.tensors import NUMPY_TYPES, InferenceRequest, InputTensor, OutputTensor, to_input_tensor, to_plain_values
from falaj.serve.request_journal import GRPC_ENCODING, NO_BODY_ENCODING, JournalRow, parse_binary_encoding

TensorsByName = dict[str, tuple[tuple[int, ...], list[Any]]]
"""Name to shape and flat values."""
_CONTENTS_FIELDS = {
    "bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents", "fp32_contents",
    "fp64_contents", "bytes_contents",
}  # fmt: skip


class _OutputFields(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class _ResponseFields(msgspec.Struct):
    outputs: list[_OutputFields] = []


_UNREADABLE = (FalajError, msgspec.MsgspecError, ValueError, TypeError, LookupError, OverflowError, RecursionError)
_decode_response = msgspec.json.Decoder(_ResponseFields).decode


def read_inputs(row: JournalRow) -> TensorsByName:
    """What a request gave to the model."""
    try:
        request = _decode_request(row)
        return {tensor.name: (tensor.shape, _tensor_values(tensor)) for tensor in request.inputs} if request else {}
    except _UNREADABLE:
        return {}


def read_outputs(row: JournalRow) -> TensorsByName:
    """What the model answered."""
    if row.encoding == NO_BODY_ENCODING or row.status >= 400 or not row.response:
        return {}
    try:
        tensors = (
            _decode_grpc_outputs(row.response)
            if row.encoding == GRPC_ENCODING
            else _decode_rest_outputs(row.response, parse_binary_encoding(row.encoding)[1])
        )
        flat = [(name, shape, _flatten_values(values)) for name, shape, values in tensors]
        return {name: (shape, values) for name, shape, values in flat if _matches_shape(shape, values)}
    except _UNREADABLE:
        return {}


def to_nested_lists(tensors: TensorsByName) -> dict[str, Any]:
    """Tensors as nested lists."""
    return {name: _nest_values(shape, values) for name, (shape, values) in tensors.items()}


def to_row_matrix(tensors: TensorsByName, name: str) -> "np.ndarray[Any, np.dtype[np.float64]] | None":
    """One tensor as numbers, a line for each row of the request; None when it is not there, or holds no numbers."""
    shape, values = tensors.get(name, ((), []))
    if not values or not all(isinstance(value, (int, float)) for value in values):
        return None
    try:
        return np.asarray(values, np.float64).reshape(shape[0] if shape else 1, -1)
    except OverflowError:
        return None


def _decode_request(row: JournalRow) -> InferenceRequest | None:
    if row.encoding == NO_BODY_ENCODING or not row.request:
        return None
    if row.encoding == GRPC_ENCODING:
        return infer_messages.decode_infer_request(row.request)[0]
    size = parse_binary_encoding(row.encoding)[0]
    return rest_codec.decode_request(row.request, size or rest_codec.NO_JSON_LENGTH, "", "")[0]


def _decode_rest_outputs(body: bytes, json_bytes: int) -> Iterable[tuple[str, tuple[int, ...], list[Any]]]:
    offset = json_bytes or len(body)
    for output in _decode_response(body[:offset]).outputs:
        size = (output.parameters or {}).get("binary_data_size")
        if size is None:
            yield output.name, output.shape, output.data or []
        elif type(size) is int and 0 <= size <= len(body) - offset:
            yield (
                output.name,
                output.shape,
                _tensor_values(
                    to_input_tensor(output.name, output.datatype, output.shape, body[offset : offset + size])
                ),
            )
            offset += size
        else:
            raise Invalid("an answer is shorter than it says", "it was cut")


def _decode_grpc_outputs(message: bytes) -> Iterable[tuple[str, tuple[int, ...], list[Any]]]:
    response = protobuf.decode_message(grpc_messages.INFER_RESPONSE, message)
    raw_contents = response.get("raw_output_contents") or []
    for output_index, output in enumerate(response.get("outputs") or []):
        name, datatype, shape = str(output["name"]), str(output["datatype"]), tuple(output.get("shape") or ())
        if raw_contents:
            yield name, shape, _tensor_values(to_input_tensor(name, datatype, shape, raw_contents[output_index]))
            continue
        contents: Mapping[str, Any] = output.get("contents") or {}
        yield (
            name,
            shape,
            next((list(contents[kind]) for kind in _CONTENTS_FIELDS & contents.keys() if contents[kind]), []),
        )


def _tensor_values(tensor: InputTensor) -> list[Any]:
    """Numbers, truths or texts."""
    if isinstance(tensor.data, list):
        return [item.decode(errors="replace") for item in tensor.data]
    array = np.frombuffer(tensor.data, NUMPY_TYPES.get(tensor.datatype, "<u2"))
    return to_plain_values(OutputTensor(tensor.name, tensor.datatype, tensor.shape, array))


def _flatten_values(values: list[Any]) -> list[Any]:
    while values and isinstance(values[0], list):
        values = [item for part in values for item in part]
    return [item.decode(errors="replace") if isinstance(item, bytes) else item for item in values]


def _matches_shape(shape: tuple[int, ...], values: list[Any]) -> bool:
    return all(size >= 0 for size in shape) and prod(shape) == len(values)


def _nest_values(shape: tuple[int, ...], values: list[Any]) -> list[Any]:
    if len(shape) < 2 or prod(shape) != len(values):
        return values
    step = len(values) // shape[0] if shape[0] else 0
    return (
        [_nest_values(shape[1:], values[offset : offset + step]) for offset in range(0, len(values), step)]
        if step
        else []
    )
