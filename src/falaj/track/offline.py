"""The offline recorder: a run on a folder, with no platform anywhere near. `falaj track sync` carries it in later.

    with Recorder("runs/first", experiment="experiment:fraud/scoring") as run:
        run.log({"loss": 0.3}, step=1)

Every line of `run.jsonl` is one fact, written in one go: a process that is killed loses nothing it was told was logged,
and a line that a loss of power cut short is left out when it is read. Only the standard library is needed.
"""

import json
import math
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NAME = "run.jsonl"
FILES = "artifacts"
_SYNC_S = 1.0
_ID = re.compile(r"[0-9a-f]{32}")


class Recorder:
    """One run. Opening the same folder again goes on with it."""

    def __init__(
        self,
        folder: str | Path,
        experiment: str = "experiment:default/default",
        title: str = "",
        params: Mapping[str, object] | None = None,
        tags: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / NAME
        begun = next((line for line in read_lines(file) if line.get("what") == "start"), None)
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._synced = time.monotonic()
        if _is_cut(file):
            os.write(self._file, b"\n")  # what follows must not become part of a line that was cut short
        self.id = begun["run"] if begun else uuid.uuid4().hex
        if begun is None:
            self._say("start", run=self.id, experiment=experiment, title=title)
        if params or tags:
            self.log(params=params, tags=tags)

    def log(
        self,
        metrics: Mapping[str, float] | None = None,
        step: int = 0,
        params: Mapping[str, object] | None = None,
        tags: Mapping[str, object] | None = None,
    ) -> None:
        """Log values at a step, parameters and tags."""
        said: dict[str, Any] = {}
        if metrics:
            said["metrics"] = {key: _written(float(value)) for key, value in metrics.items()}
            said["step"] = int(step)
        for name, texts in (("params", params), ("tags", tags)):
            if texts:
                said[name] = {key: str(value) for key, value in texts.items()}
        self._say("log", **said)

    def attach(self, file: str | Path, path: str = "") -> None:
        """Keep a copy of a file with the run, under its own name or at a path inside it."""
        place = path or Path(file).name
        if any(part in ("", ".", "..") for part in place.split("/")):
            raise ValueError(f"{place!r} is no path inside a run")
        target = self.folder / FILES / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)

    def end(self, status: str = "finished") -> None:
        """Say how it ended, and close the file."""
        if self._file >= 0:
            self._say("end", status=status)
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.end("finished" if kind is None else "killed" if kind is KeyboardInterrupt else "failed")

    def _say(self, what: str, **said: Any) -> None:
        line = json.dumps({"what": what, "at": time.time(), **said}, ensure_ascii=False, allow_nan=False) + "\n"
        with self._lock:
            if self._file < 0:
                raise ValueError("the run has ended")
            os.write(self._file, line.encode())
            if time.monotonic() - self._synced > _SYNC_S:
                os.fsync(self._file)
                self._synced = time.monotonic()


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The facts of a recorded run; what is no whole line is left out."""
    if not file.is_file():
        return
    with file.open("rb") as lines:
        for line in lines:
            fact = _fact(line)
            if isinstance(fact, dict) and isinstance(fact.get("at"), (int, float)):
                yield fact


def is_id(text: object) -> bool:
    """True for what can be the id of a run."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def _fact(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_cut(file: Path) -> bool:
    with file.open("rb") as whole:
        if whole.seek(0, os.SEEK_END) == 0:
            return False
        whole.seek(-1, os.SEEK_END)
        return whole.read() != b"\n"


def _written(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)
