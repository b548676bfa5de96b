"""Workload tokens: a few minutes, one run, one zone, one audience, signed with the installation's own Ed25519 key."""

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from falaj.core.context import Actor
from falaj.core.errors import Invalid
from falaj.core.jwt_claims import (
    check_token_times,
    invalid_token_error,
    is_signed_token,
    list_audiences,
    read_text_claim,
    read_token,
)
from falaj.core.label import ANY_VALUE
from falaj.core.project_roles import base_role
from falaj.govern.keyring import compute_key_id
from falaj.govern.people_records import WorkloadIdentity

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ISSUER_NAME = "falaj"
MAX_TOKEN_TTL_S = 900.0
WORK_ROLES = frozenset({"viewer", "data-steward", "data-scientist", "ml-engineer", "service"})
"""The only roles a workload may carry; nothing that governs, approves or audits."""
_ALGORITHM = "EdDSA"
_SIGNER_REFRESH_S = 30.0


class TokenSigners(Protocol):
    """Who holds the signing key (the keyring)."""

    def token_signer(self) -> "Ed25519PrivateKey": ...


class WorkloadTokens:
    """Issues and verifies; an identity provider beside the others. `stopped` says whether a run was revoked."""

    def __init__(
        self,
        signers: TokenSigners,
        is_run_revoked: Callable[[str, str], bool],
        refresh_actor: Callable[[Actor], Actor] | None = None,
    ) -> None:
        """`refresh_actor` cuts an actor down to what its person and trust allow at this moment
        (`Accounts.refresh_actor`)."""
        self._signers = signers
        self.is_run_revoked = is_run_revoked
        self.refresh_actor = refresh_actor
        self._lock = threading.Lock()
        self.public_keys: dict[str, Ed25519PublicKey] = {}
        self._signer: tuple[str, Ed25519PrivateKey] | None = None
        self.signer_expires_at = 0.0

    def issue(self, workload: WorkloadIdentity, now: float, ttl_s: float = 600.0) -> str:
        """A token for exactly this workload."""
        if not 0 < ttl_s <= MAX_TOKEN_TTL_S:
            raise Invalid(f"a workload token may live {MAX_TOKEN_TTL_S:.0f} seconds at most", "ask for less, and renew")
        if not (workload.run and workload.zone and workload.tenant and workload.audience):
            raise Invalid("a workload token is for one run, zone, tenant and audience", "name them all")
        excess_roles = {role for role in workload.roles if base_role(role) not in WORK_ROLES}
        if excess_roles:
            raise Invalid(
                f"a workload cannot be {', '.join(sorted(excess_roles))}", f"only {', '.join(sorted(WORK_ROLES))}"
            )
        kid, key = self.get_signer(now)
        claims = {
            "iss": ISSUER_NAME,
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
        unverified = read_token(token, (_ALGORITHM,))
        key = self.find_public_key(str(unverified.header.get("kid", "")), now)
        import jwt  # see issue()

        try:
            jwt.PyJWS(algorithms=[_ALGORITHM]).decode(token, key, algorithms=[_ALGORITHM])
        except jwt.PyJWTError as error:
            raise invalid_token_error("the token's signature is false") from error
        if unverified.claims.get("iss") != ISSUER_NAME or list_audiences(unverified.claims) != (audience,):
            raise invalid_token_error("the token is meant for somebody else")
        check_token_times(unverified.claims, now, MAX_TOKEN_TTL_S)
        actor = _build_actor(unverified.claims)
        if self.is_run_revoked(actor.tenant, actor.run):
            raise invalid_token_error("the run's tokens were revoked")
        return self.refresh_actor(actor) if self.refresh_actor is not None else actor

    def whois(self, token: str, now: float) -> Actor | None:
        """As an identity provider: None for a token that another issuer made."""
        if not is_signed_token(token) or read_token(token, _ACCEPTED_ALGORITHMS).claims.get("iss") != ISSUER_NAME:
            return None
        return self.verify(token, now)

    def close(self) -> None:
        """Nothing is held."""

    def get_signer(self, now: float) -> "tuple[str, Ed25519PrivateKey]":
        with self._lock:
            if self._signer is None or not now < self.signer_expires_at:
                key = self._signers.token_signer()
                kid = compute_key_id(key.public_key())
                self._signer, self.signer_expires_at = (kid, key), now + _SIGNER_REFRESH_S
                # The key before the last rotation still verifies what it signed until that has ended.
                self.public_keys = dict([*list(self.public_keys.items())[-3:], (kid, key.public_key())])
            return self._signer

    def find_public_key(self, kid: str, now: float) -> "Ed25519PublicKey":
        self.get_signer(now)
        key = self.public_keys.get(kid)
        if key is None:
            raise invalid_token_error("the token was signed by a key that is not of this installation")
        return key


_ACCEPTED_ALGORITHMS = ("EdDSA", "ES256", "RS256", "PS256")


def limit_to_delegator(actor: Actor, requested: WorkloadIdentity) -> WorkloadIdentity:
    """The workload with no more than the person it works for has: roles and projects are those of both."""
    projects = intersect_projects(actor.projects, requested.projects)
    roles = frozenset(role for role in actor.roles if base_role(role) in requested.roles & WORK_ROLES)
    return WorkloadIdentity(
        requested.run,
        requested.zone,
        actor.tenant,
        roles,
        projects,
        actor.id,
        requested.jurisdiction,
        requested.audience,
        makers=actor.makers,
        trust=requested.trust,
    )


def intersect_projects(first: frozenset[str], second: frozenset[str]) -> frozenset[str]:
    """The projects that both sets name; a star names all."""
    if first == ANY_VALUE or second == ANY_VALUE:
        return second if first == ANY_VALUE else first
    return first & second


def _build_actor(claims: Mapping[str, Any]) -> Actor:
    run = read_text_claim(claims, "run")
    if read_text_claim(claims, "sub") != f"run.{run}":
        raise invalid_token_error("the token contradicts itself")
    read_text_claim(claims, "jti")
    return Actor(
        id=f"run.{run}",
        tenant=read_text_claim(claims, "tenant"),
        kind="workload",
        roles=frozenset(role for role in _read_word_set(claims, "roles") if base_role(role) in WORK_ROLES),
        projects=_read_word_set(claims, "projects"),
        behalf=_read_optional_text(claims, "behalf"),
        jurisdiction=_read_optional_text(claims, "jurisdiction"),
        run=run,
        zone=read_text_claim(claims, "zone"),
        expires=float(claims["exp"]),
        trust=_read_optional_text(claims, "trust"),
        makers=_read_word_list(claims, "makers") if "makers" in claims else (),
    )


def _read_word_set(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    return frozenset(_read_word_list(claims, name))


def _read_word_list(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = claims.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise invalid_token_error(f"the token has no proper {name}")
    return tuple(value)


def _read_optional_text(claims: Mapping[str, Any], name: str) -> str:
    return read_text_claim(claims, name) if claims.get(name) else ""
