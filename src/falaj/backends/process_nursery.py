"""Our end of the nursery (falaj.worker.nursery): one process beside us that starts launchers fast."""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple, cast

import msgspec

from falaj.core.errors import Unavailable

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from falaj.worker.nursery import main; sys.exit(main())"
_SOURCES = str(Path(__file__).parents[2])
_PATIENCE_S = 20.0
_ROOM = 48 << 10
"""So many bytes of requests we let lie in the pipe, which takes a little more: nobody waits to be read."""


class Birth(NamedTuple):
    """A launcher that is wanted. Where there is a document, it is what the launcher finds in `context`, and lays down
    there."""

    context: str
    slot: int
    env: Mapping[str, str]
    document: Mapping[str, Any]

    @property
    def log(self) -> str:
        """Where the launcher itself writes."""
        return f"{self.context.rpartition('/')[0]}/slot-{self.slot}.launcher.log"

    def failed(self, why: str) -> Unavailable:
        """It did not happen."""
        return Unavailable(f"the launcher of slot {self.slot} did not start: {why}", f"see {self.log}")


class Nursery:
    """Started when first needed, and again when it is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = select.poll()
        self._lock = Lock()

    def begin(self, births: Sequence[Birth]) -> list[str]:
        """Start launchers, one after the other. By each, nothing: its slot is claimed; or why that did not happen."""
        with self._lock:
            return self._ask([_request(birth) for birth in births])

    def close(self) -> None:
        """End it; the launchers go on."""
        process, self._process = self._process, None
        if process is not None and process.stdin and process.stdout:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            process.kill()
            process.wait()

    def _ask(self, requests: Sequence[bytes]) -> list[str]:
        """What each was answered. Others are asked for before the first has answered, as long as the pipe takes them:
        whoever sleeps between two of them finds nothing of its own in the processor's memory again."""
        answers, sent, room, trouble = list[str](), 0, _ROOM, "no answer"
        try:
            asked, told = self._pipes()
            while len(answers) < len(requests):
                while sent < len(requests) and (len(requests[sent]) <= room or sent == len(answers)):
                    asked.write(requests[sent])
                    room -= len(requests[sent])
                    sent += 1
                line = told.readline() if self._answers.poll(1000 * _PATIENCE_S) else b""
                if not line:
                    break
                room += len(requests[len(answers)])
                answers.append(line.decode(errors="replace").strip())
        except OSError as error:
            trouble = str(error.strerror)
        if len(answers) < len(requests):
            # It hangs or is gone: whether a slot began, its own files tell; another nursery is for the next.
            self.close()
        return answers + [trouble] * (len(requests) - len(answers))

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            words = [sys.executable, "-I", "-S", "-c", _BOOT, _SOURCES]
            bare = {"PATH": os.environ.get("PATH", os.defpath)}
            self._process = subprocess.Popen(  # noqa: S603  # nosec B603 - our own interpreter with our own words
                words, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=bare, start_new_session=True
            )
            self._answers = select.poll()  # select() knows no file beyond the first 1,024; a busy platform has more
            self._answers.register(cast(IO[bytes], self._process.stdout), select.POLLIN)
        return cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)


def _request(birth: Birth) -> bytes:
    told = {**birth._asdict(), "log": birth.log}
    try:
        found = msgspec.json.encode(told)
    except UnicodeEncodeError:  # a variable of ours that is no text
        found = json.dumps(told).encode()
    return len(found).to_bytes(4, "big") + found
