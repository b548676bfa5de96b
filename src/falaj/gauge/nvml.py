"""NVIDIA's management library by its C interface: it comes with the driver, so no package is needed."""

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_uint, c_ulonglong, c_void_p
from math import isfinite
from typing import Any

_GPM_METRIC_IDS = {"sm": 2, "occupancy": 3, "tensor": 5, "dram": 10}
"""Percent of time that multiprocessors, tensor cores and memory channels really work."""
_MAX_METRICS = 512
_CLOCK_SM = 1


class _Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _GpmSupport(Structure):
    _fields_ = (("version", c_uint), ("supported", c_uint))


class _GpmMetric(Structure):
    _fields_ = (
        ("id", c_uint),
        ("result", c_uint),
        ("value", c_double),
        ("short", c_char_p),
        ("long", c_char_p),
        ("unit", c_char_p),
    )


class _GpmMetricsGet(Structure):
    _fields_ = (
        ("version", c_uint),
        ("count", c_uint),
        ("first", c_void_p),
        ("second", c_void_p),
        ("metrics", _GpmMetric * _MAX_METRICS),
    )


class NvmlDevice:
    """One device by its UUID. Words and units are those of the launcher's samples."""

    def __init__(self, uuid: str) -> None:
        """OSError where there is no driver or no such device."""
        self._lib: Any = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle = c_void_p()
        if self._lib.nvmlInit_v2() or self._lib.nvmlDeviceGetHandleByUUID(uuid.encode(), byref(self._handle)):
            raise OSError(f"NVML knows no device {uuid}")
        self._samples = self._allocate_samples()

    def activity(self) -> dict[str, float]:
        """What the launcher's samples do not have, since this was asked last; and why clocks are held back. For one
        thread alone."""
        throttled = self._query_number("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong)
        return {**self._read_gpm_metrics(), **({"throttled": throttled} if throttled is not None else {})}

    def read(self) -> dict[str, float]:
        """How it stands now; what the device does not tell is left out."""
        use = self._query("nvmlDeviceGetUtilizationRates", _Utilization)
        readings = {
            "busy": use and use.gpu,
            "power": self._query_number("nvmlDeviceGetPowerUsage", c_uint, 1000),
            "temperature": self._query_number("nvmlDeviceGetTemperature", c_uint, 1, 0),
            "clock": self._query_number("nvmlDeviceGetClockInfo", c_uint, 1, _CLOCK_SM),
            "clock_most": self._query_number("nvmlDeviceGetMaxClockInfo", c_uint, 1, _CLOCK_SM),
        }
        return {name: float(value) for name, value in readings.items() if value is not None}

    def _query(self, name: str, result_type: Any, *arguments: int) -> Any:
        result, function = result_type(), getattr(self._lib, name, None)  # an old driver has fewer
        return None if function is None or function(self._handle, *arguments, byref(result)) else result

    def _query_number(self, name: str, result_type: Any, unit: int = 1, *arguments: int) -> float | None:
        result = self._query(name, result_type, *arguments)
        return None if result is None else result.value / unit

    def _allocate_samples(self) -> list[Any]:
        """Two places for counters; none where the chip (before Hopper) or the driver has no such counters."""
        support = _GpmSupport(1, 0)
        samples = [c_void_p(), c_void_p()]
        try:
            if self._lib.nvmlGpmQueryDeviceSupport(self._handle, byref(support)) or not support.supported:
                return []
            self._lib.nvmlGpmSampleAlloc.argtypes = [POINTER(c_void_p)]
            failed = any(self._lib.nvmlGpmSampleAlloc(byref(sample)) for sample in samples)
            return [] if failed or self._lib.nvmlGpmSampleGet(self._handle, samples[0]) else samples
        except AttributeError:
            return []

    def _read_gpm_metrics(self) -> dict[str, float]:
        """Since the last sample."""
        if not self._samples or self._lib.nvmlGpmSampleGet(self._handle, self._samples[1]):
            return {}
        request = _GpmMetricsGet(version=1, count=len(_GPM_METRIC_IDS), first=self._samples[0], second=self._samples[1])
        for index, number in enumerate(_GPM_METRIC_IDS.values()):
            request.metrics[index].id = number
        failed = self._lib.nvmlGpmMetricsGet(byref(request))
        self._samples.reverse()
        metrics = [] if failed else request.metrics[: len(_GPM_METRIC_IDS)]
        return {
            name: metric.value
            for name, metric in zip(_GPM_METRIC_IDS, metrics, strict=False)
            if not metric.result and isfinite(metric.value)
        }
