"""Tensors whose numbers travel as lists of protobuf (InferTensorContents) instead of raw bytes."""

from typing import Any

import numpy as np

from falaj.core.errors import Invalid
from falaj.oip import varints
from falaj.oip.messages import CONTENTS
from falaj.oip.tensors import NUMPY, SIZES, Given, Made, elements, texts
from falaj.oip.wire import broken, fields, varint

_FIELDS = {
    "BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4, "UINT32": 4, "UINT64": 5,
    "FP32": 6, "FP64": 7, "BYTES": 8,
}  # fmt: skip
_BYTES, _SLACK = 8, 16
"""And fields of a later protocol beside the elements."""
_FIXED = {6: (5, 4), 7: (1, 8)}
"""Wire type and size of numbers that are not varints."""


def typed(name: str, datatype: str, shape: tuple[int, ...], contents: bytes | memoryview, most: int) -> Given:
    """An input from its contents; Invalid unless they are of its datatype and as many as its shape says. `most` bounds
    the pieces that a list of numbers comes in: each is a turn of the loop."""
    number = _FIELDS.get(datatype)
    if number is None:
        raise Invalid(f"{name[:60]!r} of {datatype} has no contents", "send it as raw_input_contents")
    count = elements(name, shape)
    pieces = []
    for field, wire, value in fields(contents, count + _SLACK if number == _BYTES else most):
        if field == number:
            pieces.append(_piece(field, wire, value))
            if number == _BYTES and len(pieces) > count:
                break
        elif field in CONTENTS.by_number:
            said, right = CONTENTS.by_number[field].name, CONTENTS.by_number[number].name
            raise Invalid(f"{said} for {name[:60]!r} of {datatype}", f"send {right}")
    data = pieces if number == _BYTES else _numbers(name, datatype, b"".join(pieces))
    held = len(data) // SIZES.get(datatype, 1)
    if held != count:
        raise Invalid(f"{name[:60]!r} has {held} elements, and its shape {count}", "send as many as the shape says")
    return Given(name, datatype, shape, data)


def _piece(field: int, wire: int, value: Any) -> bytes:
    """A list, or one number of a list, as packed bytes."""
    if wire == 2:
        whole = field == _BYTES or not len(value)
        if whole or (not len(value) % _FIXED[field][1] if field in _FIXED else value[-1] < 128):
            return bytes(value)
    elif field != _BYTES and wire == _FIXED.get(field, (0, 0))[0]:
        return varint(value) if wire == 0 else bytes(value)
    raise broken("a list holds what is not of its kind")


def _numbers(name: str, datatype: str, packed: bytes) -> bytes:
    if datatype in ("FP32", "FP64"):
        return packed
    wide = varints.unpack(packed)
    if datatype == "BOOL":
        return bytes((wide != 0).tobytes())
    if SIZES[datatype] < 8:
        wide = wide.astype(np.uint32).view("<i4" if datatype.startswith("I") else "<u4")
    made = wide.astype(NUMPY[datatype])
    if SIZES[datatype] < 4 and not np.array_equal(made, wide):
        raise Invalid(f"{name[:60]!r} holds a number that is no {datatype}", "send it in its range")
    return bytes(made.tobytes())


def contents_of(made: Made) -> bytes | None:
    """An output as contents; None for a datatype that has none (FP16, BF16)."""
    number = _FIELDS.get(made.datatype)
    if number is None:
        return None
    if number == _BYTES:
        return b"".join(b"\x42" + varint(len(one)) + one for one in texts(made))
    packed = made.data.tobytes() if number in _FIXED else varints.pack(made.data)
    return varint(number << 3 | 2) + varint(len(packed)) + packed if packed else b""
