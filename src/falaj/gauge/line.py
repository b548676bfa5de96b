"""The line that says how a training stands: redrawn on a terminal; in a log now and then, and ever less often."""

import sys
import time
from collections.abc import Mapping
from typing import TextIO

_LONGEST_S = 300.0
_GROWTH = 1.5


class Line:
    """Where a person looks."""

    def __init__(self, steps: int, units: str, stream: TextIO | None = None) -> None:
        self._steps, self._units, self._stream = steps, units, stream or sys.stderr
        self._drawn = False
        self._due, self._pause_s = 0.0, 2.0

    def show(self, step: int, figures: Mapping[str, float], *, last: bool = False) -> None:
        """Show a step, if it is time to."""
        now = time.monotonic()
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[2K{self._text(step, figures)}")
            self._drawn = True
        elif now >= self._due or last:
            self._stream.write(f"{self._text(step, figures)}\n")
            self._due = now + self._pause_s
            self._pause_s = min(_LONGEST_S, self._pause_s * _GROWTH)
        self._stream.flush()

    def close(self) -> None:
        """Leave the line as it stands."""
        if self._drawn:
            self._stream.write("\n")
            self._stream.flush()

    def _text(self, step: int, figures: Mapping[str, float]) -> str:
        parts = [f"step {step}/{self._steps}" if self._steps else f"step {step}"]
        if "loss" in figures:
            parts.append(f"loss {figures['loss']:.4g}")
        if pace := figures.get(f"{self._units}_per_s"):
            parts.append(f"{short(pace)} {self._units}/s")
        if "mfu" in figures:
            parts.append(f"MFU {figures['mfu']:.1f} %")
        if memory := figures.get("memory_peak_bytes"):
            parts.append(f"memory {memory / (1 << 30):.1f} GiB")
        if figures.get("input_wait", 0) >= 1:
            parts.append(f"waits for data {figures['input_wait']:.0f} %")
        if left := figures.get("left_s"):
            parts.append(f"{duration(left)} left")
        return "  ".join(parts)


def short(number: float) -> str:
    """A number in three digits: 12.3k."""
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{name}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """A time in its two greatest units: 3h12m."""
    whole = int(seconds)
    for size, name, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{name}{whole % size // below:02d}{small}"
    return f"{whole}s"
