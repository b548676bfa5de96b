"""How much a process computes, as shares of what its chip could."""

from typing import Any

from falaj.gauge.chip_peaks import find_peak_flops
from falaj.gauge.process_stats import read_chip_name


class FlopsUtilization:
    """One process's. Without torch there is nothing to count."""

    def __init__(self, device: str, dtype: str, matmul_flops: float = 0.0) -> None:
        self._device, self._matmul_flops = device, matmul_flops
        self._peak_flops = find_peak_flops(read_chip_name(device), dtype) if device.startswith("cuda") else 0.0
        self._first_input: Any = None
        self.flops = 0.0
        """Of one micro-batch, forward and backward; 0: not known."""

    def watch(self, module: Any, meta_module: Any = None) -> None:
        """Count this module's."""
        from falaj.gauge.flops import FirstInputFlops

        self._first_input = FirstInputFlops(module, meta_module)

    def tick(self, now: float) -> None:
        """Count, once there is something to count on; beside the loop, since it takes a moment."""
        del now
        if self._first_input is not None and (flops := self._first_input.flops()) is not None:
            self.flops, self._first_input = flops, None

    def shares(self, rate: float) -> dict[str, float]:
        """So many FLOP/s as percent of the peak (MFU) and of a matrix product's rate, if that is known; on a CPU, where
        nobody tells a peak, that rate is the peak."""
        if rate and not self._peak_flops and self._device == "cpu":
            from falaj.gauge.flops import measure_matmul

            self._peak_flops = measure_matmul(self._device)
        limits = {"mfu": self._peak_flops, "of_matmul": self._matmul_flops}
        return {name: 100 * rate / limit for name, limit in limits.items() if rate and limit}
