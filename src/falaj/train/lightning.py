"""A LightningModule and its Trainer as a job, unchanged but for two words:

    from falaj.train import lightning as falaj

    trainer = Trainer(max_steps=1000, callbacks=[falaj.Falaj()], **falaj.places())
    trainer.fit(model, data, ckpt_path=falaj.resume())

Lightning finds the other processes by itself. A Fabric loop is watched: `watch = falaj.watch(fabric, state, steps)`.
"""

import os
import sys
from functools import cache
from importlib import import_module
from typing import Any

from falaj import worker
from falaj.train.loop_watch import Agreement, LoopWatch, find_newest_checkpoint

_CHECKPOINT_NAME = "model.ckpt"


def __getattr__(name: str) -> Any:
    # Lightning takes seconds to import: only who speaks of the callback waits for it.
    if name != "Falaj":
        raise AttributeError(name)
    return _build_callback_class()


def places() -> dict[str, int]:
    """What a Trainer or Fabric must be told of the job's processes; nothing outside a job."""
    nodes, local = os.environ.get("GROUP_WORLD_SIZE"), os.environ.get("LOCAL_WORLD_SIZE")
    return {"num_nodes": int(nodes), "devices": int(local)} if nodes and local else {}


def resume() -> str | None:
    """The newest whole checkpoint, for `ckpt_path` or `fabric.load`."""
    newest_checkpoint = find_newest_checkpoint()
    return str(newest_checkpoint[1] / _CHECKPOINT_NAME) if newest_checkpoint else None


def watch(fabric: Any, state: dict[str, Any], steps: int = 0, save_s: float = 120.0, every: int = 10) -> LoopWatch:
    """Watch a loop of Fabric: call `step` of it with every step that is done."""
    watch_options: dict[str, Any] = {
        "agree": _build_agreement(fabric),
        "steps": steps,
        "save_s": save_s,
        "every": every,
    }
    return LoopWatch(lambda folder: fabric.save(folder / _CHECKPOINT_NAME, state), **watch_options)


@cache
def _build_callback_class() -> Any:
    module_name = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    callback: Any = import_module(module_name).Callback

    class Falaj(callback):  # type: ignore[misc]
        """Speaks to the job: progress, logged values, checkpoints when it is time or somebody asks."""

        def __init__(self, save_s: float = 120.0, every: int = 10) -> None:
            self._watch_options: dict[str, Any] = {"save_s": save_s, "every": every}

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            del pl_module
            steps = trainer.estimated_stepping_batches
            self._watch_options |= {
                "agree": _build_agreement(trainer),
                "steps": int(steps) if steps != float("inf") else 0,
            }
            self._watch = LoopWatch(
                lambda folder: trainer.save_checkpoint(folder / _CHECKPOINT_NAME), **self._watch_options
            )

        def on_train_batch_end(self, trainer: Any, *details: Any) -> None:
            del details
            if trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
                _log_values(trainer, trainer.logged_metrics)
            self._watch.step(trainer.global_step)

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            del pl_module
            if not trainer.sanity_checking:
                _log_values(trainer, trainer.callback_metrics)

    return Falaj


def _build_agreement(owner: Any) -> Agreement | None:
    """Of a Trainer or a Fabric of several processes."""
    if owner.world_size == 1:
        return None
    return lambda wants_save: bool(owner.strategy.reduce_boolean_decision(wants_save, all=False))


def _log_values(trainer: Any, values: dict[str, Any]) -> None:
    if trainer.is_global_zero:
        for name, value in values.items():
            worker.attempt().metric(name, float(value), trainer.global_step)
