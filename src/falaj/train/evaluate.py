"""How good a model is on samples it did not learn from: over all processes, the same value for any number of them."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from falaj.core.errors import Invalid
from falaj.feed.device_transfer import BatchDevice, map_tensors

if TYPE_CHECKING:
    from falaj.feed.batch_loader import Source
    from falaj.train.mesh import ProcessMesh

ItemMeasure = Callable[[nn.Module, Any], "torch.Tensor | Mapping[str, torch.Tensor]"]
"""Values of single items of a batch: losses, or several kinds by name."""


def evaluate_model(
    mesh: "ProcessMesh", model: nn.Module, source: "Source", measure: ItemMeasure, micro: int
) -> dict[str, float]:
    """Means over all samples, each seen once. Sums are made in the order of the samples, whoever made them."""
    size = len(source)
    if not size:
        raise Invalid("there is nothing to evaluate on", "look at what the folder or query holds")
    micro_count = -(-size // micro)
    rows: dict[int, dict[str, tuple[float | torch.Tensor, int]]] = {}
    device = BatchDevice(str(mesh.device))
    with _eval_mode(model) as inner, torch.no_grad():
        # Everybody goes as often: who holds a part of the model must meet the others in each forward.
        for iteration in range(-(-micro_count // mesh.readers)):
            number = iteration * mesh.readers + mesh.reader
            start = min(number, micro_count - 1) * micro
            ids = np.arange(start, min(start + micro, size), dtype=np.int64)
            measured = measure(inner, _load_batch(source, ids, device, mesh.device))
            if number < micro_count:
                rows[number] = _sum_values(measured)
    return _reduce_means(mesh, rows, micro_count)


@contextlib.contextmanager
def _eval_mode(model: nn.Module) -> Iterator[nn.Module]:
    was_training = model.training
    model.eval()
    try:
        yield model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    finally:
        model.train(was_training)


def _load_batch(source: "Source", ids: Any, device: BatchDevice, target_device: torch.device) -> Any:
    batch = source.take(ids)
    transform = getattr(source, "transform", None)
    batch = device.tensors(transform(batch) if transform else batch)
    return batch if device.plain else map_tensors(batch, lambda tensor: tensor.to(target_device, non_blocking=True))


def _sum_values(measured: "torch.Tensor | Mapping[str, torch.Tensor]") -> dict[str, tuple[float | torch.Tensor, int]]:
    named = measured if isinstance(measured, Mapping) else {"loss": measured}
    for name, values in named.items():
        if not values.ndim:
            raise Invalid(f"{name} is one number: a sum or a mean?", "give the values of single items")
    return {name: (values.detach().double().sum(), values.numel()) for name, values in named.items()}


def _reduce_means(
    mesh: "ProcessMesh", rows: dict[int, dict[str, tuple[Any, int]]], micro_count: int
) -> dict[str, float]:
    names = sorted(next(iter(rows.values()))) if rows else []
    if mesh.world > 1:
        broadcast_names: list[list[str]] = [names]
        dist.broadcast_object_list(broadcast_names, 0, device=mesh.device)
        names = broadcast_names[0]
    table = torch.zeros((micro_count, len(names), 2), dtype=torch.float64, device=mesh.device)
    for number, row in rows.items():
        for column, name in enumerate(names):
            table[number, column, 0] = row[name][0]
            table[number, column, 1] = row[name][1]
    if mesh.world > 1:
        # Every row is one reader's: adding zeros changes nothing. Partners of a reader have the same.
        dist.all_reduce(table)
        table /= mesh.world // mesh.readers
    table_rows = table.cpu().tolist()
    sums = {name: [row[column] for row in table_rows] for column, name in enumerate(names)}
    return {
        name: math.fsum(value for value, _ in sums_and_counts)
        / max(1.0, math.fsum(count for _, count in sums_and_counts))
        for name, sums_and_counts in sums.items()
    }
