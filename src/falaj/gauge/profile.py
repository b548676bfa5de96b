"""Profiles of a few steps: taken when asked for, or when steps have become slow; kept as a trace and a summary.

FALAJ_PROFILE={"first": 20, "steps": 3} asks before a run; a file ask.json ({"steps": 3}) beside its profiles asks a run
that is under way. A process of its own reads the trace, so that the training goes on meanwhile.
"""

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from falaj.core.errors import CorruptData, Invalid, NotFound
from falaj.gauge.trace_summary import PHASE_MARK, WAIT_MARK, summarize_trace

_TRACE, _FACTS, _SUMMARY, _REQUEST = "trace.json", "facts.json", "summary.json", "ask.json"
_LEAD_STEPS = 3  # one step that waits, one that warms up, and the one at whose end we begin
_MAX_SLOW_CAPTURES = 2
_NEVER_STEP = 1 << 62
_CLOSE_TIMEOUT_S = 10.0


def read_summary(folder: Path) -> dict[str, Any]:
    """The newest profile in a folder (or the one that it is): facts about the run, and where the time went."""
    profile_folders = [
        folder,
        *sorted(folder.glob("*"), key=lambda profile_folder: profile_folder.stat().st_mtime, reverse=True),
    ]
    profile_folder = next((candidate for candidate in profile_folders if (candidate / _FACTS).is_file()), None)
    if profile_folder is None:
        raise NotFound(f"there is no profile in {folder.name}", "start the run with FALAJ_PROFILE, or ask for one")
    try:
        if (profile_folder / _SUMMARY).is_file():
            return dict(json.loads((profile_folder / _SUMMARY).read_bytes()))
        trace_path = profile_folder / _TRACE  # stays until the packed one is whole
        packed_path = profile_folder / f"{_TRACE}.gz"
        text = trace_path.read_bytes() if trace_path.exists() else gzip.decompress(packed_path.read_bytes())
        return {
            "facts": json.loads((profile_folder / _FACTS).read_bytes()),
            **summarize_trace(json.loads(text)["traceEvents"]),
        }
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise CorruptData(f"the profile {profile_folder.name} cannot be read: {error}", "take another one") from error


class ProfileCapture:
    """Takes the profiles of one process. `facts` is asked for what is known of the run when one is done."""

    def __init__(self, folder: Path | None, device: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        request = _parse_request(os.environ.get("FALAJ_PROFILE", ""))
        self._folder = Path(request["folder"]) if "folder" in request else folder
        self._device, self._facts = device, facts
        self._first_step = int(request.get("first", _LEAD_STEPS)) - _LEAD_STEPS if request else _NEVER_STEP
        self._steps = int(request.get("steps", 3))
        self._slow_captures_left = _MAX_SLOW_CAPTURES
        self._took_profile = False
        self._profiler: Any = None
        self._finished_folder: Path | None = None
        self._children: list[subprocess.Popen[bytes]] = []

    def stepped(self, number: int) -> None:
        """A step ends."""
        if self._profiler is None and (number < self._first_step or self._folder is None):
            return
        try:
            if self._profiler is None:
                self._start_profiler(Path(self._folder or ""), number)
            else:
                self._profiler.step()
                if self._finished_folder is not None:
                    self._finish_profile(self._finished_folder)
        except (OSError, RuntimeError) as error:
            # A full disk, or a profiler of the script's own: no reason to end a training.
            self._profiler = self._folder = None
            os.write(2, f"falaj: no profile: {error}\n".encode())

    def took(self) -> bool:
        """Whether some steps were profiled since this was asked last: they are slower than others."""
        was_profiling, self._took_profile = self._took_profile, self._profiler is not None
        return was_profiling

    def waited(self, seconds: float) -> None:
        """Leave a mark in the trace that a wait ends here."""
        if self._profiler is not None:
            with _trace_mark(f"{WAIT_MARK}{seconds * 1e6:.0f}"):
                pass

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A phase, as the trace knows it."""
        return _trace_mark(f"{PHASE_MARK}{name}") if self._profiler is not None else contextlib.nullcontext()

    def slow(self) -> bool:
        """Steps have become slow: take a profile, though not a third time."""
        can_start = self._slow_captures_left > 0 and self._profiler is None and self._folder is not None
        if can_start:
            self._slow_captures_left, self._first_step = self._slow_captures_left - 1, 0
        return can_start

    def tick(self, now: float) -> None:
        """Look whether somebody asks, beside the loop."""
        del now
        request_path = self._folder / _REQUEST if self._folder else None
        with contextlib.suppress(OSError, ValueError, Invalid):
            if request_path and request_path.is_file():
                self._steps = int(_parse_request(request_path.read_text()).get("steps", 3))
                request_path.unlink()
                self._first_step = 0

    def close(self) -> None:
        """Nothing more is taken. What was is read to its end, if that is soon: else by whoever looks at it."""
        if self._profiler is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._profiler.stop()
            self._profiler = None
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_CLOSE_TIMEOUT_S)

    def _start_profiler(self, folder: Path, number: int) -> None:
        from torch import profiler

        profile_folder = folder / f"step-{number + _LEAD_STEPS}"

        def export_trace(finished_profiler: Any) -> None:
            shutil.rmtree(profile_folder, ignore_errors=True)  # an earlier attempt's
            profile_folder.mkdir(parents=True)
            finished_profiler.export_chrome_trace(str(profile_folder / _TRACE))
            self._finished_folder = profile_folder

        device_activities = [profiler.ProfilerActivity.CUDA] if self._device.startswith("cuda") else []
        self._first_step, self._took_profile = _NEVER_STEP, True
        self._profiler = profiler.profile(
            activities=[profiler.ProfilerActivity.CPU, *device_activities],
            schedule=profiler.schedule(wait=1, warmup=1, active=self._steps, repeat=1),
            on_trace_ready=export_trace,
            record_shapes=True,
            profile_memory=True,
            acc_events=True,  # there is one cycle; else torch warns that there might be more
        )
        self._profiler.start()

    def _finish_profile(self, profile_folder: Path) -> None:
        self._profiler.stop()
        self._profiler = self._finished_folder = None
        (profile_folder / _FACTS).write_text(json.dumps(self._facts()))
        command = [sys.executable, "-m", "falaj.gauge.profile", str(profile_folder)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._children.append(subprocess.Popen(command, env=environment))  # noqa: S603  # nosec B603 - our own module


def _trace_mark(name: str) -> contextlib.AbstractContextManager[Any]:
    from torch.profiler import record_function

    return record_function(name)


def _parse_request(text: str) -> dict[str, Any]:
    try:
        request = json.loads(text or "{}")
    except ValueError:
        request = None
    if not isinstance(request, dict) or any(not isinstance(request.get(name, 3), int) for name in ("first", "steps")):
        raise Invalid(f"{text[:60]!r} asks for no profile", 'for example {"first": 20, "steps": 3}')
    return request


def _pack_profile(profile_folder: Path) -> None:
    """What the process of its own does."""
    os.nice(10)
    profile_summary = read_summary(profile_folder)
    with (
        (profile_folder / _TRACE).open("rb") as file,
        gzip.open(profile_folder / f"{_TRACE}.gz", "wb", compresslevel=4) as packed,
    ):
        shutil.copyfileobj(file, packed)
    (profile_folder / f"{_SUMMARY}.new").write_text(json.dumps(profile_summary))
    (profile_folder / f"{_SUMMARY}.new").rename(profile_folder / _SUMMARY)
    (profile_folder / _TRACE).unlink()


if __name__ == "__main__":
    _pack_profile(Path(sys.argv[1]))
