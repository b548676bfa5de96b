"""What a command of ours says, line by line as JSON, whether it runs as a child beside the caller or as a job."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from falaj.core.errand import Here
from falaj.core.errors import UserCodeFailed, from_wire
from falaj.core.ref import Ref
from falaj.jobs.records import JobView, LogPage

Lines = Generator[dict[str, Any], None, None]
_LOOK_S = 0.5
_TAIL_BYTES = 2000


class Broken(Exception):
    """A child ended badly: how, and the last it complained of."""


def said_by_child(command: Sequence[str], ours: tuple[str, ...], env: Mapping[str, str] | None = None) -> Lines:
    """What a module of ours says as a child. Whoever stops listening ends it. Broken when it ends badly by itself."""
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(  # noqa: S603  # nosec B603 - our own module
            [sys.executable, "-m", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints,
            text=True, env=dict(os.environ if env is None else env),
        )  # fmt: skip
        with _ended(child):
            yield from _understood(child.stdout or (), ours)
        if child.returncode:
            complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - _TAIL_BYTES))
            words = complaints.read().decode(errors="replace").strip().splitlines()
            how = f"by signal {-child.returncode}" if child.returncode < 0 else f"with {child.returncode}"
            raise Broken(child.returncode, f"{how}: {words[-1] if words else 'it said nothing'}")


def said_by_job(here: Here, ref: Ref, ours: tuple[str, ...]) -> Lines:
    """What a job says until it is over and what it made is published."""
    attempt, cursor = 0, ""
    with here.working():
        while True:
            job: JobView = here.jobs.show(ref)
            page: LogPage = here.jobs.logs(ref, 0, attempt, cursor) if job.attempts else LogPage((), "", 0, True)
            yield from _understood(page.lines, ours)
            attempt, cursor = attempt or page.attempt, page.next
            if page.over and job.attempts and job.attempts[-1].number > attempt:
                attempt, cursor = attempt + 1, ""
            elif job.over and page.over:
                break
            elif not page.lines:
                time.sleep(_LOOK_S)
    if job.state != "succeeded":
        raise UserCodeFailed(f"{ref} {job.state}: {job.note}", f"falaj jobs logs {ref}", ref)


def _understood(lines: Iterable[str], ours: tuple[str, ...]) -> Lines:
    """The lines that begin as ours do; an error among them is raised here."""
    for line in lines:
        known: dict[str, Any] = {}
        with suppress(ValueError):  # the user's code may say something that looks like ours
            known = json.loads(line) if line.startswith(ours) else {}
        if "error" in known:
            raise from_wire(known["error"])
        if known:
            yield known


@contextmanager
def _ended(child: subprocess.Popen[str]) -> Generator[None, None, None]:
    """Wait for the end of one that is listened to; end one that is not."""
    try:
        yield
        child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
        child.communicate()
