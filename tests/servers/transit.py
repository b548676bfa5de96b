"""A contract server for the transit API of Vault and OpenBao, over TLS: strict about requests, exact about answers.

No Vault or OpenBao binary comes from a package registry, so the `vault:` provider is tested against this: the paths,
fields, statuses and error texts that the API's public documentation gives. Any request outside them is noted in
`surprises`, which every test using it must find empty.
"""

import base64
import binascii
import datetime as dt
import ipaddress
import json
import os
import re
import secrets
import ssl
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.x509.oid import NameOID

_FIELDS = {
    "create": {
        "type",
        "derived",
        "convergent_encryption",
        "exportable",
        "allow_plaintext_backup",
        "auto_rotate_period",
    },
    "encrypt": {"plaintext", "associated_data", "context", "key_version", "nonce", "type", "convergent_encryption"},
    "decrypt": {"ciphertext", "associated_data", "context", "nonce"},
    "rotate": set(),
    "config": {
        "min_decryption_version",
        "min_encryption_version",
        "deletion_allowed",
        "exportable",
        "allow_plaintext_backup",
    },
    "read": set(),
}
_PATH = re.compile(r"/v1/transit/(keys|encrypt|decrypt)/([A-Za-z0-9-]+)(?:/(rotate|config))?")


class Refused(Exception):
    """An answer that is not a success."""

    def __init__(self, status: int, *errors: str) -> None:
        super().__init__(status)
        self.status, self.errors = status, list(errors)


class TransitServer:
    """One transit engine. `upsert` False acts as a policy without the create capability; `mode` breaks it."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self.keys: dict[str, dict[str, Any]] = {}
        self.upsert = True
        self.mode = "ok"
        self.surprises: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.folder = Path(tempfile.mkdtemp(prefix="falaj-transit-"))
        self.ca = str(self.folder / "ca.pem")
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.socket = _tls(self.folder).wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The address of the mount, without a token."""
        return f"https://127.0.0.1:{self._server.server_address[1]}/transit"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for file in self.folder.iterdir():
            file.unlink()
        self.folder.rmdir()

    def answer(self, method: str, path: str, token: str | None, body: bytes) -> tuple[int, dict[str, Any] | None]:
        """Status and JSON for one request, as the documentation has them."""
        with self._lock:
            self.requests.append((method, path))
            if self.mode == "sealed":
                raise Refused(503, "Vault is sealed")
            if token != self.token:
                raise Refused(403, "permission denied")
            match = _PATH.fullmatch(path)
            if match is None:
                raise Refused(404)
            what, name, sub = match.groups()
            act = sub or ({"GET": "read", "POST": "create"}.get(method, "") if what == "keys" else what)
            if act not in _FIELDS or (method == "POST") is (act == "read"):
                raise Refused(405, "unsupported operation")
            fields = json.loads(body) if body else {}
            if not isinstance(fields, dict) or set(fields) - _FIELDS[act]:
                self.surprises.append(f"{method} {path} with {sorted(fields)}")
            return getattr(self, f"_{act}")(name, fields)

    def _create(self, name: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        if fields.get("type", "aes256-gcm96") != "aes256-gcm96":
            self.surprises.append(f"key of type {fields['type']}")
        self.keys.setdefault(name, {"versions": {1: AESGCM.generate_key(256)}, "min": 1})
        return self._read(name, {})

    def _read(self, name: str, _: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        if name not in self.keys:
            raise Refused(404)
        key = self.keys[name]
        data = {
            "type": "aes256-gcm96",
            "deletion_allowed": False,
            "derived": False,
            "exportable": False,
            "allow_plaintext_backup": False,
            "keys": {str(v): int(time.time()) for v in key["versions"] if v >= key["min"]},
            "min_decryption_version": key["min"],
            "min_encryption_version": 0,
            "name": name,
            "supports_encryption": True,
            "supports_decryption": True,
            "supports_derivation": True,
            "supports_signing": False,
            "imported": False,
        }
        return 200, {"data": data}

    def _rotate(self, name: str, _: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        if name not in self.keys:
            raise Refused(404)
        versions = self.keys[name]["versions"]
        versions[max(versions) + 1] = AESGCM.generate_key(256)
        return 204, None

    def _config(self, name: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        key = self.keys[name]
        least = fields.get("min_decryption_version", key["min"])
        if not 1 <= least <= max(key["versions"]):
            raise Refused(400, f"cannot set min decryption version of {least}")
        key["min"] = least
        return 204, None

    def _encrypt(self, name: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        if name not in self.keys:
            if not self.upsert:
                raise Refused(400, "encryption key not found")
            self._create(name, {})
        versions = self.keys[name]["versions"]
        nonce, version = os.urandom(12), max(versions)
        sealed = AESGCM(versions[version]).encrypt(
            nonce, _bytes(fields, "plaintext"), _bytes(fields, "associated_data")
        )
        return 200, {
            "data": {
                "ciphertext": f"vault:v{version}:{base64.b64encode(nonce + sealed).decode()}",
                "key_version": version,
            }
        }

    def _decrypt(self, name: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        if name not in self.keys:
            raise Refused(400, "encryption key not found")
        match = re.fullmatch(r"vault:v(\d+):(.+)", str(fields.get("ciphertext", "")))
        if match is None:
            raise Refused(400, "invalid ciphertext: no prefix")
        key, version = self.keys[name], int(match[1])
        if version < key["min"]:
            raise Refused(400, "ciphertext or signature version is disallowed by policy (too old)")
        if version not in key["versions"]:
            raise Refused(400, "invalid ciphertext: version is too new")
        try:
            sealed = base64.b64decode(match[2])
            plain = AESGCM(key["versions"][version]).decrypt(
                sealed[:12], sealed[12:], _bytes(fields, "associated_data")
            )
        except binascii.Error as error:
            raise Refused(400, "invalid ciphertext: could not decode base64") from error
        except (InvalidTag, ValueError) as error:
            raise Refused(400, "cipher: message authentication failed") from error
        return 200, {"data": {"plaintext": base64.b64encode(plain).decode()}}


def _bytes(fields: dict[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(fields.get(name, ""), validate=True)
    except (binascii.Error, TypeError) as error:
        raise Refused(400, f"failed to base64-decode {name}") from error


def _handler(transit: TransitServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def log_message(self, *_: object) -> None:
            """Requests carry keys: nothing is logged."""

        def _serve(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if transit.mode == "redirect":
                self._send(307, None, {"Location": transit.url.replace("https:", "http:")})
            elif transit.mode == "nonsense":
                self._send(200, {"hello": "world"})
            else:
                try:
                    self._send(*transit.answer(method, self.path, self.headers.get("X-Vault-Token"), body))
                except Refused as refused:
                    self._send(refused.status, {"errors": refused.errors})

        def _send(self, status: int, answer: dict[str, Any] | None, headers: dict[str, str] | None = None) -> None:
            data = (
                b""
                if answer is None
                else json.dumps(answer | {"request_id": secrets.token_hex(8), "warnings": None}).encode()
            )
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _tls(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "transit contract")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context
