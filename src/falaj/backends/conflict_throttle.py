"""The passage: how writers that keep meeting get by. Most go side by side; once some met, one after the other.

An engine that checks what transactions read against what others write turns one of two away when they meet, and on a
small table everybody meets: whoever is turned away did all its work for nothing. So for a while after that the threads
of one process go alone, and processes ask the engine to let them go in turn. This is a courtesy and no lock: nobody
waits longer than a moment, and the engine alone decides what is right. Not all know the courtesy: who is turned away
even so asks the engine to keep everybody out.
"""

import threading
import time

MAX_WAIT_S = 1.0
CONFLICT_WINDOW_S = 2.0
"""So long after one was turned away, all go one after the other."""
EXCLUSIVE_AFTER_CONFLICTS = 4
"""Turned away so often in a row, a thread keeps everybody out."""
MODE_SHARED, MODE_SERIALIZED, MODE_EXCLUSIVE = range(3)
"""With the others; after those of other processes that go in turn as well; with nobody else."""


class ConflictThrottle:
    """The write transactions of one process that are open now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread_state = _ThreadConflicts()
        self._open_count = 0
        self._exclusive_thread = 0
        self._last_conflict_at = -CONFLICT_WINDOW_S

    def enter(self) -> int:
        """Go in: with the others or, where they keep meeting, when they are through, and then nobody else comes in
        meanwhile. Says how other processes are to be met: FREE, IN_TURN or ALONE."""
        with self._changed:
            self._changed.wait_for(lambda: not self._exclusive_thread, MAX_WAIT_S)
            has_conflicts = time.monotonic() - self._last_conflict_at < CONFLICT_WINDOW_S
            if has_conflicts and not self._exclusive_thread:
                self._exclusive_thread = threading.get_ident()
                self._changed.wait_for(lambda: not self._open_count, MAX_WAIT_S)
            self._open_count += 1
        return (
            MODE_EXCLUSIVE
            if self._thread_state.times >= EXCLUSIVE_AFTER_CONFLICTS
            else MODE_SERIALIZED
            if has_conflicts
            else MODE_SHARED
        )

    def leave(self, was_rejected: bool) -> None:
        """Be through, or turned away by the engine."""
        self._thread_state.times = self._thread_state.times + 1 if was_rejected else 0
        with self._changed:
            self._last_conflict_at = time.monotonic() if was_rejected else self._last_conflict_at
            self._open_count -= 1
            if self._exclusive_thread == threading.get_ident():
                self._exclusive_thread = 0
            self._changed.notify_all()


class _ThreadConflicts(threading.local):
    times = 0
