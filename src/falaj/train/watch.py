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
from falaj.train.estimators import put_file

_KEPT = 2
_SUMS = "falaj.json"
Agree = Callable[[bool], bool]
"""Whether any process says yes; all of them ask at the same step."""


class Watch:
    """Told of every step by every process of a training."""

    def __init__(
        self, save: Callable[[Path], Any], *, agree: Agree | None = None, steps: int = 0, save_s: float = 120.0,
        every: int = 10,
    ) -> None:  # fmt: skip
        self.here, self.steps, self.save_s = worker.attempt(), steps, save_s
        self._save, self._agree = save, agree
        # To agree makes a loop wait for its device, so that several processes do it now and then.
        self._every = every if agree else 1
        self._said = self._saved = time.monotonic()
        self.here.asked()  # from here on a wish to stop is heard

    def step(self, number: int) -> None:
        """Step `number` is done, and the state is whole: it may be saved now, and this process may end here."""
        now = time.monotonic()
        if self.here.rank == 0 and (now - self._said >= 1.0 or number == self.steps):
            self._said = now
            self.here.progress(number, self.steps)
        # What one process was asked, or one clock says, all must do at the same step.
        folder, wish = self.here.checkpoints, bool(self.here.asked())
        due = self.here.rank == 0 and now - self._saved >= self.save_s
        if folder is None or number % self._every or not self._all(wish or due):
            return
        self._keep(folder / "watched", number)
        if self._all(self.here.asked() == "stop"):
            self.here.yield_place()

    def _all(self, mine: bool) -> bool:
        return self._agree(mine) if self._agree else mine

    def _keep(self, folder: Path, number: int) -> None:
        began, draft = time.monotonic(), folder / f".draft-{number}"
        if self.here.rank == 0:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        self._all(False)
        self._save(draft)
        self._all(False)
        if self.here.rank == 0:
            put_file(draft / _SUMS, json.dumps(_sums(draft)).encode())
            whole = folder / f"step-{number:09d}"
            shutil.rmtree(whole, ignore_errors=True)
            draft.replace(whole)
            for old in sorted(folder.glob("step-*"))[:-_KEPT]:
                shutil.rmtree(old)
            self.here.checkpointed(number, str(whole), time.monotonic() - began)
        self._all(False)
        self._saved = time.monotonic()


def newest() -> tuple[int, Path] | None:
    """The newest checkpoint whose bytes are what they were: its step, and its folder."""
    here = worker.attempt()
    for folder in sorted((here.checkpoints / "watched").glob("step-*"), reverse=True) if here.checkpoints else ():
        with contextlib.suppress(OSError, ValueError):
            if json.loads((folder / _SUMS).read_bytes()) == _sums(folder):
                return int(folder.name.removeprefix("step-")), folder
        here.note(f"checkpoint {folder.name} is broken: the one before it is used")
    return None


def _sums(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _SUMS:
            with path.open("rb") as file:
                found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found
