"""The passage: how writers that keep meeting get by. Most go side by side; once some met, one after the other.

An engine that checks what transactions read against what others write turns one of two away when they meet, and on a
small table everybody meets: whoever is turned away did all its work for nothing. So for a while after that the threads
of one process go alone, and processes ask the engine to let them go in turn. This is a courtesy and no lock: nobody
waits longer than a moment, and the engine alone decides what is right. Not all know the courtesy: who is turned away
even so asks the engine to keep everybody out.
"""

import threading
import time

PATIENCE_S = 1.0
CROWDED_S = 2.0
"""So long after one was turned away, all go one after the other."""
TOO_OFTEN = 4
"""Turned away so often in a row, a thread keeps everybody out."""
FREE, IN_TURN, ALONE = range(3)
"""With the others; after those of other processes that go in turn as well; with nobody else."""


class Passage:
    """The write transactions of one process that are open now."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._local = _Turned()
        self._inside = 0
        self._alone = 0
        self._met = -CROWDED_S

    def enter(self) -> int:
        """Go in: with the others or, where they keep meeting, when they are through, and then nobody else comes in
        meanwhile. Says how other processes are to be met: FREE, IN_TURN or ALONE."""
        with self._change:
            self._change.wait_for(lambda: not self._alone, PATIENCE_S)
            crowded = time.monotonic() - self._met < CROWDED_S
            if crowded and not self._alone:
                self._alone = threading.get_ident()
                self._change.wait_for(lambda: not self._inside, PATIENCE_S)
            self._inside += 1
        return ALONE if self._local.times >= TOO_OFTEN else IN_TURN if crowded else FREE

    def leave(self, turned_away: bool) -> None:
        """Be through, or turned away by the engine."""
        self._local.times = self._local.times + 1 if turned_away else 0
        with self._change:
            self._met = time.monotonic() if turned_away else self._met
            self._inside -= 1
            if self._alone == threading.get_ident():
                self._alone = 0
            self._change.notify_all()


class _Turned(threading.local):
    times = 0
