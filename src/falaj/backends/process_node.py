"""What this machine is as a node: cores, memory, accelerators, what its processors can do."""

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from falaj.core.executor import Device, NodeInfo

_NO_MEMORY_LIMIT = 1 << 60


def list_local_nodes(options: Mapping[str, str], enforced_by: str) -> list[NodeInfo]:
    """This machine as one node, or as `nodes` imitations of what is wanted, whose devices are numbers only."""
    label_pairs = (pair.partition(":") for pair in options.get("labels", "").split(",") if pair)
    labels = {
        "avx": _get_avx_level(),
        "limits": enforced_by,
        "host": platform.node(),
        **{name: value for name, _, value in label_pairs},
    }
    amounts = {
        "cpu": int(options.get("cpus") or _count_milli_cpus()),
        "memory": int(options.get("memory") or _get_memory_mib()),
    }
    devices = list_nvidia_devices()
    if "gpus" in options:
        model, memory = options.get("model", "imitation"), int(options.get("gpu_memory", "0"))
        devices = tuple(Device(index, model, memory) for index in range(int(options["gpus"])))
    if "nodes" not in options:
        return [NodeInfo(platform.node() or "local", amounts, devices, labels)]
    names = [f"node-{number}" for number in range(1, int(options["nodes"]) + 1)]
    return [NodeInfo(name, amounts, devices, labels) for name in names]


def choose_cores(taken_cores: set[int], count: int, numa_node: int) -> list[int]:
    """So many free cores, those near a NUMA node first; none when there are not enough, and then nobody is pinned."""
    free_cores = sorted(
        os.sched_getaffinity(0) - taken_cores, key=lambda core: (_get_numa_node_of_core(core) != numa_node, core)
    )
    return sorted(free_cores[:count]) if 0 < count <= len(free_cores) else []


def list_nvidia_devices() -> tuple[Device, ...]:
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
        islands = _find_nvlink_islands(nvml, handles)
        device_facts = [
            (handle, island, _get_numa_node(nvml, full_handle))
            for full_handle, island in zip(handles, islands, strict=True)
            for handle in _list_mig_slices(nvml, full_handle)
        ]
        return tuple(_make_device(nvml, index, *device_fact) for index, device_fact in enumerate(device_facts))
    except nvml.NVMLError:
        return ()


def _make_device(nvml: Any, index: int, handle: Any, island: int, numa: int) -> Device:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
    return Device(
        index, _to_text(nvml.nvmlDeviceGetName(handle)), memory, island, numa, _to_text(nvml.nvmlDeviceGetUUID(handle))
    )


def _list_mig_slices(nvml: Any, handle: Any) -> list[Any]:
    """The device itself, or its MIG slices where it is cut."""
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            parts = []
            for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(nvml.NVMLError):
                    parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
            return parts
    return [handle]


def _find_nvlink_islands(nvml: Any, handles: Sequence[Any]) -> list[int]:
    """The same number for devices that NVLink joins, however many steps apart."""
    islands = list(range(len(handles)))
    for first_index, first_handle in enumerate(handles):
        for second_index, second_handle in enumerate(handles[:first_index]):
            with contextlib.suppress(nvml.NVMLError):
                if (
                    nvml.nvmlDeviceGetP2PStatus(first_handle, second_handle, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
                    == nvml.NVML_P2P_STATUS_OK
                ):
                    low, high = sorted((islands[first_index], islands[second_index]))
                    islands = [low if island == high else island for island in islands]
    return islands


def _get_numa_node(nvml: Any, handle: Any) -> int:
    """As the kernel tells by the device's address on the PCI bus, whose domain it writes shorter than NVML."""
    address = _to_text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()[-12:]
    return max(0, int(_read_text(f"/sys/bus/pci/devices/{address}/numa_node") or 0))


def _get_numa_node_of_core(core: int) -> int:
    nodes = Path(f"/sys/devices/system/cpu/cpu{core}").glob("node[0-9]*")
    return min((int(node.name[4:]) for node in nodes), default=0)


def _count_milli_cpus() -> int:
    """Milli-CPU that we may use: by affinity, and by the limit of our own cgroup."""
    max_milli_cpus = len(os.sched_getaffinity(0)) * 1000
    quota, _, period = _read_text("/sys/fs/cgroup/cpu.max").partition(" ")
    return (
        min(max_milli_cpus, int(quota) * 1000 // int(period))
        if quota.isdigit() and period.isdigit()
        else max_milli_cpus
    )


def _get_memory_mib() -> int:
    total = int(_read_text("/proc/meminfo").partition("MemTotal:")[2].split()[0]) >> 10
    limit = _read_text("/sys/fs/cgroup/memory.max") or _read_text("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    return min(total, int(limit) >> 20) if limit.isdigit() and int(limit) < _NO_MEMORY_LIMIT else total


def _get_avx_level() -> str:
    flags = set(_read_text("/proc/cpuinfo").partition("flags")[2].partition("\n")[0].split())
    return "avx512" if "avx512f" in flags else "avx2" if "avx2" in flags else "none"


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _to_text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
