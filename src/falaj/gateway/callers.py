"""Who calls, and what they may: asked of the house once a second for each caller and endpoint, remembered meanwhile.

A token that was taken away, or a right, works a second longer at most. Refusals are remembered as well, so that
somebody who asks thousands of times is recorded once a second.
"""

import hashlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from falaj.api.limits import Buckets
from falaj.core.context import Actor
from falaj.core.errors import Denied, FalajError, NotFound, QuotaExceeded, Unauthenticated, Unavailable
from falaj.core.ref import Ref
from falaj.gateway.table import Name, Routed
from falaj.serve.records import Rules

if TYPE_CHECKING:
    import asyncio

    from falaj.platform import House

KNOWN_S, EARLY_S = 1.0, 0.5
"""So long somebody is known; and so early they are asked about again while they go on calling."""
KNOWN = 16_384
FAILURES_PER_S, FAILURES = 1.0, 20
TOKEN_BYTES = 8192
MOST_ASKED = 1024
_log = logging.getLogger(__name__)
_SALT = secrets.token_bytes(16)
Key = tuple[bytes, str, bytes]
"""A digest of the Authorization (tokens are not kept in memory longer than somebody asks), the endpoint's name, and the
purpose."""


class Caller:
    """Somebody who may call an endpoint, or the reason why not."""

    __slots__ = ("actor", "early", "id", "name", "refused", "routed", "turn", "until")

    def __init__(self, actor: Actor | None, name: str, now: float, refused: FalajError | None = None) -> None:
        self.actor, self.refused = actor, refused
        self.name: Name = (actor.tenant if actor else "", name)
        self.id = actor.id if actor else ""
        lasts = KNOWN_S
        if actor is not None and actor.expires:
            lasts = min(KNOWN_S, actor.expires - time.time())
        self.until, self.early = now + lasts, now + min(lasts, EARLY_S)
        self.routed: Routed | None = None
        self.turn = 0
        """The endpoint, as it was in that turn of the table."""


Then = Callable[[Caller], Any]


class Callers:
    """Asks the house, in threads; the event loop only looks things up."""

    def __init__(
        self, house: "House", pool: Executor, loop: "asyncio.AbstractEventLoop", find: Callable[[Name], Ref | None]
    ) -> None:
        self._house, self._pool, self._loop, self._find = house, pool, loop, find
        self._known: dict[Key, Caller] = {}
        self._asking: dict[Key, list[Then]] = {}
        self._failures = Buckets(FAILURES_PER_S, FAILURES)
        limit = house.settings.limits.denials_per_s
        self._records = Buckets(limit, limit)
        self._rates: dict[tuple[Name, float, int], Buckets] = {}

    def known(self, key: Key, authorization: bytes, now: float) -> Caller | None:
        """Who that is, when it is known; the hot path."""
        found = self._known.get(key)
        if found is None or now >= found.until:
            return None
        if now >= found.early and found.refused is None and key not in self._asking:
            self._begin(key, authorization, ())
        return found

    def ask(self, key: Key, authorization: bytes, peer: str, then: Then) -> None:
        """Find out who that is; `then` is called on the loop. Many requests of one caller ask once."""
        waiting = self._asking.get(key)
        if waiting is not None:
            waiting.append(then)
            return
        now, old = time.monotonic(), self._known.get(key)
        # Somebody who was known a while ago does not suffer for strangers at the same address.
        wait_s = self._failures.wait(peer, now) if old is None or old.refused is not None else 0.0
        if wait_s > 0.0:
            then(Caller(None, key[1], now, slow_down(wait_s, "too many unknown tokens came from your address")))
        elif len(self._asking) >= MOST_ASKED:
            then(Caller(None, key[1], now, Unavailable("too many callers at once", "try again shortly")))
        else:
            self._begin(key, authorization, (lambda caller: self._judged(caller, peer), then))

    def take(self, caller: Caller, rules: Rules, now: float) -> float:
        """0.0 when the caller may ask once more now, else the seconds until then."""
        if rules.per_s <= 0.0:
            return 0.0
        key = (caller.name, rules.per_s, rules.burst)
        buckets = self._rates.get(key)
        if buckets is None:
            self._rates = {old: one for old, one in self._rates.items() if old[0] != caller.name}
            buckets = self._rates[key] = Buckets(rules.per_s, rules.burst or math.ceil(rules.per_s))
        return buckets.take(caller.id, now)

    def forget(self) -> None:
        """Ask anew about everybody."""
        self._known.clear()

    def _begin(self, key: Key, authorization: bytes, then: tuple[Then, ...]) -> None:
        self._asking[key] = list(then)
        self._pool.submit(self._found, key, authorization)

    def _judged(self, caller: Caller, peer: str) -> None:
        if isinstance(caller.refused, Unauthenticated):
            self._failures.take(peer, time.monotonic())

    def _found(self, key: Key, authorization: bytes) -> None:
        """In a thread."""
        actor: Actor | None = None
        refused: FalajError | None = None
        try:
            actor = self._house.authenticate(_bearer(authorization))
            if key[1]:
                self._enter(actor, key)
        except FalajError as error:
            refused = error
        if isinstance(refused, Unauthenticated):
            self._record(refused, key[1])
        caller = Caller(actor, key[1], time.monotonic(), refused)
        self._loop.call_soon_threadsafe(self._tell, key, caller)

    def _enter(self, actor: Actor, key: Key) -> None:
        ref = self._find((actor.tenant, key[1]))
        if ref is None:
            raise NotFound(f"there is no endpoint {key[1][:80]!r}", "falaj serve list shows those you may call")
        ctx = self._house.context(actor, purpose=key[2].decode("ascii", "replace")[:64])
        self._house.call("serve", "enter", ctx, {"endpoint": ref})

    def _record(self, error: FalajError, name: str) -> None:
        if self._records.take("all", time.monotonic()) > 0.0:
            return
        try:
            self._house.deny(None, f"gateway {name[:100]}", error.message)
        except FalajError as failed:
            _log.warning("a refusal was not recorded", extra={"why": failed.message})

    def _tell(self, key: Key, caller: Caller) -> None:
        if len(self._known) >= KNOWN:
            self._known.clear()
        # Something of ours that does not answer is no verdict about the caller.
        if caller.refused is None or isinstance(caller.refused, (Denied, NotFound, Unauthenticated)):
            self._known[key] = caller
        elif key in self._known:
            _log.warning("a caller was not looked up", extra={"why": caller.refused.message})
        for then in self._asking.pop(key, ()):
            then(caller)


def slow_down(wait_s: float, what: str) -> QuotaExceeded:
    """429 with the seconds to wait."""
    error = QuotaExceeded(what, f"try again in {max(1, math.ceil(wait_s))} s")
    error.retry_after_s = wait_s  # type: ignore[attr-defined]
    return error


def key_of(headers: Mapping[bytes, bytes], authorization: bytes, name: str) -> Key:
    """By what a caller is remembered."""
    known = hashlib.blake2b(authorization, digest_size=16, key=_SALT).digest()
    return known, name, headers.get(b"falaj-purpose", b"")


def _bearer(header: bytes) -> str:
    scheme, _, token = header.partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        raise Unauthenticated("nobody is named in this request", "send Authorization: Bearer <token>")
    if len(token) > TOKEN_BYTES or not token.isascii():
        raise Unauthenticated("that is no token", "copy it again, whole")
    return token.decode("ascii")
