"""Telemetry of one slot: what its processes and its devices do, a fact every few seconds.

CPU, memory and disk are of the slot's processes; network and load are of the node. Device figures come from NVML where
its package is there. A sample that turns out dear is taken less often, so watching never costs more than a hundredth.
"""

import contextlib
import os
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from falaj.worker.child_processes import list_descendants, read_kernel_file
from falaj.worker.outbox import Outbox

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAX_CPU_SHARE = 0.01
_PROGRAM_CAUSED_XIDS = frozenset({13, 31, 43, 45, 68, 69})
"""Errors (XID) that a faulty program brings about on a device that is well."""


class TelemetrySampler:
    """Sampled by the launcher's own loop; never when `every_s` is 0."""

    def __init__(self, outbox: Outbox, slot: int, interval_s: float) -> None:
        self._outbox, self._slot, self._interval_s = outbox, slot, interval_s
        self.due = time.monotonic() + interval_s if interval_s > 0 else float("inf")
        self._counters_by_pid: dict[int, dict[str, int]] = {}
        self._ended_totals = {"ticks": 0, "read": 0, "written": 0}
        self._devices: AcceleratorDevices | None = None

    def sample_if_due(self, now: float) -> None:
        """Take a sample when its time has come."""
        if now < self.due:
            return
        if self._devices is None:
            self._devices = AcceleratorDevices(os.environ.get("CUDA_VISIBLE_DEVICES"))  # once, however dear
        started_at = time.perf_counter()
        machine_facts = sample_machine(self._outbox.folder)
        self._outbox.tell(
            "telemetry", slot=self._slot, **self._sample_processes(), **machine_facts, devices=self._devices.read()
        )
        cost_s = time.perf_counter() - started_at
        self.due = now + max(self._interval_s, cost_s / _MAX_CPU_SHARE)

    def _sample_processes(self) -> dict[str, object]:
        """Sums over the living, and over what the dead had done when last seen."""
        current_counters = {
            pid: counters for pid in list_descendants(os.getpid()) if (counters := _read_process_counters(pid))
        }
        for pid in self._counters_by_pid.keys() - current_counters.keys():
            for name in self._ended_totals:
                self._ended_totals[name] += self._counters_by_pid[pid][name]
        self._counters_by_pid = current_counters
        totals = {
            name: ended_total + sum(counters[name] for counters in current_counters.values())
            for name, ended_total in self._ended_totals.items()
        }
        return {
            "cpu_s": round(totals["ticks"] / _TICKS_PER_S, 2),
            "rss": sum(counters["rss"] for counters in current_counters.values()),
            "read": totals["read"],
            "written": totals["written"],
            "processes": len(current_counters),
            "threads": sum(counters["threads"] for counters in current_counters.values()),
        }


class AcceleratorDevices:
    """The accelerators a slot was given, through NVML; none where its library or package is not there."""

    def __init__(self, visible: str | None) -> None:
        self._nvml: Any = _load_nvml()
        self._handles: list[tuple[int, Any]] = []
        self._xid_counts: dict[str, int] = {}
        if self._nvml is None:
            return
        visible_ids = None if visible is None else [visible_id for visible_id in visible.split(",") if visible_id]
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            if (
                visible_ids is None
                or str(index) in visible_ids
                or _to_text(self._nvml.nvmlDeviceGetUUID(handle)) in visible_ids
            ):
                self._handles.append((index, handle))
        self._event_set = self._query_device(self._nvml.nvmlEventSetCreate) if self._handles else None
        for _, handle in self._handles if self._event_set else ():
            self._query_device(
                self._nvml.nvmlDeviceRegisterEvents, handle, self._nvml.nvmlEventTypeXidCriticalError, self._event_set
            )

    def read(self) -> list[dict[str, object]]:
        """One sample of every device; what a device does not tell is left out."""
        if not self._handles:
            return []
        self._count_xids()
        return [{"index": index, **self._sample_device(handle)} for index, handle in self._handles]

    def _sample_device(self, handle: Any) -> dict[str, object]:
        nvml, query = self._nvml, self._query_device
        utilization = query(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = query(nvml.nvmlDeviceGetMemoryInfo, handle)
        power = query(nvml.nvmlDeviceGetPowerUsage, handle)
        uncorrected = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        device_facts = {
            "busy": utilization and utilization.gpu,
            "memory_busy": utilization and utilization.memory,
            "memory": memory and memory.used,
            "memory_total": memory and memory.total,
            "temperature": query(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "power": power and power / 1000,
            "clock": query(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "clock_most": query(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            "throttled": query(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            "ecc": query(nvml.nvmlDeviceGetTotalEccErrors, handle, *uncorrected),
            "xid": self._xid_counts.get(_to_text(nvml.nvmlDeviceGetUUID(handle)), 0),
        }
        return {name: value for name, value in device_facts.items() if value is not None}

    def _count_xids(self) -> None:
        while self._event_set and (event := self._query_device(self._nvml.nvmlEventSetWait_v2, self._event_set, 0)):
            if event.eventType != self._nvml.nvmlEventTypeXidCriticalError:
                return
            if event.eventData not in _PROGRAM_CAUSED_XIDS:
                uuid = _to_text(self._nvml.nvmlDeviceGetUUID(event.device))
                self._xid_counts[uuid] = self._xid_counts.get(uuid, 0) + 1

    def _query_device(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def _load_nvml() -> Any:
    if not Path("/dev/nvidiactl").exists():
        return None
    try:
        import_module("site").main()  # the launcher starts without site-packages, to start fast
        nvml = import_module("pynvml")
    except (ImportError, OSError):
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml


def _read_process_counters(pid: int) -> dict[str, int]:
    stat_words = read_kernel_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(stat_words) < 22:
        return {}
    # Of another user's processes the kernel counts no bytes for us.
    io_words = read_kernel_file(f"/proc/{pid}/io").split() or [b"read_bytes:", b"0", b"write_bytes:", b"0"]
    return {
        "ticks": int(stat_words[11]) + int(stat_words[12]),
        "threads": int(stat_words[17]),
        "rss": int(stat_words[21]) * _PAGE_BYTES,
        "read": int(io_words[io_words.index(b"read_bytes:") + 1]),
        "written": int(io_words[io_words.index(b"write_bytes:") + 1]),
    }


def sample_machine(folder: str | Path) -> dict[str, object]:
    """What the machine as a whole does, and what is left on the disk of a folder."""
    memory = read_kernel_file("/proc/meminfo").partition(b"MemAvailable:")[2].split()
    lines = [line.split() for line in read_kernel_file("/proc/net/dev").replace(b":", b": ").splitlines()[2:]]
    interface_counts = [interface_words for interface_words in lines if interface_words[0] != b"lo:"]
    machine_facts: dict[str, object] = {
        "load": round(os.getloadavg()[0], 2),
        "available": int(memory[0]) * 1024 if memory else 0,
        "received": sum(int(interface_words[1]) for interface_words in interface_counts),
        "sent": sum(int(interface_words[9]) for interface_words in interface_counts),
    }
    with contextlib.suppress(OSError):
        disk = os.statvfs(folder)
        machine_facts |= {"disk": disk.f_bavail * disk.f_frsize, "disk_total": disk.f_blocks * disk.f_frsize}
    return machine_facts


def _to_text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
