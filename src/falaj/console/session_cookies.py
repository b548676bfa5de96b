"""Cookies of the console: the session id, which no script can read and no other site can send, and how pages look.

The session cookie holds a random id (`session_store`), which opens pages of the console and nothing else.
"""

import hashlib
import hmac
import re
from urllib.parse import quote, unquote

from falaj.api.routes import RequestContext
from falaj.console.page import ROOT_PATH
from falaj.console.page_view import DisplayPreferences
from falaj.console.session_store import SESSION_LIFETIME_S
from falaj.console.words import LANGUAGES, choose_language
from falaj.core.errors import Denied, Unauthenticated

CookieHeader = tuple[bytes, bytes]
_SESSION_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{43}")
_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/=-]{8,4096}")
_PURPOSE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,63}")
_HEX_PATTERN = re.compile(r"[0-9a-f]{64}")


def owns_path(path: bytes) -> bool:
    """True for what is asked of the console."""
    return path == b"/" or path == ROOT_PATH.encode() or path.startswith(f"{ROOT_PATH}/".encode())


def read_session_id(request: RequestContext, is_secure: bool) -> str | None:
    """The session id of a request for a page, empty where it shows none; None where the path is not the console's.

    No call of the API is made by a cookie, and no page by an Authorization header.
    """
    if not owns_path(request.path):
        return None
    cookie_value = read_cookie(request, _get_session_cookie_name(request, is_secure))
    return cookie_value if _SESSION_ID_PATTERN.fullmatch(cookie_value) else ""


def check_token(token: str) -> str:
    """The token from the sign-in form; Unauthenticated if it is not formed like one."""
    if not _TOKEN_PATTERN.fullmatch(token):
        raise Unauthenticated("that is no token", "copy it again, whole")
    return token


def make_session_cookie(request: RequestContext, session_id: str, is_secure: bool) -> CookieHeader:
    """Sign a browser in."""
    return _build_session_cookie(request, session_id, is_secure, SESSION_LIFETIME_S)


def clear_session_cookie(request: RequestContext, is_secure: bool) -> CookieHeader:
    """Sign it out."""
    return _build_session_cookie(request, "", is_secure, 0)


def compute_form_token(session_id: str) -> str:
    """What a form of this session carries: only whoever holds the cookie can know it."""
    return hmac.new(session_id.encode(), b"falaj console form", hashlib.sha256).hexdigest()


def check_form(request: RequestContext, session_id: str, form_token: str) -> None:
    """Denied unless a page of ours sent this form: its key, and where the browser says it came from."""
    check_origin(request)
    if not _HEX_PATTERN.fullmatch(form_token) or not hmac.compare_digest(form_token, compute_form_token(session_id)):
        raise Denied("this form is not from a page of yours", "load the page again and repeat")


def check_origin(request: RequestContext) -> None:
    """Denied unless the browser says that our own page sent this. The gate has refused other origins already."""
    if b"origin" not in request.headers and request.headers.get(b"sec-fetch-site") != b"same-origin":
        raise Denied("a form must say where it comes from", "use a browser that sends Origin")


def read_preferences(request: RequestContext) -> DisplayPreferences:
    """How this browser wants the console to be."""
    lang, theme, digits, purpose = [*unquote(read_cookie(request, "falaj-look")).split("|"), "", "", "", ""][:4]
    return DisplayPreferences(
        lang
        if lang in LANGUAGES
        else choose_language(request.headers.get(b"accept-language", b"").decode("ascii", "replace")),
        theme if theme in ("light", "dark") else "",
        digits == "indic",
        purpose if _PURPOSE_PATTERN.fullmatch(purpose) else "",
    )


def make_preferences_cookie(preferences: DisplayPreferences, is_secure: bool) -> CookieHeader:
    """Remember it for a year."""
    cookie_value = "|".join(
        (preferences.lang, preferences.theme, "indic" if preferences.indic else "", preferences.purpose)
    )
    return make_cookie("falaj-look", quote(cookie_value, safe=""), is_secure, 365 * 86_400)


def make_flash_cookie(kind: str, message: str, is_secure: bool) -> CookieHeader:
    """Something to say on the next page."""
    return make_cookie("falaj-said", quote(f"{kind}|{message[:600]}", safe=""), is_secure, 60)


def read_flash(request: RequestContext) -> tuple[str, str]:
    """What was to be said on this page: its kind, and the words."""
    kind, _, message = unquote(read_cookie(request, "falaj-said")).partition("|")
    return (kind, message) if kind in ("good", "warn", "bad") else ("", "")


def clear_flash_cookie(is_secure: bool) -> CookieHeader:
    """Said."""
    return make_cookie("falaj-said", "", is_secure, 0)


def read_cookie(request: RequestContext, cookie_name: str) -> str:
    """One cookie of a request, or nothing."""
    for part in request.headers.get(b"cookie", b"").decode("latin-1").split(";"):
        key, _, value = part.strip().partition("=")
        if key == cookie_name:
            return value
    return ""


def _get_session_cookie_name(request: RequestContext, is_secure: bool) -> str:
    """Cookies know no ports: two platforms on one machine must not sign each other out. With TLS the browser itself
    sees to it (`__Host-`) that no other host and no page without TLS has set the cookie."""
    port = request.headers.get(b"host", b"").rpartition(b":")[2]
    name = f"falaj-{port.decode()}" if port.isdigit() else "falaj-session"
    return f"__Host-{name}" if is_secure else name


def _build_session_cookie(request: RequestContext, session_id: str, is_secure: bool, max_age_s: float) -> CookieHeader:
    return make_cookie(
        _get_session_cookie_name(request, is_secure),
        session_id,
        is_secure,
        max_age_s,
        path="/" if is_secure else ROOT_PATH,
    )


def make_cookie(
    name: str, value: str, is_secure: bool, max_age_s: float, path: str = ROOT_PATH, same_site: str = "Strict"
) -> CookieHeader:
    """The header that sets a cookie for so long; one of no time is gone."""
    flags = f"Path={path}; HttpOnly; SameSite={same_site}; Max-Age={int(max_age_s)}{'; Secure' if is_secure else ''}"
    return b"set-cookie", f"{name}={value}; {flags}".encode()
