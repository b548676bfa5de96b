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
from falaj.train.watch import Watch, newest


def watch(accelerator: Any, steps: int = 0, save_s: float = 120.0, every: int = 10) -> Watch:
    """Saves with `save_state`, when it is time or somebody asks; several processes agree on it at every so many
    steps."""

    def agree(mine: bool) -> bool:
        torch = import_module("torch")
        flag = torch.tensor([float(mine)], device=accelerator.device)
        return bool(accelerator.reduce(flag, "sum").item())

    several = agree if accelerator.num_processes > 1 else None
    return Watch(lambda to: accelerator.save_state(str(to)), agree=several, steps=steps, save_s=save_s, every=every)


def resume(accelerator: Any) -> int:
    """Load the newest whole checkpoint into what was prepared; gives its step, 0 when there is none."""
    found = newest()
    if found is None:
        return 0
    accelerator.load_state(str(found[1]))
    return found[0]


def tracker() -> Any:
    """For `log_with`: what is logged becomes metrics of the run."""
    return _tracker()()


@cache
def _tracker() -> Any:
    general: Any = import_module("accelerate.tracking").GeneralTracker

    class FalajTracker(general):  # type: ignore[misc]
        name, requires_logging_directory, main_process_only = "falaj", False, True

        @property
        def tracker(self) -> Any:
            return worker.attempt()

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            worker.attempt().note(f"configuration: {values}")

        def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
            del more
            for name, value in values.items():
                worker.attempt().metric(name, float(value), step or 0)

    return FalajTracker
