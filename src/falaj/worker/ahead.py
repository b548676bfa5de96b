"""A child that is there before its program is known: of a launcher that waits in the nursery, the slot's first process.

To fork takes a launcher longer than all else it does before its program runs, and while nobody asks there is time.
It is told its program through a pipe; if the launcher goes away before that, it does too.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from falaj.worker import child_processes


class _Child(NamedTuple):
    pid: int
    told: int


_waiting: list[_Child] = []


def fork() -> None:
    """Have one wait from now on."""
    heard, told = os.pipe()
    launcher = os.getpid()
    if child := os.fork():
        os.close(heard)
        _waiting.append(_Child(child, told))
        return
    try:
        os.close(told)
        child_processes.initialize_child(launcher)
        if said := _all(heard):
            words, env, folder, log, cores = json.loads(said)
            child_processes.exec_program(words, env, folder, log, cores)
    finally:
        os._exit(child_processes.NOT_EXECUTABLE)  # nothing of a launcher's may go on here


def start(words: Sequence[str], env: Mapping[str, str], folder: str, log: str, cores: Iterable[int]) -> int:
    """As family.start does it, by the child that waits; 0 where none does, or it must write where we do."""
    if not log or not _waiting:
        return 0
    child = _waiting.pop()
    message = json.dumps((words, env, folder, log, tuple(cores))).encode()
    try:
        while message:
            message = message[os.write(child.told, message) :]
    except BrokenPipeError:  # somebody killed it
        return 0
    finally:
        os.close(child.told)
    return child.pid


def pids() -> list[int]:
    """Who waits."""
    return [child.pid for child in _waiting]


def dismiss() -> None:
    """Nobody is needed any more."""
    while _waiting:
        child = _waiting.pop()
        os.close(child.told)
        with contextlib.suppress(ChildProcessError):  # it was killed, and seen
            os.waitpid(child.pid, 0)


def _all(file: int) -> bytes:
    found = b""
    while part := os.read(file, 1 << 16):
        found += part
    return found
