"""Signatures of webhooks, out and in: Standard Webhooks, and GitHub's. Pure."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable, Mapping

from falaj.core.errors import Invalid, Unauthenticated

SIGNING_PREFIX = "whsec_"
TOLERANCE_S = 300.0
STYLE_STANDARD, STYLE_GITHUB = "standard", "github"
MAX_SIGNATURES = 8
_BAD_SIGNATURE = "the signature is not good"


def decode_secret(secret: bytes) -> bytes:
    """The key in a secret: base64 after `whsec_`, as Standard Webhooks writes it, or the bytes as they are."""
    text = secret.strip()
    if not text.startswith(SIGNING_PREFIX.encode()):
        return text
    try:
        key = base64.b64decode(text.removeprefix(SIGNING_PREFIX.encode()), validate=True)
    except binascii.Error as error:
        raise Invalid("the secret begins with whsec_ and is not base64", "make a new one") from error
    return key


def sign_message(secrets: Iterable[bytes], id_: str, at_s: int, body: bytes) -> dict[str, str]:
    """The three headers of Standard Webhooks: one signature for each secret, so that they can be changed in peace."""
    signed_content = b"%s.%d.%s" % (id_.encode(), at_s, body)
    signatures = [
        f"v1,{base64.b64encode(hmac.digest(decode_secret(secret), signed_content, 'sha256')).decode()}"
        for secret in secrets
    ]
    return {"webhook-id": id_, "webhook-timestamp": str(at_s), "webhook-signature": " ".join(signatures)}


def verify_webhook_signature(
    style: str, secrets: Iterable[bytes], headers: Mapping[str, str], body: bytes, now: float
) -> str:
    """What makes this message this one, to be heard once; Unauthenticated when it was not signed with one of ours."""
    return (
        _verify_github(secrets, headers, body)
        if style == STYLE_GITHUB
        else _verify_standard(secrets, headers, body, now)
    )


def _verify_standard(secrets: Iterable[bytes], headers: Mapping[str, str], body: bytes, now: float) -> str:
    id_, text, signature_header = (headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    at_s = int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else 0
    is_valid_id = 0 < len(id_) <= 256 and id_.isascii() and id_.isprintable() and "." not in id_
    signatures = [
        signature.removeprefix("v1,").encode()
        for signature in signature_header.split(" ")[:MAX_SIGNATURES]
        if signature.startswith("v1,")
    ]
    is_valid = False
    for secret in secrets:
        key = decode_secret(secret)
        expected = base64.b64encode(
            hmac.digest(key, b"%s.%d.%s" % (id_.encode("utf-8", "replace"), at_s, body), "sha256")
        )
        for signature in signatures:
            is_valid = hmac.compare_digest(expected, signature) or is_valid
    if not (is_valid and is_valid_id and abs(now - at_s) <= TOLERANCE_S):
        raise Unauthenticated(_BAD_SIGNATURE, "sign id.timestamp.body with the secret, now")
    return id_


def _verify_github(secrets: Iterable[bytes], headers: Mapping[str, str], body: bytes) -> str:
    signature = headers.get("x-hub-signature-256", "").removeprefix("sha256=").encode("utf-8", "replace")
    is_valid = False
    for secret in secrets:
        # Its key is the text itself, whatever it begins with.
        is_valid = (
            hmac.compare_digest(hmac.digest(secret.strip(), body, "sha256").hex().encode(), signature) or is_valid
        )
    if not is_valid:
        raise Unauthenticated(_BAD_SIGNATURE, "sign the body with the secret")
    # Its delivery id is not signed: what is the same body is the same message.
    return hashlib.sha256(body).hexdigest()
