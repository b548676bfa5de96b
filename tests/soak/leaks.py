"""Leaks: samples of one process's life in calm moments, and whether they grow."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tests.soak.procs import Gauge

WARM = 1 / 3
"""This part of a life is warm-up: caches fill, modules are loaded when they are first asked for."""
LEAST = 12
"""Fewer samples say nothing."""


class Sample(NamedTuple):
    """What a process held at a moment, in seconds."""

    at: float
    pid: int
    role: str
    held: Gauge


class Growth(NamedTuple):
    """How much more a process held at the end of a life than after its warm-up, by the median slope, and the bound."""

    role: str
    what: str
    minutes: float
    level: float
    grew: float
    bound: float

    @property
    def ok(self) -> bool:
        return self.grew <= self.bound

    def __str__(self) -> str:
        return (
            f"{self.role} {self.what}: {self.level:.0f}, grew by {self.grew:+.1f} in {self.minutes:.1f} min "
            f"(bound {self.bound:.0f})"
        )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen: the median of the slopes between all pairs; an outlier moves nothing."""
    found = [(y2 - y1) / (x2 - x1) for n, (x1, y1) in enumerate(points) for x2, y2 in points[n + 1 :] if x2 > x1]
    return statistics.median(found) if found else 0.0


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """The longest life of every role, judged. Memory may grow by a tenth, or 16 MiB; files and threads by 8."""
    found = []
    for role in sorted({one.role for one in samples}):
        lives: dict[int, list[Sample]] = {}
        for one in samples:
            if one.role == role:
                lives.setdefault(one.pid, []).append(one)
        life = max(lives.values(), key=lambda each: each[-1].at - each[0].at)
        begin = life[0].at + WARM * (life[-1].at - life[0].at)
        calm = [one for one in life if one.at >= begin]
        if len(calm) < LEAST:
            continue
        minutes = (calm[-1].at - calm[0].at) / 60
        for what, field in (("memory MiB", "memory_mib"), ("files", "files"), ("threads", "threads")):
            points = [(one.at, float(getattr(one.held, field))) for one in calm]
            level = statistics.median(y for _, y in points)
            grew = slope(points) * (calm[-1].at - calm[0].at)
            bound = max(16.0, level / 10) if field == "memory_mib" else 8.0
            found.append(Growth(role, what, minutes, level, grew, bound))
    return found
