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

from falaj.api.call_executor import CallExecutor, CallOutcome
from falaj.api.denial_log import DenialLog
from falaj.api.identity_cache import PeerLookups, VerifiedIdentities, get_peer_network
from falaj.api.rate_limits import TokenBuckets
from falaj.api.responses import HttpError
from falaj.api.routes import RequestContext
from falaj.api.tls import AgentCertificate
from falaj.core.context import Actor, CallContext
from falaj.core.errors import Denied, Invalid, QuotaExceeded, Unauthenticated
from falaj.govern.people import GUEST_ACTOR

if TYPE_CHECKING:
    from falaj.server import Server

TOKEN_EXCHANGE_PATH = b"/v1/people/exchange"
"""The one verb that nobody can have a token for yet: it gives the first one."""
AGENT_JOIN_PATH = b"/v1/agents/join"
"""The same for agents, who have an invitation only."""
ENROLL_PATH = b"/v1/people/enroll"
"""The same for people, who have an enrolment code only."""
AGENT_PATHS = frozenset(f"/v1/agents/{name}".encode() for name in ("listen", "answer", "token", "renew"))
"""What an agent asks for itself. All else that comes over its connection it passes on for others, who have tokens."""
WEBHOOK_PATH_PREFIX, WEBHOOK_SENDER = b"/v1/knock/", replace(GUEST_ACTOR, id="knock")
"""Where a signature over the message stands in the place of a token, and who asks until it is checked."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
MAX_TOKEN_BYTES = 8192
FALSE_SIGNATURES_PER_S, FALSE_SIGNATURE_BURST = 1.0, 20
"""False signatures that one peer may send to one inbound webhook, a second and at once."""
_IDEMPOTENCY_KEY_PATTERN = re.compile(r"[A-Za-z0-9._:-]{8,128}")
_PURPOSE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}")
_BEARER_PATTERN = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([!-~]{1,%d}) *" % MAX_TOKEN_BYTES)


class RequestAuthenticator:
    """Checks a request before anything of it is read."""

    def __init__(
        self,
        server: "Server",
        call_executor: CallExecutor,
        hosts: Iterable[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = server.settings.limits
        self._server = server
        self._call_executor = call_executor
        self._clock = clock
        self.hosts = frozenset(host.lower().encode() for host in hosts)
        self._request_rates = TokenBuckets(limits.requests_per_s, limits.burst)
        self._false_signature_rates = TokenBuckets(FALSE_SIGNATURES_PER_S, FALSE_SIGNATURE_BURST)
        self.refusals = DenialLog(server, call_executor, clock)
        self._peer_lookups = PeerLookups(call_executor)
        caches = [VerifiedIdentities(call_executor, self._peer_lookups, clock) for _ in range(3)]
        self.tokens, self.sessions, self.agents = caches
        self.whois: Callable[[str], Actor] = server.authenticate
        # Set by the console: the session id in a request for one of its pages (None elsewhere), and whose it is.
        self.session_id: Callable[[RequestContext], str | None] = lambda request: None
        self.session_actor: Callable[[str], Actor] = _reject_session

    def check_place(self, request: RequestContext) -> None:
        """The name the caller used must be ours (rebinding), and a browser must have come from our own pages."""
        host = request.headers.get(b"host", b"").lower()
        if host not in self.hosts:
            raise HttpError(
                Denied("this address does not answer to that host name", "add the name to the setting `hosts`"), 421
            )
        if request.method in SAFE_METHODS:
            return
        origin = request.headers.get(b"origin")
        if origin is not None and origin.lower() not in (b"https://" + host, b"http://" + host):
            raise Denied("a page of another origin may not ask this", "call from your own program, with a token")
        if request.headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none"):
            raise Denied("a page of another site may not ask this", "call from your own program, with a token")

    async def admit(self, request: RequestContext) -> Actor:
        """Who is asking, within what they may ask a second."""
        actor = request.actor = await self.identify(request)
        wait_s = self._request_rates.take((actor.tenant, actor.id), self._clock())
        if wait_s > 0.0:
            raise rate_limit_error(wait_s, "more requests than your share")
        if request.note_authenticated is not None and actor.kind != "guest":
            request.note_authenticated()
        return actor

    async def identify(self, request: RequestContext) -> Actor:
        """Who is asking, as verified at most a second ago. Streams ask this before they send on."""
        session = self.session_id(request)
        if session is not None:
            if not session:
                raise Unauthenticated("the browser shows no session", "sign in")
            request.session = session
            return await self.sessions.find(
                _hash_credential(session), request.peer, partial(self.session_actor, session)
            )
        if request.certificate is not None:
            request.agent = await self._find_agent(request.certificate, request.peer)
        if request.path.startswith(WEBHOOK_PATH_PREFIX) and request.method == "POST":
            return self._find_webhook_sender(request)
        header = request.headers.get(b"authorization", b"")
        if not header and request.agent is not None and request.path in AGENT_PATHS:
            return request.agent
        if (
            not header
            and request.path in (TOKEN_EXCHANGE_PATH, AGENT_JOIN_PATH, ENROLL_PATH)
            and request.method == "POST"
        ):
            return GUEST_ACTOR
        request.token = read_bearer_token(header)
        return await self.verify_token(request, request.token)

    async def verify_token(self, request: RequestContext, token: str) -> Actor:
        """Whose token this is, wherever the request shows it."""
        return await self.tokens.find(_hash_credential(token), request.peer, partial(self.whois, token))

    def at_hand(self, request: RequestContext) -> bool:
        """Whether a program's token was verified a moment ago, and its caller may ask now; then it has its actor."""
        if request.certificate is not None or self.session_id(request) is not None:
            return False
        match = _BEARER_PATTERN.fullmatch(request.headers.get(b"authorization", b""))
        if match is None:
            return False
        token = match[1].decode("ascii")
        actor = self.tokens.cached(_hash_credential(token), partial(self.whois, token))
        if actor is None:
            return False
        request.token, request.actor = token, actor
        return self._request_rates.wait((actor.tenant, actor.id), self._clock()) <= 0.0

    def spend(self, request: RequestContext) -> None:
        """Count a request of a caller who was at hand."""
        self._request_rates.take((request.caller.tenant, request.caller.id), self._clock())

    def context(self, request: RequestContext, actor: Actor, *, is_repeatable: bool = True) -> CallContext:
        """The caller's context: the purpose and, where an outcome can be kept, the request key that headers name."""
        request_key, purpose = request.text(b"idempotency-key"), request.text(b"falaj-purpose")
        if request_key and not _IDEMPOTENCY_KEY_PATTERN.fullmatch(request_key):
            raise Invalid(
                "the Idempotency-Key is not 8 to 128 letters, digits or ._:-", "use a fresh UUID for each new intent"
            )
        if purpose and not _PURPOSE_PATTERN.fullmatch(purpose):
            raise Invalid("the Falaj-Purpose is not a purpose's name", "for example: fraud")
        ctx = self._server.context(actor, request_id=request_key if is_repeatable else "", purpose=purpose)
        if actor is GUEST_ACTOR:
            ctx = replace(ctx, peer=request.peer)
        if request.agent is not None:
            ctx = replace(ctx, zone=request.agent.zone)  # whoever comes through a zone's agent stands in that zone
        request.request = ctx.request
        return ctx

    def count_false_signature(self, request: RequestContext) -> None:
        """A message for an inbound webhook came with a signature that is not its sender's."""
        self._false_signature_rates.take((get_peer_network(request.peer), request.path), self._clock())

    async def run_for_guest(
        self, request: RequestContext, function: Callable[..., object], *args: object
    ) -> CallOutcome:
        """Run what a caller without a token may call, as few at once for one peer as tokens are verified."""
        return await self._peer_lookups.run(request.peer, function, *args)

    def forget(self) -> None:
        """Verify everyone anew: people, tokens or agents changed."""
        for cache in (self.tokens, self.sessions, self.agents):
            cache.clear()

    def _find_webhook_sender(self, request: RequestContext) -> Actor:
        """The sender of a request to an inbound webhook: proven by the signature over the body, and by no header."""
        wait_s = self._false_signature_rates.wait((get_peer_network(request.peer), request.path), self._clock())
        if wait_s > 0.0:
            raise rate_limit_error(wait_s, "too many false signatures came from your address")
        return WEBHOOK_SENDER

    async def _find_agent(self, certificate: AgentCertificate, peer: str) -> Actor:
        """The agent of the zone's current record; Unauthenticated if it was removed or replaced, or has another key."""
        agent_service = self._server.desks["agents"]
        identify_agent = partial(agent_service.whois, self._server.system(), certificate.name, certificate.key)
        return await self.agents.find(certificate.fingerprint, peer, identify_agent)


def read_bearer_token(header: bytes) -> str:
    """The token of an Authorization header; Unauthenticated for every other scheme and for what is no token."""
    match = _BEARER_PATTERN.fullmatch(header)
    if match is None:
        raise _missing_token_error()
    return match[1].decode("ascii")


def _hash_credential(credential: str) -> bytes:
    return hashlib.sha256(credential.encode()).digest()


def _missing_token_error() -> Unauthenticated:
    hint = "send Authorization: Bearer <token>; `falaj login` keeps one for you"
    return Unauthenticated("the request carries no bearer token", hint)


def _reject_session(session: str) -> Actor:
    del session
    raise Unauthenticated("there is no console here", "use a token")


def rate_limit_error(wait_s: float, message: str) -> HttpError:
    """429 with the seconds to wait."""
    seconds = max(1, math.ceil(wait_s))
    return HttpError(QuotaExceeded(message, f"try again in {seconds} s"), 429, (b"retry-after", b"%d" % seconds))
