"""The gate: who is at the door. Host and Origin first, then the token; what is refused is counted and recorded."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from falaj.api.answers import Refusal
from falaj.api.lanes import Lanes, Outcome
from falaj.api.limits import Buckets
from falaj.api.routes import Ask
from falaj.core.context import Actor, Context
from falaj.core.errors import Denied, Invalid, QuotaExceeded, Unauthenticated, Unavailable
from falaj.govern.people import GUEST

if TYPE_CHECKING:
    from falaj.platform import House

EXCHANGE = b"/v1/people/exchange"
"""The one verb that nobody can have a token for yet: it gives the first one."""
JOIN = b"/v1/agents/join"
"""The same for agents, who have an invitation only."""
KNOCK, KNOCKER = b"/v1/knock/", replace(GUEST, id="knock")
"""Where a signature over the message stands in the place of a token, and who asks until it is checked."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
KNOWN_S = 1.0
"""A token that was good stays good so long without asking: the bound within which a revocation from elsewhere acts."""
AHEAD = 0.75
"""When so much of that is over, who goes on asking is looked up again beside their calls, so that none waits for it."""
CERTIFIED_S = 5.0
"""The same for the certificate of an agent, whose every answer would have to wait for it."""
KNOWN = 4096
TOKEN_BYTES = 8192
FAILURES_PER_S, FAILURES = 1.0, 20
_KEY = re.compile(r"[A-Za-z0-9._:-]{8,128}")
_PURPOSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}")


class Gate:
    """Checks a request before anything of it is read."""

    def __init__(
        self, house: "House", lanes: Lanes, hosts: Iterable[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        limits = house.settings.limits
        self._house = house
        self._lanes = lanes
        self._clock = clock
        self.hosts = frozenset(host.lower().encode() for host in hosts)
        self._rates = Buckets(limits.requests_per_s, limits.burst)
        self._failures = Buckets(FAILURES_PER_S, FAILURES)
        self._records = Buckets(limits.denials_per_s, limits.denials_per_s)
        # A door may have another way to show a token, and know more people than the house does.
        self.shown: Callable[[Ask], bytes] = lambda ask: ask.headers.get(b"authorization", b"")
        self.whois: Callable[[str], Actor] = house.authenticate
        self._known: dict[bytes, _Known] = {}
        self._asking: dict[bytes, asyncio.Future[Outcome]] = {}
        self._turn = 0

    def check_place(self, ask: Ask) -> None:
        """The name the caller used must be ours (rebinding), and a browser must have come from our own pages."""
        host = ask.headers.get(b"host", b"").lower()
        if host not in self.hosts:
            raise Refusal(
                Denied("this address does not answer to that host name", "add the name to the setting `hosts`"), 421
            )
        if ask.method in SAFE:
            return
        origin = ask.headers.get(b"origin")
        if origin is not None and origin.lower() not in (b"https://" + host, b"http://" + host):
            raise Denied("a page of another origin may not ask this", "call from your own program, with a token")
        if ask.headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
            raise Denied("a page of another site may not ask this", "call from your own program, with a token")

    async def admit(self, ask: Ask) -> Actor:
        """Who is asking, within what they may ask a second."""
        if ask.certified:
            ask.agent = await self._certified(ask)
        actor = ask.agent if ask.agent is not None and not self.shown(ask) else await self._identify(ask)
        ask.actor = actor
        wait = self._rates.take((actor.tenant, actor.id), self._clock())
        if wait > 0.0:
            raise too_fast(wait, "more requests than your share")
        return actor

    def at_hand(self, ask: Ask) -> bool:
        """Whether who asks is known without asking anybody, and may ask now; then the request has its actor."""
        known = self._known.get(self.shown(ask))
        if known is None or self._clock() >= known.until or ask.certified:
            return False
        ask.token, ask.actor = known.token, known.actor
        self._renew(self.shown(ask), known)
        return self._rates.wait((known.actor.tenant, known.actor.id), self._clock()) <= 0.0

    def spend(self, ask: Ask) -> None:
        """Count a request of a caller who was at hand."""
        self._rates.take((ask.caller.tenant, ask.caller.id), self._clock())

    def context(self, ask: Ask, actor: Actor, *, repeatable: bool = True) -> Context:
        """The caller's context: the purpose and, where an outcome can be kept, the request key that headers name."""
        key, purpose = ask.text(b"idempotency-key"), ask.text(b"falaj-purpose")
        if key and not _KEY.fullmatch(key):
            raise Invalid(
                "the Idempotency-Key is not 8 to 128 letters, digits or ._:-", "use a fresh UUID for each new intent"
            )
        if purpose and not _PURPOSE.fullmatch(purpose):
            raise Invalid("the Falaj-Purpose is not a purpose's name", "for example: fraud")
        ctx = self._house.context(actor, request=key if repeatable else "", purpose=purpose)
        if ask.agent is not None:
            ctx = replace(ctx, zone=ask.agent.zone)  # whoever comes through a zone's agent stands in that zone
        ask.request = ctx.request
        return ctx

    def unknown(self, ask: Ask) -> None:
        """Something came from there that nobody knows."""
        self._failures.take(ask.peer, self._clock())

    def forget(self) -> None:
        """Ask identity again for everyone: people or tokens changed."""
        self._turn += 1
        self._known.clear()
        self._asking.clear()  # who is asked about now may have been read before that

    async def record(self, ask: Ask, reason: str) -> None:
        """Leave an event about a refusal, not more a second than the log can bear."""
        if self._records.take("all", self._clock()) > 0.0:
            return
        ctx = self._house.context(ask.actor) if ask.actor is not None else None
        await self._lanes.inside(
            self._house.deny, ctx, f"{ask.method} {ask.path[:200].decode('ascii', 'replace')}", reason
        )

    async def _identify(self, ask: Ask) -> Actor:
        header = self.shown(ask)
        known = self._known.get(header)
        if known is not None and self._clock() < known.until:
            ask.token = known.token
            self._renew(header, known)
            return known.actor
        if not header and ask.path in (EXCHANGE, JOIN) and ask.method == "POST":
            return self._guest(ask)
        if ask.path.startswith(KNOCK) and ask.method == "POST":
            wait = self._failures.wait(ask.peer, self._clock())
            if wait > 0.0:
                raise too_fast(wait, "too much came from your address that nobody knows")
            return KNOCKER
        ask.token = _bearer(header)
        wait = self._failures.wait(ask.peer, self._clock()) if known is None else 0.0
        if wait > 0.0:
            raise too_fast(wait, "too many unknown tokens came from your address")
        turn = self._turn
        actor, error = await asyncio.shield(self._ask(header, ask.token))
        if error is not None:
            if isinstance(error, Unauthenticated):
                self._known.pop(header, None)
                self._failures.take(ask.peer, self._clock())
            raise error
        return self._remember(header, ask.token, actor) if turn == self._turn else actor

    def _ask(self, header: bytes, token: str) -> asyncio.Future[Outcome]:
        """Who a token is. Many requests with one token ask identity once."""
        asking = self._asking.get(header)
        if asking is None:
            asking = self._asking[header] = self._lanes.outside(self.whois, token)
            asking.add_done_callback(partial(self._asked, header))
        return asking

    def _asked(self, header: bytes, asking: asyncio.Future[Outcome]) -> None:
        if self._asking.get(header) is asking:
            del self._asking[header]

    def _renew(self, header: bytes, known: "_Known") -> None:
        """Look somebody up again who will soon not be known any more."""
        if header in self._asking or self._clock() < known.until - known.lasts * (1 - AHEAD):
            return
        turn = self._turn

        def found(asked: asyncio.Future[Outcome]) -> None:
            actor, error = asked.result()
            if isinstance(error, Unauthenticated):
                self._known.pop(header, None)  # the next call asks by itself, and is told
            elif error is None and turn == self._turn:
                self._remember(header, known.token, actor)

        with suppress(Unavailable):  # nobody is looked up any more; who is not known then is told so
            self._ask(header, known.token).add_done_callback(found)

    async def _certified(self, ask: Ask) -> Actor:
        """The agent whose certificate this is; one that was removed, or joined anew since, is nobody."""
        header = b"certificate " + ask.certified.encode()
        known = self._known.get(header)
        if known is not None and self._clock() < known.until:
            return known.actor
        desk = self._house.desks["agents"]
        actor, error = await self._lanes.outside(desk.whois, self._house.system(), ask.certified)
        if error is not None:
            self._failures.take(ask.peer, self._clock())
            raise error
        return self._remember(header, "", actor, CERTIFIED_S)

    def _guest(self, ask: Ask) -> Actor:
        """A build system that has only its own provider's token yet; each try counts, as an unknown token would."""
        wait = self._failures.take(ask.peer, self._clock())
        if wait > 0.0:
            raise too_fast(wait, "too many unknown tokens came from your address")
        return GUEST

    def _remember(self, header: bytes, token: str, actor: Actor, known_s: float = KNOWN_S) -> Actor:
        lasts = min(known_s, actor.expires - time.time()) if actor.expires else known_s
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[header] = _Known(actor, token, self._clock() + lasts, lasts)
        return actor


class _Known(NamedTuple):
    actor: Actor
    token: str
    until: float
    lasts: float


def _bearer(header: bytes) -> str:
    scheme, _, token = header.partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token:
        raise Unauthenticated(
            "nobody is named in this request", "send Authorization: Bearer <token>; `falaj login` keeps one for you"
        )
    if len(token) > TOKEN_BYTES or not token.isascii():
        raise Unauthenticated("that is no token", "copy it again, whole")
    return token.decode("ascii")


def too_fast(wait: float, what: str) -> Refusal:
    """429 with the seconds to wait."""
    seconds = max(1, math.ceil(wait))
    return Refusal(QuotaExceeded(what, f"try again in {seconds} s"), 429, (b"retry-after", b"%d" % seconds))
