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

from falaj.worker import CurrentAttempt

RETRY_EXIT_CODE = 75
_STDERR = 2
_DUMP_TIMEOUT_S = 10.0
_SUSPENDED_S = 5.0


def prepare_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Before processes meet: let torch remember the last collectives, so that a hang can tell which one it is."""
    environment.setdefault("TORCH_FR_BUFFER_SIZE", "2000")


def register_stack_dump() -> bool:
    """From now on USR2 writes the stacks of all threads to stderr and ends nothing, even from inside C."""
    is_free = signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    if is_free:
        faulthandler.register(signal.SIGUSR2, file=_STDERR, all_threads=True)
    return is_free


class HangWatchdog:
    """Looks whether steps are still made. `seen` gives when the last was (as perf_counter) and how many there were."""

    def __init__(
        self,
        attempt: CurrentAttempt,
        rank: int,
        read_progress: Callable[[], tuple[float, int]],
        hang_s: float,
        first_s: float,
    ) -> None:
        self._attempt, self._rank, self._read_progress = attempt, rank, read_progress
        self._hang_s, self._first_s = hang_s, max(first_s, hang_s)
        self._ticked_at = self._resumed_at = time.perf_counter()

    def tick(self, now: float) -> None:
        """Look, about once a second."""
        if now - self._ticked_at > _SUSPENDED_S:
            self._resumed_at = now
        self._ticked_at = now
        last_step_at, steps = self._read_progress()
        still_s = now - max(last_step_at, self._resumed_at)
        if still_s > (self._hang_s if steps > 1 else self._first_s):
            self._dump_and_exit(steps, still_s)

    def _dump_and_exit(self, steps: int, still_s: float) -> None:
        try:
            self._report_text(
                f"no step for {still_s:.0f} s, after {steps} here: a hang, at {describe_main_thread()}; stacks follow"
            )
            faulthandler.dump_traceback(_STDERR, all_threads=True)
            if self._attempt.checkpoints is not None:
                folder = self._attempt.checkpoints / "hangs" / f"{self._attempt.id or os.getpid()}-rank-{self._rank}"
                # Any of it may wait for what the hanging thread holds: a lock, or a file system.
                dump_thread = threading.Thread(target=_write_dumps, args=(folder,), daemon=True)
                dump_thread.start()
                dump_thread.join(_DUMP_TIMEOUT_S)
            # The first to end ends the others of its slot: leave them time to write theirs.
            time.sleep(min(_SUSPENDED_S, self._hang_s / 4))
        finally:
            os._exit(RETRY_EXIT_CODE)

    def _report_text(self, text: str) -> None:
        self._attempt.note(f"rank {self._rank}: {text}")
        os.write(_STDERR, f"falaj: rank {self._rank}: {text}\n".encode())


def describe_main_thread() -> str:
    """Where the main thread stands, in a few words."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the documented way
    stack = traceback.extract_stack(frame)[-3:] if frame else []
    return (
        " > ".join(f"{entry.name} ({Path(entry.filename).name}:{entry.lineno})" for entry in stack) or "a place unknown"
    )


def _write_dumps(folder: Path) -> None:
    """Stacks; and the last collectives and the device's memory, where torch can tell."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "stacks.txt").open("w") as file:
        faulthandler.dump_traceback(file, all_threads=True)
    torch: Any = sys.modules.get("torch")
    inner = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        if hasattr(inner, name):
            trace = getattr(inner, name)()
            (folder / "collectives.json").write_bytes(trace if isinstance(trace, bytes) else str(trace).encode())
            break
    if torch is not None and torch.cuda.is_initialized():
        (folder / "memory.json").write_text(json.dumps(torch.cuda.memory_stats()))
