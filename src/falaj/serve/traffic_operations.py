"""How endpoints are asked: their load now, and requests, failures and times over the last hours. One part of the desk.

Everything is summed up here: whoever looks gets a few dozen numbers, however many requests there were.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

from falaj.core.context import CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.core.operation import operation
from falaj.core.ref import Ref
from falaj.serve import endpoint_repository
from falaj.serve.edge_operations import EdgeOperations
from falaj.serve.request_counts import RETENTION_S, ArmSum, CountRow, bucket_start_us

MAX_PAGE, MAX_INTERVALS, MAX_LOAD_SPAN_S = 1_000, 1_000, 3600.0
BARS_PER_DOUBLING = 4
"""Bars of a histogram to every doubling of the time; counts are kept twice as fine."""


@dataclass(frozen=True, slots=True)
class LoadView:
    """How an endpoint was asked of late."""

    STRUCTURE: ClassVar = ("ref", "requests_s", "errors", "p95_ms")
    COLUMNS: ClassVar[tuple[str, ...]] = ("ref", "requests_s", "errors", "p95_ms")

    ref: Ref
    requests_s: float
    errors: float
    """The share that failed."""
    p95_ms: float


@dataclass(frozen=True, slots=True)
class TrafficInterval:
    """One arm in one stretch of time."""

    STRUCTURE: ClassVar = ("at", "arm", "revision", "requests", "errors", "p50_ms", "p95_ms")
    COLUMNS: ClassVar[tuple[str, ...]] = ("at", "arm", "revision", "requests", "errors", "p50_ms", "p95_ms")

    at: float
    arm: str
    revision: int
    requests: int
    errors: int
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """How long the answers of one arm took: how many between each two edges."""

    STRUCTURE: ClassVar = ("arm", "revision", "edges_ms", "counts")
    COLUMNS: ClassVar[tuple[str, ...]] = ("arm", "revision", "counts")

    arm: str
    revision: int
    edges_ms: tuple[float, ...]
    """One more than counts; the same of every arm."""
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrafficView:
    """What was asked of an endpoint in some time."""

    STRUCTURE: ClassVar = ("ref", "since", "until", "step_s", "beats", "spreads")

    ref: Ref
    since: float
    until: float
    step_s: float
    beats: tuple[TrafficInterval, ...]
    """Oldest first; stretches without a request are left out."""
    spreads: tuple[LatencyHistogram, ...]


class TrafficOperations(EdgeOperations):
    """What the desk `serve` tells of load."""

    @operation()
    def loads(
        self,
        ctx: CallContext,
        project: Annotated[str, "of one project only"] = "",
        after: Annotated[str, "where the page before ended, as `list` tells it"] = "",
        limit: Annotated[int, "how many at most"] = 100,
        since_s: Annotated[float, "over the last so many seconds"] = 60.0,
    ) -> tuple[LoadView, ...]:
        """Say how the endpoints of a page of `list` are asked now: requests a second, the share that failed, and p95.

        Example:
            falaj serve loads --project fraud
        """
        if not 0 < limit <= MAX_PAGE or not 0 < since_s <= MAX_LOAD_SPAN_S:
            raise Invalid(
                f"the load of {limit} endpoints over {since_s:g} s", f"up to {MAX_PAGE}, {MAX_LOAD_SPAN_S:g} s"
            )
        with self._ledger.read(ctx) as reader:
            scopes = ctx.cells(endpoint_repository.ENDPOINT_KIND)
            page = reader.find(
                endpoint_repository.ENDPOINT_KIND, project=project, scopes=scopes, after=after, limit=limit
            )
        from_time = ctx.now() - since_s
        return tuple(
            _create_load_view(record.ref.bare, self.counts.rows(ctx.tenant, record.ref.bare, from_time), since_s)
            for record in page.records
        )

    @operation(reads=("endpoint",))
    def traffic(
        self,
        ctx: CallContext,
        endpoint: Annotated[Ref, "which endpoint"],
        since_s: Annotated[float, "of the last so many seconds"] = 3600.0,
        beats: Annotated[int, "in so many stretches"] = 60,
    ) -> TrafficView:
        """Show how an endpoint was asked, arm by arm over time: requests, failures, and how long answers took.

        Example:
            falaj serve traffic endpoint:fraud/score --since-s 86400
        """
        if not 0 < since_s <= RETENTION_S or not 0 < beats <= MAX_INTERVALS:
            raise Invalid(f"{beats} stretches of {since_s:g} s", f"1 to {MAX_INTERVALS}, of the last {RETENTION_S:g} s")
        with self._ledger.read(ctx) as reader:
            record = endpoint_repository.require_endpoint(reader, endpoint)
        to_time, step_s = ctx.now(), since_s / beats
        rows = self.counts.rows(ctx.tenant, record.ref.bare, to_time - since_s)
        intervals = _create_intervals(rows, to_time - since_s, step_s)
        return TrafficView(record.ref.bare, to_time - since_s, to_time, step_s, intervals, compute_histograms(rows))


def _create_load_view(ref: Ref, rows: Iterable[CountRow], span_s: float) -> LoadView:
    total = ArmSum("", 0)
    for row in rows:
        total.add(row)
    failed_share = total.errors / total.requests if total.requests else 0.0
    return LoadView(ref, total.requests / span_s, failed_share, total.quantile_us(0.95) / 1000)


def _create_intervals(rows: Sequence[CountRow], from_time: float, step_s: float) -> tuple[TrafficInterval, ...]:
    sum_by_interval: dict[tuple[int, str, int], ArmSum] = {}
    for row in rows:
        key = int((row.at - from_time) // step_s), row.arm, row.revision
        sum_by_interval.setdefault(key, ArmSum(row.arm, row.revision)).add(row)
    return tuple(
        TrafficInterval(
            from_time + interval_index * step_s,
            arm,
            revision,
            arm_sum.requests,
            arm_sum.errors,
            *(round(arm_sum.quantile_us(share) / 1000, 3) for share in (0.5, 0.95)),
        )
        for (interval_index, arm, revision), arm_sum in sorted(sum_by_interval.items())
    )


def compute_histograms(rows: Iterable[CountRow]) -> tuple[LatencyHistogram, ...]:
    """Times by arm, over the same edges."""
    counts_by_arm: dict[tuple[str, int], dict[int, int]] = {}
    for row in rows:
        bar_counts = counts_by_arm.setdefault((row.arm, row.revision), {})
        for bucket_name, count in row.latency_us.items():
            bar = bucket_name * BARS_PER_DOUBLING // 8
            bar_counts[bar] = bar_counts.get(bar, 0) + count
    bars = [bar for bar_counts in counts_by_arm.values() for bar, count in bar_counts.items() if count]
    if not bars:
        return ()
    span = range(min(bars), max(bars) + 1)
    edges = tuple(bucket_start_us(bar * 8 // BARS_PER_DOUBLING) / 1000 for bar in (*span, span.stop))
    return tuple(
        LatencyHistogram(arm, revision, edges, tuple(bar_counts.get(bar, 0) for bar in span))
        for (arm, revision), bar_counts in sorted(counts_by_arm.items())
    )
