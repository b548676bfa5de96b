"""The table of endpoints: what each one is, and connections to its replicas. Read in a thread, swapped as one."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from falaj.core.errors import FalajError
from falaj.gateway.link import Link
from falaj.gateway.pick import Budget
from falaj.gateway.tally import Tallies, Tally
from falaj.serve.arms import arms_of
from falaj.serve.records import Place, Route

EVERY_S, HURRIED_S = 0.25, 0.02
"""How often the ledger is looked at; and while somebody waits for a first replica."""
Name = tuple[str, str]
Only = tuple[str, int, Tally, list[Link]]
"""An arm, its revision, where it is counted, and its replicas."""
_log = logging.getLogger(__name__)


class Routed:
    """One endpoint as requests need it. Never changed: a new one takes its place."""

    __slots__ = ("arms", "budget", "name", "only", "pools", "route", "rules", "sticky", "tallies")

    def __init__(self, route: Route, links: Mapping[Place, Link], budget: Budget, tallies: Tallies) -> None:
        self.route, self.budget, self.rules = route, budget, route.rules
        self.name: Name = (route.tenant, route.name)
        self.arms = arms_of(route)
        self.sticky = (route.rules.sticky or "falaj-key").lower().encode()
        self.pools: dict[int, list[Link]] = {}
        for place, link in links.items():
            self.pools.setdefault(place.revision, []).append(link)
        self.tallies: dict[str, Tally] = {
            arm: tallies.of(route, arm, revision) for arm, (revision, _) in route.shares.items()
        }
        self.only: Only | None = None
        """Where one arm has everybody: all that there is to choose. Those who read features are looked at each time."""
        if len(self.arms.names) == 1 and not route.features:
            arm, revision = self.arms.pick(None)
            self.only = arm, revision, self.tallies[arm], self.pools.get(revision, [])


class Table:
    """All endpoints by (tenant, name)."""

    def __init__(
        self,
        tallies: Tallies,
        changed: Callable[[], Any],
        fresh: Callable[[Route, Link], Any],
        heard: Callable[[Route, Link, dict[str, Any]], Any] | None = None,
    ) -> None:
        """`changed`: somebody who waits may look again. `fresh`: a replica was connected. `heard`: one spoke."""
        self.routes: dict[Name, Routed] = {}
        self.turn = 0
        """How often they were changed."""
        self._heard = heard
        self._tallies, self._changed, self._fresh = tallies, changed, fresh
        self._links: dict[Name, dict[Place, Link]] = {}
        self._budgets: dict[Name, Budget] = {}

    def apply(self, found: Mapping[Name, Route]) -> None:
        """Take these for what there is; replicas that are not among them are asked no more."""
        routes: dict[Name, Routed] = {}
        for name, route in found.items():
            known = self.routes.get(name)
            if known is None or known.route != route:
                try:
                    known = self._made(name, route, known)
                except ValueError as error:  # one endpoint that makes no sense leaves the others alone
                    _log.error("a route makes no sense", extra={"endpoint": str(route.ref), "why": str(error)})
            if known is not None:
                routes[name] = known
        gone = [name for name in self._links if name not in found]
        self.routes = routes
        self.turn += 1
        for name in gone:
            for link in self._links.pop(name).values():
                link.leave()
        self._tallies.prune({id(one) for routed in routes.values() for one in routed.tallies.values()})
        self._budgets = {name: budget for name, budget in self._budgets.items() if name in found}
        self._changed()

    def close(self) -> None:
        """Ask nobody any more."""
        self.apply({})

    def _made(self, name: Name, route: Route, known: Routed | None) -> Routed:
        anew = known is not None and known.route.key != route.key
        links = self._links.get(name, {})
        kept = {place: links.pop(place) for place in route.places if place in links and not anew}
        for link in links.values():
            link.leave()
        for place in route.places:
            if place not in kept:
                moved, heard = partial(self._moved, name), partial(self._said, name)
                kept[place] = Link(place, route.key, moved, heard)
        self._links[name] = kept
        return Routed(route, kept, self._budgets.setdefault(name, Budget()), self._tallies)

    def _moved(self, name: Name, link: Link) -> None:
        routed = self.routes.get(name)
        if routed is not None and link.client.ready:
            self._fresh(routed.route, link)
        self._changed()

    def _said(self, name: Name, link: Link, said: dict[str, Any]) -> None:
        routed = self.routes.get(name)
        if routed is not None and self._heard is not None:
            self._heard(routed.route, link, said)


class Follower(threading.Thread):
    """Looks at the ledger and hands a changed table to the event loop."""

    def __init__(self, read: Callable[[], Mapping[Name, Route]], table: Table) -> None:
        super().__init__(name="routes", daemon=True)
        self._read, self._table = read, table
        self._loop = asyncio.get_running_loop()
        self._last: Mapping[Name, Route] | None = None
        self._ending, self._hurry = threading.Event(), threading.Event()
        self.hurried = False
        """Set while somebody waits for a first replica."""

    def look(self) -> None:
        """Look once, on this thread, and say what changed."""
        found = self._read()
        if found is not self._last:
            self._last = found
            self._loop.call_soon_threadsafe(self._table.apply, found)

    def run(self) -> None:
        """Until ended. What cannot be read now is read later; meanwhile the table stays as it is."""
        while not self._ending.is_set():
            try:
                self.look()
            except FalajError as error:
                _log.warning("routes were not read", extra={"why": error.message})
            except RuntimeError:  # the loop has ended
                return
            self._hurry.wait(HURRIED_S if self.hurried else EVERY_S)
            self._hurry.clear()

    def hurry(self) -> None:
        """Look now, and often, until `hurried` is taken back."""
        if not self.hurried:
            self.hurried = True
            self._hurry.set()

    def end(self) -> None:
        """Look no more."""
        self._ending.set()
        self._hurry.set()
