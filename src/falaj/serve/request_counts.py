"""What gateways counted: requests, errors and latencies of every arm, second by second, on the Series port.

Judges and the autoscaler read sums. Seconds that are some minutes old are put together as minutes, so that a trial of a
month is read as fast as one of an hour.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple, TypeVar

from falaj.core.data import dataclass
from falaj.core.event import generate_id
from falaj.core.ports import SeriesBlock, SeriesStore
from falaj.core.ref import Ref
from falaj.serve.sealed_blocks import RowOwner, SealedBlocks
from falaj.store.ledger import Ledger

GroupKeyT = TypeVar("GroupKeyT")
SERIES_PREFIX = "serve.counts."
RETENTION_S, HOUR_S = 90 * 86400.0, 3600.0
UNCOMPACTED_S = 120.0
"""Seconds younger than this stay single: gateways' clocks differ a little, and some write late."""
MIN_COMPACTED_BLOCKS = 64
PRESENT_S = 5.0
"""What a gateway said last counts as the present for so long."""
SHADOW_ARM = "shadow"
"""The arm under which copies are counted."""
EDGE_ARM = "edge"
"""The arm of servers that stand by themselves: no load of ours."""


class CountRow(NamedTuple):
    """One arm in one gateway in one second. `errors` are ours alone: a caller's bad request is none.

    latency_us: bucket to how many (see `bucket`). inflight and held: how it stood at the end of the second.
    """

    tenant: str
    endpoint: str
    arm: str
    revision: int
    at: float
    requests: int
    errors: int
    latency_us: dict[int, int]
    inflight: int
    held: int
    gateway: str
    zone: str


@dataclass(slots=True)
class ArmSum:
    """One arm over some time."""

    arm: str
    revision: int
    requests: int = 0
    errors: int = 0
    latency_us: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, row: CountRow) -> None:
        """A row more."""
        self.requests += row.requests
        self.errors += row.errors
        for bucket_name, count in row.latency_us.items():
            self.latency_us[bucket_name] += count

    def quantile_us(self, share: float) -> float:
        """A latency that this share of requests did not exceed; 0 when there were none."""
        return latency_quantile_us(self.latency_us, share)

    def above(self, bound_us: float) -> int:
        """How many took longer, to a bucket."""
        return sum(count for bucket_name, count in self.latency_us.items() if bucket_start_us(bucket_name) >= bound_us)


class RevisionLoad(NamedTuple):
    """How an endpoint, or one revision of it, stands now."""

    requests_s: float
    inflight: int
    held: int
    p95_us: float
    last_at: float
    """When somebody last asked; 0: not within the time looked at."""


class RequestCounts:
    """Counts of all endpoints."""

    def __init__(self, series: Callable[[], SeriesStore], ledger: Ledger) -> None:
        self._blocks = SealedBlocks(SERIES_PREFIX, CountRow, series, ledger)

    def append(self, rows: Iterable[CountRow]) -> None:
        """Rows of one second, of any endpoints; one write for all, durable on return."""
        blocks: list[SeriesBlock] = []
        for (tenant, endpoint, zone), group_rows in _group_rows(rows, lambda row: (row.tenant, row.endpoint, row.zone)):
            blocks.append(self._seal_rows(RowOwner(tenant, Ref.parse(endpoint), zone), group_rows))
        self._blocks.append(blocks)

    def rows(self, tenant: str, ref: Ref, from_time: float) -> list[CountRow]:
        """Every row from a moment on, oldest first."""
        blocks = self._blocks.blocks(tenant, ref, from_time)
        return [row for block in blocks for row in self._blocks.rows(block) if row.at >= from_time]

    def since(self, tenant: str, ref: Ref, from_time: float) -> dict[str, ArmSum]:
        """Sums by arm from a moment on. An arm that changed its revision meanwhile has the newest one's sum."""
        sums: dict[str, ArmSum] = {}
        for row in self.rows(tenant, ref, from_time):
            arm_sum = sums.get(row.arm)
            if arm_sum is None or arm_sum.revision < row.revision:
                arm_sum = sums[row.arm] = ArmSum(row.arm, row.revision)
            if arm_sum.revision == row.revision:
                arm_sum.add(row)
        return sums

    def load(self, tenant: str, ref: Ref, now: float, span_s: float = 30.0) -> dict[int, RevisionLoad]:
        """How each revision stands now, as the last seconds say."""
        rows = [row for row in self.rows(tenant, ref, now - span_s) if row.arm != EDGE_ARM]
        return {
            revision: _compute_load(revision_rows, now, span_s)
            for revision, revision_rows in _group_rows(rows, lambda row: row.revision)
        }

    def tidy(self, owner: RowOwner, now: float, cut_points: Sequence[float] = ()) -> int:
        """Put single seconds together as minutes, and remove what is too old; gives how many blocks went.

        Minutes are cut at `cut_points` (when a trial or a step of it began), so that sums from there on stay exact.
        """
        removed_count = self._blocks.expire(owner.tenant, owner.ref, now - RETENTION_S)
        recent_from = ((now - UNCOMPACTED_S) // HOUR_S - 1) * HOUR_S
        recent = self._blocks.blocks(owner.tenant, owner.ref, recent_from)
        old_blocks = [block for block in recent if block.at < now - UNCOMPACTED_S]
        if sum(not block.id.startswith("m") for block in old_blocks) < MIN_COMPACTED_BLOCKS:
            return removed_count
        rows = [row for block in old_blocks for row in self._blocks.rows(block)]
        hours = _group_rows(_group_minutes(rows, cut_points), lambda row: int(row.at // HOUR_S))
        new_blocks = [self._seal_rows(owner, hour_rows, f"m{generate_id()}") for _, hour_rows in hours]
        was_replaced = self._blocks.swap(owner.tenant, owner.ref, [block.id for block in old_blocks], new_blocks)
        return removed_count + (len(old_blocks) - len(new_blocks) if was_replaced else 0)

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._blocks.delete(tenant, ref)

    def _seal_rows(self, owner: RowOwner, rows: Sequence[CountRow], id_: str = "") -> SeriesBlock:
        row_times = [row.at for row in rows]
        return self._blocks.sealed(owner, rows, (min(row_times), max(row_times)), id_)


def latency_bucket(latency_us: int) -> int:
    """The bucket of a latency: eight to every doubling, so that a bucket is 12 % wide at most."""
    if latency_us < 8:
        return max(latency_us, 0)
    bits = latency_us.bit_length()
    return (bits - 3) << 3 | (latency_us >> (bits - 4)) & 7


def bucket_start_us(bucket_name: int) -> int:
    """Where a bucket begins; it ends where the next one begins."""
    return bucket_name if bucket_name < 8 else (8 | bucket_name & 7) << ((bucket_name >> 3) - 1)


def latency_quantile_us(latency_us: Mapping[int, int], quantile: float) -> float:
    """A latency that this share did not exceed, by a straight line within its bucket."""
    target_count, passed_count = quantile * sum(latency_us.values()), 0
    for bucket_name in sorted(latency_us):
        count = latency_us[bucket_name]
        if count and passed_count + count >= target_count:
            low, high = bucket_start_us(bucket_name), bucket_start_us(bucket_name + 1)
            return low + (high - low) * (target_count - passed_count) / count
        passed_count += count
    return 0.0


def _compute_load(rows: Sequence[CountRow], now: float, span_s: float) -> RevisionLoad:
    total = ArmSum("", 0)
    newest: dict[tuple[str, str], CountRow] = {}
    for row in rows:
        total.add(row)
        old_row = newest.get((row.gateway, row.arm))
        if old_row is None or row.at >= old_row.at:
            newest[row.gateway, row.arm] = row
    present_rows = [row for row in newest.values() if row.at >= now - PRESENT_S]
    asked_times = [row.at for row in rows if row.requests or row.inflight or row.held]
    return RevisionLoad(
        total.requests / span_s, sum(row.inflight for row in present_rows), sum(row.held for row in present_rows),
        total.quantile_us(0.95), max(asked_times, default=0.0),
    )  # fmt: skip


def _group_minutes(rows: Sequence[CountRow], marks: Sequence[float]) -> list[CountRow]:
    """One row for each arm, gateway and minute, in the order of time, at the moment of its newest second."""

    def minute_key(row: CountRow) -> tuple[object, ...]:
        return row.at // 60, sum(row.at >= mark for mark in marks), row.arm, row.revision, row.gateway

    minute_rows = []
    for _, group_rows in _group_rows(rows, minute_key):
        group_sum = ArmSum(group_rows[0].arm, group_rows[0].revision)
        for row in group_rows:
            group_sum.add(row)
        newest_row = max(group_rows, key=lambda row: row.at)
        minute_rows.append(
            newest_row._replace(
                requests=group_sum.requests, errors=group_sum.errors, latency_us=dict(group_sum.latency_us)
            )
        )
    return sorted(minute_rows, key=lambda row: row.at)


def _group_rows(
    rows: Iterable[CountRow], get_key: Callable[[CountRow], GroupKeyT]
) -> list[tuple[GroupKeyT, list[CountRow]]]:
    groups: dict[GroupKeyT, list[CountRow]] = {}
    for row in rows:
        groups.setdefault(get_key(row), []).append(row)
    return list(groups.items())
