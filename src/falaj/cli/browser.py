"""Signing in with a browser, answered on a loopback port that lives as long as the login."""

import sys
import time
import webbrowser
from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from falaj.cli.login import Login
from falaj.core.errors import Unauthenticated
from falaj.core.settings import Oidc
from falaj.plugins import plugin

WAIT_S = 300.0


def signed_in(wanted: Login) -> Login:
    """Send the user to the identity provider and come back with a token."""
    provider = provider_of(wanted.provider)
    try:
        with _listener() as server:
            begun = provider.begin_login(f"http://127.0.0.1:{server.server_port}/callback", time.time())
            sys.stderr.write(f"open this address to sign in:\n  {begun.url}\n")
            webbrowser.open(begun.url)
            granted = provider.finish_login(begun, _answer(server), time.time())
    finally:
        provider.close()
    return replace(wanted, token=granted.token, expires=granted.expires, refresh=granted.renew)


def renewed(known: Login) -> Login:
    """A fresh token for a login that can be renewed."""
    provider = provider_of(known.provider)
    try:
        granted = provider.renew(_Granted(known.refresh), time.time())
    finally:
        provider.close()
    return replace(known, token=granted.token, expires=granted.expires, refresh=granted.renew or known.refresh)


def provider_of(said: Mapping[str, str]) -> Any:
    """The provider that the platform names. Whose people they are is the platform's to say: here they only sign in."""
    fields: dict[str, Any] = {name: said[name] for name in ("issuer", "client", "audience", "groups", "scope")}
    return plugin("identity", "oidc")("oidc:", Oidc(**fields, tenant="not-known-here"))


class _Granted:
    """The part of a grant that renewing needs."""

    def __init__(self, renew: str) -> None:
        self.renew = renew


class _Listener(HTTPServer):
    answer = ""


def _listener() -> _Listener:
    class Callback(BaseHTTPRequestHandler):
        server: _Listener

        def do_GET(self) -> None:
            known = self.path.startswith("/callback?")
            if known:
                self.server.answer = f"http://127.0.0.1:{self.server.server_port}{self.path}"
            self.send_response(200 if known else 404)
            self.send_header("content-type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"You may close this window and go back to the terminal.\n")

        def log_message(self, *args: Any) -> None:
            """Codes are not for logs."""

    return _Listener(("127.0.0.1", 0), Callback)


def _answer(server: _Listener) -> str:
    until = time.monotonic() + WAIT_S
    server.timeout = 1.0
    while not server.answer and time.monotonic() < until:
        server.handle_request()
    if not server.answer:
        raise Unauthenticated("nobody signed in in time", "try again: falaj login")
    return server.answer
