"""A small task for tests of training, and what it comes to."""

import hashlib
import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from falaj.train.entry_point import start
from falaj.train.mesh import ProcessMesh
from falaj.train.options import Options
from falaj.train.run import Run

SAMPLES = 96
# Forked children must not meet the threads of a pool that only their parent has.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)


def samples(size: int = SAMPLES) -> dict[str, torch.Tensor]:
    """Points, and on which side of a plane they are."""
    made = torch.Generator().manual_seed(3)
    x = torch.randn(size, 8, generator=made)
    return {"x": x, "y": (x.sum(1) > 0).long()}


def net(dropout: float = 0.0) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(dropout), nn.ReLU(), nn.Linear(16, 2))


def losses(model: nn.Module, batch: Any) -> torch.Tensor:
    """Of single items."""
    return functional.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


def digest(run: Run) -> str:
    """Of every tensor of the state."""
    found = hashlib.sha256()
    for name, tensor in sorted(run.keeping.tensors().items()):
        found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return found.hexdigest()


def train(run: Run, steps: int = 12, *, batch: int = 24, micro: int = 4, dropout: float = 0.0) -> list[float]:
    """The losses of the steps."""
    data = run.data(samples(), batch, micro=micro)
    model = run.parallel(net(dropout))
    optimizer = run.adamw(model, lr=1e-2)
    told = []
    for step in run.steps(steps, data):
        for given in step.micro():
            step.backward(losses(model, given))
        step.apply(optimizer, clip=1.0)
        told.append(float(step.values["loss"]))
    return told


def begin(**options: Any) -> Run:
    """A run in this process."""
    return Run(Options(**options), ProcessMesh.here())


__all__ = ["begin", "digest", "losses", "net", "samples", "start", "train"]
