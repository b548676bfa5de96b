"""A run of a training script: where it runs, what it has, and the steps it takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from falaj import worker
from falaj.core.errors import Invalid
from falaj.feed.feed import Feed
from falaj.gauge.gauge import Gauge
from falaj.state.checkpoints import Checkpoints, Found
from falaj.train import precision
from falaj.train.keeping import Keeping, Thing
from falaj.train.mesh import Mesh
from falaj.train.optim import adamw
from falaj.train.options import Options
from falaj.train.step import Step, Stepping


class Run:
    """What a script is given by `train.start`."""

    def __init__(self, options: Options, mesh: Mesh, folder: Path | None = None) -> None:
        self.options, self.mesh, self.here = options, mesh, worker.attempt()
        self.device = mesh.device
        folder = folder or self.here.checkpoints
        self.saves = Checkpoints(folder, rank=mesh.rank, world=mesh.world, keep=options.keep) if folder else None
        self.keeping = Keeping()
        self.found: Found | None = None
        self.saved = -1
        """The newest step that a save was begun of."""
        self.strict: Any = None
        self.scaler: Any = None
        self.emas: list[Any] = []
        self.schedules: list[Any] = []
        self.synced = False
        self._stepping: Stepping | None = None

    def data(self, source: Any, batch: int, *, shuffle: bool = True, micro: int = 0) -> Feed:
        """Samples in batches of `batch` over all processes. A source is a mapping of arrays, a folder or file, the name
        of a job's input, a torch dataset, or anything with `take`."""
        micro = micro or self.options.micro or divisor(batch, batch // self.mesh.readers)
        opened = _opened(self.here.inputs.get(source, source) if isinstance(source, str) else source)
        return Feed(opened, batch, micro=micro, seed=self.options.seed, shuffle=shuffle, device=str(self.device))

    def parallel(self, module: nn.Module, plan: str | dict[str, int] = "") -> nn.Module:
        """The module on this process's device, in the run's precision, cut and copied as the plan says."""
        made = self.mesh.wrap(module, plan or self.options.parallel, self.options)
        self.synced = self.mesh.sizes is not None and not self.mesh.sizes.copies
        self.keeping.module(made)
        return made

    def adamw(self, module: nn.Module, lr: float = 1e-3, **more: Any) -> torch.optim.Optimizer:
        """AdamW in the form that is fastest here, with 32-bit masters behind 16-bit parameters."""
        masters = precision.chosen(self.options.precision, self.device) != "bf16-pure"
        return self.optimizer(adamw(module.parameters(), lr, masters=masters, **more))

    def sgd(self, module: nn.Module, lr: float = 1e-2, **more: Any) -> torch.optim.Optimizer:
        """Stochastic gradient descent."""
        return self.optimizer(torch.optim.SGD(module.parameters(), lr=lr, fused=True, **more))

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Any optimizer of torch's kind becomes part of the run's state."""
        self.keeping.optimizer(optimizer)
        return optimizer

    def keep(self, name: str, thing: Thing) -> None:
        """Something more with state_dict and load_state_dict that belongs to the state: a counter, a vocabulary."""
        self.keeping.thing(name, thing)

    def steps(self, last: int, feed: Feed) -> Iterator[Step]:
        """The steps up to `last`: from the first, or from the one after the last that was saved."""
        first = self._resume()
        gauge = Gauge(
            self.here, rank=self.mesh.rank, world=self.mesh.world, device=str(self.device), first=first, steps=last,
            readers=self.mesh.readers, hang_s=self.options.hang_s,
        )  # fmt: skip
        self._stepping = Stepping(self, feed, gauge)
        try:
            yield from self._stepping.steps(first, last)
        finally:
            gauge.close()

    def save(self, step: int, *, settle: bool = False) -> float:
        """Begin to save the state after `step` steps; gives how long that held the loop up."""
        if self.saves is None:
            raise Invalid("there is no folder for checkpoints", "train.start(main, checkpoints='some/folder')")
        self.saved = step
        stall_s = self.saves.save(step, self.keeping.tensors(), self.keeping.meta() | {"facts": self._facts()})
        if settle:
            self.saves.settle()
        return stall_s

    def close(self) -> None:
        """Let what is being saved become durable."""
        if self.saves:
            self.saves.close()

    def _resume(self) -> int:
        chosen = [self.saves.newest() if self.saves and self.mesh.rank == 0 else None]
        if self.mesh.world > 1:
            dist.broadcast_object_list(chosen, 0, device=self.device)
        self.found = chosen[0]
        if self.found is None or self.saves is None:
            return 0
        self.saves.load(self.found, self.keeping.prepare(self.found.meta))
        self.keeping.load_meta(self.found.meta)
        self.saved = self.found.step
        return self.found.step

    def _facts(self) -> dict[str, Any]:
        return {}


def divisor(batch: int, most: int) -> int:
    """The largest micro-batch of at most `most` samples into which a batch can be cut."""
    return next((size for size in range(max(most, 1), 0, -1) if batch % size == 0), 1)


def _opened(source: Any) -> Any:
    if hasattr(source, "take") and hasattr(source, "order"):
        return source
    try:
        from falaj.feed.sources import open_source
    except ImportError:
        from falaj.feed.feed import Arrays

        return Arrays(source)
    return open_source(source)
