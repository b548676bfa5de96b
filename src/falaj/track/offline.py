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

RUN_FILE = "run.jsonl"
ARTIFACTS_FOLDER = "artifacts"
_SYNC_INTERVAL_S = 1.0
_RUN_ID_PATTERN = re.compile(r"[0-9a-f]{32}")


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
        file = self.folder / RUN_FILE
        start_fact = next((line for line in read_facts(file) if line.get("what") == "start"), None)
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.Lock()
        self._last_synced_at = time.monotonic()
        if _is_cut_short(file):
            os.write(self._file, b"\n")  # what follows must not become part of a line that was cut short
        self.id = start_fact["run"] if start_fact else uuid.uuid4().hex
        if start_fact is None:
            self._write_fact("start", run=self.id, experiment=experiment, title=title)
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
        log_fields: dict[str, Any] = {}
        if metrics:
            log_fields["metrics"] = {key: _to_json_number(float(value)) for key, value in metrics.items()}
            log_fields["step"] = int(step)
        for name, texts in (("params", params), ("tags", tags)):
            if texts:
                log_fields[name] = {key: str(value) for key, value in texts.items()}
        self._write_fact("log", **log_fields)

    def attach(self, file: str | Path, path: str = "") -> None:
        """Keep a copy of a file with the run, under its own name or at a path inside it."""
        target_path = path or Path(file).name
        if any(part in ("", ".", "..") for part in target_path.split("/")):
            raise ValueError(f"{target_path!r} is no path inside a run")
        target = self.folder / ARTIFACTS_FOLDER / target_path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)

    def end(self, status: str = "finished") -> None:
        """Say how it ended, and close the file."""
        if self._file >= 0:
            self._write_fact("end", status=status)
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.end("finished" if kind is None else "killed" if kind is KeyboardInterrupt else "failed")

    def _write_fact(self, fact_kind: str, **fact_fields: Any) -> None:
        line = (
            json.dumps({"what": fact_kind, "at": time.time(), **fact_fields}, ensure_ascii=False, allow_nan=False)
            + "\n"
        )
        with self._lock:
            if self._file < 0:
                raise ValueError("the run has ended")
            os.write(self._file, line.encode())
            if time.monotonic() - self._last_synced_at > _SYNC_INTERVAL_S:
                os.fsync(self._file)
                self._last_synced_at = time.monotonic()


def read_facts(file: Path) -> Iterator[dict[str, Any]]:
    """The facts of a recorded run; what is no whole line is left out."""
    if not file.is_file():
        return
    with file.open("rb") as lines:
        for line in lines:
            fact = _parse_fact(line)
            if isinstance(fact, dict) and isinstance(fact.get("at"), (int, float)):
                yield fact


def is_run_id(text: object) -> bool:
    """True for what can be the id of a run."""
    return isinstance(text, str) and _RUN_ID_PATTERN.fullmatch(text) is not None


def _parse_fact(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_cut_short(file: Path) -> bool:
    with file.open("rb") as open_file:
        if open_file.seek(0, os.SEEK_END) == 0:
            return False
        open_file.seek(-1, os.SEEK_END)
        return open_file.read() != b"\n"


def _to_json_number(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)
