"""ModelInfer's messages, read and written by hand: the part of the gRPC protocol that is on the path of every request.

What repeats from request to request (the description of a tensor) is read once and looked up by its bytes after that.
"""

from math import prod
from typing import Any, NamedTuple

from falaj.core.errors import Invalid
from falaj.core.model_manifest import MAX_TENSORS
from falaj.oip.grpc_messages import PARAMETER, REQUESTED_OUTPUT, STREAM_RESPONSE, TENSOR
from falaj.oip.protobuf import (
    MessageField,
    MessageType,
    decode_message,
    decode_text,
    encode_message,
    encode_varint,
    iterate_fields,
    malformed_error,
    read_varint,
    skip_field,
)
from falaj.oip.request_checks import apply_parameters, check_input_names, check_tensor_parameters
from falaj.oip.tensors import (
    DATATYPE_BYTES,
    MAX_TEXT_ELEMENTS,
    InferenceRequest,
    InferenceResponse,
    InputTensor,
    OutputTensor,
    check_text_count,
    count_elements,
    to_input_tensor,
    to_raw_bytes,
)
from falaj.oip.typed_contents import parse_typed_input, to_typed_contents

RAW_RESPONSE, FINAL_MARK = 1, 2
"""How an answer is wanted: as raw bytes; with a mark that it is the last one to its request (Triton's streams)."""
_MAX_FIELDS, _MAX_COPIED_BYTES, _MAX_CACHE_ENTRIES, _MAX_CACHED_BYTES, _PATTERN_KEY_BYTES = 4096, 4096, 1024, 512, 48
_FINAL_PARAMETER = "triton_enable_empty_final_response"
_VALUE_FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
_TENSOR_WITHOUT_CONTENTS = MessageType(*(field for field in TENSOR.fields if field.name != "contents"))
_PARAMETER_ENTRY = MessageType(MessageField(1, "key", "string"), MessageField(2, "value", "message", part=PARAMETER))
FieldBytes = bytes | memoryview


class InputDescription(NamedTuple):
    """What a request says of an input, without its numbers."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    size_bytes: int
    """-1 where the bytes must be looked at (BYTES, BOOL)."""
    contents: FieldBytes | None


class RequestPattern(NamedTuple):
    """A request that differs from others of its caller in the numbers alone: one raw input, and it comes last."""

    prefix: bytes
    """All that stands before the numbers, with their length: what follows can be nothing else."""
    model: str
    version: str
    one: InputDescription | None = None
    outputs: tuple[str, ...] = ()


_peek_patterns: dict[tuple[int, bytes], RequestPattern] = {}
_request_patterns: dict[tuple[int, bytes], RequestPattern] = {}
_input_descriptions: dict[FieldBytes, InputDescription] = {}
_output_names: dict[FieldBytes, str] = {}
_output_prefixes: dict[tuple[str, str, tuple[int, ...]], bytes] = {}
_response_heads: dict[tuple[str, str], bytes] = {}


def peek_model(message: bytes) -> tuple[str, str, str]:
    """Model, version and id of a ModelInferRequest, as `decode_infer_request` would find them; the rest is not looked
    at."""
    key = (len(message), message[:_PATTERN_KEY_BYTES])
    pattern = _peek_patterns.get(key)
    if pattern is not None and message.startswith(pattern.prefix):
        return pattern.model, pattern.version, ""
    request_fields = _split_fields(message)
    model_name, model_version, id_ = (
        _last_text(request_fields[1]),
        _last_text(request_fields[2]),
        _last_text(request_fields[3]),
    )
    prefix = _pattern_prefix(message, request_fields)
    if prefix:
        _cache_entry(_peek_patterns, key, RequestPattern(prefix, model_name, model_version))
    return model_name, model_version, id_


def decode_infer_request(message: bytes) -> tuple[InferenceRequest, int]:
    """The inference a ModelInferRequest asks for, checked, and how its answer is wanted (RAW, FINAL)."""
    key = (len(message), message[:_PATTERN_KEY_BYTES])
    pattern = _request_patterns.get(key)
    if pattern is not None and pattern.one is not None and message.startswith(pattern.prefix):
        single_input, data_start = pattern.one, len(pattern.prefix)
        data = (
            message[data_start:] if single_input.size_bytes <= _MAX_COPIED_BYTES else memoryview(message)[data_start:]
        )
        request = InferenceRequest(
            pattern.model,
            pattern.version,
            [InputTensor(single_input.name, single_input.datatype, single_input.shape, data)],
        )
        request.outputs = pattern.outputs
        return request, RAW_RESPONSE
    return _decode_request(message, key)


def _decode_request(message: bytes, key: tuple[int, bytes]) -> tuple[InferenceRequest, int]:
    request_fields = _split_fields(message)
    raw_contents = request_fields[7]
    descriptions = [_find_description(piece) for piece in request_fields[5][: MAX_TENSORS + 1]]
    if len(descriptions) != 1:
        check_input_names([description.name for description in descriptions])
    check_text_count(
        descriptions[0].name,
        sum([prod(description.shape) for description in descriptions if description.datatype == "BYTES"]),
    )
    if raw_contents:
        if len(raw_contents) != len(descriptions):
            raise Invalid(
                f"{len(raw_contents)} raw_input_contents for {len(descriptions)} inputs", "one each, in their order"
            )
        inputs, response_flags = (
            [_to_raw_input(description, piece) for description, piece in zip(descriptions, raw_contents, strict=True)],
            RAW_RESPONSE,
        )
    else:
        inputs, response_flags = [_to_typed_input(description, len(descriptions)) for description in descriptions], 0
    request = InferenceRequest(_last_text(request_fields[1]), _last_text(request_fields[2]), inputs)
    if request_fields[3]:
        request.id = _last_text(request_fields[3])
    if request_fields[6]:
        request.outputs = [_output_names.get(piece) or _parse_output_name(piece) for piece in request_fields[6]]
        if len(set(request.outputs)) < len(request.outputs):
            raise Invalid("an output is asked for twice", "ask for each once")
    prefix = _pattern_prefix(message, request_fields)
    if prefix and len(descriptions) == 1 and descriptions[0].size_bytes > 0:
        _cache_entry(
            _request_patterns,
            key,
            RequestPattern(prefix, request.model, request.version, descriptions[0], tuple(request.outputs)),
        )
    return request, (response_flags | _apply_request_parameters(request, request_fields[4])) if request_fields[
        4
    ] else response_flags


def _pattern_prefix(message: bytes, request_fields: "tuple[list[FieldBytes], ...]") -> bytes:
    """What stands before the numbers of a request that may be a pattern; empty for one that may not."""
    if len(request_fields[7]) != 1 or request_fields[3] or request_fields[4] or not len(request_fields[7][0]):
        return b""
    prefix = message[: -len(request_fields[7][0])]
    size_mark = b"\x3a" + encode_varint(len(request_fields[7][0]))
    if len(prefix) > _MAX_CACHED_BYTES or not prefix.endswith(size_mark):
        return b""
    fields_before = _split_fields(prefix[: -len(size_mark)])
    return prefix if not fields_before[7] and fields_before[:7] == request_fields[:7] else b""


def encode_infer_response(response: InferenceResponse, response_flags: int) -> bytes:
    """A ModelInferResponse. Raw when the request was; numbers that have no list of their own (FP16) make it raw too."""
    parts = [
        _response_heads.get((response.model, response.version))
        or _encode_response_head(response.model, response.version)
    ]
    if response.id:
        id_bytes = response.id.encode()
        parts.append(b"\x1a" + encode_varint(len(id_bytes)) + id_bytes)
    if response.parameters or response_flags & FINAL_MARK:
        parts.append(
            _encode_parameters(
                response.parameters | ({"triton_final_response": True} if response_flags & FINAL_MARK else {})
            )
        )
    if not response_flags & RAW_RESPONSE and all(to_typed_contents(output) is not None for output in response.outputs):
        parts.extend(_encode_output(output, to_typed_contents(output) or b"") for output in response.outputs)
        return b"".join(parts)
    raw_fields = []
    for output in response.outputs:
        parts.append(_output_prefixes.get((output.name, output.datatype, output.shape)) or _encode_output(output))
        data = to_raw_bytes(output)
        size = len(data)
        raw_fields.append(b"\x32" + encode_varint(size) if size > 127 else _SMALL_SIZE_PREFIXES[size])
        raw_fields.append(data)
    return b"".join(parts + raw_fields)


def wrap_stream_response(response_bytes: bytes) -> bytes:
    """A ModelStreamInferResponse that holds this ModelInferResponse."""
    return b"\x12" + encode_varint(len(response_bytes)) + response_bytes


def encode_stream_error(error: str, id_: str = "") -> bytes:
    """A ModelStreamInferResponse that says what went wrong with the request of this id: the stream goes on."""
    return encode_message(STREAM_RESPONSE, {"error_message": error, "infer_response": {"id": id_} if id_ else None})


_SMALL_SIZE_PREFIXES = tuple(b"\x32" + encode_varint(size) for size in range(128))


def _split_fields(data: bytes) -> tuple[list[FieldBytes], ...]:
    """The fields of ModelInferRequest by number; all seven are sized. Large ones are views, not copies."""
    request_fields: tuple[list[FieldBytes], ...] = ([], [], [], [], [], [], [], [])
    offset, end, count = 0, len(data), 0
    while offset < end:
        tag = data[offset]
        count += 1
        if count > _MAX_FIELDS:
            raise Invalid(f"a request of more than {_MAX_FIELDS} parts", "send fewer parameters and tensors")
        if tag & 7 != 2 or not 8 <= tag <= 0x3A:
            tag, offset = _read_unusual_tag(data, offset)
            if not tag:
                continue
        else:
            offset += 1
        size, offset = (data[offset], offset + 1) if offset < end and data[offset] < 128 else read_varint(data, offset)
        field_end = offset + size
        if field_end > end:
            raise malformed_error("a field is longer than the message")
        request_fields[tag >> 3].append(
            data[offset:field_end] if size <= _MAX_COPIED_BYTES else memoryview(data)[offset:field_end]
        )
        offset = field_end
    return request_fields


def _read_unusual_tag(data: bytes, offset: int) -> tuple[int, int]:
    """A tag that is not one of the seven in one byte: skipped (0), unless it is one of them in more bytes."""
    tag, tag_end = read_varint(data, offset)
    return (tag, tag_end) if tag & 7 == 2 and 8 <= tag <= 0x3A else (0, skip_field(data, offset))


def _last_text(pieces: list[FieldBytes]) -> str:
    last_text = ""
    for piece in pieces:
        last_text = decode_text(piece)
    return last_text


def _find_description(piece: FieldBytes) -> InputDescription:
    description = _input_descriptions.get(piece) if type(piece) is bytes else None
    return description or _parse_description(piece)


def _parse_description(piece: FieldBytes) -> InputDescription:
    # The contents stay bytes here: the tables would make a list of their numbers.
    contents = [value for number, wire, value in iterate_fields(piece, _MAX_FIELDS) if number == 5 and wire == 2]
    decoded = decode_message(_TENSOR_WITHOUT_CONTENTS, piece, _MAX_FIELDS)
    name, datatype, shape = decoded.get("name", ""), decoded.get("datatype", ""), tuple(decoded.get("shape", ()))
    check_tensor_parameters(name, decoded.get("parameters", {}))
    if not name or (datatype != "BYTES" and datatype not in DATATYPE_BYTES):
        raise Invalid(f"{name[:60]!r} is of datatype {datatype[:20]!r}", f"one of {', '.join(DATATYPE_BYTES)}, BYTES")
    count = count_elements(name, shape)
    size = -1 if datatype in ("BYTES", "BOOL") else count * DATATYPE_BYTES[datatype]
    description = InputDescription(name, datatype, shape, size, b"".join(contents) if contents else None)
    if not contents:
        _cache_entry(_input_descriptions, piece, description)
    return description


def _cache_entry(cache: dict[Any, Any], key: Any, value: Any) -> None:
    if type(key) is not memoryview and len(key) <= _MAX_CACHED_BYTES:
        if len(cache) >= _MAX_CACHE_ENTRIES:
            cache.clear()
        cache[key] = value


def _parse_output_name(piece: FieldBytes) -> str:
    decoded = decode_message(REQUESTED_OUTPUT, piece)
    name = str(decoded.get("name", ""))
    if not name:
        raise Invalid("an output that is wanted has no name", "name it, or ask for none to have them all")
    check_tensor_parameters(name, decoded.get("parameters", {}))
    _cache_entry(_output_names, piece, name)
    return name


def _to_raw_input(description: InputDescription, piece: FieldBytes) -> InputTensor:
    if description.contents is not None:
        raise Invalid(
            f"{description.name[:60]!r} has contents beside raw_input_contents", "all inputs are raw, or none is"
        )
    if len(piece) != description.size_bytes:
        return to_input_tensor(description.name, description.datatype, description.shape, piece)
    return InputTensor(description.name, description.datatype, description.shape, piece)


def _to_typed_input(description: InputDescription, input_count: int) -> InputTensor:
    return parse_typed_input(
        description.name,
        description.datatype,
        description.shape,
        description.contents or b"",
        MAX_TEXT_ELEMENTS // input_count,
    )


def _apply_request_parameters(request: InferenceRequest, pieces: list[FieldBytes]) -> int:
    """Puts the request's parameters where they belong."""
    parameters: dict[str, Any] = {}
    for piece in pieces:
        entry = decode_message(_PARAMETER_ENTRY, piece)
        values = tuple(entry.get("value", {}).values())
        if not values:
            raise Invalid(f"the parameter {entry.get('key', '')[:60]!r} has no value", "give it one, or leave it out")
        parameters[entry.get("key", "")] = values[0]
    wants_final_mark = parameters.pop(_FINAL_PARAMETER, False) is True
    apply_parameters(request, parameters)
    return FINAL_MARK if wants_final_mark else 0


def _encode_response_head(model_name: str, model_version: str) -> bytes:
    response_head = encode_message(_MODEL_FIELDS, {"model_name": model_name, "model_version": model_version})
    if len(_response_heads) >= _MAX_CACHE_ENTRIES:
        _response_heads.clear()
    _response_heads[model_name, model_version] = response_head
    return response_head


_MODEL_FIELDS = MessageType(MessageField(1, "model_name", "string"), MessageField(2, "model_version", "string"))


def _encode_parameters(parameters: dict[str, Any]) -> bytes:
    value_fields = {
        name: {_VALUE_FIELDS.get(type(parameter_value), "string_param"): parameter_value}
        for name, parameter_value in parameters.items()
    }
    return encode_message(_PARAMETERS_FIELD, {"parameters": value_fields})


_PARAMETERS_FIELD = MessageType(MessageField(4, "parameters", "map", part=PARAMETER))


def _encode_output(output: OutputTensor, contents: bytes | None = None) -> bytes:
    encoded = encode_message(
        _TENSOR_WITHOUT_CONTENTS, {"name": output.name, "datatype": output.datatype, "shape": output.shape}
    )
    if contents is not None:
        encoded += b"\x2a" + encode_varint(len(contents)) + contents
    encoded = b"\x2a" + encode_varint(len(encoded)) + encoded
    if contents is None:
        _cache_entry(_output_prefixes, (output.name, output.datatype, output.shape), encoded)
    return encoded
