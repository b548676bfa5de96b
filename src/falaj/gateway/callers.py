"""Who calls, and what they may: asked of the house twice a second for each caller and endpoint, remembered meanwhile.

A token that was taken away, or a right, works a second longer at most. Refusals are remembered as well, so that
somebody who asks thousands of times is recorded once a second.
"""

import hashlib
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from falaj.api.rate_limits import TokenBuckets
from falaj.core.context import Actor
from falaj.core.errors import Denied, FalajError, NotFound, QuotaExceeded, Unauthenticated, Unavailable
from falaj.core.ref import Ref
from falaj.gateway.refusal_log import RefusalLog
from falaj.gateway.route_table import EndpointName, RoutedEndpoint
from falaj.oip.handler_calls import NO_HEADERS
from falaj.serve.records import EndpointRules

if TYPE_CHECKING:
    import asyncio

    from falaj.server import Server

CALLER_LIFETIME_S, EARLY_RENEWAL_S = 0.5, 0.25
"""So long somebody is known; and so early they are asked about again while they go on calling."""
MAX_KNOWN_CALLERS = 16_384
FAILURES_PER_S, MAX_FAILURES = 1.0, 20
"""Failures of one token, by its public part, from one address; others at that address are not counted with it."""
MAX_TOKEN_BYTES = 8192
MAX_LOOKUPS, MAX_PEER_LOOKUPS = 1024, 256
"""Lookups at once of tokens that were not good lately: in sum, and from one address."""
UNVERIFIED_THREADS = 2
_RENEWED_CALLER = "a caller whose token was good before"
_LOCAL_TOKEN_PATTERN = re.compile(r"fj_[0-9a-z]{16}(?=_)")
_log = logging.getLogger(__name__)
_SALT = secrets.token_bytes(16)
CALLER_ERRORS = (Denied, NotFound, Unauthenticated)
"""Refusals that concern the caller; any other error concerns the platform and is not remembered."""
CallerKey = tuple[bytes, str, bytes]
"""A digest of the Authorization (tokens are not kept in memory longer than somebody asks), the endpoint's name, and the
purpose."""


class EndpointCaller:
    """Somebody who may call an endpoint, or the reason why not."""

    __slots__ = ("actor", "early", "id", "name", "principal", "refused", "routed", "turn", "until")

    def __init__(self, actor: Actor | None, name: str, now: float, refusal: FalajError | None = None) -> None:
        self.actor, self.refused = actor, refusal
        if refusal is not None:  # never raised from here on: a traceback keeps every frame below it, and their bodies
            refusal.__traceback__ = None
        self.name: EndpointName = (actor.tenant if actor else "", name)
        self.id = actor.id if actor else ""
        self.principal = f"{actor.tenant}/{actor.id}" if actor else ""
        """What the bytes of a caller's requests are counted to."""
        lifetime_s = CALLER_LIFETIME_S
        if actor is not None and actor.expires:
            lifetime_s = min(CALLER_LIFETIME_S, actor.expires - time.time())
        self.until, self.early = now + lifetime_s, now + min(lifetime_s, EARLY_RENEWAL_S)
        self.routed: RoutedEndpoint | None = None
        self.turn = 0
        """The endpoint, as it was in that turn of the table."""


CallerCallback = Callable[[EndpointCaller], Any]


class CallerDirectory:
    """Asks the house, in threads; the event loop only looks things up."""

    def __init__(
        self,
        server: "Server",
        pool: Executor,
        loop: "asyncio.AbstractEventLoop",
        find_endpoint: Callable[[EndpointName], Ref | None],
    ) -> None:
        self._server, self._pool, self._loop, self._find_endpoint = server, pool, loop, find_endpoint
        self._unverified_pool = ThreadPoolExecutor(UNVERIFIED_THREADS, thread_name_prefix="unverified")
        """Lookups of tokens that were not good lately, so that a flood of them never delays those of callers."""
        self._admitted: dict[CallerKey, EndpointCaller] = {}
        self._refused: dict[CallerKey, EndpointCaller] = {}
        """Apart from each other, so that refusals never push out callers who may call."""
        self._authentic: dict[bytes, None] = {}
        """Digests of tokens that were good when they were last looked up, the newest last. They admit no request."""
        self._lookups: dict[CallerKey, list[CallerCallback]] = {}
        self._lookups_by_peer: dict[str, int] = {}
        """Lookups under way of tokens that are not authentic, by address."""
        self._failures = TokenBuckets(FAILURES_PER_S, MAX_FAILURES)
        self._refusals = RefusalLog(server, pool)
        self._rates: dict[tuple[EndpointName, float, int], TokenBuckets] = {}

    def known(self, key: CallerKey, authorization: bytes, now: float) -> EndpointCaller | None:
        """Who that is, when it is known; the hot path."""
        caller = self._admitted.get(key) or self._refused.get(key)
        if caller is None or now >= caller.until:
            return None
        if now >= caller.early and caller.refused is None and key not in self._lookups:
            self._start_lookup(
                key, authorization, (partial(self._count_outcome, key, _RENEWED_CALLER, ""),), self._pool
            )
        return caller

    def ask(
        self, key: CallerKey, authorization: bytes, peer_address: str, on_caller: CallerCallback
    ) -> EndpointCaller | None:
        """Find out who that is: gives a caller who is refused at once, else None, and calls `on_caller` on the loop
        later. Many requests of one caller ask once."""
        callbacks = self._lookups.get(key)
        if callbacks is not None:
            callbacks.append(on_caller)
            return None
        now, name = time.monotonic(), key[1]
        try:
            token = _parse_bearer(authorization)
        except Unauthenticated as error:
            self._refusals.count(peer_address, name, error.message)
            return EndpointCaller(None, name, now, error)
        if key[0] in self._authentic:  # it never waits for lookups of tokens that were never good
            self._start_lookup(
                key, authorization, (partial(self._count_outcome, key, peer_address, ""), on_caller), self._pool
            )
            return None
        token_id, peer_lookups = _failure_key(token), self._lookups_by_peer.get(peer_address, 0)
        wait_s = self._failures.wait((peer_address, token_id), now)
        if wait_s > 0.0:
            return EndpointCaller(
                None, name, now, slow_down_error(wait_s, "this token failed too often from your address")
            )
        if peer_lookups >= MAX_PEER_LOOKUPS or sum(self._lookups_by_peer.values()) >= MAX_LOOKUPS:
            return EndpointCaller(None, name, now, Unavailable("too many callers at once", "try again shortly"))
        self._lookups_by_peer[peer_address] = peer_lookups + 1
        count_outcome = partial(self._count_outcome, key, peer_address, token_id)
        self._start_lookup(
            key,
            authorization,
            (partial(self._finish_lookup, peer_address), count_outcome, on_caller),
            self._unverified_pool,
        )
        return None

    def vouch(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the token in these headers was good when it was last looked up."""
        return caller_key(NO_HEADERS, headers.get(b"authorization", b""), "")[0] in self._authentic

    def write_refusals(self) -> None:
        """Record the refusals since the last time, those of one address together."""
        self._refusals.write()

    def take(self, caller: EndpointCaller, rules: EndpointRules, now: float) -> float:
        """0.0 when the caller may ask once more now, else the seconds until then."""
        if rules.per_s <= 0.0:
            return 0.0
        key = (caller.name, rules.per_s, rules.burst)
        buckets = self._rates.get(key)
        if buckets is None:
            self._rates = {
                rate_key: old_buckets for rate_key, old_buckets in self._rates.items() if rate_key[0] != caller.name
            }
            buckets = self._rates[key] = TokenBuckets(rules.per_s, rules.burst or math.ceil(rules.per_s))
        return buckets.take(caller.id, now)

    def forget(self) -> None:
        """Ask anew about everybody."""
        self._admitted.clear()
        self._refused.clear()

    def close(self) -> None:
        """End the lookups of tokens that were not good lately."""
        self._unverified_pool.shutdown(wait=False, cancel_futures=True)

    def _start_lookup(
        self, key: CallerKey, authorization: bytes, callbacks: tuple[CallerCallback, ...], pool: Executor
    ) -> None:
        self._lookups[key] = list(callbacks)
        pool.submit(self._authenticate_caller, key, authorization)

    def _finish_lookup(self, peer_address: str, _: EndpointCaller) -> None:
        remaining = self._lookups_by_peer.pop(peer_address) - 1
        if remaining:
            self._lookups_by_peer[peer_address] = remaining

    def _count_outcome(self, key: CallerKey, peer_address: str, token_id: str, caller: EndpointCaller) -> None:
        if isinstance(caller.refused, Unauthenticated):
            self._refusals.count(peer_address, key[1], caller.refused.message)
            self._failures.take((peer_address, token_id), time.monotonic())

    def _authenticate_caller(self, key: CallerKey, authorization: bytes) -> None:
        """In a thread."""
        actor: Actor | None = None
        refusal: FalajError | None = Unavailable("the caller could not be looked up", "try again shortly")
        try:
            actor = self._server.authenticate(_parse_bearer(authorization))
            if key[1]:
                self._require_entry(actor, key)
            refusal = None
        except FalajError as error:
            refusal = error
        except Exception:
            _log.exception("the lookup of a caller failed")
            raise
        finally:  # a lookup without an answer would keep its caller waiting for good
            caller = EndpointCaller(actor, key[1], time.monotonic(), refusal)
            self._loop.call_soon_threadsafe(self._store_caller, key, caller)

    def _require_entry(self, actor: Actor, key: CallerKey) -> None:
        ref = self._find_endpoint((actor.tenant, key[1]))
        if ref is None:
            raise NotFound(f"there is no endpoint {key[1][:80]!r}", "falaj serve list shows those you may call")
        ctx = self._server.context(actor, purpose=key[2].decode("ascii", "replace")[:64])
        self._server.call("serve", "enter", ctx, {"endpoint": ref})

    def _store_caller(self, key: CallerKey, caller: EndpointCaller) -> None:
        refusal = caller.refused
        if refusal is None or isinstance(refusal, CALLER_ERRORS):
            _put_newest(self._refused if refusal else self._admitted, key, caller)
            (self._admitted if refusal else self._refused).pop(key, None)
            if isinstance(refusal, Unauthenticated):
                self._authentic.pop(key[0], None)
            else:
                _put_newest(self._authentic, key[0], None)
        elif key in self._admitted:
            _log.warning("a caller was not looked up", extra={"why": refusal.message})
        for callback in self._lookups.pop(key, ()):
            callback(caller)


def slow_down_error(wait_s: float, description: str) -> QuotaExceeded:
    """429 with the seconds to wait."""
    error = QuotaExceeded(description, f"try again in {max(1, math.ceil(wait_s))} s")
    error.retry_after_s = wait_s  # type: ignore[attr-defined]
    return error


def caller_key(headers: Mapping[bytes, bytes], authorization: bytes, name: str) -> CallerKey:
    """By what a caller is remembered."""
    # One token is one caller, however the header spells it; a request without a token is anonymous.
    token = authorization[7:].strip() if authorization[:7].lower() == b"bearer " else b""
    digest = hashlib.blake2b(token, digest_size=16, key=_SALT).digest()
    return digest, name, headers.get(b"falaj-purpose", b"")


def _put_newest(cache: "dict[Any, Any]", key: Any, value: Any) -> None:
    """Keep the newest entries: the oldest goes when there is no room."""
    cache.pop(key, None)
    if len(cache) >= MAX_KNOWN_CALLERS:
        del cache[next(iter(cache))]
    cache[key] = value


def _failure_key(token: str) -> str:
    """By what the failures of a token are counted: a local token's public part, a digest of a signed token. Whatever
    is neither cannot be good, and is counted together."""
    local_match = _LOCAL_TOKEN_PATTERN.match(token)
    if local_match:
        return local_match[0]
    return hashlib.blake2b(token.encode(), digest_size=16, key=_SALT).hexdigest() if token.count(".") == 2 else ""


def _parse_bearer(header: bytes) -> str:
    scheme, _, token = header.partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        raise Unauthenticated("nobody is named in this request", "send Authorization: Bearer <token>")
    if len(token) > MAX_TOKEN_BYTES or not token.isascii():
        raise Unauthenticated("that is no token", "copy it again, whole")
    return token.decode("ascii")
