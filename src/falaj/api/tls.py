"""TLS: contexts that speak 1.3 only, and a small local authority for those who bring no certificates of their own.

The authority lives in `home/tls`; its key never leaves it. It signs the server's certificate, renews it before it
ends, and signs certificates for replicas and workers, who show them where `tls.mutual` is on.
"""

import datetime as dt
import fcntl
import hashlib
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from falaj.core.agent_relay import AGENT_URI
from falaj.core.data import dataclass
from falaj.core.errors import Invalid, NotFound
from falaj.core.settings import TlsSettings

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_VALID_DAYS, LEAF_VALID_DAYS, RENEW_BEFORE_DAYS = 3650, 90, 30
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_RESERVED_NAMES = ("ca", "server", "gateway")
_KEY_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
)


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """Where a certificate and its key lie, and until when it is good."""

    name: str
    cert: str
    key: str
    expires: float


class CountersignedCertificate(NamedTuple):
    """A certificate for the requester's key, its authority's certificate, its expiry, and the digest of the key."""

    cert: str
    ca: str
    expires: float
    key: str


class AgentCertificate(NamedTuple):
    """The verified client certificate of a TLS connection, where it names an agent."""

    name: str
    """The URI in it, as `countersign_request` wrote it."""
    fingerprint: bytes
    """SHA-256 of the certificate."""
    key: str
    """SHA-256 of its public key, in hexadecimal digits."""


def read_agent_certificate(connection: Any) -> AgentCertificate | None:
    """The certificate that the peer of an SSLObject proved to hold the key of; None where it names no agent."""
    names = [value for kind, value in (connection.getpeercert() or {}).get("subjectAltName", ()) if kind == "URI"]
    if len(names) != 1 or not str(names[0]).startswith(AGENT_URI):
        return None
    from cryptography import x509

    encoded: bytes = connection.getpeercert(True)
    key = x509.load_der_x509_certificate(encoded).public_key()
    return AgentCertificate(str(names[0]), hashlib.sha256(encoded).digest(), compute_key_digest(key))


def compute_key_digest(key: Any) -> str:
    """SHA-256 of a public key, in hexadecimal digits."""
    from cryptography.hazmat.primitives import serialization

    public_format = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, public_format)).hexdigest()


def create_server_context(tls: TlsSettings) -> ssl.SSLContext:
    """What a listener speaks: TLS 1.3, and with `mutual` only to callers whose certificate our authority signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    load_certificate_chain(context, tls)
    if tls.mutual and not tls.ca:
        raise Invalid(
            "tls.mutual is on and tls.ca is not set", "name the authority of your replicas' and workers' certificates"
        )
    if tls.ca:
        _load_authority(context, tls.ca)
        context.verify_mode = ssl.CERT_REQUIRED if tls.mutual else ssl.CERT_OPTIONAL
    return context


def create_client_context(ca: str = "", cert: str = "", key: str = "") -> ssl.SSLContext:
    """What our own clients speak: TLS 1.3, trusting `ca` (or the system), showing `cert` where it is given."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if ca:
        _load_authority(context, ca)
    if cert:
        load_certificate_chain(context, TlsSettings(cert=cert, key=key))
    return context


def load_certificate_chain(context: ssl.SSLContext, tls: TlsSettings) -> None:
    """Load certificate and key, anew when they were renewed."""
    try:
        context.load_cert_chain(tls.cert, tls.key or None)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(
            "the certificate or its key cannot be loaded", "check tls.cert and tls.key: PEM files that belong together"
        ) from error


def ensure_local_certificate(home: str, names: Iterable[str], now: float, process_kind: str = "server") -> TlsSettings:
    """The certificate of a process by the local authority, made or renewed if it must be.

    Each kind of process has a file of its own: they listen on different addresses and start at any time.
    """
    folder = _open_tls_folder(home)
    host_names = tuple(dict.fromkeys(names))
    cert, key = folder / f"{process_kind}.pem", folder / f"{process_kind}.key"
    with _lock_folder(folder):
        if not _is_still_valid(cert, host_names, now) or not key.exists():
            _issue_certificate(folder, process_kind, host_names, now, client=False)
    return TlsSettings(cert=str(cert), key=str(key), ca=str(folder / "ca.pem"))


def issue_client_certificate(home: str, name: str, now: float) -> IssuedCertificate:
    """A client certificate for a replica or a worker."""
    if not _NAME_PATTERN.fullmatch(name) or name in _RESERVED_NAMES:
        raise Invalid(
            f"{name[:80]!r} cannot be the name in a certificate",
            "letters, digits, dots and dashes, for example worker-7",
        )
    folder = _open_tls_folder(home)
    with _lock_folder(folder):
        expires = _issue_certificate(folder, name, (name,), now, client=True)
    return IssuedCertificate(name, str(folder / f"{name}.pem"), str(folder / f"{name}.key"), expires)


def countersign_request(home: str, request_pem: str, name: str, now: float, days: float) -> CountersignedCertificate:
    """A client certificate over somebody's own key, which never comes here: from their signing request, which proves
    that they hold it. What they ask to be called does not count; `name` stands in it as a URI, as in no other."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        signing_request = x509.load_pem_x509_csr(request_pem.encode())
    except ValueError as error:
        raise Invalid("that is no signing request", "send one in PEM; falaj agent makes it") from error
    key = signing_request.public_key()
    if (
        not signing_request.is_signature_valid
        or not isinstance(key, ec.EllipticCurvePublicKey)
        or key.curve.name != "secp256r1"
    ):
        raise Invalid("the signing request is not of a P-256 key that its sender holds", "let falaj agent make it")
    folder = _open_tls_folder(home)
    with _lock_folder(folder):
        ca_cert, ca_key = _load_or_create_authority(folder, now)
    builder = _start_builder(x509.Name([]), ca_cert.subject, key, now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_make_key_usage("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    san = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name)])
    builder = builder.add_extension(san, critical=True)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    cert = builder.add_extension(issuer, critical=False).sign(ca_key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    return CountersignedCertificate(
        cert.public_bytes(pem).decode(),
        ca_cert.public_bytes(pem).decode(),
        cert.not_valid_after_utc.timestamp(),
        compute_key_digest(key),
    )


def read_expiry(path: str) -> float:
    """When a certificate file ends."""
    try:
        return _load_cert(Path(path)).not_valid_after_utc.timestamp()
    except FileNotFoundError:
        raise NotFound("there is no certificate file", "start once with: falaj up --tls") from None


def list_local_names(host: str) -> tuple[str, ...]:
    """The names a server on this machine is called by."""
    hostname = socket.gethostname()
    names = ["localhost", "127.0.0.1", "::1", hostname]
    if host not in ("", "0.0.0.0", "::"):  # noqa: S104 # nosec B104 - compared with, not bound to
        names.append(host)
    else:
        names += _resolve_addresses(hostname)
    return tuple(dict.fromkeys(names))


def _resolve_addresses(name: str) -> list[str]:
    try:
        return sorted(
            {
                str(address_info[4][0]).partition("%")[0]
                for address_info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            }
        )
    except OSError:
        return []


def _load_authority(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as error:
        raise Invalid("the authority's certificate cannot be loaded", "check the path of the CA file") from error


def _open_tls_folder(home: str) -> Path:
    folder = Path(home) / "tls"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """One process at a time: two that start together must not make two authorities."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _load_or_create_authority(folder: Path, now: float) -> tuple["x509.Certificate", "ec.EllipticCurvePrivateKey"]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    cert_file, key_file = folder / "ca.pem", folder / "ca.key"
    if cert_file.exists() and key_file.exists():
        loaded: Any = serialization.load_pem_private_key(key_file.read_bytes(), None)
        return _load_cert(cert_file), loaded
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, f"Falaj local authority on {socket.gethostname()}"[:64])]
    )
    builder = _start_builder(name, name, key.public_key(), now, CA_VALID_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_make_key_usage("key_cert_sign", "crl_sign"), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    cert = builder.sign(key, hashes.SHA256())
    _write_atomically(key_file, _encode_private_key(key), 0o600)
    _write_atomically(cert_file, cert.public_bytes(serialization.Encoding.PEM), 0o644)
    return cert, key


def _issue_certificate(folder: Path, name: str, names: Sequence[str], now: float, *, client: bool) -> float:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    ca_cert, ca_key = _load_or_create_authority(folder, now)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = _start_builder(subject, ca_cert.subject, key.public_key(), now, LEAF_VALID_DAYS)
    key_usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_make_key_usage("digital_signature"), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([key_usage]), critical=False)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([_make_alternative_name(n) for n in names]), critical=False
    )
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
    )
    cert = builder.sign(ca_key, hashes.SHA256())
    _write_atomically(folder / f"{name}.key", _encode_private_key(key), 0o600)
    _write_atomically(folder / f"{name}.pem", cert.public_bytes(serialization.Encoding.PEM), 0o644)
    return cert.not_valid_after_utc.timestamp()


def _start_builder(
    subject: "x509.Name", issuer: "x509.Name", key: "ec.EllipticCurvePublicKey", now: float, days: float
) -> "x509.CertificateBuilder":
    from cryptography import x509

    start = dt.datetime.fromtimestamp(now, dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(start - dt.timedelta(minutes=5)).not_valid_after(start + dt.timedelta(days=days))


def _make_key_usage(*usages: str) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(**{usage: usage in usages for usage in _KEY_USAGES}, encipher_only=False, decipher_only=False)


def _make_alternative_name(name: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _is_still_valid(path: Path, names: Sequence[str], now: float) -> bool:
    from cryptography import x509

    if not path.exists():
        return False
    cert = _load_cert(path)
    alternative_names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    certified_names = {
        str(value) for kind in (x509.DNSName, x509.IPAddress) for value in alternative_names.get_values_for_type(kind)
    }
    return set(names) <= certified_names and cert.not_valid_after_utc.timestamp() - now > RENEW_BEFORE_DAYS * 86400


def _load_cert(path: Path) -> "x509.Certificate":
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise Invalid(
            "a certificate file cannot be read", "remove it and start again with --tls, or bring your own"
        ) from error


def _encode_private_key(key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())


def _write_atomically(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all, and never readable by others for a moment."""
    temporary_path = path.with_name(path.name + ".new")
    temporary_path.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    temporary_path.replace(path)
