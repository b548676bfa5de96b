"""`falaj up` keeps a gateway from the first endpoint on: started, started again, ended with its parent, TLS or not."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from falaj.gateway.supervisor import GatewaySupervisor
from falaj.gateway.upstream_connection import _create_tls_context
from falaj.serve import endpoint_repository
from falaj.serve.records import ReplicaAddress
from tests.gateway.stand_in import Ground, Replica
from tests.gateway.test_doors import INFER, until


def gone(pid: int) -> bool:
    """Whether a process is no more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def doors(ground: Ground) -> Any:
    """Where the gateway says it is."""
    with ground.town.house.ledger.read(ground.ctx) as tx:
        return endpoint_repository.read_gateway_addresses(tx)


def test_a_gateway_is_kept_and_ends_with_its_keeper(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "house")
    replica = Replica(ground.loop, 1, "one")
    ground.add(replica)
    keeper = GatewaySupervisor(ground.town.house, ("--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0"))
    keeper.start()
    try:
        first = until(lambda: doors(ground).http)
        asked = httpx.post(first + INFER, headers=ground.headers(), content=b"x", trust_env=False)
        assert asked.json()["echo"] == "x"
        pid = keeper.pid
        os.kill(pid, signal.SIGKILL)
        second = until(lambda: doors(ground).http != first and doors(ground).http)
        assert keeper.pid not in (0, pid)
        assert httpx.get(second + "/v2/health/ready", trust_env=False).status_code == 200
        pid = keeper.pid
    finally:
        keeper.stop()
        ground.close()
    assert gone(pid)


def test_nothing_is_started_while_nobody_has_an_endpoint(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "house")
    with ground.town.house.ledger.write(ground.ctx) as tx:
        record = tx.need(endpoint_repository.Ref.parse("endpoint:fraud/score"))
        tx.delete(record.key, record.rev)
        tx.emit("serve.removed", record.ref)
    keeper = GatewaySupervisor(ground.town.house)
    assert not keeper._has_endpoints()
    keeper.stop()
    ground.close()


@pytest.mark.slow
def test_a_gateway_ends_when_its_parent_is_killed_and_speaks_tls(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "house")
    replica = Replica(ground.loop, 1, "one")
    ground.add(replica)
    command = [sys.executable, "-m", "falaj", "--at", str(tmp_path / "house"), "--json", "gateway", "--tls"]
    command += ["--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--until-eof"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        said = json.loads(child.stdout.readline())
        trusting = ssl.create_default_context(cafile=str(tmp_path / "house" / "tls" / "ca.pem"))
        with httpx.Client(verify=trusting, trust_env=False, headers=ground.headers()) as client:
            assert said["http"].startswith("https://")
            assert client.post(said["http"] + INFER, content=b"x").json()["echo"] == "x"
        child.stdin.close()
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        ground.close()


def test_an_address_from_outside_needs_tls(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "falaj", "--at", str(tmp_path), "gateway", "--listen", "0.0.0.0:0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "there is no TLS" in ended.stderr


def test_an_address_that_is_taken_is_said_and_nothing_stays_open(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "falaj", "--at", str(tmp_path), "gateway", "--listen", "127.0.0.1:0"]
        command += ["--grpc", f"127.0.0.1:{taken.getsockname()[1]}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 8
    assert "the gateway cannot listen on" in ended.stderr


@pytest.mark.parametrize(
    ("host", "fingerprint"),
    [("10.0.0.1", ""), ("example.com", ""), ("169.254.169.254", "ab" * 32), ("::", "ab" * 32), ("", "")],
)
def test_no_address_is_called_that_is_no_replicas(host: str, fingerprint: str) -> None:
    from falaj.core.errors import Invalid

    with pytest.raises(Invalid):
        _create_tls_context(ReplicaAddress("one", 1, host, 80, fingerprint))


def test_a_replica_elsewhere_is_known_by_its_certificate(tmp_path: Path) -> None:
    from falaj.api.tls import create_server_context, ensure_local_certificate
    from falaj.gateway.upstream_connection import UpstreamConnection
    from falaj.infer.inference_server import certificate_fingerprint
    from falaj.oip.upstream_server import UpstreamServer
    from tests.gateway.echo import KEY, Echo
    from tests.gateway.stand_in import Looping

    made = ensure_local_certificate(str(tmp_path), ("localhost",), time.time())
    looping = Looping()
    echo = Echo(1, "tls")

    async def links() -> tuple[UpstreamConnection, UpstreamConnection]:
        server = UpstreamServer(echo, echo, KEY)
        looping.servers.append(server)
        context = create_server_context(made)
        context.verify_mode = ssl.CERT_NONE
        host, port = await server.start("127.0.0.1", 0, context)
        good, bad = certificate_fingerprint(made.cert), "00" * 32
        one, two = (
            UpstreamConnection(ReplicaAddress("a", 1, host, port, shown), KEY, lambda _: None) for shown in (good, bad)
        )
        return one, two

    one, two = looping.do(links())
    until(lambda: one.client.ready)
    assert not two.client.ready
    for link in (one, two):
        looping.loop.call_soon_threadsafe(link.leave)
    until(lambda: not one.client.ready)
    looping.end()


def test_gateway_that_cannot_listen_names_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "falaj", "--at", str(tmp_path / "house"), "gateway", "--grpc", "127.0.0.1:0"]
        done = subprocess.run(
            [*command, "--listen", f"127.0.0.1:{port}"], capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode != 0
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "FALAJ_GATEWAY" in done.stderr
