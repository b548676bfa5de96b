"""Signatures of webhooks, out and in: Standard Webhooks, and GitHub's. Pure."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping

from falaj.core.errors import Invalid, Unauthenticated

PREFIX = "whsec_"
TOLERANCE_S = 300.0
STANDARD, GITHUB = "standard", "github"
MOST_SIGNATURES = 8
_REFUSED = "the signature is not good"


def key_of(secret: bytes) -> bytes:
    """The key in a secret: base64 after `whsec_`, as Standard Webhooks writes it, or the bytes as they are."""
    text = secret.strip()
    if not text.startswith(PREFIX.encode()):
        return text
    try:
        key = base64.b64decode(text.removeprefix(PREFIX.encode()), validate=True)
    except binascii.Error as error:
        raise Invalid("the secret begins with whsec_ and is not base64", "make a new one") from error
    return key


def headers_for(secrets: Iterable[bytes], id_: str, at_s: int, body: bytes) -> dict[str, str]:
    """The three headers of Standard Webhooks: one signature for each secret, so that they can be changed in peace."""
    signed = b"%s.%d.%s" % (id_.encode(), at_s, body)
    made = [f"v1,{base64.b64encode(hmac.digest(key_of(one), signed, 'sha256')).decode()}" for one in secrets]
    return {"webhook-id": id_, "webhook-timestamp": str(at_s), "webhook-signature": " ".join(made)}


def check(style: str, secrets: Iterable[bytes], headers: Mapping[str, str], body: bytes, now: float) -> str:
    """What makes this message this one, to be heard once; Unauthenticated when it was not signed with one of ours."""
    return _github(secrets, headers, body) if style == GITHUB else _standard(secrets, headers, body, now)


def _standard(secrets: Iterable[bytes], headers: Mapping[str, str], body: bytes, now: float) -> str:
    id_, text, given = (headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    at_s = int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else 0
    named = 0 < len(id_) <= 256 and id_.isascii() and id_.isprintable() and "." not in id_
    wanted = [one.removeprefix("v1,").encode() for one in given.split(" ")[:MOST_SIGNATURES] if one.startswith("v1,")]
    good = False
    for secret in secrets:
        key = key_of(secret)
        made = base64.b64encode(hmac.digest(key, b"%s.%d.%s" % (id_.encode("utf-8", "replace"), at_s, body), "sha256"))
        for one in wanted:
            good = hmac.compare_digest(made, one) or good
    if not (good and named and abs(now - at_s) <= TOLERANCE_S):
        raise Unauthenticated(_REFUSED, "sign id.timestamp.body with the secret, now")
    return id_


def _github(secrets: Iterable[bytes], headers: Mapping[str, str], body: bytes) -> str:
    given = headers.get("x-hub-signature-256", "").removeprefix("sha256=").encode("utf-8", "replace")
    good = False
    for secret in secrets:
        # Its key is the text itself, whatever it begins with.
        good = hmac.compare_digest(hmac.digest(secret.strip(), body, "sha256").hex().encode(), given) or good
    if not good:
        raise Unauthenticated(_REFUSED, "sign the body with the secret")
    # Its delivery id is not signed: what is the same body is the same message.
    return hashlib.sha256(body).hexdigest()
