"""Signing in with a browser, answered on a loopback port that lives as long as the login."""

import sys
import time
import webbrowser
from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from falaj.cli.login import SavedLogin
from falaj.core.errors import Unauthenticated
from falaj.core.settings import OidcSettings
from falaj.plugins import load_plugin

LOGIN_TIMEOUT_S = 300.0


def sign_in_by_browser(login: SavedLogin) -> SavedLogin:
    """Send the user to the identity provider and come back with a token."""
    provider = create_provider(login.provider)
    try:
        with _create_callback_server() as server:
            pending_login = provider.begin_login(f"http://127.0.0.1:{server.server_port}/callback", time.time())
            sys.stderr.write(f"open this address to sign in:\n  {pending_login.url}\n")
            webbrowser.open(pending_login.url)
            granted_token = provider.finish_login(pending_login, _wait_for_callback(server), time.time())
    finally:
        provider.close()
    return replace(login, token=granted_token.token, expires=granted_token.expires, refresh=granted_token.renew)


def renew_login(login: SavedLogin) -> SavedLogin:
    """A fresh token for a login that can be renewed."""
    provider = create_provider(login.provider)
    try:
        granted_token = provider.renew(_RenewableToken(login.refresh), time.time())
    finally:
        provider.close()
    return replace(
        login, token=granted_token.token, expires=granted_token.expires, refresh=granted_token.renew or login.refresh
    )


def create_provider(provider_fields: Mapping[str, str]) -> Any:
    """The provider that the platform names. Whose people they are is the platform's to say: here they only sign in."""
    fields: dict[str, Any] = {
        name: provider_fields[name] for name in ("issuer", "client", "audience", "groups", "scope")
    }
    return load_plugin("identity", "oidc")("oidc:", OidcSettings(**fields, tenant="not-known-here"))


class _RenewableToken:
    """The part of a grant that renewing needs."""

    def __init__(self, refresh_token: str) -> None:
        self.renew = refresh_token


class _CallbackServer(HTTPServer):
    answer = ""


def _create_callback_server() -> _CallbackServer:
    class CallbackHandler(BaseHTTPRequestHandler):
        server: _CallbackServer

        def do_GET(self) -> None:
            is_callback = self.path.startswith("/callback?")
            if is_callback:
                self.server.answer = f"http://127.0.0.1:{self.server.server_port}{self.path}"
            self.send_response(200 if is_callback else 404)
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"You may close this window and go back to the terminal.\n")

        def log_message(self, *args: Any) -> None:
            """Codes are not for logs."""

    return _CallbackServer(("127.0.0.1", 0), CallbackHandler)


def _wait_for_callback(server: _CallbackServer) -> str:
    deadline = time.monotonic() + LOGIN_TIMEOUT_S
    server.timeout = 1.0
    while not server.answer and time.monotonic() < deadline:
        server.handle_request()
    if not server.answer:
        raise Unauthenticated("nobody signed in in time", "try again: falaj login")
    return server.answer
