"""Turns: a lock handed on in the order it was asked for, so that no writer starves."""

import threading
from collections import deque
from collections.abc import Callable


class FairLock:
    """One holder at a time. Giving up the turn hands it to whoever has waited longest.

    `orphaned` is called, holding the turn, when it came to a thread that was interrupted while it waited.
    """

    def __init__(self, on_orphaned: Callable[[], None]) -> None:
        self._on_orphaned = on_orphaned
        self._mutex = threading.Lock()
        self._is_locked = False
        self._waiters: deque[threading.Lock] = deque()

    def take(self, timeout_s: float) -> bool:
        """Wait for the turn; False when it did not come in time."""
        with self._mutex:
            if not self._is_locked:
                self._is_locked = True
                return True
            own_lock = threading.Lock()
            own_lock.acquire()
            self._waiters.append(own_lock)
        try:
            if own_lock.acquire(timeout=timeout_s):
                return True
        except BaseException:
            # Interrupted while waiting: if the turn came meanwhile it must not be lost with this thread.
            if not self._withdraw_waiter(own_lock):
                self._on_orphaned()
            raise
        return not self._withdraw_waiter(own_lock)

    def hand_on(self) -> bool:
        """Give the turn to the next in line; False, and the turn is kept, when nobody waits."""
        with self._mutex:
            if not self._waiters:
                return False
            self._waiters.popleft().release()
            return True

    def give(self) -> None:
        """Give up the turn."""
        with self._mutex:
            if self._waiters:
                self._waiters.popleft().release()
            else:
                self._is_locked = False

    def _withdraw_waiter(self, own_lock: threading.Lock) -> bool:
        with self._mutex:
            if own_lock in self._waiters:
                self._waiters.remove(own_lock)
                return True
            return False
