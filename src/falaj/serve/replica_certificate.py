"""The certificate of an endpoint's replicas: made with the endpoint, signed by itself, and pinned by gateways."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

VALIDITY_DAYS = 3650
"""It is trusted by its fingerprint, which goes with the endpoint; there is nobody to ask for a new one in between."""


class ReplicaCertificate(NamedTuple):
    """PEM texts, and the SHA-256 by which gateways know the certificate."""

    cert: str
    private: str
    fingerprint: str


def create_certificate(name: str, now: float) -> ReplicaCertificate:
    """A certificate for replicas on other machines."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, valid_from = ec.generate_private_key(ec.SECP256R1()), datetime.fromtimestamp(now, UTC)
    subject_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject_name)
        .issuer_name(subject_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid_from - timedelta(days=1))
        .not_valid_after(valid_from + timedelta(days=VALIDITY_DAYS))
        .sign(key, hashes.SHA256())
    )
    private_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificate_der = certificate.public_bytes(serialization.Encoding.DER)
    certificate_pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    return ReplicaCertificate(certificate_pem, private_pem.decode(), hashlib.sha256(certificate_der).hexdigest())
