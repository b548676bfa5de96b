"""Metrics of a gateway, as Prometheus reads them: what tallies have counted since the start, and how things stand."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from falaj.api.figures import traces
from falaj.api.metrics import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Family,
    Labels,
    Row,
    buckets,
    by,
    counter,
    exposition,
    gauge,
    process,
)
from falaj.gateway.link import TRIP, Link
from falaj.gateway.tally import BOUNDS_US, Tallies, Tally

if TYPE_CHECKING:
    from falaj.gateway.holding import Holding
    from falaj.gateway.table import Table

MOST_ARMS = 500
"""Arms of endpoints that have series of their own; those with most requests come first."""
BOUNDS_S = tuple(bound / 1e6 for bound in BOUNDS_US)


class Metrics:
    """Of one gateway. Everything is read on the loop's thread, where it is written."""

    def __init__(self, tallies: Tallies, table: "Table", holding: "Holding") -> None:
        self._tallies, self._table, self._holding = tallies, table, holding
        self._started = time.time()
        self.refused: Counter[str] = Counter()
        """By the code of the error: those who were not let in, or asked for what is not there."""
        self.unkept = 0
        """Requests that the journal had no room for."""

    def text(self, connections: int) -> bytes:
        """All of it; so many callers are connected."""
        return exposition([*self._endpoints(), *self._standing(connections), *traces(), *process(self._started)])

    def _endpoints(self) -> Iterator[Family]:
        arms = self._tallies.busiest(MOST_ARMS)
        answers: list[Row] = []
        times: list[Row] = []
        for labels, one in arms:
            for index, num in enumerate(one.classes):
                if num:
                    answers.append(("", {**labels, "class": f"{index}xx"}, num))
            times += buckets(labels, BOUNDS_S, one.slots, one.seconds)
        yield Family("falaj_gateway_requests_total", "Answers by endpoint, arm and class.", COUNTER, answers)
        yield Family("falaj_gateway_errors_total", "Answers that count as errors.", COUNTER, _each(arms, "failed"))
        yield Family("falaj_gateway_request_seconds", "Time to answer, by endpoint.", HISTOGRAM, times)
        yield Family("falaj_gateway_in_flight", "Requests that replicas work on.", GAUGE, _each(arms, "inflight"))
        yield Family("falaj_gateway_held", "Requests that wait for a replica.", GAUGE, _each(arms, "held"))

    def _standing(self, connections: int) -> Iterator[Family]:
        links = [link for routed in self._table.routes.values() for pool in routed.pools.values() for link in pool]
        yield by("code", "falaj_gateway_refused_total", "Requests that reached no endpoint.", self.refused, COUNTER)
        again = sum(routed.budget.taken for routed in self._table.routes.values())
        yield counter("falaj_gateway_retries_total", "Requests that were asked of another replica, too.", again)
        yield counter("falaj_gateway_unkept_total", "Requests the journal had no room for.", self.unkept)
        yield gauge("falaj_gateway_endpoints", "Endpoints that can be called.", len(self._table.routes))
        yield by("state", "falaj_gateway_replicas", "Connections to replicas.", Counter(map(_state, links)))
        yield gauge("falaj_gateway_waiting", "Requests held until there is a replica.", len(self._holding))
        yield gauge("falaj_gateway_connections", "Callers that are connected.", connections)


def _each(arms: Iterable[tuple[Labels, Tally]], what: str) -> list[Row]:
    return [("", labels, float(getattr(one, what))) for labels, one in arms]


def _state(link: Link) -> str:
    return "broken" if link.fails >= TRIP else "ready" if link.client.ready else "away"
