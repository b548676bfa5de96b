"""What replicas of models with features read: the plan of their service, asked for anew in the name of whoever
deployed the revision, and told to every replica. Where that right was taken away, requests are refused."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from falaj.asof.space_keys import seal_keys
from falaj.core.errors import FalajError
from falaj.core.ref import Ref
from falaj.gateway.link import Link
from falaj.gateway.table import Routed
from falaj.jobs.attempts import at_work
from falaj.platform import Platform
from falaj.serve import books
from falaj.serve.records import Route
from falaj.store.codec import to_plain

if TYPE_CHECKING:
    import asyncio

    from falaj.platform import House

EVERY_S = 30.0
_log = logging.getLogger(__name__)
Key = tuple[str, Ref, int]


class Plans:
    """Plans by revision, and who is told."""

    def __init__(self, house: "House", pool: Executor, loop: "asyncio.AbstractEventLoop") -> None:
        self._house, self._pool, self._loop = house, pool, loop
        self._told: dict[Key, tuple[float, dict[str, Any]]] = {}
        self.barred: dict[Key, FalajError] = {}
        """Revisions whose features may not be read any more: requests are refused."""

    def greet(self, route: Route, link: Link) -> None:
        """A replica was connected."""
        revision = link.place.revision
        if revision not in route.features:
            return
        at, plan = self._told.get((route.tenant, route.ref, revision), (0.0, {}))
        if time.monotonic() - at < EVERY_S:
            link.tell(plan)
        else:
            self._ask(route, revision, lambda: [link])

    def renew(self, routes: Mapping[Any, Routed]) -> None:
        """Ask for all plans anew; every half minute."""
        for routed in routes.values():
            for revision in routed.route.features:
                links = routed.pools.get(revision)
                if links:
                    self._ask(routed.route, revision, lambda links=links: links)  # type: ignore[misc]

    def _ask(self, route: Route, revision: int, links: Callable[[], list[Link]]) -> None:
        self._pool.submit(self._asked, route, revision, links)

    def _asked(self, route: Route, revision: int, links: Callable[[], list[Link]]) -> None:
        """In a thread."""
        try:
            plan = self._control_message(route, revision)
        except FalajError as error:
            fields = {"endpoint": str(route.ref), "revision": revision, "why": error.message}
            _log.warning("a plan for features was not got", extra=fields)
            if not error.retry:
                self._loop.call_soon_threadsafe(self._bar, (route.tenant, route.ref, revision), error)
            return
        self._loop.call_soon_threadsafe(self._tell, (route.tenant, route.ref, revision), plan, links)

    def _bar(self, key: Key, error: FalajError) -> None:
        self._told.pop(key, None)
        self.barred[key] = error

    def _tell(self, key: Key, plan: dict[str, Any], links: Callable[[], list[Link]]) -> None:
        self._told[key] = (time.monotonic(), plan)
        self.barred.pop(key, None)
        for link in links():
            link.tell(plan)

    def _control_message(self, route: Route, revision: int) -> dict[str, Any]:
        """What a replica is told: the plan, and the keys of its spaces sealed for the endpoint's replicas."""
        ctx = replace(self._house.system(), tenant=route.tenant)
        with self._house.ledger.read(ctx) as tx:
            record = tx.key(books.endpoint_key(route.tenant, route.ref))
            found = [one for one in record.body["revisions"] if one["number"] == revision] if record else []
            if record is None or not found:
                return {}
            kept = found[0]
            actor = at_work(tx, replace(record, body={**record.body, "who": kept["who"]}))
        here = Platform(self._house, actor, kept["who"]["purpose"])
        service, model = Ref.parse(kept["features"]), Ref.parse(kept["model"])
        opening, keys = here.features.open(service, model=model), here.features.unlock(service, model=model)
        return {"features": to_plain(opening.plan), "online_keys": seal_keys(route.key, keys.spaces)}
