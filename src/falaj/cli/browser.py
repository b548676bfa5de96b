"""Signing in with a browser: the code flow with PKCE, answered on a loopback port that lives as long as the login."""

import base64
import hashlib
import secrets
import sys
import time
import webbrowser
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx

from falaj.cli.login import Login
from falaj.core.errors import Invalid, Unauthenticated, Unavailable

WAIT_S = 300.0
SCOPE = "openid profile offline_access"


def signed_in(wanted: Login) -> Login:
    """Send the user to the identity provider and come back with tokens."""
    found = discover(wanted.issuer)
    verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
    answered: dict[str, str] = {}
    server = _listener(answered)
    redirect = f"http://127.0.0.1:{server.server_port}/callback"
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    query = {
        "response_type": "code",
        "client_id": wanted.client,
        "redirect_uri": redirect,
        "scope": SCOPE,
        "state": state,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    url = f"{found['authorization_endpoint']}?{urlencode(query)}"
    sys.stderr.write(f"open this address to sign in:\n  {url}\n")
    webbrowser.open(url)
    _wait(server, answered)
    if not secrets.compare_digest(answered.get("state", ""), state):
        raise Unauthenticated("the answer is not to our question", "sign in again")
    if "code" not in answered:
        raise Unauthenticated("the identity provider refused", answered.get("error", "sign in again")[:200])
    form = {
        "grant_type": "authorization_code",
        "code": answered["code"],
        "redirect_uri": redirect,
        "code_verifier": verifier,
    }
    return _exchanged(wanted, found, form)


def renewed(known: Login) -> Login:
    """A fresh token for a login that has a refresh token."""
    return _exchanged(known, discover(known.issuer), {"grant_type": "refresh_token", "refresh_token": known.refresh})


def discover(issuer: str) -> dict[str, Any]:
    """The provider's own description; its issuer must be exactly the one the platform named."""
    parts = urlsplit(issuer)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise Invalid("the identity provider is not on https", "ask the platform's operator")
    try:
        found: dict[str, Any] = (
            httpx.get(f"{issuer.rstrip('/')}/.well-known/openid-configuration", timeout=10.0).raise_for_status().json()
        )
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable("the identity provider does not answer", "check the network, then try again") from error
    if found.get("issuer", "").rstrip("/") != issuer.rstrip("/"):
        raise Invalid(
            "the identity provider calls itself something else", "ask the platform's operator to correct oidc.issuer"
        )
    return found


def _exchanged(login: Login, found: dict[str, Any], form: dict[str, str]) -> Login:
    try:
        answer = httpx.post(found["token_endpoint"], data=form | {"client_id": login.client}, timeout=10.0)
        body = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable("the identity provider does not answer", "try again") from error
    token = body.get("id_token") or body.get("access_token")
    if answer.status_code != 200 or not token:
        raise Unauthenticated("the identity provider gave no token", "sign in again: falaj login")
    expires = time.time() + float(body.get("expires_in", 300))
    return replace(login, token=token, expires=expires, refresh=body.get("refresh_token", login.refresh))


def _listener(answered: dict[str, str]) -> HTTPServer:
    class Callback(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/callback":
                answered.update({name: values[0] for name, values in parse_qs(parts.query).items()})
            self.send_response(200 if parts.path == "/callback" else 404)
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"You may close this window and go back to the terminal.\n")

        def log_message(self, *args: Any) -> None:
            """Codes are not for logs."""

    return HTTPServer(("127.0.0.1", 0), Callback)


def _wait(server: HTTPServer, answered: dict[str, str]) -> None:
    until = time.monotonic() + WAIT_S
    with server:
        while not answered and time.monotonic() < until:
            server.timeout = 1.0
            server.handle_request()
    if not answered:
        raise Unauthenticated("nobody signed in in time", "try again: falaj login")
