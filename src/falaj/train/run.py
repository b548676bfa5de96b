"""A run of a training script: where it runs, what it has, and the steps it takes."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from falaj import worker
from falaj.core.errors import Invalid
from falaj.feed.feed import Feed
from falaj.gauge.gauge import Gauge
from falaj.state.checkpoints import Checkpoints, Found
from falaj.train.keeping import Keeping
from falaj.train.mesh import Mesh
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

    def data(self, source: Any, batch: int, *, shuffle: bool = True, micro: int = 0) -> Feed:
        """Samples in batches of `batch` over all processes. A source is a mapping of arrays, a folder or file, the name
        of a job's input, a torch dataset, or anything with `take`."""
        micro = micro or self.options.micro or batch // self.mesh.readers
        return Feed(source, batch, micro=micro, seed=self.options.seed, shuffle=shuffle, device=str(self.device))

    def parallel(self, module: nn.Module, plan: str | dict[str, int] = "") -> nn.Module:
        """The module on this process's device, in the run's precision, cut and copied as the plan says."""
        made = self.mesh.wrap(module, plan or self.options.parallel, self.options)
        self.keeping.module(made)
        return made

    def adamw(self, module: nn.Module, lr: float = 1e-3, **more: Any) -> torch.optim.Optimizer:
        """AdamW in the form that is fastest here."""
        made = torch.optim.AdamW(module.parameters(), lr=lr, fused=True, **more)
        self.keeping.optimizer(made)
        return made

    def keep(self, name: str, thing: Any) -> None:
        """Something more with state_dict and load_state_dict that belongs to the state: a schedule, a counter."""
        self.keeping.thing(name, thing)

    def steps(self, last: int, feed: Feed) -> Iterator[Step]:
        """The steps up to `last`: from the first, or from the one after the last that was saved."""
        first = self._resume()
        gauge = Gauge(
            self.here, rank=self.mesh.rank, world=self.mesh.world, device=str(self.device), first=first, steps=last
        )
        stepping = Stepping(self, feed, gauge)
        try:
            yield from stepping.steps(first, last)
        finally:
            gauge.close()
            if self.saves:
                self.saves.close()

    def save_model(self, module: nn.Module, name: str = "model", **about: Any) -> Path:
        """Write the weights as safetensors into the job's output of that name (or ./NAME), by one process."""
        raise NotImplementedError

    def _resume(self) -> int:
        self.found = self.saves.newest() if self.saves else None
        if self.found is None or self.saves is None:
            return 0
        self.saves.load(self.found, self.keeping.tensors())
        self.keeping.load_meta(self.found.meta)
        return self.found.step


def output(name: str, known: Mapping[str, str]) -> Path:
    """The folder of an output."""
    if known and name not in known:
        raise Invalid(f"the job has no output {name!r}", f"it has {', '.join(sorted(known))}")
    return Path(known.get(name) or os.path.join(os.curdir, name))  # noqa: PTH118 - a folder beside the script
