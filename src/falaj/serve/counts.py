"""What gateways counted: requests, errors and latencies of every arm, second by second, on the Series port.

Judges and the autoscaler read sums. Seconds that are some minutes old are put together as minutes, so that a trial of a
month is read as fast as one of an hour.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple, TypeVar

from falaj.core.data import dataclass
from falaj.core.event import new_id
from falaj.core.ports import Block, Series
from falaj.core.ref import Ref
from falaj.serve.blocks import Blocks, Whose
from falaj.store.ledger import Ledger

K = TypeVar("K")
PREFIX = "serve.counts."
KEEP_S, HOUR_S = 90 * 86400.0, 3600.0
FRESH_S = 120.0
"""Seconds younger than this stay single: gateways' clocks differ a little, and some write late."""
TIDY_BLOCKS = 64
LIVE_S = 5.0
"""What a gateway said last counts as the present for so long."""
SHADOW = "shadow"
"""The arm under which copies are counted."""
EDGE = "edge"
"""The arm of servers that stand by themselves: no load of ours."""


class Counted(NamedTuple):
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
class Sum:
    """One arm over some time."""

    arm: str
    revision: int
    requests: int = 0
    errors: int = 0
    latency_us: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, row: Counted) -> None:
        """A row more."""
        self.requests += row.requests
        self.errors += row.errors
        for name, count in row.latency_us.items():
            self.latency_us[name] += count

    def quantile_us(self, share: float) -> float:
        """A latency that this share of requests did not exceed; 0 when there were none."""
        return quantile_us(self.latency_us, share)

    def above(self, bound_us: float) -> int:
        """How many took longer, to a bucket."""
        return sum(count for name, count in self.latency_us.items() if low_us(name) >= bound_us)


class Load(NamedTuple):
    """How an endpoint, or one revision of it, stands now."""

    requests_s: float
    inflight: int
    held: int
    p95_us: float
    last_at: float
    """When somebody last asked; 0: not within the time looked at."""


class Counts:
    """Counts of all endpoints."""

    def __init__(self, series: Callable[[], Series], ledger: Ledger) -> None:
        self._blocks = Blocks(PREFIX, Counted, series, ledger)

    def append(self, rows: Iterable[Counted]) -> None:
        """Rows of one second, of any endpoints; one write for all, durable on return."""
        made: list[Block] = []
        for (tenant, endpoint, zone), some in _by(rows, lambda row: (row.tenant, row.endpoint, row.zone)):
            made.append(self._sealed(Whose(tenant, Ref.parse(endpoint), zone), some))
        self._blocks.append(made)

    def rows(self, tenant: str, ref: Ref, since: float) -> list[Counted]:
        """Every row from a moment on, oldest first."""
        found = self._blocks.blocks(tenant, ref, since)
        return [row for block in found for row in self._blocks.rows(block) if row.at >= since]

    def since(self, tenant: str, ref: Ref, at: float) -> dict[str, Sum]:
        """Sums by arm from a moment on. An arm that changed its revision meanwhile has the newest one's sum."""
        sums: dict[str, Sum] = {}
        for row in self.rows(tenant, ref, at):
            found = sums.get(row.arm)
            if found is None or found.revision < row.revision:
                found = sums[row.arm] = Sum(row.arm, row.revision)
            if found.revision == row.revision:
                found.add(row)
        return sums

    def load(self, tenant: str, ref: Ref, now: float, span_s: float = 30.0) -> dict[int, Load]:
        """How each revision stands now, as the last seconds say."""
        rows = [row for row in self.rows(tenant, ref, now - span_s) if row.arm != EDGE]
        return {revision: _load(some, now, span_s) for revision, some in _by(rows, lambda row: row.revision)}

    def tidy(self, whose: Whose, now: float, marks: Sequence[float] = ()) -> int:
        """Put single seconds together as minutes, and remove what is too old; gives how many blocks went.

        Minutes are cut at `marks` (when a trial or a step of it began), so that sums from there on stay exact.
        """
        gone = self._blocks.expire(whose.tenant, whose.ref, now - KEEP_S)
        since = ((now - FRESH_S) // HOUR_S - 1) * HOUR_S
        recent = self._blocks.blocks(whose.tenant, whose.ref, since)
        found = [block for block in recent if block.at < now - FRESH_S]
        if sum(not block.id.startswith("m") for block in found) < TIDY_BLOCKS:
            return gone
        rows = [row for block in found for row in self._blocks.rows(block)]
        hours = _by(_minutes(rows, marks), lambda row: int(row.at // HOUR_S))
        made = [self._sealed(whose, some, f"m{new_id()}") for _, some in hours]
        swapped = self._blocks.swap(whose.tenant, whose.ref, [block.id for block in found], made)
        return gone + (len(found) - len(made) if swapped else 0)

    def delete(self, tenant: str, ref: Ref) -> None:
        """All of an endpoint."""
        self._blocks.delete(tenant, ref)

    def _sealed(self, whose: Whose, rows: Sequence[Counted], id_: str = "") -> Block:
        ats = [row.at for row in rows]
        return self._blocks.sealed(whose, rows, (min(ats), max(ats)), id_)


def bucket(latency_us: int) -> int:
    """The bucket of a latency: eight to every doubling, so that a bucket is 12 % wide at most."""
    if latency_us < 8:
        return max(latency_us, 0)
    bits = latency_us.bit_length()
    return (bits - 3) << 3 | (latency_us >> (bits - 4)) & 7


def low_us(name: int) -> int:
    """Where a bucket begins; it ends where the next one begins."""
    return name if name < 8 else (8 | name & 7) << ((name >> 3) - 1)


def quantile_us(latency_us: Mapping[int, int], share: float) -> float:
    """A latency that this share did not exceed, by a straight line within its bucket."""
    wanted, passed = share * sum(latency_us.values()), 0
    for name in sorted(latency_us):
        count = latency_us[name]
        if count and passed + count >= wanted:
            low, high = low_us(name), low_us(name + 1)
            return low + (high - low) * (wanted - passed) / count
        passed += count
    return 0.0


def _load(rows: Sequence[Counted], now: float, span_s: float) -> Load:
    whole = Sum("", 0)
    newest: dict[tuple[str, str], Counted] = {}
    for row in rows:
        whole.add(row)
        old = newest.get((row.gateway, row.arm))
        if old is None or row.at >= old.at:
            newest[row.gateway, row.arm] = row
    present = [row for row in newest.values() if row.at >= now - LIVE_S]
    asked = [row.at for row in rows if row.requests or row.inflight or row.held]
    return Load(
        whole.requests / span_s, sum(row.inflight for row in present), sum(row.held for row in present),
        whole.quantile_us(0.95), max(asked, default=0.0),
    )  # fmt: skip


def _minutes(rows: Sequence[Counted], marks: Sequence[float]) -> list[Counted]:
    """One row for each arm, gateway and minute, in the order of time, at the moment of its newest second."""

    def group(row: Counted) -> tuple[object, ...]:
        return row.at // 60, sum(row.at >= mark for mark in marks), row.arm, row.revision, row.gateway

    made = []
    for _, some in _by(rows, group):
        whole = Sum(some[0].arm, some[0].revision)
        for row in some:
            whole.add(row)
        last = max(some, key=lambda row: row.at)
        made.append(last._replace(requests=whole.requests, errors=whole.errors, latency_us=dict(whole.latency_us)))
    return sorted(made, key=lambda row: row.at)


def _by(rows: Iterable[Counted], key: Callable[[Counted], K]) -> list[tuple[K, list[Counted]]]:
    groups: dict[K, list[Counted]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.items())
