"""Cookies of the console: the session id, which no script can read and no other site can send, and how pages look.

The session cookie holds a random id (`session_store`), which opens pages of the console and nothing else.
"""

import hashlib
import hmac
import re
from urllib.parse import quote, unquote

from falaj.api.routes import Ask
from falaj.console.page import ROOT
from falaj.console.session_store import SESSION_S
from falaj.console.view import Look
from falaj.console.words import LANGUAGES, preferred
from falaj.core.errors import Denied, Unauthenticated

Header = tuple[bytes, bytes]
_SESSION = re.compile(r"[A-Za-z0-9_-]{43}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{8,4096}")
_PURPOSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}")
_HEX = re.compile(r"[0-9a-f]{64}")


def owns(path: bytes) -> bool:
    """True for what is asked of the console."""
    return path == b"/" or path == ROOT.encode() or path.startswith(f"{ROOT}/".encode())


def session_id(ask: Ask, secure: bool) -> str | None:
    """The session id of a request for a page, empty where it shows none; None where the path is not the console's.

    No call of the API is made by a cookie, and no page by an Authorization header.
    """
    if not owns(ask.path):
        return None
    shown = cookie(ask, _name(ask, secure))
    return shown if _SESSION.fullmatch(shown) else ""


def check_token(token: str) -> str:
    """The token from the sign-in form; Unauthenticated if it is not formed like one."""
    if not _TOKEN.fullmatch(token):
        raise Unauthenticated("that is no token", "copy it again, whole")
    return token


def begin(ask: Ask, session: str, secure: bool) -> Header:
    """Sign a browser in."""
    return _put_session(ask, session, secure, SESSION_S)


def end(ask: Ask, secure: bool) -> Header:
    """Sign it out."""
    return _put_session(ask, "", secure, 0)


def form_key(session: str) -> str:
    """What a form of this session carries: only whoever holds the cookie can know it."""
    return hmac.new(session.encode(), b"falaj console form", hashlib.sha256).hexdigest()


def check_form(ask: Ask, session: str, given: str) -> None:
    """Denied unless a page of ours sent this form: its key, and where the browser says it came from."""
    check_origin(ask)
    if not _HEX.fullmatch(given) or not hmac.compare_digest(given, form_key(session)):
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


def _name(ask: Ask, secure: bool) -> str:
    """Cookies know no ports: two platforms on one machine must not sign each other out. With TLS the browser itself
    sees to it (`__Host-`) that no other host and no page without TLS has set the cookie."""
    port = ask.headers.get(b"host", b"").rpartition(b":")[2]
    name = f"falaj-{port.decode()}" if port.isdigit() else "falaj-session"
    return f"__Host-{name}" if secure else name


def _put_session(ask: Ask, session: str, secure: bool, age_s: float) -> Header:
    return put(_name(ask, secure), session, secure, age_s, path="/" if secure else ROOT)


def put(name: str, value: str, secure: bool, age_s: float, path: str = ROOT, site: str = "Strict") -> Header:
    """The header that sets a cookie for so long; one of no time is gone."""
    flags = f"Path={path}; HttpOnly; SameSite={site}; Max-Age={int(age_s)}{'; Secure' if secure else ''}"
    return b"set-cookie", f"{name}={value}; {flags}".encode()
