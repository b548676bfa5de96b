"""What one version of a model did: counts and histograms in powers of two, at next to no cost a request.

Written on the loop's thread and read there. Buckets double, so a p99 over many replicas is a sum of lists.
"""

import time
from collections.abc import Iterable
from typing import Any

BUCKET_COUNT = 28
"""The last one is for all above 2^26 us, a minute."""
MAX_BATCH_SIZES = 256


class PowerHistogram:
    """Times in buckets of 2^n microseconds, or rows in buckets of 2^n."""

    __slots__ = ("counts", "num", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKET_COUNT
        self.num = 0
        self.total = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """`count` times the same."""
        index = int(seconds * 1e6).bit_length()
        self.counts[index if index < BUCKET_COUNT else BUCKET_COUNT - 1] += count
        self.num += count
        self.total += seconds * count

    def add_rows(self, rows: int) -> None:
        """The size of one batch."""
        self.counts[min((rows - 1).bit_length(), BUCKET_COUNT - 1)] += 1
        self.num += 1
        self.total += rows

    def lines(self, name: str, labels: str, *, scale: float = 1e-6) -> Iterable[str]:
        """As Prometheus reads it; buckets nobody fell in are left out."""
        cumulative = 0
        for index, count in enumerate(self.counts[:-1]):
            cumulative += count
            if count:
                yield f'{name}_bucket{{{labels},le="{(1 << index) * scale:.9g}"}} {cumulative}'
        yield f'{name}_bucket{{{labels},le="+Inf"}} {self.num}'
        yield f"{name}_sum{{{labels}}} {self.total:.9g}"
        yield f"{name}_count{{{labels}}} {self.num}"


class ModelStatistics:
    """Of one version of one model."""

    __slots__ = (
        "cache_hits", "cache_misses", "compute", "encode", "executions", "failed", "inferences", "last", "queue",
        "refused", "rows", "sizes", "succeeded", "total_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queue, self.compute, self.encode, self.rows = (
            PowerHistogram(),
            PowerHistogram(),
            PowerHistogram(),
            PowerHistogram(),
        )
        self.succeeded = self.failed = self.refused = 0
        """Answered; broken or too late; told to come again."""
        self.inferences = self.executions = self.cache_hits = self.cache_misses = 0
        """Rows that were run, and runs."""
        self.total_s = self.last = 0.0
        self.sizes: dict[int, list[float]] = {}

    def ran(self, rows: int, request_count: int, compute_s: float, encode_s: float) -> None:
        """One run of `request_count` requests; `encode_s` is what it took to hand their answers on."""
        self.compute.add(compute_s, request_count)
        self.encode.add(encode_s / request_count, request_count)
        self.rows.add_rows(rows)
        self.succeeded += request_count
        self.inferences += rows
        self.executions += 1
        row_totals = self.sizes.get(rows)
        if row_totals is None:
            if len(self.sizes) >= MAX_BATCH_SIZES:
                return
            row_totals = self.sizes[rows] = [0, 0.0, 0.0]
        row_totals[0] += 1
        row_totals[1] += compute_s
        row_totals[2] += encode_s

    def triton(self, name: str, version: str) -> dict[str, Any]:
        """As Triton's statistics extension says it."""
        zero = {"count": 0, "ns": 0}
        return {
            "name": name, "version": version,
            "last_inference": int((time.time() - time.monotonic() + self.last) * 1000) if self.last else 0,
            "inference_count": self.inferences, "execution_count": self.executions,
            "inference_stats": {
                "success": _to_duration(self.succeeded, self.queue.total + self.compute.total + self.encode.total),
                "fail": {"count": self.failed, "ns": 0},
                "queue": _to_duration(self.queue.num, self.queue.total), "compute_input": zero,
                "compute_infer": _to_duration(self.compute.num, self.compute.total),
                "compute_output": _to_duration(self.encode.num, self.encode.total),
                "cache_hit": {"count": self.cache_hits, "ns": 0}, "cache_miss": {"count": self.cache_misses, "ns": 0},
            },
            "batch_stats": [
                {"batch_size": rows, "compute_input": zero, "compute_infer": _to_duration(int(run_count), run_seconds),
                 "compute_output": _to_duration(int(run_count), encode_seconds)}
                for rows, (run_count, run_seconds, encode_seconds) in sorted(self.sizes.items())
            ],
            "memory_usage": [],
        }  # fmt: skip


def render_exposition(model_statistics: Iterable[tuple[str, str, ModelStatistics, int]]) -> bytes:
    """All of them as Prometheus reads it: (model, version, what it did, how many wait)."""
    lines: list[str] = []
    labelled = [
        (f'model="{_escape_label(name)}",version="{_escape_label(version)}"', statistics, queued_count)
        for name, version, statistics, queued_count in model_statistics
    ]
    for phase, help_text in _PHASE_HELP.items():
        lines += (f"# HELP falaj_infer_{phase}_seconds {help_text}", f"# TYPE falaj_infer_{phase}_seconds histogram")
        for labels, statistics, _ in labelled:
            lines += getattr(statistics, phase).lines(f"falaj_infer_{phase}_seconds", labels)
    lines += ("# HELP falaj_infer_batch_rows Rows of one run.", "# TYPE falaj_infer_batch_rows histogram")
    for labels, statistics, _ in labelled:
        lines += statistics.rows.lines("falaj_infer_batch_rows", labels, scale=1)
    lines += ("# HELP falaj_infer_requests_total Requests by outcome.", "# TYPE falaj_infer_requests_total counter")
    for labels, statistics, _ in labelled:
        for outcome in ("succeeded", "failed", "refused"):
            lines.append(f'falaj_infer_requests_total{{{labels},outcome="{outcome}"}} {getattr(statistics, outcome)}')
    lines += ("# HELP falaj_infer_waiting Requests in line.", "# TYPE falaj_infer_waiting gauge")
    lines += [f"falaj_infer_waiting{{{labels}}} {queued_count}" for labels, _, queued_count in labelled]
    return ("\n".join(lines) + "\n").encode()


_PHASE_HELP = {
    "queue": "From a request's arrival to its run.",
    "compute": "A run of the model, for each request in it.",
    "encode": "Writing an answer, for each request.",
}


def _to_duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": int(seconds * 1e9)}


def _escape_label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
