"""The nursery: a process that has loaded the launcher already, and always has a child ready to become one at once; that
has a child too, ready to become the slot's program (worker/ahead.py), where there was time to make it.

An executor of this machine writes for each slot it wants begun how long the request is, in four bytes, and the request,
{context, slot, log, env, document}; it reads a line when that is claimed: empty, or what went wrong. The first launcher
of an attempt is given the document, and lays it down for the others and for whoever looks later. Several may be asked
for before the first has answered: the child that waits reads what is meant for it and no more, and the next is made
after it. Nursery and child end when the executor does; the launchers, each in a session of its own, go on.
"""

import contextlib
import gc
import json
import os
import select
import signal
from typing import Any

from falaj.worker import ahead, cage, launch

__all__ = ["cage", "main"]  # the cage is only loaded here, so that whoever needs one need not wait
_STAND_BACK_MS = 5
_SAMPLE = """{"attempt": "a-1", "job": "job:p/a", "project": "p", "tenant": "t", "framework": "plain", "command": ["a"],
    "slots": [{"index": 0, "node": "n", "role": "worker", "processes": 1, "devices": [], "milli": 1000, "cpus": 100}],
    "folder": "/", "code": "/code", "env": {}, "inputs": {}, "outputs": {}, "checkpoints": "/kept", "outbox": "/outbox",
    "grace_s": 30, "limit_s": 0, "cage": {}, "rendezvous": {"host": "127.0.0.1", "port": 0}}"""


def main() -> int:
    """Serve until the pipe closes. A child returns where nobody asked it for anything."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # launchers that end are nobody's zombies
    gc.freeze()  # what is loaded stays, and a child that looked through it would copy all of it
    asked = select.poll()
    asked.register(0, select.POLLIN)
    while True:
        heard, told = os.pipe()
        if os.fork() == 0:
            os.close(heard)
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if not asked.poll(0):
                ahead.fork()
                _rehearse()
            request = _exactly(int.from_bytes(_exactly(4), "big"))
            if request:
                # Taking a Python apart page by page costs more than all a launcher does; the kernel closes its files.
                os._exit(_become(json.loads(request), told))
            return 0
        os.close(told)
        taken = os.read(heard, 1)
        os.close(heard)
        if not taken:
            return 0  # nobody asks any more; or our child was killed, and whoever asks next begins another nursery
        asked.poll(_STAND_BACK_MS)  # while nobody asks for the next, we would only slow down the one that begins


def _rehearse() -> None:
    """Do once, and without effect, what launchers do: the kernel copies a page of memory for a new process when that
    first touches it, and may as well do so while nobody waits."""
    launch.rehearse(_SAMPLE)


def _exactly(size: int) -> bytes:
    """So many bytes of what is asked for; nothing once nobody can ask."""
    found = b""
    while len(found) < size:
        part = os.read(0, size - len(found))
        if not part:
            return b""
        found += part
    return found


def _become(request: dict[str, Any], told: int) -> int:
    answer = os.dup(1)

    def begun(trouble: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # whoever asked may be gone; the slot is claimed all the same
            os.write(answer, trouble.replace("\n", " ").encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):  # so may the nursery
            os.write(told, b"1")  # not before: who waits next is made while nobody waits for us
        os.close(answer)
        os.close(told)

    try:
        ours = _lay(request["context"], request.get("document") or {})
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        begun(str(error))
        return launch.TRY_AGAIN
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.clear()
    os.environ.update(request["env"])
    return launch.main([request["context"], str(request["slot"])], begun, ours)


def _lay(path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Put a document where the others will find it, whole or not at all; nothing where one lies there already."""
    if not document:
        return {}
    with contextlib.suppress(FileExistsError):
        os.mkdir(path.rpartition("/")[0], 0o700)  # noqa: PTH102 - pathlib takes longer, for every attempt
    draft = launch.drafted(path, document, os.O_EXCL)
    try:
        os.link(draft, path)
    except FileExistsError:
        document = {}
    except OSError:  # this disk knows no links: then the last one counts
        os.rename(draft, path)  # noqa: PTH104
        return document
    os.unlink(draft)  # noqa: PTH108
    return document
