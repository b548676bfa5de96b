"""What replicas of models with features read: the plan of their service, asked for anew in the name of whoever
deployed the revision, and told to every replica. Where that right was taken away, requests are refused."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from falaj.asof.space_keys import encrypt_space_keys
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.gateway.route_table import RoutedEndpoint
from falaj.gateway.upstream_connection import UpstreamConnection
from falaj.jobs.attempts import build_work_actor
from falaj.serve import endpoint_repository
from falaj.serve.records import EndpointRoute
from falaj.server import LocalClient
from falaj.store.codec import to_plain

if TYPE_CHECKING:
    import asyncio

    from falaj.server import Server

RENEW_INTERVAL_S = 30.0
_log = logging.getLogger(__name__)
RevisionKey = tuple[str, Ref, int]


class FeaturePlans:
    """Plans by revision, and who is told."""

    def __init__(self, server: "Server", pool: Executor, loop: "asyncio.AbstractEventLoop") -> None:
        self._server, self._pool, self._loop = server, pool, loop
        self._sent_plans: dict[RevisionKey, tuple[float, dict[str, Any]]] = {}
        self.barred: dict[RevisionKey, FalajError] = {}
        """Revisions whose features may not be read any more: requests are refused."""

    def greet(self, route: EndpointRoute, upstream: UpstreamConnection) -> None:
        """A replica was connected."""
        revision = upstream.place.revision
        if revision not in route.features:
            return
        fetched_at, plan = self._sent_plans.get((route.tenant, route.ref, revision), (0.0, {}))
        if time.monotonic() - fetched_at < RENEW_INTERVAL_S:
            upstream.tell(plan)
        else:
            self._submit_fetch(route, revision, lambda: [upstream])

    def renew(self, routes: Mapping[Any, RoutedEndpoint]) -> None:
        """Ask for all plans anew; every half minute."""
        for routed in routes.values():
            for revision in routed.route.features:
                upstreams = routed.pools.get(revision)
                if upstreams:
                    self._submit_fetch(routed.route, revision, lambda upstreams=upstreams: upstreams)  # type: ignore[misc]

    def _submit_fetch(
        self, route: EndpointRoute, revision: int, get_upstreams: Callable[[], list[UpstreamConnection]]
    ) -> None:
        self._pool.submit(self._fetch_plan, route, revision, get_upstreams)

    def _fetch_plan(
        self, route: EndpointRoute, revision: int, get_upstreams: Callable[[], list[UpstreamConnection]]
    ) -> None:
        """In a thread."""
        try:
            plan = self._control_message(route, revision)
        except FalajError as error:
            log_fields = {"endpoint": str(route.ref), "revision": revision, "why": error.message}
            _log.warning("a plan for features was not got", extra=log_fields)
            if not error.retry:
                self._loop.call_soon_threadsafe(self._bar_revision, (route.tenant, route.ref, revision), error)
            return
        self._loop.call_soon_threadsafe(self._send_plan, (route.tenant, route.ref, revision), plan, get_upstreams)

    def _bar_revision(self, key: RevisionKey, error: FalajError) -> None:
        self._sent_plans.pop(key, None)
        self.barred[key] = error

    def _send_plan(
        self, key: RevisionKey, plan: dict[str, Any], get_upstreams: Callable[[], list[UpstreamConnection]]
    ) -> None:
        self._sent_plans[key] = (time.monotonic(), plan)
        self.barred.pop(key, None)
        for upstream in get_upstreams():
            upstream.tell(plan)

    def _control_message(self, route: EndpointRoute, revision: int) -> dict[str, Any]:
        """What a replica is told: the plan, and the keys of its spaces sealed for the endpoint's replicas."""
        ctx = replace(self._server.system(), tenant=route.tenant)
        with self._server.ledger.read(ctx) as reader:
            record = reader.key(endpoint_repository.build_endpoint_key(route.tenant, route.ref))
            revisions = (
                [
                    revision_record
                    for revision_record in record.body["revisions"]
                    if revision_record["number"] == revision
                ]
                if record
                else []
            )
            if record is None or not revisions:
                return {}
            deployed = revisions[0]
            actor = build_work_actor(reader, replace(record, body={**record.body, "who": deployed["who"]}))
        client = LocalClient(self._server, actor, deployed["who"]["purpose"])
        service, model = Ref.parse(deployed["features"]), Ref.parse(deployed["model"])
        opening, keys = client.features.open(service, model=model), client.features.unlock(service, model=model)
        return {"features": to_plain(opening.plan), "online_keys": encrypt_space_keys(route.key, keys.spaces)}
