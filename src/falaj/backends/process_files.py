"""An attempt's folder on this machine, as an executor reads and writes it (falaj.worker.launch says which files).

The attempt's own processes may write there too, so nothing that is read is trusted to have a shape.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from falaj.core.execute import FAILED, LOST, RUNNING, SUCCEEDED, WAITING
from falaj.core.outbox import read_file

_MOST_BYTES = 16 << 20
_decode = json.JSONDecoder().decode


class Seen(NamedTuple):
    """A slot as its files tell."""

    phase: str
    code: int = 0
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    pid: int = 0


def look(folder: str, slot: int) -> Seen:
    """One slot by its files: `waiting` before its launcher claimed it, `lost` when that is gone without a word."""
    name = f"{folder}/slot-{slot}"
    who: dict[str, Any] = {}
    held = False
    if not (how := read_json(f"{name}.exit")):
        who = read_json(f"{name}.pid")
        held = bool(who) and _is_held(f"{name}.lock")
        # Asked again, and last: it may have ended while we looked.
        how = read_json(f"{name}.exit") if who and not held else {}
    try:
        if how:
            code, times = int(how["code"]), (float(how["started"]), float(how["ended"]))
            return Seen(FAILED if code else SUCCEEDED, code, str(how["reason"]), *times)
        if held:
            return Seen(RUNNING, started=float(who["at"]), pid=int(who["pid"]))
        return Seen(LOST, 137, "its launcher is gone", float(who["at"])) if who else Seen(WAITING)
    except (KeyError, TypeError, ValueError):
        return Seen(LOST, 137, "the files of its launcher make no sense")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone, until we leave or die."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_held(path: str) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(file)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def kill(pid: int, number: int) -> None:
    """Signal a process; one that is gone is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Known(NamedTuple):
    """An attempt's folder with what its context says; that is written once, so it is read again only when it moved."""

    folder: str
    moved: tuple[int, ...]
    """When, as its file says; nothing before anybody looked at that."""
    nodes: tuple[str, ...]
    """The node of every slot."""
    outbox: str
    grace_s: float
    own: bool
    """Whether the folder is the executor's."""


def known(entry: str, last: Known | None) -> Known | None:
    """The attempt that lies here, `last` where nothing moved; None where there is none."""
    try:
        found = os.stat(f"{entry}/context.json")  # noqa: PTH116 - for every attempt at every look
    except OSError:
        return None
    moved = found.st_ino, found.st_mtime_ns, found.st_size
    if last is not None and last.moved in ((), moved):
        return last._replace(moved=moved) if not last.moved else last
    folder = os.path.realpath(entry)
    return known_by(folder, moved, context_of(folder))


def known_by(folder: str, moved: tuple[int, ...], told: Mapping[str, Any]) -> Known:
    """The attempt of which its context tells so much."""
    outbox = str(told.get("outbox") or f"{folder}/outbox")
    grace_s, own = number(told.get("grace_s"), 30.0), bool(told.get("own"))
    return Known(folder, moved, tuple(_nodes(told)), outbox, grace_s, own)


def nodes_of(folder: str) -> list[str]:
    """The node of every slot of the attempt."""
    return _nodes(context_of(folder))


def _nodes(told: Mapping[str, Any]) -> list[str]:
    slots = told.get("slots")
    return [str(slot.get("node")) for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []


def number(value: object, otherwise: float) -> float:
    """A number that somebody wrote, or another where it is none."""
    return float(value) if isinstance(value, int | float) else otherwise


def context_of(folder: str) -> dict[str, Any]:
    """The document its launchers were given."""
    return read_json(f"{folder}/context.json")


def read_json(path: str | Path) -> dict[str, Any]:
    """An object from a file; an empty one when there is none."""
    data = read_file(path, 0, _MOST_BYTES)
    if not data:
        return {}
    try:
        found = _decode(data.decode("utf-8", "surrogatepass"))  # what `loads` does, without asking which code it is
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path: str | Path, data: bytes) -> None:
    """Whole or not at all, for whoever reads meanwhile."""
    draft = f"{path}.{os.getpid()}.{time.monotonic_ns()}"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)
    os.replace(draft, path)  # noqa: PTH105 - pathlib takes as long as the kernel, for every attempt
