"""A process that makes no step any more: what it stands at is written down, and it ends so that it is tried again.

Ends with code 75, which the job's own rule bounds. A process that was itself stopped (a suspended job) is forgiven the
time it was away.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from falaj.worker import Here

TRY_AGAIN = 75
_STDERR = 2
_DUMP_S = 10.0
_AWAY_S = 5.0


def prepare(environment: MutableMapping[str, str] = os.environ) -> None:
    """Before processes meet: let torch remember the last collectives, so that a hang can tell which one it is."""
    environment.setdefault("TORCH_FR_BUFFER_SIZE", "2000")


def listen() -> bool:
    """From now on USR2 writes the stacks of all threads to stderr and ends nothing, even from inside C."""
    free = signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    if free:
        faulthandler.register(signal.SIGUSR2, file=_STDERR, all_threads=True)
    return free


class Watchdog:
    """Looks whether steps are still made. `seen` gives when the last was (as perf_counter) and how many there were."""

    def __init__(
        self, here: Here, rank: int, seen: Callable[[], tuple[float, int]], hang_s: float, first_s: float
    ) -> None:
        self._here, self._rank, self._seen = here, rank, seen
        self._hang_s, self._first_s = hang_s, max(first_s, hang_s)
        self._ticked = self._back = time.perf_counter()

    def tick(self, now: float) -> None:
        """Look, about once a second."""
        if now - self._ticked > _AWAY_S:
            self._back = now
        self._ticked = now
        seen, steps = self._seen()
        still_s = now - max(seen, self._back)
        if still_s > (self._hang_s if steps > 1 else self._first_s):
            self._end(steps, still_s)

    def _end(self, steps: int, still_s: float) -> None:
        try:
            self._say(f"no step for {still_s:.0f} s, after {steps} here: a hang, at {where()}; stacks follow")
            faulthandler.dump_traceback(_STDERR, all_threads=True)
            if self._here.checkpoints is not None:
                folder = self._here.checkpoints / "hangs" / f"{self._here.id or os.getpid()}-rank-{self._rank}"
                # Any of it may wait for what the hanging thread holds: a lock, or a file system.
                dumping = threading.Thread(target=_dump, args=(folder,), daemon=True)
                dumping.start()
                dumping.join(_DUMP_S)
            # The first to end ends the others of its slot: leave them time to write theirs.
            time.sleep(min(_AWAY_S, self._hang_s / 4))
        finally:
            os._exit(TRY_AGAIN)

    def _say(self, text: str) -> None:
        self._here.note(f"rank {self._rank}: {text}")
        os.write(_STDERR, f"falaj: rank {self._rank}: {text}\n".encode())


def where() -> str:
    """Where the main thread stands, in a few words."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the documented way
    stack = traceback.extract_stack(frame)[-3:] if frame else []
    return " > ".join(f"{one.name} ({Path(one.filename).name}:{one.lineno})" for one in stack) or "a place unknown"


def _dump(folder: Path) -> None:
    """Stacks; and the last collectives and the device's memory, where torch can tell."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stacks.txt").open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    torch: Any = sys.modules.get("torch")
    inner = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        if hasattr(inner, name):
            told = getattr(inner, name)()
            (folder / "collectives.json").write_bytes(told if isinstance(told, bytes) else str(told).encode())
            break
    if torch is not None and torch.cuda.is_initialized():
        (folder / "memory.json").write_text(json.dumps(torch.cuda.memory_stats()))
