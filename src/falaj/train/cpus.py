"""Cores and threads of a process that trains on CPUs: physical cores, of one node, each rank its own.

Torch's own default takes every hyper-thread it sees and knows nothing of the other ranks of a node or of a container's
share of time: four ranks on eight cores then fight with 64 threads.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from falaj.train.options import Options

_SYSTEM, _CGROUP = Path("/sys/devices/system"), Path("/sys/fs/cgroup")
_BOUND = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_CPU_BIND", "OMP_PLACES", "OMP_PROC_BIND",
          "GOMP_CPU_AFFINITY", "KMP_AFFINITY")  # fmt: skip
"""Whoever says one of these has given every rank its cores already."""
_BF16 = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
_MOST_INTEROP = 2


class Cores(NamedTuple):
    """What a process may use: all its hyper-threads, and one of each physical core, those of a node side by side."""

    every: tuple[int, ...]
    physical: tuple[int, ...]


class Applied(NamedTuple):
    """What was set."""

    threads: int
    interop: int
    cores: tuple[int, ...]
    """The cores this process keeps to; none when it was left where it is."""


def apply(options: Options, local_rank: int = 0, local_world: int = 1) -> Applied:
    """Set threads and cores of this process, one of `local_world` on its node. Call it before torch computes."""
    import torch

    every = look()
    alone = local_world <= 1 or any(name in os.environ for name in _BOUND)
    mine = every if alone else part(every, local_rank, local_world)
    # A number that is none of torch's defaults was set by the script.
    now = torch.get_num_threads()
    said = asked() or (now if now not in (len(every.every), len(every.physical)) else 0)
    threads = options.threads or said or fair(mine, quota() / (1 if alone else local_world))
    pinned = mine.every if mine is not every and _keep_to(mine.every) else ()
    if threads != now or options.reproducible == "strict":
        # Whoever says a number, be it the same, takes from MKL the choice to use fewer threads for small products.
        torch.set_num_threads(threads)
    with contextlib.suppress(RuntimeError):  # only before the first parallel work
        torch.set_num_interop_threads(min(_MOST_INTEROP, threads))
    if options.reproducible != "strict":
        # Numbers too small to matter cost a hundred times the others; but who flushes them is a thread's own business,
        # so bits would depend on the threads.
        torch.set_flush_denormal(True)
    return Applied(threads, torch.get_num_interop_threads(), pinned)


def look(system: Path = _SYSTEM) -> Cores:
    """The cores of this process's mask."""
    return arranged(os.sched_getaffinity(0), system)


def arranged(mask: Iterable[int], system: Path = _SYSTEM) -> Cores:
    """Cores by NUMA node and physical core."""
    nodes = {core: number for number, core_list in _nodes(system) for core in core_list}
    first = {core: min(_cores(_read(system / f"cpu/cpu{core}/topology/thread_siblings_list")) or {core})
             for core in mask}  # fmt: skip
    every = sorted(first, key=lambda core: (nodes.get(core, 0), first[core], core))
    physical = {first[core]: core for core in reversed(every)}
    return Cores(tuple(every), tuple(core for core in every if physical[first[core]] == core))


def part(cores: Cores, rank: int, world: int) -> Cores:
    """One rank's own cores: neighbours, so that ranks keep to a node where they can. Shared when there are too few."""
    few = len(cores.physical)
    if few < world:
        return Cores(cores.every, (cores.physical[rank % few],))
    begin, end = few * rank // world, few * (rank + 1) // world
    first = cores.every.index(cores.physical[begin])
    last = cores.every.index(cores.physical[end]) if end < few else len(cores.every)
    return Cores(cores.every[first:last], cores.physical[begin:end])


def fair(cores: Cores, share: float) -> int:
    """As many threads as physical cores, and no more than the container is given time for."""
    return max(1, min(len(cores.physical), round(share) if share < len(cores.physical) else len(cores.physical)))


def asked(environ: Mapping[str, str] = os.environ) -> int:
    """The threads that whoever started us asked for; 0: nobody did."""
    first = environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(first) if first.isdigit() else 0


def choices() -> tuple[int, ...]:
    """The numbers of threads worth measuring, fewest first."""
    cores = look()
    most = quota()
    return tuple(sorted({1, fair(cores, most), max(1, min(len(cores.every), round(min(most, 1e6))))}))


def quota(cgroup: Path = _CGROUP, own: str = "") -> float:
    """How many cores' worth of time this process's group may use; infinite when nobody limits it."""
    found = float("inf")
    for folder in groups(cgroup, own):
        words = _read(folder / "cpu.max").split() or [_read(folder / "cpu.cfs_quota_us"), "100000"]
        period = _read(folder / "cpu.cfs_period_us") or words[-1]
        if words[0].strip().isdigit() and int(period) > 0:
            found = min(found, int(words[0]) / int(period))
    return found


def groups(cgroup: Path = _CGROUP, own: str = "") -> list[Path]:
    """The control groups this process is in, each with those above it, for what they limit."""
    found = []
    for line in (own or _read(Path("/proc/self/cgroup"))).splitlines():
        _, names, path = line.split(":", 2)
        root = cgroup / names if names else cgroup
        below = root / path.lstrip("/")
        found += [below, *(up for up in below.parents if root in (up, *up.parents))]
    return found


def has_bf16(flags: str = "") -> bool:
    """Whether these cores multiply bfloat16 by themselves (AMX, AVX512-BF16, Arm's BF16)."""
    return bool(_BF16 & set((flags or _read(Path("/proc/cpuinfo"))).split()))


def _keep_to(cores: Iterable[int]) -> bool:
    # The mask is a thread's own: those that libraries started when they were loaded are asked one by one.
    try:
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - a thread may end while we look
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), set(cores))
    except OSError:
        return False
    return True


def _nodes(system: Path) -> list[tuple[int, set[int]]]:
    return [
        (int(folder.name[4:]), _cores(_read(folder / "cpulist"))) for folder in (system / "node").glob("node[0-9]*")
    ]


def _cores(text: str) -> set[int]:
    """Cores as the kernel lists them: 0-3,8,10-11."""
    found: set[int] = set()
    for piece in text.split(","):
        low, _, high = piece.strip().partition("-")
        if low.isdigit():
            found |= set(range(int(low), int(high or low) + 1))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
