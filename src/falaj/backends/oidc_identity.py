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

from falaj.core.context import SYSTEM_TENANT, Actor
from falaj.core.errors import Invalid, Unauthenticated, Unavailable
from falaj.core.jwt_claims import (
    UnverifiedToken,
    check_token_times,
    invalid_token_error,
    is_signed_token,
    list_audiences,
    read_text_claim,
    read_token,
)
from falaj.core.label import ANY_VALUE
from falaj.core.project_roles import check_group_roles, limit_to_projects, read_group_roles
from falaj.core.settings import OidcSettings

MAX_TOKEN_LIFETIME_S = 86_400.0
"""A token that lives longer is refused: this bounds how long someone removed at the provider can still act."""
STRONG_AUTHENTICATION_MAX_AGE_S = 43_200.0
_KEYS_REFRESH_S, _KEYS_EXPIRE_S, _MIN_FETCH_INTERVAL_S = 600.0, 3600.0, 30.0
_KEYS_WAIT_S = 1.0
"""Seconds that the check of a token waits for another that reads the provider's keys, once there are any."""
_CLAIMS_TTL_S = 30.0
_MAX_RESPONSE_BYTES = 1 << 20
_KEY_TYPES = {"EdDSA": ("OKP", "Ed25519"), "ES256": ("EC", "P-256"), "RS256": ("RSA", ""), "PS256": ("RSA", "")}
_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_TENANT_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """A sign-in under way: where to send the browser, and what only we know until it comes back."""

    url: str
    redirect: str
    state: str
    nonce: str
    verifier: str


@dataclass(frozen=True, slots=True)
class GrantedToken:
    """What the provider gave: the token to call with, when it ends, and one to renew it where granted."""

    token: str
    expires: float
    renew: str = ""


class OidcIdentityProvider:
    """Whose token it is, by the provider's signature and the settings' mapping of groups to roles."""

    def __init__(self, url: str, options: Mapping[str, Any] | OidcSettings) -> None:
        self.options = options if isinstance(options, OidcSettings) else options["oidc"]
        self.issuer = url.partition(":")[2].rstrip("/") or self.options.issuer
        unknown_algorithms = [name for name in self.options.algorithms if name not in _KEY_TYPES]
        if unknown_algorithms or not self.options.algorithms:
            raise Invalid(
                f"oidc.algorithms names {', '.join(unknown_algorithms) or 'nothing'}", f"only {', '.join(_KEY_TYPES)}"
            )
        check_group_roles(self.options.roles)
        _require_https_url(self.issuer)
        self._provider_keys = _ProviderKeys(self.issuer)
        self._claims_by_digest: dict[str, tuple[Mapping[str, Any], float]] = {}

    def whois(self, token: str, now: float) -> Actor | None:
        """The actor, None when another issuer made the token, Unauthenticated when it is false or has ended."""
        if not is_signed_token(token):
            return None
        claims = self.claims(token, now, self.options.audience)
        return None if claims is None else self._make_actor(claims, now)

    def claims(self, token: str, now: float, audience: str) -> Mapping[str, Any] | None:
        """The claims of a token of this issuer for this audience, checked; None when another issuer made it."""
        digest = hashlib.sha256(f"{audience}\n{token}".encode()).hexdigest()
        claims, valid_until = self._claims_by_digest.get(digest, ({}, 0.0))
        if not now < valid_until:
            unverified = read_token(token, tuple(_KEY_TYPES))
            if unverified.claims.get("iss") != self.issuer:
                return None
            if unverified.header["alg"] not in self.options.algorithms:
                raise invalid_token_error("the token is signed by an algorithm that is not accepted")
            if audience not in list_audiences(unverified.claims):
                raise invalid_token_error("the token is meant for somebody else")
            check_token_times(unverified.claims, now, MAX_TOKEN_LIFETIME_S)  # before the signature, which costs more
            self._check_signature(token, unverified, now)
            claims = unverified.claims
            if len(self._claims_by_digest) >= 4096:
                self._claims_by_digest.clear()
            self._claims_by_digest[digest] = (claims, now + _CLAIMS_TTL_S)
        check_token_times(claims, now, MAX_TOKEN_LIFETIME_S)
        read_text_claim(claims, "sub")
        return claims

    def begin_login(self, redirect_uri: str, now: float) -> PendingLogin:
        """Start a person's sign-in; `redirect_uri` is a loopback address of the caller's own, or the console's."""
        _require_https_url(redirect_uri)
        state, nonce, code_verifier = (secrets.token_urlsafe(32) for _ in range(3))
        code_challenge = base64.urlsafe_b64encode(hashlib.sha256(code_verifier.encode()).digest()).rstrip(b"=").decode()
        query_params = {
            "response_type": "code",
            "client_id": self.options.client,
            "redirect_uri": redirect_uri,
            "scope": f"openid {self.options.groups} {self.options.scope}".strip(),
            "resource": self.options.audience,
            "state": state,
            "nonce": nonce,
            "code_challenge": code_challenge,
            "code_challenge_method": "S256",
        }
        address = self._provider_keys.endpoint("authorization_endpoint", now)
        return PendingLogin(
            f"{address}{'&' if '?' in address else '?'}{urlencode(query_params)}",
            redirect_uri,
            state,
            nonce,
            code_verifier,
        )

    def finish_login(self, login: PendingLogin, callback: str, now: float) -> GrantedToken:
        """End the sign-in with the address that the provider sent the browser to."""
        callback_params = {
            key: values[0] for key, values in parse_qs(urlsplit(callback).query).items() if len(values) == 1
        }
        if not hmac.compare_digest(callback_params.get("state", ""), login.state):
            raise invalid_token_error("the answer belongs to another sign-in")
        if callback_params.get("iss", self.issuer) != self.issuer:
            raise invalid_token_error("the answer comes from another provider")
        if "code" not in callback_params:
            raise invalid_token_error("the provider did not sign you in")
        form = {"grant_type": "authorization_code", "code": callback_params["code"], "redirect_uri": login.redirect}
        token_response = self._request_token(
            form | {"client_id": self.options.client, "code_verifier": login.verifier}, now
        )
        self._check_identity(str(token_response.get("id_token", "")), login.nonce, now)
        return self._to_granted_token(token_response, now)

    def renew(self, granted: GrantedToken, now: float) -> GrantedToken:
        """A new token for one that is about to end."""
        form = {"grant_type": "refresh_token", "refresh_token": granted.renew, "client_id": self.options.client}
        return self._to_granted_token(self._request_token(form, now), now)

    def service_login(self, client: str, secret: str, now: float) -> GrantedToken:
        """A service signs in with its own client credentials."""
        form = {"grant_type": "client_credentials", "resource": self.options.audience, "scope": self.options.scope}
        return self._to_granted_token(self._request_token(form, now, (client, secret)), now)

    def close(self) -> None:
        """Let go of connections."""
        self._provider_keys.close()

    def _check_signature(self, token: str, unverified: UnverifiedToken, now: float) -> None:
        algorithm = str(unverified.header["alg"])
        key = self._provider_keys.find(str(unverified.header.get("kid", "")), algorithm, now)
        try:
            jwt.PyJWS(algorithms=[algorithm]).decode(token, key, algorithms=[algorithm])
        except jwt.PyJWTError as error:
            raise invalid_token_error("the token's signature is false") from error

    def _check_identity(self, token: str, nonce: str, now: float) -> None:
        claims = self.claims(token, now, self.options.client) if is_signed_token(token) else None
        if claims is None or not hmac.compare_digest(str(claims.get("nonce", "")), nonce):
            raise invalid_token_error("the provider's answer is not to our question")
        if claims.get("azp", self.options.client) != self.options.client:
            raise invalid_token_error("the provider's answer is for another client")

    def _request_token(
        self, form: Mapping[str, str], now: float, client_credentials: tuple[str, str] | None = None
    ) -> Mapping[str, Any]:
        return self._provider_keys.post(self._provider_keys.endpoint("token_endpoint", now), form, client_credentials)

    def _to_granted_token(self, token_response: Mapping[str, Any], now: float) -> GrantedToken:
        token = str(token_response.get("access_token", ""))
        actor = self.whois(token, now)
        if actor is None:
            raise invalid_token_error("the provider gave a token that this installation cannot read")
        return GrantedToken(token, actor.expires, str(token_response.get("refresh_token", "")))

    def _make_actor(self, claims: Mapping[str, Any], now: float) -> Actor:
        subject, client_id = read_text_claim(claims, "sub"), self._require_client(claims)
        is_service = bool(client_id) and (client_id in self.options.services or client_id == subject)
        roles, projects = read_group_roles(self._read_groups(claims), self.options.roles), self._read_projects(claims)
        roles = roles & {"service"} if is_service else roles - {"service"}
        roles, projects = limit_to_projects(roles, projects, ANY_VALUE)
        return Actor(
            id=_make_actor_id(subject),
            tenant=self._require_tenant(claims),
            kind="service" if is_service else "person",
            roles=roles,
            projects=projects,
            subject=f"{self.issuer}#{subject}",
            jurisdiction=self._read_setting_or_claim(self.options.jurisdiction, claims),
            strong=not is_service and self._is_strong(claims, now),
            expires=float(claims["exp"]),
        )

    def _require_client(self, claims: Mapping[str, Any]) -> str:
        """The client that asked for the token; required where the token is for several, refused where unknown."""
        client_id = claims.get("azp", claims.get("client_id", ""))
        if not isinstance(client_id, str) or (not client_id and len(list_audiences(claims)) > 1):
            raise invalid_token_error("the token does not say which client it was made for")
        accepted_clients = {self.options.client, *self.options.services} - {""}
        if client_id and accepted_clients and client_id not in accepted_clients:
            raise invalid_token_error("the token was made for another client")
        return client_id

    def _require_tenant(self, claims: Mapping[str, Any]) -> str:
        tenant = self._read_setting_or_claim(self.options.tenant, claims)
        is_claimed = self.options.tenant.startswith("claim:")
        if not _TENANT_PATTERN.fullmatch(tenant) or (is_claimed and tenant == SYSTEM_TENANT):
            raise invalid_token_error("the token names no tenant")
        return tenant

    def _read_projects(self, claims: Mapping[str, Any]) -> frozenset[str]:
        if not self.options.projects.startswith("claim:"):
            stated_projects = frozenset(
                project_text.strip() for project_text in self.options.projects.split(",") if project_text.strip()
            )
            return ANY_VALUE if "*" in stated_projects else stated_projects
        value = claims.get(self.options.projects.removeprefix("claim:"), [])
        project_names = value.split() if isinstance(value, str) else value
        # Only the settings may say "every project"; a star in a claim says nothing.
        return (
            frozenset(
                project_name for project_name in project_names if isinstance(project_name, str) and project_name != "*"
            )
            if isinstance(project_names, list)
            else frozenset()
        )

    def _read_setting_or_claim(self, setting: str, claims: Mapping[str, Any]) -> str:
        if not setting.startswith("claim:"):
            return setting
        value = claims.get(setting.removeprefix("claim:"), "")
        return value if isinstance(value, str) and len(value) <= 128 else ""

    def _read_groups(self, claims: Mapping[str, Any]) -> list[str]:
        value = claims.get(self.options.groups, [])
        return [group for group in value if isinstance(group, str)] if isinstance(value, list) else []

    def _is_strong(self, claims: Mapping[str, Any], now: float) -> bool:
        methods = claims.get("amr", [])
        proof_values = [claims.get("acr"), *(methods if isinstance(methods, list) else [])]
        authenticated_at = claims.get("auth_time", claims["iat"])
        is_recent = (
            isinstance(authenticated_at, (int, float)) and now - authenticated_at <= STRONG_AUTHENTICATION_MAX_AGE_S
        )
        return is_recent and any(isinstance(proof, str) and proof in self.options.strong for proof in proof_values)


class _ProviderKeys:
    """The provider's addresses and keys, from its own discovery document, kept for a while and no longer."""

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer
        is_local = urlsplit(issuer).hostname in _LOOPBACK_HOSTS
        self._http_client = httpx.Client(timeout=5.0, follow_redirects=False, trust_env=not is_local)
        self._lock = threading.Lock()
        self._document: Mapping[str, Any] = {}
        self._keys: list[Mapping[str, Any]] = []
        self._fetched_at = self._last_try_at = float("-inf")

    def endpoint(self, name: str, now: float) -> str:
        with self._lock:
            self._refresh_keys(now, is_due=now - self._fetched_at > _KEYS_REFRESH_S)
            return _require_https_url(str(self._document.get(name, "")))

    def find(self, key_id: str, algorithm: str, now: float) -> Any:
        """The one key of that id which is for that algorithm; an unknown id is looked up once more, not too often."""
        candidates = [key for key in self._keys if key.get("kid", "") == key_id]
        if not candidates or now - self._fetched_at > _KEYS_REFRESH_S:
            # Only lookups of an unknown key id, or of keys that are due for a refresh, wait for the lock.
            if not self._lock.acquire(timeout=_KEYS_WAIT_S if self._keys else -1):
                raise Unavailable("the identity provider's keys are being read", "try again in a moment")
            try:
                self._refresh_keys(now, is_due=True)
                candidates = [key for key in self._keys if key.get("kid", "") == key_id]
            finally:
                self._lock.release()
        if len(candidates) != 1 or not _is_key_for_algorithm(candidates[0], algorithm):
            raise invalid_token_error("no key of the provider fits the token")
        try:
            return jwt.PyJWK(dict(candidates[0]), algorithm=algorithm).key
        except jwt.PyJWTError as error:
            raise invalid_token_error("no key of the provider fits the token") from error

    def post(
        self, address: str, form: Mapping[str, str], client_credentials: tuple[str, str] | None
    ) -> Mapping[str, Any]:
        auth = httpx.BasicAuth(*client_credentials) if client_credentials else httpx.USE_CLIENT_DEFAULT
        try:
            response = self._http_client.post(address, data=dict(form), auth=auth)
        except httpx.HTTPError as error:
            raise Unavailable("the identity provider does not answer", "try again in a moment") from error
        if not response.is_success:
            raise Unauthenticated("the identity provider refused", "sign in again")
        return _decode_object(response.content)

    def close(self) -> None:
        self._http_client.close()

    def _refresh_keys(self, now: float, is_due: bool) -> None:
        if is_due and now - self._last_try_at >= _MIN_FETCH_INTERVAL_S:
            self._last_try_at = now
            try:
                self._fetch_keys()
                self._fetched_at = now
            except Unavailable:
                if now - self._fetched_at > _KEYS_EXPIRE_S:
                    raise
        if now - self._fetched_at > _KEYS_EXPIRE_S:
            raise Unavailable("the identity provider's keys are too old to trust", "try again in a moment")

    def _fetch_keys(self) -> None:
        document = self._get_json(f"{self._issuer}/.well-known/openid-configuration")
        if document.get("issuer") != self._issuer:
            raise Unavailable("the identity provider names another issuer", "correct oidc.issuer")
        keys = self._get_json(_require_https_url(str(document.get("jwks_uri", "")))).get("keys")
        if not isinstance(keys, list):
            raise Unavailable("the identity provider shows no keys", "try again in a moment")
        self._document, self._keys = document, [key for key in keys if isinstance(key, dict)]

    def _get_json(self, address: str) -> Mapping[str, Any]:
        try:
            with self._http_client.stream("GET", address) as response:
                if not response.is_success:
                    raise Unavailable("the identity provider does not answer", "try again in a moment")
                data = b""
                for chunk in response.iter_bytes():
                    data += chunk
                    if len(data) > _MAX_RESPONSE_BYTES:
                        raise Unavailable("the identity provider answers too much", "correct oidc.issuer")
        except httpx.HTTPError as error:
            raise Unavailable("the identity provider does not answer", "try again in a moment") from error
        return _decode_object(data)


def _require_https_url(address: str) -> str:
    """The address, or Invalid unless it is https, or http on this very machine."""
    parts = urlsplit(address)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK_HOSTS)
    if not is_safe or not parts.hostname or parts.username or parts.fragment:
        raise Invalid("the identity provider's address is not https", "plain http is for loopback only")
    return address


def _is_key_for_algorithm(key: Mapping[str, Any], algorithm: str) -> bool:
    """True when the key itself is of the kind that the algorithm needs: the token does not get to choose."""
    kind, curve = _KEY_TYPES[algorithm]
    if key.get("kty") != kind or (curve and key.get("crv") != curve) or key.get("alg", algorithm) != algorithm:
        return False
    # 2048 bits are 342 base64url characters; whatever is shorter can be broken.
    return key.get("use", "sig") == "sig" and (kind != "RSA" or len(str(key.get("n", ""))) >= 342)


def _make_actor_id(subject: str) -> str:
    """An actor id that no local account can have, safe as part of a reference."""
    actor_name = subject if _NAME_PATTERN.fullmatch(subject) else hashlib.sha256(subject.encode()).hexdigest()[:32]
    return f"oidc.{actor_name}"


def _decode_object(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unavailable("the identity provider does not speak OpenID Connect", "correct oidc.issuer") from error
    return value if isinstance(value, dict) else {}
