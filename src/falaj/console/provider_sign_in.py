"""Signing in with the enterprise's identity provider: the browser goes there and comes back with a code."""

import time
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

from falaj.api.routes import RequestContext
from falaj.console.page import ROOT_PATH
from falaj.console.session_cookies import CookieHeader, make_cookie, read_cookie
from falaj.core.errors import Unauthenticated
from falaj.plugins import load_plugin
from falaj.server import Server

CALLBACK_PATH = f"{ROOT_PATH}/callback"
_STATE_COOKIE, _SIGN_IN_TIMEOUT_S = "falaj-going", 600


class ProviderSignIn:
    """The provider that the settings name, if any."""

    def __init__(self, server: Server) -> None:
        self._settings = server.settings
        self._identity_provider: Any = None

    @property
    def there(self) -> bool:
        """True when people can sign in with it."""
        return bool(self._settings.oidc.issuer and self._settings.oidc.client)

    def begin(self, request: RequestContext, return_path: str, is_secure: bool) -> tuple[str, CookieHeader]:
        """Where to send the browser, and what it must bring back with it: nobody else's sign-in can be slipped in."""
        login = self._get_provider().begin_login(self._get_callback_url(request, is_secure), time.time())
        cookie_value = quote(f"{login.state}|{login.nonce}|{login.verifier}|{return_path}", safe="")
        # Lax, since the browser comes back from another site; it holds no right, and dies with the sign-in.
        return login.url, make_cookie(_STATE_COOKIE, cookie_value, is_secure, _SIGN_IN_TIMEOUT_S, CALLBACK_PATH, "Lax")

    def finish(self, request: RequestContext, is_secure: bool) -> tuple[str, str, CookieHeader]:
        """The token, where the person wanted to go, and the end of the cookie."""
        cookie_parts = unquote(read_cookie(request, _STATE_COOKIE)).split("|", 3)
        if len(cookie_parts) != 4:
            raise Unauthenticated("this sign-in was not begun here", "begin again")
        state, nonce, verifier, return_path = cookie_parts
        callback_url = self._get_callback_url(request, is_secure)
        provider = self._get_provider()
        login = replace(provider.begin_login(callback_url, time.time()), state=state, nonce=nonce, verifier=verifier)
        issued_token = provider.finish_login(
            login, f"{callback_url}?{request.query.decode('ascii', 'replace')}", time.time()
        )
        return issued_token.token, return_path, make_cookie(_STATE_COOKIE, "", is_secure, 0, CALLBACK_PATH, "Lax")

    def _get_callback_url(self, request: RequestContext, is_secure: bool) -> str:
        # The gate let in only hosts that are ours.
        return f"{'https' if is_secure else 'http'}://{request.headers[b'host'].decode('ascii')}{CALLBACK_PATH}"

    def _get_provider(self) -> Any:
        if not self.there:
            raise Unauthenticated("no identity provider is set here", "sign in with a token")
        self._identity_provider = self._identity_provider or load_plugin("identity", "oidc")(
            "oidc:", self._settings.oidc
        )
        return self._identity_provider
