"""The gauge beside a training loop: told of every step, it says now and then how things stand."""

import time
from collections.abc import Mapping
from typing import Any

from falaj.worker import Here


class Gauge:
    """One process's. `steps` is how many there will be."""

    def __init__(self, here: Here, *, rank: int, world: int, device: str, first: int, steps: int, **more: Any) -> None:
        del more
        self.here, self.rank, self.world, self.device, self.steps = here, rank, world, device, steps
        self._began, self._first = time.monotonic(), first

    def waited(self, seconds: float) -> None:
        """The loop waited so long for its next micro-batch."""

    def stepped(self, number: int, units: float, values: Mapping[str, Any]) -> None:
        """Step `number` is queued: so many items of this process, and values (loss, norm, lr) that may still be on a
        device, where reading them would make the loop wait."""
        del units
        if self.rank == 0:
            self.here.progress(number, self.steps)
            for key, value in values.items():
                self.here.metric(key, float(value), number)

    def saved(self, number: int, stall_s: float) -> None:
        """The loop stood still so long to save."""

    def close(self) -> None:
        """The loop is over."""
