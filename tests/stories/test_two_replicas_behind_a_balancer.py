"""docs/operate/replicas.md, followed as it is written, with the addresses of this machine."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import falaj
from falaj.api.tls import ensure_local_certificate
from tests.replica import Replica
from tests.servers.haproxy import program
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_ports, wait_until
from tests.servers.seaweed import SeaweedServer

pytestmark = pytest.mark.timeout(240)
PAGE = (Path(__file__).parents[2] / "docs" / "operate" / "replicas.md").read_text()
WAIT_S = 90.0


def read_block(language: str, containing: str) -> str:
    """The only block of this language on the page that contains these words."""
    (block,) = (text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if containing in text)
    return str(block)


def replace_addresses(text: str, addresses: dict[str, str]) -> str:
    """The text with every address of the page replaced; an address that the page no longer names is an error."""
    for written, real in addresses.items():
        assert written in text, f"the page no longer says {written}"
        text = text.replace(written, real)
    return text


@dataclass(frozen=True)
class Machines:
    """What the page takes as given: a database server, an object store, certificates, and ports for everything."""

    folder: Path
    postgres: PostgresServer
    bucket: str
    environment: dict[str, str]
    ports: dict[str, int]

    def write_settings(self, name: str) -> Path:
        """The settings of one machine, in a home of its own."""
        home = self.folder / name
        home.mkdir(mode=0o700)
        addresses = {
            "db.example": f"127.0.0.1:{self.postgres.port}",
            "s3://falaj-data?region=me-central-1": self.bucket,
            "/srv/falaj/keys": str(self.folder / "keys"),
            "0.0.0.0:8470": f"127.0.0.1:{self.ports[f'{name} api']}",
            "0.0.0.0:8471": f"127.0.0.1:{self.ports[f'{name} gateway']}",
            "https://falaj.example:8443": f"https://localhost:{self.ports['balancer gateway']}",
            '"https://falaj.example"': f'"https://localhost:{self.ports["balancer"]}"',
            "falaj.example": "localhost",
            "/etc/falaj": str(self.folder / "certificates"),
            "drain_s = 12": "drain_s = 1",
        }
        (home / "falaj.toml").write_text(replace_addresses(read_block("toml", "store ="), addresses))
        return home

    def write_balancer(self) -> Path:
        """The configuration of HAProxy."""
        addresses = {
            "0.0.0.0:443": f"127.0.0.1:{self.ports['balancer']}",
            "0.0.0.0:8443": f"127.0.0.1:{self.ports['balancer gateway']}",
            "falaj.example": "localhost",
            "10.0.0.11:8470": f"127.0.0.1:{self.ports['first api']}",
            "10.0.0.12:8470": f"127.0.0.1:{self.ports['second api']}",
            "10.0.0.11:8471": f"127.0.0.1:{self.ports['first gateway']}",
            "10.0.0.12:8471": f"127.0.0.1:{self.ports['second gateway']}",
        }
        file = self.folder / "haproxy.cfg"
        file.write_text(replace_addresses(read_block("haproxy", "listen falaj"), addresses))
        return file


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    names = [f"{name} {part}" for name in ("first", "second") for part in ("api", "gateway")]
    ports = dict(zip([*names, "balancer", "balancer gateway"], free_ports(), strict=False))
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    issued = ensure_local_certificate(str(tmp_path / "authority"), ["localhost"], time.time())
    for name, path in {"server.pem": issued.cert, "server.key": issued.key, "ca.pem": issued.ca}.items():
        (certificates / name).write_bytes(Path(path).read_bytes())
        (certificates / name).chmod(0o600)
    with PostgresServer() as postgres, SeaweedServer() as objects:
        options = f"endpoint={objects.endpoint}&region=us-east-1&allow_http=true"
        bucket = f"{objects.create_bucket().url}?{options}"
        for statement in read_block("sql", "CREATE DATABASE").strip().splitlines():
            postgres.execute(statement)
        yield Machines(tmp_path, postgres, bucket, dict(objects.environment), ports)


def run_falaj(line: str, home: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """One command line of the page, with this machine's home."""
    arguments = line.replace("/var/lib/falaj", str(home)).split()[1:]
    command = [sys.executable, "-m", "falaj", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_the_page_leads_to_two_replicas_that_stand_in_for_each_other(machines: Machines) -> None:
    commands = read_block("sh", "falaj doctor").strip().splitlines()
    homes = {name: machines.write_settings(name) for name in ("first", "second")}
    environment = {**os.environ, **machines.environment}
    with subprocess.Popen([program(), "-db", "-f", str(machines.write_balancer())]) as balancer:
        try:
            examined = run_falaj(commands[0], homes["first"], environment)
            assert examined.returncode == 0, examined.stdout + examined.stderr
            follow_the_rest(machines, homes, environment)
        finally:
            balancer.terminate()


def follow_the_rest(machines: Machines, homes: dict[str, Path], environment: dict[str, str]) -> None:
    """Start both replicas, sign in through the balancer, and stop one of them."""
    authority = str(machines.folder / "certificates" / "ca.pem")
    url = f"https://localhost:{machines.ports['balancer']}"
    login, status = read_block("sh", "falaj login").strip().splitlines()
    login = replace_addresses(login, {"https://falaj.example": url, "/etc/falaj/ca.pem": authority})
    with (
        Replica(homes["first"], machines.environment, listen="") as first,
        Replica(homes["second"], machines.environment, first=False, listen="") as second,
    ):
        signed_in = {**environment, "FALAJ_TOKEN": first.token, "XDG_CONFIG_HOME": str(machines.folder / "laptop")}
        wait_until(lambda: run_falaj(login, homes["first"], signed_in).returncode == 0, WAIT_S)
        assert "NOT READY" not in run_falaj(status, homes["first"], signed_in).stdout
        client = falaj.connect(url, token=first.token, ca=authority)
        try:
            wait_until(lambda: len(client.get("/status")["replicas"]) == 2, WAIT_S)
            stop_while_calls_go_on(client, second)
        finally:
            client.close()


def stop_while_calls_go_on(client: Any, replica: Replica) -> None:
    """Stop one replica as systemd does: every call is answered, before and after it has ended."""
    replica.process.send_signal(signal.SIGTERM)
    while replica.process.poll() is None:
        assert client.people.list()
    assert replica.process.returncode == 0
    assert client.people.list()
