"""Tensors as they travel: raw little-endian bytes, or a list of texts and bytes (BYTES)."""

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from falaj.core.errors import Invalid, UserCodeFailed
from falaj.core.model_manifest import MAX_DIMENSIONS

DATATYPE_BYTES = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8,
}  # fmt: skip
NUMPY_TYPES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
"""BF16 has no type in numpy: its bytes are handed on as uint16."""


class InputTensor:
    """An input of a request, checked: `data` holds exactly as many bytes as the shape says, or as many elements."""

    __slots__ = ("data", "datatype", "name", "shape")

    def __init__(
        self, name: str, datatype: str, shape: tuple[int, ...], data: "bytes | memoryview | list[bytes]"
    ) -> None:
        self.name, self.datatype, self.shape, self.data = name, datatype, shape, data


class OutputTensor:
    """An output of an answer: a numpy array of the shape, or for BYTES a list of bytes."""

    __slots__ = ("data", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: tuple[int, ...], data: Any) -> None:
        self.name, self.datatype, self.shape, self.data = name, datatype, shape, data


class InferenceRequest:
    """One inference, as every protocol gives it to the engine."""

    num = 1
    """How many requests it stands for."""
    came = 0.0
    """When it came, as time.monotonic() says it; 0: now."""
    __slots__ = (
        "deadline", "id", "inputs", "model", "name", "outputs", "parameters", "priority", "sequence", "sequence_end",
        "sequence_start", "version",
    )  # fmt: skip

    def __init__(self, model: str, version: str, inputs: Sequence[InputTensor]) -> None:
        self.model, self.version, self.inputs = model, version, inputs
        self.id, self.name = "", b""
        """What the caller calls it, and what the gateway does."""
        self.outputs: Sequence[str] = ()
        """The names that are wanted; all when empty."""
        self.parameters: dict[str, Any] = {}
        """What is not one of the fields here: a model may look at them, and a batch holds one set of them."""
        self.deadline = 0.0
        """A moment of time.monotonic(); 0: none."""
        self.priority = 0
        """0 is ordinary; 1 is first, 2 next, …, as Triton counts."""
        self.sequence: int | str = 0
        self.sequence_start = self.sequence_end = False


class RequestGroup(InferenceRequest):
    """Requests that ask alike, as one: each has as many of the rows, in order."""

    __slots__ = ("came", "names", "num")

    def __init__(
        self,
        model: str,
        version: str,
        inputs: Sequence[InputTensor],
        request_names: Sequence[bytes | str],
        received_at: float = 0.0,
    ) -> None:
        super().__init__(model, version, inputs)
        self.names, self.num, self.came = request_names, len(request_names), received_at
        """What the gateway calls each, or else the caller; when the first of them came."""


class InferenceResponse:
    """What the engine gives for an Ask."""

    __slots__ = ("id", "model", "outputs", "parameters", "version")

    def __init__(self, model: str, version: str, id_: str, outputs: Sequence[OutputTensor]) -> None:
        self.model, self.version, self.id, self.outputs = model, version, id_, outputs
        self.parameters: dict[str, Any] = {}


MAX_ELEMENTS = 1 << 40
"""Of a shape with a 0 in it: nothing is held, but numpy multiplies the rest."""
MAX_TEXT_ELEMENTS = 1 << 20
"""Elements of BYTES in one request: each costs a turn of Python on the loop, however short it is."""
MAX_COPIED_BYTES = 4096
_STRUCT_FORMATS = {
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "FP16": "e", "FP32": "f", "FP64": "d", "BF16": "f",
}  # fmt: skip
_FP32_INFINITY_BITS = 0x7F800000
_LENGTH_PREFIX = struct.Struct("<I")
_PACKER_CACHE: dict[tuple[str, int], Callable[..., bytes]] = {}
_MAX_CACHED_PACKERS = 1024


def to_input_tensor(name: str, datatype: str, shape: tuple[int, ...], raw: "bytes | memoryview") -> InputTensor:
    """An input from its bytes; Invalid unless they are exactly what the shape and the datatype say."""
    count = count_elements(name, shape)
    if datatype == "BYTES":
        return InputTensor(name, datatype, shape, split_texts(name, raw, count))
    size = DATATYPE_BYTES.get(datatype)
    if size is None:
        raise Invalid(f"{name[:60]!r} is of datatype {datatype[:20]!r}", f"one of {', '.join(DATATYPE_BYTES)}, BYTES")
    if len(raw) != count * size:
        raise Invalid(
            f"{name[:60]!r} has {len(raw)} bytes, and its shape {list(shape)} of {datatype} takes {count * size}",
            "send as many as the shape says",
        )
    if datatype == "BOOL" and bytes(raw).translate(None, b"\0\1"):
        raise Invalid(f"{name[:60]!r} holds a BOOL that is neither 0 nor 1", "one byte each, 0 or 1")
    return InputTensor(name, datatype, shape, raw)


def count_elements(name: str, shape: tuple[int, ...]) -> int:
    """How many elements a shape has; Invalid for what is no shape."""
    count = math.prod(shape)
    if len(shape) > MAX_DIMENSIONS or (shape and min(shape) < 0):
        raise Invalid(f"{name[:60]!r} has no shape", f"0 or more in each of {MAX_DIMENSIONS} dimensions at most")
    if count > MAX_ELEMENTS or (count == 0 and math.prod(dimension or 1 for dimension in shape) > MAX_ELEMENTS):
        raise Invalid(f"{name[:60]!r} is too large", f"{MAX_ELEMENTS} elements at most")
    return count


def check_text_count(name: str, text_count: int) -> None:
    """Invalid when these are more elements of BYTES than one request may have."""
    if text_count > MAX_TEXT_ELEMENTS:
        raise Invalid(
            f"{text_count} elements of BYTES with {name[:60]!r}", f"{MAX_TEXT_ELEMENTS} at most in one request"
        )


def split_texts(name: str, raw: "bytes | memoryview", count: int) -> list[bytes]:
    """The elements of a BYTES tensor: each is its length in 4 bytes, and itself."""
    data, size, offset = bytes(raw), len(raw), 0
    check_text_count(name, count)
    if count * 4 > size:
        raise Invalid(f"{name[:60]!r} has {size} bytes for {count} elements", "each is 4 bytes of length, and itself")
    elements_found: list[bytes] = []
    unpack = _LENGTH_PREFIX.unpack_from
    while offset + 4 <= size and len(elements_found) < count:
        element_start = offset + 4
        offset = element_start + unpack(data, offset)[0]
        elements_found.append(data[element_start:offset])
    if offset != size or len(elements_found) != count:
        raise Invalid(
            f"{name[:60]!r} does not hold {count} elements of the lengths it says",
            "each is 4 bytes of length (little-endian), and itself",
        )
    return elements_found


def pack_numbers(name: str, datatype: str, values: Sequence[Any]) -> bytes:
    """Numbers as raw bytes; Invalid where one does not fit. True and False for BOOL."""
    if datatype == "BOOL":
        return bytes(values)
    packer = _PACKER_CACHE.get((datatype, len(values))) or _create_packer(datatype, len(values))
    try:
        raw = packer(*values)
    except (struct.error, OverflowError) as error:
        raise Invalid(f"{name[:60]!r} holds a number that is no {datatype}", "send it in its range") from error
    return _to_bfloat16(name, raw) if datatype == "BF16" else raw


def _create_packer(datatype: str, count: int) -> Callable[..., bytes]:
    """What packs so many numbers; kept, because requests are alike."""
    if len(_PACKER_CACHE) >= _MAX_CACHED_PACKERS:
        _PACKER_CACHE.clear()
    packer = _PACKER_CACHE[datatype, count] = struct.Struct(f"<{count}{_STRUCT_FORMATS[datatype]}").pack
    return packer


def to_raw_bytes(output: OutputTensor) -> bytes:
    """An output as raw bytes."""
    if output.datatype != "BYTES":
        return cast(bytes, output.data.tobytes())
    return b"".join(
        [part for element in to_byte_elements(output) for part in (_LENGTH_PREFIX.pack(len(element)), element)]
    )


def to_plain_values(output: OutputTensor) -> list[Any]:
    """An output as a flat list of numbers, truths or (BYTES) texts."""
    if output.datatype == "BYTES":
        try:
            return [element.decode() for element in to_byte_elements(output)]
        except UnicodeDecodeError as error:
            raise UserCodeFailed(
                f"the model's {output.name[:60]!r} holds bytes that are no text", "ask for it as binary data"
            ) from error
    data = output.data
    if output.datatype == "BF16":
        data = (data.astype("<u4") << 16).view("<f4")
    return cast(list[Any], data.reshape(-1).tolist())


def to_byte_elements(output: OutputTensor) -> list[bytes]:
    """The elements of a BYTES output, flat: models give bytes, texts, or arrays of them."""
    flat = output.data.reshape(-1).tolist() if isinstance(output.data, np.ndarray) else output.data
    return [element.encode() if isinstance(element, str) else bytes(element) for element in flat]


def _to_bfloat16(name: str, raw: bytes) -> bytes:
    """FP32 to BF16: the nearest, and the even one of two."""
    bits = np.frombuffer(raw, "<u4")
    size = bits & 0x7FFFFFFF
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1)).astype("<u4")) >> 16).astype("<u2")
    if ((size < _FP32_INFINITY_BITS) & ((rounded & 0x7FFF) >= _FP32_INFINITY_BITS >> 16)).any():
        raise Invalid(f"{name[:60]!r} holds a number that is no BF16", "send it in its range")
    return bytes(np.where(size > _FP32_INFINITY_BITS, 0x7FC0, rounded).astype("<u2").tobytes())
