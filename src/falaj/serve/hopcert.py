"""The certificate of an endpoint's replicas: made with the endpoint, signed by itself, and pinned by gateways."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

LASTS_DAYS = 3650
"""It is trusted by its fingerprint, which goes with the endpoint; there is nobody to ask for a new one in between."""


class HopCert(NamedTuple):
    """PEM texts, and the SHA-256 by which gateways know the certificate."""

    cert: str
    private: str
    fingerprint: str


def new_cert(name: str, now: float) -> HopCert:
    """A certificate for replicas on other machines."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, begun = ec.generate_private_key(ec.SECP256R1()), datetime.fromtimestamp(now, UTC)
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    made = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begun - timedelta(days=1))
        .not_valid_after(begun + timedelta(days=LASTS_DAYS))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    shown = made.public_bytes(serialization.Encoding.DER)
    pem = made.public_bytes(serialization.Encoding.PEM).decode()
    return HopCert(pem, private.decode(), hashlib.sha256(shown).hexdigest())
