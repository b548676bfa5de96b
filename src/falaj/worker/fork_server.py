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

from falaj.worker import ahead, launcher, sandbox

__all__ = ["main", "sandbox"]  # the cage is only loaded here, so that whoever needs one need not wait
_IDLE_FORK_DELAY_MS = 5
_SAMPLE_DOCUMENT = """{"attempt": "a-1", "job": "job:p/a", "project": "p", "tenant": "t", "framework": "plain",
    "command": ["a"],
    "slots": [{"index": 0, "node": "n", "role": "worker", "processes": 1, "devices": [], "milli": 1000, "cpus": 100}],
    "folder": "/", "code": "/code", "env": {}, "inputs": {}, "outputs": {}, "checkpoints": "/kept", "outbox": "/outbox",
    "grace_s": 30, "limit_s": 0, "cage": {}, "rendezvous": {"host": "127.0.0.1", "port": 0}}"""


def main() -> int:
    """Serve until the pipe closes. A child returns where nobody asked it for anything."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # launchers that end are nobody's zombies
    gc.freeze()  # what is loaded stays, and a child that looked through it would copy all of it
    request_poll = select.poll()
    request_poll.register(0, select.POLLIN)
    while True:
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            os.close(read_end)
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if not request_poll.poll(0):
                ahead.fork()
                _warm_up()
            request = _read_exactly(int.from_bytes(_read_exactly(4), "big"))
            if request:
                # Taking a Python apart page by page costs more than all a launcher does; the kernel closes its files.
                os._exit(_run_request(json.loads(request), write_end))
            return 0
        os.close(write_end)
        claim_byte = os.read(read_end, 1)
        os.close(read_end)
        if not claim_byte:
            return 0  # nobody asks any more; or our child was killed, and whoever asks next begins another nursery
        request_poll.poll(
            _IDLE_FORK_DELAY_MS
        )  # while nobody asks for the next, we would only slow down the one that begins


def _warm_up() -> None:
    """Do once, and without effect, what launchers do: the kernel copies a page of memory for a new process when that
    first touches it, and may as well do so while nobody waits."""
    launcher.warm_up_launcher(_SAMPLE_DOCUMENT)


def _read_exactly(size: int) -> bytes:
    """So many bytes of what is asked for; nothing once nobody can ask."""
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


def _run_request(request: dict[str, Any], claimed_fd: int) -> int:
    reply_fd = os.dup(1)

    def report_start(error_text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # whoever asked may be gone; the slot is claimed all the same
            os.write(reply_fd, error_text.replace("\n", " ").encode() + b"\n")
        with contextlib.suppress(BrokenPipeError):  # so may the nursery
            os.write(claimed_fd, b"1")  # not before: who waits next is made while nobody waits for us
        os.close(reply_fd)
        os.close(claimed_fd)

    try:
        document = _publish_document(request["context"], request.get("document") or {})
        log_fd = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        report_start(str(error))
        return launcher.EXIT_TRY_AGAIN
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream_fd in (1, 2):
        os.dup2(log_fd, stream_fd)
    os.environ.clear()
    os.environ.update(request["env"])
    return launcher.main([request["context"], str(request["slot"])], report_start, document)


def _publish_document(path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Put a document where the others will find it, whole or not at all; nothing where one lies there already."""
    if not document:
        return {}
    with contextlib.suppress(FileExistsError):
        os.mkdir(path.rpartition("/")[0], 0o700)  # noqa: PTH102 - pathlib takes longer, for every attempt
    draft_path = launcher.write_draft(path, document, os.O_EXCL)
    try:
        os.link(draft_path, path)
    except FileExistsError:
        document = {}
    except OSError:  # this disk knows no links: then the last one counts
        os.rename(draft_path, path)  # noqa: PTH104
        return document
    os.unlink(draft_path)  # noqa: PTH108
    return document
