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

LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
Labels = Mapping[str, str]
MetricRow = tuple[str, Labels, float]
"""What follows the name (of a histogram: _bucket, _sum, _count), labels, value."""
NO_LABELS: Labels = {}


class MetricFamily(NamedTuple):
    """One metric with all its series."""

    name: str
    help: str
    kind: str
    rows: Sequence[MetricRow]


def make_gauge(name: str, help_text: str, value: float) -> MetricFamily:
    """One number that goes up and down."""
    return MetricFamily(name, help_text, GAUGE, (("", NO_LABELS, value),))


def make_counter(name: str, help_text: str, value: float) -> MetricFamily:
    """One number that only grows."""
    return MetricFamily(name, help_text, COUNTER, (("", NO_LABELS, value),))


def make_labelled_family(
    label: str, name: str, help_text: str, values: Mapping[str, float], metric_type: str = GAUGE
) -> MetricFamily:
    """A number for each value of one label."""
    return MetricFamily(
        name, help_text, metric_type, [("", {label: key}, value) for key, value in sorted(values.items())]
    )


def make_histogram_rows(
    labels: Labels, bounds: Sequence[float], counts: Sequence[int], total: float
) -> list[MetricRow]:
    """The rows of one histogram: `counts` has one more than there are bounds, for all above the last."""
    rows: list[MetricRow] = []
    cumulative_count = 0
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        cumulative_count += count
        rows.append(("_bucket", {**labels, "le": "+Inf" if math.isinf(bound) else f"{bound:g}"}, cumulative_count))
    return [*rows, ("_sum", labels, total), ("_count", labels, cumulative_count)]


def format_families(families: Iterable[MetricFamily]) -> bytes:
    """The text format."""
    lines: list[str] = []
    for family in families:
        lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}")
        for suffix, labels, value in family.rows:
            label_text = ",".join([f'{key}="{_escape_label(text)}"' for key, text in labels.items()])
            lines.append(
                f"{family.name}{suffix}{{{label_text}}} {value:.15g}"
                if label_text
                else f"{family.name}{suffix} {value:.15g}"
            )
    return ("\n".join(lines) + "\n").encode()


class EdgeMetrics:
    """What happened at the edge since the start. The event loop counts, so there is no lock."""

    def __init__(self) -> None:
        self._started = time.time()
        self._response_counts: Counter[tuple[str, int]] = Counter()
        self._latency_counts: dict[str, list[int]] = {}
        self._latency_sums: dict[str, float] = {}
        self.refused: Counter[str] = Counter()
        self.open_streams = 0

    def count(self, action: str, status: int, duration_s: float | None = None) -> None:
        """One answer; with its time where it was to come soon: bulk and streams take what they take."""
        self._response_counts[action, status] += 1
        if duration_s is None:
            return
        counts = self._latency_counts.get(action)
        if counts is None:
            counts = self._latency_counts[action] = [0] * (len(LATENCY_BOUNDS_S) + 1)
        counts[bisect_left(LATENCY_BOUNDS_S, duration_s)] += 1
        self._latency_sums[action] = self._latency_sums.get(action, 0.0) + duration_s

    def families(self) -> list[MetricFamily]:
        """All of it."""
        response_rows = [
            ("", {"action": a, "status": str(s)}, n) for (a, s), n in sorted(self._response_counts.items())
        ]
        latency_rows = [
            row
            for action in sorted(self._latency_counts)
            for row in make_histogram_rows(
                {"action": action}, LATENCY_BOUNDS_S, self._latency_counts[action], self._latency_sums[action]
            )
        ]
        return [
            MetricFamily("falaj_requests_total", "Answers by action and status.", COUNTER, response_rows),
            make_labelled_family(
                "reason", "falaj_refused_total", "Requests refused before any verb.", self.refused, COUNTER
            ),
            MetricFamily("falaj_request_seconds", "Time to answer, without bulk and streams.", HISTOGRAM, latency_rows),
            make_gauge("falaj_open_event_streams", "Event streams open now.", self.open_streams),
            *list_process_families(self._started),
        ]


def list_process_families(started: float) -> list[MetricFamily]:
    """What this process takes."""
    process_times = os.times()
    return [
        make_gauge("process_start_time_seconds", "When this process started.", started),
        make_counter("process_cpu_seconds_total", "Processor time used.", process_times.user + process_times.system),
        make_gauge("process_resident_memory_bytes", "Resident memory.", read_resident_bytes()),
    ]


def read_resident_bytes() -> float:
    """Memory of this process that is in use now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - a kernel file, read often
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        return 0.0


def _escape_label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
