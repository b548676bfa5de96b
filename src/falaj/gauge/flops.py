"""How much a training computes, and how much of what the chip could.

MFU = operations of the model (a multiply and an add are two; forward and backward once, nothing that is computed again)
per second and chip, divided by the chip's dense peak of the data type. Operations are counted on a copy of the model
that has shapes and no data, or by a formula of the user's (`chip_peaks.palm` for transformers).
"""

import contextlib
import copy
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_MODEL_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""What a model may raise that is copied, or run without data."""


@cache
def measure_matmul(device: str, dtype: torch.dtype = torch.float32) -> float:
    """The FLOP/s of a matrix product here, measured once: what can be reached at best."""
    size = 8192 if device.startswith("cuda") else 768
    matrix = torch.ones(size, size, dtype=dtype, device=device)
    best_s = float("inf")
    with torch.no_grad():
        for _ in range(4):
            started_at = time.perf_counter()
            matrix @ matrix
            if matrix.is_cuda:
                torch.cuda.synchronize(matrix.device)
            best_s = min(best_s, time.perf_counter() - started_at)
    return 2.0 * size**3 / best_s


def copy_to_meta(module: nn.Module) -> nn.Module:
    """A copy with shapes and no data."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)


def count_flops(meta_module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """FLOPs of forward and backward of a sketch on inputs like these; 0 where they cannot be told."""
    counter: Any = cast("Any", _FlopCounter)()
    try:
        # What the model makes by itself has no data either: nobody's random numbers are used up.
        with torch.device("meta"), counter:
            outputs = _list_float_tensors(meta_module(*_to_meta(args), **_to_meta(kwargs)))
            losses = [output.sum() for output in outputs if output.requires_grad]
            if losses:
                torch.autograd.backward(losses)
    except _MODEL_ERRORS:
        return 0.0  # a model whose way depends on values has no count
    return float(counter.total)


class _FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts by torch's own formulas. Its FlopCounterMode hooks into all modules of the process, and so would disturb
    the training that goes on beside us."""

    total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)  # noqa: SLF001 - the key of torch's own table
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


class FirstInputFlops:
    """Waits for the first inputs of a module and keeps their shapes."""

    def __init__(self, module: nn.Module, meta_module: nn.Module | None = None) -> None:
        self._meta_module = meta_module
        self._first_inputs: tuple[Any, Any] | None = None
        if getattr(module, "_compiled_call_impl", None) is not None:
            return  # what was compiled in its place would keep the hook for ever
        with contextlib.suppress(*_MODEL_ERRORS):
            self._meta_module = (
                copy_to_meta(getattr(module, "_orig_mod", module)) if meta_module is None else meta_module
            )
            self._hook = module.register_forward_pre_hook(self._on_forward, with_kwargs=True)

    def flops(self) -> float | None:
        """Of one micro-batch; None as long as there was none, 0 where they cannot be told."""
        return (
            count_flops(self._meta_module, *self._first_inputs)
            if self._first_inputs is not None and self._meta_module is not None
            else None
        )

    def _on_forward(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self._hook.remove()
        self._first_inputs = (_to_meta(args), _to_meta(kwargs))


def _to_meta(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return torch.empty(tree.shape, dtype=tree.dtype, device="meta")
    if isinstance(tree, Mapping):
        return {key: _to_meta(value) for key, value in tree.items()}
    return type(tree)(_to_meta(item) for item in tree) if type(tree) in (list, tuple) else tree


def _list_float_tensors(outputs: Any) -> list[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        return [outputs] if outputs.is_floating_point() else []
    children = (
        outputs.values() if isinstance(outputs, Mapping) else outputs if isinstance(outputs, (list, tuple)) else ()
    )
    return [tensor for child in children for tensor in _list_float_tensors(child)]
