"""Signatures: the vector of Standard Webhooks, rotation, GitHub's, and what is not good."""

import base64
import hashlib
import hmac

import pytest

from falaj.core.errors import Invalid, Unauthenticated
from falaj.flows.webhook_signatures import (
    STYLE_GITHUB,
    STYLE_STANDARD,
    decode_secret,
    sign_message,
    verify_webhook_signature,
)

SECRET = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'


def test_it_is_the_vector_that_the_standard_shows() -> None:
    made = sign_message([SECRET], ID, AT, BODY)
    assert made["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert verify_webhook_signature(STYLE_STANDARD, [SECRET], made, BODY, AT + 299) == ID


def test_while_keys_change_both_are_good() -> None:
    old, new = b"o" * 24, b"n" * 24
    both = sign_message([new, old], ID, AT, BODY)
    assert (
        verify_webhook_signature(STYLE_STANDARD, [old], both, BODY, AT)
        == verify_webhook_signature(STYLE_STANDARD, [new], both, BODY, AT)
        == ID
    )
    assert verify_webhook_signature(STYLE_STANDARD, [new, old], sign_message([old], ID, AT, BODY), BODY, AT) == ID


good = sign_message([b"k" * 24], ID, AT, BODY)
BAD = [
    {}, {**good, "webhook-id": "other"}, {**good, "webhook-timestamp": str(AT + 1)}, {**good, "webhook-signature": ""},
    {**good, "webhook-signature": good["webhook-signature"].replace("v1,", "v1a,")}, {**good, "webhook-id": ""},
    {**good, "webhook-timestamp": "soon"}, {**good, "webhook-timestamp": "9" * 40},
    {**good, "webhook-signature": "\u0661"},
    {**good, "webhook-signature": "v1,x " * 9 + good["webhook-signature"]}, {**good, "webhook-timestamp": "-5"},
]  # fmt: skip


@pytest.mark.parametrize("headers", BAD)
def test_what_was_not_signed_so_is_not_good(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        verify_webhook_signature(STYLE_STANDARD, [b"k" * 24], headers, BODY, AT)


@pytest.mark.parametrize(
    ("now", "body", "key"), [(AT + 301, BODY, b"k"), (AT - 301, BODY, b"k"), (AT, b"{}", b"k"), (AT, BODY, b"x")]
)
def test_late_early_changed_and_strange_ones_are_not_good(now: float, body: bytes, key: bytes) -> None:
    with pytest.raises(Unauthenticated):
        verify_webhook_signature(STYLE_STANDARD, [key * 24], good, body, now)


def test_github_signs_the_body() -> None:
    signed = {"x-hub-signature-256": "sha256=" + hmac.new(b"s", b"Hello", hashlib.sha256).hexdigest()}
    assert verify_webhook_signature(STYLE_GITHUB, [b"s"], signed, b"Hello", 0.0) == hashlib.sha256(b"Hello").hexdigest()
    for headers, body in ((signed, b"hello"), ({}, b"Hello"), ({"x-hub-signature": "sha1=1"}, b"Hello")):
        with pytest.raises(Unauthenticated):
            verify_webhook_signature(STYLE_GITHUB, [b"s"], headers, body, 0.0)
    ours = b"whsec_" + base64.b64encode(b"s")  # one that we made: its text is the key
    signed = {"x-hub-signature-256": "sha256=" + hmac.new(ours, b"Hello", hashlib.sha256).hexdigest()}
    assert verify_webhook_signature(STYLE_GITHUB, [ours], signed, b"Hello", 0.0)
    with pytest.raises(Invalid):
        decode_secret(b"whsec_!!")
