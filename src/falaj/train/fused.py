"""A language model's last layer and its loss as one: the logits of all tokens never lie in memory at once."""

from typing import Any

import torch
from torch.nn import functional

IGNORED = -100
CHUNK = 8192
"""Tokens at a time: enough to fill a chip, few enough that their logits are no burden."""


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, *, ignored: int = IGNORED, chunk: int = CHUNK
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the losses of `hidden @ weight.T` against `target`, and how many there are: what `backward` takes.

    `hidden` is (..., width), `target` (...) of places in the vocabulary; those equal to `ignored` do not count.
    """
    flat, wanted = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    total: torch.Tensor = _Fused.apply(flat, weight, wanted, ignored, chunk)  # type: ignore[no-untyped-call]
    return total, (wanted != ignored).sum()


class _Fused(torch.autograd.Function):
    """Gradients are made on the way forward, while the logits of a chunk are there."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, ignored: int, chunk: int
    ) -> torch.Tensor:
        wants = torch.is_grad_enabled() or hidden.requires_grad or weight.requires_grad
        losses = torch.empty(len(target), dtype=torch.float32, device=hidden.device)
        slope = torch.empty_like(hidden) if wants else hidden
        wide = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if wants else weight
        for start in range(0, len(target), chunk):
            part = slice(start, start + chunk)
            logits = hidden[part] @ weight.T
            _lose(logits, target[part], losses[part], ignored)
            if wants:
                torch.mm(logits, weight, out=slope[part])
                _add_product(wide, logits, hidden[part])
        if wants:
            ctx.save_for_backward(slope, wide.to(weight.dtype))
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *above: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        slope, wide = ctx.saved_tensors
        return slope * above[0].to(slope.dtype), wide * above[0].to(wide.dtype), None, None, None


def _lose(logits: torch.Tensor, target: torch.Tensor, losses: torch.Tensor, ignored: int) -> None:
    """Losses of rows; the logits become their gradients."""
    if logits.is_cuda:
        from falaj.train.kernels import cross_entropy

        cross_entropy(logits, target, losses, ignored)
        return
    wide = logits.float()
    losses.copy_(functional.cross_entropy(wide, target, reduction="none", ignore_index=ignored))
    counted = target != ignored
    slope = torch.softmax(wide, dim=-1)
    slope[torch.arange(len(target))[counted], target[counted]] -= 1.0
    logits.copy_(slope * counted[:, None])


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total += left.T @ right, summed in 32 bits although the factors have 16."""
    if left.dtype == total.dtype:
        total.addmm_(left.T, right)
    elif left.is_cuda:
        torch.addmm(total, left.T, right, out_dtype=torch.float32, out=total)
    else:
        total += left.T.float() @ right.float()
