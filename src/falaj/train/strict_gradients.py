"""The same bits in any world: gradients of micro-batches are added as integers, whose sums know no order.

Each gradient is folded into 64-bit fixed point (unit 2^-50 of the mean's) as soon as it is there, and freed. Between
processes the integers are added; they become floating point once, when the parameters move.
"""

import math
import os
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from falaj.core.errors import Invalid, UserCodeFailed

if TYPE_CHECKING:
    from falaj.train.mesh import ProcessMesh
    from falaj.train.options import Options

FIXED_POINT_UNIT = 2.0**50
_FIXED_POINT_RANGE = 2.0**62


def prepare_strict(options: "Options") -> None:
    """Choose kernels that give the same bits each time; before CUDA starts."""
    if options.precision == "fp16":
        raise Invalid(
            "strict does not go with fp16: when its scale grows depends on overflows of single processes",
            "precision='bf16' or 'fp32' need no scale",
        )
    if options.parallel not in ("auto", "none", "ddp"):
        raise Invalid(
            f"strict does not go with parallel={options.parallel!r}: it adds floats in an order that the world decides",
            "whole replicas (parallel='ddp') can be added as integers; or reproducible='order'",
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    # How sums are cut among threads shows in their bits: the number must not follow the machine.
    torch.set_num_threads(options.threads or 1)
    if torch.cuda.is_available():
        try:
            from falaj.train.attention import install_kernels
        except ImportError:  # no Triton: torch's own kernel does it, slower
            return
        install_kernels()


class _FlatGradients:
    """The gradients of parameters of one kind, as integers in one piece."""

    def __init__(self, params: list[torch.Tensor], bad_flag: torch.Tensor) -> None:
        self.params, self._bad_flag = params, bad_flag
        self.total = torch.zeros(sum(param.numel() for param in params), dtype=torch.int64, device=bad_flag.device)
        self.parts = torch.split(self.total, [param.numel() for param in params])
        self.places = {id(param): part for param, part in zip(params, self.parts, strict=True)}
        self.limit, self.touched = _FIXED_POINT_RANGE, False

    def fold(self, param: torch.Tensor) -> None:
        """Take a gradient over, and free it."""
        grad, param.grad = param.grad, None
        if grad is not None:
            self.touched = True
            _fold_gradient(self.places[id(param)], grad.detach().to_dense().reshape(-1), self._bad_flag, self.limit)

    def spread(self) -> None:
        """The sums become gradients, in units of 2^-50."""
        floats = torch.split(self.total.to(self.params[0].dtype), [param.numel() for param in self.params])
        for param, part in zip(self.params, floats, strict=True):
            param.grad = part.view_as(param)
        self.total.zero_()
        self.touched = False


class StrictGradients:
    """What a run holds of it."""

    def __init__(self, mesh: "ProcessMesh") -> None:
        self._mesh = mesh
        self.ratio = 0.0
        """Items a sample, as a power of two: with it sums stay within range. Fixed by the very first micro-batch."""
        self.bad = torch.zeros(1, dtype=torch.int32, device=mesh.device)
        self._flat_gradients: list[_FlatGradients] = []
        self._modules: list[nn.Module] = []
        self._buffers: list[Any] = []

    def watch(self, module: nn.Module) -> None:
        """Fold the gradients of its parameters from now on."""
        self._modules.append(module)
        trainable = [param for param in module.parameters() if param.requires_grad]
        for dtype in dict.fromkeys(param.dtype for param in trainable):
            flat = _FlatGradients([param for param in trainable if param.dtype == dtype], self.bad)
            self._flat_gradients.append(flat)
            for param in flat.params:
                param.register_post_accumulate_grad_hook(flat.fold)  # type: ignore[no-untyped-call]

    def fix(self, items: float, micro_count: int) -> None:
        """Choose the range once, by the items a sample of the first micro-batch of all; and how many will be added."""
        if not self.ratio:
            first_items = torch.tensor([items], dtype=torch.float64, device=self._mesh.device)
            if self._mesh.world > 1:
                dist.broadcast(first_items, 0)
            self.ratio = 2.0 ** math.ceil(math.log2(max(float(first_items), 1.0)))
        for flat in self._flat_gradients:
            flat.limit = _FIXED_POINT_RANGE / micro_count

    def settle(self, params: Iterable[torch.Tensor]) -> None:
        """Add up what all processes have for these parameters, and give it to them as gradients."""
        param_ids = {id(param) for param in params}
        for flat in self._flat_gradients:
            if param_ids & flat.places.keys() and (flat.touched or self._mesh.world > 1):
                if self._mesh.world > 1:
                    dist.all_reduce(flat.total)
                flat.spread()

    def spoiled(self) -> bool:
        """Whether a gradient of this process was no number, or beyond the range."""
        return bool(self.bad)

    def begin(self) -> None:
        """The first step is about to begin."""
        self._buffers = self._read_buffer_versions()

    def judge(self) -> None:
        """The first step is over. A buffer that each process changes by what it saw makes bits depend on the world."""
        for (name, *previous), (_, *current) in zip(self._buffers, self._read_buffer_versions(), strict=True):
            if previous != current:
                raise UserCodeFailed(
                    f"the model changes its buffer {name!r} while it learns: each process would have another",
                    "strict needs layers without running statistics (GroupNorm, LayerNorm), or reproducible='order'",
                )
        self._buffers = []

    def state_dict(self) -> dict[str, Any]:
        """The range."""
        return {"ratio": self.ratio}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.ratio = float(state["ratio"])

    def _read_buffer_versions(self) -> list[tuple[str, int, int]]:
        # torch counts the changes of a tensor in place, for autograd's sake.
        return [
            (name, id(buffer), buffer._version)  # noqa: SLF001 - there since torch 0.4
            for module in self._modules
            for name, buffer in module.named_buffers()
        ]


def _fold_gradient(total: torch.Tensor, grad: torch.Tensor, bad_flag: torch.Tensor, limit: float) -> None:
    if grad.is_cuda and (kernel := _load_kernel()) is not None:
        kernel(total, grad.contiguous(), FIXED_POINT_UNIT, bad_flag, limit)
        return
    scaled = (grad if grad.dtype == torch.float64 else grad.float()) * FIXED_POINT_UNIT
    bad_flag.logical_or_(~(scaled.abs().amax() < limit))
    total.add_(scaled.to(torch.int64))


@cache
def _load_kernel() -> Any:
    try:
        from falaj.train.kernels import fold_gradient
    except ImportError:
        return None
    return fold_gradient
