"""Tensors as they travel: raw little-endian bytes, or a list of texts and bytes (BYTES)."""

from collections.abc import Sequence
from typing import Any

SIZES = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8,
}  # fmt: skip
NUMPY = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
"""BF16 has no type in numpy: its bytes are handed on as uint16."""


class Given:
    """An input of a request, checked: `data` holds exactly as many bytes as the shape says, or as many elements."""

    __slots__ = ("data", "datatype", "name", "shape")

    def __init__(
        self, name: str, datatype: str, shape: tuple[int, ...], data: "bytes | memoryview | list[bytes]"
    ) -> None:
        self.name, self.datatype, self.shape, self.data = name, datatype, shape, data


class Made:
    """An output of an answer: a numpy array of the shape, or for BYTES a list of bytes."""

    __slots__ = ("data", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: tuple[int, ...], data: Any) -> None:
        self.name, self.datatype, self.shape, self.data = name, datatype, shape, data


class Ask:
    """One inference, as every protocol gives it to the engine."""

    __slots__ = (
        "deadline", "id", "inputs", "model", "outputs", "parameters", "priority", "sequence", "sequence_end",
        "sequence_start", "version",
    )  # fmt: skip

    def __init__(self, model: str, version: str, inputs: Sequence[Given]) -> None:
        self.model, self.version, self.inputs = model, version, inputs
        self.id = ""
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


class Answer:
    """What the engine gives for an Ask."""

    __slots__ = ("id", "model", "outputs", "parameters", "version")

    def __init__(self, model: str, version: str, id_: str, outputs: Sequence[Made]) -> None:
        self.model, self.version, self.id, self.outputs = model, version, id_, outputs
        self.parameters: dict[str, Any] = {}
