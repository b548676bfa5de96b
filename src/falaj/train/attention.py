"""Attention whose gradients have the same bits each time, at nearly the speed of attention whose gradients have not.

Under `strict` torch falls back to its older kernels for attention on CUDA. Here the forward pass is cuDNN's, which is
the same each time, and the backward pass two Triton kernels without atomic additions: one gives the gradients of keys
and values, a block of keys a program, the other those of queries, a block of queries a program. They stand in for
torch's kernel under its own name, so that models and the compiler need not know; what they do not cover is left to it.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

FORWARD, BACKWARD = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
LEAST = 128
"""Sequences are whole blocks of this size."""
LOG2E = 1 / math.log(2.0)
_HELD: list[torch.library.Library] = []


@cache
def install() -> None:
    """From now on, in this process, torch's deterministic attention is this one where it can be."""
    if torch.cuda.get_device_capability()[0] < 9:
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, ours in ((FORWARD, _forward), (BACKWARD, _backward)):
        theirs = torch.library.get_kernel(f"aten::{name}", "CUDA")
        library.impl(name, _either(ours, theirs), "CUDA", with_keyset=True)  # type: ignore[no-untyped-call]
    _HELD.append(library)  # what it registered goes when it goes


def backward(grad: torch.Tensor, saved: tuple[torch.Tensor, ...], *, causal: bool, scale: float) -> list[torch.Tensor]:
    """The gradients of queries, keys and values, given those, what came out and its log-sum-exp."""
    q, k, v, out, lse = saved
    batch, heads, length, width = q.shape
    delta = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
    grads = [torch.empty_like(each) for each in (q, k, v)]
    grad = grad if grad.stride(3) == 1 else grad.contiguous()
    strides = [number for each in (q, k, v, grad, *grads) for number in each.stride()[:3]]
    _delta[(length // LEAST, batch * heads)](
        out, grad, delta, *out.stride()[:3], *grad.stride()[:3], heads, length, width=width, block=LEAST, num_warps=8
    )
    common = (q, k, v, grad, lse.contiguous(), delta, *grads, *strides, heads, length, scale, scale * LOG2E, LOG2E)
    for kernel, rows, columns, warps, stages in _SHAPES[width]:
        own = columns if kernel is _keys else rows
        kernel[(length // own, batch * heads)](
            *common, causal=causal, width=width, rows=rows, columns=columns, num_warps=warps, num_stages=stages
        )
    return grads


def _covered(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> bool:
    return (
        dropout == 0.0
        and q.shape == k.shape == v.shape
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[3] in _SHAPES
        and q.shape[2] % LEAST == 0
        and all(each.stride(3) == 1 for each in (q, k, v))
    )


def _either(ours: Callable[..., Any], theirs: Any) -> Callable[..., Any]:
    def chosen(keys: Any, *given: Any, **more: Any) -> Any:
        done = ours(*given, **more)
        return theirs.call_boxed(keys, *given, **more) if done is None else done

    return chosen


def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float = 0.0, causal: bool = False, debug: bool = False,
    scale: float | None = None,
) -> Any:  # fmt: skip
    if debug or not _covered(q, k, v, dropout):
        return None
    given = (q, k, v, None, True, 0.0, causal, False)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(*given, scale=scale)  # noqa: SLF001
    like = torch.empty_like(q)
    out = out if out.stride() == like.stride() else like.copy_(out)
    seeds = (torch.empty(2, dtype=torch.uint64, device=q.device), torch.empty((), dtype=torch.uint64, device=q.device))
    return out, lse.squeeze(-1).contiguous(), None, None, q.shape[2], k.shape[2], *seeds, q.new_empty(0)


def _backward(grad: torch.Tensor, *given: Any, scale: float | None = None) -> Any:
    q, k, v, out, lse = given[:5]
    dropout, causal = given[9:11]
    if not _covered(q, k, v, dropout):
        return None
    scale = q.shape[3] ** -0.5 if scale is None else scale
    return tuple(backward(grad, (q, k, v, out, lse), causal=causal, scale=scale))


@triton.jit  # type: ignore[untyped-decorator]
def _delta(  # type: ignore[no-untyped-def]
    out, grad, delta, ob, oh, os, gb, gh, gs, heads, length, width: tl.constexpr, block: tl.constexpr
):
    """What is taken off every row of the scores' gradients: the row of the output times that of its gradient."""
    many = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * block + tl.arange(0, block)
    columns = tl.arange(0, width)
    one = tl.load(out + many // heads * ob + many % heads * oh + rows[:, None] * os + columns[None, :]).to(tl.float32)
    other = tl.load(grad + many // heads * gb + many % heads * gh + rows[:, None] * gs + columns[None, :])
    tl.store(delta + many * length + rows, tl.sum(one * other.to(tl.float32), axis=1))


@triton.jit  # type: ignore[untyped-decorator]
def _keys(  # type: ignore[no-untyped-def]
    q, k, v, grad, lse, delta, dq, dk, dv,
    qb, qh, qs, kb, kh, ks, vb, vh, vs, gb, gh, gs, dqb, dqh, dqs, dkb, dkh, dks, dvb, dvh, dvs,
    heads, length, scale, scale2, log2e,
    causal: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    many = tl.program_id(1).to(tl.int64)
    b, h = many // heads, many % heads
    first = tl.program_id(0) * columns
    mine, depth = first + tl.arange(0, columns), tl.arange(0, width)
    key = tl.load(k + b * kb + h * kh + mine[:, None] * ks + depth[None, :])
    value = tl.load(v + b * vb + h * vh + mine[:, None] * vs + depth[None, :])
    q += b * qb + h * qh
    grad += b * gb + h * gh
    lse += many * length
    delta += many * length
    key_grad = tl.zeros((columns, width), tl.float32)
    value_grad = tl.zeros((columns, width), tl.float32)
    if causal:  # the blocks on the diagonal first, with a mask, then those below it
        key_grad, value_grad = _over_queries(
            key_grad, value_grad, key, value, mine, q, grad, lse, delta, first, first + columns,
            qs, gs, scale2, log2e, masked=True, width=width, rows=rows,
        )  # fmt: skip
    key_grad, value_grad = _over_queries(
        key_grad, value_grad, key, value, mine, q, grad, lse, delta, first + columns if causal else 0, length,
        qs, gs, scale2, log2e, masked=False, width=width, rows=rows,
    )  # fmt: skip
    kind = dk.dtype.element_ty
    tl.store(dk + b * dkb + h * dkh + mine[:, None] * dks + depth[None, :], (key_grad * scale).to(kind))
    tl.store(dv + b * dvb + h * dvh + mine[:, None] * dvs + depth[None, :], value_grad.to(kind))


@triton.jit  # type: ignore[untyped-decorator]
def _over_queries(  # type: ignore[no-untyped-def]
    key_grad, value_grad, key, value, mine, q, grad, lse, delta, low, high, qs, gs, scale2, log2e,
    masked: tl.constexpr, width: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """What the queries from `low` to `high` add to the gradients of a block of keys; `masked`: but for earlier ones."""
    depth = tl.arange(0, width)
    for start in range(low, high, rows):
        at = start + tl.arange(0, rows)
        query = tl.load(q + at[:, None] * qs + depth[None, :])
        slope = tl.load(grad + at[:, None] * gs + depth[None, :])
        share = tl.math.exp2(tl.dot(key, tl.trans(query)) * scale2 - tl.load(lse + at)[None, :] * log2e)
        if masked:
            share = tl.where(at[None, :] >= mine[:, None], share, 0.0)
        value_grad += tl.dot(share.to(query.dtype), slope)
        inner = share * (tl.dot(value, tl.trans(slope)) - tl.load(delta + at)[None, :])
        key_grad += tl.dot(inner.to(query.dtype), query)
    return key_grad, value_grad


@triton.jit  # type: ignore[untyped-decorator]
def _queries(  # type: ignore[no-untyped-def]
    q, k, v, grad, lse, delta, dq, dk, dv,
    qb, qh, qs, kb, kh, ks, vb, vh, vs, gb, gh, gs, dqb, dqh, dqs, dkb, dkh, dks, dvb, dvh, dvs,
    heads, length, scale, scale2, log2e,
    causal: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    many = tl.program_id(1).to(tl.int64)
    b, h = many // heads, many % heads
    # The longest rows first: the last programs to begin are short.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * rows
    mine, depth = first + tl.arange(0, rows), tl.arange(0, width)
    query = tl.load(q + b * qb + h * qh + mine[:, None] * qs + depth[None, :])
    slope = tl.load(grad + b * gb + h * gh + mine[:, None] * gs + depth[None, :])
    weight = tl.load(lse + many * length + mine)[:, None] * log2e
    taken = tl.load(delta + many * length + mine)[:, None]
    k += b * kb + h * kh
    v += b * vb + h * vh
    query_grad = tl.zeros((rows, width), tl.float32)
    query_grad = _over_keys(
        query_grad, query, slope, weight, taken, mine, k, v, 0, first if causal else length,
        ks, vs, scale2, masked=False, width=width, columns=columns,
    )  # fmt: skip
    if causal:
        query_grad = _over_keys(
            query_grad, query, slope, weight, taken, mine, k, v, first, first + rows,
            ks, vs, scale2, masked=True, width=width, columns=columns,
        )  # fmt: skip
    place = dq + b * dqb + h * dqh + mine[:, None] * dqs + depth[None, :]
    tl.store(place, (query_grad * scale).to(dq.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _over_keys(  # type: ignore[no-untyped-def]
    query_grad, query, slope, weight, taken, mine, k, v, low, high, ks, vs, scale2,
    masked: tl.constexpr, width: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """What the keys from `low` to `high` add to the gradients of a block of queries; `masked`: but for later ones."""
    depth = tl.arange(0, width)
    for start in range(low, high, columns):
        at = start + tl.arange(0, columns)
        key = tl.load(k + at[:, None] * ks + depth[None, :])
        value = tl.load(v + at[:, None] * vs + depth[None, :])
        share = tl.math.exp2(tl.dot(query, tl.trans(key)) * scale2 - weight)
        if masked:
            share = tl.where(mine[:, None] >= at[None, :], share, 0.0)
        inner = share * (tl.dot(slope, tl.trans(value)) - taken)
        query_grad += tl.dot(inner.to(query.dtype), key)
    return query_grad


_SHAPES: dict[int, tuple[tuple[Any, int, int, int, int], ...]] = {
    64: ((_keys, 64, 64, 4, 1), (_queries, 64, 64, 4, 2)),
    128: ((_keys, 64, 64, 4, 2), (_queries, 128, 32, 8, 3)),
}
"""By width of a head, for each kernel: rows and columns of a block, warps and stages; the fastest on an H200."""
