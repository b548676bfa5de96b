"""The line that says how a training stands: redrawn on a terminal; in a log now and then, and ever less often."""

import sys
import time
from collections.abc import Mapping
from typing import TextIO

_MAX_PAUSE_S = 300.0
_PAUSE_GROWTH = 1.5


class ProgressLine:
    """Where a person looks."""

    def __init__(self, steps: int, units: str, stream: TextIO | None = None) -> None:
        self._steps, self._units, self._stream = steps, units, stream or sys.stderr
        self._is_drawn = False
        self._next_line_at, self._pause_s = 0.0, 2.0

    def show(self, step: int, figures: Mapping[str, float], *, is_last: bool = False) -> None:
        """Show a step, if it is time to."""
        now = time.monotonic()
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[2K{self._format_line(step, figures)}")
            self._is_drawn = True
        elif now >= self._next_line_at or is_last:
            self._stream.write(f"{self._format_line(step, figures)}\n")
            self._next_line_at = now + self._pause_s
            self._pause_s = min(_MAX_PAUSE_S, self._pause_s * _PAUSE_GROWTH)
        self._stream.flush()

    def close(self) -> None:
        """Leave the line as it stands."""
        if self._is_drawn:
            self._stream.write("\n")
            self._stream.flush()

    def _format_line(self, step: int, figures: Mapping[str, float]) -> str:
        parts = [f"step {step}/{self._steps}" if self._steps else f"step {step}"]
        if "loss" in figures:
            parts.append(f"loss {figures['loss']:.4g}")
        if units_per_s := figures.get(f"{self._units}_per_s"):
            parts.append(f"{format_number(units_per_s)} {self._units}/s")
        if "mfu" in figures:
            parts.append(f"MFU {figures['mfu']:.1f} %")
        if memory := figures.get("memory_peak_bytes"):
            parts.append(f"memory {memory / (1 << 30):.1f} GiB")
        if figures.get("input_wait", 0) >= 1:
            parts.append(f"waits for data {figures['input_wait']:.0f} %")
        if left_s := figures.get("left_s"):
            parts.append(f"{format_duration(left_s)} left")
        return "  ".join(parts)


def format_number(number: float) -> str:
    """A number in three digits: 12.3k."""
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{name}"
    return f"{number:.3g}"


def format_duration(seconds: float) -> str:
    """A time in its two greatest units: 3h12m."""
    total = int(seconds)
    for size, name, lower_size, lower_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if total >= size:
            return f"{total // size}{name}{total % size // lower_size:02d}{lower_name}"
    return f"{total}s"
