"""An attempt's folder on this machine, as an executor reads and writes it (falaj.worker.launcher says which files).

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

from falaj.core.executor import FAILED, LOST, RUNNING, SUCCEEDED, WAITING
from falaj.core.outbox import read_untrusted_file

_MAX_JSON_BYTES = 16 << 20
_decode_json = json.JSONDecoder().decode


class SlotState(NamedTuple):
    """A slot as its files tell."""

    phase: str
    code: int = 0
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    pid: int = 0


def read_slot_state(folder: str, slot: int) -> SlotState:
    """One slot by its files: `waiting` before its launcher claimed it, `lost` when that is gone without a word."""
    path_prefix = f"{folder}/slot-{slot}"
    pid_facts: dict[str, Any] = {}
    is_locked = False
    if not (exit_facts := read_json_object(f"{path_prefix}.exit")):
        pid_facts = read_json_object(f"{path_prefix}.pid")
        is_locked = bool(pid_facts) and _is_locked(f"{path_prefix}.lock")
        # Asked again, and last: it may have ended while we looked.
        exit_facts = read_json_object(f"{path_prefix}.exit") if pid_facts and not is_locked else {}
    try:
        if exit_facts:
            exit_code, start_and_end = (
                int(exit_facts["code"]),
                (float(exit_facts["started"]), float(exit_facts["ended"])),
            )
            return SlotState(FAILED if exit_code else SUCCEEDED, exit_code, str(exit_facts["reason"]), *start_and_end)
        if is_locked:
            return SlotState(RUNNING, started=float(pid_facts["at"]), pid=int(pid_facts["pid"]))
        return SlotState(LOST, 137, "its launcher is gone", float(pid_facts["at"])) if pid_facts else SlotState(WAITING)
    except (KeyError, TypeError, ValueError):
        return SlotState(LOST, 137, "the files of its launcher make no sense")


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Alone, until we leave or die."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_locked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        finally:
            os.close(fd)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def send_signal(pid: int, signal_number: int) -> None:
    """Signal a process; one that is gone is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)


class AttemptFiles(NamedTuple):
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


def find_attempt_files(entry: str, cached: AttemptFiles | None) -> AttemptFiles | None:
    """The attempt that lies here, `cached` where nothing moved; None where there is none."""
    try:
        file_status = os.stat(f"{entry}/context.json")  # noqa: PTH116 - for every attempt at every look
    except OSError:
        return None
    context_stamp = file_status.st_ino, file_status.st_mtime_ns, file_status.st_size
    if cached is not None and cached.moved in ((), context_stamp):
        return cached._replace(moved=context_stamp) if not cached.moved else cached
    folder = os.path.realpath(entry)
    return make_attempt_files(folder, context_stamp, read_context(folder))


def make_attempt_files(folder: str, context_stamp: tuple[int, ...], document: Mapping[str, Any]) -> AttemptFiles:
    """The attempt of which its context tells so much."""
    outbox_folder = str(document.get("outbox") or f"{folder}/outbox")
    grace_s, is_own_folder = to_number(document.get("grace_s"), 30.0), bool(document.get("own"))
    return AttemptFiles(folder, context_stamp, tuple(_list_slot_nodes(document)), outbox_folder, grace_s, is_own_folder)


def read_slot_nodes(folder: str) -> list[str]:
    """The node of every slot of the attempt."""
    return _list_slot_nodes(read_context(folder))


def _list_slot_nodes(document: Mapping[str, Any]) -> list[str]:
    slots = document.get("slots")
    return [str(slot.get("node")) for slot in slots if isinstance(slot, dict)] if isinstance(slots, list) else []


def to_number(value: object, default: float) -> float:
    """A number that somebody wrote, or another where it is none."""
    return float(value) if isinstance(value, int | float) else default


def read_context(folder: str) -> dict[str, Any]:
    """The document its launchers were given."""
    return read_json_object(f"{folder}/context.json")


def read_json_object(path: str | Path) -> dict[str, Any]:
    """An object from a file; an empty one when there is none."""
    data = read_untrusted_file(path, 0, _MAX_JSON_BYTES)
    if not data:
        return {}
    try:
        value = _decode_json(
            data.decode("utf-8", "surrogatepass")
        )  # what `loads` does, without asking which code it is
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_atomically(path: str | Path, data: bytes) -> None:
    """Whole or not at all, for whoever reads meanwhile."""
    draft_path = f"{path}.{os.getpid()}.{time.monotonic_ns()}"
    fd = os.open(draft_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
    os.replace(draft_path, path)  # noqa: PTH105 - pathlib takes as long as the kernel, for every attempt
