"""Triton kernels: passes over memory that torch would make in several. Imported where Triton and a GPU are.

Every kernel here has a plain torch twin beside its caller, which is what runs on CPUs and what the tests hold it to.
"""

import torch
import triton
import triton.language as tl

BLOCK_SIZE = 4096
NUM_WARPS = 8
LOG2E = tl.constexpr(1.4426950408889634)
MIN_LOGIT = tl.constexpr(-3.0e38)
"""Below every logit that is a number; unlike infinity it can be subtracted from itself."""


def fold_gradient(
    total: torch.Tensor,
    grad: torch.Tensor,
    scale: float,
    bad_flag: torch.Tensor,
    limit: float,
    *,
    is_first: bool = False,
) -> None:
    """Add a gradient to a sum of integers, `total += int(grad * scale)`; `is_first` begins the sum, whatever was there.

    `bad_flag` (int32) becomes 1 when a number is not below `limit` in size, or is none.
    """
    size = grad.numel()
    _fold_kernel[(triton.cdiv(size, BLOCK_SIZE),)](
        total, grad, scale, bad_flag, limit, size, is_first, block=BLOCK_SIZE, num_warps=NUM_WARPS
    )


def fused_adamw_step(
    param: torch.Tensor,
    master: torch.Tensor,
    grad: torch.Tensor,
    moments: tuple[torch.Tensor, torch.Tensor],
    rates: tuple[float, float, float, float, float],
    corrections: tuple[float, float],
    divisor: torch.Tensor,
) -> None:
    """One AdamW step on master weights, and the parameter as its rounded copy, in one pass.

    `rates` are lr, beta1, beta2, eps and weight decay; the gradient is divided by `divisor` on the way.
    """
    size = param.numel()
    _adamw_kernel[(triton.cdiv(size, BLOCK_SIZE),)](
        param, master, grad, *moments, divisor, *rates, *corrections, size, block=BLOCK_SIZE, num_warps=NUM_WARPS
    )


def cross_entropy_inplace(logits: torch.Tensor, target: torch.Tensor, losses: torch.Tensor, ignored: int) -> None:
    """The loss of every row, and the rows of `logits` become their gradients, in place: two passes over them in all."""
    rows, columns = logits.shape
    _cross_entropy_kernel[(rows,)](logits, target, losses, logits.stride(0), columns, ignored, block=8192, num_warps=16)


@triton.jit  # type: ignore[untyped-decorator]
def _fold_kernel(  # type: ignore[no-untyped-def]
    total, grad, scale, bad_flag, limit, size, is_first: tl.constexpr, block: tl.constexpr
):
    offsets = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = offsets < size
    scaled = tl.load(grad + offsets, mask=inside, other=0.0).to(tl.float32) * scale
    is_finite = tl.abs(scaled) < limit
    scaled = tl.where(is_finite, scaled, 0.0)
    summands = scaled.to(tl.int64)
    if not is_first:
        summands += tl.load(total + offsets, mask=inside, other=0)
    tl.store(total + offsets, summands, mask=inside)
    if tl.min(is_finite.to(tl.int32), axis=0) == 0:
        tl.store(bad_flag, 1)


@triton.jit  # type: ignore[untyped-decorator]
def _adamw_kernel(  # type: ignore[no-untyped-def]
    param,
    master,
    grad,
    mean_moments,
    square_moments,
    divisor,
    lr,
    beta1,
    beta2,
    eps,
    decay,
    correction1,
    correction2,
    size,
    block: tl.constexpr,
):
    offsets = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = offsets < size
    gradient = tl.load(grad + offsets, mask=inside, other=0.0).to(tl.float32) / tl.load(divisor)
    weight = tl.load(master + offsets, mask=inside, other=0.0) * (1.0 - lr * decay)
    mean = tl.load(mean_moments + offsets, mask=inside, other=0.0)
    mean = mean + (gradient - mean) * (1.0 - beta1)
    square = tl.load(square_moments + offsets, mask=inside, other=0.0) * beta2 + gradient * gradient * (1.0 - beta2)
    weight = weight - (lr / correction1) * mean / (tl.sqrt(square) / correction2 + eps)
    tl.store(mean_moments + offsets, mean, mask=inside)
    tl.store(square_moments + offsets, square, mask=inside)
    tl.store(master + offsets, weight, mask=inside)
    tl.store(param + offsets, weight.to(param.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _cross_entropy_kernel(logits, target, losses, stride, columns, ignored, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target_index = tl.load(target + row)
    counted = target_index != ignored
    # Every lane has eight columns of a block and a sum of its own, so that threads need not wait for each other until
    # the end. A row that was read is read once more before its memory is wanted for others, and then no more.
    lanes: tl.constexpr = block // 8
    inside = tl.arange(0, lanes)[:, None] * 8 + tl.arange(0, 8)[None, :]
    high, total = tl.full((lanes,), MIN_LOGIT, tl.float32), tl.zeros((lanes,), tl.float32)
    for start in range(0, columns, block):
        offsets = start + inside
        values = tl.load(logits + offsets, mask=offsets < columns, other=MIN_LOGIT, eviction_policy="evict_last")
        values = values.to(tl.float32) * LOG2E
        higher = tl.maximum(high, tl.max(values, axis=1))
        total = total * tl.exp2(high - higher) + tl.sum(tl.exp2(values - higher[:, None]), axis=1)
        high = higher
    highest = tl.max(high, axis=0)
    level = highest + tl.log2(tl.sum(total * tl.exp2(high - highest), axis=0))
    picked = tl.load(logits + tl.where(counted, target_index, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(counted, level / LOG2E - picked, 0.0))
    tl.debug_barrier()  # nobody overwrites what another thread still has to read
    for start in range(0, columns, block):
        offsets = start + inside
        values = tl.load(logits + offsets, mask=offsets < columns, other=MIN_LOGIT, eviction_policy="evict_first")
        gradient = tl.exp2(values.to(tl.float32) * LOG2E - level) - tl.where(offsets == target_index, 1.0, 0.0)
        gradient = tl.where(counted, gradient, 0.0).to(logits.dtype.element_ty)
        tl.store(logits + offsets, gradient, mask=offsets < columns, eviction_policy="evict_first")
