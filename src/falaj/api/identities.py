"""Caches of verified identities, one for each kind of credential, and the bound on how many are verified at once.

A cache is keyed by a digest of the credential (of the bearer token without its scheme, of the session id, of the TLS
certificate), never by a header or a name, and holds successful verifications only: a flood of false credentials evicts
none of them. Verification of a false credential is never answered with a lockout, since its sender may share an address
with others; it is bounded by how many run at once for one peer.
"""

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

from falaj.api.lanes import Lanes, Outcome
from falaj.core.context import Actor
from falaj.core.errors import Unauthenticated, Unavailable

KNOWN_S = 1.0
"""Seconds for which a verified identity is used without verifying it again: within that, a revocation acts."""
AHEAD = 0.75
"""After this share of it the identity of a caller who goes on calling is verified again beside their calls."""
CACHED = 4096
"""Verified identities that are cached of each kind; the one unused for longest goes first."""
LOOKUPS_PER_PEER = 4
LOOKUPS = 16
"""Verifications that run at once, for one peer and in sum; others wait for their turn."""
WAITING_PER_PEER = 1024
"""Verifications of one peer that may wait; more than its connections can be only where a peer multiplexes calls."""


@lru_cache(maxsize=4096)
def peer_network(address: str) -> str:
    """The unit in which peers are bounded: an IPv4 address, or the /64 network that one IPv6 host can choose from."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


class PeerLookups:
    """Runs verifications, a few at a time for each peer and in sum, in the order in which they came."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._all = asyncio.Semaphore(LOOKUPS)
        self._peers: dict[str, tuple[asyncio.Semaphore, list[int]]] = {}

    async def run(self, peer: str, verify: Callable[..., Any], *args: Any) -> Outcome:
        """The outcome of `verify(*args)`, once it is the turn of this peer."""
        peer = peer_network(peer)
        turns, waiting = self._peers.setdefault(peer, (asyncio.Semaphore(LOOKUPS_PER_PEER), [0]))
        if waiting[0] >= WAITING_PER_PEER:
            hint = "try again in 1 s"
            return Outcome(None, Unavailable(f"{WAITING_PER_PEER} calls from your address wait to be verified", hint))
        waiting[0] += 1
        try:
            async with turns, self._all:
                return await self._lanes.verifying(verify, *args)
        finally:
            waiting[0] -= 1
            if not waiting[0]:
                self._peers.pop(peer, None)


class _Verified(NamedTuple):
    actor: Actor
    until: float
    lasts: float


class VerifiedIdentities:
    """Actors by the digest of the credential that proved them."""

    def __init__(self, lanes: Lanes, lookups: PeerLookups, clock: Callable[[], float]) -> None:
        self._lanes, self._lookups, self._clock = lanes, lookups, clock
        self._cached: OrderedDict[bytes, _Verified] = OrderedDict()
        self._pending: dict[bytes, asyncio.Future[Outcome]] = {}
        self._generation = 0

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def pending(self) -> tuple["asyncio.Future[Outcome]", ...]:
        """Verifications that are under way."""
        return tuple(self._pending.values())

    def clear(self) -> None:
        """Drop all entries: accounts or credentials changed. Lookups under way may have read the state before that."""
        self._generation += 1
        self._cached.clear()
        self._pending.clear()

    def cached(self, digest: bytes, verify: Callable[[], Actor]) -> Actor | None:
        """The actor, if verified less than `KNOWN_S` ago; `verify` runs beside the caller when that ends soon."""
        entry, now = self._cached.get(digest), self._clock()
        if entry is None or now >= entry.until:
            return None
        self._cached.move_to_end(digest)
        if now >= entry.until - entry.lasts * (1 - AHEAD) and digest not in self._pending:
            with suppress(Unavailable):  # the server stops; callers who are no longer cached are answered so
                self._watch(digest, self._lanes.verifying(verify))
        return entry.actor

    async def find(self, digest: bytes, peer: str, verify: Callable[[], Actor]) -> Actor:
        """The actor, cached or verified; many calls with one credential verify it once."""
        actor = self.cached(digest, verify)
        if actor is not None:
            return actor
        lookup = self._pending.get(digest)
        if lookup is None:
            lookup = asyncio.ensure_future(self._lookups.run(peer, verify))
            self._watch(digest, lookup)
        verified: Actor = (await asyncio.shield(lookup)).unwrap()
        return verified

    def _watch(self, digest: bytes, lookup: "asyncio.Future[Outcome]") -> None:
        self._pending[digest] = lookup
        lookup.add_done_callback(partial(self._finish, digest, self._generation))

    def _finish(self, digest: bytes, generation: int, lookup: "asyncio.Future[Outcome]") -> None:
        if self._pending.get(digest) is lookup:
            del self._pending[digest]
        if lookup.cancelled() or lookup.exception() is not None or generation != self._generation:
            return
        actor, error = lookup.result()
        if error is None:
            self._keep(digest, actor)
        elif isinstance(error, Unauthenticated):
            self._cached.pop(digest, None)

    def _keep(self, digest: bytes, actor: Actor) -> None:
        lasts = min(KNOWN_S, actor.expires - time.time()) if actor.expires else KNOWN_S
        self._cached[digest] = _Verified(actor, self._clock() + lasts, lasts)
        self._cached.move_to_end(digest)
        if len(self._cached) > CACHED:
            self._cached.popitem(last=False)
