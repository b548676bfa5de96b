"""What the chip does under a training, sampled beside it: how busy its parts really are, its heat, power and clocks.

The launcher samples every slot's devices as well, where its package is there: what it tells is not told twice.
"""

import os
import time
from importlib.util import find_spec
from pathlib import Path

from falaj.gauge.nvml import Device
from falaj.worker.family import look

_EVERY_S, _SHARE = 1.0, 0.001
OURS = frozenset({"sm", "occupancy", "tensor", "dram"})
"""What the launcher's samples do not have."""
_SLOWED = {0x8: "the hardware's brake", 0x20: "heat (driver)", 0x40: "heat (hardware)", 0x80: "the power brake"}


class Chip:
    """The chip of one process."""

    def __init__(self, device: str) -> None:
        self._device = _device(device)
        self._due = 0.0
        self._sums: dict[str, tuple[float, int]] = {}
        self.last: dict[str, float] = {}
        self._told = OURS if find_spec("pynvml") else OURS | {"busy", "power", "temperature", "clock"}

    def read(self) -> dict[str, float]:
        """How it stands now, in the launcher's words: percent, bytes, W, °C, MHz."""
        if self._device is not None:
            return self._device.read()
        held = look("/proc/self/statm").split()
        clock = look("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").strip()
        found = {"load": os.getloadavg()[0], "rss": float(held[1]) * os.sysconf("SC_PAGE_SIZE") if held else 0.0}
        return {**found, **({"clock": int(clock) / 1000} if clock.isdigit() else {})}

    def tick(self, now: float) -> None:
        """Sample when it is time; dear samples are taken less often."""
        if now < self._due:
            return
        begun = time.thread_time()
        self.last = self._device.activity() if self._device else {}
        if self._told is not OURS:
            self.last |= self.read()
        for name, value in self.last.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)
        self._due = now + max(_EVERY_S, (time.thread_time() - begun) / _SHARE)

    def take(self) -> dict[str, float]:
        """Means since this was asked last, of what nobody else tells."""
        sums, self._sums = self._sums, {}
        return {name: total / count for name, (total, count) in sums.items() if name in self._told}

    def slowed(self) -> str:
        """Why the chip runs slower than it could, unless it is the usual power limit."""
        why = int(self.last.get("throttled", 0))
        return " and ".join(text for bit, text in _SLOWED.items() if why & bit)


def _device(device: str) -> Device | None:
    if not device.startswith("cuda") or not Path("/dev/nvidiactl").exists():
        return None
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    try:
        return Device(uuid if "-" in uuid[:4] else f"GPU-{uuid}")
    except OSError:
        return None
