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
from falaj.feed.device import Device, each

if TYPE_CHECKING:
    from falaj.feed.feed import Source
    from falaj.train.mesh import Mesh

Measure = Callable[[nn.Module, Any], "torch.Tensor | Mapping[str, torch.Tensor]"]
"""Values of single items of a batch: losses, or several kinds by name."""


def evaluate(mesh: "Mesh", model: nn.Module, source: "Source", measure: Measure, micro: int) -> dict[str, float]:
    """Means over all samples, each seen once. Sums are made in the order of the samples, whoever made them."""
    size = len(source)
    if not size:
        raise Invalid("there is nothing to evaluate on", "look at what the folder or query holds")
    micros = -(-size // micro)
    rows: dict[int, dict[str, tuple[float | torch.Tensor, int]]] = {}
    device = Device(str(mesh.device))
    with _judging(model) as inner, torch.no_grad():
        # Everybody goes as often: who holds a part of the model must meet the others in each forward.
        for turn in range(-(-micros // mesh.readers)):
            number = turn * mesh.readers + mesh.reader
            start = min(number, micros - 1) * micro
            ids = np.arange(start, min(start + micro, size), dtype=np.int64)
            found = measure(inner, _given(source, ids, device, mesh.device))
            if number < micros:
                rows[number] = _sums(found)
    return _means(mesh, rows, micros)


@contextlib.contextmanager
def _judging(model: nn.Module) -> Iterator[nn.Module]:
    learning = model.training
    model.eval()
    try:
        yield model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    finally:
        model.train(learning)


def _given(source: "Source", ids: Any, device: Device, place: torch.device) -> Any:
    batch = source.take(ids)
    transform = getattr(source, "transform", None)
    batch = device.tensors(transform(batch) if transform else batch)
    return batch if device.plain else each(batch, lambda tensor: tensor.to(place, non_blocking=True))


def _sums(found: "torch.Tensor | Mapping[str, torch.Tensor]") -> dict[str, tuple[float | torch.Tensor, int]]:
    named = found if isinstance(found, Mapping) else {"loss": found}
    for name, values in named.items():
        if not values.ndim:
            raise Invalid(f"{name} is one number: a sum or a mean?", "give the values of single items")
    return {name: (values.detach().double().sum(), values.numel()) for name, values in named.items()}


def _means(mesh: "Mesh", rows: dict[int, dict[str, tuple[Any, int]]], micros: int) -> dict[str, float]:
    names = sorted(next(iter(rows.values()))) if rows else []
    if mesh.world > 1:
        said: list[list[str]] = [names]
        dist.broadcast_object_list(said, 0, device=mesh.device)
        names = said[0]
    table = torch.zeros((micros, len(names), 2), dtype=torch.float64, device=mesh.device)
    for number, row in rows.items():
        for place, name in enumerate(names):
            table[number, place, 0] = row[name][0]
            table[number, place, 1] = row[name][1]
    if mesh.world > 1:
        # Every row is one reader's: adding zeros changes nothing. Partners of a reader have the same.
        dist.all_reduce(table)
        table /= mesh.world // mesh.readers
    told = table.cpu().tolist()
    sums = {name: [row[place] for row in told] for place, name in enumerate(names)}
    return {
        name: math.fsum(value for value, _ in parts) / max(1.0, math.fsum(count for _, count in parts))
        for name, parts in sums.items()
    }
