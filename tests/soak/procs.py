"""Processes by what they are, from /proc: whose memory is followed, which may be killed, which should be gone."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

INSIDE = "SOAK_INSIDE"
"""Set where every process we see is one of ours."""


class Proc(NamedTuple):
    """A process that is alive."""

    pid: int
    parent: int
    words: str
    state: str

    def __str__(self) -> str:
        return f"{self.pid} {self.state} of {self.parent} {self.words[:200]}"


def alive() -> Iterator[Proc]:
    """Every process we see; those that ended and were not waited for, too (state Z)."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                yield Proc(int(folder.name), int(fields[1]), words, fields[0])


def below(root: int) -> list[Proc]:
    """A process's children, their children, and so on."""
    children: dict[int, list[Proc]] = {}
    for proc in alive():
        children.setdefault(proc.parent, []).append(proc)
    found, rest = list[Proc](), [root]
    while rest:
        more = children.get(rest.pop(), [])
        found += more
        rest += [one.pid for one in more]
    return found


def ours() -> list[Proc]:
    """All that was started here, with what nobody waits for any more where we have a namespace of our own."""
    if os.environ.get(INSIDE):
        return [one for one in alive() if one.pid not in (1, os.getpid())]
    return below(os.getpid())


def of_attempts(home: Path, job: str = "") -> list[int]:
    """Processes of attempts of this house; of jobs with a name like this."""
    return [proc.pid for proc in alive() if _job_of(proc.pid, home) and re.search(job, _job_of(proc.pid, home))]


def nurseries(pids: list[int]) -> list[int]:
    """The processes of these platforms that start attempts for them."""
    return [proc.pid for proc in alive() if proc.parent in pids and "nursery" in proc.words]


def find_idle_launchers(nursery_pids: list[int]) -> list[int]:
    """Processes that running nurseries keep ready for the next slot: a launcher without a request, and its first child.

    Launchers of attempts are children of a nursery with the same command line, but they have given up its request pipe.
    """
    processes = list(alive())
    request_pipes = {pid: _read_stdin_path(pid) for pid in nursery_pids}
    launchers = [
        process.pid
        for process in processes
        if request_pipes.get(process.parent, "").startswith("pipe:")
        and _read_stdin_path(process.pid) == request_pipes[process.parent]
    ]
    return launchers + [process.pid for process in processes if process.parent in launchers]


def _read_stdin_path(pid: int) -> str:
    """The target of the process's standard input, for example "pipe:[4711]"; empty when the process has ended."""
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/fd/0").readlink())
    return ""


def gateways(pids: list[int]) -> list[int]:
    """The gateways of these platforms."""
    return [proc.pid for proc in alive() if proc.parent in pids and " gateway" in proc.words]


def _job_of(pid: int, home: Path) -> str:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        known = dict(one.partition("=")[::2] for one in text.split("\0"))
        if known.get("FALAJ_OUTBOX", "").startswith(str(home)):
            return known.get("FALAJ_JOB", "")
    return ""


class Gauge(NamedTuple):
    """What a process holds."""

    memory_mib: float
    files: int
    threads: int


def gauge(pid: int) -> Gauge | None:
    """Memory that is its own or its share (files of the disk in memory are not counted), files, threads."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        known = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (OSError, IndexError, ValueError):
        return None
    return Gauge((known["Pss:"] - known.get("Pss_Shmem:", 0)) / 1024, files, threads)
