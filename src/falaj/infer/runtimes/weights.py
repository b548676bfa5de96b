"""Weights in the safetensors format, from bytes: the length of a header, the header in JSON, and raw bytes. No code."""

import json
from typing import Any

import torch

from falaj.core.errors import Corrupt

_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def read(data: bytes) -> dict[str, torch.Tensor]:
    """The tensors by name, over one copy of the bytes. Corrupt when header and bytes do not tell the same."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > len(data) - 8:
        raise _cut("its header is longer than the file")
    try:
        header = json.loads(data[8 : 8 + size])
        header.pop("__metadata__", None)
        entries = {
            name: (_TYPES[one["dtype"]], tuple(one["shape"]), *one["data_offsets"]) for name, one in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _cut("its header says something else") from error
    body = bytearray(memoryview(data)[8 + size :])
    return {name: _tensor(body, name, *entry) for name, entry in entries.items()}


def _tensor(body: bytearray, name: str, dtype: torch.dtype, shape: Any, *ends: Any) -> torch.Tensor:
    start, stop = ends if len(ends) == 2 else (1, 0)
    whole = all(type(one) is int and one >= 0 for one in (*shape, start, stop))
    if not whole or stop > len(body) or start > stop:
        raise _cut(f"{name[:100]} lies outside it")
    count = 1
    for one in shape:
        count *= one
    if count * dtype.itemsize != stop - start:
        raise _cut(f"{name[:100]} has another size than its shape")
    if not count:
        return torch.empty(shape, dtype=dtype)
    if start % dtype.itemsize:
        raw = torch.frombuffer(body, dtype=torch.uint8, count=stop - start, offset=start)
        return raw.clone().view(dtype).reshape(shape)
    return torch.frombuffer(body, dtype=dtype, count=count, offset=start).reshape(shape)


def _cut(why: str) -> Corrupt:
    return Corrupt(f"the file is no safetensors: {why}", "write the weights again")
