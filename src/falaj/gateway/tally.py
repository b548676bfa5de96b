"""What the gateway counts and keeps of requests until it is written down, second by second."""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping

from falaj.core.ref import Ref
from falaj.serve.counts import Counted, bucket, low_us
from falaj.serve.journal import Logged
from falaj.serve.records import Route

MOST_ARMS = 4096
BOUNDS_US = tuple(1 << bits for bits in (*range(9, 21), 22, 24))
"""Of what is told to Prometheus: from half a millisecond to 17 s, each where one of our own buckets begins."""
MOST_BYTES = 64 << 20
"""Of bodies that wait to be written; what comes then is not kept, and counted."""
_FINE_US, _LONG_US = 128, 1 << 16
_NAMES = tuple(bucket(at_us) for at_us in range(0, _LONG_US, 16))
"""The buckets of latencies in between, by sixteenths: from 128 us on none begins within one."""
REFUSED = (400, 422)
"""What a model refuses, or breaks over, counts as an error of its revision, though it may be the caller's fault: arms
get the same requests, so where one of them refuses more of them, it is that revision's."""


class Tally:
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

    def done(self, seconds: float, status: int, num: int = 1) -> None:
        """One was answered, or was not; or so many were at once."""
        self.requests += num
        self.seconds += num * seconds
        if status == 200:  # what nearly all are
            self.classes[2] += num
        else:
            self.classes[status // 100 % 10] += num
            if status >= 400 and (status >= 500 or status in REFUSED):
                self.errors += num
        at_us = int(seconds * 1e6)
        self.latency_us[_NAMES[at_us >> 4] if _FINE_US <= at_us < _LONG_US else bucket(at_us)] += num

    def turn(self) -> None:
        """A second is over: what it had is added to what was before."""
        for name, num in self.latency_us.items():
            self.slots[bisect_right(BOUNDS_US, low_us(name))] += num
        self.failed += self.errors
        self.requests, self.errors, self.latency_us = 0, 0, defaultdict(int)


class Tallies:
    """All arms of all endpoints."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._by: dict[tuple[str, str, str, str, int], Tally] = {}

    def of(self, route: Route, arm: str, revision: int) -> Tally:
        """Where an arm's requests are counted."""
        key = (route.tenant, str(route.ref), route.zone, arm, revision)
        found = self._by.get(key)
        if found is None:
            found = self._by[key] = Tally(arm, revision)
        return found

    def prune(self, used: set[int]) -> None:
        """Forget arms that are gone and have nothing left to tell; `used` are the ids of those that are not."""
        idle = [k for k, one in self._by.items() if id(one) not in used and not (one.told or one.inflight or one.held)]
        for key in idle if len(self._by) > MOST_ARMS else ():
            if not self._by[key].requests:
                del self._by[key]

    def rows(self, now: float) -> list[Counted]:
        """What there is to tell, and begin anew. An arm that is still asked or was a second ago has a row."""
        made: list[Counted] = []
        for (tenant, ref, zone, arm, revision), one in tuple(self._by.items()):
            busy = bool(one.requests or one.inflight or one.held)
            if busy or one.told:
                counts = one.requests, one.errors, one.latency_us, one.inflight, one.held
                made.append(Counted(tenant, ref, arm, revision, now, *counts, self._gateway, zone))
            one.told = busy
            one.turn()
        return made

    def busiest(self, most: int) -> list[tuple[Mapping[str, str], Tally]]:
        """Arms that were ever asked, with their labels; those that had most first."""
        known = sorted(self._by.items(), key=lambda item: -sum(item[1].classes))[:most]
        return [
            ({"tenant": key[0], "endpoint": key[1], "arm": key[3], "revision": str(key[4])}, one) for key, one in known
        ]


class Pages:
    """Requests that are to be kept, until the journal has them."""

    def __init__(self) -> None:
        self._by: dict[tuple[str, Ref, str], tuple[Route, list[Logged]]] = {}
        self._bytes = 0
        self.dropped = 0

    def add(self, route: Route, row: Logged) -> None:
        """Keep one, where there is room."""
        size = len(row.request) + len(row.response) + 500
        if self._bytes + size > MOST_BYTES:
            self.dropped += 1
            return
        self._bytes += size
        self._by.setdefault((route.tenant, route.ref, route.zone), (route, []))[1].append(row)

    def take(self) -> Iterator[tuple[Route, list[Logged]]]:
        """What is to be written, by endpoint."""
        found, self._by, self._bytes = self._by, {}, 0
        yield from found.values()


def at() -> float:
    """The moment, as rows say it."""
    return time.time()
