"""The door: a script's main function, run where it is."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from falaj.feed.order import mix
from falaj.train import cpus, memory, strict
from falaj.train.mesh import Mesh
from falaj.train.options import Options
from falaj.train.run import Run

KIND: type[Run] = Run
"""What runs are here: in the children of autotune they count their steps and end."""


def start(main: Callable[[Run], Any], *, checkpoints: str = "", **options: Any) -> Any:
    """Run `main` as the process it is among those of a job, or alone; gives what it returns.

    Options are those of `train.Options`; whoever starts the script may say others (FALAJ_TRAIN). When memory runs out,
    `main` is called again from the state that is there, with smaller micro-batches.
    """
    said = replace(Options(), **options).said()
    cpus.apply(said, int(os.environ.get("LOCAL_RANK") or 0), int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    if said.reproducible == "strict":
        strict.prepare(said)
    mesh = Mesh.here(said)
    carried: memory.Carried | None = None
    micro = 0
    try:
        while True:
            run = KIND(said, mesh, Path(checkpoints) if checkpoints else None)
            run.carried, run.limit = carried, micro or run.limit
            try:
                return _run(main, run)
            except RuntimeError as error:
                if not memory.ran_out(error):
                    raise
                micro, carried = memory.back_off(run, error)
    finally:
        mesh.close()


def _run(main: Callable[[Run], Any], run: Run) -> Any:
    if run.options.reproducible != "off":
        torch.manual_seed(mix(run.options.seed, 1) >> 1)
    well = False
    try:
        found = main(run)
        well = True
    finally:
        run.close(well=well)
    return found
