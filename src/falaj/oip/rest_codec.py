"""Inference over HTTP: JSON, with tensors as lists or as bytes behind it (Triton's binary tensor extension)."""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any

import msgspec

from falaj.core.errors import FalajError, Invalid, UserCodeFailed
from falaj.core.model_manifest import MAX_DIMENSIONS, MAX_TENSORS
from falaj.oip.again import DATATYPES, Wanted, listed, of_header, reader, remember, remember_list
from falaj.oip.handler_calls import JSON_TYPE, OCTET_STREAM_TYPE, HttpReply, retry_after_header
from falaj.oip.request_checks import apply_parameters, check_input_names, check_tensor_parameters
from falaj.oip.tensors import (
    MAX_COPIED_BYTES,
    InferenceRequest,
    InferenceResponse,
    InputTensor,
    OutputTensor,
    check_text_count,
    count_elements,
    pack_numbers,
    to_input_tensor,
    to_plain_values,
    to_raw_bytes,
)

JSON_LENGTH_HEADER = b"inference-header-content-length"
NO_JSON_LENGTH = -1
MAX_ID_CHARS = 1024
_Parameters = dict[str, bool | int | float | str]
_DimensionSize = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_TensorShape = Annotated[tuple[_DimensionSize, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]


class _InputFields(msgspec.Struct):
    name: str
    datatype: str
    shape: _TensorShape
    data: msgspec.Raw = msgspec.Raw()
    parameters: _Parameters | None = None


class _OutputFields(msgspec.Struct):
    name: str
    parameters: _Parameters | None = None


class _RequestFields(msgspec.Struct):
    inputs: list[_InputFields]
    id: str | None = None
    parameters: _Parameters | None = None
    outputs: list[_OutputFields] | None = None


class _TensorFields(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class _ResponseFields(msgspec.Struct, omit_defaults=True):
    model_name: str
    outputs: list[_TensorFields]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] | None = None


_decode_request_fields = msgspec.json.Decoder(_RequestFields).decode
_encode_json = msgspec.json.Encoder().encode


def parse_json_length(headers: Mapping[bytes, bytes]) -> int:
    """What the caller says the length of the JSON is; NO_HEADER when nothing is said."""
    header_value = headers.get(JSON_LENGTH_HEADER)
    if header_value is None:
        return NO_JSON_LENGTH
    if not header_value.isdigit() or len(header_value) > 12:
        raise Invalid("Inference-Header-Content-Length is no length", "the bytes of the JSON, in digits")
    return int(header_value)


def decode_request(body: bytes, json_length: int, model: str, version: str) -> tuple[InferenceRequest, Wanted]:
    """The request in a body, checked, and how its answer is wanted."""
    binary_tail: bytes | memoryview = b""
    if json_length >= 0:
        if json_length > len(body):
            raise Invalid(f"the JSON is said to have {json_length} bytes, and the body has {len(body)}", "count again")
        binary_tail = body[json_length:] if len(body) < MAX_COPIED_BYTES else memoryview(body)[json_length:]
        body = body[:json_length]
        if (cached_header := of_header(body, binary_tail)) is not None:
            return cached_header.again(model, version, binary_tail)
    elif (cached_list := listed(body)) is not None and (
        repeated := cached_list[0].again(model, version, cached_list[1])
    ) is not None:
        return repeated
    try:
        request_fields = _decode_request_fields(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Invalid(f"the body is no request: {str(error)[:300]}", "see the Open Inference Protocol") from error
    request = InferenceRequest(model, version, _parse_inputs(request_fields.inputs, binary_tail))
    if request_fields.id:
        if len(request_fields.id) > MAX_ID_CHARS:
            raise Invalid("the id is too long", f"{MAX_ID_CHARS} letters at most")
        request.id = request_fields.id
    # Looked at now: what is understood is taken out.
    is_plain = not request_fields.id and (
        not request_fields.parameters or request_fields.parameters.keys() <= _BINARY_ONLY
    )
    wants_binary = _apply_request_parameters(request, request_fields.parameters) if request_fields.parameters else False
    output_choice = (
        _parse_outputs(request, request_fields.outputs, wants_binary) if request_fields.outputs else wants_binary
    )
    if binary_tail and is_plain:
        remember(body, len(binary_tail), request, output_choice)
    elif is_plain and len(request_fields.inputs) == 1 and not request_fields.inputs[0].parameters:
        remember_list(body, request, output_choice, _first_input_text)
    return request, output_choice


def _first_input_text(body: bytes) -> bytes:
    """The data of the first input of a request, as text; nothing where it is none."""
    try:
        return bytes(memoryview(_decode_request_fields(body).inputs[0].data))
    except (msgspec.MsgspecError, ValueError, RecursionError, IndexError):
        return b""


_MAX_CACHE_ENTRIES = 1024
_BINARY_ONLY = frozenset({"binary_data_output"})


def decode_raw_request(
    body: bytes, request: InferenceRequest, input_spec: Mapping[str, Any], *, is_batched: bool
) -> tuple[InferenceRequest, Wanted]:
    """A body that is nothing but the one input of a model, for one row (Inference-Header-Content-Length: 0).
    `input_spec` is that input as metadata say it."""
    name, datatype, shape = (
        str(input_spec["name"]),
        str(input_spec["datatype"]),
        [int(dimension) for dimension in input_spec["shape"]],
    )
    if is_batched and shape:
        shape[0] = 1
    if datatype == "BYTES":
        if any(dimension not in (-1, 1) for dimension in shape):
            raise Invalid(f"{name[:60]!r} takes more than one element", "send a request with a header in JSON")
        request.inputs = [InputTensor(name, datatype, (1,) * len(shape), [body])]
        return request, True
    known_elements = math.prod(dimension for dimension in shape if dimension >= 0)
    if shape.count(-1) > 1:
        raise Invalid(f"the shape of {name[:60]!r} cannot be told from its bytes", "send a request with a header")
    row_bytes = known_elements * len(pack_numbers(name, datatype, [0]))
    shape = [len(body) // row_bytes if dimension < 0 and row_bytes else max(dimension, 0) for dimension in shape]
    request.inputs = [to_input_tensor(name, datatype, tuple(shape), body)]
    return request, True


def encode_response(response: InferenceResponse, output_choice: Wanted) -> HttpReply:
    """An answer as it is sent. What was not asked for is left out; what is not there is Invalid."""
    outputs = response.outputs
    if output_choice is True and outputs and not response.id and not response.parameters:
        return _encode_binary_response(response)
    if type(output_choice) is dict:
        by_name = {output.name: output for output in outputs}
        missing_names = [name for name in output_choice if name not in by_name]
        if missing_names:
            raise Invalid(f"the model has no output {missing_names[0][:60]!r}", f"it has {', '.join(by_name)}"[:300])
        outputs = [by_name[name] for name in output_choice]
    binary_tail: list[bytes] = []
    tensors = [
        _encode_tensor(
            output, output_choice if type(output_choice) is bool else output_choice[output.name], binary_tail
        )
        for output in outputs
    ]
    json_head = _encode_json(
        _ResponseFields(response.model, tensors, response.version, response.id, response.parameters or None)
    )
    # A number that JSON has no word for is written as null: nobody should take it for something else.
    if b"null" in json_head:
        _check_finite(tensors)
    if not binary_tail:
        return HttpReply(200, (json_head,))
    return HttpReply(200, (json_head, *binary_tail), kind=OCTET_STREAM_TYPE, json_bytes=len(json_head))


def _encode_binary_response(response: InferenceResponse) -> HttpReply:
    """All outputs as bytes, behind a header that is the same for all answers of their shapes."""
    binary_tail = [to_raw_bytes(output) for output in response.outputs]
    sizes = [
        (output.name, output.datatype, output.shape, len(raw))
        for output, raw in zip(response.outputs, binary_tail, strict=True)
    ]
    key = (response.model, response.version, *sizes)
    json_head = _BINARY_HEAD_CACHE.get(key)
    if json_head is None:
        tensors = [
            _TensorFields(name, datatype, shape, {"binary_data_size": size}) for name, datatype, shape, size in sizes
        ]
        json_head = _encode_json(_ResponseFields(response.model, tensors, response.version))
        if len(_BINARY_HEAD_CACHE) >= _MAX_CACHE_ENTRIES:
            _BINARY_HEAD_CACHE.clear()
        _BINARY_HEAD_CACHE[key] = json_head
    return HttpReply(200, (json_head, *binary_tail), kind=OCTET_STREAM_TYPE, json_bytes=len(json_head))


_BINARY_HEAD_CACHE: dict[tuple[Any, ...], bytes] = {}


def json_around_outputs(model: str, version: str, outputs: Sequence[OutputTensor]) -> list[bytes]:
    """An answer in JSON without its numbers: what stands before, between and behind those of its outputs."""
    key = (model, version, *[(output.name, output.datatype, output.shape) for output in outputs])
    fragments = _JSON_FRAME_CACHE.get(key)
    if fragments is None:
        tensors = [_TensorFields(output.name, output.datatype, output.shape, None, []) for output in outputs]
        # No text holds these bytes: a quotation mark within one has a backslash before it.
        first_fragment, *other_fragments = _encode_json(_ResponseFields(model, tensors, version)).split(b'"data":[]')
        fragments = [
            first_fragment + b'"data":[',
            *(b"]" + fragment + b'"data":[' for fragment in other_fragments[:-1]),
            b"]" + other_fragments[-1],
        ]
        if len(_JSON_FRAME_CACHE) >= _MAX_CACHE_ENTRIES:
            _JSON_FRAME_CACHE.clear()
        _JSON_FRAME_CACHE[key] = fragments
    return fragments


_JSON_FRAME_CACHE: dict[tuple[Any, ...], list[bytes]] = {}


def error_reply(error: FalajError) -> HttpReply:
    """An error as clients of the protocol read it: {"error": text}, and nothing else."""
    headers = ((b"www-authenticate", b"Bearer"),) if error.status == 401 else retry_after_header(error)
    return HttpReply(error.status, (_encode_json({"error": str(error)}),), headers=headers)


def status_reply(status: int, message: str, hint: str) -> HttpReply:
    """The same for what has no class of its own: the statuses of HTTP itself."""
    return json_reply({"error": f"{message} ({hint})"}, status)


def json_reply(value: Any, status: int = 200) -> HttpReply:
    """Plain values as JSON."""
    return HttpReply(status, (_encode_json(value),), kind=JSON_TYPE)


def _parse_inputs(input_fields: Sequence[_InputFields], binary_tail: "bytes | memoryview") -> list[InputTensor]:
    if len(input_fields) != 1:
        check_input_names([item.name for item in input_fields])
    tensors, offset, text_count = [], 0, 0
    for item in input_fields:
        if item.datatype == "BYTES":
            text_count += math.prod(item.shape)
            check_text_count(item.name, text_count)
        size = _binary_size(item) if item.parameters else None
        if size is None:
            tensors.append(_parse_list_input(item))
            continue
        tensors.append(to_input_tensor(item.name, item.datatype, item.shape, binary_tail[offset : offset + size]))
        offset += size
    if offset != len(binary_tail):
        raise Invalid(
            f"the inputs say {offset} bytes of binary data, and {len(binary_tail)} came",
            "binary_data_size is of each input",
        )
    return tensors


def _binary_size(input_fields: _InputFields) -> int | None:
    parameters = input_fields.parameters or {}
    check_tensor_parameters(input_fields.name, parameters)
    size = parameters.get("binary_data_size")
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise Invalid(
            f"binary_data_size of {input_fields.name[:60]!r} is no size", "how many bytes of it follow the JSON"
        )
    if memoryview(input_fields.data):
        raise Invalid(f"{input_fields.name[:60]!r} has data and binary_data_size", "send one of them")
    return size


def _parse_list_input(input_fields: _InputFields) -> InputTensor:
    """An input whose data is a list in the JSON: flat, or nested as its shape says."""
    count = math.prod(input_fields.shape) or count_elements(input_fields.name, input_fields.shape)
    raw_data = memoryview(input_fields.data)
    depth = 1 if len(raw_data) > 1 and raw_data[1] not in b"[ \t\r\n" else _nesting_depth(input_fields.name, raw_data)
    try:
        values = reader(input_fields.datatype, depth)(raw_data)
    except KeyError:
        raise Invalid(
            f"{input_fields.name[:60]!r} is of datatype {input_fields.datatype[:20]!r}",
            f"one of {', '.join(DATATYPES)}",
        ) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Invalid(
            f"the data of {input_fields.name[:60]!r}: {str(error)[:200]}", f"a list of {input_fields.datatype}"
        ) from error
    if depth > 1:
        values = _flatten_values(input_fields, values, depth)
    if len(values) != count:
        raise Invalid(f"{input_fields.name[:60]!r} has {len(values)} elements, and its shape {count}", "send as many")
    if input_fields.datatype == "BYTES":
        return InputTensor(input_fields.name, "BYTES", input_fields.shape, [text.encode() for text in values])
    return InputTensor(
        input_fields.name,
        input_fields.datatype,
        input_fields.shape,
        pack_numbers(input_fields.name, input_fields.datatype, values),
    )


def _nesting_depth(name: str, raw: memoryview) -> int:
    """How deep the list is nested, by how it begins."""
    if not raw:
        raise Invalid(f"{name[:60]!r} has no data", "data, or parameters.binary_data_size")
    opening = bytes(raw[:4096]).translate(None, b" \t\r\n")
    return max(1, min(len(opening) - len(opening.lstrip(b"[")), MAX_DIMENSIONS))


def _flatten_values(input_fields: _InputFields, values: list[Any], depth: int) -> list[Any]:
    shape = input_fields.shape[: input_fields.shape.index(0) + 1] if 0 in input_fields.shape else input_fields.shape
    if depth != len(shape):
        raise Invalid(
            f"{input_fields.name[:60]!r} is nested {depth} deep, and its shape {len(shape)}", "nest as the shape"
        )
    fits = len(values) == shape[0]
    for size in shape[1:]:
        fits = fits and all(len(inner) == size for inner in values)
        values = list(chain.from_iterable(values))
    if not fits:
        raise Invalid(f"{input_fields.name[:60]!r} is not nested as its shape", "every list as long as the shape says")
    return values


def _apply_request_parameters(request: InferenceRequest, parameters: _Parameters) -> bool:
    """The parameters that are understood go where they belong; the rest is the model's. Whether outputs are binary."""
    wants_binary = parameters.pop("binary_data_output", False)
    if type(wants_binary) is not bool:
        raise Invalid("binary_data_output is neither true nor false", "true: all outputs as bytes")
    apply_parameters(request, parameters)
    return wants_binary


def _parse_outputs(request: InferenceRequest, output_fields: Sequence[_OutputFields], default_binary: bool) -> Wanted:
    binary_by_name: dict[str, bool] = {}
    for item in output_fields:
        parameters = item.parameters or {}
        check_tensor_parameters(item.name, parameters)
        as_bytes = parameters.get("binary_data", default_binary)
        if type(as_bytes) is not bool:
            raise Invalid(f"binary_data of {item.name[:60]!r} is neither true nor false", "true: as bytes")
        binary_by_name[item.name] = as_bytes
    if len(binary_by_name) < len(output_fields) or len(output_fields) > MAX_TENSORS:
        raise Invalid("an output is asked for twice, or there are too many", f"each once, {MAX_TENSORS} at most")
    request.outputs = tuple(binary_by_name)
    return binary_by_name


def _encode_tensor(output: OutputTensor, as_bytes: bool, binary_tail: list[bytes]) -> _TensorFields:
    if not as_bytes:
        return _TensorFields(output.name, output.datatype, output.shape, None, to_plain_values(output))
    raw = to_raw_bytes(output)
    binary_tail.append(raw)
    return _TensorFields(output.name, output.datatype, output.shape, {"binary_data_size": len(raw)})


def _check_finite(tensors: Sequence[_TensorFields]) -> None:
    for tensor in tensors:
        if tensor.data and isinstance(tensor.data[0], float) and not all(map(math.isfinite, tensor.data)):
            raise UserCodeFailed(
                f"the model's {tensor.name[:60]!r} holds NaN or infinity, and JSON has no word for them",
                "ask for it as binary data",
            )
