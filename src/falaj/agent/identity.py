"""Who the agent is: a key that it makes and never shows, and a certificate over it by the platform's authority."""

import json
import os
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

from falaj.api.client import RemotePlatform
from falaj.api.tls import client_context, expires_at
from falaj.core.errors import Invalid, NotFound
from falaj.fleet.agents import Membership

RENEW_BEFORE_S = 3 * 86_400.0


class Identity:
    """The files of an agent: agent.key, agent.pem, ca.pem, agent.json, in a folder that only its owner may enter."""

    def __init__(self, home: str, address: str, zone: str, ca: str = "") -> None:
        if urlsplit(address).scheme != "https":
            raise Invalid(f"{address[:100]!r} is no address that an agent joins", "agents speak TLS only: https://…")
        self.home, self.address, self.zone = Path(home).expanduser(), address.rstrip("/"), zone
        self._given_ca = ca
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.home.chmod(0o700)
        known = self._about()
        if known and (known["zone"], known["address"]) != (zone, self.address):
            raise Invalid(f"this agent belongs to zone {known['zone']}", "use another --home for another zone")

    @property
    def joined(self) -> bool:
        """True when it has a certificate that still counts by its date."""
        path = self.home / "agent.pem"
        return path.exists() and expires_at(str(path)) > time.time()

    def join(self, token: str) -> None:
        """Take an invitation up. A key that is there is kept: a join that broke off is repeated with a new token."""
        if not token:
            raise NotFound("this agent has not joined yet", "falaj agents invite gives a token: --token, FALAJ_JOIN")
        with RemotePlatform(self.address, ca=self._given_ca) as there:
            self._take(there.agents.join(self.zone, token, self._request()))

    def renew(self) -> bool:
        """Get the next certificate when this one ends soon; True when there is a new one."""
        if expires_at(str(self.home / "agent.pem")) - time.time() > RENEW_BEFORE_S:
            return False
        paths = (self._path("ca.pem"), self._path("agent.pem"), self._path("agent.key"))
        with RemotePlatform(self.address, ca=self._given_ca or paths[0], cert=paths[1], key=paths[2]) as there:
            self._take(there.agents.renew(self._request()))
        return True

    def context(self) -> ssl.SSLContext:
        """What its connections speak: TLS 1.3, both sides shown."""
        ca = self._given_ca or self._path("ca.pem")
        return client_context(ca, self._path("agent.pem"), self._path("agent.key"))

    def _take(self, made: Membership) -> None:
        self._write("ca.pem", made.ca.encode())
        self._write("agent.pem", made.cert.encode())
        self._write("agent.json", json.dumps({"zone": self.zone, "address": self.address}).encode())

    def _request(self) -> str:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        path = self.home / "agent.key"
        if not path.exists():
            made = ec.generate_private_key(ec.SECP256R1())
            form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            self._write("agent.key", made.private_bytes(serialization.Encoding.PEM, form, none))
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise Invalid("agent.key is no key of an agent", "remove it, and join anew")
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def _about(self) -> dict[str, str]:
        path = self.home / "agent.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _path(self, name: str) -> str:
        return str(self.home / name)

    def _write(self, name: str, data: bytes) -> None:
        write_private(self.home / name, data)


def write_private(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Whole or not at all, and never readable by others for a moment. What only has to outlive this process, and not
    the machine, need not be durable."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    beside.replace(path)
