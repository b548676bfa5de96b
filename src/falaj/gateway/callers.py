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

from falaj.api.limits import Buckets
from falaj.core.context import Actor
from falaj.core.errors import Denied, FalajError, NotFound, QuotaExceeded, Unauthenticated, Unavailable
from falaj.core.ref import Ref
from falaj.gateway.refusals import RefusalLog
from falaj.gateway.table import Name, Routed
from falaj.oip.calls import NO_HEADERS
from falaj.serve.records import Rules

if TYPE_CHECKING:
    import asyncio

    from falaj.platform import House

KNOWN_S, EARLY_S = 0.5, 0.25
"""So long somebody is known; and so early they are asked about again while they go on calling."""
KNOWN = 16_384
FAILURES_PER_S, FAILURES = 1.0, 20
"""Failures of one token, by its public part, from one address; others at that address are not counted with it."""
TOKEN_BYTES = 8192
MOST_ASKED, MOST_ASKED_OF_PEER = 1024, 256
"""Lookups at once of tokens that were not good lately: in sum, and from one address."""
UNVERIFIED_THREADS = 2
_KNOWN_BEFORE = "a caller whose token was good before"
_LOCAL_ID = re.compile(r"fj_[0-9a-z]{16}(?=_)")
_log = logging.getLogger(__name__)
_SALT = secrets.token_bytes(16)
VERDICTS = (Denied, NotFound, Unauthenticated)
"""Refusals that concern the caller; any other error concerns the platform and is not remembered."""
Key = tuple[bytes, str, bytes]
"""A digest of the Authorization (tokens are not kept in memory longer than somebody asks), the endpoint's name, and the
purpose."""


class Caller:
    """Somebody who may call an endpoint, or the reason why not."""

    __slots__ = ("actor", "early", "id", "name", "principal", "refused", "routed", "turn", "until")

    def __init__(self, actor: Actor | None, name: str, now: float, refused: FalajError | None = None) -> None:
        self.actor, self.refused = actor, refused
        if refused is not None:  # never raised from here on: a traceback keeps every frame below it, and their bodies
            refused.__traceback__ = None
        self.name: Name = (actor.tenant if actor else "", name)
        self.id = actor.id if actor else ""
        self.principal = f"{actor.tenant}/{actor.id}" if actor else ""
        """What the bytes of a caller's requests are counted to."""
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
        self._unverified_pool = ThreadPoolExecutor(UNVERIFIED_THREADS, thread_name_prefix="unverified")
        """Lookups of tokens that were not good lately, so that a flood of them never delays those of callers."""
        self._known: dict[Key, Caller] = {}
        self._refused: dict[Key, Caller] = {}
        """Apart from each other, so that refusals never push out callers who may call."""
        self._authentic: dict[bytes, None] = {}
        """Digests of tokens that were good when they were last looked up, the newest last. They admit no request."""
        self._asking: dict[Key, list[Then]] = {}
        self._unverified: dict[str, int] = {}
        """Lookups under way of tokens that are not authentic, by address."""
        self._failures = Buckets(FAILURES_PER_S, FAILURES)
        self._refusals = RefusalLog(house, pool)
        self._rates: dict[tuple[Name, float, int], Buckets] = {}

    def known(self, key: Key, authorization: bytes, now: float) -> Caller | None:
        """Who that is, when it is known; the hot path."""
        caller = self._known.get(key) or self._refused.get(key)
        if caller is None or now >= caller.until:
            return None
        if now >= caller.early and caller.refused is None and key not in self._asking:
            self._begin(key, authorization, (partial(self._judged, key, _KNOWN_BEFORE, ""),), self._pool)
        return caller

    def ask(self, key: Key, authorization: bytes, peer: str, then: Then) -> Caller | None:
        """Find out who that is: gives a caller who is refused at once, else None, and calls `then` on the loop later.
        Many requests of one caller ask once."""
        waiting = self._asking.get(key)
        if waiting is not None:
            waiting.append(then)
            return None
        now, name = time.monotonic(), key[1]
        try:
            token = _bearer(authorization)
        except Unauthenticated as error:
            self._refusals.count(peer, name, error.message)
            return Caller(None, name, now, error)
        if key[0] in self._authentic:  # it never waits for lookups of tokens that were never good
            self._begin(key, authorization, (partial(self._judged, key, peer, ""), then), self._pool)
            return None
        token_id, of_peer = _id_of(token), self._unverified.get(peer, 0)
        wait_s = self._failures.wait((peer, token_id), now)
        if wait_s > 0.0:
            return Caller(None, name, now, slow_down(wait_s, "this token failed too often from your address"))
        if of_peer >= MOST_ASKED_OF_PEER or sum(self._unverified.values()) >= MOST_ASKED:
            return Caller(None, name, now, Unavailable("too many callers at once", "try again shortly"))
        self._unverified[peer] = of_peer + 1
        judged = partial(self._judged, key, peer, token_id)
        self._begin(key, authorization, (partial(self._looked_up, peer), judged, then), self._unverified_pool)
        return None

    def vouch(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the token in these headers was good when it was last looked up."""
        return key_of(NO_HEADERS, headers.get(b"authorization", b""), "")[0] in self._authentic

    def write_refusals(self) -> None:
        """Record the refusals since the last time, those of one address together."""
        self._refusals.write()

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
        self._refused.clear()

    def close(self) -> None:
        """End the lookups of tokens that were not good lately."""
        self._unverified_pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, key: Key, authorization: bytes, then: tuple[Then, ...], pool: Executor) -> None:
        self._asking[key] = list(then)
        pool.submit(self._found, key, authorization)

    def _looked_up(self, peer: str, _: Caller) -> None:
        left = self._unverified.pop(peer) - 1
        if left:
            self._unverified[peer] = left

    def _judged(self, key: Key, peer: str, token_id: str, caller: Caller) -> None:
        if isinstance(caller.refused, Unauthenticated):
            self._refusals.count(peer, key[1], caller.refused.message)
            self._failures.take((peer, token_id), time.monotonic())

    def _found(self, key: Key, authorization: bytes) -> None:
        """In a thread."""
        actor: Actor | None = None
        refused: FalajError | None = Unavailable("the caller could not be looked up", "try again shortly")
        try:
            actor = self._house.authenticate(_bearer(authorization))
            if key[1]:
                self._enter(actor, key)
            refused = None
        except FalajError as error:
            refused = error
        except Exception:
            _log.exception("the lookup of a caller failed")
            raise
        finally:  # a lookup without an answer would keep its caller waiting for good
            caller = Caller(actor, key[1], time.monotonic(), refused)
            self._loop.call_soon_threadsafe(self._tell, key, caller)

    def _enter(self, actor: Actor, key: Key) -> None:
        ref = self._find((actor.tenant, key[1]))
        if ref is None:
            raise NotFound(f"there is no endpoint {key[1][:80]!r}", "falaj serve list shows those you may call")
        ctx = self._house.context(actor, purpose=key[2].decode("ascii", "replace")[:64])
        self._house.call("serve", "enter", ctx, {"endpoint": ref})

    def _tell(self, key: Key, caller: Caller) -> None:
        refused = caller.refused
        if refused is None or isinstance(refused, VERDICTS):
            _put(self._refused if refused else self._known, key, caller)
            (self._known if refused else self._refused).pop(key, None)
            if isinstance(refused, Unauthenticated):
                self._authentic.pop(key[0], None)
            else:
                _put(self._authentic, key[0], None)
        elif key in self._known:
            _log.warning("a caller was not looked up", extra={"why": refused.message})
        for then in self._asking.pop(key, ()):
            then(caller)


def slow_down(wait_s: float, what: str) -> QuotaExceeded:
    """429 with the seconds to wait."""
    error = QuotaExceeded(what, f"try again in {max(1, math.ceil(wait_s))} s")
    error.retry_after_s = wait_s  # type: ignore[attr-defined]
    return error


def key_of(headers: Mapping[bytes, bytes], authorization: bytes, name: str) -> Key:
    """By what a caller is remembered."""
    # One token is one caller, however the header spells it; a request without a token is anonymous.
    token = authorization[7:].strip() if authorization[:7].lower() == b"bearer " else b""
    digest = hashlib.blake2b(token, digest_size=16, key=_SALT).digest()
    return digest, name, headers.get(b"falaj-purpose", b"")


def _put(table: "dict[Any, Any]", key: Any, value: Any) -> None:
    """Keep the newest entries: the oldest goes when there is no room."""
    table.pop(key, None)
    if len(table) >= KNOWN:
        del table[next(iter(table))]
    table[key] = value


def _id_of(token: str) -> str:
    """By what the failures of a token are counted: a local token's public part, a digest of a signed token. Whatever
    is neither cannot be good, and is counted together."""
    local = _LOCAL_ID.match(token)
    if local:
        return local[0]
    return hashlib.blake2b(token.encode(), digest_size=16, key=_SALT).hexdigest() if token.count(".") == 2 else ""


def _bearer(header: bytes) -> str:
    scheme, _, token = header.partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        raise Unauthenticated("nobody is named in this request", "send Authorization: Bearer <token>")
    if len(token) > TOKEN_BYTES or not token.isascii():
        raise Unauthenticated("that is no token", "copy it again, whole")
    return token.decode("ascii")
