"""The passage: how writers that keep meeting get by. Most go side by side; one that was turned away too often, alone.

An engine that checks what transactions read against what others write turns one of two away when they meet, and on a
small table everybody meets. This is a courtesy between the threads of one process and no lock: nobody waits longer than
a moment, and the engine alone decides what is right. Other processes know no courtesy: who is turned away even alone
asks the engine to keep them out.
"""

import threading

PATIENCE_S = 1.0
OFTEN = 2
"""Turned away so often in a row, a thread goes alone."""
TOO_OFTEN = 4
"""And so often, behind a lock."""


class Passage:
    """The write transactions of one process that are open now."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._local = _Turned()
        self._inside = 0
        self._alone = 0

    def enter(self) -> bool:
        """Go in: with the others or, in need, when they are through, and then nobody else comes in meanwhile. True when
        other processes must be kept out, too."""
        with self._change:
            self._change.wait_for(lambda: not self._alone, PATIENCE_S)
            if self._local.times >= OFTEN and not self._alone:
                self._alone = threading.get_ident()
                self._change.wait_for(lambda: not self._inside, PATIENCE_S)
            self._inside += 1
        return self._local.times >= TOO_OFTEN

    def leave(self, turned_away: bool) -> None:
        """Be through, or turned away by the engine."""
        self._local.times = self._local.times + 1 if turned_away else 0
        with self._change:
            self._inside -= 1
            if self._alone == threading.get_ident():
                self._alone = 0
            self._change.notify_all()


class _Turned(threading.local):
    times = 0
