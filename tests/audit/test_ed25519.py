"""The verifier's own Ed25519: RFC 8032's vectors, agreement with `cryptography`, and what must be refused."""

import random

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tests.audit.packs import verifier

# RFC 8032, section 7.1: public key, message, signature.
VECTORS = (
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe"
            "24655141438e7a100b"
        ),
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302a"
            "eeb00d291612bb0c00"
        ),
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed2"
            "8dc027beceea1ec40a"
        ),
    ),
)
PRIME, ORDER = verifier.FIELD_PRIME, verifier.GROUP_ORDER
# The encodings of the points of order 1, 2, 4 and 8.
SMALL_ORDER = (
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
)


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    valid: bool = verifier.verify_ed25519(public, signature, message)
    return valid


@pytest.mark.parametrize(("public", "message", "signature"), VECTORS)
def test_the_vectors_of_rfc_8032(public: str, message: str, signature: str) -> None:
    key, text, seal = bytes.fromhex(public), bytes.fromhex(message), bytes.fromhex(signature)
    assert verify(key, seal, text)
    assert not verify(key, seal, text + b"x")


def test_it_agrees_with_cryptography_on_good_and_broken_signatures() -> None:
    dice = random.Random(8032)
    for _ in range(20):
        private = Ed25519PrivateKey.from_private_bytes(dice.randbytes(32))
        public, message = private.public_key().public_bytes_raw(), dice.randbytes(dice.randrange(200))
        signature = private.sign(message)
        assert verify(public, signature, message)
        broken = bytearray(signature)
        broken[dice.randrange(64)] ^= 1 << dice.randrange(8)
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(bytes(broken), message)
            agreed = True
        except InvalidSignature:
            agreed = False
        assert verify(public, bytes(broken), message) is agreed is False


def test_a_signature_has_one_encoding() -> None:
    private = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    public, signature = private.public_key().public_bytes_raw(), private.sign(b"text")
    scalar = int.from_bytes(signature[32:], "little")
    for factor in (1, 2, 15):
        larger = scalar + factor * ORDER
        if larger < 2**256:
            assert not verify(public, signature[:32] + larger.to_bytes(32, "little"), b"text"), "S must be below L"


@pytest.mark.parametrize("encoded", SMALL_ORDER)
def test_a_key_or_a_commitment_of_small_order_is_refused(encoded: str) -> None:
    """With such a key, signatures hold for messages that nobody signed."""
    point = bytes.fromhex(encoded)
    identity = bytes.fromhex(SMALL_ORDER[0])
    for commitment in (point, identity):
        for message in (b"", b"any", b"text"):
            assert not verify(point, commitment + bytes(32), message)


@pytest.mark.parametrize("y", [PRIME, PRIME + 1, PRIME + 18, 2**255 - 1])
@pytest.mark.parametrize("sign", [0, 1])
def test_a_point_has_one_encoding(y: int, sign: int) -> None:
    encoded = (y | sign << 255).to_bytes(32, "little")
    assert verifier.decode_point(encoded) is None
    private = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    public, signature = private.public_key().public_bytes_raw(), private.sign(b"text")
    assert not verify(encoded, signature, b"text")
    assert not verify(public, encoded + signature[32:], b"text")


def test_bytes_of_any_other_length_are_refused() -> None:
    private = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    public, signature = private.public_key().public_bytes_raw(), private.sign(b"text")
    for key, seal in ((public[:-1], signature), (public + b"\0", signature), (public, signature[:-1]), (b"", b"")):
        assert not verify(key, seal, b"text")


def test_not_every_y_is_a_point() -> None:
    refused = [y for y in range(2, 60) if verifier.decode_point(y.to_bytes(32, "little")) is None]
    assert 10 < len(refused) < 50
    for y in refused:
        assert not verify(y.to_bytes(32, "little"), bytes(64), b"")
