"""The door: a script's main function, run where it is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from falaj.feed.order import mix
from falaj.train.mesh import Mesh
from falaj.train.options import Options
from falaj.train.run import Run


def start(main: Callable[[Run], Any], *, checkpoints: str = "", **options: Any) -> Any:
    """Run `main` as the process it is among those of a job, or alone; gives what it returns.

    Options are those of `train.Options`; whoever starts the script may say others (FALAJ_TRAIN).
    """
    said = replace(Options(), **options).said()
    mesh = Mesh.here(said)
    try:
        return _run(main, Run(said, mesh, Path(checkpoints) if checkpoints else None))
    finally:
        mesh.close()


def _run(main: Callable[[Run], Any], run: Run) -> Any:
    if run.options.reproducible != "off":
        torch.manual_seed(mix(run.options.seed, 1) >> 1)
    try:
        return main(run)
    finally:
        run.close()
