"""What is out of the ordinary in a series: a value far from the median of the last ones, or no number at all. Said once
when it begins, not at every step that it lasts."""

import math
from collections import deque
from collections.abc import Sequence

from falaj.gauge.straggler import compute_median_spread

_MAX_HISTORY, _MIN_HISTORY = 128, 16


class AnomalyDetector:
    """The sense for one series. What is lower than usual is no news: losses and times are meant to fall."""

    def __init__(self, name: str, *, mads: float, share: float) -> None:
        self._name, self._mads, self._share = name, mads, share
        self._history: deque[float] = deque(maxlen=_MAX_HISTORY)
        self.running = 0
        """How many of the newest values, one after the other, are odd."""

    def look(self, values: Sequence[float], step: int) -> str:
        """Look at the newest values, up to that of `step`; says something when something odd begins."""
        message, limit, median = "", math.inf, 0.0
        if len(self._history) >= _MIN_HISTORY:
            median, spread = compute_median_spread(self._history)
            limit = median + max(self._mads * spread, self._share * abs(median))
        for number, value in enumerate(values, step - len(values) + 1):
            is_usual = math.isfinite(value) and value <= limit
            if not is_usual and not self.running:
                message = f"{self._name} of step {number} is {value:.4g}; usual is {median:.4g}"
            self.running = 0 if is_usual else self.running + 1
            if math.isfinite(value):
                self._history.append(value)
        return message
