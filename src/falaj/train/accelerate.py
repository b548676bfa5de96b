"""An Accelerate script as a job, unchanged but for a tracker and a watch:

    from falaj.train import accelerate as falaj

    accelerator = Accelerator(log_with=falaj.tracker())
    ...                                                # prepare
    watch = falaj.watch(accelerator, steps)
    first = falaj.resume(accelerator)                  # 0, or the step that was saved last
    ...                                                # accelerator.skip_first_batches, and the loop
    watch.step(step)                                   # after every step

Accelerate finds the other processes by itself, by the variables that torchrun would set.
"""

from functools import cache
from importlib import import_module
from typing import Any

from falaj import worker
from falaj.train.loop_watch import LoopWatch, find_newest_checkpoint


def watch(accelerator: Any, steps: int = 0, save_s: float = 120.0, every: int = 10) -> LoopWatch:
    """Saves with `save_state`, when it is time or somebody asks; several processes agree on it at every so many
    steps."""

    def reduce_flag(wants_save: bool) -> bool:
        torch = import_module("torch")
        flag = torch.tensor([float(wants_save)], device=accelerator.device)
        return bool(accelerator.reduce(flag, "sum").item())

    agree_on_save = reduce_flag if accelerator.num_processes > 1 else None
    return LoopWatch(
        lambda folder: accelerator.save_state(str(folder)), agree=agree_on_save, steps=steps, save_s=save_s, every=every
    )


def resume(accelerator: Any) -> int:
    """Load the newest whole checkpoint into what was prepared; gives its step, 0 when there is none."""
    newest_checkpoint = find_newest_checkpoint()
    if newest_checkpoint is None:
        return 0
    accelerator.load_state(str(newest_checkpoint[1]))
    return newest_checkpoint[0]


def tracker() -> Any:
    """For `log_with`: what is logged becomes metrics of the run."""
    return _build_tracker_class()()


@cache
def _build_tracker_class() -> Any:
    tracker_base: Any = import_module("accelerate.tracking").GeneralTracker

    class FalajTracker(tracker_base):  # type: ignore[misc]
        name, requires_logging_directory, main_process_only = "falaj", False, True

        @property
        def tracker(self) -> Any:
            return worker.attempt()

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            worker.attempt().note(f"configuration: {values}")

        def log(self, values: dict[str, Any], step: int | None = None, **extra: Any) -> None:
            del extra
            for name, value in values.items():
                worker.attempt().metric(name, float(value), step or 0)

    return FalajTracker
