"""Turns: a lock handed on in the order it was asked for, so that no writer starves."""

import threading
from collections import deque
from collections.abc import Callable


class Turns:
    """One holder at a time. Giving up the turn hands it to whoever has waited longest.

    `orphaned` is called, holding the turn, when it came to a thread that was interrupted while it waited.
    """

    def __init__(self, orphaned: Callable[[], None]) -> None:
        self._orphaned = orphaned
        self._mutex = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Lock] = deque()

    def take(self, timeout_s: float) -> bool:
        """Wait for the turn; False when it did not come in time."""
        with self._mutex:
            if not self._held:
                self._held = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        try:
            if mine.acquire(timeout=timeout_s):
                return True
        except BaseException:
            # Interrupted while waiting: if the turn came meanwhile it must not be lost with this thread.
            if not self._withdraw(mine):
                self._orphaned()
            raise
        return not self._withdraw(mine)

    def hand_on(self) -> bool:
        """Give the turn to the next in line; False, and the turn is kept, when nobody waits."""
        with self._mutex:
            if not self._waiting:
                return False
            self._waiting.popleft().release()
            return True

    def give(self) -> None:
        """Give up the turn."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._held = False

    def _withdraw(self, mine: threading.Lock) -> bool:
        with self._mutex:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return True
            return False
