"""Sessions: a browser shows its token in a cookie that no script can read and no other site can send.

The cookie holds the very token that a program would send: it ends where the token ends, and any replica knows it. But
whoever runs an embedded platform owns the folder, has no token, and comes in by a link of one use.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from urllib.parse import quote, unquote

from falaj.api.routes import Ask
from falaj.console.page import ROOT
from falaj.console.view import Look
from falaj.console.words import LANGUAGES, preferred
from falaj.core.context import Actor
from falaj.core.errors import Denied, Unauthenticated

Header = tuple[bytes, bytes]
HOURS_S = 12 * 3600.0
INVITE_S = 900.0
_OWNER = "fjo_"
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{8,4096}")
_PURPOSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}")
_HEX = re.compile(r"[0-9a-f]{64}")


class Sessions:
    """Who is signed in by which cookie."""

    def __init__(self, whois: Callable[[str], Actor], owner: Callable[[], Actor]) -> None:
        self._whois, self._owner = whois, owner
        self._owners: dict[str, tuple[Actor, float]] = {}
        self._invites: dict[str, float] = {}

    def invite(self) -> str:
        """A code that lets whoever runs this process in, once, for some minutes."""
        code = secrets.token_urlsafe(24)
        self._invites[code] = time.time() + INVITE_S
        return code

    def accept(self, code: str) -> str:
        """The token for an invitation; it is used up, whether or not it was still good."""
        if self._invites.pop(code, 0.0) < time.time():
            raise Unauthenticated(
                "that link was used or is too old", "start `falaj up` again for a new one, or use a token"
            )
        token = _OWNER + secrets.token_urlsafe(32)
        self._owners[token] = (self._owner(), time.time() + HOURS_S)
        return token

    def whois(self, token: str) -> Actor:
        """Who has this token."""
        if not token.startswith(_OWNER):
            return self._whois(token)
        actor, until = self._owners.get(token, (None, 0.0))
        if actor is None or until < time.time():
            self._owners.pop(token, None)
            raise Unauthenticated("you were signed out", "sign in again")
        return actor

    def forget(self, token: str) -> None:
        """End a session that only this process knows; other tokens end where they were made."""
        self._owners.pop(token, None)


def owns(path: bytes) -> bool:
    """True for what is asked of the console."""
    return path == b"/" or path == ROOT.encode() or path.startswith(f"{ROOT}/".encode())


def shown(ask: Ask) -> bytes:
    """The header a program would have sent. A cookie counts for pages alone: no call of the API is made by one."""
    if not owns(ask.path):
        return ask.headers.get(b"authorization", b"")
    token = cookie(ask, _name(ask))
    return b"Bearer " + token.encode() if _TOKEN.fullmatch(token) else b""


def begin(ask: Ask, token: str, secure: bool) -> Header:
    """Sign a browser in."""
    if not _TOKEN.fullmatch(token):
        raise Unauthenticated("that is no token", "copy it again, whole")
    return put(_name(ask), token, secure, HOURS_S)


def end(ask: Ask, secure: bool) -> Header:
    """Sign it out."""
    return put(_name(ask), "", secure, 0)


def form_key(token: str) -> str:
    """What a form of this session carries: only whoever holds the cookie can know it."""
    return hmac.new(token.encode(), b"falaj console form", hashlib.sha256).hexdigest()


def check_form(ask: Ask, token: str, given: str) -> None:
    """Denied unless a page of ours sent this form: its key, and where the browser says it came from."""
    check_origin(ask)
    if not _HEX.fullmatch(given) or not hmac.compare_digest(given, form_key(token)):
        raise Denied("this form is not from a page of yours", "load the page again and repeat")


def check_origin(ask: Ask) -> None:
    """Denied unless the browser says that our own page sent this. The gate has refused other origins already."""
    if b"origin" not in ask.headers and ask.headers.get(b"sec-fetch-site") != b"same-origin":
        raise Denied("a form must say where it comes from", "use a browser that sends Origin")


def look_of(ask: Ask) -> Look:
    """How this browser wants the console to be."""
    lang, theme, digits, purpose = [*unquote(cookie(ask, "falaj-look")).split("|"), "", "", "", ""][:4]
    return Look(
        lang if lang in LANGUAGES else preferred(ask.headers.get(b"accept-language", b"").decode("ascii", "replace")),
        theme if theme in ("light", "dark") else "",
        digits == "indic",
        purpose if _PURPOSE.fullmatch(purpose) else "",
    )


def keep_look(look: Look, secure: bool) -> Header:
    """Remember it for a year."""
    said = "|".join((look.lang, look.theme, "indic" if look.indic else "", look.purpose))
    return put("falaj-look", quote(said, safe=""), secure, 365 * 86_400)


def flash(kind: str, message: str, secure: bool) -> Header:
    """Something to say on the next page."""
    return put("falaj-said", quote(f"{kind}|{message[:600]}", safe=""), secure, 60)


def flashed(ask: Ask) -> tuple[str, str]:
    """What was to be said on this page: its kind, and the words."""
    kind, _, message = unquote(cookie(ask, "falaj-said")).partition("|")
    return (kind, message) if kind in ("good", "warn", "bad") else ("", "")


def unflash(secure: bool) -> Header:
    """Said."""
    return put("falaj-said", "", secure, 0)


def cookie(ask: Ask, name: str) -> str:
    """One cookie of a request, or nothing."""
    for part in ask.headers.get(b"cookie", b"").decode("latin-1").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""


def _name(ask: Ask) -> str:
    """Cookies know no ports: two platforms on one machine must not sign each other out."""
    port = ask.headers.get(b"host", b"").rpartition(b":")[2]
    return f"falaj-{port.decode()}" if port.isdigit() else "falaj-session"


def put(name: str, value: str, secure: bool, age_s: float, path: str = ROOT, site: str = "Strict") -> Header:
    """The header that sets a cookie for so long; one of no time is gone."""
    flags = f"Path={path}; HttpOnly; SameSite={site}; Max-Age={int(age_s)}{'; Secure' if secure else ''}"
    return b"set-cookie", f"{name}={value}; {flags}".encode()
