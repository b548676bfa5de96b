"""Limits: how much one caller may take, counted in tokens that come back with time."""

from collections import OrderedDict

KEPT = 10_000
"""Callers remembered at once; the one not seen for longest is forgotten first."""


class Buckets:
    """One token bucket a key. Callers come and go, so the oldest are forgotten and start full again."""

    def __init__(self, per_s: float, burst: float, kept: int = KEPT) -> None:
        self._per_s = per_s
        self._burst = max(burst, 1.0)
        self._kept = kept
        self._levels: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def take(self, key: object, now: float, tokens: float = 1.0) -> float:
        """0.0 when taken, else the seconds until it could be."""
        level = self._level(key, now)
        wait = 0.0
        if level >= tokens:
            level -= tokens
        else:
            wait = (tokens - level) / self._per_s if self._per_s > 0 else 3600.0
        self._levels[key] = (level, now)
        self._levels.move_to_end(key)
        if len(self._levels) > self._kept:
            self._levels.popitem(last=False)
        return wait

    def wait(self, key: object, now: float) -> float:
        """The seconds until one token could be taken, taking none."""
        level = self._level(key, now)
        return 0.0 if level >= 1.0 else (1.0 - level) / self._per_s if self._per_s > 0 else 3600.0

    def _level(self, key: object, now: float) -> float:
        known = self._levels.get(key)
        return self._burst if known is None else min(self._burst, known[0] + max(0.0, now - known[1]) * self._per_s)
