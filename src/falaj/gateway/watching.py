"""What replicas counted: checked, written down once a second for all of them, and only then acknowledged.

A replica whose model came without a profile is handed the baseline of its revision, as soon as there is one.
"""

import asyncio
import base64
import binascii
import logging
import math
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from falaj.core.errors import Corrupt, FalajError, Invalid
from falaj.core.ref import Ref
from falaj.drift.profile import digest, read_profile
from falaj.drift.records import Profile
from falaj.drift.tally import Tally
from falaj.gateway.link import Link
from falaj.gateway.table import Routed
from falaj.serve.blocks import Whose
from falaj.serve.records import Route
from falaj.serve.sketches import Sketched, Sketches

MOST_BYTES, MOST_WAITING = 24 << 20, 64 << 20
"""Of one delta, as text; of all that wait to be written. What comes then is not acknowledged, so it comes again."""
MOST_PROFILES = 256
_LIFE, _DIGEST = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger(__name__)
Find = Callable[[str, Ref, int], bytes | None]
"""The profile of a revision of an endpoint of a tenant."""


class Came(NamedTuple):
    """A delta as it was told, by whom."""

    route: Route
    link: Link
    said: Mapping[str, Any]


class Watching:
    """One gateway's part in it. Called on the loop; reads and writes in threads."""

    def __init__(self, find: Find, sketches: Sketches, pool: Executor, loop: asyncio.AbstractEventLoop) -> None:
        self._find, self._sketches, self._pool, self._loop = find, sketches, pool, loop
        self._came: list[Came] = []
        self._bytes = 0
        self._has: WeakKeyDictionary[Link, str] = WeakKeyDictionary()
        """Which profile each replica counts by."""
        self._read: dict[str, tuple[bytes, str, Profile]] = {}

    def greet(self, route: Route, link: Link) -> None:
        """A replica was connected."""
        link.tell({"takes": True})
        self._has[link] = str(link.client.about.get("profile", ""))
        self._pool.submit(self._offer, route, link, self._has[link])

    def renew(self, routes: Mapping[Any, Routed]) -> None:
        """Look whether replicas should count by another profile; every half minute."""
        for routed in routes.values():
            for links in routed.pools.values():
                for link in links:
                    if link in self._has and link.client.ready:
                        self._pool.submit(self._offer, routed.route, link, self._has[link])

    def heard(self, route: Route, link: Link, said: Mapping[str, Any]) -> None:
        """A word of a replica; nothing is believed yet."""
        tally = said.get("tally")
        size = len(str(tally.get("data", ""))) if isinstance(tally, dict) else 0
        if isinstance(tally, dict) and 0 < size <= MOST_BYTES and self._bytes + size <= MOST_WAITING:
            self._bytes += size
            self._came.append(Came(route, link, tally))

    def take(self) -> list[Came]:
        """What is to be written now."""
        came, self._came, self._bytes = self._came, [], 0
        return came

    def written(self, came: list[Came]) -> None:
        """In a thread: what is good is kept, then acknowledged; what never can be is refused, so that it goes away."""
        kept: list[tuple[Came, Whose, Sketched]] = []
        refused: list[Came] = []
        for one in came:
            try:
                row = self._checked(one)
            except (Corrupt, Invalid) as error:
                _log.warning("what a replica counted is refused", extra={"why": error.message, **_who(one)})
                refused.append(one)
                continue
            if row is not None:
                kept.append((one, Whose(one.route.tenant, one.route.ref, one.route.zone), row))
        self._sketches.append_all([(whose, row) for _, whose, row in kept])
        for one, _, row in kept:
            self._loop.call_soon_threadsafe(one.link.tell, {"kept": [row.number]})
        for one in refused:
            self._loop.call_soon_threadsafe(one.link.tell, {"refused": [one.said.get("n")]})

    def _checked(self, one: Came) -> Sketched | None:
        """A delta that can be kept; None while its profile is not known here."""
        said, place = one.said, one.link.place
        life, number, profile = (said.get(name) for name in ("life", "n", "profile"))
        at, until = said.get("at"), said.get("until")
        named = _fits(_LIFE, life) and _fits(_DIGEST, profile) and type(number) is int and 0 < number < 1 << 48
        timed = all(type(one) in (int, float) and math.isfinite(one) for one in (at, until))  # type: ignore[arg-type]
        if not named or not timed or not 0 <= at <= until:  # type: ignore[operator]
            raise Invalid("a delta has no good number or moment", "this is a fault of the replica")
        known = self._profile(one.route, place.revision)
        if known is None:
            return None
        if known[0] != profile:
            raise Invalid("it was counted by a profile that is not the endpoint's", "the right one is on its way")
        try:
            data = base64.b64decode(said["data"], validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise Corrupt("a delta is no base64", "this is a fault of the replica") from error
        Tally.from_bytes(data, known[1])
        return Sketched(at, until, place.revision, f"{place.name}.{life}", number, profile, data)  # type: ignore[arg-type]

    def _profile(self, route: Route, revision: int) -> tuple[str, Profile] | None:
        data = self._find(route.tenant, route.ref, revision)
        if data is None:
            return None
        key = f"{route.tenant} {route.ref} {revision}"
        held = self._read.get(key)
        if held is None or held[0] != data:
            if len(self._read) >= MOST_PROFILES:
                self._read.clear()
            found = read_profile(data)
            held = self._read[key] = (data, digest(found), found)
        return held[1:]

    def _offer(self, route: Route, link: Link, has: str) -> None:
        """In a thread: the profile of a replica's revision, unless it has that one."""
        try:
            known = self._profile(route, link.place.revision)
        except FalajError as error:
            fields = {"endpoint": str(route.ref), "revision": link.place.revision, "why": error.message}
            _log.warning("a profile was not got", extra=fields)
            return
        if known is not None and known[0] != has:
            data = self._find(route.tenant, route.ref, link.place.revision) or b""
            self._loop.call_soon_threadsafe(self._hand, link, known[0], data.decode())

    def _hand(self, link: Link, name: str, text: str) -> None:
        if link.client.ready:
            link.tell({"profile": text, "digest": name})
            self._has[link] = name


def _fits(pattern: re.Pattern[str], said: object) -> bool:
    return isinstance(said, str) and pattern.fullmatch(said) is not None


def _who(one: Came) -> dict[str, Any]:
    return {"endpoint": str(one.route.ref), "replica": one.link.place.name}
