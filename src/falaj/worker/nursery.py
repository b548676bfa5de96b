"""The nursery: a process that has loaded the launcher already, and always has a child ready to become one at once.

An executor of this machine writes a line for each slot it wants begun, {context, slot, log, env}, and reads one when it
is claimed: empty, or what went wrong. It asks for one slot at a time, so the child that waits reads what is meant for
it and no more. Nursery and child end when the executor does; the launchers, each in a session of its own, go on.
"""

import contextlib
import json
import os
import signal
from typing import Any

from falaj.worker import cage, launch

__all__ = ["cage", "main"]  # the cage is only loaded here, so that whoever needs one need not wait


def main() -> int:
    """Serve until the pipe closes. A child leaves by returning too, as the launcher it became."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # launchers that end are nobody's zombies
    while True:
        heard, told = os.pipe()
        if os.fork() == 0:
            os.close(heard)
            line = _line()
            return _become(json.loads(line), told) if line else 0
        os.close(told)
        taken = os.read(heard, 1)
        os.close(heard)
        if not taken:
            return 0  # nobody asks any more; or our child was killed, and whoever asks next begins another nursery


def _line() -> bytes:
    """What we are asked for; nothing once nobody can ask."""
    found = b""
    while not found.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            return b""
        found += part
    return found


def _become(request: dict[str, Any], told: int) -> int:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    answer = os.dup(1)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.clear()
    os.environ.update(request["env"])

    def begun(trouble: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # whoever asked may be gone; the slot is claimed all the same
            os.write(answer, trouble.replace("\n", " ").encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):  # so may the nursery
            os.write(told, b"1")  # not before: who waits next is made while nobody waits for us
        os.close(answer)
        os.close(told)

    return launch.main([request["context"], str(request["slot"])], begun)
