"""How much a process computes, as shares of what its chip could."""

from typing import Any

from falaj.gauge.own import chip_name
from falaj.gauge.peaks import peak


class Work:
    """One process's. Without torch there is nothing to count."""

    def __init__(self, device: str, dtype: str, matmul_flops: float = 0.0) -> None:
        self._device, self._matmul = device, matmul_flops
        self._peak = peak(chip_name(device), dtype) if device.startswith("cuda") else 0.0
        self._seen: Any = None
        self.flops = 0.0
        """Of one micro-batch, forward and backward; 0: not known."""

    def watch(self, module: Any, drawn: Any = None) -> None:
        """Count this module's."""
        from falaj.gauge.flops import Seen

        self._seen = Seen(module, drawn)

    def tick(self, now: float) -> None:
        """Count, once there is something to count on; beside the loop, since it takes a moment."""
        del now
        if self._seen is not None and (found := self._seen.flops()) is not None:
            self.flops, self._seen = found, None

    def shares(self, rate: float) -> dict[str, float]:
        """So many FLOP/s as percent of the peak (MFU) and of a matrix product's rate, if that is known; on a CPU, where
        nobody tells a peak, that rate is the peak."""
        if rate and not self._peak and self._device == "cpu":
            from falaj.gauge.flops import matmul

            self._peak = matmul(self._device)
        against = {"mfu": self._peak, "of_matmul": self._matmul}
        return {name: 100 * rate / most for name, most in against.items() if rate and most}
