"""NVIDIA's management library by its C interface: it comes with the driver, so no package is needed."""

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_uint, c_ulonglong, c_void_p
from math import isfinite
from typing import Any

_GPM = {"sm": 2, "occupancy": 3, "tensor": 5, "dram": 10}
"""Percent of time that multiprocessors, tensor cores and memory channels really work."""
_MOST = 512
_CLOCK_SM = 1


class _Use(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Support(Structure):
    _fields_ = (("version", c_uint), ("supported", c_uint))


class _Metric(Structure):
    _fields_ = (
        ("id", c_uint), ("result", c_uint), ("value", c_double),
        ("short", c_char_p), ("long", c_char_p), ("unit", c_char_p),
    )  # fmt: skip


class _Metrics(Structure):
    _fields_ = (
        ("version", c_uint), ("count", c_uint), ("first", c_void_p), ("second", c_void_p), ("metrics", _Metric * _MOST)
    )  # fmt: skip


class Device:
    """One device by its UUID. Words and units are those of the launcher's samples."""

    def __init__(self, uuid: str) -> None:
        """OSError where there is no driver or no such device."""
        self._lib: Any = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle = c_void_p()
        if self._lib.nvmlInit_v2() or self._lib.nvmlDeviceGetHandleByUUID(uuid.encode(), byref(self._handle)):
            raise OSError(f"NVML knows no device {uuid}")
        self._samples = self._gpm_samples()

    def activity(self) -> dict[str, float]:
        """What the launcher's samples do not have, since this was asked last; and why clocks are held back. For one
        thread alone."""
        throttled = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong)
        return {**self._activity(), **({"throttled": throttled} if throttled is not None else {})}

    def read(self) -> dict[str, float]:
        """How it stands now; what the device does not tell is left out."""
        use = self._ask("nvmlDeviceGetUtilizationRates", _Use)
        told = {
            "busy": use and use.gpu,
            "power": self._number("nvmlDeviceGetPowerUsage", c_uint, 1000),
            "temperature": self._number("nvmlDeviceGetTemperature", c_uint, 1, 0),
            "clock": self._number("nvmlDeviceGetClockInfo", c_uint, 1, _CLOCK_SM),
            "clock_most": self._number("nvmlDeviceGetMaxClockInfo", c_uint, 1, _CLOCK_SM),
        }
        return {name: float(value) for name, value in told.items() if value is not None}

    def _ask(self, name: str, kind: Any, *about: int) -> Any:
        found, function = kind(), getattr(self._lib, name, None)  # an old driver has fewer
        return None if function is None or function(self._handle, *about, byref(found)) else found

    def _number(self, name: str, kind: Any, unit: int = 1, *about: int) -> float | None:
        found = self._ask(name, kind, *about)
        return None if found is None else found.value / unit

    def _gpm_samples(self) -> list[Any]:
        """Two places for counters; none where the chip (before Hopper) or the driver has no such counters."""
        support = _Support(1, 0)
        samples = [c_void_p(), c_void_p()]
        try:
            if self._lib.nvmlGpmQueryDeviceSupport(self._handle, byref(support)) or not support.supported:
                return []
            self._lib.nvmlGpmSampleAlloc.argtypes = [POINTER(c_void_p)]
            failed = any(self._lib.nvmlGpmSampleAlloc(byref(one)) for one in samples)
            return [] if failed or self._lib.nvmlGpmSampleGet(self._handle, samples[0]) else samples
        except AttributeError:
            return []

    def _activity(self) -> dict[str, float]:
        """Since the last sample."""
        if not self._samples or self._lib.nvmlGpmSampleGet(self._handle, self._samples[1]):
            return {}
        asked = _Metrics(version=1, count=len(_GPM), first=self._samples[0], second=self._samples[1])
        for place, number in enumerate(_GPM.values()):
            asked.metrics[place].id = number
        failed = self._lib.nvmlGpmMetricsGet(byref(asked))
        self._samples.reverse()
        found = [] if failed else asked.metrics[: len(_GPM)]
        return {
            name: one.value for name, one in zip(_GPM, found, strict=False) if not one.result and isfinite(one.value)
        }
