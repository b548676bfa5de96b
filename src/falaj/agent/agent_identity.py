"""Who the agent is: a key that it makes and never shows, and a certificate over it by the platform's authority."""

import json
import os
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

from falaj.api.remote_client import RemoteClient
from falaj.api.tls import create_client_context, read_expiry
from falaj.core.errors import Invalid, NotFound
from falaj.fleet.agents import Membership

RENEW_BEFORE_S = 3 * 86_400.0


class AgentIdentity:
    """The files of an agent: agent.key, agent.pem, ca.pem, agent.json, in a folder that only its owner may enter."""

    def __init__(self, home: str, address: str, zone: str, ca: str = "") -> None:
        if urlsplit(address).scheme != "https":
            raise Invalid(f"{address[:100]!r} is no address that an agent joins", "agents speak TLS only: https://…")
        self.home, self.address, self.zone = Path(home).expanduser(), address.rstrip("/"), zone
        self._configured_ca = ca
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.home.chmod(0o700)
        saved_state = self._read_state()
        if saved_state and (saved_state["zone"], saved_state["address"]) != (zone, self.address):
            raise Invalid(f"this agent belongs to zone {saved_state['zone']}", "use another --home for another zone")

    @property
    def joined(self) -> bool:
        """True when it has a certificate that still counts by its date."""
        path = self.home / "agent.pem"
        return path.exists() and read_expiry(str(path)) > time.time()

    def join(self, token: str) -> None:
        """Take an invitation up. A key that is there is kept: a join that broke off is repeated with a new token."""
        if not token:
            raise NotFound("this agent has not joined yet", "falaj agents invite gives a token: --token, FALAJ_JOIN")
        with RemoteClient(self.address, ca=self._configured_ca) as client:
            self._save_membership(client.agents.join(self.zone, token, self._make_signing_request()))

    def renew(self) -> bool:
        """Get the next certificate when this one ends soon; True when there is a new one."""
        if read_expiry(str(self.home / "agent.pem")) - time.time() > RENEW_BEFORE_S:
            return False
        paths = (self._get_path("ca.pem"), self._get_path("agent.pem"), self._get_path("agent.key"))
        with RemoteClient(self.address, ca=self._configured_ca or paths[0], cert=paths[1], key=paths[2]) as client:
            self._save_membership(client.agents.renew(self._make_signing_request()))
        return True

    def context(self) -> ssl.SSLContext:
        """What its connections speak: TLS 1.3, both sides shown."""
        ca = self._configured_ca or self._get_path("ca.pem")
        return create_client_context(ca, self._get_path("agent.pem"), self._get_path("agent.key"))

    def _save_membership(self, membership: Membership) -> None:
        self._write_file("ca.pem", membership.ca.encode())
        self._write_file("agent.pem", membership.cert.encode())
        self._write_file("agent.json", json.dumps({"zone": self.zone, "address": self.address}).encode())

    def _make_signing_request(self) -> str:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        path = self.home / "agent.key"
        if not path.exists():
            private_key = ec.generate_private_key(ec.SECP256R1())
            key_format, no_encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            self._write_file(
                "agent.key", private_key.private_bytes(serialization.Encoding.PEM, key_format, no_encryption)
            )
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise Invalid("agent.key is no key of an agent", "remove it, and join anew")
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def _read_state(self) -> dict[str, str]:
        path = self.home / "agent.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def _get_path(self, name: str) -> str:
        return str(self.home / name)

    def _write_file(self, name: str, data: bytes) -> None:
        write_private_file(self.home / name, data)


def write_private_file(path: Path, data: bytes, *, is_durable: bool = True) -> None:
    """Whole or not at all, and never readable by others for a moment. What only has to outlive this process, and not
    the machine, need not be durable."""
    draft_path = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft_path.unlink(missing_ok=True)
    with os.fdopen(os.open(draft_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        if is_durable:
            os.fsync(file.fileno())
    draft_path.replace(path)
