"""What a process knows of itself: how long it is there, and the memory it holds."""

import os
import resource
import time
from pathlib import Path

from falaj.worker.family import look

_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


def started_s() -> float:
    """Seconds since this process began: what it took to import, load and resume is part of a training's price."""
    words = look("/proc/self/stat").rpartition(b")")[2].split()
    if not words:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / _TICKS)


def memory(device: str) -> dict[str, float]:
    """Bytes: of the device's memory as torch's allocator has them, else of the process."""
    if device.startswith("cuda"):
        import torch

        told = torch.cuda.memory_stats(device)
        names = {"allocated": "allocated_bytes.all.current", "reserved": "reserved_bytes.all.current"}
        names["peak"] = "allocated_bytes.all.peak"
        return {f"memory_{name}_bytes": float(told.get(key, 0)) for name, key in names.items()}
    held = look("/proc/self/statm").split()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"memory_allocated_bytes": float(int(held[1]) * _PAGE if held else peak), "memory_peak_bytes": float(peak)}


def limit_bytes(device: str) -> float:
    """How much memory there is for it: the device's, or the job's, or the machine's; 0: not known."""
    if device.startswith("cuda"):
        import torch

        return float(torch.cuda.get_device_properties(device).total_memory)
    pages = os.sysconf("SC_PHYS_PAGES") * _PAGE
    held = look("/sys/fs/cgroup/memory.max").strip()
    return float(min(pages, int(held))) if held.isdigit() else float(pages)


def chip_name(device: str) -> str:
    """What the vendor calls the device."""
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
