"""Who the processes of a run are to each other: which read other data, which hold other parts of the model."""

import inspect
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from falaj.core.errors import Invalid, Unavailable
from falaj.train import plans
from falaj.train.options import Options

# Processes whose numbers of forwards differ must not meet in a broadcast of buffers; torch renames that switch.
_SWITCHES = inspect.signature(DistributedDataParallel).parameters
_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _SWITCHES else "broadcast_buffers": False
}


class Mesh:
    """The processes of a run, arranged as data x shard x tensor x pipeline."""

    def __init__(self, device: torch.device, *, ours: bool = False) -> None:
        self.device = device
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.reader, self.readers = self.rank, self.world
        """Which of how many readers of data this process is; those that share a model's parts read the same."""
        self.sizes: plans.Sizes | None = None
        self._ours = ours
        self._copies: list[DistributedDataParallel] = []

    @classmethod
    def here(cls, options: Options | None = None, *, device: str = "") -> "Mesh":
        """As the environment says (RANK, WORLD_SIZE, ... as torchrun and our launcher set them); alone without it.

        A process group that exists already is used. With `options`, sizes that they give are known at once.
        """
        place = _device(device or os.environ.get("FALAJ_DEVICE", ""))
        ours = _number("WORLD_SIZE", 1) > 1 and not dist.is_initialized()
        if ours:
            _meet(place, (options or Options()).hang_s)
        return cls(place, ours=ours)

    @property
    def divisor(self) -> int:
        """By how much wrappers divide the sum of the readers' gradients."""
        return 1 if self.sizes is None or self.sizes.copies else self.readers

    def wrap(self, module: nn.Module, plan: str | dict[str, int], options: Options) -> nn.Module:
        """The module as this process holds it."""
        self.sizes = plans.sizes(plan, self.world)
        del options
        module = module.to(self.device)
        self._agree(module)
        if self.world == 1 or self.sizes.copies:
            return module
        made = DistributedDataParallel(
            module,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            init_sync=False,
            gradient_as_bucket_view=True,
            **_BUFFERS,
        )
        self._copies.append(made)
        return made

    def last(self, flag: bool) -> None:
        """Say before a forward whether its backward is the last of the step: then gradients are shared."""
        for made in self._copies:
            made.require_backward_grad_sync = flag

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all readers, in place; the same bits on every process."""
        if self.readers > 1:
            dist.all_reduce(tensor)
        return tensor

    def norm(self, parameters: Iterable[torch.Tensor]) -> torch.Tensor:
        """The 2-norm of the gradients of the whole model, the same on every process."""
        grads: list[Any] = [param.grad for param in parameters if param.grad is not None]
        return torch.nn.utils.get_total_norm(grads)

    def close(self) -> None:
        """Part, where we have met."""
        if self._ours and dist.is_initialized():
            dist.destroy_process_group()

    def _agree(self, module: nn.Module) -> None:
        """Everybody begins with the first one's numbers."""
        if self.world == 1:
            return
        for tensor in (*module.parameters(), *module.buffers()):
            there = tensor.detach().to(self.device)
            dist.broadcast(there, 0)
            tensor.detach().copy_(there)


def _device(asked: str) -> torch.device:
    """The one of this process."""
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if asked == "cpu" or (not seen and not asked and given in ("", "-1")):
        return torch.device("cpu")
    if asked not in ("", "cuda"):
        raise Invalid(f"there is no device {asked!r}", "cuda or cpu")
    if not seen:
        raise Unavailable(
            f"a GPU was asked for ({asked or 'CUDA_VISIBLE_DEVICES=' + given}), and torch sees none",
            "install torch with CUDA and a driver, or say FALAJ_DEVICE=cpu",
        )
    if (local := _number("LOCAL_RANK", 0)) >= seen:
        raise Invalid(f"process {local} of this node has no GPU: torch sees {seen}", "start one process a GPU")
    place = torch.device("cuda", local)
    torch.cuda.set_device(place)
    return place


def _meet(device: torch.device, timeout_s: float) -> None:
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise Invalid(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(missing)} is not set",
            "start it by torchrun or as a job with framework='torch'; unset WORLD_SIZE to run alone",
        )
    cuda = device.type == "cuda"
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout_s), device_id=device if cuda else None
        )
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise Unavailable(
            f"process {os.environ['RANK']} did not meet the others at {where}: {str(error).splitlines()[0]}",
            "process 0 waits there; see whether it runs and can be reached",
        ) from error


def _number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise Invalid(f"{name}={text!r} is no number", "torchrun and our launcher set it")
    return int(text)
