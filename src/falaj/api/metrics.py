"""Metrics: counters of the HTTP edge as Prometheus reads them. Actions and codes only, never a caller or a thing."""

import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """What happened since the start. The event loop counts, so there is no lock."""

    def __init__(self) -> None:
        self._started = time.time()
        self._answers: Counter[tuple[str, int]] = Counter()
        self._slots: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.open_streams = 0

    def count(self, action: str, status: int, seconds: float) -> None:
        """One answer."""
        self._answers[action, status] += 1
        slots = self._slots.get(action)
        if slots is None:
            slots = self._slots[action] = [0] * (len(BOUNDS_S) + 1)
        slots[bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds[action] += seconds  # type: ignore[assignment]

    def text(self, gauges: Iterable[tuple[str, str, float]]) -> bytes:
        """The exposition format; `gauges` are (name, help, value) that others know."""
        lines = ["# HELP falaj_requests_total Answers by action and status.", "# TYPE falaj_requests_total counter"]
        lines += [
            f'falaj_requests_total{{action="{a}",status="{s}"}} {n}' for (a, s), n in sorted(self._answers.items())
        ]
        lines += ["# HELP falaj_refused_total Requests refused before any verb.", "# TYPE falaj_refused_total counter"]
        lines += [f'falaj_refused_total{{reason="{reason}"}} {n}' for reason, n in sorted(self.refused.items())]
        lines += ["# HELP falaj_request_seconds Time to answer.", "# TYPE falaj_request_seconds histogram"]
        for action in sorted(self._slots):
            lines += self._histogram(action)
        for name, help_text, value in (*gauges, *self._process()):
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge", f"{name} {value:.10g}"]
        return ("\n".join(lines) + "\n").encode()

    def _histogram(self, action: str) -> list[str]:
        lines, total = [], 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._slots[action], strict=True):
            total += count
            lines.append(f'falaj_request_seconds_bucket{{action="{action}",le="{bound}"}} {total}')
        lines.append(f'falaj_request_seconds_sum{{action="{action}"}} {self._seconds[action]:.6f}')
        lines.append(f'falaj_request_seconds_count{{action="{action}"}} {total}')
        return lines

    def _process(self) -> list[tuple[str, str, float]]:
        used = os.times()
        return [
            ("falaj_open_event_streams", "Event streams open now.", self.open_streams),
            ("process_start_time_seconds", "When this process started.", self._started),
            ("process_cpu_seconds", "Processor time used.", used.user + used.system),
            ("process_resident_memory_bytes", "Resident memory.", resident_bytes()),
        ]


def resident_bytes() -> float:
    """Memory of this process that is in use now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a kernel file, read often
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        return 0.0
