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

_SYSTEM_ROOT, _CGROUP_ROOT = Path("/sys/devices/system"), Path("/sys/fs/cgroup")
_BINDING_VARIABLES = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "SLURM_CPU_BIND",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
)
"""Whoever says one of these has given every rank its cores already."""
_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
_MAX_INTEROP_THREADS = 2


class CoreSet(NamedTuple):
    """What a process may use: all its hyper-threads, and one of each physical core, those of a node side by side."""

    every: tuple[int, ...]
    physical: tuple[int, ...]


class AppliedThreads(NamedTuple):
    """What was set."""

    threads: int
    interop: int
    cores: tuple[int, ...]
    """The cores this process keeps to; none when it was left where it is."""


def apply_threads(options: Options, local_rank: int = 0, local_world: int = 1) -> AppliedThreads:
    """Set threads and cores of this process, one of `local_world` on its node. Call it before torch computes."""
    import torch

    available = read_cores()
    is_alone = local_world <= 1 or any(name in os.environ for name in _BINDING_VARIABLES)
    own_cores = available if is_alone else split_cores(available, local_rank, local_world)
    # A number that is none of torch's defaults was set by the script.
    current_threads = torch.get_num_threads()
    requested = requested_threads() or (
        current_threads if current_threads not in (len(available.every), len(available.physical)) else 0
    )
    threads = (
        options.threads
        or requested
        or fair_thread_count(own_cores, read_cpu_quota() / (1 if is_alone else local_world))
    )
    pinned = own_cores.every if own_cores is not available and _pin_threads(own_cores.every) else ()
    if threads != current_threads or options.reproducible == "strict":
        # Whoever says a number, be it the same, takes from MKL the choice to use fewer threads for small products.
        torch.set_num_threads(threads)
    with contextlib.suppress(RuntimeError):  # only before the first parallel work
        torch.set_num_interop_threads(min(_MAX_INTEROP_THREADS, threads))
    if options.reproducible != "strict":
        # Numbers too small to matter cost a hundred times the others; but who flushes them is a thread's own business,
        # so bits would depend on the threads.
        torch.set_flush_denormal(True)
    return AppliedThreads(threads, torch.get_num_interop_threads(), pinned)


def read_cores(system: Path = _SYSTEM_ROOT) -> CoreSet:
    """The cores of this process's mask."""
    return arrange_cores(os.sched_getaffinity(0), system)


def arrange_cores(mask: Iterable[int], system: Path = _SYSTEM_ROOT) -> CoreSet:
    """Cores by NUMA node and physical core."""
    nodes = {core: number for number, core_list in _read_numa_nodes(system) for core in core_list}
    first_sibling = {
        core: min(_parse_core_list(_read_text(system / f"cpu/cpu{core}/topology/thread_siblings_list")) or {core})
        for core in mask
    }
    ordered_cores = sorted(first_sibling, key=lambda core: (nodes.get(core, 0), first_sibling[core], core))
    physical = {first_sibling[core]: core for core in reversed(ordered_cores)}
    return CoreSet(tuple(ordered_cores), tuple(core for core in ordered_cores if physical[first_sibling[core]] == core))


def split_cores(cores: CoreSet, rank: int, world: int) -> CoreSet:
    """One rank's own cores: neighbours, so that ranks keep to a node where they can. Shared when there are too few."""
    physical_count = len(cores.physical)
    if physical_count < world:
        return CoreSet(cores.every, (cores.physical[rank % physical_count],))
    begin_index, end_index = physical_count * rank // world, physical_count * (rank + 1) // world
    first_index = cores.every.index(cores.physical[begin_index])
    last_index = cores.every.index(cores.physical[end_index]) if end_index < physical_count else len(cores.every)
    return CoreSet(cores.every[first_index:last_index], cores.physical[begin_index:end_index])


def fair_thread_count(cores: CoreSet, core_share: float) -> int:
    """As many threads as physical cores, and no more than the container is given time for."""
    return max(
        1, min(len(cores.physical), round(core_share) if core_share < len(cores.physical) else len(cores.physical))
    )


def requested_threads(environ: Mapping[str, str] = os.environ) -> int:
    """The threads that whoever started us asked for; 0: nobody did."""
    first_value = environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(first_value) if first_value.isdigit() else 0


def thread_choices() -> tuple[int, ...]:
    """The numbers of threads worth measuring, fewest first."""
    cores = read_cores()
    core_limit = read_cpu_quota()
    return tuple(
        sorted({1, fair_thread_count(cores, core_limit), max(1, min(len(cores.every), round(min(core_limit, 1e6))))})
    )


def read_cpu_quota(cgroup: Path = _CGROUP_ROOT, cgroup_text: str = "") -> float:
    """How many cores' worth of time this process's group may use; infinite when nobody limits it."""
    limit = float("inf")
    for folder in find_cgroups(cgroup, cgroup_text):
        quota_fields = _read_text(folder / "cpu.max").split() or [_read_text(folder / "cpu.cfs_quota_us"), "100000"]
        period = _read_text(folder / "cpu.cfs_period_us") or quota_fields[-1]
        if quota_fields[0].strip().isdigit() and int(period) > 0:
            limit = min(limit, int(quota_fields[0]) / int(period))
    return limit


def find_cgroups(cgroup: Path = _CGROUP_ROOT, cgroup_text: str = "") -> list[Path]:
    """The control groups this process is in, each with those above it, for what they limit."""
    folders = []
    for line in (cgroup_text or _read_text(Path("/proc/self/cgroup"))).splitlines():
        _, names, path = line.split(":", 2)
        root = cgroup / names if names else cgroup
        folder = root / path.lstrip("/")
        folders += [folder, *(parent for parent in folder.parents if root in (parent, *parent.parents))]
    return folders


def has_bf16(flags: str = "") -> bool:
    """Whether these cores multiply bfloat16 by themselves (AMX, AVX512-BF16, Arm's BF16)."""
    return bool(_BF16_FLAGS & set((flags or _read_text(Path("/proc/cpuinfo"))).split()))


def _pin_threads(cores: Iterable[int]) -> bool:
    # The mask is a thread's own: those that libraries started when they were loaded are asked one by one.
    try:
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - a thread may end while we look
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), set(cores))
    except OSError:
        return False
    return True


def _read_numa_nodes(system: Path) -> list[tuple[int, set[int]]]:
    return [
        (int(folder.name[4:]), _parse_core_list(_read_text(folder / "cpulist")))
        for folder in (system / "node").glob("node[0-9]*")
    ]


def _parse_core_list(text: str) -> set[int]:
    """Cores as the kernel lists them: 0-3,8,10-11."""
    core_numbers: set[int] = set()
    for span in text.split(","):
        low, _, high = span.strip().partition("-")
        if low.isdigit():
            core_numbers |= set(range(int(low), int(high or low) + 1))
    return core_numbers


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
