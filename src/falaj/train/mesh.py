"""Who the processes of a run are to each other: which read other data, which hold other parts of the model."""

import inspect
import os
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from falaj.core.errors import Invalid, Unavailable
from falaj.gauge import hang
from falaj.train import blocks, pipeline, plans, precision
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
        self._ours, self._lean, self._last = ours, False, True
        self._devices: Any = None
        self._copies: list[DistributedDataParallel] = []
        self._shards: list[Any] = []

    @classmethod
    def here(cls, options: Options | None = None, *, device: str = "") -> "Mesh":
        """As the environment says (RANK, WORLD_SIZE, ... as torchrun and our launcher set them); alone without it.

        A process group that exists already is used. With `options`, readers are known before a model is.
        """
        place = _device(device or os.environ.get("FALAJ_DEVICE", ""))
        ours = _number("WORLD_SIZE", 1) > 1 and not dist.is_initialized()
        if ours:
            _meet(place, (options or Options()).hang_s)
        mesh = cls(place, ours=ours)
        if options is not None and isinstance(options.parallel, dict):
            mesh.arrange(plans.sizes(options.parallel, mesh.world))
        return mesh

    def arrange(self, sizes: plans.Sizes) -> plans.Sizes:
        """Take these sizes; all models of a run have the same."""
        if self.sizes is not None and sizes != self.sizes:
            raise Invalid(f"this run is arranged as {self.sizes.dimensions}", "one plan for all models of a run")
        if self.sizes is None:
            self.sizes, self.readers = sizes, sizes.readers
            self.reader = self.rank // sizes.tensor % sizes.readers
        return sizes

    @property
    def devices(self) -> Any:
        """The processes as a torch DeviceMesh with named dimensions: those of data, shard, tensor, pipeline in use."""
        if self._devices is None:
            found = (self.sizes or plans.Sizes(data=self.world)).dimensions
            self._devices = init_device_mesh(self.device.type, tuple(found.values()), mesh_dim_names=tuple(found))
        return self._devices

    @property
    def peers(self) -> range:
        """The processes that hold the same plain tensors: all, or those of the same stages of a pipeline."""
        each = self.world // (self.sizes.pipeline if self.sizes else 1)
        return range(self.rank // each * each, (self.rank // each + 1) * each)

    @property
    def divisor(self) -> int:
        """By how much wrappers divide the sum of the readers' gradients."""
        return 1 if self.sizes is None or self.sizes.copies else self.readers

    def wrap(
        self,
        module: nn.Module,
        plan: str | dict[str, int],
        options: Options,
        *,
        tensor: Mapping[str, Any] | None = None,
        schedule: str = "",
    ) -> nn.Module:
        """The module as this process holds it: its precision, its part, its copies.

        `tensor` names the layers that are split (or the module's `parallel_plan` does), `schedule` how a pipeline works
        (or its `pipeline_schedule`): 1f1b, gpipe, interleaved.
        """
        if any(param.is_meta for param in module.parameters()):
            raise Invalid("the model has no numbers yet: it is on the meta device", "build it on the CPU")
        memory_bytes = torch.cuda.get_device_properties(self.device).total_memory if self.device.type == "cuda" else 0
        fits = plans.fits(module, memory_bytes)
        sizes = self.arrange(plans.sizes(plan, self.world, _number("LOCAL_WORLD_SIZE", 0), fits=fits))
        self._agree(module)
        if sizes.tensor > 1:
            from falaj.train.tensor import chosen

            tensor = chosen(module, sizes.tensor, tensor)
        if sizes.pipeline == 1:
            return self._wrap(module, module, options, tensor)
        return self._chain(module, options, tensor, schedule or getattr(module, "pipeline_schedule", "1f1b"))

    def expect(self, micros: int) -> None:
        """Say how many micro-batches all readers share in a step.

        When all have the same number, sharded models give their parameters back after each block and gradients after
        each micro-batch. Else, and until this is said, they are gathered once a step: a process with fewer
        micro-batches would leave the others waiting.
        """
        chained = self.sizes is not None and self.sizes.pipeline > 1  # a stage that gives back gathers for each
        self._lean = micros % self.readers == 0 and not chained
        for made in self._shards:
            self._gather(made, kept=not self._lean)

    def last(self, flag: bool) -> None:
        """Say before a forward whether its backward is the last of the step: then gradients are shared."""
        if flag == self._last or (self.sizes is not None and self.sizes.pipeline > 1):
            return
        self._last = flag
        for made in self._copies:
            made.require_backward_grad_sync = flag
        for made in self._shards:
            made.set_is_last_backward(flag)
            if self._lean:
                made.set_requires_all_reduce(flag)
            else:
                made.set_requires_gradient_sync(flag)
                made.set_reshard_after_backward(flag)

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all readers, in place; the same bits on every process."""
        if self.readers == self.world > 1:
            dist.all_reduce(tensor)
        elif self.readers > 1:
            for name in ("data", "shard"):  # in one order on every process
                if name in self.devices.mesh_dim_names:
                    dist.all_reduce(tensor, group=self.devices.get_group(name))
        return tensor

    def norm(self, parameters: Iterable[torch.Tensor]) -> torch.Tensor:
        """The 2-norm of the gradients of the whole model, the same on every process."""
        alike: dict[Any, list[torch.Tensor]] = {}
        for param in parameters:
            if param.grad is not None:
                grad, groups = _local(param.grad)
                alike.setdefault(groups, []).append(grad)
        total = torch.zeros((), device=self.device)
        for groups, grads in alike.items():
            norms = torch._foreach_norm(grads, 2, dtype=torch.float32)  # noqa: SLF001 - the public one knows no dtype
            square = torch.stack(norms).square().sum()
            for group in groups:
                dist.all_reduce(square, group=group)
            total += square
        if self.sizes is not None and self.sizes.pipeline > 1:
            dist.all_reduce(total, group=self.devices.get_group("pipeline"))
        return total.sqrt()

    def level(self, module: nn.Module) -> None:
        """Make buffers (running statistics) the same everywhere: their mean over readers, of counters the largest."""
        for buffer in module.buffers() if self.readers > 1 else ():
            if buffer.is_floating_point():
                buffer.copy_(self.total(buffer.float()) / self.readers)
            elif self.sizes is None or self.readers == self.world:
                dist.all_reduce(buffer, dist.ReduceOp.MAX)

    def close(self) -> None:
        """Part, where we have met."""
        if self.world > 1:
            _rest()
        if self._ours and dist.is_initialized():
            dist.destroy_process_group()

    def _agree(self, module: nn.Module) -> None:
        """Everybody begins with the first one's numbers."""
        if self.world == 1:
            return
        for tensor in (*module.parameters(), *module.buffers()):
            there = tensor.detach().to(self.device).contiguous()
            dist.broadcast(there.reshape(-1).view(torch.uint8), 0)  # not every backend knows every kind of number
            tensor.detach().copy_(there)

    def _chain(self, module: nn.Module, options: Options, tensor: Mapping[str, Any] | None, schedule: str) -> nn.Module:
        group = self.devices.get_group("pipeline")
        mine = pipeline.stages_of(group.rank(), group.size(), schedule)
        cut = pipeline.cut(module, group.size() * len(mine))
        pipeline.keep(module, [cut[number] for number in mine])
        stages = {number: self._wrap(cut[number], module, options, tensor) for number in mine}
        return pipeline.Pipeline(module, stages, group, schedule)

    def _wrap(
        self, module: nn.Module, root: nn.Module, options: Options, tensor: Mapping[str, Any] | None
    ) -> nn.Module:
        """Precision, then what changes layers, then what changes blocks, then what holds them all."""
        sizes = self.sizes or plans.Sizes()
        if not sizes.sharded:
            module = precision.prepare(module.to(self.device), options.precision, self.device)
        if tensor and sizes.tensor > 1:
            self._split(module.to(self.device), root, tensor)
        blocks.spare(module, options.activation, compiled=bool(options.compile))
        done = blocks.compiled(module, options.compile, pieces=sizes.sharded or sizes.tensor > 1)
        if sizes.sharded:
            self._shard(module, self.devices["data", "shard"] if sizes.data > 1 else self.devices["shard"], options)
        elif sizes.data > 1 and not sizes.copies:
            module = self._copy(module)
        if not done:
            blocks.whole(module, options.compile)
        return module

    def _split(self, module: nn.Module, root: nn.Module, plan: Mapping[str, Any]) -> None:
        from falaj.train.tensor import split

        # The last layer's outputs are joined by us, and nobody changes them in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        split(root, self.devices["tensor"], plan, within=module)

    def _copy(self, module: nn.Module) -> nn.Module:
        ids = [self.device] if self.device.type == "cuda" else None
        made = DistributedDataParallel(module, ids, init_sync=False, gradient_as_bucket_view=True, **_BUFFERS)
        self._copies.append(made)
        return made

    def _shard(self, module: nn.Module, mesh: Any, options: Options) -> None:
        from torch.distributed.fsdp import fully_shard

        policy = precision_policy(module, options.precision, self.device)
        for block in blocks.blocks(module).values():
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self._shards.append(fully_shard(module, mesh=mesh, mp_policy=policy))
        self._gather(module, kept=True)
        module.register_forward_hook(_give_back)

    def _gather(self, module: Any, *, kept: bool) -> None:
        """Whether blocks keep what they gathered after a forward. The root does: its backward comes next."""
        for part in module.modules():
            if hasattr(part, "set_reshard_after_forward"):
                part.set_reshard_after_forward(not kept and part is not module, recurse=False)


def precision_policy(module: nn.Module, name: str, device: torch.device) -> Any:
    """How fully_shard computes: shards stay in 32 bits and are gathered in 16, unless all of it is to be in 16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    name = precision.chosen(name, device)
    if name == "fp8":
        raise Invalid("shards are not gathered in 8 bits", "precision='bf16', or the plan 'ddp'")
    if name != "bf16":  # which would cast the shards, too
        precision.prepare(module, name, device)
    if name in ("fp32", "tf32", "bf16-pure"):
        return MixedPrecisionPolicy()
    dtype = torch.float16 if name == "fp16" else torch.bfloat16
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def _give_back(module: Any, given: Any, outputs: Any) -> None:
    """After a forward that no backward follows, parameters are shards again: what is saved and moved are those."""
    del given, outputs
    if not torch.is_grad_enabled():
        for part in module.modules():
            if hasattr(part, "unshard"):
                part.reshard()


def _local(grad: torch.Tensor) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """What this process holds of a gradient, and the groups over which it is spread."""
    if not hasattr(grad, "placements"):
        return grad, ()
    whole: Any = grad
    if any(place.is_partial() for place in whole.placements):
        from torch.distributed.tensor import Replicate

        whole = whole.redistribute(placements=[Replicate() if p.is_partial() else p for p in whole.placements])
    spread = [number for number, place in enumerate(whole.placements) if not place.is_replicate()]
    return whole.to_local(), tuple(whole.device_mesh.get_group(number) for number in spread)


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
    hang.prepare()
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            # Whoever watches for hangs looks first.
            timeout=timedelta(seconds=1.2 * timeout_s) if timeout_s > 0 else None,
            device_id=device if cuda else None,
        )
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise Unavailable(
            f"process {os.environ['RANK']} did not meet the others at {where}: {str(error).splitlines()[0]}",
            "process 0 waits there; see whether it runs and can be reached",
        ) from error


def _rest(limit_s: float = 2.0) -> None:
    """Wait until gloo's threads do nothing. They outlive their group, and one that still frees a tensor when the
    interpreter ends asks for its lock then, which aborts the process."""
    before, until = None, time.monotonic() + limit_s
    while (now := _loops()) and time.monotonic() < until:
        if now == before and all("State:\tS (sleeping)" in one for one in now):
            return
        before = now
        # Who waits for the lock sleeps, too, but gets it meanwhile or looks for it once in such an interval.
        time.sleep(2 * sys.getswitchinterval())


def _loops() -> list[list[str]]:
    """The state of each of gloo's threads, and how often it went to sleep."""
    found = []
    for path in Path("/proc/self/task").glob("*/status"):  # none where there is no Linux
        with suppress(OSError):  # a thread that has ended
            name, *lines = path.read_text("utf-8").splitlines()
            if name == "Name:\tpt_gloo_runloop":
                found.append([line for line in lines if line.startswith(("State:", "voluntary_"))])
    return found


def _number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise Invalid(f"{name}={text!r} is no number", "torchrun and our launcher set it")
    return int(text)
