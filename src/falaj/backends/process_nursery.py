"""Our end of the nursery (falaj.worker.nursery): one process beside us that starts launchers fast."""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import IO, Any, cast

import msgspec

from falaj.core.errors import Unavailable

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from falaj.worker.nursery import main; sys.exit(main())"
_SOURCES = str(Path(__file__).parents[2])
_PATIENCE_S = 20.0


class Nursery:
    """Started when first needed, and again when it is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = select.poll()
        self._lock = Lock()

    def begin(self, context: str, slot: int, env: Mapping[str, str], document: Mapping[str, Any]) -> None:
        """Start the launcher of a slot; on return the slot is claimed. Unavailable when that did not happen.

        Where there is a document, it is what the launcher finds in `context`, and lays down there.
        """
        log = f"{context.rpartition('/')[0]}/slot-{slot}.launcher.log"
        request = {"context": context, "slot": slot, "log": log, "env": env, "document": document}
        with self._lock:
            answer = self._ask(_line(request))
        if answer:
            raise Unavailable(f"the launcher of slot {slot} did not start: {answer}", f"see {log}")

    def close(self) -> None:
        """End it; the launchers go on."""
        process, self._process = self._process, None
        if process is not None and process.stdin and process.stdout:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            process.kill()
            process.wait()

    def _ask(self, request: bytes) -> str:
        try:
            asked, told = self._pipes()
            asked.write(request)
            line = told.readline() if self._answers.poll(1000 * _PATIENCE_S) else b""
        except OSError as error:
            self.close()
            return str(error.strerror)
        if not line:
            # It hangs or is gone: whether the slot began, its own files tell; another nursery is for the next.
            self.close()
            return "no answer"
        return line.decode(errors="replace").strip()

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


def _line(request: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(request) + b"\n"
    except UnicodeEncodeError:  # a variable of ours that is no text
        return json.dumps(request).encode() + b"\n"
