"""What the chip does under a training, sampled beside it: how busy its parts really are, its heat, power and clocks.

The launcher samples every slot's devices as well, where its package is there: what it tells is not told twice.
"""

import os
import time
from importlib.util import find_spec
from pathlib import Path

from falaj.gauge.nvml import NvmlDevice
from falaj.worker.child_processes import read_kernel_file

_SAMPLE_INTERVAL_S, _MAX_TIME_SHARE = 1.0, 0.001
OWN_METRICS = frozenset({"sm", "occupancy", "tensor", "dram"})
"""What the launcher's samples do not have."""
_THROTTLE_REASONS = {
    0x8: "the hardware's brake",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "the power brake",
}


class ChipSampler:
    """The chip of one process."""

    def __init__(self, device: str) -> None:
        self._device = _open_device(device)
        self._next_sample_at = 0.0
        self._sums: dict[str, tuple[float, int]] = {}
        self.last: dict[str, float] = {}
        self._reported_names = (
            OWN_METRICS if find_spec("pynvml") else OWN_METRICS | {"busy", "power", "temperature", "clock"}
        )

    def read(self) -> dict[str, float]:
        """How it stands now, in the launcher's words: percent, bytes, W, °C, MHz."""
        if self._device is not None:
            return self._device.read()
        statm_fields = read_kernel_file("/proc/self/statm").split()
        clock = read_kernel_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").strip()
        state = {
            "load": os.getloadavg()[0],
            "rss": float(statm_fields[1]) * os.sysconf("SC_PAGE_SIZE") if statm_fields else 0.0,
        }
        return {**state, **({"clock": int(clock) / 1000} if clock.isdigit() else {})}

    def tick(self, now: float) -> None:
        """Sample when it is time; dear samples are taken less often."""
        if now < self._next_sample_at:
            return
        started_at = time.thread_time()
        self.last = self._device.activity() if self._device else {}
        if self._reported_names is not OWN_METRICS:
            self.last |= self.read()
        for name, value in self.last.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)
        self._next_sample_at = now + max(_SAMPLE_INTERVAL_S, (time.thread_time() - started_at) / _MAX_TIME_SHARE)

    def take(self) -> dict[str, float]:
        """Means since this was asked last, of what nobody else tells."""
        sums, self._sums = self._sums, {}
        return {name: total / count for name, (total, count) in sums.items() if name in self._reported_names}

    def slowed(self) -> str:
        """Why the chip runs slower than it could, unless it is the usual power limit."""
        reason_bits = int(self.last.get("throttled", 0))
        return " and ".join(text for bit, text in _THROTTLE_REASONS.items() if reason_bits & bit)


def _open_device(device: str) -> NvmlDevice | None:
    if not device.startswith("cuda") or not Path("/dev/nvidiactl").exists():
        return None
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    try:
        return NvmlDevice(uuid if "-" in uuid[:4] else f"GPU-{uuid}")
    except OSError:
        return None
