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

FORWARD_OP, BACKWARD_OP = "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"
BLOCK_LENGTH = 128
"""Sequences are whole blocks of this size."""
LOG2E = 1 / math.log(2.0)
_LIBRARIES: list[torch.library.Library] = []


@cache
def install_kernels() -> None:
    """From now on, in this process, torch's deterministic attention is this one where it can be."""
    if torch.cuda.get_device_capability()[0] < 9:
        return
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, replacement in ((FORWARD_OP, _forward_attention), (BACKWARD_OP, _backward_attention)):
        fallback = torch.library.get_kernel(f"aten::{name}", "CUDA")
        library.impl(name, _with_fallback(replacement, fallback), "CUDA", with_keyset=True)  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)  # what it registered goes when it goes


def compute_gradients(
    grad: torch.Tensor, saved: tuple[torch.Tensor, ...], *, causal: bool, scale: float
) -> list[torch.Tensor]:
    """The gradients of queries, keys and values, given those, what came out and its log-sum-exp."""
    q, k, v, out, lse = saved
    batch, heads, length, width = q.shape
    delta = torch.empty((batch, heads, length), dtype=torch.float32, device=q.device)
    grads = [torch.empty_like(tensor) for tensor in (q, k, v)]
    grad = grad if grad.stride(3) == 1 else grad.contiguous()
    strides = [number for tensor in (q, k, v, grad, *grads) for number in tensor.stride()[:3]]
    _row_delta_kernel[(length // BLOCK_LENGTH, batch * heads)](
        out,
        grad,
        delta,
        *out.stride()[:3],
        *grad.stride()[:3],
        heads,
        length,
        width=width,
        block=BLOCK_LENGTH,
        num_warps=8,
    )
    common_args = (q, k, v, grad, lse.contiguous(), delta, *grads, *strides, heads, length, scale, scale * LOG2E, LOG2E)
    for kernel, rows, columns, warps, stages in _BLOCK_SHAPES[width]:
        own_block = columns if kernel is _key_gradients_kernel else rows
        kernel[(length // own_block, batch * heads)](
            *common_args, causal=causal, width=width, rows=rows, columns=columns, num_warps=warps, num_stages=stages
        )
    return grads


def _is_supported(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> bool:
    return (
        dropout == 0.0
        and q.shape == k.shape == v.shape
        and q.dtype in (torch.bfloat16, torch.float16)
        and q.shape[3] in _BLOCK_SHAPES
        and q.shape[2] % BLOCK_LENGTH == 0
        and all(tensor.stride(3) == 1 for tensor in (q, k, v))
    )


def _with_fallback(replacement: Callable[..., Any], fallback: Any) -> Callable[..., Any]:
    def call_either(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        result = replacement(*args, **kwargs)
        return fallback.call_boxed(keyset, *args, **kwargs) if result is None else result

    return call_either


def _forward_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    scale: float | None = None,
) -> Any:
    if debug or not _is_supported(q, k, v, dropout):
        return None
    attention_args = (q, k, v, None, True, 0.0, causal, False)
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(*attention_args, scale=scale)  # noqa: SLF001
    expected_layout = torch.empty_like(q)
    out = out if out.stride() == expected_layout.stride() else expected_layout.copy_(out)
    seeds = (torch.empty(2, dtype=torch.uint64, device=q.device), torch.empty((), dtype=torch.uint64, device=q.device))
    return out, lse.squeeze(-1).contiguous(), None, None, q.shape[2], k.shape[2], *seeds, q.new_empty(0)


def _backward_attention(grad: torch.Tensor, *args: Any, scale: float | None = None) -> Any:
    q, k, v, out, lse = args[:5]
    dropout, causal = args[9:11]
    if not _is_supported(q, k, v, dropout):
        return None
    scale = q.shape[3] ** -0.5 if scale is None else scale
    return tuple(compute_gradients(grad, (q, k, v, out, lse), causal=causal, scale=scale))


@triton.jit  # type: ignore[untyped-decorator]
def _row_delta_kernel(  # type: ignore[no-untyped-def]
    out, grad, delta, ob, oh, os, gb, gh, gs, heads, length, width: tl.constexpr, block: tl.constexpr
):
    """What is taken off every row of the scores' gradients: the row of the output times that of its gradient."""
    batch_head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * block + tl.arange(0, block)
    columns = tl.arange(0, width)
    outputs = tl.load(
        out + batch_head // heads * ob + batch_head % heads * oh + rows[:, None] * os + columns[None, :]
    ).to(tl.float32)
    output_grads = tl.load(
        grad + batch_head // heads * gb + batch_head % heads * gh + rows[:, None] * gs + columns[None, :]
    )
    tl.store(delta + batch_head * length + rows, tl.sum(outputs * output_grads.to(tl.float32), axis=1))


@triton.jit  # type: ignore[untyped-decorator]
def _key_gradients_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    grad,
    lse,
    delta,
    dq,
    dk,
    dv,
    qb,
    qh,
    qs,
    kb,
    kh,
    ks,
    vb,
    vh,
    vs,
    gb,
    gh,
    gs,
    dqb,
    dqh,
    dqs,
    dkb,
    dkh,
    dks,
    dvb,
    dvh,
    dvs,
    heads,
    length,
    scale,
    scale2,
    log2e,
    causal: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    batch_head = tl.program_id(1).to(tl.int64)
    b, h = batch_head // heads, batch_head % heads
    first_key = tl.program_id(0) * columns
    key_positions, depth = first_key + tl.arange(0, columns), tl.arange(0, width)
    key = tl.load(k + b * kb + h * kh + key_positions[:, None] * ks + depth[None, :])
    value = tl.load(v + b * vb + h * vh + key_positions[:, None] * vs + depth[None, :])
    q += b * qb + h * qh
    grad += b * gb + h * gh
    lse += batch_head * length
    delta += batch_head * length
    key_grad = tl.zeros((columns, width), tl.float32)
    value_grad = tl.zeros((columns, width), tl.float32)
    if causal:  # the blocks on the diagonal first, with a mask, then those below it
        key_grad, value_grad = _accumulate_over_queries(
            key_grad,
            value_grad,
            key,
            value,
            key_positions,
            q,
            grad,
            lse,
            delta,
            first_key,
            first_key + columns,
            qs,
            gs,
            scale2,
            log2e,
            masked=True,
            width=width,
            rows=rows,
        )
    key_grad, value_grad = _accumulate_over_queries(
        key_grad,
        value_grad,
        key,
        value,
        key_positions,
        q,
        grad,
        lse,
        delta,
        first_key + columns if causal else 0,
        length,
        qs,
        gs,
        scale2,
        log2e,
        masked=False,
        width=width,
        rows=rows,
    )
    element_type = dk.dtype.element_ty
    tl.store(
        dk + b * dkb + h * dkh + key_positions[:, None] * dks + depth[None, :], (key_grad * scale).to(element_type)
    )
    tl.store(dv + b * dvb + h * dvh + key_positions[:, None] * dvs + depth[None, :], value_grad.to(element_type))


@triton.jit  # type: ignore[untyped-decorator]
def _accumulate_over_queries(  # type: ignore[no-untyped-def]
    key_grad,
    value_grad,
    key,
    value,
    key_positions,
    q,
    grad,
    lse,
    delta,
    low,
    high,
    qs,
    gs,
    scale2,
    log2e,
    masked: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
):
    """What the queries from `low` to `high` add to the gradients of a block of keys; `build_keep_mask`: but for earlier
    ones."""
    depth = tl.arange(0, width)
    for start in range(low, high, rows):
        query_positions = start + tl.arange(0, rows)
        query = tl.load(q + query_positions[:, None] * qs + depth[None, :])
        output_grad = tl.load(grad + query_positions[:, None] * gs + depth[None, :])
        probabilities = tl.math.exp2(
            tl.dot(key, tl.trans(query)) * scale2 - tl.load(lse + query_positions)[None, :] * log2e
        )
        if masked:
            probabilities = tl.where(query_positions[None, :] >= key_positions[:, None], probabilities, 0.0)
        value_grad += tl.dot(probabilities.to(query.dtype), output_grad)
        score_grad = probabilities * (tl.dot(value, tl.trans(output_grad)) - tl.load(delta + query_positions)[None, :])
        key_grad += tl.dot(score_grad.to(query.dtype), query)
    return key_grad, value_grad


@triton.jit  # type: ignore[untyped-decorator]
def _query_gradients_kernel(  # type: ignore[no-untyped-def]
    q,
    k,
    v,
    grad,
    lse,
    delta,
    dq,
    dk,
    dv,
    qb,
    qh,
    qs,
    kb,
    kh,
    ks,
    vb,
    vh,
    vs,
    gb,
    gh,
    gs,
    dqb,
    dqh,
    dqs,
    dkb,
    dkh,
    dks,
    dvb,
    dvh,
    dvs,
    heads,
    length,
    scale,
    scale2,
    log2e,
    causal: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    batch_head = tl.program_id(1).to(tl.int64)
    b, h = batch_head // heads, batch_head % heads
    # The longest rows first: the last programs to begin are short.
    first_query = (tl.num_programs(0) - 1 - tl.program_id(0)) * rows
    query_positions, depth = first_query + tl.arange(0, rows), tl.arange(0, width)
    query = tl.load(q + b * qb + h * qh + query_positions[:, None] * qs + depth[None, :])
    output_grad = tl.load(grad + b * gb + h * gh + query_positions[:, None] * gs + depth[None, :])
    log_sums = tl.load(lse + batch_head * length + query_positions)[:, None] * log2e
    row_delta = tl.load(delta + batch_head * length + query_positions)[:, None]
    k += b * kb + h * kh
    v += b * vb + h * vh
    query_grad = tl.zeros((rows, width), tl.float32)
    query_grad = _accumulate_over_keys(
        query_grad,
        query,
        output_grad,
        log_sums,
        row_delta,
        query_positions,
        k,
        v,
        0,
        first_query if causal else length,
        ks,
        vs,
        scale2,
        masked=False,
        width=width,
        columns=columns,
    )
    if causal:
        query_grad = _accumulate_over_keys(
            query_grad,
            query,
            output_grad,
            log_sums,
            row_delta,
            query_positions,
            k,
            v,
            first_query,
            first_query + rows,
            ks,
            vs,
            scale2,
            masked=True,
            width=width,
            columns=columns,
        )
    targets = dq + b * dqb + h * dqh + query_positions[:, None] * dqs + depth[None, :]
    tl.store(targets, (query_grad * scale).to(dq.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _accumulate_over_keys(  # type: ignore[no-untyped-def]
    query_grad,
    query,
    output_grad,
    log_sums,
    row_delta,
    query_positions,
    k,
    v,
    low,
    high,
    ks,
    vs,
    scale2,
    masked: tl.constexpr,
    width: tl.constexpr,
    columns: tl.constexpr,
):
    """What the keys from `low` to `high` add to the gradients of a block of queries; `build_keep_mask`: but for later
    ones."""
    depth = tl.arange(0, width)
    for start in range(low, high, columns):
        key_positions = start + tl.arange(0, columns)
        key = tl.load(k + key_positions[:, None] * ks + depth[None, :])
        value = tl.load(v + key_positions[:, None] * vs + depth[None, :])
        probabilities = tl.math.exp2(tl.dot(query, tl.trans(key)) * scale2 - log_sums)
        if masked:
            probabilities = tl.where(query_positions[:, None] >= key_positions[None, :], probabilities, 0.0)
        score_grad = probabilities * (tl.dot(output_grad, tl.trans(value)) - row_delta)
        query_grad += tl.dot(score_grad.to(query.dtype), key)
    return query_grad


_BLOCK_SHAPES: dict[int, tuple[tuple[Any, int, int, int, int], ...]] = {
    64: ((_key_gradients_kernel, 64, 64, 4, 1), (_query_gradients_kernel, 64, 64, 4, 2)),
    128: ((_key_gradients_kernel, 64, 64, 4, 2), (_query_gradients_kernel, 128, 32, 8, 3)),
}
"""By width of a head, for each kernel: rows and columns of a block, warps and stages; the fastest on an H200."""
