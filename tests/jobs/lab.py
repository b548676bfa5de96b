"""A laptop with jobs on it: an embedded platform, scripts, and the loop running while `working`."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import falaj
from falaj.jobs.records import JobView

PATIENCE_S = 100.0


class Lab:
    """`lab.run("print(1)")` submits a script; `lab.until(...)` waits for what the loop will do."""

    def __init__(self, home: Path, here: Any = None) -> None:
        self.home = home
        self.here = here or falaj.connect(str(home / "house"))

    def script(self, text: str, name: str = "train") -> str:
        """A program in a folder of its own."""
        folder = self.home / f"code-{name}"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
        return str(folder / f"{name}.py")

    def submit(self, text: str, name: str = "train", **more: Any) -> JobView:
        """A job of a script."""
        more.setdefault("cpus", 0.1)
        more.setdefault("memory", "100MiB")
        job: JobView = self.here.jobs.submit(self.script(text, name), name=name, **more)
        return job

    def done(self, *jobs: JobView) -> JobView:
        """The last of these jobs, once all are over."""
        found: tuple[JobView, ...] = self.here.jobs.wait(tuple(job.ref for job in jobs), timeout_s=PATIENCE_S)
        assert all(job.over for job in found), found
        return found[-1]

    def show(self, job: JobView) -> JobView:
        """A job as it stands now."""
        shown: JobView = self.here.jobs.show(job.ref)
        return shown

    def until(self, job: JobView, holds: Callable[[JobView], bool]) -> JobView:
        """The job, once this holds of it."""
        return until(lambda: self.show(job), holds)

    def lines(self, job: JobView, **more: Any) -> tuple[str, ...]:
        """What it wrote."""
        found: tuple[str, ...] = self.here.jobs.logs(job.ref, **more).lines
        return found

    def one_node(self, **more: int) -> None:
        """Imitate one small node instead of this machine."""
        words = "&".join(
            f"{name}={value}" for name, value in {"nodes": 1, "cpus": 1000, "memory": 1024, **more}.items()
        )
        self.here.clusters.change("local", {"address": f"process:?{words}"})


def until(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """What `look` gives, once it is as it should be."""
    end = time.monotonic() + PATIENCE_S
    while not holds(found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"it never came to be: {found}")
        time.sleep(0.02)
    return found


PYTHON = sys.executable
