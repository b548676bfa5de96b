"""What the gateway counts and keeps of requests until it is written down, second by second."""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping

from falaj.core.ref import Ref
from falaj.serve.records import EndpointRoute
from falaj.serve.request_counts import CountRow, bucket_start_us, latency_bucket
from falaj.serve.request_journal import JournalRow

MAX_TALLIES = 4096
BOUNDS_US = tuple(1 << bits for bits in (*range(9, 21), 22, 24))
"""Of what is told to Prometheus: from half a millisecond to 17 s, each where one of our own buckets begins."""
MAX_JOURNAL_BYTES = 64 << 20
"""Of bodies that wait to be written; what comes then is not kept, and counted."""
_INDEXED_FROM_US, _INDEXED_TO_US = 128, 1 << 16
_BUCKET_BY_SIXTEENTH = tuple(latency_bucket(at_us) for at_us in range(0, _INDEXED_TO_US, 16))
"""The buckets of latencies in between, by sixteenths: from 128 us on none begins within one."""
REFUSED_STATUSES = (400, 422)
"""What a model refuses, or breaks over, counts as an error of its revision, though it may be the caller's fault: arms
get the same requests, so where one of them refuses more of them, it is that revision's."""


class ArmTally:
    """One arm, since the last second; and since the start, for Prometheus."""

    __slots__ = (
        "arm", "classes", "errors", "failed", "held", "inflight", "latency_us", "requests", "revision", "seconds",
        "slots", "told",
    )  # fmt: skip

    def __init__(self, arm: str, revision: int) -> None:
        self.arm, self.revision = arm, revision
        self.requests = self.errors = self.inflight = self.held = 0
        self.latency_us: dict[int, int] = defaultdict(int)
        self.classes, self.slots, self.seconds, self.failed = [0] * 10, [0] * (len(BOUNDS_US) + 1), 0.0, 0
        """Since the start: answers by their status' first digit, by latency, their time, and the errors among them."""
        self.told = False
        """The last row said that something is going on: another one says when it has ended."""

    def done(self, seconds: float, status: int, answer_count: int = 1) -> None:
        """One was answered, or was not; or so many were at once."""
        self.requests += answer_count
        self.seconds += answer_count * seconds
        if status == 200:  # what nearly all are
            self.classes[2] += answer_count
        else:
            self.classes[status // 100 % 10] += answer_count
            if status >= 400 and (status >= 500 or status in REFUSED_STATUSES):
                self.errors += answer_count
        latency_us = int(seconds * 1e6)
        self.latency_us[
            _BUCKET_BY_SIXTEENTH[latency_us >> 4]
            if _INDEXED_FROM_US <= latency_us < _INDEXED_TO_US
            else latency_bucket(latency_us)
        ] += answer_count

    def turn(self) -> None:
        """A second is over: what it had is added to what was before."""
        for bucket_name, answer_count in self.latency_us.items():
            self.slots[bisect_right(BOUNDS_US, bucket_start_us(bucket_name))] += answer_count
        self.failed += self.errors
        self.requests, self.errors, self.latency_us = 0, 0, defaultdict(int)


class ArmTallies:
    """All arms of all endpoints."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._tally_by_arm: dict[tuple[str, str, str, str, int], ArmTally] = {}

    def of(self, route: EndpointRoute, arm: str, revision: int) -> ArmTally:
        """Where an arm's requests are counted."""
        key = (route.tenant, str(route.ref), route.zone, arm, revision)
        arm_tally = self._tally_by_arm.get(key)
        if arm_tally is None:
            arm_tally = self._tally_by_arm[key] = ArmTally(arm, revision)
        return arm_tally

    def prune(self, used_ids: set[int]) -> None:
        """Forget arms that are gone and have nothing left to tell; `used_ids` are the ids of those that are not."""
        idle = [
            arm_key
            for arm_key, arm_tally in self._tally_by_arm.items()
            if id(arm_tally) not in used_ids and not (arm_tally.told or arm_tally.inflight or arm_tally.held)
        ]
        for key in idle if len(self._tally_by_arm) > MAX_TALLIES else ():
            if not self._tally_by_arm[key].requests:
                del self._tally_by_arm[key]

    def rows(self, now: float) -> list[CountRow]:
        """What there is to tell, and begin anew. An arm that is still asked or was a second ago has a row."""
        counted_rows: list[CountRow] = []
        for (tenant, ref, zone, arm, revision), arm_tally in tuple(self._tally_by_arm.items()):
            is_busy = bool(arm_tally.requests or arm_tally.inflight or arm_tally.held)
            if is_busy or arm_tally.told:
                counts = arm_tally.requests, arm_tally.errors, arm_tally.latency_us, arm_tally.inflight, arm_tally.held
                counted_rows.append(CountRow(tenant, ref, arm, revision, now, *counts, self._gateway, zone))
            arm_tally.told = is_busy
            arm_tally.turn()
        return counted_rows

    def busiest(self, max_arms: int) -> list[tuple[Mapping[str, str], ArmTally]]:
        """Arms that were ever asked, with their labels; those that had most first."""
        ranked = sorted(self._tally_by_arm.items(), key=lambda item: -sum(item[1].classes))[:max_arms]
        return [
            ({"tenant": key[0], "endpoint": key[1], "arm": key[3], "revision": str(key[4])}, arm_tally)
            for key, arm_tally in ranked
        ]


class JournalBuffer:
    """Requests that are to be kept, until the journal has them."""

    def __init__(self) -> None:
        self._rows_by_endpoint: dict[tuple[str, Ref, str], tuple[EndpointRoute, list[JournalRow]]] = {}
        self._buffered_bytes = 0
        self.dropped = 0

    def add(self, route: EndpointRoute, row: JournalRow) -> None:
        """Keep one, where there is room."""
        size = len(row.request) + len(row.response) + 500
        if self._buffered_bytes + size > MAX_JOURNAL_BYTES:
            self.dropped += 1
            return
        self._buffered_bytes += size
        self._rows_by_endpoint.setdefault((route.tenant, route.ref, route.zone), (route, []))[1].append(row)

    def take(self) -> Iterator[tuple[EndpointRoute, list[JournalRow]]]:
        """What is to be written, by endpoint."""
        rows_by_endpoint, self._rows_by_endpoint, self._buffered_bytes = self._rows_by_endpoint, {}, 0
        yield from rows_by_endpoint.values()


def current_time() -> float:
    """The moment, as rows say it."""
    return time.time()
