"""How much a training computes, and how much of what the chip could.

MFU = operations of the model (a multiply and an add are two; forward and backward once, nothing that is computed again)
per second and chip, divided by the chip's dense peak of the data type. Operations are counted on a copy of the model
that has shapes and no data, or by a formula of the user's (`peaks.palm` for transformers).
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

_ODD = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""What a model may raise that is copied, or run without data."""


@cache
def matmul(device: str, dtype: torch.dtype = torch.float32) -> float:
    """The FLOP/s of a matrix product here, measured once: what can be reached at best."""
    size = 8192 if device.startswith("cuda") else 768
    one = torch.ones(size, size, dtype=dtype, device=device)
    best = float("inf")
    with torch.no_grad():
        for _ in range(4):
            begun = time.perf_counter()
            one @ one
            if one.is_cuda:
                torch.cuda.synchronize(one.device)
            best = min(best, time.perf_counter() - begun)
    return 2.0 * size**3 / best


def sketch(module: nn.Module) -> nn.Module:
    """A copy with shapes and no data."""
    known: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        known[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, known)


def count(drawn: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> float:
    """FLOPs of forward and backward of a sketch on inputs like these; 0 where they cannot be told."""
    counter: Any = cast("Any", _Counter)()
    try:
        # What the model makes by itself has no data either: nobody's random numbers are used up.
        with torch.device("meta"), counter:
            made = _floats(drawn(*_meta(args), **_meta(kwargs)))
            losses = [one.sum() for one in made if one.requires_grad]
            if losses:
                torch.autograd.backward(losses)
    except _ODD:
        return 0.0  # a model whose way depends on values has no count
    return float(counter.total)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts by torch's own formulas. Its FlopCounterMode hooks into all modules of the process, and so would disturb
    the training that goes on beside us."""

    total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)  # noqa: SLF001 - the key of torch's own table
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=made)
        return made


class Seen:
    """Waits for the first inputs of a module and keeps their shapes."""

    def __init__(self, module: nn.Module, drawn: nn.Module | None = None) -> None:
        self._drawn = drawn
        self._given: tuple[Any, Any] | None = None
        if getattr(module, "_compiled_call_impl", None) is not None:
            return  # what was compiled in its place would keep the hook for ever
        with contextlib.suppress(*_ODD):
            self._drawn = sketch(getattr(module, "_orig_mod", module)) if drawn is None else drawn
            self._hook = module.register_forward_pre_hook(self._see, with_kwargs=True)

    def flops(self) -> float | None:
        """Of one micro-batch; None as long as there was none, 0 where they cannot be told."""
        return count(self._drawn, *self._given) if self._given is not None and self._drawn is not None else None

    def _see(self, _: nn.Module, args: Any, kwargs: Any) -> None:
        self._hook.remove()
        self._given = (_meta(args), _meta(kwargs))


def _meta(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return torch.empty(thing.shape, dtype=thing.dtype, device="meta")
    if isinstance(thing, Mapping):
        return {key: _meta(value) for key, value in thing.items()}
    return type(thing)(_meta(one) for one in thing) if type(thing) in (list, tuple) else thing


def _floats(made: Any) -> list[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return [made] if made.is_floating_point() else []
    parts = made.values() if isinstance(made, Mapping) else made if isinstance(made, (list, tuple)) else ()
    return [one for part in parts for one in _floats(part)]
