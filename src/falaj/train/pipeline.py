"""Pipelines: a model cut into stages that follow each other, each on other processes, kept busy by micro-batches."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from falaj.core.errors import Invalid

if TYPE_CHECKING:
    from falaj.train.step import Step

PIPELINE_SCHEDULES = ("1f1b", "gpipe", "interleaved")
Criterion = Callable[[Any, Any], "torch.Tensor | tuple[torch.Tensor, Any]"]


def learn(step: "Step", model: nn.Module, inputs: Callable[[Any], Any], criterion: Criterion) -> None:
    """One step's micro-batches through a pipeline, forward and backward, in place of the loop over `step.micro()`.

    `inputs(batch)` is what the first stage takes; `criterion(outputs, batch)` losses of items, or a sum and a count.
    """
    if not isinstance(model, PipelineModel):
        raise Invalid("this model is no pipeline", "loop over step.micro(), or ask for {'pipeline': N}")
    slope = step.slope
    losses, counts = model.learn(list(step.micro()), inputs, criterion, slope)
    step.tally(losses, counts)


class PipelineModel(nn.Module):
    """This process's stages of a module, which keeps the names of its parameters and has lost those of the others."""

    def __init__(self, module: nn.Module, stages: dict[int, nn.Module], group: Any, schedule: str) -> None:
        super().__init__()
        self.module = module
        self._stages, self._group, self._schedule = stages, group, schedule
        self._stage_count = group.size() * len(stages)
        self._schedules: dict[int, Any] = {}
        self._work: tuple[Sequence[Any], Criterion, torch.Tensor]
        self._losses: dict[int, tuple[torch.Tensor, Any]] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise Invalid(
            "a pipeline is not called: its stages work on several micro-batches at once",
            "train.pipeline.learn(step, model, inputs, criterion) in place of the loop over step.micro()",
        )

    def state_dict(self, *args: Any, keep_vars: bool = False, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Of all stages, asked for by all processes together; with `keep_vars` the live tensors of this one's."""
        live_tensors: dict[str, torch.Tensor] = super().state_dict(*args, keep_vars=keep_vars, **kwargs)
        if keep_vars:
            return live_tensors
        own_tensors = {
            name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            for name, tensor in live_tensors.items()
        }
        described_by_rank: list[Any] = [None] * self._group.size()
        dist.all_gather_object(
            described_by_rank,
            [(name, value.shape, value.dtype, value.device) for name, value in own_tensors.items()],
            self._group,
        )
        full_state: dict[str, Any] = {}
        for rank, described in enumerate(described_by_rank):
            for name, shape, dtype, device in described:
                full_tensor = (
                    own_tensors[name]
                    if rank == self._group.rank()
                    else torch.empty(shape, dtype=dtype, device=device.type)
                )
                dist.broadcast(full_tensor, group=self._group, group_src=rank)
                full_state[name] = full_tensor
        return full_state

    def learn(
        self, batches: Sequence[Any], inputs: Callable[[Any], Any], criterion: Criterion, slope: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of all micro-batches; the sum of their losses and the count, known to every stage."""
        if len(batches) not in self._schedules:
            self._schedules[len(batches)] = self._build_schedule(len(batches), slope.device)
        schedule = self._schedules[len(batches)]
        self._work, self._losses = (batches, criterion, slope), {}
        first_inputs = _concat_inputs([inputs(batch) for batch in batches]) if 0 in self._stages else ()
        # The schedule cuts what it is given into as many pieces again; a target is the number of its micro-batch.
        micro_numbers = torch.arange(len(batches)) if self._stage_count - 1 in self._stages else None
        output_options = (
            {"return_outputs": False} if "return_outputs" in inspect.signature(schedule.step).parameters else {}
        )
        schedule.step(
            *first_inputs, target=micro_numbers, losses=None if micro_numbers is None else [], **output_options
        )
        pair = torch.zeros(2, dtype=torch.float64, device=slope.device)
        for losses, count in self._losses.values():
            pair += torch.stack([losses.double(), torch.as_tensor(count).to(losses.device).double()])
        dist.all_reduce(pair, group=self._group)  # every stage but the last adds nothing
        return pair[0], pair[1]

    def _compute_scaled_loss(self, outputs: Any, target: torch.Tensor) -> torch.Tensor:
        batches, criterion, slope = self._work
        number = int(target)
        result = criterion(outputs, batches[number])
        losses, count = result if isinstance(result, tuple) else (result, result.numel())
        if not isinstance(result, tuple) and result.ndim == 0:
            raise Invalid("this loss is one number: a sum or a mean?", "give the losses of items, or a sum and a count")
        losses = losses.sum()
        self._losses[number] = losses.detach(), count
        return losses * slope

    def _build_schedule(self, micro_count: int, device: torch.device) -> Any:
        from torch.distributed import pipelining as torch_pipelining

        stages: list[Any] = [
            torch_pipelining.PipelineStage(stage, number, self._stage_count, device, group=self._group)
            for number, stage in self._stages.items()
        ]
        options: dict[str, Any] = {
            "n_microbatches": micro_count,
            "loss_fn": self._compute_scaled_loss,
            "scale_grads": False,
        }
        try:
            if self._schedule == "interleaved":
                return torch_pipelining.ScheduleInterleaved1F1B(stages, **options)
            schedule_class = (
                torch_pipelining.ScheduleGPipe if self._schedule == "gpipe" else torch_pipelining.Schedule1F1B
            )
            return schedule_class(stages[0], **options)
        except ValueError as error:
            raise Invalid(
                f"{micro_count} micro-batches do not fill {self._stage_count} stages by {self._schedule}: {error}",
                f"make micro-batches smaller: a multiple of {self._stage_count} a reader",
            ) from None


def list_own_stages(rank: int, ranks: int, schedule: str) -> list[int]:
    """The numbers of the stages that one process of a pipeline holds."""
    if schedule not in PIPELINE_SCHEDULES:
        raise Invalid(f"there is no schedule {schedule!r}", f"one of {', '.join(PIPELINE_SCHEDULES)}")
    return [rank, rank + ranks] if schedule == "interleaved" else [rank]


def cut_stages(module: nn.Module, stage_count: int) -> list[nn.Sequential]:
    """The module as so many stages, contiguous and balanced by parameters."""
    parts = list_parts(module)
    if len(parts) < stage_count:
        raise Invalid(
            f"{len(parts)} parts do not make {stage_count} stages", f"{{'pipeline': {len(parts)}}} at the most"
        )
    weights = [sum(param.numel() for param in part.parameters()) for part in parts.values()]
    names, stages, owners = list(parts), [], dict[int, int]()
    for number, span in enumerate(balance_spans(weights, stage_count)):
        # Names have dots, which modules may not have; the parameters keep their own names in the whole module.
        stages.append(nn.Sequential(*(parts[names[index]] for index in span)))
        for param in stages[-1].parameters():
            if owners.setdefault(id(param), number) != number:
                raise Invalid("two stages would share a parameter", "untie the weights, or ask for no pipeline")
    return stages


def list_parts(module: nn.Module) -> dict[str, nn.Module]:
    """What follows each other in a module: its layers, or what its `pipeline_parts()` says."""
    get_parts: Any = getattr(module, "pipeline_parts", None)
    if get_parts is not None:
        modules: Iterable[nn.Module] = get_parts()
    elif isinstance(module, nn.Sequential):
        modules = module
    else:
        raise Invalid(
            f"{type(module).__name__} does not say what follows what in it",
            "make it a nn.Sequential, or give it pipeline_parts() -> list of modules; {'shard': -1} works for any",
        )
    parts = {str(number): part for number, part in enumerate(modules)}
    part_param_ids = {id(param) for part in parts.values() for param in part.parameters()}
    if part_param_ids != {id(param) for param in module.parameters()}:
        raise Invalid("the parts of the pipeline are not all of the module", "pipeline_parts() gives all its layers")
    return parts


def balance_spans(weights: Sequence[int], count: int) -> list[range]:
    """Contiguous spans, `count` of them and none empty, whose heaviest is as light as can be."""
    sums = [0, *accumulate(weights)]
    total = len(weights)
    # best[c][n]: the heaviest of c spans over the first n weights, and where the last of them begins.
    best = [(total_weight, 0) for total_weight in sums]
    history = [best]
    for spans in range(2, count + 1):
        row = [(0, 0)] * (total + 1)
        for end in range(spans, total + 1):
            row[end] = min((max(best[begin][0], sums[end] - sums[begin]), begin) for begin in range(spans - 1, end))
        best = row
        history.append(row)
    ranges: list[range] = []
    end = total
    for row in reversed(history):
        ranges.insert(0, range(row[end][1], end))
        end = row[end][1]
    return ranges


def keep_stages(module: nn.Module, stages: Iterable[nn.Module]) -> None:
    """Leave in the module only the parameters and buffers of these stages; the others' memory is given back."""
    kept_ids = {id(tensor) for stage in stages for tensor in (*stage.parameters(), *stage.buffers())}
    for owner in module.modules():
        for name, tensor in (*owner.named_parameters(recurse=False), *owner.named_buffers(recurse=False)):
            if id(tensor) not in kept_ids:
                setattr(owner, name, None)


def _concat_inputs(inputs: list[Any]) -> tuple[Any, ...]:
    rows = [item if isinstance(item, tuple) else (item,) for item in inputs]
    return tuple(torch.cat(column) for column in zip(*rows, strict=True))
