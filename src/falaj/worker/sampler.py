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

from falaj.worker.family import descendants, look
from falaj.worker.outbox import Outbox

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHARE = 0.01
_PROGRAMS_OWN = frozenset({13, 31, 43, 45, 68, 69})
"""Errors (XID) that a faulty program brings about on a device that is well."""


class Sampler:
    """Sampled by the launcher's own loop; never when `every_s` is 0."""

    def __init__(self, outbox: Outbox, slot: int, every_s: float) -> None:
        self._outbox, self._slot, self._every_s = outbox, slot, every_s
        self.due = time.monotonic() + every_s if every_s > 0 else float("inf")
        self._seen: dict[int, dict[str, int]] = {}
        self._gone = {"ticks": 0, "read": 0, "written": 0}
        self._devices: Devices | None = None

    def sample_if_due(self, now: float) -> None:
        """Take a sample when its time has come."""
        if now < self.due:
            return
        if self._devices is None:
            self._devices = Devices(os.environ.get("CUDA_VISIBLE_DEVICES"))  # once, however dear
        begun = time.perf_counter()
        whole = machine(self._outbox.folder)
        self._outbox.tell("telemetry", slot=self._slot, **self._processes(), **whole, devices=self._devices.read())
        cost = time.perf_counter() - begun
        self.due = now + max(self._every_s, cost / _SHARE)

    def _processes(self) -> dict[str, object]:
        """Sums over the living, and over what the dead had done when last seen."""
        now = {pid: seen for pid in descendants(os.getpid()) if (seen := _process(pid))}
        for pid in self._seen.keys() - now.keys():
            for name in self._gone:
                self._gone[name] += self._seen[pid][name]
        self._seen = now
        total = {name: gone + sum(seen[name] for seen in now.values()) for name, gone in self._gone.items()}
        return {
            "cpu_s": round(total["ticks"] / _TICKS, 2),
            "rss": sum(seen["rss"] for seen in now.values()),
            "read": total["read"],
            "written": total["written"],
            "processes": len(now),
            "threads": sum(seen["threads"] for seen in now.values()),
        }


class Devices:
    """The accelerators a slot was given, through NVML; none where its library or package is not there."""

    def __init__(self, visible: str | None) -> None:
        self._nvml: Any = _nvml()
        self._known: list[tuple[int, Any]] = []
        self._xids: dict[str, int] = {}
        if self._nvml is None:
            return
        wanted = None if visible is None else [one for one in visible.split(",") if one]
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            if wanted is None or str(index) in wanted or _text(self._nvml.nvmlDeviceGetUUID(handle)) in wanted:
                self._known.append((index, handle))
        self._events = self._ask(self._nvml.nvmlEventSetCreate) if self._known else None
        for _, handle in self._known if self._events else ():
            self._ask(
                self._nvml.nvmlDeviceRegisterEvents, handle, self._nvml.nvmlEventTypeXidCriticalError, self._events
            )

    def read(self) -> list[dict[str, object]]:
        """One sample of every device; what a device does not tell is left out."""
        if not self._known:
            return []
        self._count_xids()
        return [{"index": index, **self._one(handle)} for index, handle in self._known]

    def _one(self, handle: Any) -> dict[str, object]:
        nvml, ask = self._nvml, self._ask
        use = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power = ask(nvml.nvmlDeviceGetPowerUsage, handle)
        uncorrected = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        told = {
            "busy": use and use.gpu,
            "memory_busy": use and use.memory,
            "memory": memory and memory.used,
            "memory_total": memory and memory.total,
            "temperature": ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "power": power and power / 1000,
            "clock": ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "clock_most": ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            "throttled": ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            "ecc": ask(nvml.nvmlDeviceGetTotalEccErrors, handle, *uncorrected),
            "xid": self._xids.get(_text(nvml.nvmlDeviceGetUUID(handle)), 0),
        }
        return {name: value for name, value in told.items() if value is not None}

    def _count_xids(self) -> None:
        while self._events and (event := self._ask(self._nvml.nvmlEventSetWait_v2, self._events, 0)):
            if event.eventType != self._nvml.nvmlEventTypeXidCriticalError:
                return
            if event.eventData not in _PROGRAMS_OWN:
                uuid = _text(self._nvml.nvmlDeviceGetUUID(event.device))
                self._xids[uuid] = self._xids.get(uuid, 0) + 1

    def _ask(self, question: Any, *about: Any) -> Any:
        try:
            return question(*about)
        except self._nvml.NVMLError:
            return None


def _nvml() -> Any:
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


def _process(pid: int) -> dict[str, int]:
    words = look(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(words) < 22:
        return {}
    # Of another user's processes the kernel counts no bytes for us.
    io = look(f"/proc/{pid}/io").split() or [b"read_bytes:", b"0", b"write_bytes:", b"0"]
    return {
        "ticks": int(words[11]) + int(words[12]),
        "threads": int(words[17]),
        "rss": int(words[21]) * _PAGE,
        "read": int(io[io.index(b"read_bytes:") + 1]),
        "written": int(io[io.index(b"write_bytes:") + 1]),
    }


def machine(folder: str | Path) -> dict[str, object]:
    """What the machine as a whole does, and what is left on the disk of a folder."""
    memory = look("/proc/meminfo").partition(b"MemAvailable:")[2].split()
    lines = [line.split() for line in look("/proc/net/dev").replace(b":", b": ").splitlines()[2:]]
    counts = [words for words in lines if words[0] != b"lo:"]
    found: dict[str, object] = {
        "load": round(os.getloadavg()[0], 2),
        "available": int(memory[0]) * 1024 if memory else 0,
        "received": sum(int(words[1]) for words in counts),
        "sent": sum(int(words[9]) for words in counts),
    }
    with contextlib.suppress(OSError):
        disk = os.statvfs(folder)
        found |= {"disk": disk.f_bavail * disk.f_frsize, "disk_total": disk.f_blocks * disk.f_frsize}
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
