"""Metrics as Prometheus reads them: how they are written, and what the HTTP edge counts of itself.

Labels are actions, codes, states and names of things, never people, and never more than a bound.
"""

import math
import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
Labels = Mapping[str, str]
Row = tuple[str, Labels, float]
"""What follows the name (of a histogram: _bucket, _sum, _count), labels, value."""
NONE: Labels = {}


class Family(NamedTuple):
    """One metric with all its series."""

    name: str
    help: str
    kind: str
    rows: Sequence[Row]


def gauge(name: str, help_text: str, value: float) -> Family:
    """One number that goes up and down."""
    return Family(name, help_text, GAUGE, (("", NONE, value),))


def counter(name: str, help_text: str, value: float) -> Family:
    """One number that only grows."""
    return Family(name, help_text, COUNTER, (("", NONE, value),))


def by(label: str, name: str, help_text: str, values: Mapping[str, float], kind: str = GAUGE) -> Family:
    """A number for each value of one label."""
    return Family(name, help_text, kind, [("", {label: key}, value) for key, value in sorted(values.items())])


def buckets(labels: Labels, bounds: Sequence[float], slots: Sequence[int], total: float) -> list[Row]:
    """The rows of one histogram: `slots` has one more than there are bounds, for all above the last."""
    rows: list[Row] = []
    seen = 0
    for bound, count in zip((*bounds, math.inf), slots, strict=True):
        seen += count
        rows.append(("_bucket", {**labels, "le": "+Inf" if math.isinf(bound) else f"{bound:g}"}, seen))
    return [*rows, ("_sum", labels, total), ("_count", labels, seen)]


def exposition(families: Iterable[Family]) -> bytes:
    """The text format."""
    lines: list[str] = []
    for family in families:
        lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}")
        for more, labels, value in family.rows:
            told = ",".join([f'{key}="{_quoted(text)}"' for key, text in labels.items()])
            lines.append(f"{family.name}{more}{{{told}}} {value:.15g}" if told else f"{family.name}{more} {value:.15g}")
    return ("\n".join(lines) + "\n").encode()


class Metrics:
    """What happened at the edge since the start. The event loop counts, so there is no lock."""

    def __init__(self) -> None:
        self._started = time.time()
        self._answers: Counter[tuple[str, int]] = Counter()
        self._slots: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self.refused: Counter[str] = Counter()
        self.open_streams = 0

    def count(self, action: str, status: int, seconds: float | None = None) -> None:
        """One answer; with its time where it was to come soon: bulk and streams take what they take."""
        self._answers[action, status] += 1
        if seconds is None:
            return
        slots = self._slots.get(action)
        if slots is None:
            slots = self._slots[action] = [0] * (len(BOUNDS_S) + 1)
        slots[bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds[action] = self._seconds.get(action, 0.0) + seconds

    def families(self) -> list[Family]:
        """All of it."""
        answers = [("", {"action": a, "status": str(s)}, n) for (a, s), n in sorted(self._answers.items())]
        times = [
            row
            for action in sorted(self._slots)
            for row in buckets({"action": action}, BOUNDS_S, self._slots[action], self._seconds[action])
        ]
        return [
            Family("falaj_requests_total", "Answers by action and status.", COUNTER, answers),
            by("reason", "falaj_refused_total", "Requests refused before any verb.", self.refused, COUNTER),
            Family("falaj_request_seconds", "Time to answer, without bulk and streams.", HISTOGRAM, times),
            gauge("falaj_open_event_streams", "Event streams open now.", self.open_streams),
            *process(self._started),
        ]


def process(started: float) -> list[Family]:
    """What this process takes."""
    used = os.times()
    return [
        gauge("process_start_time_seconds", "When this process started.", started),
        counter("process_cpu_seconds_total", "Processor time used.", used.user + used.system),
        gauge("process_resident_memory_bytes", "Resident memory.", resident_bytes()),
    ]


def resident_bytes() -> float:
    """Memory of this process that is in use now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a kernel file, read often
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        return 0.0


def _quoted(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
