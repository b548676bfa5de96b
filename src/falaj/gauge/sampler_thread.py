"""The one thread beside a training loop: a short look at this and that about once a second."""

import threading
import time
from collections.abc import Callable


class SamplerThread:
    """Runs `ticks` with the time of perf_counter until closed."""

    def __init__(self, ticks: list[Callable[[float], None]], interval_s: float = 1.0) -> None:
        self._ticks, self._interval_s = ticks, interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run_ticks, name="falaj-gauge", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No tick begins after this."""
        self._stopped.set()
        self._thread.join(10)

    def _run_ticks(self) -> None:
        while not self._stopped.wait(self._interval_s):
            for tick in self._ticks:
                tick(time.perf_counter())
