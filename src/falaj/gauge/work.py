"""How much a process computes, as shares of what its chip could."""

from typing import Any

from falaj.gauge.own import chip_name
from falaj.gauge.peaks import peak


class Work:
    """One process's. Without torch there is nothing to count."""

    def __init__(self, device: str, dtype: str) -> None:
        self._device = device
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
        """Percent of the peak (MFU) of so many FLOP/s; on a CPU, where nobody tells a peak, of a matrix product's."""
        if rate and not self._peak and self._device == "cpu":
            from falaj.gauge.flops import matmul

            self._peak = matmul(self._device)
        return {"mfu": 100 * rate / self._peak, "flops_per_s": rate} if rate and self._peak else {}
