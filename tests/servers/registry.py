"""A real OCI registry: the distribution server, its blobs in a temporary folder."""

import json
import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx

from tests.servers.process import Missing, Server, find_program, free_ports

_INSTALL = "the OCI registry is missing: apt-get install docker-registry"
USER, PASSWORD = "amal", "sluice-gate-7"
# bcrypt of the password above, which is used nowhere else.
_HTPASSWD = f"{USER}:$2b$05$abcdefghijklmnopqrstuu.qn0ovueP4aRZNeHhNUoGurk1yLVhZu\n"


class RegistryServer(Server):
    """One registry. `auth` is a section of its configuration, or "htpasswd" for a registry that asks for a password."""

    def __init__(self, auth: str | dict[str, Any] = "", tls: tuple[Path, Path] | None = None) -> None:
        self._program = program()
        super().__init__()
        self._auth, self._tls = auth, tls
        self.port = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.host}"

    @property
    def storage(self) -> Path:
        """Where blobs lie: `<storage>/docker/registry/v2/blobs/sha256/ab/abcd…/data`."""
        return self.folder / "data"

    def blob(self, digest: str) -> Path:
        hexa = digest.removeprefix("sha256:")
        return self.storage / "docker/registry/v2/blobs/sha256" / hexa[:2] / hexa / "data"

    def prepare(self) -> None:
        self.port = next(free_ports())
        (self.folder / "htpasswd").write_text(_HTPASSWD)
        http: dict[str, Any] = {"addr": self.host, "secret": "a-secret-of-tests"}
        if self._tls is not None:
            http["tls"] = {"certificate": str(self._tls[0]), "key": str(self._tls[1])}
        config: dict[str, Any] = {
            "version": 0.1,
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(self.storage)}},
            "http": http,
        }
        if self._auth == "htpasswd":
            config["auth"] = {"htpasswd": {"realm": "tests", "path": str(self.folder / "htpasswd")}}
        elif self._auth:
            config["auth"] = self._auth
        # JSON is YAML.
        (self.folder / "config.yml").write_text(json.dumps(config))

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "OTEL_TRACES_EXPORTER": "none"}
        command = [self._program, "serve", str(self.folder / "config.yml")]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environment)

    def ready(self) -> bool:
        verify = ssl.create_default_context(cafile=self._tls[0]) if self._tls else True
        try:
            return httpx.get(f"{self.url}/v2/", trust_env=False, timeout=2, verify=verify).status_code in (200, 401)
        except httpx.HTTPError:
            return False

    def requests(self, method: str) -> int:
        """How many requests with this method it has answered."""
        return (self.folder / "log").read_text(errors="replace").count(f'"{method} /v2/')


def program() -> str:
    """The path of the registry; Missing if it is not installed."""
    try:
        return find_program("docker-registry")
    except Missing as missing:
        raise Missing(_INSTALL) from missing
