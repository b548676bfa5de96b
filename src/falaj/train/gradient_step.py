"""How parameters move: gradients of all processes are summed, divided and clipped by one factor, then applied.

The factor is folded into the optimizer's own kernel where it has a place for it, and is left out where it is 1.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from falaj.train.loss_tally import Number
from falaj.train.strict_gradients import FIXED_POINT_UNIT

if TYPE_CHECKING:
    from falaj.train.run import Run

_CLIP_EPSILON = 1e-6
"""Keeps a clip of zero gradients from dividing by nothing, as torch does."""


class GradientStep:
    """The moves of one run, whose steps are of `batch` samples."""

    def __init__(self, run: "Run", batch: int) -> None:
        self._mesh, self.strict, self.scaler = run.mesh, run.strict, run.scaler
        self._unit = float(batch)
        self.fence: Callable[[], None] | None = None
        """What to wait for before parameters change: they are still being copied."""
        self._sums_gradients = run.mesh.readers > 1 and not run.synced and run.strict is None
        self._on_host = run.device.type == "cpu"

    def slope(self, losses: torch.Tensor) -> torch.Tensor:
        """What gradients of a sum begin with. One batch's worth, so that most need no factor later; the part by which
        wrappers divide is made up for here."""
        factor = self._mesh.divisor / self._unit
        gradient = torch.full(losses.shape, factor, dtype=losses.dtype, device=losses.device)
        return gradient if self.scaler is None else gradient * self.scaler.scale.to(losses.dtype)

    def fix(self, items: float, micros: int) -> None:
        """Under strict: choose the range of sums, by the items a sample of the very first micro-batch."""
        if self.strict is not None:
            self.strict.fix(items, micros)
            self._unit *= self.strict.ratio

    def move(self, optimizers: Sequence[Optimizer], count: Number, clip: float) -> Number | None:
        """Gradients become those of a mean over `count`, and the optimizers step. Gives the norm where it is known."""
        params = [param for owner in optimizers for group in owner.param_groups for param in group["params"]]
        if self.strict is not None:
            self.strict.settle(params)
        elif self._sums_gradients:
            sum_gradients(params)
        divisor: Number = (count.clamp(min=1.0) if isinstance(count, torch.Tensor) else max(count, 1.0)) / self._unit
        if self.strict is not None:
            divisor = divisor * FIXED_POINT_UNIT
        if self.scaler is not None:
            divisor = divisor * self.scaler.scale
        norm: Number | None = None
        if clip or self.scaler is not None:
            norm = self._compute_norm(params) / divisor
        if clip and norm is not None:
            excess = (norm + _CLIP_EPSILON) / clip
            divisor = divisor * (excess.clamp(min=1.0) if isinstance(excess, torch.Tensor) else max(excess, 1.0))
        found_inf = self.scaler.judge(norm) if self.scaler is not None else None
        if self.fence is not None:
            self.fence()
            self.fence = None
        for optimizer in optimizers:
            _step_optimizer(optimizer, divisor, found_inf)
        for param in params:
            param.grad = None
        return norm

    def _compute_norm(self, params: Sequence[torch.Tensor]) -> Number:
        norm = self._mesh.norm(params)
        return float(norm) if self._on_host and self.scaler is None else norm


def sum_gradients(params: Sequence[torch.Tensor]) -> None:
    """Replicas that nobody keeps in step: their gradients are summed here, one call for each kind of number."""
    grads_by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for param in params:
        if not param.requires_grad:
            continue
        if param.grad is None:  # another process may have one
            param.grad = torch.zeros_like(param)
        grads_by_dtype.setdefault(param.grad.dtype, []).append(param.grad)
    for grads in grads_by_dtype.values():
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat)
        flat_parts = torch.split(flat, [grad.numel() for grad in grads])
        torch._foreach_copy_(
            grads, [flat_part.view_as(grad) for flat_part, grad in zip(flat_parts, grads, strict=True)]
        )


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this process holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _step_optimizer(optimizer: Optimizer, divisor: Number, found_inf: torch.Tensor | None) -> None:
    if isinstance(divisor, float) and divisor == 1.0 and found_inf is None:
        optimizer.step()
        return
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if grads and takes_scale(optimizer) and not hasattr(grads[0], "to_local"):
        device = grads[0].device
        if not isinstance(divisor, torch.Tensor):
            divisor = torch.full((), divisor, device=device)  # by a kernel: a copy would wait for the device
        optimizer.grad_scale = divisor.float()  # type: ignore[attr-defined]
        optimizer.found_inf = found_inf  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            optimizer.grad_scale = optimizer.found_inf = None  # type: ignore[attr-defined]
    elif grads and not (found_inf is not None and bool(found_inf)):
        factor = 1.0 / divisor
        if isinstance(factor, torch.Tensor):
            factor = factor.to(grads[0].dtype)
        torch._foreach_mul_([local_part(grad) for grad in grads], factor)
        optimizer.step()


def takes_scale(optimizer: Optimizer) -> bool:
    """Whether it divides gradients inside its own kernel."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False) or hasattr(optimizer, "grad_scale"))
