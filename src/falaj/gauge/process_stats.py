"""What a process knows of itself: how long it is there, and the memory it holds."""

import os
import resource
import time
from pathlib import Path

from falaj.worker.child_processes import read_kernel_file

_PAGE_BYTES, _CLOCK_TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


def seconds_since_start() -> float:
    """Seconds since this process began: what it took to import, load and resume is part of a training's price."""
    stat_fields = read_kernel_file("/proc/self/stat").rpartition(b")")[2].split()
    if not stat_fields:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat_fields[19]) / _CLOCK_TICKS)


def read_memory(device: str) -> dict[str, float]:
    """Bytes: of the device's memory as torch's allocator has them, else of the process."""
    if device.startswith("cuda"):
        import torch

        allocator_stats = torch.cuda.memory_stats(device)
        names = {"allocated": "allocated_bytes.all.current", "reserved": "reserved_bytes.all.current"}
        names["peak"] = "allocated_bytes.all.peak"
        return {f"memory_{name}_bytes": float(allocator_stats.get(key, 0)) for name, key in names.items()}
    statm_fields = read_kernel_file("/proc/self/statm").split()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "memory_allocated_bytes": float(int(statm_fields[1]) * _PAGE_BYTES if statm_fields else peak),
        "memory_peak_bytes": float(peak),
    }


def read_memory_limit(device: str) -> float:
    """How much memory there is for it: the device's, or the job's, or the machine's; 0: not known."""
    if device.startswith("cuda"):
        import torch

        return float(torch.cuda.get_device_properties(device).total_memory)
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES
    cgroup_limit = read_kernel_file("/sys/fs/cgroup/memory.max").strip()
    return float(min(machine_bytes, int(cgroup_limit))) if cgroup_limit.isdigit() else float(machine_bytes)


def read_chip_name(device: str) -> str:
    """What the vendor calls the device."""
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
