"""Matrix products in 8 bits: each factor scaled by its own largest value, sums in 32 bits, masters untouched.

Worth it on wide layers, compiled (the casts fuse into what comes before); on narrow ones it is slower than bf16. Off
unless asked for, or measured to be faster by autotune.
"""

from typing import Any

import torch
from torch import nn

NARROWEST = 1024
"""A layer with less on either side stays as it is: casting would cost more than the product saves."""
_FORWARD, _BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


def swap(module: nn.Module, narrowest: int = NARROWEST) -> int:
    """Let every wide enough Linear below `module` multiply in 8 bits; gives how many there are."""
    found = 0
    for child in module.modules():
        if type(child) is nn.Linear and _fits(child, narrowest):
            child.__class__ = Fp8Linear
            found += 1
    return found


class Fp8Linear(nn.Linear):
    """A Linear whose three products are in 8 bits. The same parameters under the same names."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        flat = given.reshape(-1, self.in_features)
        made: torch.Tensor = _Product.apply(flat, self.weight)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            made = made + self.bias
        return made.reshape(*given.shape[:-1], self.out_features)


def _fits(layer: nn.Linear, narrowest: int) -> bool:
    sides = (layer.in_features, layer.out_features)
    return min(sides) >= narrowest and not any(side % 16 for side in sides)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(given, weight)
        left, left_scale = _cast(given, _FORWARD)
        right, right_scale = _cast(weight, _FORWARD)
        return torch._scaled_mm(  # noqa: SLF001 - the one door to the chip's 8-bit products
            left, right.t(), left_scale, right_scale, out_dtype=given.dtype, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx: Any, *above: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        given, weight = ctx.saved_tensors
        slope, slope_scale = _cast(above[0].contiguous(), _BACKWARD)
        right, right_scale = _cast(weight, _FORWARD)
        left, left_scale = _cast(given, _FORWARD)
        to_given = torch._scaled_mm(  # noqa: SLF001
            slope, right.t().contiguous().t(), slope_scale, right_scale, out_dtype=given.dtype
        )
        to_weight = torch._scaled_mm(  # noqa: SLF001
            slope.t().contiguous(), left.t().contiguous().t(), slope_scale, left_scale, out_dtype=given.dtype
        )
        return to_given, to_weight


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """In 8 bits, filling their range, and by what to multiply to get back."""
    top = torch.finfo(dtype).max
    scale = tensor.abs().amax().float().clamp(min=1e-12) / top
    return (tensor.float() / scale).clamp(-top, top).to(dtype), scale
