"""Agents: the desk of zones whose data plane stands elsewhere and only dials out. Who may join, and who is there.

One agent a zone. It is known by a certificate over a key that it made itself; a new one that joins takes the place of
the old one, whose certificate counts no more from that moment.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Protocol

from falaj.core.agent_relay import AGENT_URI, get_relay
from falaj.core.context import SYSTEM_TENANT, Actor, CallContext
from falaj.core.data import dataclass
from falaj.core.errors import Denied, Invalid, NotFound, Unauthenticated
from falaj.core.event import generate_id
from falaj.core.operation import operation
from falaj.fleet.fleet_use import iter_records, make_system_context, make_system_key
from falaj.store.ledger import Ledger, LedgerWriter
from falaj.store.records import LedgerRecord

CERTIFICATE_DAYS = 7.0
"""Short: an agent renews long before, and one that was away for longer is invited again."""
DEFAULT_INVITE_HOURS, MAX_INVITE_HOURS = 1, 72
_INVITATION_PREFIX = "fja-"


class SignedCertificate(Protocol):
    """A certificate for the requester's key, its authority's certificate, its expiry, and the digest of the key."""

    @property
    def cert(self) -> str: ...
    @property
    def ca(self) -> str: ...
    @property
    def expires(self) -> float: ...
    @property
    def key(self) -> str: ...


CertificateSigner = Callable[[str, str, float, float], SignedCertificate]
"""(signing request, name, now, days) -> certificate"""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What lets one agent join, once."""

    zone: str
    token: str
    expires: float


@dataclass(frozen=True, slots=True)
class Membership:
    """What an agent gets when it joins or renews."""

    zone: str
    cert: str
    ca: str
    expires: float


@dataclass(frozen=True, slots=True)
class AgentView:
    """The agent of a zone and whether it is there."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("zone", "state", "since", "door", "expires")

    zone: str
    state: str
    """invited, connected, unreachable"""
    since: float
    """Connected since, or unreachable since, or invited at."""
    door: str = ""
    expires: float = 0.0
    """When its certificate ends, if it does not renew."""


class AgentService:
    """Invite agents, see whether they are there, remove them."""

    def __init__(self, ledger: Ledger, signal: CertificateSigner) -> None:
        self._ledger = ledger
        self._sign = signal

    @operation(group="operate", returns_secret=True)
    def invite(
        self,
        ctx: CallContext,
        zone: Annotated[str, "the zone whose data plane it will be"],
        hours: Annotated[int, "how long the invitation is good"] = DEFAULT_INVITE_HOURS,
    ) -> Invitation:
        """Give out a token with which one agent may join a zone, once.

        Whoever joins takes the place of the zone's agent before. The token is shown this once.

        Example:
            falaj agents invite --zone ae-onprem
        """
        if not 0 < hours <= MAX_INVITE_HOURS:
            raise Invalid(f"an invitation of {hours} hours", f"1 to {MAX_INVITE_HOURS}")
        token, expires = f"{_INVITATION_PREFIX}{secrets.token_urlsafe(32)}", ctx.now() + hours * 3600
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            if tx.key(make_system_key("zone", zone)) is None:
                raise NotFound(f"there is no zone {zone!r:.60}", "falaj zones list shows them")
            previous = tx.key(make_system_key("agent", zone))
            body = {
                **_build_agent_body(previous),
                "invited": _hash_token(token),
                "invited_until": expires,
                "invited_at": ctx.now(),
            }
            self._save_agent(tx, zone, body, previous, "agents.invite")
        return Invitation(zone, token, expires)

    @operation(has_outside_effects=True, returns_secret=True)
    def join(
        self,
        ctx: CallContext,
        zone: Annotated[str, "the zone"],
        token: Annotated[str, "the token of the invitation"],
        request: Annotated[str, "the signing request over the agent's own key, PEM"],
    ) -> Membership:
        """Take an invitation up: gives a certificate over the agent's own key. `falaj agent` does this.

        Example:
            falaj agents join ae-onprem --token "$TOKEN" --request "$(cat agent.csr)"
        """
        now, agent = ctx.now(), generate_id()
        signed = None
        with self._ledger.write(make_system_context(ctx)) as tx:
            previous = tx.key(make_system_key("agent", zone)) if zone.isascii() and len(zone) < 64 else None
            body = _build_agent_body(previous)
            is_matching = hmac.compare_digest(body["invited"].encode(), _hash_token(token).encode())
            if not body["invited"] or not is_matching or not now < body["invited_until"]:
                raise Unauthenticated("the invitation is unknown, used or over", "falaj agents invite gives a new one")
            signed = self._sign(request, f"{AGENT_URI}{zone}/{agent}", now, CERTIFICATE_DAYS)
            joined = {"agent": agent, "key": signed.key, "expires": signed.expires}
            new = {**body, **joined, "invited": "", "since": now, "there": False}
            self._save_agent(tx, zone, new, previous, "agents.join", agent=agent)
        return Membership(zone, signed.cert, signed.ca, signed.expires)

    @operation(has_outside_effects=True)
    def renew(self, ctx: CallContext, request: Annotated[str, "the signing request, PEM"]) -> Membership:
        """Give an agent its next certificate. `falaj agent` does this by itself.

        Example:
            falaj agents renew --request "$(cat agent.csr)"
        """
        # Only `whois` makes such an actor, from the certificate of a TLS connection.
        if ctx.actor.kind != "agent":
            raise Denied("only a zone's agent renews its certificate", "falaj agents invite lets one join")
        zone = ctx.actor.zone
        with self._ledger.write(make_system_context(ctx)) as tx:
            old = tx.key(make_system_key("agent", zone))
            body = _build_agent_body(old)
            signed = self._sign(request, f"{AGENT_URI}{zone}/{body['agent']}", ctx.now(), CERTIFICATE_DAYS)
            if signed.key != body["key"]:
                raise Denied("the signing request is over another key than the agent's", "join anew with a new key")
            self._save_agent(tx, zone, {**body, "expires": signed.expires}, old, "agents.renew", agent=body["agent"])
        return Membership(zone, signed.cert, signed.ca, signed.expires)

    @operation()
    def list(self, ctx: CallContext) -> tuple[AgentView, ...]:
        """List the agents: which zones have one, whether it is there, and since when not.

        Example:
            falaj agents list
        """
        with self._ledger.read(make_system_context(ctx)) as tx:
            return tuple(_to_agent_view(record) for record in iter_records(tx, "agent", SYSTEM_TENANT))

    @operation(group="operate")
    def remove(self, ctx: CallContext, zone: Annotated[str, "the zone"]) -> AgentView:
        """Let the agent of a zone in no more. What runs there runs on, and its bytes stay where they are.

        Example:
            falaj agents remove ae-onprem
        """
        with self._ledger.write(_require_system_tenant(ctx)) as tx:
            old = tx.key(make_system_key("agent", zone))
            if old is None:
                raise NotFound(f"the zone {zone!r:.60} has no agent", "falaj agents list shows them")
            tx.delete(old.key, old.rev)
            tx.emit("agents.remove", old.ref, agent=old.body["agent"])
        return _to_agent_view(old)

    # For the edge.

    def whois(self, ctx: CallContext, name: str, key: str) -> Actor:
        """The agent that a certificate names, if that certificate is over the key it joined with; else Unauthenticated.

        For callers that verified the certificate of a connection: `key` is the digest of its public key.
        """
        zone, _, agent = name.removeprefix(AGENT_URI).partition("/")
        with self._ledger.read(make_system_context(ctx)) as tx:
            record = tx.key(make_system_key("agent", zone)) if name.startswith(AGENT_URI) else None
        body = _build_agent_body(record)
        if record is None or not agent or not key or (body["agent"], body["key"]) != (agent, key):
            raise Unauthenticated("this agent was removed, or another took its place", "falaj agents invite, and join")
        return Actor(f"agent.{zone}", SYSTEM_TENANT, kind="agent", zone=zone)

    def came(self, ctx: CallContext, zone: str, is_present: bool) -> None:
        """Note that the agent of a zone is there, or is no more."""
        with self._ledger.write(make_system_context(ctx)) as tx:
            previous = tx.key(make_system_key("agent", zone))
            if previous is not None and not (get_relay(zone).connected and not is_present):
                body = {**previous.body, "there": is_present, "since": ctx.now()}
                self._save_agent(tx, zone, body, previous, "agents.arrive" if is_present else "agents.leave")

    def _save_agent(
        self,
        tx: LedgerWriter,
        zone: str,
        body: Mapping[str, Any],
        previous: LedgerRecord | None,
        event_name: str,
        agent: str = "",
    ) -> None:
        record = tx.put(make_system_key("agent", zone), dict(body), rev=previous.rev if previous else None)
        tx.emit(event_name, record.ref, zone=zone, agent=agent)


_EMPTY_BODY = {
    "agent": "",
    "key": "",
    "invited": "",
    "invited_until": 0.0,
    "invited_at": 0.0,
    "expires": 0.0,
    "since": 0.0,
    "there": False,
}


def _build_agent_body(record: LedgerRecord | None) -> dict[str, Any]:
    return {**_EMPTY_BODY, **(record.body if record is not None else {})}


def _to_agent_view(record: LedgerRecord) -> AgentView:
    body, zone = _build_agent_body(record), record.key.name
    relay = get_relay(zone)
    if not body["agent"]:
        return AgentView(zone, "invited", body["invited_at"])
    if relay.connected:
        return AgentView(zone, "connected", body["since"], relay.door, body["expires"])
    return AgentView(zone, "unreachable", max(relay.seen, body["since"]), relay.door, body["expires"])


def _hash_token(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _require_system_tenant(ctx: CallContext) -> CallContext:
    if ctx.tenant != SYSTEM_TENANT:
        raise Denied("agents belong to the house", "ask the people who run this installation")
    return make_system_context(ctx)
