"""The door: a script's main function, run where it is."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from falaj.feed.permutation import mix_seeds
from falaj.train import cpus, memory_backoff, strict_gradients
from falaj.train.mesh import ProcessMesh
from falaj.train.options import Options
from falaj.train.run import Run

KIND: type[Run] = Run
"""What runs are here: in the children of autotune they count their steps and end."""


def start(main: Callable[[Run], Any], *, checkpoints: str = "", **options: Any) -> Any:
    """Run `main` as the process it is among those of a job, or alone; gives what it returns.

    Options are those of `train.Options`; whoever starts the script may say others (FALAJ_TRAIN). When memory runs out,
    `main` is called again from the state that is there, with smaller micro-batches.
    """
    effective = replace(Options(), **options).said()
    cpus.apply_threads(effective, int(os.environ.get("LOCAL_RANK") or 0), int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    if effective.reproducible == "strict":
        strict_gradients.prepare_strict(effective)
    mesh = ProcessMesh.here(effective)
    carried: memory_backoff.CarriedState | None = None
    micro = 0
    try:
        while True:
            run = KIND(effective, mesh, Path(checkpoints) if checkpoints else None)
            run.carried, run.limit = carried, micro or run.limit
            try:
                return _run_main(main, run)
            except RuntimeError as error:
                if not memory_backoff.is_out_of_memory(error):
                    raise
                micro, carried = memory_backoff.back_off(run, error)
    finally:
        mesh.close()


def _run_main(main: Callable[[Run], Any], run: Run) -> Any:
    if run.options.reproducible != "off":
        torch.manual_seed(mix_seeds(run.options.seed, 1) >> 1)
    succeeded = False
    try:
        result = main(run)
        succeeded = True
    finally:
        run.close(succeeded=succeeded)
    return result
