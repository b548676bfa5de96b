"""What this machine is as a node: cores, memory, accelerators, what its processors can do."""

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from falaj.core.execute import Device, NodeFacts

_NO_MEMORY_LIMIT = 1 << 60


def this_machine(wanted: Mapping[str, str], limits: str) -> list[NodeFacts]:
    """This machine as one node, or as `nodes` imitations of what is wanted, whose devices are numbers only."""
    said = (pair.partition(":") for pair in wanted.get("labels", "").split(",") if pair)
    labels = {"avx": _avx(), "limits": limits, "host": platform.node(), **{name: value for name, _, value in said}}
    amounts = {"cpu": int(wanted.get("cpus") or _cpus()), "memory": int(wanted.get("memory") or _memory_mib())}
    devices = real_devices()
    if "gpus" in wanted:
        model, memory = wanted.get("model", "imitation"), int(wanted.get("gpu_memory", "0"))
        devices = tuple(Device(index, model, memory) for index in range(int(wanted["gpus"])))
    if "nodes" not in wanted:
        return [NodeFacts(platform.node() or "local", amounts, devices, labels)]
    names = [f"node-{number}" for number in range(1, int(wanted["nodes"]) + 1)]
    return [NodeFacts(name, amounts, devices, labels) for name in names]


def choose_cores(taken: set[int], count: int, numa: int) -> list[int]:
    """So many free cores, those near a NUMA node first; none when there are not enough, and then nobody is pinned."""
    free = sorted(os.sched_getaffinity(0) - taken, key=lambda core: (_numa_of_core(core) != numa, core))
    return sorted(free[:count]) if 0 < count <= len(free) else []


def real_devices() -> tuple[Device, ...]:
    """The NVIDIA devices of this machine, MIG slices each for itself; none where NVML or its package is not there."""
    if not Path("/dev/nvidiactl").exists():
        return ()
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        islands = _islands(nvml, handles)
        found = [
            (one, island, _numa(nvml, whole))
            for whole, island in zip(handles, islands, strict=True)
            for one in _parts(nvml, whole)
        ]
        return tuple(_device(nvml, index, *about) for index, about in enumerate(found))
    except nvml.NVMLError:
        return ()


def _device(nvml: Any, index: int, handle: Any, island: int, numa: int) -> Device:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
    return Device(
        index, _text(nvml.nvmlDeviceGetName(handle)), memory, island, numa, _text(nvml.nvmlDeviceGetUUID(handle))
    )


def _parts(nvml: Any, handle: Any) -> list[Any]:
    """The device itself, or its MIG slices where it is cut."""
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            parts = []
            for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(nvml.NVMLError):
                    parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
            return parts
    return [handle]


def _islands(nvml: Any, handles: Sequence[Any]) -> list[int]:
    """The same number for devices that NVLink joins, however many steps apart."""
    islands = list(range(len(handles)))
    for a, one in enumerate(handles):
        for b, other in enumerate(handles[:a]):
            with contextlib.suppress(nvml.NVMLError):
                if nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
                    low, high = sorted((islands[a], islands[b]))
                    islands = [low if island == high else island for island in islands]
    return islands


def _numa(nvml: Any, handle: Any) -> int:
    """As the kernel tells by the device's address on the PCI bus, whose domain it writes shorter than NVML."""
    address = _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()[-12:]
    return max(0, int(_read(f"/sys/bus/pci/devices/{address}/numa_node") or 0))


def _numa_of_core(core: int) -> int:
    nodes = Path(f"/sys/devices/system/cpu/cpu{core}").glob("node[0-9]*")
    return min((int(node.name[4:]) for node in nodes), default=0)


def _cpus() -> int:
    """Milli-CPU that we may use: by affinity, and by the limit of our own cgroup."""
    most = len(os.sched_getaffinity(0)) * 1000
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    return min(most, int(quota) * 1000 // int(period)) if quota.isdigit() and period.isdigit() else most


def _memory_mib() -> int:
    total = int(_read("/proc/meminfo").partition("MemTotal:")[2].split()[0]) >> 10
    limit = _read("/sys/fs/cgroup/memory.max") or _read("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    return min(total, int(limit) >> 20) if limit.isdigit() and int(limit) < _NO_MEMORY_LIMIT else total


def _avx() -> str:
    flags = set(_read("/proc/cpuinfo").partition("flags")[2].partition("\n")[0].split())
    return "avx512" if "avx512f" in flags else "avx2" if "avx2" in flags else "none"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
