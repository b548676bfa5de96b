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

MAX_CLOCK_SKEW_S = 60.0
_PART_PATTERN = r"[A-Za-z0-9_-]+"
_MAX_CHARS = 16_384
_ALLOWED_HEADERS = frozenset({"alg", "kid", "typ", "x5t", "x5t#S256"})
_ALLOWED_TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
_HINT = "sign in again"


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """What a token says. Nothing of it is true before its signature is checked."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]


def is_signed_token(token: str) -> bool:
    """True when the text has the shape of a signed token, so that somebody should judge it."""
    return token.startswith("eyJ") and "." in token


def read_token(token: str, algorithms: Sequence[str]) -> UnverifiedToken:
    """Header and claims, or Unauthenticated: for keys or extensions in the header, names said twice, odd coding."""
    parts = token.split(".")
    if len(token) > _MAX_CHARS or len(parts) != 3 or not all(re.fullmatch(_PART_PATTERN, part) for part in parts):
        raise invalid_token_error("the token is not three plain parts")
    header, claims = _decode_json_part(parts[0]), _decode_json_part(parts[1])
    if not _ALLOWED_HEADERS.issuperset(header):
        raise invalid_token_error("the token's header carries a key, a link to one or an extension")
    if header.get("alg") not in algorithms:
        raise invalid_token_error("the token is signed by an algorithm that is not accepted")
    if not isinstance(header.get("typ", "JWT"), str) or header.get("typ", "JWT").lower() not in _ALLOWED_TYPES:
        raise invalid_token_error("the token is of another type")
    if not isinstance(header.get("kid", ""), str):
        raise invalid_token_error("the token's key id is no text")
    return UnverifiedToken(header, claims)


def check_token_times(claims: Mapping[str, Any], now: float, max_lifetime_s: float) -> None:
    """Unauthenticated unless the token is alive now, was issued in the past and lives no longer than
    `max_lifetime_s`."""
    expires_at, issued_at, not_before = (_read_time_claim(claims, name) for name in ("exp", "iat", "nbf"))
    if expires_at is None or issued_at is None:
        raise invalid_token_error("the token does not say when it was issued and when it ends")
    if not now < expires_at:
        raise invalid_token_error("the token has expired")
    if issued_at > now + MAX_CLOCK_SKEW_S or (not_before is not None and not_before > now + MAX_CLOCK_SKEW_S):
        raise invalid_token_error("the token is from the future")
    if expires_at - issued_at > max_lifetime_s:
        raise invalid_token_error("the token lives longer than is accepted")


def list_audiences(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Whom the token is for."""
    value = claims.get("aud")
    values = value if isinstance(value, list) else [value]
    return tuple(item for item in values if isinstance(item, str) and item)


def read_text_claim(claims: Mapping[str, Any], name: str) -> str:
    """A claim that must be a text of sensible length."""
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 512 or not value.isprintable():
        raise invalid_token_error(f"the token has no proper {name}")
    return value


def invalid_token_error(message: str) -> Unauthenticated:
    """The one way to say no to a token."""
    return Unauthenticated(message, _HINT)


def _read_time_claim(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e11:
        raise invalid_token_error(f"the token's {name} is no time")
    return float(value)


def _decode_json_part(part: str) -> dict[str, Any]:
    try:
        data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        value = json.loads(data, object_pairs_hook=_reject_duplicate_names, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise invalid_token_error("the token cannot be read") from error
    if not isinstance(value, dict):
        raise invalid_token_error("the token cannot be read")
    # Several texts decode to the same bytes; only the one an issuer writes is accepted.
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != part:
        raise invalid_token_error("the token is not coded as an issuer codes it")
    return value


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice")
    return members


def _reject_constant(text: str) -> Any:
    raise ValueError(text)
