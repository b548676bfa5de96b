"""What is out of the ordinary in a series: a value far from the median of the last ones, or no number at all. Said once
when it begins, not at every step that it lasts."""

import math
from collections import deque
from collections.abc import Sequence

from falaj.gauge.straggler import middle

_KEPT, _FEWEST = 128, 16


class Odd:
    """The sense for one series. What is lower than usual is no news: losses and times are meant to fall."""

    def __init__(self, name: str, *, mads: float, share: float) -> None:
        self._name, self._mads, self._share = name, mads, share
        self._last: deque[float] = deque(maxlen=_KEPT)
        self.running = 0
        """How many of the newest values, one after the other, are odd."""

    def look(self, values: Sequence[float], step: int) -> str:
        """Look at the newest values, up to that of `step`; says something when something odd begins."""
        said, limit, median = "", math.inf, 0.0
        if len(self._last) >= _FEWEST:
            median, spread = middle(self._last)
            limit = median + max(self._mads * spread, self._share * abs(median))
        for number, value in enumerate(values, step - len(values) + 1):
            usual = math.isfinite(value) and value <= limit
            if not usual and not self.running:
                said = f"{self._name} of step {number} is {value:.4g}; usual is {median:.4g}"
            self.running = 0 if usual else self.running + 1
            if math.isfinite(value):
                self._last.append(value)
        return said
