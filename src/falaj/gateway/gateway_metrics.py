"""Metrics of a gateway, as Prometheus reads them: what tallies have counted since the start, and how things stand."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from falaj.api.metrics import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    Labels,
    MetricFamily,
    MetricRow,
    format_families,
    list_process_families,
    make_counter,
    make_gauge,
    make_histogram_rows,
    make_labelled_family,
)
from falaj.api.platform_metrics import list_trace_families
from falaj.gateway.arm_tally import BOUNDS_US, ArmTallies, ArmTally
from falaj.gateway.upstream_connection import BREAKER_FAILURES, UpstreamConnection

if TYPE_CHECKING:
    from falaj.gateway.cold_start_queue import ColdStartQueue
    from falaj.gateway.route_table import RouteTable

MAX_METRIC_ARMS = 500
"""Arms of endpoints that have series of their own; those with most requests come first."""
BOUNDS_S = tuple(bound / 1e6 for bound in BOUNDS_US)


class GatewayMetrics:
    """Of one gateway. Everything is read on the loop's thread, where it is written."""

    def __init__(self, tallies: ArmTallies, table: "RouteTable", cold_start_queue: "ColdStartQueue") -> None:
        self._tallies, self._table, self._cold_start_queue = tallies, table, cold_start_queue
        self._started_at = time.time()
        self.refused: Counter[str] = Counter()
        """By the code of the error: those who were not let in, or asked for what is not there."""
        self.unkept = 0
        """Requests that the journal had no room for."""

    def text(self, connections: int) -> bytes:
        """All of it; so many callers are connected."""
        return format_families(
            [
                *self._endpoint_families(),
                *self._state_families(connections),
                *list_trace_families(),
                *list_process_families(self._started_at),
            ]
        )

    def _endpoint_families(self) -> Iterator[MetricFamily]:
        arms = self._tallies.busiest(MAX_METRIC_ARMS)
        answers: list[MetricRow] = []
        times: list[MetricRow] = []
        for labels, arm_tally in arms:
            for index, answer_count in enumerate(arm_tally.classes):
                if answer_count:
                    answers.append(("", {**labels, "class": f"{index}xx"}, answer_count))
            times += make_histogram_rows(labels, BOUNDS_S, arm_tally.slots, arm_tally.seconds)
        yield MetricFamily("falaj_gateway_requests_total", "Answers by endpoint, arm and class.", COUNTER, answers)
        yield MetricFamily(
            "falaj_gateway_errors_total", "Answers that count as errors.", COUNTER, _tally_rows(arms, "failed")
        )
        yield MetricFamily("falaj_gateway_request_seconds", "Time to answer, by endpoint.", HISTOGRAM, times)
        yield MetricFamily(
            "falaj_gateway_in_flight", "Requests that replicas work on.", GAUGE, _tally_rows(arms, "inflight")
        )
        yield MetricFamily("falaj_gateway_held", "Requests that wait for a replica.", GAUGE, _tally_rows(arms, "held"))

    def _state_families(self, connections: int) -> Iterator[MetricFamily]:
        upstreams = [
            upstream for routed in self._table.routes.values() for pool in routed.pools.values() for upstream in pool
        ]
        yield make_labelled_family(
            "code", "falaj_gateway_refused_total", "Requests that reached no endpoint.", self.refused, COUNTER
        )
        retry_count = sum(routed.budget.taken for routed in self._table.routes.values())
        yield make_counter(
            "falaj_gateway_retries_total", "Requests that were asked of another replica, too.", retry_count
        )
        yield make_counter("falaj_gateway_unkept_total", "Requests the journal had no room for.", self.unkept)
        yield make_gauge("falaj_gateway_endpoints", "Endpoints that can be called.", len(self._table.routes))
        yield make_labelled_family(
            "state", "falaj_gateway_replicas", "Connections to replicas.", Counter(map(_upstream_state, upstreams))
        )
        yield make_gauge(
            "falaj_gateway_waiting", "Requests held until there is a replica.", len(self._cold_start_queue)
        )
        yield make_gauge("falaj_gateway_connections", "Callers that are connected.", connections)


def _tally_rows(arms: Iterable[tuple[Labels, ArmTally]], field_name: str) -> list[MetricRow]:
    return [("", labels, float(getattr(arm_tally, field_name))) for labels, arm_tally in arms]


def _upstream_state(upstream: UpstreamConnection) -> str:
    return "broken" if upstream.fails >= BREAKER_FAILURES else "ready" if upstream.client.ready else "away"
