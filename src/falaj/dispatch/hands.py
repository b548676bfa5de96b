"""Hands: a few threads that carry files. What they were at when the process died, the next leader does."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from falaj.core.errors import Unavailable

HANDS = 4
T = TypeVar("T")


class Hands:
    """Does one thing after another, a few at a time."""

    def __init__(self, count: int = HANDS) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        self._threads: list[threading.Thread] = []

    def do(self, work: Callable[[], None]) -> None:
        """Have it done; it reports for itself."""
        if len(self._threads) < self._count:
            thread = threading.Thread(target=self._run, name="falaj-hands", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put(work)

    def do_all(self, works: Sequence[Callable[[], None]]) -> None:
        """Have all of these done, one after another: handing each over by itself takes longer than small ones do."""
        if works:
            self.do(partial(_one_by_one, works))

    def close(self) -> None:
        """No more after what was asked for already."""
        for _ in self._threads:
            self._work.put(None)
        self._threads = []

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _one_by_one(works: Iterable[Callable[[], None]]) -> None:
    for work in works:
        work()


def patiently(work: Callable[[], T], pauses_s: Iterable[float]) -> T:
    """What `work` gives, tried again where something it needs does not answer."""
    for pause_s in pauses_s:
        with suppress(Unavailable):
            return work()
        time.sleep(pause_s)
    return work()
