"""OidcIdentity: people and services of an OpenID Connect provider. One pinned issuer, its own keys, pinned algorithms.

Signing in (code flow with PKCE, client credentials) is here too: the command line reaches it by entry point.
"""

import base64
import hashlib
import hmac
import json
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import jwt

from falaj.core.context import HOUSE, Actor
from falaj.core.errors import Invalid, Unauthenticated, Unavailable
from falaj.core.jose import (
    Unverified,
    audiences,
    check_times,
    is_signed_token,
    read_token,
    refused,
    text_claim,
)
from falaj.core.label import ANY
from falaj.core.project_roles import check_group_roles, limit_to_projects, read_group_roles
from falaj.core.settings import Oidc

LONGEST_S = 86_400.0
"""A token that lives longer is refused: this bounds how long someone removed at the provider can still act."""
STRONG_S = 43_200.0
_REFRESH_S, _EXPIRE_S, _AGAIN_S = 600.0, 3600.0, 30.0
_WAIT_S = 1.0
"""Seconds that the check of a token waits for another that reads the provider's keys, once there are any."""
_REMEMBER_S = 30.0
_MAX_BYTES = 1 << 20
_KEY_TYPES = {"EdDSA": ("OKP", "Ed25519"), "ES256": ("EC", "P-256"), "RS256": ("RSA", ""), "PS256": ("RSA", "")}
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Login:
    """A sign-in under way: where to send the browser, and what only we know until it comes back."""

    url: str
    redirect: str
    state: str
    nonce: str
    verifier: str


@dataclass(frozen=True, slots=True)
class Granted:
    """What the provider gave: the token to call with, when it ends, and one to renew it where granted."""

    token: str
    expires: float
    renew: str = ""


class OidcIdentity:
    """Whose token it is, by the provider's signature and the settings' mapping of groups to roles."""

    def __init__(self, url: str, options: Mapping[str, Any] | Oidc) -> None:
        self.options = options if isinstance(options, Oidc) else options["oidc"]
        self.issuer = url.partition(":")[2].rstrip("/") or self.options.issuer
        unknown = [name for name in self.options.algorithms if name not in _KEY_TYPES]
        if unknown or not self.options.algorithms:
            raise Invalid(f"oidc.algorithms names {', '.join(unknown) or 'nothing'}", f"only {', '.join(_KEY_TYPES)}")
        check_group_roles(self.options.roles)
        _check_address(self.issuer)
        self._keys = _Keys(self.issuer)
        self._known: dict[str, tuple[Mapping[str, Any], float]] = {}

    def whois(self, token: str, now: float) -> Actor | None:
        """The actor, None when another issuer made the token, Unauthenticated when it is false or has ended."""
        if not is_signed_token(token):
            return None
        claims = self.claims(token, now, self.options.audience)
        return None if claims is None else self._actor(claims, now)

    def claims(self, token: str, now: float, audience: str) -> Mapping[str, Any] | None:
        """The claims of a token of this issuer for this audience, checked; None when another issuer made it."""
        name = hashlib.sha256(f"{audience}\n{token}".encode()).hexdigest()
        claims, until = self._known.get(name, ({}, 0.0))
        if not now < until:
            said = read_token(token, tuple(_KEY_TYPES))
            if said.claims.get("iss") != self.issuer:
                return None
            if said.header["alg"] not in self.options.algorithms:
                raise refused("the token is signed by an algorithm that is not accepted")
            if audience not in audiences(said.claims):
                raise refused("the token is meant for somebody else")
            check_times(said.claims, now, LONGEST_S)  # before the signature, which costs more
            self._check_signature(token, said, now)
            claims = said.claims
            if len(self._known) >= 4096:
                self._known.clear()
            self._known[name] = (claims, now + _REMEMBER_S)
        check_times(claims, now, LONGEST_S)
        text_claim(claims, "sub")
        return claims

    def begin_login(self, redirect: str, now: float) -> Login:
        """Start a person's sign-in; `redirect` is a loopback address of the caller's own, or the console's."""
        _check_address(redirect)
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self.options.client,
            "redirect_uri": redirect,
            "scope": f"openid {self.options.groups} {self.options.scope}".strip(),
            "resource": self.options.audience,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address = self._keys.endpoint("authorization_endpoint", now)
        return Login(f"{address}{'&' if '?' in address else '?'}{urlencode(query)}", redirect, state, nonce, verifier)

    def finish_login(self, login: Login, callback: str, now: float) -> Granted:
        """End the sign-in with the address that the provider sent the browser to."""
        answer = {key: values[0] for key, values in parse_qs(urlsplit(callback).query).items() if len(values) == 1}
        if not hmac.compare_digest(answer.get("state", ""), login.state):
            raise refused("the answer belongs to another sign-in")
        if answer.get("iss", self.issuer) != self.issuer:
            raise refused("the answer comes from another provider")
        if "code" not in answer:
            raise refused("the provider did not sign you in")
        form = {"grant_type": "authorization_code", "code": answer["code"], "redirect_uri": login.redirect}
        given = self._grant(form | {"client_id": self.options.client, "code_verifier": login.verifier}, now)
        self._check_identity(str(given.get("id_token", "")), login.nonce, now)
        return self._granted(given, now)

    def renew(self, granted: Granted, now: float) -> Granted:
        """A new token for one that is about to end."""
        form = {"grant_type": "refresh_token", "refresh_token": granted.renew, "client_id": self.options.client}
        return self._granted(self._grant(form, now), now)

    def service_login(self, client: str, secret: str, now: float) -> Granted:
        """A service signs in with its own client credentials."""
        form = {"grant_type": "client_credentials", "resource": self.options.audience, "scope": self.options.scope}
        return self._granted(self._grant(form, now, (client, secret)), now)

    def close(self) -> None:
        """Let go of connections."""
        self._keys.close()

    def _check_signature(self, token: str, said: Unverified, now: float) -> None:
        algorithm = str(said.header["alg"])
        key = self._keys.find(str(said.header.get("kid", "")), algorithm, now)
        try:
            jwt.PyJWS(algorithms=[algorithm]).decode(token, key, algorithms=[algorithm])
        except jwt.PyJWTError as error:
            raise refused("the token's signature is false") from error

    def _check_identity(self, token: str, nonce: str, now: float) -> None:
        claims = self.claims(token, now, self.options.client) if is_signed_token(token) else None
        if claims is None or not hmac.compare_digest(str(claims.get("nonce", "")), nonce):
            raise refused("the provider's answer is not to our question")
        if claims.get("azp", self.options.client) != self.options.client:
            raise refused("the provider's answer is for another client")

    def _grant(self, form: Mapping[str, str], now: float, secret: tuple[str, str] | None = None) -> Mapping[str, Any]:
        return self._keys.post(self._keys.endpoint("token_endpoint", now), form, secret)

    def _granted(self, given: Mapping[str, Any], now: float) -> Granted:
        token = str(given.get("access_token", ""))
        actor = self.whois(token, now)
        if actor is None:
            raise refused("the provider gave a token that this installation cannot read")
        return Granted(token, actor.expires, str(given.get("refresh_token", "")))

    def _actor(self, claims: Mapping[str, Any], now: float) -> Actor:
        subject, client = text_claim(claims, "sub"), self._client(claims)
        service = bool(client) and (client in self.options.services or client == subject)
        roles, projects = read_group_roles(self._groups(claims), self.options.roles), self._projects(claims)
        roles = roles & {"service"} if service else roles - {"service"}
        roles, projects = limit_to_projects(roles, projects, ANY)
        return Actor(
            id=_name(subject),
            tenant=self._tenant(claims),
            kind="service" if service else "person",
            roles=roles,
            projects=projects,
            subject=f"{self.issuer}#{subject}",
            jurisdiction=self._value(self.options.jurisdiction, claims),
            strong=not service and self._strong(claims, now),
            expires=float(claims["exp"]),
        )

    def _client(self, claims: Mapping[str, Any]) -> str:
        """The client that asked for the token; required where the token is for several, refused where unknown."""
        client = claims.get("azp", claims.get("client_id", ""))
        if not isinstance(client, str) or (not client and len(audiences(claims)) > 1):
            raise refused("the token does not say which client it was made for")
        accepted = {self.options.client, *self.options.services} - {""}
        if client and accepted and client not in accepted:
            raise refused("the token was made for another client")
        return client

    def _tenant(self, claims: Mapping[str, Any]) -> str:
        tenant = self._value(self.options.tenant, claims)
        claimed = self.options.tenant.startswith("claim:")
        if not _TENANT.fullmatch(tenant) or (claimed and tenant == HOUSE):
            raise refused("the token names no tenant")
        return tenant

    def _projects(self, claims: Mapping[str, Any]) -> frozenset[str]:
        if not self.options.projects.startswith("claim:"):
            stated = frozenset(word.strip() for word in self.options.projects.split(",") if word.strip())
            return ANY if "*" in stated else stated
        value = claims.get(self.options.projects.removeprefix("claim:"), [])
        words = value.split() if isinstance(value, str) else value
        # Only the settings may say "every project"; a star in a claim says nothing.
        return (
            frozenset(w for w in words if isinstance(w, str) and w != "*") if isinstance(words, list) else frozenset()
        )

    def _value(self, setting: str, claims: Mapping[str, Any]) -> str:
        if not setting.startswith("claim:"):
            return setting
        value = claims.get(setting.removeprefix("claim:"), "")
        return value if isinstance(value, str) and len(value) <= 128 else ""

    def _groups(self, claims: Mapping[str, Any]) -> list[str]:
        value = claims.get(self.options.groups, [])
        return [group for group in value if isinstance(group, str)] if isinstance(value, list) else []

    def _strong(self, claims: Mapping[str, Any], now: float) -> bool:
        methods = claims.get("amr", [])
        proofs = [claims.get("acr"), *(methods if isinstance(methods, list) else [])]
        since = claims.get("auth_time", claims["iat"])
        recent = isinstance(since, (int, float)) and now - since <= STRONG_S
        return recent and any(isinstance(proof, str) and proof in self.options.strong for proof in proofs)


class _Keys:
    """The provider's addresses and keys, from its own discovery document, kept for a while and no longer."""

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer
        local = urlsplit(issuer).hostname in _LOOPBACK
        self._http = httpx.Client(timeout=5.0, follow_redirects=False, trust_env=not local)
        self._lock = threading.Lock()
        self._document: Mapping[str, Any] = {}
        self._keys: list[Mapping[str, Any]] = []
        self._at = self._tried = float("-inf")

    def endpoint(self, name: str, now: float) -> str:
        with self._lock:
            self._refresh(now, wanted=now - self._at > _REFRESH_S)
            return _check_address(str(self._document.get(name, "")))

    def find(self, kid: str, algorithm: str, now: float) -> Any:
        """The one key of that id which is for that algorithm; an unknown id is looked up once more, not too often."""
        candidates = [key for key in self._keys if key.get("kid", "") == kid]
        if not candidates or now - self._at > _REFRESH_S:
            # Only lookups of an unknown key id, or of keys that are due for a refresh, wait for the lock.
            if not self._lock.acquire(timeout=_WAIT_S if self._keys else -1):
                raise Unavailable("the identity provider's keys are being read", "try again in a moment")
            try:
                self._refresh(now, wanted=True)
                candidates = [key for key in self._keys if key.get("kid", "") == kid]
            finally:
                self._lock.release()
        if len(candidates) != 1 or not _fits(candidates[0], algorithm):
            raise refused("no key of the provider fits the token")
        try:
            return jwt.PyJWK(dict(candidates[0]), algorithm=algorithm).key
        except jwt.PyJWTError as error:
            raise refused("no key of the provider fits the token") from error

    def post(self, address: str, form: Mapping[str, str], secret: tuple[str, str] | None) -> Mapping[str, Any]:
        auth = httpx.BasicAuth(*secret) if secret else httpx.USE_CLIENT_DEFAULT
        try:
            answer = self._http.post(address, data=dict(form), auth=auth)
        except httpx.HTTPError as error:
            raise Unavailable("the identity provider does not answer", "try again in a moment") from error
        if not answer.is_success:
            raise Unauthenticated("the identity provider refused", "sign in again")
        return _object(answer.content)

    def close(self) -> None:
        self._http.close()

    def _refresh(self, now: float, wanted: bool) -> None:
        if wanted and now - self._tried >= _AGAIN_S:
            self._tried = now
            try:
                self._fetch()
                self._at = now
            except Unavailable:
                if now - self._at > _EXPIRE_S:
                    raise
        if now - self._at > _EXPIRE_S:
            raise Unavailable("the identity provider's keys are too old to trust", "try again in a moment")

    def _fetch(self) -> None:
        document = self._get(f"{self._issuer}/.well-known/openid-configuration")
        if document.get("issuer") != self._issuer:
            raise Unavailable("the identity provider names another issuer", "correct oidc.issuer")
        keys = self._get(_check_address(str(document.get("jwks_uri", "")))).get("keys")
        if not isinstance(keys, list):
            raise Unavailable("the identity provider shows no keys", "try again in a moment")
        self._document, self._keys = document, [key for key in keys if isinstance(key, dict)]

    def _get(self, address: str) -> Mapping[str, Any]:
        try:
            with self._http.stream("GET", address) as answer:
                if not answer.is_success:
                    raise Unavailable("the identity provider does not answer", "try again in a moment")
                data = b""
                for chunk in answer.iter_bytes():
                    data += chunk
                    if len(data) > _MAX_BYTES:
                        raise Unavailable("the identity provider answers too much", "correct oidc.issuer")
        except httpx.HTTPError as error:
            raise Unavailable("the identity provider does not answer", "try again in a moment") from error
        return _object(data)


def _check_address(address: str) -> str:
    """The address, or Invalid unless it is https, or http on this very machine."""
    parts = urlsplit(address)
    safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    if not safe or not parts.hostname or parts.username or parts.fragment:
        raise Invalid("the identity provider's address is not https", "plain http is for loopback only")
    return address


def _fits(key: Mapping[str, Any], algorithm: str) -> bool:
    """True when the key itself is of the kind that the algorithm needs: the token does not get to choose."""
    kind, curve = _KEY_TYPES[algorithm]
    if key.get("kty") != kind or (curve and key.get("crv") != curve) or key.get("alg", algorithm) != algorithm:
        return False
    # 2048 bits are 342 base64url characters; whatever is shorter can be broken.
    return key.get("use", "sig") == "sig" and (kind != "RSA" or len(str(key.get("n", ""))) >= 342)


def _name(subject: str) -> str:
    """An actor id that no local account can have, safe as part of a reference."""
    plain = subject if _NAME.fullmatch(subject) else hashlib.sha256(subject.encode()).hexdigest()[:32]
    return f"oidc.{plain}"


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unavailable("the identity provider does not speak OpenID Connect", "correct oidc.issuer") from error
    return value if isinstance(value, dict) else {}
