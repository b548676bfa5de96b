"""Our end of the nursery (falaj.worker.nursery): one process beside us that starts launchers fast."""

import contextlib
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple, cast

import msgspec

from falaj.core.errors import Unavailable
from falaj.core.own_environment import own_environment

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from falaj.worker.nursery import main; sys.exit(main())"
_SOURCES = str(Path(__file__).parents[2])
_PATIENCE_S = 20
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
        self._answers: socket.socket | None = None
        self._lock = Lock()

    def begin(self, births: Sequence[Birth]) -> list[str]:
        """Start launchers, one after the other. By each, nothing: its slot is claimed; or why that did not happen."""
        with self._lock:
            return self._ask([_request(birth) for birth in births])

    def close(self) -> None:
        """End it; the launchers go on."""
        process, self._process = self._process, None
        answers, self._answers = self._answers, None
        if answers is not None:
            answers.close()
        if process is not None and process.stdin:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.kill()
            process.wait()

    def _ask(self, requests: Sequence[bytes]) -> list[str]:
        """What each was answered. Others are asked for before the first has answered, as long as the pipe takes them:
        whoever sleeps between two of them finds nothing of its own in the processor's memory again."""
        answers, sent, room, trouble, heard = list[str](), 0, _ROOM, "no answer", b""
        try:
            asked, told = self._pipes()
            while len(answers) < len(requests):
                while sent < len(requests) and (len(requests[sent]) <= room or sent == len(answers)):
                    asked.write(requests[sent])
                    room -= len(requests[sent])
                    sent += 1
                # An answer is a byte at least, and most are no more: we sleep until all may be there.
                part = told.recv(sent - len(answers), socket.MSG_WAITALL)
                if not part:
                    break
                *lines, heard = (heard + part).split(b"\n")
                for line in lines:
                    room += len(requests[len(answers)])
                    answers.append(line.decode(errors="replace").strip())
        except OSError as error:
            if not isinstance(error, BlockingIOError):  # that is the end of our patience
                trouble = str(error.strerror)
        if len(answers) < len(requests):
            # It hangs or is gone: whether a slot began, its own files tell; another nursery is for the next.
            self.close()
        return answers + [trouble] * (len(requests) - len(answers))

    def _pipes(self) -> tuple[IO[bytes], socket.socket]:
        if self._process is None or self._answers is None or self._process.poll() is not None:
            self.close()
            words = [sys.executable, "-I", "-S", "-c", _BOOT, _SOURCES]
            # Of a socket, and not of a pipe, so many bytes can be waited for at once.
            self._answers, theirs = socket.socketpair()
            self._answers.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _PATIENCE_S, 0))
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603  # nosec B603 - our own interpreter with our own words
                    words,
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=theirs.fileno(),
                    env=own_environment(),
                    start_new_session=True,
                )
        return cast(IO[bytes], self._process.stdin), self._answers


def _request(birth: Birth) -> bytes:
    told = {**birth._asdict(), "log": birth.log}
    try:
        found = msgspec.json.encode(told)
    except UnicodeEncodeError:  # a variable of ours that is no text
        found = json.dumps(told).encode()
    return len(found).to_bytes(4, "big") + found
