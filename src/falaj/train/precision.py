"""In which numbers a module computes. Masters of 16-bit parameters are the optimizer's business (optim.py)."""

from typing import Any

import torch
from torch import nn

from falaj.core.errors import Invalid

_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)  # noqa: SLF001 - running statistics need 32 bits; torch has no public name for all


def resolve_precision(name: str, device: torch.device) -> str:
    """What "auto" means here; a word that cannot be had here is refused."""
    cuda = device.type == "cuda"
    if name == "auto":
        return ("bf16" if torch.cuda.is_bf16_supported() else "fp16") if cuda else "fp32"
    if name == "fp8" and not (cuda and torch.cuda.get_device_capability(device) >= (8, 9)):
        raise Invalid("this chip has no 8-bit matrix products", "precision='bf16' runs everywhere")
    if name == "fp16" and not cuda:
        raise Invalid("fp16 needs a GPU", "precision='bf16' or 'fp32' on CPUs")
    return name


def prepare_module(module: nn.Module, name: str, device: torch.device) -> nn.Module:
    """The module, computing in that precision; parameters are cast in place where it says so."""
    name = resolve_precision(name, device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if name == "fp32" else "high")
    if name in ("bf16", "bf16-pure", "fp8"):
        cast_module(module, torch.bfloat16)
        module.register_forward_pre_hook(_cast_inputs, with_kwargs=True)
    if name == "fp8":
        from falaj.train.fp8 import convert_linears

        convert_linears(module)
    if name in ("fp16", "bf16-autocast"):
        dtype = torch.float16 if name == "fp16" else torch.bfloat16
        module.forward = torch.autocast(device.type, dtype)(module.forward)
    return module


def build_scaler(name: str, device: torch.device) -> "torch.amp.GradScaler | None":
    """What keeps small gradients above zero, where the precision needs it."""
    return torch.amp.GradScaler(device.type) if resolve_precision(name, device) == "fp16" else None


def cast_module(module: nn.Module, dtype: torch.dtype) -> None:
    """Parameters and buffers in `dtype`, but for those of batch norms."""
    for child in module.modules():
        if isinstance(child, _BATCH_NORMS):
            continue
        for key, param in child.named_parameters(recurse=False):
            if param.dtype == torch.float32:
                getattr(child, key).data = param.data.to(dtype)
        for key, buffer in child.named_buffers(recurse=False):
            if buffer.dtype == torch.float32:
                setattr(child, key, buffer.to(dtype))


def _cast_inputs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    del module
    return tuple(_to_bfloat16(value) for value in args), {name: _to_bfloat16(value) for name, value in kwargs.items()}


def _to_bfloat16(value: Any) -> Any:
    is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float32
    return value.to(torch.bfloat16) if is_wide else value
