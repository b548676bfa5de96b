"""Weights on disk, in the safetensors format: the length of a header, the header in JSON, and raw bytes. No code."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from falaj.train.parallel_plans import strip_wrapper_names

DTYPE_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


def write_weights(module: nn.Module, path: Path | None) -> None:
    """Write a module's parameters and buffers; without a path only help the one who writes, as those of a shard do."""
    tensors = {
        strip_wrapper_names(name): value.detach()
        for name, value in module.state_dict().items()
        if isinstance(value, torch.Tensor)
    }
    if path is None:
        for _ in _iter_tensor_bytes(tensors):
            pass
        return
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    publish_file(path, (len(text).to_bytes(8, "little"), text), _iter_tensor_bytes(tensors))


def publish_file(path: Path, *parts: "tuple[bytes, ...] | Iterator[bytes]") -> None:
    """Put a file there whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            for part in parts:
                for data in part:
                    file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _iter_tensor_bytes(tensors: dict[str, torch.Tensor]) -> Iterator[bytes]:
    for tensor in tensors.values():
        full_tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        yield full_tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
