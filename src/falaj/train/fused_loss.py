"""A language model's last layer and its loss as one: the logits of all tokens never lie in memory at once."""

from typing import Any

import torch
from torch.nn import functional

IGNORED_TARGET = -100
CHUNK_TOKENS = 8192
"""Tokens at a time: enough to fill a chip, few enough that their logits are no burden."""


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    *,
    ignored: int = IGNORED_TARGET,
    chunk: int = CHUNK_TOKENS,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the losses of `hidden @ weight.T` against `target`, and how many there are: what `backward` takes.

    `hidden` is (..., width), `target` (...) of places in the vocabulary; those equal to `ignored` do not count.
    """
    flat, targets = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    total: torch.Tensor = _FusedCrossEntropy.apply(flat, weight, targets, ignored, chunk)  # type: ignore[no-untyped-call]
    return total, (targets != ignored).sum()


class _FusedCrossEntropy(torch.autograd.Function):
    """Gradients are made on the way forward, while the logits of a chunk are there."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, ignored: int, chunk: int
    ) -> torch.Tensor:
        needs_grad = torch.is_grad_enabled() or hidden.requires_grad or weight.requires_grad
        losses = torch.empty(len(target), dtype=torch.float32, device=hidden.device)
        hidden_grad = torch.empty_like(hidden) if needs_grad else hidden
        weight_grad = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device) if needs_grad else weight
        for start in range(0, len(target), chunk):
            chunk_rows = slice(start, start + chunk)
            logits = hidden[chunk_rows] @ weight.T
            _compute_losses(logits, target[chunk_rows], losses[chunk_rows], ignored)
            if needs_grad:
                torch.mm(logits, weight, out=hidden_grad[chunk_rows])
                _add_product(weight_grad, logits, hidden[chunk_rows])
        if needs_grad:
            ctx.save_for_backward(hidden_grad, weight_grad.to(weight.dtype))
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *output_grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden_grad, weight_grad = ctx.saved_tensors
        return (
            hidden_grad * output_grads[0].to(hidden_grad.dtype),
            weight_grad * output_grads[0].to(weight_grad.dtype),
            None,
            None,
            None,
        )


def _compute_losses(logits: torch.Tensor, target: torch.Tensor, losses: torch.Tensor, ignored: int) -> None:
    """Losses of rows; the logits become their gradients."""
    if logits.is_cuda:
        from falaj.train.kernels import cross_entropy_inplace

        cross_entropy_inplace(logits, target, losses, ignored)
        return
    wide_logits = logits.float()
    losses.copy_(functional.cross_entropy(wide_logits, target, reduction="none", ignore_index=ignored))
    counted = target != ignored
    logit_grad = torch.softmax(wide_logits, dim=-1)
    logit_grad[torch.arange(len(target))[counted], target[counted]] -= 1.0
    logits.copy_(logit_grad * counted[:, None])


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total += left.T @ right, summed in 32 bits although the factors have 16."""
    if left.dtype == total.dtype:
        total.addmm_(left.T, right)
    elif left.is_cuda:
        torch.addmm(total, left.T, right, out_dtype=torch.float32, out=total)
    else:
        total += left.T.float() @ right.float()
