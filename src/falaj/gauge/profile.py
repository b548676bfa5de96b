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

from falaj.core.errors import Corrupt, Invalid, NotFound
from falaj.gauge.trace import PHASE, WAITED, summarize

_TRACE, _FACTS, _SUMMARY, _ASK = "trace.json", "facts.json", "summary.json", "ask.json"
_LEAD = 3  # one step that waits, one that warms up, and the one at whose end we begin
_MOST_SLOW = 2
_NEVER = 1 << 62
_CLOSE_S = 10.0


def summary(folder: Path) -> dict[str, Any]:
    """The newest profile in a folder (or the one that it is): facts about the run, and where the time went."""
    places = [folder, *sorted(folder.glob("*"), key=lambda place: place.stat().st_mtime, reverse=True)]
    place = next((one for one in places if (one / _FACTS).is_file()), None)
    if place is None:
        raise NotFound(f"there is no profile in {folder.name}", "start the run with FALAJ_PROFILE, or ask for one")
    try:
        if (place / _SUMMARY).is_file():
            return dict(json.loads((place / _SUMMARY).read_bytes()))
        plain = place / _TRACE  # stays until the packed one is whole
        packed = place / f"{_TRACE}.gz"
        text = plain.read_bytes() if plain.exists() else gzip.decompress(packed.read_bytes())
        return {"facts": json.loads((place / _FACTS).read_bytes()), **summarize(json.loads(text)["traceEvents"])}
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"the profile {place.name} cannot be read: {error}", "take another one") from error


class Capture:
    """Takes the profiles of one process. `facts` is asked for what is known of the run when one is done."""

    def __init__(self, folder: Path | None, device: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        said = _said(os.environ.get("FALAJ_PROFILE", ""))
        self._folder = Path(said["folder"]) if "folder" in said else folder
        self._device, self._facts = device, facts
        self._at = int(said.get("first", _LEAD)) - _LEAD if said else _NEVER
        self._steps = int(said.get("steps", 3))
        self._slow = _MOST_SLOW
        self._took = False
        self._running: Any = None
        self._place: Path | None = None
        self._children: list[subprocess.Popen[bytes]] = []

    def stepped(self, number: int) -> None:
        """A step ends."""
        if self._running is None and (number < self._at or self._folder is None):
            return
        try:
            if self._running is None:
                self._begin(Path(self._folder or ""), number)
            else:
                self._running.step()
                if self._place is not None:
                    self._finish(self._place)
        except (OSError, RuntimeError) as error:
            # A full disk, or a profiler of the script's own: no reason to end a training.
            self._running = self._folder = None
            os.write(2, f"falaj: no profile: {error}\n".encode())

    def took(self) -> bool:
        """Whether some steps were profiled since this was asked last: they are slower than others."""
        took, self._took = self._took, self._running is not None
        return took

    def waited(self, seconds: float) -> None:
        """Leave a mark in the trace that a wait ends here."""
        if self._running is not None:
            with _mark(f"{WAITED}{seconds * 1e6:.0f}"):
                pass

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A phase, as the trace knows it."""
        return _mark(f"{PHASE}{name}") if self._running is not None else contextlib.nullcontext()

    def slow(self) -> bool:
        """Steps have become slow: take a profile, though not a third time."""
        willing = self._slow > 0 and self._running is None and self._folder is not None
        if willing:
            self._slow, self._at = self._slow - 1, 0
        return willing

    def tick(self, now: float) -> None:
        """Look whether somebody asks, beside the loop."""
        del now
        asked = self._folder / _ASK if self._folder else None
        with contextlib.suppress(OSError, ValueError, Invalid):
            if asked and asked.is_file():
                self._steps = int(_said(asked.read_text()).get("steps", 3))
                asked.unlink()
                self._at = 0

    def close(self) -> None:
        """Nothing more is taken. What was is read to its end, if that is soon: else by whoever looks at it."""
        if self._running is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._running.stop()
            self._running = None
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_CLOSE_S)

    def _begin(self, folder: Path, number: int) -> None:
        from torch import profiler

        place = folder / f"step-{number + _LEAD}"

        def ready(running: Any) -> None:
            shutil.rmtree(place, ignore_errors=True)  # an earlier attempt's
            place.mkdir(parents=True)
            running.export_chrome_trace(str(place / _TRACE))
            self._place = place

        device = [profiler.ProfilerActivity.CUDA] if self._device.startswith("cuda") else []
        self._at, self._took = _NEVER, True
        self._running = profiler.profile(
            activities=[profiler.ProfilerActivity.CPU, *device],
            schedule=profiler.schedule(wait=1, warmup=1, active=self._steps, repeat=1),
            on_trace_ready=ready,
            record_shapes=True,
            profile_memory=True,
            acc_events=True,  # there is one cycle; else torch warns that there might be more
        )
        self._running.start()

    def _finish(self, place: Path) -> None:
        self._running.stop()
        self._running = self._place = None
        (place / _FACTS).write_text(json.dumps(self._facts()))
        command = [sys.executable, "-m", "falaj.gauge.profile", str(place)]
        paths = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._children.append(subprocess.Popen(command, env=paths))  # noqa: S603  # nosec B603 - our own module


def _mark(name: str) -> contextlib.AbstractContextManager[Any]:
    from torch.profiler import record_function

    return record_function(name)


def _said(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text or "{}")
    except ValueError:
        said = None
    if not isinstance(said, dict) or any(not isinstance(said.get(name, 3), int) for name in ("first", "steps")):
        raise Invalid(f"{text[:60]!r} asks for no profile", 'for example {"first": 20, "steps": 3}')
    return said


def _pack(place: Path) -> None:
    """What the process of its own does."""
    os.nice(10)
    made = summary(place)
    with (place / _TRACE).open("rb") as file, gzip.open(place / f"{_TRACE}.gz", "wb", compresslevel=4) as packed:
        shutil.copyfileobj(file, packed)
    (place / f"{_SUMMARY}.new").write_text(json.dumps(made))
    (place / f"{_SUMMARY}.new").rename(place / _SUMMARY)
    (place / _TRACE).unlink()


if __name__ == "__main__":
    _pack(Path(sys.argv[1]))
