"""The gate: who is at the door. Host and Origin first, then the caller; what is refused is counted and recorded.

A caller is known by one of three credentials, each verified apart from the others: an agent by the TLS certificate of
the connection, a program by `Authorization: Bearer`, a browser (for pages alone) by its session. No other header, and
no other scheme, is ever looked up.
"""

import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from falaj.api.answers import Refusal
from falaj.api.identities import PeerLookups, VerifiedIdentities, peer_network
from falaj.api.lanes import Lanes, Outcome
from falaj.api.limits import Buckets
from falaj.api.refusals import RefusalLog
from falaj.api.routes import Ask
from falaj.api.tls import AgentCertificate
from falaj.core.context import Actor, Context
from falaj.core.errors import Denied, Invalid, QuotaExceeded, Unauthenticated
from falaj.govern.people import GUEST

if TYPE_CHECKING:
    from falaj.platform import House

EXCHANGE = b"/v1/people/exchange"
"""The one verb that nobody can have a token for yet: it gives the first one."""
JOIN = b"/v1/agents/join"
"""The same for agents, who have an invitation only."""
ENROLL = b"/v1/people/enroll"
"""The same for people, who have an enrolment code only."""
AGENT_PATHS = frozenset(f"/v1/agents/{name}".encode() for name in ("listen", "answer", "token", "renew"))
"""What an agent asks for itself. All else that comes over its connection it passes on for others, who have tokens."""
KNOCK, KNOCKER = b"/v1/knock/", replace(GUEST, id="knock")
"""Where a signature over the message stands in the place of a token, and who asks until it is checked."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
TOKEN_BYTES = 8192
FAILURES_PER_S, FAILURES = 1.0, 20
"""False signatures that one peer may send to one inbound webhook, a second and at once."""
_KEY = re.compile(r"[A-Za-z0-9._:-]{8,128}")
_PURPOSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}")
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([!-~]{1,%d}) *" % TOKEN_BYTES)


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
        self.refusals = RefusalLog(house, lanes, clock)
        self._lookups = PeerLookups(lanes)
        caches = [VerifiedIdentities(lanes, self._lookups, clock) for _ in range(3)]
        self.tokens, self.sessions, self.agents = caches
        self.whois: Callable[[str], Actor] = house.authenticate
        # Set by the console: the session id in a request for one of its pages (None elsewhere), and whose it is.
        self.session_id: Callable[[Ask], str | None] = lambda ask: None
        self.session_actor: Callable[[str], Actor] = _no_session

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
        actor = ask.actor = await self.identify(ask)
        wait = self._rates.take((actor.tenant, actor.id), self._clock())
        if wait > 0.0:
            raise too_fast(wait, "more requests than your share")
        if ask.note_authenticated is not None and actor.kind != "guest":
            ask.note_authenticated()
        return actor

    async def identify(self, ask: Ask) -> Actor:
        """Who is asking, as verified at most a second ago. Streams ask this before they send on."""
        session = self.session_id(ask)
        if session is not None:
            if not session:
                raise Unauthenticated("the browser shows no session", "sign in")
            ask.session = session
            return await self.sessions.find(_digest(session), ask.peer, partial(self.session_actor, session))
        if ask.certificate is not None:
            ask.agent = await self._find_agent(ask.certificate, ask.peer)
        if ask.path.startswith(KNOCK) and ask.method == "POST":
            return self._find_webhook_sender(ask)
        header = ask.headers.get(b"authorization", b"")
        if not header and ask.agent is not None and ask.path in AGENT_PATHS:
            return ask.agent
        if not header and ask.path in (EXCHANGE, JOIN, ENROLL) and ask.method == "POST":
            return GUEST
        ask.token = bearer_token(header)
        return await self.verify_token(ask, ask.token)

    async def verify_token(self, ask: Ask, token: str) -> Actor:
        """Whose token this is, wherever the request shows it."""
        return await self.tokens.find(_digest(token), ask.peer, partial(self.whois, token))

    def at_hand(self, ask: Ask) -> bool:
        """Whether a program's token was verified a moment ago, and its caller may ask now; then it has its actor."""
        if ask.certificate is not None or self.session_id(ask) is not None:
            return False
        match = _BEARER.fullmatch(ask.headers.get(b"authorization", b""))
        if match is None:
            return False
        token = match[1].decode("ascii")
        actor = self.tokens.cached(_digest(token), partial(self.whois, token))
        if actor is None:
            return False
        ask.token, ask.actor = token, actor
        return self._rates.wait((actor.tenant, actor.id), self._clock()) <= 0.0

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
        if actor is GUEST:
            ctx = replace(ctx, peer=ask.peer)
        if ask.agent is not None:
            ctx = replace(ctx, zone=ask.agent.zone)  # whoever comes through a zone's agent stands in that zone
        ask.request = ctx.request
        return ctx

    def count_false_signature(self, ask: Ask) -> None:
        """A message for an inbound webhook came with a signature that is not its sender's."""
        self._failures.take((peer_network(ask.peer), ask.path), self._clock())

    async def run_for_guest(self, ask: Ask, run: Callable[..., object], *args: object) -> Outcome:
        """Run what a caller without a token may call, as few at once for one peer as tokens are verified."""
        return await self._lookups.run(ask.peer, run, *args)

    def forget(self) -> None:
        """Verify everyone anew: people, tokens or agents changed."""
        for cache in (self.tokens, self.sessions, self.agents):
            cache.clear()

    def _find_webhook_sender(self, ask: Ask) -> Actor:
        """The sender of a request to an inbound webhook: proven by the signature over the body, and by no header."""
        wait = self._failures.wait((peer_network(ask.peer), ask.path), self._clock())
        if wait > 0.0:
            raise too_fast(wait, "too many false signatures came from your address")
        return KNOCKER

    async def _find_agent(self, certificate: AgentCertificate, peer: str) -> Actor:
        """The agent of the zone's current record; Unauthenticated if it was removed or replaced, or has another key."""
        desk = self._house.desks["agents"]
        lookup = partial(desk.whois, self._house.system(), certificate.name, certificate.key)
        return await self.agents.find(certificate.fingerprint, peer, lookup)


def bearer_token(header: bytes) -> str:
    """The token of an Authorization header; Unauthenticated for every other scheme and for what is no token."""
    match = _BEARER.fullmatch(header)
    if match is None:
        raise _nobody()
    return match[1].decode("ascii")


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()


def _nobody() -> Unauthenticated:
    hint = "send Authorization: Bearer <token>; `falaj login` keeps one for you"
    return Unauthenticated("the request carries no bearer token", hint)


def _no_session(session: str) -> Actor:
    del session
    raise Unauthenticated("there is no console here", "use a token")


def too_fast(wait: float, what: str) -> Refusal:
    """429 with the seconds to wait."""
    seconds = max(1, math.ceil(wait))
    return Refusal(QuotaExceeded(what, f"try again in {seconds} s"), 429, (b"retry-after", b"%d" % seconds))
