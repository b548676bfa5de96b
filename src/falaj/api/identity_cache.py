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

from falaj.api.call_executor import CallExecutor, CallOutcome
from falaj.core.context import Actor
from falaj.core.errors import Unauthenticated, Unavailable

IDENTITY_TTL_S = 1.0
"""Seconds for which a verified identity is used without verifying it again: within that, a revocation acts."""
REFRESH_FRACTION = 0.75
"""After this share of it the identity of a caller who goes on calling is verified again beside their calls."""
MAX_CACHED_IDENTITIES = 4096
"""Verified identities that are cached of each kind; the one unused for longest goes first."""
MAX_LOOKUPS_PER_PEER = 4
MAX_LOOKUPS = 16
"""Verifications that run at once, for one peer and in sum; others wait for their turn."""
MAX_WAITING_PER_PEER = 1024
"""Verifications of one peer that may wait; more than its connections can be only where a peer multiplexes calls."""


@lru_cache(maxsize=4096)
def get_peer_network(address: str) -> str:
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

    def __init__(self, call_executor: CallExecutor) -> None:
        self._call_executor = call_executor
        self._total_slots = asyncio.Semaphore(MAX_LOOKUPS)
        self._slots_by_peer: dict[str, tuple[asyncio.Semaphore, list[int]]] = {}

    async def run(self, peer: str, verify: Callable[..., Any], *args: Any) -> CallOutcome:
        """The outcome of `verify(*args)`, once it is the turn of this peer."""
        peer = get_peer_network(peer)
        peer_slots, waiting_count = self._slots_by_peer.setdefault(peer, (asyncio.Semaphore(MAX_LOOKUPS_PER_PEER), [0]))
        if waiting_count[0] >= MAX_WAITING_PER_PEER:
            hint = "try again in 1 s"
            return CallOutcome(
                None, Unavailable(f"{MAX_WAITING_PER_PEER} calls from your address wait to be verified", hint)
            )
        waiting_count[0] += 1
        try:
            async with peer_slots, self._total_slots:
                return await self._call_executor.verifying(verify, *args)
        finally:
            waiting_count[0] -= 1
            if not waiting_count[0]:
                self._slots_by_peer.pop(peer, None)


class _VerifiedIdentity(NamedTuple):
    actor: Actor
    until: float
    lasts: float


class VerifiedIdentities:
    """Actors by the digest of the credential that proved them."""

    def __init__(self, call_executor: CallExecutor, lookups: PeerLookups, clock: Callable[[], float]) -> None:
        self._call_executor, self._lookups, self._clock = call_executor, lookups, clock
        self._cached: OrderedDict[bytes, _VerifiedIdentity] = OrderedDict()
        self._pending: dict[bytes, asyncio.Future[CallOutcome]] = {}
        self._generation = 0

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def pending(self) -> tuple["asyncio.Future[CallOutcome]", ...]:
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
        if now >= entry.until - entry.lasts * (1 - REFRESH_FRACTION) and digest not in self._pending:
            with suppress(Unavailable):  # the server stops; callers who are no longer cached are answered so
                self._add_pending(digest, self._call_executor.verifying(verify))
        return entry.actor

    async def find(self, digest: bytes, peer: str, verify: Callable[[], Actor]) -> Actor:
        """The actor, cached or verified; many calls with one credential verify it once."""
        actor = self.cached(digest, verify)
        if actor is not None:
            return actor
        lookup = self._pending.get(digest)
        if lookup is None:
            lookup = asyncio.ensure_future(self._lookups.run(peer, verify))
            self._add_pending(digest, lookup)
        verified: Actor = (await asyncio.shield(lookup)).unwrap()
        return verified

    def _add_pending(self, digest: bytes, lookup: "asyncio.Future[CallOutcome]") -> None:
        self._pending[digest] = lookup
        lookup.add_done_callback(partial(self._finish_lookup, digest, self._generation))

    def _finish_lookup(self, digest: bytes, generation: int, lookup: "asyncio.Future[CallOutcome]") -> None:
        if self._pending.get(digest) is lookup:
            del self._pending[digest]
        if lookup.cancelled() or lookup.exception() is not None or generation != self._generation:
            return
        actor, error = lookup.result()
        if error is None:
            self._cache_actor(digest, actor)
        elif isinstance(error, Unauthenticated):
            self._cached.pop(digest, None)

    def _cache_actor(self, digest: bytes, actor: Actor) -> None:
        lifetime_s = min(IDENTITY_TTL_S, actor.expires - time.time()) if actor.expires else IDENTITY_TTL_S
        self._cached[digest] = _VerifiedIdentity(actor, self._clock() + lifetime_s, lifetime_s)
        self._cached.move_to_end(digest)
        if len(self._cached) > MAX_CACHED_IDENTITIES:
            self._cached.popitem(last=False)
