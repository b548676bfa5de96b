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
from falaj.gauge import hang_watchdog
from falaj.train import blocks, parallel_plans, pipeline, precision
from falaj.train.options import Options

# Processes whose numbers of forwards differ must not meet in a broadcast of buffers; torch renames that switch.
_DDP_PARAMETERS = inspect.signature(DistributedDataParallel).parameters
_BUFFER_OPTIONS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _DDP_PARAMETERS else "broadcast_buffers": False
}


class ProcessMesh:
    """The processes of a run, arranged as data x shard x tensor x pipeline."""

    def __init__(self, device: torch.device, *, owns_group: bool = False) -> None:
        self.device = device
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        self.reader, self.readers = self.rank, self.world
        """Which of how many readers of data this process is; those that share a model's parts read the same."""
        self.sizes: parallel_plans.MeshSizes | None = None
        self._owns_group, self._is_lean, self._is_last = owns_group, False, True
        self._device_mesh: Any = None
        self._replicas: list[DistributedDataParallel] = []
        self._sharded_modules: list[Any] = []

    @classmethod
    def here(cls, options: Options | None = None, *, device: str = "") -> "ProcessMesh":
        """As the environment says (RANK, WORLD_SIZE, ... as torchrun and our launcher set them); alone without it.

        A process group that exists already is used. With `options`, readers are known before a model is.
        """
        target_device = _select_device(device or os.environ.get("FALAJ_DEVICE", ""))
        owns_group = _read_number("WORLD_SIZE", 1) > 1 and not dist.is_initialized()
        if owns_group:
            _join_process_group(target_device, (options or Options()).hang_s)
        mesh = cls(target_device, owns_group=owns_group)
        if options is not None and isinstance(options.parallel, dict):
            mesh.arrange(parallel_plans.resolve_sizes(options.parallel, mesh.world))
        return mesh

    def arrange(self, sizes: parallel_plans.MeshSizes) -> parallel_plans.MeshSizes:
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
        if self._device_mesh is None:
            dimensions = (self.sizes or parallel_plans.MeshSizes(data=self.world)).dimensions
            self._device_mesh = init_device_mesh(
                self.device.type, tuple(dimensions.values()), mesh_dim_names=tuple(dimensions)
            )
        return self._device_mesh

    @property
    def peers(self) -> range:
        """The processes that hold the same plain tensors: all, or those of the same stages of a pipeline."""
        peer_count = self.world // (self.sizes.pipeline if self.sizes else 1)
        return range(self.rank // peer_count * peer_count, (self.rank // peer_count + 1) * peer_count)

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
        fits_memory = parallel_plans.fits_in_memory(module, memory_bytes)
        sizes = self.arrange(
            parallel_plans.resolve_sizes(plan, self.world, _read_number("LOCAL_WORLD_SIZE", 0), fits=fits_memory)
        )
        self._broadcast_initial(module)
        if sizes.tensor > 1:
            from falaj.train.tensor_parallel import choose_plan

            tensor = choose_plan(module, sizes.tensor, tensor)
        if sizes.pipeline == 1:
            return self._wrap_part(module, module, options, tensor)
        return self._build_pipeline(module, options, tensor, schedule or getattr(module, "pipeline_schedule", "1f1b"))

    def expect(self, micro_count: int) -> None:
        """Say how many micro-batches all readers share in a step.

        When all have the same number, sharded models give their parameters back after each block and gradients after
        each micro-batch. Else, and until this is said, they are gathered once a step: a process with fewer
        micro-batches would leave the others waiting.
        """
        is_chained = self.sizes is not None and self.sizes.pipeline > 1  # a stage that gives back gathers for each
        self._is_lean = micro_count % self.readers == 0 and not is_chained
        for module in self._sharded_modules:
            self._set_reshard(module, keep_gathered=not self._is_lean)

    def last(self, is_last: bool) -> None:
        """Say before a forward whether its backward is the last of the step: then gradients are shared."""
        if is_last == self._is_last or (self.sizes is not None and self.sizes.pipeline > 1):
            return
        self._is_last = is_last
        for wrapped in self._replicas:
            wrapped.require_backward_grad_sync = is_last
        for wrapped in self._sharded_modules:
            wrapped.set_is_last_backward(is_last)
            if self._is_lean:
                wrapped.set_requires_all_reduce(is_last)
            else:
                wrapped.set_requires_gradient_sync(is_last)
                wrapped.set_reshard_after_backward(is_last)

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
        grads_by_groups: dict[Any, list[torch.Tensor]] = {}
        for param in parameters:
            if param.grad is not None:
                grad, groups = _localize_grad(param.grad)
                grads_by_groups.setdefault(groups, []).append(grad)
        total = torch.zeros((), device=self.device)
        for groups, grads in grads_by_groups.items():
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
            _wait_for_gloo()
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()

    def _broadcast_initial(self, module: nn.Module) -> None:
        """Everybody begins with the first one's numbers."""
        if self.world == 1:
            return
        for tensor in (*module.parameters(), *module.buffers()):
            on_device = tensor.detach().to(self.device).contiguous()
            dist.broadcast(on_device.reshape(-1).view(torch.uint8), 0)  # not every backend knows every kind of number
            tensor.detach().copy_(on_device)

    def _build_pipeline(
        self, module: nn.Module, options: Options, tensor: Mapping[str, Any] | None, schedule: str
    ) -> nn.Module:
        group = self.devices.get_group("pipeline")
        own_stages = pipeline.list_own_stages(group.rank(), group.size(), schedule)
        stage_modules = pipeline.cut_stages(module, group.size() * len(own_stages))
        pipeline.keep_stages(module, [stage_modules[number] for number in own_stages])
        stages = {number: self._wrap_part(stage_modules[number], module, options, tensor) for number in own_stages}
        return pipeline.PipelineModel(module, stages, group, schedule)

    def _wrap_part(
        self, module: nn.Module, root: nn.Module, options: Options, tensor: Mapping[str, Any] | None
    ) -> nn.Module:
        """Precision, then what changes layers, then what changes blocks, then what holds them all."""
        sizes = self.sizes or parallel_plans.MeshSizes()
        if not sizes.sharded:
            module = precision.prepare_module(module.to(self.device), options.precision, self.device)
        if tensor and sizes.tensor > 1:
            self._split_layers(module.to(self.device), root, tensor)
        blocks.reduce_activations(module, options.activation, is_compiled=bool(options.compile))
        has_compiled_blocks = blocks.compile_blocks(
            module, options.compile, by_blocks=sizes.sharded or sizes.tensor > 1
        )
        if sizes.sharded:
            self._shard_module(
                module, self.devices["data", "shard"] if sizes.data > 1 else self.devices["shard"], options
            )
        elif sizes.data > 1 and not sizes.copies:
            module = self._replicate_module(module)
        if not has_compiled_blocks:
            blocks.compile_module(module, options.compile)
        return module

    def _split_layers(self, module: nn.Module, root: nn.Module, plan: Mapping[str, Any]) -> None:
        from falaj.train.tensor_parallel import split_layers

        # The last layer's outputs are joined by us, and nobody changes them in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        split_layers(root, self.devices["tensor"], plan, within=module)

    def _replicate_module(self, module: nn.Module) -> nn.Module:
        ids = [self.device] if self.device.type == "cuda" else None
        replica = DistributedDataParallel(module, ids, init_sync=False, gradient_as_bucket_view=True, **_BUFFER_OPTIONS)
        self._replicas.append(replica)
        return replica

    def _shard_module(self, module: nn.Module, mesh: Any, options: Options) -> None:
        from torch.distributed.fsdp import fully_shard

        policy = precision_policy(module, options.precision, self.device)
        for block in blocks.find_blocks(module).values():
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self._sharded_modules.append(fully_shard(module, mesh=mesh, mp_policy=policy))
        self._set_reshard(module, keep_gathered=True)
        module.register_forward_hook(_reshard_after_eval)

    def _set_reshard(self, module: Any, *, keep_gathered: bool) -> None:
        """Whether blocks keep what they gathered after a forward. The root does: its backward comes next."""
        for submodule in module.modules():
            if hasattr(submodule, "set_reshard_after_forward"):
                submodule.set_reshard_after_forward(not keep_gathered and submodule is not module, recurse=False)


def precision_policy(module: nn.Module, name: str, device: torch.device) -> Any:
    """How fully_shard computes: shards stay in 32 bits and are gathered in 16, unless all of it is to be in 16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    name = precision.resolve_precision(name, device)
    if name == "fp8":
        raise Invalid("shards are not gathered in 8 bits", "precision='bf16', or the plan 'ddp'")
    if name != "bf16":  # which would cast the shards, too
        precision.prepare_module(module, name, device)
    if name in ("fp32", "tf32", "bf16-pure"):
        return MixedPrecisionPolicy()
    dtype = torch.float16 if name == "fp16" else torch.bfloat16
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def _reshard_after_eval(module: Any, inputs: Any, outputs: Any) -> None:
    """After a forward that no backward follows, parameters are shards again: what is saved and moved are those."""
    del inputs, outputs
    if not torch.is_grad_enabled():
        for submodule in module.modules():
            if hasattr(submodule, "unshard"):
                submodule.reshard()


def _localize_grad(grad: torch.Tensor) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """What this process holds of a gradient, and the groups over which it is spread."""
    if not hasattr(grad, "placements"):
        return grad, ()
    dtensor: Any = grad
    if any(placement.is_partial() for placement in dtensor.placements):
        from torch.distributed.tensor import Replicate

        dtensor = dtensor.redistribute(placements=[Replicate() if p.is_partial() else p for p in dtensor.placements])
    sharded_dims = [number for number, placement in enumerate(dtensor.placements) if not placement.is_replicate()]
    return dtensor.to_local(), tuple(dtensor.device_mesh.get_group(number) for number in sharded_dims)


def _select_device(requested: str) -> torch.device:
    """The one of this process."""
    gpu_count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if requested == "cpu" or (not gpu_count and not requested and visible in ("", "-1")):
        return torch.device("cpu")
    if requested not in ("", "cuda"):
        raise Invalid(f"there is no device {requested!r}", "cuda or cpu")
    if not gpu_count:
        raise Unavailable(
            f"a GPU was asked for ({requested or 'CUDA_VISIBLE_DEVICES=' + visible}), and torch sees none",
            "install torch with CUDA and a driver, or say FALAJ_DEVICE=cpu",
        )
    if (local := _read_number("LOCAL_RANK", 0)) >= gpu_count:
        raise Invalid(f"process {local} of this node has no GPU: torch sees {gpu_count}", "start one process a GPU")
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device


def _join_process_group(device: torch.device, timeout_s: float) -> None:
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise Invalid(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(missing)} is not set",
            "start it by torchrun or as a job with framework='torch'; unset WORLD_SIZE to run alone",
        )
    cuda = device.type == "cuda"
    hang_watchdog.prepare_environment()
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            # Whoever watches for hangs looks first.
            timeout=timedelta(seconds=1.2 * timeout_s) if timeout_s > 0 else None,
            device_id=device if cuda else None,
        )
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise Unavailable(
            f"process {os.environ['RANK']} did not meet the others at {address}: {str(error).splitlines()[0]}",
            "process 0 waits there; see whether it runs and can be reached",
        ) from error


def _wait_for_gloo(limit_s: float = 2.0) -> None:
    """Wait until gloo's threads do nothing. They outlive their group, and one that still frees a tensor when the
    interpreter ends asks for its lock then, which aborts the process."""
    previous, deadline = None, time.monotonic() + limit_s
    while (current := _read_gloo_threads()) and time.monotonic() < deadline:
        if current == previous and all("State:\tS (sleeping)" in state for state in current):
            return
        previous = current
        # Who waits for the lock sleeps, too, but gets it meanwhile or looks for it once in such an interval.
        time.sleep(2 * sys.getswitchinterval())


def _read_gloo_threads() -> list[list[str]]:
    """The state of each of gloo's threads, and how often it went to sleep."""
    states = []
    for path in Path("/proc/self/task").glob("*/status"):  # none where there is no Linux
        with suppress(OSError):  # a thread that has ended
            name, *lines = path.read_text("utf-8").splitlines()
            if name == "Name:\tpt_gloo_runloop":
                states.append([line for line in lines if line.startswith(("State:", "voluntary_"))])
    return states


def _read_number(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise Invalid(f"{name}={text!r} is no number", "torchrun and our launcher set it")
    return int(text)
