"""One turn of a fuzzer: so many inputs for one target, each within its time, the process within its memory."""

import resource
import signal
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from falaj.core.errors import FalajError
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import Target

ONE_S = 2.0
"""Of processor time, for at most 64 KiB of input: what takes longer can stop a server."""
ROOM_BYTES = 1 << 30
"""More than this on top of what the process holds is a bomb."""


class TooSlow(BaseException):
    """An input that keeps its reader busy; no reader catches it."""


def complaint(target: Target, data: bytes) -> str:
    """What is wrong with how a target takes these bytes; nothing, when it is well."""
    try:
        with _bounded():
            target.read(data)
    except FalajError:
        return ""
    except TooSlow:
        return f"takes more than {ONE_S:g} s"
    except BaseException as error:  # whatever it is, it is the finding
        if isinstance(error, KeyboardInterrupt):
            raise
        # One complaint a place: messages name positions, and every position would be another.
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {Path(last.filename).name}, {last.name}"
    return ""


def turn(target: Target, first: int, count: int, until: float = 0.0) -> tuple[int, dict[str, bytes]]:
    """How many inputs were tried from this number on, and the shortest input for each complaint."""
    found: dict[str, bytes] = {}
    number = first
    for number in range(first, first + count):
        if until and time.monotonic() > until:
            break
        data = mutated(target.seeds, number)
        if said := complaint(target, data):
            found[said] = min(found.get(said, data), data, key=len)
    return number - first + 1, found


def bound_memory() -> None:
    """Hold this process to a gigabyte more than it has mapped now."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


@contextmanager
def _bounded() -> Iterator[None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, ONE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
