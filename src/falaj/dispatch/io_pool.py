"""Hands: a few threads that carry files. What they were at when the process died, the next leader does."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from falaj.core.errors import FalajError
from falaj.dispatch.cluster_worker import EXECUTOR_ERRORS

log = logging.getLogger(__name__)
IO_THREADS = 4
MAX_BATCH = 32
"""So many small things one hand does, while others may do the next."""


class IoPool:
    """Does one thing after another, a few at a time."""

    def __init__(self, count: int = IO_THREADS) -> None:
        self._batches: queue.SimpleQueue[Sequence[Callable[[], None]] | None] = queue.SimpleQueue()
        self._count = count
        self._threads: list[threading.Thread] = []

    def do(self, work: Callable[[], None]) -> None:
        """Have it done; it reports for itself."""
        self.do_all((work,))

    def do_all(self, works: Sequence[Callable[[], None]]) -> None:
        """Have all of these done, many by one hand: handing each over by itself takes longer than small ones do."""
        for start in range(0, len(works), MAX_BATCH):
            self._submit_batch(works[start : start + MAX_BATCH])

    def _submit_batch(self, works: Sequence[Callable[[], None]]) -> None:
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run_worker, name="falaj-hands", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._batches.put(works)

    def close(self) -> None:
        """No more after what was asked for already."""
        for _ in self._threads:
            self._batches.put(None)
        self._threads = []

    def _run_worker(self) -> None:
        while (works := self._batches.get()) is not None:
            for work in works:
                try:
                    work()
                except (FalajError, *EXECUTOR_ERRORS):
                    # A bug met by one of them must not take the others along, nor the hand.
                    log.exception("work failed")
