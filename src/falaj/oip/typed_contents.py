"""Tensors whose numbers travel as lists of protobuf (InferTensorContents) instead of raw bytes."""

from typing import Any

import numpy as np

from falaj.core.errors import Invalid
from falaj.oip import packed_varints
from falaj.oip.grpc_messages import CONTENTS
from falaj.oip.protobuf import encode_varint, iterate_fields, malformed_error
from falaj.oip.tensors import DATATYPE_BYTES, NUMPY_TYPES, InputTensor, OutputTensor, count_elements, to_byte_elements

_CONTENTS_FIELDS = {
    "BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4, "UINT32": 4, "UINT64": 5,
    "FP32": 6, "FP64": 7, "BYTES": 8,
}  # fmt: skip
_BYTES_FIELD, _EXTRA_FIELDS = 8, 16
"""And fields of a later protocol beside the elements."""
_FIXED_SIZE_FIELDS = {6: (5, 4), 7: (1, 8)}
"""Wire type and size of numbers that are not varints."""


def parse_typed_input(
    name: str, datatype: str, shape: tuple[int, ...], contents: bytes | memoryview, max_pieces: int
) -> InputTensor:
    """An input from its contents; Invalid unless they are of its datatype and as many as its shape says. `max_pieces`
    bounds the pieces that a list of numbers comes in: each is a turn of the loop."""
    number = _CONTENTS_FIELDS.get(datatype)
    if number is None:
        raise Invalid(f"{name[:60]!r} of {datatype} has no contents", "send it as raw_input_contents")
    count = count_elements(name, shape)
    pieces = []
    for field, wire_type, value in iterate_fields(
        contents, count + _EXTRA_FIELDS if number == _BYTES_FIELD else max_pieces
    ):
        if field == number:
            pieces.append(_to_packed_piece(field, wire_type, value))
            if number == _BYTES_FIELD and len(pieces) > count:
                break
        elif field in CONTENTS.by_number:
            sent_field, expected_field = CONTENTS.by_number[field].name, CONTENTS.by_number[number].name
            raise Invalid(f"{sent_field} for {name[:60]!r} of {datatype}", f"send {expected_field}")
    data = pieces if number == _BYTES_FIELD else _unpack_numbers(name, datatype, b"".join(pieces))
    element_count = len(data) // DATATYPE_BYTES.get(datatype, 1)
    if element_count != count:
        raise Invalid(
            f"{name[:60]!r} has {element_count} elements, and its shape {count}", "send as many as the shape says"
        )
    return InputTensor(name, datatype, shape, data)


def _to_packed_piece(field: int, wire_type: int, value: Any) -> bytes:
    """A list, or one number of a list, as packed bytes."""
    if wire_type == 2:
        needs_no_check = field == _BYTES_FIELD or not len(value)
        if needs_no_check or (
            not len(value) % _FIXED_SIZE_FIELDS[field][1] if field in _FIXED_SIZE_FIELDS else value[-1] < 128
        ):
            return bytes(value)
    elif field != _BYTES_FIELD and wire_type == _FIXED_SIZE_FIELDS.get(field, (0, 0))[0]:
        return encode_varint(value) if wire_type == 0 else bytes(value)
    raise malformed_error("a list holds what is not of its kind")


def _unpack_numbers(name: str, datatype: str, packed: bytes) -> bytes:
    if datatype in ("FP32", "FP64"):
        return packed
    wide_numbers = packed_varints.unpack_varints(packed)
    if datatype == "BOOL":
        return bytes((wide_numbers != 0).tobytes())
    if DATATYPE_BYTES[datatype] < 8:
        wide_numbers = wide_numbers.astype(np.uint32).view("<i4" if datatype.startswith("I") else "<u4")
    converted = wide_numbers.astype(NUMPY_TYPES[datatype])
    if DATATYPE_BYTES[datatype] < 4 and not np.array_equal(converted, wide_numbers):
        raise Invalid(f"{name[:60]!r} holds a number that is no {datatype}", "send it in its range")
    return bytes(converted.tobytes())


def to_typed_contents(output: OutputTensor) -> bytes | None:
    """An output as contents; None for a datatype that has none (FP16, BF16)."""
    number = _CONTENTS_FIELDS.get(output.datatype)
    if number is None:
        return None
    if number == _BYTES_FIELD:
        return b"".join(b"\x42" + encode_varint(len(element)) + element for element in to_byte_elements(output))
    packed = output.data.tobytes() if number in _FIXED_SIZE_FIELDS else packed_varints.pack_varints(output.data)
    return encode_varint(number << 3 | 2) + encode_varint(len(packed)) + packed if packed else b""
