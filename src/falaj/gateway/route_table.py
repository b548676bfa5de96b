"""The table of endpoints: what each one is, and connections to its replicas. Read in a thread, swapped as one."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from falaj.core.errors import FalajError
from falaj.gateway.arm_tally import ArmTallies, ArmTally
from falaj.gateway.load_balancer import RetryBudget
from falaj.gateway.upstream_connection import UpstreamConnection
from falaj.serve.records import EndpointRoute, ReplicaAddress
from falaj.serve.traffic_split import get_traffic_split

POLL_INTERVAL_S, HURRIED_POLL_INTERVAL_S = 0.25, 0.02
"""How often the ledger is looked at; and while somebody waits for a first replica."""
EndpointName = tuple[str, str]
SoleArm = tuple[str, int, ArmTally, list[UpstreamConnection]]
"""An arm, its revision, where it is counted, and its replicas."""
_log = logging.getLogger(__name__)


class RoutedEndpoint:
    """One endpoint as requests need it. Never changed: a new one takes its place."""

    __slots__ = ("arms", "budget", "name", "only", "pools", "route", "rules", "sticky", "tallies")

    def __init__(
        self,
        route: EndpointRoute,
        upstreams: Mapping[ReplicaAddress, UpstreamConnection],
        retry_budget: RetryBudget,
        arm_tallies: ArmTallies,
    ) -> None:
        self.route, self.budget, self.rules = route, retry_budget, route.rules
        self.name: EndpointName = (route.tenant, route.name)
        self.arms = get_traffic_split(route)
        self.sticky = (route.rules.sticky or "falaj-key").lower().encode()
        self.pools: dict[int, list[UpstreamConnection]] = {}
        for replica_address, upstream in upstreams.items():
            self.pools.setdefault(replica_address.revision, []).append(upstream)
        self.tallies: dict[str, ArmTally] = {
            arm: arm_tallies.of(route, arm, revision) for arm, (revision, _) in route.shares.items()
        }
        self.only: SoleArm | None = None
        """Where one arm has everybody: all that there is to choose. Those who read features are looked at each time."""
        if len(self.arms.names) == 1 and not route.features:
            arm, revision = self.arms.pick(None)
            self.only = arm, revision, self.tallies[arm], self.pools.get(revision, [])


class RouteTable:
    """All endpoints by (tenant, name)."""

    def __init__(
        self,
        arm_tallies: ArmTallies,
        on_changed: Callable[[], Any],
        on_connected: Callable[[EndpointRoute, UpstreamConnection], Any],
        on_message: Callable[[EndpointRoute, UpstreamConnection, dict[str, Any]], Any] | None = None,
    ) -> None:
        """`on_changed`: somebody who waits may look again. `on_connected`: a replica was connected. `on_message`: one
        spoke."""
        self.routes: dict[EndpointName, RoutedEndpoint] = {}
        self.turn = 0
        """How often they were changed."""
        self._on_message = on_message
        self._arm_tallies, self._on_changed, self._on_connected = arm_tallies, on_changed, on_connected
        self._upstreams: dict[EndpointName, dict[ReplicaAddress, UpstreamConnection]] = {}
        self._retry_budgets: dict[EndpointName, RetryBudget] = {}

    def apply(self, new_routes: Mapping[EndpointName, EndpointRoute]) -> None:
        """Take these for what there is; replicas that are not among them are asked no more."""
        routes: dict[EndpointName, RoutedEndpoint] = {}
        for name, route in new_routes.items():
            endpoint = self.routes.get(name)
            if endpoint is None or endpoint.route != route:
                try:
                    endpoint = self._create_routed(name, route, endpoint)
                except ValueError as error:  # one endpoint that makes no sense leaves the others alone
                    _log.error("a route makes no sense", extra={"endpoint": str(route.ref), "why": str(error)})
            if endpoint is not None:
                routes[name] = endpoint
        removed_names = [name for name in self._upstreams if name not in new_routes]
        self.routes = routes
        self.turn += 1
        for name in removed_names:
            for upstream in self._upstreams.pop(name).values():
                upstream.leave()
        self._arm_tallies.prune({id(arm_tally) for routed in routes.values() for arm_tally in routed.tallies.values()})
        self._retry_budgets = {name: budget for name, budget in self._retry_budgets.items() if name in new_routes}
        self._on_changed()

    def close(self) -> None:
        """Ask nobody any more."""
        self.apply({})

    def _create_routed(
        self, name: EndpointName, route: EndpointRoute, previous: RoutedEndpoint | None
    ) -> RoutedEndpoint:
        has_new_key = previous is not None and previous.route.key != route.key
        old_upstreams = self._upstreams.get(name, {})
        upstreams = {
            replica_address: old_upstreams.pop(replica_address)
            for replica_address in route.places
            if replica_address in old_upstreams and not has_new_key
        }
        for upstream in old_upstreams.values():
            upstream.leave()
        for replica_address in route.places:
            if replica_address not in upstreams:
                on_changed, on_message = (
                    partial(self._on_upstream_changed, name),
                    partial(self._on_upstream_message, name),
                )
                upstreams[replica_address] = UpstreamConnection(replica_address, route.key, on_changed, on_message)
        self._upstreams[name] = upstreams
        return RoutedEndpoint(route, upstreams, self._retry_budgets.setdefault(name, RetryBudget()), self._arm_tallies)

    def _on_upstream_changed(self, name: EndpointName, upstream: UpstreamConnection) -> None:
        routed = self.routes.get(name)
        if routed is not None and upstream.client.ready:
            self._on_connected(routed.route, upstream)
        self._on_changed()

    def _on_upstream_message(
        self, name: EndpointName, upstream: UpstreamConnection, control_message: dict[str, Any]
    ) -> None:
        routed = self.routes.get(name)
        if routed is not None and self._on_message is not None:
            self._on_message(routed.route, upstream, control_message)


class RouteFollower(threading.Thread):
    """Looks at the ledger and hands a changed table to the event loop."""

    def __init__(self, read_routes: Callable[[], Mapping[EndpointName, EndpointRoute]], table: RouteTable) -> None:
        super().__init__(name="routes", daemon=True)
        self._read_routes, self._table = read_routes, table
        self._loop = asyncio.get_running_loop()
        self._last_routes: Mapping[EndpointName, EndpointRoute] | None = None
        self._end_event, self._hurry_event = threading.Event(), threading.Event()
        self.hurried = False
        """Set while somebody waits for a first replica."""

    def look(self) -> None:
        """Look once, on this thread, and say what changed."""
        routes = self._read_routes()
        if routes is not self._last_routes:
            self._last_routes = routes
            self._loop.call_soon_threadsafe(self._table.apply, routes)

    def run(self) -> None:
        """Until ended. What cannot be read now is read later; meanwhile the table stays as it is."""
        while not self._end_event.is_set():
            try:
                self.look()
            except FalajError as error:
                _log.warning("routes were not read", extra={"why": error.message})
            except RuntimeError:  # the loop has ended
                return
            self._hurry_event.wait(HURRIED_POLL_INTERVAL_S if self.hurried else POLL_INTERVAL_S)
            self._hurry_event.clear()

    def hurry(self) -> None:
        """Look now, and often, until `hurried` is taken back."""
        if not self.hurried:
            self.hurried = True
            self._hurry_event.set()

    def end(self) -> None:
        """Look no more."""
        self._end_event.set()
        self._hurry_event.set()
