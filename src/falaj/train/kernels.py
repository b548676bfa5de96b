"""Triton kernels: passes over memory that torch would make in several. Imported where Triton and a GPU are.

Every kernel here has a plain torch twin beside its caller, which is what runs on CPUs and what the tests hold it to.
"""

import torch
import triton
import triton.language as tl

BLOCK = 4096
WARPS = 8
LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.0e38)
"""Below every logit that is a number; unlike infinity it can be subtracted from itself."""


def fold(
    total: torch.Tensor, grad: torch.Tensor, scale: float, bad: torch.Tensor, limit: float, *, first: bool = False
) -> None:
    """Add a gradient to a sum of integers, `total += int(grad * scale)`; `first` begins the sum, whatever was there.

    `bad` (int32) becomes 1 when a number is not below `limit` in size, or is none.
    """
    size = grad.numel()
    _fold[(triton.cdiv(size, BLOCK),)](total, grad, scale, bad, limit, size, first, block=BLOCK, num_warps=WARPS)


def adamw(
    param: torch.Tensor, master: torch.Tensor, grad: torch.Tensor, moments: tuple[torch.Tensor, torch.Tensor],
    rates: tuple[float, float, float, float, float], corrections: tuple[float, float], divisor: torch.Tensor,
) -> None:  # fmt: skip
    """One AdamW step on master weights, and the parameter as its rounded copy, in one pass.

    `rates` are lr, beta1, beta2, eps and weight decay; the gradient is divided by `divisor` on the way.
    """
    size = param.numel()
    _adamw[(triton.cdiv(size, BLOCK),)](
        param, master, grad, *moments, divisor, *rates, *corrections, size, block=BLOCK, num_warps=WARPS
    )


def cross_entropy(logits: torch.Tensor, target: torch.Tensor, losses: torch.Tensor, ignored: int) -> None:
    """The loss of every row, and the rows of `logits` become their gradients, in place: two passes over them in all."""
    rows, columns = logits.shape
    _cross_entropy[(rows,)](logits, target, losses, logits.stride(0), columns, ignored, block=8192, num_warps=16)


@triton.jit  # type: ignore[untyped-decorator]
def _fold(  # type: ignore[no-untyped-def]
    total, grad, scale, bad, limit, size, first: tl.constexpr, block: tl.constexpr
):
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = places < size
    wide = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32) * scale
    good = tl.abs(wide) < limit
    wide = tl.where(good, wide, 0.0)
    whole = wide.to(tl.int64)
    if not first:
        whole += tl.load(total + places, mask=inside, other=0)
    tl.store(total + places, whole, mask=inside)
    if tl.min(good.to(tl.int32), axis=0) == 0:
        tl.store(bad, 1)


@triton.jit  # type: ignore[untyped-decorator]
def _adamw(  # type: ignore[no-untyped-def]
    param, master, grad, first, second, divisor, lr, beta1, beta2, eps, decay, correction1, correction2, size,
    block: tl.constexpr,
):  # fmt: skip
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = places < size
    slope = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32) / tl.load(divisor)
    weight = tl.load(master + places, mask=inside, other=0.0) * (1.0 - lr * decay)
    mean = tl.load(first + places, mask=inside, other=0.0)
    mean = mean + (slope - mean) * (1.0 - beta1)
    square = tl.load(second + places, mask=inside, other=0.0) * beta2 + slope * slope * (1.0 - beta2)
    weight = weight - (lr / correction1) * mean / (tl.sqrt(square) / correction2 + eps)
    tl.store(first + places, mean, mask=inside)
    tl.store(second + places, square, mask=inside)
    tl.store(master + places, weight, mask=inside)
    tl.store(param + places, weight.to(param.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _cross_entropy(logits, target, losses, stride, columns, ignored, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    wanted = tl.load(target + row)
    counted = wanted != ignored
    # Every lane has eight columns of a block and a sum of its own, so that threads need not wait for each other until
    # the end. A row that was read is read once more before its memory is wanted for others, and then no more.
    lanes: tl.constexpr = block // 8
    inside = tl.arange(0, lanes)[:, None] * 8 + tl.arange(0, 8)[None, :]
    high, total = tl.full((lanes,), LOWEST, tl.float32), tl.zeros((lanes,), tl.float32)
    for start in range(0, columns, block):
        places = start + inside
        values = tl.load(logits + places, mask=places < columns, other=LOWEST, eviction_policy="evict_last")
        values = values.to(tl.float32) * LOG2E
        higher = tl.maximum(high, tl.max(values, axis=1))
        total = total * tl.exp2(high - higher) + tl.sum(tl.exp2(values - higher[:, None]), axis=1)
        high = higher
    highest = tl.max(high, axis=0)
    level = highest + tl.log2(tl.sum(total * tl.exp2(high - highest), axis=0))
    picked = tl.load(logits + tl.where(counted, wanted, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(counted, level / LOG2E - picked, 0.0))
    tl.debug_barrier()  # nobody overwrites what another thread still has to read
    for start in range(0, columns, block):
        places = start + inside
        values = tl.load(logits + places, mask=places < columns, other=LOWEST, eviction_policy="evict_first")
        slope = tl.exp2(values.to(tl.float32) * LOG2E - level) - tl.where(places == wanted, 1.0, 0.0)
        slope = tl.where(counted, slope, 0.0).to(logits.dtype.element_ty)
        tl.store(logits + places, slope, mask=places < columns, eviction_policy="evict_first")
