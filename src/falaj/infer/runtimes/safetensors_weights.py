"""Weights in the safetensors format, from bytes: the length of a header, the header in JSON, and raw bytes. No code."""

import json
from typing import Any

import torch

from falaj.core.errors import CorruptData

_TORCH_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def read_tensors(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors by name, over one copy of the bytes. Corrupt when header and bytes do not tell the same."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise _malformed_error("its header is longer than the file")
    try:
        header = json.loads(data[8 : 8 + size])
        header.pop("__metadata__", None)
        entries = {
            name: (_TORCH_TYPES[tensor_header["dtype"]], tuple(tensor_header["shape"]), *tensor_header["data_offsets"])
            for name, tensor_header in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _malformed_error("its header says something else") from error
    body = bytearray(memoryview(data)[8 + size :])
    return {name: _build_tensor(body, name, *entry) for name, entry in entries.items()}


def _build_tensor(body: bytearray, name: str, dtype: torch.dtype, shape: Any, *offsets: Any) -> torch.Tensor:
    start, stop = offsets if len(offsets) == 2 else (1, 0)
    are_whole_numbers = all(type(number) is int and number >= 0 for number in (*shape, start, stop))
    if not are_whole_numbers or stop > len(body) or start > stop:
        raise _malformed_error(f"{name[:100]} lies outside it")
    count = 1
    for number in shape:
        count *= number
    if count * dtype.itemsize != stop - start:
        raise _malformed_error(f"{name[:100]} has another size than its shape")
    if not count:
        return torch.empty(shape, dtype=dtype)
    if start % dtype.itemsize:
        raw = torch.frombuffer(body, dtype=torch.uint8, count=stop - start, offset=start)
        return raw.clone().view(dtype).reshape(shape)
    return torch.frombuffer(body, dtype=dtype, count=count, offset=start).reshape(shape)


def _malformed_error(reason: str) -> CorruptData:
    return CorruptData(f"the file is no safetensors: {reason}", "write the weights again")
