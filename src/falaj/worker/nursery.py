"""The nursery: a process that has loaded the launcher already and becomes one by forking, in a millisecond or two.

An executor of this machine writes a line for each slot it wants begun, {context, slot, log, env}, and reads one when it
is claimed: empty, or what went wrong. The nursery ends when its executor does; the launchers, each in a session of
its own, go on.
"""

import contextlib
import json
import os
import signal
import sys
from typing import Any

from falaj.worker import cage, launch

__all__ = ["cage", "main"]  # the cage is only loaded here, so that whoever needs one need not wait


def main() -> int:
    """Serve until the pipe closes. A child leaves by returning too, as the launcher it became."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # launchers that end are nobody's zombies
    for line in sys.stdin.buffer:
        if os.fork() == 0:
            return _become(json.loads(line))
    return 0


def _become(request: dict[str, Any]) -> int:
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
        os.close(answer)

    return launch.main([request["context"], str(request["slot"])], begun)
