"""What a loop of another library needs to be a good job: it says how far it is, saves when asked or when it is time,
gives its place up, and finds the newest checkpoint that is whole. The library writes and reads its own checkpoints.
"""

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from falaj import worker
from falaj.train.estimators import write_file

_MAX_CHECKPOINTS = 2
_SUMS_FILE = "falaj.json"
Agreement = Callable[[bool], bool]
"""Whether any process says yes; all of them ask at the same step."""


class LoopWatch:
    """Told of every step by every process of a training."""

    def __init__(
        self, save: Callable[[Path], Any], *, agree: Agreement | None = None, steps: int = 0, save_s: float = 120.0,
        every: int = 10,
    ) -> None:  # fmt: skip
        self.here, self.steps, self.save_s = worker.attempt(), steps, save_s
        self._save, self._agree = save, agree
        # To agree makes a loop wait for its device, so that several processes do it now and then.
        self._agree_every = every if agree else 1
        self._reported_at = self._saved_at = time.monotonic()
        self.here.asked()  # from here on a wish to stop is heard

    def step(self, number: int) -> None:
        """Step `number` is done, and the state is whole: it may be saved now, and this process may end here."""
        now = time.monotonic()
        if self.here.rank == 0 and (now - self._reported_at >= 1.0 or number == self.steps):
            self._reported_at = now
            self.here.progress(number, self.steps)
        # What one process was asked, or one clock says, all must do at the same step.
        folder, has_request = self.here.checkpoints, bool(self.here.asked())
        is_due = self.here.rank == 0 and now - self._saved_at >= self.save_s
        if folder is None or number % self._agree_every or not self._agree_over_processes(has_request or is_due):
            return
        self._save_checkpoint(folder / "watched", number)
        if self._agree_over_processes(self.here.asked() == "stop"):
            self.here.yield_place()

    def _agree_over_processes(self, wants: bool) -> bool:
        return self._agree(wants) if self._agree else wants

    def _save_checkpoint(self, folder: Path, number: int) -> None:
        started_at, draft = time.monotonic(), folder / f".draft-{number}"
        if self.here.rank == 0:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        self._agree_over_processes(False)
        self._save(draft)
        self._agree_over_processes(False)
        if self.here.rank == 0:
            write_file(draft / _SUMS_FILE, json.dumps(_hash_files(draft)).encode())
            step_folder = folder / f"step-{number:09d}"
            shutil.rmtree(step_folder, ignore_errors=True)
            draft.replace(step_folder)
            for old_folder in sorted(folder.glob("step-*"))[:-_MAX_CHECKPOINTS]:
                shutil.rmtree(old_folder)
            self.here.checkpointed(number, str(step_folder), time.monotonic() - started_at)
        self._agree_over_processes(False)
        self._saved_at = time.monotonic()


def find_newest_checkpoint() -> tuple[int, Path] | None:
    """The newest checkpoint whose bytes are what they were: its step, and its folder."""
    attempt = worker.attempt()
    for folder in sorted((attempt.checkpoints / "watched").glob("step-*"), reverse=True) if attempt.checkpoints else ():
        with contextlib.suppress(OSError, ValueError):
            if json.loads((folder / _SUMS_FILE).read_bytes()) == _hash_files(folder):
                return int(folder.name.removeprefix("step-")), folder
        attempt.note(f"checkpoint {folder.name} is broken: the one before it is used")
    return None


def _hash_files(folder: Path) -> dict[str, str]:
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _SUMS_FILE:
            with path.open("rb") as file:
                digests[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests
