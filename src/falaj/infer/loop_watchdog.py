"""Sees a loop that stands still: a model that hangs on the loop's own thread cannot be told by the loop.

A thread looks first, and ends the process with the code that says so. Where a model also keeps Python to itself, no
thread of Python runs: then a timer of C ends it (code 1), a while later.
"""

import faulthandler
import os
import sys
import threading
import time

from falaj.infer.engine import InferenceEngine

HUNG_EXIT_CODE = 75
"""The exit code of a server whose model hangs: whoever started it starts it again."""
WATCHDOG_GRACE_S = 2.0


class LoopWatchdog(threading.Thread):
    """Ends the process when the engine's loop has not turned for `limit_s` and a little."""

    def __init__(self, engine: InferenceEngine, limit_s: float) -> None:
        super().__init__(name="falaj-watch", daemon=True)
        self._engine, self._limit_s = engine, limit_s + WATCHDOG_GRACE_S

    def run(self) -> None:
        """Until the engine is closed."""
        while not self._engine.closed:
            faulthandler.dump_traceback_later(2 * self._limit_s, exit=True)
            if time.monotonic() - self._engine.beat > self._limit_s:
                exit_hung_process("a model hangs on the loop's thread")
            time.sleep(min(1.0, self._limit_s / 4))
        faulthandler.cancel_dump_traceback_later()


def exit_hung_process(description: str) -> None:
    """Now: nothing that hangs is waited for."""
    print(f"falaj.infer: {description}; ending with {HUNG_EXIT_CODE}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(HUNG_EXIT_CODE)
