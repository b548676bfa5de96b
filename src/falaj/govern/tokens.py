"""Workload tokens: a few minutes, one run, one zone, one audience, signed with the installation's own Ed25519 key."""

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from falaj.core.context import Actor
from falaj.core.errors import Invalid
from falaj.core.jose import audiences, check_times, is_signed_token, read_token, refused, text_claim
from falaj.core.label import ANY
from falaj.core.project_roles import base_role
from falaj.govern.keys import key_id
from falaj.govern.people_records import Workload

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ISSUER = "falaj"
LONGEST_S = 900.0
WORK_ROLES = frozenset({"viewer", "data-steward", "data-scientist", "ml-engineer", "service"})
"""The only roles a workload may carry; nothing that governs, approves or audits."""
_ALGORITHM = "EdDSA"
_RENEW_S = 30.0


class Signers(Protocol):
    """Who holds the signing key (the keyring)."""

    def token_signer(self) -> "Ed25519PrivateKey": ...


class WorkloadTokens:
    """Issues and verifies; an identity provider beside the others. `stopped` says whether a run was revoked."""

    def __init__(
        self,
        signers: Signers,
        stopped: Callable[[str, str], bool],
        refresh: Callable[[Actor], Actor] | None = None,
    ) -> None:
        """`refresh` cuts an actor down to what its person and trust allow at this moment (`Accounts.refresh`)."""
        self._signers = signers
        self._stopped = stopped
        self._refresh = refresh
        self._lock = threading.Lock()
        self._public: dict[str, Ed25519PublicKey] = {}
        self._signer: tuple[str, Ed25519PrivateKey] | None = None
        self._until = 0.0

    def issue(self, workload: Workload, now: float, ttl_s: float = 600.0) -> str:
        """A token for exactly this workload."""
        if not 0 < ttl_s <= LONGEST_S:
            raise Invalid(f"a workload token may live {LONGEST_S:.0f} seconds at most", "ask for less, and renew")
        if not (workload.run and workload.zone and workload.tenant and workload.audience):
            raise Invalid("a workload token is for one run, zone, tenant and audience", "name them all")
        excess = {role for role in workload.roles if base_role(role) not in WORK_ROLES}
        if excess:
            raise Invalid(f"a workload cannot be {', '.join(sorted(excess))}", f"only {', '.join(sorted(WORK_ROLES))}")
        kid, key = self._current(now)
        claims = {
            "iss": ISSUER,
            "sub": f"run.{workload.run}",
            "aud": workload.audience,
            "iat": int(now),
            "exp": int(now + ttl_s),
            "jti": secrets.token_hex(16),
            "run": workload.run,
            "zone": workload.zone,
            "tenant": workload.tenant,
            "roles": sorted(workload.roles),
            "projects": sorted(workload.projects),
            "behalf": workload.behalf,
            "jurisdiction": workload.jurisdiction,
            "trust": workload.trust,
            "makers": list(workload.makers),
        }
        import jwt  # a third of the time to ready, for what most houses never do

        return jwt.encode(claims, key, algorithm=_ALGORITHM, headers={"kid": kid})

    def verify(self, token: str, now: float, audience: str = "falaj") -> Actor:
        """The workload as an actor, or Unauthenticated for whatever is not exactly as `issue` made it."""
        said = read_token(token, (_ALGORITHM,))
        key = self._find(str(said.header.get("kid", "")), now)
        import jwt  # see issue()

        try:
            jwt.PyJWS(algorithms=[_ALGORITHM]).decode(token, key, algorithms=[_ALGORITHM])
        except jwt.PyJWTError as error:
            raise refused("the token's signature is false") from error
        if said.claims.get("iss") != ISSUER or audiences(said.claims) != (audience,):
            raise refused("the token is meant for somebody else")
        check_times(said.claims, now, LONGEST_S)
        actor = _actor(said.claims)
        if self._stopped(actor.tenant, actor.run):
            raise refused("the run's tokens were revoked")
        return self._refresh(actor) if self._refresh is not None else actor

    def whois(self, token: str, now: float) -> Actor | None:
        """As an identity provider: None for a token that another issuer made."""
        if not is_signed_token(token) or read_token(token, _ANY_ALGORITHM).claims.get("iss") != ISSUER:
            return None
        return self.verify(token, now)

    def close(self) -> None:
        """Nothing is held."""

    def _current(self, now: float) -> "tuple[str, Ed25519PrivateKey]":
        with self._lock:
            if self._signer is None or not now < self._until:
                key = self._signers.token_signer()
                kid = key_id(key.public_key())
                self._signer, self._until = (kid, key), now + _RENEW_S
                # The key before the last rotation still verifies what it signed until that has ended.
                self._public = dict([*list(self._public.items())[-3:], (kid, key.public_key())])
            return self._signer

    def _find(self, kid: str, now: float) -> "Ed25519PublicKey":
        self._current(now)
        key = self._public.get(kid)
        if key is None:
            raise refused("the token was signed by a key that is not of this installation")
        return key


_ANY_ALGORITHM = ("EdDSA", "ES256", "RS256", "PS256")


def delegated(actor: Actor, wanted: Workload) -> Workload:
    """The workload with no more than the person it works for has: roles and projects are those of both."""
    projects = shared_projects(actor.projects, wanted.projects)
    roles = frozenset(role for role in actor.roles if base_role(role) in wanted.roles & WORK_ROLES)
    return Workload(
        wanted.run, wanted.zone, actor.tenant, roles, projects, actor.id, wanted.jurisdiction, wanted.audience,
        makers=actor.makers, trust=wanted.trust,
    )  # fmt: skip


def shared_projects(first: frozenset[str], second: frozenset[str]) -> frozenset[str]:
    """The projects that both sets name; a star names all."""
    if first == ANY or second == ANY:
        return second if first == ANY else first
    return first & second


def _actor(claims: Mapping[str, Any]) -> Actor:
    run = text_claim(claims, "run")
    if text_claim(claims, "sub") != f"run.{run}":
        raise refused("the token contradicts itself")
    text_claim(claims, "jti")
    return Actor(
        id=f"run.{run}",
        tenant=text_claim(claims, "tenant"),
        kind="workload",
        roles=frozenset(role for role in _words(claims, "roles") if base_role(role) in WORK_ROLES),
        projects=_words(claims, "projects"),
        behalf=_text(claims, "behalf"),
        jurisdiction=_text(claims, "jurisdiction"),
        run=run,
        zone=text_claim(claims, "zone"),
        expires=float(claims["exp"]),
        trust=_text(claims, "trust"),
        makers=_list(claims, "makers") if "makers" in claims else (),
    )


def _words(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    return frozenset(_list(claims, name))


def _list(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = claims.get(name)
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise refused(f"the token has no proper {name}")
    return tuple(value)


def _text(claims: Mapping[str, Any], name: str) -> str:
    return text_claim(claims, name) if claims.get(name) else ""
