"""Jose: reading a signed token (JWT) strictly, before anyone looks at its signature. No key, no cryptography here.

The forgeries of the last decade lived in what readers tolerated: a key inside the token, an extension that nobody
understood, a claim said twice. What is not plain is refused.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from falaj.core.data import dataclass
from falaj.core.errors import Unauthenticated

SKEW_S = 60.0
_PART = r"[A-Za-z0-9_-]+"
_MAX_CHARS = 16_384
_HEADER = frozenset({"alg", "kid", "typ", "x5t", "x5t#S256"})
_TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
_HINT = "sign in again"


@dataclass(frozen=True, slots=True)
class Unverified:
    """What a token says. Nothing of it is true before its signature is checked."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]


def is_signed_token(token: str) -> bool:
    """True when the text has the shape of a signed token, so that somebody should judge it."""
    return token.startswith("eyJ") and "." in token


def read_token(token: str, algorithms: Sequence[str]) -> Unverified:
    """Header and claims, or Unauthenticated: for keys or extensions in the header, names said twice, odd coding."""
    parts = token.split(".")
    if len(token) > _MAX_CHARS or len(parts) != 3 or not all(re.fullmatch(_PART, part) for part in parts):
        raise refused("the token is not three plain parts")
    header, claims = _object(parts[0]), _object(parts[1])
    if not _HEADER.issuperset(header):
        raise refused("the token's header carries a key, a link to one or an extension")
    if header.get("alg") not in algorithms:
        raise refused("the token is signed by an algorithm that is not accepted")
    if not isinstance(header.get("typ", "JWT"), str) or header.get("typ", "JWT").lower() not in _TYPES:
        raise refused("the token is of another type")
    if not isinstance(header.get("kid", ""), str):
        raise refused("the token's key id is no text")
    return Unverified(header, claims)


def check_times(claims: Mapping[str, Any], now: float, longest_s: float) -> None:
    """Unauthenticated unless the token is alive now, was issued in the past and lives no longer than `longest_s`."""
    expires, issued, begins = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
    if expires is None or issued is None:
        raise refused("the token does not say when it was issued and when it ends")
    if not now < expires:
        raise refused("the token has expired")
    if issued > now + SKEW_S or (begins is not None and begins > now + SKEW_S):
        raise refused("the token is from the future")
    if expires - issued > longest_s:
        raise refused("the token lives longer than is accepted")


def audiences(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Whom the token is for."""
    value = claims.get("aud")
    values = value if isinstance(value, list) else [value]
    return tuple(item for item in values if isinstance(item, str) and item)


def text_claim(claims: Mapping[str, Any], name: str) -> str:
    """A claim that must be a text of sensible length."""
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 512 or not value.isprintable():
        raise refused(f"the token has no proper {name}")
    return value


def refused(message: str) -> Unauthenticated:
    """The one way to say no to a token."""
    return Unauthenticated(message, _HINT)


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise refused(f"the token's {name} is no time")
    return float(value)


def _object(part: str) -> dict[str, Any]:
    try:
        data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        value = json.loads(data, object_pairs_hook=_once, parse_constant=_nothing)
    except (ValueError, RecursionError) as error:
        raise refused("the token cannot be read") from error
    if not isinstance(value, dict):
        raise refused("the token cannot be read")
    # Several texts decode to the same bytes; only the one an issuer writes is accepted.
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != part:
        raise refused("the token is not coded as an issuer codes it")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _nothing(text: str) -> Any:
    raise ValueError(text)
