"""Limits: how much one caller may take, counted in tokens that come back with time."""

MAX_KEYS = 10_000
"""Callers remembered at once; the one known for longest is forgotten first."""


class TokenBuckets:
    """One token bucket a key. Callers come and go, so the oldest are forgotten and start full again."""

    def __init__(self, per_s: float, burst: float, max_keys: int = MAX_KEYS) -> None:
        self._per_s = per_s
        self._burst = max(burst, 1.0)
        self._max_keys = max_keys
        self._levels: dict[object, list[float]] = {}

    def take(self, key: object, now: float) -> float:
        """0.0 when a token was taken, else the seconds until one could be."""
        level_and_time = self._levels.get(key)
        if level_and_time is None:
            if len(self._levels) >= self._max_keys:
                del self._levels[next(iter(self._levels))]
            self._levels[key] = [self._burst - 1.0, now]
            return 0.0
        level = min(self._burst, level_and_time[0] + max(0.0, now - level_and_time[1]) * self._per_s)
        level_and_time[1] = now
        if level >= 1.0:
            level_and_time[0] = level - 1.0
            return 0.0
        level_and_time[0] = level
        return self._seconds_until_token(level)

    def wait(self, key: object, now: float) -> float:
        """The seconds until one token could be taken, taking none."""
        level_and_time = self._levels.get(key)
        level = (
            self._burst
            if level_and_time is None
            else level_and_time[0] + max(0.0, now - level_and_time[1]) * self._per_s
        )
        return 0.0 if level >= 1.0 else self._seconds_until_token(level)

    def _seconds_until_token(self, level: float) -> float:
        return (1.0 - level) / self._per_s if self._per_s > 0 else 3600.0
