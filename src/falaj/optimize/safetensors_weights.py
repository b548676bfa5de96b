"""Weights from a safetensors file into a module: a header in JSON and raw bytes, no code."""

import json
from pathlib import Path
from typing import Any

from falaj.core.errors import CorruptData, Invalid

_TORCH_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def read_tensors(file: Path) -> dict[str, Any]:
    """Every tensor by name; Corrupt when the file is not whole."""
    import torch

    data = bytearray(file.read_bytes())
    length = int.from_bytes(data[:8], "little")
    try:
        header: Any = json.loads(bytes(data[8 : 8 + length]) if length <= len(data) - 8 else b"")
        header.pop("__metadata__", None)
        tensors = {}
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            dtype = getattr(torch, _TORCH_DTYPES[entry["dtype"]])
            if not 0 <= start <= stop <= len(data) - 8 - length:
                raise ValueError(name)
            raw = torch.frombuffer(data, dtype=torch.uint8, count=stop - start, offset=8 + length + start)
            tensors[name] = (
                raw.clone().view(dtype).reshape(entry["shape"]) if stop > start else torch.empty(entry["shape"])
            )
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise CorruptData(f"{file.name} is no whole safetensors file", "save the model again") from error
    return tensors


def load_weights(module: Any, file: Path) -> None:
    """Put the weights into the module that its code built."""
    try:
        module.load_state_dict(read_tensors(file))
    except RuntimeError as error:
        error_lines = str(error).strip().splitlines()[:2]
        raise Invalid(
            f"{file.name} does not fit the module: {' '.join(error_lines)[:300]}", "publish its own code"
        ) from error
