"""The one thread beside a training loop: a short look at this and that about once a second."""

import threading
import time
from collections.abc import Callable


class Beside:
    """Runs `ticks` with the time of perf_counter until closed."""

    def __init__(self, ticks: list[Callable[[float], None]], every_s: float = 1.0) -> None:
        self._ticks, self._every_s = ticks, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="falaj-gauge", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No tick begins after this."""
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            for tick in self._ticks:
                tick(time.perf_counter())
