"""Matrix products in 8 bits: each factor scaled by its own largest value, sums in 32 bits, masters untouched.

Worth it on wide layers, compiled (the casts fuse into what comes before); on narrow ones it is slower than bf16. Off
unless asked for, or measured to be faster by autotune.
"""

from typing import Any

import torch
from torch import nn

MIN_FEATURES = 1024
"""A layer with less on either side stays as it is: casting would cost more than the product saves."""
_FORWARD_DTYPE, _BACKWARD_DTYPE = torch.float8_e4m3fn, torch.float8_e5m2


def convert_linears(module: nn.Module, min_features: int = MIN_FEATURES) -> int:
    """Let every wide enough Linear below `module` multiply in 8 bits; gives how many there are."""
    count = 0
    for child in module.modules():
        if type(child) is nn.Linear and _is_wide_enough(child, min_features):
            child.__class__ = Fp8Linear
            count += 1
    return count


class Fp8Linear(nn.Linear):
    """A Linear whose three products are in 8 bits. The same parameters under the same names."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        flat = inputs.reshape(-1, self.in_features)
        outputs: torch.Tensor = _Fp8Product.apply(flat, self.weight)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.reshape(*inputs.shape[:-1], self.out_features)


def _is_wide_enough(layer: nn.Linear, min_features: int) -> bool:
    sides = (layer.in_features, layer.out_features)
    return min(sides) >= min_features and not any(side % 16 for side in sides)


class _Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        inputs_fp8, inputs_scale = _quantize_tensor(inputs, _FORWARD_DTYPE)
        weight_fp8, weight_scale = _quantize_tensor(weight, _FORWARD_DTYPE)
        return torch._scaled_mm(  # noqa: SLF001 - the one door to the chip's 8-bit products
            inputs_fp8, weight_fp8.t(), inputs_scale, weight_scale, out_dtype=inputs.dtype, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx: Any, *output_grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, weight = ctx.saved_tensors
        grad, grad_scale = _quantize_tensor(output_grads[0].contiguous(), _BACKWARD_DTYPE)
        weight_fp8, weight_scale = _quantize_tensor(weight, _FORWARD_DTYPE)
        inputs_fp8, inputs_scale = _quantize_tensor(inputs, _FORWARD_DTYPE)
        input_grad = torch._scaled_mm(  # noqa: SLF001
            grad, weight_fp8.t().contiguous().t(), grad_scale, weight_scale, out_dtype=inputs.dtype
        )
        weight_grad = torch._scaled_mm(  # noqa: SLF001
            grad.t().contiguous(), inputs_fp8.t().contiguous().t(), grad_scale, inputs_scale, out_dtype=inputs.dtype
        )
        return input_grad, weight_grad


def _quantize_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """In 8 bits, filling their range, and by what to multiply to get back."""
    top = torch.finfo(dtype).max
    scale = tensor.abs().amax().float().clamp(min=1e-12) / top
    return (tensor.float() / scale).clamp(-top, top).to(dtype), scale
