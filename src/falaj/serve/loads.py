"""How endpoints are asked: their load now, and requests, failures and times over the last hours. One part of the desk.

Everything is summed up here: whoever looks gets a few dozen numbers, however many requests there were.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

from falaj.core.context import Context
from falaj.core.data import dataclass
from falaj.core.errors import Invalid
from falaj.core.ref import Ref
from falaj.core.verb import verb
from falaj.serve import books
from falaj.serve.counts import KEEP_S, Counted, Sum, low_us
from falaj.serve.edges import Edges

MOST_PAGE, MOST_BEATS, MOST_LOAD_S = 1_000, 1_000, 3600.0
PER_DOUBLING = 4
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
class Beat:
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
class Spread:
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
    beats: tuple[Beat, ...]
    """Oldest first; stretches without a request are left out."""
    spreads: tuple[Spread, ...]


class Loads(Edges):
    """What the desk `serve` tells of load."""

    @verb()
    def loads(
        self,
        ctx: Context,
        project: Annotated[str, "of one project only"] = "",
        after: Annotated[str, "where the page before ended, as `list` tells it"] = "",
        limit: Annotated[int, "how many at most"] = 100,
        since_s: Annotated[float, "over the last so many seconds"] = 60.0,
    ) -> tuple[LoadView, ...]:
        """Say how the endpoints of a page of `list` are asked now: requests a second, the share that failed, and p95.

        Example:
            falaj serve loads --project fraud
        """
        if not 0 < limit <= MOST_PAGE or not 0 < since_s <= MOST_LOAD_S:
            raise Invalid(f"the load of {limit} endpoints over {since_s:g} s", f"up to {MOST_PAGE}, {MOST_LOAD_S:g} s")
        with self._ledger.read(ctx) as tx:
            cells = ctx.cells(books.ENDPOINT)
            page = tx.find(books.ENDPOINT, project=project, cells=cells, after=after, limit=limit)
        since = ctx.now() - since_s
        return tuple(_load(one.ref.bare, self.counts.rows(ctx.tenant, one.ref.bare, since), since_s)
                     for one in page.records)  # fmt: skip

    @verb(reads=("endpoint",))
    def traffic(
        self,
        ctx: Context,
        endpoint: Annotated[Ref, "which endpoint"],
        since_s: Annotated[float, "of the last so many seconds"] = 3600.0,
        beats: Annotated[int, "in so many stretches"] = 60,
    ) -> TrafficView:
        """Show how an endpoint was asked, arm by arm over time: requests, failures, and how long answers took.

        Example:
            falaj serve traffic endpoint:fraud/score --since-s 86400
        """
        if not 0 < since_s <= KEEP_S or not 0 < beats <= MOST_BEATS:
            raise Invalid(f"{beats} stretches of {since_s:g} s", f"1 to {MOST_BEATS}, of the last {KEEP_S:g} s")
        with self._ledger.read(ctx) as tx:
            record = books.need_endpoint(tx, endpoint)
        until, step_s = ctx.now(), since_s / beats
        rows = self.counts.rows(ctx.tenant, record.ref.bare, until - since_s)
        made = _beats(rows, until - since_s, step_s)
        return TrafficView(record.ref.bare, until - since_s, until, step_s, made, spreads(rows))


def _load(ref: Ref, rows: Iterable[Counted], span_s: float) -> LoadView:
    whole = Sum("", 0)
    for row in rows:
        whole.add(row)
    failed = whole.errors / whole.requests if whole.requests else 0.0
    return LoadView(ref, whole.requests / span_s, failed, whole.quantile_us(0.95) / 1000)


def _beats(rows: Sequence[Counted], since: float, step_s: float) -> tuple[Beat, ...]:
    sums: dict[tuple[int, str, int], Sum] = {}
    for row in rows:
        key = int((row.at - since) // step_s), row.arm, row.revision
        sums.setdefault(key, Sum(row.arm, row.revision)).add(row)
    return tuple(
        Beat(since + at * step_s, arm, revision, one.requests, one.errors, *(
            round(one.quantile_us(share) / 1000, 3) for share in (0.5, 0.95)))
        for (at, arm, revision), one in sorted(sums.items())
    )  # fmt: skip


def spreads(rows: Iterable[Counted]) -> tuple[Spread, ...]:
    """Times by arm, over the same edges."""
    sums: dict[tuple[str, int], dict[int, int]] = {}
    for row in rows:
        found = sums.setdefault((row.arm, row.revision), {})
        for name, count in row.latency_us.items():
            bar = name * PER_DOUBLING // 8
            found[bar] = found.get(bar, 0) + count
    bars = [bar for found in sums.values() for bar, count in found.items() if count]
    if not bars:
        return ()
    span = range(min(bars), max(bars) + 1)
    edges = tuple(low_us(bar * 8 // PER_DOUBLING) / 1000 for bar in (*span, span.stop))
    return tuple(
        Spread(arm, revision, edges, tuple(found.get(bar, 0) for bar in span))
        for (arm, revision), found in sorted(sums.items())
    )
