"""Signing in with the enterprise's identity provider: the browser goes there and comes back with a code."""

import time
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

from falaj.api.routes import Ask
from falaj.console.page import ROOT
from falaj.console.session import Header, cookie, put
from falaj.core.errors import Unauthenticated
from falaj.platform import House
from falaj.plugins import plugin

CALLBACK = f"{ROOT}/callback"
_COOKIE, _WAIT_S = "falaj-going", 600


class Provider:
    """The provider that the settings name, if any."""

    def __init__(self, house: House) -> None:
        self._settings = house.settings
        self._opened: Any = None

    @property
    def there(self) -> bool:
        """True when people can sign in with it."""
        return bool(self._settings.oidc.issuer and self._settings.oidc.client)

    def begin(self, ask: Ask, back: str, secure: bool) -> tuple[str, Header]:
        """Where to send the browser, and what it must bring back with it: nobody else's sign-in can be slipped in."""
        begun = self._provider().begin_login(self._callback(ask, secure), time.time())
        said = quote(f"{begun.state}|{begun.nonce}|{begun.verifier}|{back}", safe="")
        # Lax, since the browser comes back from another site; it holds no right, and dies with the sign-in.
        return begun.url, put(_COOKIE, said, secure, _WAIT_S, CALLBACK, "Lax")

    def finish(self, ask: Ask, secure: bool) -> tuple[str, str, Header]:
        """The token, where the person wanted to go, and the end of the cookie."""
        parts = unquote(cookie(ask, _COOKIE)).split("|", 3)
        if len(parts) != 4:
            raise Unauthenticated("this sign-in was not begun here", "begin again")
        state, nonce, verifier, back = parts
        redirect = self._callback(ask, secure)
        provider = self._provider()
        login = replace(provider.begin_login(redirect, time.time()), state=state, nonce=nonce, verifier=verifier)
        granted = provider.finish_login(login, f"{redirect}?{ask.query.decode('ascii', 'replace')}", time.time())
        return granted.token, back, put(_COOKIE, "", secure, 0, CALLBACK, "Lax")

    def _callback(self, ask: Ask, secure: bool) -> str:
        # The gate let in only hosts that are ours.
        return f"{'https' if secure else 'http'}://{ask.headers[b'host'].decode('ascii')}{CALLBACK}"

    def _provider(self) -> Any:
        if not self.there:
            raise Unauthenticated("no identity provider is set here", "sign in with a token")
        self._opened = self._opened or plugin("identity", "oidc")("oidc:", self._settings.oidc)
        return self._opened
