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

from falaj.core.client_command import Client
from falaj.core.errors import UserCodeFailed, error_from_wire
from falaj.core.ref import Ref
from falaj.jobs.records import JobView, LogPage

OutputLines = Generator[dict[str, Any], None, None]
_POLL_INTERVAL_S = 0.5
_ERROR_TAIL_BYTES = 2000


class ChildFailed(Exception):
    """A child ended badly: how, and the last it complained of."""


def follow_child(
    command: Sequence[str], prefixes: tuple[str, ...], env: Mapping[str, str] | None = None
) -> OutputLines:
    """What a module of ours says as a child. Whoever stops listening ends it. Broken when it ends badly by itself."""
    with tempfile.TemporaryFile() as error_file:
        child = subprocess.Popen(  # noqa: S603  # nosec B603 - our own module
            [sys.executable, "-m", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=error_file,
            text=True, env=dict(os.environ if env is None else env),
        )  # fmt: skip
        with _wait_or_terminate(child):
            yield from _parse_lines(child.stdout or (), prefixes)
        if child.returncode:
            error_file.seek(max(0, error_file.seek(0, os.SEEK_END) - _ERROR_TAIL_BYTES))
            error_lines = error_file.read().decode(errors="replace").strip().splitlines()
            outcome = f"by signal {-child.returncode}" if child.returncode < 0 else f"with {child.returncode}"
            raise ChildFailed(child.returncode, f"{outcome}: {error_lines[-1] if error_lines else 'it said nothing'}")


def follow_job(client: Client, ref: Ref, prefixes: tuple[str, ...]) -> OutputLines:
    """What a job says until it is over and what it made is published."""
    attempt, cursor = 0, ""
    with client.working():
        while True:
            job: JobView = client.jobs.show(ref)
            page: LogPage = client.jobs.logs(ref, 0, attempt, cursor) if job.attempts else LogPage((), "", 0, True)
            yield from _parse_lines(page.lines, prefixes)
            attempt, cursor = attempt or page.attempt, page.next
            if page.over and job.attempts and job.attempts[-1].number > attempt:
                attempt, cursor = attempt + 1, ""
            elif job.over and page.over:
                break
            elif not page.lines:
                time.sleep(_POLL_INTERVAL_S)
    if job.state != "succeeded":
        raise UserCodeFailed(f"{ref} {job.state}: {job.note}", f"falaj jobs logs {ref}", ref)


def _parse_lines(lines: Iterable[str], prefixes: tuple[str, ...]) -> OutputLines:
    """The lines that begin as ours do; an error among them is raised here."""
    for line in lines:
        message: dict[str, Any] = {}
        with suppress(ValueError):  # the user's code may say something that looks like ours
            message = json.loads(line) if line.startswith(prefixes) else {}
        if "error" in message:
            raise error_from_wire(message["error"])
        if message:
            yield message


@contextmanager
def _wait_or_terminate(child: subprocess.Popen[str]) -> Generator[None, None, None]:
    """Wait for the end of one that is listened to; end one that is not."""
    try:
        yield
        child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
        child.communicate()
